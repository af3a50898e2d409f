"""NumPy's broadcasting of elementwise statements, as index variables over the common shape."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilec.errors import SizeMistake, Span
from tilec.ir.index import Affine
from tilec.ir.program import Access, Expr, Index, Int
from tilec.transforms.util.naming import unlike

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BroadcastOperand:
    """A tensor that takes part in a broadcast; `label` is what errors call it."""

    label: str
    shape: Shape
    span: Span | None = None


def broadcast_shape(operands: Sequence[BroadcastOperand], span: Span | None = None) -> Shape:
    """The common shape. SizeMistake that shows the two operands that do not fit together, and where."""
    shape: Shape = ()
    for operand in operands:
        if operand.shape != shape:
            shape = _joined(shape, operand, operands, span)
    return shape


def _joined(shape: Shape, operand: BroadcastOperand, operands: Sequence[BroadcastOperand], span: Span | None) -> Shape:
    rank = max(len(shape), len(operand.shape))
    left, right = ((1,) * (rank - len(s)) + s for s in (shape, operand.shape))
    for axis, (a, b) in enumerate(zip(left, right, strict=True)):
        if a != b and a != 1 and b != 1:
            back = axis - rank
            other = next(o for o in operands if len(o.shape) >= -back and o.shape[back] == a)
            raise SizeMistake(
                f"{other.label} of shape {other.shape} and {operand.label} of shape {operand.shape} do not broadcast: "
                f"{a} and {b} in dimension {back}",
                operand.span or span,
                hint="sizes must be equal, or 1, counted from the last dimension",
            )
    return tuple(b if a == 1 else a for a, b in zip(left, right, strict=True))


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Does a tensor of `shape` broadcast to `target` without enlarging it?"""
    if len(shape) > len(target):
        return False
    return all(a == b or a == 1 for a, b in zip(reversed(shape), reversed(target), strict=False))


@dataclass(frozen=True)
class Axes:
    """Index variables over a common shape."""

    variables: tuple[Index, ...]
    shape: Shape

    @property
    def sizes(self) -> tuple[Int, ...]:
        return tuple(map(Int, self.shape))

    def at(self, shape: Shape) -> tuple[Expr, ...]:
        """Indices that read a tensor of `shape`: 0 in the dimensions that are broadcast."""
        if shape == self.shape:
            return self.variables
        offset = len(self.shape) - len(shape)
        return tuple(
            Int(0) if size == 1 and self.shape[offset + d] != 1 else self.variables[offset + d]
            for d, size in enumerate(shape)
        )

    def position(self) -> Affine:
        """The row-major number of an element."""
        result, stride = Affine(), 1
        for v, n in zip(reversed(self.variables), reversed(self.shape), strict=True):
            result, stride = Affine.variable(v.name, stride) + result, stride * n
        return result

    def read(self, tensor: str, shape: Shape, span: Span | None = None) -> Access:
        return Access(tensor, self.at(shape), span=span)


def axes(shape: Shape, taken: Collection[str] = (), first: int = 0) -> Axes:
    """Variables i0, i1, ... (from `first`) over a shape, other than those taken."""
    names = (f"i{first + k}" for k in range(len(shape)))
    return Axes(tuple(Index(unlike(name, taken)) for name in names), shape)
