"""What is measured of layers on a CPU: forward and backward through torch's autograd, as users have them, against eager
torch and against the same program with every statement over whole tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import tilec
from tilec.bench.cpu import randn
from tilec.bench.measure import BuildCandidates, Candidate, Case
from tilec.knobs import BLOCK

Tensor = torch.Tensor
EAGER_PEER, UNFUSED = "eager", "the same, unfused"
ROW_COUNT, COLUMNS = 2048, 1024
_EVERYTHING = 2**62  # elements a block: nothing is cut


@dataclass(frozen=True)
class Layer:
    """`inputs` need gradients, `numbers` follow them; `formula` is eager torch over the inputs alone."""

    source: str
    formula: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[float, ...] = ()
    random: bool = False


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-5) * w + b


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def geglu(x: Tensor) -> Tensor:
    a, g = x.chunk(2, 1)
    return a * (0.5 * g * (1 + torch.erf(g * 0.5**0.5)))


WHOLE_MATRIX = (ROW_COUNT, COLUMNS)
LAYERS = {
    "layer norm": Layer(
        """function (X[N, D], W[D], B[D]) -> (Y) {
            M[i] = mean(X[i, j]);
            R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
            Y[i, j] = (X[i, j] - M[i]) * R[i] * W[j] + B[j];
        }""",
        layer_norm,
        (WHOLE_MATRIX, (COLUMNS,), (COLUMNS,)),
    ),
    "softmax": Layer(
        "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))", softmax, (WHOLE_MATRIX,)
    ),
    "GEGLU": Layer(
        "function (X[N, E]) -> (Y) { Y[i, j : N, E/2] = X[i, j] * gelu(X[i, j + E/2]); }",
        geglu,
        ((ROW_COUNT, 2 * COLUMNS),),
    ),
    "dropout + residual": Layer(
        "function (X, R, S, P) -> (Y) { Y = R + (rand(S) < P ? X / P : 0); }",
        lambda x, r: r + F.dropout(x, 0.1),
        (WHOLE_MATRIX, WHOLE_MATRIX),
        (7, 0.9),
        random=True,
    ),
}


@contextmanager
def _nothing_cut() -> Iterator[None]:
    before = os.environ.get(BLOCK.name)
    os.environ[BLOCK.name] = str(_EVERYTHING)
    try:
        yield
    finally:
        os.environ.pop(BLOCK.name)
        if before is not None:
            os.environ[BLOCK.name] = before


def _candidate(call: Callable[..., Tensor], inputs: list[Tensor], backward: bool) -> Candidate:
    """A call or a backward pass, whose first run makes all executables."""
    if not backward:
        plain = [x.detach() for x in inputs]
        return lambda: call(*plain)
    value = call(*inputs)
    d = randn(*value.shape)
    return lambda: torch.autograd.grad(value, inputs, d, retain_graph=True)


def _build(layer: Layer, peer: str, backward: bool) -> BuildCandidates:
    def build() -> tuple[Candidate, dict[str, Candidate]]:
        inputs = [randn(*s).requires_grad_() for s in layer.shapes]
        cut, uncut = (tilec.compile(layer.source) for _ in range(2))
        ours = _candidate(lambda *x: cut(*x, *layer.numbers), inputs, backward)
        if peer == EAGER_PEER:
            other = _candidate(layer.formula, inputs, backward)
        else:
            with _nothing_cut():
                other = _candidate(lambda *x: uncut(*x, *layer.numbers), inputs, backward)
                other()
        return other, {"tilec": ours}

    return build


def _cases() -> Iterator[Case]:
    for name, layer in LAYERS.items():
        for way in ("forward", "backward"):
            for peer in (UNFUSED, EAGER_PEER):
                tolerance = float("inf") if layer.random and peer == EAGER_PEER else 1e-4  # another mask
                goals = {"tilec": 1.0} if peer == UNFUSED else {}
                yield Case(f"{name}, {way}", peer, _build(layer, peer, way == "backward"), goals, tolerance)


LAYER_CASES = list(_cases())
