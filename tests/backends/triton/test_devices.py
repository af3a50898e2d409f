"""Plans for devices that need not be there: a kernel takes what the device has; bits do not depend on it."""

from __future__ import annotations

import pytest

import tilec
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.runtime.compiled import compile_for
from tilec.backends.triton.runtime.executable import _typed

PROGRAMS = {
    "a product": ("function (A[M, K], B[K, N]) -> (O) { O[i, j : M, N] = +(A[i, k] * B[k, j]); }", "bfloat16"),
    "a product of doubles": (
        "function (A[M, K], B[K, N]) -> (O) { O[i, j : M, N] = +(A[i, k] * B[k, j]); }",
        "float64",
    ),
    "a product in the log semiring": (
        "function (A[M, K], B[K, N]) -> (O) { O[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); }",
        "float32",
    ),
}


@pytest.mark.covering
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_fit_into_shared_memory(name: str, target: str) -> None:
    source, dtype = PROGRAMS[name]
    lowered = tilec.compile(source, backend="triton").lower(*[tilec.spec((1024, 1024), dtype)] * 2, target=target)
    executable = lowered._executable
    for launch, dtypes in _typed(executable.plan, executable._types):
        assert compile_for(launch, dtypes, target).metadata.shared <= DEVICES[target].shared


def test_a_smaller_memory_takes_fewer_stages() -> None:
    """float32 blocks that an A100 and an H200 hold and an RTX card does not."""
    source = PROGRAMS["a product"][0]
    texts = {
        target: tilec.compile(source, backend="triton").lower(*[tilec.spec((4096, 4096))] * 2, target=target).source()
        for target in DEVICES
    }
    stages = {target: int(text.split("num_stages=")[1].split(")")[0]) for target, text in texts.items()}
    assert stages["sm_89"] <= stages["sm_80"] <= stages["sm_90"]


@pytest.mark.parametrize(
    "source", ["O[] = +(A[i, k]);", "O[i : 4096] = logsumexp(A[i, k]);", "O[k : 64] = +(A[i, k]);"]
)
def test_sums_are_split_alike_on_every_device(source: str) -> None:
    """Results depend on shapes alone."""
    texts = {
        tilec.compile(f"function (A[N, M]) -> (O) {{ {source} }}", backend="triton")
        .lower(tilec.spec((4096, 64)), target=target)
        .source()
        for target in DEVICES
    }
    assert len(texts) == 1


def test_descriptions() -> None:
    for name, device in DEVICES.items():
        assert name == f"sm_{device.capability}"
        assert device.multiprocessors > 0 and device.shared % 1024 == 0
