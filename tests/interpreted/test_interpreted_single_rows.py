"""Chains of which there is one row, without an axis of its own, interpreted: divided as those with an axis are."""

import os

import pytest
import torch

import tilec

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)
CACHE = "K[B, M, H, E], V[B, M, H, F]"
CACHED = """L[b, h : B, H] = logsumexp({0}S[b, h, j]);
    O[b, h, f : B, H, F] = sum({0}exp(S[b, h, j] - L[b, h]) * V[b, j, h, f])"""
CACHED_SCORES = "S[b, h, j : B, H, M] = {1}sum(Q[b, h, e] * K[b, j, h, e]){0}"
WITHOUT_ROWS = {
    "cache": (f"Q[B, H, E], {CACHE}", CACHED_SCORES.format("", "0.25 * "), CACHED.format("")),
    "lengths": (f"Q[B, H, E], {CACHE}, T[B]", CACHED_SCORES.format("", "0.25 * "), CACHED.format("j < T[b] ? ")),
    "slopes": (
        f"Q[B, H, E], {CACHE}, T[B], A[H]",
        CACHED_SCORES.format(" - A[h] * (T[b] - j)", "0.25 * "),
        CACHED.format("j < T[b] ? "),
    ),
    "capped": (
        f"Q[B, H, E], {CACHE}, A[B, M]",
        "X[b, h, j : B, H, M] = sum(Q[b, h, e] * K[b, j, h, e]); "
        "S[b, h, j : B, H, M] = 3 * tanh(X[b, h, j] / 3) + A[b, j]",
        CACHED.format(""),
    ),
    "pages": (
        "Q[B, H, E], K[P, W, H, E], V[P, W, H, F], Table[B, U], T[B]",
        "S[b, h, t, s : B, H, U, W] = sum(Q[b, h, e] * K[Table[b, t], s, h, e])",
        "L[b, h : B, H] = logsumexp(t * W + s < T[b] ? S[b, h, t, s]); "
        "O[b, h, f : B, H, F] = sum(t * W + s < T[b] ? exp(S[b, h, t, s] - L[b, h]) * V[Table[b, t], s, h, f])",
    ),
    "pooling": (
        "Q[E], K[B, M, E], V[B, M, F]",
        "S[b, j : B, M] = sum(Q[e] * K[b, j, e])",
        "L[b : B] = logsumexp(S[b, j]); O[b, f : B, F] = sum(exp(S[b, j] - L[b]) * V[b, j, f])",
    ),
    "a row's maximum": (
        f"Q[B, H, E], {CACHE}",
        CACHED_SCORES.format("", ""),
        "L[b, h : B, H] = max(S[b, h, j]); O[b, h, f : B, H, F] = sum(exp(S[b, h, j] - L[b, h]) * V[b, j, h, f]) "
        "/ sum(exp(S[b, h, j] - L[b, h]))",
    ),
}


def without_rows(name, columns):
    torch.manual_seed(0)
    sizes = {"B": 2, "H": 3, "E": 16, "F": 24, "M": columns, "P": 90, "W": 32, "U": columns // 32}
    inputs, scores, rest = WITHOUT_ROWS[name]
    text = f"function ({inputs}) -> (L, O) {{ {scores}; {rest}; }}"
    given = []
    for declared in inputs.removesuffix("]").split("], "):
        tensor, axes = declared.split("[")
        shape = [sizes[a] for a in axes.split(", ")]
        match tensor:
            case "T":
                given.append(torch.tensor([3 * columns // 5, columns]))
            case "Table":
                given.append(torch.randint(90, shape))
            case _:
                given.append(torch.randn(shape).bfloat16())
    return text, given


@interpreted
@pytest.mark.parametrize("columns", (1024, 2080))
@pytest.mark.parametrize("name", WITHOUT_ROWS)
@pytest.mark.covering
@pytest.mark.one_in(7)
def test_one_row_without_an_axis(name, columns):
    """A query of each head, whose scores have no axis for it: a chain like others, and no copy of anything."""
    text, given = without_rows(name, columns)
    ours, theirs = (tilec.compile(text, backend=b) for b in ("triton", "torch"))
    kernels = [k.name for k in ours.lower(*given).kernels]
    assert any("chain" in k for k in kernels) and not any("Q" in k for k in kernels)
    want = theirs(*(x.double() if x.is_floating_point() else x for x in given))
    for x, w in zip(ours(*given), want, strict=True):
        torch.testing.assert_close(x.double(), w, rtol=2e-2, atol=1e-2)


@interpreted
def test_one_row_without_an_axis_of_strided_tensors():
    text, (q, k, v) = without_rows("cache", 1500)
    q = torch.randn(3, 16, 2, 2).bfloat16()[..., 1].permute(2, 0, 1)
    ours, theirs = (tilec.compile(text, backend=b) for b in ("triton", "torch"))
    given = q, k.transpose(1, 2).contiguous().transpose(1, 2), v[:, :, :, ::2]
    for x, w in zip(ours(*given), theirs(*(x.double() for x in given)), strict=True):
        torch.testing.assert_close(x.double(), w, rtol=2e-2, atol=1e-2)


def test_one_row_of_few_columns_or_whole_numbers_is_no_chain():
    """What is read of memory decides there; scores that are stored are not made again."""
    for name, columns, dtype, chains in (
        ("cache", 2000, "bfloat16", True),
        ("cache", 1000, "bfloat16", False),
        ("cache", 2000, "float32", False),
    ):
        text, given = without_rows(name, columns)
        specs = [tilec.spec(tuple(x.shape), dtype) for x in given]
        for stored in (text, text.replace("(L, O)", "(L, O, S)")):
            made = tilec.compile(stored, backend="triton").lower(*specs, target="sm_90")
            assert any("chain" in k.name for k in made.kernels) == (chains and stored == text)
