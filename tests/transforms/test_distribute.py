"""Sums of products with a sum among the factors: which are taken apart, and what that costs in accuracy."""

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.evaluate import evaluate
from tilec.ir.program import accesses_in, index_variables
from tilec.transforms.lower import distribute

SQUARES = "function (X[N, D], Y[M, D]) -> (S) { S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d])); }"


TAKEN = {
    "a difference": "O[i, d : N, D] = +(A[i, j] * (X[i, d] - Y[j, d]))",
    "a sum, scaled": "O[i, d : N, D] = +(2 * (Y[j, d] + X[i, d]) * A[i, j])",
    "three terms": "O[i, d : N, D] = +(A[i, j] * (X[i, d] - Y[j, d] + U[d] * V[i]))",
    "a difference in a sum": "O[i, d : N, D] = +(A[i, j] * (Y[j, d] + 2 / 3.0 * (X[i, d] - Y[j, d])))",
    "transposed": "O[j, d : M, D] = +(A[i, j] * (Y[j, d] - X[i, d]))",
    "divided": "O[i, d : N, D] = +(A[i, j] * (X[i, d] - Y[j, d]) / V[i])",
    "weights' gradient": "O[i, d : N, M] = +(X[i, k] * (Y[d, k] - X[i, k]))",
    "weights' gradient, in a sum": "O[i, d : N, M] = +(X[i, k] * (Y[d, k] + 2 / 3.0 * (U[k] * V[i] - Y[d, k])))",
    "two factors of both sides": "O[i, d : N, D] = +(A[i, j] * exp(A[i, j]) * (X[i, d] - Y[j, d]))",
}
NESTED = {
    "a scale": "O[] = +(X[i, d] * A[i, j] * (X[i, d] - Y[j, d]) / 3)",
    "a scale for each column": "O[d : D] = +(V[i] * A[i, j] * (X[i, d] - Y[j, d]))",
    "a scale for each row": "O[j : M] = +(Y[j, d] * U[d] * A[i, j] * (Y[j, d] - X[i, d]))",
}
LEFT = {
    "few features": ("O[i, d : N, D] = +(A[i, j] * (X[i, d] - Y[j, d]))", 4),
    "a product already": ("O[i, d : N, D] = +(A[i, j] * (U[d] - Y[j, d]))", 12),
    "a square": ("O[i, d : N, D] = +(A[i, j] * (X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]))", 12),
    "a function of the difference": ("O[i, d : N, D] = +(A[i, j] * tanh(X[i, d] - Y[j, d]))", 12),
    "a guard": ("O[i, d : N, D] = +(i > j ? A[i, j] * (X[i, d] - Y[j, d]))", 12),
    "a shorter tensor": ("O[i, d : N, D] = +(A[i, j] * (X[i, d] - Z[j, d])), j < 11", 12),
    "the greatest": ("O[i, d : N, D] = >(A[i, j] * (X[i, d] - Y[j, d]))", 12),
}
SHAPES = {"A": ("N", "M"), "X": ("N", "D"), "Y": ("M", "D"), "Z": ("K", "D"), "U": ("D",), "V": ("N",)}


def sizes(d):
    return {"N": 20, "M": 17, "K": 11, "D": d}


def text_of(statement):
    inputs = ", ".join(f"{n}[{', '.join(s)}]" for n, s in SHAPES.items())
    return f"function ({inputs}) -> (O) {{ {statement}; }}"


