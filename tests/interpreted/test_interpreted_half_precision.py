"""Kernels in 16 bits, interpreted on the CPU: programs that once failed to compile, or lost more than their type."""

import os

import pytest
import torch
from support.half_precision import CASES, check

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(6)
def test_values_and_gradients(case, dtype):
    check(case, dtype, "triton", "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_casts_to_bfloat16_and_back_round_as_hardware_does(dtype):
    numbers = torch.tensor([1.00390625, 1.01171875, -3.3, 257, 2.0**-130, 255, float("inf"), float("nan")]).double()
    x = (numbers if dtype.is_floating_point else numbers[:6]).to(dtype)
    there = tilec.compile("function (X) -> (Y) { Y = bfloat16(X) * 1; }", backend="triton")
    torch.testing.assert_close(there(x), x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    back = tilec.compile(f"function (X) -> (Y) {{ Y = {str(dtype)[6:]}(X); }}", backend="triton")
    torch.testing.assert_close(back(x.bfloat16()[:6]), x.bfloat16()[:6].to(dtype), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_at_their_ends():
    """As torch has them, in both widths."""
    ends = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 100.0, -100.0, 1e-30])
    for name in ("softplus", "sigmoid", "silu", "tanh", "relu", "erf", "abs", "exp", "expm1", "atan", "recip", "gelu"):
        f, g = (tilec.compile(f"function (X) -> (Y) {{ Y = {name}(X); }}", backend=b) for b in ("triton", "torch"))
        for x in (ends, ends.double()) if name != "gelu" else (ends[1:],):  # torch's own is NaN at infinity
            torch.testing.assert_close(f(x), g(x), rtol=1e-5, atol=1e-37, equal_nan=True, msg=name)


def test_a_maximum_is_found_again_whoever_computed_what_it_was_made_of():
    """What is compared with an extremum is computed from 16-bit values as stored, in the kernel of the extremum too."""
    text = (
        "function (A[N], B[N], W[M]) -> (Y)"
        " { T[i] = A[i] / (2 + B[i] * B[i]); Y[i : N] = max(erf(B[i]) - W[4*i/3] * T[i]); }"
    )
    g = torch.Generator().manual_seed(0)
    a, b, w = (torch.randn(n, generator=g).to(torch.bfloat16) for n in (48, 48, 63))
    got, expected = (
        tilec.compile(text, backend=name).grad(("W",))(a, b, w, torch.ones(48, dtype=torch.bfloat16))
        for name in ("triton", "torch")
    )
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0)


def test_a_maximum_that_was_kept_is_found_again():
    f = tilec.compile(
        "function (X[N, M], W[M]) -> (Y) { S[i] = sum(exp(X[i, j])); Y[i] = max(X[i, j] * W[j] / S[i]); }",
        backend="triton",
    )
    g = torch.Generator().manual_seed(0)
    x = torch.randn(24, 8, generator=g).to(torch.bfloat16).requires_grad_()
    f(x, torch.rand(8, generator=g).to(torch.bfloat16) + 0.5).sum().backward()
    assert (x.grad.abs().sum(1) > 0).all()


RELU = """function (X[M, H], W[J, H], A[J]) -> (Y) {
    O[m, j : M, J] = +(X[m, h] * W[j, h]);
    Y = relu(O + A);
}"""
HIDDEN = """function (X[M, H], W[J, H], A[J], V[J, L]) -> (Z) {
    O[m, j : M, J] = +(X[m, h] * W[j, h]);
    Y = relu(O + A);
    Z[m, l : M, L] = +(Y[m, j] * V[j, l]);
}"""


def errors(f: tilec.Function, exact, inputs: list[torch.Tensor]) -> tuple[list[float], list[float]]:
    """Of gradients, ours and torch's in the inputs' type, the greatest over the greatest gradient in float64."""
    wide = [t.double().requires_grad_() for t in inputs]
    value = exact(*wide)
    cotangent = torch.randn(value.shape, generator=torch.Generator().manual_seed(9)).to(inputs[0].dtype)
    wanted = torch.autograd.grad(value, wide, cotangent.double())

    def of(function) -> list[float]:
        given = [t.clone().requires_grad_() for t in inputs]
        found = torch.autograd.grad(function(*given), given, cotangent)
        return [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True)]

    return of(f), of(exact)


