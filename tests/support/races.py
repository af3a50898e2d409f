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
    """Addresses of one launch, each array of them with the number of the program that touches them."""

    def __init__(self) -> None:
        self.read: list[tuple[np.ndarray, int]] = []
        self.written: list[tuple[np.ndarray, int]] = []
        self.waits = False

    def add(self, places: list[tuple[np.ndarray, int]], pointers: Any, mask: Any) -> None:
        x, y, z = interpreter.interpreter_builder.grid_idx
        _, ny, nz = interpreter.interpreter_builder.grid_dim
        inside = mask.data
        found = (
            pointers.data[np.broadcast_to(inside, pointers.data.shape)] if not inside.all() else pointers.data.ravel()
        )
        if found.size:
            places.append((found, (x * ny + y) * nz + z))

    def outside(self, tensors: list[torch.Tensor]) -> str | None:
        """What is touched of no tensor, if anything is. What lies in 16 bytes with a tensor's element may be read."""
        memory = sorted((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors)
        for what, places, together in (("read", self.read, 16), ("written", self.written, 1)):
            ends = [(p // together * together, -(-(p + n) // together) * together) for p, n in memory]
            first, end = np.array(ends or [(0, 0)], np.uint64).T
            for at, _ in places:
                ends_of = np.array((at.min(), at.max()))  # mostly in one tensor, and so all between them
                near = np.searchsorted(first, ends_of, side="right") - 1
                if near[0] == near[1] >= 0 and ends_of[1] < end[near[0]]:
                    continue
                k = np.maximum(np.searchsorted(first, at, side="right"), 1) - 1
                if ((at < first[k]) | (at >= end[k])).any():
                    return f"what is no tensor's is {what}"
        return None

    def race(self) -> str | None:
        """What depends on the order of programs, if anything does."""
        if self.waits or not self.written:
            return None
        start, end = min(int(at.min()) for at, _ in self.written), max(int(at.max()) for at, _ in self.written)
        programs = 1 + max(program for _, program in self.read + self.written)
        written = np.unique(np.concatenate([_numbered(at, start, programs, p) for at, p in self.written]))
        place = written // programs
        if (place[1:] == place[:-1]).any():
            return "an element is written by two programs"
        near = [(at[(at >= start) & (at <= end)], p) for at, p in self.read]
        near = [(at, p) for at, p in near if at.size]
        if not near:
            return None
        read = np.concatenate([_numbered(at, start, programs, p) for at, p in near])
        at = np.minimum(np.searchsorted(place, read // programs), place.size - 1)
        meets = (place[at] == read // programs) & (written[at] != read)
        return "an element is read that another program writes" if meets.any() else None


def _numbered(at: np.ndarray, start: int, programs: int, program: int) -> np.ndarray:
    """One number for an address and a program."""
    return (at - np.uint64(start)) * np.uint64(programs) + np.uint64(program)


touched = Touched()


def _load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
    touched.add(touched.read, pointers, mask)
    return OWN["create_masked_load"](self, pointers, mask, *rest, **named)


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
