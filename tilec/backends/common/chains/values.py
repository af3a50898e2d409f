"""Which statements of a flat program are matrix values of a chain, and what these are when written out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tilec.backends.common.chains.chain import Inner
from tilec.backends.common.domain import Condition, Domain, point_conditions
from tilec.ir.functions import ZERO, all_of, call, is_zero, operands_of
from tilec.ir.index import Affine, distinct_variables, integer, linear, replace_indices
from tilec.ir.infer import expression_type, once
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Pad,
    Program,
    Statement,
    accesses_in,
    children,
    index_variables,
    map_values,
    reads,
    reads_itself,
    rebuild,
    value_accesses,
    variables_of,
    walk,
)
from tilec.ir.rational import Fraction
from tilec.ir.types import FLOATS, NARROW, Types, kind
from tilec.lattice.conditions import bound_of
from tilec.transforms.util.factors import Factor, factors_of, factors_of_terms, quotient_of

SMALLEST_MATRIX = 16  # rows and columns of a matrix, at least
MANY_COLUMNS = 1024  # at least, of a product of 16-bit operands that is reduced over them, for any rows
# elements of 16-bit rows, at least: gradients by rows of 3 came out wrong on an H200 with Triton 3.6; interpreters of
# block programs and of Triton compute them rightly
NARROWEST_ROW = 8
LONGEST_INNER = 256  # terms of an inner product, at most
UNROLLED = 16  # terms of an inner sum that is no product, at most
SHORT = 8  # terms of a product of float32 that are added up one by one, at most
DOT_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Apart:
    """A program that is written otherwise, and types of all that it names. `rewritten`: outputs of statements that are
    not the given program's, of which `summed` are the sums that scatters read."""

    program: Program
    types: Types
    rewritten: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()


def plain_index(s: Statement) -> tuple[str, ...] | None:
    """The output's variables, one a dimension; None for another index or a statement that is more than a value at each
    point."""
    more = s.index is None or s.default is not None or s.init is not None or reads_itself(s)
    return None if more else distinct_variables(s.index)


def reduction_variables(s: Statement) -> tuple[str, ...]:
    written = set(index_variables(*(s.index or ())))
    return tuple(v for v in variables_of(s) if v not in written)


def is_computable(*roots: Expr | None) -> bool:
    """Whether all reads are at affine positions and nothing is padded."""
    for root in roots:
        for e in () if root is None else walk(root):
            if isinstance(e, Pad):
                return False
            if isinstance(e, (Access, Inside)):
                index = e.index if isinstance(e, Access) else e.access.index
                if not all(linear(i).is_affine and linear(i).is_integral for i in index):
                    return False
    return True


@once
def extents_of(s: Statement, types: Types) -> Mapping[str, int] | None:
    """How many values, from 0 on, each variable has: by the output's shape, or the smallest tensor it indexes bare."""
    index = plain_index(s)
    if index is None:
        return None
    extent = dict(zip(index, types[s.output].shape, strict=True))
    for v in reduction_variables(s):
        found = [
            n
            for a in value_accesses(s)
            for e, n in zip(a.index, types[a.tensor].shape, strict=True)
            if linear(e).bare == v
        ]
        if not found:
            return None
        extent[v] = min(found)
    return extent


@once
def open_conditions(s: Statement, types: Types) -> tuple[Condition, ...]:
    """What the box of all variables does not imply of a point."""
    extent = extents_of(s, types)
    assert extent is not None
    box = Domain(s, dict.fromkeys(extent, 0), extent, (), None)
    return tuple(c for c in point_conditions((s.body, *s.guards), s.constraints, types) if not box.holds(c))


def written_out(c: Condition) -> Expr:
    form = c.form.to_value()
    return Call("and", (call("ge", form, ZERO), call("lt", form, integer(c.bound))))


