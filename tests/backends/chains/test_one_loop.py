"""Walks of masked blocks and others as one loop: the same values, bit by bit, as a loop each gives."""

from __future__ import annotations

import numpy as np
import pytest
from support.chains import run

import tilec
from tilec.backends.common.blocks.ir import Loop, MaskWhere, every_operation
from tilec.backends.common.chains.codegen import build
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.recognise import chained
from tilec.backends.triton.chains.launch import choose_chain_tiling
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import Setting
from tilec.ir.types import TensorType
from tilec.pipeline import lower

GUARDS = {
    "causal": "i - j >= 0",
    "strictly causal": "i - j > 0",
    "from the end": "j - i >= 0",
    "window": "(i - j >= 0) & (i - j < 20)",
    "both sides": "(i - j < 20) & (j - i < 7)",
    "far": "i - j >= 30",
    "every second": "i - 2*j >= 0",
}


def attention(guard: str) -> str:
    return f"""function (Q[N, E], K[M, E], V[M, F]) -> (L, O) {{
        S[i, j : N, M] = sum(Q[i, e] * K[j, e]);
        L[i : N] = logsumexp({guard} ? S[i, j]);
        O[i, f : N, F] = sum({guard} ? exp(S[i, j] - L[i]) * V[j, f]);
    }}"""


def given(n: int, m: int, last: int) -> tuple[dict[str, TensorType], dict[str, np.ndarray]]:
    generator = np.random.default_rng(0)
    shapes = {"Q": (n, 16), "K": (m, 16), "V": (m, 16)}
    arrays = {name: generator.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    arrays["V"][last] = np.inf
    return {name: TensorType(s, "float32") for name, s in shapes.items()}, arrays


def programs(guard: str) -> dict[str, tilec.Function]:
    f = tilec.compile(attention(guard))
    return {"forward": f, "backward": f.grad()}


def kernels(f: tilec.Function, types: dict[str, TensorType]) -> list:
    lowered = lower(f.program, types, {})
    found = chained(lowered.stages["flat"], lowered.types)
    return [build.build_kernel("k", k, found.types, Tiling(16, 16)) for k in found.kernels.values()]


def loops(body) -> int:
    return sum(isinstance(op, Loop) for op in every_operation(body))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sizes", [(64, 64), (64, 96), (96, 64)], ids=str)
@pytest.mark.parametrize("name", GUARDS)
def test_same_values(name: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    types, arrays = given(*sizes, last=min(sizes) - 1)
    f = tilec.compile(attention(GUARDS[name]))
    one = run(f.program, types, arrays, Tiling(16, 16)).values
    monkeypatch.setattr(build._Build, "_in_one_loop", lambda self, found: False)
    several = run(f.program, types, arrays, Tiling(16, 16)).values
    for output in f.outputs:
        np.testing.assert_array_equal(one[output], several[output])


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["causal", "window"])
def test_one_copy_of_the_text(name: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = programs(GUARDS[name])[direction]
    types = given(64, 64, 0)[0]
    types |= {"DL": TensorType((64,), "float32"), "DO": TensorType((64, 16), "float32")}
    types = {n: types[n] for n in f.inputs}
    made = kernels(f, types)
    assert made and all(loops(k.body) == 1 for k in made)
    assert all(any(isinstance(op, MaskWhere) for op in every_operation(k.body)) for k in made)
    monkeypatch.setattr(build._Build, "_in_one_loop", lambda self, found: False)
    assert all(loops(k.body) > 1 for k in kernels(f, types))


def test_blocks_that_end_elsewhere_are_apart() -> None:
    """What is read depends on masks there: the last block is not whole."""
    f = tilec.compile(attention(GUARDS["causal"]))
    (kernel,) = kernels(f, given(50, 50, 0)[0])
    assert loops(kernel.body) == 2 and not any(isinstance(op, MaskWhere) for op in every_operation(kernel.body))


@pytest.mark.parametrize(
    ("name", "size", "one"), [("causal", 256, False), ("window", 256, True), ("window", 250, False)]
)
def test_tilings_of_several_sums(name: str, size: int, one: bool) -> None:
    """Into several sums, long steps of few masked blocks have a loop for these; a window of whole blocks has one."""
    f = tilec.compile(attention(GUARDS[name])).grad()
    shapes = {"Q": (size, 64), "K": (size, 64), "V": (size, 64), "DL": (size,), "DO": (size, 64)}
    lowered = lower(f.program, {n: TensorType(shapes[n], "bfloat16") for n in f.inputs}, {})
    found = chained(lowered.stages["flat"], lowered.types)
    setting = Setting("highest", device=DEVICES["sm_90"])
    (several,) = [k for k in found.kernels.values() if sum(r.target.feature is not None for r in k.targets) > 1]
    tiling = choose_chain_tiling(several, found.types, setting)
    assert tiling.one_loop == one
    kernel = build.build_kernel("k", several, found.types, tiling)
    assert (loops(kernel.body) == 1) == one
