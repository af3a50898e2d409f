"""Recurrences that reach back by many steps alone, as one of fewer steps for each remainder.

    Y[b, t : B, T] = X[b, t] + G[b] * Y[b, t - 441]

is as many recurrences as 441 has remainders, none of which reads another: with `t = 441*q + r`, Y[b, q, r] reads
Y[b, q - 1, r]. There are fewer steps, one after the other, and more that run side by side. The result is put in its
order again, which is a reshape where whole blocks fill it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.constraining import constraining
from tilec.ir.index import Affine, canonical, distinct_variables, linear, replace_indices, substitute_affine
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    expressions,
    index_variables,
    map_expressions,
    reads_itself,
)
from tilec.ir.rational import as_int
from tilec.ir.symbolic import gcd, is_symbolic
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.rewrite import map_reads

LEAST_LAG = 16  # steps that all reads reach back by, or by multiples of them


def split_lags(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """A flat program with such recurrences in two statements. `inputs`: types of the inputs."""
    if not any(map(reads_itself, program.statements)):
        return program
    types, names = infer(program, inputs), Names.of(program)
    statements: list[Statement] = []
    for s in program.statements:
        found = _lag(s, types) if reads_itself(s) else None
        statements += [s] if found is None else _split(s, *found, types[s.output], names)
    return replace(program, statements=tuple(statements))


def _lag(s: Statement, types: Types) -> tuple[int, int] | None:
    """The axis of a recurrence along which it reaches back or ahead, and the steps that are in each reach."""
    if s.default is not None:
        return None
    own = [a for a in accesses_in(*expressions(s)) if a.tensor == s.output]
    names, shape = distinct_variables(s.index), types[s.output].shape
    for axis, v in enumerate(names or ()):
        reaches = [linear(a.index[axis]) - Affine.variable(v) for a in own]
        others = {x for a in own for k, e in enumerate(a.index) if k != axis for x in index_variables(e)}
        if any(r.terms or not r.is_integral or not r.constant for r in reaches) or v in others:
            continue
        steps, n = [as_int(r.constant) for r in reaches], shape[axis]
        if is_symbolic(n) or any(map(is_symbolic, steps)):
            continue
        lag = gcd(*map(abs, steps))
        bounded = any((Index(v), n) in zip(a.index, types[a.tensor].shape, strict=True) for a in _read(s))
        # what is read ahead lies in the last block, and holds there what an element without points does
        same = max(steps) < 0 or (s.init is None and not AGGREGATIONS[s.aggregation].identity)
        whole = n % lag == 0 or bounded and same
        if lag >= LEAST_LAG and n >= 2 * lag and whole:
            return axis, lag
    return None


def _read(s: Statement) -> list[Access]:
    return [a for a in constraining(*s.roots) if a.tensor != s.output]


def _split(s: Statement, axis: int, lag: int, t: TensorType, names: Names) -> list[Statement]:
    index, n = list(s.index or ()), t.shape[axis]
    taken = set(all_variables(s))
    q, r = fresh_variable("q", taken), fresh_variable("r", taken)
    output = names.fresh(f"{s.output}_by_lag")
    (time,) = index_variables(index[axis])

    def parts(items: tuple[Expr, ...], block: Expr, rest: Expr) -> tuple[Expr, ...]:
        return (*items[:axis], block, rest, *items[axis + 1 :])

    def in_blocks(e: Access) -> Access:
        reach = linear(e.index[axis]) - Affine.variable(q, lag) - Affine.variable(r)
        block = Affine.variable(q) + as_int(reach.constant) // lag
        return replace(e, tensor=output, index=parts(e.index, block.to_expr(), Index(r)))

    at = {time: Affine.variable(q, lag) + Affine.variable(r)}
    moved = map_expressions(substitute_affine(s, at), lambda e: map_reads(e, (s.output,), in_blocks))
    init = None if s.init is None else replace_indices(s.init, at)
    blocks = replace(
        moved,
        output=output,
        index=parts(tuple(index), Index(q), Index(r)),
        sizes=parts(s.sizes or (), Int(-(-n // lag)), Int(lag)),
        init=init,
        attributes=(),
    )
    places = tuple(Index(f"i{k}") for k in range(len(index)))
    rest = Call("mod", (places[axis], Int(lag)))
    block = Call("div", (Call("sub", (places[axis], rest)), Int(lag)))
    read = Access(output, parts(places, canonical(block), rest))
    return [blocks, Statement(s.output, places, s.sizes, read, attributes=s.attributes, span=s.span)]
