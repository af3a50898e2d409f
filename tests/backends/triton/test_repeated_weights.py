"""Sums of exponentials whose weight repeats its elements, as the gradient of a sum over the result does."""

from __future__ import annotations

import pytest

import tilec
from tilec.backends.triton.plan.plan import Setting

LOG_PRODUCT = "function (A[I, K], X[K, J]) -> (O) { O[i, j : I, J] = logsumexp(A[i, k] + X[k, j]); }"


@pytest.mark.parametrize(
    ("sizes", "strides", "products"),
    [
        ((77, 129, 33), (33, 1), True),
        ((77, 129, 33), (0, 0), False),
        ((256, 128, 64), (0, 0), True),
        ((432, 64, 64), (0, 0), False),
        ((256, 64, 48), (0, 0), False),
        ((256, 48, 64), (0, 0), True),
    ],
)
def test_repeated_weights(sizes: tuple[int, int, int], strides: tuple[int, int], products: bool) -> None:
    """Where tiles do not divide them, or beside uneven rows, they are no product of exponentials: Triton 3.6 would not
    compile it."""
    i, k, j = sizes
    gradient = tilec.compile(LOG_PRODUCT, backend="triton").grad()
    lowered = gradient.lower(tilec.spec((i, k)), tilec.spec((k, j)), tilec.spec((i, j)), target="sm_90")
    plan = lowered._executable._make_plan([(k, 1), (j, 1), strides], Setting(), {})
    assert any("_weighted_dot" in launch.kernel for launch in plan.launches()) == products
