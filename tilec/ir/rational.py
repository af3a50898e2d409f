"""Rational numbers, which in index arithmetic are nearly always integers."""

from __future__ import annotations

import fractions
from typing import Any

_Rational = (int, fractions.Fraction)


class Fraction(fractions.Fraction):
    """As the standard library's, with a short way where both denominators are 1: no greatest common divisor is taken
    there, and a numerator may be whatever counts as an integer."""

    __slots__ = ()
    _numerator: int
    _denominator: int

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self._numerator) if self._denominator == 1 else fractions.Fraction.__hash__(self)

    def __eq__(self, other: object) -> bool:
        if type(other) is Fraction:
            return self._numerator == other._numerator and self._denominator == other._denominator
        if type(other) is int:
            return self._denominator == 1 and self._numerator == other
        return fractions.Fraction.__eq__(self, other)

    def __lt__(self, other: Any) -> bool:
        if type(other) is int and self._denominator == 1:
            return self._numerator < other
        return fractions.Fraction.__lt__(self, other)

    def __gt__(self, other: Any) -> bool:
        if type(other) is int and self._denominator == 1:
            return self._numerator > other
        return fractions.Fraction.__gt__(self, other)

    def __add__(self, other: Any) -> Any:
        if type(other) is Fraction:  # asked first: `isinstance` of an abstract class takes longer than the sum
            if self._denominator == 1 == other._denominator:
                return as_fraction(self._numerator + other._numerator)
            return _of(fractions.Fraction.__add__(self, other))
        if isinstance(other, _Rational):
            if self._denominator == 1 == other.denominator:
                return as_fraction(self._numerator + other.numerator)
            return _of(fractions.Fraction.__add__(self, other))
        return fractions.Fraction.__add__(self, other)

    def __sub__(self, other: Any) -> Any:
        if type(other) is Fraction or isinstance(other, _Rational):
            if self._denominator == 1 == other.denominator:
                return as_fraction(self._numerator - other.numerator)
            return _of(fractions.Fraction.__sub__(self, other))
        return fractions.Fraction.__sub__(self, other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if type(other) is Fraction or isinstance(other, _Rational):
            a, b = self._numerator, other.numerator
            over, under = self._denominator, other.denominator
            if over == 1 == under:
                return as_fraction(a * b)
            if under == 1 and b % over == 0:
                return as_fraction(b // over * a)
            if over == 1 and a % under == 0:
                return as_fraction(a // under * b)
            return _of(fractions.Fraction.__mul__(self, other))
        return fractions.Fraction.__mul__(self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> Any:
        if type(other) is Fraction or isinstance(other, _Rational):
            if self._denominator == 1 == other.denominator:
                a, b = self._numerator, other.numerator
                if b == 1:
                    return self
                if a % b == 0:
                    return as_fraction(a // b)
                if a and b % a == 0:
                    return Fraction(1, b // a)
            return _of(fractions.Fraction.__truediv__(self, other))
        return fractions.Fraction.__truediv__(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        found = fractions.Fraction.__rtruediv__(self, other)
        return _of(found) if isinstance(found, fractions.Fraction) else found

    def __mod__(self, other: Any) -> Any:
        if isinstance(other, _Rational) and self._denominator == 1 == other.denominator:
            return as_fraction(self._numerator % other.numerator)
        found = fractions.Fraction.__mod__(self, other)
        return _of(found) if isinstance(found, fractions.Fraction) else found

    def __rmod__(self, other: Any) -> Any:
        if isinstance(other, _Rational) and self._denominator == 1 == other.denominator:
            return as_fraction(other.numerator % self._numerator)
        found = fractions.Fraction.__rmod__(self, other)
        return _of(found) if isinstance(found, fractions.Fraction) else found

    def __neg__(self) -> Fraction:
        return _of(self, -1)

    def __abs__(self) -> Fraction:
        return self if self._numerator >= 0 else -self


def as_fraction(numerator: int) -> Fraction:
    """The number of an integer, or of what counts as one."""
    if type(numerator) is int and 0 <= numerator < len(_SMALL):
        return _SMALL[numerator]
    return _whole(numerator)


def _whole(numerator: int) -> Fraction:
    made = object.__new__(Fraction)
    made._numerator, made._denominator = numerator, 1
    return made


_SMALL = [_whole(n) for n in range(33)]


def _of(found: Any, sign: int = 1) -> Fraction:
    made = object.__new__(Fraction)
    made._numerator = found.numerator if sign > 0 else -found.numerator
    made._denominator = found.denominator
    return made


def as_int(number: Any) -> int:
    """The integer that a number is, as `int` would say, which asks for its value; toward zero elsewhere."""
    if type(number) is Fraction or isinstance(number, _Rational):
        return number.numerator if number.denominator == 1 else int(number)
    return int(number)


def least_remainder(number: Fraction, modulus: object) -> Fraction:
    """The integer next to 0 that a number is modulo another: 2 is -1 modulo 3. What is no known integer stays."""
    if type(modulus) is not int or modulus <= 0 or type(number.numerator) is not int or number.denominator != 1:
        return number
    rest = number.numerator % modulus
    return as_fraction(rest - modulus if 2 * rest > modulus else rest)


def least_factor(number: Fraction, modulus: object) -> Fraction:
    """The factor of a variable that is taken modulo a number: the same modulo that, not beyond it, and not 0, since the
    variable stays. What is no known integer stays as it is."""
    rest = least_remainder(number, modulus)
    if rest == number or not isinstance(modulus, int) or abs(number) <= modulus:
        return number
    return rest or as_fraction(modulus)
