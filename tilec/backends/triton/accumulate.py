"""How a kernel combines the values of an output element's points: the running state, a step, the result.

logsumexp runs on a maximum and a sum relative to it, all others on one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.backends.scalars import NARROW, accumulation_dtype
from tilec.backends.triton.kernel import triton_type
from tilec.backends.triton.scalar import held_as, number_text
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.types import kind

COMBINE = {
    "sum": "{0} + {1}",
    "assign": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "maximum_({0}, {1})",
    "min": "minimum_({0}, {1})",
    "any": "{0} | {1}",
    "all": "{0} & {1}",
}
REDUCE = {
    "sum": "tl.sum({0}, {1})",
    "assign": "tl.sum({0}, {1})",
    "prod": "tl.reduce({0}, {1}, multiply_)",
    "max": "tl.reduce({0}, {1}, maximum_)",
    "min": "tl.reduce({0}, {1}, minimum_)",
    "any": "tl.reduce({0}, {1}, either_)",
    "all": "tl.reduce({0}, {1}, both_)",
}
INTEGER_RANGES = {
    "uint8": (0, 255), "int8": (-128, 127), "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1),
}  # fmt: skip


def identity(aggregation: str, dtype: str) -> bool | int | float:
    """What an element of this type holds that no point reaches."""
    value = AGGREGATIONS[aggregation].identity
    if dtype == "bool":
        return value is True or (not isinstance(value, bool) and value > 0)
    if kind(dtype) == 1 and value in (float("inf"), float("-inf")):
        low, high = INTEGER_RANGES[dtype]
        return high if value > 0 else low
    return float(value) if kind(dtype) == 2 else int(value)


@dataclass(frozen=True)
class Accumulator:
    """`dtype`: what values are combined in, never a 16-bit float."""

    aggregation: str
    dtype: str

    @staticmethod
    def of(aggregation: str, result: str) -> Accumulator:
        if result == "bool" and aggregation in ("assign", "max"):
            aggregation = "any"
        if result == "bool" and aggregation == "min":
            aggregation = "all"
        dtype = accumulation_dtype(aggregation, result)
        return Accumulator(aggregation, "float32" if dtype in NARROW else held_as(dtype))

    @property
    def identity_text(self) -> str:
        return number_text(identity(self.aggregation, self.dtype))

    @property
    def state(self) -> tuple[str, ...]:
        """Names of the running values."""
        return ("top", "total") if self.aggregation == "logsumexp" else ("acc",)

    def start(self, shape: str) -> list[str]:
        kind_ = triton_type(self.dtype)
        first = f"{self.state[0]} = tl.full({shape}, {self.identity_text}, {kind_})"
        return [first, f"total = tl.full({shape}, 0, {kind_})"] if len(self.state) == 2 else [first]

    def step(self, value: str) -> list[str]:
        """Lines that add a block of values, of the state's own shape."""
        if self.aggregation == "logsumexp":
            return [
                f"new_top = maximum_(top, {value})",
                f"total = total * shifted_exp_(top, new_top) + shifted_exp_({value}, new_top)",
                "top = new_top",
            ]
        combined = COMBINE[self.aggregation].format("acc", value)
        return [f"acc = ({combined}).to({triton_type(self.dtype)})"]

    def reduce(self, axis: int) -> list[str]:
        """Lines that combine the state along a dimension."""
        if self.aggregation == "logsumexp":
            return [
                f"highest = tl.reduce(top, {axis}, maximum_)",
                f"scaled = total * shifted_exp_(top, tl.expand_dims(highest, {axis}))",
                f"total = tl.sum(scaled, {axis})",
                "top = highest",
            ]
        text = REDUCE[self.aggregation].format("acc", axis)
        return [f"acc = {text}.to({triton_type(self.dtype)})"]

    def result(self) -> str:
        return "log_of_sum_(top, total)" if self.aggregation == "logsumexp" else "acc"


def reached_lines(mask: str) -> Sequence[str]:
    return [f"reached = reached | {mask}"]
