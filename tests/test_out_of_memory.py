"""TensorMemory that runs out is one TileError: which tensor, how large, what to do; torch's own error is its cause."""

from __future__ import annotations

import os
import re

import pytest
import torch

import tilec
from tilec.backends.common.memory import TensorMemory
from tilec.ir.types import TensorType
from tilec.language import parse

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKENDS = ["torch", pytest.param("triton", marks=pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1"))]
OUTER = "O[i, j, k, l : N, N, N, N] = A[i] * A[j] * A[k] * A[l];"
INNER = "T[i, j, k, l : N, N, N, N] = A[i] * A[j] + A[k] * A[l]; O[i] = +(T[i, j, k, l] * T[j, i, l, k]);"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("text", "what"), [(OUTER, "the output O"), (INNER, "the intermediate T")])
def test_the_tensor_is_named(text: str, what: str, backend: str) -> None:
    f = tilec.compile(f"function (A[N]) -> (O) {{ {text} }}", backend=backend)
    for a in (torch.ones(2**11), torch.ones(2**11, requires_grad=True)):
        for _ in range(2):
            with pytest.raises(tilec.OutOfMemory) as caught:
                f(a)
            message = caught.value.message
            assert (
                message.startswith("out of memory") and f"{what}, float32 of shape (2048, 2048, 2048, 2048)" in message
            )
            assert "64 TiB" in message and caught.value.hint
            assert isinstance(caught.value, RuntimeError) and isinstance(caught.value.__cause__, RuntimeError)


def test_where_sizes_are_left_open() -> None:
    f = tilec.compile(f"function (A[N]) -> (O) {{ {OUTER} }}", backend="torch")
    for n in (3, 4, 5, 6, 7):
        f(torch.ones(n))
    with pytest.raises(tilec.OutOfMemory, match=r"the output O, float32 of shape \(2048, 2048, 2048, 2048\)"):
        f(torch.ones(2**11))


def test_in_a_gradient() -> None:
    g = tilec.compile("function (A[N]) -> (O) { O[] = +(A[i] * A[i]); }", backend="torch").grad()
    with pytest.raises(tilec.OutOfMemory, match="64 TiB"):
        g(torch.ones(1).expand(2**44), torch.tensor(1.0))


TYPES = {
    "A": TensorType((4,), "float32"),
    "T": TensorType((2**30, 2), "float32"),
    "O": TensorType((2**33,), "float32"),
}
CUDA = "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 139.80 GiB"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (torch.OutOfMemoryError(CUDA.format("8.00 GiB")), "CUDA out of memory: the intermediate T, .* takes 8 GiB$"),
        (torch.OutOfMemoryError(CUDA.format("32.00 GiB")), "CUDA out of memory: the output O, .* takes 32 GiB$"),
        (torch.OutOfMemoryError(CUDA.format("20.00 MiB")), "output O, .*largest, and 20 MiB more were asked for"),
        (MemoryError("Unable to allocate 8.00 GiB for an array"), "^out of memory: the intermediate T"),
        (MemoryError(), "^out of memory: the output O, .* takes 32 GiB$"),
    ],
)
def test_what_devices_say(error: BaseException, wanted: str) -> None:
    memory = TensorMemory(parse("function (A[4]) -> (O) { T = A; O = T; }"), TYPES)
    with pytest.raises(tilec.OutOfMemory) as caught:
        memory.explain(error)
    assert re.search(wanted, caught.value.message), caught.value.message
    assert caught.value.__cause__ is error


def test_other_errors_stay_what_they_are() -> None:
    TensorMemory(parse("function (A[4]) -> (O) { O = A; }"), TYPES).explain(RuntimeError("expected a tensor"))
