"""What runs for given types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from tilec.backends.base import Executable, OpenExecutable
from tilec.errors import InputMistake
from tilec.ir.at_sizes import with_numbers
from tilec.ir.program import Program
from tilec.ir.types import TensorType, is_floating
from tilec.late import untraced

CACHED_CALLS = 4096  # shapes and types remembered by one function; beyond that the oldest is forgotten


OpenRun = Callable[[Mapping[str, int], Sequence[torch.Tensor]], Any]  # None where that has not been made


class Bounded(dict):
    """A cache that forgets its oldest entry beyond CACHED_CALLS."""

    def __setitem__(self, key: object, value: Any) -> None:
        if len(self) >= CACHED_CALLS:
            self.pop(next(iter(self)), None)
        super().__setitem__(key, value)


@dataclass(frozen=True)
class Prepared:
    """An executable and, for each output that the caller sees, which of its results that is (None: no result).
    `replaced` says, by position, what takes the place of d_outputs that are not floating."""

    executable: Executable
    results: tuple[int | None, ...]
    replaced: dict[int, Replaced]

    @property
    def plain(self) -> bool:
        """Whether the executable's results are the caller's, and its inputs too."""
        return not self.replaced and self.results == tuple(range(len(self.results)))

    @property
    def unrecorded(self) -> Callable[[Sequence[torch.Tensor]], tuple]:
        """What runs where torch records nothing and autocast is off."""
        return getattr(self.executable, "unrecorded", self.executable) if self.plain else self

    @property
    def direct(self) -> Callable[..., tuple]:
        """The same, given the inputs one by one."""
        if self.plain and hasattr(self.executable, "direct"):
            return self.executable.direct
        return partial(_one_by_one, self.unrecorded)

    def native(self, tensors: Sequence[torch.Tensor]) -> object:
        """What the library runs for tensors like these, for which it has run: a plan of its own, or `direct`."""
        find = getattr(self.executable, "native", None) if self.plain else None
        plan = find(tensors) if find else None
        return self.direct if plan is None else plan

    def open_run(self, tensors: Sequence[torch.Tensor]) -> OpenRun | None:
        """Of a program with open sizes, what gives what the library runs at sizes, for tensors of the same types,
        devices and alignments as these."""
        find = getattr(self.executable, "open_run", None) if self.plain else None
        return find(tensors) if find else None

    def at(self, sizes: Mapping[str, int]) -> Prepared:
        """For sizes that were left open."""
        executable = cast(OpenExecutable, self.executable).at(sizes)
        return Prepared(executable, self.results, with_numbers(self.replaced, sizes))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        if self.replaced:
            tensors = [self.replaced[i](t) if i in self.replaced else t for i, t in enumerate(tensors)]
        if torch._C._is_any_autocast_enabled():  # what runs says itself in which types
            with torch._C._DisableAutocast():
                results = self.executable(tensors)
        else:
            results = self.executable(tensors)
        return tuple([None if r is None else results[r] for r in self.results])


@untraced
def _one_by_one(run: Callable[[Sequence[torch.Tensor]], tuple], *tensors: torch.Tensor) -> tuple:
    return run(tensors)


@dataclass(frozen=True)
class Replaced:
    """What a d_output that is not floating becomes: zeros where its output carries no gradient (an integer's), the same
    numbers in the output's type where it does."""

    type: TensorType
    ignored: bool

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        dtype = getattr(torch, self.type.dtype)
        return torch.zeros(self.type.shape, dtype=dtype, device=t.device) if self.ignored else t.to(dtype)


def replaced_cotangent(name: str, given: TensorType, output: str, wanted: TensorType) -> Replaced | None:
    """What takes the place of the d_output `name` of `output`, where it is not floating or carries nothing. Any other
    must have the output's shape: the gradient's text alone would read a wrong one as a legal one."""
    if not is_floating(wanted.dtype):
        return Replaced(TensorType(wanted.shape, "float32"), True)
    if given.shape != wanted.shape:
        raise InputMistake(
            f"{name} has shape {given.shape}, but the output {output} has shape {wanted.shape}",
            hint="pass a gradient of the output's shape, such as torch.ones_like of it",
        )
    return None if is_floating(given.dtype) else Replaced(TensorType(wanted.shape, wanted.dtype), False)


@dataclass(frozen=True)
class Specialised:
    """What a function runs for given types: for a gradient, without the results that are None and over d_outputs that
    have their outputs' types."""

    program: Program
    types: dict[str, TensorType]
    results: tuple[int | None, ...]
    replaced: dict[int, Replaced]

    @property
    def result_names(self) -> tuple[str | None, ...]:
        """The program's output that each result is."""
        return tuple(None if r is None else self.program.outputs[r] for r in self.results)
