"""Attention whose scores are -inf in a branch, drawn at random: what hides them, what is read where they count."""

from __future__ import annotations

import random

import numpy as np
from support.random_attention import Drawn

SEEN = (
    "i >= j", "i >= j & i - j < 7", "j <= 2 * i + 3", "j < Len[b]", "i > j", "j >= i + 2", "~(i < j)", "j >= 4",
    "i >= j | j < 3", "i >= j & j < Len[b]", "D[b, i] == D[b, 0] & i >= j",
)  # fmt: skip
READ = ("", "", " + U[b, i, i - j]", " + R[i - j]", " + R[j - i + 2]", " + pad(R[i + j - 20], 0.5)", " * R[i]")
LOW = ("-inf", "-inf", "-inf", "-9.0")
RESTS = (
    """L[b, i] = logsumexp(X[b, i, j]);
        O[b, i, f] = sum(exp(X[b, i, j] - L[b, i]) * V[b, j, f]);""",
    """L[b, i] = logsumexp(GUARD ? X[b, i, j]);
        O[b, i, f] = sum(GUARD ? exp(X[b, i, j] - L[b, i]) * V[b, j, f]);""",
    """T[b, i] = max(X[b, i, j]); W[b, i, j] = exp(X[b, i, j] - T[b, i]);
        O[b, i, f] = sum(W[b, i, j] * V[b, j, f]) / sum(W[b, i, j]);""",
    """L[b, i] = logsumexp(X[b, i, j]);
        O[b, i, f] = sum(exp(X[b, i, j] - L[b, i]) * V[b, j, f]) + L[b, 20];""",
)
INPUTS = {
    "Q": "B N E", "K": "B M E", "V": "B M F", "P": "M E", "R": "M", "Len": "B", "D": "B N",
}  # fmt: skip


def draw(rng: random.Random) -> Drawn:
    seen, read, low = rng.choice(SEEN), rng.choice(READ), rng.choice(LOW)
    rest = rng.choice(RESTS).replace("GUARD", rng.choice(("j < 30", "j < Len[b]", "i + j > 3")))
    scale = rng.choice((" * 0.3", "", " * 0.3"))
    own = "U[b, i, r : B, N, M] = sum(Q[b, i, e] * P[r, e]);" if "U[" in read else ""
    text = f"""S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]); {own}
        X[b, i, j : B, N, M] = {seen} ? (0.2 * S[b, i, j]{read}){scale} : {low};
        {rest}"""
    names = [n for n in INPUTS if f"{n}[" in text]
    declared = ", ".join(f"{n}[{', '.join(INPUTS[n].split())}]" for n in names)
    sizes = {"B": 2, "N": rng.choice((21, 33, 40)), "M": rng.choice((33, 40)), "E": 16, "F": 8}
    g = np.random.default_rng(rng.getrandbits(32))
    arrays: dict[str, np.ndarray] = {}
    for n in names:
        shape = [sizes[d] for d in INPUTS[n].split()]
        most = {"Len": 45, "D": 2}.get(n)
        arrays[n] = g.standard_normal(shape) if most is None else g.integers(0, most, shape).astype(np.int32)
    return Drawn(f"function ({declared}) -> (O) {{ {text} }}", arrays, tuple(n for n in names if n in "QKVPR"))
