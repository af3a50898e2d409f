"""Processes, with gloo and NCCL: calls on DTensors, and steps of DDP and FSDP, beside what one process computes."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support.fresh import preload
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tilec
from tilec import nn

WINDOW = """function (X[N, C], K[J, C, O]) -> (Y) {
    Y[n, o : (N + 1)/2, O] = +(X[2*n + j - 1, c] * K[j, c, o]);
}"""
STATES = "function (X[T, D], A[D]) -> (H) { H[t, d : T, D] = tanh(A[d] * H[t - 1, d] + X[t, d]) init A[d]; }"
NORMALISED = "function (X[N, D]) -> (Y) { Y[n, d] = X[n, d] - logsumexp(X[n, e]); }"
CALLS = (
    (WINDOW, ((11, 3), (3, 3, 4)), (Shard(0), Replicate())),
    (STATES, ((41, 3), (3,)), (Shard(0), Replicate())),
    (NORMALISED, ((3, 40),), (Shard(1),)),
)
LIES = (Shard(0), Replicate(), Replicate())
ACROSS = "function (X[N, D], A[D]) -> (H) { H[n, d : N, D] = tanh(A[d] * H[n, d - 1] + X[n, d]); }"
LAYER = "function (X[N, D], W[D, E], B[E]) -> (Y) { Y[n, e : N, E] = relu(sum(X[n, d] * W[d, e]) + B[e]); }"


def in_processes(count: int, body, device: str = "cpu") -> None:
    """All are forked from one that has imported what they need and has done nothing else."""
    preload()
    with tempfile.TemporaryDirectory() as folder:
        given = _process, (count, f"file://{folder}/store", body, device), count
        mp.start_processes(*given, start_method="forkserver")


def _process(rank: int, count: int, store: str, body, device: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=count)
    try:
        body(dist.init_device_mesh(device, (count,)))
    finally:
        dist.destroy_process_group()


def tensors(*shapes, device="cpu"):
    random = torch.Generator().manual_seed(3)
    return [torch.randn(s, generator=random).to(device) for s in shapes]


def calls(mesh) -> None:
    for source, shapes, placements in CALLS:
        f = tilec.compile(source)
        alone = [t.requires_grad_() for t in tensors(*shapes, device=mesh.device_type)]
        expected = f(*alone)
        (cotangent,) = tensors(expected.shape, device=mesh.device_type)
        gradients = torch.autograd.grad(expected, alone, cotangent)
        given = [
            distribute_tensor(t.detach(), mesh, [p]).requires_grad_() for t, p in zip(alone, placements, strict=True)
        ]
        result = f(*given)
        found = torch.autograd.grad(result, given, distribute_tensor(cotangent, mesh, [Replicate()]))
        for e, g in zip((expected, *gradients), (result, *found), strict=True):
            torch.testing.assert_close(g.full_tensor(), e, rtol=1e-4, atol=1e-5)


def model(device: str) -> torch.nn.Module:
    w, v, b, a = tensors((6, 8), (8, 4), (8,), (4,), device=device)
    return torch.nn.Sequential(
        nn.Tile(LAYER, parameters={"W": w, "B": b}),
        nn.Tile(LAYER, parameters={"W": v, "B": torch.zeros(4, device=device)}),
        nn.Tile(ACROSS, parameters={"A": a}),  # which steps in NumPy on a CPU
    )


def wrapped(kind: str, mesh) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model, and it for several processes."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    module = model(mesh.device_type)
    if kind == "ddp":
        return module, DistributedDataParallel(module)
    for layer in module:
        fully_shard(layer, mesh=mesh)
    return module, fully_shard(module, mesh=mesh)


def steps(module: torch.nn.Module, data: torch.Tensor) -> list[torch.Tensor]:
    """The losses of three steps."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        loss = module(data).square().mean()
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def training(mesh) -> None:
    (data,) = tensors((4 * mesh.size(), 6), device=mesh.device_type)
    own = data.chunk(mesh.size())[mesh.get_local_rank()]
    alone = model(mesh.device_type)
    expected = steps(alone, data)
    for kind in ("ddp", "fsdp"):
        module, several = wrapped(kind, mesh)
        losses = torch.stack(steps(several, own))
        dist.all_reduce(losses)
        torch.testing.assert_close(losses / mesh.size(), torch.stack(expected), msg=f"losses of {kind}")
        for a, p in zip(alone.parameters(), module.parameters(), strict=True):
            whole = p.full_tensor() if kind == "fsdp" else p
            torch.testing.assert_close(whole, a, rtol=1e-4, atol=1e-5, msg=f"parameters of {kind}")


def compiled(mesh) -> None:
    """torch.compile of a layer among other operations, on DTensors."""
    f = tilec.compile(LAYER)
    given = [distribute_tensor(t, mesh, [p]) for t, p in zip(tensors((4, 6), (6, 8), (8,)), LIES, strict=True)]
    found = []
    for run in (f, torch.compile(f, backend="aot_eager")):
        leaves = [t.detach().requires_grad_() for t in given]
        loss = (2 * run(*leaves)).sum()
        found.append([loss, *torch.autograd.grad(loss, leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.full_tensor(), b.full_tensor())


def everything(mesh) -> None:
    calls(mesh)
    training(mesh)


PRODUCT = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"
ON_MESHES = (
    (PRODUCT, ((6, 8), (8, 4)), ([Shard(0), Shard(1)], [Replicate(), Shard(0)])),
    (WINDOW, ((11, 4), (3, 4, 4)), ([Shard(0), Shard(1)], [Replicate(), Shard(1)])),
    (STATES, ((40, 4), (4,)), ([Shard(0), Shard(1)], [Replicate(), Shard(0)])),
    (NORMALISED, ((4, 40),), ([Shard(0), Shard(1)],)),
)


def of_two_dimensions(mesh) -> None:
    square = dist.init_device_mesh(mesh.device_type, (2, mesh.size() // 2))
    for source, shapes, placements in ON_MESHES:
        f, alone = tilec.compile(source), [t.requires_grad_() for t in tensors(*shapes, device=mesh.device_type)]
        given = [
            distribute_tensor(t.detach(), square, p).requires_grad_() for t, p in zip(alone, placements, strict=True)
        ]
        found = []
        for x in (alone, given):
            y = f(*x)
            found.append([y, *torch.autograd.grad((y * y).sum(), x)])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(b.full_tensor(), a, rtol=1e-4, atol=1e-4, msg=source)


def test_two_processes() -> None:
    in_processes(2, everything)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices() -> None:
    in_processes(2, everything, "cuda")


@pytest.mark.slow
def test_four_processes() -> None:
    in_processes(4, everything)


@pytest.mark.slow
def test_a_mesh_of_two_dimensions() -> None:
    in_processes(4, of_two_dimensions)


@pytest.mark.slow
def test_compiled() -> None:
    in_processes(2, compiled)
