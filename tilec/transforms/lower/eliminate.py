"""One variable of a sum after the other, where a sum over several is no product of matrices.

`L[i] = +(A[i, f] * V[j, f] * exp(P[i, j]))` adds up over j and f term by term. Summed over j first, it is a product of
matrices and a sum of rows: `T[i, f] = +(V[j, f] * exp(P[i, j])); L[i] = +(A[i, f] * T[i, f])`. Which goes first is a
question of variable elimination over a sum of products (Dechter 1999); here the one that leaves an intermediate that
the program has already, up to the names of variables and the order of factors, or else one whose factors have 16 bits,
and of these the smallest. So an attention's normaliser gets the row sums of what comes in times what went out.

What is left is done likewise where far fewer terms are left. A variable that one factor alone has is added up in that
factor first: `Y[i] = +(D[i, j] * X[n, j])` is `T[j] = +(X[n, j]); Y[i] = +(D[i, j] * T[j])`, and the other factors are
read less often. So are factors of which one has all their variables, `+(G[k, i, j] * V[k, i] * H[k, m, j])` over i,
where that saves most terms. Such sums are kept in float32 where what they are for has 16 bits.

Factors that all terms of a body share are taken out of it first: `A * V * x - A * V * y` is `A * V * (x - y)`.
Exact as sums of products are that are added up in another order: factors are floating, every element has the points
that the box of its variables and the guard say, and a factor that is infinite where no term is left counts as one that
meets zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir.functions import ZERO, all_of, operands_of
from tilec.ir.index import as_stored, distinct_variables, linear
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Int,
    Pad,
    Program,
    Statement,
    index_variables,
    reads,
    reads_itself,
    value_accesses,
    walk,
)
from tilec.ir.types import FLOATS, ITEM_BYTES, NARROW, TensorType, Types, kind
from tilec.transforms.util.factors import (
    Factor,
    as_accumulated,
    factors_of_terms,
    in_wider_type,
    outside_of_pads,
    quotient_of,
    unwidened,
    with_places,
)
from tilec.transforms.util.matching import matched, unified
from tilec.transforms.util.naming import Names
from tilec.transforms.util.nested_sums import inner_sums_first
from tilec.transforms.util.plain import is_elementary
from tilec.transforms.util.ranges import axis_places, ranges_of
from tilec.transforms.util.rewrite import rounded_after

LEAST_SAVED = 2**16  # terms, for which a statement more is worth its launch
MUCH = 4  # times as many terms, at least, where what is added up first is read times another factor


def eliminate(program: Program, inputs: Types) -> Program:
    """The program with such sums in two. `inputs`: types of the inputs."""
    types = dict(infer(program, inputs))
    names = Names.of(program)
    done: list[Statement] = []
    for s in program.statements:
        s = inner_sums_first(s, types) if reads_itself(s) else s
        made = _eliminated(s, done, types, names, frozenset(program.input_names()))
        known = {**types, **_types_of(made[:-1], types)}
        if any(isinstance(e, Pad) for e in walk(s.body)) and not all(_is_bounded(m, known) for m in made):
            made, known = [s], types
        types = known
        others = (d for d in program.statements if d.output != s.output)
        if _is_joined(s, made, types) and not any(_reusing(d, made[0], types) for d in others):
            made = [s]
        place = _earlier(made[0], done, types) if len(made) > 1 else None
        if place is not None:
            done = [*done[:place], made[0], *(_reusing(d, made[0], types) or d for d in done[place:])]
        done += made if place is None else made[1:]
    return replace(program, statements=tuple(done))


def _types_of(statements: Sequence[Statement], types: Types) -> dict[str, TensorType]:
    found: dict[str, TensorType] = {}
    for s in statements:
        found[s.output] = statement_type(s, {**types, **found})
    return found


def _is_bounded(s: Statement, types: Types) -> bool:
    """Whether what is read, `pad` aside, bounds all variables of a part of a sum of products."""
    return s.aggregation != "sum" or sum_of_products(s, types, padded=True) is not None


def _earlier(s: Statement, done: Sequence[Statement], types: Types) -> int | None:
    """The place of the first statement that could read the value of `s`, were it computed before; None where there is
    none, or where `s` reads what is computed later."""
    place = next((k for k, d in enumerate(done) if _reusing(d, s, types)), None)
    later = {d.output for d in done[place:]} if place is not None else set()
    return None if later & set(reads(s)) else place


def _reusing(s: Statement, value: Statement, types: Types) -> Statement | None:
    """The sum of products `s` as one that reads `value`."""
    whole = sum_of_products(s, types, computed=True)
    if whole is None or len(whole.summed) < 2:
        return None
    found = (_reused(whole, v, [value], types) for v in whole.summed)
    return next((r for r in found if r is not None), None)


@dataclass(frozen=True)
class SumOfProducts:
    """A statement that adds up products: its factors, the parts of its guard, how many values each variable has. What
    constraints say stands in the guard."""

    statement: Statement
    factors: tuple[Factor, ...]
    guards: tuple[Expr, ...]
    extent: Mapping[str, int]
    summed: tuple[str, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        written = (linear(e).bare or "" for e in self.statement.index or ())
        return (*written, *self.summed)


def sum_of_products(
    s: Statement, types: Types, computed: bool = False, padded: bool = False, shifted: bool = False
) -> SumOfProducts | None:
    """Factors may be read, `computed`: at data; `padded`: with `pad`, which bounds nothing; `shifted`: at sums."""
    names = distinct_variables(s.index)
    if s.aggregation != "sum" or names is None or s.default or reads_itself(s) or types[s.output].dtype not in FLOATS:
        return None
    outputs = dict(zip(names, types[s.output].shape, strict=True))
    read = [e for e in outside_of_pads(s.roots) if isinstance(e, Access)] if padded else value_accesses(s)

    def dropped(e: Expr, n: int) -> bool:
        """Whether points whose place lies outside are dropped with the factor that reads it."""
        loose = computed and any(isinstance(x, Access) for x in walk(e)) or shifted and linear(e).is_affine
        return loose and linear(e).bare is None

    extent = ranges_of(axis_places(read, types), outputs, dropped)
    every = index_variables(*s.roots)
    nodes = outside_of_pads((s.body,)) if padded else walk(s.body)
    if extent is None or not {*every} <= extent.keys() or not is_elementary(nodes):
        return None
    factors = [with_places(f, types[s.output].dtype) for f in factors_of_terms(s.body, types)]
    tests = _as_tests(s.constraints, extent)
    values = [f.value for f in factors if not _is_number(f.value)]
    if tests is None or any(kind(expression_type(e, types).dtype) != 2 for e in values):
        return None
    parts = (*(_as_test(p, types) for g in s.guards for p in operands_of("and", g)), *tests)
    s = replace(s, guard=all_of(parts), constraints=()) if s.constraints else s
    summed = tuple(v for v in every if v not in outputs and extent[v] > 1)
    return SumOfProducts(s, tuple(factors), parts, extent, summed)


def _as_test(e: Expr, types: Types) -> Expr:
    return e if expression_type(e, types).dtype == "bool" else Call("ne", (e, ZERO))


def _as_tests(constraints: Sequence[Constraint], extent: Mapping[str, int]) -> list[Expr] | None:
    """What constraints say of variables from 0 on, as comparisons; None where they are of other kinds."""
    tests: list[Expr] = []
    for c in constraints:
        form, bound = linear(c.expr), linear(c.bound)
        if bound.terms or not form.is_affine or not form.is_integral or not {*form.variables()} <= extent.keys():
            return None
        reach = [(extent[v] - 1) * form.coefficient(v) for v in form.variables()]
        if form.constant + sum(r for r in reach if r < 0) < 0:
            tests.append(Call("ge", (form.to_value(), ZERO)))
        if form.constant + sum(r for r in reach if r > 0) >= bound.constant:
            tests.append(Call("lt", (form.to_value(), c.bound)))
    return tests


def _is_number(e: Expr) -> bool:
    return not index_variables(e) and not any(isinstance(x, Access) for x in walk(e))


def _eliminated(
    s: Statement, before: Sequence[Statement], types: Types, names: Names, inputs: frozenset[str]
) -> list[Statement]:
    whole = sum_of_products(s, types, computed=True, padded=True)
    if whole is None or not whole.summed:
        return [s]

    def continued(made: list[Statement], always: bool = False) -> list[Statement]:
        *first, rest = made
        known = {**types, **_types_of(first, types)}
        left = [*first, *_eliminated(rest, [*before, *first], known, names, inputs)]
        return left if always or MUCH * _terms(left, types) <= _terms(made, types) else made

    every = [v for v in whole.summed if _is_sum_alone(whole, v)]
    alike = (v for v in every if _partitioned(whole, v)[0] == _partitioned(whole, every[0])[0])
    alone = min(alike, key=lambda v: _elements(whole, _partitioned(whole, v)[2]), default=None)
    if alone is not None:
        reused = _reused(whole, (alone,), before, types)
        if reused is None and types[s.output].dtype in NARROW:
            factors = [replace(f, value=in_wider_type(f.value, "float32", types)) for f in whole.factors]
            total, value = rounded_after(replace(s, body=quotient_of(factors)), types[s.output].dtype, names)
            known = {**types, total.output: statement_type(total, types)}
            return [*_eliminated(total, before, known, names, inputs), value]
        return continued([reused] if reused is not None else _summed_first(whole, alone, types, names), True)
    if not _is_computed(whole, inputs):
        return [s]
    if len(whole.summed) == 1:
        return [_product_reused(whole, before, types) or s]

    for v in whole.summed if len(whole.summed) > 2 else ():  # all the others at once: columns of several axes
        reused = _reused(whole, [w for w in whole.summed if w != v], before, types)
        if reused is not None:
            return continued([reused])
    choices: list[tuple[bool, int, str]] = []
    for v in whole.summed:
        inside, outside, index = _partitioned(whole, v)
        left = {w for f in outside if not f.divides for w in index_variables(f.value)}
        if any(f.divides for f in inside) or not left & {*whole.summed}:
            continue
        if not _is_product(inside, index, v):
            continue
        reused = _reused(whole, (v,), before, types)
        if reused is not None:
            return continued([reused])
        values = (f.value for f in inside if not _is_number(f.value))
        in_float32 = any(ITEM_BYTES[expression_type(e, types).dtype] > 2 for e in values)
        choices.append((in_float32, math.prod(whole.extent[w] for w in index), v))
    if not choices or min(choices)[1] > _operands_of_one_product(whole):
        return [s]
    *_, v = min(choices)
    return continued(_summed_first(whole, v, types, names))


def _terms(statements: Sequence[Statement], types: Types) -> int:
    """The terms that sums of products add up."""
    known = {**types, **_types_of(statements[:-1], types)}
    wholes = (sum_of_products(s, known, computed=True, padded=True) for s in statements)
    return sum(_elements(w, w.variables) for w in wholes if w is not None)


def _summed_first(whole: SumOfProducts, v: str, types: Types, names: Names) -> list[Statement]:
    """The sum over v of the factors that have it, and the sum over the other variables of that times the others."""
    s = whole.statement
    inside, outside, index = _partitioned(whole, v)
    name = names.fresh(f"{s.output}_over_{v.rstrip(chr(39))}")
    guards = [g for g in whole.guards if v in index_variables(g)]
    places = tuple(map(Index, index))
    sizes = tuple(Int(whole.extent[w]) for w in index)
    dtype = types[s.output].dtype
    inside = inside if dtype in NARROW else [as_accumulated(f, dtype, types) for f in inside]
    first = Statement(name, places, sizes, quotient_of(inside), "sum", all_of(guards), span=s.span)
    return [first, _rest(whole, (v,), Access(name, places), outside)]


def _is_sum_alone(whole: SumOfProducts, v: str) -> bool:
    """Whether factors that others do not share the variable with are read for each value of what others alone have."""
    inside, outside, index = _partitioned(whole, v)
    if len(whole.summed) < 2 or not any(not f.divides and index_variables(f.value) for f in outside):
        return False
    sets = {frozenset(index_variables(f.value)) for f in inside}
    every = math.prod(whole.extent[w] for w in whole.variables)
    first, rest = math.prod(whole.extent[w] for w in (*index, v)), every // whole.extent[v]
    if len(sets) != 1 and (frozenset((*index, v)) not in sets or every < MUCH * (first + rest)):
        return False
    return every - first - rest >= LEAST_SAVED


def _partitioned(whole: SumOfProducts, *variables: str) -> tuple[list[Factor], list[Factor], tuple[str, ...]]:
    """The factors with one of the variables, those without, and the other variables that the former and the guard
    have."""
    own = set(variables)
    inside = [f for f in whole.factors if not own.isdisjoint(index_variables(f.value))]
    outside = [f for f in whole.factors if own.isdisjoint(index_variables(f.value))]
    guards = [g for g in whole.guards if not own.isdisjoint(index_variables(g))]
    used = set(index_variables(*(f.value for f in inside), *guards)) - own
    return inside, outside, as_stored([w for w in whole.extent if w in used], whole.summed, [f.value for f in inside])


def _is_computed(whole: SumOfProducts, inputs: frozenset[str]) -> bool:
    """Whether some factor is more than an input's element: products of inputs alone are ordered by who multiplies."""
    values = [f.value for f in whole.factors]
    called = any(isinstance(v, Call) and index_variables(v) for v in values)
    return bool(whole.guards) or called or any(isinstance(v, Access) and v.tensor not in inputs for v in values)


