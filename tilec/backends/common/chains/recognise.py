"""Chains of a flat program: which statements become which kernels, and what is left.

A kernel has targets that aggregate over the same variables for the same others. A target that needs a statistic of its
own kernel at each point may stay there if the statistic is the greatest value (or the logsumexp) of what the target
takes the exponential of: then sums are rescaled while the greatest value grows. Others get a later kernel, which
computes the matrix values again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.common.chains.chain import (
    ChainKernel,
    Inner,
    Reduced,
    Target,
    added_alone,
    joined_sides,
    joined_sums,
    mixes,
    with_products,
)
from tilec.backends.common.chains.cost import chains_pay
from tilec.backends.common.chains.flat_sides import has_short_sides, with_flat_sides
from tilec.backends.common.chains.in_place import with_reads_in_place
from tilec.backends.common.chains.rewrites import by_rows, by_terms, with_gathers_apart, with_shared_value
from tilec.backends.common.chains.rows import order_of, with_rows
from tilec.backends.common.chains.sheared import with_sheared_products
from tilec.backends.common.chains.splits import with_walks_apart
from tilec.backends.common.chains.spread import with_spread_weights
from tilec.backends.common.chains.targets import (
    Matrices,
    matrices_of,
    operand_dtype,
    operand_factors,
    renamed_target,
    rounded_alike,
    targets_of,
)
from tilec.backends.common.chains.values import LONGEST_INNER, Apart, as_inner, extents_of, with_terms_inside
from tilec.backends.common.chains.window_scores import asked_by_readers, with_scores_by_columns
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Program, accesses_in, index_variables, reads
from tilec.ir.types import NARROW, Types
from tilec.transforms.util.factors import Factor, factors_of
from tilec.transforms.util.naming import fresh_variable

# of the mixtures of one kernel, if their operands have 16 bits, else LONGEST_INNER: 64 rows of sums take 160 registers
# of a thread then
MOST_FEATURES = 320
TIMES_SMALLER = 4  # times that a sum has fewer elements than the largest, to be stored for its sake
MOST_SUMS = 16  # that a point of a mixture has in registers


@dataclass(frozen=True)
class Chained:
    """A program without matrix values, whose kernels' targets stand side by side. `kernels`: by the output of the first
    target. `types` also of inner sums. `rewritten`: outputs of statements that are not the given program's."""

    program: Program
    types: Types
    kernels: Mapping[str, ChainKernel]
    rewritten: frozenset[str] = frozenset()

    def members(self) -> frozenset[str]:
        return frozenset(s.output for k in self.kernels.values() for s in k.statements)


def chained(program: Program, types: Types) -> Chained:
    """The flat program with its chains; where it has none that pay, it is as it is, but for sums that read operands at
    differences: these are products in any case. Kept with its statements: a pass asks, and then who plans the same."""
    kept = program.statements[-1].__dict__ if program.statements else {}
    known = kept.get("_chained")
    if known is None or not _is_same(known[0], program) or known[1] != types:
        own = dict(types)
        known = kept["_chained"] = program, own, _sought(program, own)
    return known[2]


def _is_same(a: Program, b: Program) -> bool:
    """Whether the programs are the same statements, not only equal ones: spans are theirs."""
    asked = ((p.name, p.inputs, p.outputs, *map(id, p.statements)) for p in (a, b))
    return len({*asked}) == 1


def _sought(program: Program, types: Types) -> Chained:
    asked, changed = asked_by_readers(program)
    found = _in_some_form(asked, types)
    if found.kernels and changed.isdisjoint(s.output for s in found.program.statements):  # what is stored keeps its own
        return replace(found, rewritten=found.rewritten | changed)
    found = _in_some_form(program, types) if changed else found
    if found.kernels:
        return found
    aslant = with_sheared_products(program, types)
    spread = with_spread_weights(aslant.program, aslant.types)
    changed = aslant.rewritten | spread.rewritten
    return Chained(spread.program, spread.types, {}, changed) if changed else found


def _in_some_form(program: Program, types: Types) -> Chained:
    """The program with its chains, in the first form in which it has some that pay."""
    matrices = matrices_of(program, types)
    rewrites = (partial(by_rows, matrices=matrices), with_scores_by_columns, with_sheared_products, _spread_out)
    first = next(filter(None, (_rewritten(rewrite, program, types) for rewrite in rewrites)), None)
    if first is not None:
        return first
    found = _chained(program, types, matrices=matrices)
    if found.kernels:
        return has_short_sides(found.kernels.values()) and _rewritten(with_flat_sides, program, types) or found
    small = _small_sums(program, types)
    if small and (beside := _chained(program, types, small)).kernels:
        return beside
    found = _gathered(program, types) or _rewritten(with_flat_sides, program, types) or found
    inside = with_terms_inside(program, types)
    if found.kernels or not inside.rewritten:
        return found
    made = _in_some_form(inside.program, inside.types)
    return replace(made, rewritten=made.rewritten | inside.rewritten) if made.kernels else found


