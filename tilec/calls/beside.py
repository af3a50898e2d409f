"""The backward pass of a first recorded call, lowered and compiled beside the forward pass.

What it will be given is guessed: cotangents of all floating outputs, which lie as these do, aligned. Where it is
given others, or is never asked for, other processors have worked for nothing, and no result is another.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import torch

from tilec import knobs
from tilec.ir.types import TensorType, is_floating
from tilec.late import begin_behind, puts_off_collection
from tilec.specialise import Specialiser
from tilec.torch_op.dispatch import SizeValues, Weak
from tilec.torch_op.recorded import Recorded, record
from tilec.torch_op.symbolic import empty_in_order, output_orders
from tilec.transforms.axis_orders import AxisOrder

FEWEST_PROCESSORS = 4  # with fewer the forward pass would wait
LONGEST_LOWERING = 1.5  # seconds: of a larger program both passes would take turns at Python's lock


@dataclass(frozen=True)
class Awaited:
    """Stands for a tensor that is not there yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def begin_backward_pass(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Weak, values: SizeValues) -> None:
    """Begin with the backward pass of a call that torch records, if it is the function's first. Raises what lowering
    the forward pass raises."""
    devices = {t.device for t in tensors}
    if function.recorded or function.tune or not may_begin(devices) or any(t.data_ptr() % 16 for t in tensors):
        return
    begun = time.thread_time()
    recorded = record(function, tensors, weak, values)
    if recorded.partition is None or recorded.shared is not None:
        return
    recorded.forward.prepared(tensors, recorded.weak, recorded.run.values)
    if time.thread_time() - begun > LONGEST_LOWERING:
        return
    strides = {n: t.stride() for n, t in zip(function.inputs, tensors, strict=True)}
    types = function.types(tensors, weak)
    thread = Thread(target=_make, args=(begin_behind(), recorded, types, strides, *devices), name="backward pass")
    recorded.beside.append(thread)
    thread.start()


def may_begin(devices: set[torch.device]) -> bool:
    """Does the forward pass, on these devices, wait for compilers, and can others work beside them?"""
    if len(devices) != 1 or next(iter(devices)).type != "cuda" or knobs.DUMP.value is not None:
        return False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores >= FEWEST_PROCESSORS and not torch.cuda.is_current_stream_capturing()


def _make(
    turn: Event,
    recorded: Recorded,
    types: dict[str, TensorType],
    strides: dict[str, tuple[int, ...]],
    device: torch.device,
) -> None:
    turn.wait()
    with contextlib.suppress(Exception):  # the backward pass itself says what is wrong
        make(recorded, types, strides, device)


@puts_off_collection
def make(
    recorded: Recorded, types: dict[str, TensorType], strides: dict[str, tuple[int, ...]], device: torch.device
) -> None:
    """Make the backward pass ready. `types` and `strides` are those of the recorded function's inputs."""
    function, parts = recorded.function, recorded.partition
    assert parts is not None
    results = function.results(types, dict(zip(function.sizes, recorded.values, strict=True)))
    there = [r is not None and is_floating(r.dtype) for r in results]
    needed = tuple([name in recorded.wrt for name in recorded.inputs])
    backward = recorded.backward(needed, (*there, *[False] * len(parts.extra)))
    how = backward.run
    if how is None or backward.replaced:
        return
    values = recorded.values if recorded.forward is function else ()
    orders = output_orders(recorded.forward, strides, types, values)
    lying = dict(zip(recorded.forward.outputs, orders, strict=True))
    lying |= dict(zip(parts.backward.cotangents, orders, strict=False))
    given: list[Any] = []
    placed: list[tuple[int, ...]] = []
    for name, source in zip(how.function.inputs, backward.sources, strict=True):
        t = parts.backward.types[name]
        given.append(Awaited(t.shape, getattr(torch, t.dtype), device))
        own = (0,) * len(t.shape) if isinstance(source, TensorType) else strides.get(name)
        placed.append(_like(t.shape, lying.get(name)).stride() if own is None else own)
    prepared = how.function.prepared(given, how.weak, how.values)
    assemble = getattr(prepared.executable, "assemble", None)
    if assemble is not None and prepared.plain:
        assemble(device, placed)


def _like(shape: tuple[int, ...], order: AxisOrder | None) -> torch.Tensor:
    return empty_in_order(shape, order, torch.float32, torch.device("meta"))