def drawn(d, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return [torch.randn([sizes(d)[n] for n in s], generator=g).to(dtype) for s in SHAPES.values()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.covering
def test_taken_apart(name, dtype):
    f = tilec.compile(text_of(TAKEN[name]))
    given = drawn(12, dtype)
    statements = f.lower(*given).stages["flat"].statements
    assert len(statements) in (3, 4) and all(s.aggregation in ("sum", "assign") for s in statements)
    widest = max(len({e for e in s.index or ()}) for s in statements)
    assert widest == 2
    exact = torch.as_tensor(tilec.interpret(text_of(TAKEN[name]), *(t.double().numpy() for t in given)))
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 1e-2}[dtype]
    scale = exact.abs().max().item()
    torch.testing.assert_close(f(*given).double(), exact, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", NESTED)
def test_a_sum_of_sums_that_fall_apart(name):
    f, given = tilec.compile(text_of(NESTED[name])), drawn(12)
    statements = f.lower(*given).stages["flat"].statements
    assert any(s.output.endswith("_each_mixed") for s in statements)
    assert all(len({v for a in accesses_in(s.body) for v in index_variables(*a.index)}) <= 3 for s in statements)
    exact = torch.as_tensor(tilec.interpret(text_of(NESTED[name]), *(t.double().numpy() for t in given)))
    torch.testing.assert_close(f(*given).double(), exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())
    assert not any("_each" in s.output for s in f.lower(*drawn(12, torch.bfloat16)).stages["flat"].statements)


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name):
    statement, d = LEFT[name]
    made = tilec.compile(text_of(statement)).lower(*drawn(d)).stages["flat"].statements
    assert not any(m.output.endswith(("_mixed", "_total")) for m in made)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_points_far_from_the_origin(far):
    """As near to float64 as the differences themselves are: what the points have in common is taken out first."""
    g = torch.Generator().manual_seed(1)
    x, y = (far + torch.randn(s, generator=g) for s in ((60, 16), (50, 16)))
    cotangent = torch.randn(60, 50, generator=g)
    mine = tilec.compile(SQUARES).grad()(x, y, cotangent)
    wide = [t.double() for t in (x, y)]
    between = 2 * cotangent.double()[:, :, None] * (wide[0][:, None] - wide[1])
    for m, terms in zip(mine, (between.sum(1), -between.sum(0)), strict=True):
        assert (m - terms).abs().max() < 1e-6 * between.abs().sum(0).max()


def test_what_is_infinite_stays_so():
    """An infinite coordinate reaches the elements that it reached."""
    x, y = torch.ones(10, 12), torch.ones(11, 12)
    x[3, 2] = torch.inf
    dx, dy = tilec.compile(SQUARES).grad()(x, y, torch.ones(10, 11))
    assert dx[3, 2] == torch.inf and not dy[:, 2].isfinite().any()
    assert (dx.isfinite().sum(), dy.isfinite().sum()) == (119, 121)


BESIDE = {
    "a complex product": "sum(A[b, i, k] * C[b, k, j] - B[b, i, k] * D[b, k, j])",
    "three terms, each way round": "sum(C[b, k, j] * A[b, i, k] + B[b, i, k] * D[b, k, j] - A[b, i, k] * D[b, k, j])",
    "of functions": "sum(exp(A[b, i, k]) * C[b, k, j] + B[b, i, k] * sin(D[b, k, j]))",
}
NOT_BESIDE = {
    "other variables": "sum(A[b, i, k] * C[b, k, j] + B[b, i, k] * E[i, j])",
    "a guard": "sum(k > i ? A[b, i, k] * C[b, k, j] - B[b, i, k] * D[b, k, j])",
    "the greatest": ">(A[b, i, k] * C[b, k, j] - B[b, i, k] * D[b, k, j])",
}
BESIDE_SHAPES = {"A": (2, 33, 34), "B": (2, 33, 34), "C": (2, 34, 35), "D": (2, 34, 35), "E": (33, 35)}


def beside(body, dtype, columns=35):
    text = f"""function (A[N, I, K], B[N, I, K], C[N, K, J], D[N, K, J], E[I, J]) -> (P) {{
        P[b, i, j : N, I, J] = {body};
    }}"""
    g = torch.Generator().manual_seed(0)
    shapes = [(*s[:-1], columns if s[-1] == 35 else s[-1]) for s in BESIDE_SHAPES.values()]
    given = [torch.randn(s, generator=g).to(dtype) for s in shapes]
    statements = tilec.compile(text).lower(*given).stages["flat"].statements
    return text, given, [s for s in statements if "_beside" in s.output]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_products_side_by_side_are_one(name, dtype):
    text, given, operands = beside(BESIDE[name], dtype)
    assert len(operands) == 2
    exact = torch.as_tensor(tilec.interpret(text, *(t.double().numpy() for t in given)))
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 1e-2}[dtype]
    scale = tolerance * exact.abs().max().item()
    torch.testing.assert_close(tilec.compile(text)(*given).double(), exact, rtol=tolerance, atol=scale)


@pytest.mark.parametrize("name", NOT_BESIDE)
def test_what_is_not_side_by_side(name):
    assert not beside(NOT_BESIDE[name], torch.float32)[2]


def test_few_columns_are_not_worth_copies():
    assert not beside(BESIDE["a complex product"], torch.float32, columns=31)[2]


def test_an_infinite_term_side_by_side_stays_one():
    text, given, _ = beside(BESIDE["a complex product"], torch.float32)
    given[1][0, 3, 5] = torch.inf
    found = tilec.compile(text)(*given)
    assert not found[0, 3].isfinite().any() and found[0, :3].isfinite().all() and found[1].isfinite().all()


