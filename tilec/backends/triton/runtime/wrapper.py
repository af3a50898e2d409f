"""The call of a plan as text: Python functions that allocate and launch. What `.source()` prints of it is what runs.

Its lines call names that are bound in two ways. Where the text is pasted, a kernel's name is Triton's function, and a
few lines at the head define the rest. In tilec (`bound.py`) a kernel's name launches by addresses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import FreshNames, indented, literal, python_name, tuple_text
from tilec.backends.common.tiled_program import RESERVED_NAMES, CallWriter
from tilec.backends.triton.plan.plan import (
    Allocate,
    Descriptor,
    Launch,
    Plan,
    Pointer,
    Release,
    Repeat,
    Step,
    SubPlan,
    Table,
    TiledLoop,
    TorchLines,
    made_by,
)
from tilec.backends.triton.plan.source import IMPORTS
from tilec.backends.triton.runtime.workspace import places
from tilec.language.show import show_statement
from tilec.transforms.util.tiled import Start

DEFINITIONS = {
    "within": """def within(memory, dtype):
    return lambda place: memory[place:].view(dtype)""",
    "tensor_map": """def tensor_map(tensor, offset, shape, strides, block):
    base = torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + offset)
    return TensorDescriptor(base, list(shape), list(strides), list(block))""",
    "gluon_map": """def gluon_map(tensor, offset, shape, strides, block, layout):
    base = torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + offset)
    return hopper.TensorDescriptor(base, list(shape), list(strides), list(block), layout)""",
}
DEFINITION_IMPORTS = {
    "within": (),
    "tensor_map": ("from triton.tools.tensor_descriptor import TensorDescriptor",),
    "gluon_map": (
        "from triton.experimental.gluon import language as gl",
        "from triton.experimental.gluon.nvidia import hopper",
    ),
    "cache": ("from functools import cache",),
    "rt": ("import tilec.backends.torch.runtime as rt",),
}
GLOBAL_NAMES = (*RESERVED_NAMES, *DEFINITION_IMPORTS, "gl", "hopper", "step", "tl", "triton", "TensorDescriptor")


Placed = tuple[str, int, int]  # a tensor's type, place in the workspace and number of elements


@dataclass(frozen=True)
class Wrapper:
    """`text`: functions, of which `title` is the plan's. `kernels`: the launch that each name of a kernel stands for;
    `lines`: the step that a function of torch's lines is. `own_lines`: those of each step of the plan, over tensors of
    these `local` names. `placed`: the tensors in the workspace. `head`: what stands before the text where it is
    printed."""

    title: str
    text: str
    kernels: Mapping[str, Launch]
    lines: Mapping[str, TorchLines]
    layouts: tuple[str, ...]
    own_lines: tuple[tuple[str, ...], ...]
    local: Mapping[str, str]
    placed: Mapping[str, Placed]
    head: str

    @property
    def file(self) -> str:
        """One file that runs when pasted: `title(*inputs)` returns the outputs."""
        return f"{self.head}\n\n\n{self.text}\n"


def wrapper(title: str, inputs: Sequence[str], plan: Plan, statements: Mapping[str, str]) -> Wrapper:
    """The call of a plan for inputs of these names. `statements`: Tile text by output, which heads what carries it
    out."""
    return _Writer(title, plan).wrapper(inputs, statements)


class _Writer:
    """What the functions of a plan and its parts share: `titles` of what is called, by the step or launch, and what is
    bound at the head."""

    def __init__(self, title: str, plan: Plan):
        self._kernels: dict[str, Launch] = {}
        self._pieces: dict[str, str] = {}
        self._same: dict[str, str] = {}  # names of one kernel, of which each launch has one
        self._functions: list[str] = []
        self._lines: dict[str, TorchLines] = {}
        self._layouts: dict[str, str] = {}
        self.titles: dict[int, str] = {}
        self.asked: set[str] = set()
        launches = list({id(launch): launch for launch in plan.launches()}.values())
        own = self._own_names(launches)
        self._names = names = FreshNames((*GLOBAL_NAMES, *self._pieces))
        for launch in launches:
            kernel = own[launch.text]
            name = names.fresh(kernel) if kernel in self._kernels else kernel
            if name != kernel:
                self._same[name] = kernel
            self._kernels[name], self.titles[id(launch)] = launch, name
            for layout in (v.layout for _, v in launch.arguments if isinstance(v, Descriptor) and v.layout):
                self._layouts[layout] = self._layouts.get(layout) or names.fresh(f"layout_{len(self._layouts) + 1}")
        self._plan, self._title = plan, names.fresh(title)
        self._parts = list({id(part): part for part in plan.parts()}.values())
        for number, part in enumerate(self._parts, 1):
            self.titles[id(part)] = names.fresh(f"{self._title}_part_{number}")
        for step in (s for p in (*(part.plan for part in self._parts), plan) for s in p.steps):
            self._step_function(step)

    def _own_names(self, launches: Sequence[Launch]) -> dict[str, str]:
        """The name of each text's kernel; different functions get different names."""
        own: dict[str, str] = {}
        for file in {launch.text: launch.file for launch in launches}.values():
            text = file.text
            if any(self._pieces.get(f.name, f.text) != f.text for f in (*file.own, file.kernel)):
                file = file.renamed(f"_{len(self._pieces)}")
            self._pieces |= {**dict(file.shared), **{f.name: f.text for f in (*file.own, file.kernel)}}
            own[text] = file.kernel.name
        return own

    def _step_function(self, step: Step) -> None:
        """A function of a step's own: torch's lines, or a constant tensor that is made once."""
        match step:
            case TorchLines():
                title = self._names.fresh(f"{python_name(step.writes[0])}_lines")
                self._functions.append(lines_text(step, title))
                self._lines[title] = step
                self.asked |= {"rt"} if any("rt." in line for line in step.lines) else set()
            case Table(tensor, rows):
                title = self._names.fresh(f"{python_name(tensor)}_table")
                made = f"torch.tensor({list(map(list, rows))}, {_kind('int32')})"
                self._functions.append(f"@cache\ndef {title}(device):\n    return {made}")
                self.asked.add("cache")
            case _:
                return
        self.titles[id(step)] = title

    def wrapper(self, inputs: Sequence[str], statements: Mapping[str, str]) -> Wrapper:
        for p in self._parts:
            told = {s.output: show_statement(s) for s in p.program.statements}
            self._function(self.titles[id(p)], p.inputs, p.plan, told)
        steps, local, placed = self._function(self._title, inputs, self._plan, {} if self._parts else statements)
        layouts, text = tuple(self._layouts.values()), "\n\n\n".join(self._functions)
        return Wrapper(self._title, text, self._kernels, self._lines, layouts, steps, local, placed, self._head())

    def _head(self) -> str:
        imports = ("import torch", *IMPORTS, *(line for k in self._kernels.values() for line in k.file.imports))
        asked = [name for name in DEFINITION_IMPORTS if name in self.asked]
        lines = dict.fromkeys((*imports, *(line for name in asked for line in DEFINITION_IMPORTS[name])))
        bound = [f"{name} = {same}" for name, same in self._same.items()]
        bound += [f"{name} = {layout}" for layout, name in self._layouts.items()]
        pieces = [*self._pieces.values(), *(DEFINITIONS[n] for n in asked if n in DEFINITIONS), "\n".join(bound)]
        return "\n\n\n".join(["\n".join(lines), *(text.rstrip() for text in pieces if text)])

    def _function(
        self, title: str, inputs: Sequence[str], plan: Plan, statements: Mapping[str, str]
    ) -> tuple[tuple[tuple[str, ...], ...], Mapping[str, str], Mapping[str, Placed]]:
        """Adds a function; the lines of each step, the tensors' names, and those in the workspace."""
        names = self._names.inner()
        local = {x: names.fresh(python_name(x)) for x in dict.fromkeys((*inputs, *_made(plan)))}
        placed, size = places(plan) if plan is self._plan else ({}, 0)
        body = [f"device = {local[inputs[0]]}.device"] if inputs else []
        inside = [s for s in plan.steps if isinstance(s, Allocate) and s.tensor in placed]
        finds: dict[str, str] = {}
        if inside:
            self.asked.add("within")
            memory = names.fresh("workspace")
            body.append(f"{memory} = torch.empty({size}, {_kind('uint8')})")
            finds = {dtype: names.fresh(f"{dtype}_at") for dtype in dict.fromkeys(s.dtype for s in inside)}
            body += [f"{title} = within({memory}, torch.{dtype})" for dtype, title in finds.items()]
        writer = _FunctionWriter(self, local, names, placed, finds)
        told: set[str] = set()
        steps = [tuple(writer.lines(step)) for step in plan.steps]
        for step, lines in zip(plan.steps, steps, strict=True):
            if isinstance(step, Launch | Repeat | TorchLines):
                fresh = [s for s in step.statements if s in statements and s not in told]
                told.update(fresh)
                body += [f"# {line}" for s in fresh for line in statements[s].splitlines()]
            body += lines
        body += [f"return {tuple_text([local[o] for o in plan.outputs])}"] if plan.outputs else []
        parameters = ", ".join(local[n] for n in inputs) or 'device="cuda"'
        self._functions.append("\n".join([f"def {title}({parameters}):", *indented(body)]))
        return tuple(steps), local, {s.tensor: (s.dtype, placed[s.tensor], math.prod(s.shape)) for s in inside}

    def layout(self, text: str) -> str:
        return self._layouts[text]


