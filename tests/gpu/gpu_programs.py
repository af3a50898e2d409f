"""Programs over sizes that are drawn: every kind of statement, each to be tried at sizes that divide nothing.

In `sized.tile` and here, dimensions R, S and T are windows, the others anything. Inputs named Ix hold indices, some of
them out of range; B, L and U hold booleans, lengths and small integers; all others are floating.
"""

from __future__ import annotations

from pathlib import Path

AGGREGATED = ("sum", "prod", "max", "min", "mean", "logsumexp", "any", "all", "argmax", "argmin")
REDUCED = {
    "of rows": ("A[I, K]", "O[i : I] = {}(A[i, k]{});"),
    "of columns": ("A[K, J]", "O[j : J] = {}(A[k, j]{});"),
    "of a middle axis": ("A[I, K, J]", "O[i, j : I, J] = {}(A[i, k, j]{});"),
    "of all": ("A[I, K]", "O[] = {}(A[i, k]{});"),
}


def reductions() -> dict[str, str]:
    """Each aggregation over each set of axes."""
    made = {}
    for name in AGGREGATED:
        rest = {"any": " > 1", "all": " > -2", "prod": " * 0.2 + 1"}.get(name, "")
        for axes, (declared, text) in REDUCED.items():
            made[f"{name} {axes}"] = f"function ({declared}) -> (O) {{ {text.format(name, rest)} }}"
    return made


def written() -> dict[str, str]:
    """The programs of the file, by the comment above each."""
    blocks = (Path(__file__).parent / "sized.tile").read_text().split("\n\n")
    return {title.removeprefix("// "): text for title, text in (block.split("\n", 1) for block in blocks)}


SIZED: dict[str, str] = {**written(), **reductions()}
