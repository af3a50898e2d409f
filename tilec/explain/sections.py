"""The parts of the page about one lowered function."""

from __future__ import annotations

import difflib
from html import escape

from tilec.display.html import bytes_text
from tilec.display.latex import latex
from tilec.explain.drawing import WRITTEN, drawn
from tilec.explain.reach import reached_points
from tilec.ir.program import Access, Index, Program, Statement, accesses_in, index_variables
from tilec.language import show, show_statement
from tilec.lattice.sets import bounds, shapes_of
from tilec.lowered import Lowered


def formulas(program: Program) -> str:
    """Each statement in mathematical notation: MathML where latex2mathml is installed, else LaTeX."""
    try:
        from latex2mathml.converter import convert
    except ImportError:
        return f"<pre>{escape(latex(program))}</pre>"
    rows = (convert(latex(s)) for s in program.statements)
    return "".join(f'<div class="formula">{row}</div>' for row in rows)


def stages(lowered: Lowered) -> str:
    """Each stage that differs from the one before it, with what changed marked."""
    parts, before = [], ""
    for name, program in lowered.stages.items():
        text = show(program)
        if text != before:
            parts.append(f"<h4>{escape(name)}</h4><pre>{_compared(before, text) if before else escape(text)}</pre>")
        else:
            parts.append(f"<h4>{escape(name)} <small>nothing to do</small></h4>")
        before = text
    return "".join(parts)


def _compared(old: str, new: str) -> str:
    lines = []
    for line in difflib.ndiff(old.splitlines(), new.splitlines()):
        mark, text = line[:2], escape(line[2:])
        if mark == "+ ":
            lines.append(f"<ins>{text}</ins>")
        elif mark == "- ":
            lines.append(f"<del>{text}</del>")
        elif mark == "  ":
            lines.append(text)
    return "\n".join(lines)


def roles_section(lowered: Lowered, anchor: str) -> str:
    """For each statement of the last stage the index variables: their range, and what they do."""
    program = lowered.stages["flat"]
    shapes = shapes_of(program)
    parts = []
    for number, s in enumerate(program.statements):
        head = f'<pre id="{anchor}-s{number}" class="statement">{escape(show_statement(s))}</pre>'
        parts.append(head + _variables(s, shapes) + _reach(s, shapes))
    return "".join(parts)


def _variables(s: Statement, shapes: dict[str, tuple[int, ...]]) -> str:
    if s.index is None:
        return "<p>element by element</p>"
    box = bounds(s, shapes) or {}
    left = set(index_variables(*s.index))
    rows = [_variable(v, box.get(v), v in left, s) for v in dict.fromkeys((*box, *left))]
    if not rows:
        return ""
    head = "<tr><th>index</th><th>range</th><th>role</th><th>stands in</th></tr>"
    return f'<table class="roles">{head}{"".join(rows)}</table>'


def _variable(v: str, span: tuple[int, int] | None, left: bool, s: Statement) -> str:
    bare = any(isinstance(i, Index) and i.name == v for i in s.index or ())
    role = "of the output" if bare else "of the output, in an expression" if left else f"{_verb(s.aggregation)} over"
    reads = dict.fromkeys(_plain(a) for a in accesses_in(s.body) if v in index_variables(*a.index))
    text = f"{span[0]} to {span[1]}" if span else "none"
    return f"<tr><td><code>{v}</code></td><td>{text}</td><td>{role}</td><td>{', '.join(reads)}</td></tr>"


def _plain(a: Access) -> str:
    return f"<code>{escape(a.tensor)}</code>"


def _verb(aggregation: str) -> str:
    return {"sum": "summed", "assign": "assigned", "prod": "multiplied"}.get(aggregation, f"{aggregation} taken")


def _reach(s: Statement, shapes: dict[str, tuple[int, ...]]) -> str:
    if s.index is not None and any(accesses_in(*s.index)):
        return f"<p>which elements of <code>{escape(s.output)}</code> are written depends on data</p>"
    found = reached_points(s, shapes)
    if found is None or not (found.inputs or found.by_data):
        return ""
    figures = [drawn(found.tile, WRITTEN), "<span class='from'>reads</span>", *map(drawn, found.inputs)]
    told = "".join(f"<p>which elements of <code>{escape(t)}</code> are read depends on data</p>" for t in found.by_data)
    return f'<div class="reach">{"".join(figures)}</div>{told}'


def costs(lowered: Lowered) -> str:
    """Operations and bytes beside the least bytes that any program must move."""
    c = lowered.cost()
    least = max(1, c.least_bytes)
    rows = [
        ("kernels", str(len(lowered.kernels))),
        ("operations", f"{c.flops:,}"),
        ("bytes moved", f"{c.bytes_moved:,} ({bytes_text(c.bytes_moved)})"),
        ("least bytes", f"{c.least_bytes:,} ({bytes_text(c.least_bytes)})"),
        ("moved for each byte that has to be", f"{c.bytes_moved / least:.2f}"),
        ("operations for each byte that has to be moved", f"{c.flops / least:.1f}"),
    ]
    if (temporary := lowered.temporary_bytes) is not None:
        rows.append(("intermediates in memory at a time", bytes_text(temporary)))
    return "<table>" + "".join(f"<tr><th>{a}</th><td>{b}</td></tr>" for a, b in rows) + "</table>"


def code(lowered: Lowered, anchor: str) -> str:
    """The generated code, kernel by kernel, each with the statements that it carries out, and what launches them."""
    places = {s.output: f"{anchor}-s{n}" for n, s in enumerate(lowered.stages["flat"].statements)}
    source = lowered.source()
    parts = []
    for kernel in lowered.kernels:
        if kernel.source in ("", source):
            continue
        names = (f'<a href="#{places[n]}">{escape(n)}</a>' if n in places else escape(n) for n in kernel.statements)
        head = f"<h4>{escape(kernel.name)} <small>carries out {', '.join(names)}</small></h4>"
        parts.append(f"{head}<pre>{escape(kernel.source.strip())}</pre>")
    return "".join(parts) + f"<h4>the whole program</h4><pre>{escape(source.strip())}</pre>"
