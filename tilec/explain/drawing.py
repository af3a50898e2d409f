"""Tensors as grids of elements, some of them marked, as SVG."""

from __future__ import annotations

from html import escape

import numpy as np

from tilec.explain.reach import Reached

CELL, _MOST = 13, 24  # pixels of an element; elements shown along a dimension
READ, WRITTEN = "#3b7dd8", "#d8733b"


def drawn(reached: Reached, color: str = READ) -> str:
    """Two dimensions as a grid, shaded by how many marked elements lie behind one another; others in words."""
    shape, positions = reached.shape, reached.positions
    *row_at, col_at = _shown(reached)
    rows = positions[:, row_at[0]] if row_at else np.zeros(len(positions), int)
    cols = positions[:, col_at]
    first_row, shown_rows = _window(rows, shape[row_at[0]] if row_at else 1)
    first_col, shown_cols = _window(cols, shape[col_at])
    behind = np.zeros((shown_rows, shown_cols), int)
    near = (rows >= first_row) & (rows < first_row + shown_rows) & (cols >= first_col) & (cols < first_col + shown_cols)
    np.add.at(behind, (rows[near] - first_row, cols[near] - first_col), 1)
    names = ["..."] * len(shape)
    return _figure(reached, behind, [(row_at[0], first_row)] if row_at else [], (col_at, first_col), names, color)


def _shown(reached: Reached) -> list[int]:
    """The dimensions to show, at most two: those of which a part is marked, then the last ones."""
    shape = reached.shape

    def telling(d: int) -> tuple[bool, bool, int]:
        marked = len(np.unique(reached.positions[:, d]))
        return (shape[d] > 1, 1 < marked < shape[d], d)

    return sorted(sorted(range(len(shape)), key=telling, reverse=True)[:2])


def _window(at: np.ndarray, size: int) -> tuple[int, int]:
    """First element and number of elements to show, the marked ones among them."""
    if size <= _MOST or not len(at):
        return 0, min(size, _MOST)
    middle = (int(at.min()) + int(at.max())) // 2
    return int(np.clip(middle - _MOST // 2, 0, size - _MOST)), _MOST


def _figure(
    reached: Reached, behind: np.ndarray, row: list[tuple[int, int]], col: tuple[int, int], names: list[str], color: str
) -> str:
    rows, cols = behind.shape
    most = max(1, int(behind.max()))

    def cell(r: int, c: int) -> str:
        place = f'x="{c * CELL}" y="{r * CELL}" width="{CELL}" height="{CELL}" class="cell"'
        shade = (
            f'fill="{color}" fill-opacity="{0.3 + 0.7 * behind[r, c] / most:.2f}"' if behind[r, c] else 'fill="none"'
        )
        here = list(names)
        for (d, first), at in zip([*row, col], [r, c] if row else [c], strict=True):
            here[d] = str(first + at)
        return f"<rect {place} {shade}><title>[{', '.join(here)}]: {behind[r, c]}</title></rect>"

    cells = "".join(cell(r, c) for r in range(rows) for c in range(cols))
    size = f'width="{cols * CELL + 2}" height="{rows * CELL + 2}" viewBox="-1 -1 {cols * CELL + 2} {rows * CELL + 2}"'
    svg = f'<svg {size} role="img" aria-label="{escape(reached.tensor)}">{cells}</svg>'
    return f"<figure>{svg}<figcaption>{escape(caption(reached))}</figcaption></figure>"


def caption(reached: Reached) -> str:
    """`I[2, 8, 8, 4]: 36 elements, n 0, c 0 to 3`."""
    count = len(reached.positions)
    text = f"{reached.tensor}[{', '.join(map(str, reached.shape))}]: {count} element{'s' * (count != 1)}"
    spans = []
    for d in range(len(reached.shape)):
        if count:
            low, high = int(reached.positions[:, d].min()), int(reached.positions[:, d].max())
            spans.append(f"{low}" if low == high else f"{low}..{high}")
    return text + (f" of [{', '.join(spans)}]" if spans else "") + (" and more" if reached.cut else "")
