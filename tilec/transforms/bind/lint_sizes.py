"""Index variables that most likely were meant to run over equal sizes, and do not.

`C[i, j] = sum(A[i, k] * B[k, j])` with 3 columns of A and 5 rows of B is legal: three points count, and two rows of B
are never read. Nothing in the text asks for that. It does where sizes are written, where a constraint or a condition
limits the points, and where an index is shifted, strided or padded, so those are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.errors import SizeMistake
from tilec.ir.program import Access, Aggregate, Expr, Index, Pad, Program, children, index_variables, reads_itself
from tilec.ir.types import TensorType


def mismatches(program: Program, types: Mapping[str, TensorType]) -> Iterator[SizeMistake]:
    """One a variable of a statement whose sizes are left out; `types` are those of all tensors."""
    for s in program.statements:
        if s.index is None or s.sizes is not None or s.constraints or s.guard is not None or reads_itself(s):
            continue
        left = index_variables(*s.index)
        summed = [v for v in index_variables(s.body) if v not in left]
        yield from _in_scope(s.body, summed, types)


def _in_scope(body: Expr, variables: Sequence[str], types: Mapping[str, TensorType]) -> Iterator[SizeMistake]:
    for v in variables:
        found: dict[str, tuple[int, Access]] = {}
        if _only_bare(body, v, types, found) and len({n for n, _ in found.values()}) > 1:
            yield _mistake(v, found)
    yield from _nested(body, types)


def _nested(e: Expr, types: Mapping[str, TensorType]) -> Iterator[SizeMistake]:
    if isinstance(e, Aggregate):
        plain = e.guard is None and not e.constraints
        yield from _in_scope(e.body, e.bound if plain else (), types)
        return
    for child in children(e):
        yield from _nested(child, types)


def _only_bare(e: Expr, v: str, types: Mapping[str, TensorType], found: dict[str, tuple[int, Access]]) -> bool:
    """Does v stand nowhere but as a whole index? Notes the sizes of the dimensions, by tensor."""
    match e:
        case Index(name):
            return name != v
        case Pad():
            return v not in index_variables(e)
        case Aggregate() if v in e.bound:
            return True
        case Aggregate() if e.guard is not None or e.constraints:
            return v not in index_variables(e)
        case Access():
            for d, i in enumerate(e.index):
                if isinstance(i, Index) and i.name == v:
                    if e.tensor not in types:  # read by another name: a statement that only copies is no tensor
                        return False
                    found.setdefault(f"dimension {d} of {e.tensor}", (types[e.tensor].shape[d], e))
                elif v in index_variables(i):
                    return False
            return True
    return all([_only_bare(child, v, types, found) for child in children(e)])


def _mistake(v: str, found: Mapping[str, tuple[int, Access]]) -> SizeMistake:
    sizes = ", ".join(f"{n} ({place})" for place, (n, _) in found.items())
    least = min(n for n, _ in found.values())
    first, *others = (access.span for _, access in found.values())
    return SizeMistake(
        f"`{v}` stands as an index of different sizes: {sizes}; only the first {least} of each count",
        first,
        hint=f"declare the inputs' sizes to have them checked, or say that it is meant: ..., {v} < {least}",
        others=tuple(span for span in others if span is not None),
    )
