"""Measuring candidates, with candidates that sleep, fail, or are wrong."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import pytest
import torch
from triton.runtime.errors import OutOfResources, PTXASError

from tilec.backends.triton.tuning.benchmark import FIRST_ROUNDS, MORE_ROUNDS, measure_candidates
from tilec.errors import Unsupported


class Clock:
    """Time that passes only as launches say, so that no test depends on the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        self.launched: list[object] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def launch(self, name: object, microseconds: Callable[[int], float]) -> Callable[[], None]:
        def run() -> None:
            self.now += microseconds(self.launched.count(name)) / 1e6
            self.launched.append(name)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_fastest_wins(clock: Clock) -> None:
    speeds = {"a": 30.0, "b": 10.0, "c": 11.0}
    winner, times = measure_candidates(list(speeds), lambda c: clock.launch(c, lambda _: speeds[c]))
    assert winner == "b"
    assert times == pytest.approx((30, 10, 11))


def test_medians_not_means_nor_the_luckiest(clock: Clock) -> None:
    """A candidate with one slow moment in three still wins; one that is fast once does not."""
    steady = {"bumpy": lambda n: 900.0 if n % 3 == 2 else 10.0, "lucky": lambda n: 1.0 if n == 5 else 12.0}
    winner, times = measure_candidates(list(steady), lambda c: clock.launch(c, steady[c]))
    assert winner == "bumpy" and times == pytest.approx((10, 12))


def test_slow_candidates_get_no_more_rounds_and_turns_change(clock: Clock) -> None:
    speeds = {"a": 10.0, "b": 11.0, "c": 100.0}
    measure_candidates(list(speeds), lambda c: clock.launch(c, lambda _: speeds[c]))
    assert clock.launched.count("c") == 1 + FIRST_ROUNDS
    assert clock.launched.count("a") == clock.launched.count("b") == 1 + FIRST_ROUNDS + MORE_ROUNDS
    later = clock.launched[3 + 3 * FIRST_ROUNDS :]
    assert {tuple(later[i : i + 2]) for i in range(0, len(later), 2)} == {("a", "b"), ("b", "a")}


def test_the_first_launch_is_not_measured(clock: Clock) -> None:
    winner, times = measure_candidates(["a"], lambda c: clock.launch(c, lambda n: 5e6 if n == 0 else 7.0))
    assert (winner, times) == ("a", pytest.approx((7,)))


def failing(error: Exception) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


CANNOT = {
    "shared memory": OutOfResources(300_000, 232_448, "shared memory"),
    "ptxas": PTXASError("too many registers"),
    "a pass": RuntimeError("PassManager::run failed"),
    "resources": RuntimeError("Triton Error [CUDA]: too many resources requested for launch"),
    "memory": torch.OutOfMemoryError("CUDA out of memory"),
}


@pytest.mark.parametrize("error", CANNOT)
@pytest.mark.parametrize("when", ["building", "launching"])
def test_what_the_device_cannot_have_is_left_out(
    error: str, when: str, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(candidate: str) -> Callable[[], None]:
        if candidate == "ok":
            return clock.launch("ok", lambda _: 8.0)
        launch = failing(CANNOT[error])
        if when == "building":
            launch()
        return launch

    winner, times = measure_candidates(["bad", "ok", "worse"], run, progress=True)
    assert winner == "ok" and times == (None, pytest.approx(8), None)
    shown = capsys.readouterr().err
    assert "3/3" in shown and "best 8.0 us" in shown
    assert f"2 left out: {type(CANNOT[error]).__name__}: {str(CANNOT[error])[:20]}" in shown


@pytest.mark.parametrize("error", [RuntimeError("an illegal memory access was encountered"), KeyError("rows")])
def test_other_errors_are_the_callers(error: Exception, clock: Clock) -> None:
    with pytest.raises(type(error)) as caught:
        measure_candidates(["bad"], lambda _: failing(error))
    assert caught.value is error


def test_wrong_results_are_refused_with_a_warning(clock: Clock) -> None:
    speeds = {"fast and wrong": 1.0, "right": 9.0}
    checked = []

    def check(candidate: str) -> bool:
        checked.append((candidate, clock.launched[-1]))
        return candidate == "right"

    with pytest.warns(UserWarning, match="1 candidates gave a wrong result"):
        winner, times = measure_candidates(list(speeds), lambda c: clock.launch(c, lambda _: speeds[c]), check=check)
    assert winner == "right" and times == (None, pytest.approx(9))
    assert checked == [(c, c) for c in speeds], "each is checked right after its own launch"


def test_nothing_left(clock: Clock) -> None:
    with pytest.raises(Unsupported, match="none of 2 kernels") as caught:
        measure_candidates(["a", "b"], lambda _: failing(CANNOT["ptxas"]))
    assert "2 x PTXASError" in str(caught.value)
    with pytest.raises(ValueError, match="no candidates"):
        measure_candidates([], lambda _: lambda: None)


def test_silent_unless_a_terminal_or_asked(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(action="error"):
        measure_candidates([1, 2], lambda c: clock.launch(c, lambda _: float(c)))
        measure_candidates([1, 2], lambda c: clock.launch(c, lambda _: float(c)), progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_by_events() -> None:
    x = {n: torch.zeros(n, device="cuda") for n in (2**28, 2**20)}
    winner, times = measure_candidates(list(x), lambda n: x[n].zero_)
    assert winner == 2**20
    assert times[0] is not None and times[1] is not None and times[0] > 10 * times[1]
    assert 100 < times[0] < 5000, "a GiB takes about 250 us at 4 TB/s"
