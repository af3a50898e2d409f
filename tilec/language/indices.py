"""Sizes, indices and constraints: integer arithmetic, affine in the index variables."""

from __future__ import annotations

from tilec.errors import (
    AffineMistake,
    AggregationMistake,
    Edit,
    Hint,
    NameMistake,
    RankMistake,
    SyntaxMistake,
    TypeMistake,
)
from tilec.ir.functions import OPERATORS
from tilec.ir.program import Access, Call, Constraint, Expr, Float, Index, Int, Name
from tilec.language.hints.constraints import constraint_hint, element_hint, rounding_hint
from tilec.language.scope import FunctionScope
from tilec.language.syntax import CallSyntax, Partial, StatementSyntax, check_arity, index_nodes, nodes_of

LINEAR = frozenset(("add", "sub", "neg"))
EXTREMA = frozenset(("max", "min", "abs"))
SIZE_OPERATORS = frozenset("add sub mul div mod neg select eq ne lt gt le ge and or xor not shl shr".split())
SIZE_FUNCTION_ARITIES = {  # name: least and most arguments
    "max": (2, 2), "min": (2, 2), "abs": (1, 1), "ident": (1, 1), "clamp": (3, 3), "same": (2, 99), "shape": (2, 2),
    "cond": (3, 3),
}  # fmt: skip


def size(e: Expr, scope: FunctionScope, what: str = "a size") -> Expr:
    """Size arithmetic: dimensions, integers and names computed from them."""
    return _arithmetic(e, scope, what, indices=False, gathers=False)[0]


def index(e: Expr, scope: FunctionScope) -> Expr:
    """An index: affine in the index variables; `%`, clamp, max, min, abs and tensor elements count as variables of
    their own."""
    return _arithmetic(e, scope, "an index", indices=True, gathers=True)[0]


def constraint(e: Expr, scope: FunctionScope, statement: StatementSyntax) -> Constraint:
    """`e < c`, e affine and c a size: a constraint of a statement."""
    if not isinstance(e, Call) or e.function != "lt":
        raise SyntaxMistake("a constraint has the form `e < c`", e.span, hint=constraint_hint(e, statement, scope))
    left, right = e.args
    expr, _ = _arithmetic(left, scope, "a constraint", indices=True, gathers=False)
    for node in index_nodes(right):
        raise AffineMistake(
            f"the right side of a constraint holds the index variable `{node.name}`",
            node.span,
            hint=constraint_hint(e, statement, scope),
        )
    return Constraint(expr, size(right, scope, "the right side of a constraint"), span=e.span)


def access(e: Access, scope: FunctionScope) -> Access:
    """A tensor's element, its rank and its indices checked."""
    scope.tensor(e)
    return Access(e.tensor, tuple([index(i, scope) for i in e.index]), span=e.span)


def _arithmetic(e: Expr, scope: FunctionScope, what: str, indices: bool, gathers: bool) -> tuple[Expr, bool]:
    """The checked expression, and whether it varies from point to point."""
    match e:
        case Int():
            return e, False
        case Float():
            raise TypeMistake(f"{what} holds integers only", e.span, hint="divide integers instead: 1/2, not 0.5")
        case Index():
            if indices:
                return e, True
            raise AffineMistake(
                f"{what} holds the index variable `{e.name}`",
                e.span,
                hint=f"sizes are made of dimensions and integers; a dimension begins with a capital: {e.name.upper()}",
            )
        case Name():
            return _name(e, scope, what), False
        case Access():
            return _element(e, scope, what, gathers)
        case Partial():
            raise AggregationMistake(f"a condition without `:` cannot stand in {what}", e.span, hint=_BODY)
        case CallSyntax():
            function, args = _function(e, what, scope), e.args
        case Call():
            function, args = e.function, e.args
    done: list[Expr] = []
    varies: list[bool] = []
    for i, arg in enumerate(args):
        if function == "shape":
            done.append(dimension_argument(e, arg, scope) if i else tensor_argument(e, arg, scope))
            continue
        expr, moves = _arithmetic(arg, scope, what, indices, gathers)
        done.append(expr)
        varies.append(moves)
    if any(varies):
        assert isinstance(e, CallSyntax | Call)
        _check_affine(function, e, args, varies, what, scope)
    made = Call(function, tuple(done), span=e.span)
    if function == "abs" and any(varies) and _levels_of_abs(made) > _MOST_LEVELS:
        raise AffineMistake(
            f"{what} holds `abs` more than {_MOST_LEVELS} levels deep",
            e.span,
            hint="reflect with `%`, abs((i + N - 1) % (2*N - 2) - N + 1), or read at an element of a tensor, X[Ix[i]]",
        )
    return made, any(varies)


_SYMBOLS = {name: symbol for (symbol, _), name in OPERATORS.items()} | {"select": "?:"}
_MOST_LEVELS = 8  # of `abs`: each is the greater one of two indices that hold all below
_BODY = "write `condition ? value` in the body of the aggregation"


def _levels_of_abs(e: Expr) -> int:
    if not isinstance(e, Call):
        return 0
    return (e.function == "abs") + max(map(_levels_of_abs, e.args), default=0)


