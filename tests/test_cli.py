"""The command line: what it prints, where, and how it exits."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fresh import run_fresh

import tilec
from tilec import cli
from tilec.backends.torch import TorchBackend
from tilec.cli import main, programs
from tilec.cli.progress import progress

MATMUL = "function mm(A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }\n"


@pytest.fixture
def matmul(tmp_path: Path) -> str:
    path = tmp_path / "mm.tile"
    path.write_text(MATMUL)
    return str(path)


def test_check(matmul: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", matmul]) == 0
    assert "mm(A[I, K], B[K, J]) -> (C)" in capsys.readouterr().out


def test_warnings_are_told_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    """As often as the text is checked, and without a place in Python."""
    for _ in range(2):
        assert main(["check", "-e", "Scores = X; Y = Scoers"]) == 0
        told = capsys.readouterr().err
        assert told.startswith("tilec: warning: <tile>:1:17: `Scoers` is an input") and told.count("tilec:") == 1


def test_check_tells_what_nothing_reads(capsys: pytest.CaptureFixture[str]) -> None:
    text = "function (X[N], W[M], Z[K]) -> (Y) { A[i : N] = X[i] + 1; Y[i : M] = X[i]; }"  # of W a size is read
    assert main(["check", "-e", text]) == 0
    told = capsys.readouterr().err
    assert "nothing reads the input `Z`" in told and "nothing reads `A`" in told and told.count("warning:") == 2
    assert "make it an output, `-> (Y, A)`" in told


def test_no_command_shows_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr().err
    assert "parse and check programs" in told and "run the language server" in told


def test_show_prints_what_parses_back(matmul: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", matmul]) == 0
    assert tilec.compile(capsys.readouterr().out).program == tilec.compile(MATMUL).program


@pytest.mark.parametrize("stage", ["bound", "flat", "reduced", "defracted"])
def test_show_stage(matmul: str, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", matmul, "--stage", stage, "--shape", "A=2,3", "--shape", "B=3,4"]) == 0
    out = capsys.readouterr().out
    a, b = np.ones((2, 3)), np.ones((3, 4))
    np.testing.assert_array_equal(tilec.interpret(out, a, b), a @ b)


def test_show_code(matmul: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", matmul, "--stage", "code", "--shape", "A=2,3", "--shape", "B=3,4"]) == 0
    assert "torch" in capsys.readouterr().out


def test_show_with_a_size_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.tile"
    path.write_text("function (X[N], P[]) -> (Y) { Y[i : N + P] = X[i - P]; }")
    assert main(["show", str(path), "--stage", "bound", "--shape", "X=4", "--value", "P=2"]) == 0
    assert ": 6]" in capsys.readouterr().out


def test_grad_prints_tile(matmul: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grad", matmul, "--wrt", "B"]) == 0
    out = capsys.readouterr().out
    a, b, d = np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4))
    np.testing.assert_array_equal(tilec.interpret(out, a, b, d), a.T @ d)


def test_run(matmul: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    out = tmp_path / "c"  # the name as it is given
    argv = ["run", matmul, "--input", f"A={tmp_path}/a.npy", "--input", f"B={tmp_path}/b.npy", "--output", f"C={out}"]
    assert main(argv) == 0
    np.testing.assert_array_equal(np.load(out), a @ b)
    assert "C: float64 of shape (2, 4)" in capsys.readouterr().out


def test_text_in_place_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-e", MATMUL]) == 0
    assert capsys.readouterr().out.startswith("<tile>: ok: ") and main(["grad", "-e", MATMUL, "--wrt", "B"]) == 0
    assert "-> (DB)" in capsys.readouterr().out


def test_shapes_in_one_list(matmul: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One option takes several inputs, and a file may stand behind it."""
    for argv in (
        ["show", matmul, "--stage", "bound", "--shape", "A=2,3", "B=3,4"],
        ["show", "--stage", "bound", "--shape", "A=2,3", "B=3,4", matmul],
        ["show", "--shape", "A=2,3", "--shape", "B=3,4", "--dtype", "A=float16", "B=float16", "--stage=bound", matmul],
    ):
        assert main(argv) == 0
        assert "2, 4" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, expected in ((["check", "-"], "<tile>: ok: "), (["grad", "-", "--wrt", "B"], "-> (DB)")):
        monkeypatch.setattr("sys.stdin", io.StringIO(MATMUL))
        assert main(argv) == 0
        assert expected in capsys.readouterr().out


