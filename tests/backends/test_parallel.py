"""Recurrences that are affine in a semiring: many steps at once against step by step."""

from __future__ import annotations

import pytest
import torch
from support.agreement import run, tensors

import tilec

STEPS = {
    "A[t, i] * H[t - 1, i] + B[t, i]": "real",
    "B[t, i] - H[t - 1, i] * A[t, i] / 2": "real",
    "A[t, i] > 0 ? H[t - 1, i] * A[t, i] : B[t, i]": "real",
    "A[t, i] * H[t + 1, i] + B[t, i]": "real",
    "max(B[t, i], H[t - 1, i] - A[t, i])": "max-plus",
    "relu(B[t, i] + H[t - 1, i])": "max-plus",
    "max(max(H[t - 1, i], B[t, i]) + A[t, i], H[t - 1, i] - 1)": "max-plus",
    "min(B[t, i], H[t - 1, i] + A[t, i])": "min-plus",
    "logaddexp(B[t, i] + H[t - 1, i], A[t, i])": "log",
}


def source(step):
    init = "H0[i] + 0 * A[0, i] + 0 * B[0, i]"
    return f"function (A[T, D], B[T, D], H0[D]) -> (H) {{ H[t, i : T, D] = {step} init {init}; }}"


def inputs(dtype=torch.float64):
    a, b, h = tensors((600, 3), (600, 3), (3,), dtype=dtype)
    return [a.sigmoid(), b, h]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", STEPS)
def test_each_semiring(step):
    (got,), text = run(source(step), inputs())
    assert f"{STEPS[step]!r}):" in text and "affine_scan" in text
    exact = tilec.compile(source(step), exact=True)
    assert "affine_scan" not in exact.lower(*inputs()).source()
    torch.testing.assert_close(got, exact(*inputs()), rtol=1e-11, atol=1e-11)


def test_what_is_affine_in_no_semiring():
    for step in ("tanh(H[t - 1, i]) + A[t, i] * B[t, i]", "H[t - 1, i] * H[t - 1, i] + A[t, i] + B[t, i]",
                 "max(A[t, i] * H[t - 1, i], B[t, i])", "A[t, i] * H[t - 1, (i + 1) % D] + B[t, i]",
                 "A[t, i] * H[t - 1, i] + B[t, i] * H[t - 2, i]"):  # fmt: skip
        assert "affine_scan" not in run(source(step), inputs())[1]


def test_compositions_that_overflow_are_run_step_by_step():
    a, b, h = inputs(torch.float32)
    function = tilec.compile(source("A[t, i] * H[t - 1, i] + B[t, i]"))
    assert function(1e9 * a, 0 * b, 0 * h).count_nonzero() == 0


def test_gradients():
    a, b, h = (t.requires_grad_() for t in inputs())
    function, exact = (tilec.compile(source("A[t, i] * H[t - 1, i] + B[t, i]"), exact=e) for e in (False, True))
    for got, wanted in zip(
        torch.autograd.grad(function(a, b, h).square().sum(), (a, b, h)),
        torch.autograd.grad(exact(a, b, h).square().sum(), (a, b, h)),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)
