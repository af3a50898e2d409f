"""A sum of which another one is a part, as a sum over that one.

`S[n, c] = +(D[n, x, c] * X[n, x, c]); M[n] = +(D[n, x, c] * X[n, x, c] * G[n, c])` read D and X twice. What the second
adds up over x alone is the first, so that `M[n] = +(S[n, c] * G[n, c])` reads neither. Gradients of normalisations by
statistics of several levels ask for the same products in several sums: by an element of each channel, by the mean of
all channels, by weights.

Where neither of two sums is a part of the other, kernels are given what both add up over the same variables as a sum of
its own (`with_common_sums`), if it has LEAST_COMMON points or more along memory and neither is held on a chip: of
`M[n] = +(D[n, c, x] * G[c])` and `B[c] = +(D[n, c, x])` that is `T[n, c] = +(D[n, c, x])`. So the gradients of a group
norm's statistics and of its weights read all points once. A library's group norm is given the sums as they are.

Only sums are shared that read an element for each of their points, the same points where guards choose some: what is
left is smaller than what was read, and no product of matrices is taken apart. Exact as sums of products are that are
added up in another order, and as factors are that leave a sum (`factor`); sums of 16 bits are shared in float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir.functions import all_of
from tilec.ir.index import linear
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Constraint,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    reads,
)
from tilec.ir.types import NARROW, Types
from tilec.transforms.lower.eliminate import SumOfProducts, sum_of_products
from tilec.transforms.util.factors import MINUS_ONE, Factor, as_accumulated, is_number, quotient_of, unwidened
from tilec.transforms.util.matching import unified
from tilec.transforms.util.naming import Names
from tilec.transforms.util.rewrite import rounded_after

LEAST_COMMON = 16  # points of a sum that two others are made of, at least
# points of a sum that a kernel holds, at most: it has the sum and what is computed with it of one reading, and there
# the other one's reading is as many bytes as reading the points again
MOST_ON_CHIP = 2**14
FEWEST_SHARED = 132  # results of one of the two: fewer are split over programs as they are


def share_sums(program: Program, inputs: Types) -> Program:
    """The program with such sums over each other. `inputs`: types of the inputs."""
    return _with_shared(program, inputs, Names.of(program))


def with_common_sums(program: Program, types: Types) -> tuple[Program, Types]:
    """The program with sums of their own that others, of which neither is a part of the other, are made of, if no sum
    of something else reads their points again, and the types of all tensors. `types`: the program's."""
    names, inputs, made = Names.of(program), {n: types[n] for n in program.input_names()}, program
    parts: dict[str, Statement] = {}
    while (found := _with_one_common(made, inputs, names)) is not None:
        made, part = found
        parts[part.output] = part
    if not parts:
        return program, types
    known = {**infer(made, inputs), **types}
    read = {name for s in parts.values() for name in reads(s)}
    most = max(types[name].numel for name in read)
    points = {name for name in read if types[name].numel == most}
    others = (s for s in made.statements if s.output not in parts and _dense_sum(s, known) is not None)
    return (program, types) if any(points & {*reads(s)} for s in others) else (made, known)


def _with_shared(program: Program, inputs: Types, names: Names) -> Program:
    while (found := _with_one_shared(program, infer(program, inputs), names)) is not None:
        program = found
    return program


def _with_one_common(program: Program, inputs: Types, names: Names) -> tuple[Program, Statement] | None:
    """The program with a sum of which two others are made, neither of the other, and that sum."""
    types = infer(program, inputs)
    dense = [x for s in program.statements if (x := _dense_sum(s, types)) is not None and not x.guards]
    sums = [x for x in dense if math.prod(x.extent[v] for v in x.summed) > MOST_ON_CHIP]
    for one, other in itertools.combinations(sums, 2):
        if max(types[x.statement.output].numel for x in (one, other)) < FEWEST_SHARED:
            continue
        if _accumulated(types[one.statement.output].dtype) != _accumulated(types[other.statement.output].dtype):
            continue
        for part in _common(one, other, types, names):
            statements = [p for s in program.statements for p in ((part, s) if s is one.statement else (s,))]
            made = _with_shared(replace(program, statements=tuple(statements)), inputs, names)
            if sum(part.output in reads(s) for s in made.statements) > 1:
                return made, part
    return None


