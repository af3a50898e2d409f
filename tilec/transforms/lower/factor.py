"""What an aggregation need not repeat, on flat programs: factors of a sum that all its points share, counts of points.

`G[r, k] = +(A[r, c] * B[r, k])` asks for the sum over c once for every k. Where factors that depend on output variables
alone can be taken out of a floating sum and what is left no longer depends on some output variable, the sum becomes a
statement over the variables that it does depend on: `T[r] = +(A[r, c]); G[r, k] = T[r] * B[r, k]`. So gradients of
normalisations, in which each element reads a sum over its row, cost what the row costs. Quotients and functions that
all terms share leave a sum too, where it reads an element for each of its points; so they do where elements are then
added up at places in data (`_factored_terms`), and gradients of one product of rows share its sum. Rounding differs as
it does between any two orders of a product; 16-bit sums are kept in float32. A sum of ones over points that are known
is a number, and a sum of weighted deviations from the mean of the same points is zero, or NaN where the mean is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.ir.constraining import always, demands
from tilec.ir.functions import ONE, ZERO, all_of, call, operands_of
from tilec.ir.index import Affine, distinct_variables, linear, place_value
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    index_variables,
    map_values,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import NARROW, Types, is_floating, shapes_in
from tilec.lattice.questions import InRange
from tilec.lattice.sets import bounds_of, depends_on_data, domain
from tilec.transforms.lower.decompose import in_type, points_per_element
from tilec.transforms.util.factors import (
    Factor,
    added,
    as_accumulated,
    factors_of,
    is_number,
    quotient_of,
    shared_factors,
    terms_of,
    unwidened,
    without_factors,
)
from tilec.transforms.util.means import total_of_mean
from tilec.transforms.util.naming import Names

LEAST_FACTORS = 8  # of a product, for which all but one of them are those before times those after,
LEAST_TERMS = 2**23  # and of all its elements together


def factor(program: Program, inputs: Types) -> Program:
    """The program with shared factors outside of sums and counts as numbers. `inputs`: types of the inputs."""
    types = infer(program, inputs)
    names = Names.of(program)
    statements: list[Statement] = []
    counts: dict[str, int] = {}
    known: dict[str, Statement] = {}
    for s in program.statements:
        s = known[s.output] = _with_counts(s, counts, types)
        n = _count(s, types)
        if n is not None:
            counts[s.output] = n
        balanced = _balanced(s, types, known)
        if balanced is None:
            made = _factored(s, types, names) or _factored_terms(s, types, names) or _before_and_after(s, types, names)
            statements += made or [s]
        else:
            statements.append(balanced)
    return replace(program, statements=tuple(statements))


# counts


def _count(s: Statement, types: Types) -> int | None:
    """The number of points of each element, where the statement adds up ones."""
    bare = replace(s, guard=None)
    return points_per_element(bare, types) if only_names(s.guard) and counts_points(bare) else None


def counts_points(s: Statement) -> bool:
    """Whether a statement adds up ones, where its accesses lie inside."""
    ones = all(e == ONE or isinstance(e, Inside) for e in operands_of("mul", s.body))
    return s.aggregation == "sum" and ones and s.guard is None and s.default is None and s.index is not None


def only_names(guard: Expr | None) -> bool:
    """Whether a guard is there only to name variables: `i == i`."""
    match guard:
        case Call("and", (a, b)):
            return only_names(a) and only_names(b)
        case Call("eq", (Index() as a, b)):
            return a == b
    return guard is None


def _with_counts(s: Statement, counts: Mapping[str, int], types: Types) -> Statement:
    """The statement with counts as numbers where it reads them at variables that its output, or another element that it
    reads at each point, keeps inside."""
    if not counts or s.index is None or s.sizes is None:
        return s
    within = [(s.index, types[s.output].shape)]
    within += [(a.index, types[a.tensor].shape) for a in always(demands(s.body)) if a.tensor not in counts]
    sizes: dict[str, int] = {}
    for index, shape in within:
        for e, n in zip(index, shape, strict=True):
            if (v := linear(e).bare) is not None:
                sizes[v] = min(n, sizes.get(v, n))

    def number(e: Expr) -> Int | None:
        if not isinstance(e, Access) or e.tensor not in counts:
            return None
        places = zip((linear(i).bare for i in e.index), types[e.tensor].shape, strict=True)
        return Int(counts[e.tensor]) if all(v is not None and sizes.get(v, n + 1) <= n for v, n in places) else None

    def visit(e: Expr) -> Expr:
        if isinstance(e, Access) and (n := number(e)) is not None:
            return call(types[e.tensor].dtype, n)
        if isinstance(e, Call) and e.function == "div" and (n := number(e.args[1])) is not None:
            made = replace(e, args=(visit(e.args[0]), n))
            if expression_type(made, types) == expression_type(e, types):
                return made
        return e if isinstance(e, (Access, Inside)) else rebuild(e, visit)

    return s if reads_itself(s) else map_values(s, visit)


# factors


def _factored(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """Two statements that take the place of this one."""
    found = _total_and_value(s, types, names)
    if found is None:
        return None
    first, value, guard = found
    value = call(types[s.output].dtype, value) if types[s.output].dtype in NARROW else value
    second = replace(s, body=value, aggregation="assign", constraints=(), guard=guard)
    made = statement_type(second, {**types, first.output: statement_type(first, types)})
    return [first, second] if made == types[s.output] else None


def _before_and_after(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """Products of all but one, `*(k' != k ? X[b, k'])`, as the products of those before times those after, which are
    cumulative: a product's gradient has an element for each of its factors, and not a term for each two."""
    written, dtype = distinct_variables(s.index), types[s.output].dtype
    if s.aggregation != "prod" or written is None or s.index is None or s.default is not None or s.constraints:
        return None
    match s.guard:
        case Call("ne", (Index(one), Index(other))) if (one in written) != (other in written):
            k, v = (one, other) if one in written else (other, one)
        case _:
            return None
    parts, n = list(walk(s.body)), types[s.output].shape[written.index(k)]
    places = [(linear(i), size) for a in parts if isinstance(a, Access) for i, size in _places(a, types)]
    known = all(isinstance(e, (Access, Call, Index, Int, Float)) for e in parts)
    if not known or any(form.coefficient(v) and (form.bare != v or size != n) for form, size in places):
        return None
    if {*index_variables(s.body)} - {*written} != {v} or k in index_variables(s.body):
        return None
    if not is_floating(dtype) or dtype in NARROW or reads_itself(s):
        return None
    if n < LEAST_FACTORS or n * types[s.output].numel < LEAST_TERMS:
        return None
    ahead = Affine.variable(k) - Affine.variable(v) - 1
    sides = (("before", ahead), ("after", Affine.variable(v) - Affine.variable(k) - 1))
    made = [
        replace(s, output=names.fresh(f"{s.output}_{side}"), guard=None, constraints=(Constraint(f.to_expr(), Int(n)),))
        for side, f in sides
    ]
    before, after = (Access(m.output, s.index) for m in made)
    return [*made, replace(s, body=Call("mul", (before, after)), aggregation="assign", guard=None)]


