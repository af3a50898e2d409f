"""Layouts of intermediates. Over the positions of windows, these come first, and memory runs along the rows.

`D[y, x, u, v] = +((X[y + p, x + q] - X[y + u + p, x + v + q])^2)` compares patches: all that it is made of, and what is
made of it, runs along x in memory, and D itself along v, which has few values. Laid out as `D[u, v, y, x]` all of them
run along x: a kernel of windows computes neighbours in y from elements that they share (15 loads a distance of 5x5, not
50), and what reads D at x reads whole lines.

Sums of few elements are made in the order of what they read, and then turned. `G[c, j, i] = +(D[b, y, x, c] *
X[b, y + j, x + i, c])`, the gradient of depthwise weights that lie as torch has them, reads two images along c. Lanes
that are neighbours in G would be places of one channel, each of which reads an element of a line of its own; as
`T[j, i, c]` they are channels, which read whole lines.

Operands that elementwise statements make for products lie as these take them. `S[b, c, i, j]`, scores of all tokens i
of b by all tokens j of c, whose gradients are sums over (c, j) and over (b, i), are made as `S[b, i, c, j]`: a matrix,
which nobody copies.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.sizes import contiguous_strides
from tilec.backends.triton.pointwise.taps import tap_sums
from tilec.cost import H200, size_in_bytes
from tilec.ir.index import distinct_variables, linear
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_values,
    reads,
    value_accesses,
    variables_of,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import map_reads

_MOST_PLACES = 64  # of a window
_LEAST_ROW = 64  # elements along memory
_LEAST_ELEMENTS = 2**20  # of an intermediate: less stays in a cache, whatever its order
_FEW = 4096  # elements of a table, read along any axis
_TIMES_SMALLER = 16  # than the largest tensor that a sum reads, at least: turning it takes no time then
LEAST_LINE = 32  # elements along memory
_LEAST_COPYING = 5e-6  # seconds that products would copy an operand for
_MOST_BESIDE = 256  # elements of the sum for each of these


@dataclass(frozen=True)
class WindowLayout:
    """Of a tensor: `row`, its axis along which memory is to run; what follows are the places of a window. `lead`: how
    many axes before it are the window's too."""

    row: int
    lead: int = 0

    def order(self, rank: int) -> tuple[int, ...]:
        """The axes in the order in which they are laid out."""
        first = self.row - self.lead
        return (*range(first), *range(self.row + 1, rank), *range(first, self.row + 1))


def with_window_layouts(program: Program, types: Types) -> tuple[Program, Types]:
    """The program with such tensors in that order, and their types."""
    found = _consistent(_candidates(program, types), program, types)
    layouts: dict[str, WindowLayout] = {}
    for names in connected_tensors(found, program):
        if any(_adds_up(s) for s in program.statements if s.output in names):
            lead = max(found[n].lead for n in names)
            layouts |= {n: replace(found[n], lead=min(lead, found[n].row)) for n in names}
    return _laid_out(program, types, {n: layout.order(len(types[n].shape)) for n, layout in layouts.items()})


def _laid_out(program: Program, types: Types, order: Mapping[str, tuple[int, ...]]) -> tuple[Program, Types]:
    """The program with tensors whose axes lie in another order, and their types."""
    laid_out = {n: TensorType(tuple(types[n].shape[k] for k in axes), types[n].dtype) for n, axes in order.items()}

    def laid_out_read(e: Access) -> Access:
        return replace(e, index=_in_order(e.index, order[e.tensor]))

    def changed(s: Statement) -> Statement:
        if s.output in order:
            axes = order[s.output]
            s = replace(s, index=_in_order(s.index or (), axes), sizes=_in_order(s.sizes or (), axes))
        return map_values(s, lambda e: map_reads(e, order, laid_out_read))

    touched = (not order.keys().isdisjoint((s.output, *reads(s))) for s in program.statements)
    statements = tuple(changed(s) if own else s for s, own in zip(program.statements, touched, strict=True))
    return replace(program, statements=statements), {**types, **laid_out}


def _in_order(items: tuple[Expr, ...], axes: tuple[int, ...]) -> tuple[Expr, ...]:
    return tuple(items[k] for k in axes)


