"""The IR. A program is a list of statements; every statement is a contraction

    output[index : sizes] = aggregation(guard ? body), constraints default D init E

whose `index` is None while it is elementwise and its operands' ranks are not yet known. Nodes are frozen, compare by
structure (spans aside) and carry the span of the text they came from. Indices, sizes and values share one type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter, is_
from typing import Any, TypeVar

from tilec.errors import Span


def _span() -> Span | None:
    return field(default=None, compare=False, repr=False, kw_only=True)


def kept_hash(*fields: str) -> Callable[[Any], int]:
    """`__hash__` of a node by these fields, found once."""
    key = attrgetter(*fields)

    def hashed(node: Any) -> int:
        if (kept := node.__dict__.get("_hash")) is None:
            kept = node.__dict__["_hash"] = hash(key(node))
        return kept

    return hashed


class Expr:
    """Base of expressions; the operators build calls and nothing else."""

    __slots__ = ()
    span: Span | None

    def __getstate__(self) -> dict[str, Any]:
        """The fields: what is kept beside them, a hash among it, holds in this process alone."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __add__(self, other: Expr) -> Expr:
        return Call("add", (self, other))

    def __sub__(self, other: Expr) -> Expr:
        return Call("sub", (self, other))

    def __mul__(self, other: Expr) -> Expr:
        return Call("mul", (self, other))

    def __truediv__(self, other: Expr) -> Expr:
        return Call("div", (self, other))

    def __neg__(self) -> Expr:
        return Call("neg", (self,))


@dataclass(frozen=True)
class Int(Expr):
    """An integer literal, never negative (a negative one is `neg` of it); weakly typed."""

    value: int
    span: Span | None = _span()


@dataclass(frozen=True)
class Float(Expr):
    """A floating literal, never negative; weakly typed. All NaNs are one object, so that equal literals are equal."""

    value: float
    span: Span | None = _span()

    def __post_init__(self) -> None:
        if self.value != self.value:
            object.__setattr__(self, "value", math.nan)


@dataclass(frozen=True)
class Index(Expr):
    """An index variable; as a value, its integer."""

    name: str
    span: Span | None = _span()
    __hash__ = kept_hash("name")


@dataclass(frozen=True)
class Name(Expr):
    """An upper-case name standing alone: a dimension, or a whole tensor in an elementwise statement or a size."""

    name: str
    span: Span | None = _span()


@dataclass(frozen=True)
class Access(Expr):
    """One element of a tensor, `A[i, j]`. Constrains the point to lie inside the tensor."""

    tensor: str
    index: tuple[Expr, ...]
    span: Span | None = _span()
    __hash__ = kept_hash("tensor", "index")


@dataclass(frozen=True)
class Inside(Expr):
    """`in(A[i, j])`: one, and constrains the point as the access does, without reading."""

    access: Access
    span: Span | None = _span()


@dataclass(frozen=True)
class Pad(Expr):
    """`pad(A[i, j], v)`: v where the access lies outside; neither constrains nor bounds."""

    access: Access | Inside
    value: Expr
    span: Span | None = _span()


@dataclass(frozen=True)
class Call(Expr):
    """A function or operator of `tilec.ir.functions.FUNCTIONS` applied to arguments."""

    function: str
    args: tuple[Expr, ...]
    span: Span | None = _span()
    __hash__ = kept_hash("function", "args")


@dataclass(frozen=True)
class Constraint:
    """`expr < bound`: expr is an integer and 0 <= expr < bound."""

    expr: Expr
    bound: Expr
    span: Span | None = _span()


class Guarded:
    """What a statement and a nested aggregation compute at each of their points."""

    body: Expr
    guard: Expr | None
    __getstate__ = Expr.__getstate__

    @property
    def guards(self) -> tuple[Expr, ...]:
        """The guard, if there is one."""
        return () if self.guard is None else (self.guard,)

    @property
    def roots(self) -> tuple[Expr, ...]:
        """The guard, if there is one, and the body."""
        return (*self.guards, self.body)


@dataclass(frozen=True)
class Aggregate(Expr, Guarded):
    """An aggregation nested in an expression. It binds `bound` (first appearance first), and its accesses, guard and
    constraints concern its own points only."""

    aggregation: str
    body: Expr
    bound: tuple[str, ...]
    guard: Expr | None = None
    constraints: tuple[Constraint, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True)
