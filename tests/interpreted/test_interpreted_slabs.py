"""Programs whose intermediates pass a budget go slab by slab, and give what the whole gives: values, gradients, second
order; masks that ask for the row's number, draws, every aggregation over the rows, sizes that leave a smaller slab."""

import os

import pytest
import torch
from support import chains
from support.pasted import pasted
from support.tiers import slow_but
from support.tiled import asks_for_rows, copies, tiling

import tilec
from tilec.backends.triton.plan.plan import TiledLoop
from tilec.backends.triton.runtime import executable
from tilec.transforms.util.tiled import Whole

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

SOFTMAX = "T[b, i] = >(S[b, i, j]); U[b, i, j] = exp(S[b, i, j] - T[b, i]); Z[b, i] = +(U[b, i, j]); P[b, i, j] = U[b, i, j] / Z[b, i]; O[b, i, f] = +(P[b, i, j] * V[b, j, f]);"  # noqa: E501
CAUSAL = "L[b, i] = logsumexp(i - j >= 0 ? S[b, i, j]); O[b, i, f] = sum(i - j >= 0 ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);"  # noqa: E501
SCORES = "S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);"
THREE = "function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O)"
# name -> source, shapes for B, N, M, and what asks for the number of a row
ATTENTIONS = {
    "plain": (f"{THREE} {{ {SCORES} {SOFTMAX} }}", False),
    "causal": (f"{THREE} {{ {SCORES} {CAUSAL} }}", True),
    "causal by constraint": (
        f"{THREE} {{ {SCORES} L[b, i] = logsumexp(S[b, i, j]), i - j < N; O[b, i, f] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, f]), i - j < N; }}",  # noqa: E501
        True,
    ),
    "a mask that is computed": (
        f"{THREE} {{ C[i, j : N, M] = i >= j ? 0.0 : 0-9.0; R[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]); S[b, i, j] = R[b, i, j] + C[i, j]; {SOFTMAX} }}",  # noqa: E501
        True,
    ),
    "dropout": (
        f"{THREE} {{ {SCORES} T[b, i] = >(S[b, i, j]); U[b, i, j] = exp(S[b, i, j] - T[b, i]); Z[b, i] = +(U[b, i, j]); P[b, i, j] = (rand(3, (b*N + i)*M + j) < 0.7 ? U[b, i, j] / Z[b, i] : 0); O[b, i, f] = +(P[b, i, j] * V[b, j, f]); }}",  # noqa: E501
        True,
    ),
    "scores that are kept": (
        f"{THREE[:-3]}(O, Top) {{ {SCORES} {SOFTMAX} Top[b, j] = >(P[b, i, j]); }}",
        False,
    ),
}


@pytest.fixture(autouse=True)
def no_chains(monkeypatch):
    """Scores that a chain would never store are stored here."""
    chains.turn_off(monkeypatch)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def slabs_of(plan) -> list[TiledLoop]:
    found = []
    for step in plan.steps:
        if isinstance(step, TiledLoop):
            found.append(step)
        for part in step.parts if isinstance(step, TiledLoop) else (step,) if hasattr(step, "plan") else ():
            found += slabs_of(part.plan)
    return found


def wide(x):
    return x.double() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x


def close(got, wanted, tolerance):
    for a, b in zip(
        got if isinstance(got, tuple) else (got,), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        if b is None:
            assert a is None
            continue
        assert a.shape == b.shape
        scale = max(1.0, b.abs().max().item()) if b.numel() and b.dtype != torch.bool else 1.0
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance * scale)


