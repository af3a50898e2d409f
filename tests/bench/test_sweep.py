"""The sweep, on a CPU: points of every kind are measured and checked, kept, written and drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tilec.bench import __main__ as command
from tilec.bench import gpu, works, works_steps
from tilec.bench.sweep import draw as sweep_draw
from tilec.bench.sweep import layers as sweep_layers
from tilec.bench.sweep import points, sweep
from tilec.bench.sweep.layers import RELU, layer
from tilec.bench.sweep.points import COMPILED_CURVE, OUR_CURVE, SHIFTED, Point
from tilec.bench.works import LIGER

SMALL = {
    p.name: p
    for p in (
        Point("log product", "N(0, 3^2)", 16, points.log_product_point(16, "N(0, 3^2)")),
        Point("log product", "uniform -2000..0", 24, points.log_product_point(24, "uniform -2000..0")),
        Point("log product", "9 of 10 -inf", 24, points.log_product_point(24, "9 of 10 -inf")),
        Point("log product", "distances", 24, points.log_product_point(24, "distances")),
        Point("chain", "log partition", 3, points.crf(2, 5, 3, False)),
        Point("chain", "marginals", 3, points.crf(2, 5, 3, True)),
        Point("shuffle", "by length", 5, points.shuffle(2, 5, 8)),
        Point("snake", "by size", 5, layer(works.SNAKE, (2, 3, 5), (3,), other={RELU: torch.relu})),
        Point("layer norm", "bfloat16", 96, layer(works.LAYER_NORM, (40, 96), (96,), (96,), dtype="bfloat16")),
        Point("dropout", "n", 9, layer(works_steps.DROPOUT, (9,), draws=True)),
        Point("attention", "heads", 6, layer(sweep_layers.ATTENTION_POINT, *((2, 6, 4),) * 3)),
    )
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.one_in(3)
def test_points_are_measured_and_ours_is_right(name: str) -> None:
    record = sweep.measured(SMALL[name], "cpu")
    assert (
        record["failed"].keys() <= {LIGER} and record["us"].keys() == record["error"].keys() == record["bytes"].keys()
    )
    assert record["error"][OUR_CURVE] <= 1 and record["us"][OUR_CURVE] > 0
    assert name in sweep.sentence(name, record)


def test_a_wrong_layer_is_seen() -> None:
    wrong = replace(works.SNAKE, source=works.SNAKE.source.replace("/ A[c]", "* A[c]"))
    record = sweep.measured(Point("snake", "wrong", 5, layer(wrong, (2, 3, 5), (3,))), "cpu")
    assert record["error"][OUR_CURVE] > 1


def test_what_only_shifts_is_seen_to_be_wrong() -> None:
    record = sweep.measured(SMALL["log product, uniform -2000..0, 24"], "cpu")
    assert record["error"][SHIFTED] > 1 and record["facts"]["term by term"] == 1.0


def test_shares_follow_the_certificate() -> None:
    a, b = torch.zeros(64, 64), torch.zeros(64, 64)
    assert points.shares(a, b) == {"pairs counted": 0.0, "term by term": 0.0}
    a[0, 1:], b[0, 0] = -torch.inf, -torch.inf  # no pair of terms for the first element
    assert points.shares(a, b) == {"pairs counted": 1.0, "term by term": 0.0}
    a, b = torch.zeros(64, 64), torch.zeros(64, 64)
    a[0], b[:, 0] = -90, -90
    a[0, 0], b[1, 0] = 0, 0  # the greatest of the row meets nothing of the column, and the other way round
    assert points.shares(a, b) == {"pairs counted": 1.0, "term by term": 1.0}
    assert points.shares(a, b, 32, 32) == {"pairs counted": 0.25, "term by term": 0.25}


def test_a_candidate_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MOST_BYTES", 100)
    record = sweep.measured(SMALL["log product, N(0, 3^2), 16"], "cpu")
    assert record["failed"] == {"torch": "would need 0 GiB"} and OUR_CURVE in record["us"]


def test_the_command_measures_resumes_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = dict([next(iter(SMALL.items()))])
    monkeypatch.setattr(sweep, "POINTS", one)
    monkeypatch.setattr(
        gpu.workers, "run", lambda names, work, **_: ((n, sweep.measured(one[n], "cpu")) for n in names)
    )
    arguments = ["sweep", "--device", "cpu", "--folder", str(tmp_path), "--resume", str(tmp_path / "known")]
    drawn: list[Path] = []
    monkeypatch.setattr(sweep_draw, "draw", lambda path: drawn.append(path) or path)
    assert command.main(arguments) == 0
    assert "1 of 1 measured" in capsys.readouterr().out and drawn == [tmp_path / "log_product.json"]
    kept = json.loads(drawn[0].read_text())["points"]
    assert command.main(arguments) == 0
    assert json.loads(drawn[0].read_text())["points"] == kept
    assert COMPILED_CURVE not in kept[0]["us"]


def test_points_of_one_place_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = SMALL["log product, N(0, 3^2), 16"]
    other = Point(one.figure, one.line, one.x, one.make, COMPILED_CURVE)
    monkeypatch.setattr(sweep, "POINTS", {p.name: p for p in (one, other)})
    record = {"bytes": {}, "error": {}, "failed": {}, "machine": "m"}
    known = {one.name: {**record, "us": {OUR_CURVE: 1.0}}, other.name: {**record, "us": {COMPILED_CURVE: 2.0}}}
    (path,) = sweep.written(known, tmp_path)
    (place,) = json.loads(path.read_text())["points"]
    assert place["us"] == {OUR_CURVE: 1.0, COMPILED_CURVE: 2.0} and place["machine"] == "m"


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing is measured"):
        command.main(["sweep", "--draw", "--folder", str(tmp_path)])
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="no CUDA device"):
            command.main(["sweep", "--folder", str(tmp_path)])


def test_figures_are_drawn_from_their_points_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the optional extra `bench`")
    point = {"line": "a", "us": {"x": 2.0}, "bytes": {"x": 5}, "error": {"x": 0.5}, "failed": {"y": "too large"}}
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"figure": "f", "points": [{**point, "x": 1}, {**point, "x": 2, "error": {"x": 3.0}}]}))
    text = sweep_draw.draw(path).read_text()
    assert text.startswith("<?xml") and "</svg>" in text
    assert sweep_draw.draw(path).read_text() == text
