"""Calls on DTensors: each rank runs its share of the divided program on what it holds, between collectives.

Nodes of autograd, tangents and batches above are those of any call; what arrives here is a program to be run, a
gradient like any other, so that its results lie where the same rules say.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilec.distributed.local import Stage, stages
from tilec.distributed.placements import REPLICATE, Placement, boxes, shape_of
from tilec.distributed.sharding import Sharding, shard
from tilec.errors import InputMistake, TileError, Unsupported
from tilec.ir.infer import infer
from tilec.ir.types import TensorType
from tilec.pipeline import CallContext, apply
from tilec.specialise import Prepared, Specialised, Specialiser
from tilec.torch_op.collectives import exchange, reduce

FLAT = ("bind", "flatten", "simplify")


def is_distributed(t: object) -> bool:
    """Is this a DTensor?"""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def replicated_like(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor, which is the same on all ranks, as a DTensor on the mesh of another if that is one."""
    if not is_distributed(like):
        return t
    return _wrapped(t, like.device_mesh, (REPLICATE,) * like.device_mesh.ndim, tuple(t.shape))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Layout:
    """The mesh that tensors lie on, the dimension of it along which some are divided, and how each lies along that."""

    mesh: Any
    dim: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class Share:
    """What this rank runs."""

    special: Specialised
    plan: Sharding
    stages: tuple[Stage, ...]
    prepared: tuple[Prepared | None, ...]


def run(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Sequence[bool], values: Sequence[int]) -> tuple:
    """The outputs of a function of DTensors, not recorded. Raises InputMistake for tensors that are none, or on other
    meshes, Unsupported for placements that are not understood."""
    layout = layout_of(function.inputs, tensors)
    rank = layout.mesh.get_local_rank(layout.dim)
    with torch.no_grad():
        local = [t.to_local() if is_distributed(t) else t for t in tensors]  # type: ignore[attr-defined]
    device = local[0].device.type if local else "cpu"
    ranks = layout.mesh.size(layout.dim)
    key = ("sharded", device, tuple(weak), tuple(values), layout.placements, ranks, rank)
    key = (*key, *[(t.shape, t.dtype) for t in tensors])  # type: ignore[assignment]
    share = function.shares.get(key)
    if share is None:
        share = function.shares[key] = _share(function, tensors, weak, values, layout, rank, device)
    _check_parts(function.inputs, tensors, local, layout, rank)
    env = dict(zip(function.inputs, local, strict=True))
    for place, replaced in share.special.replaced.items():
        env[function.inputs[place]] = replaced(local[place])
    _run_stages(share, env, rank, layout.mesh.get_group(layout.dim))
    results = []
    for r in share.special.results:
        name = None if r is None else share.special.program.outputs[r]
        results.append(None if name is None else _output(share.plan, name, env, layout))
    return tuple(results)


def _run_stages(share: Share, env: dict[str, torch.Tensor], rank: int, group: Any) -> None:
    plan = share.plan
    for stage, prepared in zip(share.stages, share.prepared, strict=True):
        for c in stage.communications:
            if c.reduction is None:
                env[c.result] = exchange(env[c.tensor], c.have, c.need, rank, group)
            else:
                env[c.result] = reduce(env[c.tensor], c.reduction, plan.ranks, group)
        if stage.program is not None and prepared is not None:
            named = zip(stage.arguments, stage.types.values(), strict=True)
            device = next(iter(env.values())).device if env else torch.device("cpu")
            given = [env[n] if n not in stage.stand_ins else _stand_in(t, device) for n, t in named]
            for name, result in zip(stage.program.outputs, prepared.unrecorded(given), strict=True):
                assert result is not None, "no result of a plain program is left out"
                env[name] = result
        for name in stage.released:
            env.pop(name, None)


def _stand_in(t: TensorType, device: torch.device) -> torch.Tensor:
    return torch.zeros((), dtype=getattr(torch, t.dtype), device=device).expand(t.shape)


def _share(function: Specialiser, tensors, weak, values, layout: Layout, rank: int, device: str) -> Share:
    types, sizes = function.types(tensors, weak), dict(zip(function.sizes, values, strict=True))
    placements = dict(zip(function.inputs, layout.placements, strict=True))
    try:
        function.warn(types, sizes) if function.gradient is None else None
        special = function.specialised(types, sizes)
        plan = plan_of(special, sizes, placements, layout.mesh.size(layout.dim))
        own = stages(plan, rank)
        prepared = [None if s.program is None else _prepared(function, s, device) for s in own]
    except TileError as error:
        raise error.located(function.source, function.filename) from None
    return Share(special, plan, own, tuple(prepared))


def plan_of(
    special: Specialised, sizes: Mapping[str, int], placements: Mapping[str, Placement], ranks: int
) -> Sharding:
    """How so many ranks divide a program."""
    flat = apply(FLAT, special.program, CallContext(special.types, sizes))
    return shard(flat, infer(flat, special.types), placements, ranks)


