"""Loops over slabs of an axis and chunks of time (`transforms/util/tiled.py`) as Python: the lines of their calls,
which run as they are printed, and the executable of a program in chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from tilec.backends.base import Executable, KernelSource
from tilec.backends.common.code import FreshNames, indented, python_name, tuple_text
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.transforms.util.tiled import (
    Assign,
    Calls,
    Carried,
    CarriedSlice,
    Combine,
    Into,
    Moving,
    Sink,
    Slice,
    Source,
    Start,
    TiledCall,
    TypedProgram,
    Whole,
)

Tensors = dict[str, torch.Tensor]
RESERVED_NAMES = ("torch", "device", "range", "enumerate")

# two parts of an element as one; the second into the first
COMBINED = {a.name: a.torch.combine for a in AGGREGATIONS.values() if a.torch}
IN_PLACE = {a.name: a.torch.in_place for a in AGGREGATIONS.values() if a.torch and a.torch.in_place}


class CallWriter:
    """Writes calls. `local`: the name of a tensor; `names`: others than these; `in_place`: of the results that are
    parts of others, functions are given those that lie side by side in memory, and return the rest."""

    def __init__(self, local: Callable[[str], str], names: FreshNames, in_place: bool = False):
        self.local, self.names, self.in_place = local, names, in_place
        self._made: dict[tuple[str, str], str] = {}

    def _name(self, tensor: str, suffix: str) -> str:
        """The same name whenever it is asked for."""
        key = tensor, suffix
        if key not in self._made:
            self._made[key] = self.names.fresh(f"{self.local(tensor)}_{suffix}" if tensor else suffix)
        return self._made[key]

    def carried(self, calls: Sequence[TiledCall]) -> list[str]:
        """The names of what these calls carry."""
        found = dict.fromkeys(x.tensor for c in calls for x in c.places if isinstance(x, CarriedSlice))
        return [self._name(t, "carried") for t in found]

    def lines(self, call: TiledCall, function: str, *before: str) -> list[str]:
        """Lines of the calls, of a function of this name; `before`: its first arguments."""
        moving = [x for x in call.places if isinstance(x, Moving) and x.step] if call.count > 1 else []
        main = max(moving, key=lambda x: abs(x.step), default=None)
        first, number = self._name("", "first"), self._name("", "number")

        def place(x: Moving, more: int = 0) -> str:
            if main is None or not x.step:
                return str(x.at + more)
            if x.step != main.step:
                times = {1: number, -1: f"-{number}"}.get(x.step, f"{x.step} * {number}")
                return _sum(times, x.at + more)
            return _sum(first, x.at + more - main.at)

        body = self._call(call, function, before, place)
        if call.count == 1:
            return body
        over = f"range({call.count})"
        if main is not None:
            over = f"range({main.at}, {main.at + call.count * main.step}, {main.step})"
        counted = main is not None and any(x.step != main.step for x in moving)
        over = f"{number}, {first} in enumerate({over})" if counted else f"{first} in {over}"
        return [f"for {over}:", *indented(body)]

    def _call(self, call: TiledCall, function: str, before: Sequence[str], place: Callable[..., str]) -> list[str]:
        arguments = [*before, *(self._argument(x, place) for x in call.sources)]
        sinks = [(k, x) for k, x in call.sinks if not (self.in_place and lies_together(x))]
        arguments += [self._slice(x, place) for _, x in call.sinks if self.in_place and lies_together(x)]
        parts = {k: self._name(x.tensor, "part") for k, x in reversed(sinks) if not isinstance(x, Assign)}
        targets = {k: self.local(x.tensor) for k, x in sinks if isinstance(x, Assign)} | parts
        results = "".join(f"{targets[k]}, " for k in sorted(targets))
        body = [f"{results}= " * bool(results) + f"{function}({', '.join(arguments)})"]
        for k, sink in sinks:
            target, part = self.local(sink.tensor), targets[k]
            if isinstance(sink, Into | CarriedSlice) and sink.part is not None:
                axis, low, high = sink.part
                part = _cut(part, axis, f"{low}:{high}")
            match sink:
                case Combine(_, aggregation, in_place=True):
                    body.append(IN_PLACE[aggregation].format(target, part))
                case Combine(_, aggregation):
                    both = COMBINED[aggregation].format(target, part)
                    body.append(f"{target} = {part} if {target} is None else {both}")
                case Into():
                    body.append(f"{self._slice(sink, place)} = {part}")
                case CarriedSlice(tensor):
                    body.append(f"{self._name(tensor, 'carried')} = {part}.clone()")
        return [*body, *([f"del {', '.join(parts.values())}"] if parts else [])]

    def _argument(self, source: Source, place: Callable[..., str]) -> str:
        match source:
            case Whole(tensor):
                return self.local(tensor)
            case Slice(copied=copied):
                return self._slice(source, place) + ".clone(memory_format=torch.contiguous_format)" * copied
            case Carried(tensor):
                return self._name(tensor, "carried")
            case Start():
                return f"torch.full((), {place(source)}, device=device)"

    def _slice(self, x: Slice | Into, place: Callable[..., str]) -> str:
        places = place(x) if x.length is None else f"{place(x)}:{place(x, x.length)}"
        return _cut(self.local(x.tensor), x.axis, places)


def lies_together(sink: Sink) -> TypeGuard[Into]:
    """Whether a result is a part of another tensor that is contiguous."""
    return isinstance(sink, Into) and sink.part is None and sink.axis == 0


def _sum(text: str, number: int) -> str:
    return text + (f" {'-' if number < 0 else '+'} {abs(number)}" if number else "")


def _cut(tensor: str, axis: int, places: str) -> str:
    return f"{tensor}[{':, ' * axis}{places}]"


Build = Callable[[Program, Sequence[TensorType]], Executable]


class TiledProgram:
    """The executable of a program in chunks. `build` makes that of a program for inputs of given types; one serves all
    calls of equal ones."""

    grouped = None
    temporary_bytes = None  # chunks take what they need one after the other
    repeated_bytes = 0

    def __init__(self, calls: Calls, build: Build):
        pieces = dict.fromkeys(call.program for sweep in calls.steps for call in sweep.calls)
        titles = {piece: f"part_{n}" for n, piece in enumerate(pieces, 1)}
        self._built: dict[str, Executable] = {titles[piece]: build(*piece) for piece in pieces}
        self.text = _program_text(calls, titles)
        scope: dict[str, Any] = {"torch": torch}
        scope |= {title: _over_inputs(executable) for title, executable in self._built.items()}
        exec(compile(self.text, "<tilec chunks>", "exec"), scope)
        self._run = scope["program"]

    @property
    def kernels(self) -> Sequence[KernelSource]:
        return tuple(k for e in self._built.values() for k in e.kernels)

    def source(self) -> str:
        """Files, each after a comment of its name: the programs of chunks, and the one that calls them, as it runs."""
        files = {title: e.source().rstrip() for title, e in self._built.items()}
        imports = [f"from {title} import program as {title}" for title in files]
        files["program"] = "\n".join(["import torch", *imports, "\n", self.text])
        return "\n\n\n".join(f"# {name}.py\n{text}" for name, text in files.items()) + "\n"

    def asm(self, kind: str) -> str:
        return "\n\n".join(text for e in self._built.values() if (text := e.asm(kind)))

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return self._run(*inputs)


def _over_inputs(executable: Executable) -> Callable[..., tuple[torch.Tensor, ...]]:
    return lambda *inputs: executable(inputs)


def _program_text(calls: Calls, titles: Mapping[TypedProgram, str]) -> str:
    """The function that calls the programs of chunks, which have these names."""
    names = FreshNames((*RESERVED_NAMES, "program", *titles.values()))
    local: dict[str, str] = {}

    def name(tensor: str) -> str:
        if tensor not in local:
            local[tensor] = names.fresh(python_name(tensor))
        return local[tensor]

    parameters = ", ".join(map(name, calls.inputs))
    writer = CallWriter(name, names)
    body = [f"device = {name(calls.inputs[0])}.device"]
    for sweep, unused in zip(calls.steps, _last_uses(calls), strict=True):
        for tensor, t in sweep.made:
            body.append(f"{name(tensor)} = torch.empty({tuple_text(t.shape)}, dtype=torch.{t.dtype}, device=device)")
        sums = dict.fromkeys(x.tensor for c in sweep.calls for x in c.places if isinstance(x, Combine))
        body += [f"{name(tensor)} = None" for tensor in sums]
        for call in sweep.calls:
            body += writer.lines(call, titles[call.program])
        body += [f"{name(tensor)} = {name(tensor)}.to(torch.{dtype})" for tensor, dtype in sweep.rounded]
        dropped = [*map(name, unused), *writer.carried(sweep.calls)]
        body += [f"del {', '.join(dropped)}"] if dropped else []
    before = [{*calls.inputs, *calls.outputs[:k]} for k in range(len(calls.outputs))]
    results = [name(o) + ".clone()" * (o in taken) for o, taken in zip(calls.outputs, before, strict=True)]
    return "\n".join([f"def program({parameters}):", *indented([*body, f"return {tuple_text(results)}"])])


def _last_uses(calls: Calls) -> list[list[str]]:
    """For each sweep the tensors that are read in none after it."""
    seen = set(calls.outputs)
    found = []
    for sweep in reversed(calls.steps):
        places = (x for c in sweep.calls for x in c.places if not isinstance(x, Carried | CarriedSlice | Start))
        names = dict.fromkeys(x.tensor for x in places)
        found.append([n for n in names if n not in seen])
        seen.update(names)
    return found[::-1]
