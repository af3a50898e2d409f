"""Timing in turn: every candidate once a round, medians over the rounds, so that a slow moment hits all alike."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Candidate = Callable[[], object]
BuildCandidates = Callable[[], tuple[Candidate, dict[str, Candidate]]]


@dataclass(frozen=True)
class Case:
    """`build` makes, on demand, the peer and our candidates by name. `goals`: least ratio for each of ours."""

    name: str
    peer: str
    build: BuildCandidates
    goals: dict[str, float] = field(default_factory=dict)
    tolerance: float = 1e-4


def measure(case: Case, rounds: int) -> tuple[float, dict[str, float]]:
    """Median seconds of the peer and of each of ours; AssertionError where a result differs from the peer's."""
    peer, ours = case.build()
    candidates = {case.peer: peer, **ours}
    wanted = result_tensors(peer())
    for name, run in ours.items():
        for w, g in zip(wanted, result_tensors(run()), strict=True):
            scale = w.abs().max().clamp(min=1e-30)
            error = ((g.double() - w.double()).abs().max() / scale).item()
            assert error < case.tolerance, f"{case.name}, {name}: relative error {error}"
    times: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(t) for name, t in times.items()}
    return medians.pop(case.peer), medians


def result_tensors(value: object) -> tuple[torch.Tensor, ...]:
    """The tensors of a result, or of several."""
    values = value if isinstance(value, tuple | list) else (value,)
    return tuple(v for v in values if isinstance(v, torch.Tensor))


def peak_bytes(run: Candidate, device: str) -> int | None:
    """Bytes that a call holds at most beside what is there already, its result included; None on a CPU, which has no
    count of them."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def header() -> list[str]:
    """What it ran on, and the table's head."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    machine = (
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, load {load} at the start"
    )
    return [
        "",
        f"{machine}. `goal` is the least ratio aimed at; **miss** marks what falls short of it.",
        "",
        "| work | peer | peer, ms | ours | ms | ratio | goal |",
        "| --- | --- | ---: | --- | ---: | ---: | --- |",
    ]


def row(case: Case, measured: tuple[float, dict[str, float]]) -> str:
    """Table rows of a case, one a candidate."""
    peer, ours = measured
    rows = []
    for name, seconds in ours.items():
        ratio = peer / seconds
        goal = case.goals.get(name)
        verdict = "-" if goal is None else f"{goal:g}" + ("" if ratio >= goal else " **miss**")
        cells = [case.name, case.peer, _ms(peer), name, _ms(seconds), f"{ratio:.2f}", verdict]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
