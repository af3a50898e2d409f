"""The printed program (`.source()`): its kernels and the Python function that allocates and launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.backends.common.code import FreshNames, python_name
from tilec.backends.common.tiled_program import RESERVED_NAMES, CallWriter
from tilec.backends.triton.plan.plan import (
    Descriptor,
    Launch,
    Plan,
    Pointer,
    Repeat,
    Step,
    SubPlan,
    TiledLoop,
    TorchLines,
    made_by,
)
from tilec.backends.triton.plan.source import IMPORTS
from tilec.backends.triton.runtime.step_lines import torch_lines_of
from tilec.language.show import show_statement


def program_text(name: str, inputs: tuple[str, ...], plan: Plan, statements: Mapping[str, str]) -> str:
    """One file that runs when pasted: `name(*inputs)` returns the outputs. `statements`: Tile text by output, which
    heads what carries it out."""
    launches = plan.launches()
    imports = dict.fromkeys(("import torch", *IMPORTS, *(line for launch in launches for line in launch.file.imports)))
    pieces: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for launch in launches:
        file = launch.file
        if any(pieces.get(f.name, f.text) != f.text for f in (*file.own, file.kernel)):
            file = file.renamed(f"_{len(pieces)}")
        pieces |= {**dict(file.shared), **{f.name: f.text for f in (*file.own, file.kernel)}}
        renamed[launch.text] = file.kernel.name
    parts = list(plan.parts())
    steps = [s for p in (*(part.plan for part in parts), plan) for s in p.steps]
    if any(isinstance(s, TorchLines) and any("rt." in line for line in s.lines) for s in steps):
        imports["import tilec.backends.torch.runtime as rt"] = None
    described = [v for launch in launches for _, v in launch.arguments if isinstance(v, Descriptor)]
    if any(not v.layout for v in described):
        imports["import triton.tools.tensor_descriptor as maps"] = None
    if any(v.layout for v in described):
        imports["from triton.experimental.gluon import language as gl"] = None
        imports["from triton.experimental.gluon.nvidia.hopper import TensorDescriptor"] = None
    titles: dict[int, str] = {}
    for part in parts:
        titles[id(part)] = f"{name}_part_{len(titles) + 1}"
    writer = _Writer(renamed, titles)
    functions = [
        writer.function(titles[id(p)], p.inputs, p.plan, {s.output: show_statement(s) for s in p.program.statements})
        for p in parts
    ]
    functions.append(writer.function(name, inputs, plan, {} if parts else statements))
    return (
        "\n".join(imports) + "\n\n\n" + "\n\n\n".join([*(text.rstrip() for text in pieces.values()), *functions]) + "\n"
    )


class _Writer:
    """Writes functions that allocate and launch. `renamed`: a kernel's name by its text; `titles`: those of parts."""

    def __init__(self, renamed: Mapping[str, str], titles: Mapping[int, str]):
        self.renamed, self.titles = renamed, titles

    def function(self, name: str, inputs: Sequence[str], plan: Plan, statements: Mapping[str, str]) -> str:
        device = f"{python_name(inputs[0])}.device" if inputs else '"cuda"'
        body = [f"device = {device}"]
        names = FreshNames((*RESERVED_NAMES, *self.titles.values(), *map(python_name, (*inputs, *_made(plan)))))
        told: set[str] = set()
        for step in plan.steps:
            if isinstance(step, Launch | Repeat | TorchLines):
                carried = step.launch.statements if isinstance(step, Repeat) else step.statements
                fresh = [s for s in carried if s in statements and s not in told]
                told.update(fresh)
                body += [f"# {line}" for s in fresh for line in statements[s].splitlines()]
            body += self.lines(step, names)
        results = ", ".join(python_name(o) for o in plan.outputs)
        if plan.outputs:
            body.append(f"return ({results}{',' if len(plan.outputs) == 1 else ''})")
        host = [f"def {name}({', '.join(map(python_name, inputs))}):", *(f"    {line}" for line in body)]
        return "\n".join(host)

    def lines(self, step: Step, names: FreshNames) -> list[str]:
        match step:
            case SubPlan(plan, inputs):
                call = f"{self.titles[id(step)]}({', '.join(map(python_name, inputs))})"
                return [f"{', '.join(map(python_name, plan.outputs))}, = {call}"]
            case TiledLoop(calls):
                writer = CallWriter(python_name, names)
                return [line for c in calls for line in writer.lines(c, self.titles[id(c.program)])]
            case TorchLines():
                return [*(f"{name} = {n}" for name, n in step.numbers), *step.lines]
            case Launch():
                return [_launched(step, self.renamed[step.text], {})]
            case Repeat(launch, counter, count):
                call = _launched(launch, self.renamed[launch.text], {counter: "step"})
                return [f"for step in range({count}):", f"    {call}"]
        return torch_lines_of(step, python_name)


def _made(plan: Plan) -> Iterator[str]:
    """The tensors that a plan's steps make."""
    for step in plan.steps:
        yield from step.plan.outputs if isinstance(step, SubPlan) else made_by(step)


def _launched(launch: Launch, kernel: str, given: Mapping[str, str]) -> str:
    values = [given.get(name) or _argument(v) for name, v in launch.arguments]
    values += [f"{c}={v}" for c, v in launch.constants]
    values += [f"num_warps={launch.warps}", f"num_stages={launch.stages}"]
    values += [] if launch.contracts else ["enable_fp_fusion=False"]
    values += ["launch_cooperative_grid=True"] if launch.cooperative else []
    return f"{kernel}[{launch.grid}]({', '.join(values)})"


def _argument(v: object) -> str:
    match v:
        case Pointer(tensor):
            return python_name(tensor)
        case Descriptor(tensor, offset, shape, strides, block, layout):
            name = python_name(tensor)
            base = f"torch.as_strided({name}, (1,), (1,), {name}.storage_offset() + {offset})"
            given = f"{base}, {list(shape)}, {list(strides)}, {list(block)}"
            return f"TensorDescriptor({given}, {layout})" if layout else f"maps.TensorDescriptor({given})"
    return repr(v)
