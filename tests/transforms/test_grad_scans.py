"""Gradients of scans in as many steps as elements: finite differences, and the rules that read every pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.gradcheck import check_gradient

import tilec
from tilec.ir.evaluate import evaluate
from tilec.language import parse, show
from tilec.transforms.autodiff import scans
from tilec.transforms.autodiff.grad import grad

AGGREGATIONS = ("+", "*", ">", "<", "logsumexp")
inf, nan = np.inf, np.nan


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_first_and_second_order(aggregation):
    for constraint in ("i - k < N", "k - i < N"):
        check_gradient(f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), {constraint}; }}", normal(5))
    source = "function (X[B, N, C], Y[C]) -> (O) { O[c, i, b : C, N, B] = %s(X[b, k, c] * Y[c]), i - k < N; }"
    check_gradient(source % aggregation, normal(2, 4, 2), normal(2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aggregation", ("*", "logsumexp"))
@pytest.mark.parametrize("gap", (1, 2, 6))
def test_scans_without_the_last_elements(aggregation, gap):
    for constraint in (f"i - k - {gap} < N", f"k - i - {gap} < N"):
        source = f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), {constraint}; }}"
        text = show(grad(parse(source)))
        assert "Received" in text and "_prod" not in text
        x = np.array([1.5, 0, -2, 0, 1, 3])
        if aggregation == "*":
            check_gradient(source, x)
        program, d = parse(source), np.array([0.0] * gap + [1, -2, 3, 0.5, 2][: 6 - gap])
        d = d[::-1].copy() if "k - i" in constraint else d
        (got,) = evaluate(grad(program), [x, d])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scans, "KINDS", ())
            (wanted,) = evaluate(grad(program), [x, d])
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


GUARDS = {"k <= i": "i - k < N", "i >= k": "i - k < N", "k >= i": "k - i < N", "k < i": "i - k - 1 < N"}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS[1:])
def test_a_guard_as_the_constraint_that_says_the_same(aggregation, guard):
    def gradient(terms, rest):
        source = f"function (X[B, N]) -> (O) {{ O[b, i : B, N] = {aggregation}({terms}X[b, k]){rest}; }}"
        return show(grad(parse(source)))

    text = gradient(f"{guard} ? ", "")
    if guard == "k < i" and aggregation in "><":  # the first element is of no terms, which has no identity of its own
        assert "Received" not in text
    else:
        wanted = gradient("", f", {GUARDS[guard]}")
        assert text.replace("-i + k", "k - i") == wanted and "Received" in text


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS[1:])
def test_a_constraint_beside_a_guard_that_says_more(aggregation, guard):
    source = "function (X[B, N]) -> (O) { O[b, i : B, N] = %s(%s ? X[b, k])%s; }"
    bounds = ["i - k < N"] + (["i - k - 1 < N"] if guard == "k < i" else [])
    for bound in bounds if guard != "k >= i" else ["k - i < N"]:
        texts = [show(grad(parse(source % (aggregation, guard, rest)))) for rest in ("", f", {bound}")]
        assert texts[0] == texts[1] or guard == "k < i" and "Received" not in texts[0]  # no scan, see above


def test_a_constraint_that_leaves_out_more_than_a_guard():
    for guard, bound in (("k <= i", "i - k - 1 < N"), ("k <= i", "i - k < 2"), ("k < i", "i - k + 1 < N")):
        source = f"function (X[N]) -> (O) {{ O[i : N] = *({guard} ? X[k]), {bound}; }}"
        assert "Received" not in show(grad(parse(source)))
        check_gradient(source, normal(5))


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(("aggregation", "identity"), [("*", "1"), ("logsumexp", "-inf")])
def test_a_branch_that_is_the_identity_as_a_guard(aggregation, identity, guard):
    source = "function (X[B, N]) -> (O) { O[b, i : B, N] = %s(%s ? X[b, k]%s); }"
    chosen = source % (aggregation, guard, f" : {identity}")
    text = show(grad(parse(chosen)))
    assert text == show(grad(parse(source % (aggregation, guard, "")))) and "Received" in text
    if guard != "k < i" or aggregation == "*":  # there an element of no terms is -inf, and has no difference
        check_gradient(chosen, normal(2, 4))


def test_a_branch_that_is_another_value_is_no_guard():
    source = "function (X[N], Y[N]) -> (O) { O[i : N] = logsumexp(k <= i ? X[k] : Y[k]); }"
    assert "Received" not in show(grad(parse(source)))
    check_gradient(source, normal(4), normal(4))


def test_a_guard_that_leaves_elements_without_a_place():
    """Those after the last one of the result count for none of its elements: no scan."""
    source = "function (X[M], Z[N]) -> (O) { O[i : N] = >(k <= i ? X[k]); }"
    assert "Received" not in show(grad(parse(source)))
    check_gradient(source, normal(6), normal(5))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("condition", ("i - k < N", "k - i < N", "i - k - 2 < N", "k - i - 1 < N", "k <= i", "i < k"))
def test_terms_of_sums_that_share_an_element(condition):
    """What the shared element receives is a sum over the terms, not over all pairs."""
    terms, rest = (f"{condition} ? ", "") if "=" in condition or condition == "i < k" else ("", f", {condition}")
    source = f"function (X[B, N], Y[B], Z) -> (O) {{ O[b, i : B, N] = +({terms}X[b, k] * Y[b] + Z){rest}; }}"
    assert all("," not in s.rsplit(")", 1)[-1] for s in show(grad(parse(source))).splitlines() if " GZ[" in s)
    check_gradient(source, normal(2, 4), normal(2), normal())


def test_terms_of_sums_that_share_nothing():
    assert "_terms" not in show(grad(parse("function (X[N], Y[N]) -> (O) { O[i : N] = +(X[k] * Y[k]), i - k < N; }")))
    assert "_terms" not in show(grad(parse("function (X[N], Z) -> (O) { O[i : N] = +(X[k] * X[i] * Z), i - k < N; }")))


VALUES = (
    [1, 1, 2, 2, 1, 2, 3],
    [0, 1, 0, 2, 0, 3, 0],
    [-inf, 1, inf, 0, 2, 3, 1],
    [-inf, -inf, -inf, 1, -inf, 2, 2],
    [1, 2, nan, 3, 1, 1, 1],
    [inf, 1, 1, 1, inf, 1, -inf],
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("values", VALUES, ids=str)
def test_ties_zeros_and_infinities_as_the_rules_over_all_pairs(aggregation, values, monkeypatch):
    if aggregation == "*" and np.isinf(values).any():
        pytest.skip("terms that are infinite may add up otherwise once they are factored")
    program = parse(f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), i - k < N; }}")
    x, d = np.array(values, float), normal(7)
    (got,) = evaluate(grad(program), [x, d])
    monkeypatch.setattr(scans, "KINDS", ())
    (wanted,) = evaluate(grad(program), [x, d])
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


INFINITE = (
    ([-inf, 3, -inf, 4, -inf, inf], [-1, 0.5, inf, -1, -2, 1]),
    ([3, -3, -inf], [-1, inf, -0.5]),
    ([-inf, 2, 500, -inf, 1], [-inf, -1, -2, 1, inf]),
    ([inf, 1, -500, 2], [1, 2, 0.5, inf]),
)


@pytest.mark.parametrize(("x", "e"), INFINITE, ids=str)
def test_infinite_cotangents_of_logarithms(x, e):
    """An infinity times a weight of 0 is NaN, as it is where every pair is read."""
    for text in (
        "E[i] * logsumexp[j](j <= i ? X[j])",
        "logsumexp[j](j <= i ? X[j]) * logsumexp[j](j >= i ? E[j]) * E[i]",
    ):
        program = parse(f"function (X[N], E[N]) -> (L) {{ L = sum[i]({text}); }}")
        arrays = [np.array(x, float), np.array(e, float), np.array(1.5)]
        found = evaluate(grad(program, ("X", "E")), arrays)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scans, "KINDS", ())
            wanted = evaluate(grad(program, ("X", "E")), arrays)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", (0, 1, 30))
def test_long_scans_of_logarithms_in_float32(scale):
    """The derivative either way is as exact as that of the pairs, however many elements pass it on."""
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(20000, generator=g) * scale).requires_grad_()
    d, t = torch.rand(2, 20000, generator=g)
    f = tilec.compile("function (X[N]) -> (O) { O[i : N] = logsumexp(X[k]), i - k < N; }", backend="torch")
    (got,) = torch.autograd.grad(f(x), x, d)
    _, grown = f.jvp()(x.detach(), t)
    wide = x.detach().double()
    values = wide.logcumsumexp(0)
    later = (d.double().log() - values).flip(0).logcumsumexp(0).flip(0)
    torch.testing.assert_close(got.double(), (wide + later).exp(), rtol=1e-5, atol=1e-30)
    moved = (wide + t.double().log()).logcumsumexp(0)
    torch.testing.assert_close(grown.double(), (moved - values).exp(), rtol=1e-5, atol=0)


def test_the_text():
    lines = show(grad(parse("function (X[N]) -> (O) { O[i : N] = *(X[k]), i - k < N; }"))).splitlines()
    assert [line.strip() for line in lines[1:-1]] == [
        "O[i : N] = *(X[k]), i - k < N;",
        "Received[i : N] = DO[i] + Received[i + 1] * pad(X[i + 1], 0);",
        "DX[i : N] = Received[i] * pad(O[i - 1], 1);",
    ]


NESTED = {
    "a ranking": "function (X[N], E[N]) -> (L) { L = sum[i](E[i] * (logsumexp[j](j >= i ? X[j]) - X[i])); }",
    "ranges of tensors": "function (X, E) -> (L) { L[b] = sum[i](E[i] * logsumexp[j](j <= i ? X[b, j] * E[j])); }",
    "sizes that differ": "function (X, E) -> (L) { L = sum[i](E[i] * logsumexp[j](j <= i ? X[j])); }",
    "a product before": "function (X[N], E[N]) -> (L) { L = sum[i](E[i] * prod[j](j < i ? X[j])); }",
    "both ways": "L = sum[i](logsumexp[j](j <= i ? X[j]) * logsumexp[j](j >= i ? E[j]) * E[i])",
    "extrema": "L = logsumexp[i](max[j](j <= i ? X[j]) - min[j](j >= i ? E[j]) * E[i])",
    "gathered": "function (X[M], E[N], P[N]) -> (L) { L = sum[i](E[i] * logsumexp[j](j >= i ? X[P[j]])); }",
}


@pytest.mark.parametrize("name", NESTED)
def test_running_aggregations_that_stand_in_others(name):
    program = parse(NESTED[name])
    x = normal(2, 5) if "X[b" in NESTED[name] else normal(4) if name == "sizes that differ" else normal(5)
    arrays = [x, normal(5)[::-1] + 1, *([np.array([3, -1, 0, 7, 3])] if "P[" in NESTED[name] else [])]
    text = show(grad(program, ("X", "E")))
    assert "Received" in text
    check_gradient(NESTED[name], *arrays)
    d = normal(2) if "L[b]" in NESTED[name] else np.array(1.5)
    found = evaluate(grad(program, ("X", "E")), [*arrays, d])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "KINDS", ())
        wanted = evaluate(grad(program, ("X", "E")), [*arrays, d])
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
