"""The call of torch that a convolution, or a gradient of one, is: operands, settings and result as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import indented, literal, permuted, tuple_text
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.convolution import (
    GROUPS,
    INPUT,
    KERNEL,
    OUTPUT,
    Convolution,
    Spatial,
    axis_size,
    recognise_convolution,
    stands_in,
)


@dataclass(frozen=True)
class SpatialExtent:
    """One spatial dimension as torch takes it: the input's elements low..high, padded by `padding` on both sides, give
    `computed` outputs, of which the first ones are wanted."""

    low: int
    high: int
    padding: int
    computed: int


@dataclass(frozen=True)
class ConvolutionCall:
    """`operands`: lines that make those of two roles, which have these `names`; `shapes`: of input, output and kernel
    as torch has them; `back`: text of the statement's output, given that of what the call makes; `settings`: strides,
    paddings, dilations and groups; `checked`: tensors that must be finite for all of it to hold."""

    written: int
    names: tuple[str, str, str]
    operands: Mapping[int, tuple[str, ...]]
    shapes: tuple[tuple[int, ...], ...]
    settings: str
    out: str
    back: Callable[[str], str]
    checked: tuple[str, ...]

    @property
    def text(self) -> str:
        x, y, k = self.names
        shape = tuple_text(self.shapes[self.written])
        return {
            OUTPUT: f"rt.convolution({x}, {k}, {self.settings})",
            KERNEL: f"rt.convolution_kernel({y}, {x}, {shape}, {self.settings})",
            INPUT: f"rt.convolution_input({y}, {shape}, {k}, {self.settings})",
        }[self.written]

    @property
    def lines(self) -> list[str]:
        made = [line for role in (INPUT, KERNEL, OUTPUT) for line in self.operands.get(role, ())]
        return [*made, f"{self.out} = {self.back(self.text)}"]


def convolution_lines(task: Task, exact: Callable[[Task], list[str]]) -> list[str] | None:
    """Lines that compute the output, where the statement is a convolution that torch has, or a gradient of one. Where
    what padding multiplies is not finite, the lines that `exact` gives run instead."""
    if not task.options.library or task.flat.default is not None:
        return None
    c = recognise_convolution(task)
    if c is None:
        return None
    call = library_call(task, c)
    if not call.checked:
        return call.lines
    test = f"if rt.finite({', '.join(task.local[t] for t in call.checked)}):"
    return [test, *indented(call.lines), "else:", *indented(exact(task))]


def _extent(s: Spatial, inputs: int, outputs: int, kernel: int) -> SpatialExtent:
    step = abs(s.step)
    offset = s.offset + (s.step * (kernel - 1) if s.step < 0 else 0)
    last = offset + s.stride * (outputs - 1) + step * (kernel - 1)
    padding = max(-offset, 0)

    def computed(length: int) -> int:
        return (length + 2 * padding - step * (kernel - 1) - 1) // s.stride + 1

    low, high = max(offset, 0), inputs - 1
    if computed(high - low + 1) != outputs:
        high = min(high, last)

    if high < low or computed(high - low + 1) < outputs:
        return _unpadded(s, outputs, kernel)
    return SpatialExtent(low, high, padding, computed(high - low + 1))


def _unpadded(s: Spatial, outputs: int, kernel: int) -> SpatialExtent:
    """The input's elements that the wanted outputs read, those outside of it among them, with no padding."""
    ends = (0, s.step * (kernel - 1))
    low, high = s.offset + min(ends), s.offset + max(ends) + s.stride * (outputs - 1)
    return SpatialExtent(low, high, 0, outputs)


