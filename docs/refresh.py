"""Run the Python blocks of the documentation and put what they print into the `text` block after each.

    python docs/refresh.py            rewrites README.md, the pages of docs/ and what notebooks there show
    python docs/refresh.py --check    changes nothing; exits 1 if a block prints something else than the page says

A block is run where a `text` block follows it; the blocks of one page share their names.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run_notebook import executed  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```python\n(?P<code>(?:(?!```).)*)```\n\n```text\n(?P<output>(?:(?!```).)*)```\n", re.DOTALL)


def pages() -> list[Path]:
    """README.md and the pages of docs/, those that the site's build writes aside."""
    docs = ROOT / "docs"
    made = {path.with_suffix(".md") for path in docs.glob("*.ipynb")} | {docs / "gallery.md"}
    found = (p for p in sorted(docs.rglob("*.md")) if p not in made and docs / "gallery" not in p.parents)
    return [ROOT / "README.md", *found]


def refreshed(page: str) -> str:
    """The page with every output as it is today."""
    names: dict[str, object] = {"__name__": "__docs__"}

    def run(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pages show some, by name
            exec(compile(match["code"], "<documentation>", "exec"), names)
        output = "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").split("\n"))
        return f"```python\n{match['code']}```\n\n```text\n{output}\n```\n"

    return BLOCK.sub(run, page)


def main() -> int:
    stale = []
    notebooks = sorted((ROOT / "docs").glob("*.ipynb"))
    for path in (*pages(), *notebooks):
        page = path.read_text()
        if (new := (executed if path in notebooks else refreshed)(page)) != page:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new)
    if stale:
        print(("out of date: " if "--check" in sys.argv else "rewritten: ") + ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
