"""Statements that have a rule of their own (scans, products, convolutions, recurrences), whose output's variables
something confines to a part of the output: a second constraint, or a tensor shorter than the output."""

from __future__ import annotations

from random import Random

import numpy as np
from support.inputs import Case

SIGNS = ("+", "*", ">", "<", "logsumexp")
# the statement without its constraints, the tensors it reads, and variables of its output with their sizes
Form = tuple[str, dict[str, tuple[int, ...]], dict[str, int]]
FORMS: dict[str, Form] = {
    "scan": ("O[i : 7] = {sign}(X[k]), {order} < 7", {"X": (7,)}, {"i": 7}),
    "scan over a summed output": ("O[k : 7] = {sign}(X[i]), {order} < 7", {"X": (6,)}, {"k": 7}),
    "scan of rows": (
        "O[b, i, c : 3, 6, 2] = {sign}(X[b, k, c] * Y[c]), {order} < 6",
        {"X": (3, 6, 2), "Y": (2,)},
        {"b": 3, "i": 6, "c": 2},
    ),
    "windows": ("O[i : 7] = {sign}(X[k]), {order} < 3", {"X": (7,)}, {"i": 7}),
    "product": ("O[i, j : 5, 4] = +(X[i, k] * Y[k, j])", {"X": (5, 3), "Y": (3, 4)}, {"i": 5, "j": 4}),
    "batch of products": (
        "O[b, i, j : 3, 4, 5] = +(X[b, i, k] * Y[b, k, j])",
        {"X": (3, 4, 2), "Y": (3, 2, 5)},
        {"b": 3, "i": 4, "j": 5},
    ),
    "log product": (
        "O[i, j : 5, 4] = logsumexp(X[i, k] + Y[k, j])",
        {"X": (5, 3), "Y": (3, 4)},
        {"i": 5, "j": 4},
    ),
    "product of three": (
        "O[i, l : 4, 3] = +(X[i, j] * Y[j, k] * Z[k, l])",
        {"X": (4, 3), "Y": (3, 2), "Z": (2, 3)},
        {"i": 4, "l": 3},
    ),
    "convolution": (
        "O[n, y, c : 2, 8, 3] = +(X[n, y + k - 1, d] * K[k, d, c])",
        {"X": (2, 8, 2), "K": (3, 2, 3)},
        {"n": 2, "y": 8, "c": 3},
    ),
    "transposed convolution": (
        "O[n, 2*y + k, c : 2, 9, 3] = +(X[n, y, d] * K[k, d, c])",
        {"X": (2, 4, 2), "K": (3, 2, 3)},
        {"n": 2, "y": 4, "c": 3},
    ),
    "exponentials": (
        "O[i, k : 4, 5] = +(exp(X[i, k] + Y[k, j] - Z[i, j]) * W[i, j])",
        {"X": (4, 5), "Y": (5, 3), "Z": (4, 3), "W": (4, 3)},
        {"i": 4, "k": 5},
    ),
    "aggregated rows": ("O[i : 6] = {sign}(X[i, k] * Y[i])", {"X": (6, 5), "Y": (6,)}, {"i": 6}),
    "elementwise": ("O[i, j : 6, 4] = sin(X[i, j]) * Y[i]", {"X": (6, 4), "Y": (6,)}, {"i": 6, "j": 4}),
    "broadcast": ("O[i, j : 6, 4] = {sign}(Y[i] + X[k])", {"Y": (6,), "X": (3,)}, {"i": 6, "j": 4}),
    "recurrence": (
        "O[t, n : 5, 4] = 0.5 * O[t - 1, {lane}] + X[t, n]",
        {"X": (5, 4), "I": (4,)},
        {"t": 5, "n": 4},
    ),
    "recurrence with a product": (
        "O[t, n : 5, 4] = sum(O[t - 1, m] * W[m, n]) + X[t, n]",
        {"X": (5, 4), "W": (4, 4), "I": (4,)},
        {"t": 5, "n": 4},
    ),
    "wavefront": (
        "O[i, j : 4, 5] = 0.5 * O[i - 1, j] + O[i, j - 1] + X[i, j]",
        {"X": (4, 5)},
        {"i": 4, "j": 5},
    ),
    "scatter": ("O[P[k], j : 5, 3] = +(X[k, j])", {"X": (4, 3), "P": (4,)}, {"j": 3, "k": 4}),
    "gather": ("O[k, j : 4, 3] = +(X[P[k], j] * Y[l])", {"X": (5, 3), "P": (4,), "Y": (2,)}, {"j": 3, "k": 4}),
    "wrapped": ("O[i, j : 6, 4] = X[(i + 1) % 6, (j + 2) % 4]", {"X": (6, 4)}, {"i": 6, "j": 4}),
}  # fmt: skip
SUMS = "elementwise", "recurrence", "wavefront", "recurrence with a product"  # to which a term may be added