PAIRS = "function (X[B, N, D]) -> (S) { S[b, i, j : B, N, N] = +(X[b, i, d] * X[b, j, d]); }"
BOTH = {  # source, shapes, whether the two products of the sum are one
    "all pairs of rows": (PAIRS, [(3, 9, 20)], True),
    "rows of more elements than pairs have": (PAIRS, [(3, 30, 20)], False),
    "a difference": (
        """function (A[N, N], X[N, D]) -> (O) {
            P[i, d : N, D] = +(A[i, j] * X[j, d]);
            Q[j, d : N, D] = +(X[i, d] * A[i, j]);
            O = Q - P;
        }""",
        [(20, 20), (20, 20)],
        True,
    ),
    "three terms": (
        """function (A[N, N], C[N, N], X[N, D], Y[N, D]) -> (O) {
            P[i, d : N, D] = +(A[i, j] * X[j, d]);
            Q[i, d : N, D] = +(C[i, j] * X[j, d]);
            R[i, d : N, D] = +(C[j, i] * X[j, d]);
            O = P + Y - Q + R;
        }""",
        [(20, 20), (20, 20), (20, 20), (20, 20)],
        True,
    ),
    "another matrix": (
        """function (A[N, N], X[N, D], Y[N, D]) -> (O) {
            P[i, d : N, D] = +(A[i, j] * X[j, d]);
            Q[j, d : N, D] = +(Y[i, d] * A[i, j]);
            O = Q + P;
        }""",
        [(20, 20), (20, 20), (20, 20)],
        False,
    ),
    "read twice": (
        """function (A[N, N], X[N, D]) -> (O, P) {
            P[i, d : N, D] = +(A[i, j] * X[j, d]);
            Q[j, d : N, D] = +(X[i, d] * A[i, j]);
            O = Q + P;
        }""",
        [(20, 20), (20, 20)],
        False,
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_two_products_by_one_matrix(name, dtype):
    source, shapes, taken = BOTH[name]
    f, g = tilec.compile(source), torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=g).to(dtype) for s in shapes]
    if "S[" in source:
        f = f.grad()
        given.append(torch.randn((*shapes[0][:2], shapes[0][1]), generator=g).to(dtype))
    statements = f.lower(*given).stages["flat"].statements
    products = [s for s in statements if s.aggregation == "sum"]
    assert any(s.output.endswith("_both") for s in statements) == taken
    assert not taken or len(products) == 1
    got, wanted = f(*given), evaluate(f.program, [t.double().numpy() for t in given])
    for x, y in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        assert (x.double() - torch.as_tensor(y)).abs().max() <= tolerance * np.abs(y).max()


@pytest.mark.parametrize("columns, taken", [(320, True), (256, False)])
def test_computed_matrices_are_added_where_rows_are_too_wide_for_a_chain(columns, taken):
    """The gradient of a sum of squares of all covariances: a chain would not store these, and cannot hold its rows."""
    f = tilec.compile("function (X[N, D]) -> (L) { C[d, e] = +(X[n, d] * X[n, e]); L[] = +(exp(C[d, e])); }")
    lowered = f.grad().lower(tilec.spec((columns, 400)), tilec.spec(()), backend="torch")
    assert any(s.output.endswith("_both") for s in lowered.stages["flat"].statements) == taken


EACH = {
    "waves": ("O[i, d : N, D] = +(cos(V[i] * Y[j, d]) * 2 + X[i, d])", 1),  # nothing is a product
    "functions of operands": ("O[i, d : N, D] = +(exp(A[i, j]) * Y[j, d] - tanh(A[i, j]) * sin(Y[j, d]))", 3),
    "a column that is a number": ("O[i, d : N, D] = +(exp(A[i, j]) * Y[j, 0] * U[d] + A[i, j] * sin(Y[j, d]))", 3),
    "a factor of all variables": ("O[i, d : N, D] = +(exp(A[i, j] * U[d]) * Y[j, d] + A[i, j] * sin(Y[j, d]))", 1),
    "a shared factor and a sum": ("O[i, d : N, D] = +(exp(A[i, j]) * Y[j, d] + exp(A[i, j]) * sin(Y[j, d]))", 1),
    "a term without the summed variable": ("O[i, d : N, D] = +(exp(A[i, j]) * Y[j, d] + X[i, d] * U[d])", 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.covering
def test_each_product_alone(name, dtype, monkeypatch):
    monkeypatch.setattr(distribute, "LEAST_STACKED", 0)
    text, sums = EACH[name]
    f, given = tilec.compile(text_of(text)), drawn(20, dtype)
    assert len(f.lower(*given).stages["flat"].statements) == (sums if dtype == torch.float32 else 1)
    exact = torch.as_tensor(tilec.interpret(text_of(text), *(t.double().numpy() for t in given)))
    scale = exact.abs().max().item()
    torch.testing.assert_close(f(*given).double(), exact, rtol=0, atol=scale * torch.finfo(dtype).eps * 2)
