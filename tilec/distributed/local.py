"""A rank's share of a divided program: programs over what it holds, between communications.

A rank's statement is the whole one with indices shifted to the boxes at hand. Its index variables are counted from the
rank's own first element where one variable runs over what is divided, so that the rank's program looks like the whole
one; everywhere else they keep their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.distributed.pipelined import carry_of, in_blocks, in_groups, init_of, summary_of
from tilec.distributed.placements import IndexBox, coordinates, shape_of
from tilec.distributed.plan import Communication, Parted, ShardedStep, Sharding
from tilec.distributed.regions import statement_reads
from tilec.ir.functions import call
from tilec.ir.index import Affine, linear, replace_indices, substitute_affine
from tilec.ir.program import (
    Access,
    Constraint,
    Expr,
    Index,
    Input,
    Inside,
    Int,
    Program,
    Statement,
    expressions,
    index_variables,
    map_expressions,
    reads,
    rebuild,
)
from tilec.ir.types import TensorType, shapes_in
from tilec.lattice.sets import sizes_of
from tilec.transforms.bind.value_inputs import size_inputs
from tilec.transforms.util.naming import Names, all_variables


@dataclass(frozen=True)
class LocalProgram:
    """A program of what is at hand under the names `arguments`; `types` are those of its inputs, as which what is at
    hand is looked at. `stand_ins`, among the arguments, lend their shape alone."""

    program: Program
    types: Mapping[str, TensorType]
    arguments: tuple[str, ...]
    stand_ins: frozenset[str]


@dataclass(frozen=True)
class PipelineStep:
    """A rank's step of a recurrence that the ranks along a dimension of the mesh (`along`) carry out one after the
    other: `work` gives its elements, `result`. It reads the states of the rank before it, if it has one, as its last
    argument; `states` are those that it passes on, `depth` along `dim`, of this type. Where steps compose nobody waits:
    `summary` gives what a rank's steps do to a state, and what `work` reads beside states of blocks of steps; `carry`,
    of all ranks' summaries, the state before this one (None: there is none). `shape`: of the elements."""

    work: LocalProgram
    result: str
    dim: int
    depth: int
    states: TensorType
    shape: tuple[int, ...]
    first: bool
    along: int
    summary: LocalProgram | None
    carry: LocalProgram | None

    @property
    def works(self) -> tuple[LocalProgram, ...]:
        return tuple(w for w in (self.summary, self.carry, self.work) if w is not None)


@dataclass(frozen=True)
class Stage:
    """What ranks do together, then each by itself. `released`: names that nothing asks for afterwards."""

    together: tuple[Communication | PipelineStep, ...]
    work: LocalProgram | None
    released: tuple[str, ...]


def sources_of(c: Communication | PipelineStep) -> set[str]:
    """The names of what it reads."""
    return {n for w in c.works for n in w.arguments} if isinstance(c, PipelineStep) else {c.source}


def rank_stages(plan: Sharding, rank: int) -> tuple[Stage, ...]:
    """What one rank does, in order."""
    return _Rank(plan, rank).stages()


