"""`python -m tilec.bench gpu`: rows measured in a process that may be lost, gathered in a file, shown on the page.

Device time is short and a row can take minutes where torch compiles, so results go to a file after each row; a later
run with `--resume` does the rest, and the page is made of all of them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tilec
from tilec.arguments import spec
from tilec.bench import workers
from tilec.bench.gpu_facts import FACTS, Fact
from tilec.bench.gpu_page import LOST_ROW
from tilec.bench.gpu_rows import ALONE, HAND, OUR_COLUMNS, ROWS, WITH_LIB, Row
from tilec.bench.works import COMPILED, CUDNN_PEER, EAGER, LIGER, TensorResults, results_of

Record = dict[str, Any]
SMALLEST = 1e-300  # added to allowed errors, so that none is zero
REST = 0.05  # seconds before each measurement
# the facts take seconds, so they come right after the rows that this project exists for
ORDER: tuple[Row | Fact, ...] = (*ROWS[:4], *FACTS, *ROWS[4:])
TASKS = {task.name: task for task in ORDER}


@dataclass(frozen=True)
class GpuSettings:
    """How to measure. `backend`: of the column that has no library; `columns` and `peers`: those to measure; `tune`:
    are our kernels tuned first? `warm`: compile everything, time nothing."""

    seed: int = 0
    quick: bool = False
    device: str = "cuda"
    backend: str = "triton"
    columns: tuple[str, ...] = OUR_COLUMNS
    peers: tuple[str, ...] = (EAGER, COMPILED, LIGER, CUDNN_PEER)
    tune: bool = False
    warm: bool = False


def measured_row(task: Row | Fact, settings: GpuSettings) -> Record:
    """What there is to say of a row or fact, failures included; faults of the device raise."""
    started = time.perf_counter()
    if isinstance(task, Fact):
        record: Record = {"figures": {}, "failed": {}}
        try:
            record["figures"] = list(task.measure(settings.backend, settings.device))
        except Exception as error:
            record["failed"][ALONE] = in_one_line(error)
    else:
        with arithmetic(task.precision):
            record = _row(task, settings)
    gc.collect()
    if settings.device == "cuda":
        torch.cuda.empty_cache()
    return {
        **record,
        "machine": machine(settings.device),
        "seed": settings.seed,
        "tuned": settings.tune,
        "s": time.perf_counter() - started,
    }


def _row(row: Row, settings: GpuSettings) -> Record:
    inputs = made(row, settings)
    exact = row.work.exact(inputs)
    failed: dict[str, str] = {}
    errors: dict[str, tuple[float, float]] = {}
    runs: dict[str, Callable[[], TensorResults]] = {}
    allowed: list[torch.Tensor] | None = None
    for name, build in _candidates(row, inputs, settings).items():
        try:
            runs[name] = build()
            found = [_error(g, e) for g, e in zip(results_of(runs[name]()), exact, strict=True)]
            if allowed is None and (row.tolerance is not None or name in row.peers):
                torchs = [f if name in row.peers else torch.zeros_like(f) for f in found]
                allowed = [_allowed(row.tolerance, e, t) for e, t in zip(exact, torchs, strict=True)]
            assert allowed is not None, "no kernel of torch's gave a result whose error would be the measure"
            errors[name] = max(((f / a).amax().item(), f.amax().item()) for f, a in zip(found, allowed, strict=True))
            if name in OUR_COLUMNS and not errors[name][0] <= 1:
                failed[name] = f"wrong: {errors[name][0]:.3g} times the error allowed, {errors[name][1]:.3g} at most"
        except Exception as error:
            if isinstance(error, ImportError) and name not in OUR_COLUMNS:
                runs.pop(name, None)  # a peer that is not installed is no failure
            else:
                failed[name] = in_one_line(error)
    del exact
    sound = {name: run for name, run in runs.items() if name not in failed}
    program = tilec.Function(row.work.program, row.work.source)
    specs = row.work.with_numbers([spec(t.shape, t.dtype) for t in inputs])
    cost = program.lower(*specs, backend="torch").cost()
    return {
        "us": {} if settings.warm else _microseconds(sound, settings),
        "failed": failed,
        "errors": errors,
        "flops": cost.least_flops,
        "bytes": cost.least_bytes,
        "copy": copy_rate(settings.device),
    }


def made(row: Row, settings: GpuSettings) -> list[torch.Tensor]:
    """Normal inputs of a row, from the seed."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    dtype = getattr(torch, row.dtype)

    def normal(shape: tuple[int, ...], scale: float) -> torch.Tensor:
        return (scale * torch.randn(shape, generator=generator, device=settings.device)).to(dtype)

    return [normal(s, c) for s, c in zip(row.shapes, row.scales or (1.0,) * len(row.shapes), strict=True)]


