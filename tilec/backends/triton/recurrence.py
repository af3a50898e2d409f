"""Family time: statements that read their own output.

The place where a recurrence is given to a form that takes it; what no other form takes runs in its own order.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.backends.reference.recurrence import assigned
from tilec.backends.triton.plan import Setting, Step
from tilec.backends.triton.recurrence_course import Course, chart
from tilec.backends.triton.recurrence_local import choose_local, local_steps, recognise_local
from tilec.backends.triton.recurrence_sweep import choose_blocks, swept
from tilec.backends.triton.scan import affine_recurrence
from tilec.backends.triton.sizes import NARROWEST, reach
from tilec.ir.program import Program, Statement, reads, reads_itself
from tilec.ir.types import TensorType


def check_recurrences(flat: Program) -> None:
    """Raise Unsupported for a recurrence that no step can compute."""
    for s in flat.statements:
        if reads_itself(s):
            assigned(s)


def recurrence_steps(
    flat: Statement, types: Mapping[str, TensorType], strides: Mapping[str, tuple[int, ...]], setting: Setting
) -> list[Step]:
    """Steps that compute a recurrence into its allocated output, which has elements."""
    touched = [n for n in dict.fromkeys((flat.output, *reads(flat))) if n in types]
    wide = any(reach(types[n].shape, strides[n]) > NARROWEST for n in touched)
    steps = affine_recurrence(flat, types, strides, setting, wide)
    return sequential(chart(flat, types), strides, wide) if steps is None else steps


def sequential(course: Course, strides: Mapping[str, tuple[int, ...]], wide: bool) -> list[Step]:
    """Steps that compute a recurrence time by time."""
    local = recognise_local(course)
    if local is not None:
        return local_steps(local, strides, wide, choose_local(local))
    return swept(course, strides, wide, choose_blocks(course))
