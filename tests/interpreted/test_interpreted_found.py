"""Programs that reading the Triton backend once found to go wrong, with memory that is not zero by luck."""

import os

import numpy as np
import pytest
import torch
from support.found import FOUND

import tilec
from tilec.backends.common import pairs
from tilec.backends.triton.fusion import grow_groups
from tilec.backends.triton.matmul import pack

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
G = torch.Generator().manual_seed(0)
INFINITY = float("inf")


def R(*shape):
    return torch.randn(shape, generator=G)


def I8(*shape):
    return torch.randint(-90, 91, shape, generator=G).to(torch.int8)


def nan_row():
    left = R(16, 16) + 100
    left[0] = float("nan")
    return left


THREE = "A[I, J], B[J, K], C[K, L]"
CASES = {
    "parts of a sum that writes every other element": ("A[I, K]", "O[2*i : 8] = +(A[i, k]);", (R(4, 20000),)),
    "parts of a product that writes every other row": (
        "A[I, K], B[K, J]", "O[2*i, j : 32, J] = +(A[i, k] * B[k, j]);", (R(16, 1024), R(1024, 16)),
    ),
    "more residues than there are classes on a grid": (
        "G[N, Y, X, D], K[D, 9, 9, C]",
        "O[n, 9*y + j, 9*x + i, c : N, 9*Y + 4, 9*X, C] = +(G[n, y, x, o] * K[o, j, i, c]);",
        (R(1, 2, 2, 3), R(3, 9, 9, 2)),
    ),
    "three operands under a constraint": (
        THREE, "O[i, l : I, L] = +(A[i, j] * B[j, k] * C[k, l]), j < 30;", (R(4, 40), R(40, 40), R(40, 40)),
    ),
    "three operands and a variable of one value": (
        "A[I, J, V], B[J, K], C[K, L]", "O[i, l, v : I, L, 1] = +(A[i, j, v] * B[j, k] * C[k, l]);",
        (R(16, 16, 5), R(16, 16), R(16, 16)),
    ),
    "a sum over the rows of what is made of a sum of one term": (
        "A[N, M], B[K], D[N, M]",
        """S[i : M] = sum(B[i - 1] - B[p]);
        T[i : M] = logsumexp(A[i, i] + S[i]), i - 1 < 3;
        Q[j, i : N, M] = A[j, i] >= T[i] ? D[j, i] : 0;
        O[i : M] = +(Q[j, i]);""",
        (R(2, 2), R(1), R(2, 2)),
    ),
    "two 16-bit factors of one operand": (
        "A[I, K], C[I, K], B[K, J]", "O[i, j : I, J] = +(float32(A[i, k]) * float32(C[i, k]) * float32(B[k, j]));",
        ((300 * R(16, 16)).half(), (300 * R(16, 16)).half(), R(16, 16).half()),
    ),
    "two 8-bit factors of one operand": (
        "A[I, K], C[I, K], B[K, J]", "O[i, j : I, J] = +(int32(A[i, k]) * int32(C[i, k]) * int32(B[k, j]));",
        (I8(16, 16), I8(16, 16), I8(16, 16)),
    ),
    "8-bit factors whose product wraps in 16": (
        "A[I, K], B[K, J]", "O[i, j : I, J] = +(int16(A[i, k]) * int16(B[k, j]) * 7);", (I8(16, 16), I8(16, 16)),
    ),
    "a computed operand with a variable of one value": (
        "A[I, K, V], B[K, J, W]", "O[i, j, v : I, J, 1] = +(sin(A[i, k, v]) * B[k, j, v]);",
        (R(16, 16, 5), R(16, 64, 1)),
    ),
    "a default that the body reads elsewhere": (
        "X[N, M]", "O[i, j : N, M] = +(X[k, l]), i < 1 default X;", (R(3, 4),),
    ),
    "a default that the body reads transposed": (
        "X[A, B, C, D]", "O[a, b, i, j : A, B, C, D] = +(X[i, j, a, b] * i), i < 1 default X;", (R(2, 3, 2, 3),),
    ),
    "a weighted sum beside a NaN": (
        "L[K, J], R[I, K], C[I, J], W[I, J]", "O[k, j : K, J] = +(exp(L[k, j] + R[i, k] - C[i, j]) * W[i, j]);",
        (nan_row(), R(16, 16), R(16, 16) + 100, R(16, 16)),
    ),
    "narrow terms of a log product": (
        "A[I, K], B[K, J], C[I, K]", "O[i, j : I, J] = logsumexp(A[i, k] + B[k, j] + C[i, k]);",
        (I8(16, 16), R(16, 16).double(), I8(16, 16)),
    ),
    "narrow terms that wrap before they are added": (
        "A[I, K], B[K, J], C[I, K]", "O[i, j : I, J] = logsumexp((A[i, k] + C[i, k]) + B[k, j]);",
        (I8(16, 16), R(16, 16).double(), I8(16, 16)),
    ),
    "narrow factors that wrap before they are multiplied": (
        "A[I, K], C[I, K], B[K, J]", "O[i, j : I, J] = +(A[i, k] * C[i, k] * B[k, j]);",
        (I8(16, 16), I8(16, 16), R(16, 16).double()),
    ),
    "a narrow factor that wraps under a minus": (
        "U[I, K], B[K, J]", "O[i, j : I, J] = +((-U[i, k]) * B[k, j]);",
        (I8(16, 16).to(torch.uint8), R(16, 64).double()),
    ),
    "a literal compared with 16-bit values": (
        "A[N]", "O = as_float(A == 0.1, 32);", (torch.tensor([0.1, 0.2]).half(),),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_pairs(monkeypatch):
    monkeypatch.setattr(pairs, "GAIN", 0.0)  # products of three operands are divided however small they are


@pytest.fixture(autouse=True)
def filled_memory():
    torch.use_deterministic_algorithms(True)  # new memory then holds NaN, or the greatest integer
    yield
    torch.use_deterministic_algorithms(False)


def reference(source, inputs):
    """The oracle, on numbers it holds exactly, or float64 torch operations where integers wrap nowhere."""
    arrays = [x.double().numpy() if x.dtype.is_floating_point else x.numpy() for x in inputs]
    return torch.as_tensor(tilec.interpret(source, *arrays))


@pytest.mark.parametrize("case", CASES)
def test_found_by_reading(case):
    inputs, text, tensors = CASES[case]
    source = f"function ({inputs}) -> (O) {{ {text} }}"
    if case == "a literal compared with 16-bit values":
        wanted = torch.tensor([1.0, 0.0])
    elif case == "parts of a sum that writes every other element":
        wanted = torch.zeros(8, dtype=torch.float64)
        wanted[::2] = tensors[0].double().sum(1)
    else:
        wanted = reference(source, tensors)
    got = tilec.compile(source, backend="triton")(*tensors)
    torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-5, atol=2e-4, equal_nan=True)
    plain = tilec.compile(source, backend="torch")(*tensors)
    torch.testing.assert_close(plain.double(), wanted.double(), rtol=2e-5, atol=2e-4, equal_nan=True)


def test_a_tensor_times_itself_is_copied_once(monkeypatch):
    monkeypatch.setattr(pack, "LEAST_WORK", 1)
    x = R(32, 64)
    f = tilec.compile("function (X[K, N]) -> (O) { O[i, j : N, N] = +(X[k, i] * X[k, j]); }", backend="triton")
    torch.testing.assert_close(f(x), x.T @ x, rtol=1e-4, atol=1e-4)
    assert [k.name for k in f.lower(x).kernels] == ["X_packed0_kernel", "O_dot"]


def test_many_points_over_small_tensors_count_in_64_bits():
    source = "function (A[I], B[J], C[K]) -> (O) { O[] = >(A[i] * B[j] * C[k]); }"
    lowered = tilec.compile(source, backend="triton").lower(*(tilec.spec((2000,)) for _ in range(3)))
    assert "tl.int64" in lowered.kernels[0].source
    assert "tl.int64)" not in tilec.compile(source, backend="triton").lower(*(tilec.spec((20,)),) * 3).kernels[0].source


@pytest.mark.parametrize(
    "case",
    [
        "a pad of what one reduction alone reads",
        "a tensor that one reduction alone asks whether it is inside",
        "a sum over a gather from nothing",
        "a logsumexp over a gather that is partly outside",
        "a maximum over elements that nothing writes",
        "a product over a guarded assignment",
        "an extremum's gradient where no point is",
        "a recurrence that sums all of its elements so far",
        "a sum of tensors written in part, of which another sum is made",
    ],
)
def test_what_is_asked_of_an_intermediate(case):
    """It keeps its sizes and its zeros: what it is computed from is inside elsewhere, or nowhere."""
    source, arrays = FOUND[case]
    inputs = [torch.from_numpy(np.asarray(a)) for a in arrays]
    ours, theirs = (tilec.compile(source, backend=name) for name in ("triton", "torch"))
    found = ours(*inputs)
    torch.testing.assert_close(found, theirs(*inputs))
    ones = [torch.ones_like(t) for t in (found if isinstance(found, tuple) else (found,))]
    torch.testing.assert_close(ours.grad()(*inputs, *ones), theirs.grad()(*inputs, *ones))


PRODUCERS = [
    "U[i : N + 2] = A[i + 1]",
    "U[i : N] = A[i + 2] * B[i]",
    "U[i : N] = A[i] + B[i + 1]",
    "U[i : N] = A[I[i]]",
    "U[i : N] = pad(A[i + 2], 3.0) * A[i + 1]",
    "U[i : N] = A[i], i < 3",
    "U[i : N] = A[i] > 0 ? A[i]",
    "U[i : N + 1] = -A[N - 1 - i]",
]
REDUCTIONS = [
    "+(exp(U[i]))", ">(-abs(U[i]))", "*(U[i] + 1)", "logsumexp(U[i])", "mean(abs(U[i] - 1))", "any(U[i] == 0)",
    "argmin(U[i] * U[i])", "+(cos(U[i]) * B[i])",
]  # fmt: skip


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.one_in(5)
def test_zeros_of_a_producer_count(producer, monkeypatch):
    """Elements that an assignment does not write are terms of the reduction that it is computed in."""
    monkeypatch.setattr(grow_groups, "LONG_ROW", 2)  # so that no group takes it
    inputs = R(7), R(7), torch.tensor([0, 6, 7, -1, 3, 3, 9])
    for reduction in REDUCTIONS:
        whole = f"function (A[N], B[N], I[N]) -> (T) {{ {producer}; T[] = {reduction}; }}"
        found, exact = (tilec.compile(whole, backend=name)(*inputs) for name in ("triton", "torch"))
        torch.testing.assert_close(found, exact, msg=lambda m, whole=whole: f"{whole}\n{m}")
