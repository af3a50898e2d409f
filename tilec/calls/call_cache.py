"""A function's calls by what they are given: a call like one before goes straight to what that one ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tilec.arguments import number_on, size_value, to_tensors
from tilec.calls import beside
from tilec.calls.fast_path import fast_call, native_call
from tilec.calls.open_calls import OpenCalls
from tilec.errors import Unsupported
from tilec.late import let_others_begin, puts_off_collection, untraced
from tilec.native import expected, native
from tilec.prepare.prepared import CACHED_CALLS
from tilec.specialise import Specialiser
from tilec.torch_op import operator as operator
from tilec.torch_op.autocast import autocast_call
from tilec.torch_op.recorded import record, recorded_call
from tilec.torch_op.state import PLAIN, autocasting, grad_mode, ordinary, recording, untouched, untouched_once_cast


class CallCache:
    """Calls of one function. `_runs`: signature of a call -> what runs, given the inputs one by one."""

    def __init__(self, function: Specialiser):
        self._function = function
        self._runs: dict[object, Callable[..., tuple]] = {}
        self.native: Any | None = None  # the same in C++, which gives itself back where a call is new
        self._casting: dict[Specialiser, CallCache] = {}  # of what autocast makes of the function
        self._waiting = False  # do runs serve only until the library is built?

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._function.inputs

    def __call__(self, inputs: Sequence[object]):
        """One output as it is, several as a tuple."""
        if (calls := self.native) is not None:
            found = calls(inputs)
            if found is not calls:
                return found
        return self.unknown(inputs)

    @untraced
    def unknown(self, inputs: Sequence[object]):
        """The same of a call that the library does not know, or where there is none."""
        if self._waiting and native() is not None:
            self._waiting = False
            self._runs.clear()  # each is looked at once more, and added to the library's
        if autocasting() and untouched_once_cast() and all([type(t) in KNOWN_TYPES for t in inputs]):
            return self._cast(inputs)
        signature = _signature(inputs)
        run = self._runs.get(signature)
        if run is None:
            return self._first(signature, inputs)
        outputs = run(*inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _cast(self, inputs: Sequence[Any]):
        """A call within autocast: what that makes of function and inputs, called outside of it."""
        function, given = autocast_call(self._function, inputs, [type(t) in NUMBERS for t in inputs])
        calls = self
        if function is not self._function:
            calls = self._casting.get(function) or self._casting.setdefault(function, CallCache(function))
        with torch._C._DisableAutocast():
            return calls(tuple(given))

    @puts_off_collection
    def _first(self, signature: tuple | None, inputs: Sequence[object]):
        """A call whose arguments are to be looked at, or to be compiled for."""
        function = self._function
        arguments = to_tensors(function.inputs, inputs, function.seeds, function.sizes)
        tensors, weak = arguments.tensors, arguments.weak
        if autocasting():
            function, given = autocast_call(function, tensors, weak)
            tensors = tuple(given)
        values = tuple([_size(function.inputs[p], inputs[p], tensors[p]) for p in function.size_positions])
        if signature and recording(tensors) and ordinary(tensors):
            beside.begin_backward_pass(function, tensors, weak, values)
        try:
            results: tuple = recorded_call(function, tensors, weak, values)
        finally:
            let_others_begin()
        if signature and all(a is b or type(b) in NUMBERS for a, b in zip(tensors, inputs, strict=True)):
            self._add(signature, inputs, tensors, weak)
        if arguments.numpy:
            results = tuple(map(_to_numpy, results))
        return results[0] if len(results) == 1 else results

    def _add(self, signature: tuple, inputs: Sequence[object], tensors: Sequence[torch.Tensor], weak) -> None:
        """Let later calls with such inputs go straight to what they run."""
        function = self._function
        if function.sizes or not ordinary(tensors):
            return
        numbers = [(p, Numbers(function, p, tensors[p].device)) for p, w in enumerate(weak) if w]
        library = native()
        if library is not None and self._add_native(library, inputs, tensors, weak, numbers):
            return
        self._waiting = self._waiting or library is None and expected()
        if len(self._runs) >= CACHED_CALLS:
            return
        if recording(tensors):
            recorded = record(function, tensors, weak, ())
            run: Callable = fast_call(recorded, tensors)
            if recorded.partition is not None and recorded.partition.extra:
                run = _leading(run, len(function.outputs))
        elif (prepared := function.prepared(tensors, weak, ())).plain:
            run = prepared.direct
        else:
            return
        self._runs[signature] = _with_numbers(run, numbers) if numbers else run

    def _add_native(
        self, library: Any, inputs: Sequence[object], tensors: Sequence[torch.Tensor], weak: Any, numbers: Sequence
    ) -> bool:
        """The same in C++; False where that cannot be."""
        function = self._function
        if self.native is None:
            self.native = library.Calls()
        if len(self.native) >= CACHED_CALLS or len(tensors) > library.MOST:
            return False
        record_of: Any = None
        if recording(tensors):
            recorded = record(function, tensors, weak, ())
            if recorded.result_count > library.MOST:
                return False
            run, record_of = native_call(library, recorded, tensors)
        elif (prepared := function.prepared(tensors, weak, ())).plain:
            run = prepared.native(tensors)
        else:
            return False
        made = [(place, make, tensors[place]) for place, make in numbers]
        if tensors and not numbers and (record_of is None or recorded.shared is not None):
            self.native.add_class(tuple(inputs), OpenCalls(library, function, tensors, record_of and recorded))
        return self.native.add(tuple(inputs), run, record_of, len(function.outputs), made, None)


NUMBERS = (float, int, bool)
KNOWN_TYPES = (*PLAIN, *NUMBERS)
KEPT_NUMBERS = 64


class Numbers:
    """The tensors of the Python numbers that one input is given, the latest of which are kept in `known`.

    On CUDA each stream has its own, filled in in its order; a captured graph, which would outlive what is kept, always
    fills in a tensor of its own.
    """

    def __init__(self, function: Specialiser, position: int, device: torch.device):
        self._names = (function.inputs[position],)
        self._seeds, self._device = function.seeds, device
        self.cuda = device.type == "cuda"
        self.known: dict[object, torch.Tensor] = {}

    def __call__(self, number: object) -> torch.Tensor:
        key = number
        if self.cuda:
            if torch.cuda.is_current_stream_capturing():
                return self._made(number)
            key = number, torch._C._cuda_getCurrentRawStream(self._device.index or 0)
        found = self.known.get(key) if number else None  # zeros of either sign are equal
        if found is None:
            found = self._made(number)
            found.conversions = {}  # type: ignore[attr-defined]
            if len(self.known) >= KEPT_NUMBERS:
                self.known.pop(next(iter(self.known)), None)
            self.known[key] = found
        return found

    def _made(self, number: object) -> torch.Tensor:
        if type(number) is float or type(number) is int and abs(number) < 2**63:
            return number_on(self._device, number)
        (found,) = to_tensors(self._names, (number,), self._seeds).tensors  # which says what is wrong with it
        return number_on(self._device, number) if self.cuda else found  # type: ignore[arg-type]


def _leading(run: Callable, count: int) -> Callable:
    return lambda *tensors: run(*tensors)[:count]


def _with_numbers(run: Callable, numbers: Sequence[tuple[int, Numbers]]) -> Callable:
    ((first, one), *others) = numbers
    get = one.known.get

    def single(*inputs: object) -> tuple:
        number = inputs[first]
        found = get(number) if number else None
        return run(*inputs[:first], one(number) if found is None else found, *inputs[first + 1 :])

    if not others and not one.cuda:
        return single

    def call(*inputs: object) -> tuple:
        tensors = list(inputs)
        for position, tensor_of in numbers:
            tensors[position] = tensor_of(tensors[position])
        return run(*tensors)

    return call


(Tensor, Parameter), _keys = PLAIN, torch._C._dispatch_keys


def _size(name: str, given: object, tensor: torch.Tensor) -> int:
    """A size's value; what a compiler gives in the place of an integer stays what it is."""
    if isinstance(given, (int, np.integer)):  # what became of it may lie on a device, or be traced
        return int(given)
    return given if isinstance(given, torch.SymInt) else size_value(name, tensor)  # type: ignore[return-value]


def _signature(inputs: Sequence[object]) -> tuple | None:
    """What a call depends on where torch neither transforms nor traces it. A tensor's dispatch keys tell strided ones
    with memory of their own from all others."""
    if not untouched():
        return None
    found: list[object] = [grad_mode()]
    for t in inputs:
        kind = type(t)
        if kind is Tensor or kind is Parameter:
            try:
                found += (t.shape, t.dtype, t.get_device(), t.requires_grad, _keys(t).raw_repr())  # type: ignore[attr-defined,arg-type]
            except RuntimeError:  # a nested tensor has no shape
                return None
        elif kind in NUMBERS:
            found.append(kind)
        else:
            return None
    return tuple(found)


def _to_numpy(result: torch.Tensor | None) -> np.ndarray | None:
    if result is None:
        return None
    if result.dtype is torch.bfloat16:
        raise Unsupported("NumPy has no bfloat16", hint="pass torch tensors, or cast the output with float32(...)")
    return result.numpy()
