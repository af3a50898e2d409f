"""Which outputs of a sum share what it reads or computes: blocks of these read and compute it once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilec.backends.triton.emit.contiguity import bytes_at_once
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.cost import size_in_bytes
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, accesses_in, index_variables, value_accesses, walk
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import ITEM_BYTES, Types

MANY_NEIGHBOURS = 1024  # values of a variable that share what is read once
COMPUTE_HEAVY = ("exp", "exp2", "log", "tanh", "sigmoid")  # functions that are not computed once for each column
NARROWEST_FILLED, NARROWEST_BLOCK = 128, 32  # least of a row where wider blocks overhang; that memory is read in
LEAST_USED = 1.15  # elements of a block's columns over those that there are
DECODED_TOGETHER, DECODED_FILLED = (
    (8, 4),
    0.7,
)  # outputs of a block that finds summed variables once; of which there are
WIDEST_SHORT, FILLED_BETTER = 1024, 1.2  # elements of a block's row that several axes make up; what they gain at least
PASSING = 2**26  # bytes of a tensor that no cache keeps for who reads it next
GATHERED_ROWS, GATHERED_COLUMNS = 16, 8  # of a warp's block of rows that begin anywhere
MOST_GATHERED_STEPS = 8  # blocks of columns that stand one after the other
SHORT_FILLED = 0.75  # of a block's row that several axes make up: the share that is filled
_SHORT_LAST = 256  # values of the last summed variable, below which its blocks are of all summed variables together


def weighted_columns(space: Space, outputs: Sequence[str], reductions: Sequence[str]) -> tuple[int, bool] | None:
    """How many values of the last output variable make a block, where terms are weighted by what is the same for all of
    them (the mean of a row, the exponentials of a softmax that mixes rows): read and computed once for a block. None
    where there are no such weights. Whether the weights are functions that take longer than memory, and there are
    enough programs without a split of the reduction."""
    if len(outputs) < 2 or space.largest(outputs[-1]) < NARROWEST_BLOCK or len(space.classes) != 1:
        return None
    last, rest, columns = outputs[-1], outputs[:-1], space.largest(outputs[-1])

    def weighs(variables: Collection[str]) -> bool:
        return last not in variables and all(not set(own).isdisjoint(variables) for own in (rest, reductions))

    def programs(block: int) -> int:
        return space.count(tuple(rest)) * -(-columns // block)

    bn = min(power_of_two(columns), 128)
    if any(weighs(index_variables(e)) for e in heavy_calls(space)) and programs(bn) >= TWO_A_MULTIPROCESSOR:
        return bn, True
    if not any(weighs(index_variables(*a.index)) for a in value_accesses(space.statement)):
        return None
    whole = [n for n in (128, 64, NARROWEST_BLOCK) if -(-columns // n) * n <= LEAST_USED * columns]
    best = max(whole, key=lambda n: (programs(n) >= 2 * TWO_A_MULTIPROCESSOR, n), default=None)
    return None if best is None else (best, False)


def shared_by_neighbours(space: Space, outputs: Sequence[str], reductions: Sequence[str]) -> bool:
    """Whether a tensor is the same for all values of the last output variable, which has many: read once for a block
    of these (the query of one row beside all of its keys)."""
    if len(outputs) < 2 or space.largest(outputs[-1]) < MANY_NEIGHBOURS or len(space.classes) != 1:
        return False
    many = {v for v in (*outputs, *reductions) if space.largest(v) > 1}
    read = [set(index_variables(*a.index)) & many for a in value_accesses(space.statement)]
    return any(many - v == {outputs[-1]} for v in read) and any(v == many for v in read)


def share_terms(space: Space, outputs: Sequence[str], reductions: Sequence[str]) -> bool:
    """Whether neighbours along the last output variable read the same of all that is read along the reduction, and
    something else of their own before it: functions of pairs."""
    read = value_accesses(space.statement)
    along = [a for a in read if not set(reductions).isdisjoint(index_variables(*a.index))]
    own = [a for a in read if a not in along and outputs and outputs[-1] in index_variables(*a.index)]
    if not own or not along or len(space.classes) > 1 or space.statement.default is not None:
        return False
    shared = all(outputs[-1] not in index_variables(*a.index) for a in along)
    return shared and space.largest(outputs[-1]) >= NARROWEST_BLOCK and computed_places(space) == 0


def decoded_once(space: Space, outputs: Sequence[str], reductions: Sequence[str]) -> tuple[tuple[str, ...], int] | None:
    """The last output variables, of which a tensor that is summed knows none, where each point of the sum has to be
    taken apart into values of several variables, and how many of theirs make a block: these neighbours do that once,
    and read the tensor once (a template of many channels at all of its places). None where that is not so, or programs
    would be few."""
    if len(reductions) < 2 or space.largest(reductions[-1]) >= _SHORT_LAST or len(space.classes) != 1:
        return None
    read = [set(index_variables(*a.index)) for a in value_accesses(space.statement)]
    for first in range(1, len(outputs)):
        last = tuple(outputs[first:])
        alone = any(own.isdisjoint(last) and own.issuperset(reductions) for own in read)
        if not alone or all(own.isdisjoint(last) for own in read):
            continue
        n, rest = space.count(last), space.count(tuple(outputs[:first]))
        blocks = [b for b in DECODED_TOGETHER if n >= DECODED_FILLED * b * -(-n // b)]
        enough = [b for b in blocks if rest * -(-n // b) >= 2 * TWO_A_MULTIPROCESSOR]
        return (last, enough[0]) if enough else None
    return None


def joined_columns(space: Space, view: StridedView, outputs: Sequence[str], block: int) -> tuple[str, ...]:
    """The last output variables that all tensors walk as one, where their values fill a row of a block better than the
    last variable's fill blocks (36 channels of three neighbours, not of one); none where that gains little."""
    s = space.statement
    accesses = {Access(s.output, s.index or ()), *value_accesses(s)}
    places = [[(linear(e), n) for e, n in zip(a.index, view.strides[a.tensor], strict=True)] for a in accesses]
    if len(space.classes) != 1 or not all(form.is_affine for moves in places for form, _ in moves):
        return ()
    n = space.largest(outputs[-1])
    best: tuple[str, ...] = ()
    filled = FILLED_BETTER * n / (-(-n // block) * block)
    for first in range(len(outputs) - 2, 0, -1):
        outer, inner = outputs[first : first + 2]
        for moves in places:
            far, near = (sum(form.coefficient(v) * step for form, step in moves) for v in (outer, inner))
            if far != near * space.largest(inner):
                return best
        tail = tuple(outputs[first:])
        count = space.count(tail)
        if count > WIDEST_SHORT:
            return best
        if count / power_of_two(count) >= filled:
            best, filled = tail, count / power_of_two(count)
    return best


def between_last(space: Space, outputs: Sequence[str]) -> tuple[str, ...]:
    """The output variables but the last; at their end those that step through the places that it leaves out where it
    is read (`I[4*x + i]`), so that a program reads all of a line."""
    last, rest = outputs[-1], outputs[:-1]
    forms = [linear(e) for a in value_accesses(space.statement) for e in a.index]
    near = {v for f in forms for v in f.variables() if abs(f.coefficient(v)) < abs(f.coefficient(last))}
    return (*(v for v in rest if v not in near), *(v for v in rest if v in near))


def short_axes(space: Space, outputs: Sequence[str]) -> tuple[str, ...]:
    """The last output variables, few values of each, as the columns of a block, so that its columns are decoded once
    and not each element; none where none fill a power of two."""
    tails = [tuple(outputs[k:]) for k in range(1, len(outputs) - 1)]
    counts = {tail: space.count(tail) for tail in tails}
    fills = {t: n / power_of_two(n) for t, n in counts.items() if NARROWEST_BLOCK <= n <= WIDEST_SHORT}
    best = max(fills, key=lambda t: fills[t], default=())
    return best if best and fills[best] >= SHORT_FILLED else ()


def computed_places(space: Space, along: str | None = None) -> int:
    """How many reads are at places that others say; of the variable `along`: whole rows at such places do not count."""
    read = {a: [e for e in a.index if any(accesses_in(e))] for a in set(value_accesses(space.statement))}
    return sum(bool(placed) and (along is None or along in index_variables(*placed)) for placed in read.values())


def gathered_rows(
    space: Space, view: StridedView, outputs: Sequence[str], reductions: Sequence[str]
) -> tuple[int, int, int, bool] | None:
    """Rows, columns and warps of a block, and whether its steps are written out, where each output sums a short row of
    its own of which elements of a tensor say where it is, or its elements are, and rows begin anywhere: a warp that
    reads several rows at a time takes a fraction of the time. None elsewhere."""
    if not outputs or is_symbolic(points := space.count(tuple(reductions))) or points <= GATHERED_COLUMNS:
        return None
    rows = [a for a in value_accesses(space.statement) if not {*reductions}.isdisjoint(index_variables(*a.index))]
    placed = [{v for e in a.index if any(accesses_in(e)) for v in index_variables(e)} for a in rows]
    types, strides = view.types, view.strides
    single = all(bytes_at_once(types[a.tensor], strides[a.tensor]) == ITEM_BYTES[types[a.tensor].dtype] for a in rows)
    if not single or not any(outputs[-1] in names for names in placed):
        return None
    few = points <= GATHERED_COLUMNS * MOST_GATHERED_STEPS
    return (GATHERED_ROWS, GATHERED_COLUMNS, 1, True) if few else (GATHERED_ROWS, 2 * GATHERED_COLUMNS, 2, False)


def heavy_calls(space: Space) -> list[Call]:
    return [e for e in walk(space.statement.body) if isinstance(e, Call) and e.function in COMPUTE_HEAVY]


def passes_once(space: Space, types: Types) -> bool:
    """Whether all that a statement reads is read once, and large."""
    many = {v for v in (*space.outputs, *space.reductions) if space.largest(v) > 1}
    read = set(value_accesses(space.statement))
    return len({a.tensor for a in read}) == len(read) and all(
        many <= set(index_variables(*a.index)) and size_in_bytes(types[a.tensor]) >= PASSING for a in read
    )