def _places(a: Access, types: Types) -> Iterable[tuple[Expr, int]]:
    return zip(a.index, types[a.tensor].shape, strict=True)


def _factored_terms(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """Statements that take the place of one whose terms are sums themselves, added up where data says."""
    if s.aggregation != "sum" or s.index is None or s.default is not None or reads_itself(s):
        return None
    box = bounds_of(domain(s, shapes_in(types))) if any(depends_on_data(linear(e)) for e in s.index) else None
    written = index_variables(*s.index)
    if box is None or any(box[v][0] for v in written):
        return None
    sizes = tuple(Int(box[v][1] + 1) for v in written)
    terms = replace(s, output=f"{s.output}_values", index=tuple(map(Index, written)), sizes=sizes, attributes=())
    found = _total_and_value(terms, {**types, terms.output: statement_type(terms, types)}, names)
    if found is None:
        return None
    first, value, guard = found
    known = {**types, first.output: statement_type(first, types)}
    second = replace(s, body=value, constraints=(), guard=guard)
    if statement_type(second, known) == types[s.output]:
        return [first, second]
    return [first, *in_type(second, types[s.output].dtype, known, names)] if types[s.output].dtype in NARROW else None


def _total_and_value(s: Statement, types: Types, names: Names) -> tuple[Statement, Expr, Expr | None] | None:
    """The sum that factors have left, with them what it was, and which elements have points."""
    cut = _cut(s, types) or _running_cut(s, types)
    if cut is None:
        return None
    terms, outer, kept, there = cut
    dtype = types[s.output].dtype
    total = names.fresh(f"{s.output}_total")
    index = tuple(Index(v) for v in kept)
    sizes = {v: n for e, n in zip(s.index or (), s.sizes or (), strict=True) if (v := linear(e).bare) is not None}
    body = added(
        [(negative, quotient_of([as_accumulated(f, dtype, types) for f in inner])) for negative, inner in terms]
    )
    shape = tuple(sizes[v] for v in kept)
    first = replace(s, output=total, index=index, sizes=shape, body=body, guard=None, attributes=())
    own = statement_type(first, types).dtype
    float_dtype = None if is_floating(own) else "float64" if dtype == "float64" else "float32"  # a count
    value = quotient_of([Factor(Access(total, index), False, float_dtype), *outer])
    shapes = {**shapes_in(types), total: tuple(n.value for n in shape if isinstance(n, Int))}
    asked = domain(replace(s, body=value, constraints=()), shapes).dependent
    tests = range_tests(c for c in domain(s, shapes).dependent if c not in asked)
    return first, value, all_of([*s.guards, *there, *tests])


def range_tests(conditions: Iterable[InRange]) -> list[Expr]:
    """The conditions as values: that each form is from 0 to below its bound."""
    forms = [(place_value(c.form.to_value()), c.bound) for c in conditions]
    return [test for e, n in forms for test in (Call("ge", (e, ZERO)), Call("lt", (e, Int(n))))]


Terms = list[tuple[bool, list[Factor]]]
SumCut = tuple[Terms, list[Factor], tuple[str, ...], list[Expr]]


def _cut(s: Statement, types: Types) -> SumCut | None:
    """The terms that stay in the sum, each with whether it is subtracted, the factors that leave it, the output
    variables that the sum then has, and tests of which elements have a point. Every element must have one, or data say
    whether it has all of them or none: a factor may be infinite where a sum of none is zero. A guard may say which
    elements are zero, but not which points count."""
    if s.aggregation != "sum" or s.index is None or s.default is not None or reads_itself(s):
        return None
    outputs = distinct_variables(s.index)
    if outputs is None or not is_floating(types[s.output].dtype):
        return None
    fixed = index_variables(*(c.expr for c in s.constraints))
    reduced = {v for v in (*index_variables(s.body), *fixed) if v not in outputs}
    if not reduced or (s.guard is not None and not set(outputs).issuperset(index_variables(s.guard))):
        return None
    terms = [(negative, factors_of(e, types)) for negative, e in terms_of(s.body, False)]
    outer = [f for f in terms[0][1] if not set(index_variables(f.value)) & reduced]
    for _, factors in terms[1:]:
        outer = shared_factors(outer, factors)
    if len(terms) > 1:
        outer = [f for f in outer if not is_number(f.value)]
    inner = [(negative, without_factors(factors, outer)) for negative, factors in terms]
    needed = set(index_variables(*(f.value for _, factors in inner for f in factors))) | set(fixed)
    large = [v for v, n in zip(outputs, types[s.output].shape, strict=True) if v not in needed and n > 1]
    numerators = all(any(not f.divides for f in factors) for _, factors in inner)
    compute_heavy = any(_is_compute_heavy(f) for f in outer) and _is_dense_sum(s)
    if not numerators or not reduced <= needed or not (large or compute_heavy):
        return None
    everything = [*outer, *(f for _, factors in inner for f in factors)]
    if any(not is_floating(expression_type(f.value, types).dtype) for f in everything if not is_number(f.value)):
        return None
    if points_per_element(replace(s, guard=None), types, data=True) is None or not _ask_alike(s, types, outputs):
        return None
    return inner, outer, tuple(v for v in outputs if v in needed or not large), []


def _ask_alike(s: Statement, types: Types, outputs: Sequence[str]) -> bool:
    """Whether all points of an element meet the same conditions on data."""
    asked = domain(s, shapes_in(types)).dependent
    own = set(outputs)
    return all(c.form.is_integral and own.issuperset(index_variables(c.form.to_expr())) for c in asked)


def _running_cut(s: Statement, types: Types) -> SumCut | None:
    """The same of a sum over all k up to i, or from i on, or so many places before, whose terms hold factors of i or
    whose guard is on i: what is left is a scan. Elements have a point where k is inside, since all that the scan reads
    is as long as the output."""
    if s.aggregation != "sum" or s.default is not None or len(s.constraints) != 1:
        return None
    outputs = distinct_variables(s.index)
    if outputs is None or not set(outputs).issuperset(index_variables(*s.guards)):
        return None
    if outputs is None or reads_itself(s) or not is_floating(types[s.output].dtype):
        return None
    size = dict(zip(outputs, types[s.output].shape, strict=True))
    reduced = [v for v in index_variables(s.body) if v not in size]
    (c,) = s.constraints
    form, pair = linear(c.expr), index_variables(c.expr)
    if len(reduced) != 1 or len(pair) != 2 or reduced[0] not in pair or not isinstance(c.bound, Int):
        return None
    (k,), (i,) = reduced, {*pair} - {*reduced}
    difference = Affine.variable(i) - Affine.variable(k)
    shift = form - difference if form.coefficient(i) == 1 else form + difference
    if i not in size or shift.terms or not form.is_integral:
        return None
    n = as_int(shift.constant)
    if c.bound.value < size[i] + n:
        return None
    sides = Call("ge", (Index(i), Int(-n))), Call("lt", (Index(i), Int(size[i] + n)))
    first = sides[0 if form.coefficient(i) == 1 else 1]
    there: list[Expr] = [first] if n < 0 else []
    terms = [(negative, factors_of(e, types)) for negative, e in terms_of(s.body, False)]
    inner = [[f for f in factors if k in index_variables(f.value)] for _, factors in terms]
    if any(f != inner[0] for f in inner) or all(f.divides for f in inner[0]):
        return None
    scanned = [f.value for f in inner[0]]
    known = {**size, k: size[i]}
    whole = (
        linear(e).bare is not None and known.get(linear(e).bare or "") == n
        for a in walk(*scanned)
        if isinstance(a, Access)
        for e, n in zip(a.index, types[a.tensor].shape, strict=True)
    )
    own = [(negative, without_factors(factors, inner[0])) for negative, factors in terms]
    factored = any(i in index_variables(f.value) for _, fs in own for f in fs)
    if i in index_variables(*scanned) or not factored and i not in index_variables(*s.guards):
        return None
    if not all(whole) or any(isinstance(e, (Inside, Pad)) for e in walk(s.body)):
        return None
    values = [f.value for _, factors in terms for f in factors if not is_number(f.value)]
    if any(not is_floating(expression_type(e, types).dtype) for e in values):
        return None
    if len(own) == 1:
        return [(own[0][0], inner[0])], own[0][1], outputs, there
    sums = [(negative, quotient_of(fs)) for negative, fs in own]
    return [(False, inner[0])], [Factor(added(sums), False)], outputs, there


def _is_compute_heavy(f: Factor) -> bool:
    """Whether it costs more at each point than a product."""
    return not is_number(f.value) and (f.divides or isinstance(f.value, Call))


def _is_dense_sum(s: Statement) -> bool:
    """Whether some element is read for each point: then no product of matrices is taken apart."""
    variables = set(index_variables(*(s.index or ()), s.body))
    return any(isinstance(e, Access) and variables <= set(index_variables(e)) for e in walk(s.body))


def _balanced(s: Statement, types: Types, known: Mapping[str, Statement]) -> Statement | None:
    """The statement without its sum, where that adds up deviations from a mean."""
    if s.aggregation != "sum" or s.index is None or s.default is not None or s.guard is not None or s.constraints:
        return None
    outputs = {linear(e).bare for e in s.index}
    factors = factors_of(s.body, types)
    moving = [f for f in factors if set(index_variables(f.value)) - outputs]
    if len(moving) != 1 or moving[0].divides or not is_floating(types[s.output].dtype):
        return None
    if all(f is moving[0] or is_number(f.value) for f in factors):
        return None  # somebody asks for the rounding of the mean: the corrected variance in docs/numerics.md does
    match moving[0].value:
        case Call("sub", (term, Access() as mean)) if not set(index_variables(mean)) - outputs:
            x, n = unwidened(term, types), points_per_element(s, types)
            if n is None or not isinstance(x, Access) or total_of_mean(x, mean, n, known, types) is None:
                return None
        case _:
            return None
    still = replace(moving[0], value=Call("sub", (mean, mean)))
    made = replace(s, body=quotient_of([still if f is moving[0] else f for f in factors]), aggregation="assign")
    return made if statement_type(made, types) == types[s.output] else None
