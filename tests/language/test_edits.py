"""Hints that propose a text carry the edits that write it: what they make of a text is right, or nearer to it."""

from __future__ import annotations

import pickle
import random

import pytest
from language.test_constraint_hints import EQUIVALENT, WORDS, source
from language.test_errors import BODIES, HEAD, SOURCES
from language.test_idioms import CASES
from support.scale import scaled
from support.texts import SOURCES as SOUND
from support.texts import mutated

import tilec
from tilec.errors import Edit, Hint, Span, TileError, edited
from tilec.language import parse

TEXTS = [
    *(f"{HEAD}{body}\n}}" for _, body, _ in BODIES),
    *(text for _, text, _ in SOURCES),
    *(text for _, text, _ in CASES),
    *(source(constraint) for constraint, _ in (*EQUIVALENT, *WORDS)),
]
MENDED = {  # a text, and what the edits of its hint make of it
    "Y[i : N] = +(A[k] * B[k]) + 1;": "Y[i : N] = sum(A[k] * B[k]) + 1;",
    "Y[i : N] = *(A[i, k]) + +(B[k]);": "Y[i : N] = *(A[i, k]) + sum(B[k]);",
    "Y[i : N] += A[i, k];": "Y[i : N] = +(A[i, k]);",
    "Y[i : N] += (A[i, k] + 1) * (B[k]) // why": "Y[i : N] = +((A[i, k] + 1) * (B[k])) // why",
    "Y[i : N] *= f(A[i, k]": "Y[i : N] = *(f(A[i, k])",
    "Y[i : N] += (A[i, k]), k < 3": "Y[i : N] = +(A[i, k]), k < 3",
    "Y[i : N] == (A[i])": "Y[i : N] = (A[i])",
    "Y[i : N] = A[i, k] * B[k], k < 3;": "Y[i : N] = +(A[i, k] * B[k]), k < 3;",
    "Y[i : N] = (A[i, k]);": "Y[i : N] = +((A[i, k]));",
    "Y = +(A[i]);": "Y[] = +(A[i]);",
    "Y[i] = sum[j](A[i, j, k]);": "Y[i] = sum[j, k](A[i, j, k]);",
    "Y[i] = sum(A[i, j] for j in range(3));": "Y[i] = sum(A[i, j]);",
    "Y[i] = A[i] B[i];": "Y[i] = A[i] * B[i];",
    "Y[i, j] = (A[i] + 1)(B[j] + 1);": "Y[i, j] = (A[i] + 1) * (B[j] + 1);",
    "Y = A\n  // why\n  Z = Y": "Y = A;\n  // why\n  Z = Y",
    "Z = X; Y = A.sum(1)": "Z = X; Y[i] = sum(A[i, j])",
    "Z = X; Y = A.sum(1) * 2": None,  # the proposed statement leaves the rest out
    "Y = torch.where(A > 0, A, B) + 1": "Y = (A > 0 ? A : B) + 1",
    "Y = torch.where(A > 0, A, B)": "Y = A > 0 ? A : B",
    "Y = 2 * where(A > 0, A, B)": "Y = 2 * (A > 0 ? A : B)",
    "Y = torch.exp(A[i]) + 1": "Y = exp(A[i]) + 1",
    "Y = 2 * if A > 0 then A else B": "Y = 2 * (A > 0 ? A : B)",
    "Y = norm(X + 1);": None,
    "P[n, e] = softmax(S[n, e]) * 2;": (
        "P[n, e] = (exp(S[n, e] - max(S[n, k])) / sum(exp(S[n, k] - max(S[n, l])))) * 2;"
    ),
    "P[n, e] = softmax(sum(X[n, d] * G[d, e]));": None,
    "Y[t, c] = sum(X[t - k, c] * W[k, c])": "Y[t, c : shape(X, 0), shape(X, 1)] = sum(X[t - k, c] * W[k, c])",
    "function (X[N, M]) -> (Y) { Y[2*i, j] = X[i, j]; }": "function (X[N, M]) -> (Y) { Y[2*i, j : N, M] = X[i, j]; }",
    "Y[i] = i + X[3];": None,
    "Y = A if A > 0 else B": "Y = A > 0 ? A : B",
    "Y = C @ D": "Y[i, j] = sum(C[i, k] * D[k, j])",
    "Y = A ≤ 2π": "Y = A <= 2π",
    "C = einsum('ij,jk->ik', A, B);": "C[i, k] = sum(A[i, j] * B[j, k]);",
    "Y[i : 9] = X[i//2];": "Y[i : 9] = X[(i - i % 2)/2];",
    "Y[i : N] = +(X[i + k]), 0 <= k <= 3 default Z": None,
    "Y[i : N] = +(X[i + k]), 0 <= k , /* */ k < 3": None,
    "Y[i : N] = +(X[i + k]), k >= 1, k <= 3": "Y[i : N] = +(X[i + k]), k - 1 < 3",
    "Y[i : N] = +(X[i + k]), k <= 3, k >= 1": "Y[i : N] = +(X[i + k]), k < 4, k >= 1",
    "Y[i : N] = +(X[i + k]), k >= 0, k <= 3": "Y[i : N] = +(X[i + k]), k < 4",
    "Y[i : N] = +(X[i + k]), ((k < 3) & (i < 2))": None,  # parentheses hold one constraint
    "-X; Z = X": "Y = -X; Z = X",
    "Z = X; exp(X) == 1 ? 1 : 0": "Z = X; Y = exp(X) == 1 ? 1 : 0",
    "A[i, k] * B[k, j]": None,  # which indices are the output's is not told
    "Y[i : N] = min(sum((X[i, d] - Y0[j, d]) * (X[i, d] - Y0[j, d])))": (
        "Y[i : N] = min(sum[d]((X[i, d] - Y0[j, d]) * (X[i, d] - Y0[j, d])))"
    ),
}
WARNED = {
    "Scores = X; Y = Scoers * Scoers;": "Scores = X; Y = Scores * Scores;",
    "Y = X * 1/2 + (1/2);": "Y = X * 1/2 + (1.0/2);",
    "function (X[N]) -> (Y) { Y[i : N] = X[i] * (i/N); }": "function (X[N]) -> (Y) { Y[i : N] = X[i] * (1.0*i/N); }",
    "Y = X * True;": "Y = X * 1;",
    "Y = X + None": None,
}


