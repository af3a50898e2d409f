"""Random placements, and what simulated ranks answer beside what one does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from support.ranks import in_ranks
from support.stages import same
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from tilec.arguments import DTYPE_NAMES


@st.composite
def layouts(draw, arrays: Sequence[np.ndarray]):
    """(ranks, placements): a number of ranks, and a placement for each array that has dimensions."""
    ranks = draw(st.sampled_from([2, 2, 3, 4]))
    found: list[Placement] = []
    for a in arrays:
        kinds = ["shard"] * 4 * (a.ndim > 0) + ["replicate"] + ["partial"] * (a.dtype.kind == "f")
        kind = draw(st.sampled_from(kinds))
        if kind == "shard":
            found.append(Shard(draw(st.integers(0, a.ndim - 1))))
        else:
            found.append(Replicate() if kind == "replicate" else Partial("sum"))
    return ranks, found


def distributed(array: np.ndarray, mesh, placement: Placement) -> DTensor:
    """The same tensor on a mesh; one in parts is all on rank 0, so that the sum is exact."""
    t = torch.from_numpy(np.array(array))
    if isinstance(placement, Partial):
        own = t.clone() if mesh.get_local_rank() == 0 else torch.zeros_like(t)
        return DTensor.from_local(own, mesh, [placement], run_check=False)
    if isinstance(placement, Shard):
        each = -(-t.shape[placement.dim] // mesh.size())
        parts = torch.tensor_split(t, [k * each for k in range(1, mesh.size())], placement.dim)
        own = parts[mesh.get_local_rank()].clone()
        return DTensor.from_local(own, mesh, [placement], run_check=False, shape=t.shape, stride=t.stride())
    return DTensor.from_local(t.clone(), mesh, [placement], run_check=False)


def whole(t: torch.Tensor | None) -> np.ndarray | None:
    """All elements."""
    return None if t is None else t.full_tensor().detach().numpy()


def check_ranks(f, sizes, arrays, ranks: int, placements, expected, rough: float, gradients=None) -> None:
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
        values = [whole(r) for r in results]
        if gradients is None:
            return values, None
        cotangents, _ = gradients
        pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
        if not pairs:
            return values, [None] * len(asked)
        given = [distributed(c, mesh, Replicate()).to(r.dtype) for r, c in pairs]
        found = torch.autograd.grad([r for r, _ in pairs], asked, given, allow_unused=True)
        return values, [whole(g) for g in found]

    for values, found in in_ranks(ranks, body):
        for e, v in zip(expected, values, strict=True):
            assert same(e, v, rough), f"{f.tile}\n{placements} on {ranks}\nexpected\n{e}\ngot\n{v}"
        if found is not None:
            for e, g in zip(gradients[1], found, strict=True):
                g = np.zeros_like(e) if g is None else g
                assert same(e, g, rough), f"{f.tile}\n{placements} on {ranks}\ngradient\n{e}\ngot\n{g}"
