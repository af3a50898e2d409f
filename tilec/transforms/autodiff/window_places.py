"""Where in its window an extremum stands, as bits, for its gradient to read in the place of the window's elements.

`O[n, y] = >(X[n, 2*y + j]), j < 2` hands its cotangent to the elements that are equal to it. The number

    O_where[n, y] = uint8(X[n, 2*y] == O[n, y]) * uint8(1 + 4) + uint8(X[n, 2*y + 1] == O[n, y]) * uint8(2 + 4)

says in its lower bits which ones these are, and above them how many. The forward pass makes it of what it reads anyway;
a call that keeps it keeps neither X nor O.

Windows are of few elements, and few share one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce as folded

from tilec.errors import UnboundIndex
from tilec.ir.constraining import always, demands
from tilec.ir.functions import INFINITY
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Int,
    Pad,
    Program,
    Statement,
    index_variables,
    map_values,
    reads,
    reads_itself,
    rebuild,
    variables_of,
)
from tilec.ir.types import NARROW, Types, is_floating, shapes_in
from tilec.lattice.sets import Box, Shapes, bounds_of, domain, domain_of, implied, sizes_of
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_pure

_MOST_POINTS = 9  # elements of a window
_MOST_READ = 3  # times that an element is read: pools of 3x3 and stride 2
_MOST_STRIDED = 4  # elements of a window along the axis along which memory runs


def with_window_places(program: Program, types: Types, cotangents: Collection[str]) -> tuple[Program, frozenset[str]]:
    """The flat program of values and gradient, in which what depends on `cotangents` asks such numbers, and these.
    `types`: of all tensors."""
    names = Names.of(program)
    plain = set(program.input_names()) - set(cotangents)
    beyond = set(cotangents)
    statements: list[Statement] = []
    windows: dict[str, SmallWindow] = {}
    for s in program.statements:
        read = set(reads(s))
        if not beyond.isdisjoint(read):
            beyond.add(s.output)
        elif read <= plain:
            if s.aggregation == "assign" and not reads_itself(s) and types[s.output].dtype not in NARROW:
                plain.add(s.output)
            elif (window := SmallWindow.of(s, types)) is not None:
                windows[s.output] = window
        statements.append(s)
    made: dict[str, Statement] = {}
    ties: dict[str, SmallWindow] = {}
    for k, s in enumerate(statements):
        if s.output in windows:
            continue
        counted = next((w for w in windows.values() if w.counts(s)), None)
        if counted is not None:
            ties[s.output] = counted
        elif s.output in beyond and any(w in reads(s) for w in windows):
            asked = {t: w for t, w in ties.items() if t in reads(s)}
            changed = _asking(s, windows, asked, names, made, statements, types)
            statements[k] = s if changed is None else changed
    there = {s.output for s in statements}
    own = {output: t for output, t in made.items() if t.output not in there}
    every = [t for s in statements for t in (s, own.get(s.output)) if t is not None]
    return replace(program, statements=tuple(every)), frozenset(t.output for t in made.values())


@dataclass(frozen=True)
class SmallWindow:
    """An extremum over windows: how many elements along each of its variables, of `values` that are compared; whether
    all windows are `whole`, none beyond the tensor."""

    statement: Statement
    extents: dict[str, int]
    whole: bool

    @staticmethod
    def of(s: Statement, types: Types) -> SmallWindow | None:
        index = distinct_variables(s.index)
        a = s.body
        plain = s.guard is None and is_pure(s) and s.aggregation in ("max", "min")
        if not plain or index is None or not isinstance(a, Access) or not is_floating(types[s.output].dtype):
            return None
        shape, own = types[a.tensor].shape, types[s.output].shape
        forms, summed = [linear(e) for e in a.index], [v for v in variables_of(s) if v not in index]
        limits = {linear(c.expr).bare: c.bound.value for c in s.constraints if isinstance(c.bound, Int)}
        if len(limits) < len(s.constraints) or not limits.keys() <= set(summed):
            return None
        extents: dict[str, int] = {}
        for v in summed:
            bare = [n for f, n in zip(forms, shape, strict=True) if f.bare == v]
            extents[v] = min([*bare, *([limits[v]] if v in limits else [])], default=0)
        if not summed or not 2 <= math.prod(extents.values()) <= _MOST_POINTS:
            return None
        ranges = {**dict(zip(index, own, strict=True)), **extents}
        seen, whole = list[str](), True
        for form, n in zip(forms, shape, strict=True):
            if not form.is_affine or not form.is_integral or any(c < 0 for _, c in form.terms):
                return None
            inner = [v for v in form.variables() if v in extents]
            if len(inner) > 1 or len(form.terms) - len(inner) > 1 or any(form.coefficient(v) != 1 for v in inner):
                return None
            last = form.constant + sum(c * (ranges[v] - 1) for v, c in zip(form.variables(), _steps(form), strict=True))
            whole = whole and form.constant >= 0 and last < n
            seen += form.variables()
        strided = math.prod(extents[v] for v in index_variables(a.index[-1]) if v in extents)
        if sorted(seen) != sorted(ranges) or strided > _MOST_STRIDED:
            return None
        found = SmallWindow(s, extents, whole)
        return found if found.points * math.prod(own) <= _MOST_READ * math.prod(shape) else None

    @property
    def points(self) -> int:
        return math.prod(self.extents.values())

    @property
    def dtype(self) -> str:
        """What holds the bits of all elements and their number."""
        return "uint8" if (1 << self.points) * (self.points + 1) <= 256 else "int16"

    @property
    def values(self) -> Access:
        assert isinstance(self.statement.body, Access)
        return self.statement.body

    def _elements(self, outside: Expr) -> list[Expr]:
        """Each element of the window of an element of the output, or what stands for those beyond the tensor."""
        places = itertools.product(*map(range, self.extents.values()))
        at = ({v: linear(Int(n)) for v, n in zip(self.extents, place, strict=True)} for place in places)
        found = [replace_indices(self.values, place) for place in at]
        return found if self.whole else [Pad(e, outside) for e in found if isinstance(e, Access)]

    def written_out(self, dtype: str) -> Statement:
        """The extremum as an elementwise statement, of an output of this type."""
        s = self.statement
        none = -INFINITY if s.aggregation == "max" else INFINITY
        body: Expr = folded(lambda a, b: Call(s.aggregation, (a, b)), self._elements(none))
        body = Call(dtype, (body,)) if dtype in NARROW else body
        return replace(s, body=body, aggregation="assign", constraints=())

    def places(self, name: str) -> Statement:
        s = self.statement
        result = Access(s.output, s.index or ())
        bits: list[Expr] = []
        for k, e in enumerate(self._elements(Float(math.nan))):  # which equals nothing
            equal = Call("eq", (e, result))
            bits.append(Call("mul", (Call(self.dtype, (equal,)), _number(self.dtype, (1 << k) + (1 << self.points)))))
        return replace(s, output=name, body=folded(_added, bits), aggregation="assign", constraints=())

    def counts(self, s: Statement) -> bool:
        """Does a statement count the elements of each window that are equal to its extremum?"""
        own = self.statement
        wanted = Call("eq", (self.values, Access(own.output, own.index or ())))
        named = s.aggregation == "sum" and s.guard is None and s.default is None and s.body == wanted
        return named and s.index == own.index and s.sizes == own.sizes and set(s.constraints) == set(own.constraints)

    def count(self, bits: Expr) -> Expr:
        """How many of these bits are set, of the type that a sum of truths has."""
        return Call("int64", (Call("shr", (bits, Int(self.points))),))

    def has(self, bits: Expr, number: Expr) -> Expr:
        one = _number(self.dtype, 1)
        return Call("eq", (Call("and", (Call("shr", (bits, number)), one)), one))

    def asked(self, e: Expr, box: Box) -> tuple[tuple[Expr, ...], Expr] | None:
        """The place of the extremum that an element is compared with, and the number of that element's bit; None where
        the expression is no such comparison, or one with elements outside the window. `box`: of the points."""
        if not isinstance(e, Call) or e.function != "eq":
            return None
        element, extremum = e.args
        if not isinstance(element, Access) or not isinstance(extremum, Access):
            return None
        if (element.tensor, extremum.tensor) != (self.values.tensor, self.statement.output):
            return None
        at = dict(zip(distinct_variables(self.statement.index) or (), map(linear, extremum.index), strict=True))
        inside: dict[str, Affine] = {}
        for own, there in zip(map(linear, self.values.index), map(linear, element.index), strict=True):
            inner = [v for v in own.variables() if v in self.extents]
            first = own - sum(map(Affine.variable, inner), Affine())
            rest = there - first.substitute(at)
            inside |= dict.fromkeys(inner, rest)
            if not inner and rest != Affine():
                return None
        number, stride = Affine(), 1
        for v in reversed(self.extents):
            low, high = box.get(inside[v].bare or "", (-1, -1))
            if low < 0 or high >= self.extents[v]:
                return None
            number, stride = number + inside[v] * stride, stride * self.extents[v]
        return extremum.index, number.to_value()


def _asking(
    s: Statement,
    windows: Mapping[str, SmallWindow],
    ties: Mapping[str, SmallWindow],
    names: Names,
    made: dict[str, Statement],
    statements: Sequence[Statement],
    types: Types,
) -> Statement | None:
    """A statement with bits for comparisons, and for counts of these; None where it has no such comparison, or where
    its points were not the same without the elements that are compared."""
    shapes = shapes_in(types)
    box = bounds_of(domain(s, shapes)) or {}
    new: dict[str, Statement] = {}

    def bits(window: SmallWindow, index: tuple[Expr, ...]) -> Access:
        output = window.statement.output
        if output not in made and output not in new:
            place = window.places("")
            known = (t for t in statements if replace(t, output="") == place)
            new[output] = next(known, None) or replace(place, output=names.fresh(f"{output}_where"))
        name = (made.get(output) or new[output]).output
        shapes[name] = shapes[output]
        return Access(name, index)

    found = False

    def visit(e: Expr) -> Expr:
        nonlocal found
        for window in windows.values():
            if (place := window.asked(e, box)) is not None:
                found = True
                index, number = place
                return window.has(bits(window, index), number)
        if isinstance(e, Access) and e.tensor in ties:
            return ties[e.tensor].count(bits(ties[e.tensor], e.index))
        return rebuild(e, visit)

    changed = map_values(s, visit)
    if not found or not _has_points_of(changed, s, shapes):
        return None
    made.update(new)
    return changed


def _has_points_of(changed: Statement, s: Statement, shapes: Shapes) -> bool:
    """Whether a statement that reads less has the same points nevertheless. What is read in branches says nothing of
    them."""
    read = tuple(always(demands(*(changed.index or ()), *changed.roots, own=s.output)))
    left = domain_of(read, shapes, changed.constraints, changed.index or (), sizes_of(changed))
    before = domain(s, shapes)
    lost = set(before.conditions) - set(left.conditions)
    if not set(before.dependent) <= set(left.dependent) or any(v not in left.variables for v in before.variables):
        return False
    try:
        box = bounds_of(left)
    except UnboundIndex:
        return False
    return box is not None and all(c.form.is_affine and implied(c, lambda atom: box[atom.name]) for c in lost)


def _steps(form: Affine) -> list[int]:
    return [int(form.coefficient(v)) for v in form.variables()]


def _added(a: Expr, b: Expr) -> Expr:
    return Call("add", (a, b))


def _number(dtype: str, n: int) -> Expr:
    return Call(dtype, (Int(n),))
