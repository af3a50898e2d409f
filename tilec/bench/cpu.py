"""What is measured on a CPU: operations torch has, operations it lacks, fused elementwise work, the log semiring."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from tilec.backends.base import Options
from tilec.backends.torch import TorchBackend, TorchProgram
from tilec.bench import works
from tilec.bench.measure import BuildCandidates, Candidate, Case
from tilec.bench.works import Work
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.pipeline import lower

WITH_LIBRARIES, OWN_KERNELS = "library candidates", "ours alone"
WITH_GOALS = {WITH_LIBRARIES: 0.95, OWN_KERNELS: 0.6}


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def executable(program: Program, inputs: list[torch.Tensor], library: bool = True) -> TorchProgram:
    """The program built for these inputs: what a cached call runs."""
    types = {
        name: TensorType(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in zip(program.input_names(), inputs, strict=True)
    }
    return TorchBackend().build(lower(program, types, {}), Options(library=library))


def against(work: Work, inputs: Callable[[], list[torch.Tensor]], ways: dict[str, bool]) -> BuildCandidates:
    """The torch side, and ours under each name with library convolutions or without; inputs are made on demand."""

    def build() -> tuple[Candidate, dict[str, Candidate]]:
        tensors = inputs()
        ours = {name: executable(work.program, tensors, library) for name, library in ways.items()}
        return work.peer(tensors), {name: functools.partial(run, tensors) for name, run in ours.items()}

    return build


def one(work: Work, *inputs: Callable[[], torch.Tensor]) -> BuildCandidates:
    return against(work, lambda: [make() for make in inputs], {"tilec": True})


def normal_input(*shape: int, scale: float = 1, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: scale * randn(*shape, dtype=dtype)


def convolutions(
    batch: int, size: int, channels: int, stride: int, dilation: int, padding: int, stored: str
) -> dict[str, BuildCandidates]:
    """Forward and both gradients of a 3x3 convolution; see `works.convolution`."""
    out = (size + 2 * padding - 2 * dilation - 1) // stride + 1
    kernel = (3, 3, channels, channels) if stored == "hwio" else (channels, 3, 3, channels)
    shapes = [(batch, size, size, channels), kernel, (batch, out, out, channels)]

    def build(wrt: str) -> BuildCandidates:
        given = shapes if wrt else shapes[:2]
        work = works.convolution_work(stride, dilation, padding, stored, wrt)
        return against(work, lambda: [randn(*s) for s in given], {WITH_LIBRARIES: True, OWN_KERNELS: False})

    return {"forward": build(""), "dI": build("I"), "dK": build("K")}


def torch_convolutions() -> list[Case]:
    shapes = {
        "seed convolution 8x57x57x128, stride 3, dilation 2": (8, 57, 128, 3, 2, 0, "hwio"),
        "ResNet 3x3, 4x56x56x64": (4, 56, 64, 1, 1, 1, "ohwi"),
        "ResNet 3x3, 4x28x28x128": (4, 28, 128, 1, 1, 1, "ohwi"),
        "ResNet 3x3, 4x14x14x256": (4, 14, 256, 1, 1, 1, "ohwi"),
        "ResNet 3x3, 4x7x7x512": (4, 7, 512, 1, 1, 1, "ohwi"),
        "ResNet 3x3, 4x7x7x512, kernel stored [h, w, in, out]": (4, 7, 512, 1, 1, 1, "hwio"),
    }
    return [
        Case(f"{name}, {way}", "torch convolution", build, WITH_GOALS)
        for name, shape in shapes.items()
        for way, build in convolutions(*shape).items()
    ]


UNFOLD = "unfold and einsum"
SNAKES = normal_input(8, 512, 4096), lambda: randn(512).abs() + 0.5, normal_input(8, 512, 4096)
BACKWARD = replace(works.SNAKE, wrt=("X", "A"))
BUILDS = {
    "four": one(works.FOUR_DIMENSIONS, normal_input(2, 10, 10, 10, 10, 8), normal_input(3, 3, 3, 3, 8, 16)),
    "sine of kernel": one(works.SINE_OF_KERNEL, normal_input(4, 40, 40, 32), normal_input(5, 5, 32, 32)),
    "sine of product": one(works.SINE_OF_PRODUCT, normal_input(2, 30, 30, 8), normal_input(3, 3, 8, 16)),
    "max-plus": one(works.MAX_PLUS, normal_input(2, 30, 30, 16), normal_input(3, 3, 16, 16)),
    "masked": one(
        works.MASKED, lambda: (randn(4, 40, 40) > 0).float(), normal_input(4, 40, 40, 32), normal_input(3, 3, 32, 32)
    ),
    "log convolution": one(works.LOG_CONVOLUTION, normal_input(2, 400, 32), normal_input(5, 32, 32)),
    "log": one(works.LOG_PRODUCT_WORK, normal_input(256, 256, scale=3), normal_input(256, 256, scale=3)),
    "logs": one(works.BATCHED_LOG_PRODUCT, normal_input(2, 256, 256, scale=3), normal_input(2, 256, 256, scale=3)),
}


def torch_matmul(size: int, dtype: torch.dtype) -> BuildCandidates:
    return one(works.MATMUL, normal_input(size, size, dtype=dtype), normal_input(size, size, dtype=dtype))


CPU_CASES: list[Case] = [
    *torch_convolutions(),
    Case("convolution over 4 spatial dimensions", UNFOLD, BUILDS["four"], {"tilec": 2.0}),
    Case("convolution with the sine of the kernel", UNFOLD, BUILDS["sine of kernel"], {"tilec": 2.0}),
    Case("sine of each product of a convolution", UNFOLD, BUILDS["sine of product"], {"tilec": 2.0}),
    Case("max-plus convolution", "unfold and broadcast", BUILDS["max-plus"], {"tilec": 2.0}),
    Case("masked convolution", UNFOLD, BUILDS["masked"], {"tilec": 2.0}),
    Case("log convolution", "unfold and logsumexp", BUILDS["log convolution"], {"tilec": 2.0}),
    Case("log product 256^3", "broadcast logsumexp", BUILDS["log"], {"tilec": 20.0}),
    Case("log product 2x256^3", "broadcast logsumexp", BUILDS["logs"], {"tilec": 20.0}),
    Case("snake 8x512x4096, forward", "eager", one(works.SNAKE, *SNAKES[:2])),
    Case("snake 8x512x4096, backward", "eager autograd", one(BACKWARD, *SNAKES), {"tilec": 2.0}, tolerance=1e-3),
    Case("matmul 1024 float32", "torch.matmul", torch_matmul(1024, torch.float32), {"tilec": 0.95}),
    Case("matmul 1024 bfloat16", "torch.matmul", torch_matmul(1024, torch.bfloat16), {"tilec": 0.95}, tolerance=1e-2),
    Case("matmul 4, the cost of a call", "torch.matmul", torch_matmul(4, torch.float32)),
]
