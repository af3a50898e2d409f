"""Embeddings, gathers, scatters, segments, graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tilec.bench.suite.workload import Workload

KIND = "indexing"
ROTARY = {"B": (1, 4, 8), "H": (2, 16, 32), "N": (5, 2048, 4096), "E": (8, 64, 128)}
EDGES = {"V": (5, 65536, 262144), "M": (9, 2**19, 2**21), "D": (4, 64, 64)}


def _segments(x: torch.Tensor, s: torch.Tensor, size: int) -> torch.Tensor:
    return torch.zeros(size, x.shape[-1], device=x.device, dtype=x.dtype).index_add_(0, s, x)


def _rotary(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * torch.cat([c, c], -1) + torch.cat([-high, low], -1) * torch.cat([s, s], -1)


def _messages(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add_(0, b, x[a] * w[:, None])


def _experts_rows(x: torch.Tensor, w: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    return torch.einsum("mh,mhj->mj", x, w[e])


WORKLOADS = (
    Workload("embedding", KIND, """function (W[V, D], T[B, L]) -> (Y) {
        Y[b, l, d : B, L, D] = W[T[b, l], d];
    }""", lambda w, t: F.embedding(t, w), ("W: V D", "T: B L < V"),
             {"V": (9, 32000, 50257), "D": (4, 512, 1024), "B": (2, 16, 32), "L": (3, 512, 1024)}),
    Workload("bags of embeddings", KIND, """function (W[V, D], T[B, L]) -> (Y) {
        Y[b, d : B, D] = +(W[T[b, l], d]);
    }""", lambda w, t: F.embedding_bag(t, w, mode="sum"), ("W: V D", "T: B L < V"),
             {"V": (9, 100000, 1000000), "D": (4, 64, 64), "B": (3, 4096, 16384), "L": (5, 32, 32)}, "float32"),
    Workload("rows by index", KIND, "function (X[N, D], T[M]) -> (Y) { Y[m, d : M, D] = X[T[m], d]; }",
             lambda x, t: x[t], ("X: N D", "T: M < N"),
             {"N": (5, 65536, 262144), "M": (7, 65536, 262144), "D": (4, 256, 256)}),
    Workload("an element of each row", KIND, "function (X[N, D], T[N]) -> (Y) { Y[i : N] = X[i, T[i]]; }",
             lambda x, t: x.gather(1, t[:, None])[:, 0], ("X: N D", "T: N < D"),
             {"N": (3, 65536, 65536), "D": (5, 128, 1024)}, "float32"),
    Workload("rows added at indices", KIND, """function (U[M, D], T[M], Z[N, D]) -> (Y) {
        A[T[m], d : N, D] = +(U[m, d]);
        Y = A + Z;
    }""", lambda u, t, z: z.index_add(0, t, u), ("U: M D", "T: M < N", "Z: N D"),
             {"N": (5, 16384, 65536), "M": (7, 65536, 262144), "D": (4, 128, 128)}, "float32"),
    Workload("segment sum, sorted", KIND, """function (X[M, D], S[M], Z[V]) -> (Y) {
        Y[S[m], d : V, D] = +(X[m, d]);
    }""", lambda x, s, z: _segments(x, s, len(z)), ("X: M D", "S: M << V", "Z: V"),
             {"V": (5, 16384, 65536), "M": (9, 2**18, 2**20), "D": (4, 64, 64)}, "float32", wrt=("X",)),
    Workload("messages over the edges of a graph", KIND, """function (X[V, D], W[M], A[M], B[M]) -> (Y) {
        Y[B[m], d : V, D] = +(X[A[m], d] * W[m]);
    }""", _messages, ("X: V D", "W: M", "A: M < V", "B: M << V"), EDGES, "float32"),
    Workload("sparse rows by a matrix (CSR)", KIND, """function (W[R, K], C[R, K], X[V, D]) -> (Y) {
        Y[r, d : R, D] = +(W[r, k] * X[C[r, k], d]);
    }""", lambda w, c, x: torch.einsum("rk,rkd->rd", w, x[c]), ("W: R K", "C: R K < V", "X: V D"),
             {"R": (4, 16384, 65536), "K": (3, 32, 32), "V": (5, 16384, 65536), "D": (4, 64, 64)}, "float32"),
    Workload("histogram", KIND, "function (T[N], Z[V]) -> (Y) { Y[T[i] : V] = +(1); }",
             lambda t, z: torch.bincount(t, minlength=len(z)), ("T: N < V", "Z: V"),
             {"N": (9, 2**22, 2**24), "V": (4, 256, 1024)}, "float32", wrt=(), compiled=False),
    Workload("rotary embedding, halves", KIND, """function (X[B, H, N, E], C[N, F], S[N, F]) -> (Y) {
        Y[b, h, n, e : B, H, N, E] = X[b, h, n, e] * C[n, e % (E/2)]
            + (e < E/2 ? -X[b, h, n, e + E/2] : X[b, h, n, e - E/2]) * S[n, e % (E/2)];
    }""", _rotary, ("X: B H N E", "C: N F", "S: N F"), {**ROTARY, "F": (4, 32, 64)}, wrt=("X",)),
    Workload("one expert for each row", KIND, """function (X[M, H], W[E, H, J], T[M]) -> (Y) {
        Y[m, j : M, J] = +(X[m, h] * W[T[m], h, j]);
    }""", _experts_rows, ("X: M H", "W: E H J ~ 0.05", "T: M < E"),
             {"M": (4, 256, 1024), "H": (5, 256, 512), "J": (3, 256, 512), "E": (3, 8, 8)}),
)  # fmt: skip
