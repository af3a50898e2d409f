"""Exact sets of integer points: ranges of index variables, whether two points meet, whether an output is filled.

A domain is a list of conditions `form is an integer and 0 <= form < bound`. It falls apart into connected components of
variables, which are decided one by one: by elimination where that is exact, anything else by isl, with a cache since
equal components (the dimensions of one convolution) come back often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import index

from tilec.errors import InternalMistake, UnboundIndex
from tilec.ir.constraining import constraining
from tilec.ir.index import QUASI_AFFINE, Affine, linear
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    expressions,
    index_variables,
    walk,
)
from tilec.ir.rational import as_int
from tilec.lattice import isl, projection
from tilec.lattice.hermite import rank
from tilec.lattice.projection import Inequality, Inexact

Shapes = Mapping[str, tuple[int, ...]]
Box = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class InRange:
    """`form` is an integer and 0 <= form < bound."""

    form: Affine
    bound: int


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
    variables = index_variables(*expressions(replace(s, init=None)))
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


def is_box(d: IntegerSet, box: Box, fixed: Mapping[str, int] | None = None) -> bool:
    """Is every integer point of the box in the domain? (Conditions on data are ignored.)"""
    return all(part.contains([box[v] for v in part.variables]) for part in _components(_fix(d, fixed)))


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
    text = " or ".join(f"({writer_text(names, d.conditions, rows)})" for d in parts)
    return not _injective(len(names), text, len(rows))


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
    space = f"{_space('x', len(names))} -> {_space('o', len(rows))}"
    written, wanted = (
        isl.Map(f"{{ {space} : {writer_text(names, part.conditions, rows)} }}").range() for part in (d, other)
    )
    return wanted.is_subset(written)


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
            result = _ranges(len(self.variables), self._text())
        if result is not None and None in result:
            free = [v for v, r in zip(self.variables, result, strict=True) if r is None]
            raise UnboundIndex(f"nothing bounds the index variable{'s' * (len(free) > 1)} {', '.join(free)}")
        return result  # type: ignore[return-value]

    def contains(self, box: list[tuple[int, int]]) -> bool:
        try:
            return projection.holds_on(self._inequalities(), dict(zip(self.variables, box, strict=True)))
        except Inexact:
            return _contains(len(self.variables), self._text(), _numbers(box))

    def injective(self, rows: Sequence[Affine]) -> bool:
        if rank([[row.coefficient(v) for v in self.variables] for row in rows if row.is_affine]) == len(self.variables):
            return True
        return _injective(len(self.variables), self._text(rows), len(rows))

    def fills(self, rows: Sequence[Affine], sizes: Sequence[int]) -> bool:
        written = {row.bare: (0, n - 1) for row, n in zip(rows, sizes, strict=True)}
        try:
            if None in written or len(written) < len(rows):
                raise Inexact
            left = projection.project_out(self._inequalities(), [v for v in self.variables if v not in written])
            return projection.holds_on(left, written)  # type: ignore[arg-type]
        except Inexact:
            return _fills(len(self.variables), self._text(rows), tuple(map(index, sizes)))

    def _inequalities(self) -> list[Inequality]:
        return projection.inequalities((c.form, c.bound) for c in self.conditions)

    def _text(self, rows: Sequence[Affine] = ()) -> str:
        return writer_text({v: f"x{i}" for i, v in enumerate(self.variables)}, self.conditions, rows)


def writer_text(names: dict[str, str], conditions: Iterable[InRange], rows: Sequence[Affine] = ()) -> str:
    """What isl reads: conditions on the variables under their names and, as o0, o1, ..., the rows."""
    writer = _Writer(names)
    for c in conditions:
        writer.facts.append(f"0 <= {writer.integer(c.form)} < {index(c.bound)}")
    for k, row in enumerate(rows):
        writer.facts.append(f"o{k} = {writer.integer(row)}")
    facts = " and ".join(dict.fromkeys(writer.facts)) or "true"
    return f"exists {', '.join(writer.fresh)}: {facts}" if writer.fresh else facts


class _Writer:
    """Turns forms into isl text; quotients and atoms become existential variables."""

    def __init__(self, names: dict[str, str]):
        self.names, self.facts, self.fresh = names, [], []  # type: ignore[var-annotated]
        self.known: dict[object, str] = {}

    def integer(self, form: Affine) -> str:
        scale = form.denominator
        terms = [f"{index(as_int(c * scale))}*{self.atom(a)}" for a, c in form.terms]
        text = " + ".join([*terms, str(index(as_int(form.constant * scale)))])
        return f"({text})" if scale == 1 else self.define(form, f"{scale}*{{0}} = {text}")

    def atom(self, e: Expr) -> str:
        if isinstance(e, Index):
            return self.names[e.name]
        if isinstance(e, Call) and e.function in QUASI_AFFINE:
            first, *rest = (self.integer(linear(a)) for a in e.args)
            if e.function == "clamp":
                return self.define(e, f"{{0}} = min(max({first}, {rest[0]}), {rest[1]})")
            if e.function in ("max", "min"):
                return self.define(e, f"{{0}} = {e.function}({first}, {rest[0]})")
            divisor = linear(e.args[1])
            if not divisor.terms and divisor.is_integral:
                n = int(divisor.constant)
                quotient = f"floor({first}/{n})" if n > 0 else f"floor((0 - {first})/{-n})"
                return self.define(e, f"{{0}} = {first} - ({n}*{quotient})" if n else "false")
        raise InternalMistake("an index holds what integer sets do not know", e.span)

    def define(self, key: object, fact: str) -> str:
        if key not in self.known:
            self.known[key] = f"e{len(self.fresh)}"
            self.fresh.append(self.known[key])
            self.facts.append(fact.format(self.known[key]))
        return self.known[key]


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


def _numbers(box: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((index(low), index(high)) for low, high in box)


def _space(prefix: str, n: int) -> str:
    return "[" + ", ".join(f"{prefix}{i}" for i in range(n)) + "]"


@lru_cache(maxsize=4096)
def _ranges(n: int, text: str) -> list[tuple[int, int] | None] | None:
    points = isl.Set(f"{{ {_space('x', n)} : {text} }}")
    if points.is_empty():
        return None
    result: list[tuple[int, int] | None] = []
    for i in range(n):
        ends = points.dim_min_val(i), points.dim_max_val(i)
        finite = all(end.is_int() for end in ends)
        result.append((ends[0].to_python(), ends[1].to_python()) if finite else None)
    return result


def _box(prefix: str, ranges: Iterable[tuple[int, int]]) -> isl.Set:
    ranges = list(ranges)
    facts = [f"{low} <= {prefix}{i} <= {high}" for i, (low, high) in enumerate(ranges)]
    return isl.Set(f"{{ {_space(prefix, len(ranges))} : {' and '.join(facts) or 'true'} }}")


@lru_cache(maxsize=4096)
def _contains(n: int, text: str, box: tuple[tuple[int, int], ...]) -> bool:
    return _box("x", box).is_subset(isl.Set(f"{{ {_space('x', n)} : {text} }}"))


@lru_cache(maxsize=4096)
def _injective(n: int, text: str, outputs: int) -> bool:
    return isl.Map(f"{{ {_space('x', n)} -> {_space('o', outputs)} : {text} }}").is_injective()


@lru_cache(maxsize=4096)
def _fills(n: int, text: str, sizes: tuple[int, ...]) -> bool:
    written = isl.Map(f"{{ {_space('x', n)} -> {_space('o', len(sizes))} : {text} }}").range()
    return _box("o", [(0, size - 1) for size in sizes]).is_subset(written)
