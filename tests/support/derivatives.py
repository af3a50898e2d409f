"""Tangents of a program: one answer everywhere, and the transpose of its gradient."""

from __future__ import annotations

import numpy as np
from support.stages import check, gradient, tangent

from tilec.ir.evaluate import evaluate


def drawn(arrays, random):
    """A number for each element of those arrays that are floating, small and integral; zeros of the others' types."""
    return [
        random.integers(-2, 3, a.shape).astype(np.float64) if a.dtype.kind == "f" else np.zeros(a.shape, a.dtype)
        for a in arrays
    ]


def floating(arrays):
    return [a for a in arrays if a.dtype.kind == "f"]


def paired(left, right):
    """The inner product, and the scale of its terms."""
    with np.errstate(invalid="ignore"):
        terms = [np.ravel(a * b) for a, b in zip(left, right, strict=True)]
        flat = np.concatenate([*terms, np.zeros(1)])
        return float(flat.sum()), float(np.abs(flat).sum())


def check_tangents(program, arrays):
    """Whether there was something to compare, if so far the program has an answer."""
    first = gradient(program, arrays)
    if first is None:
        return
    try:
        results = evaluate(program, arrays)
    except Exception:
        return  # refused for its sizes or writers: the other tests look at those
    random = np.random.default_rng(0)
    tangents, cotangents = drawn(floating(arrays), random), drawn(results, random)
    forward = check(tangent(program, arrays), arrays + tangents)
    assert forward is not None
    for a, b in zip(results, forward, strict=False):
        np.testing.assert_array_equal(a, b)
    weighed, first_scale = paired(cotangents, forward[len(results) :])
    pulled, second_scale = paired(tangents, evaluate(first, arrays + cotangents))
    if np.isfinite(weighed) and np.isfinite(pulled):
        assert abs(weighed - pulled) <= 1e-9 * (1 + first_scale + second_scale), f"{weighed}, not {pulled}"
        yield pulled != 0
