"""Expressions that one call computes in one pass: torch's pointwise routines and their derivatives, where the values
are those of the expression, at NaN and at zeros with a sign too; sums of tests by numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeGuard

from tilec.backends.common.scalars import INTEGER_BITS
from tilec.ir.index import linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Int, walk
from tilec.ir.rational import as_int
from tilec.ir.types import Types
from tilec.language import parse

_Bound = Mapping[str, Expr]


@dataclass(frozen=True)
class PointwiseRoutine:
    """`pattern`: the expression, of tensors and of numbers (`S[]`); `call`: its text, of these; `out`: the argument
    that takes where the result goes, if there is one; `admits`: of the numbers."""

    pattern: Expr
    call: str
    out: str
    admits: Callable[[Mapping[str, float]], bool]


@dataclass(frozen=True)
class PointwiseMatch:
    """A routine, the tensors that it is called with, by their names in the text, and the numbers."""

    routine: PointwiseRoutine
    tensors: Mapping[str, Expr]
    numbers: Mapping[str, float]


def _any(numbers: Mapping[str, float]) -> bool:
    return all(not math.isnan(n) for n in numbers.values())


def _slope(numbers: Mapping[str, float]) -> bool:
    return 0 <= numbers["S"] < math.inf


def _limits(numbers: Mapping[str, float]) -> bool:
    return numbers["L"] < numbers["H"]


_LEAKY = "torch.ops.aten.leaky_relu({X}, {S})"
_CLAMP = "torch.clamp({X}, {L}, {H})"
_ROWS = (  # as differentiation writes them, where they are derivatives
    (
        "G[i] * (0.5 * (1 + erf(X[i] * 0.7071067811865476)) + X[i] * (0.3989422804014327 * exp(0.5 * -(X[i] * X[i]))))",
        *("rt.gelu_gradient({G}, {X})", "out", _any),
    ),
    (
        "G[i] * (sigmoid(X[i]) * (1 + X[i] * (1 - sigmoid(X[i]))))",
        *("torch.ops.aten.silu_backward({G}, {X})", "grad_input", _any),
    ),
    ("X[i] > 0 ? X[i] : X[i] * S[]", _LEAKY, "out", _any),
    ("X[i] <= 0 ? X[i] * S[] : X[i]", _LEAKY, "out", _any),
    ("X[i] >= 0 ? X[i] : X[i] * S[]", _LEAKY, "out", _slope),
    ("X[i] < 0 ? X[i] * S[] : X[i]", _LEAKY, "out", _slope),
    ("X[i] > 0 ? G[i] : G[i] * S[]", "torch.ops.aten.leaky_relu_backward({G}, {X}, {S}, False)", "grad_input", _any),
    ("X[i] * min(max(X[i] + 3, 0), 6) / 6", "torch.ops.aten.hardswish({X})", "out", _any),
    ("X[i] * min(relu(X[i] + 3), 6) / 6", "torch.ops.aten.hardswish({X})", "out", _any),
    ("min(max(X[i] + 3, 0), 6) / 6", "torch.ops.aten.hardsigmoid({X})", "out", _any),
    ("min(relu(X[i] + 3), 6) / 6", "torch.ops.aten.hardsigmoid({X})", "out", _any),
    ("min(max(X[i], L[]), H[])", _CLAMP, "out", _any),
    ("max(min(X[i], H[]), L[])", _CLAMP, "out", _limits),
    (
        "max(X[i], L[]) <= H[] & X[i] >= L[] ? G[i] * (max(X[i], L[]) == H[] ? 0.5 : 1) * (X[i] == L[] ? 0.5 : 1) : 0",
        *("rt.between_limits({G}, {X}, {L}, {H})", "out", _limits),
    ),
    (
        "min(X[i], H[]) >= L[] & X[i] <= H[] ? G[i] * (min(X[i], H[]) == L[] ? 0.5 : 1) * (X[i] == H[] ? 0.5 : 1) : 0",
        *("rt.between_limits({G}, {X}, {L}, {H})", "out", _limits),
    ),
    ("X[i] >= L[] ? G[i] * (X[i] == L[] ? 0.5 : 1) : 0", "rt.between_limits({G}, {X}, {L}, float('inf'))", "out", _any),
    (
        "X[i] <= H[] ? G[i] * (X[i] == H[] ? 0.5 : 1) : 0",
        "rt.between_limits({G}, {X}, -float('inf'), {H})",
        "out",
        _any,
    ),
)


@lru_cache
def _routines() -> Mapping[str, tuple[PointwiseRoutine, ...]]:
    """Those of the table by the function of the whole expression."""
    found: dict[str, list[PointwiseRoutine]] = {}
    for text, call, out, admits in _ROWS:
        body = parse(f"function (X[N], G[N], S[], L[], H[]) -> (Y) {{ Y[i : N] = {text}; }}").statements[0].body
        assert isinstance(body, Call)
        found.setdefault(body.function, []).append(PointwiseRoutine(body, call, out, admits))
    return {function: tuple(rows) for function, rows in found.items()}


@lru_cache(maxsize=4096)
def routine_of(e: Expr) -> PointwiseMatch | None:
    """The routine that computes a floating expression, all of whose tensors are no numbers."""
    if not isinstance(e, Call):
        return None
    for routine in _routines().get(e.function, ()):
        bound = _matched(routine.pattern, e, {})
        if bound is None:
            continue
        numbers = {name: n for name, x in bound.items() if (n := _number(x)) is not None}
        if routine.admits(numbers):
            return PointwiseMatch(routine, {n: x for n, x in bound.items() if n not in numbers}, numbers)
    return None


def _matched(p: Expr, e: Expr, bound: _Bound) -> _Bound | None:
    """What the names of a pattern stand for, given what some of them do."""
    match p:
        case Access(name, index):
            fits = (_number(e) is None) == bool(index) and bound.get(name, e) == e
            return {**bound, name: e} if fits else None
        case Int() | Float():
            return bound if _number(e) == p.value else None
        case Call() if isinstance(e, Call) and e.function == p.function and len(e.args) == len(p.args):
            for args in (e.args, e.args[::-1])[: 2 if e.function in _COMMUTATIVE else 1]:
                found: _Bound | None = bound
                for x, y in zip(p.args, args, strict=True):
                    found = None if found is None else _matched(x, y, found)
                if found is not None:
                    return found
    return None


def _number(e: Expr) -> float | None:
    """The value of a literal, or of its negation."""
    match e:
        case Int(n) | Float(n):
            return float(n)
        case Call("neg", (Int(n) | Float(n),)):
            return -float(n)
    return None


def tested_bit(e: Expr, types: Types) -> tuple[Expr, int] | None:
    """The integers of which `(a >> n & 1) == 1` tests a bit, and the number of their type that has this bit."""
    match e:
        case Call("eq", (Call("and", (Call("shr", (x, place)), one)), same)) if one == same:
            n = _constant(place)
            while isinstance(one, Call) and one.function in _COUNTED:
                one = one.args[0]
            bits, signed = INTEGER_BITS.get(expression_type(x, types).dtype, (0, True))
            return (x, 1 << n) if one == Int(1) and n is not None and 0 <= n < bits - signed else None
    return None


def shared_by_bits(e: Expr, types: Types) -> tuple[Expr, Expr, int] | None:
    """The values and the integers of which `x / int64(a >> n)` is the quotient, and n."""
    match e:
        case Call("div", (Access() as x, Call("int64", (Call("shr", (a, place)),)))):
            n, integer = _constant(place), expression_type(a, types).dtype
            known = integer in _OF_BITS and expression_type(x, types).dtype in _SHARED
            return (x, a, n) if known and n is not None and 0 <= n < INTEGER_BITS[integer][0] else None
    return None


def _constant(e: Expr) -> int | None:
    """The value of an expression of integers alone."""
    if not all(isinstance(x, Int) or isinstance(x, Call) and x.function in _COMPUTED for x in walk(e)):
        return None
    return as_int(linear(e).constant)


_OF_BITS, _SHARED = ("uint8", "int16"), ("float32", "float64")
_COMPUTED = ("add", "sub", "mul", "neg")
_COMMUTATIVE = ("add", "mul", "max", "min", "and")
_TESTS, _COUNTED = ("eq", "ne", "lt", "le", "gt", "ge"), ("uint8", "int16", "int32", "int64")
MOST_COUNTED = 2**24  # up to which float32 has all integers


def tests_by_numbers(e: Expr) -> list[tuple[Call, int]] | None:
    """Comparisons and numbers of which `int16(a == b) * int16(3) + ...` is the sum of products, where all sums are
    numbers that float32 has."""
    found: list[tuple[Call, int]] = []
    stack = [e]
    while stack:
        match stack.pop():
            case Call("add", (a, b)):
                stack += [b, a]
            case Call("mul", (Call(cast, (Call(function) as test,)), n)) if cast in _COUNTED and function in _TESTS:
                n = n.args[0] if isinstance(n, Call) and n.function == cast else n
                if not isinstance(n, Int) or n.value < 0:
                    return None
                found.append((test, n.value))
            case _:
                return None
    return found if len(found) > 1 and sum(n for _, n in found) < MOST_COUNTED else None


@dataclass(frozen=True)
class MultiplyAdd:
    """`added + scale * factor`, or the product of two factors; `products`: the expressions that these stand for."""

    added: Expr
    scale: float
    factors: tuple[Expr, ...]
    products: tuple[Expr, ...]


def multiply_add(e: Expr) -> MultiplyAdd | None:
    """A sum or difference that one call computes."""
    if not isinstance(e, Call) or e.function not in ("add", "sub"):
        return None
    a, b = e.args
    for x, m in ((a, b), (b, a)) if e.function == "add" else ((a, b),):
        if not _is_product(m) or isinstance(x, Int | Float):
            continue
        scale: float = 1 if e.function == "add" else -1
        factors: tuple[Expr, ...] = m.args
        products: tuple[Expr, ...] = (m,)
        for n, other in (factors, factors[::-1]):
            if isinstance(n, Int | Float):
                scale, factors = scale * n.value, (other,)
                if _is_product(other):
                    factors, products = other.args, (m, other)
                break
        return MultiplyAdd(x, scale, factors, products)
    return None


def _is_product(e: Expr) -> TypeGuard[Call]:
    return isinstance(e, Call) and e.function == "mul" and routine_of(e) is None
