"""Sizes that stand for a class of sizes while a program is compiled.

A symbolic size has a value, that of the call which is compiled for, and is a polynomial in the sizes that are left
open. It counts as an integer wherever Python asks (`isinstance`, arithmetic), and every comparison is a guard: what is
made holds for all sizes with which each guard comes out the same. What needs the number itself, such as a library
written in C, asks for `__index__`, which raises Pinned: the size cannot be left open. So nothing that depends on a size
goes unnoticed, except that a dictionary or a set tells unequal hashes apart without asking: sizes of one compilation
have one hash, so that they are asked, and a guard of its own keeps what was hashed apart from sizes that are fixed.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilec.ir.shape_class import Recorder

Monomial = tuple[str, ...]  # names and Python texts of what is no sum or product, sorted
Polynomial = tuple[tuple[Monomial, int], ...]  # sorted, without zeros


class Pinned(Exception):
    """A size that was left open is needed as a number. `symbols`: which."""

    def __init__(self, symbols: Iterable[str]):
        self.symbols = frozenset(symbols)
        super().__init__(", ".join(sorted(self.symbols)))


class Size:
    """A symbolic size: what `isinstance` takes for an int, and C does not."""

    __slots__ = ("recorder", "terms", "value")
    __class__ = int  # type: ignore[assignment]

    def __init__(self, recorder: Recorder, terms: Polynomial, value: int):
        self.recorder, self.terms, self.value = recorder, terms, value

    def symbols(self) -> frozenset[str]:
        known = self.recorder.symbols_of
        return frozenset(s for monomial, _ in self.terms for atom in monomial for s in known[atom])

    @property
    def text(self) -> str:
        """Python text of the size, one expression."""
        pieces = []
        for monomial, c in self.terms:
            factors = [*([] if abs(c) == 1 and monomial else [str(abs(c))]), *monomial]
            pieces.append(("-" if c < 0 else "+") + "*".join(factors))
        text = "".join(pieces).removeprefix("+") or "0"
        return text if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1 else f"({text})"

    # as a number

    def __index__(self) -> int:
        raise self.recorder.pin(self)

    __int__ = __index__

    def __float__(self) -> float:
        raise self.recorder.pin(self)

    def __hash__(self) -> int:
        self.recorder.hashed[self.terms] = self.value
        return hash(id(self.recorder))  # one for all, so that those which meet are asked whether they are equal

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if spec:
            raise self.recorder.pin(self)
        return self.text

    numerator = real = property(lambda self: self)
    denominator = property(lambda self: 1)
    imag = property(lambda self: 0)

    def is_integer(self) -> bool:
        return True

    def __bool__(self) -> bool:
        return self != 0

    def __reduce__(self) -> Any:
        raise self.recorder.pin(self)

    def bit_length(self) -> Any:
        return _named(self.recorder, f"{self.text}.bit_length()", self.value.bit_length(), (self,))

    def __neg__(self) -> Any:
        return _product(self, -1)

    def __pos__(self) -> Any:
        return self

    __floor__ = __ceil__ = __trunc__ = __round__ = __pos__

    def __abs__(self) -> Any:
        return self if self >= 0 else -self  # type: ignore[operator]

    # arithmetic

    def __add__(self, other: Any) -> Any:
        return _sum(self, other, 1) if _whole(other) else _real(self, "+", other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _sum(self, other, -1) if _whole(other) else _real(self, "-", other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        if _whole(other):
            return _sum(_product(self, -1), other, 1)
        return _real(other, "-", self, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Any:
        return _product(self, other) if _whole(other) else _real(self, "*", other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if not _whole(other):
            return NotImplemented
        if type(other) is not Size and other == 1:
            return self
        return _atom(self, "//", self, other, lambda a, b: a // b)

    def __rfloordiv__(self, other: Any) -> Any:
        return _atom(self, "//", other, self, lambda a, b: a // b) if _whole(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        if not _whole(other):
            return NotImplemented
        if type(other) is not Size and other == 1:
            return 0
        return _atom(self, "%", self, other, lambda a, b: a % b)

    def __rmod__(self, other: Any) -> Any:
        return _atom(self, "%", other, self, lambda a, b: a % b) if _whole(other) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << other)

    def __rlshift__(self, other: Any) -> Any:
        if self < 0:  # type: ignore[operator]
            raise ValueError("negative shift count")
        return _named(self.recorder, f"({_text(other)}<<{self.text})", other << self.value, (self,))

    def __pow__(self, other: Any) -> Any:
        if type(other) is not int or not 0 <= other <= 4:
            raise self.recorder.pin(self)
        return math.prod([self] * other)

    # with floats

    def __truediv__(self, other: Any) -> Any:
        return _real(self, "/", other, lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> Any:
        return _real(other, "/", self, lambda a, b: a / b)


for _name in ("__rshift__", "__rrshift__", "__rpow__", "__and__",
              "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__invert__"):  # fmt: skip

    def _pinned(self: Size, *_: Any) -> Any:
        raise self.recorder.pin(self)

    setattr(Size, _name, _pinned)

numbers.Integral.register(Size)


class Real:
    """A floating number computed from symbolic sizes, such as a threshold: it can be computed with and compared."""

    __slots__ = ("recorder", "text", "value")
    __class__ = float  # type: ignore[assignment]

    def __init__(self, recorder: Recorder, text: str, value: float):
        self.recorder, self.text, self.value = recorder, text, value

    def __float__(self) -> float:
        symbols = frozenset(self.recorder.symbols_of)
        self.recorder.pinned |= symbols
        raise Pinned(symbols)

    __int__ = __index__ = __bool__ = __float__  # type: ignore[assignment]

    def __hash__(self) -> int:
        return hash(id(self.recorder))

    def __repr__(self) -> str:
        return self.text

    def __neg__(self) -> Any:
        return _real(0.0, "-", self, lambda a, b: a - b)


_Operation = Callable[[Any, Any], Any]
_ARITHMETIC: dict[str, tuple[str, _Operation]] = {
    "add": ("+", operator.add), "sub": ("-", operator.sub), "mul": ("*", operator.mul),
    "truediv": ("/", operator.truediv), "pow": ("**", operator.pow),
}  # fmt: skip
_COMPARISONS: dict[str, tuple[str, _Operation]] = {
    "eq": ("==", operator.eq), "ne": ("!=", operator.ne), "lt": ("<", operator.lt), "le": ("<=", operator.le),
    "gt": (">", operator.gt), "ge": (">=", operator.ge),
}  # fmt: skip


def _define(name: str, sign: str, operation: _Operation) -> None:
    setattr(Real, f"__{name}__", lambda self, other: _real(self, sign, other, operation))
    setattr(Real, f"__r{name}__", lambda self, other: _real(other, sign, self, operation))


def _define_comparison(name: str, sign: str, operation: _Operation) -> None:
    setattr(Size, f"__{name}__", lambda self, other: _compare(self, other, sign, operation))
    if name != "ne":
        setattr(Real, f"__{name}__", lambda self, other: _compare_real(self, other, sign, operation))


for _name, (_sign, _operation) in _ARITHMETIC.items():
    _define(_name, _sign, _operation)
for _name, (_sign, _operation) in _COMPARISONS.items():
    _define_comparison(_name, _sign, _operation)


def is_symbolic(x: object) -> bool:
    return type(x) is Size


def is_open_number(x: object) -> bool:
    """Does a number depend on open sizes?"""
    return type(x) is Size or type(x) is Real


def gcd(*numbers: int) -> int:
    """The greatest common divisor; of what depends on open sizes it is one guard."""
    open_ = [n for n in numbers if is_symbolic(n)]
    if not open_:
        return math.gcd(*numbers)
    if len(numbers) == 1:
        return abs(numbers[0])
    found = math.gcd(*map(value_of, numbers))
    recorder: Recorder = open_[0].recorder  # type: ignore[attr-defined]
    recorder.ask(f"gcd({', '.join(map(_text, numbers))}) == {found}")
    return found


def symbols_of(sizes: Iterable[Any]) -> frozenset[str]:
    """The names of what is left open in these sizes."""
    return frozenset(s for n in sizes if type(n) is Size for s in n.symbols())


def value_of(x: Any) -> Any:
    """The number that one which may depend on open sizes is in the call that is compiled for."""
    return x.value if is_open_number(x) else x


def _whole(x: object) -> bool:
    return type(x) is int or type(x) is Size or type(x) is bool


def _terms(x: Any) -> Polynomial:
    return x.terms if type(x) is Size else (((), int(x)),) if x else ()


def _text(x: Any) -> str:
    return x.text if type(x) is Size else str(int(x))


def sum_of_terms(recorder: Recorder, terms: Mapping[Monomial, int], value: int) -> Any:
    """The size of these terms, a number where none is open."""
    kept = tuple(sorted((m, c) for m, c in terms.items() if c))
    if not kept:
        return 0
    return value if len(kept) == 1 and not kept[0][0] else Size(recorder, kept, value)


def _same(a: Size, other: Any) -> None:
    if type(other) is Size and other.recorder is not a.recorder:
        raise AssertionError("sizes of two compilations meet")


def _sum(a: Any, b: Any, sign: int) -> Any:
    if type(a) is not Size:
        return a + sign * b
    _same(a, b)
    found = dict(a.terms)
    for m, c in _terms(b):
        found[m] = found.get(m, 0) + sign * c
    return sum_of_terms(a.recorder, found, a.value + sign * value_of(b))


def _product(a: Size, b: Any) -> Any:
    _same(a, b)
    found: dict[Monomial, int] = {}
    for m, c in a.terms:
        for n, d in _terms(b):
            key = tuple(sorted((*m, *n)))
            found[key] = found.get(key, 0) + c * d
    return sum_of_terms(a.recorder, found, a.value * value_of(b))


def _atom(size: Size, sign: str, a: Any, b: Any, operation: Callable[[int, int], int]) -> Any:
    """A quotient or remainder, which stands in polynomials as one name."""
    _same(size, b if a is size else a)
    if b == 0:
        raise ZeroDivisionError
    if not _terms(a):
        return 0
    if type(a) is Size and len(_terms(b)) == 1:  # multiples of the divisor come out
        by, d = _terms(b)[0]
        whole = {m: c for m, c in a.terms if c % d == 0 and Counter(by) <= Counter(m)}
        if whole:
            rest = a.recorder.polynomial({m: c for m, c in a.terms if m not in whole})
            quotient = {tuple((Counter(m) - Counter(by)).elements()): c // d for m, c in whole.items()}
            return a.recorder.polynomial(quotient) + rest // b if sign == "//" else rest % b
    return _named(size.recorder, f"({_text(a)}{sign}{_text(b)})", operation(value_of(a), value_of(b)), (a, b))


def _named(recorder: Recorder, text: str, value: int, of: Iterable[Any]) -> Size:
    """What is no sum or product, under its text."""
    return recorder.name(text, value, symbols_of(of))


def _operands(a: Any, b: Any) -> tuple[str, Any, str, Any] | None:
    """Texts and values; None where one of them is no number that is followed."""
    found: list[Any] = []
    for x in (a, b):
        if type(x) is float and x - x != 0:  # infinities and NaN have no text
            return None
        if type(x) is not float and type(x) is not Real and not _whole(x):
            return None
        found += [x.text, x.value] if type(x) in (Size, Real) else [repr(x), x]
    return tuple(found)  # type: ignore[return-value]


def _recorder(a: Any, b: Any) -> Recorder:
    return a.recorder if type(a) in (Size, Real) else b.recorder


def _real(a: Any, sign: str, b: Any, operation: Callable[[Any, Any], float]) -> Any:
    found = _operands(a, b)
    if found is None:
        return NotImplemented
    text_a, value_a, text_b, value_b = found
    return Real(_recorder(a, b), f"({text_a} {sign} {text_b})", operation(value_a, value_b))


def _compare_real(a: Any, b: Any, sign: str, operation: Callable[[Any, Any], bool]) -> Any:
    if type(b) is float and b - b != 0:
        return operation(a.value, b)
    found = _operands(a, b)
    if found is None:
        return NotImplemented
    text_a, value_a, text_b, value_b = found
    holds = operation(value_a, value_b)
    _recorder(a, b).ask(f"{'' if holds else 'not '}{text_a} {sign} {text_b}")
    return holds


def _compare(a: Size, other: Any, sign: str, operation: Callable[[Any, Any], bool]) -> Any:
    if type(other) in (float, Real):
        return _compare_real(a, other, sign, operation)
    if type(other) is Size:
        if other.recorder is not a.recorder:
            return NotImplemented if sign not in ("==", "!=") else sign == "!="
        if a.terms == other.terms:
            return operation(0, 0)
    elif not _whole(other):
        return NotImplemented
    found = operation(a.value, value_of(other))
    if type(other) is Size:
        difference = a - other
        if type(difference) is not Size:  # the same for all sizes
            return operation(difference, 0)
        text = f"{difference.text} {sign} 0"
    else:
        text = f"{a.text} {sign} {other!r}"
    if type(other) is Size or abs(other) < 2**63:  # all sizes have 64 bits
        a.recorder.ask(text if found else f"not {text}")
    return found
