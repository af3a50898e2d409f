"""Convolutions of few channels whose windows do not overlap as products over a copy of the windows (im2col).

TMA brings rows of 16 bytes and more, and a window of 3 channels has none: `I[n, 16*y + j, 16*x
+ i, c]` with c below 3. A copy with one row for each window, `C[n, y, x, j, i, c]`, padded to whole vectors, makes the
statement and the gradient by the other operand products of matrices. It is no larger than the tensor; copies of windows
that overlap take longer than the library's convolution (H200: 293 us of a 7x7 stem that is 230 us in all). The gradient
by the image is such a product too, written to a tensor of rows and then to where the elements belong: `D[n, 16*y + j,
16*x + i, c] = P[n, y, x, j, i, c]`. Images of channels first, `I[n, c, 16*y + j, 16*x + i]`, are copied so too: a
library turns them round before and after (H200: 190 us of 16 images of 224 x 224 into 768 channels).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.domain import point_conditions
from tilec.backends.common.pairs import LEAST, MOST_STORED
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import Space, with_points
from tilec.backends.triton.matmul.dot import MatrixProduct, StagedProduct, operand_accesses, product_over, recognise_dot
from tilec.backends.triton.matmul.hopper.steps import hopper_steps
from tilec.backends.triton.matmul.steps import repair_steps
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.plan.sizes import WHOLE_VECTOR, contiguous, copied_row
from tilec.backends.triton.pointwise.pointwise import fill
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement
from tilec.ir.types import ITEM_BYTES, NARROW, TensorType, Types
from tilec.transforms.util.rewrite import with_parts

FEWEST_IN_A_ROW = 4  # elements of a window that lie side by side in an image of channels first
SAME = 1.25  # elements of a copy over those of the tensor, where windows do not overlap


def columns(given: MatrixProduct, setting: Setting) -> StagedProduct | None:
    """The statement as a product over such copies; None where it is a plain product, or no better off."""
    dot, space, view = given.dot, given.space, given.view
    extent = _extents(space)
    if extent is None or view.statement.guard is not None or dot.dtype not in NARROW or dot.batch:
        return None
    if any(c in space.valid for c in point_conditions((), view.statement.constraints, view.types)):
        return None  # copies know where tensors end, and no more
    zero = Affine()
    forms = [linear(e) for a in operand_accesses(view.statement.body) for e in a.index]
    beside = {v for f in forms if f.bare is None for v in f.variables() if v in space.reductions and extent[v] == 1}
    s = substitute_affine(view.statement, dict.fromkeys(beside, zero))
    counts = given.counts
    if not isinstance(s.body, Call) or s.body.function != "mul" or counts[2] < LEAST:
        return None
    sides = [a for a in s.body.args if isinstance(a, Access)]
    if len({a.tensor for a in sides}) != 2:
        return None
    build = _Build(extent, dict(view.types), dict(view.strides))
    tangled = [a for a in sides if not _is_bare(a)]
    if len(tangled) > 1 or (not tangled and _is_bare(Access(s.output, s.index or ()))):
        return None
    of_classes, rows = len(space.classes) > 1, dot.rows if counts[0] >= LEAST else dot.columns
    if (tangled and (of_classes or min(counts) < LEAST)) or max(counts[:2]) < LEAST or s.index is None:
        return None
    product = build.of_operand(s, tangled[0], sides) if tangled else build.of_output(s, given, rows, sides)
    if product is None or hopper_steps(given, setting) is not None:
        return None
    made = StridedView(product, build.types, build.strides)
    found = product_over(coalesce(made))
    steps = None if found is None else hopper_steps(found, setting)
    if steps is None:
        return None
    outside = dot.zero_left or dot.zero_right
    repairs = repair_steps(given, view.statement) if outside else []
    return StagedProduct(made, build.made, tuple(build.before), tuple(build.after), steps, repairs)


def columns_of_reached(space: Space, view: StridedView, setting: Setting, types: Types) -> StagedProduct | None:
    """A statement that is such a product at the elements that have points: patches leave an edge of an image. `types`:
    of tensors as they are stored, of which a view may have fewer axes."""
    reached = with_points(space, view.types)
    dot = None if reached is space else recognise_dot(reached, view)
    found = None if dot is None else columns(MatrixProduct(dot, reached, view), setting)
    return found and replace(found, before=(*(fill(reached, types) if space.covers else ()), *found.before))


def _extents(space: Space) -> dict[str, int] | None:
    """How many values, from 0 on, each variable has, residues among them; None where classes differ."""
    first = next(iter(space.extent), None)
    if first is None or any(e != first for e in space.extent) or any(any(low.values()) for low in space.low):
        return None
    found = dict(first)
    for v in space.residues:
        found[v] = len({c[v] for c in space.classes})
    return found if math.prod(found[v] for v in space.residues) == len(space.classes) else None


def _is_bare(a: Access) -> bool:
    return all(linear(e).bare is not None for e in a.index)


@dataclass
class _Build:
    extent: Mapping[str, int]
    types: dict[str, TensorType]
    strides: dict[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        self.made: dict[str, tuple[int, ...]] = {}
        self.before: list[StridedView] = []
        self.after: list[StridedView] = []

    def of_operand(self, s: Statement, a: Access, sides: Sequence[Access]) -> Statement | None:
        """The windows of an operand as rows of a copy: the product over it."""
        assert s.index is not None
        other = next(x for x in sides if x is not a)
        own = list(dict.fromkeys(v for e in a.index for v in linear(e).variables()))
        form = linear(a.index[-1])
        last = next((v for v in form.variables() if form.coefficient(v) == 1), None)
        bare = _is_bare(other) and _is_bare(Access(s.output, s.index))
        if last is None or self.strides[a.tensor][-1] != 1 or not bare:
            return None
        written = [v for e in s.index for v in linear(e).variables()]
        summed = [v for e in other.index if (v := linear(e).bare) in own and v not in written and v is not None]
        kept = [v for v in written if v in own]
        if set(summed) | set(kept) != set(own):
            return None
        inner, outer = (summed, kept) if last in summed else (kept, summed)
        count = math.prod(self.extent[v] for v in own)
        size = math.prod(self.types[a.tensor].shape)
        run = self.extent[last]
        if (run >= LEAST if form.bare is not None else run < FEWEST_IN_A_ROW) or count > SAME * size:
            return None
        copied = self.copied(a, outer, inner)
        rest = self.in_aligned_rows(other, own)
        return None if copied is None or rest is None else _over(s, {a: copied, other: rest})

    def of_output(
        self, s: Statement, given: MatrixProduct, rows: tuple[str, ...], sides: Sequence[Access]
    ) -> Statement | None:
        """A product of rows and columns whose elements belong elsewhere."""
        dot, target = given.dot, self.split(Access(s.output, s.index or ()))
        if target is None or not given.is_plain:
            return None
        spread, types, strides = target
        order = [v for a in sides for e in a.index for v in linear(e).variables()]
        columns = [v for v in dict.fromkeys(order) if v not in (*rows, *dot.summed)]
        if math.prod(self.extent[v] for v in columns) < LEAST:
            return None
        name = f"{s.output}.columns"
        found = self.tensor(name, self.types[s.output], sorted(rows, key=order.index), columns)
        aligned = {a: self.in_aligned_rows(a, dot.summed) for a in sides}
        read = {a: copy for a, copy in aligned.items() if copy is not None}
        if found is None or len(read) < len(aligned):
            return None
        sizes = tuple(map(Int, types[s.output].shape))
        last = replace(s, index=spread.index, sizes=sizes, body=found, aggregation="assign", constraints=())
        self.after.append(StridedView(last, {**self.types, **types}, {**self.strides, **strides}))
        shape = tuple(map(Int, self.types[found.tensor].shape))
        return _over(replace(s, output=found.tensor, index=found.index, sizes=shape), read)

    def split(self, a: Access) -> tuple[Access, dict[str, TensorType], dict[str, tuple[int, ...]]] | None:
        """The access over a view in which each variable has an axis, of as many elements as it walks; None where two of
        them meet in other elements than a number of two digits has."""
        index: list[Expr] = []
        shape: list[int] = []
        strides: list[int] = []
        for e, n, step in zip(a.index, self.types[a.tensor].shape, self.strides[a.tensor], strict=True):
            form = linear(e)
            terms = sorted(form.terms, key=lambda t: -t[1])
            values = [self.extent.get(getattr(atom, "name", ""), 0) for atom, _ in terms]
            digits = [math.prod(values[k + 1 :]) for k in range(len(values))]
            walked = math.prod(values)  # patches alone may leave an edge
            if (
                form.constant
                or [int(c) for _, c in terms] != digits
                or (walked > n if len(values) > 1 else walked != n)
            ):
                return None
            index += [atom for atom, _ in terms]
            shape += values
            strides += [int(c) * step for _, c in terms]
        spread = replace(a, index=tuple(index))
        return spread, {a.tensor: replace(self.types[a.tensor], shape=tuple(shape))}, {a.tensor: tuple(strides)}

    def in_aligned_rows(self, a: Access, some: Collection[str]) -> Access | None:
        """An access whose last variables, all of them or none among `some`, are rows that begin at whole vectors: to a
        copy where they do not; None where that would be too large."""
        axes = [(v, n) for e, n in zip(a.index, self.strides[a.tensor], strict=True) if (v := linear(e).bare)]
        count = next((k for k, (v, _) in enumerate(reversed(axes)) if (v in some) != (axes[-1][0] in some)), len(axes))
        outer, inner = axes[: len(axes) - count], axes[len(axes) - count :]
        if len(axes) < len(a.index) or inner[-1][1] != 1 or not any(n % WHOLE_VECTOR for _, n in outer):
            return a
        return self.copied(a, [v for v, _ in outer], [v for v, _ in inner])

    def copied(self, a: Access, outer: list[str], inner: list[str]) -> Access | None:
        """An access to a copy that has a row of `inner` for each of `outer`."""
        access = self.tensor(f"{a.tensor}.columns", self.types[a.tensor], outer, inner)
        if access is None:
            return None
        apart = self.split(a)
        source, types, strides = (a, {}, {}) if apart is None else apart
        sizes = tuple(map(Int, self.types[access.tensor].shape))
        copy = Statement(access.tensor, access.index, sizes, source, "sum")
        self.before.append(StridedView(copy, {**self.types, **types}, {**self.strides, **strides}))
        return access

    def tensor(self, name: str, like: TensorType, outer: list[str], inner: list[str]) -> Access | None:
        """A tensor with a row, padded to whole vectors, of all values of `inner` for each of `outer`."""
        shape = tuple(self.extent[v] for v in (*outer, *inner))
        row = math.prod(self.extent[v] for v in inner)
        width = copied_row(row, ITEM_BYTES[like.dtype])
        rows = math.prod(self.extent[v] for v in outer)
        if 2 * rows * width > MOST_STORED:
            return None
        self.types[name] = replace(like, shape=shape)
        self.strides[name] = (*(width * n for n in contiguous(shape[: len(outer)])), *contiguous(shape[len(outer) :]))
        self.made[name] = (rows, width)
        return Access(name, tuple(map(Index, (*outer, *inner))))


def _over(s: Statement, copies: Mapping[Access, Access]) -> Statement:
    """A product over copies of what it reads."""
    return replace(s, body=with_parts(s.body, dict(copies)), constraints=())
