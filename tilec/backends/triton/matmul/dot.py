"""Which statements are matrix products, and which factors and conditions are which operand's.

The factors of the body fall into a left operand, which holds the rows, and a right one, which holds the columns. A
condition on the points zeroes an operand, or the result where it concerns outputs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.domain import Condition, free
from tilec.backends.common.pairs import LEAST, PRODUCTS, TERMS, FactorSpace, as_floats, bounds_on, paired
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.plan.plan import Allocate, Release, Step
from tilec.cost import H200, size_in_bytes
from tilec.ir.functions import ZERO
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Index, Inside, Pad, Statement, children, index_variables, reads, walk
from tilec.ir.types import FLOATS, NARROW, Types

POINTERS = 0.25  # of a product's rate on tensor cores, the share that kernels which read through pointers reach
SHORT_SUM = 64  # terms of a sum, up to which kernels that read through pointers take as long as memory does
MEMORY_BYTES, LAUNCH_SECONDS = H200.memory, H200.launch


Zeros = Sequence[Condition | Expr]  # what zeroes an operand, or the result, where it does not hold


@dataclass(frozen=True)
class Dot:
    """`left` and `right`: factors of the operands. `zero_left`, `zero_right`: conditions that zero an operand;
    `zero_result`: those on outputs alone. `dtype`: what tensor cores multiply."""

    left: tuple[Expr, ...]
    right: tuple[Expr, ...]
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    zero_left: tuple[Condition | Expr, ...]
    zero_right: tuple[Condition | Expr, ...]
    zero_result: tuple[Condition | Expr, ...]
    scale: float | int
    dtype: str


@dataclass(frozen=True)
class MatrixProduct:
    """A statement as a product: its operands, its points, and the views that these index."""

    dot: Dot
    space: Space
    view: StridedView

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many rows, columns and terms of a sum there are."""
        rows, columns, summed = (self.space.count(v) for v in (self.dot.rows, self.dot.columns, self.dot.summed))
        return rows, columns, summed

    @property
    def repeated(self) -> int:
        """How many such products there are: batches and residue classes."""
        return self.space.count(self.dot.batch) * len(self.space.classes)

    @property
    def multiplications(self) -> int:
        return math.prod(self.counts) * self.space.count(self.dot.batch)

    @property
    def is_plain(self) -> bool:
        """Whether no condition on points is left."""
        return not (self.dot.zero_left or self.dot.zero_right or self.dot.zero_result)

    @property
    def as_it_is(self) -> OperandRewrite:
        """The product over its own operands."""
        return OperandRewrite(self.view, self.space, dot=self.dot)

    def accesses(self) -> list[Access]:
        """The elements that both operands read."""
        return [a for f in (*self.dot.left, *self.dot.right) for a in operand_accesses(f)]


@dataclass(frozen=True)
class OperandRewrite:
    """A statement over operands that are tensors of their own. `before` and `after`: steps that make and release them.
    `dot`: the statement as a product, where it is one."""

    view: StridedView
    space: Space
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    dot: Dot | None = None

    @property
    def product(self) -> MatrixProduct:
        assert self.dot is not None
        return MatrixProduct(self.dot, self.space, self.view)

    @property
    def coalesced(self) -> MatrixProduct:
        """The product with variables as one that all tensors walk so now."""
        whole, found = self.product, product_over(coalesce(self.view))
        if found is None or found.dot.dtype != whole.dot.dtype or found.counts != whole.counts:
            return whole
        return replace(found, dot=replace(found.dot, scale=whole.dot.scale))

    def around(self, steps: Iterable[Step]) -> list[Step]:
        return [*self.before, *steps, *self.after]


