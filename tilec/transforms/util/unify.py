"""Expressions that are equal but for the names of their variables."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.program import Access, Call, Expr, Float, Index, Int, children


def matched_in_some_order(some: Sequence[Expr], others: Sequence[Expr], match: dict[str, str]) -> dict[str, str] | None:
    """Variables of `some` by those of `others` that make them equal in some order."""
    if not some:
        return match
    for k, e in enumerate(others):
        grown = unified(some[0], e, match)
        rest = None if grown is None else matched_in_some_order(some[1:], [*others[:k], *others[k + 1 :]], grown)
        if rest is not None:
            return rest
    return None


def unified(a: Expr, b: Expr, match: dict[str, str]) -> dict[str, str] | None:
    if isinstance(a, Index) and isinstance(b, Index):
        if match.get(a.name, b.name) != b.name or a.name not in match and b.name in match.values():
            return None
        return {**match, a.name: b.name}
    if type(a) is not type(b) or len(children(a)) != len(children(b)):
        return None
    if isinstance(a, Access) and isinstance(b, Access) and a.tensor != b.tensor:
        return None
    if isinstance(a, Call) and isinstance(b, Call) and a.function != b.function:
        return None
    if isinstance(a, (Int, Float)):
        return match if a == b else None
    found: dict[str, str] | None = match
    for x, y in zip(children(a), children(b), strict=True):
        found = None if found is None else unified(x, y, found)
    return found
