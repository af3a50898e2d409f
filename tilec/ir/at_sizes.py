"""What was made with open sizes, for the sizes of a call."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tilec.ir.symbolic import is_symbolic

NAMESPACE = {"gcd": math.gcd}  # what texts name beside sizes


def value_at(text: str, names: Mapping[str, int]) -> Any:
    """A guard, or a size's text, for these sizes; the texts are this package's own."""
    return eval(text, NAMESPACE, dict(names))


def with_numbers(x: Any, numbers: Mapping[str, int]) -> Any:
    """A tree of dataclasses, tuples and mappings with numbers in the place of symbolic sizes."""
    if is_symbolic(x):
        return value_at(x.text, numbers)
    if type(x) is tuple:
        made = tuple([with_numbers(y, numbers) for y in x])
        return x if all(map(operator.is_, x, made)) else made
    if type(x) is dict:
        return {k: with_numbers(v, numbers) for k, v in x.items()}
    if is_dataclass(x) and not isinstance(x, type):
        new = {
            f.name: v for f in fields(x) if f.init and (v := with_numbers(o := getattr(x, f.name), numbers)) is not o
        }
        return replace(x, **new) if new else x
    return x
