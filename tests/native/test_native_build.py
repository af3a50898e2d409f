"""How the library comes to be, and that calls do without it where it does not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import tilec
from tilec import native as package
from tilec.cli import main
from tilec.errors import Unsupported
from tilec.native import build


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of its own, in a process that has loaded nothing."""
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEC_NATIVE", "1")
    monkeypatch.setattr(package, "_loaded", package._Loaded())
    return tmp_path


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "compiler"
    asked = 'case "$1" in -print-file-name=*) exec c++ "$1" ;; esac'  # where a library is, not to compile
    path.write_text(f"#!/bin/sh\n{asked}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def patiently(path: Path) -> None:
    patience = time.monotonic() + 20
    while not path.exists() and time.monotonic() < patience:
        time.sleep(0.02)
    assert path.exists()


def works() -> None:
    f, x = tilec.compile("Y = X * W"), torch.ones(3, requires_grad=True)
    for _ in range(3):
        f(x, torch.ones(3)).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))


def test_a_call_does_not_wait(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's work is there for later calls; meanwhile nobody starts another one."""
    count = fresh / "count"
    compiler(
        fresh,
        monkeypatch,
        f"echo one >> {count}; while [ ! -e {fresh}/go ]; do sleep 0.02; done\n"
        'while [ "$1" != -o ]; do shift; done; echo broken > "$2"',
    )
    works()
    assert package.native() is None
    patiently(count)
    assert not build.library_path().exists() and build.start_build()
    (fresh / "go").write_text("")
    patiently(build.library_path())
    assert package.native() is None  # what the compiler left here is no library
    works()
    assert count.read_text() == "one\n" and not list(build.library_path().parent.glob("*.busy"))


def test_a_compiler_that_fails(fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    compiler(fresh, monkeypatch, "echo 'calls.cpp:1: error: no such thing' >&2; exit 1")
    works()
    patiently(build.library_path().with_suffix(".failed"))
    assert not build.start_build()
    with pytest.raises(Unsupported, match="calls.cpp:1: error: no such thing"):
        build.build_library()
    assert main(["doctor", "--build"]) == 1
    assert "no such thing" in capsys.readouterr().err


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    works()
    assert package.native() is None and not build.library_path().parent.exists()
    with pytest.raises(Unsupported, match="there is no C\\+\\+ compiler"):
        build.build_library()
    assert main(["doctor", "--no-test"]) == 0
    assert "there is no C++ compiler" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "cache").write_text("")
    works()
    assert package.native() is None


def test_doctor_tells(built: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for value, word in (("0", "in Python, as TILEC_NATIVE says"), ("1", "in C++, by ")):
        monkeypatch.setenv("TILEC_NATIVE", value)
        assert main(["doctor", "--no-test"]) == 0
        assert word in capsys.readouterr().out
