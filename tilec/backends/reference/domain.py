"""The points of a statement as a box of its index variables plus the conditions that the box does not imply."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Aggregate, Call, Expr, Index, Inside, Int, Pad, Statement, children
from tilec.ir.types import TensorType
from tilec.lattice.sets import bounds

Interval = tuple[Fraction | float, Fraction | float]


@dataclass(frozen=True)
class Condition:
    """`0 <= form < bound`, and form is an integer."""

    form: Affine
    bound: int


@dataclass(frozen=True)
class Slice:
    """Where one output axis is written: elements start, start + step, ... one for each value of `variable` (None: one)."""

    variable: str | None
    start: int
    step: int


@dataclass(frozen=True)
class Domain:
    """`low` and `extent` give each variable's range; `conditions` are those that do not hold on all of the box.

    `slices` is None where the output index is not one distinct variable an axis.
    """

    statement: Statement
    low: Mapping[str, int]
    extent: Mapping[str, int]
    conditions: tuple[Condition, ...]
    slices: tuple[Slice, ...] | None

    @property
    def masked(self) -> bool:
        return bool(self.conditions) or self.statement.guard is not None

    def output_variables(self) -> tuple[str, ...]:
        assert self.slices is not None
        return tuple(s.variable for s in self.slices if s.variable is not None)

    def reductions(self) -> tuple[str, ...]:
        written = set(self.output_variables())
        return tuple(v for v in self.low if v not in written)

    def interval(self, form: Affine) -> Interval:
        """Least and greatest value over the box."""
        low: Fraction | float = form.constant
        high: Fraction | float = form.constant
        for atom, c in form.terms:
            a, b = self._atom_interval(atom)
            low, high = (low + c * a, high + c * b) if c > 0 else (low + c * b, high + c * a)
        return low, high

    def _atom_interval(self, atom: Expr) -> Interval:
        match atom:
            case Index(name):
                return Fraction(self.low[name]), Fraction(self.low[name] + self.extent[name] - 1)
            case Call("mod", (_, n)) if linear(n).is_affine and not linear(n).terms:
                size = linear(n).constant
                return (Fraction(0), size - 1) if size > 0 else (size + 1, Fraction(0))
            case Call("clamp", (_, low, high)) if not linear(low).terms and not linear(high).terms:
                least, most = linear(low).constant, linear(high).constant
                return min(least, most), most
        return -math.inf, math.inf

    def holds(self, condition: Condition) -> bool:
        """Whether the box implies it."""
        if not condition.form.is_integral:
            return False
        low, high = self.interval(condition.form)
        return low >= 0 and high < condition.bound

    def inside(self, access: Access, types: Mapping[str, TensorType]) -> bool:
        """Whether the box implies that the access lies in its tensor."""
        return all(self.holds(c) for c in access_conditions(access, types))


def access_conditions(access: Access, types: Mapping[str, TensorType]) -> tuple[Condition, ...]:
    """The conditions under which the access itself lies in its tensor; those of elements in its index are apart."""
    return tuple(Condition(linear(e), n) for e, n in zip(access.index, types[access.tensor].shape, strict=True))


def constraining_accesses(e: Expr) -> Iterator[Access]:
    """Accesses that constrain the point: all but those that a `pad` wraps, and those in its index."""
    match e:
        case Pad():
            yield from constraining_accesses(e.value)
        case Aggregate():
            raise AssertionError("nested aggregations are statements of their own by now")
        case Access():
            yield e
            for i in e.index:
                yield from constraining_accesses(i)
        case _:
            for child in children(e):
                yield from constraining_accesses(child)


def size_of(e: Expr) -> int:
    assert isinstance(e, Int)
    return e.value


def build_domain(s: Statement, types: Mapping[str, TensorType]) -> Domain | None:
    """The domain of a bound statement, None where it has no valid point. Residue variables must have been replaced."""
    shapes = {name: t.shape for name, t in types.items()}
    ranges = bounds(s, shapes)
    if ranges is None:
        return None
    low = {v: a for v, (a, _) in ranges.items()}
    extent = {v: b - a + 1 for v, (a, b) in ranges.items()}
    box = Domain(s, low, extent, (), None)
    wanted: dict[Condition, None] = {}
    assert s.index is not None and s.sizes is not None
    for root in (s.body, *(() if s.guard is None else (s.guard,)), *s.index):
        for access in constraining_accesses(root):
            wanted.update(dict.fromkeys(access_conditions(access, types)))
    wanted.update(dict.fromkeys(Condition(linear(c.expr), signed(c.bound)) for c in s.constraints))
    wanted.update(
        dict.fromkeys(Condition(linear(e), size_of(n)) for e, n in zip(s.index, s.sizes, strict=True))
    )
    conditions = tuple(c for c in wanted if not box.holds(c))
    return Domain(s, low, extent, conditions, _slices(s, box))


def signed(e: Expr) -> int:
    """The value of an integer literal of either sign."""
    form = linear(e)
    assert not form.terms and form.constant.denominator == 1
    return int(form.constant)


def _slices(s: Statement, box: Domain) -> tuple[Slice, ...] | None:
    result: list[Slice] = []
    seen: set[str] = set()
    assert s.index is not None and s.sizes is not None
    for e, n in zip(s.index, s.sizes, strict=True):
        form = linear(e)
        names = form.variables()
        if not form.is_affine or not form.is_integral or len(names) > 1 or not seen.isdisjoint(names):
            return None
        if not box.holds(Condition(form, size_of(n))):
            return None
        if not names:
            result.append(Slice(None, int(form.constant), 1))
            continue
        (name,) = names
        step = int(form.coefficient(name))
        if step < 0:
            return None
        seen.add(name)
        result.append(Slice(name, int(form.constant) + step * box.low[name], step))
    return tuple(result)
