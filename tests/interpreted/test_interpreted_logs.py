"""logsumexp over sums of two operands, and its gradients, as products of exponentials: values, failures of the
certificate, infinities, windows, and which statements take that form."""

import os
import re

import pytest
import torch

import tilec
from tilec.backends.triton.matmul import precompute_operands as hoist
from tilec.backends.triton.matmul.exp_weighted_matmul import WeightedWriter
from tilec.backends.triton.matmul.logsumexp_matmul import LogWriter
from tilec.backends.triton.plan.lines import assign
from tilec.backends.triton.schedule import exponential_products
from tilec.bench.sweep.points import shares

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

PRODUCT = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); }"
BATCHED = (
    "function (A[Z, M, K], B[Z, K, N]) -> (C) { C[b, i, j : Z, M, N] = logsumexp(A[b, i, k] + B[b, k, j] - 0.5); }"
)
WINDOWS = (
    "function (A[N, W, C], B[KW, C, D]) -> (O) { O[n, x, d : N, W, D] = logsumexp(A[n, x + k - 1, c] + B[k, c, d]); }"
)
BANDED = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]), i - k < 9; }"
THREE = "function (A[M, K], B[K, N], V[K]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + V[k] + B[k, j]); }"
STRIDED = """function (A[N, W, C], B[KW, C, D]) -> (O) {
    O[n, x, d : N, W/2 - 1, D] = logsumexp(A[n, 2*x + k, c] + B[k, c, d]);
}"""
GUARDED = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] > -4.0 ? A[i, k] + B[k, j]); }"
INFINITY = float("inf")


def normal(*shape):
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def wide(*shape):
    return -2000 * torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def hmm():
    a, b = normal(20, 30), normal(30, 18)
    a[3], b[:, 2] = -INFINITY, -INFINITY
    a[4, :29], b[29, 5] = -INFINITY, -INFINITY
    return a, b


def apart():
    """Every row's and column's greatest terms meet nothing: the product alone would say -inf."""
    a, b = torch.full((17, 32), -200.0), torch.full((32, 16), -200.0)
    a[:, 0], b[1] = 0, 0
    return a, b


def distances(scale=1.2):
    """Scores that fall with the distance from a diagonal: no row's greatest meets a far column's."""
    rows, points = 4 * torch.arange(32.0)[:, None], torch.arange(128.0)
    fall = -scale * (rows - points).abs()
    return fall + normal(32, 128) / 9, fall.T.contiguous() + normal(128, 32) / 9


def sparse():
    """Nine of ten are -inf, so that many pairs are throughout."""
    a, b = normal(40, 50), normal(50, 33)
    a[torch.rand(a.shape, generator=torch.Generator().manual_seed(1)) < 0.9] = -INFINITY
    b[torch.rand(b.shape, generator=torch.Generator().manual_seed(2)) < 0.9] = -INFINITY
    return a, b


CASES = {
    "normal": (PRODUCT, (normal(40, 50), normal(50, 33))),
    "wide range": (PRODUCT, (wide(20, 30), wide(30, 18))),
    "minus infinities": (PRODUCT, hmm()),
    "three operands": (THREE, (wide(20, 30), wide(30, 18), normal(30))),
    "batched": (BATCHED, (normal(3, 20, 30), normal(3, 30, 18))),
    "windows": (WINDOWS, (normal(2, 20, 17), normal(3, 17, 18))),
    "banded": (BANDED, (normal(40, 50), normal(50, 33))),
    "distances": (PRODUCT, distances()),
    "nine of ten -inf": (PRODUCT, sparse()),
    "all -inf": (PRODUCT, (torch.full((20, 30), -INFINITY), normal(30, 18))),
    "apart": (PRODUCT, apart()),
    "strided windows": (STRIDED, (10 * normal(2, 20, 17), 10 * normal(3, 17, 18))),
    "float64": (PRODUCT, (normal(20, 30).double(), normal(30, 18).double())),
}


