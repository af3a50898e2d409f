"""The parts of the page about one lowered function."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from html import escape

from tilec.display.latex import latex, statement_parts
from tilec.explain.drawing import WRITTEN, drawn
from tilec.explain.links import Links
from tilec.explain.reach import reached_points
from tilec.explain.residues import residue_section
from tilec.ir.program import Index, Program, Statement, accesses_in, index_variables, reads_itself
from tilec.language import show, show_expr, show_statement
from tilec.lattice.sets import bounds, shapes_of
from tilec.lowered import Lowered

_ALIKE = 0.5  # share of words that two lines have in common where the others are marked
_STAGES = {
    "source": "as written",
    "bound": "sizes are numbers, names of functions and types are resolved",
    "flat": "one aggregation a statement; common parts are computed once",
    "reduced": "each output index is a variable of its own, so that every element is written once; indices may divide",
    "defracted": "residue classes in the place of divisions: indices have integer coefficients again",
    "grouped": "what generated kernels carry out; statements that share one are marked with its number",
}


def formulas(program: Program) -> str:
    """Each statement in mathematical notation: MathML where latex2mathml is installed, else LaTeX."""
    try:
        from latex2mathml.converter import convert
    except ImportError:
        return f"<pre>{escape(latex(program))}</pre>"
    parts = []
    for s in program.statements:
        text, conditions = statement_parts(s)
        rows = [f'<div class="formula">{convert(_upright(text), display="block")}</div>']
        rows += [f'<div class="conditions">{convert(_upright(conditions))}</div>'] if conditions else []
        parts.append("".join(rows))
    return "".join(parts)


def _upright(text: str) -> str:
    """Names of functions as the converter sets them upright."""
    return re.sub(r"\\operatorname\{(.*?)\}", lambda m: rf"\text{{{m[1]}}}", text.replace(r"\_", "_"))


def stages(lowered: Lowered, links: Links) -> str:
    """Each stage that differs from the one before it, with what changed marked."""
    parts = []
    before: list[str] = []
    for name, program in lowered.stages.items():
        lines = show(program).splitlines()
        told = f"<p class='note'>{_STAGES[name]}</p>" if name in _STAGES else ""
        if lines != before:
            owners = ["", *(s.output for s in program.statements), ""]
            changed = _compared(before, lines) if before else [("", escape(line)) for line in lines]
            body = "".join(_stage_line(mark, text, owners, links) for mark, text in changed)
            parts.append(f"<h4>{escape(name)}</h4>{told}<pre>{body}</pre>")
        else:
            parts.append(f"<h4>{escape(name)} <small>nothing to do</small></h4>")
        before = lines
    return "".join(parts)


def _stage_line(mark: str, text: str, owners: list[str], links: Links) -> str:
    """A line of a stage's text; those that are there take the next statement's link."""
    owner = "" if mark == "del" else owners.pop(0)
    linked = f' data-s="{links.key(owner)}"' if links.key(owner) else ""
    return f"<span class='line {mark}'{linked}>{text}</span>"


def _compared(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """Lines as ("del", "ins" or "", HTML); of lines that stand for each other the words that differ are marked."""
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (("", escape(line)) for line in new[c:d])
            continue
        gone, come = old[a:b], new[c:d]
        partner = {_head(line): line for line in gone}
        words = [_words(partner[_head(line)], line) if _head(line) in partner else None for line in come]
        kept = {_head(line): w[0] for line, w in zip(come, words, strict=True) if w is not None}
        yield from (("del", kept.get(_head(line), escape(line))) for line in gone)
        yield from (("ins", escape(line) if w is None else w[1]) for line, w in zip(come, words, strict=True))


def _head(line: str) -> str:
    """What a line defines: an output's name."""
    found = re.match(r"\s*(?:\[\[.*?\]\] )*([\w.']+)", line)
    return found[1] if found else line


def _words(old: str, new: str) -> tuple[str, str]:
    """Both lines with the words that differ marked, unless most do."""
    a, b = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (old, new))
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return escape(old), escape(new)
    left: list[str] = []
    right: list[str] = []
    for tag, i, j, k, n in matcher.get_opcodes():
        for part, side in ((a[i:j], left), (b[k:n], right)):
            text = escape("".join(part))
            side.append(text if tag == "equal" or not text.strip() else f"<mark>{text}</mark>")
    return "".join(left), "".join(right)


def roles_section(lowered: Lowered, links: Links) -> str:
    """For each statement of the flat stage the index variables, what a tile reads, the residue classes."""
    program = lowered.stages["flat"]
    shapes = shapes_of(program)
    defracted = {s.output: s for s in lowered.stages.get("defracted", program).statements}
    parts = []
    for s in program.statements:
        key = links.key(s.output)
        text = escape(show_statement(s))
        head = f'<pre id="{key}" class="statement" data-s="{key}" tabindex="0">{text}</pre>'
        split = residue_section(defracted[s.output], shapes) if s.output in defracted else ""
        parts.append(f"<div>{head}{_variables(s, shapes)}{_reach(s, shapes)}{split}</div>")
    return "".join(parts)