def _spread_out(program: Program, types: Types) -> Apart:
    """The program with weights at the places of an operand, which are brought there by statements of their own."""
    spread = with_spread_weights(program, types)
    apart = with_gathers_apart(spread.program, spread.types) if spread.rewritten else spread
    return replace(apart, rewritten=spread.rewritten | apart.rewritten)


def _gathered(program: Program, types: Types) -> Chained | None:
    """The chains of the program with reads at computed positions apart, its sides flat where these are short."""
    apart = with_gathers_apart(program, types)
    if not apart.rewritten:
        return None
    found = _chained(apart.program, apart.types, apart.summed)
    if not found.kernels or has_short_sides(found.kernels.values()) or any(k.walked for k in found.kernels.values()):
        flat = with_flat_sides(apart.program, apart.types)
        joined = _chained(flat.program, flat.types, apart.summed) if flat.rewritten else found
        if joined.kernels:
            return replace(joined, rewritten=apart.rewritten | flat.rewritten | joined.rewritten)
    return replace(found, rewritten=apart.rewritten | found.rewritten) if found.kernels else None


def _rewritten(rewrite: Callable[[Program, Types], Apart], program: Program, types: Types) -> Chained | None:
    """The chains of the program that is written otherwise, if there are any."""
    apart = rewrite(program, types)
    found = _chained(apart.program, apart.types, apart.summed) if apart.rewritten else None
    return replace(found, rewritten=apart.rewritten | found.rewritten) if found and found.kernels else None


def _small_sums(program: Program, types: Types) -> set[str]:
    """Inner sums that are much smaller than the largest, such as keys and values that are projected before scores are
    made of them: kernels of their own store them, so that they do not stand in the way of the large ones."""
    sizes = {s.output: math.prod(types[s.output].shape) for s in program.statements if as_inner(s, types) is not None}
    return {n for n, size in sizes.items() if size * TIMES_SMALLER <= max(sizes.values())}


def _chained(program: Program, types: Types, stored: Collection[str] = (), matrices: Matrices | None = None) -> Chained:
    matrices = matrices_of(program, types, stored) if matrices is None else matrices
    targets = _canonical(targets_of(program, matrices), matrices)
    kernels = _kernels(program, targets, matrices) if targets else []
    if not kernels or not chains_pay(kernels, matrices, types):
        return Chained(program, types, {})
    shared = with_shared_value(program, kernels, matrices, types) if has_short_sides(kernels) else None
    if shared is not None and shared.summed:
        beside = _chained(shared.program, shared.types, {*stored, *shared.summed})
        if beside.kernels:
            return replace(beside, rewritten=beside.rewritten | shared.rewritten)
    apart, known = with_walks_apart(program, kernels, types)
    if apart is not program:
        beside = _chained(apart, known, stored)
        if 0 < len(beside.kernels) < len(kernels):
            changed = {s.output for s in apart.statements if s not in program.statements}
            return replace(beside, rewritten=beside.rewritten | changed)
    joined, kernels = joined_sums(program, kernels, types)
    summed = frozenset(s.output for s in joined.statements if s not in program.statements)
    laid = by_terms(joined, rounded_alike(kernels, matrices), matrices.types)
    placed = with_reads_in_place(laid.program, laid.kernels, laid.types, matrices.values)
    program, kernels = placed.program, placed.kernels
    rowed = with_rows(program, kernels, laid.types)
    order = order_of(program, rowed, matrices.values)
    if order is not None:
        kernels = rowed
    else:  # kernels may need each other's rows: these are statements of their own then
        order = order_of(program, kernels, matrices.values)
    if order is None:
        return Chained(program, types, {})
    statements = {s.output: s for s in program.statements}
    found = {k.first: k for k in kernels}
    left = tuple(statements[o] for unit in order for o in unit)
    return Chained(replace(program, statements=left), laid.types, found, laid.made | summed)


