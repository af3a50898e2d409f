"""What attention adds to its scores, as a tensor: conditions and terms of indices and of other tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilec.backends.base import Lowering
from tilec.backends.common.terms import sum_of
from tilec.backends.torch.library.match import Occurrence
from tilec.ir.functions import all_of
from tilec.ir.program import Call, Float, Index, Input, Int, Program, Statement, index_variables, reads
from tilec.ir.types import TensorType, Types
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.reduce import reduce


def mask_axes(mask: tuple[str, str, str], match: Occurrence) -> list[tuple[str, ...]]:
    """For each variable of a mask the axes of its tensor: those of the first one that it depends on, all or none of
    the others."""
    condition, term, variables = mask
    first, *others = list(variables)
    used = set(index_variables(*match.free.get(condition, ()), *match.free.get(term, ())))
    packs = [tuple(a for a in match.axes[first] if a in used)]
    return packs + [match.axes[p] if used.intersection(match.axes[p]) else () for p in others]


def shared_first(mask: tuple[str, str, str], match: Occurrence) -> Occurrence:
    """The match with axes that share a mask before those that have one each."""
    first, own = mask[2][0], mask_axes(mask, match)[0]
    axes = sorted(match.axes[first], key=lambda a: a in own)
    return replace(match, axes={**match.axes, first: tuple(axes)})


def mask_of(
    mask: tuple[str, str, str], match: Occurrence, types: Types, dtype: str
) -> tuple[Lowering, list[int]] | None:
    """A program of the mask, and the mask's shape with one axis for each variable; None where there is none."""
    conditions, terms = match.free.get(mask[0], ()), match.free.get(mask[1], ())
    if not conditions and not terms:
        return None
    packs = mask_axes(mask, match)
    body = sum_of(terms or [Float(0.0)])
    if (seen := all_of(conditions)) is not None:
        body = Call("select", (seen, body, Call("neg", (Float(math.inf),))))
    axes = [a for pack in packs for a in pack]
    shape = tuple(match.sizes[a] for a in axes)
    name = "Mask"
    while name in types:
        name += "_"
    s = Statement(name, tuple(map(Index, axes)), tuple(map(Int, shape)), Call(dtype, (body,)))
    made = lowered([s], [name], {**types, name: TensorType(shape, dtype)})
    return made, [math.prod(match.sizes[a] for a in pack) for pack in packs]


def lowered(statements: Sequence[Statement], outputs: Sequence[str], types: Types) -> Lowering:
    """Statements as a program of what they read."""
    inside = {s.output for s in statements}
    inputs = dict.fromkeys(t for s in statements for t in reads(s) if t not in inside)
    flat = Program(None, tuple(Input(t, types[t].shape) for t in inputs), tuple(outputs), tuple(statements))
    reduced = reduce(flat)
    known = {t: types[t] for t in (*inputs, *inside)}
    return Lowering({"flat": flat, "reduced": reduced, "defracted": defract(reduced)}, known)
