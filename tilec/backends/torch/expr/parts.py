"""Text of parts of tensors for calls that take a tensor and slices: a view of each would cost more than the call."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.backends.common.domain import Domain
from tilec.backends.torch.expr.access import TensorFrame
from tilec.ir.index import linear
from tilec.ir.program import Access
from tilec.ir.rational import as_int


def part_slices(domain: Domain, part: Domain, order: Sequence[str]) -> str:
    """The slices of a tensor of all points that some of them are; `()` for all."""
    if all(part.extent[v] == domain.extent[v] for v in order):
        return "()"
    moved = ((v, part.low[v] - domain.low[v], part.extent[v]) for v in order)
    slices = [f"slice({a}, {a + n})" if n < domain.extent[v] else "slice(None)" for v, a, n in moved]
    return f"({', '.join(slices)},)"


def part_read(frame: TensorFrame, access: Access) -> str | None:
    """The elements read; None where they would have to be copied."""
    found = access_slice(frame, access)
    if found is not None:
        return found
    text, _ = frame.read(access)
    return text if text in frame.views else None


def access_slice(frame: TensorFrame, access: Access) -> str | None:
    """A tensor and slices of its dimensions, where these are the frame's, in order."""
    shape, domain = frame.types[access.tensor].shape, frame.domain
    if not shape or len(shape) != len(frame.order):
        return None
    texts: list[str] = []
    for v, form, size in zip(frame.order, map(linear, access.index), shape, strict=True):
        step = form.coefficient(v)
        if form.variables() != (v,) or not form.is_affine or not form.is_integral or step < 1:
            return None
        first = as_int(form.constant + step * domain.low[v])
        last = as_int(first + step * (domain.extent[v] - 1))
        if first < 0 or last >= size or v in frame.loops and (first or step != 1):
            return None
        ends = frame.loops.get(v) or (str(first), str(last + 1))
        whole = v not in frame.loops and step == 1 and (first, last) == (0, size - 1)
        texts.append("slice(None)" if whole else f"slice({', '.join(ends)}, {as_int(step)})")
    return f"({frame.local[access.tensor]}, ({', '.join(texts)},))"