VALUES = {**CASES, "guarded": (GUARDED, (normal(20, 30), wide(30, 18)))}


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.one_in(3)
def test_values(case):
    source, inputs = VALUES[case]
    f = tilec.compile(source, backend="triton")
    got = f(*inputs).double()
    wanted = tilec.compile(source, backend="torch")(*(x.double() for x in inputs))
    assert torch.equal(got.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    allowed = 3e-6 + 2 * 2.0**-23 * wanted[finite].abs()
    assert ((got - wanted)[finite].abs() <= allowed).all()
    assert f.lower(*inputs).kernels[-1].name.endswith("_log_dot")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(6)
def test_gradients(case):
    source, inputs = CASES[case]
    gradient = tilec.compile(source).grad().tile
    value = tilec.compile(source, backend="torch")(*inputs)
    d = normal(*value.shape).to(value.dtype)
    ours = tilec.compile(gradient, backend="triton")
    wanted = tilec.compile(gradient, backend="torch")(*(x.double() for x in (*inputs, d)))
    for g, w in zip(ours(*inputs, d), wanted, strict=True):
        assert g.isfinite().all()
        assert (g.double() - w).norm() <= 1e-5 * w.norm()
    assert [k.name for k in ours.lower(*inputs, d).kernels if "weighted_dot" in k.name]


def test_pairs_that_are_nowhere_finite_are_counted(monkeypatch):
    """Without the last way, which leaves what it does not compute NaN, everything is there."""
    inputs = sparse()
    assert shares(*inputs, 32, 32) == {"pairs counted": 1.0, "term by term": 0.0}
    monkeypatch.setattr(LogWriter, "_exact", lambda self, *_: [assign("acc", "acc")])
    got = tilec.compile(PRODUCT, backend="triton")(*inputs).double()
    wanted = tilec.compile(PRODUCT, backend="torch")(*(x.double() for x in inputs))
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-5)
    monkeypatch.setattr(LogWriter, "_absent", lambda self, *_: [assign("acc", "acc")])
    assert tilec.compile(PRODUCT, backend="triton")(*inputs).isnan().any()


def test_certain_elements_keep_what_they_have(monkeypatch):
    """An uncertain element beside them changes nothing."""
    a, b = normal(32, 40), normal(40, 32)
    f = tilec.compile(PRODUCT, backend="triton")
    alone = f(a, b)
    a[3], b[:, 5] = -200.0, -200.0
    a[3, 0], b[1, 5] = 0.0, 0.0
    assert shares(a, b, 32, 32)["term by term"] == 1.0
    among = f(a, b)
    keep = torch.ones(32, 32, dtype=torch.bool)
    keep[3], keep[:, 5] = False, False
    assert torch.equal(alone[keep], among[keep])


def test_gradients_of_distances_are_seldom_left_for_single_terms(monkeypatch):
    inputs, d = distances(), normal(32, 32)
    gradient = tilec.compile(PRODUCT).grad().tile
    wanted = tilec.compile(gradient, backend="torch")(*(x.double() for x in (*inputs, d)))
    monkeypatch.setattr(WeightedWriter, "_exact", lambda self, *_: [assign("acc", "acc")])
    for g, w in zip(tilec.compile(gradient, backend="triton")(*inputs, d), wanted, strict=True):
        assert (g.double() - w).norm() <= 1e-5 * w.norm()
    monkeypatch.setattr(WeightedWriter, "_levelled", lambda self, *_: [assign("acc", "acc")])
    found = tilec.compile(gradient, backend="triton")(*inputs, d)
    assert not all(g.isfinite().all() for g in found)


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.one_in(8)
def test_exponentials_computed_beforehand(case, monkeypatch):
    """As large products do, values and gradients; float64 ones are taken too."""
    monkeypatch.setattr(exponential_products, "LEAST_WORK", 0)
    monkeypatch.setattr(hoist, "LEAST_REUSE", 16)
    source, inputs = VALUES[case]
    exact = [x.double() for x in inputs]
    f = tilec.compile(source, backend="triton")
    wanted = tilec.compile(source, backend="torch")(*exact)
    got = f(*inputs).double()
    assert torch.equal(got.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    assert ((got - wanted)[finite].abs() <= 3e-6 + 2 * 2.0**-23 * wanted[finite].abs()).all()
    made = {s for k in f.lower(*inputs).kernels for s in k.statements}
    assert any(name.endswith((".left", ".right")) for name in made)
    gradient = tilec.compile(source).grad().tile
    d = normal(*wanted.shape).to(inputs[0].dtype)
    found = tilec.compile(gradient, backend="triton")(*inputs, d)
    for g, w in zip(found, tilec.compile(gradient, backend="torch")(*exact, d.double()), strict=True):
        assert (g.double() - w).norm() <= 1e-5 * w.norm()


def test_gradients_that_other_families_take():
    """A guard on an operand joins it to the weight, which then has all variables; of A + B + C no two are sides."""
    four = """function (A[M, K], B[K, L], C[L, N]) -> (O) {
        O[i, j : M, N] = logsumexp(A[i, k] + B[k, l] + C[l, j]);
    }"""
    for source, inputs in (
        (GUARDED, (normal(20, 30), wide(30, 18))),
        (four, (normal(17, 6), normal(6, 5), wide(5, 16))),
    ):
        gradient = tilec.compile(source).grad().tile
        d = normal(inputs[0].shape[0], inputs[-1].shape[1])
        ours = tilec.compile(gradient, backend="triton")
        wanted = tilec.compile(gradient, backend="torch")(*(x.double() for x in (*inputs, d)))
        for g, w in zip(ours(*inputs, d), wanted, strict=True):
            assert (g.double() - w).norm() <= 1e-5 * w.norm()
        assert not [k.name for k in ours.lower(*inputs, d).kernels if "weighted_dot" in k.name]


def test_second_derivatives():
    """Those of the product are sums of four terms and more; they are right whatever family takes them."""
    inputs = [x.clone().requires_grad_() for x in (normal(17, 18), normal(18, 16))]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    f = tilec.compile(PRODUCT, backend="triton")
    found = []
    for given, value in ((inputs, f), (exact, lambda a, b: torch.logsumexp(a[:, :, None] + b, 1))):
        first = torch.autograd.grad(value(*given).sin().sum(), given, create_graph=True)
        found.append(torch.autograd.grad(sum((g * g).sum() for g in first), given))
    for g, w in zip(*found, strict=True):
        assert (g.double() - w).norm() <= 1e-4 * w.norm()


def test_the_published_example():
    f = tilec.compile(PRODUCT, backend="triton")
    assert f(*apart())[0, 0].item() == pytest.approx(-199.306853, abs=1e-5)
    assert f(torch.tensor([[0.0, -200.0]]), torch.tensor([[-200.0], [0.0]])).item() == pytest.approx(
        -199.306853, abs=1e-5
    )


def test_large_numbers_that_cancel():
    """The product would hold a sum of e^-60 beside a greatest pair of 60: their rounding is more than is allowed."""
    a, b = 2 * torch.rand(16, 32, generator=torch.Generator().manual_seed(0)), torch.zeros(32, 16)
    b += 2 * torch.rand(32, 16, generator=torch.Generator().manual_seed(1))
    a[:, 0], a[:, 1:] = 30.3, a[:, 1:] - 30.7
    b[0], b[1] = b[0] - 30.9, 30.1
    b[2:] -= 60
    got = tilec.compile(PRODUCT, backend="triton")(a, b).double()
    wanted = torch.logsumexp(a.double()[:, :, None] + b.double(), 1)
    assert wanted.abs().max() < 3 and (got - wanted).abs().max() <= 1e-6


def test_infinities_and_nan_are_told_apart():
    a, b = hmm()
    a[7, 3], b[4, 4] = INFINITY, float("nan")
    a[9, 5], b[5] = INFINITY, -INFINITY  # NaN beside what is -inf otherwise
    got = tilec.compile(PRODUCT, backend="triton")(a, b)
    wanted = tilec.compile(PRODUCT, backend="torch")(a.double(), b.double())
    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())
    assert (
        (got[7].isinf() | got[7].isnan()).all()
        and got[:, 4].isnan().all()
        and got[9].isnan().all()
        and got[0, 0].isfinite()
    )