def without_pads(e: Expr, extent: Mapping[str, int], types: Types, known: Sequence[Affine] = ()) -> Expr:
    """A value in which `pad` is a choice between an element, 0 outside, and the other value; the element alone where
    the conditions of branches, `known` forms that are not negative, say that it is there."""
    match e:
        case Pad(Access(tensor, index) as a, other):
            forms = [linear(i) for i in index]
            if not all(f.is_affine and f.is_integral for f in forms):
                return e
            sides = [(f, -f + (n - 1)) for f, n in zip(forms, types[tensor].shape, strict=True)]
            known_forms = (Affine(), *known)
            open_ = [f for two in sides for f in two if all(least_value(f - k, extent) < 0 for k in known_forms)]
            within = all_of(call("ge", f.to_value(), ZERO) for f in open_)
            return a if within is None else Call("select", (within, a, other))
        case Call("select", (c, x, y)):
            forms = [f for p in operands_of("and", c) if (f := bound_of(p)) is not None]
            x = without_pads(x, extent, types, (*known, *forms))
            return Call("select", (without_pads(c, extent, types, known), x, without_pads(y, extent, types, known)))
        case Call():
            return rebuild(e, lambda x: without_pads(x, extent, types, known))
    return e


def least_value(form: Affine, extent: Mapping[str, int]) -> Fraction:
    """A form's least value where its variables have all values below their extents."""
    return form.constant + sum(min(0, form.coefficient(v) * (extent[v] - 1)) for v in form.variables())


def as_value(s: Statement, extent: Mapping[str, int], types: Types) -> Expr:
    """An elementwise statement's value: what its guard and constraints drop is 0."""
    body = without_pads(s.body, extent, types)
    conditions = [written_out(c) for c in open_conditions(s, types)]
    for c in (*conditions, *s.guards):
        body = Call("select", (c, body, ZERO))
    return body


def value_of_access(value: Expr, index: Sequence[str], a: Access) -> Expr:
    """The value of a statement with this index at the place that the access names."""
    return replace_indices(value, {v: linear(e) for v, e in zip(index, a.index, strict=True)})


def written_apart(s: Statement, types: Types, most: int, kept: Collection[str] = ()) -> Statement:
    """The statement without the variables of at most so many values that it sums over, but `kept`: their terms one by
    one."""
    extent = extents_of(s, types) if s.aggregation == "sum" else None
    few = [v for v in reduction_variables(s) if v not in kept and 0 < extent[v] <= most] if extent else []
    if extent is None or not few or not is_computable(s.body, s.guard):
        return s
    fixed = {v for c in open_conditions(s, types) for v in index_variables(c.form.to_expr())}
    fixed |= set(index_variables(*s.guards, *(c.expr for c in s.constraints)))
    for v in few:
        if v not in fixed:
            inside, outside = _parted(s.body, v, types) if extent[v] > 1 else (s.body, [])
            first, *others = (replace_indices(inside, {v: Affine() + k}) for k in range(extent[v]))
            total = reduce(lambda x, y: x + y, others, first)
            s = replace(s, body=quotient_of([Factor(total, False), *outside]))
    return s


def _parted(e: Expr, v: str, types: Types) -> tuple[Expr, list[Factor]]:
    """What depends on a variable of a value, and the factors beside it that do not; all of it where what depends has
    another type."""
    factors = factors_of_terms(e, types)
    outside = [f for f in factors if v not in index_variables(f.value)]
    inside = quotient_of([f for f in factors if f not in outside])
    alike = expression_type(inside, types).dtype == expression_type(e, types).dtype
    return (inside, outside) if alike else (e, [])


def is_elementwise(s: Statement) -> bool:
    return s.aggregation in ("assign", "sum") and not reduction_variables(s) and plain_index(s) is not None


