"""Programs and shapes whose generated kernels are kept in files: every family, every form, many gradients.

Uses the package's public interface alone, so that an older or a newer package can be asked for the same kernels.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "gpu"))  # where the programs over sizes are

from gpu_programs import SIZED, reductions  # noqa: E402
from support.layers import DROPOUT, LAYERS  # noqa: E402
from support.recurrences import RECURRENCES  # noqa: E402

import tilec  # noqa: E402

TARGET = "sm_90"
WINDOWS = {"R": 3, "S": 3, "T": 2}
UNEVEN = {"I": 77, "J": 33, "K": 129, "P": 3, "N": 4, "H": 19, "W": 23, "C": 24, "D": 40, "M": 6, **WINDOWS}
ALIGNED = {"I": 2048, "J": 1024, "K": 1024, "P": 8, "N": 16, "H": 64, "W": 64, "C": 64, "D": 128, "M": 8, **WINDOWS}
INTEGERS = {"Ix": "int64", "L": "int64", "U": "int32", "U2": "int32"}
LINEAR = "function (A[T, D], B[T, D]) -> (H) { H[t, i : T, D] = A[t, i] * H[t - 1, i] + B[t, i]; }"
ATTENTION = """function (Q[B, N, D], K[B, M, D], V[B, M, D]) -> (O) {
    S[b, i, j : B, N, M] = +(Q[b, i, d] * K[b, j, d]);
    P[b, i, j : B, N, M] = exp(S[b, i, j] / 8 - logsumexp(S[b, i, k] / 8));
    O[b, i, d : B, N, D] = +(P[b, i, j] * V[b, j, d]);
}"""
ALONG = "function (X[B, N]) -> (O) { O[b, i : B, N] = %s(X[b, k]), i - k < N; }"
ACROSS = "function (X[N, B]) -> (O) { O[i, b : N, B] = %s(X[k, b]), k - i < N; }"


@dataclass(frozen=True)
class KernelCase:
    """`inputs`: shape and element type of each. `gradient`: the kernels of the gradient by all floating inputs."""

    name: str
    source: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    gradient: bool = False

    @property
    def file(self) -> str:
        return re.sub(r"[^a-z0-9/]+", "-", self.name.lower()) + ".txt"

    def text(self, target: str = TARGET) -> str:
        """All kernels and the function that launches them, for a device that need not be there."""
        return self.lowered(target).source()

    def lowered(self, target: str = TARGET) -> tilec.Lowered:
        """The program, for a device that need not be there."""
        function = tilec.compile(self.source, backend="triton")
        specs = [tilec.spec(shape, dtype) for shape, dtype in self.inputs]
        if self.gradient:
            outputs = function.lower(*specs, target=target).outputs
            function = function.grad([n for n, s in zip(function.inputs, specs, strict=True) if "float" in s.dtype])
            specs += [tilec.spec(t.shape, t.dtype) for t in outputs]
        return function.lower(*specs, target=target)


@cache
def kernel_cases() -> tuple[KernelCase, ...]:
    cases = (*_sized(), *_layers(), *_scans(), *_recurrences(), *_large())
    assert len({case.file for case in cases}) == len(cases), "two cases have one file"
    return cases


def _sized():
    """The programs that a device draws sizes for, at sizes that divide nothing; products on tensor cores too."""
    for name in SIZED:
        if name in reductions():
            yield _over(f"reductions/{name}", SIZED[name], UNEVEN, "float16" if "columns" in name else "float32")
            continue
        yield _over(f"uneven/{name}", SIZED[name], UNEVEN, "float32")
        if name in ("log product", "three factors") or ("convolution" in name and "gradient" not in name):
            yield _over(f"uneven/gradient/{name}", SIZED[name], UNEVEN, "float32", True)
    names = list(SIZED)
    for name in names[: names.index("convolution, upsampled")]:
        if "integer" not in name:
            yield _over(f"aligned/{name}", SIZED[name], ALIGNED, "bfloat16")
    for name in ("sum of rows", "logsumexp of columns", "max of rows", "prod of rows"):
        yield _over(f"reductions/gradient/{name}", SIZED[name], UNEVEN, "float32", True)


def _over(name: str, source: str, sizes: dict[str, int], dtype: str, gradient: bool = False) -> KernelCase:
    inputs = []
    for declared in tilec.compile(source).program.inputs:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in declared.dims or ())
        boolean = declared.name == "B" and "booleans" in name
        inputs.append((shape, "bool" if boolean else INTEGERS.get(declared.name, dtype)))
    return KernelCase(name, source, tuple(inputs), gradient)


def _layers():
    for name, layer in LAYERS.items():
        for rows, columns, dtype in ((512, 1000, "float32"), (4096, 1024, "bfloat16"), (16, 70001, "float32")):
            inputs = tuple((shape, dtype) for shape in layer.shapes(rows, columns))
            label = f"{name} {rows} {columns}"
            yield KernelCase(f"layers/{label}", layer.source, inputs)
            yield KernelCase(f"layers/gradient/{label}", layer.source, inputs, True)
    given = (((512, 1000), "float32"), ((512, 1000), "float32"), ((), "int64"))
    yield KernelCase("layers/dropout", DROPOUT, given)
    yield KernelCase("layers/gradient/dropout", DROPOUT, given, True)


def _scans():
    for aggregation, word in (("+", "sum"), (">", "max"), ("logsumexp", "logsumexp")):
        yield KernelCase(f"scans/{word} along rows", ALONG % aggregation, (((8, 4099), "float32"),))
        yield KernelCase(f"scans/{word} down columns", ACROSS % aggregation, (((4099, 40), "float32"),))
    yield KernelCase("scans/gradient/sum along rows", ALONG % "+", (((8, 4099), "float32"),), True)
    yield KernelCase("scans/linear", LINEAR, (((4000, 64), "float32"),) * 2)
    yield KernelCase("scans/gradient/linear", LINEAR, (((4000, 64), "float32"),) * 2, True)


def _recurrences():
    for name, (source, arrays) in RECURRENCES.items():
        inputs = tuple((a.shape, "float32" if a.dtype.kind == "f" else a.dtype.name) for a in arrays)
        yield KernelCase(f"recurrences/{name}", source, inputs)
        if name in ("shuffle", "hidden Markov model", "edit distance", "a window of the past", "pointers", "guarded"):
            yield KernelCase(f"recurrences/gradient/{name}", source, inputs, True)


NEAREST = """function (X[N, D], Y[M, D]) -> (O) {
    S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));
    O[i : N] = <(S[i, j]);
}"""


MESSAGES = "function (X[N, D], W[M], A[M], B[M]) -> (Y) { Y[B[m], d : N, D] = +(X[A[m], d] * W[m]); }"
INTERPOLATED = """function (X[N, D], F[M]) -> (Y) {
    P = int64(floor(F));
    A = F - floor(F);
    Y[m, d : M, D] = pad(X[P[m], d], 0) * (1 - A[m]) + pad(X[P[m] + 1, d], 0) * A[m];
}"""


VARIATION = """function (X[N, H, W]) -> (Y) {
    A[n : N] = mean(abs(X[n, y + 1, x] - X[n, y, x]));
    B[n : N] = mean(abs(X[n, y, x + 1] - X[n, y, x]));
    Y[n : N] = A[n] + B[n];
}"""
DOUBLED = """function (X[H, W]) -> (A, Y) {
    A[] = sum(abs(X[y + 1, x] - X[y, x]));
    Y[y, x : H, W] = 2 * X[y, x];
}"""
ONE_QUERY = "function (Q[B, D], K[B, M, D]) -> (O) { O[b, j : B, M] = sum(Q[b, d] * K[b, j, d]); }"
MOMENTS = "function (X[N]) -> (S, Q, M) { S[] = sum(X[i]); Q[] = sum(X[i] * X[i]); M[] = >(X[i]); }"
HEADS = """function (X[B, H, N, E], W[H, E, D]) -> (O) {
    O[b, n, d : B, N, D] = +(X[b, h, n, e] * W[h, e, d]);
}"""

BUCKETS = """function (Q[B, H, N, E], K[B, H, M, E], V[B, H, M, F], Table[U, H], Bucket[N, M]) -> (O) {
    S[b, h, i, j : B, H, N, M] = sum(Q[b, h, i, e] * K[b, h, j, e]) + Table[Bucket[i, j], h];
    L[b, h, i : B, H, N] = logsumexp(S[b, h, i, j]);
    O[b, h, i, f : B, H, N, F] = sum(exp(S[b, h, i, j] - L[b, h, i]) * V[b, h, j, f]);
}"""

EXPERTS = """function (X[T, C], G[T, K], E[T, K], V[N, C, F], W[N, F, C]) -> (Y) {
    H[t, k, f : T, K, F] = gelu(sum(X[t, c] * V[E[t, k], c, f]));
    Y[t, o : T, C] = +(G[t, k] * H[t, k, f] * W[E[t, k], f, o]);
}"""


def _large():
    """Programs that go through their intermediates piece by piece, or never store them; and that sort."""
    matrices = (((8, 512, 1024), "bfloat16"), ((8, 1024, 512), "bfloat16"))
    tokens = (((4096, 512), "bfloat16"), ((4096, 2), "bfloat16"), ((4096, 2), "int64"), *matrices)
    yield KernelCase("large/experts", EXPERTS, tokens)
    yield KernelCase("large/gradient/experts", EXPERTS, tokens, True)
    for points in (4000, 40000):
        edges = (((3000, 64), "float32"), ((points,), "float32"), ((points,), "int64"), ((points,), "int64"))
        yield KernelCase(f"large/messages over {points} edges", MESSAGES, edges)
        yield KernelCase(f"large/gradient/messages over {points} edges", MESSAGES, edges, True)
    sampled = ((3000, 64), "float32"), ((40000,), "float32")
    yield KernelCase("large/gradient/interpolated rows", INTERPOLATED, sampled, True)
    for width in (3, 64):
        points = (((2048, width), "float32"), ((3000, width), "float32"))
        yield KernelCase(f"large/nearest of {width} coordinates", NEAREST, points)
        yield KernelCase(f"large/gradient/nearest of {width} coordinates", NEAREST, points, True)
    for length in (1024, 16384):
        inputs = (((8, length, 64), "bfloat16"),) * 3
        yield KernelCase(f"large/attention {length}", ATTENTION, inputs)
        yield KernelCase(f"large/gradient/attention {length}", ATTENTION, inputs, True)
    given = *((((4, 8, 1024, 64), "bfloat16"),) * 3), ((32, 8), "bfloat16"), ((1024, 1024), "int64")
    yield KernelCase("large/attention with buckets", BUCKETS, given)
    yield KernelCase("large/gradient/attention with buckets", BUCKETS, given, True)
    for images in (1, 3):
        yield KernelCase(f"large/variation of {images}", VARIATION, (((images, 512, 1000), "float32"),))
    yield KernelCase("large/variation beside a map", DOUBLED, (((4096, 4096), "float32"),))
    yield KernelCase("large/one query of many keys", ONE_QUERY, (((64, 64), "bfloat16"), ((64, 4096, 64), "bfloat16")))
    yield KernelCase("large/moments", MOMENTS, (((2**20 + 1,), "float32"),))
    heads = (((4, 16, 512, 64), "bfloat16"), ((16, 64, 1024), "bfloat16"))
    yield KernelCase("large/gradient/heads", HEADS, heads, True)
