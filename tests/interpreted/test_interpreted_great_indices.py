"""Elements at the ends of int64 in indices: a remainder is exact, and no other index is inside after it has wrapped.
Indices, bounds and values of index variables alone that 32 bits do not hold."""

import os

import pytest
import torch

import tilec

LEAST, MOST = -(2**63), 2**63 - 1
VALUES = [LEAST, LEAST + 1, LEAST + 5, -(2**62), -9, -1, 0, 1, 3, 6, 7, 2**62, MOST // 3 + 1, MOST - 2, MOST]
INDICES = [
    *("(T[j] - i) % 7", "(T[j] + i) % 7", "(T[j] % 7 - i) % 7", "(3 * T[j] + i) % 7", "(T[j] - i) % 8"),
    *("(T[j] + U[j]) % 7", "(4611686018427387905 * T[j] + i) % 7", "4611686018427387904 * T[j] + i"),
    *("abs(T[j] - i)", "max(T[j], 0) + i", "i - min(T[j], 0)", "2 * max(T[j], 0)", "max(T[j], 0) - min(U[j], 0)"),
    *("clamp(T[j] - i, 0, 6)", "(T[j] + i) / 3", "T[j] - U[j]"),
]
backends = ("torch", "triton") if os.environ.get("TRITON_INTERPRET") == "1" else ("torch",)


@pytest.mark.parametrize("backend", backends)
@pytest.mark.parametrize("dtype", [torch.int64, pytest.param(torch.int32, marks=pytest.mark.slow)])
def test_indices_at_the_ends(backend, dtype):
    t = torch.tensor(VALUES).clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max).to(dtype)
    u = t.roll(4)
    n = len(t)
    for index in INDICES:
        read = f"function (X[K], T[J], U[J]) -> (Y) {{ Y[i, j : 5, J] = pad(X[{index}], -1); }}"
        written = f"function (X[I, J], T[J], U[J]) -> (Y) {{ Y[{index}, j : 7, J] = +(X[i, j]); }}"
        # the byte tensor is one whose address no index wraps round to
        for source, x in ((read, torch.arange(1, 8, dtype=torch.int8)), (written, torch.arange(9.0 * n).view(9, n))):
            expected = torch.as_tensor(tilec.interpret(source, x, t, u))
            got = tilec.compile(source, backend=backend)(x, t, u)
            assert torch.equal(got, expected.to(got.dtype)), source


C = 1_000_000_000
FORMS = [
    *(f"({C} * i - j) % 7", f"({C} * i + {C} * j) % 7", f"({C} * i - {C} * j) % 8", f"({C} * i + j) / {C}"),
    *(f"{C} * i - {C} * j + 5", "3000000000 * i - 3000000000 * j + 2", "3000000000 * i - 2000000000 * j + 2"),
    *(f"clamp({C} * i - {C} * j, 0, 6)", f"abs({C} * i - {C} * j)", f"max({C} * i - {C} * j, 0)"),
    *(f"min(3 * {C} * i, 3 * {C} * j + 2)", f"({C} * i - U[j]) % 7", f"{C} * i - {C} * j + U[j]"),
    *(f"clamp({C} * i - {C} * j + U[j], 0, 6)", "(700000000 * i - 600000000 * j) / 100000000"),
]
STATEMENTS = [
    "O[i, j : N, M] = X[i, j] + pad(R[{}], 1)",
    "O[i : N] = +(X[i, j] * R[{}])",
    "O[j : M] = >(X[i, j] * R[{}])",
    "O[{} : 7] = +(X[i, j])",
]


@pytest.mark.parametrize("backend", backends)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_indices_of_great_factors(backend, statement):
    torch.manual_seed(0)
    given = torch.randn(7), torch.randn(9, 8), torch.tensor([0, 1, -1, 2, 5, -3, 3, 6])
    for form in FORMS:
        if statement.startswith("O[{}") and "/" in form:
            continue  # elements that nothing writes are warned of
        source = f"function (R[P], X[N, M], U[M]) -> (O) {{ {statement.format(form)}; }}"
        expected = torch.as_tensor(tilec.interpret(source, *given))
        got = tilec.compile(source, backend=backend)(*given)
        torch.testing.assert_close(got.double(), expected.double(), rtol=1e-5, atol=1e-5, msg=source)


