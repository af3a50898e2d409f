"""`tilec bench`: a program beside a function of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilec
from tilec.cli import main
from tilec.cli.compare import compare, comparison_lines, inputs_of, peer_of

SOFTMAX = "Y[i, j] = exp(X[i, j] - logsumexp(X[i, k]));"
PEERS = "import torch\ndef softmax(x):\n    return torch.softmax(x, 1)\ndef total(x):\n    return x.sum(1)\n"


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tilec.cli.compare.MILLISECONDS", 1)
    path = tmp_path / "peers.py"
    path.write_text(PEERS)
    return path


def test_rows(peers: Path) -> None:
    inputs = inputs_of([tilec.spec((5, 7))], "cpu")
    rows = list(compare(tilec.compile(SOFTMAX), {"eager": peer_of(f"{peers}:softmax")}, inputs))
    assert [(r.name, r.direction) for r in rows] == [
        (n, d) for d in ("forward", "backward") for n in ("tilec", "eager")
    ]
    assert all(0 < r.microseconds and r.error < 1e-6 and r.peak is None and r.floor for r in rows)
    lines = list(comparison_lines(rows, ["eager"]))
    assert lines[-1].startswith("backward, eager") and lines[0].endswith("memory, MiB") and len(lines) == 5


def test_what_has_to_be_compiled_comes_last(peers: Path) -> None:
    eager = peer_of(f"{peers}:softmax")
    rows = compare(tilec.compile(SOFTMAX), {"eager": eager, "compiled": eager}, inputs_of([tilec.spec((5, 7))], "cpu"))
    assert [r.name for r in rows] == ["tilec", "eager"] * 2 + ["compiled"] * 2


def test_integers_have_no_backward_pass(peers: Path) -> None:
    inputs = inputs_of([tilec.spec((5,), "int64"), 3], "cpu")
    rows = list(compare(tilec.compile("function (X[N], K) -> (Y) { Y = X + K; }"), {}, inputs))
    assert [r.direction for r in rows] == ["forward"]


def test_command(peers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "-e", SOFTMAX, "--shape", "X=4,3", "--device", "cpu", "--no-compile", "--vs"]
    assert main([*command, f"{peers}:softmax"]) == 0
    assert "forward, eager" in capsys.readouterr().out
    for peer, told in (
        (f"{peers}:total", "eager: results of shapes (4,), where tilec gives (4, 3)"),
        (f"{peers}:nothing", "defines no function nothing"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("f", "write FILE.py:function"),
    ):
        assert main([*command, peer]) == 1
        assert told in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-e", SOFTMAX, "--shape", "X=4,3", "--device", "cuda"]) == 1
    assert "no CUDA device" in capsys.readouterr().err
