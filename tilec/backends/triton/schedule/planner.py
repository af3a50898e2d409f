"""A lowered program as a plan: each statement by the family that fits it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from tilec.backends.base import Lowering
from tilec.backends.common.chains.chain import ChainKernel, with_reads
from tilec.backends.triton.chains.launch import chain_steps
from tilec.backends.triton.emit.epilogue import find_epilogue
from tilec.backends.triton.fusion.groups import Group, Grouped
from tilec.backends.triton.fusion.horizontal_fusion import fusable, fuse_launches, join_gradients, join_launches
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.matmul.distances import TileExtremum, extremum_steps
from tilec.backends.triton.matmul.pack import source_of_rows
from tilec.backends.triton.plan.plan import (
    Allocate,
    Launch,
    Plan,
    Release,
    Repeat,
    Setting,
    Step,
    SubPlan,
    TiledLoop,
    TorchLines,
    made_by,
)
from tilec.backends.triton.plan.sizes import LEAST_PADDED, WHOLE_VECTOR, contiguous, contiguous_strides, rows_of_vectors
from tilec.backends.triton.recurrence.recurrence import recurrence_steps, with_epilogue
from tilec.backends.triton.rows.rows import row_launch
from tilec.backends.triton.scan.scan import affine_recurrence
from tilec.backends.triton.scatter.fixed_point import in_fixed_point
from tilec.backends.triton.scatter.places import is_scatter, shared_margins
from tilec.backends.triton.schedule.families import allocated_steps, fused_steps, statement_steps, stored_steps
from tilec.backends.triton.schedule.materialize import made_once, resolve_requests
from tilec.backends.triton.schedule.problem import Unit, needs_int64_index, problem_of
from tilec.backends.triton.schedule.product_sums import product_sum_steps, product_sums
from tilec.backends.triton.schedule.reshape import over_sources, reshape_steps, reshape_view, reshaped_inputs
from tilec.backends.triton.schedule.scatter_sums import ScatterSum, scatter_sums, sum_steps
from tilec.backends.triton.schedule.shared_reads import SharedReads
from tilec.ir.program import Program, Statement, reads, reads_itself
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import NARROW, shapes_in
from tilec.transforms.lower.defract import defracted_form

MOST_DOWN = 65_535  # programs along the second and third axis of a grid


def make_plan(lowering: Lowering, grouping: Grouped, strides: Sequence[tuple[int, ...]], setting: Setting) -> Plan:
    """The plan of a lowered program, whose statements are in groups, for inputs of these strides (elements)."""
    planner = _Planner(lowering, grouping, strides, setting)
    units = planner.units()
    if padded := planner.copied_rows(units):
        other = _Planner(lowering, grouping, strides, setting, padded)
        found = other.units()
        if not any(isinstance(step, TorchLines) and padded & {*step.reads} for u in found for step in u.steps):
            planner, units = other, found
    steps = resolve_requests(made_once(_with_releases(units, grouping.program)))
    types = planner.types
    given = over_sources(steps, planner.sources, lambda name, source: reshape_view(name, source, types[name]))
    steps = _without_overwritten([*given])
    steps = join_launches(join_gradients(steps), setting.device.multiprocessors)
    return Plan(tuple(s for step in steps for s in _launchable(step)), grouping.program.outputs)


class _Planner:
    """Carries out the statements of a lowered program, those together that have one kernel. `strides`: of all tensors,
    contiguous ones where they are computed, the rows of those `padded` at whole vectors; `sources`: inputs that kernels
    read in another shape, by its name."""

    def __init__(
        self,
        lowering: Lowering,
        grouping: Grouped,
        strides: Sequence[tuple[int, ...]],
        setting: Setting,
        padded: frozenset[str] = frozenset(),
    ) -> None:
        self.padded, self.grouping, self.flat, self.types = padded, grouping, grouping.program, dict(grouping.types)
        flat, types = self.flat, self.types
        self.kept = with_reads(flat, grouping.chains.values())
        self.defracted = {s.output: s for s in lowering.stages["defracted"].statements}
        shapes = shapes_in(types)
        rewritten = (s for s in flat.statements if s.output in grouping.rewritten)
        self.defracted |= {s.output: s if reads_itself(s) else defracted_form(s, shapes) for s in rewritten}
        chained = {s.output for kernel in grouping.chains.values() for s in kernel.statements}
        self.grouped = grouped = {s.output for g in grouping.groups.values() for s in (*g.statements, *g.after)}
        self.members = grouped | chained
        self.strides = contiguous_strides(types) | {name: contiguous(rows_of_vectors(types[name])) for name in padded}
        self.strides |= {name: tuple(s) for name, s in zip(flat.input_names(), strides, strict=True)}
        reshaped = reshaped_inputs(flat, types, self.strides, grouped, chained)
        self.strides |= {name: steps for name, (_, steps) in reshaped.items()}
        self.sources = {name: source for name, (source, _) in reshaped.items()}
        scatters = [s for s in flat.statements if is_scatter(self.defracted.get(s.output, s))]
        misaligned = (*setting.misaligned, *(n for n, x in self.sources.items() if x in setting.misaligned))
        fixed = in_fixed_point(scatters, types)
        sorted_ones = [s for s in scatters if s.output not in fixed]
        margins = shared_margins(sorted_ones, types)
        self.setting = replace(setting, margins=margins, misaligned=misaligned, fixed=fixed, padded=padded)
        self.shared_reads = SharedReads(self.kept, self.defracted, types, self.setting)
        self.sums = scatter_sums(self.kept, [s.output for s in scatters], types, self.members)
        barred = {*self.members, *grouping.rewritten, *(s.output for s in scatters)}
        self.product_sums = product_sums(self.kept, types, barred)

    def units(self) -> list[Unit]:
        added = {output: unit for output in self.product_sums if (unit := self._product_sum_unit(output)) is not None}
        later = {m.output for found in self.sums.values() for m in found.members[:-1]}
        later |= {self.product_sums[output].product.output for output in added}
        for distances, tiles in self.grouping.tiled.items():
            if (unit := self._tiled_unit(distances, tiles)) is not None:
                added[tiles[0].statement.output] = unit
                later.add(distances)
        units: list[Unit] = []
        done = {*self.sources}
        for place, s in enumerate(self.flat.statements):
            if s.output not in done and s.output not in later:
                units += [added[s.output]] if s.output in added else map(self._in_memory, self._units_from(place, done))
                done |= {m.output for m in units[-1].statements}
        return units

    def _in_memory(self, unit: Unit) -> Unit:
        """The unit with memory for what is padded, whichever kernels write it."""
        padded = (
            self._allocated(x.tensor) if isinstance(x, Allocate) and x.tensor in self.padded else x for x in unit.steps
        )
        return replace(unit, steps=tuple(padded))

    def _units_from(self, place: int, done: Collection[str]) -> list[Unit]:
        """What carries out the statement at a place, the last with all that has one kernel with it."""
        s, grouping = self.flat.statements[place], self.grouping
        if s.output in grouping.chains:
            return [self._chain_unit(grouping.chains[s.output])]
        if s.output in grouping.groups:
            return [self._row_unit(grouping.groups[s.output])]
        if reads_itself(s):
            return [self._recurrence_unit(place)]
        reshaping = reshape_steps(s, self.kept, self.types)
        if reshaping is not None:
            return [Unit((s,), (s.output,), tuple(reshaping))]
        barred = {*self.members, *grouping.groups, *grouping.chains, *done}
        joint = self.shared_reads.kernel(place, {*self.flat.input_names(), *done}, barred, self.strides)
        if joint is not None:
            return [joint]
        if s.output not in self.sums:
            epilogue = find_epilogue(self.kept, place, self.types, self.members)
            return [(None if epilogue else self._stored_unit(place)) or self._single_unit(s, epilogue)]
        together = self._sum_unit(self.sums[s.output])
        if together is not None:
            return [together]
        alone = [self._single_unit(m) for m in self.sums[s.output].members[:-1]]
        return [*alone, self._single_unit(s, find_epilogue(self.kept, place, self.types, self.members))]

    def copied_rows(self, units: Sequence[Unit]) -> frozenset[str]:
        """Intermediates whose rows are to begin at whole vectors since products copy them so, or store them by boxes,
        and that no kernels touch beside these but those of groups and maps, which may write them so at once."""
        boxed = {unit.outputs[0] for unit in units if _is_by_boxes(unit) and self._begins_anywhere(unit.outputs[0])}
        copied = {name for unit in units for step in unit.steps if (name := source_of_rows(step)) is not None} | boxed
        for unit in units:
            mapped = all(s.aggregation == "assign" and not reads_itself(s) for s in unit.statements)
            launched = all(isinstance(step, Allocate | Launch) for step in unit.steps)
            written = {s.output for s in unit.statements}
            if _is_by_boxes(unit):
                copied -= written - boxed
            elif not (mapped and launched) and not written <= self.grouped:
                copied -= written | {n for step in unit.steps if source_of_rows(step) is None for n in _given(step)}
        return frozenset(copied & self.types.keys() - {*self.flat.outputs, *self.flat.input_names()})

    def _begins_anywhere(self, tensor: str) -> bool:
        """Whether long rows of a tensor of 16 bits do not begin at whole vectors."""
        t = self.types[tensor]
        return (
            len(t.shape) > 1 and t.dtype in NARROW and t.shape[-1] >= LEAST_PADDED and t.shape[-1] % WHOLE_VECTOR != 0
        )

    def _allocated(self, output: str) -> Allocate:
        t = self.types[output]
        return Allocate(output, rows_of_vectors(t) if output in self.padded else t.shape, t.dtype)

    def _has_elements(self, output: str) -> bool:
        return bool(self.types[output].numel)

    def _chain_unit(self, kernel: ChainKernel) -> Unit:
        steps: list[Step] = [self._allocated(o) for o in kernel.outputs]
        steps += chain_steps(kernel, self.types, self.strides, self.setting)
        read = tuple(self.sources.get(n, n) for n in kernel.reads)
        return Unit(kernel.statements, kernel.outputs, tuple(steps), read)

    def _single_unit(self, s: Statement, epilogue: Sequence[Statement] = ()) -> Unit:
        """A statement, in one launch with its epilogue where that has a form; otherwise without."""
        library = self.setting.library and self.padded.isdisjoint((s.output, *reads(s)))  # which knows of no padding
        how = self.types, self.strides, replace(self.setting, library=library)
        defracted = self.defracted[s.output]
        made: list[Step] | None = None
        if epilogue and self._has_elements(s.output):
            made = fused_steps(defracted, s, epilogue, *how)
        statements = (s, *epilogue) if made is not None else (s,)
        output = statements[-1].output
        if made is None and self._has_elements(output):
            made = statement_steps(defracted, s, *how)
        return Unit(statements, (output,), (self._allocated(output), *(made or ())))

    def _stored_unit(self, place: int) -> Unit | None:
        """A product that is stored, since others read it too, with what follows from it in the same launch."""
        s = self.kept.statements[place]
        epilogue = find_epilogue(self.kept, place, self.types, self.members, stored=True)
        if not epilogue or not self._has_elements(s.output):
            return None
        p = problem_of(self.defracted[s.output], s, self.types, self.strides, self.setting)
        made = None if p is None else stored_steps(p, epilogue)
        if made is None:
            return None
        outputs = (s.output, epilogue[-1].output)
        return Unit((s, *epilogue), outputs, (*map(self._allocated, outputs), *made))

    def _sum_unit(self, found: ScatterSum) -> Unit | None:
        """Scatters and what takes their values together, where one kernel computes these."""
        output = found.epilogue[-1].output
        made = sum_steps(found, self.types, self.strides, self.setting) if self._has_elements(output) else None
        if made is None:
            return None
        return Unit((*found.members, *found.epilogue), (output,), (self._allocated(output), *made))

    def _product_sum_unit(self, output: str) -> Unit | None:
        """A sum and the products that it takes, where one kernel computes both."""
        found = self.product_sums[output]
        defracted = self.defracted[found.product.output]
        steps = product_sum_steps(found, defracted, self.types, self.strides, self.setting)
        if steps is None or not self._has_elements(output):
            return None
        return Unit((found.product, found.added), (output,), (self._allocated(output), *steps))

    def _tiled_unit(self, distances: str, tiles: Sequence[TileExtremum]) -> Unit | None:
        """Distances, of which what tiles are asked for is stored, where one kernel computes both."""
        s = next(s for s in self.flat.statements if s.output == distances)
        members = (s, *(t.statement for t in tiles))
        int64_index = needs_int64_index(members, self.types, self.strides, None)
        view = StridedView(self.defracted[distances], self.types, self.strides, int64_index)
        steps = extremum_steps(s, view, tiles, partial(allocated_steps, setting=self.setting), self.setting)
        outputs = tuple(m.output for m in members[1:])
        return None if steps is None else Unit(members, outputs, (*map(self._allocated, outputs), *steps))

    def _recurrence_unit(self, place: int) -> Unit:
        """A recurrence and its epilogue: many steps at once where they are affine and that pays."""
        s, types, strides, setting = self.kept.statements[place], self.types, self.strides, self.setting
        if self._has_elements(s.output):
            for epilogue in dict.fromkeys((find_epilogue(self.kept, place, types, self.members), ())):
                both = (s, *epilogue)
                int64_index = needs_int64_index(both, types, strides, None)
                steps = affine_recurrence(s, types, strides, setting, int64_index, epilogue)
                if steps is not None:
                    return Unit(both, (both[-1].output,), (self._allocated(both[-1].output), *steps))
        fused = with_epilogue(self.kept, place, types, strides, self.members)
        if fused is not None:
            statements, made = fused
            names = {m.output for m in statements}
            stored = tuple(a.tensor for a in made if isinstance(a, Allocate) and a.tensor in names)
            return Unit(statements, stored, tuple(made))
        steps = recurrence_steps(s, types, strides, setting) if self._has_elements(s.output) else []
        return Unit((s,), (s.output,), (self._allocated(s.output), *steps))

    def _row_unit(self, group: Group) -> Unit:
        """A group's kernel and, where outputs add up over rows, the one that combines the partial sums."""
        types, strides = self.types, self.strides
        members = (*group.statements, *group.after)
        outputs = tuple(s.output for s in members if s.output in group.stored)
        int64_index = needs_int64_index(members, types, strides, None)
        whole = {s.output: s for s in self.flat.statements if s.output in group.scans}
        told = tuple(whole.get(s.output, s) for s in group.statements)
        made = row_launch(
            group, types, strides, int64_index, misaligned=self.setting.misaligned, told=told, padded=self.padded
        )
        steps: list[Step] = [self._allocated(name) for name in outputs]
        steps += [Allocate(name, t.shape, t.dtype) for name, t in made.partial.items()]
        steps.append(made.launch)
        if made.second is not None:
            known = {**strides, **contiguous_strides(made.partial)}
            steps.append(row_launch(made.second, {**types, **made.partial}, known, int64_index).launch)
            steps.append(Release(tuple(made.partial)))
        return Unit(members, outputs, tuple(steps))


