"""What Triton's interpreter lacks: the device library, computed by torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

SPELLED: dict[str, Callable[..., torch.Tensor]] = {"rint": torch.round}


class InterpretedLibrary:
    """Stands for `triton.language.extra.libdevice` while kernels are interpreted: the same names, elementwise."""

    def __getattr__(self, name: str) -> Callable[..., tl.tensor]:
        function = SPELLED.get(name) or getattr(torch, name)
        return lambda *arguments: _apply(function, arguments)


def _apply(function: Callable[..., torch.Tensor], arguments: tuple[tl.tensor, ...]) -> tl.tensor:
    first = arguments[0]
    arrays = [torch.from_numpy(np.array(a.handle.data)) for a in arguments]
    data = function(*arrays).numpy().astype(first.handle.data.dtype)
    return tl.tensor(TensorHandle(data, first.handle.dtype), first.type)
