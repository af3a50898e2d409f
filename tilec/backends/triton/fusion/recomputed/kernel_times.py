"""What kernels of elementwise statements take, as an estimate: of two ways to share them out, which is faster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tilec.backends.triton.fusion.fuse_producers import CACHED, LEAST_GAIN, MOST_READS, time_of_all
from tilec.backends.triton.fusion.invariants import INSTRUCTIONS, costly_instructions
from tilec.backends.triton.plan.sizes import VECTOR_BYTES
from tilec.cost import H200, size_in_bytes
from tilec.ir.index import Affine, distinct_variables, linear
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Statement,
    children,
    index_variables,
    reads_itself,
)
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import ITEM_BYTES, Types

LEAST_BYTES = 4  # bytes that a read takes of a line, at least
WAITS = 3.5  # bytes of cached lines over those of memory from which on kernels wait for caches
NARROW_BYTES = 2  # of an element
PARTS_OF_VECTOR = (4, 2)  # elements of narrow ones that are read at once
DIVISION = 24  # instructions, those of its rare cases beside it
FusedKernel = tuple[tuple[Statement, ...], frozenset[str]]  # statements, and the outputs that are stored


def faster(made: Sequence[FusedKernel], apart: Sequence[FusedKernel], types: Types) -> bool:
    """Whether some kernels take clearly less time than others, those aside that are the same."""
    same = {*made} & {*apart}
    times = [[_seconds(k, types) for k in kernels if k not in same] for kernels in (made, apart)]
    together, before = map(time_of_all, times)
    return together is not None and (before is None or before >= LEAST_GAIN * together)


def _seconds(kernel: FusedKernel, types: Types) -> float | None:
    """None for one that reads too much."""
    statements, stored = kernel
    read = reads_around(statements)
    moved = sum(size_in_bytes(types[n]) for n in ({a.tensor for a in read} | stored) if n in types)
    if any(distinct_variables(s.index) is None or reads_itself(s) for s in statements):
        return moved / H200.memory + H200.launch
    if len(read) > MOST_READS:
        return None
    extent: dict[str, int] = {}
    for s in statements:
        extent |= zip(distinct_variables(s.index) or (), types[s.output].shape, strict=True)
    fastest = next((v for v in reversed(extent) if extent[v] > 1), "")
    points = max(types[s.output].numel for s in statements)
    vectors = len(statements) == 1 or takes_vectors(statements, stored, fastest, types)
    cached = points * cached_bytes(read, fastest, types, vectors)
    calls = {e for s in statements for e in computed(s) if isinstance(e, Call)}
    each = 2 * len(read) + sum(_instructions(e, types) for e in calls)
    return max(moved / H200.memory, cached / CACHED / H200.memory, points * each / INSTRUCTIONS) + H200.launch


def _instructions(e: Call, types: Types) -> float:
    division = e.function == "div" and not isinstance(e.args[1], Int | Float)
    return DIVISION if division else max(1.0, costly_instructions(e, types))


def computed(s: Statement) -> Iterator[Expr]:
    """Subexpressions that are computed: neither places nor what `in` asks about."""
    pending = [*s.roots]
    while pending:
        e = pending.pop()
        if not isinstance(e, Inside):
            yield e
            pending += () if isinstance(e, Access) else children(e)


def reads_around(statements: Sequence[Statement]) -> list[Access]:
    """What statements that share a kernel read from outside, each place once."""
    own = {s.output for s in statements}
    read = (e for s in statements for e in computed(s) if isinstance(e, Access))
    return list(dict.fromkeys(a for a in read if a.tensor not in own))


def cached_bytes(read: Iterable[Access], fastest: str, types: Types, vectors: bool) -> int:
    """What the caches deliver for an element of each of these, in bytes: whole lines. Where threads take vectors, what
    lies a step beside them is read element by element, a vector apart; 16-bit elements that lie a part of a vector
    beside, in such parts."""
    total = 0
    for a in read:
        size = ITEM_BYTES[types[a.tensor].dtype]
        along = [linear(e) for e in a.index if fastest in index_variables(e)]
        parts = (VECTOR_BYTES // size, *(PARTS_OF_VECTOR if size == NARROW_BYTES else ()))
        part = next((n for n in parts if all(_in_vectors(form, n) for form in along)), 1)
        total += 0 if not along else VECTOR_BYTES // part if vectors else max(size, LEAST_BYTES)
    return total


def _in_vectors(form: Affine, vector: int) -> bool:
    """Whether what lies at neighbouring values of a variable is read as vectors of so many elements: at the variable,
    at whole vectors from it, or at its rest by a number of them."""
    if form.bare is not None:
        return True
    if is_symbolic(form.constant) or form.constant % vector:
        return False
    match [atom for atom, c in form.terms if c % vector], form.terms:
        case [Index() as v], _:
            return form.coefficient(v.name) == 1
        case [Call("mod", (x, Int(n))) as e], terms:
            return (e, 1) in terms and n % vector == 0 and _in_vectors(linear(x), vector)
    return False


def takes_vectors(statements: Sequence[Statement], stored: Collection[str], fastest: str, types: Types) -> bool:
    """Whether threads of a kernel take vectors along the variable along which memory runs: not where so much is read
    beside them, in 16 bits, that caches take longer than memory. In 32 bits what is computed for each place of an
    element alone takes as long."""
    read = reads_around(statements)
    moved = sum(ITEM_BYTES[types[n].dtype] for n in {a.tensor for a in read} | {*stored})
    vectors, single = (cached_bytes(read, fastest, types, whole) for whole in (True, False))
    larger = any(ITEM_BYTES[types[a.tensor].dtype] > NARROW_BYTES for a in read)
    return larger or vectors <= WAITS * moved or vectors < 2 * single
