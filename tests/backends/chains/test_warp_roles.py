"""Kernels whose warps have work of their own: what they compute, carried out on the CPU in float64."""

from __future__ import annotations

import numpy as np
import pytest
from support.gluon import run

import tilec
from tilec.backends.triton.chains import launch
from tilec.backends.triton.plan.plan import Launch

CASES = {
    "causal": ("Scale * sum(Q[b, i, e] * K[b, j, e])", "i >= j ? "),
    "full": ("Scale * sum(Q[b, i, e] * K[b, j, e])", ""),
    "from there on": ("Scale * sum(Q[b, i, e] * K[b, j, e])", "i <= j + 20 ? "),
    "slopes": ("Scale * sum(Q[b, i, e] * K[b, j, e]) - A[b] * (i - j)", "i - j >= 0 ? "),
    "some ahead": ("Scale * sum(Q[b, i, e] * K[b, j, e])", "i + 37 >= j ? "),
    "later rows": ("Scale * sum(Q[b, i, e] * K[b, j, e])", "i >= j + 200 ? "),
    "rows and columns": ("Scale * sum(Q[b, i, e] * K[b, j, e]) + R[i] * C[j]", ""),
}
UNSCALED = """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
    S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
    O[b, i, f : B, N, F] = sum(i >= j ? exp(0.1 * S[b, i, j]) * V[b, j, f]);
}"""


def text_of(name: str) -> str:
    score, guard = CASES[name]
    return f"""function (Q[B, N, E], K[B, M, E], V[B, M, F], Scale, A[B], R[N], C[M]) -> (O) {{
        S[b, i, j : B, N, M] = {score};
        L[b, i : B, N] = logsumexp({guard}S[b, i, j]);
        O[b, i, f : B, N, F] = sum({guard}exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }}"""


def lowered(source: str, given: list, monkeypatch: pytest.MonkeyPatch, lists_too: bool = False) -> list[Launch]:
    """The launches of a program whose kernel has this form, after one that makes lists of blocks or none."""
    monkeypatch.setattr(launch, "_MANY", 1)
    monkeypatch.setattr(launch, "_MUCH", 1)
    monkeypatch.setattr(launch, "MULTIPROCESSORS", 1)
    f = tilec.compile(source, backend="triton")
    made = f.lower(*given, target="sm_90")
    *lists, found = [step for step in made._executable.plan.steps if isinstance(step, Launch)]
    assert len(lists) == lists_too and "warp_specialize" in found.file.text
    return [found]


