"""Statements that share an axis are carried out together, a slab of that axis at a time.

Where every statement of a run reads what it reads at its own row (layer norm, a softmax, their gradients), the run is a
function of the rows, and a slab of rows that fits in cache goes through all of it before the next one comes.
Intermediates are never whole. Statements that sum over the rows add up what the slabs give. A run of matrix products is
cut up too, though in larger slabs, where an intermediate would pass the memory budget (attention).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.backends.base import Lowering, Options
from tilec.backends.code import Names, indented, tuple_text
from tilec.backends.reference.sharing import share
from tilec.cost import size_in_bytes
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Expr,
    Index,
    Input,
    Int,
    Program,
    Statement,
    children,
    expressions,
    reads,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType
from tilec.transforms.defract import defract
from tilec.transforms.reduce import reduce

COMBINED = {"sum": "{0}.add_({1})", "max": "torch.maximum({0}, {1})", "min": "torch.minimum({0}, {1})"}
DENSE = 4  # points by the elements of the largest tensor from which a statement is a product rather than a pass
WHOLE = ("float32", "float64", "int64")  # types in which partial sums lose nothing
Types = Mapping[str, TensorType]


@dataclass
class Run:
    """`axis`: the dimension of each tensor that is cut; `size`: its extent. `before` needs no rows, `rows` and
    `columns` are carried out by slabs (the latter sum over the rows), `after` reads what the columns give."""

    size: int
    axis: dict[str, int]
    before: list[Statement] = field(default_factory=list)
    rows: list[Statement] = field(default_factory=list)
    columns: list[Statement] = field(default_factory=list)
    after: list[Statement] = field(default_factory=list)
    members: list[Statement] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)  # the variable that walks the axis, by output

    def passes_on(self) -> bool:
        """Does a statement read what another has written? Otherwise nothing is gained that loops over blocks lack."""
        made = {s.output for s in self.rows}
        return any(not made.isdisjoint(reads(s)) for s in self.members)

    def per_row(self, types: Types) -> int:
        """Elements of the largest tensor in one row."""
        return max(math.prod(types[t].shape) for t in self.axis) // self.size


@dataclass(frozen=True)
class Slab:
    """A run, the rows of a slab, and what is read of its results."""

    run: Run
    rows: int
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """Statements in the order in which they are carried out: one, or those of a run."""

    members: tuple[Statement, ...]
    slab: Slab | None = None


def in_slabs(program: Program, types: Types, options: Options) -> list[Step]:
    """A flat program's statements in an order in which runs stand together."""
    todo, steps = list(program.statements), []
    while todo:
        found = _find(todo, types, options, program.outputs) if len(todo) > 1 else None
        if found is None:
            steps.append(Step((todo.pop(0),)))
            continue
        run, rows = found
        todo = [*run.after, *todo[len(run.before) + len(run.members) + len(run.after) :]]
        read = {name for s in todo for name in reads(s)} | set(program.outputs)
        wanted = tuple(s.output for s in run.members if s.output in read)
        steps += [Step((s,)) for s in run.before]
        steps.append(Step(tuple(run.members), Slab(run, rows, wanted)))
    return steps


def _find(
    statements: Sequence[Statement], types: Types, options: Options, outputs: Sequence[str]
) -> tuple[Run, int] | None:
    """The longest run that begins with the first statement and the rows of a slab; None where none is worth cutting."""
    first = statements[0]
    best: tuple[Run, int] | None = None
    largest = max(math.prod(types[t].shape) for s in statements for t in (s.output, *reads(s)))
    if largest <= options.block and 8 * largest <= options.memory_budget:
        return None
    for dimension, v in enumerate(first.index or ()):
        if not isinstance(v, Index) or types[first.output].shape[dimension] < 2:
            continue
        for dense in (False, True):
            run = _run(statements, types, v.name, dimension, dense)
            if not run.passes_on() or best is not None and len(run.members) <= len(best[0].members):
                continue
            rows = _rows_for_budget(run, types, options, outputs) if dense else _rows_for_cache(run, types, options)
            if rows is not None and rows < run.size:
                best = run, _even(run.size, rows)
    return best


