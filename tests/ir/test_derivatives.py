"""Every pullback of the table of functions against SymPy's derivative of the function's definition."""

from __future__ import annotations

from math import inf

import pytest
import sympy
from sympy import Rational

from tilec.ir.functions import COSTLY_FUNCTIONS, FUNCTIONS, LIBRARY_FUNCTIONS, is_infinite
from tilec.ir.program import Call, Expr, Float, Int, Name
from tilec.ir.types import CASTS, FLOATS

X, Y, G = sympy.symbols("x y g", real=True)

# What each function means, written independently of the table, of x or of x and y.
MEANING = {
    "add": X + Y,
    "sub": X - Y,
    "mul": X * Y,
    "div": X / Y,
    "mod": X - Y * sympy.floor(X / Y),
    "neg": -X,
    "abs": sympy.Abs(X),
    "exp": sympy.exp(X),
    "log": sympy.log(X),
    "sqrt": sympy.sqrt(X),
    "rsqrt": 1 / sympy.sqrt(X),
    "pow": X**Y,
    "sin": sympy.sin(X),
    "cos": sympy.cos(X),
    "tan": sympy.tan(X),
    "asin": sympy.asin(X),
    "acos": sympy.acos(X),
    "atan": sympy.atan(X),
    "atan2": sympy.atan2(X, Y),
    "sinh": sympy.sinh(X),
    "cosh": sympy.cosh(X),
    "tanh": sympy.tanh(X),
    "sigmoid": 1 / (1 + sympy.exp(-X)),
    "relu": sympy.Max(X, 0),
    "max": sympy.Max(X, Y),
    "min": sympy.Min(X, Y),
    "erf": sympy.erf(X),
    "gelu": X * (1 + sympy.erf(X / sympy.sqrt(2))) / 2,
    "silu": X / (1 + sympy.exp(-X)),
    "softplus": sympy.log(1 + sympy.exp(X)),
    "log1p": sympy.log(1 + X),
    "expm1": sympy.exp(X) - 1,
    "logaddexp": sympy.log(sympy.exp(X) + sympy.exp(Y)),
    "ident": X,
    "recip": 1 / X,
    **{dtype: X for dtype in FLOATS},
}
# No derivative: the value is constant between jumps, or is a truth, a bit pattern, an integer, or a draw.
FLAT = {"floor", "ceil", "round", "sign"}
FLAT |= {name for name, f in FUNCTIONS.items() if f.result in ("bool", "bits", "int64", "random")}
WHOLE = {"reshape", "gather", "scatter", "simple_reduce"}
# Not the derivative of anything SymPy knows; `test_grad` has them.
BY_HAND = {"clamp", "select", "reverse_grad", "as_type", "as_scalar"}

POSITIVE = [Rational(1, 3), Rational(7, 5), Rational(11, 4)]
ANY = [-Rational(9, 4), -Rational(2, 7), *POSITIVE]
INNER = [-Rational(3, 4), Rational(1, 8), Rational(5, 6)]
DOMAIN = {"log": POSITIVE, "sqrt": POSITIVE, "rsqrt": POSITIVE, "pow": POSITIVE, "asin": INNER, "acos": INNER}
DOMAIN["log1p"] = INNER
COMPARE = {"eq": "Eq", "ne": "Ne", "lt": "Lt", "gt": "Gt", "le": "Le", "ge": "Ge"}


def number(e: Expr, values: dict[str, sympy.Expr]) -> sympy.Expr:
    """The value of a pullback's expression, with SymPy for a calculator."""
    match e:
        case Int(value) | Float(value):
            return sympy.oo if value == float("inf") else sympy.sympify(value)
        case Name(name):
            return values[name]
        case Call("select", (c, a, b)):
            return number(a if number(c, values) else b, values)
        case Call("and", (a, b)):
            return sympy.And(number(a, values), number(b, values))
        case Call(function, args) if function in COMPARE:
            return getattr(sympy, COMPARE[function])(*(number(a, values) for a in args))
        case Call("sign" | "floor" as function, (a,)):
            return getattr(sympy, function)(number(a, values))
        case Call(function, args):
            return MEANING[function].subs(dict(zip((X, Y), [number(a, values) for a in args], strict=False)))
    raise AssertionError(e)


