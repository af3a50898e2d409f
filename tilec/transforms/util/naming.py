"""Fresh names, and nested aggregations that each have index variables of their own."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import replace

from tilec.ir.program import (
    Aggregate,
    Constraint,
    Expr,
    Index,
    Program,
    Statement,
    children,
    expressions,
    index_variables,
    map_expressions,
    map_values,
    reads,
    rebuild,
    substitute,
    walk,
)


class Names:
    """Gives out upper-case names that are not yet taken."""

    def __init__(self, taken: Iterable[str]):
        self._taken = set(taken)

    @classmethod
    def of(cls, program: Program) -> Names:
        """All names of a program are taken, dimensions and names that it only reads included."""
        read = (name for s in program.statements for name in (s.output, *reads(s)))
        return cls({*program.input_names(), *program.dimensions(), *program.outputs, *read})

    @property
    def taken(self) -> frozenset[str]:
        return frozenset(self._taken)

    def fresh(self, base: str) -> str:
        base = base.rstrip("'")
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def unlike(name: str, taken: Container[str]) -> str:
    """The name, with as many `_` behind it as make it another than those taken."""
    while name in taken:
        name += "_"
    return name


def fresh_variable(base: str, used: set[str]) -> str:
    """An index variable like `base` that is not in `used`, to which it is added: k, k', k1, k2, ..."""
    stem = base.rstrip("'")
    name, count = base, 0
    while name in used:
        name = f"{stem}{count}" if count else f"{stem}'"
        count += 1
    used.add(name)
    return name


def all_variables(s: Statement) -> set[str]:
    """Index variables of a statement, free or bound."""
    found: set[str] = set()
    for e in walk(*expressions(s)):
        if isinstance(e, Index):
            found.add(e.name)
        elif isinstance(e, Aggregate):
            found.update(e.bound)
    return found


def rename(e: Expr, names: dict[str, str]) -> Expr:
    """Rename free index variables. The new names must be bound nowhere in e."""
    if not names:
        return e
    if isinstance(e, Index):
        return Index(names[e.name], span=e.span) if e.name in names else e
    if isinstance(e, Aggregate):
        names = {old: new for old, new in names.items() if old not in e.bound}
    return rebuild(e, lambda x: rename(x, names))


def free_variables(e: Aggregate, index: Sequence[Expr] | None) -> tuple[str, ...]:
    """The free variables of an aggregation in the order of the statement's index that it stands in, if all are there:
    what reads its elements then walks them as it walks its own. Else in order of first appearance."""
    found = index_variables(e)
    written = [v.name for v in index or () if isinstance(v, Index)]
    return tuple(v for v in dict.fromkeys(written) if v in found) if set(found) <= set(written) else found


def canonical_aggregate(e: Aggregate, free: Iterable[str]) -> tuple[Hashable, ...]:
    """What aggregations have in common that differ in the names of their variables alone, those `free` in order."""
    new: dict[str, Expr] = {v: Index(f"v{k}") for k, v in enumerate((*free, *e.bound))}
    moved = map_values(e, lambda x: substitute(x, new))
    return (
        e.aggregation,
        moved.body,
        moved.guard,
        tuple(replace(c, expr=substitute(c.expr, new)) for c in e.constraints),
    )


def rename_constraint(c: Constraint, names: dict[str, str]) -> Constraint:
    return replace(c, expr=rename(c.expr, names), bound=rename(c.bound, names))


def separate(s: Statement) -> Statement:
    """Give every nested aggregation variables that nothing else in the statement uses; equal aggregations share theirs.

    A pass that copies aggregations calls this once on what it made: the text knows no binders, so a variable that
    stands outside an aggregation as well would no longer be bound by it when read back.
    """
    if not any(isinstance(e, Aggregate) for e in walk(*expressions(s))):
        return s
    used = set(index_variables(*expressions(s)))
    known: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Aggregate):
            return rebuild(e, visit)
        if e not in known:
            within = {v for x in walk(*children(e)) if isinstance(x, Aggregate) for v in x.bound}
            taken = used | within  # what an aggregation inside binds would take in what it reads by that name
            names = {v: fresh_variable(v, taken) for v in e.bound}
            used.update(names.values())
            inner = rebuild(e, lambda x: visit(rename(x, names)))
            assert isinstance(inner, Aggregate)
            bound = set(names.values())
            order = index_variables(*inner.roots)
            known[e] = replace(inner, bound=tuple(v for v in order if v in bound))
        return known[e]

    return map_expressions(s, visit)
