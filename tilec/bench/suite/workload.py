"""What a workload is: a Tile text, the torch code it competes with, the inputs at three sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tilec.bench.works import COMPILED, EAGER, Work
from tilec.gallery.samples import sample

SIZES = ("tiny", "small", "large")  # tiny: for tests on a CPU
CUDNN, FLEX = "cuDNN attention", "FlexAttention"
Formula = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """One operation of everyday models.

    `inputs` describe the tensors in the order of `source`, as `tilec.gallery.samples` reads them.
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
        found = (sample(text, known, generator, device, dtype) for text in self.inputs)
        return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]

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
