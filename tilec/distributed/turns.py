"""Recurrences that step along a sharded dimension: what a rank reads of the rank before, and steps that compose.

A step that is affine in its state in some semiring, `a x h + b`, composes to the same form: a rank's steps as a whole
are one scale and one offset for each lane. These go to all ranks, each of which then knows the state before its own
elements and computes these as if it were alone. A summary reads what the recurrence reads once more, a few steps at a
time, nested as Horner's rule has it, and these results in turn.
"""

from __future__ import annotations

from tilec.backends.common.affine import literal_expr
from tilec.distributed.sharding import Parted
from tilec.distributed.steps import composing_steps
from tilec.ir.functions import call
from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.program import Access, Expr, Index, Int, Statement, self_reads
from tilec.ir.types import TensorType
from tilec.lattice.sets import sizes_of
from tilec.transforms.util.naming import Names, all_variables, fresh_variable

STEPS = 16  # that one element of a summary takes together


def init_of(own: Statement, s: Statement, split: Parted, shape: tuple[int, ...], states: str, rank: int) -> Expr:
    """What a rank's recurrence `own` reads outside its part: the states of the rank before, or, where the whole one `s`
    reads outside the tensor, what that has there. The index variables are the coordinates, the rank's own along the
    dimension that is divided."""
    assert split.dim is not None, "a recurrence is divided along one of its dimensions"
    k, depth, (low, high) = split.dim, split.states, split.parts[rank]
    coordinates = list(own.index or ())
    conditions: list[Expr] = []
    for d, (e, n) in enumerate(zip(s.index or (), shape, strict=True)):
        if d != k and any(access.index[d] != e for access in self_reads(s)):
            conditions += [call("ge", coordinates[d], Int(0)), call("lt", coordinates[d], Int(n))]
    form = linear(coordinates[k])
    if depth > 0:
        conditions += [call("ge", (form + low).to_value(), Int(0))] if low < depth else []
        place = form + depth
    else:
        conditions += [call("lt", (form + low).to_value(), Int(shape[k]))] if high - depth > shape[k] else []
        place = form - (high - low)
    found: Expr = Access(states, (*coordinates[:k], place.to_expr(), *coordinates[k + 1 :]))
    for c in conditions:
        found = call("select", c, found, Int(0) if own.init is None else own.init)
    return found


def summary_of(
    own: Statement, s: Statement, split: Parted, t: TensorType, names: Names, first: bool
) -> list[Statement]:
    """What a rank's steps do to a state: statements of which the last has scales and offsets, behind one another along
    its first dimension, for each lane; the first rank's offset is its last state."""
    steps, k = composing_steps(own, t), split.dim
    assert steps is not None and k is not None, "the steps of the recurrence compose"
    ring, scale, offset = steps
    one, zero = literal_expr(ring.one), literal_expr(ring.zero)
    time = own.index[k] if own.index else Index("t")
    assert isinstance(time, Index) and own.sizes is not None, "a flat recurrence is indexed by variables"
    length = count = sizes_of(own)[k]
    lanes = tuple(e for d, e in enumerate(own.index or ()) if d != k)
    sizes = tuple(n for d, n in enumerate(own.sizes) if d != k)
    group = fresh_variable("g", all_variables(own))
    found: list[Statement] = []

    def at(e: Expr, position: int, length: int, beyond: Expr, backward: bool) -> Expr:
        """The value of step STEPS*g + position, of so many; `beyond` behind the last."""
        p = Affine.variable(group, STEPS) + position
        e = replace_indices(e, {time.name: p * -1 + (length - 1) if backward else p})
        return e if length % STEPS == 0 else call("select", call("lt", p.to_value(), Int(length)), e, beyond)

    backward = split.states < 0
    while count > 1:
        groups = -(-count // STEPS)
        scales = [at(scale, j, count, one, backward) for j in range(min(STEPS, count))]
        offsets = [at(offset, j, count, zero, backward) for j in range(min(STEPS, count))]
        product, last = scales[0], offsets[0]
        for a, b in zip(scales[1:], offsets[1:], strict=True):
            product, last = call(ring.times, a, product), call(ring.add, call(ring.times, a, last), b)
        pair = [names.fresh(f"{s.output}_{what}") for what in ("scales", "offsets")]
        for name, body in zip(pair, (product, last), strict=True):
            found.append(Statement(name, (Index(group), *lanes), (Int(groups), *sizes), call(t.dtype, body)))
        index = (time, *lanes)
        scale, offset, count, backward = Access(pair[0], index), Access(pair[1], index), groups, False
    if count:
        total = [replace_indices(e, {time.name: Affine()}) for e in (scale, offset)]
    else:
        total = [one, zero]
    if first:
        start: Expr = Int(0)
        if own.init is not None:
            outside = Affine() + (length if split.states < 0 else -1)
            start = replace_indices(own.init, {time.name: outside})
        total[1] = call(ring.add, call(ring.times, total[0], call(t.dtype, start)), total[1])
    both = call("select", call("eq", Index(group), Int(0)), *total)
    name = names.fresh(f"{s.output}_steps")
    found.append(Statement(name, (Index(group), *lanes), (Int(2), *sizes), call(t.dtype, both)))
    return found


def carry_of(own: Statement, split: Parted, t: TensorType, gathered: str, name: str, place: int) -> Statement:
    """The state before the rank whose turn is number `place`, from all ranks' summaries along the first dimension."""
    steps, k = composing_steps(own, t), split.dim
    assert steps is not None and k is not None and own.sizes is not None, "the steps of the recurrence compose"
    ring = steps[0]
    lanes = tuple(e for d, e in enumerate(own.index or ()) if d != k)
    state: Expr | None = None
    ranks = range(len(split.parts))
    for r in (ranks if split.states > 0 else ranks[::-1])[:place]:
        scale, offset = (Access(gathered, (Int(r), Int(which), *lanes)) for which in (0, 1))
        if state is None:
            state = offset
        else:  # an infinite scale of no state at all is none
            moved = call(ring.add, call(ring.times, scale, state), offset)
            state = call("select", call("eq", state, literal_expr(ring.zero)), offset, moved)
    assert state is not None, "there is a rank before"
    sizes = (*own.sizes[:k], Int(1), *own.sizes[k + 1 :])
    return Statement(name, own.index, sizes, state)
