"""What torch's autograd graph holds on to."""

from __future__ import annotations

from collections.abc import Callable

import torch


def kept_bytes(call: Callable[[], object]) -> int:
    """Bytes that a call saves for its backward pass, measured by torch's hooks; memory seen twice counts once."""
    found: dict[int, int] = {}

    def note(t: torch.Tensor) -> torch.Tensor:
        found[t.data_ptr()] = t.nbytes
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = call()
    del result
    return sum(found.values())