def _is_by_boxes(unit: Unit) -> bool:
    """Whether a unit is a product through tensor maps, with an epilogue or none, of one result."""
    (s, *epilogue), steps = unit.statements, unit.steps
    product = s.aggregation == "sum" and all(e.aggregation == "assign" for e in epilogue) and len(unit.outputs) == 1
    own = not any(isinstance(step, TorchLines) for step in steps)
    return product and own and any(isinstance(step, Launch) and step.maps for step in steps)


def _with_releases(units: Sequence[Unit], flat: Program) -> list[Step]:
    """The steps of all units, with each intermediate let go after the last unit that reads it."""
    kept = {name for unit in units for name in unit.outputs} - set(flat.outputs)
    last: dict[str, int] = {}
    for place, unit in enumerate(units):
        last.update(dict.fromkeys([n for n in unit.touched() if n in kept], place))
    steps: list[Step] = []
    for place, unit in enumerate(units):
        steps += unit.steps
        unused = tuple(n for n, p in last.items() if p == place)
        if unused:
            steps.append(Release(unused))
    return steps


def _launchable(step: Step) -> Iterator[Step]:
    """The step as the driver takes it: it refuses a grid without programs, and one long in another axis than the
    first."""
    if isinstance(step, Launch):
        _, down, deep = step.grid
        if any(n == 0 for n in step.grid if not is_symbolic(n)):
            return
        if (down > MOST_DOWN or deep > MOST_DOWN) and fusable([step]):
            step = fuse_launches([step], f"{step.kernel}_in_line")
    yield step


def _without_overwritten(steps: list[Step]) -> list[Step]:
    """Without allocations that a later step makes again before any other touches them."""
    return [
        s
        for k, s in enumerate(steps)
        if not (isinstance(s, Allocate) and s.fill is None and _is_made_again(s.tensor, steps[k + 1 :]))
    ]


def _is_made_again(tensor: str, following: Sequence[Step]) -> bool:
    for step in following:
        if tensor in made_by(step):
            return not (isinstance(step, TorchLines) and tensor in step.reads)
        if isinstance(step, SubPlan | TiledLoop) or tensor in _given(step):
            return False
    return False


def _given(step: Step) -> tuple[str, ...]:
    """The tensors that a step finds there."""
    match step:
        case Launch() | Repeat():
            return step.tensors
        case Allocate(fill=str() as content):
            return (content,)
        case TorchLines():
            return step.reads
        case Release():
            return step.tensors
    return ()