def narrowed(seed: int) -> Case:
    """A statement of one of the forms with one or two conditions on its output's variables; another reads it."""
    random = Random(seed)
    form = random.choice(sorted(FORMS))
    template, shapes, sizes = FORMS[form]
    shapes = dict(shapes)
    init = random.choice(["", " init I[n]", " init 1.5"]) if "I" in shapes else ""
    if "I" not in init:
        shapes.pop("I", None)
    left = template.format(
        sign=random.choice(SIGNS),
        order=random.choice(["i - k", "k - i"]) + random.choice(["", "", " - 1", " + 1"]),
        lane=random.choice(["n", "n - 1", "(n + 1) % 4", "(n - 2) % 4"]),
    )
    conditions = [condition(sizes, random) for _ in range(random.choice([1, 1, 2]))]
    if form in SUMS and random.random() < 0.5:
        v = random.choice(sorted(sizes))
        shapes["D"] = (random.randint(0, sizes[v] + 1),)
        left += f" + D[{v}]"
        conditions = conditions[: random.randint(0, 1)]
    text = ", ".join([left, *conditions]) + init
    numbers = np.random.default_rng(seed)
    inputs = {
        tensor: numbers.integers(-1, 6, shape) if tensor == "P" else np.round(numbers.uniform(-1.5, 1.5, shape), 3)
        for tensor, shape in shapes.items()
    }
    declared = ", ".join(f"{tensor}[{', '.join(map(str, a.shape))}]" for tensor, a in inputs.items())
    statements = [text, "T = O * O"]
    if random.random() < 0.4:
        statements[:1] = [_resized(shapes["X"], random), text.replace("X[", "U[")]
    return Case(f"function ({declared}) -> (O, T) {{ {'; '.join(statements)}; }}", inputs, frozenset({form}))


def _resized(shape: tuple[int, ...], random: Random) -> str:
    """X's values as a tensor of other sizes."""
    index = ", ".join(f"d{k}" for k in range(len(shape)))
    sizes = ", ".join(str(max(0, n + random.choice([-2, -1, 0, 0, 1]))) for n in shape)
    return f"U[{index} : {sizes}] = {random.choice(['2 * X[%s]', 'sin(X[%s]) * X[%s]', 'X[%s]']).replace('%s', index)}"


def condition(sizes: dict[str, int], random: Random) -> str:
    """A condition on one or two of these variables, that seldom holds everywhere."""
    v, w = random.choice(sorted(sizes)), random.choice(sorted(sizes))
    n = sizes[v]
    a, b = random.randint(0, n), random.randint(1, n)
    texts = [f"{v} < {b}", f"{v} - {a} < {b}", f"{n} - {v} - 1 < {b}", f"{a} - {v} < {b}", f"({v} + {a})/2 < {b}"]
    return random.choice(texts if w == v else [*texts, f"{v} - {w} < {b}", f"{v} + {w} - {a} < {b}"])
