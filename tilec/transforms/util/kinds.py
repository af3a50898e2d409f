"""Which kinds a value may have, bool, integer or floating, as far as its form and what is known of tensors say.

A rewriting that is sound for some kinds only asks here: negation wraps in an integer narrower than the result, `-`
refuses bool, and only floating values have a zero with a sign.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.infer import NOT_BOOL
from tilec.ir.program import Access, Aggregate, Call, Expr, Float, Index, Inside, Int, Name, Pad, Statement
from tilec.ir.types import Kind, kind

Kinds = frozenset[Kind]
TensorKinds = Mapping[str, Kinds]  # of tensors, by name
ANY: Kinds = frozenset(Kind)
BOOL: Kinds = frozenset((Kind.BOOL,))
INTEGER: Kinds = frozenset((Kind.INTEGER,))
FLOATING: Kinds = frozenset((Kind.FLOATING,))


def kinds(e: Expr, known: TensorKinds) -> Kinds:
    """The kinds that an expression's value may have; `known` says those of tensors, any kind where it is silent."""
    match e:
        case Int() | Index() | Inside():
            return INTEGER
        case Float():
            return FLOATING
        case Name(name):
            return known.get(name, ANY)
        case Access():
            return known.get(e.tensor, ANY)
        case Pad():
            return _promoted(kinds(e.access, known), kinds(e.value, known))
        case Aggregate():
            return aggregated(e.aggregation, kinds(e.body, known))
        case Call():
            return _call(e, known)
    return ANY


def statement_kinds(s: Statement, known: TensorKinds) -> Kinds:
    """The kinds of a statement's output: a default raises that of a weak one."""
    result = aggregated(s.aggregation, kinds(s.body, known))
    return result if s.default is None else result | _promoted(result, known.get(s.default, ANY))


def aggregated(aggregation: str, body: Kinds) -> Kinds:
    rule = AGGREGATIONS[aggregation].result
    if rule in ("keep", "bits"):
        return body if rule == "keep" else body - FLOATING
    if rule == "accumulate":
        return _promoted(body, INTEGER)
    return FLOATING if rule == "float" else frozenset((kind(rule),))


def _call(e: Call, known: TensorKinds) -> Kinds:
    rule = FUNCTIONS[e.function].result
    if rule in ("float", "random"):
        return FLOATING
    if e.function in ("scatter", "simple_reduce"):
        return _promoted(kinds(e.args[0], known), INTEGER)
    if rule in ("like0", "structural"):
        return kinds(e.args[0], known)
    if rule == "like1":
        return kinds(e.args[1], known)
    if rule in ("promote", "division", "select", "bits"):
        result = _promoted(*(kinds(a, known) for a in e.args[rule == "select" :]))
        if rule == "division":
            return _promoted(result, INTEGER)
        return (result - FLOATING if rule == "bits" else result) - (BOOL if e.function in NOT_BOOL else frozenset())
    return frozenset((kind(rule),))


def _promoted(*operands: Kinds) -> Kinds:
    """The greatest kind of the operands wins."""
    result, *others = operands
    for other in others:
        result = frozenset(max(a, b) for a in result for b in other)
    return result