def _candidates(row: Row, inputs: list[torch.Tensor], settings: GpuSettings) -> dict[str, Callable[[], Any]]:
    """How to build each peer, then each of ours, torch's own kernel first. Where the peer's gradient is a pass of
    autograd, so is ours; the gradient called by hand, which knows nothing of a forward pass, then stands beside it."""
    work = row.work
    arguments = work.with_numbers(inputs)

    def ours(backend: str | None, by_hand: bool = False) -> Callable[[], Any]:
        f = tilec.compile(work.source, backend=backend, tune=settings.tune, exact=work.ordered)
        if work.recorded and not by_hand:
            return work.backward(lambda *tensors: f(*tensors, *work.numbers), inputs)
        function = f.grad(work.wrt) if work.wrt else f
        return lambda: function(*arguments)

    peers = {name: functools.partial(work.peer, inputs, name) for name in row.peers}
    columns = {WITH_LIB: functools.partial(ours, None), ALONE: functools.partial(ours, settings.backend)}
    if work.recorded:
        columns[HAND] = functools.partial(ours, settings.backend, by_hand=True)
    chosen = {n: b for n, b in peers.items() if n in settings.peers}
    return {**chosen, **{n: b for n, b in columns.items() if n in settings.columns}}


def _error(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Absolute errors, element by element: 0 where both are the same infinity, infinite where one alone is NaN."""
    assert got.shape == exact.shape, f"the result has shape {tuple(got.shape)}, not {tuple(exact.shape)}"
    got = got.double()
    same = (got == exact) | (got.isnan() & exact.isnan())
    return torch.where(same, 0.0, (got - exact).abs().nan_to_num(torch.inf, torch.inf))


def _allowed(tolerance: float | str | None, exact: torch.Tensor, torchs: torch.Tensor) -> torch.Tensor:
    """Allowed absolute errors where the first peer's are `torchs`: of a relative tolerance, or twice the peer's."""
    scale = torch.where(exact.isfinite(), exact.abs(), 0.0)
    if tolerance == "log":
        return 3e-6 + 2 * 2.0**-23 * scale
    if tolerance is None:
        return (2 * torchs.amax() + 2.0**-24 * scale.amax() + SMALLEST).expand_as(exact)
    return torch.maximum(2 * torchs, float(tolerance) * scale.amax() + SMALLEST)  # a relu's side may be rounding's


def _microseconds(runs: dict[str, Callable[[], TensorResults]], settings: GpuSettings) -> dict[str, float]:
    """Median over turns, each candidate timed once a turn, in one order and then in the other."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(1 if settings.quick else 3):
        for name in list(runs)[:: (-1) ** turn]:
            times[name].append(timed(runs[name], settings.device, 10 if settings.quick else 40))
    return {name: statistics.median(t) for name, t in times.items()}


def timed(run: Callable[[], object], device: str, milliseconds: int) -> float:
    """Microseconds of one run, the median of `do_bench` after a rest, since a device that has worked runs at lower
    clocks; on a CPU, which only tests of this file use, of three."""
    if device == "cuda":
        from triton.testing import do_bench

        torch.cuda.synchronize()
        time.sleep(REST)
        return 1e3 * do_bench(run, warmup=10, rep=milliseconds, quantiles=[0.5])
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e6)
    return statistics.median(taken)


@functools.cache
def copy_rate(device: str) -> float:
    """Bytes a second, read and written, at which one tensor is copied to another."""
    bytes_ = 2**30 if device == "cuda" else 2**22
    source = torch.zeros(bytes_ // 4, device=device)
    target = torch.empty_like(source)
    return 2 * bytes_ / (timed(lambda: target.copy_(source), device, 100) / 1e6)


@contextlib.contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """float32 products and convolutions in this precision, torch's and ours; library algorithms chosen by measuring."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = precision == "high", True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]


def in_one_line(error: Exception) -> str:
    """An error in one line. A fault of the device is raised again: nothing after it can be believed."""
    if isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error):
        raise error
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def machine(device: str) -> str:
    try:
        from triton import __version__ as triton
    except ImportError:
        triton = "none"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}, Triton {triton}, tilec {tilec.__version__}"


def _work(settings: GpuSettings, name: str) -> Record:
    return measured_row(TASKS[name], settings)


def gather_rows(
    names: list[str], settings: GpuSettings, path: Path, *, jobs: int = 1, deadline: float, limit: float
) -> Iterator[tuple[str, Record]]:
    """Measure these tasks, those in the file excepted, and keep each result in the file; to warm, keep none."""
    lost = {"machine": "", "seed": settings.seed}
    work = functools.partial(_work, settings)
    yield from gather_records(
        names, work, path, LOST_ROW, lost, jobs=jobs, limit=limit, deadline=deadline, kept=not settings.warm
    )


def gather_records(
    names: Iterable[str],
    work: Callable[[str], Record],
    path: Path,
    failed: str,
    lost: Record,
    *,
    jobs: int = 1,
    limit: float,
    deadline: float,
    kept: bool = True,
) -> Iterator[tuple[str, Record]]:
    """Each task's record as it is done, those in the file excepted, and put into the file if `kept`. Of a task whose
    process is lost: `lost`, with the reason of what was under way, or else of what `failed`."""
    known = load_records(path) if kept else {}
    left = [name for name in names if name not in known]
    for name, answer in workers.run(left, work, jobs=jobs, limit=limit, deadline=deadline):
        if isinstance(answer, workers.Lost):
            answer = {**lost, "failed": {answer.part or failed: answer.reason.strip().splitlines()[-1]}}
        if kept:
            known[name] = answer
            save(path, known)
        yield name, answer


def load_records(path: Path) -> dict[str, Record]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


def save(path: Path, known: dict[str, Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(known, indent=1))
    os.replace(temporary, path)
