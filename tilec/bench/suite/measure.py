"""Measure workloads on a device: each candidate checked, then timed in turn with the others."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import tilec
from tilec.arguments import spec
from tilec.bench import gpu, workers
from tilec.bench.gpu import Record, copy_rate, machine, timed
from tilec.bench.overheads import synchronize
from tilec.bench.suite.catalog import WORKLOADS
from tilec.bench.suite.workload import Workload
from tilec.bench.works import EAGER, TensorResults, results_of
from tilec.cost import H200

OUR_COLUMN = "tilec"
OURS_ALONE = "tilec alone"
REFERENCE = "reference"  # what inputs and exact results are made by
LONG_RUN = 2e4  # microseconds, beyond which one median is enough
SLOW_RATIO = 0.9  # below this ratio to the best peer a record names the kernel that takes longest


@dataclass(frozen=True)
class SuiteSettings:
    """`warm`: build and call every candidate, time nothing, so that compilers' caches on disk are filled. `alone`: time
    generated kernels also where the default takes a library's; `compiled`: time torch.compile."""

    size: str = "large"
    seed: int = 0
    device: str = "cuda"
    warm: bool = False
    alone: bool = False
    compiled: bool = True
    dtype: str | None = None


def tasks(only: str = "", kinds: tuple[str, ...] = ()) -> list[str]:
    """Names of what there is to measure: "workload, direction"."""
    return [
        f"{w.name}, {direction}"
        for w in WORKLOADS.values()
        if only in w.name and (not kinds or w.kind in kinds)
        for direction in w.directions
    ]


def split(task: str) -> tuple[Workload, str]:
    name, _, direction = task.rpartition(", ")
    return WORKLOADS[name], direction


def measured_workload(task: str, settings: SuiteSettings) -> Record:
    """Times in microseconds by candidate, what failed and why, the floor; faults of the device raise."""
    workload, direction = split(task)
    torch._dynamo.reset()  # or else what was compiled for other workloads counts against its limit of recompilations
    dtype = settings.dtype or workload.dtype
    with gpu.arithmetic("highest"):
        record = _record(workload, direction, dtype, settings)
    gc.collect()
    if settings.device == "cuda":
        torch.cuda.empty_cache()
    return {**record, "machine": machine(settings.device), "dtype": dtype, "size": settings.size}


def _record(workload: Workload, direction: str, dtype: str, settings: SuiteSettings) -> Record:
    workers.begin_part(REFERENCE)
    inputs = workload.tensors(settings.size, settings.device, settings.seed, getattr(torch, dtype))
    if direction == "backward":
        value = workload.formula(*inputs)
        generator = torch.Generator(settings.device).manual_seed(settings.seed + 1)  # the seed's own are the inputs
        inputs.append(torch.randn(value.shape, generator=generator, device=settings.device).to(value.dtype))
        del value
    exact = None if settings.warm or not workload.checked else _exact(workload, direction, inputs)
    work = workload.work(direction)
    calls: dict[str, Callable[..., torch.Tensor]] = {}
    runs: dict[str, Callable[[], TensorResults]] = {}
    failed: dict[str, str] = {}
    errors: dict[str, float] = {}
    for name, build in _candidates(workload, settings).items():
        workers.begin_part(name)
        try:
            calls[name] = build()
            run = work.run(calls[name], inputs)
            found = results_of(run())
            if exact is not None:
                errors[name] = max(_error(f, e) for f, e in zip(found, exact, strict=True))
            runs[name] = run
        except Exception as error:
            if not (isinstance(error, ImportError) and name not in (OUR_COLUMN, OURS_ALONE)):
                failed[name] = gpu.in_one_line(error)
    del exact
    for name in (OUR_COLUMN, OURS_ALONE):
        allowed = max(workload.tolerance if dtype == "float32" else 0.02, 2 * errors.get(EAGER, 0.0))
        if name in errors and not errors[name] <= allowed:
            failed[name] = f"wrong: relative error {errors[name]:.3g}, allowed {allowed:.3g}"
    record: Record = {"failed": failed, "errors": errors, "us": {}}
    if settings.warm:
        return record
    sound = {name: run for name, run in runs.items() if name not in failed}
    record["us"] = _microseconds(sound, settings.device)
    workers.begin_part(OUR_COLUMN)
    record["floor"] = _floor(workload, direction, inputs, dtype, settings.device)
    achieved = ratio(record)
    if settings.device == "cuda" and OUR_COLUMN in sound and achieved is not None and achieved < SLOW_RATIO:
        record["kernel"] = _longest_kernel(sound[OUR_COLUMN])
    if direction == "backward":
        runs.clear()  # what their graphs keep makes room
        sound.clear()
        steps = {name: work.backward(calls[name], inputs, step=True) for name in record["us"]}
        try:
            record["step"] = _step_microseconds(steps, record["us"], settings.device)
        except Exception as error:
            failed["step"] = gpu.in_one_line(error)
    return record


