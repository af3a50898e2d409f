"""Matrices whose rows or columns lie along several axes, such as the windows of an image, or whose single row has no
axis (a query that is decoded): with one axis a side, since a chain has one variable a side. What is read along such
axes, or at positions computed from them, are statements of their own, and what others read has its axes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilec.backends.common.chains.chain import ChainKernel
from tilec.backends.common.chains.values import (
    DOT_DTYPES,
    LONGEST_INNER,
    MANY_COLUMNS,
    NARROWEST_ROW,
    Apart,
    extents_of,
    is_elementwise,
    open_conditions,
    plain_index,
    rebuilt,
    reduction_variables,
)
from tilec.ir.functions import ZERO, all_of, call
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.program import Access, Call, Expr, Index, Int, Program, Statement, index_variables, value_accesses
from tilec.ir.types import NARROW, TensorType, Types
from tilec.lattice.conditions import bound_of, is_affine
from tilec.transforms.util.factors import factors_of
from tilec.transforms.util.naming import Names, fresh_variable
from tilec.transforms.util.reshapes import reshape_indices

Side = tuple[str, ...]  # variables that are one; none of them where there is a single row
_LEAST_SIDE = 64  # elements of a block of rows or columns


def with_flat_sides(program: Program, types: Types) -> Apart:
    """The program with one axis for each side of its matrices; as it is where it has none of several, or where a
    statement of theirs is of another form."""
    made = _Flattened(program, types)
    statements: list[Statement] = []
    for s in program.statements:
        rewritten = made.statement(s)
        if rewritten is None:
            return Apart(program, types)
        statements += rewritten
    if not made.changed:
        return Apart(program, types)
    return Apart(replace(program, statements=tuple(statements)), made.types, frozenset(made.changed))


def has_short_sides(kernels: Iterable[ChainKernel]) -> bool:
    """Whether kernels have sides of fewer elements than a block: rows of an image, in the place of all its pixels."""
    return any(k.extent[v] < _LEAST_SIDE for k in kernels for v in (*k.blocked, k.looped) if v is not None)


def _sides_of(s: Statement, program: Program, types: Types) -> list[Side]:
    """The variables of the rows and of the columns of a product of two tensors; none for other statements, and where
    each side has one. The columns of a single row are what is summed over; other variables of theirs are the batch's.
    """
    index, extent, factors = plain_index(s), extents_of(s, types), factors_of(s.body, types)
    if index is None or extent is None or s.aggregation != "sum" or types[s.output].dtype not in DOT_DTYPES:
        return []
    summed = reduction_variables(s)
    operands = [f.value for f in factors if isinstance(f.value, Access) and not f.divides]
    if len(summed) != 1 or extent[summed[0]] > LONGEST_INNER or not len(operands) == len(factors) == 2:
        return []
    left, right = (set(index_variables(e)) for e in operands)
    sides = [tuple(v for v in index if v in own) for own in (left - right, right - left)]
    if not all(sides):
        columns = _summed_by_readers(s.output, index, program) & {v for g in sides for v in g}
        many = math.prod(extent[v] for v in columns) >= MANY_COLUMNS
        narrow = types[s.output].dtype in NARROW and extent[summed[0]] >= NARROWEST_ROW
        return [(), tuple(v for v in index if v in columns)] if narrow and many else []
    return sides if any(len(g) > 1 for g in sides) else []


def _summed_by_readers(name: str, index: Sequence[str], program: Program) -> set[str]:
    """The variables of a matrix, whose `index` this is, that the first statements to reduce it sum over."""
    found: set[str] = set()
    for s in program.readers(name):
        for a in value_accesses(s):
            names = distinct_variables(a.index) if a.tensor == name else None
            if names is None:
                continue
            place = {v: w for v, w in zip(names, index, strict=True) if v is not None}
            own = plain_index(s) or ()
            if is_elementwise(s) and set(own) == place.keys():
                found |= _summed_by_readers(s.output, [place[v] for v in own], program)
            else:
                found |= {w for v, w in place.items() if v not in own}
    return found


class _Flattened:
    """`flat`: for matrices, and for what these are reduced to, the tensor with sides as one and the dimensions that
    make each of its own; `matrices`: which are these."""

    def __init__(self, program: Program, types: Types):
        self.program, self.types = program, dict(types)
        self.names = Names.of(program)
        self.flat: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {}
        self.matrices: set[str] = set()
        self.changed: set[str] = set()
        self.found: dict[tuple[Expr, tuple[int, ...]], str] = {}

    def statement(self, s: Statement) -> list[Statement] | None:
        """What stands for a statement; None where it is a matrix's and of a form that this does not know."""
        read_sides = any(a.tensor in self.matrices for a in value_accesses(s))
        if read_sides:
            sides = self._sides_read(s)
            matrix = is_elementwise(s)
        else:
            read = any(self.program.readers(s.output))  # what nothing reads is no matrix of a chain
            sides, matrix = _sides_of(s, self.program, self.types) if read else [], True
            if not sides:
                return [s]
        index, extent = plain_index(s), extents_of(s, self.types)
        if sides is None or index is None or extent is None or 0 in extent.values() or s.constraints:
            return None
        if open_conditions(s, self.types):
            return None
        dims = _dimensions(index, sides)
        if dims is None:
            return None
        joined = {g: fresh_variable("".join(g) or "row", {*extent}) for g in sides}
        several = {v for g in sides if len(g) > 1 for v in g}
        columns = {v for g in sides for v in g}
        places: dict[str, Affine] = {}
        for g, v in joined.items():
            forms = reshape_indices((math.prod(extent[w] for w in g),), tuple(extent[w] for w in g), [Index(v)])
            places.update(zip(g, forms, strict=True))
        before: list[Statement] = []

        def change(a: Access) -> Expr:
            names = distinct_variables(a.index) or ()
            name, own = self.flat.get(a.tensor, ("", ()))
            axes = [tuple(names[d] for d in ds) for ds in own] if names else []
            if name and all(len(g) == 1 or g in joined for g in axes):
                return Access(name, tuple([Index(joined[g] if g in joined else g[0]) for g in axes]))
            is_row = not read_sides and () in joined and columns.isdisjoint(index_variables(a))
            if not is_row and several.isdisjoint(index_variables(a)):
                return replace_indices(a, places)
            return self._read(s, a, sides, joined, places, extent, before, is_row)

        body = _moved(s.body, joined, extent, change)
        few = {v: places[v] for g in sides if len(g) > 1 and _are_few(g, extent) for v in g if places[v].is_integral}
        moved = ((x, _moved(x, joined, extent, change, few)) for x in s.guards)
        guards = [_with_bound_of_all(x, y, several, extent) for x, y in moved if y is not None]
        if body is None or len(guards) < len(s.guards):
            return None
        shape = tuple(math.prod(self.types[s.output].shape[d] for d in ds) for ds in dims)
        outside = [
            r for r in self.program.readers(s.output) if not any(a.tensor in self.matrices for a in value_accesses(r))
        ]
        needed = s.output in self.program.outputs or bool(outside) and not matrix
        if matrix and s.output in self.program.outputs:
            return None
        own_shape = not matrix and len(shape) == len(index)  # what keeps its axes keeps its name
        name = s.output if own_shape else self.names.fresh(f"{s.output}_flat")
        if not own_shape:
            self.flat[s.output] = name, dims
        self.types[name] = TensorType(shape, self.types[s.output].dtype)
        self.changed |= {name, s.output}
        if matrix:
            self.matrices.add(s.output)
        axes = [tuple(index[d] for d in ds) for ds in dims]
        place = tuple([Index(joined[g] if g in joined else g[0]) for g in axes])
        whole = replace(s, output=name, index=place, sizes=tuple(map(Int, shape)), body=body, guard=all_of(guards))
        made = [*before, whole]
        return [*made, self._with_axes(s, name, dims)] if needed and not own_shape else made

    def _sides_read(self, s: Statement) -> list[Side] | None:
        """The sides of the matrices that a statement reads, in its variables."""
        found: dict[str, Side] = {}
        row: list[Side] = []
        for a in value_accesses(s):
            if a.tensor not in self.flat:
                continue
            names = distinct_variables(a.index)
            if names is None:
                return None
            for ds in self.flat[a.tensor][1]:
                side = tuple(names[d] for d in ds)
                if len(side) > 1 and any(found.setdefault(v, side) != side for v in side):
                    return None
                row = row if side else [side]
        return [*row, *dict.fromkeys(found.values())]

    def _read(
        self,
        s: Statement,
        a: Access,
        sides: Sequence[Side],
        joined: Mapping[Side, str],
        places: Mapping[str, Affine],
        extent: Mapping[str, int],
        before: list[Statement],
        is_row: bool,
    ) -> Access:
        """An element of a statement with one axis a side: laid out as what is read where that has a side's axes.
        `is_row`: it is of a single row."""
        used = set(index_variables(a))
        order = distinct_variables(a.index) or tuple(v for v in extent if v in used)
        side_of = {v: g for g in sides for v in g}
        kept = tuple(dict.fromkeys(joined[side_of[v]] if v in side_of else v for v in order))
        kept = (joined[()], *kept) if is_row else kept
        lengths = {**extent, **{v: math.prod(extent[w] for w in g) for g, v in joined.items()}}
        value, shape = replace_indices(a, places), tuple(lengths[v] for v in kept)
        place = tuple(map(Index, kept))
        if (value, shape) not in self.found:
            name = self.found[value, shape] = self.names.fresh(f"{a.tensor}_flat")
            self.types[name] = TensorType(shape, self.types[a.tensor].dtype)
            self.changed.add(name)
            before.append(Statement(name, place, tuple(map(Int, shape)), value, span=s.span))
        return Access(self.found[value, shape], place)

    def _with_axes(self, s: Statement, name: str, dims: Sequence[tuple[int, ...]]) -> Statement:
        shape = self.types[s.output].shape
        index: list[Expr] = []
        for ds in dims:
            form = Affine()
            for d in ds:
                (v,) = index_variables((s.index or ())[d])
                form = form * shape[d] + Affine.variable(v)
            index.append(form.to_expr())
        return Statement(s.output, s.index, tuple(map(Int, shape)), Access(name, tuple(index)), span=s.span)


