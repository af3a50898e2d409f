"""Axis tiling: programs whose intermediates pass a memory budget go slab by slab.

Scores of an attention are N x N, its inputs and outputs N x D. Where a plan's intermediates take more than the budget,
a run of statements that share an axis (`common/axis_tiling.py`) becomes a loop over slabs of it: the plan of a slab is
that of a program like any other, made once, and views of the inputs and outputs are what it is given. What comes before
and after the run, and a slab that is still too large, are programs that may be cut in turn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.backends.base import Lowering
from tilec.backends.common.axis_tiling import Rules, Slab, TileRegion, accesses_of, read_at, run_over, slab_of
from tilec.backends.common.chains.values import extents_of
from tilec.backends.common.scalars import identity
from tilec.backends.triton.fusion.groups import Grouped, grouped
from tilec.backends.triton.iteration.scatter_to_select import lowered_with_selections
from tilec.backends.triton.plan.plan import (
    Allocate,
    Plan,
    Release,
    Setting,
    Step,
    SubPlan,
    TiledLoop,
    allocates,
    stored_bytes,
    temporary_bytes,
)
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.schedule.planner import make_plan
from tilec.cost import size_in_bytes
from tilec.ir.index import distinct_variables
from tilec.ir.program import Index, Input, Program, Statement, map_expressions, reads
from tilec.ir.types import NARROW, Types
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.reduce import reduce
from tilec.transforms.simplify.evaluated import compared_sides, leaps_in, tensors_evaluated
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_plain_sum
from tilec.transforms.util.rewrite import map_reads
from tilec.transforms.util.tiled import Combine, Into, Slice, Start

LEAST_BUDGET = 512 * 2**20  # bytes; slabs of so much take a few percent longer than the whole, of half as much twenty
HEAVY_BUDGET = 128 * 2**20  # bytes, where a slab of so much has work for about a millisecond
MILLISECOND = 5 * 10**11  # operations
TILING_RULES = Rules(products=True, strict=False)
SLAB_ALIGNMENT = 16  # bytes
GRAINS = (128, 64, 16, 8)  # rows of a slab are a multiple of the first of these that is not more than it may have
NEARLY = 0.9  # of the most that can be cut: as good, if less is read anew
MOST_AGAIN = 2  # cuts within each other whose rows are computed again
MOST_TILED_SHARE = 0.75  # of the whole's intermediates: what slabs take must be less


def budget_of(lowering: Lowering, chosen: int | None) -> int:
    """Bytes that intermediates may take: as chosen, or what keeps a device busy or the caller holds anyway."""
    if chosen is not None:
        return chosen
    flat = lowering.stages["flat"]
    return max(LEAST_BUDGET, sum(size_in_bytes(lowering.types[n]) for n in {*flat.input_names(), *flat.outputs}))


def slab_budget(lowering: Lowering, budget: int, chosen: int | None) -> int:
    """Bytes that a slab may take of a program that passes the budget: less where products make little work of many
    operations, as a linear layer's logits are."""
    flat, types = lowering.stages["flat"], lowering.types
    beside = [size_in_bytes(types[s.output]) for s in flat.statements if s.output not in flat.outputs]
    operations = 0
    for s in flat.statements:
        extent = extents_of(s, types)
        if s.aggregation == "sum" and extent is not None:
            operations += 2 * math.prod(extent.values())
    heavy = operations * HEAVY_BUDGET >= MILLISECOND * max([1, *beside])
    return min(budget, HEAVY_BUDGET) if chosen is None and heavy else budget


@dataclass(frozen=True)
class Planned:
    """A lowered program for inputs of these strides, its groups and its plan."""

    lowering: Lowering
    strides: Sequence[tuple[int, ...]]
    setting: Setting
    grouping: Grouped
    plan: Plan

    @property
    def live_bytes(self) -> int:
        """The most bytes of intermediates at a time."""
        return temporary_bytes(self.plan, self.grouping.types)

    def part(self, provided: Sequence[str] = ()) -> SubPlan:
        """The plan as a part of another one, which provides memory for these of its outputs."""
        steps = (s for s in self.plan.steps if not (isinstance(s, Allocate) and s.tensor in provided))
        plan = Plan(tuple(steps), tuple(o for o in self.plan.outputs if o not in provided))
        inputs = self.lowering.stages["flat"].input_names()
        return SubPlan(plan, (*inputs, *provided), self.grouping.types, self.grouping.program)