def _candidates(workload: Workload, settings: SuiteSettings) -> dict[str, Callable[[], Callable[..., torch.Tensor]]]:
    """How to build each candidate's call, torch's eager code first, since its error is the measure of ours."""
    work = workload.work("forward")

    def ours(backend: str | None) -> Callable[..., torch.Tensor]:
        f = tilec.compile(workload.source, backend=backend)
        return (lambda *tensors: f(*tensors, *workload.numbers)) if workload.numbers else f

    chosen = [name for name in workload.peers if settings.compiled or name == EAGER]
    peers = {name: functools.partial(work.torch_call, name) for name in chosen}
    alone = {OURS_ALONE: functools.partial(ours, "triton")} if settings.alone else {}
    return {**peers, OUR_COLUMN: functools.partial(ours, None), **alone}


def _exact(workload: Workload, direction: str, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The answer in a wider type: float64 for float32, float32 for narrower ones."""
    wide = torch.float64 if any(t.dtype is torch.float32 for t in inputs) else torch.float32
    widened = [t.to(wide) if t.is_floating_point() else t for t in inputs]
    work = workload.work(direction)
    return results_of(replace(work, formula=work.checked_by or work.formula).peer(widened)())


def _error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Greatest absolute error over the greatest finite value; of integers, the share that differs."""
    assert got.shape == exact.shape, f"the result has shape {tuple(got.shape)}, not {tuple(exact.shape)}"
    if not exact.is_floating_point():
        return (got != exact).double().mean().item()
    same = (got == exact) | (got.isnan() & exact.isnan())
    scale = torch.where(exact.isfinite(), exact.abs(), 0.0).amax().item() if exact.numel() else 0.0
    difference = torch.where(same, 0.0, (got.to(exact.dtype) - exact).abs().nan_to_num(torch.inf, torch.inf))
    return difference.amax().item() / (scale + 1e-30) if exact.numel() else 0.0


def _microseconds(
    runs: dict[str, Callable[[], TensorResults]], device: str, milliseconds: int = 25
) -> dict[str, float]:
    """The lesser of two medians each, taken in turn, then in the reverse order; one of what takes so long that a moment
    does not matter."""
    found: dict[str, float] = {}
    for names in (list(runs), list(runs)[::-1]):
        for name in names:
            if found.get(name, 0.0) < LONG_RUN:
                workers.begin_part(name)
                found[name] = min(found.get(name, float("inf")), timed(runs[name], device, milliseconds))
    return found


def _step_microseconds(
    runs: dict[str, Callable[[], TensorResults]], backward: dict[str, float], device: str
) -> dict[str, float]:
    """Times of training steps, in fewer runs than those of one pass: of what is long backward, one by the clock."""
    short = {name: run for name, run in runs.items() if backward[name] < LONG_RUN}
    found = _microseconds(short, device, 10)
    for name in runs.keys() - short.keys():
        workers.begin_part(name)
        synchronize(device)
        start = time.perf_counter()
        runs[name]()
        synchronize(device)
        found[name] = (time.perf_counter() - start) * 1e6
    return found


def _floor(workload: Workload, direction: str, inputs: list[torch.Tensor], dtype: str, device: str) -> float:
    """Microseconds below which nothing can be: least bytes at the rate of a copy, operations at the products' peak."""
    function = tilec.Function(workload.work(direction).program, workload.source)
    specs = [spec(t.shape, t.dtype) for t in inputs]
    cost = function.lower(*workload.work(direction).with_numbers(specs), backend="torch").cost()
    return 1e6 * max(cost.least_bytes / copy_rate(device), cost.least_flops / H200.operations[dtype])


def _longest_kernel(run: Callable[[], TensorResults]) -> str:
    """The name of the kernel that takes longest, and its share of the device's time."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    kernels = [e for e in recorded.key_averages() if e.device_time_total > 0]
    if not kernels:
        return "none"
    longest = max(kernels, key=lambda e: e.device_time_total)
    share = longest.device_time_total / sum(e.device_time_total for e in kernels)
    return f"{longest.key[:80]} ({share:.0%} of {len(kernels)} kernels)"


def with_steps(known: Mapping[str, Record]) -> dict[str, Record]:
    """These records, each backward pass followed by the training step that was measured with it."""
    found: dict[str, Record] = {}
    for name, record in known.items():
        found[name] = record
        if record.get("step"):
            step = {"dtype": record["dtype"], "failed": record["failed"], "us": record["step"]}
            found[f"{split(name)[0].name}, step"] = step
    return found


def ratio(record: Record) -> float | None:
    """How many times faster than its best peer a workload is."""
    us = record["us"]
    peers = [t for name, t in us.items() if name not in (OUR_COLUMN, OURS_ALONE)]
    return min(peers) / us[OUR_COLUMN] if peers and OUR_COLUMN in us else None


def gather_workloads(
    names: list[str], settings: SuiteSettings, path: Path, *, jobs: int = 1, limit: float, deadline: float
) -> Iterator[tuple[str, Record]]:
    """Measure these tasks, those in the file excepted, and keep each result in the file (none of a warm run)."""
    work = functools.partial(measured_workload, settings=settings)
    lost = {"machine": "", "us": {}, "errors": {}}
    return gpu.gather_records(
        names, work, path, OUR_COLUMN, lost, jobs=jobs, limit=limit, deadline=deadline, kept=not settings.warm
    )
