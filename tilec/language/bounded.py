"""Is every index variable bounded? Decided by rank, before any size is known.

Each index of an access, of the output, and each constraint confines one affine form of the variables to an interval.
The points form a bounded set exactly where these forms determine the variables: where their matrix has full column
rank. Sizes that stand in coefficients count as generic numbers, so the rank is computed modulo a large prime with a
fixed pseudo-random residue for each size. `%`, `clamp`, `max`, `min`, `abs` and tensor elements confine nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from zlib import crc32

from tilec.ir.constraining import Branch, Demand, always, conditional, demands, without_identity
from tilec.ir.program import Access, Aggregate, Call, Expr, Index, Int, Name, Statement, children

PRIME = 2**61 - 1
Coefficients = dict[str, int]
CONSTANT = ""
MOST_COMBINATIONS = 4096


class _Unconfined(Exception):
    """The form holds something that is not a linear combination of index variables."""


def unbounded(variables: Iterable[str], forms: Iterable[Expr]) -> tuple[str, ...]:
    """Those of `variables` that the forms leave free. Other variables in a form count as known."""
    wanted = dict.fromkeys(variables)
    if not wanted:
        return ()
    rows: list[Coefficients] = []
    for expr in forms:
        try:
            form = _form(expr)
        except _Unconfined:
            continue
        row = {name: c for name, c in form.items() if name in wanted and c}
        if row:
            rows.append(row)
    known: set[str] = set()
    pending = rows
    while pending and len(known) < len(wanted):
        singles = {next(iter(row)) for row in pending if len(row) == 1}
        if not singles:
            known |= _determined(pending)
            break
        known |= singles
        pending = [rest for row in pending if (rest := {v: c for v, c in row.items() if v not in singles})]
    return tuple(v for v in wanted if v not in known)


def _determined(rows: list[Coefficients]) -> set[str]:
    """Variables whose unit vector lies in the span of the rows: those alone in a row of the reduced echelon form."""
    pivots: dict[str, Coefficients] = {}
    for row in rows:
        row = dict(row)
        for name in [v for v in row if v in pivots]:
            _subtract(row, pivots[name], row.get(name, 0))
        if not row:
            continue
        name = next(iter(row))
        scale = pow(row[name], -1, PRIME)
        row = {v: c * scale % PRIME for v, c in row.items()}
        for other in pivots.values():
            if name in other:
                _subtract(other, row, other[name])
        pivots[name] = row
    return {name for name, row in pivots.items() if len(row) == 1}


def _subtract(row: Coefficients, other: Coefficients, factor: int) -> None:
    for v, c in other.items():
        value = (row.get(v, 0) - factor * c) % PRIME
        if value:
            row[v] = value
        else:
            row.pop(v, None)


def _form(e: Expr) -> Coefficients:
    """Coefficients modulo PRIME; the constant under the empty name."""
    match e:
        case Int():
            return {CONSTANT: e.value % PRIME}
        case Index():
            return {e.name: 1}
        case Name():
            return {CONSTANT: _generic(e.name)}
        case Call(function="add" | "sub"):
            result = dict(_form(e.args[0]))
            _subtract(result, _form(e.args[1]), PRIME - 1 if e.function == "add" else 1)
            return result
        case Call(function="neg"):
            return {v: PRIME - c for v, c in _form(e.args[0]).items() if c}
        case Call(function="mul"):
            a, b = _form(e.args[0]), _form(e.args[1])
            if any(v != CONSTANT for v in b):
                a, b = b, a
            return _scaled(a, b.get(CONSTANT, 0))
        case Call(function="div"):
            divisor = _form(e.args[1]).get(CONSTANT, 0)
            return _scaled(_form(e.args[0]), pow(divisor, -1, PRIME)) if divisor else {}
        case Call() if not any(isinstance(x, (Index, Access)) for x in _leaves(e)):
            return {CONSTANT: _generic(repr(e))}
    raise _Unconfined


def _scaled(form: Coefficients, factor: int) -> Coefficients:
    return {v: c * factor % PRIME for v, c in form.items()} if factor else {}


def _generic(text: str) -> int:
    return pow(3, crc32(text.encode()) + 1, PRIME)


def _leaves(e: Expr) -> Iterator[Expr]:
    stack = [e]
    while stack:
        e = stack.pop()
        below = children(e)
        stack.extend(below)
        if isinstance(e, Access) or not below:
            yield e


def unbounded_points(
    s: Statement | Aggregate, variables: Iterable[str], left: Iterable[Expr] = (), own: str | None = None
) -> tuple[str, ...]:
    """Those of the variables of an aggregation that some way through its conditionals leaves free; ways on which its
    body is its identity, whose points change nothing, aside. Reads of the tensor `own` confine nothing."""
    left = tuple(left)
    asked = demands(*left, s.guard, s.body, own=own)
    forms: list[Expr] = [*left, *(i for a in always(asked) for i in a.index), *(c.expr for c in s.constraints)]
    free = unbounded(variables, forms)
    if not free or not conditional(asked):
        return free
    pruned = without_identity(s)
    if pruned is not s:
        return unbounded_points(pruned, variables, left, own)
    loose: dict[str, None] = {}
    for accesses in islice(_ways(asked), MOST_COMBINATIONS):
        loose.update(dict.fromkeys(unbounded(free, [*forms, *(i for a in accesses for i in a.index)])))
    return tuple(v for v in free if v in loose)


def _ways(asked: Iterable[Demand]) -> Iterator[tuple[Access, ...]]:
    """The accesses that constrain on each way through the conditionals."""
    branches = [d for d in asked if isinstance(d, Branch)]
    if not branches:
        yield tuple(always(asked))
        return
    first, *rest = branches
    others: tuple[Demand, ...] = (*always(asked), *rest)
    for side in (first.yes, first.no):
        for here in _ways(side):
            for there in _ways(others):
                yield (*here, *there)