@once
def as_inner(s: Statement, types: Types) -> tuple[Inner, Statement, str, str] | None:
    """An inner sum, the statement that makes the output of it element by element, and the variables of the matrix's
    rows and columns."""
    index, extent = plain_index(s), extents_of(s, types)
    if index is None or extent is None or s.aggregation != "sum" or types[s.output].dtype not in DOT_DTYPES:
        return None
    summed = [v for v in reduction_variables(s) if extent[v] > 1]
    if len(summed) != 1 or set(reduction_variables(s)) != set(summed) or not is_computable(s.body, s.guard):
        return None
    (axis,) = summed
    fixed = {v for c in open_conditions(s, types) for v in index_variables(c.form.to_expr())}
    if axis in fixed or (s.guard is not None and axis in index_variables(s.guard)) or 0 in extent.values():
        return None
    factors = factors_of(s.body, types)
    inside = [f for f in factors if axis in index_variables(f.value)]
    outside = [f for f in factors if f not in inside]
    name = f"{s.output}.dot"
    product = None if any(f.divides for f in inside) else _sides([f.value for f in inside], axis, extent)
    if product is not None and extent[axis] <= SHORT and _as_stored(*product[:2], types)[0] == "float32":
        product = None
    if product is not None and extent[axis] <= LONGEST_INNER:
        left, right, row, column = product
        used = [v for v in index if v in index_variables(left, right)]
        dtype, left, right = _as_stored(left, right, types)
        if dtype in NARROW and extent[axis] < NARROWEST_ROW:
            return None
        inner = Inner(name, tuple(used), axis, extent[axis], left, right, left * right, dtype)
    else:
        terms = [Access(a.tensor, a.index) for a in accesses_in(s.body) if axis in index_variables(a)]
        sides = _sides(list(dict.fromkeys(terms)), axis, extent)
        if sides is None or extent[axis] > UNROLLED:
            return None
        _, _, row, column = sides
        body = quotient_of(inside)
        dtype = expression_type(body, types).dtype
        inner = Inner(
            name, tuple(v for v in index if v in index_variables(body)), axis, extent[axis], None, None, body, dtype
        )
    few = product is not None and dtype in NARROW
    if dtype not in DOT_DTYPES or not is_matrix(extent[row], extent[column], few):
        return None
    own = Factor(Access(name, tuple(map(Index, inner.index))), False)
    others = tuple(c for c in s.constraints if axis not in index_variables(c.expr))  # those of the axis always hold
    made = replace(s, body=quotient_of([own, *outside]), constraints=others, aggregation="assign")
    return inner, made, row, column


def with_terms_inside(program: Program, types: Types) -> Apart:
    """The program with what sums read of pairs for each of a few coordinates, such as differences of points, computed
    where it is read: `D[i, j, d] = X[i, d] - X[j, d]; R[i, j] = +(D[i, j, d] * D[i, j, d])`."""
    inside: dict[str, tuple[tuple[str, ...], Expr] | None] = {}
    for s in reversed(program.statements):
        readers = program.readers(s.output)
        summed = all(r.output in inside or r.aggregation == "sum" and reduction_variables(r) for r in readers)
        if readers and summed and s.output not in program.outputs and _is_of_terms(s, types):
            inside[s.output] = None

    def change(a: Access) -> Expr:
        found = inside.get(a.tensor)
        return a if found is None else value_of_access(found[1], found[0], a)

    made: list[Statement] = []
    for s in program.statements:
        index, extent = plain_index(s), extents_of(s, types)
        if s.output in inside and index is not None and extent is not None:
            inside[s.output] = index, rebuilt(as_value(s, extent, types), change)
        else:
            made.append(map_values(s, lambda e: rebuilt(e, change)))
    if any(name in inside for s in made for name in reads(s)):  # `in(D[i, j, d])`
        return Apart(program, types)
    before = {s.output: s for s in program.statements}
    changed = frozenset(m.output for m in made if m != before[m.output])
    return Apart(replace(program, statements=tuple(made)), types, changed)


def _is_of_terms(s: Statement, types: Types) -> bool:
    """Whether a statement makes elements of three axes or more, each of smaller tensors' that bound it."""
    index, extent = plain_index(s), extents_of(s, types)
    read = accesses_in(s.body)
    if index is None or extent is None or len(index) < 3 or not is_elementwise(s) or not is_computable(s.body, s.guard):
        return False
    places = {(linear(e).bare, n) for a in read for e, n in zip(a.index, types[a.tensor].shape, strict=True)}
    own = types[s.output]
    alike = own.dtype == expression_type(s.body, types).dtype == "float32"
    return alike and extent.items() <= places and all(2 * types[a.tensor].numel <= own.numel for a in read)


def is_matrix(rows: int, columns: int, few: bool) -> bool:
    """Whether there are enough of both; `few`: or few of one where there are many of the other."""
    least, most = sorted((rows, columns))
    return least >= SMALLEST_MATRIX or few and most >= MANY_COLUMNS


def _as_stored(left: Expr, right: Expr, types: Types) -> tuple[str, Expr, Expr]:
    """Operands of a product and their type: 16-bit elements that a cast widens are multiplied as they are, which is
    exact."""
    operands = [e.args[0] if isinstance(e, Call) and e.function == "float32" else e for e in (left, right)]
    kinds = {expression_type(e, types).dtype for e in operands}
    if len(kinds) == 1 and kinds <= {"float16", "bfloat16"} and all(isinstance(e, Access) for e in operands):
        return kinds.pop(), operands[0], operands[1]
    return expression_type(left * right, types).dtype, left, right


