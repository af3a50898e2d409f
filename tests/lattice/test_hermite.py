"""Hermite normal form, its transform, and lattices: by their definitions, and against sympy."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy.matrices.normalforms import hermite_normal_form

from tilec.lattice import hermite as h

ENTRIES = st.integers(-6, 6)
RATIONALS = st.builds(Fraction, st.integers(-4, 4), st.integers(1, 3))


@st.composite
def matrices(draw, entries=ENTRIES, square=False):
    height = draw(st.integers(1, 4))
    width = height if square else draw(st.integers(1, 4))
    return [[draw(entries) for _ in range(width)] for _ in range(height)]


def product(a, b):
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def determinant(matrix):
    return sympy.Matrix(matrix).det()


@settings(max_examples=200)
@given(matrices())
def test_transform_is_unimodular_and_gives_the_form(f):
    form, u = h.hermite(f)
    assert product(f, u) == form
    assert abs(determinant(u)) == 1
    pivots = []
    for column in zip(*form, strict=True):
        pivots.append(next((i for i, x in enumerate(column) if x), None))
    nonzero = [p for p in pivots if p is not None]
    assert pivots == [*nonzero, *[None] * (len(pivots) - len(nonzero))]
    assert nonzero == sorted(set(nonzero))
    for j, p in enumerate(nonzero):
        assert form[p][j] > 0
        assert all(0 <= form[p][i] < form[p][j] for i in range(j))


@settings(max_examples=100)
@given(matrices())
def test_agrees_with_sympy_where_it_is_defined(f):
    if sympy.Matrix(f).rank() < len(f):
        return
    # sympy's form is upper triangular from the last row: ours of the matrix upside down, read backwards
    form, _ = h.hermite(f[::-1])
    ours = [row[: len(f)][::-1] for row in form[::-1]]
    assert sympy.Matrix(ours) == hermite_normal_form(sympy.Matrix(f))


def test_a_matrix_without_rows_leaves_everything_free():
    assert h.hermite([], 2) == ([], [[1, 0], [0, 1]])
    assert h.solve_integers([], [], 2) == [0, 0]


@settings(max_examples=150)
@given(matrices(), st.data())
def test_solutions_solve_and_are_found(f, data):
    x = [data.draw(ENTRIES) for _ in f[0]]
    right = [sum(a * b for a, b in zip(row, x, strict=True)) for row in f]
    found = h.solve_integers(f, right)
    assert found is not None
    assert [sum(a * b for a, b in zip(row, found, strict=True)) for row in f] == right


@pytest.mark.parametrize(("f", "right"), [([[2, 4]], [3]), ([[1, 1], [1, 1]], [0, 1]), ([[3, 0], [0, 2]], [3, 1])])
def test_no_solution(f, right):
    assert h.solve_integers(f, right) is None


@settings(max_examples=100)
@given(matrices(RATIONALS, square=True))
def test_inverse_and_rank(f):
    matrix = sympy.Matrix([[sympy.Rational(x.numerator, x.denominator) for x in row] for row in f])
    assert h.rank(f) == matrix.rank()
    if matrix.rank() < len(f):
        with pytest.raises(ZeroDivisionError):
            h.inverse(f)
    else:
        assert product(f, h.inverse(f)) == h.identity_matrix(len(f))


@settings(max_examples=100)
@given(matrices(RATIONALS), st.data())
def test_membership(generators, data):
    weights = [data.draw(st.integers(-3, 3)) for _ in generators]
    vector = [sum(w * x for w, x in zip(weights, column, strict=True)) for column in zip(*generators, strict=True)]
    assert h.contains(generators, vector)
    basis = h.row_basis(generators)
    assert len(basis) == h.rank(generators)
    assert all(h.contains(generators, row) for row in basis)
    assert all(h.contains(basis, row) for row in generators if any(row))


def test_what_a_lattice_does_not_contain():
    assert not h.contains([[2, 0], [0, 2]], [1, 0])
    assert not h.contains([[Fraction(1, 2), 0]], [Fraction(1, 2), 1])
    assert h.contains([[Fraction(1, 2), Fraction(1, 3)]], [1, Fraction(2, 3)])


@settings(max_examples=150)
@given(matrices(RATIONALS), st.data())
def test_integral_points_are_all_of_them(rows, data):
    n = min(3, len(rows[0]))
    rows = [row[:n] for row in rows]
    offsets = [data.draw(RATIONALS) for _ in rows]

    def integral(v):
        return all(
            (sum(a * x for a, x in zip(row, v, strict=True)) + b).denominator == 1
            for row, b in zip(rows, offsets, strict=True)
        )

    # denominators divide 6, so one period of each entry shows everything
    expected = {v for v in itertools.product(range(6), repeat=n) if integral(v)}
    found = h.integral_points(rows, offsets, n)
    if found is None:
        assert not expected
        return
    origin, basis = found
    assert integral(origin)
    assert all(0 <= origin[i] < basis[i][i] for i in range(n))
    assert all(basis[i][j] == 0 for i in range(n) for j in range(i + 1, n))
    steps = itertools.product(*(range(6 // basis[i][i]) for i in range(n)))
    moves = [[sum(a * t for a, t in zip(row, step, strict=True)) for row in basis] for step in steps]
    assert {tuple((o + x) % 6 for o, x in zip(origin, move, strict=True)) for move in moves} == expected
