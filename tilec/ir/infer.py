"""Shapes and element types of everything a bound program computes; promotion rules live in `types`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import TypeVar

from tilec.errors import InternalMistake, Span, TypeMistake
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS, OPERATORS, ROUNDING
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    children,
    index_variables,
    reads,
    reads_itself,
)
from tilec.ir.types import (
    CASTS,
    DEFAULT_FLOAT,
    WEAK_FLOAT,
    WEAK_INDEX,
    WEAK_INT,
    ElementType,
    TensorType,
    is_floating,
    is_integer,
    kind,
    promote,
)

TYPE_ROUNDS = 8  # of a recurrence's type: promotion only goes up, and not often
NO_BOOL_AT_ALL = ("sub", "neg")
TRUTH_HINT = "compare with 0 first, as in (X != 0)"
BITS_HINTS = {"and": TRUTH_HINT, "or": TRUTH_HINT, "not": TRUTH_HINT, "xor": "a power is pow(X, 2), or X * X"}
BITS_HINTS |= dict.fromkeys(("shl", "shr"), "cast with int64(...), or multiply by 2, 4, 8 and so on")
NOT_BOOL = (*NO_BOOL_AT_ALL, *ROUNDING, "abs", "relu", "mod", "pow", "shl", "shr")
_SYMBOLS = {name: f"`{symbol}`" for (symbol, _), name in OPERATORS.items()} | {"neg": "unary `-`"}


Found = TypeVar("Found")


def once(find: Callable[[Statement, Mapping[str, TensorType]], Found]) -> Callable[..., Found]:
    """What a function says of a statement and the types of the tensors in it, kept with the statement for as long as
    these types are the same objects: passes ask again and again of statements that they leave alone."""
    name = f"_kept_{find.__name__.lstrip('_')}"

    def ask(s: Statement, types: Mapping[str, TensorType]) -> Found:
        given = (types.get(s.output), *map(types.get, reads(s)))
        kept = s.__dict__.get(name)
        if kept is None or not all(map(is_, kept[0], given)):
            kept = s.__dict__[name] = given, find(s, types)
        return kept[1]

    return ask


def own_shapes(s: Statement, types: Mapping[str, TensorType]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a statement."""
    return {name: types[name].shape for name in (s.output, *reads(s)) if name in types}


def call_type(function: str, types: Sequence[ElementType], span: Span | None = None) -> ElementType:
    """Type of a scalar function's result from its arguments' types. TypeMistake where it takes no such arguments."""
    rule = FUNCTIONS[function].result
    if function in ("index", "shape"):
        return WEAK_INDEX if function == "index" or len(types) == 1 else WEAK_INT
    if function == "as_scalar":
        return replace(types[0], scalar=True)
    if rule in ("like0", "structural"):
        return aggregate_type("sum", types[0]) if function in ("scatter", "simple_reduce") else types[0]
    if rule == "like1":
        return _cast_like(types[0], types[1])
    if rule in CASTS or rule == "bool" and function == "bool" or function in ("uint16", "uint32"):
        return _cast(types[0], rule)
    if rule == "random":
        return _random_type(function, types, span)
    both = promote(*(types[1:] if rule == "select" else types))
    if rule == "select" and both.scalar > types[0].scalar:
        both = replace(both, scalar=False)
    if rule == "bool":
        return ElementType("bool", both.weak, both.scalar)
    if rule == "float":
        return both if is_floating(both.dtype) else _as_float(both)
    if rule == "int64":
        if is_floating(both.dtype):
            raise TypeMistake(f"{_shown(function)} takes integers, not {both.dtype}", span)
        return ElementType("int64", both.weak, both.scalar)
    if rule == "bits" and any(is_floating(t.dtype) for t in types):
        raise TypeMistake(
            f"{_shown(function)} works on the bits of integers and bool, not on {_listed(types)}",
            span,
            hint=BITS_HINTS.get(function),
        )
    if function in NOT_BOOL and (both.dtype == "bool" or function in NO_BOOL_AT_ALL and _any_bool(types)):
        raise TypeMistake(
            f"{_shown(function)} does not take bool", span, hint="cast with int64(...), or invert with `~`"
        )
    if rule == "division" and both.dtype == "bool":
        return ElementType("int64", both.weak, both.scalar)
    return both


