"""What is computed from a reshaped tensor is computed over the axes that the reshape put together."""

import pytest
import torch

import tilec
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import CallContext, apply

GROUP_NORM = """function (X[B, C, T], G[C], S[B, C], K[L]) -> (Y) {
    Z = reshape(X, B, L, C/L, T);
    M[b, k] = mean(Z[b, k, c, t]);
    V[b, k] = mean((Z[b, k, c, t] - M[b, k]) * (Z[b, k, c, t] - M[b, k]));
    N[b, k, c, t] = (Z[b, k, c, t] - M[b, k]) * rsqrt(V[b, k] + 0.00001);
    R = reshape(N, B, C, T);
    Y[b, c, t] = silu(R[b, c, t] * G[c] + S[b, c]);
}"""


def flat(text: str, *shapes: tuple[int, ...]) -> Program:
    source = parse(text)
    types = {i.name: TensorType(s, "float32") for i, s in zip(source.inputs, shapes, strict=True)}
    return apply(("bind", "flatten", "simplify", "views", "split_axes"), source, CallContext(types, {}))


def test_a_group_norm_is_one_kernel_and_two_backward() -> None:
    specs = [tilec.spec(s, "bfloat16") for s in ((4, 64, 512), (64,), (4, 64), (8,))]
    f = tilec.compile(GROUP_NORM)
    assert len(f.lower(*specs, target="sm_90").kernels) == 1
    backward = f.grad(("X",)).lower(*specs, specs[0], target="sm_90")
    assert len(backward.kernels) <= 2, backward.source()


CASES = {
    "map and sums": (
        "Z = X * 2; R = reshape(Z, 12, 5); Y[i, j] = R[i, j] * G[i]; S[i] = sum(R[i, j] * Y[i, j] * i); "
        "T[j] = max(Y[i, j])",
        ((3, 4, 5), (12,)),
    ),
    "apart and together": (
        "Z = X * 2; R = reshape(Z, 2, 6, 5); W[g, r, n] = R[g, r, n] - A[g, n]; "
        "C = reshape(W, 12, 5); Y[i, j] = C[i, j] * C[i, j] + G[i]",
        ((4, 3, 5), (2, 5), (12,)),
    ),
    "a read beyond": ("Z = X * 2; R = reshape(Z, 12); Y[i : 12] = R[i] * G[i + 1]; S[i : 9] = R[i]", ((3, 4), (12,))),
    "other parts": ("Z = X * 2; R = reshape(Z, 12); Q = A + 1; T = reshape(Q, 12); Y = R * T", ((4, 3), (3, 4))),
    "outputs of one tensor": ("Z = X * 2; R = reshape(Z, 12, 5); Q = reshape(Z, 3, 20); Y = sin(R)", ((3, 4, 5),)),
    "ones": ("Z = X * 2; R = reshape(Z, 1, 12, 1); Y[a, i, b] = R[a, i, b] * G[i]", ((3, 1, 4), (12,))),
    "past an axis of one": ("Z = X * 2; R = reshape(Z, 12, 1); Y[i, b : 12, 3] = R[i, b] * G[i]", ((3, 4), (12,))),
    "sums over an axis of one": (
        "Z = X * 2; R = reshape(Z, 12, 1); Y[i : 12] = sum(R[i, b] * G[i, b]); S[i : 12] = sum(b < 2 ? R[i, b])",
        ((3, 4), (12, 3)),
    ),
    "a draw": ("Z = X * 2; R = reshape(Z, 12); Y[i] = rand(7, i) < 0.5 ? R[i] : 0", ((3, 4),)),
    "a product": ("Z = X * 2; R = reshape(Z, 12, 5); Y[i, j] = sum(R[i, k] * G[k, j])", ((3, 4, 5), (5, 2))),
    "argmax": (
        "Z = X * 2; R = reshape(Z, 12, 5); Y[j] = argmax(R[i, j]); S[j] = max(R[i, j] * G[i])",
        ((3, 4, 5), (12,)),
    ),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    """As the oracle has them, which runs no pass."""
    text, shapes = CASES[name]
    torch.manual_seed(0)
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    f = tilec.compile(text)
    made = f(*given)
    made = made if isinstance(made, tuple) else (made,)
    wanted = tilec.interpret(text, *[t.detach().numpy() for t in given])
    for value, want in zip(made, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert torch.allclose(value.detach().double(), torch.as_tensor(want).double())

    def floating(*x: torch.Tensor) -> list[torch.Tensor]:
        out = f(*x)
        return [o for o in (out if isinstance(out, tuple) else (out,)) if o.is_floating_point()]

    assert torch.autograd.gradcheck(floating, given)


def test_what_stays() -> None:
    """A reshape that a product of matrices reads, and one of which two statements want other parts."""
    for name in ("a product", "other parts"):
        text, shapes = CASES[name]
        assert not [s for s in flat(text, *shapes).statements if "_apart" in s.output]
    text, shapes = CASES["map and sums"]
    assert [s.output for s in flat(text, *shapes).statements] == ["Z", "Y_apart", "S_apart", "S", "T"]
