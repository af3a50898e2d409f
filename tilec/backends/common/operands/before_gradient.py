"""How sums are written before they are differentiated, so that their gradients are few products of matrices.

- Products of one operand that are added up are one (`shared_operands.py`).
- A sum that reads an operand at a difference of output variables is a product read aslant (`chains/sheared.py`).
- What scales the elements of a product stands outside of it: the gradient by scales is then a sum of elements.
- An operand made of several tensors or by a costly function, `+(gelu(A[n, f]) * B[n, f] * W[f, o])`, is a statement of
  its own: the gradients by these tensors are made of one product's, and compute the operand once.
- Scores by places of a window are scores by columns, if these are a chain
  (`chains/window_scores.py`).
- What is read at a computed place that few of the statement's variables know, a bias by distance, is a statement of its
  own: its gradient is added up over all others before it is brought to its places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.common.chains.recognise import chained
from tilec.backends.common.chains.sheared import ends_of, is_aslant, sheared
from tilec.backends.common.chains.spread import spread
from tilec.backends.common.chains.values import Apart
from tilec.backends.common.chains.window_scores import with_scores_by_columns
from tilec.backends.common.operands.orders import better_orders
from tilec.backends.common.operands.shared_operands import with_shared_operands
from tilec.backends.common.pairs import LEAST
from tilec.ir.functions import COSTLY_FUNCTIONS
from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    walk,
)
from tilec.ir.types import Types, is_floating, shapes_in
from tilec.transforms.autodiff.outline_reductions import lift
from tilec.transforms.bind.bind import bind
from tilec.transforms.lower.flatten import flatten
from tilec.transforms.lower.stack_operands import LEAST_STACKED, plain_sum
from tilec.transforms.lower.tighten_domains import without_repeats
from tilec.transforms.util.factors import Factor, factors_of, quotient_of
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.ranges import axis_places, ranges_of
from tilec.transforms.util.rewrite import with_parts

_FEWEST_READS = 2**20  # elements of what is made of reads at computed places
_LEAST_TENSOR = 2**14  # elements of the largest tensor of a program that is looked through
_LEAST_REUSE = 16  # times that an operand is used


def before_gradient(
    program: Program, bound: Program, types: Types, values: Mapping[str, int]
) -> tuple[Program, Program]:
    """The program, and the same with sizes. `types`: of its inputs."""
    known = infer(bound, types)
    if max((math.prod(t.shape) for t in known.values()), default=0) < _LEAST_TENSOR:
        return program, bound
    lifted = replace(program, statements=lift(program, Names.of(program)))
    sized = bind(lifted, types, values)
    lifted, shared = with_shared_operands(lifted, sized, types)
    orders = better_orders(shared, infer(shared, types))
    fewer, sized = shared is not sized or bool(orders.parts), orders.applied(shared)
    lifted = orders.applied(lifted)
    flat = flatten(sized, types) if any(map(_nests, sized.statements)) else sized
    known = infer(flat, types)
    scores = with_scores_by_columns(flat, known)
    if not scores.rewritten or not chained(scores.program, scores.types).kernels:
        scores = Apart(flat, known)
    flat, known, changed = scores.program, dict(scores.types), scores.rewritten
    names = Names.of(flat)
    there = {*program.input_names(), *(s.output for s in lifted.statements)}
    statistics = _statistics(flat)
    made: dict[str, list[Statement]] = {}
    own: list[Statement] = []
    for s in flat.statements:
        own.append(without_repeats(s, shapes_in(known)))
        if s.output in there:
            parts = _parts(own, known, names, statistics)
            inside = {p.output for p in parts}
            other = len(parts) > len(own) or bool(changed & inside)
            if other and {a.tensor for p in parts for a in accesses_in(p.body)} <= there | inside:
                made[s.output] = parts
            own = []
    if not made:
        return (lifted, sized) if fewer else (program, bound)
    texts, numbers = (
        replace(p, statements=tuple(part for s in p.statements for part in made.get(s.output, (s,))))
        for p in (lifted, sized)
    )
    return texts, numbers


def _nests(s: Statement) -> bool:
    return any(isinstance(e, Aggregate) for e in walk(s.body))


def _statistics(program: Program) -> set[str]:
    """The outputs that are made of the greatest of values or of logarithms of sums."""
    found: set[str] = set()
    for s in program.statements:
        if s.aggregation in ("max", "logsumexp") or any(a.tensor in found for a in accesses_in(s.body)):
            found.add(s.output)
    return found


def _parts(parts: list[Statement], types: Types, names: Names, statistics: Collection[str]) -> list[Statement]:
    known = dict(types)
    for step in (sheared, spread, _scaled_after, partial(_stored_operands, statistics=statistics), _stored_gathers):
        parts = [p for part in parts for p in step(part, known, names) or [part]]
        known.update((p.output, statement_type(p, known)) for p in parts)
    return parts


def _scaled_after(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """The product of matrices, and then what scales its elements. What is scaled down may be too large for float16."""
    product = None if types[s.output].dtype == "float16" else _Product.of(s, types)
    if product is None or not product.outer:
        return None
    whole = replace(s, output=names.fresh(f"{s.output}_unscaled"), body=quotient_of(product.inner))
    last = replace(
        s, body=quotient_of([Factor(Access(whole.output, s.index or ()), False), *product.outer]), aggregation="assign"
    )
    return _alike([whole, last], [whole], s, types)


def _stored_operands(s: Statement, types: Types, names: Names, statistics: Collection[str]) -> list[Statement] | None:
    """The operands that are made of several tensors, and their product."""
    product = _Product.of(s, types)
    if product is None:
        return None
    made: list[Statement] = []
    rest: list[Factor] = [f for f in product.inner if not index_variables(f.value)]
    operands: list[Factor] = []
    for (own, factors), (other, _) in zip(product.sides, product.sides[::-1], strict=True):
        reads = {a for f in factors for a in accesses_in(f.value)}
        varies = any(is_floating(types[a.tensor].dtype) for a in reads)
        called = {e.function for f in factors for e in walk(f.value) if isinstance(e, Call)}
        alone = len(reads) < 2 and not called & COSTLY_FUNCTIONS
        relative = "exp" in called and any(a.tensor in statistics for a in reads)  # a softmax, which chains know
        wider = product.count(own) > max([0, *(types[a.tensor].numel for a in reads)])
        if alone or relative or wider or not varies or product.count(other - own) < _LEAST_REUSE:
            operands += factors
            continue
        body = quotient_of(factors)
        largest = max(reads, key=lambda a: types[a.tensor].numel)
        order = [v for v in dict.fromkeys((*index_variables(largest), *index_variables(body))) if v in own]
        index = tuple(map(Index, order))
        sizes = tuple(Int(product.extent[v]) for v in order)
        made.append(Statement(names.fresh(f"{s.output}_operand"), index, sizes, body, "assign", span=s.span))
        operands.append(Factor(Access(made[-1].output, index), False))
    if not made:
        return None
    return _alike([*made, replace(s, body=quotient_of([*operands, *rest]))], made, s, types)


def _alike(parts: list[Statement], stored: list[Statement], s: Statement, types: Types) -> list[Statement] | None:
    """The parts, if nothing is stored in fewer bits than the statement's, whose type they keep."""
    known = dict(types)
    for p in parts[:-1]:
        known[p.output] = statement_type(p, known)
    wanted = types[s.output]
    narrowed = any(known[p.output].dtype != wanted.dtype for p in stored)
    return None if narrowed or statement_type(parts[-1], known) != wanted else parts