class Attribute:
    """`[[name(args)]]` before a statement: kept, printed back, otherwise without meaning."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement(Guarded):
    """`index` None: elementwise over the broadcast shape of what it reads. `sizes` None: left out, or elementwise."""

    output: str
    index: tuple[Expr, ...] | None
    sizes: tuple[Expr, ...] | None
    body: Expr
    aggregation: str = "assign"
    guard: Expr | None = None
    constraints: tuple[Constraint, ...] = ()
    default: str | None = None
    init: Expr | None = None
    no_defract: bool = False
    attributes: tuple[Attribute, ...] = ()
    span: Span | None = _span()

    @cached_property
    def _reads(self) -> tuple[str, ...]:
        found: Iterator[Any] = (x for x in walk(*expressions(self)) if type(x) in (Access, Name))
        read = dict.fromkeys(x.tensor if type(x) is Access else x.name for x in found)
        return tuple(read if self.default is None else {**read, self.default: None})


GuardedNode = TypeVar("GuardedNode", Statement, Aggregate)
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Input:
    """`dims` None: any rank. A dimension is a name that the call binds or a literal that it checks."""

    name: str
    dims: tuple[str | int, ...] | None
    span: Span | None = _span()


@dataclass(frozen=True)
class Program:
    name: str | None
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    statements: tuple[Statement, ...]

    def input_names(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.inputs)

    def readers(self, name: str) -> Sequence[Statement]:
        """The statements that read a name, in order."""
        return self._readers.get(name, ())

    @cached_property
    def _readers(self) -> Mapping[str, Sequence[Statement]]:
        found: dict[str, list[Statement]] = {}
        for s in self.statements:
            for name in reads(s):
                found.setdefault(name, []).append(s)
        return found

    def dimensions(self) -> frozenset[str]:
        """Names of the dimensions that the inputs bind."""
        return frozenset(d for i in self.inputs for d in i.dims or () if isinstance(d, str))


_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Call: attrgetter("args"),
    Access: attrgetter("index"),
    Inside: lambda e: (e.access,),
    Pad: attrgetter("access", "value"),
    Aggregate: lambda e: (*e.roots, *(x for c in e.constraints for x in (c.expr, c.bound))),
}


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct subexpressions, those of indices and of nested aggregations' guards and constraints included."""
    return _CHILDREN[type(e)](e) if type(e) in _CHILDREN else ()


