"""Runs of statements that share an axis, and the program that carries out a slab of it.

Where every statement of a run reads what the run writes at its own place on the axis (a layer norm, a softmax, the
scores of an attention, all their gradients), the run is a function of the rows, and slabs of rows go through all of it
one after the other: intermediates are never whole. Statements that sum over the rows give a part a slab, and the parts
are combined in order. How large a slab is, and which runs are worth cutting, each backend says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.common.tiled_program import IN_PLACE
from tilec.errors import AffineMistake
from tilec.ir.functions import ZERO, all_of
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Input,
    Int,
    Program,
    Statement,
    accesses_in,
    children,
    expressions,
    index_variables,
    kept_with,
    reads,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.tiled import Combine, Into, P, Slice, Start, TiledCall, Whole

MOST_APART = 16  # statements between two of a run; what is looked at in vain stays a multiple of the program
AXIS_ROUNDS = 4  # in which it is learnt which tensors have the axis


@dataclass
class TileRegion:
    """`size`: the extent of the axis; `axis`: the dimension that is cut of each tensor that the run writes by rows.
    `before` needs no rows, `rows` and `columns` are carried out by slabs (the latter aggregate over the rows), `after`
    reads what the columns give or what it cannot read by slabs. `hints`: dimensions of tensors that walk the axis."""

    size: int
    axis: dict[str, int] = field(default_factory=dict)
    hints: dict[str, set[int]] = field(default_factory=dict)
    before: list[Statement] = field(default_factory=list)
    rows: list[Statement] = field(default_factory=list)
    columns: list[Statement] = field(default_factory=list)
    after: list[Statement] = field(default_factory=list)
    members: list[Statement] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)  # the variable that walks the axis, by output

    def passes_on(self) -> bool:
        """Does a statement read what another has written?"""
        return any(not self.axis.keys().isdisjoint(reads(s)) for s in self.members)

    def wanted(self, others: Sequence[Statement], outputs: Sequence[str]) -> tuple[str, ...]:
        """What the members write and the other statements or the caller read."""
        read = {name for s in others for name in reads(s)} | set(outputs)
        return tuple(s.output for s in self.members if s.output in read)


@dataclass(frozen=True)
class Rules:
    """What may join a run. `products`: statements with much more to compute than to read and write. `strict`: neither
    sums whose type loses something in partial sums, nor statements that read elements at places that depend on the row
    (`R[i - j + N]`); and a statement that can be put neither in the run nor before it ends the run, as do many in a row
    that have nothing to do with it. Otherwise partial sums are held in a wider type, a slab finds such places by the
    number of its first row, and such a statement comes after."""

    products: bool
    strict: bool


@dataclass(frozen=True)
class Slab:
    """The program of `rows` rows, its types (sums over rows in the type that they are added up in), what its inputs
    are: last, where anything asks for it, the number of the first row."""

    rows: int
    program: Program
    types: Types
    given: Mapping[str, Whole | Slice | Start]

    def call(
        self,
        program: P,
        results: Sequence[Into | Combine],
        first: int = 0,
        count: int = 1,
        provided: Sequence[Into | Combine] = (),
    ) -> TiledCall[P]:
        """The program for `count` slabs in turn, from row `first` on. `results`: what becomes of its outputs;
        `provided`: the memory that it is given for further outputs."""
        own = [Slice(r.tensor, r.axis, self.rows, 0) if isinstance(r, Into) else Whole(r.tensor) for r in provided]
        given = (*self.given.values(), *own)
        sources = [x if isinstance(x, Whole) else replace(x, at=first, step=self.rows) for x in given]
        sinks = [replace(r, length=self.rows, at=first, step=self.rows) if isinstance(r, Into) else r for r in results]
        return TiledCall(program, tuple(sources), tuple(enumerate(sinks)), count)

    def adding_to(self, totals: Mapping[str, str]) -> Slab:
        """The slab whose sums of these outputs go on from those of the slabs before, which these tensors hold."""
        names, types, given = Names(self.types), dict(self.types), dict(self.given)
        statements: list[Statement] = []
        for s in self.program.statements:
            if s.output in totals:
                part, before = names.fresh(f"{s.output}_part"), names.fresh(f"{s.output}_before")
                types[part] = types[before] = types[s.output]
                given[before] = Whole(totals[s.output])
                both = Access(before, s.index or ()), Access(part, s.index or ())
                statements.append(replace(s, output=part))
                s = Statement(s.output, s.index, s.sizes, Call("add", both))
            statements.append(s)
        inputs = tuple(Input(name, types[name].shape) for name in given)
        program = replace(self.program, inputs=inputs, statements=tuple(statements))
        return replace(self, program=program, types=types, given=given)


def run_over(statements: Sequence[Statement], types: Types, variable: str, dimension: int, rules: Rules) -> TileRegion:
    """The run over the axis that `variable` walks in the first statement. In rounds, since what a statement reads may
    turn out later to have the axis."""
    first = statements[0]
    run = TileRegion(types[first.output].shape[dimension])
    for _ in range(AXIS_ROUNDS):
        told = {name: set(places) for name, places in run.hints.items()}
        run = TileRegion(run.size, hints=told)
        before = {name: set(places) for name, places in told.items()}
        _collect(run, statements, types, variable, rules)
        if run.hints == before:
            break
    return run


def _collect(run: TileRegion, statements: Sequence[Statement], types: Types, variable: str, rules: Rules) -> None:
    late: set[str] = set()
    apart = 0  # statements in a row that have nothing to do with the run
    for s in statements:
        apart += 1
        if rules.strict and apart > MOST_APART:
            break
        if not late.isdisjoint(reads(s)):
            run.after.append(s)
            late.add(s.output)
            continue
        v = _variable(s, run) if run.members or s is not statements[0] else variable
        joining = s if v is None or rules.strict else _solved(s, v)
        if v is not None and _joins(joining, v, run, types, rules):
            apart = 0
            run.members.append(joining)
            run.variables[s.output] = v
            if s.output in run.axis:
                run.rows.append(joining)
            else:
                run.columns.append(joining)
                late.add(s.output)
            continue
        if rules.strict and (v is not None or not run.hints.keys().isdisjoint(reads(s))):
            break
        if run.axis.keys().isdisjoint(reads(s)):
            run.before.append(s)
        else:
            run.after.append(s)
            late.add(s.output)


def _variable(s: Statement, run: TileRegion) -> str | None:
    """The one variable that indexes the axis in all that the statement reads of the run; where it reads nothing of it,
    the one that other statements' reading tells of."""
    found = {_bare(e.index[run.axis[e.tensor]]) for e in accesses_of(s) if e.tensor in run.axis}
    if not found:
        places = [(s.output, s.index or ()), *((e.tensor, e.index) for e in accesses_of(s))]
        found = {_bare(index[d]) for name, index in places for d in run.hints.get(name, ())} - {None}
    return found.pop() if len(found) == 1 else None


