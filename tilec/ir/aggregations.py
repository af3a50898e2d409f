"""THE table of aggregations: how the values of an output element's valid points become one.

`identity` is what an element without valid points holds (for integers, the extremes of the type where it is infinite).
`result` says how the type follows: accumulate (16-bit floats in float32, integers and bool to int64), keep,
float, bool, int64.
`times` names the scalar function that distributes over the aggregation, which makes the pair a semiring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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
