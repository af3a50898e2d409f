"""Run the table of docs/torch.md and write it there.

    python -m tests.torch_op.table --json cpu.json          every cell on the CPU (--only takes a part)
    python -m tests.torch_op.table --device cuda --jobs 12 --json cuda.json
    python -m tests.torch_op.table --page cpu.json cuda.json

Each cell is one transform in one mode of one program, against the same in torch's operations. Where ours fails, torch's
own is run the same way: what it refuses of its own operations is told with its words. A file of results holds every
cell that is known: what was cut off goes on from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch._inductor.compile_fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests.support.torch_programs import EXAMPLES, compiled
from tests.torch_op.cuda_ways import CUDA_WAYS
from tests.torch_op.packages import PACKING
from tests.torch_op.test_transforms import TRANSFORMS, flat, loss

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
CLOSE = {"autocast": 5e-2}  # else 1e-7, in float64
SIZED = (0, 2)  # rows that are added, with open sizes


def shapes_of(results: object) -> list[torch.Tensor]:
    return [torch.tensor([*t.shape, t.itemsize]) for t in flat(results)]


def autocast(f, *inputs):
    """Values and gradients; `loss` is nonlinear."""
    given = [t.float().requires_grad_() for t in inputs]
    with torch.autocast(inputs[0].device.type, torch.bfloat16):
        y = f(*given)
    return [y.double(), *torch.autograd.grad(loss(lambda *x: y.float())(), given)]


def fake(f, *inputs):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [mode.from_tensor(t).requires_grad_() for t in inputs]
        y = f(*given)
        found = [y, *torch.autograd.grad(y.sum(), given)]
    return shapes_of(found)


def meta(f, *inputs):
    given = [t.to("meta").requires_grad_() for t in inputs]
    y = f(*given)
    return shapes_of([y, *torch.autograd.grad(y.sum(), given)])


ROWS = {**TRANSFORMS, "autocast": autocast, "fake tensors": fake, "meta tensors": meta}
OUTSIDE = {  # what is done to a function that is compiled or exported, rather than compiled or exported with it
    *("forward", "backward", "double backward", "a gradient by weights of a gradient by data", "checkpoint"),
    *("reentrant checkpoint", "no_grad", "inference_mode", "dual numbers", "autocast", "fake tensors", "meta tensors"),
    *("make_fx", "forward-mode jacobian", "autograd through vmap"),
}


class Module(torch.nn.Module):
    def __init__(self, f: Callable):
        super().__init__()
        self.f = f

    def forward(self, *inputs):
        return self.f(*inputs)


def exported(f: Callable, inputs: list[torch.Tensor]) -> Callable:
    return torch.export.export(Module(f), tuple(inputs)).module()


def compiled_whole(f: Callable, inputs: object = None, **how: object) -> Callable:
    return torch.compile(f, fullgraph=True, backend="aot_eager", **how)


MODES: dict[str, Callable[[Callable, list[torch.Tensor]], Callable]] = {
    "eager": lambda f, inputs: f,
    "compile": compiled_whole,
    "compile, dynamic": lambda f, inputs: compiled_whole(f, dynamic=True),
    "export": exported,
}
PACKAGES = "AOTInductor"


class Unreal(Exception):
    """What torch cannot trace through may come out as tensors without data."""


def run(f: Callable, name: str, mode: str, row: str, device: str, outside: bool) -> list:
    """What a cell gives of one function."""
    transform, example, found = ROWS[row], EXAMPLES[name], []
    sizes = SIZED if mode == "compile, dynamic" else (0,)
    inputs = example.inputs(device=device, more=sizes[0])
    try:
        made = MODES[mode](f if outside else lambda *x: transform(f, *x), inputs)
        for more in sizes:
            given = example.inputs(device=device, more=more)
            found += flat(transform(made, *given) if outside else made(*given))
    finally:
        torch._dynamo.reset()
        _leave_levels()
    if any(isinstance(t, FakeTensor) for t in found):
        raise Unreal("the result is a fake tensor")
    return found


def _leave_levels() -> None:
    """Those of transforms and of forward mode that an error has left."""
    torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(0)
    with suppress(RuntimeError):
        torch._C._exit_dual_level(level=0)


def expected(name: str, mode: str, row: str, device: str) -> list:
    """What torch's operations give in eager mode."""
    example = EXAMPLES[name]
    sizes = SIZED if mode == "compile, dynamic" else (0,)
    return [t for more in sizes for t in flat(ROWS[row](example.torch, *example.inputs(device=device, more=more)))]


