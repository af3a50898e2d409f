"""Every example runs as a script and finds itself in agreement with torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted(
    p for p in (Path(__file__).resolve().parent.parent / "examples").glob("*.py") if p.name != "checks.py"
)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_example(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok " in done.stdout and "MISMATCH" not in done.stdout
