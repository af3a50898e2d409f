"""Several kernels compiled at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
MOST_COMPILERS = 8  # threads; beyond that they wait for Python's lock


def in_parallel(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """The jobs' results in order, by threads: much of Triton's compilation, and all of ptxas, runs outside Python's
    lock. Raises what the first job that fails raises."""
    workers = min(
        len(jobs),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        MOST_COMPILERS,
    )
    if workers < 2:
        return [job() for job in jobs]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda job: job(), jobs))
