"""What notebooks show: `_repr_html_` of programs, functions, lowered functions, costs and errors."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from tilec.cost import Cost
from tilec.display.latex import latex
from tilec.errors import TileError
from tilec.ir.program import Program
from tilec.language import show

UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def program_html(program: Program, title: str = "") -> str:
    """Its formulas (LaTeX, which a notebook typesets) and, folded, its text."""
    head = f"<b>{escape(title)}</b>" if title else ""
    text = _folded("Tile", f"<pre>{escape(show(program))}</pre>")
    return f"<div>{head}<div>$$\n{escape(latex(program))}\n$$</div>{text}</div>"


def stages_html(stages: Mapping[str, Program], cost: Cost, source: str) -> str:
    """A lowered function: what it costs, each stage and the generated code, folded."""
    parts = [_folded(name, f"<pre>{escape(show(program))}</pre>") for name, program in stages.items()]
    return f"<div>{cost_html(cost)}{''.join(parts)}{_folded('generated code', f'<pre>{escape(source)}</pre>')}</div>"


def cost_html(cost: Cost) -> str:
    """A table of three rows."""
    rows = {
        "operations": f"{cost.flops:,}",
        "bytes moved": f"{cost.bytes_moved:,} ({bytes_text(cost.bytes_moved)})",
        "least bytes": f"{cost.least_bytes:,} ({bytes_text(cost.least_bytes)})",
    }
    body = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
    return f"<table>{body}</table>"


def error_html(error: TileError) -> str:
    """The text with its carets, in a fixed width."""
    return f"<pre><b>{escape(type(error).__name__)}</b>: {escape(str(error))}</pre>"


def bytes_text(count: float) -> str:
    """A number of bytes to three digits."""
    for size, unit in UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
