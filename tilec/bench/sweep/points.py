"""What is swept over sizes: each point's pieces of work, ours and those that one would write in torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch

import tilec
from tilec.bench.recurrences import HIDDEN, LOG_PRODUCT, SHUFFLE, torch_shuffle_loop
from tilec.bench.sweep import layers
from tilec.bench.sweep.setup import MOST_BYTES, Point, Setup, TimedRun, TooLarge
from tilec.transforms.autodiff.grad import grad

Tensor = torch.Tensor
OUR_CURVE, EAGER_CURVE, COMPILED_CURVE, SHIFTED, GRAPH, LOOP, GRU = (
    "tilec", "torch", "torch.compile", "exp, matmul, log", "torch, CUDA graph", "eager loop", "cuDNN GRU",
)  # fmt: skip


# log products


def normal_point(g: torch.Generator, device: str, *shape: int) -> Tensor:
    return 3 * torch.randn(shape, generator=g, device=device)


def uniform_point(g: torch.Generator, device: str, *shape: int) -> Tensor:
    return -2000 * torch.rand(shape, generator=g, device=device)


def sparse(g: torch.Generator, device: str, *shape: int) -> Tensor:
    """Scores of a model in which nine of ten transitions are impossible."""
    there = torch.rand(shape, generator=g, device=device) < 0.1
    return torch.where(there, normal_point(g, device, *shape), -torch.inf)


def distances(g: torch.Generator, device: str, *shape: int) -> Tensor:
    """Scores that fall with the distance from the diagonal, and noise."""
    places = (torch.arange(n, device=device) / n for n in shape)
    rows, columns = (p * 512 for p in places)
    return normal_point(g, device, *shape) - (rows[:, None] - columns).abs()


RANGES = {"N(0, 3^2)": normal_point, "uniform -2000..0": uniform_point, "9 of 10 -inf": sparse, "distances": distances}


def log_product_point(n: int, range_: str, compiled: bool = False) -> Callable[[torch.Generator, str], Setup]:
    def make(g: torch.Generator, device: str) -> Setup:
        a, b = (RANGES[range_](g, device, n, n) for _ in range(2))
        rows = torch.arange(0, n, max(1, n // 32), device=device)
        exact = torch.cat([naive(row.double(), b.double()) for row in a[rows].split(1)])
        allowed = 3e-6 + 2 * 2.0**-23 * exact.abs().nan_to_num(0, 0, 0)

        def check(value: object) -> float:
            assert isinstance(value, Tensor)
            got = value[rows].double()
            return torch.where(got == exact, 0.0, (got - exact).abs() / allowed).nan_to_num(torch.inf).max().item()

        if compiled:
            return Setup({COMPILED_CURVE: lambda: bound(torch.compile(limited_elements(naive, 0)), a, b)}, check, {})
        ours = tilec.compile(LOG_PRODUCT, backend="triton" if device == "cuda" else None)
        builds = {
            OUR_CURVE: lambda: bound(ours, a, b),
            EAGER_CURVE: lambda: bound(limited_elements(naive, 3 * 4 * n**3), a, b),
            SHIFTED: lambda: bound(shifted, a, b),
        }
        return Setup(builds, check, shares(a, b, *tiles(ours, a, b)) if n <= 1024 else {})

    return make


def naive(a: Tensor, b: Tensor) -> Tensor:
    return torch.logsumexp(a[:, :, None] + b, 1)


def shifted(a: Tensor, b: Tensor) -> Tensor:
    """The product of exponentials, with nothing that sees where it underflows."""
    left, right = a.amax(1, keepdim=True), b.amax(0)
    return torch.log(torch.exp(a - left) @ torch.exp(b - right)) + left + right


def limited_elements(formula: Callable[..., Tensor], bytes_: int) -> Callable[..., Tensor]:
    def run(*inputs: Tensor) -> Tensor:
        if bytes_ > MOST_BYTES:
            raise TooLarge(f"{bytes_ / 2**30:.0f} GiB")
        return formula(*inputs)

    return run


def bound(run: Callable[..., object], *inputs: Tensor) -> TimedRun:
    return lambda: run(*inputs)


def tiles(f: tilec.Function, *inputs: Tensor) -> tuple[int, int]:
    """Rows and columns of a block of the log product's kernel; nominal ones where it runs as something else."""
    found = re.search(r"_log_dot\[.*BM=(\d+), BN=(\d+)", f.lower(*inputs).source())
    return (int(found[1]), int(found[2])) if found else (64, 64)


def shares(a: Tensor, b: Tensor, rows: int = 64, columns: int = 64) -> dict[str, float]:
    """Shares of the tiles of a float32 product that need pairs counted and addition term by term. By the kernel's
    bound on what is lost; it also passes on large numbers that cancel to a small result, of which these ranges have
    none."""
    a, b = a.double(), b.double()
    whole = torch.stack([torch.logsumexp(row[:, None] + b, 0) for row in a])
    tops = a.amax(1)[:, None] + b.amax(0)
    least = torch.log(torch.tensor(a.shape[1] * 2.0**-99, dtype=torch.float64))
    left = (tops != -torch.inf) & ~(whole - tops >= least)
    found = {}
    for name, unsure in (("pairs counted", left), ("term by term", left & (whole != -torch.inf))):
        of_tiles = [t.any() for strip in unsure.split(rows) for t in strip.split(columns, 1)]
        found[name] = torch.stack(of_tiles).double().mean().item()
    return found


