"""A backward pass, made ready: which gradients are computed, and which are views of cotangents.

A gradient that is a cotangent under other axes (permuted, repeated, with axes of size 1 more or fewer) is a view of it,
as torch's own is for a transposition or a sum. Only a node of autograd does so: outputs of a call, a gradient's that is
called by hand among them, have memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tilec.ir.program import Access, Call, Index, Inside, Int, Name, Program, Statement, children, expressions
from tilec.ir.types import TensorType, Types
from tilec.lattice.sets import sizes_of
from tilec.prepare.classes import Opened, OpenProgram
from tilec.prepare.prepared import Specialised
from tilec.saving import Partition
from tilec.torch_op import dtensors
from tilec.torch_op.levels import Outputs
from tilec.transforms.checkpoint.absent import without_cotangents
from tilec.transforms.checkpoint.backward import Backward
from tilec.transforms.simplify.simplify import simplify

if TYPE_CHECKING:
    from tilec.torch_op.recorded import Ready


@dataclass(frozen=True)
class CotangentView:
    """A gradient as a view: `axes` are the axes of the cotangent `source` by the gradient's, None where the elements
    are repeated; axes of size 1 that are left out are dropped. `shape`: the gradient's."""

    source: str
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]

    @property
    def repeats(self) -> bool:
        return any(a is None and n != 1 for a, n in zip(self.axes, self.shape, strict=True))

    def __call__(self, cotangent: torch.Tensor) -> torch.Tensor:
        if self.axes == tuple(range(cotangent.dim())):
            return cotangent
        used = [a for a in self.axes if a is not None]
        dropped = [a for a in range(cotangent.dim()) if a not in used]
        view = cotangent.permute((*dropped, *used))
        for _ in dropped:
            view = view.select(0, 0)
        for place, axis in enumerate(self.axes):
            view = view if axis is not None else view.unsqueeze(place)
        # at one place of an axis, as torch's gradient of `X[0]` is: that is no view, and may be added to
        return view.clone() if None in self.axes and not self.repeats else view.expand(self.shape)


def gradient_views(program: Program, cotangents: tuple[str, ...], types: Types) -> dict[str, CotangentView]:
    """The outputs of a flat gradient program that are such views, by name. `types`: of its inputs."""
    found = {}
    made = {s.output: s for s in program.statements}
    for name in program.outputs:
        if name in cotangents:
            shape = types[name].shape
            found[name] = CotangentView(name, tuple(range(len(shape))), shape)
        elif name in made and (view := _view(made[name], cotangents, types)) is not None:
            found[name] = view
    return found


def input_views(wrt: tuple[str, ...], backward: Backward) -> dict[str, CotangentView]:
    """The gradients that are views of cotangents, by the input's name."""
    found = gradient_views(backward.program, backward.cotangents, backward.types)
    pairs = zip(wrt, backward.program.outputs, strict=True)
    return {name: found[output] for name, output in pairs if output in found}


def _view(s: Statement, cotangents: tuple[str, ...], types: Types) -> CotangentView | None:
    """A statement as a view: every element is one element of a cotangent, at places that are bare variables."""
    source = s.body
    if not isinstance(source, Access) or source.tensor not in cotangents or s.aggregation not in ("assign", "sum"):
        return None
    if s.guard is not None or s.constraints or s.default is not None or s.init is not None or s.attributes:
        return None
    extents = _extents(s)
    if extents is None:
        return None
    axes: dict[str, int] = {}
    for axis, (e, n) in enumerate(zip(source.index, types[source.tensor].shape, strict=True)):
        if isinstance(e, Index) and e.name not in axes and extents.get(e.name) == n:
            axes[e.name] = axis
        elif n != 1 or e != Int(0):
            return None
    names = [e.name if isinstance(e, Index) else "" for e in s.index or ()]
    return CotangentView(source.tensor, tuple([axes.get(v) for v in names]), sizes_of(s))


def _extents(s: Statement) -> dict[str, int] | None:
    """The sizes of the output's variables where these, each once, and zeros in axes of size 1 are its index."""
    shape = sizes_of(s)
    if s.index is None or len(shape) != len(s.index):
        return None
    extents: dict[str, int] = {}
    for e, n in zip(s.index, shape, strict=True):
        if isinstance(e, Index) and e.name not in extents:
            extents[e.name] = n
        elif n != 1 or e != Int(0):
            return None
    return extents


