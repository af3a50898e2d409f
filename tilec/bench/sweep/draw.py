"""Figures of a sweep, from their JSON: a panel for time and one for memory for each line, candidates as curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")


def draw(path: Path) -> Path:
    """Draw one figure beside its JSON as SVG. Raises ImportError where matplotlib is missing."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tilec"  # so that the same figures give the same file
    from matplotlib import pyplot

    content = json.loads(path.read_text())
    lines = list(dict.fromkeys(p["line"] for p in content["points"]))
    panels = [(line, kind) for line in lines for kind in ("us", "bytes") if kind == "us" or _any(content, line)]
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(4 * columns, 3.2 * rows), squeeze=False)
    names = list(dict.fromkeys(n for p in content["points"] for n in p.get("us", {})))
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        line, kind = panels[place]
        for name, colour in zip(names, COLOURS, strict=False):
            _curve(axes, [p for p in content["points"] if p["line"] == line], kind, name, colour)
        axes.set(xscale="log", yscale="log", title=line, ylabel={"us": "microseconds", "bytes": "peak bytes"}[kind])
        places = sorted({p["x"] for p in content["points"] if p["line"] == line})
        axes.set_xticks(places, [str(x) for x in places])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.grid(True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    machine = content["points"][0].get("machine", "")
    figure.suptitle(f"{content['figure']} ({machine}); crosses: errors beyond what is allowed", fontsize=9)
    figure.tight_layout()
    target = path.with_suffix(".svg")
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)
    return target


def _any(content: dict[str, Any], line: str) -> bool:
    return any(any(p.get("bytes", {}).values()) for p in content["points"] if p["line"] == line)


def _curve(axes: Any, points: list[dict[str, Any]], kind: str, name: str, colour: str) -> None:
    """One candidate; where its error is more than allowed its marks are crosses."""
    there = sorted((p["x"], p[kind][name], p["error"][name]) for p in points if p.get(kind, {}).get(name))
    if not there:
        return
    axes.plot([x for x, _, _ in there], [y for _, y, _ in there], color=colour, label=name)
    for right, mark in ((True, "o"), (False, "x")):
        some = [(x, y) for x, y, error in there if (error <= 1) == right]
        axes.scatter([x for x, _ in some], [y for _, y in some], color=colour, marker=mark, s=18)