@dataclass(frozen=True)
class StagedProduct:
    """A statement as a product, which `steps` carry out where these are given, and what comes `before` and `after`:
    steps, and statements over views. `made`: shapes in memory of tensors between. `repairs` look for what zeros outside
    of the tensors made of elements that are not finite."""

    product: StridedView
    made: Mapping[str, tuple[int, ...]]
    before: tuple[StridedView | Step, ...] = ()
    after: tuple[StridedView | Step, ...] = ()
    steps: Sequence[Step] | None = None
    repairs: Sequence[Step] = ()

    def carried_out(self, lower: Callable[[StridedView], list[Step]]) -> list[Step]:
        """All steps; `lower` gives those of a statement."""
        steps: list[Step] = [Allocate(n, shape, self.product.types[n].dtype) for n, shape in self.made.items()]
        for x in (*self.before, *((self.product,) if self.steps is None else self.steps), *self.after):
            steps += lower(x) if isinstance(x, StridedView) else (x,)
        return [*steps, *([Release(tuple(self.made))] if self.made else ()), *self.repairs]


def product_over(view: StridedView) -> MatrixProduct | None:
    """The product that a statement over views is, None where it is none."""
    space = build_space(view.statement, view.types)
    dot = None if space is None else recognise_dot(space, view)
    return None if space is None or dot is None else MatrixProduct(dot, space, view)


def recognise_dot(
    space: Space, view: StridedView, one_channel: bool = False, joined: Callable[[Expr], bool] = lambda f: False
) -> Dot | None:
    """The statement as a product of two operands, None where it is none, or too small for tensor cores.
    `one_channel`: output variables of a single value count as columns too. `joined`: factors of one operand, whatever
    variables each has."""
    s = space.statement
    if s.aggregation != "sum" or s.default is not None or space.stored:
        return None
    split = split_factors(s.body, view.types)
    if split is None or len(split[0]) < 2:
        return None
    factors, scale = split
    element = expression_type(s.body, view.types)
    dtype = _dot_type(factors, element.dtype, view)
    if dtype is None:
        return None
    kept, together = frozenset(space.outputs) if one_channel else frozenset(), [f for f in factors if joined(f)]
    found = sides_of(factors, space, kept, together) or _guarded_sides(factors, space, kept)
    if found is None:
        return None
    if dtype != element.dtype and max(len(found.left), len(found.right)) > 1:
        # a product of several stored elements is rounded, or wraps, where the casts in the text would not let it
        if dtype == "int8" and not all(_is_truth(f, view.types) for f in factors):
            return None
        dtype = dtype if dtype == "int8" else element.dtype
    if dtype == "int8" and scale != 1 and element.dtype != "int64":
        return None
    return replace(found, scale=scale, dtype=dtype)


def _guarded_sides(factors: list[Expr], space: Space, kept: frozenset[str]) -> Dot | None:
    """Two operands, one of which is 0 where the guard fails: that has the guard's variables beside its factors', as the
    gradient `D[n] * V[h]` where `P[n, h] > 0` has. None where there are none."""
    guard = space.statement.guard
    own = frozenset() if guard is None else variables_outside(guard)
    together = [f for f in factors if variables_outside(f) <= own]
    if not together or not any(isinstance(e, Access) for e in walk(guard or ZERO)):
        return None
    return sides_of(factors, space, kept, together, guarded=own)


def sides_of(
    factors: list[Expr],
    space: Space,
    kept: frozenset[str] = frozenset(),
    joined: Sequence[Expr] = (),
    added: bool = False,
    guarded: frozenset[str] = frozenset(),
) -> Dot | None:
    """Factors (or terms, `added`) as two operands that share a summed variable, None where they are not. `kept`:
    variables that count although they have a single value. `joined`: factors of one operand, which has the variables
    `guarded` too."""
    varying = {v for v in (*space.outputs, *space.reductions) if v in kept or not space.single(v)}
    groups: dict[frozenset[str], list[Expr]] = {}
    shared = guarded.union(*map(variables_outside, joined))
    for f in factors:
        groups.setdefault((shared if f in joined else variables_outside(f)) & varying, []).append(f)
    sides = _two_sides(groups, space, varying, added)
    if sides is None:
        return None
    (left_set, left), (right_set, right) = sides
    outputs = [v for v in space.outputs if v in varying]
    summed = tuple(v for v in space.reductions if v in varying)
    batch = tuple(v for v in outputs if v in left_set and v in right_set)
    columns = tuple(v for v in outputs if v in right_set and v not in left_set)
    rows = tuple(v for v in outputs if v not in batch and v not in columns)
    if not any(v in left_set and v in right_set for v in summed):
        return None
    zeros = _zeros(space, varying, left_set, right_set, set(outputs))
    if zeros is None:
        return None
    return Dot(tuple(left), tuple(right), batch, rows, columns, summed, zeros[0], zeros[1], zeros[2], 1, "")


