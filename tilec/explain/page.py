"""The page: one file of HTML that needs nothing else, no network either."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from tilec.explain import sections
from tilec.explain.costs import cost_section
from tilec.explain.links import Links
from tilec.explain.style import SCRIPT, STYLE
from tilec.lowered import Lowered


@dataclass(frozen=True)
class Page:
    """What `Function.explain` returns: `html` is the whole page. Notebooks show it."""

    html: str

    def save(self, path: str | Path) -> None:
        """Write it to a file. Raises OSError where it cannot."""
        Path(path).write_text(self.html, encoding="utf-8")

    def __repr__(self) -> str:
        return f"<tilec.explain.Page of {len(self.html):,} characters; .save(path) writes it>"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="600" style="border: 0"></iframe>'


def explanation_page(source: str, forward: Lowered, gradient: Lowered | None, refused: str = "") -> Page:
    """A forward pass beside its gradient; `refused` says why there is none."""
    title = forward.stages["source"].name or "Tile program"
    passes = [("Forward", forward, Links(forward, "forward"))]
    if gradient is not None:
        passes.append(("Gradient", gradient, Links(gradient, "gradient")))
    columns = [_column(name, lowered, links) for name, lowered, links in passes]
    if gradient is None and refused:
        columns.append(f"<section><h2>Gradient</h2><p>There is none: {escape(refused)}.</p></section>")
    code = "".join(
        f"<details class='generated'><summary>{name}</summary>{sections.generated(lowered, links)}</details>"
        for name, lowered, links in passes
    )
    signature = escape(repr(forward).removeprefix("<tilec.Lowered ").rstrip(">"))
    body = (
        f"<h1>{escape(title)}</h1><p><code>{signature}</code></p><h2>Source</h2><pre>{escape(source.strip())}</pre>"
        f"<main>{''.join(columns)}</main><h2>Generated code</h2><p class='note'>{LINKED}</p>{code}"
    )
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    script = f"<script>{SCRIPT}</script>"
    return Page(f"<!DOCTYPE html>\n<html lang='en'><head>{head}{view}</head><body>{body}{script}</body></html>\n")


LINKED = (
    "Point at a line, here or in a stage, to see the statement it serves and all other lines that serve it; a click "
    "keeps the marks, Escape removes them. Where a kernel carries out several statements, a line is marked for the "
    "first one whose result depends on it, and for those computed inside of that one."
)
DRAWN = (
    "Orange: a tile of the output, from the middle. Blue: the elements that it reads. Two dimensions are drawn "
    "(↓ and →, with what indexes them); a darker cell stands for more elements along the others."
)


def _column(title: str, lowered: Lowered, links: Links) -> str:
    parts = [
        ("Formulas", sections.formulas(lowered.stages["source"]), True),
        ("Memory and time against the floor", cost_section(lowered), True),
        (
            "Indices, what a tile reads, residue classes",
            f"<p class='note'>{DRAWN}</p>{sections.roles_section(lowered, links)}",
            True,
        ),
        ("Stages", sections.stages(lowered, links), False),
    ]
    folds = (f"<details{' open' * shown}><summary>{name}</summary>{text}</details>" for name, text, shown in parts)
    return f"<section><h2>{title}</h2>{''.join(folds)}</section>"