def _canonical(targets: Mapping[str, Target], matrices: Matrices) -> list[Target]:
    """Targets over shared variables: those that the first one to use an inner sum has for it."""
    known: dict[str, tuple[str, ...]] = {}
    features: dict[str, int] = {}
    found: list[Target] = []
    for t in targets.values():
        used = dict.fromkeys(a for a in accesses_in(t.body, *t.conditions) if a.tensor in matrices.inners)
        names: dict[str, str] = {}
        for a in used:
            for e, w in zip(a.index, known.get(a.tensor, ()), strict=False):
                v = linear(e).bare
                if v is not None and w not in names.values():
                    names.setdefault(v, w)
        every = index_variables(t.body, *(t.statement.index or ()), *t.conditions, t.statement.body)
        taken = {*names.values(), *(w for v in known.values() for w in v)}
        for v in every:
            if v not in names:
                names[v] = v if v not in taken else fresh_variable(v, set(taken))
                taken.add(names[v])
        if t.feature is not None:  # kernels tell features of different counts apart by their names
            count = _extent(t, matrices)[t.feature]
            if features.get(names[t.feature], count) != count:
                same = {v for v, n in features.items() if n == count} - taken
                names[t.feature] = min(same) if same else fresh_variable(names[t.feature], taken | features.keys())
            features[names[t.feature]] = count
        t = renamed_target(t, names)
        for a in accesses_in(t.body, *t.conditions):
            if a.tensor in matrices.inners:
                bare = [linear(e).bare for e in a.index]
                known.setdefault(a.tensor, tuple(v for v in bare if v is not None))
        found.append(t)
    return found


# kernels


def _kernels(program: Program, targets: Sequence[Target], matrices: Matrices) -> list[ChainKernel]:
    depends = _dependences(program, {t.output for t in targets}, matrices)
    sums = {n: s.output for s in program.statements for n in added_alone(s, program, matrices.types)}
    kernels: list[list[Reduced]] = []
    shapes: list[tuple] = []
    for t in targets:
        extent = _extent(t, matrices)
        place, read = _shape(t, extent), _read(t)
        if place is None:
            return []
        for kernel, shape in zip(kernels, shapes, strict=True):
            there = {r.target.output: r for r in kernel}
            own = {n for n in read if n in there}
            beyond = set().union(*(depends[n] for n in read - own))
            if shape != place or beyond & there.keys() or not (own or _has_room(kernel, t, sums, matrices)):
                continue
            reduced = _reduced(t, own, there, extent, matrices)
            if reduced is not None:
                kernel.append(reduced)
                break
        else:
            reduced = _reduced(t, set(), {}, extent, matrices)
            assert reduced is not None
            kernels.append([reduced])
            shapes.append(place)
    made = [_kernel(k, matrices) for k in kernels]
    return joined_sides([with_products(k) for k in made if k is not None], depends) if None not in made else []


def _has_room(kernel: Sequence[Reduced], t: Target, sums: Mapping[str, str], matrices: Matrices) -> bool:
    """Whether mixtures as wide as these fit into registers side by side. `sums`: what adds some of them up."""
    mixtures = [m for m in (*(r.target for r in kernel), t) if m.feature is not None]
    halves = all(operand_dtype(m, matrices.types) in NARROW for m in mixtures)
    most = MOST_FEATURES if halves else LONGEST_INNER
    features = {(sums.get(m.output, m.output), m.points): _extent(m, matrices)[m.feature or ""] for m in mixtures}
    return t.feature is None or sum(features.values()) <= most


def _read(t: Target) -> set[str]:
    return {a.tensor for a in accesses_in(t.body, *t.conditions)}


def _dependences(program: Program, targets: Collection[str], matrices: Matrices) -> dict[str, set[str]]:
    """The targets that each name depends on, itself included."""
    found: dict[str, set[str]] = {name: set() for name in program.input_names()}
    found.update((name, set()) for name in matrices.inners)
    for s in program.statements:
        own = {s.output} if s.output in targets else set()
        found[s.output] = own.union(*(found.get(n, set()) for n in reads(s)))
    for name, inner in matrices.inners.items():
        found[name] = set().union(*(found.get(a.tensor, set()) for a in accesses_in(inner.body)))
    return found


def _extent(t: Target, matrices: Matrices) -> Mapping[str, int]:
    found = extents_of(t.statement, matrices.types)
    assert found is not None
    return found


def _shape(t: Target, extent: Mapping[str, int]) -> tuple | None:
    """What programs have a block of, one value of, walk in blocks, and walk one by one."""
    index = [linear(e).bare for e in t.statement.index or ()]
    blocked = tuple(v for v in (t.row, t.column) if v in index)
    if not blocked:
        return None
    looped = [v for v in (t.row, t.column) if v not in index]
    beside = [v for v in index if v is not None and v not in blocked and v != t.feature]
    batch = tuple(sorted(v for v in beside if extent[v] > 1))
    walked = tuple(sorted(v for v in t.summed if v not in looped))
    blocked = blocked if len(blocked) == 1 else tuple(sorted(blocked))
    return (
        blocked,
        batch,
        looped[0] if looped else None,
        walked,
        tuple((v, extent[v]) for v in (*blocked, *batch, *looped, *walked)),
    )