def _common(one: SumOfProducts, other: SumOfProducts, types: Types, names: Names) -> Iterator[Statement]:
    """Sums over the variables that both add up, of the factors in common that read an element for each point."""
    mine, theirs = ([replace(f, value=unwidened(f.value, types)) for f in x.factors] for x in (one, other))
    moving = {v for v, n in one.extent.items() if n > 1}
    for dense in (f for f in mine if moving <= {*index_variables(f.value)}):
        for match, taken in _embeddings([dense], theirs, {}, ()):
            if not moving <= match.keys() or any(one.extent[v] != other.extent[w] for v, w in match.items()):
                continue
            common, left = [dense], list[Factor]()
            for f in (f for f in mine if f is not dense):
                same = (k for m, (k,) in _embeddings([f], theirs, match, ()) if m == match and k not in taken)
                found = next(same, None)
                taken = taken if found is None else (*taken, found)
                (left if found is None else common).append(f)
            beyond = {*index_variables(*(f.value for f in left))}
            kept = {*index_variables(*(f.value for k, f in enumerate(theirs) if k not in taken))}
            inner = {v for v in one.summed if match[v] in other.summed and v not in beyond and match[v] not in kept}
            along = {linear(a.index[-1]).bare for a in accesses_in(dense.value) if len(a.index) >= len(moving)}
            if inner & along and math.prod(one.extent[v] for v in inner) >= LEAST_COMMON:
                dtype, index = types[one.statement.output].dtype, dict.fromkeys(index_variables(dense.value))
                own = [as_accumulated(f, dtype, types) for f in common if inner & {*index_variables(f.value)}]
                outer = [v for v in index if v in moving - inner]
                sizes = tuple(Int(one.extent[v]) for v in outer)
                output = names.fresh(f"{one.statement.output}_part")
                yield Statement(output, tuple(map(Index, outer)), sizes, quotient_of(own), "sum")


def _with_one_shared(program: Program, types: Types, names: Names) -> Program | None:
    sums = [found for s in program.statements if (found := _dense_sum(s, types)) is not None]
    fewest = min((len(found.summed) for found in sums), default=0)
    for whole in (found for found in sums if len(found.summed) > fewest):
        parts = [p for p in sums if _may_be_part(p, whole, types)]
        for part in sorted(parts, key=lambda p: -math.prod(p.extent[v] for v in p.summed)):
            over = _over(whole, part, types)
            order = _order(program.statements, whole.statement, part.statement)
            if over is None or order is None:
                continue
            match, rest = over
            shared = _in_float32(part.statement, part.factors, types, names)
            finite = all(is_number(f.value) or f.value == MINUS_ONE for f in rest)
            if not finite and any(map(_is_shifted, whole.statement.roots)):
                continue
            asked, guard = ((), None) if finite else _where_there_are_points(part, whole, match, names)
            factors = [*rest, Factor(_at(shared[0], match), False)]
            known = {**types, shared[0].output: statement_type(shared[0], types)}
            made = {
                part.statement.output: (*asked, *shared),
                whole.statement.output: _in_float32(replace(whole.statement, guard=guard), factors, known, names),
            }
            return replace(program, statements=tuple(m for s in order for m in made.get(s.output, (s,))))
    return None


def _dense_sum(s: Statement, types: Types) -> SumOfProducts | None:
    """The sum over a box, or the points of it that a guard says, where some element is read for each of them."""
    found = sum_of_products(s, types, shifted=True) if s.aggregation == "sum" else None
    if found is None or not found.summed:
        return None
    moving = {v for v, n in found.extent.items() if n > 1}
    return found if any(moving <= {*index_variables(f.value)} for f in found.factors) else None


def _is_shifted(e: Expr) -> bool:
    """Whether positions outside of a tensor drop points of the box."""
    return any(linear(i).bare is None and index_variables(i) for a in accesses_in(e) for i in a.index)


def _may_be_part(part: SumOfProducts, whole: SumOfProducts, types: Types) -> bool:
    some, other = part.statement, whole.statement
    alike = _accumulated(types[some.output].dtype) == _accumulated(types[other.output].dtype)
    alike = alike and len(part.guards) == len(whole.guards)
    return alike and len(part.summed) < len(whole.summed) and set(reads(some)) <= set(reads(other))


