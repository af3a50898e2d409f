"""Sums in a recurrence's step over what it reads of no state are statements of their own."""

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.program import Aggregate, accesses_in, walk
from tilec.transforms.steps import step_sums

PLAIN = "S[t, i : T, D] = X[t, i] + sum[j, k](S[t - 1, j] * A[j, k] * M[t, k]);"
KALMAN = """function (A[D, D], Q[D, D], R[N]) -> (M) {
    M[t, n, i, j : 5, N, D, D] = sum[k, l](A[i, k] * A[j, l] * (M[t-1, n, k, l] - M[t-1, n, k, 0] * M[t-1, n, 0, l]
        / (M[t-1, n, 0, 0] + R[n]))) + Q[i, j] init i == j ? 1.0 : 0.0;
}"""


@pytest.mark.parametrize(
    ("text", "lifted"),
    [
        (PLAIN, 1),
        (PLAIN.replace("M[t, k]", "M[t, k] * M[t, l]").replace("[j, k]", "[j, k, l]", 1), 2),
        (PLAIN.replace("A[j, k] *", "A[j, k] / A[k, j] *"), 0),  # what stands below the line stays
        (PLAIN.replace("M[t, k]", "M[t - 1, k]"), 0),  # inside for some steps alone
        (PLAIN.replace("M[t, k]", "M[t, k] * S[t - 1, k]"), 0),
    ],
)
def test_values(text: str, lifted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sums, "_LEAST_SAVED", 1)
    f = tilec.compile(f"function (A[D, D], M[T, D], X[T, D]) -> (S) {{ {text} }}")
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(s) / 3 for s in ((3, 3), (4, 3), (4, 3))]
    made = f.lower(*inputs).stages["flat"].statements
    assert len([s for s in made if "_step" in s.output]) == lifted
    np.testing.assert_allclose(f(*map(torch.tensor, inputs)), tilec.interpret(f.tile, *inputs), rtol=1e-12)


@pytest.mark.slow
def test_the_gradient_of_a_covariances_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sum of a step is over the state's own two variables, of four before."""
    random = torch.Generator().manual_seed(0)
    a, q, r = (torch.rand(s, generator=random, dtype=torch.float64) for s in ((2, 2), (2, 2), (3,)))
    d = torch.randn((5, 3, 2, 2), generator=random, dtype=torch.float64)
    wanted = tilec.compile(KALMAN).grad()(a, q, r, d)
    monkeypatch.setattr(step_sums, "_LEAST_SAVED", 1)
    f = tilec.compile(KALMAN)
    flat = f.grad().lower(a, q, r, d).stages["flat"]
    sums = [e for s in flat.statements if s.output.startswith("GM") for e in walk(s.body) if isinstance(e, Aggregate)]
    assert sums and all(len(e.bound) == 2 for e in sums), flat
    torch.testing.assert_close(f.grad()(a, q, r, d), wanted)


CHOLESKY = """function (A[N, N]) -> (L) {
    L[i, j : N, N] = j > i ? 0 : i == j ? sqrt(A[i, i] - sum[k](k < i ? L[i, k] * L[i, k]))
        : (A[i, j] - sum[k](k < j ? L[i, k] * L[j, k])) / L[j, j], k < N;
}"""


def test_a_gradient_reads_the_values_of_branches_and_no_sums_of_one_term() -> None:
    random = torch.Generator().manual_seed(0)
    r, d = (torch.randn((4, 4), generator=random, dtype=torch.float64) for _ in range(2))
    a = r @ r.mT + 0.5 * torch.eye(4, dtype=torch.float64)
    f = tilec.compile(CHOLESKY)
    flat = f.grad().lower(a, d).stages["flat"]
    (step,) = (s for s in flat.statements if s.output == "GL")
    assert len([e for e in walk(step.body) if isinstance(e, Aggregate)]) == 3 and "_sum" not in str(flat), flat
    a.requires_grad_()
    (wanted,) = torch.autograd.grad(torch.linalg.cholesky(a.tril() + a.tril(-1).mT), a, d)
    torch.testing.assert_close(f.grad()(a.detach(), d), wanted)


