"""Horizontal fusion: launches that need nothing of each other as one, whose programs are told apart by their number. A
launch by itself becomes one whose programs are numbered along the first axis.

A launch takes a few microseconds to begin and to run out whatever it does, and what is small does not fill the device
by itself. The kernels become functions of one that calls the one whose turn it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.plan.lines import CodeLine, Effect, If, assign
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.source import PROGRAM, KernelFunction, called, hole


def fusable(launches: Sequence[Launch]) -> bool:
    """Whether launches can be one: compiled alike, and none that leaves early, which functions cannot, or waits for its
    like."""
    first = launches[0]
    return all(
        (one.warps, one.stages, one.contracts) == (first.warps, first.stages, first.contracts)
        and not one.cooperative
        and not one.file.kernel.leaves_early
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
    )


def touched(launch: Launch) -> set[str]:
    """The tensors that a launch reads or writes."""
    return set(launch.tensors)
