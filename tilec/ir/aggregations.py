"""THE table of aggregations: how the values of an output element's valid points become one.

`identity` is what an element without valid points holds (for integers, the extremes of the type where it is infinite).
`result` says how the type follows: accumulate (16-bit floats in float32, integers and bool to int64), keep, bits (keep,
of integers and bool alone), float, bool, int64.
`times` names the scalar function that distributes over the aggregation, which makes the pair a semiring: SEMIRINGS
lists these with what else belongs to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilec.ir.types import Kind


@dataclass(frozen=True)
class Code:
    """How a backend writes an aggregation, as texts to be filled in. `combine`: two values. `reduce`: a tensor ({0})
    over axes ({1}) to an element type ({2}). `in_place`: the second into the first. `cumulative`: along an axis."""

    combine: str
    reduce: str
    in_place: str | None = None
    cumulative: str | None = None


@dataclass(frozen=True)
class Aggregation:
    """`identity`: what an element without points holds. `result`: how the element type follows from the body's.
    `times`: the scalar function that distributes over it. `data_dependent`: may its output index hold a tensor's
    element? `torch`, `triton`: how a backend writes it; None where it is written with others before a backend hears of
    it, or where the backend has rules of its own for it."""

    name: str
    symbol: str | None
    identity: float | int | bool
    result: str
    times: str | None = None
    data_dependent: bool = False
    torch: Code | None = None
    triton: Code | None = None


_TORCH_SUM = Code("{0} + {1}", "torch.sum({0}, {1}, dtype=torch.{2})", "{0}.add_({1})", "torch.cumsum({0}, {1})")
_TORCH_ASSIGN = Code("{0} + {1}", "torch.sum({0}, {1}, dtype=torch.{2})")
_TRITON_SUM = Code("{0} + {1}", "tl.sum({0}, {1})")


def _extremum(long: str, short: str) -> tuple[Code, Code]:
    torch = Code(
        f"torch.{long}({{0}}, {{1}})",
        f"torch.a{short}({{0}}, {{1}})",
        f"torch.{long}({{0}}, {{1}}, out={{0}})",
        f"torch.cum{short}({{0}}, {{1}}).values",
    )
    return torch, Code(f"{long}_({{0}}, {{1}})", f"tl.reduce({{0}}, {{1}}, {long}_)")


AGGREGATIONS: dict[str, Aggregation] = {
    a.name: a
    for a in (
        Aggregation("sum", "+", 0, "accumulate", "mul", True, _TORCH_SUM, _TRITON_SUM),
        Aggregation(
            "prod", "*", 1, "accumulate", None, True,
            Code("{0} * {1}", "rt.prod({0}, {1}, torch.{2})", "{0}.mul_({1})", "torch.cumprod({0}, {1})"),
            Code("{0} * {1}", "tl.reduce({0}, {1}, multiply_)"),
        ),
        Aggregation("max", ">", -math.inf, "keep", "add", True, *_extremum("maximum", "max")),
        Aggregation("min", "<", math.inf, "keep", "add", True, *_extremum("minimum", "min")),
        Aggregation("assign", "=", 0, "keep", None, False, _TORCH_ASSIGN, _TRITON_SUM),
        Aggregation(
            "logsumexp", None, -math.inf, "float", "add", False,
            Code(
                "torch.logaddexp({0}, {1})", "torch.logsumexp({0}, {1})",
                "torch.logaddexp({0}, {1}, out={0})", "torch.logcumsumexp({0}, {1})",
            ),
        ),
        Aggregation(
            "any", None, False, "bool", "and", False,
            Code("{0} | {1}", "torch.any({0}, {1})", "{0}.logical_or_({1})"),
            Code("{0} | {1}", "tl.reduce({0}, {1}, or_)"),
        ),
        Aggregation(
            "all", None, True, "bool", "or", False,
            Code("{0} & {1}", "torch.all({0}, {1})", "{0}.logical_and_({1})"),
            Code("{0} & {1}", "tl.reduce({0}, {1}, and_)"),
        ),
        Aggregation("argmax", None, -1, "int64"),
        Aggregation("argmin", None, -1, "int64"),
        Aggregation("mean", None, 0, "float"),
    )
}  # fmt: skip
SPLITTABLE = frozenset(a.name for a in AGGREGATIONS.values() if a.torch and a.name != "assign")  # by parts
NUMBERED = ("argmax", "argmin")  # those whose result is the number of a point
LOGICAL = tuple(a.name for a in AGGREGATIONS.values() if a.result == "bool")  # of what is not zero
BY_SYMBOL = {a.symbol: a.name for a in AGGREGATIONS.values() if a.symbol}


@dataclass(frozen=True)
class Semiring:
    """An aggregation `plus` and a scalar function `times` that distributes over it: a*(b + c) is a*b + a*c.

    `add` is the aggregation of two as a scalar function, `zero` and `one` are the elements that the two operations
    leave alone; `zero` times anything finite is `zero`. `kind`: of the element types it is for.
    """

    name: str
    plus: str
    times: str
    add: str
    zero: float | int | bool
    one: float | int | bool
    kind: Kind


SEMIRINGS: dict[str, Semiring] = {
    s.name: s
    for s in (
        Semiring("real", "sum", "mul", "add", 0, 1, Kind.FLOATING),
        Semiring("counting", "sum", "mul", "add", 0, 1, Kind.INTEGER),
        Semiring("log", "logsumexp", "add", "logaddexp", -math.inf, 0, Kind.FLOATING),
        Semiring("max-plus", "max", "add", "max", -math.inf, 0, Kind.FLOATING),
        Semiring("min-plus", "min", "add", "min", math.inf, 0, Kind.FLOATING),
        Semiring("boolean", "any", "and", "or", False, True, Kind.BOOL),
    )
}
