"""Canonical text. `parse(show(p)) == p` for every program, those that passes make included.

Indices, sizes and constraints are written tightly (`3*y + 2*j`), values with spaces (`A[i] * B[i]`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilec.errors import InternalMistake, Span
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import COMPARISONS, FUNCTIONS, NAMED_LITERALS
from tilec.ir.program import (
    Access,
    Aggregate,
    Attribute,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Input,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    children,
    expressions,
    index_variables,
    rebuild,
    walk,
)

TIGHT = frozenset(("mul", "div", "mod"))
SELECT = FUNCTIONS["select"].precedence


def show(program: Program) -> str:
    """The program as Tile text, one statement a line."""
    name = program.name or ""
    inputs = ", ".join(map(_input, program.inputs))
    head = f"function {name}({inputs}) -> ({', '.join(program.outputs)}) {{\n"
    return head + "".join(f"    {show_statement(s)}\n" for s in program.statements) + "}\n"


def _input(i: Input) -> str:
    return i.name if i.dims is None else f"{i.name}[{', '.join(map(str, i.dims))}]"


def _attribute(a: Attribute) -> str:
    return f"[[{a.name}({', '.join(a.args)})]] " if a.args else f"[[{a.name}]] "


def show_statement(s: Statement) -> str:
    target = s.output
    if s.index is not None:
        places = _list(s.index, tight=True)
        sizes = f" : {_list(s.sizes, tight=True)}" if s.sizes else ""
        target += f"[{places}{sizes}]"
    tails = [f", {show_constraint(c)}" for c in _constraints(s)]
    if s.default is not None:
        tails.append(f" default {s.default}")
    if s.init is not None:
        tails.append(f" init {show_expr(_with_lists(s).init or s.init)}")
    if s.no_defract:
        tails.append(" no_defract")
    return f"{''.join(map(_attribute, s.attributes))}{target} = {_right(s)}{''.join(tails)};"


def _right(s: Statement) -> str:
    s = _with_lists(s)
    body = _guarded(s.guard, s.body)
    if s.index is None or (s.aggregation == "assign" and not _needs_symbol(s)):
        return body
    aggregation = AGGREGATIONS[s.aggregation]
    return f"{aggregation.symbol or aggregation.name}({body})"


def _needs_symbol(s: Statement) -> bool:
    """Is `=(...)` needed: does the right side have variables of its own, or look like another aggregation?"""
    assert s.index is not None
    own = set(index_variables(*s.roots)) - set(index_variables(*s.index))
    return bool(own) or (s.guard is None and isinstance(s.body, (Aggregate, _Listed)))


@dataclass(frozen=True)
class _Listed(Expr):
    """An aggregation whose text says what it binds."""

    inner: Aggregate
    span: Span | None = None


def _with_lists(s: Statement) -> Statement:
    """The statement with lists where the text would otherwise bind other variables, or be refused."""
    roots = tuple(e for e in (s.guard, s.body, s.init) if e is not None)
    if not any(isinstance(e, Aggregate) for e in walk(*roots)):
        return s
    left = index_variables(*(s.index or ()))
    shown = s
    for _ in range(len(index_variables(*roots)) + 1):
        direct = _direct(*shown.roots)
        visible = frozenset((*left, *direct))
        alone = s.aggregation != "assign" and not set(direct) - set(left)
        shown = replace(
            s,
            guard=None if shown.guard is None else _listed(shown.guard, visible, alone),
            body=_listed(shown.body, visible, alone),
            init=None if shown.init is None else _listed(shown.init, frozenset(left), False),
        )
        if frozenset((*left, *_direct(*shown.roots))) == visible:
            break
    return shown


def _listed(e: Expr, visible: frozenset[str], alone: bool) -> Expr:
    listed = isinstance(e, _Listed)  # once a list is needed it stays: what it leaves out is visible by it
    if isinstance(e, _Listed):
        e = e.inner
    if not isinstance(e, Aggregate):
        return rebuild(e, lambda x: _listed(x, visible, alone))
    within = visible | set(e.bound)
    inner = replace(
        e,
        guard=None if e.guard is None else _listed(e.guard, within, not e.bound),
        body=_listed(e.body, within, not e.bound),
    )
    direct = _direct(*inner.roots)
    implied = tuple(v for v in direct if v not in visible)
    return _Listed(inner) if listed or implied != e.bound or alone and len(e.bound) > 1 else inner


def _direct(*roots: Expr) -> tuple[str, ...]:
    """Index variables that the text shows outside of nested aggregations, or that these leave out of their lists."""
    found: dict[str, None] = {}
    for root in roots:
        _add_direct(root, frozenset(), found)
    return tuple(found)


def _add_direct(e: Expr, hidden: frozenset[str], found: dict[str, None]) -> None:
    if isinstance(e, Index) and e.name not in hidden:
        found.setdefault(e.name)
    if isinstance(e, _Listed):
        inner = e.inner
        for x in inner.roots:
            _add_direct(x, hidden | set(inner.bound), found)
    elif not isinstance(e, Aggregate):
        for x in children(e):
            _add_direct(x, hidden, found)


def _constraints(s: Statement) -> Iterator[Constraint]:
    """The statement's own and those of nested aggregations, each once, in an order that is everyone's: an aggregation
    that is read back has its constraints in the order of the text."""
    nested = (e.constraints for e in walk(*expressions(s)) if isinstance(e, Aggregate))
    pending = [list(cs) for cs in (s.constraints, *nested) if cs]
    while pending:
        later = {c for cs in pending for c in cs[1:]}
        first = next((cs[0] for cs in pending if cs[0] not in later), pending[0][0])
        yield first
        pending = [rest for cs in pending if (rest := [c for c in cs if c != first])]


def show_constraint(c: Constraint) -> str:
    return f"{_text(c.expr, 7, True)} < {_text(c.bound, 7, True)}"


def show_expr(e: Expr, tight: bool = False) -> str:
    """An expression; `tight` as indices and sizes are written."""
    return _text(e, SELECT, tight)


def _list(items: tuple[Expr, ...], tight: bool = False) -> str:
    return ", ".join([_text(e, SELECT, tight) for e in items])


def _guarded(guard: Expr | None, body: Expr) -> str:
    if guard is None:
        return _text(body, SELECT, False)
    return f"{_text(guard, SELECT + 1, False)} ? {_text(body, SELECT + 1, False)}"


def _text(e: Expr, least: int, tight: bool) -> str:
    """Text of e where an operator of precedence below `least` needs parentheses."""
    match e:
        case Int():
            return str(e.value)
        case Float():
            return next(
                (name for name, value in NAMED_LITERALS.items() if value is e.value or value == e.value), repr(e.value)
            )
        case Index() | Name():
            return e.name
        case Access():
            return f"{e.tensor}[{_list(e.index, True)}]"
        case Call():
            return _call(e, least, tight)
        case Inside():
            return f"in({_text(e.access, SELECT, tight)})"
        case Pad():
            return f"pad({_text(e.access, SELECT, tight)}, {_text(e.value, SELECT, tight)})"
        case _Listed(inner):
            return f"{inner.aggregation}[{', '.join(inner.bound)}]({_guarded(inner.guard, inner.body)})"
        case Aggregate():
            return f"{e.aggregation}({_guarded(e.guard, e.body)})"
    raise InternalMistake(f"an expression that has no text: {e!r}")


def _call(e: Call, least: int, tight: bool) -> str:
    function = FUNCTIONS[e.function]
    own = function.precedence
    if not own:
        return f"{e.function}({_list(e.args, tight)})"
    if e.function == "select":
        c, a, b = e.args
        text = f"{_text(c, own + 1, tight)} ? {_text(a, own + 1, tight)} : {_text(b, own, tight)}"
    elif len(e.args) == 1:
        text = f"{function.symbol}{_text(e.args[0], own, tight)}"
    else:
        a, b = e.args
        left = _text(a, own + (e.function in COMPARISONS), tight)
        space = "" if tight and e.function in TIGHT and e.function != "mod" else " "
        text = f"{left}{space}{function.symbol}{space}{_text(b, own + 1, tight)}"
    return f"({text})" if own < least else text
