"""What the programs of a launch read and write, where Triton's interpreter runs them.

Nothing outside of the tensors that they are given. And they may run in any order: no element is written by two of them,
and none is read that another one writes; programs that wait for each other, by atomic operations, are not asked that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

OWN = {name: getattr(InterpreterBuilder, name) for name in ("create_masked_load", "create_masked_store")}
OWN_ATOMICS = {name: getattr(InterpreterBuilder, name) for name in ("create_atomic_rmw", "create_atomic_cas")}
OWN_CALL = GridExecutor.__call__


class Touched:
    """Addresses, each with the number of a program, of one launch."""

    def __init__(self) -> None:
        self.read: list[np.ndarray] = []
        self.written: list[np.ndarray] = []
        self.waits = False

    def add(self, places: list[np.ndarray], pointers: Any, mask: Any) -> None:
        x, y, z = interpreter.interpreter_builder.grid_idx
        _, ny, nz = interpreter.interpreter_builder.grid_dim
        found = np.unique(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)])
        places.append(np.stack([found, np.full_like(found, (x * ny + y) * nz + z)]))

    def outside(self, tensors: list[torch.Tensor]) -> str | None:
        """What is touched of no tensor, if anything is. What lies in 16 bytes with a tensor's element may be read."""
        memory = sorted((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors)
        for what, places, together in (("read", self.read, 16), ("written", self.written, 1)):
            ends = [(p // together * together, -(-(p + n) // together) * together) for p, n in memory]
            first, end = np.array(ends or [(0, 0)], np.uint64).T
            for at, _ in places:
                k = np.maximum(np.searchsorted(first, at, side="right"), 1) - 1
                if ((at < first[k]) | (at >= end[k])).any():
                    return f"what is no tensor's is {what}"
        return None

    def race(self) -> str | None:
        """What depends on the order of programs, if anything does."""
        if self.waits or not sum(w.size for w in self.written):
            return None
        written = np.unique(np.concatenate(self.written, axis=1), axis=1)
        if len(np.unique(written[0])) < written.shape[1]:
            return "an element is written by two programs"
        if not sum(r.size for r in self.read):
            return None
        read = np.concatenate(self.read, axis=1)
        at = np.minimum(np.searchsorted(written[0], read[0]), written.shape[1] - 1)
        meets = (written[0][at] == read[0]) & (written[1][at] != read[1])
        return "an element is read that another program writes" if meets.any() else None


touched = Touched()


def _load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
    touched.add(touched.read, pointers, mask)
    return OWN["create_masked_load"](self, pointers, mask, *rest)


def _store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    touched.add(touched.written, pointers, mask)
    return OWN["create_masked_store"](self, pointers, value, mask, *rest)


def _atomic(name: str) -> Any:
    def call(self: Any, *arguments: Any) -> Any:
        touched.waits = True
        return OWN_ATOMICS[name](self, *arguments)

    return call


def _call(self: GridExecutor, *arguments: Any, **options: Any) -> None:
    global touched
    touched = Touched()
    OWN_CALL(self, *arguments, **options)
    given = [*arguments, *options.values()]
    found = (
        touched.outside([t for x in given if isinstance(t := getattr(x, "base", x), torch.Tensor)]) or touched.race()
    )
    assert found is None, f"{self.fn.__name__}: {found}"


def look_for_races() -> None:
    InterpreterBuilder.create_masked_load = _load  # type: ignore[method-assign]
    InterpreterBuilder.create_masked_store = _store  # type: ignore[method-assign]
    for name in OWN_ATOMICS:
        setattr(InterpreterBuilder, name, _atomic(name))
    GridExecutor.__call__ = _call  # type: ignore[method-assign]
