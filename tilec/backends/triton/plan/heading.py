"""The comments that head a kernel: its statements, without sizes, which would make each shape another text."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.program import Access, Expr, Float, Int, Name, Statement, rebuild
from tilec.ir.symbolic import is_open_number

LITERAL = 16  # constants up to this stand in the text; larger ones come from shapes


def without_sizes(s: Statement) -> Statement:
    """The statement with numbers that come from shapes left out."""

    def is_open(e: Expr) -> bool:
        return isinstance(e, Int | Float) and is_open_number(e.value)

    def hide(e: Expr) -> Expr:
        return Name("SIZE") if is_open(e) or isinstance(e, Int) and e.value > LITERAL else rebuild(e, hide)

    def hide_indices(e: Expr) -> Expr:
        return hide(e) if isinstance(e, Access) or is_open(e) else rebuild(e, hide_indices)

    return replace(
        s,
        index=tuple(map(hide, s.index or ())),
        sizes=None,
        body=hide_indices(s.body),
        guard=None if s.guard is None else hide_indices(s.guard),
        constraints=tuple(replace(c, expr=hide(c.expr), bound=hide(c.bound)) for c in s.constraints),
        init=None if s.init is None else hide_indices(s.init),
    )