class _Rank:
    def __init__(self, plan: Sharding, rank: int):
        self.plan, self.rank = plan, rank
        self.shapes = shapes_in(plan.types)
        self.names = Names({*plan.types, *plan.copies, *(c.result for c in plan.communications)})
        self.stand_ins: dict[str, str] = {}

    def stages(self) -> tuple[Stage, ...]:
        plan = self.plan
        last = max([c.time for c in plan.communications] + [s.time for s in plan.steps], default=-1)
        pipelined = {step.statement.output: step for step in plan.steps if step.passing is not None}
        alone = [step for step in plan.steps if step.statement.output not in pipelined]
        bodies = [[s for step in alone if step.time == t for s in self._statements(step)] for t in range(last + 1)]
        moved = [
            tuple(
                self._pipeline_step(pipelined[c.tensor]) if c.states else c for c in plan.communications if c.time == t
            )
            for t in range(last + 1)
        ]
        wanted = set(plan.results.values())
        after: list[set[str]] = []  # what is asked for once a stage's program has run
        for body, together in zip(reversed(bodies), reversed(moved), strict=True):
            after.append(set(wanted))
            wanted |= {name for s in body for name in reads(s)}
            wanted |= {n for c in together for n in sources_of(c)}
        stages = zip(bodies, moved, reversed(after), strict=True)
        return tuple(self._stage(body, together, later) for body, together, later in stages)

    def _stage(
        self, body: list[Statement], together: tuple[Communication | PipelineStep, ...], later: set[str]
    ) -> Stage:
        outputs = tuple(s.output for s in body if s.output in later)
        work = self._work(body, outputs) if outputs else None
        known = set() if work is None else set(work.arguments)
        for c in together:
            known |= {*sources_of(c), c.result}
        return Stage(together, work, tuple(sorted(known - later)))

    def _work(
        self,
        body: list[Statement],
        outputs: tuple[str, ...],
        more: Mapping[str, TensorType] | None = None,
        shapes: Mapping[str, TensorType] | None = None,
    ) -> LocalProgram:
        """`more`: types of inputs that no plan knows, which come last; `shapes`: of those that are looked at so."""
        made = {s.output for s in body} | set(more or ())
        arguments = [n for n in dict.fromkeys(name for s in body for name in reads(s)) if n not in made]
        types = {**{name: (shapes or {}).get(name) or self._type(name) for name in arguments}, **(more or {})}
        program = Program(None, tuple(Input(n, t.shape) for n, t in types.items()), outputs, tuple(body))
        program = self._without_sizes(program)
        stand_ins = frozenset(arguments) & frozenset(self.stand_ins.values())
        types = dict(zip(program.input_names(), types.values(), strict=True))
        return LocalProgram(program, types, tuple(arguments), stand_ins)

    def _pipeline_step(self, step: ShardedStep) -> PipelineStep:
        s, split = step.statement, step.passing
        assert split is not None and split.dim is not None, "only divided recurrences are pipelined"
        low, high = split.parts[self.rank]
        t, k = self.plan.types[s.output], split.dim
        shape = self._type(s.output).shape
        states = replace(t, shape=(*shape[:k], abs(split.states), *shape[k + 1 :]), weak=False)
        first = low == 0 if split.states > 0 else high == split.size
        *before, own = self._statements(step)
        summary = carry = blocks = None
        if split.composes:
            ranks = self.plan.mesh[split.along]
            place = coordinates(self.plan.mesh)[self.rank][split.along]
            place = place if split.states > 0 else ranks - 1 - place
            found, blocks = summary_of(own, s, split, t, self.names, place == 0)
            pair = () if blocks is None else (blocks.scales, blocks.offsets)
            made = {f.output for f in found}
            given = {n: self._type(n) for f in found for n in reads(f) if n not in made}
            found, grouped = in_groups(found, given)
            summary = self._work([*before, *found], (found[-1].output, *pair), shapes=grouped)
            gathered = self.names.fresh(f"{s.output}_ranks")
            lanes = tuple(n for d, n in enumerate(shape) if d != k)
            types = {gathered: replace(states, shape=(ranks, 2, *lanes))}
            if place:
                carried = carry_of(own, split, t, gathered, self.names.fresh(f"{s.output}_carry"), ranks, place)
                carry = self._work([carried], (carried.output,), types)
        name = None if first else self.names.fresh(f"{s.output}_before")
        more = {} if name is None else {name: states}
        if blocks is not None:
            each = replace(states, shape=(blocks.count, *(n for d, n in enumerate(shape) if d != k)))
            more = {blocks.scales: each, blocks.offsets: each, **more}
            statements = in_blocks(own, split, t, blocks, name, self.names)
        elif name is not None:
            statements = [replace(own, init=init_of(own, s, split, t.shape, name, self.rank))]
        else:
            statements = [own]
        work = self._work([*before, *statements], (s.output,), more)
        return PipelineStep(work, s.output, k, split.states, states, shape, first, split.along, summary, carry)

    def _without_sizes(self, program: Program) -> Program:
        """The same where integers of rank 0 that stand in indices are no sizes, as inputs would be."""
        renamed = {name: self.names.fresh(f"{name}_given") for name in size_inputs(program)}
        casts = [Statement(n, (), (), call("int64", Access(new, ()))) for n, new in renamed.items()]
        inputs = tuple(replace(i, name=renamed.get(i.name, i.name)) for i in program.inputs)
        return replace(program, inputs=inputs, statements=(*casts, *program.statements))

    def _type(self, name: str) -> TensorType:
        """Of what is at hand under a name."""
        back = {new: tensor for tensor, new in self.stand_ins.items()}
        if name in back:
            return replace(self.plan.types[back[name]], weak=False)
        copy = self.plan.copies[name]
        return replace(self.plan.types[copy.tensor], shape=shape_of(copy.boxes[self.rank]))

    # a statement

    def _statements(self, step: ShardedStep) -> list[Statement]:
        s, rank = step.statement, self.rank
        owned = {t: (name, self.plan.copies[name].boxes[rank]) for t, name in step.reads.items()}
        before: list[Statement] = []
        shift: dict[str, Affine] = {}
        own: dict[int, int] = {}
        sizes = list(s.sizes or ())
        limits: list[Constraint] = []
        for split in step.splits:  # the inner ones of those that divide the same come later
            low, high = split.parts[rank]
            v = _counted(split.form)
            if v is not None and v not in _bound(s):
                shift[v] = Affine.variable(v) + (low - split.form.constant)
            if split.dim is not None:
                own[split.dim], sizes[split.dim] = low, Int(high - low)
            elif not self._owned(s, split, owned):
                limits.append(Constraint((split.form - low).to_expr(), Int(high - low)))
        s = replace(s, constraints=(*s.constraints, *limits))
        init = s.init
        s = substitute_affine(s, shift) if shift else s
        if init is not None and shift:
            init = replace_indices(init, shift)
        if own:
            s = replace(s, sizes=tuple(sizes))
        s = map_expressions(replace(s, init=init), lambda e: self._read_locally(e, s.output, own, owned))
        if own:
            index = list(s.index or ())
            for k, low in own.items():
                index[k] = (linear(index[k]) - low).to_expr()
            s = replace(s, index=tuple(index))
        if s.default is not None:
            s, before = self._with_default(s, owned, own)
        return [*before, s]

    def _owned(self, s: Statement, split: Parted, owned: Mapping[str, tuple[str, IndexBox]]) -> bool:
        """Do the accesses alone keep a rank to its own points?"""
        assert split.owner is not None
        tensor, d = split.owner
        return (
            any(
                r.access.tensor == tensor and r.constrains and not r.shape and linear(r.access.index[d]) == split.form
                for r in statement_reads(s)
            )
            and owned[tensor][1][d] == split.parts[self.rank]
        )

    def _read_locally(
        self, e: Expr, output: str, own: Mapping[int, int], owned: Mapping[str, tuple[str, IndexBox]]
    ) -> Expr:
        """An expression that reads what is at hand; `own`: where the output's own elements begin."""

        def visit(x: Expr) -> Expr:
            if isinstance(x, Inside):
                index = tuple(map(visit, x.access.index))
                return Inside(Access(self._stand_in(x.access.tensor), index))
            if not isinstance(x, Access):
                return rebuild(x, visit)
            index = tuple(map(visit, x.index))
            if x.tensor == output:
                return Access(output, _moved(index, [own.get(k, 0) for k in range(len(index))]))
            if x.tensor not in owned:  # never read: of a statement without points
                return Access(self._stand_in(x.tensor), index)
            name, box = owned[x.tensor]
            return Access(name, _moved(index, [low for low, _ in box]))

        return visit(e)

    def _stand_in(self, tensor: str) -> str:
        """What has a tensor's shape, and no elements."""
        if tensor not in self.stand_ins:
            self.stand_ins[tensor] = self.names.fresh(f"{tensor}_shape")
        return self.stand_ins[tensor]

    def _with_default(self, s: Statement, owned: Mapping[str, tuple[str, IndexBox]], own: Mapping[int, int]):
        """The statement with a default of its own shape."""
        assert s.default is not None
        shape = sizes_of(s)
        if s.default not in owned:  # of no elements
            name = self._stand_in(s.default)
            box: IndexBox = tuple((0, n) for n in self.shapes[s.default])
        else:
            name, box = owned[s.default]
        wanted = tuple((own.get(k, 0), own.get(k, 0) + n) for k, n in enumerate(shape))
        if box == wanted:
            return replace(s, default=name), []
        part = self.names.fresh(f"{s.output}_default")
        index = tuple(Index(f"o{k}") for k in range(len(shape)))
        offsets = [low - start for (low, _), (start, _) in zip(box, wanted, strict=True)]
        cut = Statement(part, index, tuple(map(Int, shape)), Access(name, _moved(index, offsets)))
        return replace(s, default=part), [cut]


def _counted(form: Affine) -> str | None:
    """The index variable that a form is, up to a constant."""
    whole = form.constant.denominator == 1
    return replace(form, constant=form.constant * 0).bare if whole else None


def _bound(s: Statement) -> set[str]:
    """Variables that nested aggregations bind."""
    return all_variables(s) - set(index_variables(*expressions(s)))


def _moved(index: tuple[Expr, ...], origin: list[int]) -> tuple[Expr, ...]:
    return tuple((linear(i) - low).to_expr() if low else i for i, low in zip(index, origin, strict=True))