@dataclass(frozen=True)
class _FunctionWriter:
    """Writes the lines of steps. `placed`: places in the workspace, in which `workspace` finds what is of a type."""

    file: _Writer
    local: Mapping[str, str]
    names: FreshNames
    placed: Mapping[str, int]
    workspace: Mapping[str, str]

    def lines(self, step: Step) -> list[str]:
        name = self.local.__getitem__
        match step:
            case Allocate(tensor, shape, dtype, None) if tensor in self.placed:
                return [f"{name(tensor)} = {self.workspace[dtype]}({self.placed[tensor]})  # {tuple_text(shape)}"]
            case Allocate(tensor, shape, dtype, None):
                return [f"{name(tensor)} = torch.empty({tuple_text(shape)}, {_kind(dtype)})"]
            case Allocate(tensor, shape, dtype, str(source)):
                copy = f"{name(source)}.to(torch.{dtype}, copy=True, memory_format=torch.contiguous_format)"
                return [f"{name(tensor)} = {copy}.expand({tuple_text(shape)}).contiguous()"]
            case Allocate(tensor, shape, dtype, fill):
                text = f"float('{fill}')" if isinstance(fill, float) and not math.isfinite(fill) else repr(fill)
                return [f"{name(tensor)} = torch.full({tuple_text(shape)}, {text}, {_kind(dtype)})"]
            case Table(tensor):
                return [f"{name(tensor)} = {self.file.titles[id(step)]}(device)"]
            case Release(tensors):
                kept = [name(t) for t in tensors if t not in self.placed]
                return [f"del {', '.join(kept)}"] if kept else []
            case SubPlan(plan, inputs):
                given = ", ".join(map(name, inputs)) or "device"
                return [f"{', '.join(map(name, plan.outputs))}, = {self.file.titles[id(step)]}({given})"]
            case TiledLoop(calls):
                writer = CallWriter(name, self.names)
                return [line for c in calls for line in writer.lines(c, self.file.titles[id(c.program)])]
            case TorchLines():
                given = ", ".join([*map(name, step.reads), *(str(n) for _, n in step.numbers), "device"])
                return [f"{', '.join(map(name, step.writes))}, = {self.file.titles[id(step)]}({given})"]
            case Launch():
                return [self._launched(step, {})]
            case Repeat(launches, counters, count):
                each = zip(launches, counters, strict=True)
                return [f"for step in range({count}):", *(f"    {self._launched(x, {c: 'step'})}" for x, c in each)]
        raise AssertionError(f"no step: {step!r}")

    def _launched(self, launch: Launch, given: Mapping[str, str]) -> str:
        values = [given.get(name) or self._argument(v) for name, v in launch.arguments]
        values += [f"{c}={v}" for c, v in launch.constants]
        values += [f"num_warps={launch.warps}", f"num_stages={launch.stages}"]
        values += [] if launch.contracts else ["enable_fp_fusion=False"]
        values += ["launch_cooperative_grid=True"] if launch.cooperative else []
        values += [f"maxnreg={launch.registers}"] if launch.registers else []
        return f"{self.file.titles[id(launch)]}[{launch.grid}]({', '.join(values)})"

    def _asked(self, name: str) -> str:
        self.file.asked.add(name)
        return name

    def _argument(self, v: object) -> str:
        match v:
            case Pointer(tensor):
                return self.local[tensor]
            case Descriptor(tensor, offset, shape, strides, block, layout):
                given = f"{self.local[tensor]}, {offset}, {tuple(shape)}, {tuple(strides)}, {tuple(block)}"
                if not layout:
                    return f"{self._asked('tensor_map')}({given})"
                return f"{self._asked('gluon_map')}({given}, {self.file.layout(layout)})"
            case bool() | int() | float():
                return literal(v)
        return repr(v)


def lines_text(step: TorchLines, title: str) -> str:
    """A step of torch's lines as a function of the tensors that it reads, its numbers, and where it makes others."""
    names = [*map(python_name, step.reads), *(name for name, _ in step.numbers), "device"]
    results = tuple_text(list(map(python_name, step.writes)))
    return "\n".join([f"def {title}({', '.join(names)}):", *indented([*step.lines, f"return {results}"])])


def _made(plan: Plan) -> Iterator[str]:
    """The tensors that a plan's steps make, or fill."""
    for step in plan.steps:
        if isinstance(step, TiledLoop):
            yield from (x.tensor for call in step.calls for x in call.places if not isinstance(x, Start))
        else:
            yield from step.plan.outputs if isinstance(step, SubPlan) else made_by(step)


def _kind(dtype: str) -> str:
    return f"dtype=torch.{dtype}, device=device"
