"""Packages whose sizes are given at the call: which these are, and what is asked of them, in Python and in C."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilec.arguments import OPEN_SIZE, Spec
from tilec.errors import InputMistake, Unsupported
from tilec.ir.shape_class import SMALLEST_OPEN, Recorder, apart_from_fixed
from tilec.ir.symbolic import Size, is_open_number
from tilec.package.loader import OPEN_SIZE_FUNCTIONS

USUAL = 1024  # what an open size is planned for where its name says nothing
C_OPERATORS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=", ast.And: "&&", ast.Or: "||",
}  # fmt: skip
C_CALLS = {ast.FloorDiv: "floor_div", ast.Mod: "floor_mod", ast.LShift: "shifted", ast.Pow: "std::pow"}
C_FUNCTIONS = r"""
// Sizes as Python computes with them.
[[maybe_unused]] int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
[[maybe_unused]] int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }
[[maybe_unused]] int64_t shifted(int64_t a, int64_t b) { return a * ((int64_t)1 << b); }
[[maybe_unused]] int64_t bit_length(int64_t n) {
  int64_t count = 0;
  for (uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n; left; left >>= 1) ++count;
  return count;
}
[[maybe_unused]] int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    a %= b;
    std::swap(a, b);
  }
  return a < 0 ? -a : a;
}
[[maybe_unused]] int64_t _isqrt(int64_t n) {
  int64_t root = (int64_t)std::sqrt((double)n);
  while (root * root > n) --root;
  while ((root + 1) * (root + 1) <= n) ++root;
  return root;
}
[[maybe_unused]] double _as_float(int64_t n) { return (double)n; }
[[maybe_unused]] double _fit(double n) { return n; }
[[maybe_unused]] double _single(double n) { return (double)(float)n; }
[[maybe_unused]] double _inverse_of(double n) { return (double)(1.0f / (float)n); }

int outside(const char *function, const char *condition,
            std::initializer_list<std::pair<const char *, int64_t>> sizes) {
  message = std::string(function) + " was built for sizes for which " + condition + "; here";
  for (const auto &size : sizes) message += std::string(" ") + size.first + " = " + std::to_string(size.second);
  return -1;
}
"""


def with_open_sizes(args: Sequence[object], recorder: Recorder) -> list[object]:
    """The arguments with open sizes in the place of names in shapes: `N`, or `N:1000` where plans are made for 1000."""
    values: dict[str, int] = {}
    for arg in args:
        for n in arg.shape if isinstance(arg, Spec) else ():
            if isinstance(n, str):
                found = OPEN_SIZE.fullmatch(n)
                assert found is not None
                name, value = found[1], int(found[2] or values.get(found[1], USUAL))
                if value < SMALLEST_OPEN:
                    raise InputMistake(f"the size {name} is open, and {value} is too small for that", hint="at least 8")
                if found[2] and values.setdefault(name, value) != value:
                    raise InputMistake(f"the size {name} is {values[name]} and {value}")
                values.setdefault(name, value)
    sizes = {name: recorder.symbol(f"size_{name}", value) for name, value in values.items()}

    def opened(n: int | str) -> Any:
        found = OPEN_SIZE.fullmatch(n) if isinstance(n, str) else None
        return n if found is None else sizes[found[1]]

    return [replace(a, shape=tuple(map(opened, a.shape))) if isinstance(a, Spec) else a for a in args]


def described_sizes(recorder: Recorder, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """What an entry says of its open sizes: names, values that it was planned for, where they stand in inputs, and the
    conditions of their class."""
    places: dict[str, list[Any]] = {}
    for name, shape in shapes.items():
        for axis, n in enumerate(shape):
            if type(n) is Size and (text := n.text) in recorder.names:
                places.setdefault(text, [name, axis])
    missing = [n for n in recorder.names if n not in places]
    assert not missing, missing
    conditions = [*(f"{n} >= {SMALLEST_OPEN}" for n in recorder.names), *recorder.guards]
    fixed = sorted({n for shape in shapes.values() for n in shape if not is_open_number(n)})
    conditions += [f"{text} != {n}" for text in apart_from_fixed(recorder, recorder.names) for n in fixed]
    for text in conditions:
        c_text(text)  # which says what a launcher cannot compute
    return {"sizes": {n: recorder.value(n) for n in recorder.names}, "places": places, "conditions": conditions}


def as_json(x: Any) -> Any:
    """A part of a manifest with texts in the place of numbers that depend on open sizes."""
    if is_open_number(x):
        c_text(x.text)
        return {"of": x.text}
    if isinstance(x, dict):
        return {k: as_json(v) for k, v in x.items()}
    return [as_json(y) for y in x] if isinstance(x, list | tuple) else x


class SizeText(str):
    """C text of a number."""

    def __mul__(self, other: Any) -> SizeText:  # type: ignore[override]
        return SizeText(f"({self} * {other})")

    __rmul__ = __mul__  # type: ignore[assignment]


def in_c(x: Any) -> Any:
    """A part of a manifest with C texts in the place of numbers that depend on open sizes."""
    if isinstance(x, dict):
        return SizeText(c_text(x["of"])) if x.keys() == {"of"} else {k: in_c(v) for k, v in x.items()}
    return [in_c(y) for y in x] if isinstance(x, list) else x


def c_text(text: str) -> str:
    """A number or a condition in C. Raises Unsupported for functions that a launcher has not."""
    return _c(ast.parse(text, mode="eval").body)


def _c(e: ast.AST) -> str:
    match e:
        case ast.Name(name):
            return name
        case ast.Constant(bool(value)):
            return str(value).lower()
        case ast.Constant(int(value)):
            return f"INT64_C({value})"
        case ast.Constant(float(value)):
            return value.hex()
        case ast.UnaryOp(op, operand):
            return f"({'!' if isinstance(op, ast.Not) else '-'}{_c(operand)})"
        case ast.BinOp(left, ast.Div(), right):
            return f"((double){_c(left)} / (double){_c(right)})"
        case ast.BinOp(left, op, right) if type(op) in C_CALLS:
            return f"{C_CALLS[type(op)]}({_c(left)}, {_c(right)})"
        case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in C_OPERATORS:
            return f"({_c(left)} {C_OPERATORS[type(op)]} {_c(right)})"
        case ast.BoolOp(op, values):
            return f"({f' {C_OPERATORS[type(op)]} '.join(map(_c, values))})"
        case ast.Call(ast.Attribute(n, "bit_length"), []):
            return f"bit_length({_c(n)})"
        case ast.Call(ast.Name("gcd"), [first, *others]):
            return _gcd(_c(first), map(_c, others))
        case ast.Call(ast.Name("_fit"), [_, ast.Constant(dtype)]) if dtype not in ("float32", "int64"):
            pass
        case ast.Call(ast.Name(name), [n, *_]) if name in OPEN_SIZE_FUNCTIONS:
            return f"{name}({_c(n)})"
    raise Unsupported(f"a package computes no size by {ast.unparse(e)}", hint="give this size as a number")


def _gcd(found: str, others: Iterable[str]) -> str:
    for n in others:
        found = f"gcd({found}, {n})"
    return found
