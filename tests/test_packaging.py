"""The grammar is found in a checkout and ships inside the wheel; the version stands in one truth."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.fresh import run_fresh

import tilec
from tilec.native.build import SOURCES

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "import tilec; print(tilec.__file__); print(tilec.compile('Y = X + 1;').tile)"


@pytest.mark.slow  # as most tests do
def test_checkout_finds_its_grammar(tmp_path: Path) -> None:
    command, environment = [sys.executable, "-c", PROGRAM], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(ROOT) in done.stdout


def test_wheel_carries_its_grammar(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("tilec-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "tilec/py.typed" in names and any(n.endswith(".lark") for n in names)
    assert {f"tilec/native/{s.name}" for s in SOURCES} <= set(names)
    assert not any(n.startswith(("tests/", "examples/")) for n in names)
    done = run_fresh(PROGRAM, cwd=tmp_path / "site")
    assert str(tmp_path / "site") in done.stdout, done.stderr


def test_versions_agree() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == tilec.__version__