def test_check_several_files(matmul: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = tmp_path / "bad.tile", tmp_path / "good.tile"
    bad.write_text("Y = X +")
    good.write_text("Y = X")
    assert main(["check", matmul, str(good)]) == 0
    assert capsys.readouterr().out.count(": ok: ") == 2
    assert main(["check", matmul, str(bad), str(good), str(tmp_path / "none.tile")]) == 1
    out, err = capsys.readouterr()
    assert out.count(": ok: ") == 2 and "bad.tile:1:" in err and "cannot read" in err  # all are looked at


def test_run_prints_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-e", "Y[i : 3] = i * S; Z = S + 1", "--input", "S=2.5"]) == 0
    assert capsys.readouterr().out == "Y: float64 of shape (3,)\n[0.  2.5 5. ]\nZ: float64 of shape ()\n3.5\n"
    assert main(["run", "-e", "Y[i : 5000] = i"]) == 0
    assert "..." in capsys.readouterr().out


@pytest.mark.parametrize("value, dtype", [("2.5", "float64"), ("2", "int64"), ("1e-3", "float64")])
def test_value_of_a_scalar(value: str, dtype: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    argv = ["show", "-e", "function (S[]) -> (Y) { Y = S; }", "--stage", "code", "--value", f"S={value}"]
    seen: list[object] = []
    lower = tilec.Function.lower
    monkeypatch.setattr(tilec.Function, "lower", lambda self, *args: seen.extend(args) or lower(self, *args))
    assert main(argv) == 0
    assert [type(v) for v in seen] == [float if dtype == "float64" else int]
    assert "Y = S" in capsys.readouterr().out


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tilec, "compile", interrupt)
    assert main(["check", "-e", MATMUL]) == 130
    assert capsys.readouterr().err == "tilec: interrupted\n"


def test_ctrl_c_of_a_process() -> None:
    """The signal itself, while the text is read: no traceback."""
    code = "import signal, sys; from tilec.cli import main; "
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a job in the background begins without
    code += "sys.stdin = type('Input', (), {'read': lambda self: signal.raise_signal(signal.SIGINT)})(); "
    done = run_fresh(code + "sys.exit(main(['check', '-']))")
    assert (done.returncode, done.stderr) == (130, "tilec: interrupted\n")


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on standard error at first; then a line, and others at intervals."""
    with progress("compiling", first=3600.0):
        pass
    assert capsys.readouterr().err == ""
    with progress("compiling", first=0.01, following=0.01):
        deadline = time.monotonic() + 60
        found = ""
        while found.count("tilec: compiling, 0 s\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
            found += capsys.readouterr().err
    assert found.count("tilec: compiling, 0 s\n") >= 2
    with pytest.raises(tilec.TileError), progress("compiling", first=3600.0):
        raise tilec.TileError("an error ends it")


@pytest.mark.parametrize("argv", [["show", "--stage", "code"], ["run", "--input", "A=1.0", "B=1.0"], ["tune"]])
def test_what_shows_progress(argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    labels = []

    def noted(what: str):
        labels.append(what)
        return contextlib.nullcontext()

    monkeypatch.setattr(programs, "progress", noted)
    text = "function f(A[], B[]) -> (C) { C = A * B; }"
    main([argv[0], "-e", text, *argv[1:]])
    assert len(labels) == 1 and labels[0].partition(" ")[0] in ("compiling", "running", "tuning")


def test_watch(matmul: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is checked at first and after each change, also where it is gone for a moment."""
    changes = iter([lambda: None, lambda: Path(matmul).write_text("Y = X +"), Path(matmul).unlink, lambda: None,
                    lambda: Path(matmul).write_text("Y = X * X")])  # fmt: skip

    def sleep(_: float) -> None:
        change = next(changes, None)
        if change is None:
            raise KeyboardInterrupt
        change()

    monkeypatch.setattr(programs.time, "sleep", sleep)
    assert main(["check", "--watch", matmul]) == 130
    out, err = capsys.readouterr()
    assert out.count(": ok: ") == 2 and out.count("\n-- ") == 3
    assert err.count("mm.tile:1:") == 1 and err.count("cannot read") == 1 and err.endswith("interrupted\n")


def test_watch_takes_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--watch", "-e", MATMUL]) == 1
    assert "--watch takes files" in capsys.readouterr().err


def test_tune_measures_the_function_and_its_gradient(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a machine with a GPU, with the torch backend in the place of one that has something to measure."""
    built = []
    build = TorchBackend.build

    def noting(self, lowering, options=None):
        built.append((lowering.stages["source"].outputs, [t.shape for t in lowering.types.values()], options.tune))
        return build(self, lowering, options)

    monkeypatch.setattr(TorchBackend, "build", noting)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tilec.api, "_on_device", functools.partial(on_cpu, tilec.api._on_device))
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path))
    shapes = ["--shape", "A=2,3", "--shape", "B=3,4", "--dtype", "A=float16"]
    assert main(["tune", "-e", MATMUL, *shapes, "--grad"]) == 0
    out = capsys.readouterr().out
    assert "mm(A[I, K], B[K, J]) -> (C)" in out and f"kept in {tmp_path}" in out
    assert [(len(outputs), tune) for outputs, _, tune in built] == [(1, True), (2, True)]
    assert built[0][1][:2] == [(2, 3), (3, 4)]
    built.clear()
    assert main(["tune", "-e", MATMUL, *shapes]) == 0
    assert len(built) == 1


def on_cpu(made, args, device):
    assert device == "cuda"
    return made(args, "cpu")


BAD = {
    "nothing to tune": (["tune", "{mm}", "--shape", "A=1,2", "--shape", "B=2,1", "--backend", "torch"], "to tune"),
    "no shapes to tune for": (["tune", "{mm}"], "--shape A="),
    "missing file": (["check", "{dir}/none.tile"], "cannot read"),
    "a syntax error": (["check", "{dir}/bad.tile"], "bad.tile:1:"),
    "unknown input": (["show", "{mm}", "--stage", "bound", "--shape", "Z=1"], "there is no Z"),
    "a missing shape": (["show", "{mm}", "--stage", "bound", "--shape", "A=1,2"], "--shape B="),
    "no value": (["show", "{mm}", "--stage", "bound", "--value", "A=x"], "--value A=x: expected a number"),
    "a shape twice": (["show", "{mm}", "--stage", "bound", "--shape", "A=1,2", "A=1,2"], "A is given twice"),
    "no number": (["show", "{mm}", "--stage", "bound", "--shape", "A=1,x"], "expected an integer"),
    "sizes that disagree": (["show", "{mm}", "--stage", "bound", "--shape", "A=1,2", "--shape", "B=3,4"], "K"),
    "unknown wrt": (["grad", "{mm}", "--wrt", "Q"], "no input is called Q"),
    "a missing input": (["run", "{mm}", "--input", "A=1"], "--input B="),
    "an unreadable array": (["run", "{mm}", "--input", "A={dir}/no.npy", "--input", "B=1"], "cannot read"),
    "no name": (["run", "{mm}", "--input", "=1", "B=1"], "--input =1: something stands on both sides"),
    "no file name": (["run", "{mm}", "--input", "A=1", "B=1", "--output", "C="], "--output C=: something stands"),
    "no array": (["run", "{mm}", "--input", "A={mm}", "--input", "B=1"], "no .npy array"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, matmul: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.tile").write_text("function (A[N] -> (B) { B = A; }")
    argv, expected = BAD[case]
    assert main([a.format(mm=matmul, dir=tmp_path) for a in argv]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("tilec: ") and expected in captured.err and not captured.out
    assert "Traceback" not in captured.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_tune_without_a_gpu(matmul: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", matmul, "--shape", "A=1,2", "--shape", "B=2,1"]) == 1
    assert "there is no GPU to tune for" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["check"], ["check", "file.tile", "-e", MATMUL], ["grad", "a.tile", "b.tile"]])
def test_one_source(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2


def test_inputs_stand_after_their_option(matmul: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, option in (("run", "input"), ("show", "shape")):
        with pytest.raises(SystemExit):
            main([command, matmul, "A=a.npy"])
        assert f"write --{option} before A=a.npy" in capsys.readouterr().err


def test_wrong_usage() -> None:
    with pytest.raises(SystemExit) as stop:
        main(["frobnicate"])
    assert stop.value.code == 2


def test_help_has_examples_that_parse() -> None:
    """Every command but the server's shows one, every option says what it is for, and what needs no file runs."""
    parser = cli._parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    assert set(cli.EXAMPLES) == set(commands.choices) - {"lsp"}
    for name, sub in commands.choices.items():
        assert all(action.help for action in sub._actions), name
        for example in cli.EXAMPLES.get(name, ()):
            program, command, *rest = shlex.split(example)
            assert (program, command) == ("tilec", name) and f"  {example}\n" in sub.format_help()
            parser.parse_args([command, *rest])
            if "-e" in rest and ".npy" not in example:
                assert cli.main([command, *rest]) == 0, example
    for line in cli.FIRST_STEPS.splitlines()[1:-1]:
        parser.parse_args(shlex.split(line.partition("#")[0].partition(">")[0])[1:])