def _dot_type(factors: list[Expr], element: str, view: StridedView) -> str | None:
    """The type that operands are multiplied in. 16-bit elements under a cast to float32 stay what they are: their
    products are exact in the accumulator. So are those of 8-bit integers and truths that are cast before they are
    multiplied."""
    if element in ("int16", "int32", "int64"):
        return "int8" if all(_is_small(f, view.types) for f in factors) else None
    if element not in FLOATS:
        return None
    if element == "float32":
        alike = len(factors) > 2  # of more, one operand is a product, which is exact in float32 alone
        stored = {_stored(f, view) for f in factors if alike or not _fits_16_bits(f, view)}
        if len(stored) == 1 and (only := stored.pop()) in NARROW:
            return only
    return element


def _fits_16_bits(f: Expr, view: StridedView) -> bool:
    """Whether a factor is an integer of 8 bits, which each of the narrow types holds."""
    match f:
        case Call(cast, (Access() as a,)) if cast in (*NARROW, "float32"):
            return view.types[a.tensor].dtype in ("int8", "uint8")
    return False


def _is_small(f: Expr, types: Types) -> bool:
    """Whether a factor is a stored integer of 8 bits under a cast, or a truth."""
    match f:
        case Call("int16" | "int32" | "int64", (Access(name),)) if types[name].dtype == "int8":
            return True
    return _is_truth(f, types)


def _is_truth(f: Expr, types: Types) -> bool:
    match f:
        case Call("int16" | "int32" | "int64", (c,)):
            return expression_type(c, types).dtype == "bool"
    return False


def _stored(f: Expr, view: StridedView) -> str | None:
    match f:
        case Call("float32" | "int16" | "int32" | "int64", (Access() as a,)):
            return view.types[a.tensor].dtype
        case Access():
            return view.types[f.tensor].dtype
    return None


def variables_outside(e: Expr) -> frozenset[str]:
    match e:
        case Inside():
            return frozenset()
        case Access():
            return free_of(e)
        case Index(name):
            return frozenset((name,))
        case Pad():
            return frozenset(index_variables(e))
    return frozenset().union(*(variables_outside(c) for c in children(e)))


def _two_sides(groups, space: Space, varying: set[str], added: bool):
    """The factors as two operands: smaller sets of variables join a larger one that holds them; of two that do, one
    that is computed anyway, or else the smaller: what is no lone element becomes a tensor of its own. Terms join the
    operand that is written first: where a gradient adds them one by one, it then rounds as the value does."""
    sets = sorted(groups, key=lambda g: -len(g))
    roots: list[frozenset[str]] = []
    for g in sets:
        if not any(g <= r for r in roots):
            roots.append(g)
    if len(roots) != 2:
        return None
    last = next((v for v in reversed(space.outputs) if v in varying), None)
    right = roots[1] if last in roots[1] or last not in roots[0] else roots[0]
    left = roots[0] if right is roots[1] else roots[1]
    sides: dict[frozenset[str], list[Expr]] = {left: [], right: []}
    first = next(g for g in groups if g in roots)
    cheaper = min((left, right), key=lambda side: (_is_bare(groups[side]), space.count(tuple(side))))
    joined = first if added else cheaper
    for g in groups:
        home = joined if g <= left & right else left if g <= left else right
        sides[home] += groups[g]
    return (left, sides[left]), (right, sides[right])


def _is_bare(factors: list[Expr]) -> bool:
    return all(isinstance(f, Access) for f in factors)


def _zeros(space: Space, varying: set[str], left: frozenset[str], right: frozenset[str], outputs: set[str]):
    """Which operand, or the result, each condition zeroes; None if one concerns both sides."""
    found: tuple[list, list, list] = ([], [], [])
    guard = space.statement.guard
    for c in (*space.valid, *(() if guard is None else (guard,))):
        variables = (free(c.form) if isinstance(c, Condition) else variables_outside(c)) & varying
        places = (left, right, outputs)
        home = next((k for k, p in enumerate(places) if variables <= p), None)
        if home is None:
            return None
        found[home].append(c)
    return tuple(map(tuple, found))