def _sides(parts: Sequence[Expr], axis: str, extent: Mapping[str, int]) -> tuple[Expr, Expr, str, str] | None:
    """Two groups of values that share no variable but those of all, with the longest variable of each alone; one of a
    single value where there is no longer one."""
    sets = [{v for v in index_variables(p) if extent[v] > 1} - {axis} for p in parts]
    if len(sets) < 2 or not all(isinstance(x, Expr) for x in parts):
        return None
    common = set.intersection(*sets)
    if not all(own - common for own in sets):
        sets = [set(index_variables(p)) - {axis} for p in parts]
        common = set.intersection(*sets)
    groups: list[tuple[set[str], list[Expr]]] = []
    for p, own in zip(parts, sets, strict=True):
        alone = own - common
        met = [g for g in groups if g[0] & alone]
        merged = (alone.union(*(g[0] for g in met)), [x for g in met for x in g[1]] + [p])
        groups = [g for g in groups if g not in met] + [merged]
    filled = [g for g in groups if g[0]]
    if len(filled) != 2:
        return None
    for g in groups:
        if not g[0]:
            filled[0][1].extend(g[1])
    (rows, left), (columns, right) = filled
    longest = [max(sorted(g), key=lambda v: extent[v]) for g in (rows, columns)]
    sides = [quotient_of([Factor(x, False) for x in side]) for side in (left, right)]
    return sides[0], sides[1], longest[0], longest[1]


def rebuilt(e: Expr, change) -> Expr:
    """The expression with `change` applied to each access, outside of indices."""
    if isinstance(e, Access):
        return change(e)
    if isinstance(e, Inside) or not children(e):
        return e
    return rebuild(e, lambda x: rebuilt(x, change))


# where a value is zero because of a condition: such points need not be visited


def zero_outside(e: Expr, types: Types, hidden: bool = False) -> frozenset[Expr]:
    """Conditions on indices and integers outside of which a value is zero, for factors that are finite there: as in
    `in(...)`, what a condition drops is no product of zero with something infinite. `hidden`: those too outside of
    which it is the exponential of -inf."""
    match e:
        case Call("select", (c, x, y)) if is_zero(y):
            own = frozenset(p for p in operands_of("and", c) if is_mask(p, types))
            return own | zero_outside(x, types, hidden)
        case Call("mul", (x, y)):
            return zero_outside(x, types, hidden) | zero_outside(y, types, hidden)
        case Call("div", (x, _)) | Call("neg", (x,)):
            return zero_outside(x, types, hidden)
        case Call("add" | "sub", (x, y)):
            return zero_outside(x, types, hidden) & zero_outside(y, types, hidden)
        case Call(function, (x,)) if function in ("float32", "bfloat16", "float16"):
            return zero_outside(x, types, hidden)
        case Call("exp", (Call("sub", (x, _)),)) if hidden:
            return hidden_outside(x, types)
    return frozenset()


def is_lowest(e: Expr) -> bool:
    """Whether a value is the least there is."""
    match e:
        case Call("neg", (Float(n),)):
            return n == math.inf
        case Call(function, (x,)) if function in FLOATS:
            return is_lowest(x)
    return isinstance(e, Float) and e.value == -math.inf


def hidden_outside(e: Expr, types: Types) -> frozenset[Expr]:
    """Conditions on indices and integers outside of which a value is -inf."""
    match e:
        case Call("select", (c, x, y)) if is_lowest(y):
            return frozenset(p for p in operands_of("and", c) if is_mask(p, types)) | hidden_outside(x, types)
        case Call(function, (x,)) if function in FLOATS:
            return hidden_outside(x, types)
    return frozenset()


def is_mask(condition: Expr, types: Types) -> bool:
    """Whether a condition depends on indices, integers and truth values alone."""
    return all(kind(types[a.tensor].dtype) < 2 for a in accesses_in(condition))


def where(e: Expr, known: Collection[Expr]) -> Expr:
    """The value where these conditions hold."""
    if not known or not isinstance(e, Call):
        return e
    if e.function == "select" and (is_zero(e.args[2]) or is_lowest(e.args[2])):
        left = all_of(p for p in operands_of("and", e.args[0]) if p not in known)
        inner = where(e.args[1], known)
        return inner if left is None else Call("select", (left, inner, e.args[2]))
    return rebuild(e, lambda x: where(x, known))
