"""Rational numbers of index arithmetic: what the standard library's are, with less work where they are integers."""

from __future__ import annotations

import fractions
import operator
from itertools import product

import pytest
from support.effort import counted

from tilec.ir.index import linear
from tilec.ir.program import Call, Index, Int, index_variables, walk
from tilec.ir.rational import Fraction
from tilec.ir.shape_class import Recorder

NUMBERS = [(n, d) for n in (-7, -2, -1, 0, 1, 3, 6) for d in (1, 2, 3)]
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
OPERATIONS = (*COMPARISONS, operator.add, operator.sub, operator.mul, operator.truediv, operator.mod)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_as_the_standard_librarys(operation) -> None:
    def result(a, b):
        try:
            return operation(a, b)
        except ZeroDivisionError:
            return None

    for a, b in product(NUMBERS, NUMBERS):
        x, y = fractions.Fraction(*a), fractions.Fraction(*b)
        for left, right in ((Fraction(*a), Fraction(*b)), (Fraction(*a), y), (x, Fraction(*b))):
            assert result(left, right) == result(x, y)
        if b[1] == 1:
            assert result(Fraction(*a), b[0]) == result(x, b[0]) and result(b[0], Fraction(*a)) == result(b[0], x)


def test_equal_numbers_have_one_hash() -> None:
    for n, d in NUMBERS:
        assert hash(Fraction(n, d)) == hash(fractions.Fraction(n, d))
    assert len({Fraction(-1), -1, -1.0, fractions.Fraction(-1)}) == 1


def test_symbolic_numerators_compare_by_what_they_are() -> None:
    n = Recorder().symbol("n", 7)
    assert Fraction(n) > 0 and not Fraction(n) < 0 and Fraction(n) == Fraction(n) != Fraction(n + 1)
    assert len({Fraction(n), Fraction(n), Fraction(n + 1)}) == 2


def test_forms_take_little_work() -> None:
    """Classes are looked up, not searched for; a leaf of an expression is not asked for what is below it; and what
    was asked once is kept."""

    def difference() -> Call:
        i, j = Index("i"), Index("j")
        return Call("sub", (Call("add", (Call("mul", (Int(3), i)), j)), Call("add", (i, Int(1)))))

    linear(difference())
    e, i = difference(), Index("i")
    for call, most in (
        (lambda: linear(e), 165),
        (lambda: linear(e), 5),
        (lambda: index_variables(i), 6),
        (lambda: [*walk(e)], 36),
        (lambda: [*walk(e)], 14),
    ):
        _, calls = counted(call)
        assert calls <= most, calls