def cotangents(f, inputs):
    outputs = f(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [normal(*o.shape, dtype=o.dtype, seed=k + 5) for k, o in enumerate(outputs)]


def check(source, inputs, tolerance, monkeypatch, budget, gradient=True):
    """Values and gradients against the torch backend's in float64, and that what ran was cut; the values' loops."""
    plans = []

    class Noted(executable.PlannedCall):
        def __init__(self, plan, *given):
            plans.append(plan)
            super().__init__(plan, *given)

    monkeypatch.setattr(executable, "PlannedCall", Noted)
    exact = tilec.compile(source, backend="torch")
    doubled = [wide(x) for x in inputs]
    wanted = exact(*doubled)
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", str(budget))
    f = tilec.compile(source, backend="triton")
    close(f(*inputs), wanted, tolerance)
    (plan,) = plans
    assert slabs_of(plan)
    if gradient:
        given = cotangents(f, inputs)
        plans.clear()
        close(f.grad()(*inputs, *given), exact.grad()(*doubled, *map(wide, given)), 4 * tolerance)
        assert slabs_of(*plans)
    return slabs_of(plan)


@pytest.mark.parametrize(
    "shape, budget", [((1, 13, 16), 700), pytest.param((3, 17, 24), 700, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.one_in(4)
def test_attention(name, shape, budget, monkeypatch):
    b, n, m = shape if name != "scores that are kept" or shape[0] > 1 else (1, 22, 16)
    source, asks = ATTENTIONS[name]
    inputs = normal(b, n, 8), normal(b, m, 8, seed=1), normal(b, m, 5, seed=2)
    cut = check(source, inputs, 2e-5, monkeypatch, budget)
    assert asks == any(map(asks_for_rows, cut)) or all(tiling(s)[0] == b for s in cut)


@pytest.mark.parametrize(
    "dtype, tolerance, budget", [(torch.float64, 1e-11, 9000), (torch.float16, 4e-3, 3000)], ids=str
)
@pytest.mark.parametrize("name", ["plain", "causal"])
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_types(name, dtype, tolerance, budget, monkeypatch):
    inputs = [normal(*s, dtype=dtype, seed=k) / 2 for k, s in enumerate([(1, 34, 8), (1, 54, 8), (1, 54, 8)])]
    check(ATTENTIONS[name][0], inputs, tolerance, monkeypatch, budget)


def test_sums_of_sixteen_bits_are_rounded_once(monkeypatch):
    """2048 + 0.3 + 0.3 + ...: a slab's part would be lost if it were rounded, or added, in float16."""
    source = "function (X[N, K], W[K, M], C[M, L]) -> (Y, Z) { A[i, j] = +(X[i, k] * W[k, j]); Y[i, l] = +(A[i, j] * C[j, l]); Z[j] = +(A[i, j]); }"  # noqa: E501
    x, w, c = torch.zeros(96, 16).half(), torch.ones(16, 20).half(), torch.zeros(20, 16).half()
    x[:, 0] = 0.3
    x[0, 0] = 2048
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "200")
    f = tilec.compile(source, backend="triton")
    (slab,) = slabs_of(f.lower(x, w, c)._executable.plan)
    assert tiling(slab)[1] < 8
    assert torch.equal(f(x, w, c)[1].double(), x[:, 0].double().sum().half().double().expand(20))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)], ids=str)
@pytest.mark.parametrize("rows, columns", [(63, 40), (40, 63)])
def test_sums_that_products_add_to(rows, columns, dtype, tolerance, monkeypatch):
    """By rows and by columns, with a smaller last slab: what is added to holds what the slabs before gave."""
    source = """function (X[N, H], W[V, H], U[N, V]) -> (Y) {
        S[i, v : N, V] = sum(X[i, h] * W[v, h]);
        Y[i : N] = sum(tanh(S[i, v]) * U[i, v]); }"""
    inputs = [normal(*s, dtype=dtype, seed=k) for k, s in enumerate([(rows, 4), (columns, 4), (rows, columns)])]
    cotangent = normal(rows, dtype=dtype, seed=5)
    exact = tilec.compile(source, backend="torch").grad(["X", "W"])
    wanted = exact(*map(wide, inputs), wide(cotangent))
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "1500")
    f = tilec.compile(source, backend="triton").grad(["X", "W"])
    close(f(*inputs, cotangent), wanted, tolerance)
    (loop,) = slabs_of(f.lower(*inputs, cotangent)._executable.plan)
    totals = [x.tensor for x in loop.calls[0].sources if isinstance(x, Whole)]
    assert len(loop.calls) == 2 and len({*totals}) < len(totals)


