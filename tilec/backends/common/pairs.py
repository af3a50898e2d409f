"""Products of three operands or more, as products of two: the pairs are chosen by cost, by opt_einsum.

Sum a_ij b_jk c_kl over j and k costs IJKL as it stands, and IJK + IKL in two steps. Where the number of operations
stays the same, as for x_bi w_kij y_bj, tensor cores do most of them: time is estimated, not operations counted.

A sum that is to be differentiated is divided before it is: each of its derivatives is a sum of as many operands, and
reverse mode through the pairs makes all of them of pairs that they share (Baur and Strassen 1983).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import opt_einsum

from tilec.backends.common.terms import product_of, split_factors
from tilec.cost import H200, size_in_bytes
from tilec.ir.functions import call
from tilec.ir.index import Affine, as_stored, distinct_variables, linear
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Int,
    Program,
    Statement,
    index_variables,
    reads,
    rebuild,
    walk,
)
from tilec.ir.types import FLOATS, ITEM_BYTES, NARROW, TensorType, Types, is_floating, shapes_in
from tilec.lattice.sets import covers
from tilec.transforms.lower.stack_operands import full_extents
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_elementary, is_plain_sum, is_pure

LEAST = 16  # rows, columns and points of a reduction that a tensor core takes at once
# points a second, as measured on an H200: of a sum term by term; of a product on tensor cores.
TERMS = 4e12
PRODUCTS = {"bfloat16": 300e12, "float16": 300e12, "float32": 40e12, "float64": 15e12}
SMALL_INTEGERS = 100e12  # of integers of 8 bits and truths
GAIN = 1.3  # what is gained by dividing a sum, at least
_LEAST_JOINED = 2**24  # points of a sum over windows from which factors are made one first
MOST_STORED = 2**30  # bytes of what is stored between two products


@dataclass(frozen=True)
class FactorSpace:
    """A sum of products over a box: its factors, the number that they are multiplied by, the first value and the count
    of each variable, of output variables and then of those that are summed."""

    statement: Statement
    factors: tuple[Expr, ...]
    scale: float | int
    low: Mapping[str, int]
    extent: Mapping[str, int]
    outputs: tuple[str, ...]
    summed: tuple[str, ...]


def as_floats(factors: Sequence[Expr], types: Types, dtype: str) -> tuple[Expr, ...]:
    """The factors in types in which pairs of them can be stored. Of several integers these are others:
    two that meet would wrap in their own type. 16 bits hold small integers alone, and 0 times the infinity that others
    become is no number: these are int64, which does not raise the type of a product with floats. Floats narrower than
    the sum are as wide: what two of them make would be rounded to fewer digits."""
    own = {f: expression_type(f, types) for f in factors}
    integers = [f for f in factors if not is_floating(own[f].dtype)]

    def converted(f: Expr) -> Expr:
        t = own[f]
        if f not in integers:
            return call(dtype, f) if not t.weak and ITEM_BYTES[t.dtype] < ITEM_BYTES[dtype] else f
        if len(integers) < 2:
            return f
        if dtype not in NARROW or t.dtype in _EXACT_IN_16_BITS:
            return call(dtype, f)
        return f if t.dtype == "int64" else call("int64", f)

    return tuple(map(converted, factors))


_EXACT_IN_16_BITS = ("bool", "uint8", "int8")


def paired(
    whole: FactorSpace, dtype: str, variables_of: Callable[[Expr], frozenset[str]], fresh: Callable[[int], str]
) -> list[Statement] | None:
    """The statement as several, each of two operands, in order; None where it has fewer than three, or where nothing is
    gained. `dtype`: of its output, which the last one has; the others are called `fresh(1)` and so on."""
    extent, low, s = whole.extent, whole.low, whole.statement
    operands = operands_of_factors(whole.factors, variables_of)
    if len(operands) < 3:
        return None
    names = [v for v in (*whole.outputs, *whole.summed) if extent[v] != 1]
    kept = frozenset(v for v in names if v in whole.outputs and any(v in g for g, _ in operands))
    path = opt_einsum.paths.auto([g.intersection(names) for g, _ in operands], kept, dict(extent))
    apart = _seconds([g for g, _ in operands], path, frozenset(whole.outputs), extent, dtype)
    if math.prod(extent[v] for v in names) / TERMS < GAIN * apart:
        return None
    found: list[Statement] = []
    for step, pair in enumerate(path[:-1]):
        chosen = [operands[k] for k in sorted(pair)]
        operands = [o for k, o in enumerate(operands) if k not in pair]
        later = set().union(*(g for g, _ in operands)) | set(whole.outputs)
        own = frozenset().union(*(g for g, _ in chosen))
        left = as_stored([v for v in names if v in own & later], whole.summed, [e for _, e in operands])
        order = as_stored(left, whole.summed, [e for _, e in chosen])
        following = [g for k, (g, _) in enumerate((*operands, (own, None))) if k in path[step + 1]]
        if own in following and not own - frozenset(left) - set(whole.outputs):
            order = _in_groups(order, following[0], frozenset(whole.outputs))
        name = fresh(len(found) + 1)
        index = tuple((Affine.variable(v) - low[v]).to_expr() for v in order)
        body = product_of([e for _, e in chosen])
        bounds = bounds_on(s, own - frozenset(left))  # of what is left the sizes are bounds
        sizes = tuple(Int(extent[v]) for v in order)
        found.append(Statement(name, index, sizes, body, "sum", constraints=bounds, span=s.span))
        operands.append((frozenset(order), Access(name, index)))
    bounds = bounds_on(s, frozenset().union(*(g for g, _ in operands)))
    return [*found, replace(s, body=scaled(product_of([e for _, e in operands]), whole.scale), constraints=bounds)]


def bounds_on(s: Statement, names: Collection[str]) -> tuple[Constraint, ...]:
    """Those of a statement's constraints that say how many values one of these variables has."""
    return tuple(c for c in s.constraints if linear(c.expr).bare in names)


