"""Counts that floating values are divided by, in their type, and quotients by them once an element.

How many points hold a condition, such as how many share a maximum, is an integer of 64 bits. Where it stays below 2^24
and floating values alone are divided by it, it is summed as float32, which is as exact, and half as large in memory and
in registers. Where what each of its elements has one value of is divided by it at several points, as the share of each
that has the maximum is, the quotient is a statement of its own. Counts that are the same everywhere, as those of the
points of a mean over whole windows, are numbers. Others of points between ends that move with the element, as those of
windows that a border cuts, are computed from these ends: nothing is added up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf, prod
from operator import mul

from tilec.ir.constraining import constraining
from tilec.ir.functions import FUNCTIONS, RANDOM, all_of, call
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import expression_type, infer
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    children,
    expressions,
    index_variables,
    map_expressions,
    map_values,
    reads,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import NARROW, TensorType, Types, shapes_in
from tilec.lattice.questions import InRange
from tilec.lattice.sets import bounds, domain, interval_of, shapes_of
from tilec.transforms.lower.factor import counts_points, only_names
from tilec.transforms.simplify.simplify import drop_dead, fold
from tilec.transforms.util.naming import Names, all_variables
from tilec.transforms.util.rewrite import map_reads

_EXACT = 2**24  # integers that float32 holds
_DIVIDED = ("float32", "float64")


def float_counts(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The flat program with such counts in float32; `inputs` are the types of its inputs."""
    program = _over_fewer_axes(_with_ends(program, inputs), inputs)
    counts = [s for s in program.statements if _is_count(s) and s.output not in program.outputs]
    if not counts:
        return program
    types = infer(program, inputs)
    shapes = shapes_in(types)
    found = {s.output for s in counts if shapes[s.output] and _divides(s.output, program, types)}
    found = {s.output for s in counts if s.output in found and _points(s, shapes) < _EXACT}
    if not found:
        return program
    statements = [_with_narrow_quotients(s, found, types) for s in program.statements]
    statements = [replace(s, body=Call("float32", (s.body,))) if s.output in found else s for s in statements]
    return _divided_once(replace(program, statements=tuple(statements)), found, types, computed=True)


def _with_narrow_quotients(s: Statement, counts: Collection[str], types: Types) -> Statement:
    """With quotients of 16-bit values by counts in the values' type, as those by integers are."""

    def visit(e: Expr) -> Expr:
        match e:
            case Call("div", (x, Access(count))) if count in counts:
                dtype = expression_type(x, types).dtype
                made = rebuild(e, visit)
                return Call(dtype, (made,)) if dtype in NARROW else made
        return rebuild(e, visit)

    return map_expressions(s, visit) if {*counts} & {*reads(s)} else s


def _with_ends(program: Program, inputs: Types) -> Program:
    """The program with counts of points as products of lengths, where each summed variable has ends of its own."""
    bare = {s.output: replace(s, guard=None) for s in program.statements if only_names(s.guard) and not reads_itself(s)}
    counts = {name for name, s in bare.items() if counts_points(s)}
    if not counts:
        return program
    types = infer(program, inputs)
    shapes = shapes_in(types)
    found = {name: _lengths(bare[name], shapes) for name in counts}
    made = {name: lengths for name, lengths in found.items() if lengths is not None}
    statements = [made[s.output].statement(s) if s.output in made else s for s in program.statements]
    varying = {name for name, lengths in made.items() if index_variables(lengths.value)}
    statements = list(_divided_once(replace(program, statements=tuple(statements)), varying, types).statements)
    shapes = shapes_of(replace(program, statements=tuple(statements)))

    def put(e: Expr, others: Collection[Access], asked: Mapping[Affine, int]) -> Expr:
        if isinstance(e, (Inside, Pad)) or (isinstance(e, Access) and e.tensor not in made):
            return e
        if not isinstance(e, Access):
            return _over_number(rebuild(e, lambda x: put(x, others, asked)))
        forms = [linear(i) for i in e.index]
        there = any(a.index == e.index and shapes[a.tensor] == shapes[e.tensor] for a in others)
        if not there or not all(form.is_affine for form in forms):
            return e
        return made[e.tensor].at(forms, asked)

    def with_lengths(s: Statement) -> Statement:
        others = [a for a in constraining(*s.roots) if a.tensor not in made] if set(reads(s)) & made.keys() else []
        if not others or reads_itself(s):
            return s
        asked = {c.form: c.bound for c in domain(s, shapes).conditions}
        return map_values(s, partial(put, others=others, asked=asked))

    return replace(program, statements=drop_dead(list(map(with_lengths, statements)), program.outputs))


