"""Which of several candidates is fastest: measured in turn, so that a slow moment hits all alike.

What a candidate is, the caller knows. On CUDA times are those of events, with the cache emptied before each launch as
`triton.testing.do_bench` does; elsewhere the wall clock's.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO, TypeVar

import torch

from tilec.errors import Unsupported

TimedCandidate = TypeVar("TimedCandidate")
TimedLaunch = Callable[[], object]

FIRST_ROUNDS, MORE_ROUNDS = 3, 12
WORTH_MORE = 1.3  # times the best after the first rounds; what is slower gets no more
FLUSHED = 256 * 2**20  # bytes, more than any device's cache holds
# plain RuntimeErrors by which a kernel that this device cannot have makes itself known
REFUSED_BY_COMPILER = ("PassManager::run failed", "too many resources requested for launch")
WRONG = "wrong result"


def measure_candidates(
    candidates: Sequence[TimedCandidate],
    run: Callable[[TimedCandidate], TimedLaunch],
    *,
    progress: bool | None = None,
    check: Callable[[TimedCandidate], bool] | None = None,
    label: str = "tuning",
) -> tuple[TimedCandidate, tuple[float | None, ...]]:
    """The fastest candidate, and the microseconds of each (None: left out).

    `run` makes a candidate's launch. Its first launch may compile; candidates that then raise a compiler's error or
    ask for more than the device has are left out, and so are, with a warning, those whose result `check` (called after
    that launch) refuses. Any other exception goes to the caller. `progress`: show a bar and what was left out on
    standard error; None: where that is a terminal. Raises Unsupported if no candidate is left.
    """
    if not candidates:
        raise ValueError("there are no candidates to measure")
    bar = _Bar(label, len(candidates), sys.stderr if (sys.stderr.isatty() if progress is None else progress) else None)
    launches: dict[int, TimedLaunch] = {}
    left_out: Counter[str] = Counter()
    for number, candidate in enumerate(candidates):
        bar.show(number, "compiling")
        try:
            launch = run(candidate)
            launch()
            _synchronize()
        except Exception as error:
            if not _cannot_be_had(error):
                bar.end(left_out)
                raise
            left_out[_reason(error)] += 1
            continue
        if check is not None and not check(candidate):
            left_out[WRONG] += 1
            continue
        launches[number] = launch
    if left_out[WRONG]:
        warnings.warn(f"{label}: {left_out[WRONG]} candidates gave a wrong result and were left out", stacklevel=2)
    if not launches:
        bar.end(left_out)
        reasons = "; ".join(f"{count} x {reason}" for reason, count in left_out.most_common())
        raise Unsupported(f"none of {len(candidates)} kernels can be used", hint=reasons)
    times: dict[int, list[float]] = {number: [] for number in launches}
    medians = _rounds(launches, times, FIRST_ROUNDS, bar)
    limit = WORTH_MORE * min(medians.values())
    medians |= _rounds({n: run for n, run in launches.items() if medians[n] <= limit}, times, MORE_ROUNDS, bar)
    # a candidate that got no more rounds cannot win by one lucky median
    winner = min((n for n in medians if len(times[n]) > FIRST_ROUNDS), key=medians.__getitem__)
    bar.end(left_out)
    return candidates[winner], tuple(medians.get(n) for n in range(len(candidates)))


def _rounds(
    launches: dict[int, TimedLaunch], times: dict[int, list[float]], rounds: int, bar: _Bar
) -> dict[int, float]:
    """Time each candidate once a round, each round beginning with another one; the medians of all times so far."""
    order = list(launches)
    for r in range(rounds):
        first = r * len(order) // rounds
        turn = order[first:] + order[:first]
        for number, microseconds in zip(turn, _timed([launches[n] for n in turn]), strict=True):
            times[number].append(microseconds)
        bar.show(bar.total, f"best {min(statistics.median(times[n]) for n in order):.1f} us")
    return {n: statistics.median(times[n]) for n in order}


def _timed(launches: Sequence[TimedLaunch]) -> list[float]:
    """Microseconds of one launch of each."""
    if not torch.cuda.is_available():
        result = []
        for launch in launches:
            began = time.perf_counter()
            launch()
            result.append((time.perf_counter() - began) * 1e6)
        return result
    flush = torch.empty(FLUSHED // 4, dtype=torch.int32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in launches]
    for launch, (start, end) in zip(launches, events, strict=True):
        flush.zero_()  # also keeps the device busy while the host prepares the launch
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events]


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _cannot_be_had(error: Exception) -> bool:
    """Is this about one candidate alone? A fault of the device, after which nothing can be trusted, is not."""
    try:
        from triton.errors import TritonError
    except ImportError:
        return False
    if isinstance(error, TritonError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in REFUSED_BY_COMPILER)


def _reason(error: Exception) -> str:
    """One line: the last that says anything, where compilers put the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:200]}" if lines else type(error).__name__


class _Bar:
    """One line on a stream, rewritten; nothing without a stream."""

    WIDTH = 24

    def __init__(self, label: str, total: int, stream: TextIO | None):
        self.label, self.total, self.stream = label, total, stream
        self.written = 0

    def show(self, done: int, text: str) -> None:
        if self.stream is None:
            return
        filled = self.WIDTH * done // self.total
        line = f"{self.label} [{'#' * filled}{'.' * (self.WIDTH - filled)}] {done}/{self.total} {text}"
        self.stream.write("\r" + line.ljust(self.written))
        self.stream.flush()
        self.written = len(line)

    def end(self, left_out: Counter[str]) -> None:
        if self.stream is None:
            return
        self.stream.write("\n")
        for reason, count in left_out.most_common():
            self.stream.write(f"  {count} left out: {reason}\n")
        self.stream.flush()
