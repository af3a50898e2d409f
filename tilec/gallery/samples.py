"""Tensors for examples and measurements, described in a line each.

| text | tensor |
| --- | --- |
| `Q: B H N E` | normal, of shape (B, H, N, E) |
| `P: B N ~ 0.02` | normal with that standard deviation |
| `A: N > 0` | positive: the size of a normal one, and 0.1 |
| `T: B L < V` | integers below V |
| `S: N << V` | the same in ascending order |
| `P = 0.5` | a Python number; a size's name stands for its value |
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tilec.arguments import Spec, spec

Sample = torch.Tensor | int | float
SIGNS = ("<", "<<", "~", ">")


def sample(text: str, sizes: Mapping[str, int], generator: torch.Generator, device: str, dtype: torch.dtype) -> Sample:
    """The tensor or number that a line describes; floating tensors are of `dtype`."""
    if "=" in text:
        return _number(text, sizes)
    shape, sign, bound = _described(text, sizes)
    if sign in ("<", "<<"):
        found = torch.randint(_size(bound, sizes), shape, generator=generator, device=device)
        return found.sort(-1).values if sign == "<<" else found
    normal = torch.randn(shape, generator=generator, device=device)
    if sign == ">":
        normal = normal.abs() + 0.1
    elif sign == "~":
        normal = normal * float(bound)
    return normal.to(dtype)


def sample_spec(text: str, sizes: Mapping[str, int], dtype: str) -> Spec | int | float:
    """Shape and element type of what a line describes; a number stays one."""
    if "=" in text:
        return _number(text, sizes)
    shape, sign, _ = _described(text, sizes)
    return spec(shape, "int64" if sign in ("<", "<<") else dtype)


def _number(text: str, sizes: Mapping[str, int]) -> int | float:
    value = text.split("=")[1].strip()
    return float(value) if "." in value else _size(value, sizes)


def _described(text: str, sizes: Mapping[str, int]) -> tuple[list[int], str, str]:
    """Shape, sign and what follows the sign, each "" where there is none."""
    words = text.split(":")[1].split()
    sign = next((w for w in words if w in SIGNS), "")
    end = words.index(sign) if sign else len(words)
    return [_size(w, sizes) for w in words[:end]], sign, words[end + 1] if sign else ""


def _size(word: str, sizes: Mapping[str, int]) -> int:
    return int(word) if word.isdigit() else sizes[word]
