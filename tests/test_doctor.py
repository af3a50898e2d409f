"""tilec doctor: what it says of a machine, and that its self-test can fail."""

from __future__ import annotations

import subprocess
from importlib import metadata

import pytest
import torch

import tilec
from tilec.backends.torch import TorchBackend
from tilec.cli import doctor, main
from tilec.errors import Unsupported
from tilec.native.build import SHARED_RUNTIME, command


def test_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path))
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "many")
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "a.json").write_text("{}")
    assert main(["doctor", "--no-test"]) == 0
    out = capsys.readouterr().out
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("  ")}
    assert told["tilec"].startswith(tilec.__version__) and told["torch"] == metadata.version("torch")
    assert f"{tmp_path}/tuned: 1 choices" in out
    assert "TILEC_DEVICE_BUDGET='many' cannot be read" in out
    assert main(["doctor"]) == 1  # a setting that cannot be read is what a self-test is to find
    assert "FAILED: InputMistake: TILEC_DEVICE_BUDGET='many' cannot be read" in capsys.readouterr().out
    monkeypatch.delenv("TILEC_DEVICE_BUDGET")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    count = 6 if torch.cuda.is_available() else 3
    assert f"{count} of {count} tests passed" in out


def test_what_an_extra_package_is_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        if name == "pygls":
            raise metadata.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(doctor.importlib.metadata, "version", missing)
    assert main(["doctor", "--no-test"]) == 0
    assert "not installed: no language server; pip install tilec[lsp]" in capsys.readouterr().out


def test_a_compiler_without_the_shared_library(capsys, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    compiler = tmp_path / "c++"
    monkeypatch.setenv("CXX", str(compiler))
    for place, said in ((tmp_path, False), ("libstdc++.so", True)):  # which is what it says of a file that is not there
        compiler.write_text(f'#!/bin/sh\ncase "$1" in -print*) echo {place} ;; *) echo "$@" ;; esac\n')
        compiler.chmod(0o755)
        assert main(["doctor", "--no-test"]) == 0
        assert ("AOTInductor's packages crash" in capsys.readouterr().out) == said
        given = subprocess.run(command(tmp_path / "made"), capture_output=True, text=True, check=True).stdout
        assert (SHARED_RUNTIME in given.split()) == said


def test_a_machine_without_settings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(k.name for k in tilec.knobs.KNOBS), "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor", "--no-test"]) == 0
    out = capsys.readouterr().out
    assert "no environment variable of tilec is set" in out and "self-test" not in out


def test_failures_show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_):
        raise Unsupported("a broken backend")

    monkeypatch.setattr(TorchBackend, "build", broken)
    assert main(["doctor"]) == 1
    assert "FAILED: Unsupported: a broken backend" in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "_agrees", lambda *_: 0.5)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "WRONG, largest error 5.0e-01" in out and "\n0 of " in out


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert doctor._folder(tmp_path / "none", "files").endswith("0 files, 0.0 MiB, which cannot be written")
