"""Calls in a graph: what they are given, run and launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.fx import Node
from torch.fx.node import map_arg

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


def plain_function(function: Specialiser, values: Sequence[torch.Tensor]) -> Specialiser | None:
    """A gradient as a plain program of the results that there are; None where inputs would be replaced."""
    first = len(function.gradient.forward.inputs)  # type: ignore[union-attr]
    if not all(v.dtype.is_floating_point for v in values[first:]):
        return None
    there = function.there([v.dtype for v in values])
    return None if not all(there) else function.made(function.program)


def has_shape(node: Node, shape: Sequence[Any]) -> bool:
    """Has a node this shape for all sizes?"""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    own = node.meta["val"].shape
    return len(own) == len(shape) and all(statically_known_true(a == b) for a, b in zip(own, shape, strict=True))


def values_of(arguments: Sequence[Any]) -> list[Any]:
    return cast(list[Any], map_arg(list(arguments), lambda n: n.meta["val"]))
