"""Which statement each line of a launch's kernel serves.

A kernel that carries out one statement serves that, with the functions of its own. Of a kernel of several, a line
serves the first output whose stores depend on it: a backward slice over the names that lines give values and read,
which asks nothing of their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tilec.backends.base import KernelSource
from tilec.backends.common.code import python_name
from tilec.backends.triton.plan.lines import (
    CodeLine,
    Effect,
    ForLoop,
    StoreLine,
    expression_texts,
    names_read,
    nested_blocks,
    targets,
)
from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer
from tilec.backends.triton.plan.source import KernelFunction

_Step = tuple[CodeLine, frozenset[str]]  # a line and the names that it reads, those of the loops around it too


def kernel_source(launch: Launch) -> KernelSource:
    """What is shown of a launch."""
    block = () if launch.block is None else tuple(launch.block())
    name, text, statements = launch.kernel, launch.text, launch.statements
    return KernelSource(name, text, statements, block, lines_with_outputs(launch), stored_outputs(launch))


def lines_with_outputs(launch: Launch) -> tuple[tuple[str, str], ...]:
    """The text of the functions of a launch's file, each line with the output that it serves, or ""."""
    found = [(line, "") for line in launch.file.shared_lines]
    for f in launch.file.functions:
        owners = _owners(f, stored_by_parameter(launch, f), launch.statements)
        alone = launch.statements[0] if len(set(launch.statements)) == 1 else ""
        decorator, *header = f.header
        found += [(decorator, ""), *((line, alone) for line in header)]
        found += [(f"    # {line}", alone or (own if own in launch.statements else "")) for line, own in f.heading]
        found += [(f"    {text}", alone or owners.get(id(line), "")) for text, line in f.printed]
        found += [("", "")] * 2
    return tuple(found[:-2])


def stored_outputs(launch: Launch) -> frozenset[str]:
    """The outputs that a kernel stores; all of its statements where its stores name none."""
    stores = (_stores(f, stored_by_parameter(launch, f)) for f in launch.file.functions)
    return frozenset(output for found in stores for output, _ in found) or frozenset(launch.statements)


def stored_by_parameter(launch: Launch, f: KernelFunction) -> Mapping[str, str]:
    """The outputs, or what their parts belong to, by the parameters of the kernel or of a function of its own."""
    owners = {tensor: o for o in launch.statements for tensor in (f"{o}.parts", o)}
    if f is launch.file.kernel:
        given = ((name, v.tensor) for name, v in launch.arguments if isinstance(v, Pointer | Descriptor))
        return {name: owners[tensor] for name, tensor in given if tensor in owners}
    return {python_name(tensor): o for tensor, o in owners.items() if python_name(tensor) in f.parameters}


def _owners(f: KernelFunction, stored: Mapping[str, str], order: Sequence[str]) -> dict[int, str]:
    """Identity of a line -> output."""
    defined = _defined(f)
    owners: dict[int, str] = {}
    for output, store in sorted(_stores(f, stored), key=lambda found: order.index(found[0])):
        waiting = [store]
        while waiting:
            line, reads = waiting.pop()
            if id(line) not in owners:
                owners[id(line)] = output
                waiting += [step for name in reads for step in defined.get(name, ())]
    return owners


def _stores(f: KernelFunction, stored: Mapping[str, str]) -> list[tuple[str, _Step]]:
    """What stores to an output: a store, or a call that is given its address or map."""
    defined = _defined(f)
    steps = ((_stored_by(line, stored, defined), (line, reads)) for line, reads in _steps(f.body, frozenset()))
    return [(output, step) for output, step in steps if output]


def _stored_by(line: CodeLine, stored: Mapping[str, str], defined: Mapping[str, list[_Step]]) -> str:
    """The output that a line itself stores to, or "". Lines above may make the address."""
    if isinstance(line, Effect):
        return next((stored[name] for name in sorted(names_read(line.text) & stored.keys())), "")
    if not isinstance(line, StoreLine):
        return ""
    to, seen = names_read(line.address), frozenset[str]()
    while to:
        if found := sorted(to & stored.keys()):
            return stored[found[0]]
        seen |= to
        to = frozenset(n for name in to for _, read in defined.get(name, ()) for n in read) - seen
    return ""


def _defined(f: KernelFunction) -> Mapping[str, list[_Step]]:
    """The lines that give a name a value."""
    defined: dict[str, list[_Step]] = defaultdict(list)
    for line, reads in _steps(f.body, frozenset()):
        for name in targets(line):
            defined[name].append((line, reads))
    return defined


def _steps(lines: Sequence[CodeLine], around: frozenset[str]) -> Iterator[_Step]:
    for line in lines:
        reads = frozenset(name for text in expression_texts(line) for name in names_read(text))
        yield line, reads | around
        for block in nested_blocks(line):
            yield from _steps(block, around | (frozenset(targets(line)) if isinstance(line, ForLoop) else reads))
