"""Syntax: what the grammar's rules build, and the builder that the parser calls as it reduces them.

Expressions are IR nodes already, except where their meaning depends on names: a call written in the text is a
`CallSyntax`, and a conditional without `:` a `Partial`. The builder runs inside the parser, so no tree is walked and
depth costs no stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from lark import Token

from tilec.errors import ArityMistake, Span, SyntaxMistake
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS, NAMED_LITERALS, OPERATORS
from tilec.ir.program import Access, Aggregate, Attribute, Call, Expr, Float, Index, Int, Name, children

MAX_DEPTH = 256
LARGEST_LITERAL = 2**63


@dataclass(frozen=True, slots=True)
class CallSyntax(Expr):
    """A call as written: of a function, an aggregation, a boundary word or a function of the source. `bound`: the index
    variables that an aggregation lists, `sum[k](...)`."""

    function: str
    args: tuple[Expr, ...]
    span: Span
    bound: tuple[Index, ...] | None = None

    @property
    def name_span(self) -> Span:
        return Span(self.span.start, self.span.start + len(self.function))


@dataclass(frozen=True, slots=True)
class Partial(Expr):
    """`condition ? value` without `:`."""

    condition: Expr
    value: Expr
    span: Span


@dataclass(slots=True)
class TargetSyntax:
    """Left side: `index` None when there are no brackets, `sizes` None when there is no colon."""

    name: Token
    index: list[Expr] | None
    sizes: list[Expr] | None
    span: Span


@dataclass(slots=True)
class StatementSyntax:
    target: TargetSyntax
    symbol: Token | None
    body: Expr
    constraints: list[Expr]
    span: Span
    default: Token | None = None
    init: Expr | None = None
    init_span: Span | None = None
    no_defract: bool = False
    attributes: list[Attribute] = field(default_factory=list)


@dataclass(slots=True)
class InputSyntax:
    name: Token
    dims: list[str | int] | None


@dataclass(slots=True)
class FunctionSyntax:
    """`span` is the function's name, or the word `function`; a bare list of statements has no `outputs`."""

    name: str | None
    inputs: list[InputSyntax]
    outputs: list[Token] | None
    statements: list[StatementSyntax]
    span: Span


def token_span(token: Token) -> Span:
    assert token.start_pos is not None and token.end_pos is not None
    return Span(token.start_pos, token.end_pos)


def below(e: Expr) -> tuple[Expr, ...]:
    """Direct subexpressions of a node of the syntax or of the IR."""
    match e:
        case CallSyntax():
            return e.args
        case Partial():
            return (e.condition, e.value)
    return children(e)


def check_depth(root: Expr) -> None:
    """Refuse what is nested so deep that recursion over it could exhaust the interpreter's stack.

    A tensor's element and an aggregation count for four levels. The value of a conditional without `:` stands on the
    level of the conditional, whose condition will be hoisted.
    """
    stack = [(root, 0)]
    while stack:
        e, depth = stack.pop()
        while isinstance(e, Partial):
            stack.append((e.condition, depth))
            e = e.value
        depth += 4 if isinstance(e, (Access, Aggregate)) or aggregation_of(e) else 1
        if depth > MAX_DEPTH:
            raise SyntaxMistake(
                f"this expression is nested more than {MAX_DEPTH} levels deep",
                root.span,
                hint="split it into several statements; a chain such as a + b + c counts one level an operator",
            )
        stack.extend([(child, depth) for child in below(e)])


# What a rule of an expression yields: the node and where its text starts and stops, parentheses included.
SpannedExpr = tuple[Expr, int, int]


def _integer(token: Token) -> Int:
    text = token.lstrip("0") or "0"
    if len(text) > 19 or int(text) > LARGEST_LITERAL:
        raise SyntaxMistake(
            "this integer does not fit in 64 bits", token_span(token), hint="write a floating literal, such as 1e20"
        )
    return Int(int(text), span=token_span(token))


def _call(function: str, args: tuple[Expr, ...], start: int, stop: int) -> SpannedExpr:
    return Call(function, args, span=Span(start, stop)), start, stop


