"""Tensor maps: how the boxes of a tile are copied between a tensor and shared memory.

An axis of a tensor map is walked by one boxed variable with coefficient 1, or it is one scalar coordinate. A
coefficient s above 1 becomes 1 in the views of one
residue of the coordinate modulo s each: base shifted, stride scaled. What lies outside a map reads as zero, negative
coordinates included.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.triton.matmul.hopper.form import HopperProblem, Variable, coefficients, form_bounds
from tilec.backends.triton.plan.plan import Descriptor
from tilec.ir.index import Affine
from tilec.ir.types import ITEM_BYTES

MAX_RANK = 5
MAX_BOX = 256
MAX_MAPS = 9
DESCRIPTOR_ALIGNMENT = 16  # bytes, of the base and of every stride but the last
BIAS = 1 << 12  # times the step: makes dividends nonnegative


@dataclass(frozen=True)
class TensorView:
    """A tensor as it lies in memory. `in_lines`: boxes of it are taken to come as fast as those whose rows begin with
    lines of the caches."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    in_lines: bool = False

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def inner(self) -> int | None:
        """The axis whose elements lie next to each other."""
        axes = [a for a, s in enumerate(self.strides) if s == 1 and self.shape[a] > 1]
        return axes[0] if len(axes) == 1 else None


@dataclass(frozen=True)
class Dim:
    """One dimension of a tensor map: tensor axis `axis`, walked by `boxed` in steps of `step`, else at the coordinate
    `form`.

    `residues` are those that the coordinate's other part may have modulo `step`; there is a map for each.
    """

    axis: int
    form: Affine
    boxed: str | None
    step: int
    residues: tuple[int, ...]
    limit: int

    @property
    def rest(self) -> Affine:
        return self.form if self.boxed is None else self.form - Affine.variable(self.boxed, self.step)


