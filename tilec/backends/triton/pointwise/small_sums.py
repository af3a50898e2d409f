"""Sums of few points over small axes, `P[n] = +(i != j ? A[n, 0, i] * A[n, 1, j] : 0)`, written out for each place n.

A program computes all elements of a place, `D[n, i, j]` of three by three. Conditions on the small variables are
decided as the text is written, an element that several points read is loaded once, and `pow(x, k)` has a number for k.
"""

from __future__ import annotations

import math

from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.pointwise.class_elements import Residues, class_elements
from tilec.ir.index import Affine, linear
from tilec.ir.program import Call, accesses_in, index_variables, value_accesses, walk
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import Types

LONGEST_SMALL_AXIS = 4
WRITTEN_POINTS, WRITTEN_ELEMENTS = 128, 16  # of a place
PLACES_OF_SMALL_SUMS = 256 * MULTIPROCESSORS


def small_sums(space: Space, view: StridedView) -> Residues | None:
    """How the elements of a place are written out; None where the statement has no small sums, or nothing in common."""
    s = space.statement
    summed = [v for v in space.reductions if not space.single(v)]
    if not summed or len(space.classes) != 1 or space.steps or s.default is not None:
        return None
    if any(map(is_symbolic, (*space.low[0].values(), *space.extent[0].values()))):
        return None
    small = {v: n for v in space.outputs if 1 < (n := space.largest(v)) <= LONGEST_SMALL_AXIS}
    places = {v for v in space.outputs if space.largest(v) > LONGEST_SMALL_AXIS}
    elements, points = math.prod(small.values()), math.prod(space.extent[0][v] for v in summed)
    if (
        elements > WRITTEN_ELEMENTS
        or elements * points > WRITTEN_POINTS
        or space.count(tuple(places)) < PLACES_OF_SMALL_SUMS
    ):
        return None
    read = value_accesses(s)
    if not places or not all(places & {*index_variables(*a.index)} in (set(), places) for a in read):
        return None  # a product
    if any(_overlaps(linear(e), space, places) for a in read for e in a.index if not any(accesses_in(e))):
        return None  # windows, which have kernels of their own
    found = Residues(small, elements)
    return found if _gains(found, space, view.types, elements * points) else None


def _overlaps(form: Affine, space: Space, places: set[str]) -> bool:
    """Whether two places of such an index read one element."""
    steps = [abs(form.coefficient(v)) for v in form.variables() if v in places]
    beside = sum(abs(form.coefficient(v)) * (space.largest(v) - 1) for v in form.variables() if v not in places)
    return bool(steps) and (len(steps) > 1 or beside >= steps[0])


def _gains(found: Residues, space: Space, types: Types, points: int) -> bool:
    """Whether conditions leave few of the points, these read the same elements, or numbers take the place of powers."""
    calls = (e for e in walk(space.statement.body) if isinstance(e, Call) and e.function == "pow")
    if any({*index_variables(e.args[1])} & {*space.reductions} for e in calls):
        return True
    written = class_elements(found, space, types).points
    read = [a for _, p in written for a in value_accesses(p)]
    return 4 * len(written) <= 3 * points or 2 * len(set(read)) <= len(read)
