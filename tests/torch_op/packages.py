"""AOTInductor packages of models that call Tile functions: built, loaded in another process, run."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import func

from tests.support.torch_programs import EXAMPLES, compiled
from tests.torch_op.test_transforms import batch, flat, loss, tangents
from tilec.native.build import shares_runtime


def differentiated(f, x):
    inputs = [t.detach().requires_grad_() for t in x]
    return torch.autograd.grad(loss(f)(*inputs), inputs)


PACKING: dict[str, object] = {"aot_inductor.compile_wrapper_opt_level": "O0"}
if not shares_runtime():  # a second copy of libstdc++ in a process crashes
    PACKING["aot_inductor.custom_op_libs"] = [":libstdc++.so.6"]
PARTS: dict[str, Callable] = {
    "forward": lambda f, x: (2 * f(*x) + 1,),
    "vmap": lambda f, x: (func.vmap(f)(*batch(x)),),
    "jvp": lambda f, x: func.jvp(f, tuple(x), tangents(x)),
    "a gradient": differentiated,
}
OPEN = "open sizes"
PACKAGED = (*PARTS, OPEN)
LOADED = """
import pickle, sys, torch, tilec
path, given, results = sys.argv[1:]
model = torch._inductor.aoti_load_package(path)
with open(given, "rb") as f:
    inputs = pickle.load(f)
with open(results, "wb") as f:
    pickle.dump([model(*x) for x in inputs], f)
"""


class Model(torch.nn.Module):
    """Some parts for one program."""

    def __init__(self, f, parts):
        super().__init__()
        self.f, self.parts = f, parts

    def forward(self, *x):
        return {part: list(PARTS[part](self.f, x)) for part in self.parts}


def exportable(f: Callable, part: str, inputs: list[torch.Tensor]) -> bool:
    try:
        torch.export.export(Model(f, (part,)), tuple(inputs))
    except Exception:
        return False
    return True


def package(name: str, parts: Iterable[str], folder: Path, device: str = "cpu", dynamic: bool = False):
    """For each part the results of a package loaded in a process of its own, for several inputs (for other sizes too
    where they are open), and torch's."""
    example, parts = EXAMPLES[name], tuple(parts)
    inputs = example.inputs(device=device, more=int(dynamic))  # a size of 1 would stay closed
    f = compiled(name)
    f(*inputs)  # what a program keeps on the device is made before torch traces
    shapes = {"x": ({0: torch.export.Dim.AUTO}, *[None] * (len(inputs) - 1))} if dynamic else None
    exported = torch.export.export(Model(f, parts), tuple(inputs), dynamic_shapes=shapes)
    path = torch._inductor.aoti_compile_and_package(
        exported,
        package_path=str(folder / "model.pt2"),
        inductor_configs=PACKING,
    )
    given = [inputs, [t * 2 - 1 for t in inputs], *([example.inputs(device=device, more=5)] if dynamic else [])]
    (folder / "given").write_bytes(pickle.dumps(given))
    command = [sys.executable, "-c", LOADED, path, str(folder / "given"), str(folder / "results")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = pickle.loads((folder / "results").read_bytes())
    return {
        part: (flat([r[part] for r in found]), flat([list(PARTS[part](example.torch, x)) for x in given]))
        for part in parts
    }


def packaged(name: str, folder: Path, device: str = "cpu") -> dict[str, tuple[list, list] | None]:
    """All rows of the table for one program: results and torch's; None where torch exports its own operations no more
    than ours."""
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs(device=device)
    compiled(name)(*inputs)
    fitting = [part for part in PARTS if exportable(compiled(name), part, inputs)]
    for part in PARTS:
        assert part in fitting or not exportable(example.torch, part, inputs), f"torch's own exports {part}"
    (folder / "open").mkdir()
    rows = package(name, fitting, folder, device)
    rows[OPEN] = package(name, ("forward",), folder / "open", device, dynamic=True)["forward"]
    return {row: rows.get(row) for row in PACKAGED}
