"""Is what the fast way computes sure to be right? Asked of the device, where it may be asked."""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor


def askable(t: Tensor) -> bool:
    """Whether a value may be read back to decide what runs next: not while a CUDA graph is captured, nor where
    `torch.cuda.set_sync_debug_mode("error")` forbids it. What is not sure is computed exactly there."""
    if t.device.type != "cuda":
        return True
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() != FORBIDDEN


FORBIDDEN = 2  # torch's number for "error"


def finite(*tensors: Tensor) -> bool:
    """Whether all elements are; may say no wrongly where a sum overflows or the device may not be asked, which only
    costs time."""
    for t in tensors:
        if t.is_floating_point():
            if not askable(t):
                return False
            total = t.sum(dtype=torch.float32) if t.element_size() < 4 else t.sum()
            if not math.isfinite(float(total)):
                return False
    return True


def below_infinity(*tensors: Tensor) -> bool:
    """Whether all elements are below +inf and no NaN; may say no wrongly where the device may not be asked."""
    return all(t.numel() == 0 or askable(t) and bool(t.amax() < float("inf")) for t in tensors)