def mistake(text: str) -> TileError | None:
    try:
        parse(text)
    except TileError as error:
        return error
    return None


def test_edits_mend() -> None:
    """One after another until the text is right; each changes what is wrong."""
    count = 0
    for marked in TEXTS:
        text = marked.replace("«", "").replace("»", "")
        error = mistake(text)
        assert error is not None or text in LEGAL
        for _ in range(3):
            if error is None or not error.edits:
                break
            count += 1
            spans = [e.span for e in error.edits]
            assert all(a.stop <= b.start for a, b in zip(spans, spans[1:], strict=False))
            text = edited(text, error.edits)
            error = mistake(text)
        else:
            raise AssertionError(text)
        assert error is None or text == marked.replace("«", "").replace("»", ""), (text, str(error))
    assert count > 120


LEGAL = {source(c) for c, _ in WORDS}


@pytest.mark.parametrize("text", MENDED)
def test_mended(text: str) -> None:
    error = mistake(text)
    assert error is not None
    assert (edited(text, error.edits) if error.edits else None) == MENDED[text], str(error)


@pytest.mark.parametrize("text", WARNED)
def test_warnings(text: str) -> None:
    with pytest.raises(TileError) as caught:
        tilec.compile(text, warnings="error")
    assert (edited(text, caught.value.edits) if caught.value.edits else None) == WARNED[text]


def test_edits_of_mutated_texts() -> None:
    """Within the text, apart from each other, in order; what is wrong afterwards is something else."""
    count = 0
    for seed in range(scaled(380)):
        r = random.Random(seed)
        text = mutated(r, r.choice(SOUND)[0])
        error = mistake(text)
        if error is None or not error.edits:
            continue
        count += 1
        places = [p for e in error.edits for p in (e.span.start, e.span.stop)]
        assert places == sorted(places) and places[0] >= 0 and places[-1] <= len(text), text
        again = mistake(edited(text, error.edits))
        assert again is None or (again.message, again.span) != (error.message, error.span), text
    assert count > 20


def test_a_hint_is_its_words() -> None:
    hint = Hint("write `B`", Edit(Span(0, 1), "B"))
    assert hint == "write `B`" and pickle.loads(pickle.dumps(hint)).edits == hint.edits
    assert TileError("no", hint="write `B`").edits == TileError("no").edits == ()
    assert edited("A + A", (Edit(Span(0, 1), "Bc"), Edit(Span(4, 5), ""))) == "Bc + "
