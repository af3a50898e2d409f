"""Convolutions of every kind, channels last, as torch stores them in that memory format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tilec.bench.suite.workload import Workload

KIND = "convolution"
CONV: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., torch.Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
OUTER, INNER, EXTENT = "zyx", "kji", "DHW"


@dataclass(frozen=True)
class Window:
    """A convolution over `rank` axes: the kernel's extent and how it walks."""

    rank: int
    extent: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def axes(self) -> tuple[list[str], list[str], list[str]]:
        """Output variables, kernel variables and extents, one each an axis."""
        return list(OUTER[-self.rank :]), list(INNER[-self.rank :]), list(EXTENT[-self.rank :])

    @property
    def reads(self) -> str:
        outer, inner, _ = self.axes
        return ", ".join(
            f"{self.stride}*{o} + {self.dilation}*{k} - {self.padding}" for o, k in zip(outer, inner, strict=True)
        )

    @property
    def written(self) -> str:
        reach = self.dilation * (self.extent - 1) + 1 - 2 * self.padding
        return ", ".join(f"({e} - {reach}) / {self.stride} + 1" for e in self.axes[2])

    @property
    def keywords(self) -> dict[str, int]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}


def first(t: torch.Tensor, channels: int = 1) -> torch.Tensor:
    """Channels, the last axes, after the batch."""
    return t.flatten(-channels).movedim(-1, 1)


def last(t: torch.Tensor) -> torch.Tensor:
    return t.movedim(1, -1)