def _over_fewer_axes(program: Program, inputs: Types) -> Program:
    """The program with counts of points at data without the axes along which they stay the same, as that of the rows of
    a table has, `in(W[T[b, l], d])`, where a reader has further variables. Where elements are divided one by one, the
    count is one of the sums that are added up at once."""
    counts = [s for s in program.statements if s.output not in program.outputs and counts_points(s)]
    if not counts:
        return program
    shapes = shapes_in(infer(program, inputs))
    dropped: dict[str, tuple[int, ...]] = {}
    for s in counts:
        same = _same_along(s, shapes)
        read = {r: [a for a in accesses_in(*r.roots) if a.tensor == s.output] for r in program.readers(s.output)}
        if same and all(_reach_no_further(r, s.output, own, same, shapes) for r, own in read.items()):
            if any(_repeats(r, a.index, shapes[s.output], shapes) for r, own in read.items() for a in own):
                dropped[s.output] = same
    if not dropped:
        return program

    def fewer(e: Access) -> Access:
        return replace(e, index=tuple(i for d, i in enumerate(e.index) if d not in dropped[e.tensor]))

    kept = (_without_axes(s, dropped[s.output]) if s.output in dropped else s for s in program.statements)
    return replace(program, statements=tuple(map_expressions(s, lambda e: map_reads(e, dropped, fewer)) for s in kept))


