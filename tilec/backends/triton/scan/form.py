"""What is a scan: an aggregation over all terms up to an element (or from it on), a recurrence whose step is affine.

Both become one form: a row of terms for each lane, whose values compose associatively, and outputs that stand beside
the terms. `O[i : N] = +(X[k]), i - k < N` has N^2 points and N different values to add up; `H[t] = a*H[t-1] + b` has a
scale and an offset for each t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.affine import affine_steps
from tilec.backends.common.domain import Condition, ScanCondition, conditions_of, scan_condition
from tilec.backends.common.scalars import identity
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.ir.aggregations import Semiring
from tilec.ir.index import Affine, distinct_variables, linear
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import Access, Aggregate, Call, Constraint, Expr, Index, Int, Statement, index_variables, walk
from tilec.ir.rational import as_int
from tilec.ir.types import NARROW, TensorType, Types
from tilec.transforms.recurrence import initial
from tilec.transforms.util.plain import is_pure

FEWEST_TERMS = 4  # terms in a row, below which the points are as few
STATE_FLOATS = ("float32", "float64")  # states of 16 bits are rounded at each step, which composing steps would not do
STATE_INTEGERS = ("int32", "int64")  # those wrap at each step, which is the same in any order


@dataclass(frozen=True)
class Algebra:
    """How terms compose: `then` is the device function of an earlier and a later state, each of components of these
    types; `identity` leaves a state alone. `apply`, of a recurrence, is the text of a composition ({0}, {1}) applied to
    a state (the last), and `certified` the test that the result {0} is what step by step comes out."""

    then: str
    dtypes: tuple[str, ...]
    identity: tuple[bool | int | float, ...]
    commutes: bool
    apply: str = ""
    certified: str = ""


@dataclass(frozen=True)
class Affinity:
    """A recurrence's step: `state` is the access of its own output, `before` the value of the state before the first
    step, at the first step's variables."""

    state: Access
    scale: Expr
    offset: Expr
    before: Expr
    dtype: str


@dataclass(frozen=True)
class Scan:
    """`along` runs over the terms of a row, `count` of them from `low` on; its element of the output is at `shift`
    less, along an axis of `size`. `lanes` name the row; a lane in `circular_shifts` moves on by as much, modulo its
    size, from step to step. `valid`: conditions on a term."""

    statement: Statement
    space: Space
    along: str
    lanes: tuple[str, ...]
    rising: bool
    low: int
    count: int
    shift: int
    size: int
    valid: tuple[Condition, ...]
    algebra: Algebra
    circular_shifts: Mapping[str, int]
    step: Affinity | None = None

    @property
    def first(self) -> int:
        """The value of `along` at the first step: what no element sees is left out, what is outside counts nothing."""
        if self.rising:
            return min(self.low, self.shift)
        return max(self.low + self.count, self.size + self.shift) - 1

    @property
    def steps(self) -> int:
        """Up to the last element of the output."""
        return self.size + self.shift - self.first if self.rising else self.first - self.shift + 1

    @property
    def rows(self) -> int:
        return self.space.count(self.lanes)


THEN = {
    "sum": "add_", "prod": "multiply_", "max": "maximum_", "min": "minimum_", "any": "or_", "all": "and_",
    "logsumexp": "join_logs_",
}  # fmt: skip


def algebra_of(aggregation: str, dtype: str) -> Algebra:
    """Of a cumulative aggregation whose result has this type."""
    accumulator = Accumulator.of(aggregation, dtype)
    compute_dtype = accumulator.dtype
    start = identity(accumulator.aggregation, compute_dtype)
    if accumulator.aggregation == "logsumexp":
        return Algebra("join_logs_", (compute_dtype, compute_dtype), (start, 0.0), True)
    if compute_dtype in ("bool", "int8", "uint8", "int16"):
        compute_dtype, start = "int32", int(start)
    return Algebra(THEN[accumulator.aggregation], (compute_dtype,), (start,), True)


def algebra_of_steps(semiring: Semiring, dtype: str) -> Algebra:
    """Of a recurrence's steps."""
    name, apply, certified = {
        "real": ("then_real_", "{0} * {2} + {1}", "(tl.abs({0}) < float('inf'))"),
        "counting": ("then_real_", "{0} * {2} + {1}", ""),
        "log": ("then_log_", "apply_log_({0}, {1}, {2}, {3})", "({0} < float('inf'))"),
        "max-plus": ("then_max_plus_", "maximum_({0} + {2}, {1})", "({0} < float('inf'))"),
        "min-plus": ("then_min_plus_", "minimum_({0} + {2}, {1})", "({0} > float('-inf'))"),
    }[semiring.name]
    whole = float if dtype in STATE_FLOATS else int
    start = (whole(semiring.one), whole(semiring.zero), *((0.0,) if semiring.name == "log" else ()))
    return Algebra(name, (dtype,) * len(start), start, False, apply, certified)


def space_of(s: Statement, low: Mapping[str, int], extent: Mapping[str, int]) -> Space:
    """A space of one class whose variables are all outputs."""
    return Space(s, tuple(extent), (), (), ({},), (dict(low),), (dict(extent),), (), (), True)


# cumulative aggregations


