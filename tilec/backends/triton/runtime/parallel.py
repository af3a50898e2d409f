"""Compiling several kernels at a time, in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
MOST_COMPILERS = 8  # threads; beyond that they wait for Python's lock


def in_parallel(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """The jobs' results in order, by threads: much of Triton's compilation, and all of ptxas, runs outside Python's
    lock. Raises what the first job that fails raises. Triton's front end promises nothing about threads, and a kernel
    once failed to compile beside others, so a job that fails runs once more, alone."""
    workers = min(
        len(jobs),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        MOST_COMPILERS,
    )
    if workers < 2:
        return [job() for job in jobs]
    with ThreadPoolExecutor(workers) as pool:
        tried = [pool.submit(job) for job in jobs]
    return [job() if future.exception() else future.result() for job, future in zip(jobs, tried, strict=True)]
