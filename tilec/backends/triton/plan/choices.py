"""Values that nothing reads unless a condition holds, which is known on the device alone: their kernels look first.

In `Y[i] = Rare[] ? A[i] : B[i]` all that A alone is made of is a part of the plan whose kernels are given Rare, and
whose programs end at once where it is false. The host launches them either way, so that it need not wait and a graph
may hold them. The choice itself reads A where the condition holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.backends.base import Lowering
from tilec.backends.common.code import python_name
from tilec.backends.common.tiled_program import IN_PLACE
from tilec.backends.triton.plan.lines import If, Return, with_names
from tilec.backends.triton.plan.plan import (
    Allocate,
    Launch,
    Plan,
    Pointer,
    Release,
    Repeat,
    Setting,
    Step,
    SubPlan,
    Table,
    TiledLoop,
    TorchLines,
    made_by,
)
from tilec.backends.triton.plan.sizes import contiguous
from tilec.cost import operations
from tilec.ir.program import Access, Call, Expr, Input, Program, Statement, accesses_in, reads
from tilec.ir.types import TensorType, Types, shapes_in
from tilec.transforms.util.tiled import Combine, Into, Slice, TiledCall, Whole

LEAST_RARE_WORK = 2**30  # operations that are left out, for which plans fall into parts: some 50 us
MOST_IN_LINE = 8  # slabs whose steps stand one after the other: the library launches these
MakePart = Callable[[Lowering, Sequence[tuple[int, ...]], Setting], SubPlan]


def plan_of_choice(
    lowering: Lowering, strides: Sequence[tuple[int, ...]], setting: Setting, make: MakePart
) -> Plan | None:
    """The plan in parts: all else, what is rarely read, the choices. None where there is no such choice."""
    flat, types = lowering.stages["flat"], lowering.types
    found = _rare(flat, types)
    if found is None:
        return None
    condition, rare = found
    later = _readers(flat, rare)
    parts: tuple[list[Statement], ...] = ([], [], [])
    for s in flat.statements:
        parts[1 if s.output in rare else 2 if s.output in later else 0].append(s)
    known = {s.output: contiguous(types[s.output].shape) for s in flat.statements}
    known |= {name: tuple(s) for name, s in zip(flat.input_names(), strides, strict=True)}
    steps: list[Step] = []
    for k, part in enumerate(parts):
        needed = {*flat.outputs, *(n for other in parts[k + 1 :] for s in other for n in reads(s))}
        own = _lowering(lowering, part, needed)
        names = own.stages["flat"].input_names()
        own_setting = replace(setting, misaligned=tuple(n for n in setting.misaligned if n in names))
        if k == 1:  # torch's own products cannot be left out
            own_setting = replace(own_setting, library=False)
        made = make(own, [known[n] for n in names], own_setting)
        steps += _in_line(_only_if(made, condition, types[condition]) if k == 1 else made)
    between = {s.output for s in flat.statements} - {*flat.outputs}
    made_here = dict.fromkeys(n for step in steps for n in made_by(step) if n in between)
    gone = {n for step in steps if isinstance(step, Release) for n in step.tensors}
    return Plan((*steps, Release(tuple(n for n in made_here if n not in gone))), flat.outputs)


def _lowering(lowering: Lowering, statements: Sequence[Statement], needed: set[str]) -> Lowering:
    """The statements as a program of their own."""
    own = {s.output for s in statements}
    read = dict.fromkeys(n for s in statements for n in reads(s) if n not in own and n in lowering.types)
    inputs = tuple(Input(n, lowering.types[n].shape) for n in read)
    outputs = tuple(s.output for s in statements if s.output in needed)
    stages = {"flat": Program(None, inputs, outputs, tuple(statements))}
    for stage in ("reduced", "defracted"):
        known = {s.output: s for s in lowering.stages[stage].statements}
        stages[stage] = replace(stages["flat"], statements=tuple(known[s.output] for s in statements))
    return Lowering(stages, {n: lowering.types[n] for n in (*read, *own)})


def _rare(flat: Program, types: Types) -> tuple[str, frozenset[str]] | None:
    """A condition of rank 0 that is computed, and what is read where it holds alone, if that is much work."""
    made = {s.output for s in flat.statements}
    chosen: dict[str, dict[str, set[str]]] = {}  # by condition and statement, what it reads where that holds alone
    for s in flat.statements:
        match s.body:
            case Call("select", (Access(condition, ()), a, b)) if condition in made:
                if s.aggregation == "assign" and s.guard is None:
                    chosen.setdefault(condition, {})[s.output] = _read(a) - _read(b) - {condition}
    for condition, by_statement in chosen.items():
        rare = _read_there_alone(flat, by_statement)
        work = sum(operations(s, shapes_in(types)) for s in flat.statements if s.output in rare)
        if work >= LEAST_RARE_WORK and condition not in rare:
            return condition, rare
    return None


def _read_there_alone(flat: Program, by_statement: Mapping[str, set[str]]) -> frozenset[str]:
    """What nothing reads but such choices and each other, and that can be made before all that reads it."""
    kept = {*flat.outputs}
    while True:
        rare: set[str] = set()
        for s in reversed(flat.statements):
            readers = [r for r in flat.statements if s.output in reads(r)]
            there = all(r.output in rare or s.output in by_statement.get(r.output, ()) for r in readers)
            rare |= {s.output} if readers and there and s.output not in kept else set()
        later = _readers(flat, rare)
        behind = {s.output for s in flat.statements if s.output in rare and not later.isdisjoint(reads(s))}
        if not behind:
            return frozenset(rare)
        kept |= behind


def _readers(flat: Program, names: Collection[str]) -> set[str]:
    """What is made of these, beside themselves."""
    found: set[str] = set()
    for s in flat.statements:
        if s.output not in names and not (found | {*names}).isdisjoint(reads(s)):
            found.add(s.output)
    return found


def _read(e: Expr) -> set[str]:
    return {a.tensor for a in accesses_in(e)}


def _only_if(part: SubPlan, condition: str, t: TensorType) -> SubPlan:
    """The part, whose kernels end at once where the condition is false."""
    inputs = part.inputs if condition in part.inputs else (*part.inputs, condition)
    steps = tuple(_step_if(step, condition, t) for step in part.plan.steps)
    return replace(part, plan=replace(part.plan, steps=steps), inputs=inputs, types={**part.types, condition: t})


def _step_if(step: Step, condition: str, t: TensorType) -> Step:
    match step:
        case Launch():
            return _launch_if(step, condition)
        case Repeat(launches=launches):
            return replace(step, launches=tuple(_launch_if(x, condition) for x in launches))
        case SubPlan():
            return _only_if(step, condition, t)
        case TiledLoop(calls):
            made = []
            for call in calls:
                given = () if condition in call.program.inputs else (Whole(condition),)
                made.append(
                    replace(call, program=_only_if(call.program, condition, t), sources=(*call.sources, *given))
                )
            return TiledLoop(tuple(made))
    return step


def _launch_if(launch: Launch, condition: str) -> Launch:
    kernel = launch.file.kernel
    if kernel.dialect != "triton":  # its warps have roles, all of which would have to leave
        return launch
    name = "Needed" + "_" * ("Needed" in kernel.parameters)
    test = If(f"tl.load({name}) == 0", (Return(),))
    kernel = replace(kernel, parameters=(*kernel.parameters, name), body=(test, *kernel.body))
    arguments = (*launch.arguments, (name, Pointer(condition)))
    return replace(launch, file=replace(launch.file, kernel=kernel), arguments=arguments)


# a part's steps among those of the whole


def _in_line(part: SubPlan, names: Mapping[str, str] | None = None, suffix: str = "") -> list[Step]:
    """The steps of a part and of those within it, of slabs one after the other; a loop of many stays one. `names`: of
    its inputs outside, where these are others; what it makes has its own with the suffix."""
    new = dict(names or {})
    new |= {n: n + suffix for step in part.plan.steps for n in _made(step) if n not in new}
    steps: list[Step] = []
    for step in part.plan.steps:
        match step:
            case SubPlan():
                steps += _in_line(step, {n: new.get(n, n) for n in (*step.inputs, *step.plan.outputs)}, suffix)
            case TiledLoop(calls) if not suffix and _is_short(step):
                for at, call in enumerate(calls):
                    for n in range(call.count):
                        steps += _call_in_line(call, n, f".{at}_{n}")
            case _:
                steps.append(_renamed(step, new))
    return steps


def _made(step: Step) -> Iterable[str]:
    return step.plan.outputs if isinstance(step, SubPlan) else made_by(step)


def _is_short(loop: TiledLoop) -> bool:
    places = [x for call in loop.calls for x in call.places]
    plain = all(isinstance(x, Whole | Slice | Into) or isinstance(x, Combine) and x.in_place for x in places)
    whole = not any(isinstance(x, Into) and x.part for x in places)
    return plain and whole and sum(call.count for call in loop.calls) <= MOST_IN_LINE


def _call_in_line(call: TiledCall[SubPlan], n: int, suffix: str) -> list[Step]:
    part = call.program
    names: dict[str, str] = {}
    sliced: list[tuple[str, str, str, str]] = []  # a line, what it reads and makes, and of which type
    for own, source in zip(part.inputs, call.sources, strict=True):
        assert isinstance(source, Whole | Slice)
        names[own] = source.tensor
        if isinstance(source, Slice):
            names[own] = f"{own}{suffix}"
            copy = ".clone(memory_format=torch.contiguous_format)" * source.copied
            line = f"{python_name(names[own])} = {_sliced(source, n)}{copy}"
            sliced.append((line, source.tensor, names[own], part.types[own].dtype))
    added: list[tuple[str, str, str, str]] = []
    for k, sink in call.sinks:
        own = part.plan.outputs[k]
        made = python_name(f"{own}{suffix}")
        line = f"{_sliced(sink, n)} = {made}" if isinstance(sink, Into) else ""
        if isinstance(sink, Combine):
            line = IN_PLACE[sink.aggregation].format(python_name(sink.tensor), made)
        added.append((line, f"{own}{suffix}", sink.tensor, part.types[own].dtype))
    gone = (*(made for _, _, made, _ in sliced), *(f"{o}{suffix}" for o in part.plan.outputs))
    return [*_lines(sliced), *_in_line(part, names, suffix), *_lines(added, in_place=True), Release(gone)]


def _sliced(x: Slice | Into, n: int) -> str:
    at = x.at + n * x.step
    return f"{python_name(x.tensor)}[{':, ' * x.axis}{at if x.length is None else f'{at}:{at + x.length}'}]"


def _lines(found: Sequence[tuple[str, str, str, str]], in_place: bool = False) -> list[Step]:
    """A step of these lines, each with what it reads and makes, or changes in place, and of which type."""
    if not found:
        return []
    lines, read, made, dtypes = zip(*found, strict=True)
    return [TorchLines(lines, tuple(dict.fromkeys((*read, *made) if in_place else read)), made, (), dtypes)]


def _renamed(step: Step, new: Mapping[str, str]) -> Step:
    """The step over tensors of other names."""

    def of(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new.get(n, n) for n in names)

    match step:
        case Launch():
            return step.given(new)
        case Repeat(launches=launches):
            return replace(step, launches=tuple(x.given(new) for x in launches))
        case Allocate(tensor=tensor, fill=fill):
            return replace(
                step, tensor=new.get(tensor, tensor), fill=new.get(fill, fill) if isinstance(fill, str) else fill
            )
        case Table(tensor=tensor):
            return replace(step, tensor=new.get(tensor, tensor))
        case Release(tensors=tensors):
            return Release(of(tensors))
        case TorchLines(lines=lines, reads=read, writes=written):
            local = {python_name(old): python_name(n) for old, n in new.items()}
            return replace(step, lines=tuple(with_names(x, local) for x in lines), reads=of(read), writes=of(written))
    return step
