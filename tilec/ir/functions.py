"""THE table of scalar functions and operators. Adding a function is adding a row.

A row holds the name, the number of arguments, how the result's type follows, what NumPy computes (for the oracle), the
torch expression (for the torch backend), the Triton expression (for the Triton backend; functions written `name_` there
are those of `backends/triton/emit/device.py`), the pullback (for gradients) and, for operators, how it is written.

A pullback takes (g, args, f): the cotangent of the result, the arguments and the call itself; it returns one cotangent
an argument, None for zero. It holds g once in each, so that gradients of deep expressions stay small, and hides it by a
condition (`c ? g : 0`) where the derivative is zero whatever else is infinite.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tilec.ir import philox
from tilec.ir.program import Access, Call, Expr, Float, Int, Name, walk
from tilec.ir.types import CASTS, FLOATS

Pullback = Callable[[Expr, tuple[Expr, ...], Expr], tuple[Expr | None, ...]]


@dataclass(frozen=True)
class ScalarFunction:
    """`result`: how the type follows: promote, division, float, bool, bits, select, like, random,
    or a type's name.
    `arity`: least and most arguments. `precedence`: 0 for functions; a greater number binds tighter."""

    name: str
    arity: tuple[int, int]
    result: str
    numpy: Callable | None = None
    torch: str | None = None
    pullback: Pullback | None = None
    triton: str | None = None
    symbol: str | None = None
    precedence: int = 0


def is_zero(e: Expr) -> bool:
    return isinstance(e, (Int, Float)) and e.value == 0


def is_infinite(e: Expr) -> bool:
    """Whether this is a literal infinity of either sign."""
    if isinstance(e, Call) and e.function == "neg":
        return is_infinite(e.args[0])
    return isinstance(e, Float) and math.isinf(e.value)


def without_casts(e: Expr) -> Expr:
    """What casts to floating types are taken of."""
    while isinstance(e, Call) and e.function in FLOATS:
        (e,) = e.args
    return e


def call(name: str, *args: Expr) -> Expr:
    return Call(name, args)


def operands_of(function: str, e: Expr) -> tuple[Expr, ...]:
    """What nested calls of an associative function combine, such as the factors of a product; else the expression."""
    if not isinstance(e, Call) or e.function != function:
        return (e,)
    return tuple(x for a in e.args for x in operands_of(function, a))


def all_of(conditions: Iterable[Expr]) -> Expr | None:
    """The condition that all of these hold; None of none."""
    return reduce(lambda a, b: b if a is None else Call("and", (a, b)), conditions, None)


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    return Call("select", (condition, a, b))


ZERO, ONE, TWO, INFINITY = Int(0), Int(1), Int(2), Float(math.inf)
SMALL_POWERS = range(1, 17)  # exponents for which kernels multiply
NAMED_LITERALS = {"inf": math.inf, "pi": math.pi, "nan": math.nan}
FUNCTIONS: dict[str, ScalarFunction] = {}


def _row(name, arity, result, numpy=None, torch=None, pullback=None, symbol=None, precedence=0, triton=None):
    low, high = arity if isinstance(arity, tuple) else (arity, arity)
    FUNCTIONS[name] = ScalarFunction(name, (low, high), result, numpy, torch, pullback, triton, symbol, precedence)


def _unary(name, numpy, torch, derivative, result="float", triton=None):
    """A function of one argument whose pullback multiplies by `derivative(x, f)`; None where that is zero."""
    pullback = None if derivative is None else lambda g, a, f: (g * derivative(a[0], f),)
    _row(name, 1, result, numpy, torch, pullback, triton=triton or f"libdevice.{name}({{0}})")


def _trunc_divide(a, b):
    if np.issubdtype(np.result_type(a, b), np.floating):
        return np.true_divide(a, b)
    a, b = np.asarray(a, np.int64), np.asarray(b, np.int64)
    divisor = np.where((b == 0) | (b == -1), 1, b)
    quotient = a // divisor + ((a % divisor != 0) & ((a < 0) != (divisor < 0)))
    return np.where(b == 0, 0, np.where(b == -1, -a, quotient))


def _raise(x, y):
    """As torch's of two tensors: a negative power of an integer is truncated, and 0 of 0."""
    if np.issubdtype(np.result_type(x, y), np.floating):
        return np.power(x, y)
    negative = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y % 2), 0))
    return np.where(y < 0, negative, np.power(x, np.maximum(y, 0)))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x):
    x = np.asarray(x, np.float64)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _cdf(x: Expr) -> Expr:
    return Float(0.5) * (ONE + call("erf", x * Float(math.sqrt(0.5))))


