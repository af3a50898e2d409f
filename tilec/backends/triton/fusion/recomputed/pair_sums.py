"""Sums of functions of pairs, computed from what the pairs are made of.

The differences of a pairwise loss, `D[b, i, j] = T[b, j] - Q[b, i]`, are many more than the elements they come from. A
sum of functions of them computes them again at each of its points, in a kernel of its own that walks what is summed:
nothing is stored, and a block of neighbours along one variable reads what the others share once. A sum over both,
`S[b] = +(f(D[b, i, j]))`, is first one over i, for each j, so that no point asks for two values by a division.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tilec.backends.common.domain import Domain, build_domain
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.fusion.fuse_producers import elementwise
from tilec.backends.triton.fusion.invariants import CALLED, costly_instructions
from tilec.backends.triton.fusion.read_through import LONGEST_RECOMPUTED, aggregated_through, asks_of, gives_values
from tilec.ir.functions import RANDOM
from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import statement_type
from tilec.ir.program import (
    Access,
    Call,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    node_count,
    reads,
    variables_of,
    walk,
)
from tilec.ir.types import NARROW, Types
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_pure, is_unmasked

LEAST_PAIRS = 2**22
LEAST_SHARING = 32  # of each element that is read
LEAST_BESIDE_EACH = 32
LEAST_SUMS = 2**16  # that fill the device
MOST_OF_PAIRS = 3  # of the same pairs: each computes these again
_AGGREGATIONS = ("sum", "max", "min")


def with_pair_sums(program: Program, types: Types, barred: Collection[str]) -> tuple[Program, Types, frozenset[str]]:
    """The program with such sums, all types, and the outputs of the sums. `barred`: outputs of statements that stay as
    they are."""
    views = {s.output: s for s in program.statements if _is_cheap(s) and _gives(s, types)}
    least = _least_read(program, views, types)
    found: dict[str, tuple[Statement, Domain]] = {}
    for s in program.statements:
        asked = s.output not in barred and _may_have_pairs(s, least, types)
        whole = _from_leaves(s, views, types) if asked else None
        domain = None if whole is None else build_domain(whole, types)
        if whole is not None and domain is not None and _pays(whole, domain, types):
            found[s.output] = whole, domain
    if not found or len(found) > MOST_OF_PAIRS or _spread_again(program, found, types):
        return program, types, frozenset()
    names, known = Names.of(program), dict(types)
    done: list[Statement] = []
    sums: set[str] = set()
    for s in program.statements:
        if s.output not in found:
            done.append(s)
            continue
        whole, domain = found[s.output]
        column = _neighbours(whole, domain)
        if column in domain.reductions():
            index, sizes = (*(s.index or ()), Index(column)), (*(s.sizes or ()), Int(domain.extent[column]))
            part = replace(whole, output=names.fresh(f"{s.output}_part"), index=index, sizes=sizes)
            known[part.output] = statement_type(part, known)
            done += [part, replace(s, body=Access(part.output, index))]
            sums.add(part.output)
        else:
            done.append(whole)
            sums.add(s.output)
    left = drop_dead(done, program.outputs)
    return replace(program, statements=left), known, frozenset(sums)


def _least_read(program: Program, views: Collection[str], types: Types) -> dict[str, int]:
    """How many elements at least the largest tensor has that each is computed from, or each itself if that is less."""
    least = {name: types[name].numel for name in program.input_names()}
    for s in program.statements:
        own = types[s.output].numel
        read = max((least.get(n, 0) for n in reads(s)), default=0)
        least[s.output] = min(own, read) if s.output in views else own
    return least


def _may_have_pairs(s: Statement, least: Mapping[str, int], types: Types) -> bool:
    """Whether a plain aggregation has many points and may come from few elements: asked before anything is written
    into anything, since most programs have none such."""
    if s.index is None or not is_pure(s) or not is_unmasked(s) or s.aggregation not in _AGGREGATIONS:
        return False
    if types[s.output].dtype in NARROW or not _is_cheap(s):
        return False
    domain = build_domain(s, types)
    if domain is None or not _are_many(math.prod(domain.extent.values()), (least.get(n, 0) for n in reads(s))):
        return False
    return _is_of_pairs(s, domain, types)


def _is_of_pairs(s: Statement, domain: Domain, types: Types) -> bool:
    """Whether a factor depends on all variables. What is written into it adds none."""
    split = split_factors(s.body, types)
    every = {v for v, n in domain.extent.items() if n > 1}
    return split is not None and any(every <= set(index_variables(f)) for f in split[0])


def _are_many(pairs: int, read: Iterable[int]) -> bool:
    return pairs >= LEAST_PAIRS and all(LEAST_SHARING * n <= pairs for n in read)


def _from_leaves(s: Statement, made: Mapping[str, Statement], types: Types) -> Statement | None:
    """A sum over several variables, or one with the elementwise statements of `made` over all of its variables written
    into it; None of others."""
    summed = set(variables_of(s)) - set(index_variables(*(s.index or ())))
    changed = len(summed) > 1 and not _has_rows_and_columns(s)
    while True:
        most = max((len(types[n].shape) for n in reads(s)), default=0)
        views = {n: made[n] for n in reads(s) if n in made and len(types[n].shape) == most}
        views = {n: view for n, view in views.items() if not asks_of(s, view)}
        places = [distinct_variables(a.index) for a in accesses_in(s.body) if a.tensor in views]
        if not views or None in places:
            return s if changed else None
        narrow = any(types[n].dtype in NARROW for n in views)
        s, changed = aggregated_through(s, views, types), True
        if s.constraints or node_count(s.body) > LONGEST_RECOMPUTED:
            return None
        if s.aggregation != "sum" and (narrow or _may_contract(s)):
            return None  # a gradient looks for the extremum among values that another kernel computes


def _has_rows_and_columns(s: Statement) -> bool:
    """Whether either of two operands has a variable of the output that the other lacks: blocks of both then serve each
    other, however many variables are summed, as in a product."""
    outputs = set(index_variables(*(s.index or ())))
    own = [outputs & set(index_variables(*a.index)) for a in accesses_in(s.body)]
    return any(a - b and b - a for a, b in itertools.combinations(own, 2))


def _gives(s: Statement, types: Types) -> bool:
    program = Program(None, (), (), (s,))
    return bool(s.index) and elementwise(s) is not None and gives_values(s, program, types)


def _is_cheap(s: Statement) -> bool:
    """Whether nothing is drawn or compared for equality: what was found equal must stay so."""
    calls = (e for e in walk(s.body) if isinstance(e, Call))
    return not any(e.function in ("eq", "ne", *RANDOM) for e in calls)


def _may_contract(s: Statement) -> bool:
    """Whether a product may be rounded once with a sum."""
    sums = (e for e in walk(s.body) if isinstance(e, Call) and e.function in ("add", "sub"))
    products = (x.args[0] if isinstance(x, Call) and x.function == "neg" else x for e in sums for x in e.args)
    return any(isinstance(x, Call) and x.function == "mul" for x in products)


def _pays(s: Statement, domain: Domain, types: Types) -> bool:
    """Whether every pair counts, there are many, each element that is read serves many of them, and none takes long."""
    if domain.conditions or domain.target is None or any(domain.low.values()):
        return False
    if statement_type(s, types) != types[s.output]:
        return False
    pairs = math.prod(domain.extent.values())
    if not _are_many(pairs, (types[n].numel for n in reads(s))):
        return False
    every = {v for v, n in domain.extent.items() if n > 1}
    if not every & set(domain.reductions()):
        return False
    calls = {e for e in walk(s.body) if isinstance(e, Call)}
    costly = sum(costly_instructions(e, types) for e in calls if every <= set(index_variables(e)))
    column = _neighbours(s, domain)
    sums = math.prod(domain.extent[v] for v in {*domain.output_variables(), column})
    enough = sums >= LEAST_SUMS and domain.extent[column] >= LEAST_BESIDE_EACH
    return enough and costly <= CALLED and _is_of_pairs(s, domain, types)


def _neighbours(s: Statement, domain: Domain) -> str:
    """The variable along which blocks lie: its last output's of a sum over one variable and where there are rows and
    columns, else the last one summed."""
    summed = [v for v in domain.reductions() if domain.extent[v] > 1]
    along = [v for v in domain.output_variables() if domain.extent[v] > 1]
    if along and (len(summed) == 1 or _has_rows_and_columns(s)):
        return along[-1]
    last = [linear(a.index[-1]).bare for a in accesses_in(s.body) if a.index]
    return next((v for v in last if v in summed), summed[-1])


def _spread_again(program: Program, sums: Collection[str], types: Types) -> bool:
    """Whether something with as many points depends on a sum, such as a softmax: a group computes both at once."""
    after = set(sums)
    for s in program.statements:
        if s.output in after or after.isdisjoint(reads(s)):
            continue
        domain = build_domain(s, types)
        if domain is None or math.prod(domain.extent.values()) >= LEAST_PAIRS:
            return True
        after.add(s.output)
    return False
