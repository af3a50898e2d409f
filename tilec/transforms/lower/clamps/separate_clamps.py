"""Sums written at several clamped places, one axis after the other.

The gradient of a filter whose edges are repeated,

    G[clamp(y + j), clamp(x + i)] = +(D[y, x] * K[j] * K[i])

adds up |j| |i| terms for each element, and has a part for each way in which the two places may lie inside or beyond an
end. Added up along one axis first, each axis has an inside and two ends of its own, and |i| + |j| terms:

    A[y, clamp(x + i)] = +(D[y, x] * K[i]); G[clamp(y + j), v] = +(A[y, v] * K[j])

Where indices tie no variable of one place to one of the other, and each element of what goes first has a term, this is
the same sum in another order. So are windows without clamps (`separate_windows`), which have fewer parts to save.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilec.ir.index import Affine, linear
from tilec.ir.infer import statement_type
from tilec.ir.program import Access, Call, Constraint, Expr, Float, Index, Int, Statement, index_variables, walk
from tilec.ir.types import NARROW, Types, is_floating
from tilec.lattice.sets import Box, Shapes, bounds_of, covers, domain, sizes_of
from tilec.transforms.lower.separate_windows import one_after_the_other
from tilec.transforms.util.factors import Factor, factors_of, quotient_of
from tilec.transforms.util.naming import Names, fresh_variable
from tilec.transforms.util.rewrite import at_variables, rounded_after

LEAST_SPARED = 8  # terms that storing and reading an element again is worth, where parts are saved as well


def is_clamp(row: Affine) -> bool:
    """Whether an index is clamped between two numbers."""
    match row.terms:
        case ((Call("clamp", (form, *ends)), c),) if c == 1 and not row.constant:
            return linear(form).is_affine and all(not linear(e).terms and linear(e).is_integral for e in ends)
    return False


def one_axis_first(s: Statement, types: Types, shapes: Shapes, names: Names) -> list[Statement] | None:
    """The statements that take the place of a sum written at several clamped places; None where it stays whole. The
    places of the other index are clamped numbers or affine."""
    written = s.index or ()
    clamped = [axis for axis, e in enumerate(written) if is_clamp(linear(e))]
    target = statement_type(s, types)
    if len(clamped) < 2 or s.guard is not None or not is_floating(target.dtype):
        return None
    if any(not isinstance(e, (Access, Call, Index, Int, Float)) for e in walk(s.body)):
        return None
    box = bounds_of(domain(s, shapes))
    orders = [] if box is None else [o for a in clamped if (o := _order(s, a, types)) is not None]
    spared = [(_terms_saved(o, box), o) for o in orders if box is not None]
    for gain, order in sorted(spared, key=lambda x: -x[0]):
        if gain >= LEAST_SPARED * math.prod(order.sizes) and _is_covered(order, s, shapes):
            return _separated(s, order, types, names)
    return None


@dataclass(frozen=True)
class _Order:
    """What goes first along `axis`: its `own` variables, the factors and constraints that have them, the `places` at
    which these read along other axes, and the `position` of its own axis among those; then what is left."""

    axis: int
    own: frozenset[str]
    position: int
    inner: tuple[Factor, ...]
    outer: tuple[Factor, ...]
    early: tuple[Constraint, ...]
    late: tuple[Constraint, ...]
    places: Mapping[Affine, int]
    width: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of what goes first."""
        return self.among(self.places.values(), self.width)

    def among(self, others: Iterable[Any], own: Any) -> tuple[Any, ...]:
        items = tuple(others)
        return (*items[: self.position], own, *items[self.position :])


