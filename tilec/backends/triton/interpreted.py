"""What Triton's interpreter lacks: the device library, computed by torch on the CPU, and a splat that keeps truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

SPELLED: dict[str, Callable[..., torch.Tensor]] = {"rint": torch.round, "fast_expf": torch.exp}


class InterpretedLibrary:
    """Stands for `triton.language.extra.libdevice` while kernels are interpreted: the same names, elementwise."""

    def __getattr__(self, name: str) -> Callable[..., tl.tensor]:
        function = SPELLED.get(name) or getattr(torch, name)
        return lambda *arguments: _apply(function, arguments)


def _apply(function: Callable[..., torch.Tensor], arguments: tuple[tl.tensor, ...]) -> tl.tensor:
    arrays = np.broadcast_arrays(*(a.handle.data for a in arguments))
    data = function(*(torch.from_numpy(np.array(a)) for a in arrays)).numpy()
    widest = max(arguments, key=lambda a: a.handle.data.size)
    return tl.tensor(TensorHandle(data.astype(arrays[0].dtype), widest.handle.dtype), widest.type)


def _splat(builder: Any, block: Any, scalar: TensorHandle) -> TensorHandle:
    """The interpreter labels a comparison with its operands' type, and its own splat converts to that."""
    data = np.full(block.shape, scalar.data.reshape(-1)[0], dtype=scalar.data.dtype)
    return TensorHandle(data, tl.int1 if data.dtype == bool else scalar.dtype.scalar)


def prepare_interpreter() -> InterpretedLibrary:
    InterpreterBuilder.create_splat = _splat  # type: ignore[method-assign]
    return InterpretedLibrary()