def rebuild(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """The same node over f of each direct subexpression; the node itself where these stay what they are."""
    match e:
        case Call():
            args = tuple(map(f, e.args))
            return e if all(map(is_, args, e.args)) else Call(e.function, args, span=e.span)
        case Access():
            index = tuple(map(f, e.index))
            return e if all(map(is_, index, e.index)) else Access(e.tensor, index, span=e.span)
        case Inside():
            return replace(e, access=_access(f(e.access)))
        case Pad():
            inner = f(e.access)
            return replace(e, access=inner if isinstance(inner, Inside) else _access(inner), value=f(e.value))
        case Aggregate():
            guard = None if e.guard is None else f(e.guard)
            constraints = tuple(replace(c, expr=f(c.expr), bound=f(c.bound)) for c in e.constraints)
            return replace(e, guard=guard, body=f(e.body), constraints=constraints)
    return e


def _access(e: Expr) -> Access:
    assert isinstance(e, Access), "an access stays an access"
    return e


def walk(*roots: Expr) -> Iterator[Expr]:
    """The expressions and all below them, parents first, left to right."""
    parts = [((e,), kept_with(e, "_below", _below)) if type(e) in _CHILDREN else ((e,),) for e in roots]
    return chain.from_iterable(chain.from_iterable(parts))


def kept_with(e: Any, name: str, find: Callable[[Any], Kept]) -> Kept:
    """What is found of an expression or a statement, kept with it: passes ask again of what they leave alone."""
    return kept[name] if name in (kept := e.__dict__) else kept.setdefault(name, find(e))


def _below(e: Expr) -> tuple[Expr, ...]:
    found, stack = list[Expr](), list(children(e)[::-1])
    while stack:
        found.append(x := stack.pop())
        if type(x) in _CHILDREN:
            stack += _CHILDREN[type(x)](x)[::-1]
    return tuple(found)


def node_count(e: Expr) -> int:
    return sum(1 for _ in walk(e))


def accesses_in(*roots: Expr | None) -> Iterator[Access]:
    """The reads of tensors in expressions, those in indices and paddings too."""
    for e in roots:
        if type(e) is Access:
            yield e
        if type(e) in _CHILDREN:
            yield from kept_with(e, "_accesses", _accesses_below)


def _accesses_below(e: Expr) -> tuple[Access, ...]:
    return tuple([x for x in kept_with(e, "_below", _below) if type(x) is Access])


def substitute(e: Expr, index: dict[str, Expr]) -> Expr:
    """Replace index variables; a nested aggregation's own variables must have been renamed out of the way."""
    return index.get(e.name, e) if isinstance(e, Index) else rebuild(e, lambda x: substitute(x, index))


def expressions(s: Statement) -> tuple[Expr, ...]:
    """Every expression of a statement in the order it is printed: index, sizes, guard, body, constraints, init."""
    constraints = tuple(x for c in s.constraints for x in (c.expr, c.bound))
    return (*(s.index or ()), *(s.sizes or ()), *s.roots, *constraints, *(() if s.init is None else (s.init,)))


def map_expressions(s: Statement, f: Callable[[Expr], Expr]) -> Statement:
    """The statement with f applied to each of its expressions (tops only; f recurses if it wants)."""
    return replace(
        s,
        index=None if s.index is None else tuple(map(f, s.index)),
        sizes=None if s.sizes is None else tuple(map(f, s.sizes)),
        guard=None if s.guard is None else f(s.guard),
        body=f(s.body),
        constraints=tuple(replace(c, expr=f(c.expr), bound=f(c.bound)) for c in s.constraints),
        init=None if s.init is None else f(s.init),
    )


def map_values(s: GuardedNode, f: Callable[[Expr], Expr]) -> GuardedNode:
    """The statement or aggregation with f applied to its body and its guard."""
    return replace(s, body=f(s.body), guard=None if s.guard is None else f(s.guard))


def index_variables(*roots: Expr) -> tuple[str, ...]:
    """Free index variables in order of first appearance; those that a nested aggregation binds are left out."""
    found = [(e.name,) if type(e) is Index else _variables(e) for e in roots if type(e) is not Int]
    return found[0] if len(found) == 1 else tuple(dict.fromkeys(chain.from_iterable(found)))


def _variables(e: Expr) -> tuple[str, ...]:
    return kept_with(e, "_variables", _variables_in) if type(e) in _CHILDREN else ()


def _variables_in(e: Expr) -> tuple[str, ...]:
    found, stack = dict[str, None](), list(children(e)[::-1])
    while stack:
        x = stack.pop()
        if type(x) in (Index, Aggregate):
            found.update(dict.fromkeys((x.name,) if type(x) is Index else index_variables(x)))
        elif type(x) in _CHILDREN:
            stack += _CHILDREN[type(x)](x)[::-1]
    return tuple([v for v in found if type(e) is not Aggregate or v not in e.bound])


def reads(s: Statement) -> tuple[str, ...]:
    """Upper-case names that a statement reads (tensors, and dimensions where they stand), in order of appearance."""
    return s._reads


def value_accesses(s: Statement) -> tuple[Access, ...]:
    """The accesses of a statement's body and guard, those in indices and paddings too."""
    return kept_with(s, "_value_accesses", lambda s: tuple(accesses_in(s.body, s.guard)))


def variables_of(s: Statement) -> tuple[str, ...]:
    """The free index variables of a statement, in order of first appearance: index, body, guard, constraints."""
    constraints = (c.expr for c in s.constraints)
    return kept_with(s, "_free", lambda s: index_variables(*(s.index or ()), *s.roots[::-1], *constraints))


def self_reads(s: Statement) -> tuple[Access, ...]:
    """The accesses of a statement's guard and body that read its own output, those in nested aggregations included."""
    return tuple(e for e in accesses_in(*s.roots) if e.tensor == s.output)


def reads_itself(s: Statement) -> bool:
    """Is the statement a recurrence?"""
    return kept_with(s, "_reads_itself", lambda s: bool(self_reads(s)))