@dataclass(frozen=True)
class View:
    """The maps of one tensor: dimensions outermost first, the last one contiguous. `choices` are the residues of each
    map at the dimensions that have several."""

    dims: tuple[Dim, ...]

    @property
    def split(self) -> tuple[Dim, ...]:
        return tuple(d for d in self.dims if len(d.residues) > 1)

    @property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        return tuple(itertools.product(*(d.residues for d in self.split)))

    @property
    def inner(self) -> str | None:
        return self.dims[-1].boxed

    def box(self, boxes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(1 if d.boxed is None else boxes[d.boxed] for d in self.dims)


def view(
    tensor: TensorView,
    forms: Sequence[Affine],
    problem: HopperProblem,
    boxes: Mapping[str, int],
    order: Sequence[str],
    clip: Mapping[int, int],
) -> View | None:
    """The maps through which a tile reaches a tensor, or None where TMA's rules do not allow any.

    `order` names the variables that may be boxed beside the contiguous one, in the order in which a tile counts them;
    `clip` gives axes sizes below the tensor's.
    """
    if tensor.inner is None:
        return None
    dims: list[Dim] = []
    for axis, form in enumerate(forms):
        boxed = [(name, c) for name, c in coefficients(form) if boxes.get(name, 1) > 1]
        if len(boxed) > 1:
            return None
        limit = clip.get(axis, tensor.shape[axis])
        if not boxed:
            dims.append(Dim(axis, form, None, 1, (0,), limit))
            continue
        ((name, step),) = boxed
        rest = form - Affine.variable(name, step)
        if step < 1 or (step > 1 and max(map(abs, _reach(rest, problem))) >= BIAS * step):
            return None
        dims.append(Dim(axis, form, name, step, _residues(rest, step, problem), limit))
    last = dims[tensor.inner]
    if last.boxed is None:
        return None
    dims = _merged(dims, tensor, problem)
    if len(dims) > MAX_RANK:
        return None
    names = [d.boxed for d in dims if d.boxed is not None]
    outer = sorted(
        (d for d in dims if d is not last),
        key=lambda d: -1 if d.boxed is None else order.index(d.boxed) if d.boxed in order else math.inf,
    )
    result = View((*outer, last))
    lone = not last.rest.terms and not int(last.rest.constant) * tensor.size % DESCRIPTOR_ALIGNMENT
    if (
        last.step > 1
        or not lone
        or len(names) != len({*names})
        or any(n not in order for n in names if n != last.boxed)
    ):
        return None
    aligned = all(
        _stride(tensor, d) > 0 and _stride(tensor, d) * tensor.size % DESCRIPTOR_ALIGNMENT == 0 for d in outer
    )
    shifts = all(r * tensor.strides[d.axis] * tensor.size % DESCRIPTOR_ALIGNMENT == 0 for d in dims for r in d.residues)
    box = result.box(boxes)
    if (
        not aligned
        or not shifts
        or max(box) > MAX_BOX
        or box[-1] * tensor.size < 2 * DESCRIPTOR_ALIGNMENT
        or len(result.choices) > MAX_MAPS
    ):
        return None
    return result if all(-(-(d.limit - max(d.residues)) // d.step) > 0 for d in dims) else None


def _merged(dims: list[Dim], tensor: TensorView, problem: HopperProblem) -> list[Dim]:
    """Two dimensions of scalar coordinates as one, as often as the rank asks for it.

    The inner one's coordinate is never outside, so that theirs together is outside where the outer one's is. What lies
    between two coordinates of the outer one then stands in the kernel's text.
    """
    while len(dims) > MAX_RANK:
        scalars = [d for d in dims if d.boxed is None]
        pairs = (
            (outer, inner, tensor.strides[outer.axis] // tensor.strides[inner.axis])
            for outer, inner in itertools.permutations(scalars, 2)
            if tensor.strides[inner.axis] > 0 and tensor.strides[outer.axis] % tensor.strides[inner.axis] == 0
        )
        fitting = [(o, i, r) for o, i, r in pairs if r >= i.limit and not may_leave(i.form, i.limit, problem)]
        if not fitting:
            break
        outer, inner, ratio = min(fitting, key=lambda pair: pair[2])
        limit = (outer.limit - 1) * ratio + inner.limit
        merged = Dim(inner.axis, outer.form * ratio + inner.form, None, 1, (0,), limit)
        dims = [merged if d is inner else d for d in dims if d is not outer]
    return dims


def descriptors(tensor: TensorView, maps: View, boxes: Mapping[str, int]) -> tuple[Descriptor, ...]:
    """One for each of the view's choices, in their order."""
    found = []
    block = maps.box(boxes)
    layout = f"gl.NVMMASharedLayout.get_default_for([{', '.join(map(str, block))}], gl.{tensor.dtype})"
    for choice in maps.choices:
        chosen = dict(zip((d.axis for d in maps.split), choice, strict=True))
        shifts = [chosen.get(d.axis, d.residues[0]) for d in maps.dims]
        found.append(
            Descriptor(
                tensor.name,
                sum(r * tensor.strides[d.axis] for d, r in zip(maps.dims, shifts, strict=True)),
                tuple(-(-(d.limit - r) // d.step) for d, r in zip(maps.dims, shifts, strict=True)),
                tuple(_stride(tensor, d) for d in maps.dims),
                block,
                layout,
            )
        )
    return tuple(found)


def _stride(tensor: TensorView, dim: Dim) -> int:
    """Elements from one coordinate to the next; of an axis with one element any that is aligned."""
    return (
        DESCRIPTOR_ALIGNMENT if dim.limit == 1 and tensor.shape[dim.axis] == 1 else tensor.strides[dim.axis] * dim.step
    )


def _reach(form: Affine, problem: HopperProblem) -> tuple[int, int]:
    found = [form_bounds(form, ranges) for ranges in problem.summing()]
    return min((f[0] for f in found), default=0), max((f[1] for f in found), default=0)


def _residues(rest: Affine, step: int, problem: HopperProblem) -> tuple[int, ...]:
    """The values modulo `step` that a form takes over the classes' points."""
    found: set[int] = set()
    for ranges in problem.summing() if step > 1 else ():
        here = {int(rest.constant) % step}
        for name, c in coefficients(rest):
            first, last = ranges[name]
            here = {(r + c * x) % step for r in here for x in range(first, min(last, first + step - 1) + 1)}
        found |= here
    return tuple(sorted(found)) or (0,)


def may_leave(form: Affine, size: int, problem: HopperProblem) -> bool:
    """Can a form be outside 0..size-1 while every variable is in its range?"""
    return any(low < 0 or high >= size for low, high in (form_bounds(form, ranges) for ranges in problem.summing()))


def ends(variable: Variable, form: Affine, size: int, problem: HopperProblem) -> bool:
    """Is an axis left, in every class, as soon as a variable passes its last value?"""
    if int(form.coefficient(variable.name)) < 1:
        return False
    return all(
        form_bounds(form, {**ranges, variable.name: (variable.size, variable.size)})[0] >= size
        for ranges in problem.summing()
    )
