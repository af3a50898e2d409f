"""The pages of the gallery, written when the site is built: `python docs/make_gallery.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tilec import gallery
from tilec.explain.drawing import WRITTEN, drawn
from tilec.explain.reach import reached_points
from tilec.lattice.sets import shapes_of


def write(folder: Path) -> None:
    """`gallery.md` with a page of each kind beside it, in `gallery/`."""
    entries = [gallery.entry(name) for name in gallery.names()]
    kinds = sorted({e.kind for e in entries})
    (folder / "gallery").mkdir(parents=True, exist_ok=True)
    rows = []
    for kind in kinds:
        members = [e for e in entries if e.kind == kind]
        text = f"# {kind.capitalize()}\n\n" + "\n".join(map(section, members))
        put(folder / "gallery" / f"{kind}.md", text)
        names = ", ".join(f"[{e.name}](gallery/{kind}.md#{e.name.replace('_', '-')})" for e in members)
        rows.append(f"| [{kind}](gallery/{kind}.md) | {names} |")
    pages = "\n".join(f"gallery/{kind}" for kind in kinds)
    put(
        folder / "gallery.md",
        f"# Gallery\n\n{len(entries)} operations to start from. `tilec gallery NAME` prints one, "
        '`tilec.gallery.load("NAME")` compiles it.\nEach is checked, values and gradients, against PyTorch.\n\n'
        "| kind | operations |\n| --- | --- |\n" + "\n".join(rows) + f"\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n",
    )


def section(e: gallery.Entry) -> str:
    """One operation: its text, what an element reads, the gradient."""
    parts = [f"## {e.name.replace('_', ' ')}\n\n{e.title} {e.remarks}\n", f"```tile\n{e.source}```\n"]
    if e.workload:
        parts.append(f"Measured as *{e.workload}* in [workloads](../workloads.md).\n")
    if picture := drawing(e):
        parts.append(f"```{{raw}} html\n{picture}\n```\n")
    if any(isinstance(t, torch.Tensor) and t.is_floating_point() for t in e.example()):
        gradient = str(gallery.load(e.name).grad()).strip()
        parts.append(f"<details><summary>The gradient</summary>\n\n```tile\n{gradient}\n```\n\n</details>\n")
    return "\n".join(parts)


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
    write(Path(sys.argv[1]))