def _density(x: Expr) -> Expr:
    return Float(1 / math.sqrt(2 * math.pi)) * call("exp", Float(0.5) * (-(x * x)))


def _where(condition: Expr, value: Expr) -> Expr:
    """`value` where the condition holds and 0 elsewhere, in the form in which gradients keep conditions apart."""
    return _select(condition, value, ZERO)


def _extremum(order: str) -> Pullback:
    """The winner takes the cotangent; a tie shares it, as torch.maximum does."""

    def pullback(g, args, f):
        def side(x, y):
            return _where(call(order, x, y), g * _select(call("eq", x, y), Float(0.5), ONE))

        return side(args[0], args[1]), side(args[1], args[0])

    return pullback


def _clamp(g, args, f):
    """Inside the limits, ends included, the value takes the cotangent, elsewhere the limit that holds, as in torch."""
    x, low, high = args
    inside = call("and", call("ge", x, low), call("le", x, high))
    least = call("and", call("lt", low, high), call("lt", x, low))
    most = call("or", call("gt", x, high), call("gt", low, high))
    return _where(inside, g), _where(least, g), _where(most, g)


def _power(g, args, f):
    """A literal exponent is spelled out: x^2 has 2*x, x^1 has 1. Elsewhere the conditions keep 0 * inf away."""
    x, y = args
    match y:
        case Int(0):
            dx = None
        case Int(1):
            dx = g
        case Int(2):
            dx = g * TWO * x
        case Int(n):
            dx = g * y * call("pow", x, Int(n - 1))
        case _:
            dx = _where(call("ne", y, ZERO), g * y * call("pow", x, y + -ONE))  # a truth has no `-`
    constant = call("and", call("eq", x, ZERO), call("ge", y, ZERO))
    return dx, _select(constant, ZERO, g * f * call("log", x))


def _logaddexp(g, args, f):
    def side(x):  # where x is -inf, whatever it is made of has no part in the result
        return _where(call("ne", x, -INFINITY), g * call("exp", x - f))

    return side(args[0]), side(args[1])


def _relu(g, args, f):
    """A result that is a tensor says as much as the argument, which may be made of sums that were rounded since."""
    return (_where(call("gt", f if isinstance(f, (Access, Name)) else args[0], ZERO), g),)


# operators: loose to tight, as the grammar has them; `?:` is precedence 1
_row("select", 3, "select", lambda c, a, b: np.where(np.asarray(c) != 0, a, b), "torch.where({0}, {1}, {2})",
     lambda g, a, f: (None, _where(a[0], g), _select(a[0], ZERO, g)), "?:", 1,
     "tl.where({0}, {1}, {2})")  # fmt: skip
_row("xor", 2, "bits", np.bitwise_xor, "({0} ^ {1})", None, "^", 2, "({0} ^ {1})")
_row("or", 2, "bits", np.bitwise_or, "({0} | {1})", None, "|", 3, "({0} | {1})")
_row("and", 2, "bits", np.bitwise_and, "({0} & {1})", None, "&", 4, "({0} & {1})")
for _name, _symbol, _precedence, _numpy in (
    ("eq", "==", 5, np.equal),
    ("ne", "!=", 5, np.not_equal),
    ("lt", "<", 6, np.less),
    ("gt", ">", 6, np.greater),
    ("le", "<=", 6, np.less_equal),
    ("ge", ">=", 6, np.greater_equal),
):
    _row(_name, 2, "bool", _numpy, f"({{0}} {_symbol} {{1}})", None, _symbol, _precedence, f"({{0}} {_symbol} {{1}})")
_row("shl", 2, "bits", np.left_shift, "({0} << {1})", None, "<<", 7, "shift_left_({0}, {1})")
_row("shr", 2, "bits", np.right_shift, "({0} >> {1})", None, ">>", 7, "shift_right_({0}, {1})")
_row("add", 2, "promote", np.add, "({0} + {1})", lambda g, a, f: (g, g), "+", 8, "({0} + {1})")
_row("sub", 2, "promote", np.subtract, "({0} - {1})", lambda g, a, f: (g, -g), "-", 8, "({0} - {1})")
_row("mul", 2, "promote", np.multiply, "({0} * {1})", lambda g, a, f: (g * a[1], g * a[0]), "*", 9, "({0} * {1})")
_row("div", 2, "division", _trunc_divide, "({0} / {1})", lambda g, a, f: (g / a[1], -(g * f / a[1])), "/", 9,
     "divide_({0}, {1})")  # fmt: skip
