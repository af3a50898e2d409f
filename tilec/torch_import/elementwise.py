"""Operations on elements: expressions, which are put into one another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tilec.torch_import.writer import TIGHT, Value, Writer, name_of, refuse

aten = torch.ops.aten

# How tightly operators bind, from loose to tight, as the grammar has it.
LEVELS = {"?": 0, "^": 1, "|": 2, "&": 3, "==": 4, "!=": 4, "<": 5, ">": 5, "<=": 5, ">=": 5}
LEVELS |= {"<<": 6, ">>": 6, "+": 7, "-": 7, "*": 8, "/": 8, "%": 8, "unary": 9}

Operand = Value | int | float | bool | torch.SymInt


def text(w: Writer, operand: Operand, level: int = TIGHT) -> str:
    """An operand where an operator of `level` takes it."""
    if isinstance(operand, Value):
        return operand.text if operand.level >= level else f"({operand.text})"
    if isinstance(operand, torch.SymInt):
        return w.size(operand)
    found = number(operand)
    return f"({found})" if found.startswith("-") and level > LEVELS["+"] else found


def number(value: float | int | bool) -> str:
    """A literal."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value)


def built(w: Writer, meta: torch.Tensor, found: str, level: int = TIGHT) -> Value:
    return Value(found, tuple(meta.shape), meta.dtype, level, is_name=False)


def infix(symbol: str) -> Callable[..., Value]:
    level = LEVELS[symbol]

    def write(w: Writer, meta: torch.Tensor, a: Operand, b: Operand, *, alpha: float = 1) -> Value:
        if alpha != 1:
            b = built(w, meta, f"{number(alpha)} * {text(w, b, LEVELS['*'])}", LEVELS["*"])
        # comparisons do not chain, and of a - b - c the right operand needs parentheses
        left = level + 1 if 4 <= level <= 5 else level
        return built(w, meta, f"{text(w, a, left)} {symbol} {text(w, b, level + 1)}", level)

    return write