def outcome(name: str, mode: str, row: str, device: str) -> str:
    """`ok`, or what went otherwise."""
    outside = row in OUTSIDE
    try:
        found = run(compiled(name), name, mode, row, device, outside)
    except Exception as error:
        return refused(name, mode, row, device, outside, error)
    return compared(found, expected(name, mode, row, device), row)


def refused(name: str, mode: str, row: str, device: str, outside: bool, ours: Exception) -> str:
    """By torch, of its own operations too?"""
    try:
        run(EXAMPLES[name].torch, name, mode, row, device, outside)
    except Exception as error:
        return f"torch: {told(error)}"
    return f"fails: {told(ours)}"


def compared(found: list, wanted: list, row: str) -> str:
    close = CLOSE.get(row, 1e-7)
    same = len(found) == len(wanted) and all(
        torch.allclose(a, b.to(a.device, a.dtype), rtol=close, atol=close) for a, b in zip(found, wanted, strict=True)
    )
    return "ok" if same else "wrong"


def told(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]


def packaged(f: Callable, name: str, rows: list[str], device: str) -> dict[str, list]:
    """What one package gives of these rows."""
    inputs = EXAMPLES[name].inputs(device=device)
    program = torch.export.export(Module(lambda *x: {row: flat(ROWS[row](f, *x)) for row in rows}), tuple(inputs))
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(
            program,
            package_path=f"{folder}/model.pt2",
            inductor_configs=PACKING,
        )
        return torch._inductor.aoti_load_package(path)(*inputs)


def packages(name: str, rows: list[str], device: str) -> Iterator[tuple[str, str]]:
    """The cells of rows that can be exported, by as few packages as hold all that can be packed."""
    try:
        found = packaged(compiled(name), name, rows, device)
    except Exception as error:
        _leave_levels()
        if len(rows) > 1:
            half = len(rows) // 2
            yield from packages(name, rows[:half], device)
            yield from packages(name, rows[half:], device)
            return
        try:
            packaged(EXAMPLES[name].torch, name, rows, device)
        except Exception as theirs:
            _leave_levels()
            yield rows[0], f"torch: {told(theirs)}"
            return
        yield rows[0], f"fails: {told(error)}"
        return
    for row in rows:
        wanted = expected(name, PACKAGES, row, device)
        result = compared(flat(found[row]), wanted, row)
        if result == "wrong":
            with suppress(Exception):
                theirs = flat(packaged(EXAMPLES[name].torch, name, [row], device)[row])
                if compared(theirs, wanted, row) == "wrong":
                    result = "torch: other results than in eager mode"
        yield row, result


def package_cells(name: str, rows: Sequence[str], device: str) -> Iterator[tuple[str, str]]:
    """What is packed is what torch exports: of the others its reason is told."""
    fitting = []
    compiled(name)(*EXAMPLES[name].inputs(device=device))
    for row in rows:
        try:
            run(compiled(name), name, "export", row, device, outside=False)
            fitting.append(row)
        except Exception as error:
            yield row, refused(name, "export", row, device, False, error)
    if fitting:
        yield from packages(name, fitting, device)


def on_cuda(name: str, way: str) -> str:
    try:
        found, expected = CUDA_WAYS[way](
            compiled(name), EXAMPLES[name].torch, EXAMPLES[name], EXAMPLES[name].inputs(device="cuda")
        )
    except Exception as error:
        return f"fails: {told(error)}"
    pairs = zip(flat(found), flat(expected), strict=True)
    return "ok" if all(torch.allclose(a, b, rtol=1e-7, atol=1e-9) for a, b in pairs) else "wrong"


ON_CUDA = "CUDA: "


def rows_of(mode: str, device: str) -> list[str]:
    ways = [ON_CUDA + way for way in CUDA_WAYS if device == "cuda" and mode == "eager"]
    return [*ROWS, *ways]


def cells(name: str, mode: str, rows: Sequence[str], device: str) -> Iterator[tuple[str, str]]:
    """These rows of a mode's column for one program, each as it is known."""
    if mode == PACKAGES:
        yield from package_cells(name, rows, device)
        return
    for row in rows:
        way = row.removeprefix(ON_CUDA)
        yield row, outcome(name, mode, row, device) if way == row else on_cuda(name, way)