@pytest.mark.parametrize(
    "size", slow_but([(0, 20), (1, 20), (20, 0), (20, 1), (33, 3)], [(0, 20), (20, 1), (33, 3)]), ids=str
)
def test_sizes_that_are_awkward(size, monkeypatch):
    n, m = size
    source, _ = ATTENTIONS["causal"]
    inputs = normal(2, n, 4), normal(2, m, 4, seed=1), normal(2, m, 4, seed=2)
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "200")
    f, exact = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")
    close(f(*inputs), exact(*map(wide, inputs)), 1e-5)
    given = cotangents(f, inputs)
    close(f.grad()(*inputs, *given), exact.grad()(*map(wide, inputs), *map(wide, given)), 1e-4)


def test_any_layout(monkeypatch):
    """Transposed, expanded and misaligned inputs; an expanded cotangent; rows whose slabs begin at odd addresses."""
    source, _ = ATTENTIONS["causal"]
    q = normal(2, 6, 21).transpose(1, 2)
    k = normal(1, 21, 6).expand(2, 21, 6)
    v = normal(2 * 21 * 5 + 1)[1:].view(2, 21, 5)
    check(source, (q, k, v), 2e-5, monkeypatch, 1400)
    odd = [normal(5, 7, 3, seed=s).half() for s in range(3)]
    assert any(map(copies, check(source, odd, 5e-3, monkeypatch, 90)))


def test_columns_that_leave_one_over(monkeypatch):
    """Slabs of columns, of which the last has another number of rows that would turn its alignment: G is read in place
    by all of them."""
    source = "function (Q[N, E], K[M, E], G[N, M]) -> (Y) { A[i, j] = +(Q[i, e] * K[j, e]); T[j] = >(A[i, j]); Y[j] = +(exp(A[i, j] - T[j]) * G[i, j]); }"  # noqa: E501
    inputs = [normal(*s, dtype=torch.float64) for s in [(40, 5), (21, 5), (40, 21)]]
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "1400")
    f = tilec.compile(source, backend="triton")
    (slab,) = slabs_of(f.lower(*inputs)._executable.plan)
    assert tiling(slab) == (21, 4) and len(slab.calls) == 2 and not copies(slab)
    close(f(*inputs), tilec.compile(source, backend="torch")(*inputs), 1e-12)


def test_writes_to_places_that_rows_name(monkeypatch):
    """Each row of the scores is added to the row that P names: each slab has its part of P."""
    source = "function (A[N, K], B[K, M], P[N]) -> (Y, Z) { T[i, j] = +(A[i, k] * B[k, j]); Y[i] = +(T[i, j] * T[i, j]); Z[P[i], j : 5, M] = +(T[i, j]); }"  # noqa: E501
    a, b = normal(40, 3, dtype=torch.float64), normal(3, 20, dtype=torch.float64)
    places = torch.arange(40) * 7 % 6
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "1300")
    f = tilec.compile(source, backend="triton")
    assert slabs_of(f.lower(a, b, places)._executable.plan)
    close(f(a, b, places), tilec.compile(source, backend="torch")(a, b, places), 1e-12)


def test_one_tensor_in_two_roles(monkeypatch):
    """Rows and columns of the scores read the same tensor: one is given by rows, the other whole."""
    source = "function (X[N, D]) -> (O) { S[i, j : N, N] = +(X[i, d] * X[j, d]); T[i] = >(S[i, j]); E[i, j] = exp(S[i, j] - T[i]); Z[i] = +(E[i, j]); O[i, d] = +(E[i, j] * X[j, d] / Z[i]); }"  # noqa: E501
    check(source, [normal(17, 6) / 2], 2e-5, monkeypatch, 600)