def _same_along(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The axes of a count along which no condition on its points changes, of those at data."""
    names, points, sizes = distinct_variables(s.index), domain(s, dict(shapes)), shapes[s.output]
    if names is None or s.constraints or not points.dependent:
        return ()
    within = {v: n for v, n in zip(names, sizes, strict=True)}
    conditions = [c for c in (*points.conditions, *points.dependent) if within.get(c.form.bare or "", inf) > c.bound]
    changing = {v for c in conditions for v in index_variables(c.form.to_expr())}
    return tuple(d for d, v in enumerate(names) if v not in changing and sizes[d] > 1)


def _without_axes(s: Statement, axes: tuple[int, ...]) -> Statement:
    first = {v: Affine() for d, v in enumerate(distinct_variables(s.index) or ()) if d in axes}
    index, sizes = (tuple(e for d, e in enumerate(given or ()) if d not in axes) for given in (s.index, s.sizes))
    return replace(s, index=index, sizes=sizes, body=replace_indices(s.body, first))


def _reach_no_further(
    s: Statement, count: str, read: Sequence[Access], axes: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether a statement reads a count along these axes at variables that something else keeps inside."""
    special = any(isinstance(e, Pad) or isinstance(e, Inside) and e.access.tensor == count for e in walk(*s.roots))
    if s.default == count or reads_itself(s) or special:
        return False
    others = [Access(s.output, s.index or ()), *(a for a in constraining(*s.roots) if a.tensor != count)]
    ends = {(linear(e).bare, n) for a in others for e, n in zip(a.index, shapes[a.tensor], strict=True)}
    places = [(linear(a.index[d]).bare, shapes[count][d]) for a in read for d in axes]
    return all(v is not None and any(v == w and m <= n for w, m in ends) for v, n in places)


def _over_number(e: Expr) -> Expr:
    """A quotient by a number as one of floats has it."""
    match e:
        case Call("div", (x, Call("int64", (Int() as n,)))) if not isinstance(x, Int):
            return replace(e, args=(x, n))
    return e


@dataclass(frozen=True)
class _Lengths:
    """How many points the elements named by `variables` have: `value` where `tests` hold, else none. Of each test, how
    it compares its form with a number, and the condition that it is a side of."""

    variables: tuple[str, ...]
    value: Expr
    tests: tuple[tuple[str, int, InRange], ...]

    def statement(self, s: Statement) -> Statement:
        body = self.at(list(map(Affine.variable, self.variables)), {})
        return replace(s, body=body, aggregation="assign", constraints=(), guard=None)

    def at(self, forms: Sequence[Affine], asked: Mapping[Affine, int]) -> Expr:
        """The number at a place where the conditions `asked` hold, that each form is from 0 to below a bound."""
        place = dict(zip(self.variables, forms, strict=True))
        value = call("int64", replace_indices(self.value, place))
        sides = [(compare, n, c.form.substitute(place), c.bound) for compare, n, c in self.tests]
        open_ = [(f, form, n) for f, n, form, bound in sides if asked.get(form, bound + 1) > bound]
        test = all_of([Call(compare, (form.to_value(), Int(n))) for compare, form, n in open_])
        return value if test is None else call("select", test, value, call("int64", Int(0)))


def _lengths(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> _Lengths | None:
    outputs = distinct_variables(s.index)
    points = domain(s, dict(shapes))
    if outputs is None or points.dependent:
        return None
    sizes = dict(zip(outputs, shapes[s.output], strict=True))
    summed = [v for v in points.variables if v not in sizes]
    lows: dict[str, list[Affine]] = {v: [] for v in summed}
    highs: dict[str, list[Affine]] = {v: [] for v in summed}
    tests: list[tuple[str, int, InRange]] = []
    for c in points.conditions:
        moving = [v for v in c.form.variables() if v in lows]
        if not c.form.is_affine or not c.form.is_integral or len(moving) > 1:
            return None
        if not moving:
            low, high = _span(c.form, sizes)
            tests += [("ge", 0, c)] if low < 0 else []  # elements without points
            tests += [("lt", c.bound, c)] if high >= c.bound else []
            continue
        (v,) = moving
        step = c.form.coefficient(v)
        rest = c.form - Affine.variable(v) * step
        if abs(step) != 1:
            return None
        lows[v].append(-rest if step == 1 else rest - (c.bound - 1))
        highs[v].append(Affine() + (c.bound - 1) - rest if step == 1 else rest)
    if not summed or any(not lows[v] for v in summed):
        return None
    value = fold(reduce(mul, (_length(lows[v], highs[v], sizes) for v in summed)))
    return _Lengths(outputs, value, tuple(tests))


def _length(lows: Sequence[Affine], highs: Sequence[Affine], sizes: Mapping[str, int]) -> Expr:
    """How many integers lie from the greatest of `lows` to the least of `highs`."""
    first = [-low for low in _least([-low for low in lows], sizes)]
    last = _least(highs, sizes)
    low = reduce(partial(call, "max"), (form.to_value() for form in first))
    high = reduce(partial(call, "min"), (form.to_value() for form in last))
    known = all(_span(h - form, sizes)[0] >= -1 for h in last for form in first)
    length = high + Int(1 - low.value) if isinstance(low, Int) and low.value < 1 else high - low + Int(1)
    return length if known else call("max", length, Int(0))


def _least(forms: Sequence[Affine], sizes: Mapping[str, int]) -> list[Affine]:
    kept: list[Affine] = []
    for form in dict.fromkeys(forms):
        if not any(_span(form - other, sizes)[0] >= 0 for other in kept):
            kept = [other for other in kept if _span(other - form, sizes)[0] < 0] + [form]
    return kept


def _span(form: Affine, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The least and greatest value of a form over the elements of an output."""
    low, high = interval_of(form, lambda v: (0, sizes[v.name] - 1))
    return as_int(low), as_int(high)


def _divided_once(program: Program, counts: Collection[str], types: Types, computed: bool = False) -> Program:
    """The program with quotients of elements by these counts as statements of their own, where several points of a
    statement read one: they have further variables, or the places are computed and fewer than the points. `computed`:
    of what is computed from elements too."""
    names = Names.of(program)
    made: dict[Expr, Statement] = {}
    shapes = shapes_in(types)

    def share(stem: str, body: Expr, count: Access) -> Access:
        if body not in made:
            shape = shapes[count.tensor]
            index = tuple(Index(f"i{d}") for d in range(len(shape)))
            made[body] = Statement(names.fresh(f"{stem}_share"), index, tuple(map(Int, shape)), body)
        return Access(made[body].output, count.index)

    def divided(e: Expr, s: Statement) -> Expr:
        match e:
            case Call("div", (Access(x, index), Access(count, same) as by)) if count in counts and index == same:
                if x == s.output:
                    return e  # a step of a recurrence: there is no statement before it that could
                alike = types[x].shape == types[count].shape and types[x].dtype in _DIVIDED
                if alike and _repeats(s, index, types[x].shape, shapes):
                    own = tuple(Index(f"i{d}") for d in range(len(index)))
                    return share(x, Call("div", (Access(x, own), Access(count, own))), by)
        whole = e.args[0] if isinstance(e, Call) and e.function in NARROW else e
        match whole:
            case Call("div", (value, Access(count) as by)) if computed and count in counts:
                places = _own_places(value, by, s, shapes)
                if places is not None and _repeats(s, by.index, shapes[count], shapes):
                    return share(count, replace_indices(e, places), by)
        return rebuild(e, lambda c: divided(c, s))

    statements: list[Statement] = []
    for s in program.statements:
        known = len(made)
        changed = map_expressions(s, partial(divided, s=s))
        statements += [*list(made.values())[known:], changed]
    return replace(program, statements=tuple(statements))


def _own_places(
    x: Expr, count: Access, s: Statement, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Affine] | None:
    """What stands for a statement's variables at the elements of a count, if each of these has one value of `x`."""
    names = distinct_variables(count.index)
    sizes = {} if names is None else dict(zip(names, shapes[count.tensor], strict=True))
    read = list(accesses_in(x))
    simple = all(
        isinstance(e, (Access, Int, Float, Index)) or isinstance(e, Call) and e.function not in RANDOM for e in walk(x)
    )
    if not read or not simple or not {*index_variables(x)} <= sizes.keys():
        return None
    for a in read:
        whole = [linear(e).bare for e in a.index]
        if a.tensor == s.output or None in whole or [sizes[v or ""] for v in whole] != list(shapes[a.tensor]):
            return None
    return {v: Affine.variable(f"i{d}") for d, v in enumerate(sizes)}


def _repeats(
    s: Statement, index: tuple[Expr, ...], shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether points of a statement that read at an index read elements several times."""
    if set(index_variables(*index)) < set(all_variables(s)):
        return True
    box = bounds(s, shapes) if any(accesses_in(*index)) else None
    return box is not None and prod(high - low + 1 for low, high in box.values()) > prod(shape)


def _is_count(s: Statement) -> bool:
    holds = isinstance(s.body, Call) and FUNCTIONS[s.body.function].result == "bool"
    return holds and s.aggregation == "sum" and s.default is None and s.init is None


def _divides(name: str, program: Program, types: Types) -> bool:
    """Whether a tensor is read as a divisor of float32 or float64 values alone."""
    readers = program.readers(name)
    for s in readers:
        every = sum(isinstance(e, Access) and e.tensor == name for e in walk(*expressions(s)))
        if s.default == name or every != sum(_divisors(root, name, types) for root in expressions(s)):
            return False
    return bool(readers)


def _divisors(e: Expr, name: str, types: Types) -> int:
    """How many times it is divided by the tensor's elements."""
    own = 0
    match e:
        case Call("div", (x, Access(tensor))) if tensor == name:
            t = expression_type(x, types)
            own = int(t.dtype in (*_DIVIDED, *NARROW) and not t.weak)
    return own + sum(_divisors(c, name, types) for c in children(e))


def _points(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many points an element has at most."""
    box = bounds(s, dict(shapes))
    outputs = set(index_variables(*s.index or ()))
    return 0 if box is None else prod(high - low + 1 for v, (low, high) in box.items() if v not in outputs)
