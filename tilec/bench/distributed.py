"""One device beside several: the same call on whole tensors and on DTensors, with what is communicated for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import tilec
from tilec.bench.overheads import CONVOLUTION, synchronize
from tilec.bench.works import MATMUL
from tilec.bench.works_steps import LINEAR_WORK
from tilec.torch_op import dtensors

_LINK = {"cuda": 400e9, "cpu": 5e9}  # bytes a second that a rank receives: NVLink 4 as NCCL uses it; shared memory
_SECONDS = 0.25  # of each measurement

_ATTENTION = """
function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
    S[b, i, j : B, N, M] = 0.125 * sum(Q[b, i, e] * K[b, j, e]);
    L[b, i] = logsumexp(S[b, i, j]);
    O[b, i, f] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}
"""
_SCAN = LINEAR_WORK.source


@dataclass(frozen=True)
class ShardedCase:
    """`shapes` of the inputs, which lie as `dims` say (a sharded dimension or None). `gradients`: is the backward pass
    timed too; what comes back in parts is put together either way, as a training step would. `whole`: positions of
    the sharded inputs that each rank needs whole. `exact`: recurrences go step by step."""

    name: str
    source: str
    shapes: tuple[tuple[int, ...], ...]
    dims: tuple[int | None, ...]
    dtype: str = "bfloat16"
    gradients: bool = False
    whole: tuple[int, ...] = ()
    exact: bool = False

    def shrunk(self) -> ShardedCase:
        """The same for a look at whether it runs."""
        shapes = tuple(tuple(max(2, min(n, 24)) for n in s) for s in self.shapes)
        return replace(self, shapes=shapes, dtype="float32")


_IMAGES = ((1024, 120, 120, 64), (3, 3, 64, 128))
_HEADS = ((64, 8192, 64),) * 3
_ROWS = ((8, 32768, 64),) * 3
SHARDED_CASES = (
    ShardedCase("convolution, images sharded", CONVOLUTION, _IMAGES, (0, None)),
    ShardedCase("convolution, images sharded, with backward", CONVOLUTION, _IMAGES, (0, None), gradients=True),
    ShardedCase("attention, heads sharded", _ATTENTION, _HEADS, (0, 0, 0)),
    ShardedCase("attention, heads sharded, with backward", _ATTENTION, _HEADS, (0, 0, 0), gradients=True),
    ShardedCase("attention, rows sharded", _ATTENTION, _ROWS, (1, 1, 1), whole=(1, 2)),
    ShardedCase("attention, rows sharded, with backward", _ATTENTION, _ROWS, (1, 1, 1), gradients=True, whole=(1, 2)),
    ShardedCase("scan, time sharded", _SCAN, ((65536, 4096),) * 2, (0, 0), "float32"),
    ShardedCase("scan, time sharded, states passed", _SCAN, ((65536, 4096),) * 2, (0, 0), "float32", exact=True),
    ShardedCase("scan, lanes sharded", _SCAN, ((65536, 4096),) * 2, (1, 1), "float32"),
    ShardedCase("product, sum sharded", MATMUL.source, ((8192, 65536), (65536, 8192)), (1, 0)),
)


def compare_ranks(only: str, ranks: int, device: str, small: bool) -> None:
    """Print a line for each case, from so many processes of this machine."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29541")
    sent = f"received, MB | communication at {_LINK[device] / 1e9:g} GB/s, ms"
    print(f"| case | one, ms | {ranks}, ms | times | a part alone, ms | {sent} | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    mp.spawn(_rank, (ranks, only, device, small), ranks)  # type: ignore[attr-defined]


def _rank(rank: int, ranks: int, only: str, device: str, small: bool) -> None:
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=ranks)
    mesh = dist.init_device_mesh(device, (ranks,))
    for case in SHARDED_CASES:
        if only in case.name:
            line = _line(case.shrunk() if small else case, mesh, device)
            if rank == 0:
                print(line, flush=True)
            if device == "cuda":
                torch.cuda.empty_cache()
    dist.destroy_process_group()


