"""What to write for a constraint that is not of the form `e < c`: the same points, in that form where there is one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from tilec.errors import Edit, Hint, Span
from tilec.ir.functions import COMPARISONS
from tilec.ir.program import Access, Call, Expr, Index, Int, Name
from tilec.language.scope import FunctionScope
from tilec.language.syntax import CallSyntax, StatementSyntax, below, index_nodes, nodes_of

MEANS = "a constraint `e < c` means that e is an integer and 0 <= e < c"
COMPARISON_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
CONSTANT_TERM = ""
NameCoefficients = dict[
    str, int
]  # coefficients of names, of index variables and of sizes as they are written; a number under ONE


class _NotLinear(Exception):
    """The expression is no sum of names times integers."""


def constraint_hint(e: Expr, s: StatementSyntax, scope: FunctionScope) -> str:
    """What to write in the place of the constraint `e` of a statement."""
    if not isinstance(e, Call) or (e.function not in COMPARISON_SIGNS and e.function != "and"):
        return MEANS
    if e.function == "and":
        both = ", ".join(_text(a, scope.source) for a in e.args)
        parenthesised = e.span is None or scope.source[: e.span.start].rstrip().endswith("(")
        change = () if parenthesised else _instead(e, both)
        return Hint(f"constraints stand one after another: write `{both}`", *change)
    text = _text(e, scope.source)
    if e.function == "ne":
        return f"{MEANS}; any other condition stands in the body: write `{text} ? ...`"
    try:
        left, right = (_form(a, scope.source) for a in e.args)
    except _NotLinear:
        return f"{MEANS}; any other condition stands in the body: write `{text} ? ...`"
    variables = {node.name for node in index_nodes(e)}
    if e.function == "eq":
        return _write(e, f"{_show(_positive(_minus(left, right), variables))} < 1")
    if e.function in ("gt", "ge"):
        left, right = right, left
    strict = int(e.function in ("lt", "gt"))
    if not variables & set(right):  # bounded from above
        return _write(e, f"{_show(left)} < {_show(_plus(right, 1 - strict))}")
    rest = _plus(_minus(right, left), -strict)  # is at least 0
    if not variables & set(left):
        return _from_below(rest, text, e, s, scope)
    size = _above(rest, variables, s, scope)
    if size is None:
        return f"write `{_show(rest)} < N`, with a size N that {_show(rest)} never reaches: {MEANS}"
    return _write(e, f"{_show(rest)} < {_show(size)}")


def _write(e: Expr, text: str) -> Hint:
    return Hint(f"write `{text}`: {MEANS}", *_instead(e, text))


def _instead(e: Expr, text: str) -> tuple[Edit, ...]:
    return () if e.span is None else (Edit(e.span, text),)


def _left_out(e: Expr, source: str) -> tuple[Edit, ...]:
    """The constraint gone, and the comma before it."""
    before = "" if e.span is None else source[: e.span.start].rstrip()
    return (Edit(Span(len(before) - 1, e.span.stop), ""),) if e.span and before.endswith(",") else ()


def _from_below(rest: NameCoefficients, text: str, e: Expr, s: StatementSyntax, scope: FunctionScope) -> str:
    """`rest` is at least 0, and what bounds it from above may be another constraint."""
    names = {node.name for node in index_nodes(e)}
    for other in s.constraints:
        if other is e or not isinstance(other, Call) or other.function not in ("lt", "le"):
            continue
        try:
            left, right = (_form(a, scope.source) for a in other.args)
        except _NotLinear:
            continue
        shift = _minus(left, rest)
        if names & set(shift) or names & set(right):
            continue
        bound = _plus(right, int(other.function == "le"))
        if not shift:
            says = f"leave it out: `{_show(left)} < {_show(bound)}` says it too, for {MEANS}"
            removed = _left_out(e, scope.source)
            kept = _instead(other, f"{_show(left)} < {_show(bound)}") if other.function == "le" else ()
            return Hint(says, *_in_order(*removed, *kept)) if removed else says
        both = f"`{text}` and `{_text(other, scope.source)}`"
        new = f"{_show(rest)} < {_show(_minus(bound, shift))}"
        first, second = sorted((e, other), key=lambda c: c.span.start if c.span else 0)
        removed = _left_out(second, scope.source)
        changes = _in_order(*_instead(first, new), *removed) if removed else ()
        return Hint(f"write `{new}` for {both}: {MEANS}", *changes)
    return f"write `{_show(rest)} < N` with the number N of its values, or `{text} ? ...` in the body: {MEANS}"


def _in_order(*edits: Edit) -> list[Edit]:
    return sorted(edits, key=lambda edit: edit.span.start)


def chained_hint(span: Span, low: str, first: str, e: str, second: str, high: str) -> str:
    """`1 <= j < 3` among constraints, which stands at `span`."""
    try:
        lowest, beyond = _plus(_written(low), int(first == "<")), _plus(_written(high), int(second == "<="))
    except _NotLinear:
        return f"write two comparisons of the form `e < c`: {MEANS}"
    text = f"{e} < {_show(beyond)}"
    if lowest:
        text = f"{e} - {_show(lowest)} < {_show(_minus(beyond, lowest))}"
    return Hint(f"write `{text}`: {MEANS}", Edit(span, text))


def _written(text: str) -> NameCoefficients:
    """The form of a name, a number, or a name and a number."""
    found = re.fullmatch(r"([A-Z]\w*'?)?\s*([+-]?\s*\d+)?", text)
    if found is None or (found[1] and found[2] and found[2][0] not in "+-"):
        raise _NotLinear
    return _minus({found[1]: 1} if found[1] else {}, {CONSTANT_TERM: -int((found[2] or "0").replace(" ", ""))})


def _above(
    rest: NameCoefficients, variables: set[str], s: StatementSyntax, scope: FunctionScope
) -> NameCoefficients | None:
    """A size that the form never reaches, where it is one variable less others that are never negative."""
    positive = [v for v in rest if v in variables and rest[v] > 0]
    if len(positive) != 1 or rest[positive[0]] != 1 or (set(rest) - variables - {CONSTANT_TERM}):
        return None
    places = dict(_bare(s, scope))
    size = places.get(positive[0])
    if size is None or any(v not in places for v in rest if v in variables):
        return None
    return _plus(size, max(0, rest.get(CONSTANT_TERM, 0)))


def _bare(s: StatementSyntax, scope: FunctionScope) -> Iterator[tuple[str, NameCoefficients | None]]:
    """Index variables that stand alone as an index, each with the size of its dimension; known sizes come last."""
    found: list[tuple[str, NameCoefficients | None]] = []
    stack: list[Expr] = [s.body]
    while stack:
        e = stack.pop()
        stack.extend(below(e))
        if isinstance(e, Access):
            symbol = scope.symbols.get(e.tensor)
            dims = symbol.dims if symbol is not None and symbol.dims is not None else (None,) * len(e.index)
            for i, d in zip(e.index, dims, strict=False):
                if isinstance(i, Index):
                    found.append(
                        (i.name, None if d is None else {str(d): 1} if isinstance(d, str) else {CONSTANT_TERM: d})
                    )
    for i, size in zip(s.target.index or (), s.target.sizes or (), strict=False):
        if isinstance(i, Index):
            try:
                found.append((i.name, _form(size, scope.source)))
            except _NotLinear:
                found.append((i.name, None))
    yield from sorted(found, key=lambda item: item[1] is not None)


def _form(e: Expr, source: str) -> NameCoefficients:
    match e:
        case Int():
            return {CONSTANT_TERM: e.value} if e.value else {}
        case Index() | Name():
            return {e.name: 1}
        case Call(function="add"):
            return _minus(_form(e.args[0], source), _times(_form(e.args[1], source), -1))
        case Call(function="sub"):
            return _minus(_form(e.args[0], source), _form(e.args[1], source))
        case Call(function="neg"):
            return _times(_form(e.args[0], source), -1)
        case Call(function="mul") if any(isinstance(a, Int) for a in e.args):
            a, b = e.args if isinstance(e.args[0], Int) else e.args[::-1]
            assert isinstance(a, Int)
            return _times(_form(b, source), a.value)
    raise _NotLinear


def _times(a: NameCoefficients, factor: int) -> NameCoefficients:
    return {name: c * factor for name, c in a.items()}


def _minus(a: NameCoefficients, b: NameCoefficients) -> NameCoefficients:
    result = {name: a.get(name, 0) - b.get(name, 0) for name in (*a, *(n for n in b if n not in a))}
    return {name: c for name, c in result.items() if c}


def _plus(a: NameCoefficients, number: int) -> NameCoefficients:
    return _minus(a, {CONSTANT_TERM: -number})


def _positive(a: NameCoefficients, variables: set[str]) -> NameCoefficients:
    """The form or its negative: the one in which the first index variable is added."""
    first = next((c for name, c in a.items() if name in variables), 1)
    return a if first > 0 else _times(a, -1)


def _show(a: NameCoefficients) -> str:
    """Terms that are added first, the number last."""
    terms = sorted(a.items(), key=lambda item: (item[0] == CONSTANT_TERM, item[1] < 0))
    text = ""
    for name, c in terms:
        term = str(abs(c)) if name == CONSTANT_TERM else name if abs(c) == 1 else f"{abs(c)}*{name}"
        text += f" {'-' if c < 0 else '+'} {term}" if text else f"-{term}" if c < 0 else term
    return text or "0"


def _text(e: Expr, source: str) -> str:
    assert e.span is not None
    return re.sub(r"\s+", " ", source[e.span.start : e.span.stop])


INTEGER_FUNCTIONS = frozenset("argmax argmin as_int as_uint int8 int16 int32 int64 uint8 cond".split())


def rounding_hint(e: CallSyntax, scope: FunctionScope, what: str) -> str | None:
    """`floor(i/2)` and `ceil(i/2)` in an index, where `/` is exact; in a size it truncates."""
    if e.function not in ("floor", "ceil", "int", "round", "trunc") or len(e.args) != 1:
        return None
    inner = e.args[0]
    if not isinstance(inner, Call) or inner.function != "div":
        if any(isinstance(node, Access) for node in nodes_of(inner)):
            return None
        text = scope.source[e.name_span.stop : e.span.stop]
        return Hint(f"leave `{e.function}` out: all numbers in {what} are integers", Edit(e.span, text))
    a, b = (_operand(arg, scope.source) for arg in inner.args)
    if "index" not in what and "constraint" not in what:
        return Hint(f"write `{a}/{b}`: `/` in a size truncates", Edit(e.span, f"{a}/{b}"))
    sign, way = ("+ -", "up") if e.function == "ceil" else ("- ", "down")
    text = f"({a} {sign}{a} % {b})/{b}"
    told = f"write `{text}`: `/` in an index is exact, and this is the quotient rounded {way}"
    if e.function == "round":
        return f"{told} (`round` has no such form)"
    return Hint(told, Edit(e.span, text))


def element_hint(e: CallSyntax | Call, scope: FunctionScope) -> str:
    """What is computed of elements in an index is a statement of its own, whose elements are read there."""
    text = _text(e, scope.source)
    integer = e.function in INTEGER_FUNCTIONS if isinstance(e, CallSyntax) else e.function not in COMPARISONS
    name = next(n for n in itertools.chain(("Ix",), map("Ix{}".format, itertools.count(1))) if n not in scope.symbols)
    variables = ", ".join(dict.fromkeys(v.name for v in index_nodes(e, nested=False)))
    left = f"{name}[{variables}]" if variables else name
    value = text if integer else f"int64({text})"
    return f"assign it in a statement of its own, `{left} = {value}`, and read `{name}[{variables}]` here"


def _operand(e: Expr, source: str) -> str:
    text = _text(e, source)
    return text if isinstance(e, (Int, Index, Name, Access, CallSyntax)) else f"({text})"