_row("mod", 2, "promote", np.mod, "torch.remainder({0}, {1})",
     lambda g, a, f: (g, -(g * call("floor", a[0] / a[1]))), "%", 9,
     "remainder_({0}, {1})")  # fmt: skip
_row("neg", 1, "promote", np.negative, "(-{0})", lambda g, a, f: (-g,), "-", 10, "(-{0})")
_row("not", 1, "bits", np.invert, "(~{0})", None, "~", 10, "(~{0})")

_unary("abs", np.abs, "torch.abs({0})", lambda x, f: call("sign", x), "promote", "tl.abs({0})")
_unary("exp", np.exp, "torch.exp({0})", lambda x, f: f, triton="exp_({0})")
_row("log", 1, "float", np.log, "torch.log({0})", lambda g, a, f: (g / a[0],), triton="libdevice.log({0})")
_row("sqrt", 1, "float", np.sqrt, "torch.sqrt({0})", lambda g, a, f: (g / (TWO * f),), triton="libdevice.sqrt({0})")
_unary("rsqrt", lambda x: 1 / np.sqrt(x), "torch.rsqrt({0})", lambda x, f: -(f * f * f) * Float(0.5))
_row("pow", 2, "promote", _raise, "torch.pow({0}, {1})", _power, triton="power_({0}, {1})")
_unary("sin", np.sin, "torch.sin({0})", lambda x, f: call("cos", x))
_unary("cos", np.cos, "torch.cos({0})", lambda x, f: -call("sin", x))
_unary("tan", np.tan, "torch.tan({0})", lambda x, f: ONE + f * f)
_unary("asin", np.arcsin, "torch.asin({0})", lambda x, f: call("rsqrt", ONE - x * x))
_unary("acos", np.arccos, "torch.acos({0})", lambda x, f: -call("rsqrt", ONE - x * x))
_row("atan", 1, "float", np.arctan, "torch.atan({0})", lambda g, a, f: (g / (ONE + a[0] * a[0]),),
     triton="libdevice.atan({0})")  # fmt: skip
_row("atan2", 2, "float", np.arctan2, "torch.atan2({0}, {1})",
     lambda g, a, f: (g * a[1] / (a[0] * a[0] + a[1] * a[1]), -(g * a[0] / (a[0] * a[0] + a[1] * a[1]))),
     triton="libdevice.atan2({0}, {1})")  # fmt: skip
_unary("sinh", np.sinh, "torch.sinh({0})", lambda x, f: call("cosh", x))
_unary("cosh", np.cosh, "torch.cosh({0})", lambda x, f: call("sinh", x))
_unary("tanh", np.tanh, "torch.tanh({0})", lambda x, f: ONE - f * f)
_unary("sigmoid", _sigmoid, "torch.sigmoid({0})", lambda x, f: f * (ONE - f), triton="sigmoid_({0})")
_row("relu", 1, "promote", lambda x: np.where(np.isnan(x) | (x > 0), x, 0), "torch.relu({0})",
     _relu, triton="maximum_({0}, 0)")  # fmt: skip
_row("max", 2, "promote", np.maximum, "torch.maximum({0}, {1})", _extremum("ge"),
     triton="maximum_({0}, {1})")  # fmt: skip
_row("min", 2, "promote", np.minimum, "torch.minimum({0}, {1})", _extremum("le"),
     triton="minimum_({0}, {1})")  # fmt: skip
_row("clamp", 3, "promote", lambda x, low, high: np.minimum(np.maximum(x, low), high),
     "torch.minimum(torch.maximum({0}, {1}), {2})", _clamp,
     triton="minimum_(maximum_({0}, {1}), {2})")  # fmt: skip
_unary("floor", np.floor, "torch.floor({0})", None, "promote")
_unary("ceil", np.ceil, "torch.ceil({0})", None, "promote")
_unary("round", np.round, "torch.round({0})", None, "promote", "libdevice.rint({0})")
_unary("erf", _erf, "torch.erf({0})", lambda x, f: Float(2 / math.sqrt(math.pi)) * call("exp", -(x * x)))
_unary("gelu", lambda x: 0.5 * x * (1 + _erf(np.asarray(x) * math.sqrt(0.5))), "rt.gelu_in_any_layout({0})",
       lambda x, f: _cdf(x) + x * _density(x), triton="gelu_({0})")  # fmt: skip
_unary("silu", lambda x: x * _sigmoid(x), "torch.nn.functional.silu({0})",
       lambda x, f: call("sigmoid", x) * (ONE + x * (ONE - call("sigmoid", x))), triton="silu_({0})")  # fmt: skip
