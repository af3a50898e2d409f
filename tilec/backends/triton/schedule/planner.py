"""A lowered program as a plan: each statement by the family that fits it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.base import Lowering
from tilec.backends.common.chains.chain import ChainKernel
from tilec.backends.common.chains.recognise import kernel_reads, with_reads
from tilec.backends.triton.chains.launch import chain_steps
from tilec.backends.triton.emit.epilogue import find_epilogue
from tilec.backends.triton.fusion.groups import Group, Grouped
from tilec.backends.triton.fusion.horizontal_fusion import fusable, fuse_launches
from tilec.backends.triton.plan.plan import (
    Allocate,
    Descriptor,
    Launch,
    Plan,
    Pointer,
    Release,
    Setting,
    Step,
    TorchLines,
)
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.recurrence.recurrence import recurrence_steps, with_epilogue
from tilec.backends.triton.rows.rows import row_launch
from tilec.backends.triton.scan.scan import affine_recurrence
from tilec.backends.triton.scatter.places import is_scatter, shared_margins
from tilec.backends.triton.schedule.families import fused_steps, statement_steps
from tilec.backends.triton.schedule.materialize import made_once, resolve_requests
from tilec.backends.triton.schedule.problem import needs_int64_index
from tilec.backends.triton.schedule.reshape import reshape_steps, reshaped_inputs
from tilec.backends.triton.schedule.scatter_sums import ScatterSum, scatter_sums, sum_steps
from tilec.backends.triton.schedule.shared_reads import SharedReads
from tilec.ir.program import Program, Statement, reads, reads_itself
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import TensorType
from tilec.transforms.lower.defract import defracted_form

MOST_DOWN = 65_535  # programs along the second and third axis of a grid


def make_plan(lowering: Lowering, grouping: Grouped, strides: Sequence[tuple[int, ...]], setting: Setting) -> Plan:
    """The plan of a lowered program, whose statements are in groups, for inputs of these strides (elements)."""
    flat, types = grouping.program, dict(grouping.types)
    kept = with_reads(flat, grouping.chains.values())
    defracted = {s.output: s for s in lowering.stages["defracted"].statements}
    shapes = {name: t.shape for name, t in types.items()}
    rewritten = (s for s in flat.statements if s.output in grouping.rewritten)
    defracted |= {s.output: s if reads_itself(s) else defracted_form(s, shapes) for s in rewritten}
    members = {s.output for g in grouping.groups.values() for s in (*g.statements, *g.after)}
    chained = {s.output for kernel in grouping.chains.values() for s in kernel.statements}
    members |= chained
    known = {name: tuple(s) for name, s in zip(flat.input_names(), strides, strict=True)}
    reshaped = reshaped_inputs(flat, types, known, chained)
    known.update((name, steps) for name, (_, steps) in reshaped.items())
    sources = {name: source for name, (source, _) in reshaped.items()}
    scatters = [s for s in flat.statements if is_scatter(defracted.get(s.output, s))]
    setting = replace(setting, margins=shared_margins(scatters, types))
    units: list[Unit] = []
    done: set[str] = {*sources}
    shared_reads = SharedReads(kept, defracted, types, setting)
    sums = scatter_sums(kept, [s.output for s in scatters], types, members)
    later = {m.output for found in sums.values() for m in found.members[:-1]}
    for place, s in enumerate(flat.statements):
        if s.output in done or s.output in later:
            continue
        if s.output in grouping.chains:
            units.append(_chain_unit(grouping.chains[s.output], types, known, sources, setting))
            done |= {m.output for m in units[-1].statements}
            continue
        if s.output in grouping.groups:
            units.append(_row_unit(grouping.groups[s.output], flat, types, known, setting))
            done |= {m.output for m in units[-1].statements}
            continue
        if reads_itself(s):
            units.append(_recurrence_unit(kept, place, types, known, setting, members))
            done |= {m.output for m in units[-1].statements}
            continue
        reshaping = reshape_steps(s, kept, types)
        if reshaping is not None:
            known[s.output] = contiguous(types[s.output].shape)
            units.append(Unit((s,), (s.output,), tuple(reshaping)))
            done.add(s.output)
            continue
        barred = {*members, *grouping.groups, *grouping.chains, *done}
        joint = shared_reads.kernel(place, {*flat.input_names(), *done}, barred, known)
        if joint is not None:
            known.update((o, contiguous(types[o].shape)) for o in joint.outputs)
            units.append(Unit(joint.statements, joint.outputs, joint.steps))
            done |= {m.output for m in joint.statements}
            continue
        epilogue = find_epilogue(kept, place, types, members)
        known.update((m.output, contiguous(types[m.output].shape)) for m in (s, *epilogue))
        made = None
        if s.output in sums:
            known.update((m.output, contiguous(types[m.output].shape)) for m in sums[s.output].members)
            made = _sum_unit(sums[s.output], types, known, setting)
            for m in sums[s.output].members[:-1] if made is None else ():
                units.append(_single_unit(m, defracted[m.output], (), types, known, setting))
        units.append(made or _single_unit(s, defracted[s.output], epilogue, types, known, setting))
        done |= {m.output for m in units[-1].statements}
    steps = _without_overwritten(resolve_requests(made_once(_with_releases(units, flat))))
    return Plan(tuple(s for step in steps for s in _launchable(step)), flat.outputs)


@dataclass(frozen=True)
class Unit:
    """Statements that are carried out together, the tensors that are made for them, the steps, and what these read
    beside what the statements say."""

    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    reads: tuple[str, ...] = ()

    def touched(self) -> tuple[str, ...]:
        return (*self.reads, *(n for s in self.statements for n in (s.output, *reads(s))))


def _chain_unit(
    kernel: ChainKernel,
    types: Mapping[str, TensorType],
    strides: dict[str, tuple[int, ...]],
    sources: Mapping[str, str],
    setting: Setting,
) -> Unit:
    """A chain's kernel. `strides` learns its outputs'. `sources`: inputs that it reads in another shape."""
    strides.update((o, contiguous(types[o].shape)) for o in kernel.outputs)
    steps: list[Step] = [Allocate(o, types[o].shape, types[o].dtype) for o in kernel.outputs]
    misaligned = (*setting.misaligned, *(n for n, source in sources.items() if source in setting.misaligned))
    for step in chain_steps(kernel, types, strides, replace(setting, misaligned=misaligned)):
        if isinstance(step, Launch):
            step = replace(step, arguments=tuple((name, _of_source(a, sources)) for name, a in step.arguments))
        steps.append(step)
    return Unit(kernel.statements, kernel.outputs, tuple(steps), tuple(sources.get(n, n) for n in kernel_reads(kernel)))


def _single_unit(
    s: Statement,
    defracted: Statement,
    epilogue: Sequence[Statement],
    types: Mapping[str, TensorType],
    known: Mapping[str, tuple[int, ...]],
    setting: Setting,
) -> Unit:
    """A statement, in one launch with its epilogue where that has a form; otherwise without."""
    made: list[Step] | None = None
    if epilogue and _elements(types[s.output]):
        made = fused_steps(defracted, s, epilogue, types, known, setting)
    statements = (s, *epilogue) if made is not None else (s,)
    output, t = statements[-1].output, types[statements[-1].output]
    if made is None and _elements(t):
        made = statement_steps(defracted, s, types, known, setting)
    return Unit(statements, (output,), (Allocate(output, t.shape, t.dtype), *(made or ())))


def _sum_unit(
    found: ScatterSum, types: Mapping[str, TensorType], known: Mapping[str, tuple[int, ...]], setting: Setting
) -> Unit | None:
    """Scatters and what takes their values together, where one kernel computes these."""
    output, t = found.epilogue[-1].output, types[found.epilogue[-1].output]
    made = sum_steps(found, types, known, setting) if _elements(t) else None
    if made is None:
        return None
    return Unit((*found.members, *found.epilogue), (output,), (Allocate(output, t.shape, t.dtype), *made))


def _of_source(argument: object, sources: Mapping[str, str]) -> object:
    """An argument of a kernel, a tensor's that is an input in another shape as the input's."""
    if isinstance(argument, Pointer | Descriptor) and argument.tensor in sources:
        return replace(argument, tensor=sources[argument.tensor])
    return argument


def _recurrence_unit(
    flat: Program,
    place: int,
    types: Mapping[str, TensorType],
    known: dict[str, tuple[int, ...]],
    setting: Setting,
    barred: Collection[str],
) -> Unit:
    """A recurrence and its epilogue, none of `barred`: many steps at once where they are affine and that pays."""
    s = flat.statements[place]
    t = types[s.output]
    known.update((later.output, contiguous(types[later.output].shape)) for later in flat.statements[place:])
    if _elements(t):
        for epilogue in dict.fromkeys((find_epilogue(flat, place, types, barred), ())):
            int64_index = needs_int64_index((s, *epilogue), types, known, None)
            steps = affine_recurrence(s, types, known, setting, int64_index, epilogue)
            if steps is not None:
                last = (s, *epilogue)[-1]
                allocated = Allocate(last.output, types[last.output].shape, types[last.output].dtype)
                return Unit((s, *epilogue), (last.output,), (allocated, *steps))
    fused = with_epilogue(flat, place, types, known, setting, barred)
    if fused is not None:
        statements, made = fused
        names = {m.output for m in statements}
        stored = tuple(a.tensor for a in made if isinstance(a, Allocate) and a.tensor in names)
        return Unit(statements, stored, tuple(made))
    steps = recurrence_steps(s, types, known, setting) if _elements(t) else []
    return Unit((s,), (s.output,), (Allocate(s.output, t.shape, t.dtype), *steps))


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


def _row_unit(
    group: Group,
    flat: Program,
    types: Mapping[str, TensorType],
    strides: dict[str, tuple[int, ...]],
    setting: Setting,
) -> Unit:
    """A group's kernel and, where outputs add up over rows, the one that combines the partial sums. `strides` learns
    the members'."""
    members = (*group.statements, *group.after)
    strides.update((s.output, contiguous(types[s.output].shape)) for s in members)
    outputs = tuple(s.output for s in members if s.output in group.stored)
    int64_index = needs_int64_index(members, types, strides, None)
    whole = {s.output: s for s in flat.statements if s.output in group.scans}
    told = tuple(whole.get(s.output, s) for s in group.statements)
    made = row_launch(group, types, strides, int64_index, misaligned=setting.misaligned, told=told)
    steps: list[Step] = [Allocate(name, types[name].shape, types[name].dtype) for name in outputs]
    steps += [Allocate(name, t.shape, t.dtype) for name, t in made.partial.items()]
    steps.append(made.launch)
    types = {**types, **made.partial}
    known = {**strides, **{name: contiguous(t.shape) for name, t in made.partial.items()}}
    if made.second is not None:
        steps.append(row_launch(made.second, types, known, int64_index).launch)
        steps.append(Release(tuple(made.partial)))
    return Unit(members, outputs, tuple(steps))


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
    """Without allocations that the next step makes again, filled."""
    return [
        s
        for k, s in enumerate(steps)
        if not (isinstance(s, Allocate) and s.fill is None and any(s.tensor in _makes(o) for o in steps[k + 1 : k + 2]))
    ]


def _makes(step: Step) -> tuple[str, ...]:
    match step:
        case Allocate(tensor):
            return (tensor,)
        case TorchLines(writes=writes):
            return writes
    return ()


def _elements(t: TensorType) -> int:
    return math.prod(t.shape)
