"""Exact sets of integer points: ranges of index variables, whether two points meet, whether an output is filled.

A domain is a list of conditions `form is an integer and 0 <= form < bound`. It falls apart into connected components of
variables, which are decided one by one: by elimination where that is exact, anything else by isl, with a cache since
equal components (the dimensions of one convolution) come back often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tilec.errors import InternalMistake, UnboundIndex
from tilec.ir.constraining import constraining
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Constraint, Expr, Int, Program, Statement, expressions, index_variables, walk
from tilec.ir.rational import Fraction
from tilec.lattice import projection
from tilec.lattice.hermite import rank
from tilec.lattice.projection import Inequality, Inexact
from tilec.lattice.questions import (
    InRange,
    IslText,
    box_facts,
    contained,
    end_of,
    fills,
    image_contained,
    injective,
    is_bounded,
    is_empty,
)

Shapes = Mapping[str, tuple[int, ...]]
Box = dict[str, tuple[int, int]]
Interval = tuple[Fraction | float, Fraction | float]


@dataclass(frozen=True)
class IntegerSet:
    """Integer points of `variables` at which every condition holds. The conditions on tensors' elements, `dependent`,
    are kept apart: what is computed here is what holds whatever the elements are."""

    variables: tuple[str, ...]
    conditions: tuple[InRange, ...]
    dependent: tuple[InRange, ...] = ()


def depends_on_data(form: Affine) -> bool:
    """Does the form hold a tensor's element?"""
    return any(isinstance(e, Access) for atom in form.atoms() for e in walk(atom))


def domain_of(
    roots: Sequence[Expr],
    shapes: Shapes,
    constraints: Sequence[Constraint] = (),
    index: Sequence[Expr] = (),
    sizes: Sequence[int] = (),
    variables: Sequence[str] | None = None,
    own: str | None = None,
) -> IntegerSet:
    """Points at which every access of `roots` and `index` lies inside its tensor, `index` inside `sizes`, and the
    constraints hold. `variables`: all free ones unless given; `own`: the tensor whose reads constrain nothing."""
    found: dict[InRange, None] = {}
    dependent: dict[InRange, None] = {}
    pairs = list(zip(index, sizes, strict=True))
    for access in constraining(*index, *roots, own=own):
        pairs.extend(zip(access.index, shapes[access.tensor], strict=True))
    for c in constraints:
        if not isinstance(c.bound, Int):
            raise InternalMistake("the bound of a constraint is no literal", c.span)
        pairs.append((c.expr, c.bound.value))
    for e, bound in pairs:
        form = linear(e)
        (dependent if depends_on_data(form) else found).setdefault(InRange(form, bound))
    if variables is None:
        variables = index_variables(*index, *roots, *(c.expr for c in constraints))
    return IntegerSet(tuple(variables), tuple(found), tuple(dependent))


def interval_of(form: Affine, of_atom: Callable[[Any], tuple[Any, Any]]) -> Interval:
    """Least and greatest value of a form whose variables and other atoms have these."""
    low: Fraction | float = form.constant
    high: Fraction | float = form.constant
    for atom, c in form.terms:
        a, b = of_atom(atom)
        low, high = (low + c * a, high + c * b) if c > 0 else (low + c * b, high + c * a)
    return low, high


def implied(condition: InRange, of_atom: Callable[[Any], tuple[Any, Any]]) -> bool:
    """Do such values of variables and other atoms meet the condition, as far as intervals tell?"""
    if not condition.form.is_integral:
        return False
    low, high = interval_of(condition.form, of_atom)
    return low >= 0 and high < condition.bound


def sizes_of(s: Statement) -> tuple[int, ...]:
    """The literal sizes of a bound statement."""
    if s.sizes is None or not all(isinstance(n, Int) for n in s.sizes):
        raise InternalMistake(f"the sizes of {s.output} are not known", s.span)
    return tuple(n.value for n in s.sizes if isinstance(n, Int))