def _line(case: ShardedCase, mesh: Any, device: str) -> str:
    f = tilec.compile(case.source, exact=case.exact)
    random = torch.Generator(device).manual_seed(1)
    dtype = getattr(torch, case.dtype)
    whole = [
        torch.randn(s, generator=random, device=device, dtype=dtype).requires_grad_(case.gradients) for s in case.shapes
    ]
    parts = [_part(t, mesh, dim).requires_grad_(case.gradients) for t, dim in zip(whole, case.dims, strict=True)]
    with torch.no_grad():
        cotangent = torch.randn(f(*whole).shape, generator=random, device=device, dtype=dtype)

    def one() -> Sequence[torch.Tensor]:
        return _step(f, whole, cotangent)

    with _counted() as received:
        several = _step(f, parts, None)
        placed = _part(cotangent, mesh, getattr(several[0].placements[0], "dim", None))  # type: ignore[attr-defined]
        received.clear()
        several = _step(f, parts, placed)
        bytes_received = sum(received)
    error = max(_error(a, b) for a, b in zip(one(), several, strict=True))
    del several
    own = [w if k in case.whole else p.to_local() for k, (w, p) in enumerate(zip(whole, parts, strict=True))]  # type: ignore[attr-defined]
    own = [t.detach().requires_grad_(case.gradients) for t in own]
    with torch.no_grad():
        own_cotangent = torch.randn_like(f(*own))
    first = mesh.get_local_rank() == 0
    alone = _seconds(one, device) if first else 0.0
    part = _seconds(lambda: _step(f, own, own_cotangent), device) if first else 0.0
    dist.barrier()
    together = _seconds(lambda: _step(f, parts, placed), device, mesh)
    sending = bytes_received / _LINK[device]
    figures = f"{alone * 1e3:.3f} | {together * 1e3:.3f} | {alone / together:.2f} | {part * 1e3:.3f}"
    return f"| {case.name} | {figures} | {bytes_received / 1e6:.1f} | {sending * 1e3:.3f} | {error:.1e} |"


def _step(f: tilec.Function, inputs: Sequence[torch.Tensor], cotangent: torch.Tensor | None) -> Sequence[torch.Tensor]:
    """The output, and gradients where they are asked for; nothing is left in parts."""
    result = f(*inputs)
    if cotangent is None or not result.requires_grad:
        return [_whole(result.detach())]
    found = torch.autograd.grad(result, inputs, cotangent)
    return [_whole(result.detach()), *map(_whole, found)]


def _whole(t: torch.Tensor) -> torch.Tensor:
    if dtensors.is_distributed(t) and t.placements[0].is_partial():  # type: ignore[attr-defined]
        from torch.distributed.tensor import Replicate

        return t.redistribute(placements=[Replicate()])  # type: ignore[attr-defined]
    return t


def _part(t: torch.Tensor, mesh: Any, dim: int | None) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    t = t.detach()
    if dim is None:
        return DTensor.from_local(t, mesh, [Replicate()], run_check=False)
    own = t.chunk(mesh.size(), dim)[mesh.get_local_rank()].contiguous()
    return DTensor.from_local(own, mesh, [Shard(dim)], run_check=False, shape=t.shape, stride=t.stride())


def _error(one: torch.Tensor, several: torch.Tensor) -> float:
    other = several.full_tensor()  # type: ignore[attr-defined]
    return ((one - other).abs().max() / one.abs().max().clamp(min=1e-9)).item()


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Bytes that this rank receives, for each collective: as counted in the collectives' operators."""
    from torch.utils._python_dispatch import TorchDispatchMode

    received: list[int] = []
    ranks = dist.get_world_size()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            name = str(operator)
            if "_c10d_functional.all_reduce" in name:
                received.append(2 * args[0].nbytes * (ranks - 1) // ranks)
            elif "_c10d_functional.all_gather_into_tensor" in name:
                received.append(args[0].nbytes * (ranks - 1))
            elif "_c10d_functional.all_to_all_single" in name:
                received.append(sum(args[1]) * args[0].element_size())
            return operator(*args, **(kwargs or {}))

    with Counting():
        yield received


def _seconds(step: Callable[[], object], device: str, mesh: Any = None) -> float:
    """Of one call, of many one after the other; on several ranks that of the slowest, all of which have done a call
    before the next begins."""
    token = torch.zeros(1, device=device)

    def many(count: int) -> float:
        synchronize(device)
        if mesh is not None:
            dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            step()
            if mesh is not None:
                dist.all_reduce(token)
        synchronize(device)
        elapsed = torch.tensor(time.perf_counter() - start, device=device)
        if mesh is not None:
            dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        return elapsed.item() / count

    many(2)
    count = max(2, min(200, int(_SECONDS / max(many(2), 1e-5))))
    return min(many(count) for _ in range(3))
