"""The documentation builds as a site without a warning, the gallery's pages in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_site(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    shutil.copytree(
        ROOT / "docs", source, ignore=shutil.ignore_patterns("_build", "gallery", "gallery.md", "quickstart.md")
    )
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # pages link to them
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(source), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "gallery" / "attention.html").read_text()
    assert "<svg" in page and "rotary" in page
    assert (tmp_path / "site" / "tutorial.html").exists()
    notebook = (tmp_path / "site" / "quickstart.html").read_text()
    assert "<math" in notebook and "$$" not in notebook and "write `w &lt; 2`" in notebook
