"""One program on two processes: a strided window over sharded rows, its gradients, and a scan over sharded time.

torch's DTensors say where rows lie; which neighbours' rows a rank needs follows from the indices. Run as it is, this
starts the other process itself; `torchrun --nproc-per-node=2 examples/several_processes.py` does too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tilec

RANKS = 2
WINDOW = """
function (X[N, C], K[J, C, O]) -> (Y) {
    Y[n, o : (N + 1)/2, O] = +(X[2*n + j - 1, c] * K[j, c, o]);
}
"""
SCAN = "function (A[T, D], X[T, D]) -> (H) { H[t, d : T, D] = A[t, d] * H[t - 1, d] + X[t, d]; }"
CASES = (
    ("window", WINDOW, ((4096, 8), (3, 8, 16)), (Shard(0), Replicate())),
    ("scan", SCAN, ((512, 4), (512, 4)), (Shard(0), Shard(0))),
)


def main() -> int:
    if "RANK" in os.environ:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=os.environ.get("STORE"), rank=rank, world_size=ranks)
        wrong = compute(dist.init_device_mesh("cpu", (dist.get_world_size(),)))
        dist.destroy_process_group()
        return wrong
    with tempfile.TemporaryDirectory() as folder:
        shared = {**os.environ, "WORLD_SIZE": str(RANKS), "STORE": f"file://{folder}/store"}
        run = [sys.executable, os.path.abspath(__file__)]
        others = [
            subprocess.Popen(run, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        said = [p.communicate()[0] for p in others]
        print(said[0], end="")
        return max(p.returncode for p in others)


def compute(mesh) -> int:
    """Values and gradients of the sharded call beside those of the whole one; how many differ."""
    wrong = 0
    torch.manual_seed(0)  # the same numbers on every rank
    for name, source, shapes, placements in CASES:
        f = tilec.compile(source)
        whole = [torch.rand(s).requires_grad_() for s in shapes]
        parts = [distribute_tensor(t.detach(), mesh, [p]) for t, p in zip(whole, placements, strict=True)]
        parts = [p.requires_grad_() for p in parts]
        expected, result = f(*whole), f(*parts)
        gradients = torch.autograd.grad(expected.sum(), whole)
        found = torch.autograd.grad(result.sum(), parts)
        for a, b in zip((expected, *gradients), (result, *found), strict=True):
            wrong += not torch.allclose(a, b.full_tensor(), rtol=1e-4, atol=1e-4)
        if dist.get_rank() == 0:
            print(f.sharding({}, *parts))
            print("MISMATCH" if wrong else "ok", name, [str(g.placements[0]) for g in found], flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
