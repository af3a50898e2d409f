"""torch's own gradcheck and gradgradcheck, through autograd, for every scalar function and every aggregation."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.types import DTYPES

DOMAINS = {  # where a function is smooth; elsewhere (-2, 2)
    "log": (0.3, 2), "sqrt": (0.3, 2), "rsqrt": (0.3, 2), "recip": (0.3, 2), "asin": (-0.8, 0.8), "acos": (-0.8, 0.8),
    "tan": (-1, 1), "log1p": (-0.5, 2), "pow": (0.3, 2), "div": (0.3, 2), "mod": (0.6, 0.9),
    "abs": (0.3, 2), "relu": (0.3, 2),
}  # fmt: skip
SMOOTH = [
    f for f in FUNCTIONS.values()
    if f.pullback is not None and f.name not in ("select", "reverse_grad", "as_type", *DTYPES)
]  # fmt: skip


def text(f, args: list[str]) -> str:
    if f.symbol and f.arity == (1, 1):
        return f"{f.symbol}{args[0]}"
    return f"{args[0]} {f.symbol} {args[1]}" if f.symbol else f"{f.name}({', '.join(args)})"


def sample(shape: tuple[int, ...], low: float, high: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("form", ["elementwise", "in a body"])
@pytest.mark.parametrize("f", SMOOTH, ids=lambda f: f.name)
def test_scalar_function(f, form: str) -> None:
    low, high = DOMAINS.get(f.name, (-2, 2))
    names = "XYZ"[: f.arity[1]]
    inputs = [sample((3, 4), low, high, seed) for seed in range(len(names))]
    if form == "elementwise":
        source = f"function ({', '.join(names)}) -> (R) {{ R = {text(f, list(names))}; }}"
    else:
        declared = ", ".join(f"{n}[I, J]" for n in names)
        body = text(f, [f"{n}[i, j]" for n in names])
        source = f"function ({declared}) -> (R) {{ R[i : I] = +(({body}) * X[i, j]); }}"
    function = tilec.compile(source)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


BODIES = ["A[i, j]", "A[i, j] * B[j]", "A[i, j] + B[j]", "sin(A[i, j]) / (2 + B[j] * B[j])", "A[2*i - j, j] * B[j]"]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("aggregation", ["sum", "prod", "max", "min", "logsumexp", "mean"])
def test_aggregation(aggregation: str, body: str) -> None:
    assert aggregation in AGGREGATIONS
    if aggregation == "logsumexp" and "2*i" in body:
        body = body.replace("A[2*i - j, j]", "A[i, j]")  # every row of the output must have a point
    function = tilec.compile(f"function (A[I, J], B[J]) -> (O) {{ O[i : I] = {aggregation}({body}); }}")
    inputs = sample((4, 3), -2, 2, 0), sample((3,), 0.5, 2, 1)

    def finite(*tensors: torch.Tensor) -> torch.Tensor:
        value = function(*tensors)
        return torch.where(value.isfinite(), value, 0)  # the identity of an empty max is infinite

    assert torch.autograd.gradcheck(finite, inputs)
    assert torch.autograd.gradgradcheck(finite, inputs, fast_mode=True)


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_product_with_zeros(zeros: int) -> None:
    a = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a[0, :zeros] = 0
    function = tilec.compile("function (A[I, J]) -> (O) { O[i : I] = *(A[i, j]); }")
    assert torch.autograd.gradcheck(function, a.requires_grad_())
    assert torch.autograd.gradgradcheck(function, a, fast_mode=True)


def test_ties_share_as_torch_amax() -> None:
    a = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    function = tilec.compile("function (A[I, J]) -> (O) { O[i : I] = >(A[i, j]); }")
    (ours,) = torch.autograd.grad(function(a).sum(), a)
    (theirs,) = torch.autograd.grad(a.amax(1).sum(), a)
    torch.testing.assert_close(ours, theirs)


CONSTRUCTS = {
    "default": "function (A[N], X[M]) -> (O) { O[2*i : M] = A[i] * A[i] default X; }",
    "pad": "function (A[N], V[]) -> (O) { O[i : N] = sin(pad(A[2*i - 1], V[] * V[])) * A[i]; }",
    "gather and scatter": "function (A[N]) -> (O) { O[(3*i) % N : N] = +(A[i] * A[(i + 1) % N]); }",
    "a guard": "function (A[N]) -> (O) { O[i : N] = +(A[j] > A[i] ? A[i] * A[j]); }",
    "a constraint": "function (A[N]) -> (O) { O[i : N] = +(A[k] * A[k]), i - k < N; }",
    "a chain": "function (A[N]) -> (O) { M[] = >(A[i]); E = exp(A - M); S[] = +(E[i]); O = E / S; }",
    "nested": "function (A[N]) -> (O) { O[i : N] = tanh(sum(A[j] * A[j]) + A[i]) * prod(A[j] + A[i]); }",
    "a broadcast": "function (A[N]) -> (O) { B = reshape(A, N, 1); O = (A * B) * (A - sin(B)); }",
    "structure": "function (A[N]) -> (O) { B = reshape(A, 2, N / 2); W[0, j : 1, N / 2] = B[1, j]; C = simple_reduce(B * B, W) * B; O = C + gather(B, 1); }",  # noqa: E501
    "softmax": "function (A[N]) -> (O) { B = reshape(A, 2, N / 2); O = builtin_softmax(B, 2, N / 2) * builtin_logsoftmax(B, 2, N / 2); }",  # noqa: E501
    "a fraction": "function (A[N]) -> (O) { O[i : N] = +(A[(i - k + 1)/2] * A[k]), k < 3; }",
    "an output twice": "function (A[N]) -> (B, B, A) { B = A * A; }",
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_construct(name: str) -> None:
    function = tilec.compile(CONSTRUCTS[name])
    sizes = {"A": (6,), "X": (11,), "V": ()}
    inputs = [sample(sizes[n], 0.3, 1.5, seed) for seed, n in enumerate(function.inputs)]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