def guards_among(zeros: Zeros) -> list[Expr]:
    """Those of what zeroes an operand that are values."""
    return [z for z in zeros if not isinstance(z, Condition)]


def dot_is_whole(dot: Dot) -> bool:
    """Whether it is a product of integers."""
    return dot.dtype not in FLOATS


def worthwhile(dot: Dot, space: Space) -> bool:
    """Whether tensor cores have enough to do."""
    return min(space.count(v) for v in (dot.rows, dot.columns, dot.summed)) >= LEAST


def worthwhile_padded(product: MatrixProduct) -> bool:
    """Whether tensor cores pay although they take more rows, columns or points of a sum at once than there are: where
    terms one by one take twice as long, and longer than memory does."""
    counts, dtype = product.counts, product.dot.dtype
    if min(counts) < 2 or dtype not in PRODUCTS:
        return False
    terms = math.prod(counts) * product.repeated / TERMS
    products = math.prod(max(n, LEAST) for n in counts) * product.repeated / (POINTERS * PRODUCTS[dtype])
    read = {a.tensor for a in product.accesses()}
    moved = sum(size_in_bytes(product.view.types[n]) for n in (*read, product.space.statement.output)) / MEMORY_BYTES
    return terms > 2 * max(products, moved, LAUNCH_SECONDS)


def short_sums_pay(product: MatrixProduct, epilogue: Sequence[Statement]) -> bool:
    """Whether kernels that read through pointers carry out a product of few terms, with its epilogue, in less time than
    a library's product and a kernel for the epilogue: memory takes longest, and the product is not stored."""
    dot, space, types = product.dot, product.space, product.view.types
    if dot.dtype not in PRODUCTS or not product.is_plain or not space.covers or product.counts[2] > SHORT_SUM:
        return False

    def moved(*names: str) -> float:
        return sum(size_in_bytes(types[name]) for name in {*names}) / MEMORY_BYTES

    own, made = space.statement.output, {space.statement.output, *(s.output for s in epilogue)}
    operands, last = [a.tensor for a in product.accesses()], epilogue[-1].output
    beside = [name for s in epilogue for name in reads(s) if name not in made]
    (rows, columns, terms), rate = product.counts, PRODUCTS[dot.dtype]
    least = max(rows, LEAST) * max(columns, LEAST) * max(terms, LEAST) * product.repeated
    apart = max(product.multiplications / rate, moved(*operands, own)) + moved(own, *beside, last) + LAUNCH_SECONDS
    return max(least / (POINTERS * rate), moved(*operands, *beside, last)) < apart


def operand_accesses(e: Expr) -> list[Access]:
    if isinstance(e, Access):
        return [e]
    return [a for c in children(e) for a in operand_accesses(c)]


def pairwise(space: Space, types: Types, variables_of: Callable[[Expr], frozenset[str]]) -> list[Statement] | None:
    """The statement as several, each of two operands, in order; None where it has fewer than three, where points are
    not a box, or where nothing is gained. The last one has the statement's own output."""
    s = space.statement
    if s.aggregation != "sum" or s.guard is not None or s.default is not None or space.valid or space.stored:
        return None
    dtype, split = types[s.output].dtype, split_factors(s.body, types)
    if bounds_on(s, space.reductions) != s.constraints or len(space.classes) != 1 or split is None:
        return None
    if expression_type(s.body, types).dtype in FLOATS:
        factors = as_floats(split[0], types, dtype)
    elif dtype == "int64" and all(_is_small(f, types) for f in split[0]):
        factors = tuple(split[0])
    else:
        return None
    if any(space.single(v) for f in factors for v in variables_of(f)):
        return None  # a variable of one value would be summed over all of its axis in a statement of its own
    low, extent = space.low[0], space.extent[0]
    whole = FactorSpace(s, factors, split[1], low, extent, tuple(space.outputs), tuple(space.reductions))
    return paired(whole, dtype, variables_of, lambda k: f"{s.output}.{k}")
