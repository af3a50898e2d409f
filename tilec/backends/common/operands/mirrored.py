"""Both sums of a gradient by an operand that a product has twice, as one.

Of a covariance `S[i, j] = +((X[n, i] - M[i]) * (X[n, j] - M[j]))` the gradient is `P[n, i] + Q[n, i]` with `P[n, i] =
+(D[i, j] * (X[n, j] - M[j]))` and `Q[n, j] = +(D[i, j] * (X[n, i] - M[i]))`. That is one product, with `D[i, j] + D[j,
i]`, where that is small beside the points that are multiplied. What two factors that are elements make is one already
(`transforms/lower/distribute.py`); these have scales, differences or conditions too, and are in no chain.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.pairs import PRODUCTS
from tilec.cost import H200
from tilec.ir.functions import ZERO, all_of
from tilec.ir.index import distinct_variables
from tilec.ir.infer import statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    substitute,
)
from tilec.ir.types import ITEM_BYTES, Types
from tilec.transforms.lower.eliminate import SumOfProducts, sum_of_products
from tilec.transforms.util.factors import Factor, added, quotient_of, terms_of
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure, is_unmasked

_LEAST_USES = 16  # times that each element of what is added up is used
_MOST_BYTES = 2**26  # of that

_Term = tuple[bool, Expr]


@dataclass(frozen=True)
class _Product:
    """A sum over one variable, over those of the statement that reads it; `negative`: it is taken away there."""

    negative: bool
    factors: tuple[Factor, ...]
    guards: tuple[Expr, ...]
    extent: Mapping[str, int]


def with_mirrored_sums(program: Program, types: Types, barred: Collection[str]) -> tuple[Program, Types]:
    """The program with such pairs of sums as one, but for those `barred`, and its types."""
    readers = Counter(a.tensor for s in program.statements for a in accesses_in(*s.roots))
    sums = {
        s.output: s
        for s in program.statements
        if s.aggregation == "sum" and s.output not in {*barred, *program.outputs} and readers[s.output] == 1
    }
    known, names = dict(types), Names.of(program)
    made: dict[str, list[Statement]] = {}
    gone: set[str] = set()
    for s in program.statements if len(sums) > 1 else ():
        found = None if s.output in barred else _merged(s, sums, known, names)
        if found is not None:
            statements, taken = found
            for m in statements:
                known[m.output] = statement_type(m, known)
            made[s.output] = statements
            gone |= taken
    if not made:
        return program, types
    every = tuple(m for s in program.statements if s.output not in gone for m in made.get(s.output, [s]))
    return replace(program, statements=every), known


def _merged(
    s: Statement, sums: Mapping[str, Statement], types: Types, names: Names
) -> tuple[list[Statement], set[str]] | None:
    """The statements in the place of one that adds up two such sums, and these sums."""
    outputs, terms = distinct_variables(s.index), terms_of(s.body, False)
    if outputs is None or s.aggregation != "assign" or not is_pure(s) or not is_unmasked(s):
        return None
    summed = fresh_variable("k", all_variables(s))
    read = [(t, p) for t in terms if (p := _over(s, outputs, t, sums, summed, types)) is not None]
    for (t, p), (u, q) in itertools.combinations(read, 2):
        found = _one(s, summed, p, q, types, names)
        if found is not None:
            value = Access(found[-1].output, s.index or ())
            rest = [x for x in terms if x not in (t, u)]
            last = replace(s, body=added([*rest, (False, value)])) if rest else None
            made = [*found, last] if last is not None else [*found[:-1], replace(found[-1], output=s.output)]
            return made, {e.tensor for _, e in (t, u) if isinstance(e, Access)}
    return None


def _over(
    s: Statement, outputs: Sequence[str], term: _Term, sums: Mapping[str, Statement], summed: str, types: Types
) -> _Product | None:
    """A term that is an element of such a sum, over the variables of the statement that adds it up and `summed`."""
    negative, a = term
    if not isinstance(a, Access) or a.tensor not in sums:
        return None
    whole, there = sum_of_products(sums[a.tensor], types), distinct_variables(a.index)
    own = distinct_variables(sums[a.tensor].index)
    if whole is None or there is None or own is None or {*there} != {*outputs} or len(whole.summed) != 1:
        return None
    extent = dict(zip(outputs, types[s.output].shape, strict=True))
    shape = tuple(extent[v] for v in there)
    if types[a.tensor] != replace(types[s.output], shape=shape) or any(n > 1 for n in _others(whole, own)):
        return None
    (v,) = whole.summed
    names: dict[str, Expr] = {**dict(zip(own, map(Index, there), strict=True)), v: Index(summed)}
    factors = tuple(replace(f, value=substitute(f.value, names)) for f in whole.factors)
    guards = tuple(substitute(g, names) for g in whole.guards)
    return _Product(negative, factors, guards, {**extent, summed: whole.extent[v]})


def _others(whole: SumOfProducts, own: Sequence[str]) -> list[int]:
    """How many values variables have that are neither the output's nor summed."""
    return [n for v, n in whole.extent.items() if v not in {*own, *whole.summed}]


def _one(s: Statement, summed: str, p: _Product, q: _Product, types: Types, names: Names) -> list[Statement] | None:
    """What the factors that the sums do not share add up to, and the one sum with that; None where they share no
    element of each summed place, or where that is not small."""
    if p.extent != q.extent:
        return None
    left, right, shared = list(p.factors), list(q.factors), list[Factor]()
    for f in p.factors:
        if f in right and any(accesses_in(f.value)):
            shared.append(f)
            left.remove(f)
            right.remove(f)
    sides = [_where(x.guards, quotient_of(rest)) for x, rest in ((p, left), (q, right))]
    body = added([(x.negative, e) for x, e in zip((p, q), sides, strict=True)])
    own = [v for v in p.extent if v in index_variables(body)]
    common = {v for f in shared for v in index_variables(f.value)}
    if summed not in common or summed not in own or any(f.divides for f in shared) or not set(own) - common:
        return None
    points, elements = math.prod(p.extent.values()), math.prod(p.extent[v] for v in own)
    t = types[s.output]
    if t.dtype not in PRODUCTS or points < _LEAST_USES * elements or elements * ITEM_BYTES[t.dtype] > _MOST_BYTES:
        return None
    adding = 3 * elements * ITEM_BYTES[t.dtype] / H200.memory + H200.launch
    if points / PRODUCTS[t.dtype] < adding:
        return None
    largest = max((a for e in sides for a in accesses_in(e)), key=lambda a: len(set(index_variables(a))), default=None)
    order = [v for v in dict.fromkeys(index_variables(*(largest.index if largest else ()), body)) if v in own]
    index, sizes = tuple(map(Index, order)), tuple(Int(p.extent[v]) for v in order)
    operand = Statement(names.fresh(f"{s.output}_operand"), index, sizes, body, "assign", span=s.span)
    guard = Call("or", (every, others)) if (every := all_of(p.guards)) and (others := all_of(q.guards)) else None
    product = quotient_of([*shared, Factor(Access(operand.output, index), False)])
    whole = Statement(names.fresh(f"{s.output}_sum"), s.index, s.sizes, product, "sum", guard, span=s.span)
    known = {**types, operand.output: statement_type(operand, types)}
    alike = known[operand.output].dtype == t.dtype and statement_type(whole, known) == t
    return [operand, whole] if alike else None


def _where(guards: Sequence[Expr], value: Expr) -> Expr:
    guard = all_of(guards)
    return value if guard is None else Call("select", (guard, value, ZERO))
