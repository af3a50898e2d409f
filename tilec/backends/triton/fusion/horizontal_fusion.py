"""Horizontal fusion: launches that need nothing of each other as one, whose programs are told apart by their number. A
launch by itself becomes one whose programs are numbered along the first axis.

A launch takes a few microseconds to begin and to run out whatever it does, and what is small does not fill the device
by itself. So launches that would stand on the device together, all of them at once, are one where none needs another,
whatever stands between them; larger ones that ask for it are one with their neighbours. The kernels become functions
of one that calls the one whose turn it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.matmul.library import joint_gradients
from tilec.backends.triton.plan.lines import (
    CodeLine,
    Effect,
    If,
    StoreLine,
    assign,
    every,
    expression_texts,
    names_read,
    targets,
)
from tilec.backends.triton.plan.plan import (
    Allocate,
    Descriptor,
    Launch,
    Pointer,
    Release,
    Step,
    Table,
    TorchLines,
    made_by,
)
from tilec.backends.triton.plan.source import PROGRAM, KernelFunction, called, hole
from tilec.ir.symbolic import is_symbolic

MOST_JOINED = 4  # launches that become one
FOR_EACH_PROCESSOR = 4  # programs of small launches that become one
MOST_STAGES = 2  # of their loops: those of products, which have more, wait for the tensor cores


@dataclass(eq=False)
class _Place:
    """A step, or launches that become one. `reads`, `writes`: tensors; None where a step may touch any."""

    steps: list[Step]
    small: bool = False
    reads: set[str] | None = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def needs(self, other: _Place) -> bool:
        """May this not stand before that, or beside it?"""
        if self.reads is None or other.reads is None:
            return True
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)

    @property
    def launches(self) -> list[Launch]:
        return [s for s in self.steps if isinstance(s, Launch)]


def join_launches(steps: Sequence[Step], processors: int) -> list[Step]:
    """The steps with launches that may be one as one, where the first of them stands. `processors`: of the device."""
    places: list[_Place] = []
    made = {name for step in steps for name in made_by(step)}
    for step in steps:
        place = _place(step, made, processors)
        found = _fusable_place(places, place, processors) if place.launches else None
        if found is None:
            places.append(place)
            continue
        joined = places[found]
        joined.steps += place.steps
        joined.reads, joined.writes = (joined.reads or set()) | (place.reads or set()), joined.writes | place.writes
        before, after = places[:found], places[found:]
        own = [p for p in after if isinstance(p.steps[0], Allocate) and p.writes <= place.writes]
        places = [*before, *own, *(p for p in after if p not in own)]
    return [s for place in places for s in _as_one(place)]


def join_gradients(steps: Sequence[Step]) -> list[Step]:
    """The steps with both gradients of a convolution as one call of torch, where the first of them stands, if what the
    second reads is there."""
    places: list[_Place] = []
    made = {name for step in steps for name in made_by(step)}
    for step in steps:
        place = _place(step, made, 0)
        places.append(place)
        if not isinstance(step, TorchLines) or step.gradient is None:
            continue
        for k in range(len(places) - 2, -1, -1):
            (other,) = places[k].steps
            joint = joint_gradients(other, step) if isinstance(other, TorchLines) else None
            if joint is not None:
                places[k : k + 1] = [_place(joint, made, 0)]
                places.pop()
                break
            if place.needs(places[k]):
                break
    return [step for place in places for step in place.steps]


def _as_one(place: _Place) -> Sequence[Step]:
    launches = place.launches
    if len(launches) < 2:
        return place.steps
    return [fuse_launches(launches, f"{launches[0].kernel}_and_{len(launches) - 1}")]


def _place(step: Step, made: set[str], processors: int) -> _Place:
    match step:
        case Launch():
            known = not any(is_symbolic(n) for n in step.grid)
            small = known and step.stages <= MOST_STAGES and _programs([step]) <= FOR_EACH_PROCESSOR * processors
            writes = _written(step) & made
            return _Place([step], small, set(step.tensors) - writes, writes)
        case TorchLines():
            return _Place([step], reads=set(step.reads), writes=set(step.writes))
        case Allocate() | Table():
            read = {step.fill} if isinstance(step, Allocate) and isinstance(step.fill, str) else set()
            return _Place([step], reads=read, writes=set(made_by(step)))
        case Release():
            return _Place([step], writes=set(step.tensors))
    return _Place([step], reads=None)


def _fusable_place(places: Sequence[_Place], place: _Place, processors: int) -> int | None:
    """The first of the places that a launch may become one with."""
    found = None
    for k in range(len(places) - 1, -1, -1):
        other = places[k]
        (step,) = place.steps
        if isinstance(other.steps[0], Allocate) and other.steps[0].fill is None and other.writes <= place.writes:
            continue
        if place.needs(other):
            break
        if other.launches and _may_join(other, place, processors):
            found = k
        if not place.small and not isinstance(other.steps[0], Allocate | Release):
            break
    return found


def _may_join(other: _Place, place: _Place, processors: int) -> bool:
    all_of = [*other.launches, *place.launches]
    if len(all_of) > MOST_JOINED or not fusable(all_of):
        return False
    small = other.small and place.small and _programs(all_of) <= FOR_EACH_PROCESSOR * processors
    return small or all(one.horizontal for one in all_of)


def _programs(launches: Sequence[Launch]) -> int:
    return sum(math.prod(one.grid) for one in launches)


def _written(launch: Launch) -> set[str]:
    """The tensors that a launch may write: those in what stores' addresses are made of, or given to functions."""
    found: set[str] = set()
    made_of: dict[str, set[str]] = {}
    for line in every(launch.file.kernel.body):
        names = {name for text in expression_texts(line) for name in names_read(text)}
        if isinstance(line, StoreLine):
            found |= names_read(line.address)
        elif isinstance(line, Effect):
            found |= names
        for target in targets(line):
            made_of.setdefault(target, set()).update(names)
    pending = list(found)
    while pending:
        new = made_of.pop(pending.pop(), set()) - found
        found |= new
        pending += new
    mapped = {v.tensor for _, v in launch.arguments if isinstance(v, Descriptor)}
    return {v.tensor for p, v in launch.arguments if isinstance(v, Pointer) and p in found} | mapped


