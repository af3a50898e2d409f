"""The GPU's table, on a CPU: every row is well formed; small rows are measured, checked, gathered and shown."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tilec
from tilec.bench import __main__ as command
from tilec.bench import gpu, workers, works, works_steps
from tilec.bench.gpu import GpuSettings, measured_row
from tilec.bench.gpu_facts import FACTS, Fact
from tilec.bench.gpu_page import gpu_line, section
from tilec.bench.gpu_rows import (
    ALONE,
    COMPILED,
    EAGER,
    HAND,
    LIGER,
    OUR_COLUMNS,
    ROWS,
    WITH_LIB,
    Goal,
    Row,
    convolution_rows,
    resnet,
)

HERE = GpuSettings(seed=3, quick=True, device="cpu", backend="torch", peers=(EAGER,))
SMALL = {
    works.FOUR_DIMENSIONS: ((2, 4, 5, 4, 3, 2), (3, 3, 3, 3, 2, 4)),
    works.SINE_OF_KERNEL: ((2, 7, 6, 3), (3, 3, 3, 4)),
    works.SINE_OF_PRODUCT: ((2, 7, 6, 3), (3, 3, 3, 4)),
    works.MAX_PLUS: ((2, 7, 6, 3), (3, 3, 3, 4)),
    works.MASKED: ((2, 7, 6), (2, 7, 6, 3), (3, 3, 3, 4)),
    works.SHEARED: ((2, 18, 8, 3), (3, 3, 3, 4)),
    works.LOG_CONVOLUTION: ((2, 9, 3), (5, 3, 4)),
    works.LOG_PRODUCT_WORK: ((5, 7), (7, 3)),
    works.BATCHED_LOG_PRODUCT: ((2, 5, 7), (2, 7, 3)),
    works.MATMUL: ((5, 7), (7, 3)),
    works.SNAKE: ((2, 3, 5), (3,)),
    works.LAYER_NORM: ((3, 8), (8,), (8,)),
    works.SOFTMAX: ((3, 8),),
    works.GATE: ((3, 8), (3, 8)),
    works.ROW_SUMS: ((3, 8),),
    works.ATTENTION: ((2, 9, 4),) * 3,
    works.CAUSAL_ATTENTION: ((2, 9, 4),) * 3,
    works.WINDOWED_ATTENTION: ((2, 9, 4),) * 3,
    works.ALIBI_ATTENTION: (*((2, 9, 4),) * 3, (2,)),
    works.COLUMN_SUMS: ((3, 8),),
    works_steps.SHUFFLING: ((2, 6, 4), (2, 4)),
    works_steps.SHUFFLING_IN_ORDER: ((2, 6, 4), (2, 4)),
    works_steps.HIDDEN_STATES: ((3, 3), (5, 2, 3), (2, 3)),
    works_steps.TANH: ((3, 3), (5, 2, 3)),
    works_steps.LINEAR_WORK: ((6, 3), (6, 3)),
    works_steps.RUNNING_SUM: ((3, 8),),
    works_steps.SUM_DOWN: ((3, 8),),
    works_steps.RUNNING_LOG: ((3, 8),),
    works_steps.DROPOUT: ((9,),),
}


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_every_row_binds_to_its_shapes_and_is_the_peers_work(step: int) -> None:
    """Shapes of ours are those of the torch formula, on tensors without memory; of every 13th row, or of each."""
    for row in ROWS[::step]:
        specs = [tilec.spec(s, row.dtype) for s in row.shapes]
        arguments = row.work.with_numbers(specs)
        lowered = tilec.Function(row.work.program, row.work.source).lower(*arguments, backend="torch")
        assert lowered.cost().flops > 0
        given = row.shapes[: len(row.shapes) - bool(row.work.wrt)]
        with torch.device("meta"):
            value = row.work.formula(*(torch.empty(s) for s in given))
        forward = tilec.compile(row.work.source).lower(*specs[: len(given)], *row.work.numbers, backend="torch")
        (output,) = forward.outputs
        assert tuple(value.shape) == output.shape, row.name
        if row.work.wrt:
            assert row.shapes[-1] == tuple(value.shape), row.name


def test_names_and_works_are_all_there() -> None:
    assert len(gpu.TASKS) == len(ROWS) + len(FACTS)
    plain = {replace(row.work, wrt=()) for row in ROWS if not row.name.startswith(("ResNet", "seed"))}
    assert plain == set(SMALL)
    for row in ROWS:
        assert len(row.scales) in (0, len(row.shapes)) and set(row.goals) <= set(OUR_COLUMNS)


def _small(work: works.Work, shapes: tuple[tuple[int, ...], ...]) -> Row:
    return Row("small", work, shapes, tolerance=math.inf if work == works_steps.DROPOUT else 1e-5)


ROWS_HERE = {
    **{f"{work.source} {work.ordered}": _small(work, shapes) for work, shapes in SMALL.items()},
    **{
        f"{kind} {way}": replace(row, name="small")
        for kind, stored in (("hwio", "hwio"), ("ohwi", "ohwi"))
        for way, row in convolution_rows("small", 2, 9, 3, 4, (3, 2, 0, stored), dtype="float32").items()
    },
    "snake backward": Row("small", replace(works.SNAKE, wrt=("X", "A")), ((2, 3, 5), (3,), (2, 3, 5)), tolerance=1e-4),
    "log backward": Row("small", replace(works.LOG_PRODUCT_WORK, wrt=("A", "B")), ((5, 7), (7, 3), (5, 3))),
    "log": Row("small", works.LOG_PRODUCT_WORK, ((5, 7), (7, 3)), tolerance="log"),
    "bfloat16": Row("small", works.MATMUL, ((33, 64), (64, 17)), "bfloat16", tolerance=None),
}


@pytest.mark.parametrize("name", ROWS_HERE)
@pytest.mark.one_in(13)
def test_small_rows(name: str) -> None:
    record = measured_row(ROWS_HERE[name], HERE)
    assert not record["failed"]
    expected = {EAGER, WITH_LIB, ALONE, HAND} if ROWS_HERE[name].work.recorded else {EAGER, WITH_LIB, ALONE}
    assert set(record["us"]) == expected and min(record["us"].values()) > 0
    assert record["errors"][ALONE][0] <= 1 and record["flops"] > 0 and record["seed"] == 3
    assert json.loads(json.dumps(record))["us"] == record["us"]
    assert "failed" not in gpu_line(ROWS_HERE[name], record)


WRONG = {
    "values": lambda a, b: (a @ b) * 1.01,
    "not a number": lambda a, b: (a @ b) * torch.tensor([1.0] * 16 + [math.nan]),
    "an infinity": lambda a, b: (a @ b) / torch.tensor([0.0] + [1.0] * 16),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.covering
def test_a_wrong_result_is_no_figure(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours against a formula of another meaning, which is exact and eager alike."""
    row = Row("small", works.MATMUL, ((33, 64), (64, 17)), dtype, tolerance=1e-5 if dtype == "float32" else None)
    other = replace(row, work=replace(works.MATMUL, formula=WRONG[kind]))
    record = measured_row(other, HERE)
    assert set(record["us"]) == {EAGER} and set(record["failed"]) == {WITH_LIB, ALONE}
    assert all("wrong" in reason for reason in record["failed"].values())
    assert "failed" in gpu_line(other, record) and not measured_row(row, HERE)["failed"]