def _candidates(program: Program, types: Types) -> dict[str, WindowLayout]:
    """Large intermediates that end in a few places after a long axis."""
    found: dict[str, WindowLayout] = {}
    defaults = {s.default for s in program.statements}
    for s in program.statements:
        shape = types[s.output].shape
        inner = s.output not in program.outputs and s.output not in defaults
        if not inner or not is_pure(s) or s.sizes is None or distinct_variables(s.index) is None:
            continue
        row = len(shape) - 1
        while row > 0 and math.prod(shape[row:]) <= _MOST_PLACES:
            row -= 1
        places = math.prod(shape[row + 1 :])
        if 1 < places and row > 0 and shape[row] >= _LEAST_ROW and math.prod(shape) >= _LEAST_ELEMENTS:
            found[s.output] = WindowLayout(row)
    return found


def _consistent(layouts: dict[str, WindowLayout], program: Program, types: Types) -> dict[str, WindowLayout]:
    """Those whose statements touch nothing that runs along another axis."""
    while layouts:
        refused: set[str] = set()
        for s in program.statements:
            own = {n for n in (s.output, *reads(s)) if n in layouts}
            lead = _lead(s, layouts, types) if own else 0
            if lead is None:
                refused |= own
            elif own:
                layouts |= {n: replace(layouts[n], lead=max(lead, layouts[n].lead)) for n in own}
        if not refused:
            break
        layouts = {n: layout for n, layout in layouts.items() if n not in refused}
    return layouts


def _lead(s: Statement, layouts: Mapping[str, WindowLayout], types: Types) -> int | None:
    """How many axes before the row's a statement reads or writes at neighbours; None where not all that it touches runs
    along the row. A sum of few elements may be written anywhere."""
    touched = [Access(s.output, s.index or ()), *value_accesses(s)]
    if any(a.tensor in layouts for t in touched for e in t.index for a in accesses_in(e)):
        return None  # at places that are data
    own = [a for a in touched if a.tensor in layouts]
    rows = {linear(a.index[layouts[a.tensor].row]).bare for a in own}
    row = next(iter(rows)) if len(rows) == 1 else None
    if row is None:
        return None
    largest = max(types[a.tensor].numel for a in own)
    for a in touched:
        shape = types[a.tensor].shape
        count = math.prod(shape)
        small = count * _LEAST_ROW <= largest if a.tensor == s.output else count <= _FEW
        if a.tensor not in layouts and not small and abs(linear(a.index[-1]).coefficient(row)) != 1:
            return None
    moved = {v for a in touched for e in a.index if len(names := index_variables(e)) > 1 for v in names}
    lead = 0
    for a in own:
        before = layouts[a.tensor].row
        axes = [k for k in range(before) if moved.intersection(index_variables(a.index[k]))]
        lead = max([lead, *(before - k for k in axes)])
    return lead


def connected_tensors(names: Collection[str], program: Program) -> list[set[str]]:
    """These tensors by the statements that touch them: two that one statement touches are in one set."""
    found: list[set[str]] = []
    for s in program.statements:
        own = {n for n in (s.output, *reads(s)) if n in names}
        if own:
            joined = [others for others in found if others & own]
            found = [others for others in found if not others & own] + [own.union(*joined)]
    return found


def _adds_up(s: Statement) -> bool:
    """Whether a statement adds up terms, so that what it writes is stored, unless what reads it adds them up too."""
    return bool(set(variables_of(s)) - set(index_variables(*(s.index or ()))))


# sums of few elements


def with_sum_layouts(program: Program, types: Types) -> tuple[Program, Types]:
    """The program with such sums in two statements, and all types."""
    names, known = Names.of(program), dict(types)
    statements: list[Statement] = []
    for s in program.statements:
        axis = _axis_of_memory(s, known)
        if axis is None:
            statements.append(s)
            continue
        index, t = s.index or (), known[s.output]
        order = [k for k in range(len(index)) if k != axis] + [axis]
        shape = tuple(t.shape[k] for k in order)
        name = names.fresh(f"{s.output}_turned")
        known[name] = TensorType(shape, t.dtype)
        statements.append(replace(s, output=name, index=tuple(index[k] for k in order), sizes=tuple(map(Int, shape))))
        own = tuple(Index(f"i{k}") for k in range(len(shape)))
        turned = Access(name, tuple(own[k] for k in order))
        statements.append(Statement(s.output, own, tuple(map(Int, t.shape)), turned, span=s.span))
    return replace(program, statements=tuple(statements)), known