def divided(w: Writer, meta: torch.Tensor, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Value:
    """torch's `/` is floating for integers too; Tile's truncates between integers."""
    integers = not any(_floating(x) for x in (a, b))
    if integers and rounding_mode is None:
        a = cast(w, a, meta.dtype)
    quotient = infix("/")(w, meta, a, b)
    if rounding_mode is None or (integers and rounding_mode == "trunc"):
        return quotient
    if integers:  # floor: exact after the remainder, which has the divisor's sign
        rest = infix("-")(w, meta, a, infix("%")(w, meta, a, b))
        return infix("/")(w, meta, rest, b)
    if rounding_mode == "floor":
        return built(w, meta, f"floor({quotient.text})")
    return built(w, meta, f"({quotient.text} < 0 ? ceil({quotient.text}) : floor({quotient.text}))")


def _floating(x: Operand) -> bool:
    return x.dtype.is_floating_point if isinstance(x, Value) else isinstance(x, float)


def cast(w: Writer, a: Operand, dtype: torch.dtype) -> Value:
    shape = a.shape if isinstance(a, Value) else ()
    return Value(f"{name_of(dtype)}({text(w, a, 0)})", shape, dtype, is_name=False)


def form(pattern: str, level: int = TIGHT, times: int = 1) -> Callable[..., Value]:
    """An expression with the operands `{0}`, `{1}` ...; those that stand `times` over one time get a name."""

    def write(w: Writer, meta: torch.Tensor, *operands: Operand, **_: object) -> Value:
        first, *rest = operands
        if times > 1 and isinstance(first, Value):
            first = w.named(first)
        inner = 0 if level == TIGHT and pattern.endswith(")") and "(" in pattern and times == 1 else TIGHT
        found = pattern.format(*(text(w, o, inner) for o in (first, *rest)))
        return built(w, meta, found, level)

    return write


def call(function: str) -> Callable[..., Value]:
    def write(w: Writer, meta: torch.Tensor, *operands: Operand) -> Value:
        return built(w, meta, f"{function}({', '.join(text(w, o, 0) for o in operands)})")

    return write


def subtracted_from(w: Writer, meta: torch.Tensor, a: Operand, b: Operand, alpha: float = 1) -> Value:
    return infix("-")(w, meta, b, a, alpha=alpha)


def power(w: Writer, meta: torch.Tensor, a: Operand, b: Operand) -> Value:
    if isinstance(a, Value) and isinstance(b, int | float) and b in (2, 3):
        a = w.named(a)
        return built(w, meta, " * ".join([a.text] * int(b)), LEVELS["*"])
    return call("pow")(w, meta, a, b)


def clamped(
    w: Writer, meta: torch.Tensor, a: Operand, low: Operand | None = None, high: Operand | None = None
) -> Value:
    found = text(w, a, 0)
    if low is not None:
        found = f"max({found}, {text(w, low, 0)})"
    if high is not None:
        found = f"min({found}, {text(w, high, 0)})"
    return built(w, meta, found)


def chosen(w: Writer, meta: torch.Tensor, c: Operand, a: Operand, b: Operand) -> Value:
    level = LEVELS["?"]
    return built(w, meta, f"{text(w, c, 1)} ? {text(w, a, 1)} : {text(w, b, 1)}", level)


def masked(w: Writer, meta: torch.Tensor, a: Operand, mask: Operand, value: Operand) -> Value:
    return chosen(w, meta, mask, value, a)


def gelu(w: Writer, meta: torch.Tensor, a: Operand, approximate: str = "none") -> Value:
    if approximate == "none":
        return call("gelu")(w, meta, a)
    return form("0.5 * {0} * (1 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))", LEVELS["*"], 5)(
        w, meta, a
    )


def softplus(w: Writer, meta: torch.Tensor, a: Operand, beta: float = 1, threshold: float = 20) -> Value:
    if beta == 1:  # beyond the threshold torch takes `a` itself, which differs by less than its last place
        return call("softplus")(w, meta, a)
    scaled = text(w, a, LEVELS["*"])
    return built(w, meta, f"softplus({number(beta)} * {scaled}) / {number(beta)}", LEVELS["/"])


def leaky(w: Writer, meta: torch.Tensor, a: Operand, slope: float = 0.01) -> Value:
    return form(f"{{0}} > 0 ? {{0}} : {number(slope)} * {{0}}", 0, 3)(w, meta, a)


def elu(w: Writer, meta: torch.Tensor, a: Operand, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    outside = "{0}" if scale == 1 else f"{number(scale)} * {{0}}"
    inside = "{0}" if input_scale == 1 else f"{number(input_scale)} * {{0}}"
    pattern = f"{{0}} > 0 ? {outside} : {number(alpha * scale)} * expm1({inside})"
    return form(pattern, 0, 3)(w, meta, a)


def same(w: Writer, meta: torch.Tensor, a: Operand, *_: object, **__: object) -> Operand:
    return a


def converted(w: Writer, meta: torch.Tensor, a: Value, *_: object, **__: object) -> Operand:
    return a if a.dtype == meta.dtype else cast(w, a, meta.dtype)


def negated(w: Writer, meta: torch.Tensor, a: Operand) -> Value:
    return built(w, meta, f"-{text(w, a, LEVELS['unary'])}", LEVELS["unary"])


def inverted(w: Writer, meta: torch.Tensor, a: Operand) -> Value:
    if meta.dtype == torch.bool:
        return built(w, meta, f"{text(w, a, 5)} == 0", LEVELS["=="])
    return built(w, meta, f"~{text(w, a, LEVELS['unary'])}", LEVELS["unary"])


def logical(symbol: str) -> Callable[..., Value]:
    def write(w: Writer, meta: torch.Tensor, a: Operand, b: Operand) -> Value:
        a, b = (x if not isinstance(x, Value) or x.dtype == torch.bool else cast(w, x, torch.bool) for x in (a, b))
        return infix(symbol)(w, meta, a, b)

    return write


def filled(w: Writer, meta: torch.Tensor, value: float) -> Value:
    """A tensor of one value."""
    indices = w.indices(meta.dim())
    return w.state(indices, meta.shape, f"{name_of(meta.dtype)}({number(value)})", meta.dtype)


def counted(w: Writer, meta: torch.Tensor, *range_: float, **_: object) -> Value:
    begin, step = (0, 1) if len(range_) == 1 else (range_[0], range_[2] if len(range_) > 2 else 1)
    (i,) = w.indices(1)
    body = (f"{number(begin)} + " if begin else "") + (f"{number(step)} * {i}" if step != 1 else i)
    return w.state([i], meta.shape, f"{name_of(meta.dtype)}({body})", meta.dtype)


def detached(w: Writer, meta: torch.Tensor, a: Operand, *_: object) -> Value:
    return built(w, meta, f"reverse_grad({text(w, a, 0)}, 0.0)")


def like(value: float | None) -> Callable[..., Value]:
    def write(w: Writer, meta: torch.Tensor, _: object, *given: float, **__: object) -> Value:
        return filled(w, meta, given[0] if value is None else value)

    return write


def of_sizes(value: float | None) -> Callable[..., Value]:
    def write(w: Writer, meta: torch.Tensor, *given: object, **__: object) -> Value:
        found = given[1] if value is None and len(given) > 1 else given[0] if value is None else value
        assert isinstance(found, int | float)
        return filled(w, meta, found)

    return write


def dropped(w: Writer, meta: torch.Tensor, a: Operand, p: float = 0.5, train: bool = False) -> Operand:
    if train and p:
        raise refuse("dropout in training: write `rand(Seed) < P ? X / P : 0` (`tilec gallery dropout`)")
    return a


def dropped_and_mask(w: Writer, metas: object, a: Operand, p: float, train: bool | None) -> tuple[Operand, ...]:
    return (dropped(w, metas[0], a, p, bool(train)),)  # type: ignore[index]


def _named(overloads: str) -> list[torch._ops.OpOverload]:
    """The overloads of an operation that torch has; `mul` is `mul.Tensor` and `mul.Scalar`."""
    packet = getattr(aten, overloads)
    return [
        getattr(packet, o)
        for o in packet.overloads()
        if o
        in (
            "default",
            "Tensor",
            "Scalar",
            "Tensor_mode",
            "Tensor_Scalar",
            "Scalar_Tensor",
            "Tensor_Tensor",
            "self",
            "Scalar_mode",
            "dim_IntList",
            "start",
            "start_step",
            "ScalarOther",
            "ScalarSelf",
        )
    ]


FUNCTIONS = (
    "abs exp log sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid relu floor ceil round erf silu"
)
FUNCTIONS += " log1p expm1 sign logaddexp"
HANDLERS: dict[str, Callable] = {
    **{name: call(name) for name in FUNCTIONS.split()},
    "add": infix("+"),
    "sub": infix("-"),
    "mul": infix("*"),
    "div": divided,
    "remainder": infix("%"),
    "rsub": subtracted_from,
    "neg": negated,
    "pow": power,
    "reciprocal": call("recip"),
    "square": lambda w, m, a: power(w, m, a, 2),
    "eq": infix("=="),
    "ne": infix("!="),
    "lt": infix("<"),
    "le": infix("<="),
    "gt": infix(">"),
    "ge": infix(">="),
    "bitwise_and": infix("&"),
    "bitwise_or": infix("|"),
    "bitwise_xor": infix("^"),
    "logical_and": logical("&"),
    "logical_or": logical("|"),
    "logical_not": inverted,
    "bitwise_not": inverted,
    "maximum": call("max"),
    "minimum": call("min"),
    "clamp": clamped,
    "clamp_min": clamped,
    "clamp_max": lambda w, m, a, high: clamped(w, m, a, None, high),
    "hardtanh": lambda w, m, a, low=-1, high=1: clamped(w, m, a, low, high),
    "where": chosen,
    "masked_fill": masked,
    "gelu": gelu,
    "softplus": softplus,
    "leaky_relu": leaky,
    "elu": elu,
    "mish": form("{0} * tanh(softplus({0}))", LEVELS["*"], 2),
    "hardswish": form("{0} * min(max({0} + 3, 0), 6) / 6", LEVELS["*"], 2),
    "hardsigmoid": form("min(max({0} + 3, 0), 6) / 6", LEVELS["*"], 2),
    "log2": form("log({0}) / 0.6931471805599453", LEVELS["/"], 2),
    "exp2": form("exp(0.6931471805599453 * {0})", TIGHT, 2),
    "isnan": form("{0} != {0}", LEVELS["!="], 2),
    "clone": same,
    "alias": same,
    "contiguous": same,
    "lift_fresh_copy": same,
    "detach": detached,
    "_to_copy": converted,
    "full": of_sizes(None),
    "scalar_tensor": of_sizes(None),
    "zeros": of_sizes(0),
    "ones": of_sizes(1),
    "zeros_like": like(0),
    "ones_like": like(1),
    "full_like": like(None),
    "arange": counted,
    "dropout": dropped,
    "native_dropout": dropped_and_mask,
}
TABLE: dict[Any, Callable[..., Any]] = {
    overload: handler for name, handler in HANDLERS.items() for overload in _named(name)
}
