"""Which inputs a program needs the values of before it can be bound, and which are seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilec.ir.functions import RANDOM
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Inside,
    Name,
    Pad,
    Program,
    Statement,
    children,
    expressions,
    walk,
)


def size_inputs(program: Program) -> tuple[str, ...]:
    """Inputs whose values must be known before the program can be bound: those that stand in sizes, indices or
    constraints, directly or through size statements."""
    needed: set[str] = set()
    for s in reversed(program.statements):
        if s.index is None and s.output in needed:
            needed.update(names_in_size(s.body))
        needed.update(_names_in_sizes(s))
    return tuple(i.name for i in program.inputs if i.name in needed)


def seed_inputs(program: Program) -> tuple[str, ...]:
    """Inputs that stand in the seed of a random number."""
    found: set[str] = set()
    for root in (e for s in program.statements for e in expressions(s)):
        for call in (x for x in walk(root) if isinstance(x, Call) and x.function in RANDOM):
            seed = list(walk(call.args[0]))
            found.update(e.tensor if isinstance(e, Access) else e.name for e in seed if isinstance(e, (Access, Name)))
    return tuple(i.name for i in program.inputs if i.name in found)


def names_in_size(e: Expr) -> Iterator[str]:
    """Names in size arithmetic, rank-0 elements included; not tensors of which only the shape is asked."""
    match e:
        case Name(name) | Access(name, ()):
            yield name
        case Call("shape"):
            yield from (name for axis in e.args[1:] for name in names_in_size(axis))
        case _:
            yield from (name for child in children(e) for name in names_in_size(child))


def _names_in_sizes(s: Statement) -> Iterable[str]:
    for e in (*(s.sizes or ()), *(c.bound for c in s.constraints)):
        yield from names_in_size(e)
    for e in (*(s.index or ()), *(c.expr for c in s.constraints)):
        yield from _names_in_index(e)
    for value in (s.guard, s.body, s.init):
        if value is not None:
            yield from _names_in_value(value)


def _names_in_index(e: Expr) -> Iterable[str]:
    match e:
        case Name(name):
            yield name
        case Access() | Inside() | Pad() | Aggregate():
            yield from _names_in_value(e)
        case Call("shape"):
            for axis in e.args[1:]:
                yield from _names_in_index(axis)
        case _:
            for child in children(e):
                yield from _names_in_index(child)


def _names_in_value(e: Expr) -> Iterable[str]:
    match e:
        case Access():
            for i in e.index:
                yield from _names_in_index(i)
        case Call("reshape" | "shape" | "index", (first, *rest)):
            if not isinstance(first, Name):
                yield from _names_in_value(first)
            for size in rest:
                yield from _names_in_index(size)
        case Aggregate():
            for c in e.constraints:
                yield from _names_in_index(c.expr)
                yield from names_in_size(c.bound)
            for child in (e.guard, e.body):
                if child is not None:
                    yield from _names_in_value(child)
        case _:
            for child in children(e):
                yield from _names_in_value(child)