def _is_product(inside: Sequence[Factor], index: Sequence[str], v: str) -> bool:
    """Whether these factors are two operands at least, none of which has all variables."""
    sets = [set(index_variables(f.value)) - {v} for f in inside]
    return len(sets) > 1 and all(own != set(index) for own in sets)


def _sides(whole: SumOfProducts) -> list[set[str]]:
    """The variables of its factors, without those that another has all of."""
    sides: list[set[str]] = []
    for own in sorted((set(index_variables(f.value)) for f in whole.factors), key=len, reverse=True):
        if not any(own <= side for side in sides):
            sides.append(own)
    return sides


def _operands_of_one_product(whole: SumOfProducts) -> float:
    """The elements of the larger operand, where factors make two that have all summed variables: one product of
    matrices, of which an intermediate larger than its operands gains nothing. Infinite elsewhere."""
    sides = _sides(whole)
    if len(sides) != 2 or any(f.divides for f in whole.factors) or not set(whole.summed) <= sides[0] & sides[1]:
        return math.inf
    return max(_elements(whole, side) for side in sides)


def _is_joined(s: Statement, made: Sequence[Statement], types: Types) -> bool:
    """Whether two of a sum's three factors make an operand, `+(P[m, e] * X[m, h] * W[e, h, j])`, with which it is one
    product of matrices, and which is no larger than the sum over one variable that is `made`. That is rounded, and
    read again to be added up over the others."""
    whole = sum_of_products(s, types, padded=True) if len(made) == 2 else None
    sides = [] if whole is None else _sides(whole)
    if whole is None or whole.guards or len(sides) != 3 or any(f.divides for f in whole.factors):
        return False
    joined = ((a | b, c) for a, b, c in (sides, sides[1:] + sides[:1], sides[2:] + sides[:2]))
    least = min((_elements(whole, ab) for ab, c in joined if set(whole.summed) <= ab & c), default=math.inf)
    return least <= types[made[0].output].numel


