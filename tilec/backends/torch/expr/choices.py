"""Text of choices: one of two values by a test of each element, a value on one side of a diagonal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilec.backends.common.code import literal
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.common.scalars import identity
from tilec.backends.torch.expr.access import TensorFrame
from tilec.ir.program import Call
from tilec.ir.rational import as_int
from tilec.lattice.conditions import bound_of

COMPARED = "rt.compared("


def choice_text(test: str, a: str, b: str, dtype: str = "") -> str:
    """Text of one of two values, one of them a tensor of the result's type, by a test of many elements. `dtype`: that
    of two numbers."""
    if dtype:
        a = f"torch.full((), {a}, dtype=torch.{dtype}, device=device)"
    if test.startswith(COMPARED):
        return f"rt.chosen_by({test[len(COMPARED) : -1]}, {a}, {b})"
    return f"rt.choose({test}, {a}, {b})"


def triangle_text(
    frame: TensorFrame, e: Call, args: Sequence[ScalarValue], cast: Callable[[ScalarValue, str], str], dtype: str
) -> str | None:
    """A value where it is on one side of a diagonal of the last two axes, and zero elsewhere."""
    form, rank = bound_of(e.args[0]), len(frame.order)
    if form is None or rank < 2:
        return None
    if args[1].number is not None:
        form, args = -form - 1, (args[0], args[2], args[1])
    rows, columns = frame.order[-2:]
    zero, sign = args[2].number == 0 and math.copysign(1, args[2].number) == 1, form.coefficient(rows)
    found = {*form.variables()} == {rows, columns} and form.coefficient(columns) == -sign and abs(sign) == 1
    if not zero or not found or args[1].number is not None or not args[1].variables >= {rows, columns}:
        return None
    d = frame.domain
    offset = as_int(form.constant) * int(sign) + d.low[rows] - d.low[columns]
    starts = [f" {s} {frame.loops[v][0]}" for s, v in zip("+-", (rows, columns), strict=True) if v in frame.loops]
    return f"torch.tri{'l' if sign == 1 else 'u'}({cast(args[1], dtype)}, {offset}{''.join(starts)})"


def identity_text(aggregation: str, dtype: str) -> str:
    """Python text of what an element that no point reaches holds."""
    return literal(identity(aggregation, dtype))