def test_every_row_is_accounted_for():
    integers = {dtype for dtype in CASTS if dtype not in FLOATS}
    missing = set(FUNCTIONS) - (set(MEANING) | FLAT | WHOLE | BY_HAND | integers)
    assert not missing, f"MEANING lacks {sorted(missing)}: what SymPy is to differentiate"
    assert set(MEANING) | FLAT | WHOLE | BY_HAND | integers <= set(FUNCTIONS)
    for name in FLAT | WHOLE | integers:
        assert FUNCTIONS[name].pullback is None, name


@pytest.mark.parametrize("name", sorted(MEANING))
def test_pullback_is_the_derivative(name):
    variables = (X, Y)[: FUNCTIONS[name].arity[0]]
    args = tuple(Name(str(v).upper()) for v in variables)
    cotangents = FUNCTIONS[name].pullback(Name("G"), args, Call(name, args))
    points = DOMAIN.get(name, ANY)
    checked = 0
    for x in points:
        for y in ANY if len(variables) > 1 else [0]:
            if name in ("max", "min") and x == y:
                continue
            values = {"X": x, "Y": y, "G": Rational(3, 2)}
            for v, cotangent in zip(variables, cotangents, strict=True):
                expected = Rational(3, 2) * sympy.diff(_smooth(name, x, y), v).subs({X: x, Y: y})
                assert abs(sympy.N(number(cotangent, values) - expected, 30)) < 1e-14 * max(1, abs(expected.evalf()))
                checked += 1
    assert checked >= 3


def _smooth(name: str, x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
    """The definition around a point that is no jump."""
    return X - Y * sympy.floor(x / y) if name == "mod" else MEANING[name]


@pytest.mark.parametrize("n", range(5))
def test_literal_powers(n):
    args = (Name("X"), Int(n))
    dx, _ = FUNCTIONS["pow"].pullback(Name("G"), args, Call("pow", args))
    for x in (-Rational(5, 3), Rational(0), Rational(7, 4)):
        expected = Rational(3, 2) * sympy.diff(X**n, X).subs(X, x)
        assert (0 if dx is None else number(dx, {"X": x, "G": Rational(3, 2)})) == expected


@pytest.mark.parametrize("name", ["max", "min"])
def test_two_argument_extrema_share_ties(name):
    args = (Name("X"), Name("Y"))
    values = {"X": Rational(2), "Y": Rational(2), "G": Rational(3)}
    pulled = FUNCTIONS[name].pullback(Name("G"), args, Call(name, args))
    assert [float(number(c, values)) for c in pulled] == [1.5, 1.5]


def test_relu_is_flat_at_zero():
    (dx,) = FUNCTIONS["relu"].pullback(Name("G"), (Name("X"),), Call("relu", (Name("X"),)))
    assert number(dx, {"X": Rational(0), "G": Rational(3)}) == 0


def test_what_is_costly_is_what_calls_the_library_or_our_functions():
    library = "acos asin atan atan2 ceil cos cosh erf exp expm1 floor log log1p round rsqrt sin sinh sqrt tan tanh"
    ours = "div gelu logaddexp mod pow rand randn recip shl shr sigmoid sign silu softplus"
    cheap = "add sub mul neg and or not xor eq lt select abs max min clamp relu ident bool float32 reshape"
    assert set(library.split()) <= LIBRARY_FUNCTIONS <= COSTLY_FUNCTIONS
    assert set(ours.split()) <= COSTLY_FUNCTIONS - LIBRARY_FUNCTIONS
    assert COSTLY_FUNCTIONS.isdisjoint(cheap.split())


def test_literal_infinities() -> None:
    """Of either sign, negated or not; what is zero is none."""
    literals = (Float(inf), Float(-inf), Call("neg", (Float(inf),)), Float(2.0), Int(0))
    assert [is_infinite(e) for e in literals] == [True, True, True, False, False]
