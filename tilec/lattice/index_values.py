"""Index arithmetic and conditions on indices at many points at once, with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilec.ir.program import Call, Expr, Index, Int

_OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "mod": np.mod, "neg": np.negative,
    "min": np.minimum, "max": np.maximum, "abs": np.abs, "floor": np.floor,
    "clamp": lambda e, low, high: np.clip(e, low, high),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


def index_values(e: Expr, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The value of e where the index variables have these; None where it depends on anything else."""
    match e:
        case Int():
            return np.asarray(e.value, float)
        case Index():
            return values[e.name].astype(float) if e.name in values else None
        case Call() if e.function in _OPERATIONS:
            arguments = [index_values(a, values) for a in e.args]
            return None if any(a is None for a in arguments) else _OPERATIONS[e.function](*arguments)
    return None
