"""Random placements, and what simulated ranks answer beside what one does."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from support.ranks import in_ranks
from support.stages import same
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from tilec.arguments import DTYPE_NAMES

Placed = Placement | Sequence[Placement]
MESHES = ((2,), (2,), (2,), (3,), (4,), (2, 2), (2, 2), (3, 2))


@st.composite
def layouts(draw, arrays: Sequence[np.ndarray], meshes: Sequence[tuple[int, ...]] = MESHES):
    """(mesh, placements): the numbers of ranks along its dimensions, and placements for each array."""
    mesh = draw(st.sampled_from(meshes))
    found: list[list[Placement]] = []
    for a in arrays:
        kinds = ["shard"] * 4 * (a.ndim > 0) + ["replicate"] + ["partial"] * (a.dtype.kind == "f")
        along: list[Placement] = []
        for _ in mesh:
            kind = draw(st.sampled_from(kinds))
            if kind == "shard":
                along.append(Shard(draw(st.integers(0, a.ndim - 1))))
            else:
                along.append(Replicate() if kind == "replicate" else Partial("sum"))
        found.append(along)
    return mesh, found


def several(placed: Placed) -> list[Placement]:
    return [placed] if isinstance(placed, Placement) else list(placed)


def distributed(array: np.ndarray, mesh, placed: Placed) -> DTensor:
    """The same tensor on a mesh; one in parts is all on the first rank along that dimension, so that the sum is
    exact."""
    t = torch.from_numpy(np.array(array))
    own, placements = t, several(placed)
    for m, p in enumerate(placements):
        place = mesh.get_local_rank(m)
        if isinstance(p, Partial):
            own = own if place == 0 else torch.zeros_like(own)
        elif isinstance(p, Shard):
            each = -(-own.shape[p.dim] // mesh.size(m))
            own = torch.tensor_split(own, [k * each for k in range(1, mesh.size(m))], p.dim)[place]
    own = own.clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=t.shape, stride=t.stride())


Held = tuple[np.ndarray, Sequence[Placement]] | None
REDUCED = {"sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


def held(t: torch.Tensor | None) -> Held:
    """What a rank has of a tensor, and how it lies."""
    return None if t is None else (t.to_local().detach().numpy(), t.placements)


def whole(parts: Sequence[Held], mesh: tuple[int, ...]) -> np.ndarray | None:
    """All elements, of what each rank of a mesh has. torch's own `full_tensor` does not put uneven parts of parts
    together."""
    if parts[0] is None:
        return None
    own, placements = [p[0] for p in parts], parts[0][1]
    for ranks, p in zip(reversed(mesh), reversed(placements), strict=True):
        groups = [own[k : k + ranks] for k in range(0, len(own), ranks)]
        if isinstance(p, Shard):
            own = [np.concatenate(g, p.dim) for g in groups]
        elif isinstance(p, Partial):
            own = [functools.reduce(REDUCED[p.reduce_op], g) for g in groups]
        else:
            for g in groups:
                for other in g[1:]:
                    np.testing.assert_array_equal(other, g[0])
            own = [g[0] for g in groups]
    return own[0]


def check_ranks(
    f, sizes, arrays, ranks: int | tuple[int, ...], placements, expected, rough: float, gradients=None
) -> None:
    """All ranks have the outputs `expected`, and by floating inputs the gradients `gradients` for the cotangents that
    these come with. `sizes`: positions of inputs that stand in sizes."""
    if len(sizes) == len(arrays):  # nothing lies on a mesh
        return

    def body(mesh):
        given = []
        for k, (a, p) in enumerate(zip(arrays, placements, strict=True)):
            given.append(int(a) if k in sizes else distributed(a, mesh, p))
        asked = [g for g in given if isinstance(g, DTensor) and g.is_floating_point() and gradients is not None]
        for g in asked:
            g.requires_grad_()
        results = f(*given)
        results = results if isinstance(results, tuple) else (results,)
        for r in results:
            assert DTYPE_NAMES[r.dtype] == DTYPE_NAMES[r.to_local().dtype]
        values = [held(r) for r in results]
        if gradients is None:
            return values, None
        cotangents, _ = gradients
        pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
        if not pairs:
            return values, [None] * len(asked)
        given = [distributed(c, mesh, [Replicate()] * mesh.ndim).to(r.dtype) for r, c in pairs]
        found = torch.autograd.grad([r for r, _ in pairs], asked, given, allow_unused=True)
        return values, [held(g) for g in found]

    mesh = (ranks,) if isinstance(ranks, int) else ranks
    every = in_ranks(mesh, body)
    for k, e in enumerate(expected):
        v = whole([values[k] for values, _ in every], mesh)
        assert same(e, v, rough), f"{f.tile}\n{placements} on {ranks}\nexpected\n{e}\ngot\n{v}"
    if every[0][1] is not None:
        for k, e in enumerate(gradients[1]):
            g = whole([found[k] for _, found in every], mesh)
            g = np.zeros_like(e) if g is None else g
            assert same(e, g, rough), f"{f.tile}\n{placements} on {ranks}\ngradient\n{e}\ngot\n{g}"
