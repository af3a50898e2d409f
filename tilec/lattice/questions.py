"""Questions about sets of integer points that isl answers.

Texts hold $0, $1, ... for the numbers that come last. Where these are sizes that are left open, a question is asked
again at the sizes of each call: a yes or no as a guard, a number as part of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index

from tilec.errors import InternalMistake
from tilec.ir.at_sizes import followed
from tilec.ir.index import QUASI_AFFINE, Affine, linear
from tilec.ir.program import Call, Expr, Index
from tilec.ir.rational import as_int
from tilec.ir.symbolic import is_symbolic
from tilec.lattice import isl


@dataclass(frozen=True)
class InRange:
    """`form` is an integer and 0 <= form < bound."""

    form: Affine
    bound: int


class IslText:
    """Turns conditions and forms into isl text; quotients and atoms become existential variables. `names`: those of
    index variables in texts. `numbers`: what $0, $1, ... stand for."""

    def __init__(self, names: Mapping[str, str], numbers: Iterable[int] = ()):
        self.names, self.numbers = names, [*numbers]
        self.facts: list[str] = []
        self.fresh: list[str] = []
        self.known: dict[object, str] = {}

    def text(self, conditions: Iterable[InRange], rows: Sequence[Affine] = ()) -> str:
        """What isl reads: conditions on the variables under their names and, as o0, o1, ..., the rows."""
        self.facts, self.fresh, self.known = [], [], {}
        for c in conditions:
            self.facts.append(f"0 <= {self.integer(c.form)} < {self.number(c.bound)}")
        for k, row in enumerate(rows):
            self.facts.append(f"o{k} = {self.integer(row)}")
        facts = " and ".join(dict.fromkeys(self.facts)) or "true"
        return f"exists {', '.join(self.fresh)}: {facts}" if self.fresh else facts

    def number(self, n: int) -> str:
        if not is_symbolic(n):
            return str(n)
        self.numbers.append(n)
        return f"${len(self.numbers) - 1}"

    def integer(self, form: Affine) -> str:
        scale = form.denominator
        terms = [f"{self.number(as_int(c * scale))}*{self.atom(a)}" for a, c in form.terms]
        text = " + ".join([*terms, self.number(as_int(form.constant * scale))])
        return f"({text})" if scale == 1 else self.define(form, f"{scale}*{{0}} = {text}")

    def atom(self, e: Expr) -> str:
        if isinstance(e, Index):
            return self.names[e.name]
        if isinstance(e, Call) and e.function in QUASI_AFFINE:
            first, *rest = (self.integer(linear(a)) for a in e.args)
            if e.function == "clamp":
                return self.define(e, f"{{0}} = min(max({first}, {rest[0]}), {rest[1]})")
            if e.function in ("max", "min"):
                return self.define(e, f"{{0}} = {e.function}({first}, {rest[0]})")
            divisor = linear(e.args[1])
            if not divisor.terms and divisor.is_integral:
                n = as_int(divisor.constant)
                if n == 0:
                    return self.define(e, "false")
                sign, size = ("", n) if n > 0 else ("0 - ", -n)
                size_text = self.number(size)
                return self.define(e, f"{{0}} = {first} - ({sign}{size_text}*floor(({sign}{first})/{size_text}))")
        raise InternalMistake("an index holds what integer sets do not know", e.span)

    def define(self, key: object, fact: str) -> str:
        if key not in self.known:
            self.known[key] = f"e{len(self.fresh)}"
            self.fresh.append(self.known[key])
            self.facts.append(fact.format(self.known[key]))
        return self.known[key]


def box_facts(prefix: str, count: int) -> str:
    """The points between numbers that come first in a question."""
    return " and ".join(f"(${2 * i}) <= {prefix}{i} <= (${2 * i + 1})" for i in range(count)) or "true"


def _space(prefix: str, n: int) -> str:
    return "[" + ", ".join(f"{prefix}{i}" for i in range(n)) + "]"


def _filled(text: str, numbers: Sequence[int]) -> str:
    return re.sub(r"\$(\d+)", lambda m: str(index(numbers[int(m[1])])), text)


def _points(n: int, text: str, numbers: Sequence[int], prefix: str = "x") -> isl.Set:
    return isl.Set(f"{{ {_space(prefix, n)} : {_filled(text, numbers)} }}")


def images(n: int, outputs: int, text: str, numbers: Sequence[int]) -> isl.Set:
    return _pairs(n, outputs, text, numbers).range()


def _pairs(n: int, outputs: int, text: str, numbers: Sequence[int]) -> isl.Map:
    return isl.Map(f"{{ {_space('x', n)} -> {_space('o', outputs)} : {_filled(text, numbers)} }}")


@lru_cache(maxsize=4096)
def _ranges(n: int, text: str, numbers: tuple[int, ...]) -> list[tuple[int, int] | None] | None:
    points = _points(n, text, numbers)
    if points.is_empty():
        return None
    result: list[tuple[int, int] | None] = []
    for i in range(n):
        ends = points.dim_min_val(i), points.dim_max_val(i)
        finite = all(end.is_int() for end in ends)
        result.append((ends[0].to_python(), ends[1].to_python()) if finite else None)
    return result


@followed
def is_empty(n: int, text: str, *numbers: int) -> bool:
    """Has a set of `n` variables no point?"""
    return _ranges(n, text, numbers) is None


@followed
def is_bounded(i: int, n: int, text: str, *numbers: int) -> bool:
    """Is the i-th variable between two numbers?"""
    ranges = _ranges(n, text, numbers)
    return ranges is not None and ranges[i] is not None


@followed
def end_of(i: int, side: int, n: int, text: str, *numbers: int) -> int:
    """The least (side 0) or greatest value of the i-th variable."""
    ranges = _ranges(n, text, numbers)
    assert ranges is not None and (ends := ranges[i]) is not None
    return ends[side]


@followed
@lru_cache(maxsize=4096)
def contained(n: int, part: str, text: str, *numbers: int) -> bool:
    """Is every point of the one set in the other?"""
    return _points(n, part, numbers).is_subset(_points(n, text, numbers))


@followed
@lru_cache(maxsize=4096)
def injective(n: int, outputs: int, text: str, *numbers: int) -> bool:
    """Do any two points have two images?"""
    return _pairs(n, outputs, text, numbers).is_injective()


@followed
@lru_cache(maxsize=4096)
def fills(n: int, outputs: int, box: str, text: str, *numbers: int) -> bool:
    """Is every point of the box an image?"""
    return _points(outputs, box, numbers, "o").is_subset(images(n, outputs, text, numbers))


@followed
@lru_cache(maxsize=4096)
def image_contained(n: int, outputs: int, part: str, text: str, *numbers: int) -> bool:
    """Is every image of the one set also one of the other?"""
    found, among = (images(n, outputs, t, numbers) for t in (part, text))
    return found.is_subset(among)
