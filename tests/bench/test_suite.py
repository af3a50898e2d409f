"""The workload suite: every text says what its torch code says, forward and backward; what is measured is shown."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tilec
from tests.support.tiers import slow_but
from tilec.bench import __main__ as command
from tilec.bench import workers
from tilec.bench.suite import measure, page
from tilec.bench.suite.catalog import MODULES, WORKLOADS
from tilec.bench.suite.measure import (
    OUR_COLUMN,
    SuiteSettings,
    gather_workloads,
    measured_workload,
    ratio,
    split,
    tasks,
)
from tilec.bench.suite.workload import by_slabs
from tilec.bench.works import EAGER, results_of
from tilec.gallery.samples import sample_spec

EVERY = tasks()
SAMPLE = set(EVERY[::5])


def test_there_are_workloads_of_every_kind() -> None:
    kinds = Counter(w.kind for w in WORKLOADS.values())
    assert len(WORKLOADS) == sum(len(module.WORKLOADS) for module in MODULES) >= 80, "names are distinct"
    assert min(kinds.values()) >= 8, kinds


@pytest.mark.parametrize("task", [t if t in SAMPLE else pytest.param(t, marks=pytest.mark.slow) for t in EVERY])
@pytest.mark.one_in(6)
def test_a_workload_computes_what_its_peer_does(task: str) -> None:
    workload, direction = split(task)
    inputs = workload.tensors("tiny", "cpu", 1, torch.float64)
    work, function = workload.work(direction), tilec.compile(workload.source)
    expected = workload.formula(*inputs)
    if direction == "forward":
        got, wanted = results_of(function(*inputs, *workload.numbers)), (expected,)
    else:
        inputs.append(torch.randn(expected.shape, dtype=expected.dtype))
        wanted = results_of(work.backward(workload.formula, inputs)())
        got = results_of(work.backward(lambda *tensors: function(*tensors, *workload.numbers), inputs)())
    for g, w in zip(got, wanted, strict=True):
        assert g.shape == w.shape
        if workload.checked:
            torch.testing.assert_close(g, w, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", [n for n, w in WORKLOADS.items() if w.checked_by is not None])
def test_what_results_are_checked_by(name: str) -> None:
    work = WORKLOADS[name].work("backward")
    inputs = WORKLOADS[name].tensors("tiny", "cpu", 1, torch.float64)
    value = WORKLOADS[name].formula(*inputs)
    inputs.append(torch.randn_like(value))
    assert work.checked_by is not None
    torch.testing.assert_close(work.checked_by(*inputs[:-1]), value)
    wanted, found = (results_of(work.backward(f, inputs)()) for f in (work.formula, work.checked_by))
    torch.testing.assert_close(found, wanted)


def test_pools_are_checked_with_shared_ties() -> None:
    """The gradient of equal elements is shared, which `F.max_pool2d` does not do."""
    work = WORKLOADS["max pool 2x2"].work("backward")
    image, cotangent = torch.ones(1, 2, 2, 1, dtype=torch.float64), torch.ones(1, 1, 1, 1, dtype=torch.float64)
    assert work.checked_by is not None
    for formula in (work.checked_by, tilec.compile(WORKLOADS["max pool 2x2"].source)):
        torch.testing.assert_close(results_of(work.backward(formula, [image, cotangent])())[0], image / 4)


@pytest.mark.parametrize("name", [n for n, w in WORKLOADS.items() if w.kind == "pairs" and w.checked_by is not None])
def test_formulas_by_slabs(name: str) -> None:
    """They are the formula and its derivative, a few rows at a time."""
    workload = WORKLOADS[name]
    inputs = workload.tensors("tiny", "cpu", 1, torch.float64)
    seen: list[int] = []

    def counted(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        seen.append(len(first))
        return workload.formula(first, *others)

    value = workload.formula(*inputs)
    torch.testing.assert_close(by_slabs(counted, 2)(*inputs), value)
    assert seen == [2, 2, 1]
    work = workload.work("backward")
    inputs.append(torch.randn_like(value))
    wanted, found = (work.backward(f, inputs)() for f in (work.formula, by_slabs(counted, 2)))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("first", slow_but((0, 15), (0,)))
def test_drawn_sizes(first: int) -> None:
    """By the seed, other than the large ones, of the same rank in each input; windows and strides stay."""
    same = []
    for workload in list(WORKLOADS.values())[first::30]:
        large, drawn = workload.sizes_at("large"), workload.sizes_at("drawn-3")
        assert drawn == workload.sizes_at("drawn-3") and drawn.keys() == large.keys()
        assert all(
            drawn[n] == size if size < 16 else size / 2 <= drawn[n] <= size * 1.25 + 8 for n, size in large.items()
        )
        same += [workload.name] if drawn == large else []
    assert len(same) <= 2, same


def test_a_page_that_is_printed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, written = tmp_path / "results.json", tmp_path / "page.md"
    results.write_text("{}")
    monkeypatch.setattr(command, "WORKLOADS_PAGE", written)
    assert command.main(["suite", "--page", str(results), "--no-write"]) == 0
    printed = capsys.readouterr().out
    assert not written.exists() and printed.startswith("# ")
    assert command.main(["suite", "--page", str(results)]) == 0
    assert written.read_text() == printed.removesuffix("\n")


def test_measured_gathered_and_shown(tmp_path: Path) -> None:
    settings = SuiteSettings(size="tiny", device="cpu", compiled=False)
    names = ["softmax of rows, backward", "segment sum, sorted, forward", "argmax of rows, forward"]
    record = measured_workload(names[0], settings)
    assert record["us"].keys() == {EAGER, OUR_COLUMN} and not record["failed"], record
    assert record["floor"] > 0 and ratio(record) is not None
    assert record["step"].keys() == record["us"].keys() and min(record["step"].values()) > 0
    path = tmp_path / "results.json"
    found = dict(gather_workloads(names, settings, path, limit=math.inf, deadline=math.inf))
    assert list(json.loads(path.read_text())) == names == list(found)
    assert dict(gather_workloads(names, settings, path, limit=math.inf, deadline=math.inf)) == {}, "nothing is left"
    text = page.page(found)
    assert all(f"| {name} |" in text for name in [*names, "softmax of rows, step"]) and "geometric mean" in text
    assert "| geometric mean | forward | backward | step |" in text and "argmax of rows, step" not in text


@pytest.mark.parametrize("long_run", [0.001, measure.LONG_RUN])
def test_a_step_runs_both_passes(long_run: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LONG_RUN", long_run)
    workload = WORKLOADS["softmax of rows"]
    count = []

    def formula(x: torch.Tensor) -> torch.Tensor:
        count.append(x)
        return torch.softmax(x, -1)

    monkeypatch.setitem(WORKLOADS, workload.name, dataclasses.replace(workload, formula=formula))
    record = measured_workload("softmax of rows, backward", SuiteSettings(size="tiny", device="cpu", compiled=False))
    assert record["step"][EAGER] > 0 and record["step"][OUR_COLUMN] > 0
    work = workload.work("backward")
    inputs = [torch.randn(3, 8), torch.randn(3, 8)]
    before = len(count)
    step, backward = (work.backward(formula, inputs, step=both) for both in (True, False))
    for _ in range(2):
        assert torch.equal(step()[0], backward()[0])
    assert len(count) == before + 4


def test_a_wrong_result_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    right = WORKLOADS["softmax of rows"]
    wrong = "function (X[N, D]) -> (Y) { Y = 2 * X; }"
    monkeypatch.setitem(WORKLOADS, right.name, type(right)(**{**vars(right), "source": wrong}))
    record = measured_workload("softmax of rows, forward", SuiteSettings(size="tiny", device="cpu", compiled=False))
    assert "wrong" in record["failed"][OUR_COLUMN] and OUR_COLUMN not in record["us"]
    assert "failed: wrong" in page.line("softmax of rows, forward", record)


@pytest.mark.parametrize("who", ["reference", EAGER, OUR_COLUMN])
def test_a_lost_row_is_put_down_to_who_failed(who: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error outside of what is caught ends the process: while the exact result is made, or a candidate is timed."""

    def broken(*given: object) -> float:
        raise MemoryError("no room")

    def timed(run: object, device: str, milliseconds: int) -> float:
        return broken() if parts[-1] == who else 1.0

    def work_here(names: list[str], work: Callable[[str], object], **how: object) -> Iterator[tuple[str, object]]:
        for name in names:
            with pytest.raises(MemoryError) as caught:
                work(name)
            yield name, workers.Lost(f"Traceback\nMemoryError: {caught.value}", parts[-1])

    parts: list[str] = []
    monkeypatch.setattr(workers, "begin_part", parts.append)
    monkeypatch.setattr(workers, "run", work_here)
    monkeypatch.setattr(measure, "timed", timed)
    if who == "reference":
        monkeypatch.setattr(measure, "_exact", broken)
    settings = SuiteSettings("tiny", device="cpu", compiled=False)
    path = tmp_path / "results.json"
    ((name, record),) = gather_workloads(["softmax of rows, forward"], settings, path, limit=1, deadline=1)
    assert record["failed"] == {who: "MemoryError: no room"} and not record["us"]
    assert ("not measured" in page.line(name, record)) == (who != OUR_COLUMN)


def test_errors_are_the_same_in_each_run() -> None:
    task = "forward algorithm of a hidden Markov model, backward"
    first, second = (measured_workload(task, SuiteSettings(size="tiny", device="cpu", compiled=False)) for _ in "12")
    assert first["errors"] == second["errors"] and first["errors"][OUR_COLUMN] > 0


@pytest.mark.slow
@pytest.mark.parametrize("size", range(3))
def test_no_workload_is_warned_of(size: int) -> None:
    """What a warning is about depends on sizes."""
    for w in WORKLOADS.values():
        known = {name: values[size] for name, values in w.sizes.items()}
        inputs = [sample_spec(text, known, w.dtype) for text in w.inputs]
        tilec.compile(w.source, warnings="error").lower(*inputs, *w.numbers)
