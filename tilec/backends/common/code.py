"""Lines of generated Python and the names in them."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from tilec.ir.symbolic import is_open_number


class FreshNames:
    """Fresh names; one set a program, so that no two statements share a local."""

    def __init__(self, taken: Iterable[str] = ()):
        self._taken = set(taken) | set(keyword.kwlist)
        self._numbers: dict[str, int] = {}  # of each stem the last one given: names stay taken

    def fresh(self, stem: str) -> str:
        number = self._numbers.get(stem, 0)
        name = f"{stem}{number}" if number else stem
        while name in self._taken:
            number += 1
            name = f"{stem}{number}"
        self._taken.add(name)
        self._numbers[stem] = number
        return name

    def inner(self) -> FreshNames:
        """Names of a function of its own, which sees these."""
        return FreshNames(self._taken)


@lru_cache(1 << 12)
def python_name(name: str) -> str:
    """A Tile name, or a part's behind a dot, as a Python name: what Python lacks becomes `_`, and `None` is `None_`."""
    found = name.replace("'", "_").replace(".", "_")
    return f"{found}_" if keyword.iskeyword(found) else found


def have_own_names(tensors: Iterable[str]) -> bool:
    """Have these tensors names of their own in Python? `A'` and `A_` have one."""
    different = set(tensors)
    return len(set(map(python_name, different))) == len(different)


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def parenthesised(text: str, closed: str = "") -> str:
    """The text as an operand: as it is if it is a name or a number, or ends so."""
    return text if text.replace("_", "").isalnum() or closed and text.endswith(closed) else f"({text})"


def assignable(target: str) -> str:
    """A tensor, or a part of one, as the target of an assignment to its elements."""
    return target if target.endswith("]") else target + "[...]"


def literal(value: bool | int | float) -> str:
    """Python text of a number."""
    if isinstance(value, float) and not is_open_number(value):
        if math.isnan(value):
            return "float('nan')"
        if math.isinf(value):
            return "float('inf')" if value > 0 else "float('-inf')"
    return repr(value)


def permuted(text: str, order: Sequence[int]) -> str:
    """Python text of a tensor with its dimensions in this order."""
    return text if list(order) == sorted(order) else f"{text}.permute({', '.join(map(str, order))})"


def slice_text(start: int, step: int, count: int, size: int) -> str:
    """Python text of so many places of an axis of this size: `:` for all of it."""
    if (start, step, count) == (0, 1, size):
        return ":"
    return f"{start}:{start + step * (count - 1) + 1}" + (f":{step}" if step != 1 and count > 1 else "")


def part_text(text: str, parts: Sequence[str]) -> str:
    """Python text of a part of a tensor: the slice of each dimension, `:` for all of it."""
    kept = list(parts)
    while kept and kept[-1] == ":":
        kept.pop()
    return f"{text}[{', '.join(kept)}]" if kept else text


def tuple_text(items: Sequence[object]) -> str:
    return "(" + ", ".join(map(str, items)) + ("," if len(items) == 1 else "") + ")"
