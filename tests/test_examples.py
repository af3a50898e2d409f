"""Every example runs as a script and finds itself in agreement with torch."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLES = sorted(p for p in FOLDER.glob("*.py") if p.name != "checks.py")


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_example(script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(script.parent))  # as of a script that is run
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(importlib.import_module("checks"), "SECONDS", 0.0)  # times are printed, not tested
    monkeypatch.setenv("TILEC_WARNINGS_ARE_ERRORS", "1")
    state = torch.random.get_rng_state()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        assert not end.code
    finally:
        torch.random.set_rng_state(state)
    said = capsys.readouterr().out
    assert "ok " in said and "MISMATCH" not in said


def test_an_example_in_a_process_of_its_own() -> None:
    script = FOLDER / "strided_dilated_convolution.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0 and "ok " in done.stdout, done.stdout + done.stderr
