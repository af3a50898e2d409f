"""What the text of a call allocates, tensors that share a workspace among them."""

from __future__ import annotations

import re

from tilec.lowered import Lowered

_ALONE = re.compile(r"^ +(\w+) = torch\.empty\(\(([^)]*)\), dtype=torch\.(\w+)", re.M)
_IN_WORKSPACE = re.compile(r"^ +(\w+) = (\w+)_at\d*\(\d+\)  # \(([^)]*)\)", re.M)


def allocated(made: Lowered | str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and element type of each tensor by its name."""
    text = made if isinstance(made, str) else made.source()
    found = {m[1]: (m[2], m[3]) for m in _ALONE.finditer(text)} | {
        m[1]: (m[3], m[2]) for m in _IN_WORKSPACE.finditer(text)
    }
    return {
        name: (tuple(int(n) for n in shape.split(",") if n.strip()), dtype) for name, (shape, dtype) in found.items()
    }


def shapes(made: Lowered | str) -> list[tuple[int, ...]]:
    return [shape for shape, _ in allocated(made).values()]