@pytest.mark.parametrize("shape", [(33, 64, 48), (128, 256, 65)])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.covering
def test_a_relu_has_the_mask_of_a_sum_that_is_rounded_with_its_bias(shape, hidden, dtype, backend):
    """The first row of the product is the negative bias but for rounding, so that rounding it would decide the mask."""
    m, h, j = shape
    g = torch.Generator().manual_seed(0)
    x, w, v = (torch.randn(s, generator=g).to(dtype) for s in ((m, h), (j, h), (j, 7)))
    a = -(x[0].double() @ w.double().T).to(dtype)
    f = tilec.compile(HIDDEN if hidden else RELU, backend=backend)
    inputs = [x, w, a, v] if hidden else [x, w, a]

    def exact(x, w, a, *v):
        y = torch.relu(torch.nn.functional.linear(x, w, a))
        return y @ v[0] if v else y

    ours, torchs = errors(f, exact, inputs)
    assert all(a <= 2 * b for a, b in zip(ours, torchs, strict=True)), (ours, torchs)
    assert "O" not in {s.name for s in f.saved(*inputs)}


BIASED = {  # of a sum and its bias, and torch's
    "leaky": ("O + A > 0 ? O + A : 0.1 * (A + O)", lambda t: torch.nn.functional.leaky_relu(t, 0.1)),
    "max": ("max(O + A, 0.1)", lambda t: torch.maximum(t, t.new_tensor(0.1))),
    "limits": ("min(max(O + A, -0.5), 0.5)", lambda t: t.clamp(-0.5, 0.5)),
    "elu": ("O + A > 0 ? O + A : exp(O + A) - 1", torch.nn.functional.elu),
    "gelu": ("gelu(O + A)", torch.nn.functional.gelu),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("activation", BIASED)
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.covering
def test_gradients_after_a_bias_read_the_sum_that_is_rounded_with_it(activation, dtype, backend):
    """The first row of the product is the negative bias but for rounding."""
    text, function = BIASED[activation]
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(s, generator=g).to(dtype) for s in ((33, 320), (48, 320)))
    a = -(x[0].double() @ w.double().T).to(dtype)
    f = tilec.compile(RELU.replace("relu(O + A)", text), backend=backend)
    ours, torchs = errors(f, lambda x, w, a: function(torch.nn.functional.linear(x, w, a)), [x, w, a])
    assert all(a <= 2 * b for a, b in zip(ours, torchs, strict=True)), (ours, torchs)
    assert {s.name for s in f.saved(x, w, a)} == {"X", "W", "O_biased"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_slope_of_a_bias_of_distances(weighted, dtype):
    """A sum over all pairs of what cancels within rows: an error that all of a row share is multiplied by distances."""
    n, m = 5, 33
    text = """function (S[N, M, M], A[N]) -> (P) {
        C[h, i, j : N, M, M] = 0.25*S[h, i, j] + A[h]*(j - i);
        P[h, i, j] = exp(C[h, i, j] - max[k](C[h, i, k])) / sum[k](exp(C[h, i, k] - max[l](C[h, i, l])));
    }"""
    if weighted:
        text = text.replace("A[N]) -> (P)", "A[N], V[N, M, D]) -> (O)")
        text = text.replace("\n    }", " O[h, i, d : N, M, D] = +(P[h, i, j] * V[h, j, d]); }")
    g = torch.Generator().manual_seed(0)
    s, a, v = torch.randn(n, m, m, generator=g), 0.3 * torch.randn(n, generator=g), torch.randn(n, m, 7, generator=g)

    def exact(s, a, *v):
        i = torch.arange(m)
        p = torch.softmax(0.25 * s + a[:, None, None] * (i - i[:, None]).to(s.dtype), -1)
        return p @ v[0] if v else p

    inputs = [t.to(dtype) for t in ((s, a, v) if weighted else (s, a))]
    ours, torchs = errors(tilec.compile(text, backend="triton"), exact, inputs)
    assert all(a <= 2 * b for a, b in zip(ours, torchs, strict=True)), (ours, torchs)
    assert {s.dtype for s in tilec.compile(text).saved(*inputs) if s.name[1:] in ("_max", "_sum")} == {"float32"}
