"""Every example runs as a script and finds itself in agreement with torch: in this process, and several_processes in
those that it starts."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLES = sorted(p for p in FOLDER.glob("*.py") if p.name != "checks.py")


def run_once(self, what, ours, theirs, rounds=7) -> None:
    """In the place of a comparison of times, which are printed and not tested."""
    ours()


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.one_in(8)
def test_example(script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(script.parent))  # as of a script that is run
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(importlib.import_module("checks").Checks, "time", run_once)
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
