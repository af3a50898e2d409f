"""What a workload is: a Tile text, the torch code it competes with, the inputs at three sizes, or at sizes that a seed
draws, which nobody has looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from tilec.bench.works import COMPILED, EAGER, Work
from tilec.gallery.samples import sample

SIZES = ("tiny", "small", "large")  # tiny: for tests on a CPU
DRAWN_SIZES = "drawn-"  # and a seed: sizes drawn around the large ones
SMALLEST_DRAWN = 16  # below are windows, strides and dimensions of space
MOST_DRAWS = 40
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
    checked_by: Formula | None = None  # in a wider type, where `formula` takes too much memory or shares no ties
    checked: bool = field(default=True)  # False: values are draws of a generator, which differ by design

    def tensors(self, size: str, device: str, seed: int, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """The inputs at a size."""
        generator = torch.Generator(device).manual_seed(seed)
        return self._tensors(self.sizes_at(size), generator, device, dtype or getattr(torch, self.dtype))

    def _tensors(
        self, sizes: Mapping[str, int], generator: torch.Generator, device: str, dtype: torch.dtype
    ) -> list[torch.Tensor]:
        found = (sample(text, sizes, generator, device, dtype) for text in self.inputs)
        return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]

    def sizes_at(self, size: str) -> dict[str, int]:
        """Each name's value at one of `SIZES`, or at `drawn-SEED`: between half of the large value and five quarters of
        it, half of them multiples of eight. The large values themselves where torch's code allows none that was drawn.
        """
        if not size.startswith(DRAWN_SIZES):
            return {name: values[SIZES.index(size)] for name, values in self.sizes.items()}
        draw = Random(f"{size} {self.name}")
        for _ in range(MOST_DRAWS):
            sizes = {name: _drawn(values[-1], draw) for name, values in self.sizes.items()}
            if self._allows(sizes):
                return sizes
        return self.sizes_at(SIZES[-1])

    def _allows(self, sizes: Mapping[str, int]) -> bool:
        """Does torch's code take these sizes? Nothing is computed."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            try:
                self.formula(*self._tensors(sizes, torch.Generator(), "cpu", torch.float32))
            except Exception:
                return False
        return True

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
        return Work(
            self.source, self.formula, wrt, checked_by=self.checked_by, others=self.others, numbers=self.numbers
        )


def by_slabs(formula: Formula, rows: int = 2048) -> Formula:
    """A formula whose rows depend on those of the first input alone, for some rows after the other, and again so in its
    backward pass."""

    def of_slabs(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return torch.cat([checkpoint(formula, part, *others, use_reentrant=False) for part in first.split(rows)])

    return of_slabs


def _drawn(large: int, draw: Random) -> int:
    if large < SMALLEST_DRAWN:
        return large
    found = draw.randint(-(-large // 2), large * 5 // 4)
    return found if draw.random() < 0.5 else -(-found // 8) * 8
