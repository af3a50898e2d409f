"""Family time: statements that read their own output.

The place where a recurrence is given to a form that takes it; what no other form takes runs in its own order.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.backends.triton.plan import Setting, Step
from tilec.errors import Unsupported
from tilec.ir.program import Statement
from tilec.ir.types import TensorType


def recurrence_steps(
    flat: Statement, types: Mapping[str, TensorType], strides: Mapping[str, tuple[int, ...]], setting: Setting
) -> list[Step]:
    """Steps that compute a recurrence into its allocated output, which has elements."""
    raise Unsupported(f"{flat.output} is a recurrence; those have no kernel yet", flat.span)