def shapes_of(program: Program) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a bound program."""
    shapes = {s.output: sizes_of(s) for s in program.statements}
    for i in program.inputs:
        dims = tuple(d for d in i.dims or () if isinstance(d, int))
        if i.dims is None or len(dims) < len(i.dims):
            raise InternalMistake(f"the shape of {i.name} is not known", i.span)
        shapes[i.name] = dims
    return shapes


def domain(s: Statement, shapes: Shapes) -> IntegerSet:
    """Valid points of a bound statement; guards and conditions on data are ignored."""
    variables = index_variables(*expressions(s if s.init is None else replace(s, init=None)))
    return domain_of(s.roots, shapes, s.constraints, s.index or (), sizes_of(s), variables, s.output)


def bounds(s: Statement, shapes: Shapes, fixed: Mapping[str, int] | None = None) -> Box | None:
    """Exact inclusive range of each index variable over the valid points of a bound statement, None if there are none.
    `fixed` variables hold the given value."""
    return bounds_of(domain(s, shapes), fixed)


def bounds_of(d: IntegerSet, fixed: Mapping[str, int] | None = None) -> Box | None:
    """Exact inclusive range of each variable over a domain's points, None if it is empty. UnboundIndex if infinite."""
    box: Box = {}
    for part in _components(_fix(d, fixed)):
        ranges = part.ranges()
        if ranges is None:
            return None
        box.update(zip(part.variables, ranges, strict=True))
    box.update({name: (value, value) for name, value in (fixed or {}).items() if name in d.variables})
    return {name: box[name] for name in d.variables}


def is_box(d: IntegerSet, box: Box) -> bool:
    """Is every integer point of the box in the domain? (Conditions on data are ignored.)"""
    return all(part.contains([box[v] for v in part.variables]) for part in _components(d))


def writes_conflict(s: Statement, shapes: Shapes) -> bool:
    """Are there two valid points of a bound statement that write one element? Guards do not weaken it."""
    d = domain(s, shapes)
    rows = [linear(e) for e in s.index or ()]
    if any(map(depends_on_data, rows)):
        return True
    if bounds_of(d) is None:
        return False
    return any(not part.injective(part.rows) for part in _components(d, rows))


def points_meet(parts: Sequence[IntegerSet], s: Statement) -> bool:
    """Do two points of the union of these sets write one element of a bound statement?"""
    rows = [linear(e) for e in s.index or ()]
    if any(map(depends_on_data, rows)):
        return True
    names = {v: f"x{i}" for i, v in enumerate(parts[0].variables)}
    writer = IslText(names)
    text = " or ".join(f"({writer.text(d.conditions, rows)})" for d in parts)
    return not injective(len(names), len(rows), text, *writer.numbers)


def covers(s: Statement, shapes: Shapes) -> bool:
    """Is every element of a bound statement's output surely written?"""
    sizes = sizes_of(s)
    if 0 in sizes:
        return True
    d = domain(s, shapes)
    if s.guard is not None or d.dependent or bounds_of(d) is None:
        return False
    rows = [linear(e) for e in s.index or ()]
    size = dict(zip(rows, sizes, strict=True))
    if len(size) < len(rows):  # O[i, i] reaches a diagonal only
        return max(sizes) == 1
    constant = all(size[row] == 1 for row in rows if not _form_variables(row))
    return constant and all(part.fills(part.rows, [size[r] for r in part.rows]) for part in _components(d, rows))


def reaches(d: IntegerSet, other: IntegerSet, index: Sequence[Expr]) -> bool:
    """Does some point of `d` write every element that a point of `other`, over the same variables, does? `index` is
    the output's, without data."""
    names, rows = {v: f"x{i}" for i, v in enumerate(d.variables)}, [linear(e) for e in index]
    writer = IslText(names)
    wanted, written = (writer.text(part.conditions, rows) for part in (other, d))
    return image_contained(len(names), len(rows), wanted, written, *writer.numbers)


