"""Calls on DTensors: each rank runs its share of the divided program on what it holds, between collectives.

Nodes of autograd, tangents and batches above are those of any call; what arrives here is a program to be run, a
gradient like any other, so that its results lie where the same rules say.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from tilec.distributed.local import LocalProgram, PipelineStep, Stage, rank_stages
from tilec.distributed.placements import (
    REPLICATE,
    Mesh,
    Placement,
    Placements,
    everywhere,
    peers,
    shape_of,
    shard_boxes,
)
from tilec.distributed.plan import Communication, Sharding
from tilec.distributed.sharding import shard
from tilec.errors import InputMistake, TileError, Unsupported
from tilec.ir.infer import infer
from tilec.ir.types import TensorType
from tilec.pipeline import CallContext, apply
from tilec.prepare.prepared import Prepared, Specialised
from tilec.specialise import Specialiser
from tilec.torch_op.collectives import Exchange, all_gather, all_reduce, exchange, send
from tilec.torch_op.state import ordinary
from tilec.torch_op.text import text_of

FLAT = ("bind", "flatten", "simplify")


def is_distributed(t: object) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def replicated_like(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor, which is the same on all ranks, as a DTensor on the mesh of another if that is one."""
    if not is_distributed(like):
        return t
    from torch.distributed.tensor import DTensor

    mesh = like.device_mesh  # type: ignore[attr-defined]
    spec = _spec(mesh, (REPLICATE,) * mesh.ndim, t.shape, t.dtype)
    return DTensor(t, spec, requires_grad=False)  # type: ignore[call-arg]


@dataclass(frozen=True)
class _Layout:
    """The mesh that tensors lie on, and how each lies on it."""

    mesh: Any
    placements: tuple[Placements, ...]


@dataclass
class Share:
    """What this rank runs of calls whose tensors lie as in one before. `local`: the shapes of what it holds;
    `prepared`: what runs of each piece of work; `wrappings`: how results that there are become DTensors; `groups`:
    the ranks along each dimension of the mesh, this one among them."""

    special: Specialised
    plan: Sharding
    rank: int
    stages: tuple[Stage, ...]
    local: tuple[torch.Size, ...]
    prepared: Mapping[int, tuple[Specialiser, Prepared]]
    wrappings: tuple[tuple[str, Any] | None, ...]
    mesh: Any
    groups: tuple[Any, ...]

    def run(self, work: LocalProgram, env: Mapping[str, torch.Tensor], device: torch.device, *more: torch.Tensor):
        given = zip(work.arguments, work.types.values(), strict=False)
        tensors = [_stand_in(t, device) if n in work.stand_ins else _seen(env[n], t.shape) for n, t in given]
        made, prepared = self.prepared[id(work)]
        tensors += more
        if ordinary(tensors):
            results = prepared.unrecorded(tensors)
        else:  # torch traces
            numbers = [place for place, t in enumerate(work.types.values()) if t.weak]
            results = torch.ops.tilec.call(text_of(made), tensors, numbers, [])
        return zip(work.program.outputs, results, strict=True)


def run_placed(
    function: Specialiser, tensors: Sequence[torch.Tensor], weak: Sequence[bool], values: Sequence[int]
) -> tuple:
    """The outputs of a function of DTensors, not recorded. Raises InputMistake for tensors that are none, or on other
    meshes, Unsupported for placements that are not understood."""
    placed = [is_distributed(t) for t in tensors]
    with torch.no_grad():
        local = [t.to_local() if d else t for t, d in zip(tensors, placed, strict=True)]  # type: ignore[attr-defined]
    how = [t._spec if d else (t.shape, t.dtype) for t, d in zip(tensors, placed, strict=True)]  # type: ignore[attr-defined]
    key = (torch.distributed.get_rank(), local[0].device.type, tuple(weak), tuple(values), *how)
    share = function.shares.get(key)
    if share is None:
        share = function.shares[key] = _share(function, tensors, weak, values, local[0].device.type)
    mesh = tensors[placed.index(True)].device_mesh  # type: ignore[attr-defined]
    if share.mesh is not mesh:  # an equal one, perhaps of a process group since
        share.mesh, share.groups = mesh, _groups(mesh)
    if any([t.shape != shape for t, shape in zip(local, share.local, strict=True)]):
        _refuse_parts(function.inputs, tensors, local, share)
    env = dict(zip(function.inputs, local, strict=True))
    for place, replaced in share.special.replaced.items():
        env[function.inputs[place]] = replaced(local[place])
    _run_stages(share, env)
    from torch.distributed.tensor import DTensor

    results = [
        None if w is None else DTensor(env[w[0]].contiguous(), w[1], requires_grad=False)  # type: ignore[call-arg]
        for w in share.wrappings
    ]
    return tuple(results)


