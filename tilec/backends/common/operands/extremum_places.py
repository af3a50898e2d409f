"""Where an extremum over many costly values stands, for its gradient to read these at one place a row.

`O[i] = <(S[i, j])` of distances `S[i, j] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]))` hands its cotangent to one of
them in each row, or shares it out among those that are equal. With two places of each row the gradient is that of

    O[i] = +((O_places[1, i] < 0 ? 1 : 0.5) * sum[d]((X[i, d] - Y[O_places[e, i], d]) * ...)), e < 2

The forward pass, which has all values, finds the first and the last one equal to the extremum, and how many are: sums
that are rounded are equal by chance in one of some 10^5 rows. Places are -1 where no value is equal to the extremum (an
empty row, NaN), the second one also where one is; the first is TIES where three or more are. If any row has so many,
the gradient is what comparing all values gives (`with_fallback` in `checkpoint/backward.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tilec.cost import operations
from tilec.ir.functions import call
from tilec.ir.index import distinct_variables
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_values,
    reads,
    rebuild,
    substitute,
    variables_of,
)
from tilec.ir.types import Types, shapes_in
from tilec.lattice.sets import bounds
from tilec.transforms.lower.flatten import flatten
from tilec.transforms.util.naming import Names, all_variables, fresh_variable, rename
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import body_at

LEAST_WORK_OF_PAIRS = 2**33  # operations of all values, which take longer than some hundred launches
LEAST_WORK_OF_VALUE = 96  # operations, beside which its comparisons take little: 32 squared differences
TIES = -2  # in the place of a place


@dataclass(frozen=True)
class ExtremumPlaces:
    """`program` with statements that find places; by extremum, the statement that has its gradient where these are
    known, and the name of the places."""

    program: Program
    at_place: Mapping[str, Statement]
    places: Mapping[str, str]


def with_extremum_places(program: Program, bound: Program, types: Types) -> ExtremumPlaces | None:
    """The program with the places of such extrema; None where there are none. `bound`: the same program with sizes,
    `types`: of the inputs."""
    flat = flatten(bound, types)
    names, known = Names.of(program), infer(flat, types)
    values = {s.output: s for s in flat.statements}
    written = {s.output: s for s in bound.statements}
    at_place: dict[str, Statement] = {}
    places: dict[str, str] = {}
    statements: list[Statement] = []
    for s in program.statements:
        statements.append(s)
        of = values.get(s.output)
        taken = None if of is None else _taken(of, values, known)
        if of is None or taken is None or s.output not in written:
            continue
        body = _written_out(of, values, known)
        if {a.tensor for a in accesses_in(body)} <= {*program.input_names(), *(x.output for x in statements)}:
            made = _places(written[s.output], taken, names)
            statements += made
            places[s.output] = made[-1].output
            at_place[s.output] = _at_places(of, body, taken, made[-1].output)
    return ExtremumPlaces(replace(program, statements=tuple(statements)), at_place, places) if places else None


def _taken(s: Statement, values: Mapping[str, Statement], types: Types) -> str | None:
    """The variable that an extremum is taken over, where that is one and each row has much work."""
    index, t = distinct_variables(s.index), types[s.output]
    if (
        index is None
        or not is_pure(s)
        or s.guard is not None
        or s.aggregation not in ("max", "min")
        or t.dtype not in ("float32", "float64")
    ):
        return None
    summed = [v for v in variables_of(s) if v not in index]
    if any(c.expr != Index(v) for c in s.constraints for v in summed):
        return None
    box = bounds(s, dict(shapes_in(types)))
    if len(summed) != 1 or not box or box[summed[0]][0] != 0 or box[summed[0]][1] >= 2**31 - 1:
        return None
    of = values.get(s.body.tensor) if isinstance(s.body, Access) else None
    return summed[0] if of is not None and _are_distances(of, values, types) else None


def _are_distances(s: Statement, values: Mapping[str, Statement], types: Types) -> bool:
    """Whether a statement is of sums of many squared differences, whose kernel finds the places of extrema beside
    them."""
    work = operations(s, shapes_in(types))
    square = isinstance(s.body, Call) and s.body.function == "mul" and len({*s.body.args}) == 1
    if not square or s.aggregation != "sum" or not _is_of_pairs(s.output, values, types):
        return False
    return work >= LEAST_WORK_OF_PAIRS and work >= LEAST_WORK_OF_VALUE * prod(types[s.output].shape)


def _is_of_pairs(name: str, values: Mapping[str, Statement], types: Types) -> bool:
    """Whether a value has more elements than all that it is made of."""
    s = values[name]
    plain = is_pure(s) and is_unmasked(s)
    made_of = sum(prod(types[n].shape) for n in dict.fromkeys(reads(s)))
    return plain and distinct_variables(s.index) is not None and prod(types[name].shape) > made_of


def _places(s: Statement, taken: str, names: Names) -> list[Statement]:
    """The first and the last place of a row's extremum, how many there are, and what is kept of these."""
    index = s.index or ()
    extremum = Access(s.output, index)
    equal = call("or", call("eq", s.body, extremum), call("ne", s.body, s.body))
    number = call("int32", Index(taken))
    found: list[Statement] = []
    for what, kept, body in (
        ("first", "min", number),
        ("last", "max", number),
        ("count", "sum", call("float32", Float(1.0))),
    ):
        name = names.fresh(f"{s.output}_{what}")
        found.append(replace(s, output=name, aggregation=kept, body=body, guard=equal, attributes=()))
    first, last, count = (Access(x.output, index) for x in found)
    end = fresh_variable("e", set(all_variables(s)))
    is_first, there = call("eq", Index(end), Int(0)), call("eq", extremum, extremum)
    one = call("and", there, call("eq", count, Float(1.0)))
    two = call("and", there, call("eq", count, Float(2.0)))
    none = call("select", call("and", is_first, call("gt", count, Float(2.0))), Int(TIES), Int(-1))
    place = call("select", call("and", is_first, call("or", one, two)), first, call("select", two, last, none))
    sizes = (Int(2), *(s.sizes or ()))
    whole = Statement(names.fresh(f"{s.output}_places"), (Index(end), *index), sizes, call("int32", place))
    return [*found, whole]


def _at_places(s: Statement, body: Expr, taken: str, places: str) -> Statement:
    """What has the gradient of an extremum: the mean of the values at its places."""
    end, index = fresh_variable("e", {*all_variables(s), *index_variables(body)}), s.index or ()
    there = substitute(body, {taken: Access(places, (Index(end), *index))})
    alone = call("lt", Access(places, (Int(1), *index)), Int(0))
    share = call("mul", call("select", alone, Float(1.0), Float(0.5)), there)
    return replace(s, body=share, aggregation="sum", constraints=(Constraint(Index(end), Int(2)),), attributes=())


def _written_out(s: Statement, values: Mapping[str, Statement], types: Types) -> Expr:
    """The body with what the values of pairs are made of in the place of each."""
    used = set(all_variables(s))

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Access):
            return rebuild(e, visit)
        if e.tensor not in values or not _is_of_pairs(e.tensor, values, types):
            return e
        value, bound = values[e.tensor], dict[str, str]()
        for v in variables_of(value):
            if v not in (distinct_variables(value.index) or ()):
                bound[v] = fresh_variable(v, used)
        value = map_values(value, lambda x: rename(x, bound))
        whole = body_at(value, e.index)
        return visit(Aggregate(value.aggregation, whole, tuple(bound.values())) if bound else whole)

    return visit(s.body)
