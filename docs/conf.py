"""The documentation as a site: `python -m sphinx -W docs DIR`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import make_gallery  # noqa: E402
import run_notebook  # noqa: E402

from tilec.display.highlight import TileLexer  # noqa: E402
from tilec.version import __version__  # noqa: E402

project = "tilec"
version = release = __version__
copyright = "the tilec authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "furo"
html_title = "tilec"
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["reach.css"]
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]


def setup(app) -> None:  # type: ignore[no-untyped-def]
    app.add_lexer("tile", TileLexer)
    app.add_config_value("detailed_gallery", "", "env")  # -D detailed_gallery=rotary,ctc: details of these alone
    app.connect("builder-inited", write_pages)


def write_pages(app) -> None:  # type: ignore[no-untyped-def]
    """The pages that are made from the gallery and from notebooks."""
    chosen = app.config.detailed_gallery
    make_gallery.write(HERE, chosen.split(",") if chosen else None)
    for notebook in HERE.glob("*.ipynb"):
        make_gallery.put(notebook.with_suffix(".md"), run_notebook.page(notebook.read_text()))