def _run_stages(share: Share, env: dict[str, torch.Tensor]) -> None:
    device = next(iter(env.values())).device
    for stage in share.stages:
        for kind, found in groupby(stage.together, _kind):
            if kind == "exchange":
                moved = sorted([c for c in found if isinstance(c, Communication)], key=_inner_first)
                for along, some in groupby(moved, lambda c: c.along):
                    _exchange(share, env, along, tuple(some))
                continue
            for c in found:
                if isinstance(c, PipelineStep):
                    env[c.result] = _run_pipeline_step(share, c, env, device)
                elif c.reduction is not None:
                    ranks, group = share.plan.mesh[c.along], share.groups[c.along]
                    env[c.result] = all_reduce(env[c.source], c.reduction, ranks, group)
        if stage.work is not None:
            env.update(share.run(stage.work, env, device))
        for name in stage.released:
            env.pop(name, None)


def _inner_first(c: Communication) -> int:
    return -c.along


def _exchange(share: Share, env: dict[str, torch.Tensor], along: int, moved: Sequence[Communication]) -> None:
    ranks = peers(share.plan.mesh, share.rank, along)
    given = [
        Exchange(env[c.source], tuple([c.have[r] for r in ranks]), tuple([c.need[r] for r in ranks])) for c in moved
    ]
    found = exchange(given, ranks.index(share.rank), share.groups[along])
    env.update(zip([c.result for c in moved], found, strict=True))


def _kind(c: Communication | PipelineStep) -> str:
    return "pipeline" if isinstance(c, PipelineStep) else "exchange" if c.reduction is None else "reduction"


def _run_pipeline_step(share: Share, step: PipelineStep, env, device: torch.device) -> torch.Tensor:
    """A recurrence's elements of this rank, once the states of the one before are there."""
    ranks, group, forward = share.plan.mesh[step.along], share.groups[step.along], step.depth > 0
    rank = peers(share.plan.mesh, share.rank, step.along).index(share.rank)
    if step.summary is not None:
        return _compose(share, step, env, ranks, group, device)
    states = torch.zeros(step.states.shape, dtype=getattr(torch, step.states.dtype), device=device)

    def own() -> torch.Tensor:
        ((_, result),) = share.run(step.work, env, device, *(() if step.first else (states,)))
        return result

    place = rank if forward else ranks - 1 - rank  # in the order of turns
    result = own() if place == 0 else None
    for sender in range(ranks - 1):
        source, target = (sender, sender + 1) if forward else (ranks - 1 - sender, ranks - 2 - sender)
        passed = _states(states, result, step) if rank == source and result is not None else states
        states = send(passed, source, target, rank, ranks, group)
        if rank == target:
            result = own()
    assert result is not None, "each rank has a step"
    return result


def _compose(share: Share, step: PipelineStep, env, ranks: int, group: Any, device: torch.device) -> torch.Tensor:
    assert step.summary is not None, "the steps compose"
    own, *blocks = (t for _, t in share.run(step.summary, env, device))
    summaries = all_gather(own, ranks, group)
    states = [] if step.first or step.carry is None else [s for _, s in share.run(step.carry, env, device, summaries)]
    ((_, result),) = share.run(step.work, env, device, *blocks, *states)
    return result.reshape(step.shape)


def _states(before: torch.Tensor, result: torch.Tensor, step: PipelineStep) -> torch.Tensor:
    """The last elements of a rank, or the first if the recurrence runs backward; with those before it where it has
    fewer than are asked for."""
    n, depth = result.shape[step.dim], abs(step.depth)
    if n < depth:
        result = torch.cat([before, result] if step.depth > 0 else [result, before], step.dim)
    start = result.shape[step.dim] - depth if step.depth > 0 else 0
    return result.narrow(step.dim, start, depth)


