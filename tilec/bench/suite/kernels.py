"""Kernel methods and distances: every pair of two sets, without the matrix of pairs where that is possible."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tilec.bench.suite.workload import Formula, Workload, by_slabs

KIND = "pairs"
CLOUDS = {"N": (5, 8192, 32768), "M": (7, 8192, 32768), "D": (3, 3, 3), "F": (2, 1, 1)}
FEATURES = {"N": (5, 4096, 16384), "M": (7, 4096, 16384), "D": (6, 64, 64)}
SQUARES = "S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));"
DECLARED = "X[N, D], Y[M, D]"


def _squares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, None] - y).square().sum(-1) if x.shape[-1] < 8 else torch.cdist(x, y).square()


def _of_clouds(name: str, source: str, formula: Formula, inputs: tuple[str, ...]) -> Workload:
    """A workload over points in space, whose differences torch stores: those of all pairs in float64 pass the memory of
    a device."""
    return Workload(name, KIND, source, formula, inputs, CLOUDS, "float32", checked_by=by_slabs(formula))


WORKLOADS = (
    _of_clouds("Gaussian kernel product", f"""function ({DECLARED}, B[M, F]) -> (O) {{
        {SQUARES}
        O[i, f : N, F] = +(exp(-S[i, j]) * B[j, f]);
    }}""", lambda x, y, b: torch.exp(-_squares(x, y)) @ b, ("X: N D", "Y: M D", "B: M F")),
    _of_clouds("Laplacian kernel product", f"""function ({DECLARED}, B[M, F]) -> (O) {{
        S[i, j : N, M] = +(abs(X[i, d] - Y[j, d]));
        O[i, f : N, F] = +(exp(-S[i, j]) * B[j, f]);
    }}""", lambda x, y, b: torch.exp(-(x[:, None] - y).abs().sum(-1)) @ b, ("X: N D", "Y: M D", "B: M F")),
    _of_clouds("kernel regression", f"""function ({DECLARED}, B[M]) -> (O) {{
        {SQUARES}
        L[i : N] = logsumexp(-S[i, j]);
        O[i : N] = +(exp(-S[i, j] - L[i]) * B[j]);
    }}""", lambda x, y, b: torch.softmax(-_squares(x, y), -1) @ b, ("X: N D", "Y: M D", "B: M")),
    _of_clouds("nearest distances, D 3", f"function ({DECLARED}) -> (O) {{ {SQUARES} O[i : N] = <(S[i, j]); }}",
               lambda x, y: _squares(x, y).amin(-1), ("X: N D", "Y: M D")),
    Workload("nearest distances, D 64", KIND, f"function ({DECLARED}) -> (O) {{ {SQUARES} O[i : N] = <(S[i, j]); }}",
             lambda x, y: _squares(x, y).amin(-1), ("X: N D", "Y: M D"), FEATURES, "float32", tolerance=1e-3),
    Workload("nearest neighbours, D 64", KIND,
             f"function ({DECLARED}) -> (O) {{ {SQUARES} O[i : N] = argmin(S[i, j]); }}",
             lambda x, y: _squares(x, y).argmin(-1), ("X: N D", "Y: M D"), FEATURES, "float32", wrt=(), tolerance=1e-2),
    Workload("squared distances of all pairs", KIND, f"function ({DECLARED}) -> (S) {{ {SQUARES} }}",
             _squares, ("X: N D", "Y: M D"), {**FEATURES, "N": (5, 2048, 8192), "M": (7, 2048, 8192)}, "float32",
             tolerance=1e-3),
    Workload("cosine similarity of all pairs", KIND, f"""function ({DECLARED}) -> (O) {{
        A[i, d : N, D] = X[i, d] * rsqrt(sum(X[i, e] * X[i, e]));
        B[j, d : M, D] = Y[j, d] * rsqrt(sum(Y[j, e] * Y[j, e]));
        O[i, j : N, M] = sum(A[i, d] * B[j, d]);
    }}""", lambda x, y: F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT, ("X: N D", "Y: M D"),
             {"N": (5, 2048, 8192), "M": (7, 2048, 8192), "D": (6, 128, 256)}),
    Workload("log-sum-exp product", KIND, """function (A[I, K], B[K, J]) -> (O) {
        O[i, j : I, J] = logsumexp(A[i, k] + B[k, j]);
    }""", lambda a, b: torch.logsumexp(a[:, :, None] + b, 1), ("A: I K", "B: K J"),
             {"I": (5, 256, 512), "K": (7, 256, 512), "J": (6, 256, 512)}, "float32"),
    Workload("max-plus product", KIND, "function (A[I, K], B[K, J]) -> (O) { O[i, j : I, J] = >(A[i, k] + B[k, j]); }",
             lambda a, b: (a[:, :, None] + b).amax(1), ("A: I K", "B: K J"),
             {"I": (5, 256, 512), "K": (7, 256, 512), "J": (6, 256, 512)}, "float32"),
)  # fmt: skip