def _reduced(
    t: Target, own: set[str], there: Mapping[str, Reduced], extent: Mapping[str, int], matrices: Matrices
) -> Reduced | None:
    """The target as a product of what it sums and what it does not; None where it needs statistics of its kernel,
    `own`, otherwise than there can be while they are not complete."""
    closing = tuple(c for c in t.conditions if not own.isdisjoint(a.tensor for a in accesses_in(c)))
    if closing and (t.aggregation != "sum" or not {*index_variables(*closing)}.isdisjoint(t.summed)):
        return None
    t = replace(t, conditions=tuple(c for c in t.conditions if c not in closing)) if closing else t
    if t.aggregation != "sum":
        return None if own else Reduced(t, (Factor(t.body, False),), (), (), None)
    across = {v for v in extent if v in t.summed}
    if not across & {t.row, t.column}:  # a matrix: masks are its own points', and so are all factors
        return Reduced(t, tuple(factors_of(t.body, matrices.types)), (), (), None) if not own else None
    inner: list[Factor] = []
    feature: list[Factor] = []
    outer: list[Factor] = []
    for f in operand_factors(t, matrices.types):
        used = set(index_variables(f.value))
        if not used & across and t.feature not in used:
            outer.append(f)
        elif t.feature is not None and t.feature in used:
            (feature if used & across else outer).append(f)
        else:
            inner.append(f)
    operand = None if t.feature is None else operand_dtype(t, matrices.types)
    unrolled = None
    if t.feature is not None and operand == "float32" and extent[t.feature] <= MOST_SUMS and _in_registers(t, matrices):
        unrolled, inner, feature, operand = extent[t.feature], inner + feature, [], None
    anchor = None
    for f in inner:
        stats = {a.tensor for a in accesses_in(f.value)} & own
        if not stats:
            continue
        match f.value:
            case Call("exp", (Call("sub", (x, Access() as a)),)) if not f.divides and stats == {a.tensor}:
                top = there[a.tensor].target
                fits = top.aggregation in ("max", "logsumexp") and top.body == x and _all_of(t, top)
                if not fits or anchor is not None or a.index != top.statement.index:
                    return None  # a sum is rescaled once where the statistic grows, not for each such factor
                anchor = a.tensor
            case _:
                return None
    if any({a.tensor for a in accesses_in(f.value)} & own for f in feature):
        return None
    return Reduced(t, tuple(inner), tuple(feature), tuple(outer), anchor, operand, unrolled, closing)


def _all_of(t: Target, top: Target) -> bool:
    """Whether each point of a target is one of the other target."""
    return all(own <= others for own, others in zip(top.points, t.points, strict=True))


def _in_registers(t: Target, matrices: Matrices) -> bool:
    """Whether the target's inner sums are added up term by term, so that no block is a product's."""
    return all(matrices.inners[n].left is None for n in _read(t) if n in matrices.inners)


def _kernel(members: Sequence[Reduced], matrices: Matrices) -> ChainKernel | None:
    first = members[0].target
    extent: dict[str, int] = {}
    for r in members:
        for v, n in _extent(r.target, matrices).items():
            if extent.setdefault(v, n) != n and v != r.target.feature:
                return None
    place = _shape(first, extent)
    assert place is not None
    blocked, batch, looped, walked, _ = place
    inners: dict[str, Inner] = {}
    for r in members:
        t = r.target
        for a in accesses_in(t.body, *t.conditions):
            if a.tensor in matrices.inners:
                inner = inners[a.tensor] = matrices.inners[a.tensor]
                if not _fits(inner, a, t):
                    return None
        if r.feature and not mixes(r.feature, blocked):
            return None
    return ChainKernel(tuple(members), inners, blocked, batch, looped, walked, extent)


def _fits(inner: Inner, a: Access, t: Target) -> bool:
    """Whether each operand of an inner product has one side of the matrix to itself."""
    if inner.left is None or inner.right is None:
        return True
    names = {v: linear(e).bare for v, e in zip(inner.index, a.index, strict=True)}
    sides = [{names.get(v) for v in index_variables(e)} & {t.row, t.column} for e in (inner.left, inner.right)]
    return sorted(map(len, sides)) == [1, 1] and sides[0] != sides[1]