def gradient_by(wanted: Sequence[str], wrt: Sequence[str], backward: Backward, absent: Sequence[str]) -> Program:
    """The program of the gradients by the inputs `wanted` alone, where the cotangents `absent` are not there."""
    names = dict(zip(wrt, backward.program.outputs, strict=True))
    program = without_cotangents(backward.program, absent, backward.types)
    return simplify(program, [names[name] for name in wanted])


@dataclass(frozen=True)
class OpenRecord:
    """What recorded calls of a class of shapes share: sizes are left open in all of it. `forward`: where there are
    extras; `views`: gradients that are views of cotangents, where extras have none."""

    opened: Opened
    wrt: tuple[str, ...]
    special: Specialised
    partition: Partition
    forward: OpenProgram | None
    views: dict[str, CotangentView]
    gradients: dict[object, OpenProgram] = field(default_factory=dict)


OpenRecordAt = tuple[OpenRecord, Mapping[str, int]]

SHAPE_ALONE = {"shape": 0, "index": 0, "simple_reduce": 1, "as_type": 1}  # the argument that lends shape or type


def elements_read(program: Program) -> set[str]:
    """The tensors of which a program, bound or not, may read elements, rather than the shape and type alone."""
    found = set(program.outputs)
    for s in program.statements:
        found |= set() if s.default is None else {s.default}
        rest = list(expressions(s))
        while rest:
            e = rest.pop()
            if isinstance(e, Access | Name):
                found.add(e.tensor if isinstance(e, Access) else e.name)
            below = e.access.index if isinstance(e, Inside) else children(e)
            lends = SHAPE_ALONE.get(e.function) if isinstance(e, Call) else None
            rest += [b for place, b in enumerate(below) if place != lends or not isinstance(b, Name)]
    return found


GradientSource = int | tuple[int, CotangentView] | None


@dataclass(frozen=True)
class BackwardPass:
    """A backward pass, made ready. `run`: the function, None where all gradients are views. `sources`: for each of its
    inputs its place in what was kept and the cotangents, in that order, or the type of what is not there; `results`:
    for each input of the recorded function the place of its gradient, or that of the cotangent that it is a view of;
    `replaced`: what takes the place of something kept, by its place. `unread`: what is not there lends its shape
    alone."""

    run: Ready | None
    sources: tuple[int | TensorType, ...]
    results: tuple[GradientSource, ...]
    replaced: Mapping[int, Callable[[torch.Tensor], torch.Tensor]]
    unread: bool = True

    def placed(
        self, kept: Sequence[torch.Tensor], d_outputs: Outputs
    ) -> tuple[list[int], list[torch.Tensor], list[torch.Tensor]]:
        """For each input of the function its place among what was kept, the cotangents and what stands in for others;
        the latter; the inputs."""
        like = next(d for d in d_outputs if d is not None)
        beside = [standing_in(s, like) for s in self.sources if isinstance(s, TensorType)]
        given: Any = (*kept, *d_outputs, *beside)
        places = iter(range(len(given) - len(beside), len(given)))
        sources = [s if isinstance(s, int) else next(places) for s in self.sources]
        return sources, beside, [given[s] for s in sources]

    def gradients(self, found: Outputs, given: Sequence[Any]) -> Outputs:
        """The gradients, of what the function found and what was kept and the cotangents."""
        every: list[torch.Tensor | None] = []
        for r in self.results:
            every.append(r[1](given[r[0]]) if isinstance(r, tuple) else None if r is None else found[r])
        views = [place for place, r in enumerate(self.results) if isinstance(r, tuple) and not r[1].repeats]
        return _apart(every, views) if len(views) > 1 else tuple(every)


def _apart(gradients: list[torch.Tensor | None], views: Sequence[int]) -> Outputs:
    """The same with copies for all but one of the views of the same memory: torch adds in place to a gradient that
    nothing else refers to, and asks the tensor, not its memory."""
    for k, place in enumerate(views):
        mine, others = gradients[place], [gradients[p] for p in views[:k]]
        if mine is not None and not any(mine is o for o in others):
            if any(torch._C._is_alias_of(mine, o) for o in others):  # type: ignore[attr-defined]
                gradients[place] = mine.clone()
    return tuple(gradients)


def standing_in(t: TensorType, like: torch.Tensor) -> torch.Tensor:
    """Zeros in one element of memory: for a cotangent that is not there, or an input that lends its shape alone."""
    zeros = torch.zeros((), dtype=getattr(torch, t.dtype), device=like.device).expand(t.shape)
    return dtensors.replicated_like(zeros, like)