def seconds_of(whole: FactorSpace, dtype: str) -> float:
    """An estimate of what a sum of bare factors takes, in its pairs."""
    operands = operands_of_factors(whole.factors, variables_in)
    names = [v for v in (*whole.outputs, *whole.summed) if whole.extent[v] != 1]
    kept = frozenset(v for v in names if v in whole.outputs)
    path = opt_einsum.paths.auto([g.intersection(names) for g, _ in operands], kept, dict(whole.extent))
    return _seconds([g for g, _ in operands], path, frozenset(whole.outputs), whole.extent, dtype)


def variables_in(e: Expr) -> frozenset[str]:
    return frozenset(index_variables(e))


def operands_of_factors(
    factors: Sequence[Expr], variables_of: Callable[[Expr], frozenset[str]]
) -> list[tuple[frozenset[str], Expr]]:
    """Factors as operands, those with one that has their variables."""
    groups: dict[frozenset[str], list[Expr]] = {}
    for f in factors:
        own = variables_of(f)
        home = next((g for g in groups if own <= g), own)
        groups.setdefault(home, []).append(f)
    return [(g, product_of(fs)) for g, fs in groups.items()]


def _in_groups(order: tuple[str, ...], other: frozenset[str], outputs: frozenset[str]) -> tuple[str, ...]:
    """The variables of an outer product, which may be stored in any order, in one in which the product with the operand
    of variables `other` takes it as matrices: what is summed does not stand between what is kept."""
    batch, rest = [v for v in order if v in other & outputs], [v for v in order if v not in other & outputs]
    kept, summed = [v for v in rest if v not in other], [v for v in rest if v in other]
    return order if rest in (kept + summed, summed + kept) else (*batch, *kept, *summed)


