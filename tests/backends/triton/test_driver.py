"""Launches by CUDA's driver from Python, with a driver that notes what it is given."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch
from support.no_device import stand_in

import tilec
from tilec.backends.triton.runtime import driver, launcher

SUM = "function (X[N, D], S[]) -> (Y) { Y[n : N] = +(X[n, d] * S); }"


class _Driver:
    """Notes launches: grid, threads, shared memory, stream, and the values behind each pointer."""

    def __init__(self) -> None:
        self.launches: list[tuple] = []
        self.kinds: list[type] = []

    def cuLaunchKernel(self, function, x, y, z, bx, by, bz, shared, stream, pointers, extra) -> int:  # noqa: N802
        values = [ctypes.cast(p, ctypes.POINTER(kind))[0] for p, kind in zip(pointers, self.kinds, strict=True)]
        self.launches.append(
            (function.value, (x.value, y.value, z.value), bx.value, shared.value, stream.value, values)
        )
        return 0


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    found = _Driver()
    monkeypatch.setattr(driver, "cuda_driver", lambda: found)
    monkeypatch.setattr(driver, "make_context_current", lambda: None)
    return found


def test_what_a_kernel_is_given(noting: _Driver) -> None:
    how = SimpleNamespace(num_warps=4, shared=1024, launch_cooperative_grid=False)
    launch = driver.driver_launch(77, how, ["*fp32", None, "i32", "i64", "fp32", "u1"])
    assert launch is not None
    words = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_int8)
    noting.kinds = [*words, ctypes.c_uint64, ctypes.c_uint64]
    launch(3, 2, 1, 9, 2**40 + 5, 1, -7, 2**33, 0.5, True, "a constant")
    assert noting.launches == [(77, (3, 2, 1), 128, 1024, 9, [2**40 + 5, -7, 2**33, 0.5, 1, 0, 0])]


def test_errors_are_told(noting: _Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    how = SimpleNamespace(num_warps=4, shared=0, launch_cooperative_grid=False)
    monkeypatch.setattr(noting, "cuLaunchKernel", lambda *given: 1)
    launch = driver.driver_launch(1, how, [])
    assert launch is not None
    with pytest.raises(RuntimeError, match="error 1"):
        launch(1, 1, 1, 0)


def test_no_pointer_to_what_is_no_map(noting: _Driver) -> None:
    how = SimpleNamespace(num_warps=4, shared=0, launch_cooperative_grid=False)
    launch = driver.driver_launch(1, how, [driver.MAP])
    assert launch is not None
    with pytest.raises(AssertionError):
        launch(1, 1, 1, 0, object())


def test_first_calls_run_no_compiler_of_launchers(noting: _Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the library is awaited; after many launches from Python Triton's launcher takes over."""
    stand_in(monkeypatch)
    entries: list[object] = []
    later: list[tuple] = []
    ready = (lambda *given: later.append(given)), (), (lambda made, number: [made]), True
    monkeypatch.setattr(launcher, "_entry", lambda kernel, rounded: (entries.append(kernel), ready)[1])
    monkeypatch.setattr(launcher, "expected", lambda: True)
    monkeypatch.setattr(launcher, "_loaded", lambda kernel: 7)
    monkeypatch.setattr(launcher, "MOST_DRIVEN", 3)
    monkeypatch.setattr(noting, "cuLaunchKernel", lambda *given: noting.launches.append(given) or 0)
    f, x, s = tilec.compile(SUM, backend="triton"), torch.empty(64, 32, device="meta"), torch.empty((), device="meta")
    for _ in range(3):
        f(x, s)
    assert len(noting.launches) == 3 and not entries
    for _ in range(3):
        f(x, s)
    assert len(noting.launches) == 4 and len(entries) == 1 and len(later) == 2