def test_elementwise_statements_ride_on_it():
    source = "function (A[M, K], B[K, N]) -> (C) { T[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); C = T * 2.0 + 1.0; }"
    f = tilec.compile(source, backend="triton")
    a, b = normal(20, 30), normal(30, 18)
    assert len(f.lower(a, b).kernels) == 2  # the greatest terms of both sides, and the product
    torch.testing.assert_close(f(a, b), 2 * tilec.compile(PRODUCT, backend="torch")(a, b) + 1, rtol=1e-5, atol=1e-5)


def test_greatest_terms_are_those_of_the_window():
    """An image that is much greater outside an output's window must not spoil the output's certificate."""
    index = "O[n, x, d : N, X - J + 1, D] = logsumexp(I[n, x + j, c] + K[j, c, d]);"
    f = tilec.compile(f"function (I[N, X, C], K[J, C, D]) -> (O) {{ {index} }}", backend="triton")
    i, k = torch.randn(2, 60, 16), torch.randn(3, 16, 16)
    (line,) = [x for x in f.lower(i, k).source().splitlines() if re.match(r"\s+O_top_left_kernel\w*\[", x)]
    numbers = [x.strip() for x in line.split("](")[1].split(",")]
    assert "3" in numbers and "62" not in numbers  # values of j: the kernel's, not all that reach the image
    i[:, 30:] += 500
    want = tilec.compile(f.source, backend="torch")(i.double(), k.double())
    torch.testing.assert_close(f(i, k).double(), want, rtol=1e-6, atol=3e-6)


def test_a_large_and_a_small_operand_are_rounded_once():
    """Rounded apart, what a column of the small one loses would be the same in every row, and in every step."""
    a, b = 2800 + normal(64, 48), normal(48, 32)
    for left, right in ((a, b), (b.mT.contiguous(), a.mT.contiguous())):
        found = tilec.compile(PRODUCT, backend="triton")(left, right).double()
        exact = torch.logsumexp(left.double()[:, :, None] + right.double()[None], 1)
        assert (found - exact).abs().max() < 0.52 * 2.0**-12