def _seconds(
    operands: list[frozenset[str]],
    path: Sequence[tuple[int, ...]],
    outputs: frozenset[str],
    extent: Mapping[str, int],
    dtype: str,
) -> float:
    """An estimate of what the pairs of a path take one after the other."""
    width = size_in_bytes(TensorType((), dtype))

    def count(variables: Collection[str]) -> int:
        return math.prod(extent[v] for v in variables)

    total, made = 0.0, 0
    left = list(operands)
    for pair in path:
        chosen = [left[k] for k in pair]
        given = max(pair) < len(left) - made
        made += 1 - sum(k >= len(left) - made for k in pair)
        left = [g for k, g in enumerate(left) if k not in pair]
        every = frozenset().union(*chosen)
        written = every & outputs.union(*left)
        rate = TERMS
        if len(chosen) == 2:
            a, b = chosen
            roles = (a - b) & written, (b - a) & written, (a & b) - written
            product = PRODUCTS.get(dtype, SMALL_INTEGERS if given else TERMS)  # what two make has more than 8 bits
            rate = product if min(map(count, roles)) >= LEAST else TERMS
        if left and width * count(written) > MOST_STORED:
            return math.inf
        total += count(every) / rate + width * sum(map(count, (*chosen, written))) / H200.memory + H200.launch
        left.append(written)
    return total


def scaled(e: Expr, scale: float | int) -> Expr:
    return e if scale == 1 else Call("mul", (e, _number(scale)))


def _number(n: float | int) -> Expr:
    e: Expr = Float(abs(n)) if isinstance(n, float) else Int(abs(n))
    return Call("neg", (e,)) if n < 0 else e


# whole programs


def in_pairs(program: Program, bound: Program, types: Types) -> Program:
    """The program with its sums of three operands or more divided, where that gains time. `bound`: the same with sizes;
    `types`: of its inputs."""
    known = infer(bound, types)
    names = Names.of(program)
    there = {*program.input_names(), *(s.output for s in program.statements)}
    divided = {s.output: parts for s in bound.statements if (parts := _divided(s, known, names, there)) is not None}
    if not divided:
        return program
    statements = (part for s in program.statements for part in divided.get(s.output, (s,)))
    return replace(program, statements=tuple(statements))


def _divided(s: Statement, types: Types, names: Names, there: Collection[str]) -> list[Statement] | None:
    if not set(reads(s)) <= set(there):
        return None
    whole = factor_space(s, types)
    if whole is None:
        return _joined(s, types, names)
    return paired(whole, types[s.output].dtype, variables_in, lambda _: names.fresh(f"{s.output}_pair"))


def factor_space(s: Statement, types: Types) -> FactorSpace | None:
    """A sum of products of elements at bare variables, each of which runs over whole axes; None for any other."""
    outputs = distinct_variables(s.index)
    extent = full_extents(s, types) if is_plain_sum(s) and outputs is not None else None
    if outputs is None or extent is None or not is_elementary(walk(s.body)):
        return None
    if types[s.output].dtype not in FLOATS or expression_type(s.body, types).dtype not in FLOATS:
        return None
    split = split_factors(s.body, types)
    every = index_variables(s.body)
    if split is None or not set(every) <= extent.keys() or not all(index_variables(f) for f in split[0]):
        return None
    summed = tuple(v for v in every if v not in outputs)
    low = dict.fromkeys(extent, 0)
    return FactorSpace(s, as_floats(split[0], types, types[s.output].dtype), split[1], low, extent, outputs, summed)


