"""The documentation says what is true: its blocks print what the pages show, and the pages it links to exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_pages_print_what_they_show() -> None:
    command = [sys.executable, str(ROOT / "docs" / "refresh.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)  # `min[j](...)` is no link
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {p.parent.relative_to(ROOT / "tilec") for p in (ROOT / "tilec").glob("*/**/__init__.py")}
    missing = {str(p) for p in packages if f"{p.name}/" not in page}
    assert not missing, f"docs/architecture.md does not say what is in {missing}"