def _prepared(function: Specialiser, stage: Stage, device: str) -> Prepared:
    assert stage.program is not None
    made = function.made(stage.program)
    return made.lower(dict(stage.types), {}, function.backend, device, None, function.tune)[1]


def _output(plan: Sharding, name: str, env: Mapping[str, torch.Tensor], layout: Layout) -> torch.Tensor:
    local, placement = env[plan.results[name]], plan.outputs[name]
    every = [REPLICATE] * layout.mesh.ndim
    every[layout.dim] = placement
    return _wrapped(local, layout.mesh, every, plan.types[name].shape)


def _wrapped(local: torch.Tensor, mesh: Any, placements: Sequence[Placement], shape: tuple[int, ...]) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(1, shape[d + 1])
    how = [_torch_placement(p) for p in placements]
    return DTensor.from_local(local, mesh, how, run_check=False, shape=torch.Size(shape), stride=tuple(strides))


def _torch_placement(p: Placement) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if p.dim is not None:
        return Shard(p.dim)
    return Replicate() if p.reduction is None else Partial(p.reduction)


# what is given


def layout_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> Layout:
    """How the inputs lie."""
    given = [(n, t) for n, t in zip(names, tensors, strict=True) if is_distributed(t)]
    mesh = given[0][1].device_mesh  # type: ignore[attr-defined]
    for name, t in zip(names, tensors, strict=True):
        if not is_distributed(t):
            if t.dim():
                raise InputMistake(
                    f"{name} is a plain tensor, and {given[0][0]} a DTensor: nothing says how {name} lies on its mesh",
                    hint=f"distribute_tensor({name}, mesh, [Replicate()]) if every rank has the same, or pass "
                    "DTensors' to_local() to compute on each rank's own",
                )
        elif t.device_mesh != mesh:  # type: ignore[attr-defined]
            raise InputMistake(f"{given[0][0]} and {name} are DTensors on different meshes: {mesh}, {t.device_mesh}")  # type: ignore[attr-defined]
    if mesh.get_coordinate() is None:
        raise InputMistake(f"this rank is not on the mesh of {given[0][0]}: {mesh}")
    along = {name: [placement_of(name, p) for p in t.placements] for name, t in given}  # type: ignore[attr-defined]
    divided = {m: name for name, found in along.items() for m, p in enumerate(found) if p != REPLICATE}
    if len(divided) > 1:
        where = ", ".join(f"{name} along dimension {m}" for m, name in sorted(divided.items()))
        raise Unsupported(
            f"inputs are divided along several dimensions of the mesh ({where}); tilec divides along one",
            hint="redistribute them to Replicate() along the others",
        )
    dim = next(iter(divided), 0)
    return Layout(mesh, dim, tuple(along[n][dim] if n in along else REPLICATE for n in names))


def placements(
    names: Sequence[str], args: Sequence[object], told: Mapping[str, object], ranks: int | None
) -> tuple[dict[str, Placement], int]:
    """How inputs lie, told by name or as the DTensors given say, and over how many ranks."""
    found: dict[str, Placement] = {}
    given = [a for a in args if is_distributed(a)]
    if given:
        tensors = [a if is_distributed(a) else torch.empty(()) for a in args]
        layout = layout_of(names, tensors)  # type: ignore[arg-type]
        ranks = layout.mesh.size(layout.dim) if ranks is None else ranks
        found.update(zip(names, layout.placements, strict=True))
    if ranks is None:
        raise InputMistake("nothing says how many ranks there are", hint="pass ranks=2, or DTensors")
    for name, how in told.items():
        if how is None or isinstance(how, int):
            found[name] = Placement(how)
        else:
            one = [how] if not isinstance(how, (list, tuple)) else how
            if len(one) != 1:
                raise Unsupported(f"{name} has {len(one)} placements; tilec divides along one dimension of a mesh")
            found[name] = placement_of(name, one[0])
    return found, ranks


def placement_of(name: str, p: Any) -> Placement:
    """torch's placement as ours."""
    kind = type(p).__name__
    if kind == "Shard":
        return Placement(p.dim)
    if kind == "Replicate":
        return REPLICATE
    if kind == "Partial" and p.reduce_op in ("sum", "avg", "max", "min", "product"):
        return Placement(reduction=p.reduce_op)
    raise Unsupported(f"{name} is placed as {p}; tilec understands Shard, Replicate and Partial")


def _check_parts(names, tensors, local, layout: Layout, rank: int) -> None:
    ranks = layout.mesh.size(layout.dim)
    for name, t, own, p in zip(names, tensors, local, layout.placements, strict=True):
        placed = REPLICATE if p.reduction is not None else p
        if tuple(own.shape) != (wanted := shape_of(boxes(tuple(t.shape), placed, ranks)[rank])):
            raise InputMistake(
                f"rank {rank} holds {tuple(own.shape)} of {name}, of shape {tuple(t.shape)} and {p}; "
                f"it should hold {wanted}",
                hint="DTensor.from_local takes the whole tensor's shape and stride where parts are uneven",
            )
