"""What is no ratio: host time of a cached call, compile latency, the first call on a new shape."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import tilec
from tilec.bench import works
from tilec.bench.overheads import CONVOLUTION, microseconds, synchronize


@dataclass(frozen=True)
class Fact:
    """A sentence with one figure. `measure` takes the backend's name and the device's and gives the figure, and another
    to name beside it; `at_most` is the goal."""

    name: str
    unit: str
    measure: Callable[[str, str], tuple[float, float]]
    beside: str
    at_most: float | None = None


def cached_call(backend: str, device: str) -> tuple[float, float]:
    add, x = tilec.compile(works.ADD.source, backend=backend), torch.zeros(1024, device=device)
    # 500 launches fit into the driver's queue, so that the host never waits for the device
    return tuple(microseconds(f, 500, lambda: synchronize(device)) for f in (lambda: add(x), lambda: x + 1))  # type: ignore[return-value]


def compilation(backend: str, device: str) -> tuple[float, float]:
    compiled = microseconds(lambda: tilec.compile(CONVOLUTION, backend=backend), 20) / 1e3
    differentiated = microseconds(lambda: tilec.compile(CONVOLUTION, backend=backend).grad(), 20) / 1e3
    return compiled, differentiated


def first_call(backend: str, device: str) -> tuple[float, float]:
    """Seconds until the first result with nothing compiled before, and on a further shape of the same class."""
    f = tilec.compile(CONVOLUTION, backend=backend)
    kernel = torch.randn(3, 3, 64, 64, device=device, dtype=torch.float16)
    images = [torch.randn(n, 57, 57, 64, device=device, dtype=torch.float16) for n in (16, 32)]
    before = os.environ.get("TRITON_CACHE_DIR")
    taken = []
    with tempfile.TemporaryDirectory() as empty:
        os.environ["TRITON_CACHE_DIR"] = empty
        try:
            for image in images:
                synchronize(device)
                start = time.perf_counter()
                f(image, kernel)
                synchronize(device)
                taken.append(time.perf_counter() - start)
        finally:
            del os.environ["TRITON_CACHE_DIR"]
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before
    return taken[0], taken[1]


FACTS = (
    Fact("a cached call of `Y = X + 1`, host time", "µs", cached_call, "torch's own addition", 15),
    Fact("`tilec.compile` of the strided dilated convolution", "ms", compilation, "with its gradient", 50),
    Fact("its first call on a new shape, untuned", "s", first_call, "on a further shape of the class", 1),
)