def _joins(s: Statement, v: str, run: TileRegion, types: Types, rules: Rules) -> bool:
    """Can the statement be carried out by slabs of v? Notes the axis of what it writes and reads."""
    if not is_pure(s) or s.no_defract:
        return False
    own = place_of(s.index or (), v)
    if own is None or own >= 0 and types[s.output].shape[own] != run.size:
        return False
    found: dict[str, int] = {}
    for e in accesses_of(s):
        place = read_at(e, v, run, types)
        shifted = () if place is None else place.shifted
        if place is None or shifted and (rules.strict or not _bounded(s, [e.index[d] for d in shifted])):
            return False
        if e.tensor not in run.axis and place.axis is not None:
            if rules.strict and found.get(e.tensor, place.axis) != place.axis:
                return False
            found[e.tensor] = place.axis
    asking = [c for c in s.constraints if v in index_variables(c.expr)]
    if asking and (not rules.products or not _bounded(s, [c.expr for c in asking])):
        return False
    if own < 0 and not (found or any(e.tensor in run.axis for e in accesses_of(s))):
        return False
    if own < 0 and not _adds_up(s, types[s.output].dtype, rules):
        return False
    if rules.strict and any(e.tensor in found and place_of(e.index, v) == -1 for e in accesses_of(s)):
        return False  # one tensor in two roles
    if not rules.products and _is_dense(s, types):
        return False
    if own >= 0:
        run.axis[s.output] = own
        found[s.output] = own
    for name, dimension in found.items():
        run.hints.setdefault(name, set()).add(dimension)
    return True


