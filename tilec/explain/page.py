"""The page: one file of HTML that needs nothing else, no network either."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from tilec.explain import sections
from tilec.lowered import Lowered

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --add: #2a21; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 100rem; padding: 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 38rem), 1fr)); gap: 2rem; }
section { min-width: 0; }
pre { overflow-x: auto; background: var(--soft); padding: .6rem; border-radius: 6px; font-size: 13px; }
ins { text-decoration: none; background: #2ea04340; } del { background: #f8514930; text-decoration: none; }
ins, del { display: inline-block; min-width: 100%; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { text-align: left; padding: .15rem .8rem .15rem 0; }
th { font-weight: 500; } tr { border-bottom: 1px solid var(--line); }
.formula { margin: .7rem 0; overflow-x: auto; overflow-y: hidden; font-size: 1.1rem; }
.reach { display: flex; flex-wrap: wrap; align-items: center; gap: 1rem; } figure { margin: .5rem 0; }
figcaption { font-size: 12px; } .cell { stroke: var(--line); } .from { opacity: .7; }
.statement:target { outline: 2px solid #3b7dd8; } summary { cursor: pointer; font-weight: 600; margin-top: 1rem; }
h4 { margin: 1rem 0 .2rem; } small { font-weight: 400; opacity: .7; }
"""


@dataclass(frozen=True)
class Page:
    """What `Function.explain` returns: `html` is the whole page. Notebooks show it."""

    html: str

    def save(self, path: str | Path) -> None:
        """Write it to a file. Raises OSError where it cannot."""
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="600" style="border: 0"></iframe>'


def explanation_page(source: str, forward: Lowered, gradient: Lowered | None, refused: str = "") -> Page:
    """A forward pass beside its gradient; `refused` says why there is none."""
    title = forward.stages["source"].name or "Tile program"
    columns = [_column("Forward", forward, "forward")]
    if gradient is not None:
        columns.append(_column("Gradient", gradient, "gradient"))
    elif refused:
        columns.append(f"<section><h2>Gradient</h2><p>{escape(refused)}</p></section>")
    signature = escape(repr(forward).removeprefix("<tilec.Lowered ").rstrip(">"))
    body = (
        f"<h1>{escape(title)}</h1><p><code>{signature}</code></p><h2>Source</h2><pre>{escape(source.strip())}</pre>"
        f"<main>{''.join(columns)}</main>"
    )
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return Page(f"<!DOCTYPE html>\n<html lang='en'><head>{head}</head><body>{body}</body></html>\n")


def _column(title: str, lowered: Lowered, anchor: str) -> str:
    parts = [
        ("Formulas", sections.formulas(lowered.stages["source"]), True),
        ("Cost", sections.costs(lowered), True),
        ("Indices, and what a tile reads", sections.roles_section(lowered, anchor), True),
        ("Stages", sections.stages(lowered), False),
        ("Generated code", sections.code(lowered, anchor), False),
    ]
    folds = (f"<details{' open' * shown}><summary>{name}</summary>{text}</details>" for name, text, shown in parts)
    return f"<section><h2>{title}</h2>{''.join(folds)}</section>"
