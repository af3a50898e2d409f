"""Recurrences through bind and flatten, by the oracle; what has no order."""

from __future__ import annotations

import numpy as np
import pytest
from meaning import bound, flat, same_meaning, statements

from tilec.errors import NoSchedule, Unsupported
from tilec.lattice.sets import shapes_of
from tilec.transforms.recurrence import schedule

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape)


RECURRENCES = {
    "linear": ("function (B[T]) -> (H) { H[t : T] = H[t - 1] * 0.5 + B[t]; }", (normal(5),)),
    "points that other reads leave": ("function (B[T]) -> (H) { H[t : T] = H[t - 1] + B[t - 1]; }", (normal(5),)),
    "shuffle": (
        "function (B[T, N, D], H0[N, D]) -> (H) "
        "{ H[t, n, i : T, N, D] = relu(B[t, n, i] + H[t - 1, n, (i - 1) % D]) init H0[n, i]; }",
        (normal(4, 2, 3), normal(2, 3)),
    ),
    "hidden Markov model": (
        "function (P[S, S], E[T, S], F0[S]) -> (F) "
        "{ F[t, j : T, S] = logsumexp(F[t - 1, i] + P[i, j]) + E[t, j] init F0[j]; }",
        (normal(3, 3), normal(4, 3), normal(3)),
    ),
    "edit distance": (
        "function (C[N, M]) -> (D) { D[i, j : N, M] = "
        "min(min(D[i - 1, j] + 1, D[i, j - 1] + 1), D[i - 1, j - 1] + C[i, j]) init max(i, j) + 1; }",
        (normal(4, 3),),
    ),
    "backward": ("function (B[T]) -> (H) { H[t : T] = H[t + 1] * 0.5 + B[t]; }", (normal(5),)),
    "written one later": ("function (B[T]) -> (H) { H[t + 1 : T + 1] = H[t] * 0.5 + B[t]; }", (normal(5),)),
    "written at every other": ("function (B[T]) -> (H) { H[2*t : 2*T] = H[2*t - 2] * 0.5 + B[t]; }", (normal(5),)),
    "a window of the past": (
        "function (B[T], W[K]) -> (H) { H[t : T] = B[t] + sum(W[k] * H[t - 1 - k]) init t; }",
        (normal(5), normal(2)),
    ),
    "aggregated": ("function (W[K]) -> (H) { H[t : 6] = +(W[k] * H[t - 1 - k]) init 1; }", (normal(2),)),
    "an aggregation in init": (
        "function (W[K]) -> (H) { H[t : 6] = mean(W[k] * H[t - 1 - k]) init sum(W[i]) + t; }",
        (normal(2),),
    ),
    "an aggregation over what init names": (
        "function (B[T, D], V[D, K]) -> (H) { H[t, i : T, D] = B[t, i] + H[t - 1, i - 1] init sum(V[i, k]) + V[t, i]; }",
        (normal(3, 4), normal(4, 2)),
    ),
    "a tree": ("function (B[N]) -> (H) { H[i : N] = B[i] + H[i/2 - 1] init 3; }", (normal(9),)),
    "bool": ("function (B[N]) -> (H) { H[i : N] = B[i] > 0 & ~H[i - 1]; }", (normal(9),)),
    "integers": ("function (B[N]) -> (H) { H[i : N] = 3 * H[i - 1] + B[i]; }", (np.arange(5, dtype=np.int16),)),
    "a knight's move": (
        "function (A[N, M]) -> (H) { H[i, j : N, M] = H[i - 1, j + 2] + H[i, j - 1] + A[i, j]; }",
        (normal(4, 5),),
    ),
    "pointers": (
        "function (A[T, D], I[T, D]) -> (H) { H[t, i : T, D] = A[t, i] + H[t - 1, I[t, i]] init t + i; }",
        (normal(4, 3), RNG.integers(-1, 4, (4, 3))),
    ),
    "guarded": (
        "function (A[T], X[T]) -> (H) { H[t : T] = A[t] > 0 ? H[t - 1] + A[t] default X; }",
        (normal(6), normal(6)),
    ),
    "padded by hand": ("function (A[T]) -> (H) { H[t : T] = A[t] * pad(H[t - 1], 2 * t + 1); }", (normal(4),)),
    "of length 0": ("function (A[T, D]) -> (H) { H[t, i : T, D] = A[t, i] + H[t - 1, i]; }", (normal(0, 3),)),
}


@pytest.mark.parametrize("case", RECURRENCES)
def test_bound_and_flat_mean_the_same(case):
    source, arrays = RECURRENCES[case]
    same_meaning(source, *arrays)


def tau(source, *arrays):
    program = flat(source, *arrays)
    (s,) = (s for s in program.statements if s.output == "H")
    return schedule(s, shapes_of(program))


def test_schedules():
    two = normal(4, 5)
    assert tau("function (A[N, M]) -> (H) { H[i, j : N, M] = A[i, j] + H[i, j - 1]; }", two) == (0, 1)
    assert tau("function (A[N, M]) -> (H) { H[i, j : N, M] = A[i, j] + H[i - 1, j] + H[i, j - 1]; }", two) == (1, 1)
    assert tau("function (A[N, M]) -> (H) { H[i, j : N, M] = A[i, j] + H[i, j + 1]; }", two) == (0, -1)
    assert tau("function (A[N, M]) -> (H) { H[i, j : N, M] = A[i, j] + H[i - 1, j] + H[i, j + 1]; }", two) == (1, -1)
    source = (
        "function (A[N, M]) -> (H) { H[i, j : N, M] = A[i, j] + H[i - 1, (j + 3) % M] + sum(H[i - 2, k] * A[i, k]); }"
    )
    assert tau(source, two) == (1, 0)


def test_output_indices_become_bare():
    assert statements(flat("function (B[T]) -> (H) { H[t + 1 : T + 1] = H[t] + B[t]; }", normal(3))) == [
        "H[v0 : 4] = H[v0 - 1] + B[v0 - 1];"
    ]
    with pytest.raises(Unsupported, match="along a diagonal"):
        flat("function (B[T]) -> (H) { H[t, t : T, T] = H[t - 1, t - 1] + B[t]; }", normal(3))


def test_what_reads_itself_stays_nested():
    source = "function (A[N, N], B[T, N]) -> (H) { H[t, i : T, N] = sum(A[i, j] * H[t - 1, j]) + sum(B[t, j]); }"
    assert statements(flat(source, normal(3, 3), normal(4, 3))) == [
        "H_sum[t : 4] = +(B[t, j]);",
        "H[t, i : 4, 3] = sum(A[i, j] * H[t - 1, j]) + H_sum[t];",
    ]


def test_reads_that_conflict_are_all_shown():
    source = """function (B[T, S]) -> (H) {
    H[t, s : T, S] = H[t + 1, s - 1] * 0.5 + B[t, s]
        + H[t - 1, s] + H[t, s + 1];
}"""
    with pytest.raises(NoSchedule) as caught:
        bound(source, normal(4, 5))
    assert str(caught.value.located(source)).splitlines() == [
        "<tile>:2:22: no order computes every element of H before these reads of it",
        "    2 |     H[t, s : T, S] = H[t + 1, s - 1] * 0.5 + B[t, s]",
        "      |                      ^^^^^^^^^^^^^^^",
        "    3 |         + H[t - 1, s] + H[t, s + 1];",
        "      |           ^^^^^^^^^^^   ^^^^^^^^^^^",
        "  hint: an integer combination of the index variables must be less in what is read than in what is written",
    ]