def _elements(whole: SumOfProducts, variables: Iterable[str]) -> int:
    return math.prod(whole.extent[v] for v in variables)


def _rest(whole: SumOfProducts, variables: Sequence[str], inner: Access, outside: Sequence[Factor]) -> Statement:
    guards = [g for g in whole.guards if set(variables).isdisjoint(index_variables(g))]
    body = quotient_of([*outside, Factor(inner, False)])
    return replace(whole.statement, body=body, guard=all_of(guards))


def _product_reused(whole: SumOfProducts, before: Sequence[Statement], types: Types) -> Statement | None:
    """A sum over one variable of what an earlier product adds up, times other factors, as these times that product."""
    (v,) = whole.summed
    inside, outside, index = _partitioned(whole, v)
    if not outside or any(f.divides for f in inside) or not _is_product(inside, index, v):
        return None
    return _reused(whole, (v,), before, types)


def _reused(
    whole: SumOfProducts, variables: Sequence[str], before: Sequence[Statement], types: Types
) -> Statement | None:
    """The sum with an earlier statement's value in the place of its sum over these; None where there is no such."""
    own = set(variables)
    inside, outside, _ = _partitioned(whole, *variables)
    guards = [g for g in whole.guards if not own.isdisjoint(index_variables(g))]
    dtype = types[whole.statement.output].dtype
    for s in before:
        other = sum_of_products(s, types, computed=True)
        if other is None or len(other.summed) != len(own) or ITEM_BYTES[types[s.output].dtype] < ITEM_BYTES[dtype]:
            continue
        there, beside, _ = _partitioned(other, *other.summed)
        across = [f for f in beside if f.value != Float(1.0)]
        conditions = [g for g in other.guards if not set(other.summed).isdisjoint(index_variables(g))]
        if len(there) != len(inside) or len(conditions) != len(guards) or len(other.guards) != len(conditions):
            continue
        some, others = ([unwidened(f.value, types) for f in factors] for factors in (there, inside))
        match = matched(some, others, dict(zip(other.summed, variables, strict=True)) if len(own) == 1 else {})
        match = None if match is None else matched(conditions, guards, match)
        match = match if match is not None and {match.get(w) for w in other.summed} == own else None
        found = None if match is None else _taken(across, outside, match)
        if found is None:
            continue
        match, left = found
        index = [linear(e).bare for e in s.index or ()]
        if any(x not in match for x in index) or any(other.extent[x] != whole.extent[y] for x, y in match.items()):
            continue
        read = Access(s.output, tuple(Index(match[x]) for x in index if x is not None))
        made = _rest(whole, variables, read, left)
        if statement_type(made, types) == types[made.output]:
            return made
    return None


def _taken(
    wanted: Sequence[Factor], outside: Sequence[Factor], match: dict[str, str]
) -> tuple[dict[str, str], list[Factor]] | None:
    """What is left of the factors outside without those wanted."""
    left = list(outside)
    for f in wanted:
        for g in left:
            grown = unified(f.value, g.value, match) if f.divides == g.divides else None
            if grown is not None:
                match = grown
                left.remove(g)
                break
        else:
            return None
    return match, left
