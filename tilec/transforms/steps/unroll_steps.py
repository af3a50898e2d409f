"""Recurrences of few steps, each of which is a large product, as a statement for each step, on bound programs.

`T[k, i, d : K, N, D] = k == 0 ? X[i, d] : +(L[i, j] * T[k - 1, j, d])` with K up to 16: `T_1[i, d] = +(L[i, j] *
T_0[j, d])` is a product of matrices like any other, for a library or a kernel with tensor cores, while a step of a
recurrence adds up its terms one after the other. Statements that read a single step read its
tensor, others all steps put together.

The same values but for the order in which a step's terms are added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.errors import TileError
from tilec.ir.functions import ZERO, call, is_zero, operands_of
from tilec.ir.index import Affine, distinct_variables, linear, replace_constraints, replace_indices
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    expressions,
    index_variables,
    map_expressions,
    reads_itself,
    rebuild,
    self_reads,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, Types, is_floating
from tilec.transforms.recurrence import padded
from tilec.transforms.simplify.simplify import fold, truth
from tilec.transforms.util.factors import outside_of_pads
from tilec.transforms.util.naming import Names
from tilec.transforms.util.ranges import axis_places, ranges_of
from tilec.transforms.util.reshapes import without_axis

MOST_STEPS = 16
LARGE_STEP = 2**25  # of a step, for which it is worth launches of its own


def unroll_steps(program: Program, inputs: Types) -> Program:
    """The program with such recurrences step by step. `inputs`: types of the inputs."""
    if not any(map(reads_itself, program.statements)):
        return program
    types, names = dict(infer(program, inputs)), Names.of(program)
    statements: list[Statement] = []
    apart: dict[str, _Steps] = {}
    for s in program.statements:
        s = map_expressions(s, lambda e: _of_single_steps(e, apart))
        found = _unrolled(s, types, names) if reads_itself(s) else None
        if found is None:
            statements.append(s)
            continue
        steps, made = found
        apart[s.output] = steps
        types |= {m.output: replace(types[s.output], shape=steps.shape) for m in made}
        statements += [*made, steps.together(s)]
    read = {e.tensor for s in statements for root in expressions(s) for e in walk(root) if isinstance(e, Access)}
    read |= {*program.outputs}
    return replace(program, statements=tuple(s for s in statements if s.output not in apart or s.output in read))


@dataclass(frozen=True)
class _Steps:
    """The tensors of the steps along an axis of another one."""

    names: tuple[str, ...]
    axis: int
    shape: tuple[int, ...]

    def read(self, access: Access) -> Access:
        place = access.index[self.axis]
        n = as_int(linear(place).constant)
        return replace(access, tensor=self.names[n], index=without_axis(access.index, self.axis))

    def has(self, access: Access) -> bool:
        form = linear(access.index[self.axis])
        return not form.terms and form.is_integral and 0 <= form.constant < len(self.names)

    def together(self, s: Statement) -> Statement:
        """All steps as the tensor that the recurrence was."""
        index = s.index or ()
        rest = without_axis(index, self.axis)
        body: Expr = Access(self.names[-1], rest)
        for n, name in reversed([*enumerate(self.names[:-1])]):
            body = Call("select", (Call("eq", (index[self.axis], Int(n))), Access(name, rest), body))
        return replace(s, body=body, aggregation="assign", guard=None, constraints=(), init=None, attributes=())


def _of_single_steps(e: Expr, apart: Mapping[str, _Steps]) -> Expr:
    e = rebuild(e, lambda x: _of_single_steps(x, apart)) if apart else e
    if isinstance(e, Access) and e.tensor in apart and apart[e.tensor].has(e):
        return apart[e.tensor].read(e)
    return e


def _unrolled(s: Statement, types: Types, names: Names) -> tuple[_Steps, list[Statement]] | None:
    index = distinct_variables(s.index)
    if index is None or s.default is not None or not is_floating(types[s.output].dtype) or s.sizes is None:
        return None
    found = _time(s, index)
    if found is None:
        return None
    axis, rising = found
    shape = types[s.output].shape
    count = shape[axis]
    if not 1 < count <= MOST_STEPS or _terms_of_step(s, types) < LARGE_STEP * count:
        return None
    numbers = range(count) if rising else range(count - 1, -1, -1)
    outputs = {n: names.fresh(f"{s.output}_{n}") for n in numbers}
    steps = _Steps(tuple(outputs[n] for n in range(count)), axis, (*shape[:axis], *shape[axis + 1 :]))
    whole, known = padded(s), dict(types)
    made: list[Statement] = []
    for n in numbers:
        step = _step(whole, steps, index[axis], n, known, types[s.output])
        if step is None:
            return None
        made.append(step)
        known[step.output] = replace(types[s.output], shape=steps.shape)
    return steps, made


def _time(s: Statement, index: Sequence[str]) -> tuple[int, bool] | None:
    """The axis along which each read of the statement's own is so many steps away, all to one side, and whether steps
    go from the least to the greatest."""
    for axis, v in enumerate(index):
        gaps = [linear(e.index[axis]) - Affine.variable(v) for e in self_reads(s)]
        signs = {g.constant > 0 for g in gaps if not g.terms and g.is_integral and g.constant}
        if len(signs) == 1 and all(not g.terms and g.is_integral and g.constant for g in gaps):
            return axis, not signs.pop()
    return None


def _terms_of_step(s: Statement, types: Types) -> int:
    """The terms that all steps add up of products with states; 0 where there are none, or their number is not known."""
    outputs = distinct_variables(s.index) or ()
    most, extent = 0, _extent(s, types) or {}
    nested = (e for root in s.roots for e in walk(root) if isinstance(e, Aggregate))
    parts: list[Statement | Aggregate] = [s, *nested]
    for e in parts:
        own = any(isinstance(x, Access) and x.tensor == s.output for x in walk(e.body))
        product = e.aggregation == "sum" and own and len(operands_of("mul", e.body)) > 1
        summed = {*index_variables(e.body)}.difference(outputs)
        if product and summed and summed <= extent.keys():
            most = max(most, types[s.output].numel * math.prod(extent[v] for v in summed))
    return most


def _extent(s: Statement, types: Types) -> dict[str, int] | None:
    """How many values each variable has, by what is read and not padded; None where that does not agree."""
    read = [e for e in outside_of_pads(s.roots) if isinstance(e, Access) and e.tensor != s.output]
    outputs = dict(zip(distinct_variables(s.index) or (), types[s.output].shape, strict=True))
    return ranges_of(axis_places(read, types), outputs, lambda i, n: linear(i).bare is None)


def _step(s: Statement, steps: _Steps, time: str, n: int, known: Types, wanted: TensorType) -> Statement | None:
    """The statement of one step; None where a tensor is read outside of it there, or the type would be another one."""
    here, extent = {time: Affine.of((), n)}, _extent(s, known) or {}

    def visit(e: Expr) -> Expr:
        if isinstance(e, Pad):
            inner = e.access if isinstance(e.access, Access) else e.access.access
            if _is_outside(inner, s.output, steps, known):
                return visit(e.value)
        if isinstance(e, Inside) and _is_outside(e.access, s.output, steps, known):
            return ZERO
        e = rebuild(e, visit)
        match e:
            case Access() if e.tensor == s.output and steps.has(e):
                return steps.read(e)
            case Pad(Access() as access) if _is_within(access, extent, known):
                return access
            case Call("select", (condition, yes, no)) if (chosen := truth(condition)) is not None:
                return yes if chosen else no
            case Aggregate(aggregation="sum", guard=Expr() as guard) if (chosen := truth(guard)) is not None:
                return replace(e, guard=None) if chosen else Float(0.0)
        return e

    def at(e: Expr) -> Expr:
        return fold(_without_zeros(fold(visit(fold(replace_indices(e, here))))))

    body, guard = at(s.body), None if s.guard is None else at(s.guard)
    constraints = replace_constraints(s.constraints, here)
    holds = [_holds(c) for c in constraints]
    never = False in holds or (guard is not None and truth(guard) is False)
    index, sizes = without_axis(s.index or (), steps.axis), without_axis(s.sizes or (), steps.axis)
    made = replace(s, output=steps.names[n], index=index, sizes=sizes, guard=None, constraints=(), attributes=())
    if never or (s.aggregation == "sum" and _vanishes(body)):
        made = replace(made, body=Float(0.0), aggregation="assign")
    else:
        guard = None if guard is not None and truth(guard) else guard
        left = tuple(c for c, h in zip(constraints, holds, strict=True) if h is None)
        made = replace(made, body=body, guard=guard, constraints=left)
    reads = [e for e in walk(*made.roots) if isinstance(e, Access)]
    if any(e.tensor == s.output or _is_outside(e, s.output, steps, known) for e in reads):
        return None
    try:
        if statement_type(made, known).dtype != wanted.dtype or statement_type(made, known).weak:
            made = replace(made, body=call(wanted.dtype, made.body)) if made.aggregation == "assign" else made
        return made if statement_type(made, known).dtype == wanted.dtype else None
    except TileError:
        return None


def _is_within(access: Access, extent: Mapping[str, int], known: Types) -> bool:
    """Whether an access is inside of its tensor at all values of its variables."""
    if access.tensor not in known:
        return False
    places = zip(map(linear, access.index), known[access.tensor].shape, strict=True)
    return all(f.bare is not None and extent.get(f.bare, n + 1) <= n for f, n in places)


def _is_outside(access: Access, own: str, steps: _Steps, known: Types) -> bool:
    """Whether an access is at a number outside of its tensor."""
    if access.tensor == own:
        return not steps.has(access)
    places = zip(map(linear, access.index), known[access.tensor].shape, strict=True)
    return any(not f.terms and not (f.is_integral and 0 <= f.constant < n) for f, n in places)


def _holds(c: Constraint) -> bool | None:
    form, bound = linear(c.expr), linear(c.bound)
    return None if form.terms or bound.terms else 0 <= form.constant < bound.constant


def _without_zeros(e: Expr) -> Expr:
    """With 0 in the place of sums of products with 0."""
    e = rebuild(e, _without_zeros)
    return Float(0.0) if isinstance(e, Aggregate) and e.aggregation == "sum" and _vanishes(e.body) else e


def _vanishes(e: Expr) -> bool:
    return any(is_zero(f) for f in operands_of("mul", e))
