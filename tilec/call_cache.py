"""A function's calls by what they are given: a call like one before goes straight to what that one ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.autograd import forward_ad

from tilec.arguments import size_value, to_tensors
from tilec.errors import Unsupported
from tilec.specialise import CACHED_CALLS, Specialiser
from tilec.torch_op import operator as operator
from tilec.torch_op.autocast import cast
from tilec.torch_op.node import TileCall, call, record
from tilec.torch_op.state import PLAIN, ordinary, recording, transforming, watched


class CallCache:
    """Calls of one function. `settled`: signature of a call -> what runs."""

    def __init__(self, function: Specialiser):
        self._function = function
        self._settled: dict[object, Callable[[Sequence[torch.Tensor]], tuple]] = {}

    def __call__(self, inputs: Sequence[object]):
        """One output as it is, several as a tuple."""
        signature = _signature(inputs)
        settled = self._settled.get(signature)
        if settled is None:
            return self._first(signature, inputs)
        outputs = settled(inputs)  # type: ignore[arg-type]
        return outputs[0] if len(outputs) == 1 else outputs

    def _first(self, signature: tuple | None, inputs: Sequence[object]):
        """A call whose arguments are to be looked at, or to be compiled for."""
        function = self._function
        arguments = to_tensors(function.inputs, inputs, function.seeds)
        tensors, weak = arguments.tensors, arguments.weak
        if torch._C._is_any_autocast_enabled():
            tensors = tuple(cast(function, tensors, weak))
        values = tuple([_size(function.inputs[p], inputs[p], tensors[p]) for p in function.size_positions])
        results: tuple = call(function, tensors, weak, values)
        if signature and all(a is b or type(b) in NUMBERS for a, b in zip(tensors, inputs, strict=True)):
            self._settle(signature, inputs, tensors, weak)
        if arguments.numpy:
            results = tuple(map(_to_numpy, results))
        return results[0] if len(results) == 1 else results

    def _settle(self, signature: tuple, inputs: Sequence[object], tensors: Sequence[torch.Tensor], weak) -> None:
        """Let later calls with such inputs go straight to what they run."""
        function = self._function
        if function.sizes or len(self._settled) >= CACHED_CALLS or not ordinary(tensors):
            return
        if recording(tensors):
            settled, count = record(function, tensors, weak, ()).settled(tensors), len(function.outputs)
            run: Callable = lambda tensors: TileCall.settled(settled, tensors)[:count]  # noqa: E731
        elif (prepared := function.prepared(tensors, weak, ())).plain:
            run = prepared.unrecorded
        else:
            return
        numbers = [(p, Numbers(function, p, tensors[p].device)) for p, w in enumerate(weak) if w]
        self._settled[signature] = _with_numbers(run, numbers) if numbers else run


NUMBERS = (float, int, bool)
KEPT_NUMBERS = 64


class Numbers:
    """The tensors of the Python numbers that one input is given, the latest of which are kept."""

    def __init__(self, function: Specialiser, position: int, device: torch.device):
        self._names = (function.inputs[position],)
        self._seeds, self._device = function.seeds, device
        self._known: dict[object, torch.Tensor] = {}

    def __call__(self, number: object) -> torch.Tensor:
        found = self._known.get(number) if number else None  # zeros of either sign are equal
        if found is None:
            (found,) = to_tensors(self._names, (number,), self._seeds).tensors
            found = found.to(self._device)
            if len(self._known) >= KEPT_NUMBERS:
                self._known.pop(next(iter(self._known)), None)
            self._known[number] = found
        return found


def _with_numbers(run: Callable, numbers: Sequence[tuple[int, Numbers]]) -> Callable:
    def call(inputs: Sequence[object]) -> tuple:
        tensors = list(inputs)
        for position, tensor_of in numbers:
            tensors[position] = tensor_of(tensors[position])
        return run(tensors)

    return call


strided = torch.strided


def _size(name: str, given: object, tensor: torch.Tensor) -> int:
    """A size's value; what a compiler gives in the place of an integer stays what it is."""
    return given if isinstance(given, torch.SymInt) else size_value(name, tensor)  # type: ignore[return-value]


def _signature(inputs: Sequence[object]) -> tuple | None:
    """What a call depends on where all inputs are plain tensors and torch neither transforms nor traces it."""
    if transforming() or watched() or forward_ad._current_level >= 0 or torch._C._is_any_autocast_enabled():
        return None
    found: list[object] = [torch.is_grad_enabled()]
    for t in inputs:
        if type(t) in NUMBERS:
            found.append(type(t))
        elif type(t) not in PLAIN or t.layout is not strided or t.is_neg() or t.is_nested or t._is_zerotensor():  # type: ignore[attr-defined]
            return None
        else:
            found.append((t.shape, t.dtype, t.device, t.requires_grad))  # type: ignore[attr-defined]
    return tuple(found)


def _to_numpy(result: torch.Tensor | None) -> np.ndarray | None:
    if result is None:
        return None
    if result.dtype is torch.bfloat16:
        raise Unsupported("NumPy has no bfloat16", hint="pass torch tensors, or cast the output with float32(...)")
    return result.numpy()
