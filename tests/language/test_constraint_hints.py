"""A constraint that is not of the form `e < c`: the hint gives one that is, and it keeps the same points."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilec
from tilec.errors import TileError
from tilec.language import parse

# constraints as written, those that the hint proposes in the place of all of them
EQUIVALENT = [
    ("k <= 3", "k < 4"),
    ("3 >= k", "k < 4"),
    ("4 > k", "k < 4"),
    ("k <= N - 2", "k < N - 1"),
    ("k >= 0, k < 3", "k < 3"),
    ("0 <= k, k < 3", "k < 3"),
    ("k > 0, k < 3", "k - 1 < 2"),
    ("k >= 1, k <= 3", "k - 1 < 3"),
    ("0 < k, k < N - 1", "k - 1 < N - 2"),
    ("0 <= k < 3", "k < 3"),
    ("1 <= k < 3", "k - 1 < 2"),
    ("0 < k <= 3", "k - 1 < 3"),
    ("1 < k <= N - 1", "k - 2 < N - 2"),
    ("k == 2", "k - 2 < 1"),
    ("2 == k", "k - 2 < 1"),
    ("k == i", "k - i < 1"),
    ("k < i + 1", "i - k < N"),
    ("k <= i", "i - k < N"),
    ("i >= k", "i - k < N"),
    ("i > k", "i - k - 1 < N"),
    ("k < i", "i - k - 1 < N"),
    ("k <= i + 2", "i - k + 2 < N + 2"),
    ("k >= i - 1", "k - i + 1 < N + 1"),
    ("k < 3 & i < 2", "k < 3, i < 2"),
    ("k < 3 & i <= 2", "k < 3, i <= 2"),
]
WORDS = [  # what a hint says where no constraint is the same
    ("k > 2", "write `k - 3 < N` with the number N of its values, or `k > 2 ? ...` in the body"),
    ("k != 2", "write `k != 2 ? ...`"),
    ("k", "a constraint `e < c` means that e is an integer and 0 <= e < c"),
    ("k < 3 | i < 2", "a constraint `e < c` means"),
    ("k * i <= 3", "write `k * i <= 3 ? ...`"),
    ("2*k <= i", "write `i - 2*k < N`: "),
    ("k + i >= k", "write `i < N`: "),
    ("k <= i - M", "write `i - M - k < N`, with a size N that i - M - k never reaches"),
]
N = 5
A = np.arange(1.0, 1 + N)


def source(constraints: str) -> str:
    return f"function (A[N], M) -> (O) {{ O[i : N] = +(A[k]), {constraints}; }}"


def hint(constraints: str) -> str:
    with pytest.raises(TileError) as caught:
        parse(source(constraints))
    assert caught.value.span is not None
    return caught.value.hint or ""


def wanted(constraints: str) -> np.ndarray:
    """The sums over all i and k at which Python finds the constraints true."""
    condition = constraints.replace(", ", " and ").replace("&", "and").replace("N", str(N))
    points = [(i, k) for i in range(N) for k in range(N) if eval(condition, {"i": i, "k": k})]
    result = np.zeros(N)
    for i, k in points:
        result[i] += A[k]
    return result


@pytest.mark.parametrize("written, proposed", EQUIVALENT)
def test_the_same_points(written: str, proposed: str) -> None:
    text = hint(written)
    if "leave it out" in text:
        assert f"`{proposed}` says it too" in text
    else:
        (found,) = re.findall(r"write `([^`]*)`", text)
        assert found == proposed, text
    if "<=" not in proposed:
        np.testing.assert_array_equal(tilec.interpret(source(proposed), A, 0), wanted(written))


@pytest.mark.parametrize("written, words", WORDS)
def test_words(written: str, words: str) -> None:
    assert words in hint(written)


def test_a_size_is_looked_for_in_inputs_where_the_left_side_gives_none() -> None:
    with pytest.raises(TileError) as caught:
        parse("function (A[N], X[M]) -> (O) { O[i] = +(A[k] * X[i]), k <= i; }")
    assert "write `i - k < M`" in (caught.value.hint or "")
    with pytest.raises(TileError) as caught:
        parse("O[i] = +(A[k] * X[i]), k <= i;")
    assert "write `i - k < N`, with a size N that i - k never reaches" in (caught.value.hint or "")


def test_messages(golden) -> None:
    texts = []
    for written in (*(w for w, _ in EQUIVALENT), *(w for w, _ in WORDS)):
        with pytest.raises(TileError) as caught:
            parse(source(written))
        texts.append(f"{caught.value}\n")
    golden("language/constraints.txt", "\n".join(texts))
