"""Products of three operands or more, which no kernel takes at once, as products of two."""

from __future__ import annotations

from collections.abc import Callable

from tilec.backends.common.pairs import FactorSpace, as_floats, paired
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.iteration.space import Space
from tilec.ir.infer import expression_type
from tilec.ir.program import Expr, Statement
from tilec.ir.types import FLOATS, Types


def pairwise(space: Space, types: Types, variables_of: Callable[[Expr], frozenset[str]]) -> list[Statement] | None:
    """The statement as several, each of two operands, in order; None where it has fewer than three, where points are
    not a box, or where nothing is gained. The last one has the statement's own output."""
    s = space.statement
    if s.aggregation != "sum" or s.guard is not None or s.default is not None or space.valid or space.stored:
        return None
    if s.constraints or len(space.classes) != 1 or expression_type(s.body, types).dtype not in FLOATS:
        return None
    split = split_factors(s.body, types)
    if split is None:
        return None
    factors, scale = as_floats(split[0], types, types[s.output].dtype), split[1]
    if any(space.single(v) for f in factors for v in variables_of(f)):
        return None  # a variable of one value would be summed over all of its axis in a statement of its own
    low, extent = space.low[0], space.extent[0]
    whole = FactorSpace(s, factors, scale, low, extent, tuple(space.outputs), tuple(space.reductions))
    return paired(whole, types[s.output].dtype, variables_of, lambda k: f"{s.output}.{k}")