def aggregate_type(aggregation: str, element: ElementType, span: Span | None = None) -> ElementType:
    """Type of an aggregation over values of one type. Whether the result counts as rank 0 is for the caller to say.
    TypeMistake where it takes no such values."""
    rule = AGGREGATIONS[aggregation].result
    if rule == "bits" and is_floating(element.dtype):
        raise TypeMistake(f"`{aggregation}` works on the bits of integers and bool, not on {element.dtype}", span)
    if rule == "float":
        return element if is_floating(element.dtype) else _as_float(element)
    if rule == "accumulate":
        return element if is_floating(element.dtype) else ElementType("int64", element.weak, element.scalar)
    return element if rule in ("keep", "bits") else ElementType(rule, element.weak, element.scalar)


def expression_type(e: Expr, tensors: Mapping[str, TensorType]) -> ElementType:
    """Type of an expression's value over tensors of known type; a name that is no tensor is a dimension.

    A nested aggregation without free variables counts as a rank-0 tensor. TypeMistake with the node's span for
    arguments that a function does not take and for an index that holds anything but an integer.
    """
    return _Typing(tensors).of(e)


def expression_types(tensors: Mapping[str, TensorType]) -> Callable[[Expr], ElementType]:
    """`expression_type` over these tensors for many expressions, parts of one another."""
    return _Typing(tensors).of


def statement_type(s: Statement, tensors: Mapping[str, TensorType]) -> TensorType:
    """Type of a bound statement's output. A guard only has to be typed; constraints hold integers alone.

    A recurrence has the least type that its body gives back when it reads that type, `init` being of a type no higher.
    """
    return _statement_type(s, tensors)


@once
def _statement_type(s: Statement, tensors: Mapping[str, TensorType]) -> TensorType:
    if not reads_itself(s):
        return _plain_statement_type(s, tensors)
    mistake: TypeMistake | None = None
    for start in ("bool", "int64"):  # some functions refuse bool, so the next type up is tried as well
        known = TensorType((), start, weak=True)
        known = TensorType(tuple(n.value for n in s.sizes or () if isinstance(n, Int)), known.dtype, known.weak)
        try:
            for _ in range(TYPE_ROUNDS):
                result = _plain_statement_type(s, {**tensors, s.output: known})
                if result == known:
                    return result
                known = result
        except TypeMistake as error:
            mistake = error
    raise mistake or TypeMistake(f"the element type of {s.output} changes from step to step", s.span)


def _plain_statement_type(s: Statement, tensors: Mapping[str, TensorType]) -> TensorType:
    typing = _Typing(tensors)
    if s.guard is not None:
        typing.of(s.guard)
    for e in s.index or ():
        typing.check_index(e)
    element = aggregate_type(s.aggregation, typing.of(s.body), s.span)
    if s.init is not None:
        element = promote(element, typing.of(s.init))
    if s.default is not None:
        element = _with_default(s, element, tensors[s.default].element())
    shape = tuple(size.value for size in s.sizes or () if isinstance(size, Int))
    if s.sizes is None or len(shape) != len(s.sizes):
        raise InternalMistake(f"the sizes of {s.output} are not known", s.span)
    strong = s.aggregation == "assign" and not element.scalar and not shape
    return TensorType(shape, element.dtype, element.weak, strong)


