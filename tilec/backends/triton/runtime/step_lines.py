"""Steps that torch carries out as lines of Python: what a program prints is what runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilec.backends.common.code import tuple_text
from tilec.backends.triton.plan.plan import Allocate, Release, Step, Table


def torch_lines_of(step: Step, name: Callable[[str], str]) -> list[str]:
    """The lines of a step that allocates, fills or releases tensors; `name`: what these are called."""
    match step:
        case Allocate(tensor, shape, dtype, None):
            return [f"{name(tensor)} = torch.empty({tuple_text(shape)}, {_kind(dtype)})"]
        case Allocate(tensor, shape, dtype, str(source)):
            copy = f"{name(source)}.to(torch.{dtype}, copy=True, memory_format=torch.contiguous_format)"
            return [f"{name(tensor)} = {copy}.expand({tuple_text(shape)}).contiguous()"]
        case Allocate(tensor, shape, dtype, fill):
            text = f"float('{fill}')" if isinstance(fill, float) and not math.isfinite(fill) else repr(fill)
            return [f"{name(tensor)} = torch.full({tuple_text(shape)}, {text}, {_kind(dtype)})"]
        case Table(tensor, rows):
            return [f"{name(tensor)} = torch.tensor({list(map(list, rows))}, {_kind('int32')})"]
        case Release(tensors):
            return released(list(map(name, tensors)))
    raise AssertionError(f"no step of torch's: {step!r}")


def released(names: Sequence[str]) -> list[str]:
    return [f"del {', '.join(names)}"] if names else []


def _kind(dtype: str) -> str:
    return f"dtype=torch.{dtype}, device=device"
