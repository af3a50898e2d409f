"""Programs that packages are built of, with what they are given."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

Given = tuple[tuple[int, ...], str]  # a shape and an element type


@dataclass(frozen=True)
class Case:
    """`inputs` by name; numbers where a size's or a scalar's value is asked for. `whole`: integers lie below that."""

    source: str
    inputs: dict[str, Given | int]
    gradients: bool = True
    below: int = 4


F32, BF16, F64, I64 = "float32", "bfloat16", "float64", "int64"
ATTENTION = """function attention(Q[H, N, D], K[H, N, D], V[H, N, D]) -> (O) {
    S[h, i, j : H, N, N] = +(i >= j ? Q[h, i, d] * K[h, j, d]);
    P[h, i, j : H, N, N] = i >= j ? exp(S[h, i, j] - max(S[h, i, k])) : 0.0;
    O[h, i, d : H, N, D] = +(P[h, i, j] / sum(P[h, i, k]) * V[h, j, d]);
}"""
LAYER_NORM = """function layer_norm(X[N, D], G[D], B[D]) -> (Y) {
    M[n : N] = +(X[n, d] / D);
    V[n : N] = +((X[n, d] - M[n]) * (X[n, d] - M[n]) / D);
    Y[n, d : N, D] = (X[n, d] - M[n]) / sqrt(V[n] + 1e-5) * G[d] + B[d];
}"""
PRODUCT = "function product(A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = +(A[i, k] * B[k, j]); }"

CASES = {
    "softmax": Case(
        "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))", {"X": ((64, 200), F32)}
    ),
    "layer_norm": Case(LAYER_NORM, {"X": ((300, 256), BF16), "G": ((256,), F32), "B": ((256,), F32)}),
    "product": Case(PRODUCT, {"A": ((512, 512), BF16), "B": ((512, 384), BF16)}),
    "product32": Case(PRODUCT, {"A": ((130, 70), F32), "B": ((70, 90), F32)}),
    "strided": Case(
        "function (I[N, C], K[M, C, D]) -> (O) { O[n, d : N/2, D] = +(I[2*n + j - 1, c] * K[j, c, d]); }",
        {"I": ((65, 16), F32), "K": ((3, 16, 32), F32)},
    ),
    "recurrence": Case(
        "function (B[T, D]) -> (H) { H[t, i : T, D] = tanh(B[t, i] + H[t - 1, (i - 1) % D]); }", {"B": ((20, 40), F32)}
    ),
    "scan": Case("function (X[N, T]) -> (Y) { Y[n, t : N, T] = +(s <= t ? X[n, s]); }", {"X": ((7, 900), F32)}),
    "several": Case(
        "function several(X[N, D], A) -> (S, L, I) "
        "{ S[n : N] = +(A * X[n, d]); L[] = >(X[n, d]); I[n : N] = int64(n); }",
        {"X": ((40, 33), F64), "A": ((), F64)},
    ),
    "dropout": Case(
        "function (X[N], S[]) -> (Y) { Y = rand(S) < 0.5 ? 2.0 * X : 0.0; }",
        {"X": ((5000,), F32), "S": ((), I64)},
    ),
    "gather": Case(
        "function (X[N, D], I[M]) -> (Y) { Y[m, d : M, D] = X[I[m], d]; }",
        {"X": ((50, 12), F32), "I": ((33,), I64)},
        gradients=False,
        below=50,
    ),
    "sized": Case(
        "function (X[N], S) -> (Y) { Y[i : S] = +(X[i + j]), j < N - S + 1; }", {"X": ((100,), F32), "S": 30}
    ),
    "extremum": Case("function (X[N, D]) -> (M) { M[d : D] = max(X[n, d]); }", {"X": ((3000, 5), F64)}),
    "empty": Case("function (X[N, D]) -> (Y, S) { Y = 2.0 * X; S[n : N] = +(X[n, d]); }", {"X": ((6, 0), F32)}),
    "filled": Case("function (X[N, D]) -> (Y) { Y[2*n : 2*N] = >(X[n, d]); }", {"X": ((50, 3), F64)}),
    "steps": Case(
        "function (B[T, D], W[D, D]) -> (H) { H[t, i : T, D] = tanh(B[t, i] + 0.01 * sum(W[i, j] * H[t - 1, j])); }",
        {"B": ((6, 1024), F32), "W": ((1024, 1024), F32)},
    ),
    "attention": Case(ATTENTION, {n: ((2, 256, 64), BF16) for n in "QKV"}),
}


def arguments(case: Case, device: str = "cpu") -> list[torch.Tensor | int]:
    """Data for a case, the same each time."""
    generator = torch.Generator().manual_seed(1)
    made: list[torch.Tensor | int] = []
    for given in case.inputs.values():
        if isinstance(given, int):
            made.append(given)
            continue
        shape, dtype = given[0], getattr(torch, given[1])
        if dtype.is_floating_point:
            t = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        else:
            t = torch.randint(0, case.below, shape, generator=generator, dtype=dtype)
        made.append(t.to(device))
    return made


def driver_stub(folder: Path) -> Path:
    """The folder, with a library that stands for the driver. Linkers and loaders are given its path; the name that is
    asked for where it is loaded is another, or else who looks for a driver later in the process would find the stub."""
    source = Path(__file__).parents[1] / "package" / "driver_stub.c"
    flags = ["-shared", "-fPIC", "-Wall", "-Wl,-soname,libdriver_stub.so"]
    subprocess.run(["gcc", *flags, "-o", str(folder / "libdriver_stub.so"), str(source)], check=True)
    (folder / "libcuda.so.1").symlink_to("libdriver_stub.so")
    return folder
