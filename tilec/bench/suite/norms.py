"""Normalisations, statistics, activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tilec.bench.suite.workload import Workload
from tilec.bench.works import GATE, LAYER_NORM, LIGER, SNAKE, SOFTMAX, liger_layer_norm

KIND = "norm"
NORMED = {"N": (3, 4096, 8192), "D": (8, 1024, 4096)}
PIXELS = {"N": (2, 32, 64), "P": (6, 784, 3136), "C": (4, 256, 256)}
MEAN_AND_VARIANCE = """
        M[c : C] = mean(X[n, p, c]);
        V[c : C] = mean((X[n, p, c] - M[c]) * (X[n, p, c] - M[c]));"""


def _liger_rms(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, g, 1e-6, 0.0, "llama", False)


def _statistics(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.mean((0, 1)), x.var((0, 1), correction=0)])


def _batch_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x.flatten(0, 1), None, None, g, b, True).view_as(x)


WORKLOADS = (
    Workload("layer norm", KIND, LAYER_NORM.source, LAYER_NORM.formula, ("X: N D", "G: D", "B: D"), NORMED,
             others=((LIGER, liger_layer_norm),)),
    Workload("RMS norm", KIND, """function (X[N, D], G[D]) -> (Y) {
        S[i : N] = mean(X[i, j] * X[i, j]);
        Y[i, j : N, D] = X[i, j] * rsqrt(S[i] + 0.000001) * G[j];
    }""", lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-6), ("X: N D", "G: D"), NORMED, others=((LIGER, _liger_rms),)),
    Workload("mean and variance over batch and pixels", KIND, f"""function (X[N, P, C]) -> (Y) {{{MEAN_AND_VARIANCE}
        Y[k, c : 2, C] = k == 0 ? M[c] : V[c];
    }}""", _statistics, ("X: N P C",), PIXELS, "float32"),
    Workload("batch norm in training", KIND, f"""function (X[N, P, C], G[C], B[C]) -> (Y) {{{MEAN_AND_VARIANCE}
        Y[n, p, c : N, P, C] = (X[n, p, c] - M[c]) * rsqrt(V[c] + 0.00001) * G[c] + B[c];
    }}""", _batch_norm, ("X: N P C", "G: C", "B: C"), PIXELS),
    Workload("group norm", KIND, """function (X[N, C, H, W], G[C], B[C]) -> (Y) {
        Z = reshape(X, N, 32, C / 32, H, W);
        M[n, g : N, 32] = mean(Z[n, g, c, y, x]);
        V[n, g : N, 32] = mean((Z[n, g, c, y, x] - M[n, g]) * (Z[n, g, c, y, x] - M[n, g]));
        A = reshape(G, 32, C / 32);
        D = reshape(B, 32, C / 32);
        O[n, g, c, y, x : N, 32, C / 32, H, W] =
            (Z[n, g, c, y, x] - M[n, g]) * rsqrt(V[n, g] + 0.00001) * A[g, c] + D[g, c];
        Y = reshape(O, N, C, H, W);
    }""", lambda x, g, b: F.group_norm(x, 32, g, b), ("X: N C H W", "G: C", "B: C"),
             {"N": (2, 8, 16), "C": (64, 256, 256), "H": (3, 32, 64), "W": (4, 32, 64)}),
    Workload("instance norm", KIND, """function (X[N, C, H, W]) -> (Y) {
        M[n, c : N, C] = mean(X[n, c, y, x]);
        V[n, c : N, C] = mean((X[n, c, y, x] - M[n, c]) * (X[n, c, y, x] - M[n, c]));
        Y[n, c, y, x : N, C, H, W] = (X[n, c, y, x] - M[n, c]) * rsqrt(V[n, c] + 0.00001);
    }""", F.instance_norm, ("X: N C H W",), {"N": (2, 8, 16), "C": (3, 64, 256), "H": (5, 64, 64), "W": (4, 64, 64)}),
    Workload("softmax of rows", KIND, SOFTMAX.source, SOFTMAX.formula, ("X: N D",), NORMED),
    Workload("log-softmax of a vocabulary", KIND, """function (X[N, D]) -> (Y) {
        L[i : N] = logsumexp(X[i, j]);
        Y[i, j : N, D] = X[i, j] - L[i];
    }""", lambda x: F.log_softmax(x, -1), ("X: N D",), {"N": (3, 1024, 4096), "D": (9, 50257, 50257)}, "float32"),
    Workload("rows of unit length", KIND, """function (X[N, D]) -> (Y) {
        Y[i, j : N, D] = X[i, j] * rsqrt(sum(X[i, k] * X[i, k]));
    }""", lambda x: F.normalize(x, dim=-1), ("X: N D",), NORMED),
    Workload("variance of rows", KIND, """function (X[N, D]) -> (V) {
        M[i : N] = mean(X[i, j]);
        V[i : N] = mean((X[i, j] - M[i]) * (X[i, j] - M[i]));
    }""", lambda x: x.var(-1, correction=0), ("X: N D",), NORMED, "float32"),
    Workload("mean over the leading axis", KIND, "function (X[N, D]) -> (Y) { Y[j : D] = mean(X[i, j]); }",
             lambda x: x.mean(0), ("X: N D",), {"N": (3, 65536, 262144), "D": (8, 256, 256)}, "float32"),
    Workload("sum over the middle axis", KIND, "function (X[A, B, C]) -> (Y) { Y[a, c : A, C] = +(X[a, b, c]); }",
             lambda x: x.sum(1), ("X: A B C",), {"A": (2, 64, 128), "B": (5, 1024, 2048), "C": (4, 256, 256)},
             "float32"),
    Workload("argmax of rows", KIND, "function (X[N, D]) -> (Y) { Y[i : N] = argmax(X[i, j]); }",
             lambda x: x.argmax(-1), ("X: N D",), {"N": (3, 1024, 4096), "D": (9, 50257, 50257)}, "float32", wrt=()),
    Workload("snake activation", KIND, SNAKE.source, SNAKE.formula, ("X: N C T", "A: C > 0"),
             {"N": (2, 8, 16), "C": (3, 256, 512), "T": (5, 4096, 8192)}, "float32"),
    Workload("gelu gate", KIND, GATE.source, GATE.formula, ("X: N D", "U: N D"),
             {"N": (3, 4096, 8192), "D": (8, 4096, 8192)}),
    Workload("dropout and residual", KIND, """function (X[N, D], R[N, D], Seed) -> (Y) {
        Y[i, j : N, D] = R[i, j] + (rand(Seed, D * i + j) < 0.9 ? X[i, j] / 0.9 : 0);
    }""", lambda x, r: r + F.dropout(x, 0.1), ("X: N D", "R: N D"),
             {"N": (3, 4096, 8192), "D": (8, 4096, 8192)}, numbers=(3,), checked=False),
)  # fmt: skip
