"""Tensors as grids of elements, some of them marked, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from tilec.explain.reach import Reached

CELL, _MOST = 11, 24  # pixels of an element; elements shown along a dimension
_LEFT, _TOP = 22, 12  # pixels for the numbers of the first and last row and column
READ, WRITTEN = "#3b7dd8", "#d8733b"
Marked = tuple[np.ndarray, str]  # positions and their color


@dataclass(frozen=True)
class _Window:
    """What is shown of a tensor along one dimension (None: it has none)."""

    dimension: int | None
    first: int
    count: int
    size: int

    def of(self, positions: np.ndarray) -> np.ndarray:
        return np.zeros(len(positions), int) if self.dimension is None else positions[:, self.dimension] - self.first


def drawn(reached: Reached, color: str = READ) -> str:
    """Two dimensions as a grid, shaded by how many marked elements lie behind one another; others in words."""
    return grid(reached, [(reached.positions, color)], f"{_elements(reached)} at {_spans(reached)}")


def grid(reached: Reached, layers: Sequence[Marked], words: str, first: Sequence[int] = ()) -> str:
    """The dimensions along which the elements of `reached` spread, those of `first` before others, with the marks of
    every layer; the caption says which dimensions these are, then `words`."""
    rows, cols = _windows(reached, first)
    cells = "".join(_cells(reached, rows, cols, positions, color) for positions, color in layers)
    width, height = cols.count * CELL, rows.count * CELL
    lines = "".join(f"M{c * CELL} 0v{height}" for c in range(cols.count + 1))
    lines += "".join(f"M0 {r * CELL}h{width}" for r in range(rows.count + 1))
    ticks = _ticks(cols, [f'x="{{}}" y="-3" text-anchor="{a}"' for a in ("middle", "middle")])
    ticks += _ticks(rows, ['x="-3" y="{}" dy="3" text-anchor="end"'] * 2)
    box = f"{-_LEFT} {-_TOP} {width + _LEFT + 9} {height + _TOP + 2}"
    svg = (
        f'<svg width="{width + _LEFT + 9}" height="{height + _TOP + 2}" viewBox="{box}" role="img" '
        f'aria-label="{escape(reached.tensor)}">{cells}<path class="lines" d="{lines}"/>{ticks}</svg>'
    )
    return f"<figure>{svg}<figcaption>{_caption(reached, rows, cols, words)}</figcaption></figure>"


def _ticks(window: _Window, places: Sequence[str]) -> str:
    """The numbers of the first and the last element that are shown."""
    if window.dimension is None or not window.count:
        return ""
    ends = {0: places[0], window.count - 1: places[1]}
    return "".join(
        f'<text class="tick" {place.format(at * CELL + CELL // 2)}>{window.first + at}</text>'
        for at, place in ends.items()
    )


def _cells(reached: Reached, rows: _Window, cols: _Window, positions: np.ndarray, color: str) -> str:
    """Marked elements; equal neighbours of a row are one rectangle."""
    behind = np.zeros((rows.count, cols.count), int)
    r, c = rows.of(positions), cols.of(positions)
    near = (r >= 0) & (r < rows.count) & (c >= 0) & (c < cols.count)
    np.add.at(behind, (r[near], c[near]), 1)
    most, found = max(1, int(behind.max(initial=0))), []
    for row, values in enumerate(behind):
        first = 0
        for end in range(1, len(values) + 1):
            if end < len(values) and values[end] == values[first]:
                continue
            if values[first]:
                place = f'x="{first * CELL}" y="{row * CELL}" width="{(end - first) * CELL}" height="{CELL}"'
                shade = f'fill="{color}" fill-opacity="{0.3 + 0.7 * values[first] / most:.2f}"'
                title = _title(reached, [(rows, row, row), (cols, first, end - 1)], int(values[first]))
                found.append(f"<rect {place} {shade}><title>{title}</title></rect>")
            first = end
    return "".join(found)


def _title(reached: Reached, places: Sequence[tuple[_Window, int, int]], count: int) -> str:
    here = [":"] * len(reached.shape)
    for window, first, last in places:
        if window.dimension is not None:
            here[window.dimension] = _span(window.first + first, window.first + last)
    each = "" if first == last else " each"
    return f"[{', '.join(here)}]: {count} element{'s' * (count != 1)}{each}"


def _windows(reached: Reached, first: Sequence[int]) -> tuple[_Window, _Window]:
    """Rows and columns: the wanted dimensions, those of which a part is marked, then the last ones."""
    shape = reached.shape

    def telling(d: int) -> tuple[bool, bool, bool, int]:
        marked = len(np.unique(reached.positions[:, d]))
        return (d in first, shape[d] > 1, 1 < marked < shape[d], d)

    *row_at, col_at = sorted(sorted(range(len(shape)), key=telling, reverse=True)[:2])
    rows = _window(reached, row_at[0]) if row_at else _Window(None, 0, 1, 1)
    return rows, _window(reached, col_at)


def _window(reached: Reached, d: int) -> _Window:
    """First element and number of elements to show, the marked ones among them."""
    at, size = reached.positions[:, d], reached.shape[d]
    if size <= _MOST or not len(at):
        return _Window(d, 0, min(size, _MOST), size)
    middle = (int(at.min()) + int(at.max())) // 2
    return _Window(d, int(np.clip(middle - _MOST // 2, 0, size - _MOST)), _MOST, size)


def _caption(reached: Reached, rows: _Window, cols: _Window, words: str) -> str:
    lines = [f"<b>{escape(reached.tensor)}</b>[{', '.join(map(str, reached.shape))}]"]
    for arrow, window in (("↓", rows), ("→", cols)):
        if window.dimension is not None:
            part = "" if window.count == window.size else f" ({window.count} of {window.size} drawn)"
            lines.append(f"{arrow} <code>{escape(reached.names[window.dimension])}</code>{part}")
    return "<br>".join([*lines, escape(words)])


def _elements(reached: Reached) -> str:
    count = len(reached.positions)
    return f"{count:,} element{'s' * (count != 1)}" + (" and more" if reached.cut else "")


def _spans(reached: Reached) -> str:
    """`[0, 3..5]`: first and last along each dimension."""
    if not len(reached.positions):
        return "no place"
    ends = zip(reached.positions.min(0).tolist(), reached.positions.max(0).tolist(), strict=True)
    return f"[{', '.join(_span(low, high) for low, high in ends)}]"


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}..{high}"