@pytest.mark.slow
def test_a_bias_by_distance(monkeypatch):
    """`R[i - j + M - 1]`: read at the place of the slab's rows, and its gradient added up along diagonals."""
    source = "function (Q[N, D], K[M, D], V[M, D], R[L]) -> (O) { A[i, j : N, M] = +(Q[i, d] * K[j, d]); S[i, j : N, M] = A[i, j] + R[i - j + M - 1]; T[i] = logsumexp(S[i, j]); O[i, d] = +(exp(S[i, j] - T[i]) * V[j, d]); }"  # noqa: E501
    for length in (34, 24):  # one that every pair finds, one that ends before
        inputs = normal(14, 6) / 2, normal(21, 6, seed=1) / 2, normal(21, 6, seed=2), normal(length)
        assert all(map(asks_for_rows, check(source, inputs, 2e-5, monkeypatch, 800)))


def test_a_window_over_what_is_given(monkeypatch):
    """Scores of smoothed queries: the smoothing reads neighbours of a tensor from outside."""
    source = "function (X[N, D], W[3], K[M, D]) -> (O) { Q[i, d : N, D] = +(X[i + k - 1, d] * W[k]); S[i, j : N, M] = +(Q[i, d] * K[j, d]); T[i] = logsumexp(S[i, j]); O[i, j : N, 2] = sum(exp(S[i, k] - T[i]) * K[k, j]); }"  # noqa: E501
    check(source, (normal(18, 5) / 2, normal(3, seed=1), normal(24, 5, seed=2) / 2), 2e-5, monkeypatch, 1200)


AGGREGATIONS = {
    "sum": "Z[j] = +(A[i, j]);",
    "max": "Z[j] = >(A[i, j]);",
    "min": "Z[j] = <(A[i, j]);",
    "prod": "Z[j] = *(A[i, j]);",
    "logsumexp": "Z[j] = logsumexp(A[i, j]);",
    "any": "Z[j] = any(A[i, j] > 1.5);",
    "all": "Z[j] = all(A[i, j] > 0 - 1.5);",
    "mean": "Z[j] = mean(A[i, j]);",
    "argmax": "Z[j] = argmax(A[i, j]);",
    "sum of all": "Z[] = +(A[i, j] * A[i, j]);",
}


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.one_in(6)
def test_aggregations_over_the_rows(name, monkeypatch):
    """Scores of which every row is read, and something of every column."""
    source = f"function (Q[N, E], K[M, E]) -> (Y, Z) {{ A[i, j : N, M] = +(Q[i, e] * K[j, e]); Y[i] = +(A[i, j] * A[i, j]); {AGGREGATIONS[name]} }}"  # noqa: E501
    inputs = normal(17, 5) / 3, normal(15, 5, seed=1) / 3
    plain = name not in ("any", "all", "argmax")
    check(source, inputs, 2e-5, monkeypatch, 700, gradient=plain)


def test_infinities_and_nans(monkeypatch):
    """A row without a valid point, and NaN in one row alone, as in the whole."""
    source = ATTENTIONS["plain"][0]
    q, k, v = normal(1, 40, 8), normal(1, 24, 8, seed=1), normal(1, 24, 8, seed=2)
    q[0, 3] = float("nan")
    v[0, 5, 1] = float("inf")
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "1000")
    got = tilec.compile(source, backend="triton")(q, k, v)
    wanted = tilec.compile(source, backend="torch")(q, k, v)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_log_semiring(monkeypatch):
    """Two products in the log semiring: the one between them is never whole."""
    source = "function (A[N, K], B[K, M], C[M, L]) -> (O) { T[i, j] = logsumexp(A[i, k] + B[k, j]); O[i, l] = logsumexp(T[i, j] + C[j, l]); }"  # noqa: E501
    check(source, (3 * normal(18, 9), 3 * normal(9, 15), 3 * normal(15, 6)), 2e-5, monkeypatch, 700)


