"""The way of CUDA tensors without a device: meta tensors take it, and nothing is compiled or launched."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from tilec import specialise
from tilec.backends.triton import TritonBackend
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import Launch, Pointer
from tilec.backends.triton.runtime import executable, launcher
from tilec.torch_op import state


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let meta tensors stand for those of an H200. Returns the names of kernels as they are compiled."""
    compiled: list[str] = []

    def compile_kernel(compiler, options) -> SimpleNamespace:
        compiled.append(compiler.func.__self__.__name__)
        how = SimpleNamespace(num_warps=4, shared=0, launch_cooperative_grid=False)
        return SimpleNamespace(function=7, packed_metadata=(), metadata=how)

    def parameters(kernel: object, launch: Launch) -> dict[str, str] | None:
        def kind(value: object) -> str:
            return "pointer" if isinstance(value, Pointer) else "fp32" if isinstance(value, float) else "i64"

        return None if launch.maps else {n: kind(v) for n, v in launch.arguments if type(v) is not int or v != 1}

    class Call(executable.PlannedCall):
        def __init__(self, *given) -> None:
            super().__init__(*given)
            self._cuda, self._index = True, 0

    monkeypatch.setenv("TILEC_NATIVE", "0")  # the library launches by a driver
    monkeypatch.setattr(state, "DEVICE_TYPES", ("cpu", "cuda", "meta"))
    monkeypatch.setattr(specialise, "choose_backend", lambda name, device, target=None: TritonBackend(target, True))
    monkeypatch.setattr(executable, "PlannedCall", Call)
    monkeypatch.setattr(executable, "device_info", lambda device: DEVICES["sm_90"])
    monkeypatch.setattr(executable, "check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    for module in (launcher, executable):
        monkeypatch.setattr(module, "interpreting", lambda: False)
    monkeypatch.setattr(launcher, "assembled", compile_kernel)
    monkeypatch.setattr(launcher, "_parameters", parameters)
    ready = (lambda *given: None), (), (lambda made, number: [made]), True
    monkeypatch.setattr(launcher, "_entry", lambda kernel, rounded: ready)
    monkeypatch.setattr(launcher, "_kernels", {})
    return compiled