def work(results: Connection, name: str, mode: str, rows: Sequence[str], device: str) -> None:
    """A process's part."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1  # no processes of its own
    for cell in cells(name, mode, rows, device):
        results.send(cell)


AT_ONCE = 12  # rows of a process; a package holds all that it can, since its headers take longest


def everything(device: str, jobs: int, path: Path, only: str, chosen: Sequence[str]) -> None:
    """All cells, by processes that share what is imported, so many at a time, the dear ones first; what the file holds
    already is kept."""
    state = (
        json.loads(path.read_text()) if path.exists() else {"torch": torch.__version__, "device": device, "cells": {}}
    )
    waiting = []
    for mode in (PACKAGES, *reversed(MODES)):
        for name in EXAMPLES:
            known = state["cells"].setdefault(f"{name}/{mode}", {})
            rows = [r for r in rows_of(mode, device) if r not in known and (not chosen or r in chosen)]
            size = len(ROWS) if mode == PACKAGES else AT_ONCE
            if only in f"{name}/{mode}":
                waiting += [(name, mode, rows[k : k + size]) for k in range(0, len(rows), size)]
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whoever forks must not have asked CUDA itself
    forked = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[str, str, multiprocessing.process.BaseProcess]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name, mode, rows = waiting.pop(0)
            there, here = forked.Pipe(duplex=False)
            process = forked.Process(target=work, args=(here, name, mode, rows, device), daemon=True)
            process.start()
            here.close()
            running[there] = name, mode, process
        for there in wait([*running]):
            name, mode, process = running[there]
            try:
                row, result = there.recv()
            except EOFError:
                del running[there]
                process.join()
                print(name, mode, "ended with", process.exitcode, file=sys.stderr, flush=True)
                continue
            state["cells"][f"{name}/{mode}"][row] = result
            path.write_text(json.dumps(state, indent=1) + "\n")
            if result.partition(":")[0] in ("fails", "wrong"):
                print(name, mode, row, result, file=sys.stderr, flush=True)


def page(paths: list[Path]) -> str:
    """A table for each device: transforms down, modes across; a cell stands for all programs."""
    states: dict[str, dict] = {}
    for path in paths:
        state = json.loads(path.read_text())
        known = states.setdefault(state["device"], state)["cells"]
        for column, found in state["cells"].items():
            known[column] = known.get(column, {}) | found
    parts, notes = [], []
    for device, state in sorted(states.items()):
        where = "On the CPU" if device == "cpu" else "On a GPU (H200)"
        modes = [*MODES, PACKAGES]
        parts += [f"{where}, torch {state['torch'].split('+')[0]}:\n", "| | " + " | ".join(modes) + " |"]
        parts.append("| --- |" + " --- |" * len(modes))
        rows = []
        for row in rows_of("eager", device):
            cells = []
            for mode in modes:
                every = {n: state["cells"][f"{n}/{mode}"][row] for n in EXAMPLES if row in rows_of(mode, device)}
                cells.append(_summary(every, notes))
            rows.append((row.removeprefix(ON_CUDA), tuple(cells)))
        parts += [*table_rows(rows), ""]
    parts += [f"{k}. `{note}`" for k, note in enumerate(notes, 1)]
    return "\n".join(parts)


def table_rows(rows: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Lines of a table, of names and their cells: names with the same cells share one."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows:
        groups.setdefault(cells, []).append(name)
    return ["| " + " | ".join([", ".join(names), *cells]) + " |" for cells, names in groups.items()]


def _summary(every: dict[str, str], notes: list[str]) -> str:
    """`ok`, and what torch refuses of its own operations too, by the numbers of its words among the notes; of which
    programs, where not of all."""
    found = ["ok"] if "ok" in every.values() else []
    for kind in ("torch", "fails", "wrong"):
        names = [n for n, v in every.items() if v.partition(": ")[0] == kind]
        told = [reason for n in names if (reason := every[n].partition(": ")[2])]
        notes += [t for t in dict.fromkeys(told) if t not in notes]
        numbers = ", ".join(str(k) for k in sorted({1 + notes.index(t) for t in told}))
        if names:
            found.append(f"{kind} [{numbers}]" + (f": {', '.join(names)}" if len(names) < len(every) else ""))
    return "; ".join(found)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go; what it holds is not run again")
    parser.add_argument("--only", default="", metavar="TEXT", help="columns whose program/mode holds TEXT")
    parser.add_argument("--rows", nargs="+", default=(), metavar="ROW", help="these rows alone")
    parser.add_argument("--page", nargs="+", type=Path, metavar="FILE", help="write the page of these results")
    given = parser.parse_args()
    if given.page:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(f"{head}{BEGIN}\n{page(given.page)}\n{END}{tail}")
    else:
        everything(given.device, given.jobs, given.json or Path(f"table-{given.device}.json"), given.only, given.rows)


if __name__ == "__main__":
    main()