def test_second_order(monkeypatch):
    """torch's autograd to second order through a function in slabs, against torch's own formula."""
    source = ATTENTIONS["causal"][0]
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "2000")
    f = tilec.compile(source, backend="triton")
    made = [normal(1, n, 4, dtype=torch.float64, seed=n).requires_grad_() for n in (18, 17, 16)]
    q, k, v = made[0], made[1][:, :16].detach().requires_grad_(), made[2]

    def formula(q, k, v):
        s = q @ k.transpose(1, 2)
        hidden = torch.ones(18, 16, dtype=torch.bool).triu(1)
        return torch.softmax(s.masked_fill(hidden, float("-inf")), -1) @ v

    def orders(function):
        first = torch.autograd.grad(function(q, k, v).sin().sum(), (q, k, v), create_graph=True)
        return (*first, *torch.autograd.grad(sum(g.square().sum() for g in first), (q, k, v)))

    close(orders(f), orders(formula), 1e-9)


@pytest.mark.slow
def test_runs_one_after_the_other(monkeypatch):
    """Two attentions with a projection between them: two loops, and parts around them."""
    source = "function (X[N, D], W[D, D]) -> (O) { S[i, j : N, N] = +(X[i, d] * X[j, d]); T[i] = logsumexp(S[i, j]); A[i, d] = +(exp(S[i, j] - T[i]) * X[j, d]); H[i, e] = +(A[i, d] * W[d, e]); S2[i, j : N, N] = +(H[i, d] * H[j, d]); T2[i] = logsumexp(S2[i, j]); O[i, d] = +(exp(S2[i, j] - T2[i]) * H[j, d]); }"  # noqa: E501
    inputs = normal(30, 6) / 2, normal(6, 6) / 3
    assert len(check(source, inputs, 5e-5, monkeypatch, 2000)) == 2


@pytest.mark.parametrize("name", slow_but(("causal", "plain"), ("causal",)))
def test_the_text_runs_alone(name, tmp_path, monkeypatch):
    source = ATTENTIONS[name][0]
    inputs = [normal(*s, seed=k).half() for k, s in enumerate([(1, 20, 8), (1, 20, 8), (1, 20, 4)])]
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "400")
    f = tilec.compile(source, backend="triton")
    for number, (g, given) in enumerate([(f, inputs), (f.grad(), [*inputs, normal(1, 20, 4).half()])]):
        program = pasted(g.lower(*given), tmp_path / f"pasted_{number}.py")
        wanted = g(*given)
        close(program(*given), wanted if isinstance(wanted, tuple) else (wanted,), 1e-12)


PAIRS = "(X[N, D], Y[M, D]) -> (O) { S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));"
TWICE = {
    "rows and columns in turn": "A[i : N] = logsumexp(-S[i, j]); B[j : M] = logsumexp(-S[i, j] - A[i]); C[i : N] = logsumexp(-S[i, j] - B[j]); O = sum[i](C[i]); }",  # noqa: E501
    "both divide": "K = exp(-S); U[i : N] = +(K[i, j]); V[j : M] = +(K[i, j] / U[i]); O[i : N] = +(K[i, j] / U[i] / V[j]); }",  # noqa: E501
}


@pytest.mark.parametrize("name", TWICE)
def test_slabs_that_go_through_pairs_twice(name, monkeypatch):
    """Pairs are computed again where others need what is aggregated of all rows."""
    x, y = normal(37, 3) / 2, normal(26, 3, seed=1) / 2
    source = f"function {PAIRS} {TWICE[name]}"
    check(source, (x, y), 2e-5, monkeypatch, 3000)
    assert tilec.compile(source, backend="triton").lower(x, y).temporary_bytes < 37 * 26 * 4