def planned(
    lowering: Lowering, strides: Sequence[tuple[int, ...]], setting: Setting, grouping: Grouped | None = None
) -> Planned:
    """The plan of the whole program."""
    flat, types = lowering.stages["flat"], lowering.types
    grouping = grouping or grouped(flat, types)
    return Planned(lowering, strides, setting, grouping, make_plan(lowering, grouping, strides, setting))


def within(whole: Planned, budget: int, slab: int | None = None, again: int = MOST_AGAIN) -> Planned:
    """The plan, cut where its intermediates pass the budget and slabs take less. `slab`: bytes that one may take (as
    many). `again`: of how many cuts, one in what is left of another, what was made is computed again: each takes a
    second plan of all that is in it."""
    live_bytes = whole.live_bytes
    if live_bytes <= budget:
        return whole
    selected = replace(whole, lowering=lowered_with_selections(whole.lowering))
    made = chosen = whole
    for recomputing in (False, True) if again else (False,):
        if made.live_bytes > budget and (cut := _best(selected, slab or budget, recomputing)) is not None:
            plans = _Cutter(selected, slab or budget, again - recomputing).plans(cut)
            other, adding = (replace(whole, plan=plan) for plan in plans)
            if other.live_bytes < MOST_TILED_SHARE * made.live_bytes:
                made, chosen = other, adding
    return chosen


# what is cut


@dataclass(frozen=True)
class Cut:
    """A run, the statements around it, and about how many of its rows take as much as the budget. `again`: what it
    computes that the statements after it do not read but compute again, and its names there."""

    before: tuple[Statement, ...]
    run: TileRegion
    rows: int
    again: Mapping[str, str] = field(default_factory=dict)


def _best(whole: Planned, budget: int, recomputing: bool = False) -> Cut | None:
    """The run whose slabs spare the most and, of those that spare about as much, read the least anew. `recomputing`:
    what passes the budget is computed again after the run, where that needs what it has aggregated of all rows, and
    nothing of it is kept between."""
    flat, types = whole.lowering.stages["flat"], whole.lowering.types
    own, work = stored_bytes(whole.plan, flat, types)
    total = sum(own.values()) + sum(work.values())
    found: list[tuple[int, int, int, TileRegion, int, frozenset[str]]] = []
    for place, first in enumerate(flat.statements):
        if 16 * (size_in_bytes(types[first.output]) + work.get(first.output, 0)) < total:
            continue
        for d, v in enumerate(first.index or ()):
            if not isinstance(v, Index) or types[first.output].shape[d] < 2:
                continue
            run = run_over(flat.statements[place:], types, v.name, d, TILING_RULES)
            others = (*flat.statements[:place], *run.before, *run.after)
            wanted = set(run.wanted(others, flat.outputs))
            again = _recomputed(run, types, budget, wanted - {*flat.outputs}) if recomputing else frozenset()
            if recomputing and not again:
                continue
            wanted -= again
            spared = sum(work.get(s.output, 0) for s in run.members)
            spared += sum(own.get(s.output, 0) for s in run.rows if s.output not in wanted)
            read = {n for s in run.members for n in reads(s)}
            before = {s.output for s in others} & read
            spared -= sum(size_in_bytes(types[n]) for n in before - own.keys() - set(flat.outputs))
            found.append((spared, _anew(run, types), d, run, place, again))
    if not found or (most := max(f[0] for f in found)) <= 0:
        return None
    spared, _, _, run, place, again = min((f for f in found if f[0] >= NEARLY * most), key=lambda f: f[1:3])
    at_once = spared * min(1.0, whole.live_bytes / total)
    names = Names({*types})
    renamed = {s.output: names.fresh(f"{s.output}_again") for s in run.rows if s.output in again}
    return Cut((*flat.statements[:place], *run.before), run, max(1, int(budget * run.size / at_once)), renamed)