class TreeBuilder:
    """One method a rule (or alias) of grammar/tile.lark; each takes the list of the rule's parts."""

    # lists
    def none(self, parts):
        return []

    def first(self, parts):
        return [parts[0]]

    def follow(self, parts):
        parts[0].append(parts[1])
        return parts[0]

    def next(self, parts):
        parts[0].append(parts[2])
        return parts[0]

    def first_node(self, parts):
        return [parts[0][0]]

    def next_node(self, parts):
        parts[0].append(parts[2][0])
        return parts[0]

    def inner(self, parts):
        return parts[0]

    def node(self, parts):
        return parts[0][0]

    # expressions
    def integer(self, parts) -> SpannedExpr:
        token = parts[0]
        return _integer(token), token.start_pos, token.end_pos

    def floating(self, parts) -> SpannedExpr:
        token = parts[0]
        value = float(token)
        if math.isinf(value):
            raise SyntaxMistake("this number is beyond float64", token_span(token), hint="write `inf` for infinity")
        return Float(value, span=token_span(token)), token.start_pos, token.end_pos

    def multiple(self, parts) -> SpannedExpr:
        number, name = parts
        if name in NAMED_LITERALS:
            value = Float(NAMED_LITERALS[name], span=token_span(name))
            return _call("mul", (_integer(number), value), number.start_pos, name.end_pos)
        args = _integer(number), Index(str(name), span=token_span(name))
        return _call("mul", args, number.start_pos, name.end_pos)

    def name(self, parts) -> SpannedExpr:
        token = parts[0]
        return Name(str(token), span=token_span(token)), token.start_pos, token.end_pos

    def index(self, parts) -> SpannedExpr:
        token = parts[0]
        if token in NAMED_LITERALS:
            return Float(NAMED_LITERALS[token], span=token_span(token)), token.start_pos, token.end_pos
        return Index(str(token), span=token_span(token)), token.start_pos, token.end_pos

    def access(self, parts) -> SpannedExpr:
        name, _, exprs, close = parts
        span = Span(name.start_pos, close.end_pos)
        return Access(str(name), tuple(exprs), span=span), span.start, span.stop

    def apply(self, parts) -> SpannedExpr:
        name, _, exprs, close = parts
        span = Span(name.start_pos, close.end_pos)
        return CallSyntax(str(name), tuple(exprs), span), span.start, span.stop

    def apply_binding(self, parts) -> SpannedExpr:
        name, _, bound, _, _, exprs, close = parts
        span = Span(name.start_pos, close.end_pos)
        variables = tuple(Index(str(v), span=token_span(v)) for v in bound)
        return CallSyntax(str(name), tuple(exprs), span, variables), span.start, span.stop

    def parenthesis(self, parts) -> SpannedExpr:
        return parts[1][0], parts[0].start_pos, parts[2].end_pos

    def binary(self, parts) -> SpannedExpr:
        (a, start, _), operator, (b, _, stop) = parts
        return _call(OPERATORS[str(operator), 2], (a, b), start, stop)

    def prefix(self, parts) -> SpannedExpr:
        operator, (a, _, stop) = parts
        return _call(OPERATORS[str(operator), 1], (a,), operator.start_pos, stop)

    def select(self, parts) -> SpannedExpr:
        (c, start, _), _, (a, _, _), _, (b, _, stop) = parts
        return _call("select", (c, a, b), start, stop)

    def partial(self, parts) -> SpannedExpr:
        (c, start, _), _, (a, _, stop) = parts
        return Partial(c, a, Span(start, stop)), start, stop

    # statements
    def target_whole(self, parts) -> TargetSyntax:
        return TargetSyntax(parts[0], None, None, token_span(parts[0]))

    def target_indexed(self, parts) -> TargetSyntax:
        name, _, index, close = parts
        return TargetSyntax(name, index, None, Span(name.start_pos, close.end_pos))

    def target_sized(self, parts) -> TargetSyntax:
        name, _, index, _, sizes, close = parts
        return TargetSyntax(name, index, sizes, Span(name.start_pos, close.end_pos))

    def right_plain(self, parts):
        return None, parts[0][0], parts[0][2]

    def right_aggregated(self, parts):
        symbol, _, piece, close = parts
        return symbol, piece[0], close.end_pos

    def symbol(self, parts):
        return parts[0]

    def tail_default(self, parts):
        return "default", parts[1], token_span(parts[0])

    def tail_no_defract(self, parts):
        return "no_defract", True, token_span(parts[0])

    def tail_init(self, parts):
        return "init", parts[1][0], token_span(parts[0])

    def plain_statement(self, parts) -> StatementSyntax:
        target, _, (symbol, body, stop), constraints, tails = parts
        statement = StatementSyntax(target, symbol, body, constraints, Span(target.span.start, stop))
        for word, value, span in tails:
            if getattr(statement, word):
                raise SyntaxMistake(f"this statement has two `{word}`", span, hint="leave one of them out")
            setattr(statement, word, value)
            if word == "init":
                statement.init_span = span
        return statement

    def attributed(self, parts) -> StatementSyntax:
        attribute, statement = parts
        statement.attributes.insert(0, attribute)
        return statement

    def attribute(self, parts) -> Attribute:
        return Attribute(str(parts[2]), tuple(map(str, parts[4])) if len(parts) > 5 else ())

    def attribute_arg(self, parts):
        return parts[0]

    # functions
    def dim(self, parts) -> str | int:
        return str(parts[0]) if parts[0].type == "UPPER" else _integer(parts[0]).value

    def input_any(self, parts) -> InputSyntax:
        return InputSyntax(parts[0], None)

    def input_ranked(self, parts) -> InputSyntax:
        return InputSyntax(parts[0], parts[2])

    def function_name(self, parts):
        return parts[0] if parts else None

    def function(self, parts) -> FunctionSyntax:
        word, name, _, inputs, _, _, _, outputs, _, _, body, _ = parts
        return FunctionSyntax(None if name is None else str(name), inputs, outputs, body, token_span(name or word))

    def source(self, parts) -> list[FunctionSyntax]:
        items = parts[0]
        if isinstance(items[0], FunctionSyntax):
            return items
        return [FunctionSyntax(None, [], None, items, items[0].target.span)]


