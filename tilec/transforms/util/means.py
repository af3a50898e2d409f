"""Means of a tensor's elements over some of its axes: told from other quotients of a sum."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir.functions import without_casts
from tilec.ir.index import distinct_variables, linear
from tilec.ir.program import Access, Call, Float, Int, Statement
from tilec.ir.types import Types
from tilec.transforms.util.plain import is_plain_sum


def total_of_mean(x: Access, mean: Access, count: int, made: Mapping[str, Statement], types: Types) -> str | None:
    """The sum that the mean is of, where it is that of the `count` elements of x's tensor over the variables of x that
    `mean` lacks; None where it is another value, for some elements at least. `made`: statements by output."""
    s = made.get(mean.tensor)
    if s is None or s.aggregation != "assign" or s.guard is not None or s.constraints:
        return None
    match without_casts(s.body):
        case Call("div", (Access(total, index), Int(n) | Float(n))) if n == count and index == s.index:
            t = made.get(total) if types[total].shape == types[s.output].shape else None
        case _:
            return None
    if distinct_variables(s.index) is None or t is None or not is_plain_sum(t):
        return None
    body = t.body.args[0] if isinstance(t.body, Call) and t.body.function == "float32" else t.body
    theirs = distinct_variables(body.index) if isinstance(body, Access) and body.tensor == x.tensor else None
    mine = distinct_variables(x.index)
    if theirs is None or mine is None:
        return None
    kept, wanted = (
        [{v: d for d, v in enumerate(names)}.get(linear(e).bare or "") for e in index or ()]
        for names, index in ((theirs, t.index), (mine, mean.index))
    )
    return total if None not in kept and kept == wanted else None
