"""What several statements of a slab compute is computed once: a statement of its own, which stays in cache. What a
statement of the whole program computes is read where others have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.functions import draws
from tilec.ir.index import distinct_variables
from tilec.ir.infer import expression_type, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    children,
    index_variables,
    map_values,
    node_count,
    rebuild,
    substitute,
    walk,
)
from tilec.ir.types import Types
from tilec.transforms.util.naming import Names

MOST_SHARED = 16  # statements made of one program
EXACT = ("float32", "float64")  # types in which a value is the same whether it is stored or not


def share(program: Program, types: Types) -> Program:
    """The same flat program; the largest expressions that two statements have come first."""
    statements, known = list(program.statements), dict(types)
    names = Names.of(program)
    keys = _Keys()
    for _ in range(MOST_SHARED):
        found = _largest(statements, known, keys)
        if found is None:
            break
        key, first = found
        made = _made(names.fresh("Shared"), key, statements[first], known)
        known[made.output] = statement_type(made, known)
        statements = [_using(s, key, made, keys) for s in statements]
        statements.insert(first, made)
    return replace(program, statements=tuple(statements))


_FEWEST_REUSED = 3  # functions of a body that is worth a read


def reuse(program: Program, types: Types) -> Program:
    """The same flat program; what a statement stores is read by later ones that would compute it again."""
    statements, keys = list(program.statements), _Keys()
    for n, s in enumerate(statements):
        key, index = _stored(s, types, keys)
        if key is not None:
            statements[n + 1 :] = [
                _reading(t, key, s.output, index, keys) if key in keys.within(t) else t for t in statements[n + 1 :]
            ]
    same = all(a is b for a, b in zip(statements, program.statements, strict=True))
    return program if same else replace(program, statements=tuple(statements))


def _stored(s: Statement, types: Types, keys: _Keys) -> tuple[Expr | None, tuple[int, ...]]:
    """The canonical form of a statement's elements, and which of its variables each axis is."""
    value, variables = or_zero(s), distinct_variables(s.index)
    plain = s.aggregation in ("assign", "sum") and s.default is None and not s.constraints
    calls = {x.function for x in walk(value) if isinstance(x, Call)}
    counted = sum(isinstance(x, Call) for x in walk(value)) >= _FEWEST_REUSED and not calls <= {"mul", "neg"}
    if not plain or not counted or variables is None or types[s.output].dtype not in EXACT or draws(value):
        return None, ()
    order = index_variables(value)
    key = keys.of(value)
    found = _extents(key, types) if key is not None else None
    if (
        key is None
        or found is None
        or {*order} != {*variables}
        or expression_type(key, types).dtype != types[s.output].dtype
    ):
        return None, ()
    index = tuple(order.index(v) for v in variables)
    return (key if tuple(found[f"v{k}"] for k in index) == types[s.output].shape else None), index


def or_zero(s: Statement) -> Expr:
    """The value of a point, a zero where there is none."""
    return s.body if s.guard is None else Call("select", (s.guard, s.body, Int(0)))


def _reading(s: Statement, key: Expr, tensor: str, index: tuple[int, ...], keys: _Keys) -> Statement:
    def access(e: Expr) -> Access:
        variables = index_variables(e)
        return Access(tensor, tuple(Index(variables[k]) for k in index), span=e.span)

    def visit(e: Expr) -> Expr:
        if isinstance(e, Call) and keys.of(e) == key:
            return access(e)
        return e if isinstance(e, Access) or not children(e) else rebuild(e, visit)

    value = or_zero(s)
    if s.guard is not None and s.aggregation == "sum" and keys.of(value) == key:
        return replace(s, body=access(value), guard=None)
    made = map_values(s, visit)
    return s if made == s else made


class _Keys:
    """Canonical forms of expressions, each found once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Expr, Expr | None]] = {}
        self._within: dict[int, tuple[Statement, set[Expr | None]]] = {}

    def of(self, e: Expr) -> Expr | None:
        if id(e) not in self._found:
            self._found[id(e)] = e, _canonical(e)  # with the expression, whose id is its own while it is there
        return self._found[id(e)][1]

    def within(self, s: Statement) -> set[Expr | None]:
        """Those of a statement's calls, and of its value."""
        if id(s) not in self._within:
            calls = (e for e in walk(*s.roots) if isinstance(e, Call))
            self._within[id(s)] = s, {self.of(or_zero(s)), *map(self.of, calls)}
        return self._within[id(s)][1]


def _largest(statements: Sequence[Statement], types: Types, keys: _Keys) -> tuple[Expr, int] | None:
    """The expression, in canonical variables, and the first statement that has it."""
    seen: dict[Expr, list[int]] = {}
    for number, s in enumerate(statements):
        for root in s.roots:
            for e in walk(root):
                if isinstance(e, Call) and (key := keys.of(e)) is not None:
                    places = seen.setdefault(key, [])
                    if number not in places:
                        places.append(number)
    several = [(node_count(key), -places[0], key) for key, places in seen.items() if len(places) > 1]
    for _, first, key in sorted(several, key=lambda x: x[:2], reverse=True):
        if _extents(key, types) is not None and expression_type(key, types).dtype in EXACT:
            return key, -first
    return None


def _canonical(e: Expr) -> Expr | None:
    """The expression in the variables v0, v1, ... in order of appearance; None where it draws numbers."""
    return None if draws(e) else substitute(e, {v: Index(f"v{k}") for k, v in enumerate(index_variables(e))})


def _extents(key: Expr, types: Types) -> dict[str, int] | None:
    """The size of each variable, where every access of the expression is inside its tensor over all of them."""
    found: dict[str, int] = {}
    for e in walk(key):
        if not isinstance(e, (Access, Call, Index, Int)) and children(e):
            return None
        if isinstance(e, Access):
            for i, n in zip(e.index, types[e.tensor].shape, strict=True):
                if isinstance(i, Int) and i.value < n:
                    continue
                if not isinstance(i, Index) or found.setdefault(i.name, n) != n:
                    return None
    return found if found and set(found) == set(index_variables(key)) else None


def _made(name: str, key: Expr, like: Statement, types: Types) -> Statement:
    extents = _extents(key, types)
    assert extents is not None
    variables = index_variables(key)
    return Statement(name, tuple(map(Index, variables)), tuple(Int(extents[v]) for v in variables), key, span=like.span)


def _using(s: Statement, key: Expr, made: Statement, keys: _Keys) -> Statement:
    """The statement with what is now computed before it read."""

    def visit(e: Expr) -> Expr:
        if isinstance(e, Call) and keys.of(e) == key:
            return Access(made.output, tuple(map(Index, index_variables(e))), span=e.span)
        return e if isinstance(e, Access) or not children(e) else rebuild(e, visit)

    return map_values(s, visit)