@dataclass(frozen=True)
class _Product:
    """A sum of products of two sides, each the factors over its variables; `inner`: all factors of both, `outer`: those
    of output variables alone."""

    extent: dict[str, int]
    inner: list[Factor]
    outer: list[Factor]
    sides: list[tuple[frozenset[str], list[Factor]]]

    def count(self, variables: Collection[str]) -> int:
        return math.prod(self.extent[v] for v in variables)

    @staticmethod
    def of(s: Statement, types: Types) -> _Product | None:
        """None of what is no product of matrices, or a small one."""
        found = plain_sum(s, types)
        if found is None:
            return None
        outputs, extent = found
        varying = {v for v, n in extent.items() if n > 1}
        summed = varying - set(outputs)
        if math.prod(extent.values()) < LEAST_STACKED or not summed:
            return None
        inner: list[Factor] = []
        outer: list[Factor] = []
        for f in factors_of(s.body, types):
            used = set(index_variables(f.value))
            (outer if not used & summed and any(accesses_in(f.value)) else inner).append(f)
        sides: list[tuple[frozenset[str], list[Factor]]] = []
        for f in sorted(inner, key=lambda f: -len(set(index_variables(f.value)) & varying)):
            own = frozenset(index_variables(f.value)) & varying
            home = next((fs for v, fs in sides if own <= v), None)
            if not index_variables(f.value):
                continue
            if home is None:
                sides.append((own, [f]))
            else:
                home.append(f)
        product = _Product(extent, inner, outer, sides)
        if len(sides) != 2 or any(f.divides for _, fs in sides for f in fs[:1]):
            return None
        (a, _), (b, _) = sides
        least = (a - b, b - a, summed & a & b)
        return product if min(map(product.count, least)) >= LEAST and summed <= a & b else None


def _stored_gathers(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """What is read at computed places that are inside wherever they are, and the statement that reads it there."""
    outputs = distinct_variables(s.index)
    if outputs is None or not is_pure(s) or not is_floating(types[s.output].dtype):
        return None
    if any(isinstance(e, (Inside, Pad)) for e in walk(s.body)):
        return None
    every = [*accesses_in(s.body)]
    if not any(is_aslant(e) for a in every for e in a.index):
        return None
    written = dict(zip(outputs, types[s.output].shape, strict=True))
    extent = ranges_of(axis_places(every, types), written, lambda e, n: linear(e).bare is None)
    points = types[s.output].numel
    if extent is None or not set(index_variables(s.body)) <= extent.keys() or points < _FEWEST_READS:
        return None
    found: dict[Expr, Expr] = {}
    made: list[Statement] = []
    for a in dict.fromkeys(every):
        if not any(map(is_aslant, a.index)) or not is_floating(types[a.tensor].dtype):
            continue
        own = [v for v in extent if v in index_variables(a)]
        ends = [ends_of(e, extent) for e in a.index]
        inside = all(x is not None and 0 <= x[0] <= x[1] < n for x, n in zip(ends, types[a.tensor].shape, strict=True))
        elements = math.prod(extent[v] for v in own)
        fewer = elements * 2 <= points and elements > types[a.tensor].numel
        if not inside or not fewer:
            continue
        index = tuple(map(Index, own))
        sizes = tuple(Int(extent[v]) for v in own)
        made.append(Statement(names.fresh(f"{s.output}_read"), index, sizes, a, "assign", span=s.span))
        found[a] = Access(made[-1].output, index)
    return [*made, replace(s, body=with_parts(s.body, found))] if made else None
