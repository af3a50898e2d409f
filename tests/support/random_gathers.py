"""Attention whose keys and values are read through tables, drawn at random: pages and rows, lengths, places outside."""

from __future__ import annotations

import random

import numpy as np
from support.random_attention import Drawn

# reads of a row of K or V, what its columns are, their place in the sequence, and the dimensions of K beside features
READS = {
    "pages": ("{t}[b, t], s, h", "t, s", "t * {s} + s", "P R H"),
    "pages of all": ("{t}[0, t], s, h", "t, s", "t * {s} + s", "P R H"),
    "rows": ("b, {t}[b, j]", "j", "j", "B P"),
    "rows of all": ("{t}[1, j]", "j", "j", "P"),
    "moved": ("2 * {t}[b, j] + 1", "j", "j", "P"),
    "through two": ("{t}[b, Other[j]], h", "j", "j", "P H"),
    "two tables": ("{t}[b, j], Other[j] % 2", "j", "j", "P H"),
}
GUARDS = ("", "", "{j} < Len[b]", "{j} < Len[b] & {j} <= i + Len[b] - 20", "Len[b] <= {j}", "{j} > 3 & Len[b] > {j}")
BODIES = ("0.3 * {S}", "2 * tanh({S} / 4)", "0.3 * {S} + 0.1 * (Len[b] - ({j}))")
SIZES = {"B": 2, "H": 2, "P": 11, "E": 8, "F": 16}
INDICES = ("Table", "Second", "Other", "Len")


def draw(rng: random.Random) -> Drawn:
    read, columns, place, dims = READS[rng.choice(tuple(READS))]
    sizes = SIZES | {"R": rng.choice((4, 8)), "N": rng.choice((16, 20, 33))}
    sizes["T"] = rng.randrange(16, 40) // (sizes["R"] if "s" in columns else 1) + 4 * ("s" in columns)
    place = place.format(s=sizes["R"])
    shape = "T, R" if "s" in columns else "T"
    second = rng.choice(("Table", "Second"))
    gathered = rng.choice(("both", "both", "K", "V"))
    rows = {n: f"{n}[{read.format(t=t)}, " for n, t in (("K", "Table"), ("V", second))}
    plain = {n: f"{n}[b, h, {columns}, " for n in "KV"}
    k, v = ((rows if gathered in ("both", n) else plain)[n] for n in "KV")
    guard = rng.choice(GUARDS).format(j=place)
    seen = f"{guard} ? " if guard else ""
    body = rng.choice(BODIES).format(S=f"S[b, h, i, {columns}]", j=place)
    text = f"""S[b, h, i, {columns} : B, H, N, {shape}] = sum(Q[b, h, i, e] * {k}e]);
        X[b, h, i, {columns}] = {body};
        L[b, h, i] = logsumexp({seen}X[b, h, i, {columns}]);
        O[b, h, i, f] = sum({seen}exp(X[b, h, i, {columns}] - L[b, h, i]) * {v}f]);"""
    declared = {"Q": "B H N E", "Table": "B T", "Second": "B T", "Other": "T", "Len": "B"}
    for n, f in (("K", "E"), ("V", "F")):
        declared[n] = (dims if gathered in ("both", n) else "B H " + shape.replace(",", "")) + f" {f}"
    names = [n for n in ("Q", "K", "V", *INDICES) if n in "QKV" or f"{n}[" in text]
    inputs = ", ".join(f"{n}[{', '.join(declared[n].split())}]" for n in names)
    g, outside = np.random.default_rng(rng.getrandbits(32)), rng.random() < 0.3
    arrays: dict[str, np.ndarray] = {}
    for n in names:
        size = [sizes[d] for d in declared[n].split()]
        if n in INDICES:
            most = {
                "Len": sizes["T"] * (sizes["R"] if "s" in columns else 1) + 9,
                "Other": sizes["T"] + 2 * outside,
            }.get(n)
            low, high = (-2, 13) if outside else (0, 5 if "2 *" in read else 9)
            low, high = (-outside if n == "Other" else -1, most) if most is not None else (low, high)
            arrays[n] = g.integers(low, high, size).astype(rng.choice((np.int32, np.int64)))
        else:
            arrays[n] = g.standard_normal(size)
    return Drawn(f"function ({inputs}) -> (O) {{ {text} }}", arrays, ("Q", "K", "V"))
