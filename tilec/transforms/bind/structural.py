"""reshape, gather, scatter and simple_reduce as contractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilec.errors import RankMistake, SizeMistake, TypeMistake
from tilec.ir.program import Access, Expr, Int, Statement
from tilec.ir.types import ElementType, is_floating, is_integer
from tilec.transforms.bind.sizes import counted
from tilec.transforms.util.broadcast import BroadcastOperand, Shape, axes, broadcast_shape
from tilec.transforms.util.reshapes import reshape_indices


@dataclass(frozen=True)
class Argument:
    """An operand of a structural function: a tensor, or (`tensor` None, shape empty) the scalar `value`."""

    tensor: str | None
    shape: Shape
    element: ElementType
    value: Expr

    def read(self, index: Sequence[Expr]) -> Expr:
        return self.value if self.tensor is None else Access(self.tensor, tuple(index), span=self.value.span)

    @property
    def label(self) -> str:
        return self.tensor or "a number"

    @property
    def operand(self) -> BroadcastOperand:
        return BroadcastOperand(self.label, self.shape, self.value.span)


def expand_gather(s: Statement, tensor: Argument, position: Argument) -> Statement:
    """`O[i..., j...] = X[I[i...], j...]`: a slice of X for each element of I; nothing where I is out of range."""
    _check_gathers("gather", s, tensor, position)
    outer = axes(position.shape)
    inner = axes(tensor.shape[1:], first=len(position.shape))
    body = tensor.read((position.read(outer.variables), *inner.variables))
    return _assigned(s, (*outer.variables, *inner.variables), (*position.shape, *inner.shape), body)


def expand_scatter(s: Statement, tensor: Argument, position: Argument, like: Argument) -> Statement:
    """`O[I[i...], j...] = +(X[i..., j...])` in the shape of Y."""
    _check_gathers("scatter", s, like, position)
    expected = (*position.shape, *like.shape[1:])
    if tensor.shape != expected:
        raise SizeMistake(
            f"scatter: {tensor.label} of shape {tensor.shape} does not fit {position.label} of shape {position.shape} "
            f"and {like.label} of shape {like.shape}",
            s.body.span or s.span,
            hint=f"the first argument must have shape {expected}",
        )
    whole = axes(expected)
    outer, inner = whole.variables[: len(position.shape)], whole.variables[len(position.shape) :]
    index = (position.read(outer), *inner)
    return replace(_assigned(s, index, like.shape, tensor.read(whole.variables)), aggregation="sum")


def _check_gathers(name: str, s: Statement, tensor: Argument, position: Argument) -> None:
    if not tensor.shape:
        raise RankMistake(f"{name}: {tensor.label} has no dimension to index", tensor.value.span or s.span)
    if not is_integer(position.element.dtype):
        raise TypeMistake(
            f"{name}: {position.label} holds {position.element.dtype}, but an index holds integers",
            position.value.span or s.span,
            hint="cast with int64(...)",
        )


def expand_simple_reduce(s: Statement, grad: Argument, like: Argument) -> Statement:
    """G, broadcast to X, summed over the axes along which X is broadcast to G, in X's shape."""
    shape = broadcast_shape((like.operand, grad.operand), s.body.span or s.span)
    whole = axes(shape)
    extra = len(shape) - len(like.shape)
    summed = [d < extra or like.shape[d - extra] == 1 and size != 1 for d, size in enumerate(shape)]
    index = tuple(Int(0) if summed[extra + d] else whole.variables[extra + d] for d in range(len(like.shape)))
    body = grad.read(whole.at(grad.shape))
    exact = not any(summed) and is_floating(grad.element.dtype)
    return replace(_assigned(s, index, like.shape, body), aggregation="assign" if exact else "sum")


def expand_reshape(s: Statement, tensor: Argument, shape: Shape) -> Statement:
    """The same elements in row-major order. Index d is `(e % S[d-1] - e % S[d]) / S[d]` with e the element's position
    and S the strides of X, so that indices times strides add up to e itself: a view where X is contiguous."""
    if math.prod(shape) != math.prod(tensor.shape):
        raise SizeMistake(
            f"{tensor.label} of shape {tensor.shape} has {counted(math.prod(tensor.shape), 'element')}, "
            f"the shape {shape} has {math.prod(shape)}",
            s.body.span or s.span,
            hint="a reshape keeps the number of elements",
        )
    whole = axes(shape)
    body = tensor.read(tuple(form.to_expr() for form in reshape_indices(shape, tensor.shape, whole.variables)))
    return _assigned(s, whole.variables, shape, body)


def _assigned(s: Statement, index: tuple[Expr, ...], shape: Shape, body: Expr) -> Statement:
    return replace(s, index=index, sizes=tuple(map(Int, shape)), body=body)


STRUCTURAL_EXPANSIONS: dict[str, Callable[..., Statement]] = {
    "gather": expand_gather,
    "scatter": expand_scatter,
    "simple_reduce": expand_simple_reduce,
}
