"""Steps of DDP and FSDP with calls that are looked up and recorded in C++, beside what one process computes."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.test_processes import in_processes, tensors, training, wrapped
from tests.native.test_native_calls import NODES
from tilec.native import native


def below(node: object) -> set[str]:
    """The names of a graph's nodes."""
    found, waiting = set(), [node]
    while waiting:
        n = waiting.pop()
        if n is not None:
            found.add(n.name())
            waiting += [following for following, _ in n.next_functions]
    return found


def steps(mesh) -> None:
    assert native() is not None
    (data,) = tensors((4, 6), device=mesh.device_type)
    for kind in ("ddp", "fsdp"):
        _, module = wrapped(kind, mesh)
        for _ in range(3):
            result = module(data)
            result.sum().backward()
        assert NODES["native"] in below(result.grad_fn), kind
    training(mesh)


@pytest.mark.slow
def test_two_processes(library) -> None:
    in_processes(2, steps)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices(library) -> None:
    in_processes(2, steps, "cuda")
