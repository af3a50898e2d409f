"""What a workload is: a Tile text, the torch code it competes with, the inputs at three sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tilec.bench.works import COMPILED, EAGER, Work

SIZES = ("tiny", "small", "large")  # tiny: for tests on a CPU
CUDNN, FLEX = "cuDNN attention", "FlexAttention"
Formula = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """One operation of everyday models.

    `inputs` describe the tensors in the order of `source`: "Q: B H N E" is normal, "P: B N ~ 0.02" normal with that
    standard deviation, "T: B N < V" integers below V, "T: N << V" the same in ascending order, "T: N > 0" positive.
    `sizes` give each name's value at the tiny, small and large size. `wrt` names the inputs of the backward pass, all
    that are floating where it is None and none where it is empty. `dtype` is what it is measured in. `others` are
    kernels of libraries by name, beside torch's own; `compiled` says whether torch.compile is a peer.
    """

    name: str
    kind: str
    source: str
    formula: Formula
    inputs: tuple[str, ...]
    sizes: Mapping[str, tuple[int, int, int]]
    dtype: str = "bfloat16"
    wrt: tuple[str, ...] | None = None
    others: tuple[tuple[str, Formula], ...] = ()
    compiled: bool = True
    numbers: tuple[float, ...] = ()
    tolerance: float = 1e-4
    checked: bool = field(default=True)  # False: values are draws of a generator, which differ by design

    def tensors(self, size: str, device: str, seed: int, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """The inputs at a size."""
        generator = torch.Generator(device).manual_seed(seed)
        known = {name: values[SIZES.index(size)] for name, values in self.sizes.items()}
        dtype = dtype or getattr(torch, self.dtype)
        return [_tensor(text, known, generator, device, dtype) for text in self.inputs]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(text.split(":")[0] for text in self.inputs)

    @property
    def differentiated(self) -> tuple[str, ...]:
        """Names of the inputs of the backward pass."""
        floating = tuple(text.split(":")[0] for text in self.inputs if "<" not in text)
        return floating if self.wrt is None else self.wrt

    @property
    def directions(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.differentiated else ("forward",)

    @property
    def peers(self) -> tuple[str, ...]:
        return (EAGER, *((COMPILED,) if self.compiled else ()), *(name for name, _ in self.others))

    def work(self, direction: str) -> Work:
        wrt = self.differentiated if direction == "backward" else ()
        return Work(self.source, self.formula, wrt, others=self.others, numbers=self.numbers)


def _tensor(
    text: str, sizes: Mapping[str, int], generator: torch.Generator, device: str, dtype: torch.dtype
) -> torch.Tensor:
    words = text.split(":")[1].split()
    sign = next((w for w in words if w in ("<", "<<", "~", ">")), None)
    end = words.index(sign) if sign else len(words)
    shape = [_value(w, sizes) for w in words[:end]]
    if sign in ("<", "<<"):
        found = torch.randint(_value(words[end + 1], sizes), shape, generator=generator, device=device)
        return found.sort(-1).values if sign == "<<" else found
    normal = torch.randn(shape, generator=generator, device=device)
    if sign == ">":
        normal = normal.abs() + 0.1
    elif sign == "~":
        normal = normal * float(words[end + 1])
    return normal.to(dtype)


def _value(word: str, sizes: Mapping[str, int]) -> int:
    return int(word) if word.isdigit() else sizes[word]
