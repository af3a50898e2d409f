"""Recurrences through bind and flatten, by the oracle; what has no order."""

from __future__ import annotations

import pytest
from meaning import bound, flat, same_meaning, statements
from support.recurrences import RECURRENCES, normal

from tilec.errors import NoSchedule, Unsupported
from tilec.lattice.sets import shapes_of
from tilec.transforms.recurrence import schedule


@pytest.mark.one_in(3)
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


def test_conditions_on_indices_order():
    a, x = normal(4, 4), normal(4)
    source = "function (A[N, N], X[N]) -> (H) {{ H[i : N] = X[i] - sum[j]({} ? A[i, j] * H[j]); }}"
    assert tau(source.format("j < i"), a, x) == (1,)
    assert tau(source.format("A[i, j] > 0 & i < j"), a, x) == (-1,)
    assert tau("function (X[N]) -> (H) { H[i : N] = X[i] + (i % 2 == 1 | i > 2 ? H[i - 1] : 0.0); }", x) == (1,)
    with pytest.raises(NoSchedule):
        flat(source.format("j <= i"), a, x)


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
        "  hint: reads must all go one way, as `H[t - 1, s]` does: an integer combination of the index variables "
        "must be less in what is read than in what is written",
    ]


def test_only_reads_that_conflict_where_they_are_read_are_shown():
    source = """function (R[N]) -> (A) {
    A[m, i : N, N + 1] = i == N ? A[m - 1, N] - A[m, m]
        : i > m ? 0 : i == m ? R[m] / A[m - 1, N]
        : A[m - 1, i] + A[m, m] * A[m - 1, m - i];
}"""
    with pytest.raises(NoSchedule) as caught:
        bound(source, normal(4))
    assert str(caught.value.located(source)).splitlines()[:5] == [
        "<tile>:2:49: no order computes every element of A before these reads of it",
        "    2 |     A[m, i : N, N + 1] = i == N ? A[m - 1, N] - A[m, m]",
        "      |                                                 ^^^^^^^",
        "    4 |         : A[m - 1, i] + A[m, m] * A[m - 1, m - i];",
        "      |                         ^^^^^^^",
    ]
