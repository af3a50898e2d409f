"""Points of a statement by plain enumeration, without any of the machinery under test but the IR itself.

Every variable is enclosed by solving for it from the conditions; then all integer points of the box are tried.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import sympy

from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Index, Inside, Int, Pad, Statement, expressions, index_variables

LIMIT = 300_000  # points tried


class TooManyPoints(Exception):
    pass


def numerators(e, env, count):
    """An index expression over all points: (numerators, denominator, where the arguments of its atoms are integers)."""
    form = linear(e)
    scale = form.denominator
    total, sound = np.full(count, int(form.constant * scale), np.int64), np.ones(count, bool)
    for atom, c in form.terms:
        if isinstance(atom, Index):
            value = env[atom.name]
        else:
            assert isinstance(atom, Call)
            arguments = []
            for a in atom.args:
                numerator, denominator, good = numerators(a, env, count)
                sound &= good & (numerator % denominator == 0)
                arguments.append(numerator // denominator)
            value = np.mod(*arguments) if atom.function == "mod" else np.clip(*arguments)
        total = total + int(c * scale) * value
    return total, scale, sound


def within(e, bound, env, count):
    numerator, denominator, sound = numerators(e, env, count)
    return sound & (numerator % denominator == 0) & (numerator >= 0) & (numerator < bound * denominator)


def places(e, shapes):
    """(access, constrains) of an expression, left to right."""
    match e:
        case Access():
            yield e, True
        case Inside():
            yield e.access, True
        case Pad():
            yield e.access.access if isinstance(e.access, Inside) else e.access, False
            yield from places(e.value, shapes)
        case Call():
            for a in e.args:
                yield from places(a, shapes)


def values(e, env, count):
    """Integer values of the index variables in a body, where they stand as values; division must come out even."""
    match e:
        case Index(name):
            return env[name]
        case Int(value):
            return np.full(count, value)
        case Call("add", (a, b)):
            return values(a, env, count) + values(b, env, count)
        case Call("sub", (a, b)):
            return values(a, env, count) - values(b, env, count)
        case Call("mul", (a, b)):
            return values(a, env, count) * values(b, env, count)
        case Call("neg", (a,)):
            return -values(a, env, count)
        case Call("div", (a, b)):
            numerator, denominator = values(a, env, count), values(b, env, count)
            return np.where(numerator % denominator == 0, numerator // denominator, 10**9)
    return np.zeros(count, np.int64)


def conditions(s: Statement, shapes):
    sizes = [n.value for n in s.sizes]
    yield from zip(s.index, sizes, strict=True)
    for c in s.constraints:
        yield c.expr, c.bound.value
    for access, constrains in places(s.body, shapes):
        if constrains:
            yield from zip(access.index, shapes[access.tensor], strict=True)


def enclosing_box(s: Statement, shapes):
    """Ranges of the variables, from as many independent conditions as there are variables."""
    variables = index_variables(*expressions(s))
    if any(bound <= 0 for _, bound in conditions(s, shapes)):
        return dict.fromkeys(variables, (0, -1))
    matrix, ends = sympy.zeros(0, len(variables)), []
    for e, bound in conditions(s, shapes):
        form = linear(e)
        if form.atoms():
            continue
        row = sympy.Matrix([[sympy.Rational(*form.coefficient(v).as_integer_ratio()) for v in variables]])
        longer = matrix.col_join(row)
        if longer.rank() > matrix.rows:
            matrix = longer
            ends.append((-form.constant, bound - 1 - form.constant))
    assert matrix.rows == len(variables), "the statement is not bounded"
    box = {}
    inverse = matrix.inv() if variables else matrix
    for i, v in enumerate(variables):
        row = [Fraction(int(x.p), int(x.q)) for x in inverse.row(i)]
        low = sum(min(x * a, x * b) for x, (a, b) in zip(row, ends, strict=True))
        high = sum(max(x * a, x * b) for x, (a, b) in zip(row, ends, strict=True))
        box[v] = (math.ceil(low), math.floor(high))
    return box


def valid_points(s: Statement, shapes):
    """Columns of all valid points: a dict from variable to values, and the number of points."""
    box = enclosing_box(s, shapes)
    size = math.prod(max(0, high - low + 1) for low, high in box.values())
    if size > LIMIT:
        raise TooManyPoints
    axes = [np.arange(low, high + 1) for low, high in box.values()]
    grid = np.meshgrid(*axes, indexing="ij") if axes else []
    env = {v: g.ravel() for v, g in zip(box, grid, strict=True)}
    good = np.ones(size, bool)
    for e, bound in conditions(s, shapes):
        good &= within(e, bound, env, size)
    return {v: column[good] for v, column in env.items()}, int(good.sum())


def contributions(s: Statement, shapes, value=None):
    """What the statement does, whatever its variables are called: for each valid point the element it writes, the
    places it reads (-1 for a `pad` outside) and the value of `value`; sorted rows."""
    env, count = valid_points(s, shapes)
    columns = []
    for e in s.index:
        numerator, denominator, _ = numerators(e, env, count)
        columns.append(numerator // denominator)
    for access, constrains in places(s.body, shapes):
        inside = np.ones(count, bool)
        read = []
        for e, bound in zip(access.index, shapes[access.tensor], strict=True):
            numerator, denominator, _ = numerators(e, env, count)
            inside &= within(e, bound, env, count)
            read.append(numerator // denominator)
        assert not constrains or inside.all()
        columns.extend(np.where(inside, x, -1) for x in read)
    if value is not None:
        columns.append(values(value, env, count))
    if not columns:
        return [()] * count
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def elements(s: Statement, shapes):
    """Elements written, as a set."""
    width = len(s.index)
    return {row[:width] for row in contributions(s, shapes)}


def all_elements(s: Statement):
    return set(itertools.product(*(range(n.value) for n in s.sizes)))