def _fix(d: IntegerSet, fixed: Mapping[str, int] | None) -> IntegerSet:
    if not fixed:
        return d
    values = {name: Affine.combine({}, value) for name, value in fixed.items()}
    conditions = tuple(InRange(c.form.substitute(values), c.bound) for c in d.conditions)
    return IntegerSet(tuple(v for v in d.variables if v not in fixed), conditions, d.dependent)


def _form_variables(form: Affine) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*form.variables(), *index_variables(*form.atoms()))))


@dataclass(frozen=True)
class _Component:
    """Variables that conditions (and output rows) tie together."""

    variables: tuple[str, ...]
    conditions: tuple[InRange, ...]
    rows: tuple[Affine, ...]

    def ranges(self) -> list[tuple[int, int]] | None:
        try:
            return projection.ranges(self._inequalities(), self.variables)
        except Inexact:
            asked = len(self.variables), *self._text()
        if is_empty(*asked):
            return None
        if free := [v for i, v in enumerate(self.variables) if not is_bounded(i, *asked)]:
            raise UnboundIndex(f"nothing bounds the index variable{'s' * (len(free) > 1)} {', '.join(free)}")
        return [(end_of(i, 0, *asked), end_of(i, 1, *asked)) for i in range(len(self.variables))]

    def contains(self, box: list[tuple[int, int]]) -> bool:
        try:
            return projection.holds_on(self._inequalities(), dict(zip(self.variables, box, strict=True)))
        except Inexact:
            return contained(len(self.variables), box_facts("x", len(box)), *self._text((), chain.from_iterable(box)))

    def injective(self, rows: Sequence[Affine]) -> bool:
        if rank([[row.coefficient(v) for v in self.variables] for row in rows if row.is_affine]) == len(self.variables):
            return True
        return injective(len(self.variables), len(rows), *self._text(rows))

    def fills(self, rows: Sequence[Affine], sizes: Sequence[int]) -> bool:
        written = {row.bare: (0, n - 1) for row, n in zip(rows, sizes, strict=True)}
        try:
            if None in written or len(written) < len(rows):
                raise Inexact
            left = projection.project_out(self._inequalities(), [v for v in self.variables if v not in written])
            return projection.holds_on(left, written)  # type: ignore[arg-type]
        except Inexact:
            box = chain.from_iterable((0, n - 1) for n in sizes)
            return fills(len(self.variables), len(rows), box_facts("o", len(rows)), *self._text(rows, box))

    def _inequalities(self) -> list[Inequality]:
        return projection.inequalities((c.form, c.bound) for c in self.conditions)

    def _text(self, rows: Sequence[Affine] = (), numbers: Iterable[int] = ()) -> tuple[object, ...]:
        """What is asked about, and the numbers that stand in it: those given come first."""
        writer = IslText({v: f"x{i}" for i, v in enumerate(self.variables)})
        writer.numbers += numbers
        return writer.text(self.conditions, rows), *writer.numbers


def _components(d: IntegerSet, rows: Iterable[Affine] = ()) -> list[_Component]:
    """Split a domain, and the output rows with it; conditions without variables make a component of their own."""
    leader = {v: v for v in d.variables}

    def find(v: str) -> str:
        while leader[v] != v:
            v = leader[v]
        return v

    conditions = [(c, _form_variables(c.form)) for c in d.conditions]
    written = [(row, _form_variables(row)) for row in rows]
    for _, names in (*conditions, *written):
        for name in names[1:]:
            leader[find(name)] = find(names[0])
    groups: dict[str, tuple[list[str], list[InRange], list[Affine]]] = {}
    for v in d.variables:
        groups.setdefault(find(v), ([], [], []))[0].append(v)
    constant: list[InRange] = []
    for c, names in conditions:
        (groups[find(names[0])][1] if names else constant).append(c)
    for row, names in written:
        if names:
            groups[find(names[0])][2].append(row)
    parts = [_Component(tuple(v), tuple(c), tuple(r)) for v, c, r in groups.values()]
    return [_Component((), tuple(constant), ()), *parts] if constant else parts