def _variables(s: Statement, shapes: dict[str, tuple[int, ...]]) -> str:
    if s.index is None:
        return "<p>element by element</p>"
    box = bounds(s, shapes) or {}
    left = set(index_variables(*s.index))
    rows = [_variable(v, box.get(v), left, s) for v in dict.fromkeys((*box, *left))]
    if not rows:
        return ""
    head = "<tr><th>index</th><th>range</th><th>role</th><th>used by</th></tr>"
    return f'<table class="roles">{head}{"".join(rows)}</table>'


def _variable(v: str, span: tuple[int, int] | None, left: set[str], s: Statement) -> str:
    reads = dict.fromkeys(f"<code>{escape(a.tensor)}</code>" for a in accesses_in(s.body) if _uses(a, v))
    text = f"{span[0]}..{span[1]}" if span else "none"
    return f"<tr><td><code>{v}</code></td><td>{text}</td><td>{_role(v, left, s)}</td><td>{', '.join(reads)}</td></tr>"


def _uses(a, v: str) -> bool:
    return v in index_variables(*a.index)


def _role(v: str, left: set[str], s: Statement) -> str:
    if v not in left:
        return f"reduction: {_verb(s.aggregation)} over"
    if reads_itself(s) and any(_steps_along(a, s, v) for a in accesses_in(s.body) if a.tensor == s.output):
        return "sequential: reads its own earlier elements"
    bare = any(isinstance(i, Index) and i.name == v for i in s.index or ())
    return "parallel: indexes the output" if bare else "part of an output index"


def _steps_along(a, s: Statement, v: str) -> bool:
    """Is the output read at another place along the dimensions of v?"""
    return any(e != own and v in index_variables(own) for e, own in zip(a.index, s.index or (), strict=True))


def _verb(aggregation: str) -> str:
    return {"sum": "summed", "assign": "assigned", "prod": "multiplied"}.get(aggregation, f"{aggregation} taken")


def _reach(s: Statement, shapes: dict[str, tuple[int, ...]]) -> str:
    if s.index is not None and any(accesses_in(*s.index)):
        return f"<p>Which elements of <code>{escape(s.output)}</code> are written depends on data.</p>"
    if same := _same_places(s):
        return f"<p class='note'>Each element reads the element at the same place of {same}.</p>"
    found = reached_points(s, shapes)
    if found is None or not (found.inputs or found.by_data):
        return ""
    figures = [drawn(found.tile, WRITTEN), "<span class='from'>reads</span>", *map(drawn, found.inputs)]
    told = "".join(
        f"<p>Which elements of <code>{escape(t)}</code> are read depends on data: "
        f"<code>{escape(show_expr(a))}</code>.</p>"
        for t, a in found.by_data.items()
    )
    return f'<div class="reach">{"".join(figures)}</div>{told}'


def _same_places(s: Statement) -> str:
    """The tensors that are read at the output's own index, where nothing is read elsewhere; else ""."""
    accesses = list(accesses_in(s.body))
    bare = [i.name for i in s.index or () if isinstance(i, Index)]
    if not bare or len(set(bare)) < len(s.index or ()) or any(a.index != s.index for a in accesses):
        return ""
    return ", ".join(f"<code>{escape(t)}</code>" for t in dict.fromkeys(a.tensor for a in accesses))


def generated(lowered: Lowered, links: Links) -> str:
    """The generated code: kernel by kernel with its statements and its block program, then what launches them."""
    parts = []
    for number, kernel in enumerate(links.kernels):
        heading = f"<h4>{escape(kernel.name)} <small>kernel {number + 1} of {len(links.kernels)}</small></h4>"
        text = _code(kernel.lines, links, "generated text")
        block = _code(kernel.block, links, "block program") if kernel.block else ""
        two = " two" if block else ""
        parts.append(f"{heading}{_statements(kernel.statements, links)}<div class='code{two}'>{block}{text}</div>")
    title = "the function that launches them" if links.kernels else "the generated program"
    host = _code(links.host, links, title)
    if not links.kernels:
        host = _statements(links.names, links) + host
    return "".join(parts) + f"<div class='code'>{host}</div>"


def _statements(outputs: Sequence[str], links: Links) -> str:
    """The Tile statements that a kernel carries out, linked."""
    lines = []
    for output in outputs:
        key, text = links.key(output), links.text(output)
        tag, target = ("a", f" href='#{key}'") if output in links.names else ("span", "")
        if text:
            lines.append(f"<{tag}{target} class='line' data-s='{key}'>{escape(text)}</{tag}>")
    return f"<pre class='carried'>{''.join(lines)}</pre>" if lines else ""


def _code(lines: Sequence[tuple[str, tuple[str, ...]]], links: Links, title: str) -> str:
    body = "".join(
        f"<span class='line'{_attribute(links.keys(owners))}>{escape(text) or ' '}</span>" for text, owners in lines
    )
    return f"<div><small>{title}</small><pre>{body}</pre></div>"


def _attribute(keys: str) -> str:
    return f" data-s='{keys}'" if keys else ""
