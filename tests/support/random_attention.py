"""Attention-like programs drawn at random: what stands between the products, which points count, sizes, gradients."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

import tilec

ATOMS = (
    "i >= j", "i - j < {c}", "2 * i < 3 * j + {c}", "j < {c}", "i >= {c}", "i / 8 == j / 8", "D[b, i] == C[b, j]",
    "D[b, i] <= C[b, j]", "D[b, i] - C[b, j] < 1", "D[b, i] != C[b, j]", "j < Len[b]", "Seen[b, j]", "T[i] == U[j]",
    "max(D[b, i], 1) >= C[b, j]",
)  # fmt: skip
BODIES = (
    "0.3 * S", "0.3 * S + 0.02 * Slope[b] * (i - j)", "2 * tanh(S / 4)", "0.3 * S + Bias[i, j]", "Z * S",
    "0.3 * S + Table[At[i, j], b]", "S * Table[At[0, j], b]",
)  # fmt: skip
WEIGHTS = ("softmax", "softmax", "softmax", "sigmoid", "linear", "statistics")
INPUTS = {
    "Q": "B N E", "K": "B M E", "V": "B M F", "D": "B N", "C": "B M", "Len": "B", "Seen": "B M", "T": "N", "U": "M",
    "Slope": "B", "Bias": "N M", "Z": "", "Table": "W B", "At": "N M",
}  # fmt: skip
INTEGERS = ("D", "C", "Len", "T", "U", "At")


@dataclass(frozen=True)
class Drawn:
    """A program, its inputs (floating ones in float64) and the names of those that gradients are taken by."""

    text: str
    arrays: dict[str, np.ndarray]
    wrt: tuple[str, ...]


def _guard(rng: random.Random, depth: int = 2) -> str:
    kind = rng.choice(("atom", "and", "or", "and", "not") if depth else ("atom",))
    if kind == "atom":
        return rng.choice(ATOMS).format(c=rng.randrange(60))
    if kind == "not":
        return f"~({_guard(rng, depth - 1)})"
    return f"({_guard(rng, depth - 1)}) {'&' if kind == 'and' else '|'} ({_guard(rng, depth - 1)})"


def draw(rng: random.Random, largest: int = 70) -> Drawn:
    guard = "" if rng.random() < 0.1 else f"{_guard(rng)} ? "
    other = guard if rng.random() < 0.7 else f"{_guard(rng)} ? "
    body = rng.choice(BODIES).replace("S", "S[b, i, j]", 1)
    match rng.choice(WEIGHTS):
        case "softmax":
            rest = f"""L[b, i] = logsumexp({guard}X[b, i, j]);
                O[b, i, f] = sum({guard}exp(X[b, i, j] - L[b, i]) * V[b, j, f]);"""
        case "sigmoid":
            rest = f"O[b, i, f] = sum({guard}V[b, j, f] * sigmoid(X[b, i, j] - 1));"
        case "linear":
            rest = f"O[b, i, f] = sum({guard}X[b, i, j] * V[b, j, f]);"
        case _:
            rest = f"""L[b, i] = logsumexp({guard}X[b, i, j]);
                R[b, j] = sum({other}exp(X[b, i, j] - 3));
                O[b, i, f] = sum({guard}exp(X[b, i, j] - L[b, i]) * V[b, j, f]) + L[b, i] * R[b, 0];"""
    outputs = "O"
    text = f"X[b, i, j] = {body};\n{rest}"
    names = [n for n in INPUTS if n in "QKV" or f"{n}[" in text or n == "Z" and "Z *" in text]
    declared = ", ".join(f"{n}[{', '.join(INPUTS[n].split())}]" if INPUTS[n] else n for n in names)
    product = "S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);"
    source = f"function ({declared}) -> ({outputs}) {{ {product}\n{text} }}"
    sizes = {"B": rng.choice((1, 2)), "N": rng.randrange(16, largest), "M": rng.randrange(16, largest)}
    sizes |= {"E": rng.choice((3, 8, 16)), "F": rng.choice((1, 8, 20)), "W": 4}
    g = np.random.default_rng(rng.getrandbits(32))
    arrays = {n: _array(n, [sizes[d] for d in INPUTS[n].split()], g, rng) for n in names}
    wrt = tuple(n for n in names if n in ("Q", "K", "V", "Bias", "Slope", "Table"))
    return Drawn(source, arrays, wrt)


def _array(name: str, shape: list[int], g: np.random.Generator, rng: random.Random) -> np.ndarray:
    if name in INTEGERS:
        most = 60 if name == "Len" else rng.choice((2, 5))
        found = g.integers(-1, most, shape)
        found = np.sort(found, -1) if shape and rng.random() < 0.7 else found
        return found.astype(rng.choice((np.int32, np.int64)))
    return g.integers(0, 2, shape).astype(bool) if name == "Seen" else g.standard_normal(shape)


def close(x: np.ndarray, y: np.ndarray, tolerance: float) -> bool:
    """Equal where not finite (rows without a point), and near by the norm elsewhere."""
    finite = np.isfinite(y) & np.isfinite(x)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    x, y = x[finite].astype(float), y[finite]
    return bool(np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y) + 1e-6)


def reference(drawn: Drawn, cotangent: np.ndarray | None = None) -> list[np.ndarray]:
    """The value, or the gradients, by torch in float64."""
    given = {n: torch.tensor(x) for n, x in drawn.arrays.items()}
    for n in drawn.wrt:
        given[n].requires_grad_()
    value = tilec.compile(drawn.text, backend="torch")(*given.values())
    if cotangent is None:
        return [value.detach().numpy()]
    made = torch.autograd.grad(
        value, [given[n] for n in drawn.wrt], torch.tensor(cotangent).double(), allow_unused=True
    )
    return [
        torch.zeros_like(given[n]).numpy() if m is None else m.numpy() for n, m in zip(drawn.wrt, made, strict=True)
    ]