def test_what_fails_is_told_and_the_rest_measured() -> None:
    row = Row("small", works.MATMUL, ((5, 7), (7, 3)))
    record = measured_row(row, replace(HERE, backend="no such"))
    assert "no backend is called 'no such'" in record["failed"][ALONE] and set(record["us"]) == {EAGER, WITH_LIB}

    def refuses(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype is torch.bfloat16:
            raise RuntimeError("not on this device")
        return a @ b

    row = replace(row, work=replace(works.MATMUL, formula=refuses), dtype="bfloat16", tolerance=None)
    record = measured_row(row, HERE)
    assert record["failed"][EAGER] == "RuntimeError: not on this device" and not record["us"]
    assert "whose error would be the measure" in record["failed"][ALONE]


@pytest.mark.parametrize("tune", [False, True])
def test_tuned_rows_say_so(tune: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    compile_ = tilec.compile

    def noting(source: str, *, backend: str | None, tune: bool, exact: bool) -> tilec.Function:
        asked.append(tune)
        return compile_(source, backend=backend)

    monkeypatch.setattr(gpu.tilec, "compile", noting)
    row = Row("small", works.MATMUL, ((5, 7), (7, 3)))
    assert measured_row(row, replace(HERE, tune=tune))["tuned"] is tune and asked == [tune, tune]


def test_faults_of_the_device_end_the_process() -> None:
    def faults(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype is torch.float32:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return a @ b

    row = Row("small", replace(works.MATMUL, formula=faults), ((5, 7), (7, 3)))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measured_row(row, HERE)


@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f.name)
def test_facts(fact: Fact) -> None:
    record = measured_row(fact, HERE)
    assert not record["failed"] and len(record["figures"]) == 2 and min(record["figures"]) > 0


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command with its document and results elsewhere, and its workers in this process."""
    document = tmp_path / "benchmarks.md"
    document.write_text(
        "# B\n\n<!-- cpu -->\nkept\n<!-- end of cpu -->\n\n## GPU\n\n<!-- gpu -->\nold\n<!-- end of gpu -->\n"
    )
    monkeypatch.setattr(command, "DOCUMENT", document)
    monkeypatch.chdir(tmp_path)

    def here(tasks, work, *, deadline, **_):
        for task in tasks:
            if deadline <= time.monotonic():
                return
            if "stride 2" in task:
                yield task, workers.Lost("Traceback\nthe process ended with exit code -11")
            elif deadline != math.inf and "dK" in task:
                return
            else:
                yield task, record(task)

    monkeypatch.setattr(workers, "run", here)
    return document


def record(task: str) -> gpu.Record:
    if isinstance(gpu.TASKS[task], Fact):
        return {"figures": (20.0, 2.5), "failed": {}, "machine": "H200", "seed": 1}
    us = {EAGER: 20.0, COMPILED: 30.0, WITH_LIB: 16.0, ALONE: 25.0}
    return {"us": us, "failed": {}, "machine": "H200", "seed": 1, "flops": 4e9, "bytes": 2e7, "copy": 4e12}


def test_the_page(page: Path) -> None:
    assert command.main(["gpu"]) == 0
    text = page.read_text()
    assert text.startswith("# B\n\n<!-- cpu -->\nkept\n<!-- end of cpu -->\n\n## GPU\n\n<!-- gpu -->\n\nH200. ")
    assert text.endswith("\n<!-- end of gpu -->\n") and "old" not in text
    assert f"Of {len(ROWS)} rows 0 have tuned kernels" in text
    seed = next(row.name for row in ROWS)
    assert f"| {seed} | eager | 20 | 250 T/s | 16 | 1.25 **miss** | 25 | 0.80 **miss** | - | 5 |" in text
    assert "| matmul 8192, bfloat16 | eager | 20 | 250 T/s | 16 | 1.25 | 25 | 0.80 **miss** | - | 1 |" in text
    mean = "geometric mean 1.25 with library of 5 rows, 0.80 alone of 5 rows (goal: 1.05, **miss**)."
    assert f"- ResNet 3x3, bfloat16, forward: {mean}" in text
    assert "host time: 20 µs (goal: 15, **miss**; torch's own addition: 2.5 µs)." in text
    assert "dI, the row: the process ended with exit code -11" in text
    assert "| ResNet 3x3 stride 2 32x56x56x128, bfloat16, dI | - | - | - | failed | - | failed | - | - | 1 |" in text
    lines = text.splitlines()
    assert sum(entry.startswith("| ") for entry in lines) == len(ROWS) + 2
    assert len({entry.count("|") for entry in lines if entry.startswith("|")}) == 1


def test_shares_of_the_copy_rate() -> None:
    row = Row("streams", works.SNAKE, ((2, 3, 5), (3,)), goals={WITH_LIB: Goal(0.9, "copy"), ALONE: Goal(0.9, "copy")})
    known = {
        "us": {EAGER: 30.0, WITH_LIB: 10.0, ALONE: 12.0},
        "failed": {},
        "flops": 1e8,
        "bytes": 37.2e6,
        "copy": 4e12,
    }
    assert gpu_line(row, known) == (
        "| streams | eager | 30 | 3.72 TB/s, 0.93 of copy | 10 | 3.00 | 12 | 2.50 **miss** | - | 0.9 of copy |"
    )


def test_microseconds_as_a_goal() -> None:
    row = Row("steps", works_steps.LINEAR_WORK, ((6, 3),) * 2, goals={ALONE: Goal(11, "us"), WITH_LIB: Goal(10, "us")})
    known = {"us": {WITH_LIB: 10.0, ALONE: 12.0, HAND: 25.0}, "failed": {}, "flops": 1e3, "bytes": 3.72e6, "copy": 4e12}
    assert (
        gpu_line(row, known)
        == "| steps | - | - | 0.37 TB/s, 0.09 of copy | 10 | - | 12 | - **miss** | 25 | 10 µs / 11 µs |"
    )


def test_a_peer_that_is_not_installed_is_left_out() -> None:
    row = Row("small", works.LAYER_NORM, ((3, 8), (8,), (8,)), peers=(EAGER, LIGER))
    record = measured_row(row, replace(HERE, peers=(EAGER, LIGER)))
    assert set(record["us"]) == {EAGER, WITH_LIB, ALONE} and not record["failed"]


def test_results_of_several_runs_make_one_page(page: Path, tmp_path: Path) -> None:
    results = tmp_path / "out" / "results.json"
    first, every = "ResNet 3x3 32x56x56x128, bfloat16", ["gpu", "--resume", str(results)]
    assert command.main([*every, "--only", first, "--budget", "60"]) == 0
    assert set(gpu.load_records(results)) == {f"{first}, forward", f"{first}, dI"}
    marked = {**gpu.load_records(results)[f"{first}, dI"], "seed": 77}
    gpu.save(results, {**gpu.load_records(results), f"{first}, dI": marked})
    assert command.main(every) == 0
    known = gpu.load_records(results)
    assert set(known) == set(gpu.TASKS) and known[f"{first}, dI"]["seed"] == 77
    assert page.read_text().count("\n| ResNet") == len(resnet("float16", ((1, 1, 9, 1),) * 16, 1))
    lost = [name for name, found in known.items() if found["failed"]]
    assert lost and all("stride 2" in name for name in lost)
    assert command.main([*every, "--retry", "--budget", "0"]) == 0
    assert set(gpu.load_records(results)) == set(gpu.TASKS) - set(lost)


def test_shards_make_one_page(page: Path) -> None:
    for shard in range(2):
        assert command.main(["gpu", "--seed", "1", "--shard", f"{shard}/2", "--resume", f"{shard}.json"]) == 0
    assert gpu.load_records(Path("0.json")).keys() | gpu.load_records(Path("1.json")).keys() == set(gpu.TASKS)
    before = page.read_text()
    assert command.main(["gpu", "--warm", "--page", "0.json", "1.json"]) == 0
    assert page.read_text() != before and all(name in page.read_text() for name in gpu.TASKS)


@pytest.mark.parametrize("options", [["--quick"], ["--no-write"], ["--only", "matmul"], ["--shard", "0/2"]])
def test_what_writes_no_page(options: list[str], page: Path) -> None:
    before = page.read_text()
    assert command.main(["gpu", *options]) == 0
    assert page.read_text() == before and Path("gpu-results.json").exists()


@pytest.mark.slow  # test_workers has processes of their own too, with less to import
def test_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task by name goes to a worker and comes back, through the file."""
    monkeypatch.setattr(workers, "START_METHOD", "spawn")
    name = FACTS[1].name
    known = dict(gpu.gather_rows([name], HERE, tmp_path / "r.json", deadline=math.inf, limit=100))
    assert list(known) == [name] and known == gpu.load_records(tmp_path / "r.json") and known[name]["figures"][0] > 0
    assert section(gpu.ORDER, known)[-1].startswith(f"- {name}: ")
