"""Launches that need nothing of each other as one: the programs of all, told apart by their number.

A launch takes a few microseconds to begin and to run out whatever it does, and what is small does not fill the device
by itself. The kernels become functions of one that calls the one whose turn it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilec.backends.triton.emit.device_text import module_text
from tilec.backends.triton.plan.plan import Launch

KERNEL_TEXT = re.compile(r"^@triton\.jit[^\n]*\ndef (\w+)\(\n?(.*?)\n?\):\n", re.M | re.S)
DO_NOT_SPECIALIZE = re.compile(r"do_not_specialize=\[(.*?)\]")


def fusable(launches: Sequence[Launch]) -> bool:
    """Whether launches can be one: compiled alike, and none that leaves early, which functions cannot, or waits for its
    like."""
    first = launches[0]
    return all(
        (one.warps, one.stages, one.fusion) == (first.warps, first.stages, first.fusion)
        and not one.together
        and not re.search(r"\breturn\b", _own(one))
        and "gluon" not in one.text
        for one in launches
    )


def _own(launch: Launch) -> str:
    """The kernel's text without those of the functions that it calls."""
    return next(launch.text[m.start() :] for m in KERNEL_TEXT.finditer(launch.text) if m[1] == launch.kernel)


def together(launches: Sequence[Launch], name: str) -> Launch:
    """One launch of them all, called that; see `fusable`."""
    pieces: list[str] = []
    arguments: list[tuple[str, object]] = []
    constants: list[tuple[str, object]] = []
    plain: list[str] = []
    lines = ["program = tl.program_id(0)"]
    first = 0
    for place, one in enumerate(launches):
        own = _own(one)
        found = KERNEL_TEXT.match(own)
        assert found is not None
        kept = {w.strip(' "') for group in DO_NOT_SPECIALIZE.findall(own[: found.end()]) for w in group.split(",")}
        body = own[found.end() :]
        for axis in range(3):
            body = body.replace(f"tl.program_id({axis})", f"program_{axis}")
        parameters = [p for p, _ in one.arguments]
        given = [f"{p}_{place}" for p in parameters]
        typed = [*parameters, *(f"{c}: tl.constexpr" for c, _ in one.constants)]
        programs = [f"program_{axis}" for axis in range(3)]
        pieces.append(f"@triton.jit\ndef {name}_{place}(\n    {', '.join([*programs, *typed])},\n):\n{body}")
        across, down, deep = one.grid
        turn = "program" if not first else f"(program - first_{place})"
        places = [turn, f"{turn} * 0", f"{turn} * 0"]
        if down * deep > 1:
            places = [f"{turn} % across_{place}", f"{turn} // across_{place} % down_{place}"]
            places.append(f"{turn} // (across_{place} * down_{place})")
            arguments += [(f"across_{place}", across), (f"down_{place}", down)]
            plain += [f"across_{place}", f"down_{place}"]
        test = "else:"
        if place + 1 < len(launches):
            first += across * down * deep
            arguments.append((f"first_{place + 1}", first))
            plain.append(f"first_{place + 1}")
            test = f"{'el' if place else ''}if program < first_{place + 1}:"
        passed = [*given, *(f"{c}_{place}" for c, _ in one.constants)]
        lines += [test, f"    {name}_{place}({', '.join([*places, *passed])})"]
        arguments += [(g, value) for g, (_, value) in zip(given, one.arguments, strict=True)]
        constants += [(f"{c}_{place}", value) for c, value in one.constants]
        plain += [g for g, p in zip(given, parameters, strict=True) if p in kept]
    typed = [*(n for n, _ in arguments), *(f"{c}: tl.constexpr" for c, _ in constants)]
    quoted = ", ".join(f'"{n}"' for n in plain)
    header = f"@triton.jit(do_not_specialize=[{quoted}])\ndef {name}(\n    {', '.join(typed)},\n):\n"
    pieces.append(header + "".join(f"    {line}\n" for line in lines))
    count = sum(across * down * deep for across, down, deep in (one.grid for one in launches))
    statements = tuple(s for one in launches for s in one.statements)
    chosen = launches[0]
    return Launch(
        name,
        module_text("\n\n".join(pieces)),
        (count, 1, 1),
        tuple(arguments),
        tuple(constants),
        chosen.warps,
        chosen.stages,
        statements,
        chosen.fusion,
    )


def touched(launch: Launch) -> set[str]:
    """The tensors that a launch reads or writes."""
    return set(launch.tensors)
