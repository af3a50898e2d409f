"""Operations on elements: expressions, which are put into one another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tilec.torch_import.writer import PRIMARY, Term, Writer, name_of, refuse

aten = torch.ops.aten

# How tightly operators bind, from loose to tight, as the grammar has it.
BINDING = {"?": 0, "^": 1, "|": 2, "&": 3, "==": 4, "!=": 4, "<": 5, ">": 5, "<=": 5, ">=": 5}
BINDING |= {"<<": 6, ">>": 6, "+": 7, "-": 7, "*": 8, "/": 8, "%": 8, "unary": 9}

_Operand = Term | int | float | bool | torch.SymInt


def text(w: Writer, operand: _Operand, level: int = PRIMARY) -> str:
    """An operand where an operator of `level` takes it."""
    if isinstance(operand, Term):
        return operand.text if operand.level >= level else f"({operand.text})"
    if isinstance(operand, torch.SymInt):
        return w.size(operand)
    found = as_text(operand)
    return f"({found})" if found.startswith("-") and level > BINDING["+"] else found


def as_text(value: float | int | bool) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value)


def infix(symbol: str) -> Callable[..., Term]:
    level = BINDING[symbol]

    def write(w: Writer, a: _Operand, b: _Operand, *, alpha: float = 1) -> Term:
        if alpha != 1:
            b = w.expression(f"{as_text(alpha)} * {text(w, b, BINDING['*'])}", BINDING["*"])
        # comparisons do not chain, and of a - b - c the right operand needs parentheses
        left = level + 1 if 4 <= level <= 5 else level
        return w.expression(f"{text(w, a, left)} {symbol} {text(w, b, level + 1)}", level)

    return write


def divided(w: Writer, a: _Operand, b: _Operand, *, rounding_mode: str | None = None) -> Term:
    """torch's `/` is floating for integers too; Tile's truncates between integers."""
    integers = not any(_floating(x) for x in (a, b))
    if integers and rounding_mode is None:
        a = _cast(w, a, w.meta.dtype)
    quotient = infix("/")(w, a, b)
    if rounding_mode is None or (integers and rounding_mode == "trunc"):
        return quotient
    if integers:  # floor: exact after the remainder, which has the divisor's sign
        rest = infix("-")(w, a, infix("%")(w, a, b))
        return infix("/")(w, rest, b)
    if rounding_mode == "floor":
        return w.expression(f"floor({quotient.text})")
    return w.expression(f"({quotient.text} < 0 ? ceil({quotient.text}) : floor({quotient.text}))")


def _floating(x: _Operand) -> bool:
    return x.dtype.is_floating_point if isinstance(x, Term) else isinstance(x, float)


def _cast(w: Writer, a: _Operand, dtype: torch.dtype) -> Term:
    shape = a.shape if isinstance(a, Term) else ()
    return Term(f"{name_of(dtype)}({text(w, a, 0)})", shape, dtype, is_name=False)


def _form(pattern: str, level: int = PRIMARY, times: int = 1) -> Callable[..., Term]:
    """An expression with the operands `{0}`, `{1}` ...; those that stand `times` over one time get a name."""

    def write(w: Writer, *operands: _Operand, **_: object) -> Term:
        first, *rest = operands
        if times > 1 and isinstance(first, Term):
            first = w.named(first)
        inner = 0 if level == PRIMARY and pattern.endswith(")") and "(" in pattern and times == 1 else PRIMARY
        found = pattern.format(*(text(w, o, inner) for o in (first, *rest)))
        return w.expression(found, level)

    return write


def _call(function: str) -> Callable[..., Term]:
    def write(w: Writer, *operands: _Operand) -> Term:
        return w.expression(f"{function}({', '.join(text(w, o, 0) for o in operands)})")

    return write


def subtracted_from(w: Writer, a: _Operand, b: _Operand, alpha: float = 1) -> Term:
    return infix("-")(w, b, a, alpha=alpha)


def power(w: Writer, a: _Operand, b: _Operand) -> Term:
    if isinstance(a, Term) and isinstance(b, int | float) and b in (2, 3):
        a = w.named(a)
        return w.expression(" * ".join([a.text] * int(b)), BINDING["*"])
    if isinstance(b, float) and abs(b) == 0.5:  # for which torch takes roots: those of -inf are NaN
        return _call("sqrt" if b > 0 else "rsqrt")(w, a)
    return _call("pow")(w, a, b)


def _clamped(w: Writer, a: _Operand, low: _Operand | None = None, high: _Operand | None = None) -> Term:
    found = text(w, a, 0)
    for function, end in (("max", low), ("min", high)):
        found = found if end is None else f"{function}({found}, {text(w, end, 0)})"
    return w.expression(found)


def chosen(w: Writer, c: _Operand, a: _Operand, b: _Operand) -> Term:
    level = BINDING["?"]
    return w.expression(f"{text(w, c, 1)} ? {text(w, a, 1)} : {text(w, b, 1)}", level)


def _masked(w: Writer, a: _Operand, mask: _Operand, value: _Operand) -> Term:
    return chosen(w, mask, value, a)


def gelu(w: Writer, a: _Operand, approximate: str = "none") -> Term:
    if approximate == "none":
        return _call("gelu")(w, a)
    return _form("0.5 * {0} * (1 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))", BINDING["*"], 5)(
        w, a
    )


def softplus(w: Writer, a: _Operand, beta: float = 1, threshold: float = 20) -> Term:
    if beta == 1:  # beyond the threshold torch takes `a` itself, which differs by less than its last place
        return _call("softplus")(w, a)
    scaled = text(w, a, BINDING["*"])
    return w.expression(f"softplus({as_text(beta)} * {scaled}) / {as_text(beta)}", BINDING["/"])


def leaky(w: Writer, a: _Operand, slope: float = 0.01) -> Term:
    return _form(f"{{0}} > 0 ? {{0}} : {as_text(slope)} * {{0}}", 0, 3)(w, a)


def elu(w: Writer, a: _Operand, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Term:
    outside = "{0}" if scale == 1 else f"{as_text(scale)} * {{0}}"
    inside = "{0}" if input_scale == 1 else f"{as_text(input_scale)} * {{0}}"
    pattern = f"{{0}} > 0 ? {outside} : {as_text(alpha * scale)} * expm1({inside})"
    return _form(pattern, 0, 3)(w, a)


def same(w: Writer, a: _Operand, *_: object, **__: object) -> _Operand:
    return a


def converted(w: Writer, a: Term, *_: object, **__: object) -> _Operand:
    return a if a.dtype == w.meta.dtype else _cast(w, a, w.meta.dtype)


def negated(w: Writer, a: _Operand) -> Term:
    return w.expression(f"-{text(w, a, BINDING['unary'])}", BINDING["unary"])


def inverted(w: Writer, a: _Operand) -> Term:
    if w.meta.dtype == torch.bool:
        return w.expression(f"{text(w, a, 5)} == 0", BINDING["=="])
    return w.expression(f"~{text(w, a, BINDING['unary'])}", BINDING["unary"])


def logical(symbol: str) -> Callable[..., Term]:
    def write(w: Writer, a: _Operand, b: _Operand) -> Term:
        a, b = (x if not isinstance(x, Term) or x.dtype == torch.bool else _cast(w, x, torch.bool) for x in (a, b))
        return infix(symbol)(w, a, b)

    return write


def filled(w: Writer, value: float) -> Term:
    indices = w.indices(w.meta.dim())
    return w.result(indices, f"{name_of(w.meta.dtype)}({as_text(value)})")


def _counted(w: Writer, *range_: float, **_: object) -> Term:
    begin, step = (0, 1) if len(range_) == 1 else (range_[0], range_[2] if len(range_) > 2 else 1)
    (i,) = w.indices(1)
    body = (f"{as_text(begin)} + " if begin else "") + (f"{as_text(step)} * {i}" if step != 1 else i)
    return w.result([i], f"{name_of(w.meta.dtype)}({body})")


def detached(w: Writer, a: _Operand, *_: object) -> Term:
    return w.expression(f"reverse_grad({text(w, a, 0)}, 0.0)")


def like(value: float | None) -> Callable[..., Term]:
    def write(w: Writer, _: object, *given: float, **__: object) -> Term:
        return filled(w, given[0] if value is None else value)

    return write


def of_sizes(value: float | None) -> Callable[..., Term]:
    def write(w: Writer, *given: object, **__: object) -> Term:
        found = given[1] if value is None and len(given) > 1 else given[0] if value is None else value
        assert isinstance(found, int | float)
        return filled(w, found)

    return write


def dropped(w: Writer, a: _Operand, p: float = 0.5, train: bool = False) -> _Operand:
    if train and p:
        raise refuse("dropout in training: write `rand(Seed) < P ? X / P : 0` (`tilec gallery dropout`)")
    return a


def dropped_and_mask(w: Writer, a: _Operand, p: float, train: bool | None) -> tuple[_Operand, ...]:
    return (dropped(w, a, p, bool(train)),)  # type: ignore[index]


_OVERLOADS = (
    "default Tensor Scalar Tensor_mode Tensor_Scalar Scalar_Tensor Tensor_Tensor self Scalar_mode dim_IntList start "
    "start_step ScalarOther ScalarSelf"
).split()


def _named(overloads: str) -> list[torch._ops.OpOverload]:
    """The overloads of an operation that torch has; `mul` is `mul.Tensor` and `mul.Scalar`."""
    packet = getattr(aten, overloads)
    return [getattr(packet, o) for o in packet.overloads() if o in _OVERLOADS]


_FUNCTIONS = (
    "abs exp log sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid relu floor ceil round erf silu"
)
_FUNCTIONS += " log1p expm1 sign logaddexp"
_OPERATORS = dict(zip(
    "add sub mul remainder eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor".split(),
    "+ - * % == != < <= > >= & | ^".split(),
    strict=True,
))  # fmt: skip
_BY_NAME: dict[str, Callable] = {
    **{name: _call(name) for name in _FUNCTIONS.split()},
    **{name: infix(symbol) for name, symbol in _OPERATORS.items()},
    "div": divided,
    "rsub": subtracted_from,
    "neg": negated,
    "pow": power,
    "reciprocal": _call("recip"),
    "square": lambda w, a: power(w, a, 2),
    "logical_and": logical("&"),
    "logical_or": logical("|"),
    "logical_not": inverted,
    "bitwise_not": inverted,
    "maximum": _call("max"),
    "minimum": _call("min"),
    "clamp": _clamped,
    "clamp_min": _clamped,
    "clamp_max": lambda w, a, high: _clamped(w, a, None, high),
    "hardtanh": lambda w, a, low=-1, high=1: _clamped(w, a, low, high),
    "where": chosen,
    "masked_fill": _masked,
    "gelu": gelu,
    "softplus": softplus,
    "leaky_relu": leaky,
    "elu": elu,
    "mish": _form("{0} * tanh(softplus({0}))", BINDING["*"], 2),
    "hardswish": _form("{0} * min(max({0} + 3, 0), 6) / 6", BINDING["*"], 2),
    "hardsigmoid": _form("min(max({0} + 3, 0), 6) / 6", BINDING["*"], 2),
    "log2": _form("log({0}) / 0.6931471805599453", BINDING["/"], 2),
    "exp2": _form("exp(0.6931471805599453 * {0})", PRIMARY, 2),
    "isnan": _form("{0} != {0}", BINDING["!="], 2),
    **dict.fromkeys(("clone", "alias", "contiguous", "lift_fresh_copy"), same),
    "detach": detached,
    "_to_copy": converted,
    "full": of_sizes(None),
    "scalar_tensor": of_sizes(None),
    "zeros": of_sizes(0),
    "ones": of_sizes(1),
    "zeros_like": like(0),
    "ones_like": like(1),
    "full_like": like(None),
    "arange": _counted,
    "dropout": dropped,
    "native_dropout": dropped_and_mask,
}
HANDLERS: dict[Any, Callable[..., Any]] = {
    overload: handler for name, handler in _BY_NAME.items() for overload in _named(name)
}
