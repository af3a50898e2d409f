"""What was made with open sizes, for the sizes of a call."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from tilec.ir.symbolic import is_open_number, is_symbolic, value_of

Item = TypeVar("Item")
NAMESPACE: dict[str, Callable] = {"gcd": math.gcd}  # what texts name beside sizes


def value_at(text: str, names: Mapping[str, int]) -> Any:
    """A guard, or a size's text, for these sizes; the texts are this package's own."""
    return eval(text, NAMESPACE, dict(names))


def followed(function: Callable) -> Callable:
    """A pure function of numbers and names that is computed for the sizes of each call where it is given open ones."""
    NAMESPACE[f"_{function.__name__.lstrip('_')}"] = function

    def call(*args: Any) -> Any:
        known = next((a for a in args if is_open_number(a)), None)
        return function(*args) if known is None else known.recorder.called(function, args)

    return call


def fixed_value(x: Any) -> int:
    """The number that a size, symbolic or not, has: what is made serves the sizes for which it is the same."""
    value = value_of(x)
    assert x == value
    return value


def least(items: Sequence[Item], key: Callable[[Item], Any]) -> Item:
    """`min(items, key=key)`; nothing is asked of open sizes but what tells the least from each of the others."""
    keys = [key(x) for x in items]
    values = [_values(k) for k in keys]
    place = min(range(len(items)), key=values.__getitem__)
    for k, other in enumerate(keys):
        if k != place and not (keys[place] < other if k < place else keys[place] <= other):
            raise AssertionError("an order changed")
    return items[place]


def _values(key: Any) -> Any:
    return tuple(map(_values, key)) if type(key) is tuple else value_of(key)


@followed
def as_float(n: int) -> float:
    """The number that a value is computed with, of a size that may be left open."""
    return float(n)


def with_numbers(x: Any, numbers: Mapping[str, int]) -> Any:
    """A tree of dataclasses, tuples and mappings with numbers in the place of symbolic sizes."""
    if is_open_number(x):
        return value_at(x.text, numbers)
    if type(x) is tuple:
        made = tuple([with_numbers(y, numbers) for y in x])
        return x if all(map(operator.is_, x, made)) else made
    if isinstance(x, Mapping):
        return {k: with_numbers(v, numbers) for k, v in x.items()}
    if type(x) is list:
        return [with_numbers(y, numbers) for y in x]
    if is_dataclass(x) and not isinstance(x, type):
        new = {
            f.name: v for f in fields(x) if f.init and (v := with_numbers(o := getattr(x, f.name), numbers)) is not o
        }
        return replace(x, **new) if new else x
    return x


Filled = Callable[[Sequence[Any]], Any]


class Template:
    """A tree for the sizes of many calls: what is open in it is looked for once. `texts` are its open numbers, in the
    order in which it holds them."""

    def __init__(self, x: Any, names: Sequence[str]):
        self._places: dict[str, int] = {}
        self._fill = self.part(x)
        found = self.texts = tuple(self._places)
        self._names = tuple(names)
        text = f"lambda {', '.join(names)}: ({', '.join(found)}{',' * bool(found)})"
        self._values: Callable[..., tuple] = value_at(text, {})

    def values(self, sizes: Mapping[str, int]) -> tuple:
        """The open numbers at these sizes."""
        return self._values(*[sizes[name] for name in self._names])

    def __call__(self, sizes: Mapping[str, int]) -> Any:
        """`with_numbers` of the tree."""
        return self._fill(self.values(sizes))

    def part(self, x: Any) -> Filled:
        """What gives a part of the tree with others in the places of its open numbers."""
        return _filled(x, self._places) or (lambda values: x)


def depends_on_sizes(x: Any) -> bool:
    """Does a tree depend on open sizes?"""
    return _filled(x, {}) is not None


def _filled(x: Any, texts: dict[str, int]) -> Filled | None:
    """The tree of the values of `texts`, which is added to; None where the tree is always the same."""
    if is_open_number(x):
        return operator.itemgetter(texts.setdefault(x.text, len(texts)))
    if type(x) is tuple or type(x) is list:
        made = type(x)
        parts = [_filled(y, texts) for y in x]
        if not any(parts):
            return None
        pairs = list(zip(x, parts, strict=True))
        return lambda values: made([y if p is None else p(values) for y, p in pairs])
    if isinstance(x, Mapping):
        fills = {k: p for k, v in x.items() if (p := _filled(v, texts)) is not None}
        return (lambda values: {**x, **{k: p(values) for k, p in fills.items()}}) if fills else None
    if is_dataclass(x) and not isinstance(x, type):
        known = {f.name: getattr(x, f.name) for f in fields(x) if f.init}
        fills = {k: p for k, v in known.items() if (p := _filled(v, texts)) is not None}
        kind = type(x)
        return (lambda values: kind(**{**known, **{k: p(values) for k, p in fills.items()}})) if fills else None
    return None


def named_sizes(sizes: Iterable[int]) -> tuple[tuple[str, int], ...]:
    """The open sizes on which these depend, by the names that they have in texts."""
    every: Iterable[Any] = sizes
    found = {s: n.recorder.polynomial({(s,): 1}) for n in every if is_symbolic(n) for s in n.symbols()}
    return tuple(sorted(found.items(), key=operator.itemgetter(0)))


def mentions(x: Any, names: Collection[str]) -> bool:
    """Does a text in such a tree name one of these sizes, which is not given to it among `numbers`?"""
    if isinstance(x, str):
        return any(re.search(rf"\b{name}\b", x) for name in names)
    if isinstance(x, tuple | list):
        return any(mentions(y, names) for y in x)
    if isinstance(x, Mapping):
        return any(mentions(y, names) for y in x.values())
    if is_dataclass(x) and not isinstance(x, type):
        given = dict(getattr(x, "numbers", ()))
        left = [name for name in names if name not in given]
        return any(mentions(getattr(x, f.name), left) for f in fields(x) if f.name != "numbers")
    return False
