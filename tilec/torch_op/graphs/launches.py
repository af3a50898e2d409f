"""What a call in a graph launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilec.specialise import Specialiser
from tilec.torch_op import symbolic


def launch_count(function: Specialiser, tensors: Sequence[torch.Tensor], scalars: Sequence[Any]) -> int:
    """Kernels of a call, for the sizes that stand for the class. The torch backend's have one."""
    numbers, sizes = scalars
    weak = [p in numbers for p in range(len(tensors))]
    types = symbolic.example_types(function, tensors, weak)
    values = dict(zip(function.sizes, map(symbolic.example, sizes), strict=True))
    _, prepared = function.lower(types, values, function.backend, tensors[0].device.type, None, False)
    return len(prepared.executable.kernels)