def _adds_up(s: Statement, dtype: str, rules: Rules) -> bool:
    if s.aggregation not in IN_PLACE:
        return False
    return not rules.strict or accumulation_dtype(s.aggregation, dtype) == dtype


def _bounded(s: Statement, roots: Sequence[Expr]) -> bool:
    """Are these forms integers wherever variables are, and is each variable of theirs bounded where it stands alone, so
    that nothing is lost if they hold a tensor's element?"""
    places = [i for index in (s.index or (), *(e.index for e in accesses_of(s))) for i in index]
    alone = {_bare(i) for i in (*places, *(c.expr for c in s.constraints))}
    for e in roots:
        try:
            form = linear(e)
        except AffineMistake:
            return False
        if not (form.is_affine and form.is_integral and set(form.variables()) <= alone):
            return False
    return True


def _solved(s: Statement, v: str) -> Statement:
    """The statement with a variable of its own for an index of the output that depends on v and others:
    `R[i - j + 3] = +(A[i, j])` adds up `A[i, i - r + 3]`."""
    for d, e in enumerate(s.index or ()):
        if isinstance(e, Index) or not _stands(e, v):
            continue
        form = linear(e)
        others = index_variables(*(i for k, i in enumerate(s.index or ()) if k != d))
        if not (form.is_affine and form.is_integral) or set(form.variables()) & set(others):
            return s
        found = next((w for w in form.variables() if w != v and abs(form.coefficient(w)) == 1), None)
        if found is None:
            return s
        sign = form.coefficient(found)
        r = fresh_variable("r", all_variables(s))
        rest = form - Affine.variable(found, sign)
        s = substitute_affine(s, {found: (Affine.variable(r) - rest) * sign})
    return s


DENSE = 4  # points by the elements of the largest tensor from which a statement is a product rather than a pass


def _is_dense(s: Statement, types: Types) -> bool:
    """Is there much more to compute than to read and write? Windows count as such."""
    extent: dict[str, int] = {}
    for tensor, index in [(s.output, s.index or ()), *((e.tensor, e.index) for e in accesses_of(s))]:
        extent.update((i.name, types[tensor].shape[d]) for d, i in enumerate(index) if isinstance(i, Index))
    if any(isinstance(e, Index) and e.name not in extent for e in walk(*expressions(s))):
        return True
    return math.prod(extent.values()) >= DENSE * max(types[t].numel for t in (s.output, *reads(s)))


def accesses_of(s: Statement) -> tuple[Access, ...]:
    return kept_with(s, "_all_accesses", lambda s: tuple(accesses_in(*expressions(s))))


def _bare(e: Expr) -> str | None:
    return e.name if isinstance(e, Index) else None


def place_of(index: Sequence[Expr], v: str) -> int | None:
    """The dimension that the variable indexes alone, -1 where it stands in none, None where it stands otherwise."""
    places = [d for d, e in enumerate(index) if _stands(e, v)]
    if not places:
        return -1
    return places[0] if len(places) == 1 and isinstance(index[places[0]], Index) else None


@dataclass(frozen=True)
class SlabRead:
    """How a slab reads a tensor: its rows of a dimension, or all of it; `shifted`: the dimensions at which the place
    depends on the row's number."""

    axis: int | None
    shifted: tuple[int, ...]


