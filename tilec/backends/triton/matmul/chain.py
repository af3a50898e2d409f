"""Products of three operands or more, as products of two: the pairs are chosen by cost, by opt_einsum.

Sum a_ij b_jk c_kl over j and k costs IJKL as it stands, and IJK + IKL in two steps. Where the number of operations
stays the same, as for x_bi w_kij y_bj, tensor cores do most of them: time is estimated, not operations counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import opt_einsum

from tilec.backends.common.terms import product_of, split_factors
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.dot import LAUNCH_SECONDS, LEAST, MEMORY_BYTES, PRODUCTS, TERMS
from tilec.cost import size_in_bytes
from tilec.ir.index import Affine, as_stored
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Int, Statement
from tilec.ir.types import FLOATS, TensorType, Types

GAIN = 1.3  # what is gained by dividing a sum, at least
MOST_STORED = 2**30  # bytes of what is stored between two products


def pairwise(space: Space, types: Types, variables_of) -> list[Statement] | None:
    """The statement as several, each of two operands, in order; None where it has fewer than three, where points are
    not a box, or where nothing is gained. The last one has the statement's own output."""
    s = space.statement
    if s.aggregation != "sum" or s.guard is not None or s.default is not None or space.valid or space.stored:
        return None
    if s.constraints or len(space.classes) != 1 or expression_type(s.body, types).dtype not in FLOATS:
        return None
    split = split_factors(s.body, types)
    if split is None:
        return None
    if any(space.single(v) for f in split[0] for v in variables_of(f)):
        return None  # a variable of one value would be summed over all of its axis in a statement of its own
    groups: dict[frozenset[str], list[Expr]] = {}
    for f in split[0]:
        own = variables_of(f)
        home = next((g for g in groups if own <= g), own)
        groups.setdefault(home, []).append(f)
    operands = [(g, product_of(fs)) for g, fs in groups.items()]
    if len(operands) < 3:
        return None
    extent, low = space.extent[0], space.low[0]
    names = [v for v in (*space.outputs, *space.reductions) if not space.single(v)]
    kept = frozenset(v for v in names if v in space.outputs and any(v in g for g, _ in operands))
    path = opt_einsum.paths.auto([g.intersection(names) for g, _ in operands], kept, dict(extent))
    dtype = types[s.output].dtype
    apart = _seconds([g for g, _ in operands], path, frozenset(space.outputs), extent, dtype)
    if math.prod(extent[v] for v in names) / TERMS < GAIN * apart:
        return None
    found: list[Statement] = []
    for pair in path[:-1]:
        chosen = [operands[k] for k in sorted(pair)]
        operands = [o for k, o in enumerate(operands) if k not in pair]
        later = set().union(*(g for g, _ in operands)) | set(space.outputs)
        own = frozenset().union(*(g for g, _ in chosen))
        left = as_stored([v for v in names if v in own & later], space.reductions, [e for _, e in operands])
        order = as_stored(left, space.reductions, [e for _, e in chosen])
        name = f"{s.output}.{len(found) + 1}"
        index = tuple((Affine.variable(v) - low[v]).to_expr() for v in order)
        body = product_of([e for _, e in chosen])
        found.append(Statement(name, index, tuple(Int(extent[v]) for v in order), body, "sum", span=s.span))
        operands.append((frozenset(order), Access(name, index)))
    body = product_of([e for _, e in operands])
    scale = split[1]
    if scale != 1:
        body = Call("mul", (body, _number(scale)))
    return [*found, replace(s, body=body)]


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

    total = 0.0
    left = list(operands)
    for pair in path:
        chosen = [left[k] for k in pair]
        left = [g for k, g in enumerate(left) if k not in pair]
        every = frozenset().union(*chosen)
        written = every & outputs.union(*left)
        rate = TERMS
        if len(chosen) == 2:
            a, b = chosen
            roles = (a - b) & written, (b - a) & written, (a & b) - written
            rate = PRODUCTS[dtype] if min(map(count, roles)) >= LEAST else TERMS
        if left and width * count(written) > MOST_STORED:
            return math.inf
        total += count(every) / rate + width * sum(map(count, (*chosen, written))) / MEMORY_BYTES + LAUNCH_SECONDS
        left.append(written)
    return total


def _number(n: float | int) -> Expr:
    e: Expr = Float(abs(n)) if isinstance(n, float) else Int(abs(n))
    return Call("neg", (e,)) if n < 0 else e
