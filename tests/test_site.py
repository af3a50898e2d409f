"""The documentation builds as a site without a warning, the gallery's pages in it."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from pathlib import Path

import pytest
from sphinx.cmd.build import build_main

from tilec import gallery

ROOT = Path(__file__).resolve().parent.parent
MADE = ("_build", "gallery", "gallery.md", "quickstart.md")  # what a build writes beside the sources


def built(folder: Path, *options: str) -> Path:
    """The folder of the site's sources, built in this process: what sphinx and tilec import is here already."""
    source = folder / "docs"
    shutil.copytree(ROOT / "docs", source, ignore=shutil.ignore_patterns(*MADE))
    for name in ("examples", "tilec"):  # pages link to them
        (folder / name).symlink_to(ROOT / name)
    errors, path = io.StringIO(), list(sys.path)
    try:
        with contextlib.redirect_stderr(errors):
            code = build_main(["-q", "-W", "--keep-going", *options, str(source), str(folder / "site")])
    finally:
        sys.path[:] = path
        for name in ("make_gallery", "run_notebook"):
            sys.modules.pop(name, None)
    assert code == 0, errors.getvalue()
    return source


def test_site(tmp_path: Path) -> None:
    """Every page is read and every link resolved. The gallery has the details of one operation that is measured, and of
    one that is not; HTML is written by the slow test."""
    source = built(tmp_path, "-b", "dummy", "-D", "detailed_gallery=causal_attention,life")
    page = (source / "gallery" / "attention.md").read_text()
    for part in ('aria-label="O"', "rotary", "O_chain", "least time", "best peer", "<math", "The gradient"):
        assert part in page
    assert page.count("best peer") > 5 and page.count("least time") == 1
    notebook = (source / "quickstart.md").read_text()
    assert "<math" in notebook and "write `w < 2`" in notebook
    assert "At H 6, W 7, by the model" in (source / "gallery" / "elementwise.md").read_text()


@pytest.mark.slow
def test_site_in_full(tmp_path: Path) -> None:
    built(tmp_path)
    pages = "".join(p.read_text() for p in (tmp_path / "site" / "gallery").glob("*.html"))
    assert pages.count("least time") == len(gallery.names())
    notebook = (tmp_path / "site" / "quickstart.html").read_text()
    assert "<math" in notebook and "$$" not in notebook and "write `w &lt; 2`" in notebook
    assert "<svg" in pages and (tmp_path / "site" / "tutorial.html").exists()


def test_the_index_of_the_gallery_is_in_step() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from make_gallery import INDEX, index
    finally:
        sys.path.pop(0)
        sys.modules.pop("make_gallery", None)
    assert INDEX.read_text() == index(), "run python docs/make_gallery.py --index"