def _axis_of_memory(s: Statement, types: Types) -> int | None:
    """The axis of the output, not its last one, along which all runs that a sum of few elements reads."""
    names, shape = distinct_variables(s.index), types[s.output].shape
    plain = s.aggregation == "sum" and is_pure(s) and not s.attributes
    if names is None or not plain or s.sizes is None or not set(variables_of(s)) - set(names):
        return None
    read = [a for a in value_accesses(s) if types[a.tensor].numel > _FEW]
    if not read or any(list(accesses_in(*a.index)) for a in read):
        return None
    along = {linear(a.index[-1]).bare for a in read}
    v = next(iter(along)) if len(along) == 1 else None
    if v is None or v not in names:
        return None
    axis = names.index(v)
    largest = max(types[a.tensor].numel for a in read)
    few = math.prod(shape) * _TIMES_SMALLER <= largest and math.prod(shape) <= _MOST_BESIDE * shape[axis]
    wanted = few and shape[axis] >= LEAST_LINE and math.prod(shape[axis + 1 :]) > 1
    return axis if wanted and not _along_in_any_order(s, v, types) else None


def _along_in_any_order(s: Statement, v: str, types: Types) -> bool:
    """Whether the sum's kernel has blocks along a variable, wherever that stands in the output."""
    space = build_space(s, types)
    found = None if space is None else tap_sums(space, StridedView(s, types, contiguous_strides(types)))
    return found is not None and found.column == v


# operands of products


def with_product_layouts(program: Program, types: Types, barred: Collection[str]) -> tuple[Program, Types]:
    """The program with operands of products whose axes lie as all of these take them, and their types; none of what
    statements `barred` make and read."""
    order: dict[str, tuple[int, ...]] = {}
    kept = {*program.outputs, *barred, *(n for s in program.statements if s.output in barred for n in reads(s))}
    for s in program.statements:
        names, t = distinct_variables(s.index), types[s.output]
        elementwise = names is not None and is_pure(s) and s.sizes is not None and set(variables_of(s)) <= set(names)
        if s.output in kept or not elementwise or len(t.shape) < 3 or t.shape[-1] < LEAST_LINE:
            continue
        groups = [_groups(r, s.output) for r in program.readers(s.output)]
        sizes = {k: n for k, n in enumerate(t.shape) if n > 1}
        copied = sum(g is not None and not _merge(range(len(t.shape)), g, sizes) for g in groups)
        if None in groups or 2 * copied * size_in_bytes(t) / H200.memory < _LEAST_COPYING:
            continue
        last = len(t.shape) - 1
        orders = ((*axes, last) for axes in permutations(range(last)))
        found = next((axes for axes in orders if all(_merge(axes, g or [], sizes) for g in groups)), None)
        order |= {} if found is None else {s.output: found}
    return _laid_out(program, types, order) if order else (program, types)


def _groups(r: Statement, tensor: str) -> list[list[int]] | None:
    """The axes of an operand that a product has for batches, rows and terms, each in the order in which the result and
    the other operand have them; None where the statement is no product of it and another tensor."""
    if r.aggregation != "sum" or not is_pure(r) or not isinstance(r.body, Call) or r.body.function != "mul":
        return None
    sides = [e.args[0] if isinstance(e, Call) and e.function == "float32" else e for e in r.body.args]
    own = next((e for e in sides if isinstance(e, Access) and e.tensor == tensor), None)
    other = next((e for e in sides if isinstance(e, Access) and e.tensor != tensor), None)
    if own is None or other is None:
        return None
    names, beside, written = (distinct_variables(index) for index in (own.index, other.index, r.index))
    if names is None or beside is None or written is None or not {*names} <= {*beside, *written}:
        return None
    batch = [v for v in written if v in names and v in beside]
    rows = [v for v in written if v in names and v not in beside]
    terms = [v for v in beside if v in names and v not in written]
    return [[names.index(v) for v in group] for group in (batch, rows, terms)]


def _merge(axes: Sequence[int], groups: Sequence[Sequence[int]], sizes: Collection[int]) -> bool:
    """Whether axes (those `sizes` has more than one value of) of each group follow one another, in its order."""
    laid = [k for k in axes if k in sizes]
    for group in ([k for k in g if k in sizes] for g in groups):
        places = [laid.index(k) for k in group]
        if places and places != [*range(places[0], places[0] + len(places))]:
            return False
    return True
