"""Simplification that changes no value: literals, identities, statements that are equal, copies, dead statements.

Nothing here reorders floating arithmetic, drops a read that constrains a statement's points or gives an elementwise
statement its shape, or changes a type: `x * 1` is x only where x is known not to be bool, which the product is not.
What holds for some kinds of values only asks `kinds`: `a - -b` is `a + b` where b is floating, since the negation of an
integer wraps in its own type, and `x + 0` is x where x is an integer, since -0.0 + 0 is 0.0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilec.ir.functions import COMPARISONS, ONE, ZERO
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
    map_expressions,
    reads,
    rebuild,
    walk,
)
from tilec.transforms.util.kinds import BOOL, FLOATING, INTEGER, TensorKinds, kinds, statement_kinds

Literal = int | float
NOTHING_KNOWN: TensorKinds = {}
_ARITHMETIC: dict[str, Callable[[Literal, Literal], Literal]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul")
}


def simplify(program: Program, outputs: Sequence[str] | None = None, inputs: TensorKinds = NOTHING_KNOWN) -> Program:
    """A program with the same values for `outputs` (default: the program's own), which become its outputs. `inputs`:
    the kinds that inputs are known to have."""
    wanted = program.outputs if outputs is None else tuple(outputs)
    tensors = set(program.input_names())
    known = dict(inputs)
    same: dict[str, str] = {}  # a name that is no longer assigned -> the name that holds its value
    first: dict[Statement, str] = {}
    kept: list[Statement] = []
    for s in program.statements:
        s = _fold_statement(rename_reads(s, same), known)
        tensors.add(s.output)
        known[s.output] = statement_kinds(s, known)
        source = _copied(s)
        if source is None or source not in tensors:
            source = first.setdefault(_right_side(s), s.output)
        if source != s.output and s.output not in wanted:
            same[s.output] = source
        elif source != s.output and _copied(s) is None:
            kept.append(_copy(s, source))
        else:
            kept.append(s)
    return replace(program, outputs=wanted, statements=drop_dead(_absorb_copies(kept, wanted), wanted))


def drop_dead(statements: Sequence[Statement], wanted: Sequence[str]) -> tuple[Statement, ...]:
    """The statements that the wanted names need, in order."""
    needed = set(wanted)
    live = []
    for s in reversed(statements):
        if s.output in needed:
            live.append(s)
            needed.update(reads(s))
    return tuple(reversed(live))


def _absorb_copies(statements: Sequence[Statement], wanted: Sequence[str]) -> Sequence[Statement]:
    """Outputs that only copy a tensor that is no input and no output: the tensor takes the output's name instead."""
    assigned = {s.output for s in statements}
    names: dict[str, str] = {}
    for s in statements:
        source = _copied(s)
        if source is None or source in names or source in wanted or source not in assigned:
            continue
        if s.output in wanted:
            names[source] = s.output
    if not names:
        return statements
    copies = set(names.items())
    return [
        replace(rename_reads(s, names), output=names.get(s.output, s.output))
        for s in statements
        if (_copied(s), s.output) not in copies
    ]


def _right_side(s: Statement) -> Statement:
    """What two statements of equal value have in common: all but the name, the attributes and the spans."""
    return replace(s, output="", attributes=())


def _copy(s: Statement, source: str) -> Statement:
    """The statement that gives its output the value of `source`, which has the same right side."""
    index = None if s.index is None else tuple(Index(f"i{d}") for d in range(len(s.index)))
    body: Expr = Name(source) if index is None else Access(source, index)
    return Statement(s.output, index, s.sizes, body, attributes=s.attributes, span=s.span)


def _copied(s: Statement) -> str | None:
    """The tensor that an elementwise statement only copies."""
    plain = s.index is None and s.default is None and s.init is None and s.guard is None
    return s.body.name if plain and isinstance(s.body, Name) else None


def rename_reads(s: Statement, same: Mapping[str, str]) -> Statement:
    """The statement reading other tensors in the place of those named."""
    if not any(name in same for name in reads(s)):
        return s

    def visit(e: Expr) -> Expr:
        if isinstance(e, Name):
            return replace(e, name=same.get(e.name, e.name))
        if isinstance(e, Access):
            e = replace(e, tensor=same.get(e.tensor, e.tensor))
        return rebuild(e, visit)

    default = s.default if s.default is None else same.get(s.default, s.default)
    return replace(map_expressions(s, visit), default=default)


def _fold_statement(s: Statement, known: TensorKinds) -> Statement:
    """Values only: an index, a size or a constraint has arithmetic of its own."""
    guard = _fold_guard(s.guard, known)
    body = fold(s.body, known)
    return s if body is s.body and guard is s.guard else replace(s, guard=guard, body=body)


def _fold_guard(guard: Expr | None, known: TensorKinds) -> Expr | None:
    guard = None if guard is None else fold(guard, known)
    return None if guard is not None and truth(guard) is True and _reads_nothing(guard) else guard


def fold(e: Expr, known: TensorKinds = NOTHING_KNOWN) -> Expr:
    """The expression with literals computed and identities removed; the very same object where there are none."""
    match e:
        case Call():
            if e.function in ("index", "shape", "reshape"):
                return e
            args = tuple([fold(a, known) for a in e.args])
            if any(a is not b for a, b in zip(args, e.args, strict=True)):
                e = replace(e, args=args)
            return _fold_call(e, known)
        case Pad():
            value = fold(e.value, known)
            return e if value is e.value else replace(e, value=value)
        case Aggregate():
            guard, body = _fold_guard(e.guard, known), fold(e.body, known)
            return e if body is e.body and guard is e.guard else replace(e, body=body, guard=guard)
    return e


def truth(e: Expr) -> bool | None:
    """Whether a condition is true or false, where literals decide it; reads may stand in it all the same."""
    value = _literal(e)
    if value is not None:
        return value != 0
    if not isinstance(e, Call):
        return None
    if e.function in ("and", "or"):
        known = [truth(a) if is_bool(a) else None for a in e.args]
        deciding = e.function == "or"
        return deciding if deciding in known else None if None in known else not deciding
    if e.function in COMPARISONS:
        a, b = ((int(t) if (t := truth(x)) is not None and is_bool(x) else _literal(x)) for x in e.args)
        if a is None or b is None:
            return None
        if isinstance(a, float) or isinstance(b, float):
            a, b = float(a), float(b)  # they meet in float64, as everywhere: Python alone would compare exactly
        return COMPARISONS[e.function](a, b)
    return None


def is_bool(e: Expr) -> bool:
    """Is the value bool, as far as its form says?"""
    return kinds(e, NOTHING_KNOWN) == BOOL


def _literal(e: Expr) -> Literal | None:
    if isinstance(e, (Int, Float)):
        return e.value
    if isinstance(e, Call) and e.function == "neg":
        value = _literal(e.args[0])
        return None if value is None else -value
    return None


def _from_literal(value: Literal) -> Expr | None:
    """The literal's expression; None where no text stands for it or it leaves the range of int64."""
    if isinstance(value, int):
        node: Expr = Int(abs(value))
        return None if abs(value) >= 2**63 else node if value >= 0 else -node
    if not math.isfinite(value):
        return None
    return Float(value) if math.copysign(1.0, value) > 0 else -Float(-value)


def _fold_call(e: Call, known: TensorKinds) -> Expr:
    literals = [_literal(a) for a in e.args]
    if e.function in _ARITHMETIC and None not in literals:
        a, b = literals
        result = _from_literal(_ARITHMETIC[e.function](a, b))  # type: ignore[arg-type]
        return e if result is None else result
    rule = _RULES.get(e.function)
    return e if rule is None else rule(e, known, *e.args)


def _negated(e: Expr, known: TensorKinds) -> Expr | None:
    """What a floating expression is the negative of. That of an integer wraps in its own type, the result's may be
    wider: 1 - -X is 1 + X for no uint8 X but 0."""
    if not isinstance(e, Call) or e.function != "neg" or _literal(e) is not None or kinds(e, known) != FLOATING:
        return None
    return e.args[0]


def _add(e: Expr, known: TensorKinds, a: Expr, b: Expr) -> Expr:
    negated = _negated(b, known)
    if negated is not None and _never_bool(a, known):
        return a - negated
    if b == ZERO and kinds(a, known) == INTEGER:
        return a
    return b if a == ZERO and kinds(b, known) == INTEGER else e


def _sub(e: Expr, known: TensorKinds, a: Expr, b: Expr) -> Expr:
    negated = _negated(b, known)
    if negated is not None and _never_bool(a, known):
        return a + negated
    return a if b == ZERO and _never_bool(a, known) else e


def _mul(e: Expr, known: TensorKinds, a: Expr, b: Expr) -> Expr:
    if b == ONE and _never_bool(a, known):
        return a
    return b if a == ONE and _never_bool(b, known) else e


def _div(e: Expr, known: TensorKinds, a: Expr, b: Expr) -> Expr:
    if isinstance(a, Int) and isinstance(b, Int) and type(a.value) is type(b.value) is int and b.value > 0:
        return Int(a.value // b.value) if a.value >= 0 and a.value % b.value == 0 else e
    return a if b == ONE and _never_bool(a, known) else e


def _neg(e: Expr, known: TensorKinds, a: Expr) -> Expr:
    match a:
        case Call("neg", (x,)) if _never_bool(x, known):
            return x
    return e


def _select(e: Expr, known: TensorKinds, condition: Expr, a: Expr, b: Expr) -> Expr:
    """Dropping a condition or a branch must drop no read."""
    decided = truth(condition)
    if a == b and _reads_nothing(condition):
        return a
    match condition:
        case Call("eq", (x, Int(0))) if kinds(x, known) == BOOL:
            return Call("select", (x, b, a))
    if decided is None or not _reads_nothing(condition):
        return e
    taken, dropped = (a, b) if decided else (b, a)
    return taken if isinstance(dropped, Int) and _never_bool(taken, known) else e


_RULES: dict[str, Callable[..., Expr]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "select": _select,
    "ident": lambda e, known, a: a,
}


def _never_bool(e: Expr, known: TensorKinds) -> bool:
    """Is the value surely a number? A read of a tensor of unknown type is not surely one."""
    return 0 not in kinds(e, known)


def _reads_nothing(e: Expr) -> bool:
    return not any(isinstance(x, (Access, Inside, Name, Index)) for x in walk(e))