TWO_SIDES = "S[t, n, p, q : T, N, D, D] = X[t, n, p, q] + {}[a, b](S[t - 1, n, a, b] {} A[a, p] {} B[b, q])"


@pytest.mark.parametrize(("aggregation", "times"), [("sum", "*"), ("max", "+"), ("min", "+"), ("logsumexp", "+")])
def test_lanes_share_inner_sums(aggregation: str, times: str) -> None:
    f = tilec.compile(TWO_SIDES.format(aggregation, times, times))
    g = torch.Generator().manual_seed(0)
    x, a, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 2, 16, 16), (16, 16), (16, 16)))
    (step,) = f.lower(3, 2, 16, x, a, b).stages["flat"].statements
    assert [e.bound for e in walk(step.body) if isinstance(e, Aggregate)] == [("b",), ("a",)], step
    combined = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp}[aggregation]
    before, wanted = torch.zeros_like(x[0]), []
    for now in x:
        s, left, right = before[:, :, :, None, None], a[:, None, :, None], b[:, None, :]
        before = now + combined(s * left * right if aggregation == "sum" else s + left + right, (1, 2))
        wanted.append(before)
    torch.testing.assert_close(f(3, 2, 16, x, a, b), torch.stack(wanted))


def test_a_greatest_sum_keeps_its_order() -> None:
    """A gradient compares terms with it, added up as the text says: what b names first would be rounded otherwise."""
    text = TWO_SIDES.format("max", "+", "+").replace("A[a, p] + B[b, q]", "(A[a, p] + B[b, q])")
    f = tilec.compile(text)
    (step,) = (
        f.lower(3, 2, 16, *(tilec.spec(s) for s in ((3, 2, 16, 16), (16, 16), (16, 16)))).stages["flat"].statements
    )
    assert [len(e.bound) for e in walk(step.body) if isinstance(e, Aggregate)] == [2], step


def test_an_inner_sum_of_no_state_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sums, "_LEAST_SAVED", 1)
    text = TWO_SIDES.format("sum", "*", "*").replace("[a, b]", "[a, b, c]").replace("B[b, q]", "B[b, c] * C[c, q]")
    f = tilec.compile(text)
    g = torch.Generator().manual_seed(0)
    x, *m = (torch.randn(s, generator=g, dtype=torch.float64) / 4 for s in ((5, 2, 16, 16), *[(16, 16)] * 3))
    (known, step) = f.lower(5, 2, 16, x, *m).stages["flat"].statements
    assert "_step" in known.output and known.output in {a.tensor for a in accesses_in(step.body)}, step
    before, wanted = torch.zeros_like(x[0]), []
    for now in x:
        before = now + torch.einsum("nab,ap,bc,cq->npq", before, *m)
        wanted.append(before)
    torch.testing.assert_close(f(5, 2, 16, x, *m), torch.stack(wanted))


def test_sums_of_nothing() -> None:
    f = tilec.compile(TWO_SIDES.format("sum", "*", "*"))
    shapes = ((3, 2, 0, 0), (0, 0), (0, 0))
    assert f(3, 2, 0, *map(torch.zeros, shapes)).shape == (3, 2, 0, 0)
    empty = f.grad(("X", "A"))(3, 2, 0, *map(torch.zeros, shapes), torch.zeros(shapes[0]))
    assert [g.shape for g in empty] == [torch.Size(s) for s in shapes[:2]]


@pytest.mark.parametrize(("aggregation", "least"), [("max", -np.inf), ("min", np.inf), ("logsumexp", -np.inf)])
def test_an_inner_aggregation_of_no_terms_meets_no_infinity(aggregation: str, least: float) -> None:
    """No term is left from the second step on: what would be added to its identity is not looked at."""
    text = TWO_SIDES.format(aggregation, "+", "+").replace("](", "](a >= 16 * t ? ")
    x, a, b = torch.zeros(3, 2, 16, 16), torch.zeros(16, 16), torch.full((16, 16), -least)
    found = tilec.compile(text)(3, 2, 16, x, a, b)
    torch.testing.assert_close(found[1:], torch.full_like(x[1:], least))