def dense(name: str, s: Window, sizes: dict[str, tuple[int, int, int]], epilogue: bool = False) -> Workload:
    outer, inner, extents = (", ".join(words) for words in s.axes)
    kernel = ", ".join([str(s.extent)] * s.rank)
    end = "    Y = relu(O + A);\n" if epilogue else ""
    source = f"""function (I[N, {extents}, C], K[Co, {kernel}, C]{", A[Co]" if epilogue else ""}) -> ({"Y" if epilogue else "O"}) {{
        O[n, {outer}, o : N, {s.written}, Co] = +(I[n, {s.reads}, c] * K[o, {inner}, c]);
    {end}}}"""  # noqa: E501

    def formula(i: torch.Tensor, k: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        found = last(CONV[s.rank](first(i), first(k), *bias, **s.keywords))
        return torch.relu(found) if epilogue else found

    inputs = (f"I: N {' '.join(s.axes[2])} C", f"K: Co {' '.join([str(s.extent)] * s.rank)} C ~ 0.05")
    return Workload(name, KIND, source, formula, (*inputs, "A: Co") if epilogue else inputs, sizes)


def depthwise(name: str, s: Window, sizes: dict[str, tuple[int, int, int]]) -> Workload:
    outer, inner, extents = (", ".join(words) for words in s.axes)
    kernel = [str(s.extent)] * s.rank
    source = f"""function (I[N, {extents}, C], K[{", ".join(kernel)}, C]) -> (O) {{
        O[n, {outer}, c : N, {s.written}, C] = +(I[n, {s.reads}, c] * K[{inner}, c]);
    }}"""

    def formula(i: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return last(CONV[s.rank](first(i), k.movedim(-1, 0)[:, None], groups=i.shape[-1], **s.keywords))

    return Workload(name, KIND, source, formula, (f"I: N {' '.join(s.axes[2])} C", f"K: {' '.join(kernel)} C"), sizes)


def grouped_convolution(name: str, s: Window, sizes: dict[str, tuple[int, int, int]]) -> Workload:
    outer, inner, extents = (", ".join(words) for words in s.axes)
    kernel = [str(s.extent)] * s.rank
    source = f"""function (I[N, {extents}, G, C], K[G, Co, {", ".join(kernel)}, C]) -> (O) {{
        O[n, {outer}, g, o : N, {s.written}, G, Co] = +(I[n, {s.reads}, g, c] * K[g, o, {inner}, c]);
    }}"""

    def formula(i: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        found = CONV[s.rank](first(i, 2), first(k.flatten(0, 1)), groups=i.shape[-2], **s.keywords)
        return last(found).unflatten(-1, k.shape[:2])

    inputs = (f"I: N {' '.join(s.axes[2])} G C", f"K: G Co {' '.join(kernel)} C ~ 0.05")
    return Workload(name, KIND, source, formula, inputs, sizes)


def transposed(name: str, s: Window, sizes: dict[str, tuple[int, int, int]]) -> Workload:
    outer, inner, extents = (", ".join(words) for words in s.axes)
    kernel = [str(s.extent)] * s.rank
    written = ", ".join(f"({e} - 1) * {s.stride} + {s.extent - 2 * s.padding}" for e in s.axes[2])
    source = f"""function (I[N, {extents}, C], K[C, {", ".join(kernel)}, Co]) -> (O) {{
        O[n, {s.reads}, o : N, {written}, Co] = +(I[n, {outer}, c] * K[c, {inner}, o]);
    }}"""

    def formula(i: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return last(TRANSPOSED[s.rank](first(i), first(k), stride=s.stride, padding=s.padding))

    inputs = (f"I: N {' '.join(s.axes[2])} C", f"K: C {' '.join(kernel)} Co ~ 0.05")
    return Workload(name, KIND, source, formula, inputs, sizes)


def plane(n: tuple[int, int, int], side: tuple[int, int, int], **channels: tuple[int, int, int]) -> dict:
    return {"N": n, "H": side, "W": side, **channels}


def convolution_line(n: tuple[int, int, int], width: tuple[int, int, int], **channels: tuple[int, int, int]) -> dict:
    return {"N": n, "W": width, **channels}


BATCH, SIDE = (2, 16, 32), (9, 28, 56)
MIDDLE = {"C": (3, 128, 128), "Co": (4, 128, 128)}
BOX = {"N": (1, 2, 8), "D": (5, 16, 16), "H": (6, 28, 56), "W": (7, 28, 56)}
WORKLOADS = (
    dense("convolution 3x3", Window(2, 3, padding=1), plane(BATCH, SIDE, **MIDDLE)),
    dense("convolution 3x3, stride 2", Window(2, 3, 2, 1), plane(BATCH, SIDE, **MIDDLE)),
    dense("convolution 1x1", Window(2, 1), plane(BATCH, SIDE, C=(3, 256, 256), Co=(4, 64, 64))),
    dense("convolution 5x5", Window(2, 5, padding=2), plane(BATCH, SIDE, C=(3, 64, 64), Co=(4, 64, 64))),
    dense("convolution 3x3, dilation 2", Window(2, 3, padding=2, dilation=2), plane(BATCH, SIDE, **MIDDLE)),
    dense("stem 7x7, stride 2, of 3 channels", Window(2, 7, 2, 3),
          plane(BATCH, (17, 224, 224), C=(3, 3, 3), Co=(4, 64, 64))),
    dense("patches 16x16", Window(2, 16, 16), plane((2, 32, 128), (32, 224, 224), C=(3, 3, 3), Co=(4, 768, 768))),
    dense("convolution 3x3 with bias and relu", Window(2, 3, padding=1), plane(BATCH, SIDE, **MIDDLE), True),
    dense("convolution over time, width 5", Window(1, 5, padding=2),
          convolution_line((2, 8, 16), (11, 1024, 4096), C=(3, 256, 256), Co=(4, 256, 256))),
    dense("convolution over time, dilation 8", Window(1, 3, padding=8, dilation=8),
          convolution_line((2, 8, 16), (19, 1024, 4096), C=(3, 128, 128), Co=(4, 128, 128))),
    dense("convolution 3x3x3", Window(3, 3, padding=1), {**BOX, "C": (3, 32, 64), "Co": (4, 32, 64)}),
    depthwise("depthwise 3x3", Window(2, 3, padding=1), plane(BATCH, SIDE, C=(3, 144, 144))),
    depthwise("depthwise 5x5, stride 2", Window(2, 5, 2, 2), plane(BATCH, SIDE, C=(3, 144, 144))),
    depthwise("depthwise 7x7", Window(2, 7, padding=3), plane(BATCH, SIDE, C=(3, 96, 96))),
    depthwise("depthwise over time, width 4", Window(1, 4, padding=3),
              convolution_line((2, 8, 16), (11, 2048, 4096), C=(3, 512, 1024))),
    depthwise("depthwise 3x3x3", Window(3, 3, padding=1), {**BOX, "C": (3, 32, 64)}),
    grouped_convolution("grouped 3x3, 32 groups of 8", Window(2, 3, padding=1),
            plane(BATCH, SIDE, G=(2, 32, 32), C=(3, 8, 8), Co=(4, 8, 8))),
    grouped_convolution("grouped 3x3, 4 groups of 64", Window(2, 3, padding=1),
            plane(BATCH, SIDE, G=(2, 4, 4), C=(3, 64, 64), Co=(4, 64, 64))),
    transposed("transposed 2x2, stride 2", Window(2, 2, 2), plane(BATCH, SIDE, C=(3, 128, 256), Co=(4, 64, 128))),
    transposed("transposed 4x4, stride 2", Window(2, 4, 2, 1), plane(BATCH, SIDE, C=(3, 128, 128), Co=(4, 64, 64))),
)  # fmt: skip
