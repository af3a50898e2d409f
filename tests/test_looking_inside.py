"""Passes alone, numbered dumps of what a call compiles, stages that print."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tilec
from tilec.cli import main
from tilec.pipeline import PASSES, TRANSFORMS

SOURCE = """function f(A[M, K], B[K, N]) -> (O) {
    P[3*i + 2*k, j : 3*M, N] = mean(A[i, k] * B[k, j]);
    O = tanh(P) / 2;
}"""
SHAPES = ["--shape", "A=4,3", "--shape", "B=3,5"]


@pytest.fixture
def bound(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["show", "-e", SOURCE, "--stage", "bound", *SHAPES]) == 0
    return capsys.readouterr().out


def optimised(capsys: pytest.CaptureFixture[str], passes: str, *arguments: str) -> str:
    assert main(["opt", "-p", passes, *arguments]) == 0
    return capsys.readouterr().out


def test_each_pass_alone_prints_what_parses_and_means_the_same(bound: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, each on the text that the one before it printed: together they are all the stages."""
    a, b = np.random.default_rng(0).normal(size=(4, 3)), np.ones((3, 5))
    wanted = tilec.interpret(SOURCE, a, b)
    text, seen = bound, [bound]
    for name in [name for p in PASSES[1:] for name in p.transforms]:
        text = optimised(capsys, name, "-e", text)
        seen.append(text)
        np.testing.assert_allclose(tilec.interpret(text, a, b), wanted, rtol=1e-12)
    stages = tilec.compile(SOURCE).lower(torch.ones(4, 3), torch.ones(3, 5)).stages
    assert text.strip() == tilec.language.show(stages["defracted"]).strip() and len(set(seen)) > 3


def test_passes_in_one_go_and_binding(capsys: pytest.CaptureFixture[str], bound: str, tmp_path: Path) -> None:
    path = tmp_path / "f.tile"
    path.write_text(SOURCE)
    assert optimised(capsys, "bind", str(path), *SHAPES) == bound
    whole = ",".join(name for p in PASSES for name in p.transforms)
    assert "P_sum" in optimised(capsys, whole, str(path), *SHAPES)
    sized = "function (X[N], P[]) -> (Y) { Y[i : N + P] = X[i - P]; }"
    assert ": 6]" in optimised(capsys, "bind", "-e", sized, "--shape", "X=4", "--value", "P=2")


@pytest.mark.parametrize(
    "passes, message",
    [
        ("reduce", "runs on a bound program"),
        ("nothing", "there is no pass nothing"),
        ("bind", "K is 3 (dimension 1 of A)"),
    ],
)
def test_what_cannot_run_is_said(passes: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "-p", passes, "-e", SOURCE, "--shape", "A=4,3", "--shape", "B=2,5"]) == 1
    assert message in capsys.readouterr().err


def test_every_transform_is_used_by_a_stage() -> None:
    assert set(TRANSFORMS) == {name for p in PASSES for name in p.transforms}


def test_stages_and_lowered_print() -> None:
    lowered = tilec.compile(SOURCE).lower(torch.ones(4, 3), torch.ones(3, 5), backend="torch")
    assert repr(lowered.stages) == str(lowered) and "// reduced\nfunction f(A[4, 3]" in repr(lowered.stages)
    assert repr(lowered).endswith(": source, bound, flat, reduced, defracted; 1 kernel>")


def test_a_call_dumps_what_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward pass of a recorded call, each once, however often it is called."""
    monkeypatch.setenv("TILEC_DUMP", str(tmp_path / "dump"))
    f = tilec.compile(SOURCE)
    for _ in range(2):
        f(torch.ones(4, 3, requires_grad=True), torch.ones(3, 5)).sum().backward()
    folders = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert folders == ["0001-f", "0002-DA"]
    files = sorted(path.name for path in (tmp_path / "dump" / "0001-f").iterdir())
    assert files[:5] == ["00-source.tile", "01-bound.tile", "02-flat.tile", "03-reduced.tile", "04-defracted.tile"]
    assert files[-1].endswith("source.py")
    tilec.compile((tmp_path / "dump" / "0001-f" / "04-defracted.tile").read_text())


def test_a_dump_of_kernels_has_the_call(tmp_path: Path) -> None:
    source = "function (A[M, K], B[K, N]) -> (O) { P[i, j : M, N] = +(A[i, k] * B[k, j]); O[j : N] = >(P[i, j]); }"
    f = tilec.compile(source, backend="triton")
    lowered = f.lower(tilec.spec((64, 33)), tilec.spec((33, 65)), target="sm_90")
    lowered.dump(tmp_path)
    (call,) = tmp_path.glob("*-call.py")
    text = call.read_text()
    assert text.startswith("def program(A, B):") and text.endswith("return (O,)\n") and text in lowered.source()
    assert text.count("num_warps=") == len(lowered.kernels)
    assert len(list(tmp_path.glob("*-kernel-*.py"))) == len(lowered.kernels) == 2
