"""The pages of the gallery, written when the site is built: `python docs/make_gallery.py FOLDER`.

`python docs/make_gallery.py --index` rewrites the index that is kept in the tree, `tilec/gallery/README.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from html import escape
from pathlib import Path

import torch

import tilec
from tilec import gallery
from tilec.bench.suite.catalog import WORKLOADS
from tilec.bench.suite.workload import SIZES
from tilec.cost import H200
from tilec.display.html import bytes_text
from tilec.errors import TileError
from tilec.explain.costs import time_text
from tilec.explain.drawing import WRITTEN, drawn
from tilec.explain.reach import reached_points
from tilec.explain.sections import formulas
from tilec.gallery.samples import sample_spec
from tilec.lattice.sets import shapes_of
from tilec.lowered import Lowered

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "tilec" / "gallery" / "README.md"
TARGET = "sm_90"


def write(folder: Path, detailed: Collection[str] | None = None) -> None:
    """`gallery.md` with a page of each kind beside it, in `gallery/`. `detailed`: the operations with all
    that takes a third of a second each; all of them by default."""
    (folder / "gallery").mkdir(parents=True, exist_ok=True)
    rows = []
    measured = (ROOT / "docs" / "workloads.md").read_text().splitlines()
    for kind, members in by_kind().items():
        sections = (section(e, measured, detailed is None or e.name in detailed) for e in members)
        put(folder / "gallery" / f"{kind}.md", f"# {kind.capitalize()}\n\n" + "\n".join(sections))
        names = ", ".join(f"[{e.name}](gallery/{kind}.md#{e.name.replace('_', '-')})" for e in members)
        rows.append(f"| [{kind}](gallery/{kind}.md) | {names} |")
    pages = "\n".join(f"gallery/{kind}" for kind in by_kind())
    put(
        folder / "gallery.md",
        f"# Gallery\n\n{INTRODUCTION.format(count=len(gallery.names()))}\n\n| kind | operations |\n| --- | --- |\n"
        + "\n".join(rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n",
    )


INTRODUCTION = (
    "{count} operations to start from, each checked against PyTorch, values and gradients.\n"
    '`tilec gallery NAME` prints one, `tilec.gallery.load("NAME")` compiles it, `tilec gallery --find WORD` searches.'
)


def index() -> str:
    """The page of the gallery in the tree, for those who read it without the site."""
    parts = [f"# Gallery\n\n{INTRODUCTION.format(count=len(gallery.names()))}"]
    parts.append("Each is a file of a few lines. `python -m sphinx docs site` builds pages with pictures and figures.")
    for kind, members in by_kind().items():
        rows = "\n".join(f"| [{e.name}]({kind}/{e.name}.tile) | {cell(f'{e.title} {e.remarks}')} |" for e in members)
        parts.append(f"## {kind.capitalize()}\n\n| operation | what it is |\n| --- | --- |\n{rows}")
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def by_kind() -> dict[str, list[gallery.Entry]]:
    entries = [gallery.entry(name) for name in gallery.names()]
    return {kind: [e for e in entries if e.kind == kind] for kind in sorted({e.kind for e in entries})}


def section(e: gallery.Entry, measured: list[str], detailed: bool) -> str:
    """One operation: its text, in detail formulas, a picture, the gradient, kernels and figures; measurements."""
    parts = [f"## {e.name.replace('_', ' ')}\n\n{e.title} {e.remarks}\n", f"```tile\n{e.source}```\n"]
    parts += measurements(e, measured)
    if detailed:
        parts += details(e)
    return "\n".join(parts)


def details(e: gallery.Entry) -> Iterator[str]:
    """What takes time: formulas, what a tile reads, the gradient, kernels and their cost."""
    function = gallery.load(e.name)
    yield raw(f"<details><summary>In mathematical notation</summary>{formulas(function.program)}</details>")
    if picture := drawing(e):
        yield raw(picture)
    differentiable = any(isinstance(t, torch.Tensor) and t.is_floating_point() for t in e.example())
    if differentiable:
        gradient = str(function.grad()).strip()
        yield f"<details><summary>The gradient</summary>\n\n```tile\n{gradient}\n```\n\n</details>\n"
    yield from figures(e, differentiable)


def raw(html: str) -> str:
    return f"```{{raw}} html\n{html}\n```\n"


def figures(e: gallery.Entry, differentiable: bool) -> Iterator[str]:
    """What forward and gradient cost on an H200 by the model, at the measured sizes where the operation is measured,
    at the example's elsewhere; their kernels."""
    if e.workload:
        w = WORKLOADS[e.workload]
        sizes = {name: values[SIZES.index("large")] for name, values in w.sizes.items()}
        function = tilec.compile(w.source)
        given = [*(sample_spec(text, sizes, w.dtype) for text in w.inputs), *w.numbers]
    else:
        sizes, function = e.sizes, gallery.load(e.name)
        given = [sample_spec(text, sizes, "float32") for text in e.inputs]
    rows, texts = [], []
    forward = function.lower(*given, backend="triton", target=TARGET)
    passes = [("forward", forward)]
    if differentiable:
        cotangents = [tilec.spec(t.shape, t.dtype) for t in forward.outputs]
        try:
            passes.append(("gradient", function.grad().lower(*given, *cotangents, backend="triton", target=TARGET)))
        except TileError:
            pass  # sizes that memory does not hold
    for name, lowered in passes:
        rows.append(figure_row(name, lowered))
        code = "".join(f"<pre>{escape(k.source.strip())}</pre>" for k in lowered.kernels)
        names = ", ".join(dict.fromkeys(k.name for k in lowered.kernels))
        texts.append(f"<details><summary>Kernels, {name}: {escape(names)}</summary>{code}</details>")
    at = ", ".join(f"{name} {n:,}" for name, n in sizes.items())
    head = "| pass | kernels | operations | bytes moved | least bytes | intermediates | least time |"
    yield f"At {at}, by the model of an H200 ({H200.memory / 1e12:.0f} TB/s):\n"
    yield "\n".join([head, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |", *rows]) + "\n"
    yield raw("".join(texts))


def figure_row(name: str, lowered: Lowered) -> str:
    c = lowered.cost()
    dtype = next((t.dtype for t in lowered.inputs.values() if t.dtype in H200.operations), "float32")
    temporary = lowered.temporary_bytes
    held = "" if temporary is None else bytes_text(temporary)
    cells = [name, str(len(lowered.kernels)), f"{c.flops:.3g}", bytes_text(c.bytes_moved), bytes_text(c.least_bytes)]
    return f"| {' | '.join([*cells, held, time_text(H200.seconds(c.flops, c.least_bytes, dtype))])} |"


def measurements(e: gallery.Entry, measured: list[str]) -> Iterator[str]:
    """Rows of docs/workloads.md about it."""
    if not e.workload:
        return
    rows = [line for d in ("forward", "backward") for line in measured if line.startswith(f"| {e.workload}, {d} |")]
    if rows:
        head = "| measured on an H200 | type | best peer | µs | tilec, µs | ratio | of floor |"
        yield "\n".join([head, "| --- | --- | --- | ---: | ---: | ---: | ---: |", *rows]) + "\n"
        yield "From [workloads](../workloads.md), which says how it is measured.\n"


def drawing(e: gallery.Entry) -> str:
    """What a tile of the last output reads, in the example's sizes."""
    program = gallery.load(e.name).lower(*e.example()).stages["flat"]
    statements = [s for s in program.statements if s.output in program.outputs]
    found = reached_points(statements[-1], shapes_of(program)) if statements else None
    if found is None or not found.inputs:
        return ""
    figures = [drawn(found.tile, WRITTEN), *map(drawn, found.inputs)]
    return f'<div class="reach">{"".join(figures)}</div>'


def put(path: Path, text: str) -> None:
    """Write a file that has changed; Sphinx reads those again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    if sys.argv[1] == "--index":
        INDEX.write_text(index())
    else:
        write(Path(sys.argv[1]))