def library_call(task: Task, c: Convolution) -> ConvolutionCall:
    sizes = [tuple(map(axis_size, c.operands, s.axes)) for s in c.spatial]
    extents = [_extent(s, *n) for s, n in zip(c.spatial, sizes, strict=True)]
    if c.written == KERNEL and math.prod(c.operands[INPUT].shape) < math.prod(c.operands[OUTPUT].shape):
        # zeros on one side alone: the input is copied, which is smaller than the output with zeros for further elements
        exact = [_unpadded(s, o, k) for s, (_, o, k) in zip(c.spatial, sizes, strict=True)]
        extents = [x if e.computed > x.computed else e for e, x in zip(extents, exact, strict=True)]
    view = _Views(task, c)
    groups = math.prod(view.size(INPUT, v) for v in view.of("group"))
    numbers = ([s.stride for s in c.spatial], [e.padding for e in extents], [abs(s.step) for s in c.spatial])
    settings = f"{', '.join(map(tuple_text, numbers))}, {groups}"
    x, y, k = (task.names.fresh(n) for n in ("x", "y", "k"))
    cropped = any((e.low, e.high) != (0, n - 1) for e, (n, _, _) in zip(extents, sizes, strict=True))
    flipped = [2 + d for d, s in enumerate(c.spatial) if s.step < 0]
    scale = "" if c.scale == 1 else f" * {literal(c.scale)}"
    padded = any(e.padding or e.low < 0 or e.high >= n for e, (n, _, _) in zip(extents, sizes, strict=True))
    exceeding = any(e.computed > o for e, (_, o, _) in zip(extents, sizes, strict=True))
    flip = f".flip({tuple_text(flipped)})" if flipped else ""
    operands: dict[int, tuple[str, ...]] = {}
    if c.written != INPUT:
        operands[INPUT] = (f"{x} = {view.text(INPUT)}",)
        operands[INPUT] += (f"{x} = rt.extend({x}, {view.reach(extents)})",) if cropped else ()
    if c.written != KERNEL:
        operands[KERNEL] = (f"{k} = {view.text(KERNEL)}{flip}",)
    if c.written != OUTPUT:
        operands[OUTPUT] = (f"{y} = {view.text(OUTPUT)}",)
        if exceeding:
            low, high = [0] * (2 + len(sizes)), [*view.leading(OUTPUT), *(e.computed for e in extents)]
            zeros = f"{tuple_text(low)}, {tuple_text([n - 1 for n in high])}, 0"
            operands[OUTPUT] += (f"{y} = rt.extend({y}, {zeros})",)

    tensors = tuple(o.tensor for o in c.operands)
    shapes = (
        (*view.leading(INPUT), *(e.high - e.low + 1 for e in extents)),
        (*view.leading(OUTPUT), *(e.computed for e in extents)),
        (*view.leading(KERNEL), *(n for _, _, n in sizes)),
    )
    pointwise = (
        not padded
        and not cropped
        and all(k == 1 and s.stride == 1 for s, (_, _, k) in zip(c.spatial, sizes, strict=True))
    )
    checked = {
        INPUT: () if pointwise else (tensors[KERNEL],),
        OUTPUT: (tensors[KERNEL],) * padded,
        KERNEL: (tensors[OUTPUT],) * padded + (tensors[INPUT],) * exceeding,
    }[c.written]

    def back(made: str) -> str:
        if c.written == OUTPUT and exceeding:
            wanted = [f":{n}" if e.computed > n else ":" for e, (_, n, _) in zip(extents, sizes, strict=True)]
            made = f"{made}[:, :, {', '.join(wanted)}]"
        elif c.written == KERNEL:
            made = f"{made}{flip}"
        elif c.written == INPUT and cropped:
            back_low = [0, 0, *(-e.low for e in extents)]
            leading = [n - 1 for n in view.leading(INPUT)]
            back_high = [*leading, *(n - 1 - e.low for e, (n, _, _) in zip(extents, sizes, strict=True))]
            made = f"rt.extend({made}, {tuple_text(back_low)}, {tuple_text(back_high)}, 0)"
        return f"{view.back(c.written, made)}{scale}"

    return ConvolutionCall(c.written, (x, y, k), operands, shapes, settings, task.out, back, checked)


