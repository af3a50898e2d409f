"""Expressions over known sizes: names become accesses and literals, indices canonical."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tilec.errors import NameMistake, RankMistake, SizeMistake, Span, TypeMistake, Unsupported
from tilec.ir.aggregations import LOGICAL
from tilec.ir.functions import RANDOM, STRUCTURAL
from tilec.ir.index import integer
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    index_variables,
    walk,
)
from tilec.ir.types import CASTS, TensorType
from tilec.language import show_expr
from tilec.transforms.bind.sizes import Sizes, as_number, counted
from tilec.transforms.simplify.keep_variables import keep_aggregate
from tilec.transforms.util.broadcast import Axes, Shape

# What an aggregation of one literal comes to. As text it would have no index to aggregate over.
_OF_ONE: dict[str, Callable[[Expr], Expr]] = {
    **dict.fromkeys(("min", "max", "assign"), lambda e: e),
    **dict.fromkeys(("sum", "prod"), lambda e: e * Int(1)),
    **dict.fromkeys(("mean", "logsumexp"), lambda e: e * Float(1.0)),
    **dict.fromkeys(LOGICAL, lambda e: Call("ne", (e, Int(0)))),
    **dict.fromkeys(("argmax", "argmin"), lambda e: Int(0)),
}


def _of_literals(e: Aggregate) -> Expr | None:
    """The value of an aggregation in whose body literals have taken the place of all it read."""
    reads = (Access, Inside, Pad, Index, Aggregate)
    if e.guard is not None or e.constraints or any(isinstance(x, reads) for x in walk(e.body)):
        return None
    return _OF_ONE[e.aggregation](e.body)


@dataclass
class BindingScope:
    """What the names of a statement stand for: sizes, tensors by type, literals put in place of names."""

    sizes: Sizes
    types: dict[str, TensorType]
    folded: dict[str, Expr] = field(default_factory=dict)

    def shape(self, access: Access) -> Shape:
        """The shape of an accessed tensor, checked against the number of indices."""
        name, rank = access.tensor, len(access.index)
        if name in self.folded:
            shape: Shape = ()
        elif name in self.types:
            shape = self.types[name].shape
        elif name in self.sizes.values:
            raise NameMistake(f"{name} is a dimension, not a tensor", access.span)
        else:
            raise NameMistake(f"no tensor is called {name}", access.span)
        if len(shape) != rank:
            given = "indices are" if rank != 1 else "index is"
            raise RankMistake(
                f"{name} has {counted(len(shape), 'dimension')}, shape {shape}, but {rank} {given} given",
                access.span,
                hint=f"write an index for each dimension, or pass a tensor of {counted(rank, 'dimension')}",
            )
        return shape


class ValueBinder:
    """Binds the expressions of one statement, each node once. `axes` is None in an indexed statement; `own` is the
    output of a recurrence."""

    def __init__(self, scope: BindingScope, axes: Axes | None, own: str | None = None):
        self.scope = scope
        self.axes = axes
        self.own = own  # the output of a recurrence, whose type is not known yet
        self.known: dict[int, Expr] = {}

    def bind(self, e: Expr) -> Expr:
        """An expression that stands as a value."""
        result = self.known.get(id(e))
        if result is None:
            result = self.known[id(e)] = self._bind(e)
        return result

    def index(self, e: Expr) -> Expr:
        """An index expression in canonical form."""
        if isinstance(e, (Index, Int)):
            return e
        return _located(self.scope.sizes.index(e, self.bind).to_expr(), e.span)

    def constraints(self, constraints: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
        """Each once: what is written in two ways may come to the same."""
        return tuple(dict.fromkeys(replace(c, expr=self.index(c.expr), bound=self._bound(c)) for c in constraints))

    def _bound(self, c: Constraint) -> Int:
        variables = index_variables(c.bound)
        if variables:
            raise SizeMistake(
                f"right of `<` stands a size, without index variables: {', '.join(variables)}", c.bound.span or c.span
            )
        return Int(max(0, as_number(self.scope.sizes.evaluate(c.bound))), span=c.bound.span)

    def _bind(self, e: Expr) -> Expr:
        match e:
            case Index() | Int() | Float():
                return e
            case Name():
                return self._name(e)
            case Access():
                self.scope.shape(e)
                return self.scope.folded.get(e.tensor) or replace(e, index=tuple(map(self.index, e.index)))
            case Inside(access):
                inner = self.bind(access)
                return replace(e, access=inner) if isinstance(inner, Access) else Int(1)  # a literal is always inside
            case Pad(access, value):
                inner = self.bind(access)
                if isinstance(inner, (Access, Inside)):
                    return replace(e, access=inner, value=self.bind(value))
                return inner
            case Aggregate():
                nested = ValueBinder(self.scope, None, self.own) if self.axes is not None else self
                new = replace(
                    e,
                    guard=None if e.guard is None else nested.bind(e.guard),
                    body=nested.bind(e.body),
                    constraints=nested.constraints(e.constraints),
                )
                return _of_literals(new) or keep_aggregate(new)
            case Call():
                special = _SPECIAL.get(e.function)
                return special(self, e) if special else replace(e, args=tuple(map(self.bind, e.args)))
        raise TypeMistake(f"`{show_expr(e)}` is no value", getattr(e, "span", None))

    def _name(self, e: Name) -> Expr:
        b = self.scope
        if e.name in b.folded:
            return b.folded[e.name]
        if e.name in b.types:
            shape = b.types[e.name].shape
            if not shape:
                return Access(e.name, (), span=e.span)
            if self.axes is not None:
                return self.axes.read(e.name, shape, e.span)
            raise RankMistake(
                f"{e.name} has {counted(len(shape), 'dimension')}, so it needs its indices here",
                e.span,
                hint=f"write {e.name}[...]",
            )
        if e.name in b.sizes.values:
            return integer(b.sizes.values[e.name])
        raise NameMistake(f"nothing is called {e.name}", e.span)

    def _shape_call(self, e: Call) -> Expr:
        tensor = self._tensor(e)
        if len(e.args) == 2:
            return Int(self.scope.sizes.dimension(tensor, e.args[1], e.span), span=e.span)
        shape = self.scope.sizes.shape(tensor)
        if self.axes is None:
            raise RankMistake("shape(X) has one dimension", e.span, hint=f"write shape({tensor.name}, d) for one size")
        (position,) = self.axes.at((len(shape),))
        result: Expr = Int(shape[-1] if shape else 0)
        for d in reversed(range(len(shape) - 1)):
            result = Call("select", (Call("eq", (position, Int(d))), Int(shape[d]), result))
        return result

    def _index_call(self, e: Call) -> Expr:
        tensor = self._tensor(e)
        if self.axes is None:
            raise RankMistake("index(X, d) belongs in elementwise statements", e.span, hint="use the index variable")
        shape = self.scope.sizes.shape(tensor)
        d = self.scope.sizes.evaluate(e.args[1])
        if not 0 <= d < len(shape):
            told = f"{tensor.name} has {counted(len(shape), 'dimension')}, so no dimension {d}"
            raise RankMistake(told, e.span, hint="dimensions are counted from 0")
        return self.axes.at(shape)[d]

    def _tensor(self, e: Call) -> Name:
        if not isinstance(e.args[0], Name):
            raise NameMistake(f"{e.function} asks for a tensor's name", e.args[0].span or e.span)
        return e.args[0]

    def _as_type(self, e: Call) -> Expr:
        """x in the element type of Y, which is known by now; a weak Y only says floating or not."""
        value, like = self.bind(e.args[0]), e.args[1]
        tensors = self.scope.types
        result = expression_type(Call("as_type", (value, like)), tensors)
        known = not any(isinstance(x, Access) and x.tensor == self.own for x in walk(value))
        if known and result == expression_type(value, tensors):
            return value
        return Call(result.dtype if result.dtype in CASTS else "bool", (value,), span=e.span)

    def _random(self, e: Call) -> Expr:
        """A draw with its counter: in an elementwise statement the element's row-major position, if none is given."""
        args = tuple(map(self.bind, e.args))
        if len(args) == 1:
            assert self.axes is not None, "a draw among indices needs a counter"
            args = (*args, self.axes.position().to_expr())
        return replace(e, args=args)

    def _structural(self, e: Call) -> Expr:
        raise Unsupported(f"{e.function} is allowed in elementwise statements only", e.span)

    def _same(self, e: Call) -> Expr:
        return Int(self.scope.sizes.evaluate(e), span=e.span)


_SPECIAL = {
    "shape": ValueBinder._shape_call,
    "index": ValueBinder._index_call,
    "as_type": ValueBinder._as_type,
    "same": ValueBinder._same,
    **dict.fromkeys(RANDOM, ValueBinder._random),
    **dict.fromkeys(STRUCTURAL, ValueBinder._structural),
}


def _located(e: Expr, span: Span | None) -> Expr:
    return e if span is None else replace(e, span=span)  # type: ignore[type-var, call-arg]
