"""THE table of aggregations: how the values of an output element's valid points become one.

`identity` is what an element without valid points holds (for integers, the extremes of the type where it is infinite).
`result` says how the type follows: accumulate (16-bit floats in float32, integers and bool to int64), keep,
float, bool, int64.
`times` names the scalar function that distributes over the aggregation, which makes the pair a semiring: SEMIRINGS
lists these with what else belongs to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilec.ir.types import Kind


@dataclass(frozen=True)
class Aggregation:
    name: str
    symbol: str | None
    identity: float | int | bool
    result: str
    times: str | None = None
    torch: str | None = None  # reduction over trailing dimensions
    data_dependent: bool = False  # may its output index hold a tensor's element?


AGGREGATIONS: dict[str, Aggregation] = {
    a.name: a
    for a in (
        Aggregation("sum", "+", 0, "accumulate", "mul", "torch.sum", True),
        Aggregation("prod", "*", 1, "accumulate", None, "torch.prod", True),
        Aggregation("max", ">", -math.inf, "keep", "add", "torch.amax", True),
        Aggregation("min", "<", math.inf, "keep", "add", "torch.amin", True),
        Aggregation("assign", "=", 0, "keep"),
        Aggregation("logsumexp", None, -math.inf, "float", "add", "torch.logsumexp"),
        Aggregation("any", None, False, "bool", "and", "torch.any"),
        Aggregation("all", None, True, "bool", "or", "torch.all"),
        Aggregation("argmax", None, -1, "int64", None, "torch.argmax"),
        Aggregation("argmin", None, -1, "int64", None, "torch.argmin"),
        Aggregation("mean", None, 0, "float", None, "torch.mean"),
    )
}
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


def semirings(plus: str | None = None, times: str | None = None, add: str | None = None) -> tuple[Semiring, ...]:
    """Those with this aggregation, this scalar function and this sum of two, as far as given."""
    wanted = {"plus": plus, "times": times, "add": add}
    return tuple(s for s in SEMIRINGS.values() if all(x in (None, getattr(s, k)) for k, x in wanted.items()))


def distributes(times: str, plus: str) -> bool:
    """Does the scalar function distribute over the aggregation?"""
    return bool(semirings(plus, times))
