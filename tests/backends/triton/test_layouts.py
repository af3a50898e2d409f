"""Which products a library is given, by how their tensors lie in memory."""

from __future__ import annotations

import tilec


def plan(source: str, *shapes: tuple[int, ...]) -> str:
    text = tilec.compile(source).lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90").source()
    return text[text.rindex("\n\n@") :] if "@" in text else text  # what follows the last kernel


APART = "function (D[N, I, Q], G[N, P, Q]) -> (A) { A[i, p : I, P] = +(D[n, i, q] * G[n, p, q]); }"
TOGETHER = "function (D[I, Q], G[P, Q]) -> (A) { A[i, p : I, P] = +(D[i, q] * G[p, q]); }"
LONG = "function (D[I, N, Q], G[P, N, Q]) -> (A) { A[n, i, p : N, I, P] = +(D[i, n, q] * G[p, n, q]); }"


def test_sums_that_a_library_would_copy_first_are_ours() -> None:
    """Over two axes that do not follow each other in memory, of few columns and so split over programs."""
    assert "product" in plan(APART, (64, 64, 256), (64, 16, 256)) and "permute" not in plan(
        APART, (64, 64, 256), (64, 16, 256)
    )
    assert "rt.multiply" in plan(TOGETHER, (64, 64 * 256), (16, 64 * 256))


def test_short_rows_stay_a_library_s_where_there_are_many() -> None:
    assert "rt.multiply" in plan(LONG, (512, 256, 16), (16, 256, 16))