def _order(s: Statement, axis: int, types: Types) -> _Order | None:
    factors = factors_of(s.body, types)
    indices = [e for f in factors for a in walk(f.value) if isinstance(a, Access) for e in a.index]
    written = s.index or ()
    rows = [e for k, e in enumerate(written) if k != axis]
    own = _tied(set(index_variables(written[axis])), [*indices, *rows, *(c.expr for c in s.constraints)])
    if own & set(index_variables(*rows)):
        return None
    inner = tuple(f for f in factors if own & set(index_variables(f.value)))
    places: dict[Affine, int] = {}
    position: int | None = None
    for f in inner:
        if _values(f.value) - own:
            return None
        for a in walk(f.value):
            if isinstance(a, Access):
                for e, n in zip(a.index, types[a.tensor].shape, strict=True):
                    form = linear(e)
                    if not form.is_affine:
                        return None
                    if own & set(form.variables()):
                        position = len(places) if position is None else position
                    elif form.terms:
                        places[form] = min(n, places.get(form, n))
    early = tuple(c for c in s.constraints if own & set(index_variables(c.expr)))
    return _Order(
        axis,
        frozenset(own),
        position or 0,
        inner,
        tuple(f for f in factors if f not in inner),
        early,
        tuple(c for c in s.constraints if c not in early),
        places,
        sizes_of(s)[axis],
    )


def _tied(own: set[str], indices: Iterable[Expr]) -> set[str]:
    """These variables and all that share an index with one of them, or with one of those."""
    groups = [set(index_variables(e)) for e in indices]
    while grown := [g for g in groups if g & own and not g <= own]:
        own = own.union(*grown)
    return own


def _values(e: Expr) -> set[str]:
    """The index variables that stand for their values in an expression."""
    if isinstance(e, Index):
        return {e.name}
    return {v for a in e.args for v in _values(a)} if isinstance(e, Call) else set()


def _terms_saved(order: _Order, box: Box) -> int:
    """How many terms there are less."""
    count = {v: high - low + 1 for v, (low, high) in box.items()}
    own = math.prod(n for v, n in count.items() if v in order.own)
    others = math.prod(n for v, n in count.items() if v not in order.own)
    return own * others - math.prod(order.places.values()) * own - others * order.width


def _is_covered(order: _Order, s: Statement, shapes: Shapes) -> bool:
    """Whether each element of what goes first has a term: a factor may be infinite where there is none."""
    (clamp, _), *_ = linear((s.index or ())[order.axis]).terms
    assert isinstance(clamp, Call)
    form, first, last = map(linear, clamp.args)
    h, inner = _inner(order, set(index_variables(*s.roots, *(s.index or ()))))
    index = order.among(map(Index, h), form.to_expr())
    sizes = tuple(map(Int, order.sizes))
    inside = Statement("", index, sizes, quotient_of(inner), "sum", constraints=order.early)
    return first.constant <= 0 and last.constant >= order.width - 1 and covers(inside, shapes)


def _inner(order: _Order, taken: set[str]) -> tuple[list[str], list[Factor]]:
    """Variables for the places of what goes first, and its factors there."""
    h = [fresh_variable("h", taken) for _ in order.places]
    at = dict(zip(order.places, h, strict=True))
    return h, [replace(f, value=at_variables(f.value, at)) for f in order.inner]


def _separated(s: Statement, order: _Order, types: Types, names: Names) -> list[Statement]:
    written, dtype = s.index or (), statement_type(s, types).dtype
    taken = set(index_variables(*s.roots, *written))

    h, inner = _inner(order, taken)
    v = Index(fresh_variable("v", taken))
    index, sizes = order.among(map(Index, h), written[order.axis]), tuple(map(Int, order.sizes))
    first = replace(s, index=index, sizes=sizes, constraints=order.early)
    last = replace(s, index=tuple(v if k == order.axis else e for k, e in enumerate(written)), constraints=order.late)
    read = order.among((form.to_expr() for form in order.places), v)
    first, last = one_after_the_other(first, inner, last, order.outer, read, dtype, types, names)
    return [first, *(rounded_after(last, dtype, names) if dtype in NARROW else [last])]
