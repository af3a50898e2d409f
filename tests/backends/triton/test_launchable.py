"""Launches that the driver takes, and what may be contracted in them."""

from __future__ import annotations

import pytest

import tilec
from tilec.backends.triton.plan.plan import Launch

CONVOLUTION = """function (I[N, H, W, C], K[R, S, C, D]) -> (O) {
    O[n, y, x, o : N, H - R + 1, W - S + 1, D] = >(I[n, y + j, x + i, c] + K[j, i, c, o]);
}"""
SEGMENTS = "function (I[K], U[K, D], Z[V]) -> (O) { O[I[k], j : V, D] = +(U[k, j]); }"


def launches(function: tilec.Function, *specs: tilec.Spec) -> list[Launch]:
    return function.lower(*specs, target="sm_90")._executable.plan.launches()


def test_a_grid_without_programs_is_no_launch():
    image, kernel, d = (129, 3, 1, 127), (1, 2, 127, 3), (129, 3, 0, 3)
    gradient = tilec.compile(CONVOLUTION, backend="triton").grad()
    found = launches(gradient, *(tilec.spec(s, "float16") for s in (image, kernel, d)))
    assert found and all(0 not in launch.grid for launch in found)


def test_only_the_first_axis_of_a_grid_is_long():
    *_, launch = launches(
        tilec.compile(SEGMENTS, backend="triton"),
        tilec.spec((4000,), "int64"),
        tilec.spec((4000, 2**24)),
        tilec.spec((5,)),
    )
    assert launch.grid[0] > 2**16 and launch.grid[1:] == (1, 1)


@pytest.mark.parametrize(
    ("source", "contracts"),
    [
        ("Y = A * B - floor(A * B)", False),
        ("X = A * B; F = floor(X); Y = X - F; Z = F + X", False),
        ("X = A * A; Y = exp(X - logaddexp(X, B)) + X", False),
        ("X = -(A * B); Y = round(X) - X", False),
        ("Y = exp(A * A - B)", False),
        ("Y = A * B - floor(B)", True),
        ("Y = A - A * B", True),
        ("Y[i, j] = exp(A[i, j] * B[i, j] - max(A[i, k] * B[i, k]))", True),
    ],
)
def test_a_product_is_rounded_before_what_is_made_of_it_is_subtracted(source, contracts):
    """Contracted, the fraction of a product that is a whole number once rounded could be negative."""
    found = launches(tilec.compile(source, backend="triton"), tilec.spec((10, 100)), tilec.spec((10, 100)))
    assert [launch.contracts for launch in found] == [contracts] * len(found)


def test_a_sum_with_a_product_is_the_same_wherever_it_is_compared():
    """Contracted in one kernel alone, the greatest of `R + 0.9 * S` would equal none of them in another."""
    source = "(R[A, S], W[A, S]) -> (V) { X[a, s : A, S] = +(W[a, s]); V[s : S] = >(R[a, s] + 0.9 * X[a, s]); }"
    gradient = tilec.compile(f"function {source}", backend="triton").grad()
    found = launches(gradient, *(tilec.spec((8, 512)),) * 2, tilec.spec((512,)))
    compare = [
        launch for launch in found if any("==" in line or "R[" in line for line, _ in launch.file.kernel.heading)
    ]
    assert compare and not any(launch.contracts for launch in compare)
    product = tilec.compile("function (A[N, K], B[K, N]) -> (V) { V[i : N] = >(A[i, k] * B[k, i]); }", backend="triton")
    assert all(x.contracts for x in launches(product, *(tilec.spec((64, 64)),) * 2))
