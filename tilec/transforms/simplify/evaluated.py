"""What of a statement is evaluated: not what stands in `in(...)`, nor branches that are never taken."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir.program import Access, Call, Expr, Inside, Statement, children, expressions
from tilec.transforms.simplify.simplify import truth


def values_read(s: Statement) -> set[str]:
    """Names of the tensors whose elements a statement reads: those in `in(...)` and in branches that are never taken
    lend their shape alone."""
    found = {e.tensor for root in expressions(s) for e in _evaluated(root) if isinstance(e, Access)}
    return found if s.default is None else found | {s.default}


def compared_sides(s: Statement) -> Iterator[tuple[Expr, ...]]:
    """Of each test for equality in a statement, its sides."""
    for root in expressions(s):
        for e in _evaluated(root):
            if isinstance(e, Call) and e.function in ("eq", "ne"):
                yield e.args


def tensors_evaluated(*roots: Expr) -> set[str]:
    """The tensors whose elements these read."""
    return {e.tensor for root in roots for e in _evaluated(root) if isinstance(e, Access)}


def _evaluated(e: Expr) -> Iterator[Expr]:
    """The expression and what below it is evaluated."""
    below = children(e)
    if isinstance(e, Call) and e.function == "select":
        taken = truth(e.args[0])
        below = e.args if taken is None else (e.args[1] if taken else e.args[2],)
    elif isinstance(e, Inside):
        below = e.access.index
    yield e
    for child in below:
        yield from _evaluated(child)
