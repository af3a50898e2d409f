"""Matrix products: layouts, shapes, several operands, gates and epilogues."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tilec.bench.suite.workload import Workload

KIND = "product"
SQUARE = {"I": (5, 1024, 4096), "K": (7, 1024, 4096), "J": (6, 1024, 4096)}
TRANSFORMER_BLOCK = {"M": (5, 2048, 8192), "H": (7, 1024, 4096), "J": (6, 4096, 11008)}


def layout(name: str, a: str, b: str) -> Workload:
    """A product of two matrices stored as the letters say: "ik" is row-major rows x sum."""
    source = f"""function (A[{", ".join(a.upper())}], B[{", ".join(b.upper())}]) -> (O) {{
        O[i, j : I, J] = +(A[{", ".join(a)}] * B[{", ".join(b)}]);
    }}"""
    inputs = f"A: {' '.join(a.upper())}", f"B: {' '.join(b.upper())} ~ 0.02"
    return Workload(name, KIND, source, lambda x, y: torch.einsum(f"{a},{b}->ij", x, y), inputs, SQUARE)


def _swiglu(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ w) * (x @ v)


def _adapter(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x @ w + (x @ a) @ b


def _experts(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.einsum("me,ehj,mh->mj", torch.softmax(g, -1), w, x)


def _by_expert(rows: torch.Tensor, matrices: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Each row by the matrix of its key: by torch's grouped product where there is one for these tensors."""
    if not rows.is_cuda or rows.dtype != torch.bfloat16:
        found = rows.new_zeros(len(rows), matrices.shape[2])
        for n, matrix in enumerate(matrices):
            own = (keys == n).nonzero()[:, 0]
            found = found.index_add(0, own, rows[own] @ matrix)
        return found
    ordered, order = torch.sort(keys, stable=True)
    ends = torch.searchsorted(ordered, torch.arange(len(matrices), device=keys.device), right=True)
    product = F.grouped_mm(rows[order], matrices, offs=ends.to(torch.int32))
    return torch.empty_like(product).index_copy(0, order, product)


def _routed(x, g, e, v, u, w) -> torch.Tensor:
    keys, rows = e.reshape(-1), x.repeat_interleave(e.shape[1], 0)
    hidden = F.silu(_by_expert(rows, v, keys)) * _by_expert(rows, u, keys)
    return (_by_expert(hidden, w, keys).reshape(*e.shape, -1) * g[:, :, None]).sum(1)