# a linear-chain CRF: its log partition function, and its marginals


def crf(batch: int, steps: int, labels: int, marginals: bool) -> Callable[[torch.Generator, str], Setup]:
    def make(g: torch.Generator, device: str) -> Setup:
        p = normal_point(g, device, labels, labels) / 3
        e = normal_point(g, device, steps, batch, labels) / 3
        first = torch.zeros(batch, labels, device=device)
        peer = chain_marginals if marginals else crf_partition
        exact = peer(p.double(), e.double(), first.double())

        def check(value: object) -> float:
            got = value[-1] if isinstance(value, tuple) else value
            assert isinstance(got, Tensor) and got.shape == exact.shape
            # a marginal is exp of a difference of numbers in the thousands, whose last place is 2e-4
            return ((got.double() - exact).abs().max() / ((2e-3 if marginals else 1e-4) * exact.abs().max())).item()

        def ours() -> TimedRun:
            program = grad(tilec.compile(PARTITION).program, ("E",)) if marginals else tilec.compile(PARTITION).program
            inputs = (p, e, first, torch.ones(batch, device=device)) if marginals else (p, e, first)
            return bound(tilec.Function(program, PARTITION), *inputs)

        return Setup({OUR_CURVE: ours, GRAPH: lambda: captured(peer, p, e, first)}, check, {})

    return make


PARTITION = HIDDEN.replace("-> (F) {", "-> (Z) {").rstrip().removesuffix("}") + "Z[n] = logsumexp(F[T - 1, n, j]); }"


def forward(p: Tensor, e: Tensor, f: Tensor) -> list[Tensor]:
    states = []
    for scores in e:
        f = torch.logsumexp(f[:, :, None] + p, 1) + scores
        states.append(f)
    return states


def crf_partition(p: Tensor, e: Tensor, f: Tensor) -> Tensor:
    return torch.logsumexp(forward(p, e, f)[-1], 1)


def chain_marginals(p: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """By the forward and backward sums, which keep less than autograd would."""
    alphas = forward(p, e, f)
    whole = torch.logsumexp(alphas[-1], 1, keepdim=True)
    beta = torch.zeros_like(f)
    found = [torch.exp(alphas[-1] - whole)]
    for t in range(len(e) - 1, 0, -1):
        beta = torch.logsumexp(p + (e[t] + beta)[:, None], 2)
        found.append(torch.exp(alphas[t - 1] + beta - whole))
    return torch.stack(found[::-1])


def captured(run: Callable[..., Tensor], *inputs: Tensor) -> TimedRun:
    """Replays one call, so that no time goes into launching it from Python; on a CPU the call itself."""
    if not inputs[0].is_cuda:
        return bound(run, *inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(*inputs)

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


# the shuffling recurrent network


def shuffle(batch: int, steps: int, size: int = 512) -> Callable[[torch.Generator, str], Setup]:
    def make(g: torch.Generator, device: str) -> Setup:
        b = normal_point(g, device, batch, steps, size) / 30
        h = normal_point(g, device, batch, size)
        exact = torch_shuffle_loop(b, h)
        gru = torch.nn.GRU(size, size, batch_first=True, device=device)

        def check(value: object) -> float:
            if isinstance(value, tuple):  # the GRU, another function of the same size
                return 0.0
            assert isinstance(value, Tensor)
            return ((value - exact).abs().max() / (1e-3 * exact.abs().max())).item()

        @torch.no_grad()
        def peer() -> object:
            return gru(b)

        builds: dict[str, Callable[[], TimedRun]] = {
            OUR_CURVE: lambda: bound(tilec.compile(SHUFFLE), b, h),
            LOOP: lambda: bound(torch_shuffle_loop, b, h),
            GRU: lambda: peer,
        }
        return Setup(builds, check, {})

    return make


def _points() -> Iterator[Point]:
    """The most important first."""
    plain = "N(0, 3^2)"
    for n in (512, 2048, 1024, 4096, 256, 64, 16):
        yield Point("log product", plain, n, log_product_point(n, plain))
    for marginals in (False, True):
        for labels in (64, 256):
            line = "marginals" if marginals else "log partition"
            yield Point("chain of 512, batch 64", line, labels, crf(64, 512, labels, marginals))
    for steps in (50, 200, 1000, 4000):
        yield Point("shuffling network of 512", "batch 1, by length", steps, shuffle(1, steps))
    for batch in (1, 8, 32, 128):
        yield Point("shuffling network of 512", "length 500, by batch", batch, shuffle(batch, 500))
    for n in (1024, 256):
        for range_ in list(RANGES)[1:]:
            yield Point("log product", range_, n, log_product_point(n, range_))
    for n in (512, 2048):  # torch compiles each size anew, which takes seconds
        yield Point("log product", plain, n, log_product_point(n, plain, compiled=True), COMPILED_CURVE)


POINTS = {p.name: p for p in (*_points(), *layers.points())}