def _recomputed(run: TileRegion, types: Types, budget: int, wanted: Collection[str]) -> frozenset[str]:
    """Of what is `wanted` of a run's rows, what passes the budget, and what else does that it is made of. Empty where
    nothing else would be left of the run, and where a step, as a comparison is, tells these from what the run made:
    other kernels may round them otherwise."""
    large = {s.output for s in run.rows if size_in_bytes(types[s.output]) > budget}
    found = large & {*wanted}
    for s in reversed(run.rows):
        found |= large & {*reads(s)} if s.output in found else set()
    again, once = set(found), {s.output for s in run.members} - found  # with all that depends on them
    for s in (*(s for s in run.rows if s.output in found), *run.after):
        compared = [[tensors_evaluated(e) for e in sides] for sides in compared_sides(s)]
        if any(x & again and y - again for sides in compared for x, y in itertools.permutations(sides, 2)):
            return frozenset()
        if any(x & again and x & once for x in map(tensors_evaluated, leaps_in(s))):
            return frozenset()
        for made in (again, once):
            made |= set() if made.isdisjoint(reads(s)) else {s.output}
    return frozenset(found) if len(found) < len(run.members) else frozenset()


def _anew(run: TileRegion, types: Types) -> int:
    """Bytes that each slab reads, or adds to, whatever its size."""
    read: set[str] = set()
    for s in run.members:
        places = {a.tensor: read_at(a, run.variables[s.output], run, types) for a in accesses_of(s)}
        read |= {name for name, place in places.items() if place is not None and place.axis is None}
    return sum(size_in_bytes(types[n]) for n in read) + 6 * sum(size_in_bytes(types[s.output]) for s in run.columns)


