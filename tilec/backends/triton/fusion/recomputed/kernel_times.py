"""What kernels of elementwise statements take, as an estimate: of two ways to share them out, which is faster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilec.backends.triton.fusion.fuse_producers import CACHED, LEAST_GAIN, MOST_READS
from tilec.backends.triton.fusion.invariants import INSTRUCTIONS, costly_instructions
from tilec.cost import H200, size_in_bytes
from tilec.ir.index import distinct_variables
from tilec.ir.program import Access, Call, Expr, Inside, Statement, children, index_variables, reads_itself
from tilec.ir.types import ITEM_BYTES, Types

Together = tuple[tuple[Statement, ...], frozenset[str]]  # statements, and the outputs that are stored


def faster(made: Sequence[Together], apart: Sequence[Together], types: Types) -> bool:
    """Whether some kernels take clearly less time than others, those aside that are the same."""
    same = {*made} & {*apart}
    times = [[_seconds(k, types) for k in kernels if k not in same] for kernels in (made, apart)]
    together, before = (None if None in found else sum(t or 0 for t in found) for found in times)
    return together is not None and (before is None or before >= LEAST_GAIN * together)


def _seconds(kernel: Together, types: Types) -> float | None:
    """None for one that reads too much."""
    statements, stored = kernel
    own = {s.output for s in statements}
    found = [e for s in statements for root in s.roots for e in _values(root)]
    read = dict.fromkeys(e for e in found if isinstance(e, Access) and e.tensor not in own)
    moved = sum(size_in_bytes(types[n]) for n in ({a.tensor for a in read} | stored) if n in types)
    if any(distinct_variables(s.index) is None or reads_itself(s) for s in statements):
        return moved / H200.memory + H200.launch
    if len(read) > MOST_READS:
        return None
    extent: dict[str, int] = {}
    for s in statements:
        extent |= zip(distinct_variables(s.index) or (), types[s.output].shape, strict=True)
    cached = sum(_points(a, extent) * ITEM_BYTES[types[a.tensor].dtype] for a in read)
    each = 2 * len(read) + sum(max(1, costly_instructions(e, types)) for e in {e for e in found if isinstance(e, Call)})
    points = max(math.prod(types[s.output].shape) for s in statements)
    return max(moved / H200.memory, cached / CACHED / H200.memory, points * each / INSTRUCTIONS) + H200.launch


def _values(e: Expr) -> Iterator[Expr]:
    """Subexpressions that are computed: neither places nor what `in` asks about."""
    if not isinstance(e, Inside):
        yield e
        for x in () if isinstance(e, Access) else children(e):
            yield from _values(x)


def _points(a: Access, extent: dict[str, int]) -> int:
    return math.prod(extent.get(v, 1) for v in set(index_variables(*a.index)))