_unary("softplus", lambda x: np.logaddexp(x, 0), "torch.logaddexp({0}, torch.zeros_like({0}))",
       lambda x, f: call("sigmoid", x), triton="softplus_({0})")  # fmt: skip
_row(
    "log1p",
    1,
    "float",
    np.log1p,
    "torch.log1p({0})",
    lambda g, a, f: (g / (ONE + a[0]),),
    triton="libdevice.log1p({0})",
)
_unary("expm1", np.expm1, "torch.expm1({0})", lambda x, f: f + ONE)
_row("logaddexp", 2, "float", np.logaddexp, "torch.logaddexp({0}, {1})", _logaddexp, triton="logaddexp_({0}, {1})")
_unary(
    "sign",
    lambda x: x if np.result_type(x).kind == "b" else np.where(x != x, 0, np.sign(x)),  # of NaN 0, as torch
    "torch.sign({0})",
    None,
    "promote",
    "sign_({0})",
)
_row("ident", 1, "promote", lambda x: x, "{0}", lambda g, a, f: (g,), triton="{0}")
_unary("recip", lambda x: 1 / x, "torch.reciprocal({0})", lambda x, f: -(f * f), triton="divide_(1, {0})")
_row("reverse_grad", 2, "like0", lambda x, s: np.broadcast_arrays(x, s)[0], "{0}",
     lambda g, a, f: (-(g * a[1]), None), triton="{0}")  # fmt: skip

# casts: `float32(x)` and friends; `as_type(x, Y)` is x in the element type of Y (what a gradient ends with)
for _dtype in CASTS:
    _row(_dtype, 1, _dtype, None, f"{{0}}.to(torch.{_dtype})", (lambda g, a, f: (g,)) if _dtype in FLOATS else None)
_row("bool", 1, "bool", lambda x: np.asarray(x) != 0, "{0}.to(torch.bool)")
_row("uint16", 1, "int64", lambda x: np.asarray(x, np.int64) % 2**16, "torch.remainder({0}.to(torch.int64), 2**16)")
_row("uint32", 1, "int64", lambda x: np.asarray(x, np.int64) % 2**32, "torch.remainder({0}.to(torch.int64), 2**32)")
_row("as_type", 2, "like1", None, "{0}.to({1}.dtype)", lambda g, a, f: (g, None))
_row("as_scalar", 1, "like0", lambda x: x, pullback=lambda g, a, f: (g,))  # x, which promotes as a tensor of rank 0

# structural: the first argument is a whole tensor; `bind` turns them into contractions
_row("index", 2, "int64")
_row("shape", (1, 2), "int64")
_row("reshape", (2, 99), "structural")
_row("gather", 2, "structural")
_row("scatter", 3, "structural")
_row("simple_reduce", 2, "structural")

# size arithmetic
_row("same", (2, 99), "int64")  # the one value that all the arguments have; an error where they differ

# random numbers (ir/philox): of a seed and a counter; the counter left out is the position in an elementwise statement
_row("rand", (1, 2), "random", philox.uniform, "rt.philox.uniform({0}, {1})", triton="rand_({0}, {1})")
_row("randn", (1, 2), "random", philox.normal, "rt.philox.normal({0}, {1})", triton="randn_({0}, {1})")

OPERATORS = {(f.symbol, f.arity[1]): f.name for f in FUNCTIONS.values() if f.symbol}
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "gt", "le", "ge")
}
ROUNDING = ("floor", "ceil", "round")  # leave an integer as it is
STRUCTURAL = ("reshape", "gather", "scatter", "simple_reduce")
RANDOM = ("rand", "randn")


def draws(*roots: Expr) -> bool:
    """Is a random number drawn in these expressions, their indices included?"""
    return any(isinstance(e, Call) and e.function in RANDOM for e in walk(*roots))


def counts_positions(e: Expr) -> bool:
    """Is this a draw whose number is its place in the elementwise statement?"""
    return isinstance(e, Call) and e.function in RANDOM and len(e.args) == 1


_ONE_INSTRUCTION = ("maximum_", "minimum_")


def _calling(wanted: Callable[[str], bool]) -> frozenset[str]:
    """The functions whose Triton text calls one that is wanted."""
    return frozenset(f.name for f in FUNCTIONS.values() if any(map(wanted, re.findall(r"([\w.]+)\(", f.triton or ""))))


# what a device's library computes, and what else divides or takes many instructions: computed once where it can be
LIBRARY_FUNCTIONS = _calling(lambda called: called.startswith("libdevice.") or called == "exp_")
COSTLY_FUNCTIONS = LIBRARY_FUNCTIONS | _calling(lambda called: called.endswith("_") and called not in _ONE_INSTRUCTION)