def _rounded(size: int, rows: int) -> int:
    """As many rows or somewhat fewer, so that slabs are about equal and their rows come in multiples."""
    rows = max(1, min(rows, -(-size // 2)))
    grain = next((g for g in GRAINS if g <= rows), 1)
    count = -(-size // (rows // grain * grain))
    return -(-size // (count * grain)) * grain


# the plan of it

Slabs = tuple[Slab, Planned, int, int]  # a slab, its plan, the first row of the first such, and how many there are
SlabResult = tuple[Into | Combine, str]  # what becomes of what slabs give, and its type


class _Cutter:
    """Makes the plan of a program, one of whose runs is cut."""

    def __init__(self, whole: Planned, budget: int, again: int):
        self.lowering, self.setting, self.budget, self.again = whole.lowering, whole.setting, budget, again
        self.types = whole.lowering.types
        flat = whole.lowering.stages["flat"]
        self.outputs = flat.outputs
        self.totals: Mapping[str, str] = {}  # the tensors that hold sums of slabs which add to these themselves
        self.strides = {s.output: contiguous(self.types[s.output].shape) for s in flat.statements}
        self.strides |= {name: tuple(s) for name, s in zip(flat.input_names(), whole.strides, strict=True)}

    def plans(self, cut: Cut) -> tuple[Plan, Plan]:
        """The plan, and one whose slabs add to what those before gave, where kernels of products can."""
        self._compute_again(cut)
        run, types = cut.run, self.types
        later = {n for s in run.after for n in reads(s)} | set(self.outputs)
        before = self._around(cut.before, later | {n for s in run.members for n in reads(s)})
        loops, results = self._loops(cut, run.wanted(run.after, self.outputs))
        steps: list[Step] = [] if before is None else [before]
        totals: list[Step] = []
        gone = [] if before is None else [n for n in before.plan.outputs if n not in later]
        for name, (result, dtype) in results.items():
            t = types[name]
            fill = identity(result.aggregation, dtype) if isinstance(result, Combine) else None
            steps.append(Allocate(result.tensor, t.shape, dtype, fill))
            if result.tensor != name:
                totals.append(Allocate(name, t.shape, t.dtype, result.tensor))
                gone.append(result.tensor)
        totals += [Release(tuple(gone))] if gone else []
        after = self._around(run.after, set(self.outputs))
        totals += [] if after is None else [after]
        plain, adding = (Plan((*steps, loop, *totals), self.outputs) for loop in loops)
        return plain, adding

    def _compute_again(self, cut: Cut) -> None:
        """Let what comes after the run compute again what it shall, in each stage."""
        again, later = cut.again, {s.output for s in cut.run.after}

        def renamed(s: Statement) -> Statement:
            moved = map_expressions(s, lambda e: map_reads(e, again, lambda a: replace(a, tensor=again[a.tensor])))
            return replace(moved, output=again.get(s.output, s.output))

        if not again:
            return
        self.types = {**self.types, **{name: self.types[n] for n, name in again.items()}}
        stages = dict(self.lowering.stages)
        for stage in ("flat", "reduced", "defracted"):
            statements = stages[stage].statements
            copies = [renamed(s) for s in statements if s.output in again]
            left = [renamed(s) if s.output in later else s for s in statements]
            stages[stage] = replace(stages[stage], statements=(*left, *copies))
        self.lowering = replace(self.lowering, stages=stages, types=self.types)
        made = [s for s in cut.run.rows if s.output in again]
        cut.run.after[:] = map(renamed, (*made, *cut.run.after))

    def _around(self, statements: Sequence[Statement], needed: set[str]) -> SubPlan | None:
        """Statements before or after the run as a part, cut in turn where it must be."""
        if not statements:
            return None
        own = {s.output for s in statements}
        read = dict.fromkeys(n for s in statements for n in reads(s) if n not in own and n in self.types)
        inputs = tuple(Input(n, self.types[n].shape) for n in read)
        outputs = tuple(s.output for s in statements if s.output in needed)
        stages = {"flat": Program(None, inputs, outputs, tuple(statements))}
        for stage in ("reduced", "defracted"):
            known = {s.output: s for s in self.lowering.stages[stage].statements}
            stages[stage] = replace(stages["flat"], statements=tuple(known[s.output] for s in statements))
        lowering = Lowering(stages, {n: self.types[n] for n in (*read, *own)})
        misaligned = tuple(n for n in self.setting.misaligned if n in read)
        setting = replace(self.setting, misaligned=misaligned)
        whole = planned(lowering, [self.strides[n] for n in read], setting)
        return within(whole, self.budget, again=self.again).part()

    def _loops(self, cut: Cut, wanted: tuple[str, ...]) -> tuple[Sequence[TiledLoop], Mapping[str, SlabResult]]:
        """The loop, and that which adds to totals; of what is wanted, where slabs put it, and of which type."""
        rows, plain = self._slabs(cut.run, cut.rows, wanted)
        dtypes = plain[0][1].grouping.types
        results = {name: (self._result(name, cut.run, plain[0][1]), dtypes[name].dtype) for name in wanted}
        loop = self._loop(plain, rows, results)
        self._add_to_totals(cut.run, plain[0], results)
        if not self.totals:
            return (loop, loop), results
        rows_then, adding = self._slabs(cut.run, cut.rows, wanted)
        added = rows_then == rows and all(self._in_totals(a, b[1]) for a, b in zip(adding, plain, strict=True))
        return (loop, self._loop(adding, rows, results) if added else loop), results

    def _loop(self, slabs: Sequence[Slabs], rows: int, results: Mapping[str, SlabResult]) -> TiledLoop:
        plans = [p for _, p, _, _ in slabs]
        own = {name: r for name, (r, _) in results.items() if self._in_place(name, r, rows, plans)}
        others = [r for name, (r, _) in results.items() if name not in own]
        memory = tuple(own.values())
        return TiledLoop(
            tuple(s.call(p.part(tuple(own)), others, first, count, memory) for s, p, first, count in slabs)
        )

    def _slabs(self, run: TileRegion, rows: int, wanted: tuple[str, ...]) -> tuple[int, list[Slabs]]:
        """The rows of a slab, and slabs of so many and of what is left."""
        rows = _rounded(run.size, rows)
        slab, whole = self._of_rows(run, rows, wanted)
        if whole.live_bytes > self.budget and rows > 1:
            rows = self._fewer(run, rows, whole.live_bytes, wanted)
            slab, whole = self._of_rows(run, rows, wanted)
        left = run.size % rows
        slabs = [(slab, within(whole, self.budget, again=0), 0, run.size // rows)]
        if left:
            last, rest = self._of_rows(run, left, wanted, rows)
            slabs.append((last, within(rest, self.budget, again=0), run.size - left, 1))
        return rows, slabs

    def _fewer(self, run: TileRegion, rows: int, live_bytes: int, wanted: tuple[str, ...]) -> int:
        """Rows that take as much as the budget, of which half is theirs whatever else a slab takes."""
        some = max(1, rows // 2)
        less = self._of_rows(run, some, wanted)[1].live_bytes
        each = max(1, (live_bytes - less) // (rows - some))
        return _rounded(run.size, max(1, max(self.budget - (live_bytes - each * rows), self.budget // 2) // each))

    def _of_rows(self, run: TileRegion, rows: int, wanted: tuple[str, ...], apart: int = 0) -> tuple[Slab, Planned]:
        """A slab of so many rows, beginning at multiples of `apart` (0: of as many), and its plan."""
        slab = slab_of(run, rows, self.types, wanted).adding_to(self.totals)
        given, strides, misaligned = dict(slab.given), list[tuple[int, ...]](), list[str]()
        for name, x in slab.given.items():
            if isinstance(x, Slice) and self._misaligned(x.tensor, x.axis, apart or rows):
                given[name] = replace(x, copied=True)
                strides.append(contiguous(slab.types[name].shape))
                continue
            strides.append(() if isinstance(x, Start) else self.strides[x.tensor])
            if not isinstance(x, Start) and x.tensor in self.setting.misaligned:
                misaligned.append(name)
        reduced = reduce(slab.program)
        stages = {"flat": slab.program, "reduced": reduced, "defracted": defract(reduced)}
        setting = replace(self.setting, misaligned=tuple(misaligned))
        return replace(slab, given=given), planned(Lowering(stages, slab.types), strides, setting)

    def _misaligned(self, tensor: str, axis: int, rows: int) -> bool:
        """Whether the alignment of rows' first elements differs from slab to slab."""
        element = size_in_bytes(replace(self.types[tensor], shape=()))
        return rows * self.strides[tensor][axis] * element % SLAB_ALIGNMENT != 0

    def _result(self, name: str, run: TileRegion, slab: Planned) -> Into | Combine:
        axis = run.axis.get(name)
        if axis is not None:
            return Into(name, axis, 0)
        aggregation = next(s.aggregation for s in run.columns if s.output == name)
        same = slab.grouping.types[name].dtype == self.types[name].dtype
        return Combine(name if same else f"{name}.total", aggregation, in_place=True)

    def _add_to_totals(self, run: TileRegion, of: Slabs, results: Mapping[str, SlabResult]) -> None:
        """Let the kernels of products add to what the slabs before gave, where there are such and slabs are not cut."""
        slab, plain = of[:2]
        sums = {s.output for s in slab.program.statements if s.output not in run.axis and _adds_products(s, slab.types)}
        if not any(plain.plan.parts()):
            self.totals = {name: r.tensor for name, (r, _) in results.items() if name in sums}
            self.strides |= {total: contiguous(self.types[name].shape) for name, total in self.totals.items()}

    def _in_totals(self, of: Slabs, plain: Planned) -> bool:
        """Does a slab add to the totals where it may, and store nothing more for that?"""
        slab, own = of[:2]
        parts = {s.output for s in slab.program.statements} - {*plain.grouping.types}
        stored = any(isinstance(s, Allocate) and s.tensor in parts for s in own.plan.steps)
        return not stored and own.live_bytes <= plain.live_bytes and all(allocates(own.plan, n) for n in self.totals)

    def _in_place(self, name: str, result: Into | Combine, rows: int, plans: Sequence[Planned]) -> bool:
        """Can slabs write their rows where they belong, or add to what is there?"""
        if isinstance(result, Combine):
            return name in self.totals
        whole = math.prod(self.types[name].shape[: result.axis]) == 1
        return whole and not self._misaligned(name, result.axis, rows) and all(allocates(p.plan, name) for p in plans)


def _adds_products(s: Statement, types: Types) -> bool:
    """Is it a product of matrices of 16 bits, summed in float32? Kernels of others may compute elements a second time
    after these are stored."""
    reads_ = accesses_of(s)
    plain = is_plain_sum(s) and len(reads_) == 2 and all(distinct_variables(a.index) for a in reads_)
    return plain and types[s.output].dtype == "float32" and all(types[a.tensor].dtype in NARROW for a in reads_)