def infer(program: Program, input_types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """Type of every tensor of a bound program, inputs first. `input_types` may hold more names than the inputs.

    Raises TypeMistake with the span of what is wrong.
    """
    types = {i.name: input_types[i.name] for i in program.inputs}
    for s in program.statements:
        types[s.output] = statement_type(s, types)
    return types


class _Typing:
    """Types of the nodes of one statement, each node looked at once however often it is shared."""

    def __init__(self, tensors: Mapping[str, TensorType]):
        self.tensors = tensors
        self.known: dict[int, tuple[Expr, ElementType]] = {}  # with the node: another may come in its place in memory

    def of(self, e: Expr) -> ElementType:
        found = self.known.get(id(e))
        if found is None:
            found = self.known[id(e)] = e, self._of(e)
        return found[1]

    def _of(self, e: Expr) -> ElementType:
        match e:
            case Call():
                return call_type(e.function, [self.of(a) for a in e.args], e.span)
            case Access():
                for i in e.index:
                    self.check_index(i)
                return self.tensors[e.tensor].element()
            case Float():
                return WEAK_FLOAT
            case Index():
                return WEAK_INDEX
            case Int():
                return WEAK_INT
            case Name():
                return self.tensors[e.name].element() if e.name in self.tensors else WEAK_INT
            case Inside():
                self.of(e.access)
                return WEAK_INT
            case Pad():
                return promote(self.of(e.access), self.of(e.value))
            case Aggregate():
                if e.guard is not None:
                    self.of(e.guard)
                element = aggregate_type(e.aggregation, self.of(e.body), e.span)
                return ElementType(element.dtype, element.weak, not index_variables(e))
        raise InternalMistake(f"{type(e).__name__} is no expression", getattr(e, "span", None))

    def check_index(self, e: Expr) -> None:
        """Elements that stand in an index must be integers; the rest of it is integer arithmetic by construction."""
        if isinstance(e, (Index, Int)):
            return
        if isinstance(e, (Access, Pad, Aggregate)):
            element = self.of(e)
            if not is_integer(element.dtype):
                variables = ", ".join(index_variables(e))
                hint = "cast in a statement of its own, and read its element here"
                if isinstance(e, Access) and variables:
                    place = f"Ix[{variables}]"
                    hint = f"cast in a statement of its own, {place} = int64({e.tensor}[...]), and read {place}"
                raise TypeMistake(f"an index holds integers; this one holds {element.dtype}", e.span, hint=hint)
            return
        for child in children(e):
            self.check_index(child)


def _random_type(function: str, types: Sequence[ElementType], span: Span | None) -> ElementType:
    """A float32, as strong as a tensor with dimensions: its seed says nothing about the precision wanted."""
    for what, t in zip(("seed", "counter"), types, strict=False):
        if not is_integer(t.dtype):
            raise TypeMistake(
                f"the {what} of {function} is an integer, not {t.dtype}", span, hint="cast with int64(...)"
            )
    return ElementType("float32")


def _cast(element: ElementType, dtype: str) -> ElementType:
    """A cast value is as strong as a tensor with dimensions, unless it was a rank-0 tensor."""
    return ElementType(dtype, scalar=element.scalar and not element.weak)


def _cast_like(element: ElementType, like: ElementType) -> ElementType:
    """In the type of `like`; a weak one only says floating or not."""
    if like.weak and kind(like.dtype) == kind(element.dtype):
        return element
    return _cast(element, like.dtype)


def _as_float(element: ElementType) -> ElementType:
    return ElementType("float64" if element.weak else DEFAULT_FLOAT, element.weak, element.scalar)


def _with_default(s: Statement, element: ElementType, default: ElementType) -> ElementType:
    """The default takes the output's type, so it must not be of a higher category; a weak output takes its type."""
    if element.weak:
        return promote(element, default)
    if kind(default.dtype) > kind(element.dtype):
        raise TypeMistake(
            f"the default {s.default} holds {default.dtype}, but {s.output} holds {element.dtype}",
            s.span,
            hint=f"cast the default with {element.dtype}(...)",
        )
    return element


def _any_bool(types: Sequence[ElementType]) -> bool:
    return any(t.dtype == "bool" for t in types)


def _shown(function: str) -> str:
    return _SYMBOLS.get(function, function)


def _listed(types: Sequence[ElementType]) -> str:
    return " and ".join(dict.fromkeys(t.dtype for t in types))
