"""What is written as instructions of the device is what CUDA's library computes."""

from __future__ import annotations

import re

import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from tilec.backends.triton.emit.device_instructions import exp_, share_exp_  # noqa: E402

OPERATION = re.compile(r"\b((?:fma|cvt|add|neg|ex2|mul)(?:\.\w+)*\.f32)\s")
CONSTANT = re.compile(r"0f[0-9A-F]{8}")


@triton.jit
def exponential(x, y, FUNCTION: tl.constexpr):
    lane = tl.arange(0, 128)
    value = tl.load(x + lane)
    if FUNCTION == "exp_":
        value = exp_(value)
    elif FUNCTION == "exp":
        value = libdevice.exp(value)
    elif FUNCTION == "share_exp_":
        value = share_exp_(value)
    else:
        value = libdevice.fast_expf(value)
    tl.store(y + lane, value)


@pytest.mark.skipif(bool(triton.knobs.runtime.interpret), reason="nothing is compiled while kernels are interpreted")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("pair", [("exp_", "exp"), ("share_exp_", "fast_expf")], ids=str)
def test_exponentials_are_the_library_s(pair: tuple[str, str], capability: int) -> None:
    found = []
    for function in pair:
        signature = {"x": "*fp32", "y": "*fp32", "FUNCTION": "constexpr"}
        source = ASTSource(exponential, signature, {"FUNCTION": function})
        options = {"num_warps": 4, "enable_fp_fusion": True}
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        lines = [line for line in compiled.asm["ptx"].splitlines() if ".loc" not in line]
        operations = sorted(o for line in lines for o in OPERATION.findall(line))
        found.append((operations, sorted({c for line in lines for c in CONSTANT.findall(line)})))
    assert found[0] == found[1] and "ex2.approx.ftz.f32" in found[0][0]