def _joined(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """A long sum over windows of three factors or more with those that scale another (the channels of a convolution's
    kernel, or of each image) taken into it, as a tensor of its own: the gradients by both are made of that by their
    product. None for any other. An element that no point reads has no gradient, whatever would scale it: there is none
    of such tensors."""
    if s.aggregation != "sum" or s.guard is not None or not is_pure(s) or s.index is None:
        return None
    split = split_factors(s.body, types) if is_elementary(walk(s.body)) else None
    if split is None or len(split[0]) < 3 or not all(is_floating(expression_type(f, types).dtype) for f in split[0]):
        return None
    factors = split[0]
    axes = [_bare_axes(f, types) for f in factors]
    extent = dict(zip(index_variables(*s.index), types[s.output].shape, strict=False))
    extent |= {v: n for _, own in axes for v, n in own.items()}
    if math.prod(extent.values()) < _LEAST_JOINED:
        return None
    read = [_is_read_whole(f, s, types) for f in factors]
    taken: dict[int, int] = {}  # the place of a factor and that of the one that it scales
    for k, (elements, own) in enumerate(axes):
        if set(index_variables(factors[k])) == own.keys():
            larger = [
                (n, j)
                for j, (n, other) in enumerate(axes)
                if (n, j) > (elements, k) and own.items() <= other.items() and read[j]
            ]
            taken |= {k: min(larger)[1]} if larger else {}
    if not taken:
        return None
    made: list[Statement] = []
    for root in sorted({*taken.values()} - taken.keys()):
        scales = [factors[k] for k in taken if _last(k, taken) == root]
        (a,) = {x for x in walk(factors[root]) if isinstance(x, Access)}
        index = tuple(
            e if isinstance(e, Int) or linear(e).bare is not None else Index(names.fresh(f"i{d}"))
            for d, e in enumerate(a.index)
        )
        body = product_of([with_access(factors[root], replace(a, index=index)), *scales])
        moving = _moving(a)
        shape = tuple(Int(types[a.tensor].shape[d]) for d in moving)
        own_index = tuple(index[d] for d in moving)
        made.append(Statement(names.fresh(f"{s.output}_joined"), own_index, shape, body, "assign", span=s.span))
        place = tuple(a.index[d] for d in moving)
        factors = [Access(made[-1].output, place) if k == root else f for k, f in enumerate(factors)]
    last = replace(s, body=scaled(product_of([f for k, f in enumerate(factors) if k not in taken]), split[1]))
    known = {**types, **{m.output: statement_type(m, types) for m in made}}
    return [*made, last] if statement_type(last, known) == types[s.output] else None


def _is_read_whole(f: Expr, s: Statement, types: Types) -> bool:
    """Whether points of a statement read each element of a factor's tensor, or of the slice at its numbers."""
    accesses = [x for x in walk(f) if isinstance(x, Access)]
    if len(accesses) != 1:
        return False
    (a,), written = accesses, tuple(Constraint(e, n) for e, n in zip(s.index or (), s.sizes or (), strict=True))
    moving = _moving(a)
    index, sizes = tuple(a.index[d] for d in moving), tuple(Int(types[a.tensor].shape[d]) for d in moving)
    reader = replace(s, index=index, sizes=sizes, constraints=(*s.constraints, *written))
    return covers(reader, shapes_in(types))


def _moving(a: Access) -> list[int]:
    """The axes at which an access reads more than one number's place."""
    return [d for d, e in enumerate(a.index) if not isinstance(e, Int)]


def _last(place: int, taken: Mapping[int, int]) -> int:
    return _last(taken[place], taken) if place in taken else place


def _bare_axes(e: Expr, types: Types) -> tuple[int, dict[str, int]]:
    """Of an expression of one element: how many there are, and how long the axes are that a variable walks alone;
    nothing for others."""
    read = [x for x in walk(e) if isinstance(x, Access)]
    if len(read) != 1 or not _is_computed_of(e):
        return 0, {}
    shape, found = types[read[0].tensor].shape, list[tuple[str, int]]()
    for i, n in zip(read[0].index, shape, strict=True):
        if not linear(i).is_affine:
            return 0, {}
        found += [(v, n)] if (v := linear(i).bare) is not None else []
    alone = [v for i in read[0].index for v in index_variables(i)]
    return math.prod(shape), {v: n for v, n in found if alone.count(v) == 1}


def _is_computed_of(e: Expr) -> bool:
    """Whether a value is computed of elements and numbers, and of no variables beside their indices."""
    return isinstance(e, (Access, Int, Float)) or (isinstance(e, Call) and all(map(_is_computed_of, e.args)))


def with_access(e: Expr, a: Access) -> Expr:
    """An expression of one element, of another one."""
    return a if isinstance(e, Access) else rebuild(e, lambda x: with_access(x, a))
