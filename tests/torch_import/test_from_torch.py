"""Functions of torch as Tile: the same values and gradients, at other sizes too; what has no translation is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tilec

torch.manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def whole(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(limit, shape)


def rotated(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * c - high * s, low * s + high * c], -1)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(3, 6), torch.nn.Linear(6, 3, bias=False)
        self.norm = torch.nn.LayerNorm(3)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(F.silu(self.up(self.norm(x))))


X, Y, V = normal(4, 6), normal(4, 6), normal(6)
IMAGE = normal(2, 4, 7, 6)
CASES: dict[str, tuple[Callable, tuple]] = {
    "sum of products": (lambda x, w: x @ w, (X, normal(6, 5))),
    "softmax of a product": (lambda x, w: torch.softmax(x @ w, -1), (X, normal(6, 5))),
    "log softmax over rows": (lambda x: F.log_softmax(x, 0), (X,)),
    "arithmetic": (lambda x, y: (x + 2 * y) * (x - y) / (1 + y * y) - -x, (X, Y)),
    "alpha": (lambda x, y: torch.add(x, y, alpha=2) - torch.sub(y, x, alpha=0.5) + torch.rsub(x, 1), (X, Y)),
    "differences nest to the right": (lambda x, y: x - (y - (x - 1)) - (x / (y / 2)), (X, Y)),
    "broadcast": (lambda x, v: x * v + v[2], (X, V)),
    "functions": (lambda x: torch.exp(-x.abs()) + torch.tanh(x).sigmoid() + torch.log1p(x * x) + torch.erf(x), (X,)),
    "activations": (lambda x: F.gelu(x) + F.silu(x) + F.relu(x) + F.softplus(x) + F.mish(x), (X,)),
    "more activations": (
        lambda x: F.gelu(x, approximate="tanh") + F.elu(x) + F.leaky_relu(x) + F.selu(x) + F.hardswish(x)
        + F.softplus(x, 2.0) + F.relu6(x),
        (X,),
    ),
    "powers": (lambda x: x**2 + x**3 + x.abs() ** 0.5 + 1 / x + x.square() + torch.pow(2.0, x), (X,)),
    "clamps": (lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp_max(0.2) + torch.maximum(x, -x), (X,)),
    "choices": (lambda x, y: torch.where(x > y, x, 2 * y) + x.masked_fill(x > 0, -1.0), (X, Y)),
    "comparisons": (lambda x, y: ((x > y) & ~(x == 0)) | (y <= 0), (X, Y)),
    "logic": (lambda x: torch.logical_not(x).float() + torch.logical_and(x, x - 1), (whole(3, 5),)),
    "whole numbers": (
        lambda x, y: (x / y, x // y, torch.div(x, y, rounding_mode="trunc"), x % y, x & y, x ^ 3),
        (whole(9, 7) - 4, whole(4, 7) + 1),
    ),
    "division rounded": (
        lambda x, y: torch.div(x, y, rounding_mode="floor") + torch.div(x, y, rounding_mode="trunc"), (X, Y),
    ),
    "casts": (lambda x: x.float() + x.long().double(), (X,)),
    "detached": (lambda x: x * x.detach(), (X,)),
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.mean((0, 1)), x.mean(1)), (X,)),
    "extrema": (lambda x: (x.amax(1), x.amin(0, keepdim=True), x.max(1).values, x.min(), x.max(0).indices), (X,)),
    "positions": (lambda x: (x.argmax(1), x.argmin(0), x.argmax()), (X,)),
    "variances": (lambda x: (x.var(1), x.std(0), x.var(0, correction=0, keepdim=True), *torch.var_mean(x, 1)), (X,)),
    "norms": (lambda x: (x.norm(dim=1), x.norm(), torch.linalg.vector_norm(x, 1, 0), F.normalize(x, dim=1)), (X,)),
    "products, any, all": (lambda x: (x.prod(1), (x > 0).any(1), (x > -9).all()), (X,)),
    "sums of whole numbers": (lambda x: (x.sum(), x.cumsum(0), (x > 1).sum(0)), (whole(5, 4, 3),)),
    "log-sum-exp": (lambda x: torch.logsumexp(x, 1) + torch.logsumexp(x, (0,)).sum(), (X,)),
    "scans": (lambda x: (x.cumsum(1), torch.logcumsumexp(x, 0), x.cumprod(1)), (X,)),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), (normal(2, 3, 4), normal(2, 4, 5))),
    "einsum, implicit": (lambda x, y: torch.einsum("ij,jk", x, y), (X, normal(6, 3))),
    "einsum, diagonal": (lambda x: torch.einsum("ii->i", x), (normal(4, 4),)),
    "batches that broadcast": (lambda x, y: x @ y, (normal(2, 1, 3, 4), normal(5, 4, 2))),
    "matrix by vector": (lambda x, v: (x @ v, v @ x.T, v @ v), (X, V)),
    "added products": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (normal(5), X, normal(6, 5))),
    "outer": (torch.outer, (V, normal(3))),
    "bilinear": (lambda x, y, w: F.bilinear(x, y, w), (X, normal(4, 3), normal(5, 6, 3))),
    "views": (
        lambda x: (x.reshape(-1), x.view(2, 2, 6), x.unflatten(1, (2, 3)).flatten(0, 1), x[:, None].squeeze(1)), (X,),
    ),
    "transpositions": (lambda x: (x.T, x.permute(2, 0, 1), x.transpose(-1, 0))[1:], (normal(2, 3, 4),)),
    "slices": (lambda x: (x[1:], x[:, ::2], x[-2:, 1:-1], x[0], x[..., -1], x[1:3, 2]), (X,)),
    "chunks": (lambda x: (*x.chunk(3, 1), *x.split([1, 3]), *x.unbind(0)), (X,)),
    "rotary": (rotated, (normal(2, 5, 8), normal(5, 4), normal(5, 4))),
    "cat and stack": (lambda x, y: (torch.cat([x, y, x], 1), torch.stack([x, y], 1)), (X, Y)),
    "pads": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, -1, 2, 0), value=3.0)), (X,)),
    "turns": (lambda x: (x.flip(1), x.roll(2, 1), x.roll((-1, 1), (0, 1))), (X,)),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1), x.diagonal(), x.diagonal(1), x.diagonal(-2)), (X,)),
    "windows": (lambda x: x.unfold(1, 3, 2), (X,)),
    "expand": (lambda v: v[:, None].expand(6, 4) * 2 + v.expand(2, 4, 6).sum((0, 1))[:, None], (V,)),
    "embedding": (lambda w, i: F.embedding(i, w), (X, whole(4, 2, 3))),
    "gather": (lambda x, i: x.gather(1, i), (X, whole(6, 4, 2))),
    "rows by index": (lambda x, i: x[i] + x.index_select(0, i) + x[i - 4], (X, whole(4, 5))),
    "elements by index": (lambda x, i, j: x[i, j] + x[i[:, None], j][:, 0], (X, whole(4, 5), whole(6, 5))),
    "scatter": (lambda x, i, s: x.scatter_add(1, i, s), (X, whole(6, 4, 3), normal(4, 3))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), (X, whole(4, 7), normal(7, 6))),
    "filled": (lambda x: x + torch.zeros_like(x) + torch.full((6,), 2.0) + torch.arange(6) * torch.ones(4, 1), (X,)),
    "convolution": (lambda x, k, b: F.conv2d(x, k, b, padding=1), (IMAGE, normal(3, 4, 3, 3), normal(3))),
    "strided, dilated": (lambda x, k: F.conv2d(x, k, stride=2, dilation=(1, 2)), (IMAGE, normal(3, 4, 2, 3))),
    "depthwise": (lambda x, k, b: F.conv2d(x, k, b, padding=1, groups=4), (IMAGE, normal(4, 1, 3, 3), normal(4))),
    "grouped": (lambda x, k, b: F.conv2d(x, k, b, groups=2), (IMAGE, normal(6, 2, 3, 3), normal(6))),
    "more kernels a channel": (lambda x, k: F.conv2d(x, k, groups=4), (IMAGE, normal(8, 1, 3, 3))),
    "one dimension": (lambda x, k: F.conv1d(x, k, stride=2, padding=2), (normal(2, 3, 9), normal(4, 3, 5))),
    "three dimensions": (lambda x, k: F.conv3d(x, k), (normal(1, 2, 4, 4, 3), normal(3, 2, 2, 2, 2))),
    "transposed convolution": (
        lambda x, k, b: F.conv_transpose2d(x, k, b, stride=2, padding=1, output_padding=1),
        (IMAGE, normal(4, 3, 3, 3), normal(3)),
    ),
    "max pools": (
        lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, ceil_mode=True)), (IMAGE,),
    ),
    "average pools": (
        lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        (IMAGE,),
    ),
    "adaptive pools": (lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (1, 3))), (IMAGE,)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (X, V, normal(6))),
    "rms norm": (lambda x, w: F.rms_norm(x, (6,), w) + F.rms_norm(x, (6,), None, 1e-3), (X, V)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, normal(4), normal(4))),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (IMAGE, normal(4), normal(4))),
    "batch norm, kept statistics": (
        lambda x, m, v: F.batch_norm(x, m.detach(), v.detach().abs() + 1, None, None, False),
        (IMAGE, normal(4), normal(4)),
    ),
    "attention": (F.scaled_dot_product_attention, (normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 2))),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), (normal(2, 5, 4),) * 3,
    ),
    "masked attention": (
        lambda q, k, v, m, b: F.scaled_dot_product_attention(q, k, v, m) + F.scaled_dot_product_attention(q, k, v, b),
        (normal(2, 5, 4), normal(2, 6, 4), normal(2, 6, 3), torch.eye(5, 6) + torch.ones(5, 6) > 0, normal(5, 6)),
    ),
    "cross-entropy": (lambda x, t: F.cross_entropy(x, t), (X, torch.tensor([1, -100, 3, 5]))),
    "cross-entropy of pixels": (lambda x, t: F.cross_entropy(x, t, reduction="none"), (IMAGE, whole(4, 2, 7, 6))),
    "losses": (
        lambda x, y: F.mse_loss(x, y) + F.l1_loss(x, y, reduction="sum") + F.smooth_l1_loss(x, y)
        + F.binary_cross_entropy_with_logits(x, y) + F.huber_loss(x, y),
        (X, Y),
    ),
    "cosine similarity": (lambda x, y: F.cosine_similarity(x, y), (X, Y)),
    "one-hot": (lambda i: F.one_hot(i, 5), (whole(5, 4),)),
    "a module": (Mlp().double(), (normal(4, 3),)),
    "outputs that are inputs": (lambda x: (x, x + 1), (X,)),
}  # fmt: skip


QUICK = (
    *("arithmetic", "variances", "slices", "elements by index", "scatter", "average pools", "masked attention"),
    *("cross-entropy", "a module"),
)


def tiered(name: str) -> object:
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("name", map(tiered, CASES))
@pytest.mark.one_in(6)
def test_as_torch(name: str) -> None:
    function, arguments = CASES[name]
    translated = tilec.from_torch(function, *arguments)
    module = [*function.parameters(), *function.buffers()] if isinstance(function, torch.nn.Module) else []
    given = [a.clone().requires_grad_(a.is_floating_point()) for a in arguments]
    ours, theirs = listed(translated(*given, *module)), listed(function(*given))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    kept = [n for n, t in enumerate(theirs) if t.requires_grad]
    leaves = [a for a in given if a.requires_grad]
    if kept and leaves:
        weights = [torch.randn_like(theirs[n]) for n in kept]
        found = torch.autograd.grad([ours[n] for n in kept], leaves, weights, materialize_grads=True)
        expected = torch.autograd.grad([theirs[n] for n in kept], leaves, weights, materialize_grads=True)
        torch.testing.assert_close(found, expected)


def listed(value: object) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("softmax of a product", [(7, 2), (2, 9)]),
        pytest.param("slices", [(9, 5)], marks=pytest.mark.slow),
        pytest.param("cat and stack", [(3, 2), (3, 2)], marks=pytest.mark.slow),
        pytest.param("convolution", [(1, 5, 9, 8), (2, 5, 3, 3), (2,)], marks=pytest.mark.slow),
        pytest.param("max pools", [(3, 1, 9, 10)], marks=pytest.mark.slow),
        pytest.param("variances", [(5, 3)], marks=pytest.mark.slow),
        pytest.param("layer norm", [(9, 6), (6,), (6,)], marks=pytest.mark.slow),
        pytest.param("causal attention", [(3, 7, 5), (3, 7, 5), (3, 7, 5)], marks=pytest.mark.slow),
        ("rotary", [(3, 4, 10), (4, 5), (4, 5)]),
    ],
)
def test_other_sizes(name: str, shapes: list[tuple[int, ...]]) -> None:
    function, arguments = CASES[name]
    translated = tilec.from_torch(function, *arguments)
    given = [normal(*shape) for shape in shapes]
    for a, b in zip(listed(translated(*given)), listed(function(*given)), strict=True):
        torch.testing.assert_close(a, b)


def test_the_text() -> None:
    f = tilec.from_torch(lambda x, w: torch.softmax(x @ w, -1), torch.randn(4, 3), tilec.spec((3, 5)))
    assert str(f) == (
        "function (X[N, M], W[M, K]) -> (Softmax) {\n"
        "    Matmul[i, j : N, K] = +(X[i, k] * W[k, j]);\n"
        "    Softmax[i, j : N, K] = exp(Matmul[i, j] - logsumexp(Matmul[i, k]));\n"
        "}\n"
    )


def test_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilec.from_torch(torch.exp, torch.ones(3))


def test_fixed_sizes() -> None:
    f = tilec.from_torch(lambda x: x.sum(0), torch.randn(4, 3), dynamic=False)
    assert "X[4, 3]" in str(f)


class Transformed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.qr(x).Q
        return torch.fft.fft(y).real


def test_what_has_no_translation_is_named() -> None:
    with pytest.raises(tilec.Unsupported) as told:
        tilec.from_torch(Transformed(), torch.randn(4, 4))
    assert "aten.linalg_qr    in: y = torch.linalg.qr(x).Q" in str(told.value)
    assert "aten._fft_r2c    in: return torch.fft.fft(y).real" in str(told.value)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lambda x: x if x.sum() > 0 else -x, (torch.ones(3),), "torch.export cannot capture"),
        (lambda x: x[x > 0], (torch.randn(5),), "no translation of"),
        (lambda x: F.dropout(x), (torch.ones(3),), "dropout in training"),
        (lambda x: x.add_(1), (torch.ones(3),), "changes an input in place"),
        (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), (torch.ones(3),), "constant tensor of shape"),
        (lambda x: x.to(torch.complex64), (torch.ones(3),), "complex64"),
    ],
)
@pytest.mark.one_in(3)
def test_refused(function: Callable, arguments: tuple, message: str) -> None:
    with pytest.raises(tilec.Unsupported, match=message):
        tilec.from_torch(function, *arguments)


def test_what_is_no_function() -> None:
    with pytest.raises(tilec.InputMistake, match="a function or a module, not str"):
        tilec.from_torch("x + 1")  # type: ignore[arg-type]
