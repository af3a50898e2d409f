"""Conditions on elements of tensors that one look at the whole tensor settles: that indices which are looked up lie
inside. Where they do, nothing is masked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.common.code import indented
from tilec.backends.common.domain import Condition, Domain
from tilec.ir.program import Access, index_variables
from tilec.ir.rational import as_int
from tilec.ir.types import Types


def assured(domain: Domain, types: Types, local: Mapping[str, str]) -> tuple[str, Domain] | None:
    """Python text of the test, and the domain where it is passed; None where there is nothing to be looked at."""
    found: dict[Condition, str] = {}
    for c in domain.conditions:
        access = _element(c)
        if access is not None and types[access.tensor].dtype != "bool" and _mostly_read(access, domain, types):
            first = -as_int(c.form.constant)
            found[c] = f"({local[access.tensor]}, {first}, {first + c.bound - 1})"
    if not found:
        return None
    rest = tuple(c for c in domain.conditions if c not in found)
    text = f"rt.all_within({', '.join(dict.fromkeys(found.values()))})"
    return text, replace(domain, conditions=rest, assured=domain.assured | found.keys())


def _element(c: Condition) -> Access | None:
    """The element that the condition is about, alone but for a number added."""
    if len(c.form.terms) != 1 or not c.form.is_integral:
        return None
    ((atom, factor),) = c.form.terms
    return atom if isinstance(atom, Access) and factor == 1 else None


def _mostly_read(access: Access, domain: Domain, types: Types) -> bool:
    """Whether the points read a good part of the tensor, so that a look at all of it costs little."""
    read = math.prod(domain.extent[v] for v in index_variables(*access.index))
    return bool(access.index) and 2 * read >= math.prod(types[access.tensor].shape)


def either(test: str, then: list[str], otherwise: list[str]) -> list[str]:
    return [f"if {test}:", *indented(then), "else:", *indented(otherwise)]
