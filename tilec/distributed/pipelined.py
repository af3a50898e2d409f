"""Recurrences that step along a sharded dimension: what a rank reads of the rank before, and steps that compose.

A step that is affine in its state in some semiring, `a x h + b`, composes to the same form: a rank's steps as a whole
are one scale and one offset for each lane. These go to all ranks, each of which then knows the state before its own
elements and computes these as if it were alone. A summary reads what the recurrence reads once more, a few steps at a
time, nested as Horner's rule has it, and these results in turn. On its way it has the scales and offsets of blocks of
steps, which give the state before each block: the blocks' elements are then computed beside one another, and nothing is
read a third time, as a scan of the rank's own would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.affine import literal_expr
from tilec.distributed.plan import Parted
from tilec.distributed.steps import composing_steps
from tilec.ir.functions import call
from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.program import Access, Expr, Index, Int, Statement, rebuild, self_reads
from tilec.ir.types import TensorType
from tilec.lattice.sets import sizes_of
from tilec.transforms.util.naming import Names, all_variables, fresh_variable

_STEPS = 16  # that one element of a summary takes together
_LEVELS = 2  # of a summary, of which the last has the blocks


@dataclass(frozen=True)
class StepBlocks:
    """The scales and offsets of `count` blocks of so many steps, along their first dimension."""

    scales: str
    offsets: str
    count: int
    steps: int


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
) -> tuple[list[Statement], StepBlocks | None]:
    """What a rank's steps do to a state: statements of which the last has scales and offsets, behind one another along
    its first dimension, for each lane; the first rank's offset is its last state. And the blocks on the way to it,
    where there are several of one length."""
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
    blocks: StepBlocks | None = None

    def at(e: Expr, turn: int, length: int, beyond: Expr) -> Expr:
        """The value of a step of group g, of so many steps; `beyond` behind the last."""
        p = Affine.variable(group, _STEPS) + (turn if split.states > 0 else min(_STEPS, length) - 1 - turn)
        e = replace_indices(e, {time.name: p})
        return e if length % _STEPS == 0 else call("select", call("lt", p.to_value(), Int(length)), e, beyond)

    while count > 1:
        groups = -(-count // _STEPS)
        scales = [at(scale, j, count, one) for j in range(min(_STEPS, count))]
        offsets = [at(offset, j, count, zero) for j in range(min(_STEPS, count))]
        product, last = scales[0], offsets[0]
        for a, b in zip(scales[1:], offsets[1:], strict=True):
            product, last = call(ring.times, a, product), call(ring.add, call(ring.times, a, last), b)
        pair = [names.fresh(f"{s.output}_{what}") for what in ("scales", "offsets")]
        for name, body in zip(pair, (product, last), strict=True):
            found.append(Statement(name, (Index(group), *lanes), (Int(groups), *sizes), call(t.dtype, body)))
        index = (time, *lanes)
        scale, offset, count = Access(pair[0], index), Access(pair[1], index), groups
        if count > 1 and count * _STEPS**_LEVELS == length:
            blocks = StepBlocks(pair[0], pair[1], count, length // count)
    if count:
        total = [replace_indices(e, {time.name: Affine()}) for e in (scale, offset)]
    else:
        total = [one, zero]
    if first:
        start = _outside(own, time.name, length if split.states < 0 else -1)
        total[1] = call(ring.add, call(ring.times, total[0], call(t.dtype, start)), total[1])
    both = call("select", call("eq", Index(group), Int(0)), *total)
    name = names.fresh(f"{s.output}_steps")
    found.append(Statement(name, (Index(group), *lanes), (Int(2), *sizes), call(t.dtype, both)))
    return found, blocks


def in_groups(
    statements: Sequence[Statement], types: Mapping[str, TensorType]
) -> tuple[list[Statement], dict[str, TensorType]]:
    """A summary where tensors that are read at each step of a group alone, along one of their dimensions, have two in
    its place: groups and steps, as kernels share them. And these tensors' types."""
    places: dict[str, set[int | None]] = {}

    def look(e: Expr) -> Expr:
        if isinstance(e, Access) and e.tensor in types:
            found = [d for d, i in enumerate(e.index) if _tap(i) is not None and types[e.tensor].shape[d] % _STEPS == 0]
            places.setdefault(e.tensor, set()).add(found[0] if len(found) == 1 else None)
        return rebuild(e, look)

    def split(e: Expr) -> Expr:
        if isinstance(e, Access) and e.tensor in taken:
            d = taken[e.tensor]
            tap = _tap(e.index[d])
            assert tap is not None, "each access is at a step of a group"
            return Access(e.tensor, (*e.index[:d], *tap, *e.index[d + 1 :]))
        return rebuild(e, split)

    for s in statements:
        look(s.body)
    taken = {n: d for n, found in places.items() if len(found) == 1 and (d := next(iter(found))) is not None}
    made = {}
    for n, d in taken.items():
        shape = types[n].shape
        made[n] = replace(types[n], shape=(*shape[:d], shape[d] // _STEPS, _STEPS, *shape[d + 1 :]))
    return [replace(s, body=split(s.body)) for s in statements], made


def _tap(e: Expr) -> tuple[Expr, Expr] | None:
    """The group and the step of an index `_STEPS*g + step`."""
    form = linear(e)
    if len(form.terms) != 1 or form.terms[0][1] != _STEPS or not 0 <= form.constant < _STEPS:
        return None
    atom = form.terms[0][0]
    return (atom, Int(int(form.constant))) if isinstance(atom, Index) and form.constant.denominator == 1 else None


def _outside(own: Statement, time: str, position: int) -> Expr:
    """What a recurrence reads outside the tensor, at a position along its time."""
    return Int(0) if own.init is None else replace_indices(own.init, {time: Affine() + position})


def in_blocks(
    own: Statement, split: Parted, t: TensorType, blocks: StepBlocks, before: str | None, names: Names
) -> list[Statement]:
    """A rank's recurrence over blocks and the steps in each, two dimensions in the place of its time, after one that
    gives the state behind each block. `before`: the state before the rank's own elements."""
    steps, k = composing_steps(own, t), split.dim
    assert steps is not None and k is not None and own.sizes is not None, "the steps of the recurrence compose"
    ring, back = steps[0], split.states > 0
    index = own.index or ()
    time = index[k]
    assert isinstance(time, Index), "a flat recurrence is indexed by variables"
    block, step = (fresh_variable(v, all_variables(own)) for v in "gj")
    g, j = Affine.variable(block), Affine.variable(step)
    lanes = (*index[:k], *index[k + 1 :])
    sizes = (*own.sizes[:k], *own.sizes[k + 1 :])
    start = _outside(own, time.name, -1 if back else blocks.count * blocks.steps)
    if before is not None:
        start = Access(before, (*index[:k], Int(0), *index[k + 1 :]))

    behind, back_one = names.fresh(f"{own.output}_behind"), -1 if back else 1
    state = Access(behind, ((g + back_one).to_expr(), *lanes))
    scale, offset = (Access(n, (Index(block), *lanes)) for n in (blocks.scales, blocks.offsets))
    moved = call(ring.add, call(ring.times, scale, state), offset)
    moved = call("select", call("eq", state, literal_expr(ring.zero)), offset, moved)
    carried = Statement(
        behind, (Index(block), *lanes), (Int(blocks.count), *sizes), call(t.dtype, moved), init=call(t.dtype, start)
    )

    def inner(e: Expr) -> Expr:
        if isinstance(e, Access) and e.tensor == own.output:
            return Access(own.output, (*e.index[:k], Index(block), (j + back_one).to_expr(), *e.index[k + 1 :]))
        return rebuild(e, inner)

    body = replace_indices(inner(own.body), {time.name: g * blocks.steps + j})
    first = 0 if back else blocks.count - 1
    init = call("select", call("eq", Index(block), Int(first)), call(t.dtype, start), state)
    place = (*index[:k], Index(block), Index(step), *index[k + 1 :])
    extents = (*own.sizes[:k], Int(blocks.count), Int(blocks.steps), *own.sizes[k + 1 :])
    return [carried, Statement(own.output, place, extents, body, init=init)]


def carry_of(
    own: Statement, split: Parted, t: TensorType, gathered: str, name: str, ranks: int, place: int
) -> Statement:
    """The state before the rank whose turn is number `place`, from all ranks' summaries along the first dimension."""
    steps, k = composing_steps(own, t), split.dim
    assert steps is not None and k is not None and own.sizes is not None, "the steps of the recurrence compose"
    ring = steps[0]
    lanes = tuple(e for d, e in enumerate(own.index or ()) if d != k)
    state: Expr | None = None
    for r in (range(ranks) if split.states > 0 else range(ranks)[::-1])[:place]:
        scale, offset = (Access(gathered, (Int(r), Int(which), *lanes)) for which in (0, 1))
        if state is None:
            state = offset
        else:  # an infinite scale of no state at all is none
            moved = call(ring.add, call(ring.times, scale, state), offset)
            state = call("select", call("eq", state, literal_expr(ring.zero)), offset, moved)
    assert state is not None, "there is a rank before"
    sizes = (*own.sizes[:k], Int(1), *own.sizes[k + 1 :])
    return Statement(name, own.index, sizes, state)