def _seen(t: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return t if t.dim() == len(shape) else t.view(shape)


def _stand_in(t: TensorType, device: torch.device) -> torch.Tensor:
    return torch.zeros((), dtype=getattr(torch, t.dtype), device=device).expand(t.shape)


def _share(function: Specialiser, tensors, weak, values, device: str) -> Share:
    layout = layout_of(function.inputs, tensors)
    mesh = layout.mesh
    extents, rank = tuple(mesh.shape), _rank_on(mesh)
    types, sizes = function.types(tensors, weak), dict(zip(function.sizes, values, strict=True))
    placements = dict(zip(function.inputs, layout.placements, strict=True))
    try:
        if function.gradient is None:
            function.warn(types, sizes)
        special = function.specialised(types, sizes)
        plan = plan_of(function, special, sizes, placements, extents)
        own = rank_stages(plan, rank)
        works = [s.work for s in own if s.work is not None]
        works += [w for s in own for c in s.together if isinstance(c, PipelineStep) for w in c.works]
        prepared = {id(w): _prepared(function, w, device) for w in works}
    except TileError as error:
        raise error.located(function.source, function.filename) from None
    local = [shard_boxes(tuple(t.shape), p, extents)[rank] for t, p in zip(tensors, layout.placements, strict=True)]
    shapes = tuple(torch.Size(shape_of(box)) for box in local)
    wrappings = tuple(None if n is None else (plan.results[n], _spec_of(plan, n, layout)) for n in special.result_names)
    return Share(special, plan, rank, own, shapes, prepared, wrappings, mesh, _groups(mesh))


def _rank_on(mesh: Any) -> int:
    """This rank's number on a mesh, row by row."""
    number = 0
    for place, n in zip(mesh.get_coordinate(), mesh.shape, strict=True):
        number = number * n + place
    return number


def _groups(mesh: Any) -> tuple[Any, ...]:
    return tuple([mesh.get_group(m) for m in range(mesh.ndim)])


def plan_of(
    function: Specialiser,
    special: Specialised,
    sizes: Mapping[str, int],
    placements: Mapping[str, Placements],
    mesh: Mesh,
) -> Sharding:
    """How the ranks of a mesh divide a program."""
    flat = apply(FLAT, special.program, CallContext(special.types, sizes))
    return shard(flat, infer(flat, special.types), placements, mesh, function.exact)


def _prepared(function: Specialiser, work: LocalProgram, device: str) -> tuple[Specialiser, Prepared]:
    made = function.made(work.program)
    return made, made.lower(dict(work.types), {}, function.backend, device, None, function.tune)[1]


def _spec_of(plan: Sharding, name: str, layout: _Layout) -> Any:
    t = plan.types[name]
    return _spec(layout.mesh, plan.outputs[name], t.shape, getattr(torch, t.dtype))


def _spec(mesh: Any, placements: Sequence[Placement], shape: Sequence[int], dtype: torch.dtype) -> Any:
    """torch's description of a DTensor, whose elements lie as a contiguous tensor's."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(1, shape[d + 1])
    meta = TensorMeta(torch.Size(shape), tuple(strides), dtype)
    return DTensorSpec(mesh, tuple(map(_torch_placement, placements)), tensor_meta=meta)


def _torch_placement(p: Placement) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if p.dim is not None:
        return Shard(p.dim)
    return Replicate() if p.reduction is None else Partial(p.reduction)


# what is given


def layout_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> _Layout:
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
    found = {name: placements_of(name, t.placements) for name, t in given}  # type: ignore[attr-defined]
    return _Layout(mesh, tuple(found.get(n, everywhere(tuple(mesh.shape))) for n in names))


def placements(
    names: Sequence[str], args: Sequence[object], told: Mapping[str, object], ranks: int | Sequence[int] | None
) -> tuple[dict[str, Placements], Mesh]:
    """How inputs lie, told by name or as the DTensors given say, and over which mesh."""
    found: dict[str, Placements] = {}
    mesh = None if ranks is None else (ranks,) if isinstance(ranks, int) else tuple(ranks)
    if any(map(is_distributed, args)):
        tensors = [a if is_distributed(a) else torch.empty(()) for a in args]
        layout = layout_of(names, tensors)  # type: ignore[arg-type]
        mesh = tuple(layout.mesh.shape) if mesh is None else mesh
        found.update(zip(names, layout.placements, strict=True))
    if mesh is None:
        raise InputMistake("nothing says how many ranks there are", hint="pass ranks=2, ranks=(2, 4) or DTensors")
    for name, how in told.items():
        if how is None:
            found[name] = everywhere(mesh)
        else:
            found[name] = placements_of(name, how if isinstance(how, (list, tuple)) else [how])
    return found, mesh


def placements_of(name: str, given: Sequence[Any]) -> Placements:
    """torch's placements as ours; a number shards that dimension, None is on every rank."""
    return Placements(
        REPLICATE if p is None else Placement(p) if isinstance(p, int) else placement_of(name, p) for p in given
    )


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


def _refuse_parts(names: Sequence[str], tensors, local, share: Share) -> None:
    for name, t, own, wanted in zip(names, tensors, local, share.local, strict=True):
        if own.shape != wanted:
            raise InputMistake(
                f"rank {share.rank} holds {tuple(own.shape)} of {name}, of shape {tuple(t.shape)} and placements "
                f"{t.placements}; it should hold {tuple(wanted)}",
                hint="DTensor.from_local takes the whole tensor's shape and stride where parts are uneven",
            )
