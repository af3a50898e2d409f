"""Compiling launches for a GPU that need not be there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def load(launch: Launch, directory: Path) -> object:
    """The kernel of a launch, from a file, as Triton needs it."""
    name = f"{launch.kernel}_{abs(hash(launch.text))}"
    path = directory / f"{name}.py"
    path.write_text(launch.text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return getattr(module, launch.kernel)


def compile_launch(launch: Launch, dtypes: dict[str, str], directory: Path, capability: int = 90) -> object:
    """What Triton makes of a launch; `.asm` holds the "ptx" and the "cubin". Pointers and strides count as aligned, as
    they are for the tensors that are tested."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    function = load(launch, directory)
    signature: dict[str, str] = {}
    aligned: dict[tuple[int], list] = {}
    for place, (name, value) in enumerate(launch.arguments):
        if isinstance(value, Descriptor):
            layout = eval(value.layout, {"gl": gl})
            block = ",".join(map(str, value.block))
            signature[name] = f"tensordesc<{SHORT[dtypes[value.tensor]]}[{block}],{layout!r}>"
        elif isinstance(value, Pointer):
            dtype = dtypes.get(value.tensor, "float32")
            signature[name] = f"*{SHORT[dtype]}"
            aligned[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and (name.startswith("out_") or name[0] == "c"):
                aligned[(place,)] = [["tt.divisibility", 16]]
    signature |= {name: "constexpr" for name, _ in launch.constants}
    source = GluonASTSource if isinstance(function, GluonJITFunction) else triton.compiler.ASTSource
    code = source(fn=function, signature=signature, constexprs={name: v for name, v in launch.constants}, attrs=aligned)
    return triton.compile(code, target=GPUTarget("cuda", capability, 32), options={"num_warps": launch.warps})
