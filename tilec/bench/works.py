"""What is measured: each piece of work as Tile, and as torch operations that a user would write for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilec.ir.program import Program
from tilec.language import parse
from tilec.transforms.autodiff.grad import grad

EAGER, COMPILED, LIGER, CUDNN_PEER = "eager", "torch.compile", "Liger", "cuDNN"
TensorResults = torch.Tensor | tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Work:
    """`formula` takes the tensors that `source` does. `wrt`: not the values but the gradient by these inputs, the
    cotangent of the one output being the last tensor. `library`: the gradient as one library call, where there is.
    `checked_by`: what results are checked against, where `formula` takes too much memory. `others`: kernels of
    other packages, by name, which raise ImportError where there are none. `numbers` follow the tensors in calls of
    ours; `ordered`: ours keeps to the order of the text (`exact=True`)."""

    source: str
    formula: Callable[..., torch.Tensor]
    wrt: tuple[str, ...] = ()
    library: Callable[..., TensorResults] | None = None
    checked_by: Callable[..., torch.Tensor] | None = None
    others: tuple[tuple[str, Callable[..., torch.Tensor]], ...] = ()
    numbers: tuple[float, ...] = ()
    ordered: bool = False

    @property
    def program(self) -> Program:
        program = parse(self.source)
        return grad(program, self.wrt) if self.wrt else program

    def exact(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The answer in float64, by torch's formula and its derivative."""
        plain = replace(self, formula=self.checked_by or self.formula, library=None)
        return results_of(plain.peer([t.double() for t in inputs])())

    def with_numbers(self, inputs: Sequence[Any]) -> list[Any]:
        """The arguments of a call of ours: a cotangent comes last."""
        place = len(inputs) - bool(self.wrt)
        return [*inputs[:place], *self.numbers, *inputs[place:]]

    @property
    def recorded(self) -> bool:
        """Whether it is a backward pass of torch's autograd, which may keep what the forward pass knew."""
        return bool(self.wrt) and self.library is None

    def peer(self, inputs: Sequence[torch.Tensor], name: str = EAGER) -> Callable[[], TensorResults]:
        """The torch side on these inputs, ready to run; of a gradient the backward pass alone."""
        if name == EAGER and self.wrt and self.library is not None:
            library = self.library
            return lambda: library(*inputs)
        return self.run(self.torch_call(name), inputs)

    def torch_call(self, name: str = EAGER) -> Callable[..., torch.Tensor]:
        """The forward pass on the torch side, compiled once for all that is made of it."""
        return {EAGER: self.formula, COMPILED: None, **dict(self.others)}[name] or _compiled(self.formula)

    def run(self, call: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]) -> Callable[[], TensorResults]:
        return self.backward(call, inputs) if self.wrt else lambda: call(*inputs)

    def backward(
        self, call: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], *, step: bool = False
    ) -> Callable[[], TensorResults]:
        """The backward pass of a call that takes the work's inputs, which has been made, as calls like it before.
        `step`: the call and its backward pass, together."""
        *given, cotangent = inputs
        names = parse(self.source).input_names()
        leaves = [t.detach().requires_grad_(n in self.wrt) for n, t in zip(names, given, strict=False)]
        by = [leaves[names.index(n)] for n in self.wrt]
        if step:
            return lambda: torch.autograd.grad(call(*leaves), by, cotangent)
        call(*leaves)
        value = call(*leaves)
        return lambda: torch.autograd.grad(value, by, cotangent, retain_graph=True)


