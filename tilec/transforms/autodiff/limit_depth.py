"""Statements in the form in which they are differentiated: whole tensors apart from single elements, none too deep.

A derivative repeats what it is the derivative of, level by level. Over statements of a few levels each, gradients of
any order grow linearly with the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir.constraining import Branch, Demand, always, as_factor, demands, unmet
from tilec.ir.functions import STRUCTURAL, counts_positions
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Int,
    Name,
    Program,
    Statement,
    index_variables,
    reads_itself,
    walk,
)
from tilec.transforms.autodiff.pullback import product
from tilec.transforms.util.extents import shaping
from tilec.transforms.util.naming import Names

_LEVELS = 8  # of an elementwise expression that is cut
UNCUT = 10**6  # of one that is not cut
TOO_DEEP = 16  # levels of an element's expression before it is cut, and of a conditional's branch, which it guards


def cut(program: Program, names: Names) -> tuple[Statement, ...]:
    """The same program. Elementwise statements read whole tensors only and are a few levels deep; so are assignments
    whose indices are all on the left. Other contractions stay: an intermediate would have an element for each point;
    and so do recurrences, of which a part is no statement of its own."""
    result: list[Statement] = []
    for s in program.statements:
        if reads_itself(s) or isinstance(s.body, Call) and s.body.function in STRUCTURAL:
            result.append(s)
        elif s.index is None:
            _cut_elementwise(s, names, result)
        else:
            _cut_assignment(s, names, result)
    return tuple(result)


def apart(program: Program, names: Names) -> tuple[Statement, ...]:
    """The same program, whose elementwise statements read whole tensors only."""
    result: list[Statement] = []
    for s in program.statements:
        if s.index is None and not (isinstance(s.body, Call) and s.body.function in STRUCTURAL):
            _cut_elementwise(s, names, result, UNCUT)
        else:
            result.append(s)
    return tuple(result)


def _cut_elementwise(s: Statement, names: Names, result: list[Statement], levels: int = _LEVELS) -> None:
    def assign(e: Expr) -> Expr:
        made = Statement(names.fresh(s.output), None, None, e)
        if isinstance(e, Access):
            made = Statement(names.fresh(e.tensor), (), (), e)
        if isinstance(e, Aggregate):
            name = names.fresh(e.aggregation.capitalize())
            made = Statement(name, (), (), e.body, e.aggregation, e.guard, e.constraints)
        result.append(made)
        return Name(made.output)

    def stands_apart(e: Expr) -> bool:
        return isinstance(e, (Access, Aggregate))

    body = s.body
    if any(map(counts_positions, walk(body))) and _depth(body) > levels:
        draws: dict[Expr, Expr] = {}
        for e in filter(counts_positions, walk(body)):
            if e not in draws:
                whole = _over(tuple(dict.fromkeys(shaping(body))), e)
                made = Statement(names.fresh("Draw"), None, None, _shallow(whole, assign, stands_apart, UNCUT))
                result.append(made)
                draws[e] = Name(made.output)
        body = _replaced(body, draws)
    result.append(replace(s, body=_shallow(body, assign, stands_apart, levels)))


def _over(names: Sequence[Name], draw: Expr) -> Expr:
    """A draw in a statement of its own that has the shape of the one it stands in, where it counts the same positions:
    a part of that statement might have another."""
    for name in reversed(names):
        draw = Call("select", (Int(0), name, draw))
    return Call("float32", (draw,))


def _depth(e: Expr) -> int:
    return 1 + max(map(_depth, e.args), default=0) if isinstance(e, Call) else 1


def _replaced(e: Expr, new: Mapping[Expr, Expr]) -> Expr:
    if not isinstance(e, Call):
        return e
    return new[e] if e in new else replace(e, args=tuple([_replaced(a, new) for a in e.args]))


def _cut_assignment(s: Statement, names: Names, result: list[Statement]) -> None:
    index, guard = s.index or (), s.guards
    bare = all(isinstance(e, Index) for e in index) and len(set(index)) == len(index)
    inner = set(index_variables(s.body, *guard)) - set(index_variables(*index))
    if s.aggregation != "assign" or s.sizes is None or not bare or inner:
        result.append(s)
        return

    def assign(e: Expr) -> Expr:
        made = Statement(names.fresh(s.output), s.index, s.sizes, e, "assign", s.guard, s.constraints)
        result.append(made)
        return Access(made.output, index)

    body = _shallow(s.body, assign, lambda e: False, TOO_DEEP)
    if body is not s.body:
        read, asked = demands(body, *guard), demands(s.body)
        lost: list[Demand] = [*unmet(always(asked), always(read), _ranges)]
        lost += [d for d in asked if isinstance(d, Branch) and d not in read]
        body = product(body, *map(as_factor, lost))
    result.append(replace(s, body=body))


def _ranges(a: Access) -> Iterator[tuple[Expr, tuple[str, int]]]:
    return ((e, (a.tensor, d)) for d, e in enumerate(a.index))


def _shallow(root: Expr, assign: Callable[[Expr], Expr], apart: Callable[[Expr], bool], levels: int) -> Expr:
    """The expression with what is `levels` deep, and what is to stand apart, assigned to intermediates."""

    def visit(e: Expr, limit: int) -> tuple[Expr, int]:
        if apart(e):
            return assign(e), 1
        if not isinstance(e, Call) or e.function in ("index", "shape"):
            return e, 1
        below = max(limit, TOO_DEEP) if e.function == "select" else limit
        parts = [visit(a, below) for a in e.args]
        args = tuple([a for a, _ in parts])
        if any(a is not b for a, b in zip(args, e.args, strict=True)):
            e = replace(e, args=args)
        depth = 1 + max((d for _, d in parts), default=0)
        return (assign(e), 1) if depth >= limit and e is not root else (e, depth)

    return visit(root, levels)[0]
