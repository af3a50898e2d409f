"""Exact integer and rational matrices: Hermite normal form with its transform, and what follows from it.

Matrices are lists of rows. Lattices are given by the columns of a basis or by the rows of generators, as said.
Source: H. Cohen, A Course in Computational Algebraic Number Theory, section 2.4; the dual lattice as in J. Cassels, An
Introduction to the Geometry of Numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.ir.rational import Fraction

Integers = list[list[int]]
Rationals = Sequence[Sequence[Fraction | int]]


def identity_matrix(n: int) -> Integers:
    return [[int(i == j) for j in range(n)] for i in range(n)]


def hermite(matrix: Sequence[Sequence[int]], columns: int | None = None) -> tuple[Integers, Integers]:
    """(H, U) with matrix U = H, U unimodular, H in column Hermite form: its nonzero columns come first, the first
    nonzero entry (pivot) of each is positive and lies below that of the column before, and the entries left of a pivot
    are not negative and less than it. `columns` is needed where the matrix has no rows."""
    n = len(matrix[0]) if matrix else columns or 0
    height = len(matrix)
    # each column carries its image and, below it, what it is made of
    work = [[row[j] for row in matrix] + [int(i == j) for i in range(n)] for j in range(n)]
    done = 0
    for r in range(height):
        while True:
            candidates = [j for j in range(done, n) if work[j][r]]
            if len(candidates) <= 1:
                break
            pivot = min(candidates, key=lambda j: abs(work[j][r]))
            for j in candidates:
                if j != pivot:
                    _subtract(work[j], work[pivot], work[j][r] // work[pivot][r])
        if not candidates:
            continue
        work[done], work[candidates[0]] = work[candidates[0]], work[done]
        if work[done][r] < 0:
            work[done] = [-x for x in work[done]]
        for j in range(done):
            _subtract(work[j], work[done], work[j][r] // work[done][r])
        done += 1
    return _transpose(work, 0, height), _transpose(work, height, height + n)


def _subtract(column: list[int], other: list[int], times: int) -> None:
    if times:
        column[:] = [x - times * y for x, y in zip(column, other, strict=True)]


def _transpose(columns: Integers, start: int, stop: int) -> Integers:
    return [[column[i] for column in columns] for i in range(start, stop)]


def solve_integers(
    matrix: Sequence[Sequence[int]], right: Sequence[int], columns: int | None = None
) -> list[int] | None:
    """Some integer x with matrix x = right, or None if there is none."""
    h, u = hermite(matrix, columns)
    y = [0] * len(u)
    done = 0
    for row, b in zip(h, right, strict=True):
        rest = b - sum(row[j] * y[j] for j in range(done))
        if done < len(u) and row[done]:
            quotient, rest = divmod(rest, row[done])
            y[done] = quotient
            done += 1
        if rest:
            return None
    return [sum(a * b for a, b in zip(row, y, strict=True)) for row in u]


def inverse(matrix: Rationals) -> list[list[Fraction]]:
    """Inverse of a square matrix; ZeroDivisionError if it is singular."""
    n = len(matrix)
    work = [[Fraction(x) for x in row] + [Fraction(int(i == j)) for j in range(n)] for i, row in enumerate(matrix)]
    for c in range(n):
        pivot = next((r for r in range(c, n) if work[r][c]), None)
        if pivot is None:
            raise ZeroDivisionError("singular matrix")
        work[c], work[pivot] = work[pivot], work[c]
        scale = 1 / work[c][c]
        work[c] = [x * scale for x in work[c]]
        for r in range(n):
            if r != c and work[r][c]:
                factor = work[r][c]
                work[r] = [x - factor * y for x, y in zip(work[r], work[c], strict=True)]
    return [row[n:] for row in work]


def rank(matrix: Rationals) -> int:
    """Rank over the rationals."""
    work = [[Fraction(x) for x in row] for row in matrix]
    found = 0
    for c in range(len(work[0]) if work else 0):
        pivot = next((r for r in range(found, len(work)) if work[r][c]), None)
        if pivot is None:
            continue
        work[found], work[pivot] = work[pivot], work[found]
        for r in range(found + 1, len(work)):
            if work[r][c]:
                factor = work[r][c] / work[found][c]
                work[r] = [x - factor * y for x, y in zip(work[r], work[found], strict=True)]
        found += 1
    return found


def denominator(matrix: Rationals) -> int:
    """Least positive integer that makes every entry an integer."""
    return math.lcm(*(Fraction(x).denominator for row in matrix for x in row))


def row_basis(generators: Rationals) -> list[list[Fraction]]:
    """Basis, as rows, of the lattice that rational row vectors generate."""
    scale = denominator(generators)
    h, _ = hermite([[int(x * scale) for x in column] for column in zip(*generators, strict=True)])
    return [[Fraction(x, scale) for x in column] for column in zip(*h, strict=True) if any(column)]


def contains(generators: Rationals, vector: Sequence[Fraction | int]) -> bool:
    """Is a vector an integer combination of rational row vectors?"""
    scale = denominator([*generators, vector])
    matrix = [[int(x * scale) for x in column] for column in zip(*generators, strict=True)]
    return solve_integers(matrix, [int(x * scale) for x in vector], len(generators)) is not None


def dual(basis: Rationals) -> list[list[Fraction]]:
    """Columns that span the dual of the full lattice whose basis the rows are: all w with an integer product with each
    of its vectors."""
    return inverse(basis)


def integral_points(rows: Rationals, offsets: Sequence[Fraction | int], n: int) -> tuple[list[int], Integers] | None:
    """The integer v of n entries at which rows v + offsets are integers: (origin, basis), the points being origin plus
    integer combinations of the columns of basis, which is in Hermite form with 0 <= origin[i] < basis[i][i]; None if
    there are none."""
    scale = denominator([*rows, offsets])
    system = [
        [int(x * scale) for x in row] + [scale * int(i == j) for j in range(len(rows))] for i, row in enumerate(rows)
    ]
    origin = solve_integers(system, [-int(x * scale) for x in offsets], n + len(rows))
    if origin is None:
        return None
    lattice = dual(row_basis([*identity_matrix(n), *rows])) if n else []
    basis, _ = hermite([[int(x) for x in row] for row in lattice], n)
    point = origin[:n]
    for j in range(n):
        times = point[j] // basis[j][j]
        point = [x - times * basis[i][j] for i, x in enumerate(point)]
    return point, basis
