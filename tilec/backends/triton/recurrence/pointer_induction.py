"""Addresses as induction variables: each step adds to those of the last.

A step's address is a product for each variable, in 64 bits, and where a lane turns, first its place modulo the lanes:
most of the instructions of a recurrence that reads, adds and stores. From step to step it moves by a constant, and by a
whole turn less where the lane begins again; so of consecutive steps only the first one's is computed. The test that
there is such a step, and such a lane, is one comparison with the number of steps that the lane has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import free
from tilec.backends.triton.emit.kernel import Kernel
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop
from tilec.backends.triton.recurrence.step import StepFrame
from tilec.ir.index import Affine
from tilec.ir.program import Index


@dataclass
class InductionState:
    """Consecutive steps whose lines stand in one scope: `places` of the turning lanes at the first of them, `left` the
    number of steps that a lane has left there. `pointers`: for each address the step that it was last needed in, and
    its name."""

    places: Mapping[str, str]
    left: str
    pointers: dict[object, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Moves:
    """How far an address goes in a step, and for each turning lane how much less where it begins again."""

    step: int
    wraps: Mapping[str, int]


def moves_of(
    tensor: str,
    forms: Sequence[Affine],
    kernel: Kernel,
    loop: SkewedLoop,
    circular_shifts: Mapping[str, int],
    steps: int,
) -> Moves | None:
    """None where the address stays, or goes by no constant: lanes turn by one place, either way, and not round within
    so many steps."""
    if 0 in kernel.types[tensor].shape:
        return None
    time, step = -1 if loop.falling else 1, 0
    wraps: dict[str, int] = {}
    moving = {loop.time, *circular_shifts}
    for axis, (form, stride) in enumerate(zip(forms, kernel.strides[tensor], strict=True)):
        if kernel.types[tensor].shape[axis] == 1:
            continue
        if form.denominator != 1:
            return None
        for atom, c in form.terms:
            if moving.isdisjoint(free(Affine.of([(atom, 1)]))):
                continue
            if not isinstance(atom, Index):
                return None
            if atom.name == loop.time:
                step += time * int(c) * stride
                continue
            n, by = loop.extent[atom.name], direction(circular_shifts[atom.name], loop.extent[atom.name])
            if by is None or steps > n:
                return None
            step += by * int(c) * stride
            wraps[atom.name] = wraps.get(atom.name, 0) + by * int(c) * stride * n
    wraps = {v: wrap for v, wrap in wraps.items() if wrap}
    return Moves(step, wraps) if step or wraps else None


def direction(shift: int, lanes: int) -> int | None:
    """1 or -1 for lanes that turn by one place."""
    return 1 if shift == 1 else -1 if shift == lanes - 1 else None


class InductionFrame(StepFrame):
    """The frame of the step of that number in a walk."""

    walk: InductionState | None = None
    number: int
    steps: int
    loop: SkewedLoop
    circular_shifts: Mapping[str, int]

    def address(self, tensor: str, forms: Sequence[Affine], spread_over: frozenset[str] = frozenset()) -> str:
        walk, k = self.walk, self.kernel
        if walk is None:
            return super().address(tensor, forms, spread_over)
        key = tensor, tuple(forms)
        moves = moves_of(tensor, forms, k, self.loop, self.circular_shifts, self.steps)
        if moves is None:
            return super().address(tensor, forms, spread_over)
        if key not in walk.pointers:
            # as a block even if it is one address, since where lanes begin again is
            text = super().address(tensor, forms, spread_over)
            walk.pointers[key] = self.number, self._named(tensor, text)
        then, name = walk.pointers[key]
        stem = python_name(tensor)
        for number in range(then, self.number):
            by = k.number(("walk", tensor, tuple(forms)), f"{stem}_walk", moves.step)
            wraps = {v: k.number(("lap", tensor, tuple(forms), v), f"{stem}_lap", n) for v, n in moves.wraps.items()}
            tests = {v: self._begins_again(walk.places[v], v, number) for v in wraps}
            match list(wraps.items()):
                case []:
                    text = by
                case [(v, wrap)]:
                    text = f"tl.where({tests[v]}, {k.line('lapped', f'{by} - {wrap}', 0)}, {by})"
                case several:
                    text = " - ".join([by, *(f"tl.where({tests[v]}, {wrap}, 0)" for v, wrap in several)])
            name = self._named(tensor, f"{name} + {text}")
        walk.pointers[key] = self.number, name
        return name

    def _named(self, tensor: str, text: str) -> str:
        name = self.kernel.names.fresh(f"at_{python_name(tensor).lower()}")
        self.kernel.assign(name, text)
        return name

    def _begins_again(self, first: str, v: str, number: int) -> str:
        """Text of the test that a lane which stood there at first begins again after the step of that number."""
        if direction(self.circular_shifts[v], self.loop.extent[v]) == -1:
            return f"{first} == {number}"
        return f"{first} == {self.kernel.extent(v)} - {number + 1}"

    def tail_tests(self, variables: frozenset[str]) -> list[str]:
        rows = self.walk is not None and "row" in self.dimensions(variables)
        if self.walk is None or not rows or self.time not in variables:
            return super().tail_tests(variables)
        return [self._there(self.walk), *([] if self.only is None else [self.only])]

    def store_tests(self) -> list[str]:
        return super().store_tests() if self.walk is None else [self._there(self.walk)]

    def _there(self, walk: InductionState) -> str:
        return f"({walk.left} > {self.number})"
