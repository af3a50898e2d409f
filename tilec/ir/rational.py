"""Rational numbers, which in index arithmetic are nearly always integers."""

from __future__ import annotations

import fractions
from typing import Any

_Rational = (int, fractions.Fraction)


class Fraction(fractions.Fraction):
    """As the standard library's, with a short way where both denominators are 1: no greatest common divisor is taken
    there, and a numerator may be whatever counts as an integer."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        if isinstance(other, _Rational):
            if self._denominator == 1 == other.denominator:  # type: ignore[attr-defined]
                return _integer(self._numerator + other.numerator)  # type: ignore[attr-defined]
            return _of(fractions.Fraction.__add__(self, other))
        return fractions.Fraction.__add__(self, other)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, _Rational):
            if self._denominator == 1 == other.denominator:  # type: ignore[attr-defined]
                return _integer(self._numerator - other.numerator)  # type: ignore[attr-defined]
            return _of(fractions.Fraction.__sub__(self, other))
        return fractions.Fraction.__sub__(self, other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, _Rational):
            a, b = self._numerator, other.numerator  # type: ignore[attr-defined]
            over, under = self._denominator, other.denominator  # type: ignore[attr-defined]
            if over == 1 == under:
                return _integer(a * b)
            if under == 1 and b % over == 0:
                return _integer(b // over * a)
            if over == 1 and a % under == 0:
                return _integer(a // under * b)
            return _of(fractions.Fraction.__mul__(self, other))
        return fractions.Fraction.__mul__(self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, _Rational):
            if self._denominator == 1 == other.denominator:  # type: ignore[attr-defined]
                a, b = self._numerator, other.numerator  # type: ignore[attr-defined]
                if b == 1:
                    return self
                if a % b == 0:
                    return _integer(a // b)
                if a and b % a == 0:
                    return Fraction(1, b // a)
            return _of(fractions.Fraction.__truediv__(self, other))
        return fractions.Fraction.__truediv__(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        found = fractions.Fraction.__rtruediv__(self, other)
        return _of(found) if isinstance(found, fractions.Fraction) else found

    def __mod__(self, other: Any) -> Any:
        if isinstance(other, _Rational) and self._denominator == 1 == other.denominator:  # type: ignore[attr-defined]
            return _integer(self._numerator % other.numerator)  # type: ignore[attr-defined]
        found = fractions.Fraction.__mod__(self, other)
        return _of(found) if isinstance(found, fractions.Fraction) else found

    def __rmod__(self, other: Any) -> Any:
        if isinstance(other, _Rational) and self._denominator == 1 == other.denominator:  # type: ignore[attr-defined]
            return _integer(other.numerator % self._numerator)  # type: ignore[attr-defined]
        found = fractions.Fraction.__rmod__(self, other)
        return _of(found) if isinstance(found, fractions.Fraction) else found

    def __neg__(self) -> Fraction:
        return _of(self, -1)

    def __abs__(self) -> Fraction:
        return self if self._numerator >= 0 else -self  # type: ignore[attr-defined]


def _integer(numerator: int) -> Fraction:
    made = object.__new__(Fraction)
    made._numerator, made._denominator = numerator, 1  # type: ignore[attr-defined]
    return made


def _of(found: Any, sign: int = 1) -> Fraction:
    made = object.__new__(Fraction)
    made._numerator = found.numerator if sign > 0 else -found.numerator  # type: ignore[attr-defined]
    made._denominator = found.denominator  # type: ignore[attr-defined]
    return made


def as_int(number: Any) -> int:
    """The integer that a number is, as `int` would say, which asks for its value; toward zero elsewhere."""
    return number.numerator if isinstance(number, _Rational) and number.denominator == 1 else int(number)