def fusable(launches: Sequence[Launch]) -> bool:
    """Whether launches can be one: compiled alike, and none that leaves early, which functions cannot, or waits for its
    like."""
    first = launches[0]
    return all(
        (one.warps, one.stages, one.contracts, one.registers)
        == (first.warps, first.stages, first.contracts, first.registers)
        and not one.cooperative
        and not one.file.kernel.leaves_early
        and not one.file.own
        and one.file.kernel.dialect == "triton"
        for one in launches
    )


def fuse_launches(launches: Sequence[Launch], name: str) -> Launch:
    """One launch of them all, called that; see `fusable`."""
    functions: list[KernelFunction] = []
    arguments: list[tuple[str, object]] = []
    constants: list[tuple[str, object]] = []
    plain: list[str] = []
    calls: list[tuple[str, Effect]] = []  # by the tests that programs are below a number
    first = 0
    for place, one in enumerate(launches):
        kernel = one.file.kernel
        function = kernel.called_by_programs(f"{name}_{place}")
        functions.append(function)
        across, down, deep = one.grid
        turn = "program" if not first else f"(program - first_{place})"
        places = [turn, f"{turn} * 0", f"{turn} * 0"]
        if down * deep > 1:
            places = [f"{turn} % across_{place}", f"{turn} // across_{place} % down_{place}"]
            places.append(f"{turn} // (across_{place} * down_{place})")
            arguments += [(f"across_{place}", across), (f"down_{place}", down)]
            plain += [f"across_{place}", f"down_{place}"]
        if place + 1 < len(launches):
            first += across * down * deep
            arguments.append((f"first_{place + 1}", first))
            plain.append(f"first_{place + 1}")
        given = {p: f"{p}_{place}" for p in (*kernel.parameters, *kernel.constants)}
        call = Effect(f"{hole(function.name)}({', '.join([*places, *given.values()])})")
        calls.append((f"program < first_{place + 1}", call))
        arguments += [(given[p], value) for p, value in one.arguments]
        constants += [(given[c], value) for c, value in one.constants]
        plain += [given[p] for p in kernel.parameters if p in kernel.unspecialized]
    count = sum(across * down * deep for across, down, deep in (one.grid for one in launches))
    lines: tuple[CodeLine, ...] = (calls[-1][1],)
    for test, call in reversed(calls[:-1]):
        lines = (If(test, (call,), lines),)
    whole = KernelFunction(
        name,
        tuple(n for n, _ in arguments),
        tuple(c for c, _ in constants),
        (assign("program", PROGRAM[0]), *lines),
        tuple(plain),
        calls=called(functions),
    )
    chosen = launches[0]
    return Launch(
        kernel_file(whole, *functions),
        (count, 1, 1),
        tuple(arguments),
        tuple(constants),
        chosen.warps,
        chosen.stages,
        tuple(s for one in launches for s in one.statements),
        chosen.contracts,
        registers=chosen.registers,
    )
