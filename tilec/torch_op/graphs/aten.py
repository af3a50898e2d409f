"""Operations of torch's graphs that are Tile's too, as expressions of whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import Node

from tilec.arguments import DTYPE_NAMES
from tilec.ir.program import Call, Expr, Float, Int

aten, prims = torch.ops.aten, torch.ops.prims
_UNARY = (
    "abs acos asin atan ceil cos cosh erf exp expm1 floor log log1p neg relu round rsqrt sigmoid sign sin sinh sqrt "
    "tan tanh"
)
_COMPARED = "eq ne lt le gt ge"


def _table() -> dict[Any, str | Callable[..., Expr]]:
    """Functions of torch that are Tile's too, with arguments in the same order."""
    made: dict[Any, str | Callable[..., Expr]] = {getattr(aten, name).default: name for name in _UNARY.split()}
    made[aten.reciprocal.default] = "recip"
    made[aten.maximum.default], made[aten.minimum.default] = "max", "min"
    made[aten.atan2.default] = "atan2"
    for name in ("add", "sub"):
        made[getattr(aten, name).Tensor] = _scaled(name)
    for name in ("mul", "div"):
        made[getattr(aten, name).Tensor] = made[getattr(aten, name).Scalar] = name
    made[aten.pow.Tensor_Scalar], made[aten.pow.Tensor_Tensor] = _power, "pow"
    for name in _COMPARED.split():
        made[getattr(aten, name).Tensor] = made[getattr(aten, name).Scalar] = name
    for name, ours in (("and", "and"), ("or", "or"), ("xor", "xor"), ("not", "not")):
        for form in ("Tensor", "default"):
            for kind in (f"bitwise_{name}", f"logical_{name}"):
                if hasattr(getattr(aten, kind, None), form):
                    made[getattr(getattr(aten, kind), form)] = ours
    made[aten.where.self] = "select"
    made[aten.clamp.default] = _clamped
    made[aten.clamp_min.default] = lambda x, low: Call("max", (x, low))
    made[aten.clamp_max.default] = lambda x, high: Call("min", (x, high))
    return made


def _scaled(name: str) -> Callable[..., Expr]:
    def made(a: Expr, b: Expr, *, alpha: Expr | None = None) -> Expr:
        return Call(name, (a, b if alpha is None else Call("mul", (b, alpha))))

    return made


def _power(x: Expr, n: Expr) -> Expr:
    """torch takes roots for these numbers, which a power differs from at -inf."""
    roots = {_literal(0.5): "sqrt", _literal(-0.5): "rsqrt"}
    return Call(roots[n], (x,)) if n in roots else Call("pow", (x, n))


def _clamped(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    x = x if low is None else Call("max", (x, low))
    return x if high is None else Call("min", (x, high))


ATEN_FUNCTIONS = _table()
BOOLEAN_ONLY = frozenset(("and", "or", "xor", "not"))  # of booleans alone: on integers torch's logical ones differ


class NotTile(Exception):
    """An argument that Tile has no word for."""


def expression(node: Node, value_of: Callable[[Node], Expr]) -> Expr:
    """The operation as an expression of whole tensors."""
    if node.target is prims.convert_element_type.default:
        x, dtype = cast(Any, node.args)
        return Call(DTYPE_NAMES[dtype], (value_of(x),))
    ours = ATEN_FUNCTIONS[node.target]
    args = [_argument(a, value_of) for a in node.args]
    given = {k: _argument(a, value_of) for k, a in node.kwargs.items()}
    if callable(ours):
        return ours(*args, **given)
    operands = [a for a in args if a is not None]
    if given or len(operands) < len(args):
        raise NotTile
    if ours == "div" and not any(n.meta["val"].dtype.is_floating_point for n in tensor_operands(node)):
        operands[0] = Call(DTYPE_NAMES[node.meta["val"].dtype], (operands[0],))  # Tile's of integers rounds down
    return Call(ours, tuple(operands))


def _argument(a: Any, value_of: Callable[[Node], Expr]) -> Expr | None:
    if isinstance(a, Node) and not isinstance(a.meta.get("val"), torch.Tensor):
        raise NotTile
    if isinstance(a, Node):
        return number_in(a) or value_of(a)
    if a is None:
        return None
    if isinstance(a, bool) or not isinstance(a, (int, float)):
        raise NotTile
    return _literal(a)


def _literal(n: int | float) -> Expr:
    number: Expr = Int(abs(n)) if isinstance(n, int) else Float(abs(n))
    return Call("neg", (number,)) if n < 0 else number


def number_in(node: Node) -> Expr | None:
    """A tensor that holds a number alone."""
    shape, number = (), None
    if node.target is aten.full.default:
        shape, number = cast(Any, node.args)
    elif node.target is aten.scalar_tensor.default:
        (number,) = cast(Any, node.args)
    if shape or isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return _literal(number)


def is_known(node: Node) -> bool:
    """Is this an operation that Tile has?"""
    return node.op == "call_function" and (
        node.target in ATEN_FUNCTIONS or node.target is prims.convert_element_type.default
    )


def tensor_operands(node: Node) -> list[Node]:
    """The tensors that an operation of Tile's reads."""
    if not is_known(node):
        return []
    return [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor) and number_in(n) is None]


def is_tile_operation(node: Node) -> bool:
    """Is this an operation of Tile's on tensors of this device, whose results are floating, or bool in between?"""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in DTYPE_NAMES:
        return False
    if any(u.target in (aten.as_strided.default, aten.set_.source_Tensor) for u in node.users):
        return False
    kinds = [n.meta["val"] for n in tensor_operands(node)]
    if not kinds or any(v.dtype not in DTYPE_NAMES or v.device != value.device for v in kinds):
        return False
    if ATEN_FUNCTIONS.get(node.target) in BOOLEAN_ONLY:
        return all(v.dtype is torch.bool for v in kinds)
    return value.dtype.is_floating_point or value.dtype is torch.bool and node.target in ATEN_FUNCTIONS