def _accumulated(dtype: str) -> str:
    return "float32" if dtype in NARROW else dtype


def _where_there_are_points(
    part: SumOfProducts, whole: SumOfProducts, match: Mapping[str, str], names: Names
) -> tuple[tuple[Statement, ...], Expr | None]:
    """What says at which elements the part adds up any point, and the guard that asks it: elsewhere the part is 0, and
    what the whole multiplies it by may be infinite."""
    own = {v: Index(v) for v in index_variables(*(part.statement.index or ()))}
    kept = [g for g in whole.guards if {*index_variables(g)} <= {match[v] for v in own}]
    tests = [g for g in part.guards if not {*index_variables(g)} <= own.keys()]
    test = all_of(tests)
    if test is None:
        return (), all_of(kept)
    read = index_variables(test)
    index = tuple(e for v, e in own.items() if v in read)
    sizes = tuple(Int(part.extent[e.name]) for e in index)
    bounds = tuple(Constraint(Index(v), Int(part.extent[v])) for v in dict.fromkeys(read) if v not in own)
    output = names.fresh(f"{part.statement.output}_any")
    asked = Statement(output, index, sizes, test, "any", constraints=bounds)
    return (asked,), all_of([*kept, _at(asked, match)])


def _at(s: Statement, match: Mapping[str, str]) -> Access:
    """The element of a statement over variables that have other names."""
    return Access(s.output, tuple(Index(match[e.name]) for e in s.index or () if isinstance(e, Index)))


def _over(whole: SumOfProducts, part: SumOfProducts, types: Types) -> tuple[dict[str, str], list[Factor]] | None:
    """The variables of the sum `part` as those of the sum `whole`, and the other factors of that; None where it is no
    sum over the part."""
    wanted, factors = ([replace(f, value=unwidened(f.value, types)) for f in x.factors] for x in (part, whole))
    index = [linear(e).bare for e in part.statement.index or ()]
    guards, tests = ([Factor(g, False) for g in x.guards] for x in (part, whole))
    found = _embeddings(wanted, factors, {}, ())
    for match, taken in ((m, taken) for known, taken in found for m, _ in _embeddings(guards, tests, known, ())):
        rest = [f for k, f in enumerate(whole.factors) if k not in taken]
        within = {match[v] for v in part.summed}
        if any(v not in match for v in index) or any(part.extent[v] != whole.extent[w] for v, w in match.items()):
            continue
        if within < set(whole.summed) and not within & set(index_variables(*(f.value for f in rest))):
            return match, rest
    return None


def _embeddings(
    wanted: Sequence[Factor], factors: Sequence[Factor], match: dict[str, str], taken: tuple[int, ...]
) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Each way to find all of `wanted` among the factors: the variables' other names, and which factors these are."""
    if not wanted:
        yield match, taken
        return
    for k, f in enumerate(factors):
        grown = unified(wanted[0].value, f.value, match) if k not in taken and f.divides == wanted[0].divides else None
        if grown is not None:
            yield from _embeddings(wanted[1:], factors, grown, (*taken, k))


def _order(statements: Sequence[Statement], whole: Statement, part: Statement) -> list[Statement] | None:
    """The statements with the part before the whole; None where neither can move."""
    outputs = [s.output for s in statements]
    at, there = outputs.index(whole.output), outputs.index(part.output)
    if there < at:
        return list(statements)
    between = {s.output for s in statements[at:there]}
    if not between & set(reads(part)):
        return [*statements[:at], part, *statements[at:there], *statements[there + 1 :]]
    if any(whole.output in reads(s) for s in statements[at : there + 1]):
        return None
    return [*statements[:at], *statements[at + 1 : there + 1], whole, *statements[there + 1 :]]


def _in_float32(s: Statement, factors: Sequence[Factor], types: Types, names: Names) -> list[Statement]:
    """The sum of products of these factors, first as it is added up and then, where it has 16 bits, in its type."""
    dtype = types[s.output].dtype
    total = replace(s, body=quotient_of([as_accumulated(f, dtype, types) for f in factors]), constraints=())
    return rounded_after(total, dtype, names) if dtype in NARROW else [total]
