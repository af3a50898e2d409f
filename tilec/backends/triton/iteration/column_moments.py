"""Variances of columns in one walk over the rows.

`M[c] = mean(X[i, c]); V[c] = +((X[i, c] - M[c]) * (X[i, c] - M[c]))` reads X twice. With z the mean of a share of the
rows, read first, and s = sum(x - z), q = sum((x - z)^2) over all n of them,

    sum((x - c)^2) = max(q - s^2 / n, 0) + n ((z - c) + s / n)^2

whatever rounding c went through (see `rows/shifted_variance.py`), and the three sums of x share a kernel. The rows that
z is the mean of are 1 of PIVOTS at least, so that the difference loses a factor of PIVOTS at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.cost import size_in_bytes
from tilec.ir.at_sizes import as_float
from tilec.ir.functions import without_casts
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Constraint, Expr, Float, Index, Int, Program, Statement, reads
from tilec.ir.types import NARROW, TensorType, Types
from tilec.transforms.util.means import total_of_mean
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_plain_sum

PIVOTS = 256  # rows for each that z is the mean of, at most
LEAST_READ = 2**24  # bytes of X from which a walk is worth three small launches
PERSISTENT = 256  # rows that a program holds at once with neighbouring columns: no walk of theirs is saved


def with_moments(program: Program, types: Types) -> tuple[Program, Types, frozenset[str]]:
    """The program with variances of columns made of sums about a pivot, all types, and the outputs of the pivots, which
    are computed before anything else."""
    names, known = Names.of(program), dict(types)
    made = {s.output: s for s in program.statements}
    statements: list[Statement] = []
    pivots: set[str] = set()
    for s in program.statements:
        found = _variance(s, made, types)
        if found is None or _has_company(s, found, program):
            statements.append(s)
            continue
        new = _about_pivot(s, found, names, known)
        pivots |= {new[0].output, new[1].output}
        before = next(k for k, t in enumerate(statements) if t.output == found.total)
        statements[before:before] = new[:2]
        statements += new[2:]
    return replace(program, statements=tuple(statements)), known, frozenset(pivots)


@dataclass(frozen=True)
class _Variance:
    """A sum of squares of `x` about `mean`, which is that of `total`; the variables that it sums over and their
    extents."""

    x: Access
    mean: Access
    total: str
    summed: tuple[str, ...]
    extent: Mapping[str, int]


def _variance(s: Statement, made: Mapping[str, Statement], types: Types) -> _Variance | None:
    if not is_plain_sum(s) or types[s.output].dtype != "float32":
        return None
    match without_casts(s.body):
        case Call("mul", (Call("sub", (Access() as x, Access() as mean)) as a, b)) if a == b:
            pass
        case _:
            return None
    index, own = [linear(e).bare for e in s.index or ()], [linear(e).bare for e in x.index]
    names = [v for v in own if v is not None]
    if len(set(names)) != len(own) or not {v for v in index if v is not None} <= set(names) or mean.index != s.index:
        return None
    extent = dict(zip(names, types[x.tensor].shape, strict=True))
    summed = tuple(v for v in names if v not in index)
    many = [v for v in names if extent[v] > 1]
    columns = bool(many) and many[-1] not in summed and any(extent[v] > 1 for v in summed)
    t = types[x.tensor]
    if not columns or None in index or size_in_bytes(t) < LEAST_READ or t.dtype not in ("float32", *NARROW):
        return None
    if math.prod(extent[v] for v in summed) <= PERSISTENT:
        return None
    total = total_of_mean(x, mean, math.prod(extent[v] for v in summed), made, types)
    return None if total is None else _Variance(x, mean, total, summed, extent)


def _has_company(s: Statement, v: _Variance, program: Program) -> bool:
    """Whether another sum walks the deviations anyhow, once the mean is there (a gradient's): they share that walk."""
    both = {v.x.tensor, v.mean.tensor}
    return any(t is not s and t.aggregation == "sum" and both <= set(reads(t)) for t in program.statements)


def _about_pivot(s: Statement, v: _Variance, names: Names, types: dict[str, TensorType]) -> list[Statement]:
    """The pivot's sum and the pivot; the sums about it, and the sum about the mean."""
    count = math.prod(v.extent[w] for w in v.summed)
    first = next(w for w in v.summed if v.extent[w] > 1)
    rows = -(-v.extent[first] // PIVOTS)
    x: Expr = Call("float32", (v.x,)) if types[v.x.tensor].dtype in NARROW else v.x
    place = s.index or ()

    def named(what: str) -> str:
        name = names.fresh(f"{s.output}_{what}")
        types[name] = types[s.output]
        return name

    head, pivot, away, squares = map(named, ("head", "pivot", "away", "squares"))
    at = {n: Access(n, place) for n in (head, pivot, away, squares)}
    bound = Constraint(Index(first), Int(rows))
    share = rows * count / v.extent[first]
    deviation = x - at[pivot]
    return [
        replace(s, output=head, body=x, constraints=(bound,)),
        replace(s, output=pivot, body=at[head] * Float(1 / share), aggregation="assign"),
        replace(s, output=away, body=deviation),
        replace(s, output=squares, body=deviation * deviation),
        replace(s, body=squares_about(v.mean, at[pivot], at[away], at[squares], count), aggregation="assign"),
    ]


def squares_about(mean: Expr, pivot: Expr, away: Expr, squares: Expr, count: int) -> Expr:
    """The sum of squares of so many deviations from a mean, of sums of deviations from a pivot and of their squares."""
    n = Float(as_float(count))
    spread = Call("max", (squares - away * (away / n), Float(0.0)))
    finite = Call("select", (Call("lt", (squares, Float(float("inf")))), spread, squares))
    offset = (pivot - mean) + away / n
    return finite + offset * offset * n
