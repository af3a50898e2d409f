"""What is measured on a CPU: operations torch has, operations it lacks, fused elementwise work, the log semiring."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from tilec.backends.base import Options
from tilec.backends.reference import ReferenceBackend, TorchProgram
from tilec.bench.measure import Build, Candidate, Case
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower
from tilec.transforms.grad import grad

LIBRARY, OWN = "library candidates", "ours alone"
WITH_GOALS = {LIBRARY: 0.95, OWN: 0.6}


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def executable(program: Program, inputs: list[torch.Tensor], library: bool = True) -> TorchProgram:
    """The program built for these inputs: what a cached call runs."""
    types = {
        name: TensorType(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in zip(program.input_names(), inputs, strict=True)
    }
    return ReferenceBackend().build(lower(program, types, {}), Options(library=library))


def candidates(source: str | Program, *inputs: torch.Tensor) -> dict[str, Candidate]:
    """With and without library convolutions."""
    program = parse(source) if isinstance(source, str) else source
    both = {LIBRARY: executable(program, list(inputs)), OWN: executable(program, list(inputs), library=False)}
    return {name: functools.partial(run, inputs) for name, run in both.items()}


def alone(source: str | Program, *inputs: torch.Tensor) -> dict[str, Candidate]:
    program = parse(source) if isinstance(source, str) else source
    run = executable(program, list(inputs))
    return {"tilec": lambda: run(inputs)}


def convolution(
    batch: int, size: int, channels: int, stride: int, dilation: int, padding: int, stored: str
) -> dict[str, Build]:
    """Forward and both gradients of a 3x3 convolution, channels last. `stored` is the kernel's order in memory: "ohwi",
    as torch likes it, or "hwio"; torch itself always gets what it likes."""
    out = (size + 2 * padding - 2 * dilation - 1) // stride + 1
    declared, index = ("K[3, 3, C, D]", "j, i, c, o") if stored == "hwio" else ("K[D, 3, 3, C]", "o, j, i, c")
    source = f"""function (I[N, H, W, C], {declared}) -> (O) {{
        O[n, y, x, o : N, {out}, {out}, D] =
            +(I[n, {stride}*y + {dilation}*j - {padding}, {stride}*x + {dilation}*i - {padding}, c] * K[{index}]);
    }}"""
    settings = (None, [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1)

    def build(which: int):
        shape = (3, 3, channels, channels) if stored == "hwio" else (channels, 3, 3, channels)
        image, kernel = randn(batch, size, size, channels), randn(*shape)
        cotangent = randn(batch, out, out, channels)
        x, g = image.permute(0, 3, 1, 2), cotangent.permute(0, 3, 1, 2)
        k = kernel.permute(*((3, 2, 0, 1) if stored == "hwio" else (0, 3, 1, 2)))
        k = k.contiguous(memory_format=torch.channels_last)
        if which == 0:
            ours = candidates(source, image, kernel)
            return lambda: F.conv2d(x, k, None, stride, padding, dilation).permute(0, 2, 3, 1), ours
        name, mask = ("I", [True, False, False]) if which == 1 else ("K", [False, True, False])
        back = (2, 3, 1, 0) if which == 2 and stored == "hwio" else (0, 2, 3, 1)
        ours = candidates(grad(parse(source), (name,)), image, kernel, cotangent)

        def peer():
            return torch.ops.aten.convolution_backward(g, x, k, *settings, mask)[which - 1].permute(*back)

        return peer, ours

    return {way: functools.partial(build, which) for which, way in enumerate(("forward", "dI", "dK"))}


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
        for way, build in convolution(*shape).items()
    ]


def unfolded(t: torch.Tensor, dims: list[int], size: int) -> torch.Tensor:
    for d in dims:
        t = t.unfold(d, size, 1)
    return t


def four_dimensions():
    x, k = randn(2, 10, 10, 10, 10, 8), randn(3, 3, 3, 3, 8, 16)
    source = """O[n, a, b, c, d, o : 2, 8, 8, 8, 8, 16] =
        +(I[n, a + p, b + q, c + r, d + s, i] * K[p, q, r, s, i, o]);"""

    def peer():
        return torch.einsum("nabcdipqrs,pqrsio->nabcdo", unfolded(x, [1, 2, 3, 4], 3), k)

    return peer, alone(source, x, k)


def sine_of_the_kernel():
    x, k = randn(4, 40, 40, 32), randn(5, 5, 32, 32)
    source = "O[n, y, x, o : 4, 36, 36, 32] = +(I[n, y + j, x + i, c] * sin(K[j, i, c, o]));"

    def peer():
        return torch.einsum("nyxcji,jico->nyxo", unfolded(x, [1, 2], 5), torch.sin(k))

    return peer, alone(source, x, k)


def sine_of_the_product():
    x, k = randn(2, 30, 30, 8), randn(3, 3, 8, 16)
    source = "O[n, y, x, o : 2, 28, 28, 16] = +(sin(I[n, y + j, x + i, c] * K[j, i, c, o]));"

    def peer():
        return torch.sin(torch.einsum("nyxcji,jico->nyxojic", unfolded(x, [1, 2], 3), k)).sum((4, 5, 6))

    return peer, alone(source, x, k)


def max_plus():
    x, k = randn(2, 30, 30, 16), randn(3, 3, 16, 16)
    source = "O[n, y, x, o : 2, 28, 28, 16] = >(I[n, y + j, x + i, c] + K[j, i, c, o]);"

    def peer():
        windows = unfolded(x, [1, 2], 3).permute(0, 1, 2, 4, 5, 3)[..., None]
        return (windows + k).amax((3, 4, 5))

    return peer, alone(source, x, k)


def masked():
    x, k, m = randn(4, 40, 40, 32), randn(3, 3, 32, 32), (randn(4, 40, 40) > 0).float()
    source = "O[n, y, x, o : 4, 38, 38, 32] = +(M[n, y + j, x + i] > 0 ? I[n, y + j, x + i, c] * K[j, i, c, o]);"

    def peer():
        windows = torch.where(unfolded(m, [1, 2], 3)[:, :, :, None] > 0, unfolded(x, [1, 2], 3), 0.0)
        return torch.einsum("nyxcji,jico->nyxo", windows, k)

    return peer, alone(source, m, x, k)


def log_convolution():
    x, k = randn(2, 400, 32), randn(5, 32, 32)
    source = "O[n, x, o : 2, 396, 32] = logsumexp(I[n, x + j, c] + K[j, c, o]);"

    def peer():
        windows = x.unfold(1, 5, 1).permute(0, 1, 3, 2)[..., None]
        return torch.logsumexp((windows + k).flatten(2, 3), 2)

    return peer, alone(source, x, k)


def log_product():
    a, b = 3 * randn(256, 256), 3 * randn(256, 256)
    source = "O[i, j : 256, 256] = logsumexp(A[i, k] + B[k, j]);"
    return lambda: torch.logsumexp(a[:, :, None] + b[None], 1), alone(source, a, b)


def batched_log_product():
    a, b = 3 * randn(2, 256, 256), 3 * randn(2, 256, 256)
    source = "O[n, i, j : 2, 256, 256] = logsumexp(A[n, i, k] + B[n, k, j]);"
    return lambda: torch.logsumexp(a[:, :, :, None] + b[:, None], 2), alone(source, a, b)


SNAKE = """function snake(X[N, C, T], A[C]) -> (Y) {
    Y[n, c, t : N, C, T] = X[n, c, t] + sin(A[c] * X[n, c, t]) * sin(A[c] * X[n, c, t]) / A[c];
}"""


def eager_snake(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return x + torch.sin(a[:, None] * x) ** 2 / a[:, None]


def snake_forward():
    x, a = randn(8, 512, 4096), randn(512).abs() + 0.5
    return lambda: eager_snake(x, a), alone(SNAKE, x, a)


def snake_backward():
    x, a, g = randn(8, 512, 4096), randn(512).abs() + 0.5, randn(8, 512, 4096)
    x_, a_ = x.clone().requires_grad_(), a.clone().requires_grad_()
    y = eager_snake(x_, a_)
    return lambda: torch.autograd.grad(y, (x_, a_), g, retain_graph=True), alone(grad(parse(SNAKE)), x, a, g)


def matmul(dtype: torch.dtype):
    a, b = randn(1024, 1024, dtype=dtype), randn(1024, 1024, dtype=dtype)
    return lambda: a @ b, alone("O[i, j : 1024, 1024] = +(A[i, k] * B[k, j]);", a, b)


def small_call():
    a, b = randn(4, 4), randn(4, 4)
    return lambda: a @ b, alone("O[i, j : 4, 4] = +(A[i, k] * B[k, j]);", a, b)


UNFOLD = "unfold and einsum"
CASES: list[Case] = [
    *torch_convolutions(),
    Case("convolution over 4 spatial dimensions", UNFOLD, four_dimensions, {"tilec": 2.0}),
    Case("convolution with the sine of the kernel", UNFOLD, sine_of_the_kernel, {"tilec": 2.0}),
    Case("sine of each product of a convolution", UNFOLD, sine_of_the_product, {"tilec": 2.0}),
    Case("max-plus convolution", "unfold and broadcast", max_plus, {"tilec": 2.0}),
    Case("masked convolution", UNFOLD, masked, {"tilec": 2.0}),
    Case("log convolution", "unfold and logsumexp", log_convolution, {"tilec": 2.0}),
    Case("log product 256^3", "broadcast logsumexp", log_product, {"tilec": 20.0}),
    Case("log product 2x256^3", "broadcast logsumexp", batched_log_product, {"tilec": 20.0}),
    Case("snake 8x512x4096, forward", "eager", snake_forward),
    Case("snake 8x512x4096, backward", "eager autograd", snake_backward, {"tilec": 2.0}, tolerance=1e-3),
    Case("matmul 1024 float32", "torch.matmul", lambda: matmul(torch.float32), {"tilec": 0.95}),
    Case("matmul 1024 bfloat16", "torch.matmul", lambda: matmul(torch.bfloat16), {"tilec": 0.95}, tolerance=1e-2),
    Case("matmul 4, the cost of a call", "torch.matmul", small_call),
]