def _triangles(a: torch.Tensor, b: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ikd,jkd->ijd", torch.sigmoid(g) * a, torch.sigmoid(h) * b)


WORKLOADS = (
    layout("product, rows by columns", "ik", "kj"),
    layout("product, second transposed", "ik", "jk"),
    layout("product, first transposed", "ki", "kj"),
    layout("product, both transposed", "ki", "jk"),
    Workload("product of 16 rows", KIND,
             "function (A[I, K], B[K, J]) -> (O) { O[i, j : I, J] = +(A[i, k] * B[k, j]); }",
             torch.matmul, ("A: 16 K", "B: K J ~ 0.02"), SQUARE),
    Workload("matrix by vector", KIND, "function (A[I, K], B[K]) -> (O) { O[i : I] = +(A[i, k] * B[k]); }", torch.mv,
             ("A: I K", "B: K ~ 0.02"), {"I": (5, 4096, 16384), "K": (7, 4096, 16384)}),
    Workload("batched product", KIND, """function (A[N, I, K], B[N, K, J]) -> (O) {
        O[n, i, j : N, I, J] = +(A[n, i, k] * B[n, k, j]);
    }""", torch.bmm, ("A: N I K", "B: N K J ~ 0.05"),
             {"N": (3, 64, 64), "I": (5, 256, 512), "K": (7, 256, 512), "J": (4, 256, 512)}),
    Workload("three operands bij, jk, bkl", KIND, """function (A[B, I, J], M[J, K], C[B, K, L]) -> (O) {
        O[b, i, l : B, I, L] = +(A[b, i, j] * M[j, k] * C[b, k, l]);
    }""", lambda a, m, c: torch.einsum("bij,jk,bkl->bil", a, m, c), ("A: B I J", "M: J K ~ 0.1", "C: B K L ~ 0.1"),
             {"B": (2, 16, 32), "I": (5, 256, 512), "J": (4, 256, 512), "K": (3, 256, 512), "L": (6, 256, 512)}),
    Workload("bilinear form", KIND, """function (X[B, I], W[K, I, J], Y[B, J]) -> (O) {
        O[b, k : B, K] = +(X[b, i] * W[k, i, j] * Y[b, j]);
    }""", lambda x, w, y: torch.einsum("bi,kij,bj->bk", x, w, y), ("X: B I", "W: K I J ~ 0.05", "Y: B J"),
             {"B": (3, 1024, 4096), "I": (5, 128, 256), "J": (4, 128, 256), "K": (2, 64, 64)}),
    Workload("product with bias and gelu", KIND, """function (X[M, H], W[H, J], A[J]) -> (Y) {
        O[m, j : M, J] = +(X[m, h] * W[h, j]);
        Y = gelu(O + A);
    }""", lambda x, w, a: F.gelu(x @ w + a), ("X: M H", "W: H J ~ 0.02", "A: J"),
             {"M": (5, 2048, 8192), "H": (7, 1024, 1024), "J": (6, 4096, 4096)}),
    Workload("gated product, SwiGLU", KIND, """function (X[M, H], W[H, J], V[H, J]) -> (Y) {
        A[m, j : M, J] = +(X[m, h] * W[h, j]);
        B[m, j : M, J] = +(X[m, h] * V[h, j]);
        Y = silu(A) * B;
    }""", _swiglu, ("X: M H", "W: H J ~ 0.02", "V: H J ~ 0.02"), {**TRANSFORMER_BLOCK, "M": (5, 1024, 4096)}),
    Workload("product with a low-rank adapter", KIND, """function (X[M, H], W[H, J], A[H, R], B[R, J]) -> (Y) {
        L[m, r : M, R] = +(X[m, h] * A[h, r]);
        O[m, j : M, J] = +(X[m, h] * W[h, j]);
        D[m, j : M, J] = +(L[m, r] * B[r, j]);
        Y = O + D;
    }""", _adapter, ("X: M H", "W: H J ~ 0.02", "A: H R ~ 0.02", "B: R J ~ 0.02"),
             {"M": (5, 2048, 8192), "H": (7, 1024, 4096), "J": (6, 1024, 4096), "R": (2, 16, 16)}),
    Workload("mixture of experts, dense gates", KIND, """function (X[M, H], G[M, E], W[E, H, J]) -> (Y) {
        P[m, e : M, E] = exp(G[m, e] - max(G[m, f])) / sum(exp(G[m, d] - max(G[m, f])));
        Y[m, j : M, J] = sum(P[m, e] * W[e, h, j] * X[m, h]);
    }""", _experts, ("X: M H", "G: M E", "W: E H J ~ 0.02"),
             {"M": (5, 1024, 4096), "H": (7, 512, 1024), "J": (6, 512, 1024), "E": (2, 4, 8)}),
    Workload("mixture of experts, two for each token", KIND,
             """function (X[T, C], G[T, K], E[T, K], V[N, C, F], U[N, C, F], W[N, F, C]) -> (Y) {
        H[t, k, f : T, K, F] = silu(sum(X[t, c] * V[E[t, k], c, f])) * sum(X[t, c] * U[E[t, k], c, f]);
        Y[t, o : T, C] = +(G[t, k] * H[t, k, f] * W[E[t, k], f, o]);
    }""", _routed, ("X: T C", "G: T K", "E: T K < N", "V: N C F ~ 0.03", "U: N C F ~ 0.03", "W: N F C ~ 0.03"),
             {"T": (6, 1024, 4096), "C": (5, 512, 1024), "K": (2, 2, 2), "N": (3, 8, 8), "F": (4, 1024, 2048)}),
    Workload("outer products summed over the batch", KIND, """function (X[B, I], Y[B, J]) -> (O) {
        O[i, j : I, J] = +(X[b, i] * Y[b, j]);
    }""", lambda x, y: x.mT @ y, ("X: B I", "Y: B J"), {"B": (5, 8192, 65536), "I": (3, 256, 256), "J": (4, 256, 256)}),
    Workload("gated product over the third corner of triangles", KIND,
             """function (A[I, K, D], B[J, K, D], G[I, K, D], H[J, K, D]) -> (O) {
        O[i, j, d : I, J, D] = sum(sigmoid(G[i, k, d]) * A[i, k, d] * sigmoid(H[j, k, d]) * B[j, k, d]);
    }""", _triangles, ("A: N N D", "B: N N D", "G: N N D", "H: N N D"), {"N": (5, 256, 320), "D": (4, 64, 128)}),
    Workload("product over two axes", KIND, """function (X[B, H, N, E], W[H, E, D]) -> (O) {
        O[b, n, d : B, N, D] = +(X[b, h, n, e] * W[h, e, d]);
    }""", lambda x, w: torch.einsum("bhne,hed->bnd", x, w), ("X: B H N E", "W: H E D ~ 0.02"),
             {"B": (2, 4, 8), "H": (2, 16, 32), "N": (5, 1024, 2048), "E": (4, 64, 64), "D": (3, 1024, 2048)}),
)  # fmt: skip
