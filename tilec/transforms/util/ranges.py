"""How many values index variables have, by the axes along which they stand alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tilec.ir.index import linear
from tilec.ir.program import Access, Expr
from tilec.ir.types import Types

AxisPlace = tuple[Expr, int]  # a position, and how many there are


def axis_places(accesses: Iterable[Access], types: Types) -> Iterator[AxisPlace]:
    """The positions at which tensors are read, axis by axis."""
    return (place for a in accesses for place in zip(a.index, types[a.tensor].shape, strict=True))


def ranges_of(
    places: Iterable[AxisPlace], known: Mapping[str, int], passed: Callable[[Expr, int], bool] = lambda e, n: False
) -> dict[str, int] | None:
    """How many values, from 0 on, each variable has, those of `known` among them; None where two axes do not agree, or
    a position is no bare variable, unless it is `passed` over."""
    found = dict(known)
    for e, n in places:
        v = linear(e).bare
        if (v is None or found.setdefault(v, n) != n) and not passed(e, n):
            return None
    return found
