"""Launching plans on a GPU, as plainly as Triton allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from support.cubins import load
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer


def bind(launches: Sequence[Launch], tensors: Mapping[str, torch.Tensor], directory: Path) -> Callable[[], None]:
    """What carries out launches on tensors by name; workspaces are made here."""
    known = dict(tensors)

    def argument(value: object) -> object:
        if isinstance(value, Descriptor):
            base = torch.as_strided(known[value.tensor], (1,), (1,), value.offset)
            layout = eval(value.layout, {"gl": gl})
            return TensorDescriptor(base, list(value.shape), list(value.strides), list(value.block), layout)
        if isinstance(value, Pointer):
            if value.tensor not in known:
                of = known[value.tensor.rsplit(".", 1)[0]]
                size = dict(launches[-1].arguments)["total"] * dict(launches[0].constants)["SPLIT"]
                known[value.tensor] = torch.full((size,), float("nan"), device=of.device)
            return known[value.tensor]
        return value

    calls = [
        (load(launch, directory)[launch.grid], {n: argument(v) for n, v in launch.arguments}, launch)
        for launch in launches
    ]

    def run() -> None:
        for call, arguments, launch in calls:
            call(**arguments, **dict(launch.constants), num_warps=launch.warps)

    return run