def softmax_reference(name: str, q, k, v, a, r, c):
    i, j = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    scores = 0.1 * (q @ k.transpose(0, 2, 1))
    if name == "slopes":
        scores = scores - a[:, None, None] * (i - j)
    if name == "rows and columns":
        scores = scores + r[:, None] * c
    allowed = {
        "causal": i >= j,
        "slopes": i >= j,
        "from there on": i <= j + 20,
        "later rows": i >= j + 200,
        "some ahead": i + 37 >= j,
    }.get(name, np.full((len(i), len(j)), True))
    scores = np.where(allowed, scores, -np.inf)
    with np.errstate(all="ignore"):
        top = np.logaddexp.reduce(scores, -1)
        weights = np.where(np.isneginf(top)[..., None], 0, np.exp(scores - top[..., None]))
    return weights @ v, top


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("causal", (256, 256, 128, 128)),
        ("causal", (300, 300, 128, 128)),
        ("full", (200, 140, 128, 128)),
        ("full", (130, 384, 96, 120)),
        ("from there on", (400, 400, 128, 128)),
        ("slopes", (260, 260, 72, 128)),
        ("later rows", (400, 300, 128, 128)),
        ("rows and columns", (150, 270, 128, 104)),
        ("causal", (200, 200, 192, 128)),
        ("full", (140, 130, 160, 104)),
        ("from there on", (150, 150, 256, 256)),
        ("some ahead", (300, 400, 128, 128)),
        ("causal", (400, 140, 128, 128)),
    ],
)
@pytest.mark.one_in(4)
def test_attention(name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    _compare(name, sizes, monkeypatch)


@pytest.mark.parametrize(
    "name, sizes",
    [("causal", (300, 300, 136, 136)), pytest.param("slopes", (260, 200, 136, 192), marks=pytest.mark.slow)],
)
def test_values_in_two_blocks(name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """136 columns are 128 and 16: the second product is one with each block, into sums of their own."""
    _compare(name, sizes, monkeypatch)


def _compare(name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    n, m, e, f = sizes
    shapes = {"Q": (2, n, e), "K": (2, m, e), "V": (2, m, f), "A": (2,), "R": (n,), "C": (m,)}
    specs = {t: tilec.spec(s, "bfloat16") for t, s in shapes.items()}
    order = [specs["Q"], specs["K"], specs["V"], 0.1, specs["A"], specs["R"], specs["C"]]
    launches = lowered(text_of(name), order, monkeypatch)
    generator = np.random.default_rng(0)
    arrays = {t: generator.standard_normal(s) for t, s in shapes.items()}
    expected = softmax_reference(name, *(arrays[t] for t in ("Q", "K", "V", "A", "R", "C")))
    memory = {t: x.reshape(-1).copy() for t, x in arrays.items()}
    memory |= {"O": np.full(2 * n * f, np.nan), "L": np.full(2 * n, np.nan), "Scale": np.full(1, 0.1)}
    run(launches, memory, {t: s.dtype for t, s in specs.items()} | {"O": "bfloat16", "L": "float32"})
    np.testing.assert_allclose(memory["O"].reshape(2, n, f), expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(memory["L"].reshape(2, n), expected[1], rtol=1e-9, atol=1e-9)


def test_blocks_that_need_masks_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A causal walk is two loops, the second of which begins with the last block of the first: a block's text stands
    there twice, not a third time before the second loop."""
    given = [*[tilec.spec((2, 512, 128), "bfloat16")] * 3, 0.1]
    rest = [tilec.spec(shape) for shape in ((2,), (512,), (512,))]
    (causal,) = lowered(text_of("causal"), [*given, *rest], monkeypatch)
    text = causal.file.text
    assert text.count("gl.exp2(") == 2 * 2  # of weights, and of what sums are rescaled by
    masked, whole = text.split("    for t in range(steps):\n")[-2:]
    assert " >= " in masked and " >= " not in whole.split("if turn + steps > 0")[0]


def lists_of(allowed: np.ndarray, block: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The blocks of columns that each block of rows visits, without a mask and with one, and how many."""
    tiles, steps = -(-len(allowed) // block), -(-allowed.shape[1] // step)
    blocks, counts = np.zeros((tiles, 2, steps), np.int32), np.zeros((tiles, 2), np.int32)
    for t, c in np.ndindex(tiles, steps):
        here = allowed[t * block : (t + 1) * block, c * step : (c + 1) * step]
        masked = int(not here.all() or here.shape[1] < step)
        if here.any():
            blocks[t, masked, counts[t, masked]] = c
            counts[t, masked] += 1
    return blocks, counts


LISTED = {
    "i >= j & D[i] >= D[j]": lambda i, j, d: (i >= j) & (d[i] >= d[j]),
    "i >= j | j < 100": lambda i, j, d: (i >= j) | (j < 100),
    "D[i] <= D[j]": lambda i, j, d: d[i] <= d[j],
}


@pytest.mark.parametrize("guard, width", [*zip(LISTED, (128, 128, 256), strict=True)])
@pytest.mark.one_in(4)
def test_walks_over_lists(guard: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    n, step = 700, 128 if width == 128 else 64
    source = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F], D[N]) -> (O) {{
        S[b, i, j : B, N, M] = 0.1 * sum(Q[b, i, e] * K[b, j, e]);
        L[b, i : B, N] = logsumexp({guard} ? S[b, i, j]);
        O[b, i, f : B, N, F] = sum({guard} ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }}"""
    specs = [tilec.spec((2, n, width), "bfloat16")] * 3
    launches = lowered(source, [*specs, tilec.spec((n,), "int32")], monkeypatch, lists_too=True)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((2, n, width)) for _ in range(3))
    documents = np.repeat(np.arange(4, dtype=np.int32), [300, 90, 10, 300])
    allowed = LISTED[guard](np.arange(n)[:, None], np.arange(n), documents)
    blocks, counts = lists_of(allowed, 128, step)
    memory = {t: x.reshape(-1).copy() for t, x in zip("QKV", (q, k, v), strict=True)}
    memory |= {"O": np.full(q.size, np.nan), "L": np.full(2 * n, np.nan), "D": documents}
    memory |= {"O.blocks": blocks.reshape(-1), "O.counts": counts.reshape(-1)}
    dtypes = (
        dict.fromkeys("QKVO", "bfloat16") | {"L": "float32"} | dict.fromkeys(("D", "O.blocks", "O.counts"), "int32")
    )
    run(launches, memory, dtypes)
    scores = np.where(allowed, 0.1 * (q @ k.transpose(0, 2, 1)), -np.inf)
    expected = np.exp(scores - np.logaddexp.reduce(scores, -1)[..., None]) @ v
    np.testing.assert_allclose(memory["O"].reshape(q.shape), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "guard, reach", [("j < D[b]", 0), pytest.param("j <= D[b] + i - N", 1, marks=pytest.mark.slow)]
)
def test_columns_beyond_a_length_are_cleared(guard: str, reach: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no row sees a column, it may hold anything."""
    n, width, step, length = 290, 128, 128, 410
    source = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F], D[B]) -> (O) {{
        S[b, i, j : B, N, M] = 0.1 * sum(Q[b, i, e] * K[b, j, e]);
        L[b, i : B, N] = logsumexp({guard} ? S[b, i, j]);
        O[b, i, f : B, N, F] = sum({guard} ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }}"""
    rows, columns = tilec.spec((1, n, width), "bfloat16"), tilec.spec((1, 512, width), "bfloat16")
    given = [rows, columns, columns, tilec.spec((1,), "int32")]
    launches = lowered(source, given, monkeypatch, lists_too=True)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((m, width)) for m in (n, 512, 512))
    v[length:] = np.nan
    i, j = np.arange(n)[:, None], np.arange(512)
    allowed = np.broadcast_to(j < length + reach * (i - n + 1), (n, 512))
    blocks, counts = lists_of(allowed, 128, step)
    memory = {t: x.reshape(-1).copy() for t, x in zip("QKV", (q, k, v), strict=True)}
    memory |= {"O": np.full(q.size, np.nan), "L": np.full(n, np.nan), "D": np.array([length], np.int32)}
    memory |= {"O.blocks": blocks.reshape(-1), "O.counts": counts.reshape(-1)}
    dtypes = (
        dict.fromkeys("QKVO", "bfloat16") | {"L": "float32"} | dict.fromkeys(("D", "O.blocks", "O.counts"), "int32")
    )
    run(launches, memory, dtypes)
    scores = np.where(allowed, 0.1 * (q @ k.T), -np.inf)
    expected = np.exp(scores - np.logaddexp.reduce(scores, -1)[..., None]) @ np.nan_to_num(v)
    np.testing.assert_allclose(memory["O"].reshape(q.shape), expected, rtol=1e-9, atol=1e-9)


def test_a_chain_without_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    n, e = 280, 128
    launches = lowered(UNSCALED, [tilec.spec((2, n, e), "float16")] * 3, monkeypatch)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((2, n, e)) for _ in range(3))
    memory = {t: x.reshape(-1).copy() for t, x in zip("QKV", (q, k, v), strict=True)}
    memory["O"] = np.full(q.size, np.nan)
    run(launches, memory, dict.fromkeys("QKVO", "float16"))
    expected = np.tril(np.exp(0.1 * q @ k.transpose(0, 2, 1))) @ v
    np.testing.assert_allclose(memory["O"].reshape(q.shape), expected, rtol=1e-9, atol=1e-9)


def test_what_is_not_of_this_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow heads, biases for each score, documents, windows, functions beside those of the table."""
    monkeypatch.setattr(launch, "_MANY", 1)
    monkeypatch.setattr(launch, "_MUCH", 1)
    monkeypatch.setattr(launch, "MULTIPROCESSORS", 1)
    scored = """function (Q[B, N, E], K[B, M, E], V[B, M, F], P[N, M], D[N]) -> (O) {{
        S[b, i, j : B, N, M] = {0};
        L[b, i : B, N] = logsumexp({1}S[b, i, j]);
        O[b, i, f : B, N, F] = sum({1}exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }}"""
    product = "sum(Q[b, i, e] * K[b, j, e])"
    for width, score, guard in (
        (64, product, ""),
        (128, f"{product} + P[i, j]", ""),
        (128, product, "D[i] == D[j] ? "),
        (128, product, "i >= j & i - j < 64 ? "),
        (128, f"30 * atan({product} / 30)", ""),
    ):
        f = tilec.compile(scored.format(score, guard), backend="triton")
        given = [tilec.spec((2, 256, width), "bfloat16")] * 3
        made = f.lower(*given, tilec.spec((256, 256)), tilec.spec((256,), "int64"), target="sm_90")
        assert made.kernels and "warp_specialize" not in made.source()