VALUES_OF_INDICES = [
    *("(i*i*M*M*40001 + j) % 1000", "j*j*j*j*j*j / 7 % 1001", "(i - j*M*M*M*40001) % 997", "abs(i*C*3 - j*C*5) % 999"),
    *(
        "min(i*C*4, j*C*9) % 1000",
        "((i << 33) + j) % 999",
        "(i*C*C > j*C*C*2 ? i : j*C*5) % 998",
        "(j*C*C*7 | i) % 999",
    ),
]


def _attention(guard: str, score: str) -> str:
    return f"""function (Q[N, E], K[M, E], V[M, F], C) -> (O) {{
        S[i, j : N, M] = sum(Q[i, e] * K[j, e]);
        X[i, j : N, M] = S[i, j] + {score};
        L[i : N] = logsumexp({guard} X[i, j]);
        O[i, f : N, F] = sum({guard} exp(X[i, j] - L[i]) * V[j, f]);
    }}"""


def _agrees(source: str, *given, backend: str = "triton", kernels: int = 0) -> None:
    function = tilec.compile(source, backend=backend)
    if kernels and backend == "triton":
        assert len(function.lower(*given).kernels) == kernels, source
    expected = torch.as_tensor(tilec.interpret(source, *given))
    torch.testing.assert_close(function(*given).double(), expected.double(), rtol=1e-4, atol=1e-4, msg=source)


@pytest.mark.parametrize("backend", backends)
@pytest.mark.parametrize("value", VALUES_OF_INDICES)
def test_values_of_indices_in_a_chain(backend, value):
    torch.manual_seed(0)
    given = torch.randn(70, 32), torch.randn(64, 32), torch.randn(64, 32)
    source = _attention("", f"0.001 * ({value})").replace(", C)", ")").replace("C", str(C))
    _agrees(source, *given, backend=backend, kernels=1)


BOUNDS = [
    *("100000000*i >= 100000000*j", "70000000*i - 60000000*j < 2100000000", "i*3000000000 >= j*3000000000"),
    *(
        "i*i*40001*M*M >= j*j*40001*M*M",
        "i*i*40001*M*M % 1001 >= 300 | i == j",
        "j*j*j*j*j*j*j*j*j*j*j*j >= i | i == j",
    ),
    *("D[i]*1000000000 + i*2000000000 >= T[j]*1000000000 + j*2000000000", "D[i] == T[j] & i*4*C*C > j*4*C*C | i == j"),
]


@pytest.mark.parametrize("backend", backends)
@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_of_a_chain(backend, bound):
    torch.manual_seed(0)
    given = torch.randn(70, 32), torch.randn(64, 32), torch.randn(64, 32)
    integers = (torch.randint(0, 2, (70,)), torch.randint(0, 2, (64,))) if "D[" in bound else ()
    source = _attention(f"{bound} ?", "0").replace(", C)", ", D[N], T[M])" if integers else ")").replace("C", str(C))
    _agrees(
        source, *given, *integers, backend=backend, kernels=0 if integers or "%" in bound or "j*j*j*j*j" in bound else 1
    )


@pytest.mark.parametrize("backend", backends)
def test_values_of_indices_over_lengths(backend):
    """Sizes that are left open: what 32 bits hold at the first length they need not hold at others."""
    torch.manual_seed(0)
    source = _attention("", "0.001 * ((i*i*i*N*N*401 + j) % 1000)").replace(", C)", ")")
    function = tilec.compile(source, backend=backend)
    for n in (12, 20, 37, 70, 53):
        given = torch.randn(n, 32), torch.randn(64, 32), torch.randn(64, 32)
        expected = torch.as_tensor(tilec.interpret(source, *given))
        torch.testing.assert_close(function(*given).double(), expected.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", backends)
def test_turns_of_great_factors(backend):
    """What a circular index is taken apart into has no more values than the index has modulo its size."""
    given = torch.randn(7), torch.randn(9, 8)
    source = "function (R[P], X[N, M]) -> (O) { O[i, j : N, M] = X[i, j] + R[(100000000 * i - j) % 7]; }"
    expected = torch.zeros(7)
    for i in range(9):
        for j in range(8):
            expected[(100000000 * i - j) % 7] += given[1][i, j]
    got = tilec.compile(source, backend=backend).grad()(*given, given[1])[0]
    torch.testing.assert_close(got, expected)