def _moved(
    e: Expr,
    joined: Mapping[Side, str],
    extent: Mapping[str, int],
    change: Callable[[Access], Expr],
    apart: Mapping[str, Affine] = MappingProxyType({}),
) -> Expr | None:
    """A value with `change` applied to each access, and with the places of points as numbers of the joined sides; None
    where it has other numbers of a side's variables, but those for which `apart` has a number."""
    if isinstance(e, Access):
        return change(e)
    own = {v for g in joined for v in g}
    if own.isdisjoint(index_variables(e)):
        return rebuilt(e, change)
    if is_affine(e):
        form = linear(e)
        for g, v in ((g, v) for g, v in joined.items() if g):
            c = form.coefficient(g[-1])
            place = Affine()
            for w in g:
                place = place * extent[w] + Affine.variable(w)
            form = form + (Affine.variable(v) - place) * c
        left = own & set(form.variables())
        if left:
            return replace_indices(e, apart) if own & set(index_variables(e)) <= apart.keys() else None
        return form.to_value()
    if not isinstance(e, Call):
        return None
    args = [m for x in e.args if (m := _moved(x, joined, extent, change, apart)) is not None]
    return replace(e, args=tuple(args)) if len(args) == len(e.args) else None


def _are_few(side: Side, extent: Mapping[str, int]) -> bool:
    """Whether a side is no longer than a block of rows, so that blocks which a bound leaves out are worth little: a few
    queries of heads that share keys."""
    return math.prod(extent[v] for v in side) <= _LEAST_SIDE


def _with_bound_of_all(guard: Expr, moved: Expr, own: set[str], extent: Mapping[str, int]) -> Expr:
    """A guard, and with it, where it is a bound of places that are affine no longer, the bound of all of them: what
    lies beyond may hold anything."""
    form = bound_of(guard)
    used = own & set(() if form is None else form.variables())
    if form is None or not used or bound_of(moved) is not None:
        return moved
    last = {v: Affine() + (extent[v] - 1 if form.coefficient(v) > 0 else 0) for v in used}
    return Call("and", (moved, call("ge", form.substitute(last).to_value(), ZERO)))


def _dimensions(index: Sequence[str], sides: Sequence[Side]) -> tuple[tuple[int, ...], ...] | None:
    """The dimensions of each axis where a side is one, first that of a single row; None where a side's stand apart, or
    are not all there."""
    found: list[tuple[int, ...]] = [()] if () in sides else []
    side_of = {v: g for g in sides for v in g}
    d = 0
    while d < len(index):
        g = side_of.get(index[d], (index[d],))
        if tuple(index[d : d + len(g)]) != g:
            return None
        found.append(tuple(range(d, d + len(g))))
        d += len(g)
    return tuple(found)