def _even(size: int, rows: int) -> int:
    """The most rows, from half as many on, that leave no smaller slab over, which would be a function of its own."""
    return next((n for n in range(rows, rows // 2, -1) if size % n == 0), rows)


def _rows_for_cache(run: Run, types: Types, options: Options) -> int | None:
    step = options.block // run.per_row(types)
    return step or None


def _rows_for_budget(run: Run, types: Types, options: Options, outputs: Sequence[str]) -> int | None:
    inner = [s.output for s in run.rows if s.output not in outputs]
    if max((size_in_bytes(types[t]) for t in inner), default=0) <= options.memory_budget:
        return None
    return max(1, options.memory_budget // sum(size_in_bytes(types[t]) // run.size for t in inner))


# which statements go together


def _run(statements: Sequence[Statement], types: Types, variable: str, dimension: int, dense: bool) -> Run:
    """The run over the axis that `variable` walks in the first statement. Twice, since what a statement reads may turn
    out later to have the axis."""
    first = statements[0]
    run = Run(types[first.output].shape[dimension], {first.output: dimension})
    for _ in range(2):
        run = Run(run.size, dict(run.axis))
        late: set[str] = set()
        assigned: set[str] = set()
        for s in statements:
            if not late.isdisjoint(reads(s)):
                run.after.append(s)
                late.add(s.output)
                continue
            v = _variable(s, run.axis) if s is not first else variable
            if v is None and run.axis.keys().isdisjoint(reads(s)):
                if not assigned.isdisjoint(reads(s)):
                    break
                run.before.append(s)
                continue
            if v is None or not _joins(s, v, run, types, dense):
                break
            run.members.append(s)
            run.variables[s.output] = v
            if v in _bare(s.index or ()):
                run.rows.append(s)
                assigned.add(s.output)
            else:
                run.columns.append(s)
                late.add(s.output)
    return run


def _variable(s: Statement, axis: Mapping[str, int]) -> str | None:
    """The one variable that indexes the axis in all that the statement reads of it."""
    found = set()
    for e in _accesses(s):
        if e.tensor in axis:
            i = e.index[axis[e.tensor]]
            found.add(i.name if isinstance(i, Index) else "")
    return found.pop() if len(found) == 1 and "" not in found else None


def _joins(s: Statement, v: str, run: Run, types: Types, dense: bool) -> bool:
    """Can the statement be carried out by slabs of v? Notes the axis of what it writes and reads."""
    if reads_itself(s) or s.default is not None or s.init is not None or s.no_defract:
        return False
    found: dict[str, int] = {}
    for tensor, index in [(s.output, s.index or ()), *((e.tensor, e.index) for e in _accesses(s))]:
        places = [d for d, e in enumerate(index) if any(isinstance(x, Index) and x.name == v for x in walk(e))]
        if not places:
            if tensor in run.axis or tensor in found:
                return False
            continue
        if len(places) > 1 or not isinstance(index[places[0]], Index):
            return False
        if types[tensor].shape[places[0]] != run.size:
            return False
        if run.axis.get(tensor, places[0]) != places[0] or found.setdefault(tensor, places[0]) != places[0]:
            return False
    if any(isinstance(x, Index) and x.name == v for c in s.constraints for x in walk(c.expr)):
        return False
    if s.output not in found and not (s.aggregation in COMBINED and types[s.output].dtype in WHOLE):
        return False
    if not dense and _is_dense(s, types):
        return False
    run.axis.update(found)
    return True


def _is_dense(s: Statement, types: Types) -> bool:
    """Is there much more to compute than to read and write? Windows count as such."""
    extent: dict[str, int] = {}
    for tensor, index in [(s.output, s.index or ()), *((e.tensor, e.index) for e in _accesses(s))]:
        extent.update((i.name, types[tensor].shape[d]) for d, i in enumerate(index) if isinstance(i, Index))
    if any(isinstance(e, Index) and e.name not in extent for root in expressions(s) for e in walk(root)):
        return True
    return math.prod(extent.values()) >= DENSE * max(math.prod(types[t].shape) for t in (s.output, *reads(s)))


def _accesses(s: Statement) -> list[Access]:
    return [e for root in expressions(s) for e in walk(root) if isinstance(e, Access)]


def _bare(index: Sequence[Expr]) -> set[str]:
    return {e.name for e in index if isinstance(e, Index)}


# their text


def _program(run: Run, rows: int, types: Types, given: Sequence[str], wanted: Sequence[str], start: str) -> Lowering:
    """The run as a program over `rows` rows: inputs `given` and, where a statement asks which row it is at, `start`."""
    inner = {t: _cut(types[t], run.axis.get(t), rows) for t in (*given, *(s.output for s in run.members))}
    members = [_at_rows(s, run, rows, start) for s in run.members]
    inputs = [Input(t, inner[t].shape) for t in given]
    if any(start in reads(s) for s in members):
        inputs.append(Input(start, ()))
        inner[start] = TensorType((), "int64")
    flat = share(Program(None, tuple(inputs), tuple(wanted), tuple(members)), inner)
    reduced = reduce(flat)
    return Lowering({"flat": flat, "reduced": reduced, "defracted": defract(reduced)}, infer(flat, inner))


def _cut(t: TensorType, axis: int | None, rows: int) -> TensorType:
    if axis is None:
        return t
    return TensorType((*t.shape[:axis], rows, *t.shape[axis + 1 :]), t.dtype, t.weak)


def _at_rows(s: Statement, run: Run, rows: int, start: str) -> Statement:
    """The statement over the rows of a slab; where the row's number is a value, that of the slab's first is added."""
    v = run.variables[s.output]

    def value(e: Expr) -> Expr:
        if isinstance(e, Index) and e.name == v:
            return e + Access(start, ())
        return e if isinstance(e, Access) or not children(e) else rebuild(e, value)

    s = replace(s, guard=None if s.guard is None else value(s.guard), body=value(s.body))
    axis = run.axis.get(s.output)
    if axis is None or s.sizes is None:
        return s
    return replace(s, sizes=(*s.sizes[:axis], Int(rows), *s.sizes[axis + 1 :]))


def slab_lines(
    slab: Slab, types: Types, local: Mapping[str, str], names: Names, function: Callable[[Lowering], str]
) -> list[str]:
    """Lines that carry out a run; `function` makes a function of a program and gives its name."""
    run, rows, wanted = slab.run, slab.rows, slab.wanted
    inside = {s.output for s in run.members}
    given = [t for t in dict.fromkeys(n for s in run.members for n in reads(s)) if t not in inside]
    first, last, start = names.fresh("first"), names.fresh("last"), names.fresh("Start")
    parts = {t: names.fresh(f"{local[t]}_part") for t in wanted}

    def part(tensor: str) -> str:
        axis = run.axis.get(tensor)
        return local[tensor] if axis is None else f"{local[tensor]}[{':, ' * axis}{first}:{last}]"

    def call(size: int) -> str:
        lowering = _program(run, size, types, given, wanted, start)
        asked = [f"torch.tensor({first}, device=device)"] if start in lowering.stages["flat"].input_names() else []
        arguments = ", ".join([*map(part, given), *asked])
        return f"{', '.join(parts[t] for t in wanted)}, = {function(lowering)}({arguments})"

    before, body = [], [f"{last} = min({first} + {rows}, {run.size})"]
    remainder = run.size % rows
    if remainder:
        body += [f"if {last} - {first} == {rows}:", *indented([call(rows)]), "else:", *indented([call(remainder)])]
    else:
        body.append(call(rows))
    combined = {s.output: COMBINED[s.aggregation] for s in run.columns}
    for t in wanted:
        if t in combined:
            before.append(f"{local[t]} = None")
            body.append(f"{local[t]} = {parts[t]} if {local[t]} is None else {combined[t].format(local[t], parts[t])}")
        else:
            shape = tuple_text(types[t].shape)
            before.append(f"{local[t]} = torch.empty({shape}, dtype=torch.{types[t].dtype}, device=device)")
            body.append(f"{part(t)} = {parts[t]}")
    return [*before, f"for {first} in range(0, {run.size}, {rows}):", *indented(body)]
