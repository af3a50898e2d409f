"""Reads at looked up places: axis by axis or in whole rows, where torch's way with all indices at once goes element by
element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tilec.backends.common.code import part_text, tuple_text
from tilec.backends.common.domain import Domain, free
from tilec.ir.index import Affine
from tilec.ir.program import Access
from tilec.ir.rational import as_int


class LookupFrame(Protocol):
    """A `TensorFrame`."""

    domain: Domain
    order: tuple[str, ...]
    local: Mapping[str, str]
    loops: dict[str, tuple[str, str]]

    def in_order(self, text: str, names: Sequence[str]) -> str: ...


def by_axes(
    frame: LookupFrame, access: Access, forms: list[Affine], shape: Sequence[int], part: Callable[[int], str]
) -> tuple[str, bool] | None:
    """Axis by axis, where each index depends on one variable of its own: much faster than all indices at once. The
    text, and whether it is a copy; None elsewhere."""
    names = [sorted(free(f)) for f in forms]
    found = [v for one in names for v in one]
    if any(f.terms and not one for f, one in zip(forms, names, strict=True)):
        return None  # an element of a tensor
    if any(len(one) > 1 for one in names) or len(set(found)) < len(found) or not set(found) <= set(frame.order):
        return None
    slices, selections, dim = [], "", 0
    for axis, (form, one, size) in enumerate(zip(forms, names, shape, strict=True)):
        if not one:
            slices.append(str(min(max(as_int(form.constant), 0), size - 1)))
            continue
        (v,) = one
        start = frame.domain.low[v] + form.constant
        along = form == Affine.variable(v) + form.constant and form.is_integral
        if along and 0 <= start <= size - frame.domain.extent[v]:
            first, last = frame.loops.get(v, ("0", str(frame.domain.extent[v])))
            slices.append(f"{first} + {start}:{last} + {start}")
        else:
            slices.append(":")
            selections += f".index_select({dim}, ({part(axis)}).reshape(-1))"
        dim += 1
    text = f"{frame.local[access.tensor]}[{', '.join(slices)}]{selections}"
    return frame.in_order(text, found), bool(selections)


def whole_rows(
    frame: LookupFrame, access: Access, forms: list[Affine], shape: Sequence[int], part: Callable[[int], str]
) -> tuple[str, bool] | None:
    """Whole rows, where some axes follow variables of their own and the others, side by side, are looked up. The
    text, and that it is a copy; None elsewhere."""
    if not frame.order:
        return None
    alone: dict[int, str] = {}
    for axis, (form, size) in enumerate(zip(forms, shape, strict=True)):
        for v in form.variables():
            start = frame.domain.low[v] + form.constant
            along = form == Affine.variable(v) + form.constant and form.is_integral
            if along and 0 <= start <= size - frame.domain.extent[v]:
                alone[axis] = v
    looked: set[str] = set()
    while True:  # what a looked up index depends on is looked up too
        looked = {v for axis, f in enumerate(forms) if axis not in alone for v in free(f)}
        kept = {axis: v for axis, v in alone.items() if v not in looked and list(alone.values()).count(v) == 1}
        if kept == alone:
            break
        alone = kept
    sized = enumerate(zip(forms, shape, strict=True))
    numbers = {axis for axis, (f, n) in sized if not f.terms and 0 <= f.constant < n}
    axes = [axis for axis in range(len(forms)) if axis not in alone and axis not in numbers]
    if not looked or not looked <= set(frame.order) or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    slices = []
    for axis, form in enumerate(forms):
        if axis in alone:
            v = alone[axis]
            start = frame.domain.low[v] + as_int(form.constant)
            first, last = frame.loops.get(v, ("0", str(frame.domain.extent[v])))
            entire = v not in frame.loops and start == 0 and frame.domain.extent[v] == shape[axis]
            slices.append(":" if entire else f"{first} + {start}:{last} + {start}" if start else f"{first}:{last}")
        else:
            slices.append(str(as_int(form.constant)) if axis in numbers else ":")
    tensor = part_text(frame.local[access.tensor], slices)
    dims = [d for d, v in enumerate(frame.order) if v in looked]
    at = ", ".join(part(axis) for axis in axes)
    before = [alone[axis] for axis in sorted(alone) if axis < axes[0]]
    after = [alone[axis] for axis in sorted(alone) if axis > axes[0]]
    text = f"rt.taken({tensor}, {len(before)}, {tuple_text(dims)}, {at})"
    return frame.in_order(text, [*before, *(frame.order[d] for d in dims), *after]), True
