"""Along which index variables a statement's operands are contiguous."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.sizes import VECTOR_BYTES
from tilec.ir.constraining import constraining
from tilec.ir.index import linear
from tilec.ir.program import Access, Expr, accesses_in, index_variables, value_accesses
from tilec.ir.rational import Fraction
from tilec.ir.types import ITEM_BYTES, TensorType, Types

LARGEST_WINDOW = 64  # points of a window that is walked point by point
LARGEST_OF_MANY, LONGEST_SIDE = 4096, 16  # of windows of so many outputs that they fill a device by themselves
MANY_WINDOWS = 2**20
VALUES_OF_A_LINE = 16  # values of an output variable that fill lines of memory
FEW_BESIDE, MANY_ALONG = 4, 128  # values of a summed variable and of an output's next to it, which share memory's lines


def is_window(space: Space, reductions: Sequence[str]) -> bool:
    """Whether a reduction is walked point by point, unless memory runs along it: a short one, or one over few values of
    each variable for many outputs (patches at the places of a window). Block by block each of its points would be
    decoded by itself."""
    points = space.count(tuple(reductions))
    if points <= LARGEST_WINDOW:
        return True
    few = points <= LARGEST_OF_MANY and all(space.largest(v) <= LONGEST_SIDE for v in reductions)
    return few and space.count(space.outputs) * len(space.classes) >= MANY_WINDOWS


def runs_along(space: Space, view: StridedView, reductions: Sequence[str]) -> bool:
    """Whether memory runs along the reduction in the largest tensor read. Of one that is read at places which data
    says counts what is read, however small it is. Where a short window slides along memory, it runs along the outputs:
    neighbours of these read neighbouring elements. What all outputs read alike (weights, a table of places) does not
    tell, where data says where else a short window reads."""
    best, answer, alike, elsewhere = -1, False, False, False
    short = is_window(space, reductions)
    own = {*space.outputs, *space.reductions}  # those of a sum within the body are not known here
    for root in (space.statement.body, space.statement.guard):
        for a in accesses_in(root):
            size = view.types[a.tensor].numel
            if any(accesses_in(*a.index)):
                size = max(size, space.count(tuple(own & free_of(a))))
            if size > best and free_of(a) & set(reductions):
                found = innermost_index(a, view.strides[a.tensor], space.largest)
                if found is None:
                    elsewhere |= any(accesses_in(*a.index))
                    continue
                alike = free_of(a) <= set(space.reductions)
                best, (i, fastest) = size, found
                v = min(fastest)
                answer = v in reductions and not (
                    short and (_slides(i, v, space) or _is_interleaved(a, v, space, view))
                )
    return answer and not (short and alike and elsewhere)


def innermost_index(
    a: Access, strides: Sequence[int], extent: Callable[[str], int]
) -> tuple[Expr, frozenset[str]] | None:
    """The index in which memory runs from one point to the next, and the variables that step there by the least; None
    where nothing steps, or data says where to: what is beside is anywhere then. A value computed of variables
    (`x // 2`) steps by one."""
    steps: list[tuple[Fraction, str, Expr]] = []
    for i, stride in zip(a.index, strides, strict=True):
        form = linear(i)
        own = {v: abs(form.coefficient(v)) for v in form.variables()}
        own = own if form.is_affine else dict.fromkeys(index_variables(i), Fraction(1))
        steps += [(abs(stride) * step, v, i) for v, step in own.items() if stride and extent(v) > 1]
    if not steps:
        return None
    least = min(step for step, _, _ in steps)
    near = [(v, i) for step, v, i in steps if step == least]
    if any(accesses_in(*(i for _, i in near))):
        return None
    return min(near, key=lambda found: found[0])[1], frozenset(v for v, _ in near)


def fastest_variable(a: Access, view: StridedView) -> Expr | None:
    """The index that memory runs along, of an access with several."""
    axes = zip(view.strides[a.tensor], view.types[a.tensor].shape, a.index, strict=True)
    moving = [(step, place, i) for place, (step, n, i) in enumerate(axes) if step and n > 1]
    return min(moving)[2] if len(moving) > 1 else None


def moves_at_once(a: Access, view: StridedView, v: str, count: int) -> bool:
    """Whether memory runs along this variable, `count` elements at once wherever the others stand."""
    for i, stride in zip(a.index, view.strides[a.tensor], strict=True):
        form = linear(i)
        if not form.is_affine or form.constant * stride % count:
            return False
        if any(form.coefficient(w) * stride % count for w in form.variables() if w != v):
            return False
    return sum(step for w, step in _moves(a, view) if w == v) == 1


def _is_interleaved(a: Access, v: str, space: Space, view: StridedView) -> bool:
    """Whether a summed variable has few values side by side, and an output variable the next ones: neighbours of that
    share what memory is read in."""
    beside, moves = space.largest(v), dict(_moves(a, view))
    if beside > FEW_BESIDE or v not in moves:
        return False
    steps = [abs(step) for w, step in moves.items() if w in space.outputs and space.largest(w) >= MANY_ALONG]
    return any(0 < step <= beside * abs(moves[v]) for step in steps)


def _slides(i: Expr, v: str, space: Space) -> bool:
    """Whether a window along a summed variable, and others that stand in its index, overlaps itself at the next value
    of an output variable."""
    form = linear(i)
    outputs = [w for w in space.outputs if space.largest(w) > 1]
    if not form.is_affine:
        return not set(outputs).isdisjoint(index_variables(i))
    summed = [w for w in form.variables() if w in space.reductions]
    reach = abs(form.coefficient(v)) + sum(abs(form.coefficient(w)) * (space.largest(w) - 1) for w in summed)
    return any(0 < abs(form.coefficient(w)) < reach for w in outputs)


def is_transposed(space: Space, view: StridedView, outputs: Sequence[str]) -> bool:
    """Whether memory runs along the last output variable but one in something that is read along the last too."""
    return len(outputs) > 1 and outputs[-2] in (v for v, _ in _fastest_of_reads(space, view, outputs[-1]))


def runs_across(space: Space, view: StridedView, outputs: Sequence[str]) -> str | None:
    """The output variable but the last along which memory runs in what is written, or in the largest tensor that is
    read along the last too and in which it does not run along that; None where there is none."""
    if len(outputs) < 2:
        return None
    s = space.statement
    rest, written = set(outputs[:-1]), Access(s.output, s.index or ())
    own = [v for v, step in _moves(written, view) if abs(step) == 1 and v in rest]
    if own:
        return own[0]
    read = [(view.types[a.tensor].numel, v) for v, a in _fastest_of_reads(space, view, outputs[-1])]
    return max((x for x in read if x[1] in rest), default=(0, None))[1]


def transposed_window(space: Space, view: StridedView, outputs: Sequence[str]) -> str | None:
    """The output variable but the last along which memory runs in the largest tensor that a window slides over, which
    is read along the last too (an image whose channels lie last, of which channels are written first)."""
    read = [a for a in value_accesses(space.statement) if not free_of(a).isdisjoint(space.reductions)]
    largest = max(read, key=lambda a: view.types[a.tensor].numel, default=None)
    if largest is None or outputs[-1] not in free_of(largest):
        return None
    moves = _moves(largest, view)
    along = [v for v, step in moves if abs(step) == 1 and v in outputs[:-1] and space.largest(v) >= VALUES_OF_A_LINE]
    return None if any(abs(step) == 1 and v == outputs[-1] for v, step in moves) else next(iter(along), None)


def transposed_sum(space: Space, view: StridedView, outputs: Sequence[str]) -> str | None:
    """The output variable along which memory runs in a tensor that is summed, next to none smaller than the largest."""
    read = [a for a in value_accesses(space.statement) if not free_of(a).isdisjoint(space.reductions)]
    sizes = [view.types[a.tensor].numel for a in read]
    large = [a for a, size in zip(read, sizes, strict=True) if 2 * size >= max(sizes)]
    steps = ((v, step) for a in large for v, step in _moves(a, view))
    along = (v for v, step in steps if abs(step) == 1 and v in outputs and space.largest(v) >= VALUES_OF_A_LINE)
    return next(along, None) if len(space.classes) == 1 and len(large) > 1 else None


def _fastest_of_reads(space: Space, view: StridedView, last: str) -> list[tuple[str, Access]]:
    """The variables along which memory runs in what is read along that one too."""
    roots = [root for root in (space.statement.body, space.statement.guard) if root is not None]
    read = [a for root in roots for a in constraining(root) if last in free_of(a)]
    return [(v, a) for a in read for v, step in _moves(a, view) if step == 1]


def _moves(a: Access, view: StridedView) -> list[tuple[str, int]]:
    """Variables, and the elements that one of each moves on along an axis."""
    axes = zip(map(linear, a.index), view.strides[a.tensor], strict=True)
    return [(v, form.coefficient(v) * stride) for form, stride in axes for v in form.variables()]


def bytes_at_once(t: TensorType, strides: Sequence[int]) -> int:
    """How many bytes of a tensor's rows a thread reads or writes at once, at most; one element of those that are not
    contiguous, whose rows begin anywhere, or of which there is one."""
    element = ITEM_BYTES[t.dtype]
    steps = [step for step, n in zip(strides, t.shape, strict=True) if n > 1 and step != 1]
    fits = (n for n in (16, 8, 4, 2) if n * element <= VECTOR_BYTES and all(step % n == 0 for step in steps))
    return next(fits, 1) * element if steps else element


def mixes_vectors(
    written: Sequence[Access], read: Sequence[Access], types: Types, strides: Mapping[str, Sequence[int]]
) -> bool:
    """Whether rows that are read begin anywhere, and others at vectors: Triton then has a thread load neighbours of the
    first one by one, each a vector from those of the next thread."""

    def elements(a: Access) -> int:
        return bytes_at_once(types[a.tensor], strides[a.tensor]) // ITEM_BYTES[types[a.tensor].dtype]

    rows = [a for a in read if {1} < {*strides[a.tensor]}]
    single = any(elements(a) == 1 for a in rows)
    return single and any(elements(a) > 1 for a in (*written, *rows) if 1 in strides[a.tensor])
