"""What is left of a call when autograd and torch.func's levels are done: it runs, or torch sees the operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilec import refused
from tilec.specialise import Specialiser
from tilec.torch_op import dtensors
from tilec.torch_op.levels import Outputs
from tilec.torch_op.state import PLAIN, ordinary
from tilec.torch_op.text import text_of

Weak = tuple[bool, ...]
SizeValues = tuple[int, ...]


def run_plain(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Weak, values: SizeValues) -> Outputs:
    if ordinary(tensors):
        return function.prepared(tensors, weak, values)(tensors)
    if any(map(dtensors.is_distributed, tensors)):
        return dtensors.run_placed(function, tensors, weak, values)
    return operator(function, tensors, weak, values)


def operator(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Weak, values: SizeValues) -> Outputs:
    """The outputs of a call of `torch.ops.tilec.call`."""
    for name, t in zip(function.inputs, tensors, strict=True):
        refused.check_dense(name, t)  # cotangents too, which torch brings
    numbers = [place for place, w in enumerate(weak) if w]
    try:
        results = iter(torch.ops.tilec.call(text_of(function), list(tensors), numbers, list(values)))
    except (TypeError, NotImplementedError) as error:
        kinds = [(n, type(t).__name__) for n, t in zip(function.inputs, tensors, strict=True) if type(t) not in PLAIN]
        if not kinds:
            raise
        (name, what), *_ = kinds
        raise refused.subclass_mistake(name, what) from error
    return tuple([next(results) if there else None for there in function.there([t.dtype for t in tensors])])