def read_at(e: Access, v: str, run: TileRegion, types: Types) -> SlabRead | None:
    """None where the run writes the tensor and the statement reads other rows than its own. What stands in an element's
    own index (a gather's) is that element's affair."""
    stands = [d for d, i in enumerate(e.index) if _stands(i, v)]
    axis = run.axis.get(e.tensor)
    if axis is None and len(stands) == 1 and types[e.tensor].shape[stands[0]] == run.size:
        axis = stands[0] if isinstance(e.index[stands[0]], Index) else None
    elif axis is not None and _bare(e.index[axis]) != v:
        return None
    return SlabRead(axis, tuple(d for d in stands if d != axis))


def _stands(e: Expr, v: str) -> bool:
    if type(e) is Index:
        return e.name == v
    return type(e) not in (Access, Int) and any(_stands(c, v) for c in children(e))


# the program of a slab


def slab_of(run: TileRegion, rows: int, types: Types, wanted: Sequence[str]) -> Slab:
    names = Names({*types, *run.variables})
    start = names.fresh("Start")
    given: dict[tuple[str, int | None], str] = {}
    members = [_at_rows(s, run, rows, start, given, names, types) for s in run.members]
    inner = {name: _cut(types[t], axis, rows) for (t, axis), name in given.items()}
    inputs: dict[str, Whole | Slice | Start] = {
        name: Whole(t) if axis is None else Slice(t, axis, rows, 0) for (t, axis), name in given.items()
    }
    if any(start in reads(s) for s in members):
        inputs[start] = Start(0)
        inner[start] = TensorType((), "int64", weak=True)
    declared = tuple(Input(name, inner[name].shape) for name in inputs)
    program = Program(None, declared, tuple(wanted), tuple(members))
    found = dict(infer(program, inner))
    for s in run.columns:
        t = found[s.output]
        found[s.output] = replace(t, dtype=accumulation_dtype(s.aggregation, t.dtype))
    return Slab(rows, program, found, inputs)


def _cut(t: TensorType, axis: int | None, rows: int) -> TensorType:
    return t if axis is None else replace(t, shape=(*t.shape[:axis], rows, *t.shape[axis + 1 :]))


def _at_rows(
    s: Statement,
    run: TileRegion,
    rows: int,
    start: str,
    given: dict[tuple[str, int | None], str],
    names: Names,
    types: Types,
) -> Statement:
    """The statement over the rows of a slab; where the row's number is a value, that of the slab's first is added.
    Constraints on it become conditions. `given` learns what is read from outside, and under which name."""
    v = run.variables[s.output]
    inside = {m.output for m in run.members}
    moved = {v: Affine.of([(Index(v), 1), (Access(start, ()), 1)])}

    def position(e: Expr) -> Expr:
        if not isinstance(e, Access) or e.tensor == start:
            return rebuild(e, position)
        place = read_at(e, v, run, types)
        assert place is not None, "what reads other rows does not join"
        index = [linear(i).substitute(moved).to_expr() if d in place.shifted else i for d, i in enumerate(e.index)]
        name = e.tensor
        if name not in inside:
            key = name, place.axis
            if key not in given:
                given[key] = name if name not in given.values() else names.fresh(f"{name}_slab")
            name = given[key]
        return replace(e, tensor=name, index=tuple(map(position, index)))

    def value(e: Expr) -> Expr:
        if isinstance(e, Index) and e.name == v:
            return e + Access(start, ())
        return position(e) if isinstance(e, Access) else rebuild(e, value)

    asking = [c for c in s.constraints if v in index_variables(c.expr)]
    conditions = [] if s.guard is None else [value(s.guard)]
    for c in asking:
        e = value(linear(c.expr).to_value())
        conditions += [Call("ge", (e, ZERO)), Call("lt", (e, c.bound))]
    kept = tuple(c for c in s.constraints if c not in asking)
    index = None if s.index is None else tuple(map(position, s.index))
    s = replace(s, index=index, guard=all_of(conditions), body=value(s.body), constraints=kept)
    axis = run.axis.get(s.output)
    if axis is None or s.sizes is None:
        return s
    return replace(s, sizes=(*s.sizes[:axis], Int(rows), *s.sizes[axis + 1 :]))