def recognise_scan(space: Space, view: StridedView) -> Scan | None:
    """A statement as a scan; None where it is none, or too short for that to matter."""
    cut = _cut(space)
    if cut is None or any(v != cut.summed and not space.single(v) for v in space.reductions):
        return None
    s, k, i = space.statement, cut.summed, cut.output
    low, extent = space.low[0], space.extent[0]
    moved = tuple((Affine.variable(k) - cut.shift).to_expr() if e == Index(i) else e for e in s.index or ())
    lanes = tuple(v for v in space.outputs if v != i)
    ones = {v: 1 for v in space.reductions if v != k}
    t = Statement(s.output, moved, s.sizes, s.body, s.aggregation, s.guard, s.constraints, span=s.span)
    kept = {**ones, **{v: extent[v] for v in (*lanes, k)}}
    made = space_of(t, {v: low[v] for v in kept}, kept)
    others = tuple(c for c in space.valid if c != cut.condition)
    algebra = algebra_of(s.aggregation, view.types[s.output].dtype)
    found = Scan(t, made, k, lanes, cut.rising, low[k], extent[k], cut.shift, extent[i], others, algebra, {})
    return found if found.steps >= FEWEST_TERMS else None


def terms_first(space: Space, view: StridedView) -> tuple[Statement, TensorType, Statement] | None:
    """A scan of terms that are aggregations themselves, over other summed variables, as a statement of the terms, their
    type, and the scan of these. The statement of the terms may be a scan too, along another axis."""
    cut = _cut(space)
    if cut is None or all(v == cut.summed or space.single(v) for v in space.reductions):
        return None
    s, k, i = space.statement, cut.summed, cut.output
    low, extent = space.low[0], space.extent[0]
    element = expression_type(s.body, view.types)
    body = Call("float32", (s.body,)) if element.dtype in NARROW and s.aggregation not in ("max", "min") else s.body
    element = expression_type(body, view.types)
    place = (Affine.variable(k) - low[k]).to_expr()
    index = tuple(place if e == Index(i) else e for e in s.index or ())
    shape = tuple(extent[k if e == Index(i) else e.name] for e in s.index or () if isinstance(e, Index))
    kept = tuple(c for c in s.constraints if i not in index_variables(c.expr))
    name = f"{s.output}.terms"
    terms = Statement(name, index, tuple(map(Int, shape)), body, s.aggregation, s.guard, kept, span=s.span)
    joint = (Constraint(cut.condition.form.to_expr(), Int(cut.condition.bound)),)
    scan = Statement(s.output, s.index, s.sizes, Access(name, index), s.aggregation, None, joint, span=s.span)
    return terms, TensorType(shape, aggregate_type(s.aggregation, element).dtype), scan


def _cut(space: Space) -> ScanCondition | None:
    s = space.statement
    if s.aggregation not in THEN or not is_pure(s) or len(space.classes) != 1:
        return None
    if distinct_variables(s.index) is None or space.residues or not space.covers:
        return None
    summed = [v for v in space.reductions if not space.single(v)]
    return scan_condition(space.valid, summed, s.roots, space.box(0), FEWEST_TERMS)


# recurrences


def recognise_steps(s: Statement, types: Types) -> Scan | None:
    """A recurrence whose steps compose: it reads one element of its own, a step before or after in one direction and
    otherwise the same, or moved round, and is affine in it. None where it is none."""
    own = types[s.output]
    if (
        s.aggregation != "assign"
        or s.default is not None
        or own.dtype not in (*STATE_FLOATS, *STATE_INTEGERS)
        or 0 in own.shape
    ):
        return None
    left = distinct_variables(s.index)
    if left is None or set(index_variables(*s.roots, *(c.expr for c in s.constraints))) - {*left}:
        return None
    inside = list(walk(*s.roots))
    states = {e for e in inside if isinstance(e, Access) and e.tensor == s.output}
    if len(states) != 1 or any(isinstance(e, Aggregate) for e in inside):
        return None
    (state,) = states
    if state in walk(*s.guards):
        return None
    size = dict(zip(left, own.shape, strict=True))
    moves = _moves(state, left, size)
    before = initial(s, state)
    found = next(affine_steps(s.body, state, own.dtype), None)
    if moves is None or found is None or any(isinstance(e, Aggregate) for e in walk(before)):
        return None
    along, rising, circular_shifts = moves
    semiring, scale, offset = found
    low = dict.fromkeys(left, 0)
    space = space_of(s, low, {**{v: n for v, n in size.items() if v != along}, along: size[along]})
    valid = tuple(c for c in conditions_of(s, types, s.output) if not space.box(0).holds(c))
    lanes = tuple(v for v in left if v != along)
    step = Affinity(state, scale, offset, before, own.dtype)
    n = size[along]
    algebra = algebra_of_steps(semiring, own.dtype)
    return Scan(s, space, along, lanes, rising, 0, n, 0, n, valid, algebra, circular_shifts, step)


def _moves(state: Access, left: Sequence[str], size: Mapping[str, int]) -> tuple[str, bool, dict[str, int]] | None:
    """The variable along which the state is read one step apart, whether it grows, and how lanes turn."""
    steps: list[tuple[str, int]] = []
    circular_shifts: dict[str, int] = {}
    for v, e in zip(left, state.index, strict=True):
        match e:
            case Call("mod", (inner, Int(n))) if n == size[v]:
                gap = linear(inner) - Affine.variable(v)
                if gap.terms or gap.constant.denominator != 1:
                    return None
                if as_int(gap.constant) % n:
                    circular_shifts[v] = -as_int(gap.constant) % n
                continue
        gap = linear(e) - (Affine.variable(v) if size[v] > 1 or linear(e).terms else 0)
        if gap.terms or gap.constant.denominator != 1:
            return None
        if gap.constant:
            steps.append((v, as_int(gap.constant)))
    if len(steps) != 1 or abs(steps[0][1]) != 1:
        return None
    along, gap_ = steps[0]
    return along, gap_ < 0, circular_shifts