def both_gradients(one: ConvolutionCall, other: ConvolutionCall, made: Sequence[str]) -> tuple[list[str], str] | None:
    """Lines that make operands, and one that makes `made` of them, what two calls make: gradients by a convolution's
    input or, of a transposed one, by what that is given, and by the kernel. None where they are not of one
    convolution."""
    if one.written == KERNEL or other.written != KERNEL:
        return None
    cotangent = OUTPUT if one.written == INPUT else INPUT
    if one.operands[cotangent] != other.operands[cotangent]:
        return None
    if (one.names, one.shapes, one.settings) != (other.names, other.shapes, other.settings):
        return None
    x, y, k = one.names
    given, how = (f"{y}, {x}", "") if one.written == INPUT else (f"{x}, {y}", ", transposed=True")
    lines = [*other.operands[INPUT], *one.operands[KERNEL], *other.operands[OUTPUT]]
    return lines, f"{', '.join(made)} = rt.convolution_gradients({given}, {k}, {one.settings}{how})"


class _Views:
    """Each role's tensor as torch's [batch, group*channels, ...] or [group*out, in, ...], and back."""

    LAYOUT = {
        INPUT: (("batch",), ("group", "in")),
        OUTPUT: (("batch",), ("group", "out")),
        KERNEL: (("group", "out"), ("in",)),
    }

    def __init__(self, task: Task, c: Convolution):
        self.task, self.c = task, c

    def of(self, group: str) -> list[str]:
        """Bare variables of a kind; channels and groups in the order of the operands' own axes."""
        names = [v for v, axes in self.c.bare.items() if GROUPS[stands_in(axes)] == group]
        return sorted(names, key=lambda v: [a for a in self.c.bare[v] if a is not None])

    def size(self, role: int, v: str) -> int:
        return axis_size(self.c.operands[role], self.c.bare[v][role])

    def leading(self, role: int) -> list[int]:
        return [math.prod(self.size(role, v) for g in part for v in self.of(g)) for part in self.LAYOUT[role]]

    def reach(self, extents: list[SpatialExtent]) -> str:
        leading = self.leading(INPUT)
        low = [0, 0, *(e.low for e in extents)]
        high = [*(n - 1 for n in leading), *(e.high for e in extents)]
        return f"{tuple_text(low)}, {tuple_text(high)}, 0"

    def _parts(self, role: int) -> list[list[int]]:
        """Axes of the tensor that make up each of torch's dimensions."""
        parts = []
        for part in self.LAYOUT[role]:
            axes = [self.c.bare[v][role] for g in part for v in self.of(g)]
            parts.append([a for a in axes if a is not None])
        spatial = (s.axes[role] for s in self.c.spatial)
        return [*parts, *([] if axis is None else [axis] for axis in spatial)]

    def _order(self, role: int) -> tuple[list[int], bool]:
        """Axes of the tensor in torch's order, and whether they are torch's dimensions as they are."""
        parts = self._parts(role)
        axes = [a for part in parts for a in part]
        dropped = [a for a in range(len(self.c.operands[role].shape)) if a not in axes]
        return [*axes, *dropped], all(len(part) == 1 for part in parts) and not dropped

    def text(self, role: int) -> str:
        shape, (order, plain) = self.c.operands[role].shape, self._order(role)
        code = permuted(self.task.local[self.c.operands[role].tensor], order)
        sizes = [math.prod(shape[a] for a in part) for part in self._parts(role)]
        return code if plain else f"{code}.reshape({tuple_text(sizes)})"

    def back(self, role: int, code: str) -> str:
        """The inverse of `text`, on a result."""
        shape, (order, plain) = self.c.operands[role].shape, self._order(role)
        code = code if plain else f"{code}.reshape({tuple_text([shape[a] for a in order])})"
        return permuted(code, [order.index(a) for a in range(len(order))])