def _compiled(formula: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """By torch.compile, its backward pass one that can run again and again."""
    import torch._functorch.config as settings

    settings.donated_buffer = False
    return torch.compile(formula)


def results_of(value: TensorResults) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def unfolded(t: torch.Tensor, dims: Sequence[int], size: int) -> torch.Tensor:
    for d in dims:
        t = t.unfold(d, size, 1)
    return t


def convolution_work(stride: int, dilation: int, padding: int, stored: str, wrt: str = "") -> Work:
    """A 3x3 convolution, channels last, or its gradient by I or K. `stored` is the kernel's order in memory: "ohwi", as
    torch likes it, or "hwio", which the torch side has copied into the order that it likes before the clock starts."""
    declared, index = ("K[3, 3, C, D]", "j, i, c, o") if stored == "hwio" else ("K[D, 3, 3, C]", "o, j, i, c")
    out = f"+ {2 * padding - 2 * dilation - 1}) / {stride} + 1"
    source = f"""function (I[N, H, W, C], {declared}) -> (O) {{
        O[n, y, x, o : N, (H {out}, (W {out}, D] =
            +(I[n, {stride}*y + {dilation}*j - {padding}, {stride}*x + {dilation}*i - {padding}, c] * K[{index}]);
    }}"""
    settings = (None, [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1)
    liked = {}

    def kernel(k: torch.Tensor) -> torch.Tensor:
        if id(k) not in liked:
            k_ = k.permute(*((3, 2, 0, 1) if stored == "hwio" else (0, 3, 1, 2)))
            liked[id(k)] = k, k_.contiguous(memory_format=torch.channels_last)
        return liked[id(k)][1]

    def forward(i: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.conv2d(i.permute(0, 3, 1, 2), kernel(k), None, stride, padding, dilation).permute(0, 2, 3, 1)

    def backward(i: torch.Tensor, k: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        g, i = g.permute(0, 3, 1, 2), i.permute(0, 3, 1, 2)
        masks = [wrt == "I", wrt == "K", False]
        found = torch.ops.aten.convolution_backward(g, i, kernel(k), *settings, masks)[wrt == "K"]
        return found.permute(*((2, 3, 1, 0) if wrt == "K" and stored == "hwio" else (0, 2, 3, 1)))

    return Work(source, forward, (wrt,) if wrt else (), backward if wrt else None)


MATMUL = Work("function (A[I, K], B[K, J]) -> (O) { O[i, j : I, J] = +(A[i, k] * B[k, j]); }", torch.matmul)
FOUR_DIMENSIONS = Work(
    """function (I[N, A, B, C, D, S], K[3, 3, 3, 3, S, T]) -> (O) {
        O[n, a, b, c, d, o : N, A - 2, B - 2, C - 2, D - 2, T] =
            +(I[n, a + p, b + q, c + r, d + s, i] * K[p, q, r, s, i, o]);
    }""",
    lambda x, k: torch.einsum("nabcdipqrs,pqrsio->nabcdo", unfolded(x, [1, 2, 3, 4], 3), k),
)


def _windowed(declared: str, body: str) -> str:
    return f"""function ({declared}, K[R, S, C, D]) -> (O) {{
        O[n, y, x, o : N, H - R + 1, W - S + 1, D] = {body};
    }}"""


IMAGE = "I[N, H, W, C]"
SINE_OF_KERNEL = Work(
    _windowed(IMAGE, "+(I[n, y + j, x + i, c] * sin(K[j, i, c, o]))"),
    lambda x, k: torch.einsum("nyxcji,jico->nyxo", unfolded(x, [1, 2], k.shape[0]), torch.sin(k)),
)
SINE_OF_PRODUCT = Work(
    _windowed(IMAGE, "+(sin(I[n, y + j, x + i, c] * K[j, i, c, o]))"),
    lambda x, k: torch.sin(torch.einsum("nyxcji,jico->nyxojic", unfolded(x, [1, 2], k.shape[0]), k)).sum((4, 5, 6)),
)
MAX_PLUS = Work(
    _windowed(IMAGE, ">(I[n, y + j, x + i, c] + K[j, i, c, o])"),
    lambda x, k: (unfolded(x, [1, 2], k.shape[0]).permute(0, 1, 2, 4, 5, 3)[..., None] + k).amax((3, 4, 5)),
)


def _masked(m: torch.Tensor, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    size = k.shape[0]
    windows = torch.where(unfolded(m, [1, 2], size)[:, :, :, None] > 0, unfolded(x, [1, 2], size), 0.0)
    return torch.einsum("nyxcji,jico->nyxo", windows, k)


MASKED = Work(
    _windowed(f"M[N, H, W], {IMAGE}", "+(M[n, y + j, x + i] > 0 ? I[n, y + j, x + i, c] * K[j, i, c, o])"), _masked
)
LOG_CONVOLUTION = Work(
    """function (I[N, L, C], K[R, C, D]) -> (O) {
        O[n, x, o : N, L - R + 1, D] = logsumexp(I[n, x + j, c] + K[j, c, o]);
    }""",
    lambda x, k: torch.logsumexp((x.unfold(1, k.shape[0], 1).permute(0, 1, 3, 2)[..., None] + k).flatten(2, 3), 2),
)
LOG_PRODUCT_WORK = Work(
    "function (A[I, K], B[K, J]) -> (O) { O[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }",
    lambda a, b: torch.logsumexp(a[:, :, None] + b[None], 1),
    checked_by=lambda a, b: torch.cat([torch.logsumexp(rows[:, :, None] + b[None], 1) for rows in a.split(128)]),
)
BATCHED_LOG_PRODUCT = Work(
    "function (A[N, I, K], B[N, K, J]) -> (O) { O[n, i, j : N, I, J] = logsumexp(A[n, i, k] + B[n, k, j]); }",
    lambda a, b: torch.logsumexp(a[:, :, :, None] + b[:, None], 2),
)


def _sheared(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    n, h, w, c = x.shape
    columns = w // 2
    rows = (h - columns - 2) // 2
    sn, sh, sw, sc = x.stride()
    windows = x.as_strided((n, rows, columns, 3, 3, c), (sn, 2 * sh, sh + sw, sh, sw, sc))
    return torch.einsum("nyxjic,jico->nyxo", windows, k)


SHEARED = Work(
    """function (I[N, H, W, C], K[3, 3, C, D]) -> (O) {
        O[n, y, x, o : N, (H - W/2 - 2) / 2, W/2, D] = +(I[n, 2*y + x + j, x + i, c] * K[j, i, c, o]);
    }""",
    _sheared,
)
SNAKE = Work(
    """function snake(X[N, C, T], A[C]) -> (Y) {
        Y[n, c, t : N, C, T] = X[n, c, t] + sin(A[c] * X[n, c, t]) * sin(A[c] * X[n, c, t]) / A[c];
    }""",
    lambda x, a: x + torch.sin(a[:, None] * x) ** 2 / a[:, None],
)


def liger_layer_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, g, b, 1e-5)


LAYER_NORM = Work(
    """function (X[N, D], G[D], B[D]) -> (Y) {
        M[i : N] = mean(X[i, j]);
        V[i : N] = mean((X[i, j] - M[i]) * (X[i, j] - M[i]));
        Y[i, j : N, D] = (X[i, j] - M[i]) * rsqrt(V[i] + 0.00001) * G[j] + B[j];
    }""",
    lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b),
    others=((LIGER, liger_layer_norm),),
)
SOFTMAX = Work(
    """function (X[N, D]) -> (Y) {
        M[i : N] = >(X[i, j]);
        S[i : N] = +(exp(X[i, j] - M[i]));
        Y[i, j : N, D] = exp(X[i, j] - M[i]) / S[i];
    }""",
    lambda x: torch.softmax(x, -1),
)
GATE = Work("function (X[N, D], U[N, D]) -> (Y) { Y = gelu(X) * U; }", lambda x, u: F.gelu(x) * u)


def attention_work(guard: str = "", score: str = "", others: str = "", window: int | None = None) -> Work:
    """Attention of heads in the first dimension. `guard`: of row i and column j, where it is not all of them; `score`:
    what is added to a score. Beside torch's own choice of kernel that of cuDNN, where it has the mask."""
    seen = f"{guard} ? " if guard else ""
    source = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F]{others}) -> (O) {{
        S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]) / sqrt(E){score};
        L[b, i] = logsumexp({seen}S[b, i, j]);
        O[b, i, f] = sum({seen}exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }}"""
    masks: dict[object, torch.Tensor] = {}

    def mask(q: torch.Tensor, slope: torch.Tensor | None) -> torch.Tensor | None:
        if window is None:
            return None
        key = (q.shape, q.dtype, q.device)
        if key not in masks:
            i = torch.arange(q.shape[1], device=q.device)
            far = i[:, None] - i
            bias = torch.zeros_like(far, dtype=q.dtype) if slope is None else -far * slope[:, None, None]
            masks[key] = bias.to(q.dtype).masked_fill((far < 0) | (far >= window), -torch.inf)
        return masks[key]

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *slope: torch.Tensor) -> torch.Tensor:
        hidden = mask(q, slope[0] if slope else None)
        causal = guard != "" and hidden is None
        return F.scaled_dot_product_attention(q[None], k[None], v[None], hidden, is_causal=causal)[0]

    def by_cudnn(*tensors: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return formula(*tensors)

    return Work(source, formula, others=() if window is not None else ((CUDNN_PEER, by_cudnn),))


NEAR = "i >= j & i - j < 256"
ATTENTION, CAUSAL_ATTENTION, WINDOWED_ATTENTION = (
    attention_work(),
    attention_work("i >= j"),
    attention_work(NEAR, window=256),
)
ALIBI_ATTENTION = attention_work(NEAR, " + Slope[b] * (j - i)", ", Slope[B]", window=256)
ROW_SUMS = Work("function (X[N, D]) -> (Y) { Y[i : N] = +(X[i, j]); }", lambda x: x.sum(1))
COLUMN_SUMS = Work("function (X[N, D]) -> (Y) { Y[j : D] = +(X[i, j]); }", lambda x: x.sum(0))
ADD = Work("function (X[N]) -> (Y) { Y = X + 1; }", lambda x: x + 1)
