"""The documentation says what is true: its blocks print what the pages show, and the pages it links to exist."""

from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path

import pytest

import tilec
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.types import CASTS
from tilec.pipeline import TRANSFORMS

ROOT = Path(__file__).resolve().parent.parent
REFRESH = runpy.run_path(str(ROOT / "docs" / "refresh.py"), run_name="refresh")
PRINTING = [page for page in REFRESH["pages"]() if REFRESH["BLOCK"].search(page.read_text())]


@pytest.mark.parametrize("page", PRINTING, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_print_what_they_show(page: Path) -> None:
    shown = page.read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # those of a page's own blocks are meant
        printed = REFRESH["refreshed"](shown)
    assert printed == shown, "run python docs/refresh.py"


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_show_what_they_print(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEC_FULL_TRACEBACK", raising=False)  # a notebook shows short ones
    shown = notebook.read_text()
    assert REFRESH["executed"](shown) == shown, "run python docs/refresh.py"


def test_pages_with_blocks() -> None:
    assert len(PRINTING) > 20


def test_blocks_of_tile_are_tile() -> None:
    count = 0
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"```tile\n(.*?)```", page.read_text(), re.DOTALL):
            if not block.startswith("%%tile"):  # the notebook's page, one of its cells fails
                tilec.compile(block)
                count += 1
    assert count


def test_links_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tilec").rglob("*.md")):
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)  # `min[j](...)` is no link
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_that_pages_name_exist() -> None:
    there = [
        f"/{p.relative_to(ROOT)}" for top in ("tilec", "tests", "docs", "examples") for p in (ROOT / top).rglob("*")
    ]
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for name in re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", page.read_text()):
            assert any(path.endswith(f"/{name}") for path in there), f"{page.name} names {name}"


def test_the_drawing_of_a_gradient_is_true() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawing = page.split("## From an access to its gradient")[1].split("```")[1]
    forward, written, *stages = (line for line in drawing.splitlines() if re.match(r"[A-Z]+\[", line))
    gradient = tilec.compile(f"function (A[M], W[K]) -> (O) {{ {forward}; }}").grad("A")
    assert f"{written};" in gradient.tile
    lowered = gradient.lower(*(tilec.spec((n,)) for n in (11, 3, 5)))
    for stage, line in zip(("bound", "reduced", "defracted"), stages, strict=True):
        assert f"{line};" in str(lowered.stages[stage])


def test_the_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {p.parent.relative_to(ROOT / "tilec") for p in (ROOT / "tilec").glob("*/**/__init__.py")}
    missing = {str(p) for p in packages if f"{p.name}/" not in page}
    assert not missing, f"docs/architecture.md does not say what is in {missing}"


NAMED = {
    "language.md": {*AGGREGATIONS, *(n for n, f in FUNCTIONS.items() if not f.symbol)} - {*CASTS, "uint16", "uint32"},
    "architecture.md": set(TRANSFORMS),
    "triton.md": set(DEVICES),
}


@pytest.mark.parametrize("page", NAMED)
def test_pages_name_every_row_of_a_table(page: str) -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / page).read_text()))
    assert not NAMED[page] - words, f"docs/{page} does not name {sorted(NAMED[page] - words)}"