def _check_affine(
    function: str, e: CallSyntax | Call, args: tuple[Expr, ...], varies: list[bool], what: str, scope: FunctionScope
) -> None:
    if function in LINEAR or function in EXTREMA:
        return
    if function == "mul" and not all(varies):
        return
    if function in ("div", "mod", "clamp") and not any(varies[1:]):
        return
    reasons = {
        "mul": (e, "a product of two index expressions", "one factor must be made of integers and dimensions alone"),
        "div": (args[-1], "a division by an index expression", "divide by integers and dimensions alone"),
        "mod": (args[-1], "`%` by an index expression", "the right side must be made of integers and dimensions alone"),
        "clamp": (e, "a clamp whose limits vary", "the limits must be made of integers and dimensions alone"),
    }
    name = e.function if isinstance(e, CallSyntax) else function
    other = (e, f"`{name}` of an index expression", "an index is a sum of index variables times rational numbers")
    place, reason, hint = reasons.get(function, other)
    if any(isinstance(x, Access) for x in nodes_of(e)) and "index" in what:
        if function not in reasons:
            reason = f"`{_SYMBOLS.get(function, name)}` of an element"
        hint = element_hint(e, scope)
    raise AffineMistake(f"{what} must be affine: this is {reason}", place.span, hint=hint)


def _name(e: Name, scope: FunctionScope, what: str) -> Expr:
    symbol = scope.find(e.name, e.span, hint="a dimension is named in an input's shape, as in A[N]")
    if symbol.size:
        return e
    if symbol.rank == 0 and what == "an index":
        change = () if e.span is None else (Edit(e.span, f"{e.name}[]"),)
        hint = Hint(f"write its element: {e.name}[]", *change)
        raise NameMistake(f"`{e.name}` is a tensor, not a size", e.span, hint=hint)
    raise NameMistake(
        f"`{e.name}` is a tensor, and {what} is made of dimensions and integers",
        e.span,
        hint=f"the size of a dimension of it is shape({e.name}, 0)",
    )


def _element(e: Access, scope: FunctionScope, what: str, gathers: bool) -> tuple[Expr, bool]:
    symbol = scope.find(e.tensor, e.span)
    if symbol.size and not e.index:
        scope.tensor(e)
        return Name(e.tensor, span=e.span), False
    if gathers:
        return access(e, scope), True
    hint = "write `t < L[b] ? value` in the body" if "constraint" in what else "the sizes of a tensor are shape(X, d)"
    raise AggregationMistake(f"{what} holds an element of the tensor `{e.tensor}`", e.span, hint=hint)


def _function(e: CallSyntax, what: str, scope: FunctionScope) -> str:
    arity = SIZE_FUNCTION_ARITIES.get(e.function)
    if arity is None:
        hint = "sizes and indices are integer arithmetic with + - * / %, max, min, abs, clamp and shape(X, d)"
        if "index" in what and any(isinstance(node, Access) for node in nodes_of(e)):
            hint = element_hint(e, scope)
        if (change := _shape_of(e)) is not None:
            hint = Hint(f"write `{change.text}`", change)
        raise AffineMistake(
            f"`{e.function}` cannot stand in {what}", e.name_span, hint=rounding_hint(e, scope, what) or hint
        )
    check_arity(e, *arity)
    return {"cond": "select"}.get(e.function, e.function)


def _shape_of(e: CallSyntax) -> Edit | None:
    """`shape(X, d)` in the place of `len(X)` or `size(X, d)`."""
    tensor, *axis = e.args or (None,)
    if e.function not in ("len", "size") or not isinstance(tensor, Name) or len(axis) > 1 or e.span is None:
        return None
    number = axis[0] if axis else Int(0)
    return Edit(e.span, f"shape({tensor.name}, {number.value})") if isinstance(number, Int) else None


def tensor_argument(call: Expr, e: Expr, scope: FunctionScope) -> Name:
    """The whole tensor that `shape` is asked about."""
    if isinstance(e, Name):
        symbol = scope.whole(e)
        if symbol.kind != "dimension":
            return Name(e.name, span=e.span)
    hint = "assign the expression in a statement of its own, and give its name"
    raise NameMistake("the first argument is the name of a tensor", e.span or call.span, hint=hint)


def dimension_argument(call: Expr, e: Expr, scope: FunctionScope) -> Int:
    """The number of a dimension of the tensor that is the call's first argument."""
    if not isinstance(e, Int):
        told = "the number of a dimension is an integer literal, counted from 0"
        raise TypeMistake(told, e.span or call.span, hint="write shape(X, 0) or index(X, 0)")
    tensor = call.args[0] if isinstance(call, (CallSyntax, Call)) else None
    symbol = scope.symbols.get(tensor.name) if isinstance(tensor, Name) else None
    if symbol is not None and symbol.rank is not None and e.value >= symbol.rank:
        raise RankMistake(
            f"`{symbol.name}` has no dimension {e.value}: its rank is {symbol.rank}",
            e.span,
            hint=f"dimensions are counted from 0; {scope.rank_reason(symbol)}",
        )
    return e