def aggregation_of(e: Expr) -> str | None:
    """The aggregation that a call as written names, if it does: max and min of two arguments are functions."""
    if isinstance(e, CallSyntax) and e.function in AGGREGATIONS:
        if e.function not in FUNCTIONS or len(e.args) == 1 or e.bound is not None:
            return e.function
    return None


def nodes_of(e: Expr) -> Iterator[Expr]:
    """An expression and all below it."""
    stack = [e]
    while stack:
        e = stack.pop()
        yield e
        stack.extend(below(e))


def index_nodes(root: Expr, nested: bool = True) -> Iterator[Index]:
    """Index variables as they stand, left to right; of those inside nested aggregations only, unless `nested`, what
    their lists leave out."""
    stack: list[tuple[Expr, frozenset[str]]] = [(root, frozenset())]
    while stack:
        e, hidden = stack.pop()
        if isinstance(e, Index):
            if e.name not in hidden:
                yield e
            continue
        if not nested and aggregation_of(e) is not None:
            assert isinstance(e, CallSyntax)
            if e.bound is None:
                continue
            hidden = hidden | {v.name for v in e.bound}
        stack.extend([(x, hidden) for x in reversed(below(e))])


def direct_variables(root: Expr) -> tuple[str, ...]:
    """Index variables of an expression outside of its nested aggregations, in order of first appearance."""
    return tuple(dict.fromkeys(node.name for node in index_nodes(root, nested=False)))


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


ARITY_HINTS = {
    "rand": "rand(S, e): the seed S, an integer, and a counter e, which an elementwise statement may leave out",
    "randn": "randn(S, e): the seed S, an integer, and a counter e, which an elementwise statement may leave out",
    "clamp": "clamp(x, low, high)",
    "cond": "cond(c, a, b) is c ? a : b",
    "as_float": "as_float(x, bits); float16(x), float32(x) and float64(x) cast too",
    "as_int": "as_int(x, bits); int8(x), int16(x), int32(x) and int64(x) cast too",
    "as_uint": "as_uint(x, bits)",
    "reshape": "reshape(X, sizes...), such as reshape(X, N * M)",
    "log": "the logarithm to another base is log(X) / log(2)",
    "max": "of three values: max(max(a, b), c); with indices it aggregates: max(X[i])",
    "min": "of three values: min(min(a, b), c); with indices it aggregates: min(X[i])",
    "pow": "write pow(X, 2)",
    "gather": "gather(X, Ix) takes rows; along another dimension: Y[i, j] = X[i, Ix[i, j]]",
}


def check_arity(e: CallSyntax, low: int, high: int) -> None:
    """Raise ArityMistake unless the call has between `low` and `high` arguments; 99 stands for any number."""
    if low <= len(e.args) <= high:
        return
    wanted = plural(low, "argument", "arguments") if low == high else f"{low} to {high} arguments"
    if high == 99:
        wanted = f"{low} or more arguments"
    hint = ARITY_HINTS.get(e.function, f"write {e.function}({', '.join('XYZUVW'[:low])})")
    raise ArityMistake(f"`{e.function}` takes {wanted}, not {len(e.args)}", e.span, hint=hint)
