"""What tests over the table of aggregations ask of its rows."""

from __future__ import annotations

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.types import is_floating
from tilec.transforms.autodiff.adjoint import ADJOINT_RULES

SMOOTH_AGGREGATIONS = [name for name, rule in ADJOINT_RULES.items() if rule is not None and name != "assign"]


def takes(aggregation: str, dtype: str) -> bool:
    return AGGREGATIONS[aggregation].result != "bits" or not is_floating(dtype)
