"""What is not a ratio: compile and lowering time, host time of a cached call and of one at a new length, memory of a
large log product."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import tilec
from tilec.bench import works
from tilec.bench.works_steps import LINEAR_WORK

CONVOLUTION = """
function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
}
"""
MEMORY = """
import threading, torch, tilec

def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

def watch():
    global peak
    while not done.wait(0.0005):
        peak = max(peak, resident())

a = torch.randn(512, 512)
f = tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }")
f(a[:8, :8], a[:8, :8])
f.grad()(a[:8, :8], a[:8, :8], a[:8, :8])
before, peak, done = resident(), 0, threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
for _ in range(5):
    f(a, a)
    f.grad()(a, a, a)
done.set()
watcher.join()
print(peak - before)
"""


def microseconds(f: Callable[[], object], calls: int = 2000, between: Callable[[], object] = lambda: None) -> float:
    """Median over nine stretches of the time of one call; `between` comes before each stretch and is not timed."""
    f()
    taken = []
    for _ in range(9):
        between()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        taken.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(taken)


class VectorProduct(torch.autograd.Function):
    """What a product of two vectors costs as torch's own node in Python."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx, d):
        (x,) = ctx.saved_tensors
        return None, d * x


def calls() -> list[str]:
    """Sentences about a call's own time on four elements, each beside torch's."""
    x, w, d = torch.ones(4), torch.ones(4, requires_grad=True), torch.ones(4)
    scale, product = tilec.compile("Y = X * S;"), tilec.compile("function (X[N], W[N]) -> (Y) { Y = X * W; }")
    s = torch.tensor(2.5)
    number, tensor = microseconds(lambda: scale(x, 2.5)), microseconds(lambda: scale(x, s))

    def both(f: Callable) -> float:
        return microseconds(lambda: torch.autograd.grad(f(x, w), w, d), 500)

    ours, theirs = both(product), both(VectorProduct.apply)
    return [
        f"- A cached call of `Y = X * S` takes {number:.1f} µs where S is a Python number and {tensor:.1f} µs where "
        "it is a tensor.",
        f"- A recorded product, forward and backward, takes {ours:.1f} µs; as an autograd.Function in Python "
        f"{theirs:.1f} µs.",
    ]


def overheads() -> list[str]:
    """Sentences for the page, each with its goal where there is one."""
    tilec.compile(CONVOLUTION)
    compiled = microseconds(lambda: tilec.compile(CONVOLUTION), 20) / 1e3
    shapes = tilec.spec((4, 57, 57, 64)), tilec.spec((3, 3, 64, 64))
    start = time.perf_counter()
    tilec.compile(CONVOLUTION).lower(*shapes)
    lowered = (time.perf_counter() - start) * 1e3
    add, x = tilec.compile("function (X[N]) -> (Y) { Y = X + 1; }"), torch.zeros(4)
    ours, theirs = microseconds(lambda: add(x)), microseconds(lambda: x + 1)
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    return [
        "",
        f"- `tilec.compile` of the strided dilated convolution, once imported: {compiled:.1f} ms (goal: 50 ms); "
        f"compiled and lowered for a new shape, all passes and code generation: {lowered:.0f} ms.",
        f"- A cached call of `Y = X + 1` on four elements takes {ours:.1f} µs, torch's own addition {theirs:.1f} µs: "
        f"{ours - theirs:.1f} µs are the call's own.",
        *calls(),
        f"- A 512^3 log matrix product and its gradient raise the process's memory by at most "
        f"{int(done.stdout) / 1024:.0f} MiB; 512^3 floats would be 512 MiB.",
    ]


# the first call at a length of a class of shapes

_SOFTMAX = "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))"
_LAYER_NORM = """
function (X[N, F], G[F], B[F]) -> (Y) {
    M[n : N] = +(X[n, f] / F);
    V[n : N] = +((X[n, f] - M[n]) * (X[n, f] - M[n]) / F);
    Y[n, f : N, F] = (X[n, f] - M[n]) / sqrt(V[n] + 0.00001) * G[f] + B[f];
}
"""
_ATTENTION = """
function (Q[N, D], K[M, D], V[M, D]) -> (O) {
    S[i, j : N, M] = +(Q[i, d] * K[j, d]);
    L[i] = logsumexp(S[i, j]);
    O[i, d : N, D] = +(exp(S[i, j] - L[i]) * V[j, d]);
}
"""
_MEAN = "function (X[N, F]) -> (Y) { Y[f : F] = +(X[n, f] / N); }"
_GELU = "function (X[N, F], B[F]) -> (Y) { Y[n, f : N, F] = gelu(X[n, f] + B[f]); }"

ShapesOfLength = Callable[[int], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class LengthCase:
    """`shapes` of the inputs at a length."""

    name: str
    source: str
    shapes: ShapesOfLength


LENGTH_CASES = (
    LengthCase("softmax", _SOFTMAX, lambda n: ((n, 256),)),
    LengthCase("layer norm", _LAYER_NORM, lambda n: ((n, 256), (256,), (256,))),
    LengthCase("attention", _ATTENTION, lambda n: ((n, 64), (n, 64), (n, 64))),
    LengthCase("convolution", CONVOLUTION, lambda n: ((2, 3 * (n // 4), 27, 16), (3, 3, 16, 16))),
    LengthCase("product", works.MATMUL.source, lambda n: ((n, 64), (64, 128))),
    LengthCase("recurrence", LINEAR_WORK.source, lambda n: ((n, 64), (n, 64))),
    LengthCase("log product", works.LOG_PRODUCT_WORK.source, lambda n: ((n, 64), (64, 64))),
    LengthCase("mean over rows", _MEAN, lambda n: ((n, 256),)),
    LengthCase("bias + gelu", _GELU, lambda n: ((n, 256), (256,))),
)


def new_lengths(only: str, device: str) -> Iterator[str]:
    """A line for each case: milliseconds of the first call at a length, and of the second, forward and both passes."""
    yield "| case | forward, ms | worst | again | forward and backward, ms | worst | again |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in LENGTH_CASES:
        if only in case.name:
            figures = [
                f"{statistics.median(first):.2f} | {max(first):.2f} | {statistics.median(again):.2f}"
                for first, again in (_taken(case, device, both) for both in (False, True))
            ]
            yield f"| {case.name} | {' | '.join(figures)} |"


def _taken(case: LengthCase, device: str, both: bool) -> tuple[list[float], list[float]]:
    f = tilec.compile(case.source)
    first, again = [], []
    for step in range(30):
        inputs = [torch.randn(s, device=device).requires_grad_(both) for s in case.shapes(256 + 16 * (11 * step % 31))]
        taken = [_milliseconds(f, inputs, device) for _ in range(3)]
        if step >= 6:  # the class and its kernels are there
            first.append(taken[0])
            again.append(min(taken[1:]))
    return first, again


def _milliseconds(f: tilec.Function, inputs: list[torch.Tensor], device: str) -> float:
    synchronize(device)
    start = time.perf_counter()
    result = f(*inputs)
    if result.requires_grad:
        torch.autograd.grad(result.sum(), inputs)
    synchronize(device)
    return (time.perf_counter() - start) * 1e3


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
