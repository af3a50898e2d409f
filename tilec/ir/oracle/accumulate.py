"""How the oracle combines the values of an output element's points, block by block."""

from __future__ import annotations

import numpy as np

from tilec.ir.aggregations import AGGREGATIONS, LOGICAL
from tilec.ir.infer import aggregate_type
from tilec.ir.types import ElementType, Kind, is_floating, kind

LAST = np.iinfo(np.int64).max
COMBINE_VALUES = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logsumexp": np.maximum,
    "argmax": np.maximum,
    "argmin": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def wrap(data, dtype: str) -> np.ndarray:
    """Elements as the oracle holds them: float64, bool, or int64 with the values that `dtype` can hold."""
    data = np.asarray(data)
    if is_floating(dtype):
        return data if data.dtype == np.float64 else data.astype(np.float64)
    if dtype == "bool":
        return data if data.dtype == np.bool_ else data != 0
    if data.dtype != np.int64:
        data = data.astype(np.int64)
    return data if dtype == "int64" else data.astype(dtype).astype(np.int64)


def empty_value(aggregation: str, dtype: str) -> float | int | bool:
    """What an element without points holds: integers have extremes where others have infinities."""
    value = AGGREGATIONS[aggregation].identity
    if is_floating(dtype) or np.isfinite(value):
        return value
    if dtype == "bool":
        return value > 0
    return int(np.iinfo(dtype).max if value > 0 else np.iinfo(dtype).min)


class PointAccumulator:
    """Values of points, added block by block to the elements they belong to. `reached` says which have any."""

    type: ElementType  # of the values

    def __init__(self, aggregation: str, size: int):
        self.aggregation = aggregation
        self.size = size
        self.reached = np.zeros(size, bool)
        self.combined: np.ndarray | None = None
        self.weight = np.zeros(0)  # logsumexp: sum of exp(value - combined); mean: number of points
        self.first = np.zeros(0, np.int64)  # argmax, argmin: least number of a point that holds the extreme

    def _begin(self, element: ElementType) -> np.ndarray:
        self.type = element
        aggregate_type(self.aggregation, element)  # refuses what it does not take
        start = {"argmax": "max", "argmin": "min", "logsumexp": "max"}.get(self.aggregation, self.aggregation)
        dtype = element.dtype
        if self.aggregation in LOGICAL:
            dtype = "bool"
        elif self.aggregation in ("logsumexp", "mean"):
            dtype = "float64"
        elif self.aggregation in ("sum", "prod") and not is_floating(dtype):
            dtype = "int64"
        self.weight = np.zeros(self.size)
        self.first = np.full(self.size, LAST)
        storage = {Kind.BOOL: np.bool_, Kind.INTEGER: np.int64, Kind.FLOATING: np.float64}[kind(dtype)]
        return np.full(self.size, empty_value(start, dtype), storage)

    def add(self, place: np.ndarray, data: np.ndarray, element: ElementType, number: np.ndarray | None) -> None:
        """Add a block: the flat output element, the value and, for argmax and argmin, the number of each point."""
        if self.combined is None:
            self.combined = self._begin(element)
        self.reached[place] = True
        before = self.combined
        values = np.broadcast_to(data, place.shape)
        values = values != 0 if self.aggregation in LOGICAL else values.astype(before.dtype)
        if self.aggregation == "assign":
            before[place] = values
            return
        after = before.copy() if self.aggregation in ("logsumexp", "argmax", "argmin") else before
        COMBINE_VALUES[self.aggregation].at(after, place, values)
        if self.aggregation == "mean":
            np.add.at(self.weight, place, 1)
        elif self.aggregation == "logsumexp":
            shift = np.where(np.isfinite(after), after, 0)
            old = np.where(np.isfinite(before), before, 0)
            self.weight = np.where(self.weight == 0, 0, self.weight * np.exp(old - shift))
            np.add.at(self.weight, place, np.exp(values - shift[place]))
        elif number is not None:
            self.first[~_same(after, before)] = LAST
            extreme = _same(values, after[place])
            np.minimum.at(self.first, place[extreme], number[extreme])
        self.combined = after

    def result(self, dtype: str) -> np.ndarray:
        """Elements in the aggregation's result type `dtype`; the identity where no point came."""
        assert self.combined is not None
        data = self.combined
        if self.aggregation in ("argmax", "argmin"):
            data = np.where(self.reached, self.first, -1)
        elif self.aggregation == "mean":
            data = np.where(self.reached, data / np.maximum(self.weight, 1), 0)
        elif self.aggregation == "logsumexp":
            data = np.where(np.isfinite(data), data, 0) + np.log(self.weight)
        return wrap(data, dtype)


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == y) | ((x != x) & (y != y))
