"""Rows that elements of integers move: which of them are read of what is computed."""

from __future__ import annotations

import numpy as np
import pytest
from support.stages import check, setting_of

from tilec.language import parse
from tilec.language.show import show_statement
from tilec.pipeline import lower
from tilec.transforms.simplify.exact_remainders import exact_remainders

MOVED = {  # by elements of integers; shapes, the first of them of floats; the text of the flat statement
    "turned": (
        "function (A[N, M], S[N]) -> (O) { O[n, (m - 3*S[n]) % M : N, M] = +(A[n, m]); }",
        ((3, 5), (3,)),
        "O[n, m : 3, 5] = +(A[n, (m - 2*(S[n] % 5)) % 5]);",
    ),
    "each row by its own": (
        "function (A[N, M], S[N]) -> (O) { O[n, m + S[n] - 1 : N, M] = +(A[n, m]); }",
        ((3, 5), (3,)),
        "O[n, m : 3, 5] = +(A[n, m - S[n] + 1]);",
    ),
    "mirrored, elements beyond the end": (
        "function (A[N, M], S[K], D[N, M]) -> (O) { O[n, S[n] - m : N, M] = >(A[n, m]) default D; }",
        ((3, 5), (2,), (3, 5)),
        "O[n, m : 3, 5] = >(A[n, -m + S[n]]) default D;",
    ),
    "two axes": (
        "function (A[N, M], S[N], T[N]) -> (O) { O[m + S[n], n, k - T[n] : M, N, M] = +(A[n, m] * A[n, k]); }",
        ((3, 5), (3,), (3,)),
        "O[m, n, k : 5, 3, 5] = +(A[n, m - S[n]] * A[n, k + T[n]]);",
    ),
    "by elements of a sum": (
        "function (A[P, M], S[N, P], B[N]) -> (O) { O[n, m + S[n, p] : N, M + 3] = +(A[p, m] * B[n]); }",
        ((2, 5), (3, 2), (3,)),
        "O[n, m : 3, 8] = +(A[p, m - S[n, p]] * B[n]);",
    ),
    "patches in an image": (
        "function (A[P, H, W], S[P], T[P]) -> (O) { O[y + S[p], x - T[p] : 4, 6] = >(A[p, y, x]); }",
        ((2, 3, 4), (2,), (2,)),
        "O[y, x : 4, 6] = >(A[p, y - S[p], x + T[p]]);",
    ),
    "few places of a long output": (
        "function (A[P, M], S[P]) -> (O) { O[m + S[p] : 90] = +(A[p, m]); }", ((2, 5), (2,)), None,
    ),
    "each term by its own": (
        "function (A[N, M], S[K, N]) -> (O) { O[k, m + S[k, n] : K, 6] = +(A[n, m]); }",
        ((3, 5), (2, 3)),
        "O[k, m : 2, 6] = +(A[n, m - S[k, n]]);",
    ),
    "few terms to many elements": (
        "function (A[N, M], S[N]) -> (O) { O[m + S[n] : 21] = +(A[n, m]); }", ((3, 5), (3,)), None,
    ),
    "elements beside a remainder": (
        "function (A[N, M], S[N]) -> (O) { O[n, m - S[n] + n % 2 : N, M] = >(A[n, m]); }",
        ((3, 5), (3,)),
        "O[n, m : 3, 5] = >(A[n, m + S[n] - n % 2]);",
    ),
    "corners of a window": (
        "function (A[N, M], S[N], W[K]) -> (O) { O[n, m + k + S[n] : N, 9] = +(A[n, m] * W[k] * k); }",
        ((3, 5), (3,), (2,)),
        "O[n, m : 3, 9] = +(A[n, -k + m - S[n]] * W[k] * k);",
    ),
    "of two windows": (
        "function (A[M, P], S[N], W[N, K]) -> (O) {"
        " O[n, m - k + S[n], p + j + S[n] : N, 9, 9] = +(A[m, p] * W[n, k]), j < 2; }",
        ((5, 4), (3,), (3, 2)),
        "O[n, m, p : 3, 9, 9] = +(A[k + m - S[n], -j + p - S[n]] * W[n, k]), j < 2;",
    ),
    "as many places as terms": (
        "function (A[N, M], S[N], W[K]) -> (O) { O[n, m + k + S[n] : N, 90] = +(A[n, m] * W[k]); }",
        ((3, 50), (3,), (40,)),
        None,
    ),
    "turned by elements": (
        "function (A[N, M], S[N], T[N]) -> (O) { O[(m - S[n]) % M, (n + 1) % N : M, N] = +(A[n, m]); }",
        ((3, 5), (3,), (3,)),
        "O[m, n : 5, 3] = +(A[(n - 1) % 3, (m + S[(n - 1) % 3] % 5) % 5]);",
    ),
    "turned by elements of each term": (
        "function (A[N, M], S[N]) -> (O) { O[(m - S[n]) % M : M] = +(A[n, m]); }",
        ((3, 5), (3,)),
        "O[m : 5] = +(A[n, (m + S[n] % 5) % 5]);",
    ),
    "turned by halves": (
        "function (A[N, M], S[N]) -> (O) { O[n, (m + n/2) % M : N, M] = +(A[n, m]); }",
        ((3, 5), (3,)),
        "O[n, m : 3, 5] = +(A[n, (m - 1/2*n) % 5]);",
    ),
    "turned by elements of what turns": (
        "function (A[N, M], S[M]) -> (O) { O[n, (m + S[m]) % M : N, M] = +(A[n, m]); }", ((3, 5), (5,)), None,
    ),
    "turned under a constraint": (
        "function (A[N, M], S[N]) -> (O) { O[n, (m + S[n]) % M : N, M] = +(A[n, m]), m - n < 3; }",
        ((3, 5), (3,)),
        None,
    ),
    "by elements of the row that moves": (
        "function (A[N, M], S[M]) -> (O) { O[n, m + S[m] : N, M] = +(A[n, m]); }", ((3, 5), (5,)), None,
    ),
    "of a row that is moved": (
        "function (A[N, M], S[N]) -> (O) { O[n + 1, m + S[n] : N, M] = +(A[n, m]); }", ((3, 5), (3,)), None,
    ),
    "a constraint": (
        "function (A[N, M], S[N]) -> (O) { O[n, m + S[n] : N, M] = +(A[n, m]), m - 1 < 3; }", ((3, 5), (3,)), None,
    ),
    "branches": (
        "function (A[N, M], S[N]) -> (O) { O[n, m + S[n] : N, M] = +(m > 2 ? A[n, m] : A[n, m - 2]); }",
        ((3, 5), (3,)),
        None,
    ),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MOVED)
def test_rows_moved_by_elements(name: str) -> None:
    source, shapes, wanted = MOVED[name]
    random = np.random.default_rng(0)
    program = parse(source)
    whole = {"S", "T"}
    arrays = [
        random.integers(-3, 4, s).astype("int64" if n in whole else "float64")
        for n, s in zip(program.input_names(), shapes, strict=True)
    ]
    check(program, arrays)
    setting = setting_of(program, arrays)
    lowered = lower(program, setting.types, setting.values)
    exact = exact_remainders(lowered.stages["bound"], setting.types)
    (unmoved,), (flat,) = (stage.statements for stage in (exact, lowered.stages["flat"]))
    assert flat == unmoved if wanted is None else show_statement(flat) == wanted
