"""The ATen operators that a step of Python lines calls, recorded so that they can be called again without Python.

Tensors of the same sizes, strides and types lead to the same calls, as nothing in a step looks at their elements. What
operators give as views is kept as sizes, strides and an offset, so that no more of them is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilec.backends.torch.runtime as runtime
from tilec.backends.triton.plan.plan import TorchLines
from tilec.backends.triton.runtime.wrapper import lines_text
from tilec.native import native

CONSTANT_TYPES = (bool, int, float, type(None), torch.dtype, torch.device, torch.memory_format)


@dataclass(frozen=True)
class AtenCalls:
    """`calls`: operators with names, arguments and the strides of their results; `results`: what the step gives. A
    tensor is a tuple: its place among those read and made, then None, or a view's sizes, its strides and its offset.
    `own_precision`: with cuDNN in the precision of matrix products."""

    calls: list[tuple[str, str, list, list]]
    results: list[tuple]
    own_precision: bool


class AtenStep:
    """A step of Python lines, whose results begin at multiples of 16 bytes, as kernels take them. `own_precision`: they
    ask cuDNN for that of matrix products. `calls`: what it calls, once it has run twice, as watching it takes longer
    than running it; None where that is more than can be done again."""

    def __init__(
        self, function: Callable[..., tuple], reads: Sequence[str], writes: Sequence[str], own_precision: bool = False
    ) -> None:
        self._function, self._reads, self._writes = function, tuple(reads), tuple(writes)
        self._own_precision = own_precision
        self._left = 2  # runs up to the one that is watched
        self.calls: AtenCalls | None = None

    def __call__(self, tensors: dict[str, torch.Tensor], stream: int) -> None:
        results = self.results(*[tensors[name] for name in self._reads])
        tensors.update(zip(self._writes, results, strict=True))

    def results(self, *given: Any) -> Sequence[torch.Tensor]:
        """What the lines make of the tensors that they read; what they are given after these is known."""
        given = given[: len(self._reads)]
        if self._left == 1 and native() is not None and (apart := _apart(given)) is not None:
            with _Watch(apart, self._own_precision) as watch:
                results = self._aligned(apart)
            self.calls, self._left = watch.found(results), 0
            if apart is not given:
                results = self._aligned(given)
        else:
            results = self._aligned(given)
            self._left = min(self._left, 1)  # watched as soon as there is a library that does it again
        return results

    def _aligned(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [t.clone() if t.data_ptr() & 15 else t for t in self._function(*given)]


def _apart(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
    """Tensors of the same kinds with memory of their own each, by which they are told apart: these, or others of any
    elements. None where others may not be made now, or would not be aligned as these are."""
    if len({_memory(t) for t in tensors}) == len(tensors):
        return tensors
    capturing = tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()
    if capturing or any(t.data_ptr() & 15 for t in tensors):
        return None
    try:
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
    except torch.OutOfMemoryError:
        return None


class _Watch(TorchDispatchMode):
    """Writes down what is called."""

    def __init__(self, tensors: Sequence[torch.Tensor], own_precision: bool) -> None:
        super().__init__()
        self._own_precision = own_precision
        self._there = list(tensors)  # by place; kept, so that each has memory of its own
        self._places = {_memory(t): place for place, t in enumerate(tensors)}
        self._calls: list[tuple[str, str, list, list]] = []
        self._known = True

    def call(self, operator: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = operator(*args, **given)
        made = list(result) if isinstance(result, tuple | list) else [result]
        if any(isinstance(t, torch.Tensor) and _memory(t) not in self._places for t in made):
            self._add(operator, args, given, made)
        elif not all(isinstance(t, torch.Tensor) for t in made):
            self._known = False
        self._known = self._known and not operator._schema.is_mutable
        return result

    def _add(self, operator: Any, args: tuple, given: dict[str, Any], made: list) -> None:
        schema = operator._schema
        arguments = [*args, *[given.get(a.name, a.default_value) for a in schema.arguments[len(args) :]]]
        try:
            if any(
                type(v) in (bool, int, float) and str(a.type) == "Tensor"
                for a, v in zip(schema.arguments, arguments, strict=True)
            ):
                raise TypeError("a number in the place of a tensor")
            self._calls.append(
                (schema.name, schema.overload_name, [self._argument(a) for a in arguments], [_strides(t) for t in made])
            )
        except TypeError:
            self._known = False
        for t in made:
            if t is not None:
                self._places[_memory(t)] = len(self._there)
            self._there.append(t)

    def _argument(self, value: Any) -> object:
        if isinstance(value, torch.Tensor):
            return self._described(value)
        if isinstance(value, list | tuple) and {type(v) for v in value} in ({int}, {bool}, set()):
            return list(value)
        if type(value) in CONSTANT_TYPES:
            return value
        raise TypeError(f"no constant of a call: {value!r}")

    def _described(self, t: torch.Tensor) -> tuple:
        place = self._places[_memory(t)]
        base = self._there[place]
        if t.dtype != base.dtype:
            raise TypeError("a view of another type")
        if (t.shape, t.stride(), t.storage_offset()) == (base.shape, base.stride(), base.storage_offset()):
            return place, None
        return place, list(t.shape), list(t.stride()), t.storage_offset() - base.storage_offset()

    def found(self, results: Sequence[torch.Tensor]) -> AtenCalls | None:
        """All that was called."""
        if not self._known or any(_memory(t) not in self._places for t in results):
            return None
        try:
            return AtenCalls(self._calls, [self._described(t) for t in results], self._own_precision)
        except TypeError:
            return None


# torch wraps what a class brings with it for torch.compile's sake, which takes seconds to import
_Watch.__torch_dispatch__ = _Watch.call  # type: ignore[assignment]


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _strides(t: torch.Tensor | None) -> list[int] | None:
    return None if t is None else list(t.stride())


def aten_step(step: TorchLines, function: Callable[..., tuple], device: torch.device) -> AtenStep:
    """The step of such a function (`lines_text`), with its numbers."""
    with_numbers = partial(function, **dict(step.numbers), device=device)
    return AtenStep(with_numbers, step.reads, step.writes, step.own_precision)


def lines_at(step: TorchLines, device: torch.device) -> Callable[[Iterable[tuple[str, int]]], AtenStep]:
    """The step with other numbers."""
    scope: dict[str, Any] = {"torch": torch, "rt": runtime}
    exec(compile(lines_text(step, "lines"), f"<tilec {', '.join(step.statements)}>", "exec"), scope)
    return lambda numbers: aten_step(replace(step, numbers=tuple(numbers)), scope["lines"], device)
