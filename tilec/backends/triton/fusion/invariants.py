"""Costly values that an elementwise statement would compute again for each value of variables that they do not know,
computed once (loop-invariant code motion): the sines of positions, which all elements of a batch add.

Beside memory that is slower anyway such values cost nothing, and a table of them is read as often as they were
computed: an estimate of both times decides. Of sums, values of positions alone are taken that stand beside elements of
tensors in a factor (a quantile's weight, of two that the sign of a difference chooses from). Those that are factors by
themselves are operands of products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from tilec.backends.common.domain import build_domain
from tilec.backends.common.scalars import value_children
from tilec.backends.triton.fusion.fuse_producers import CACHED, elementwise, writes_all
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.cost import H200, size_in_bytes
from tilec.ir.functions import COSTLY_FUNCTIONS, draws, operands_of
from tilec.ir.index import linear, replace_indices
from tilec.ir.infer import expression_type, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    reads,
    walk,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.factors import is_of_positions
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import with_parts

LEAST_SHARED = 8  # elements that share a value
INSTRUCTIONS = 3e13  # a second, of float32
CALLED, QUICK, POWER, DOUBLE = 35, 6, 90, 4  # instructions of a costly function, as measured; of float64 so many times
CONVERTED = 72  # instructions for doubles of positions beside: conversions, and a division's slow branch
QUICK_FUNCTIONS = frozenset(("ceil", "div", "exp", "floor", "recip", "round", "rsqrt", "shl", "shr", "sign", "sqrt"))


def with_invariants(
    program: Program, types: Types, barred: Collection[str], alone: Collection[str]
) -> tuple[Program, Types, frozenset[str]]:
    """The program with such values as tensors of their own, all types, and the outputs of those that no other kernel
    shall compute again. `barred`: outputs of statements that stay as they are; `alone`: of sums in kernels of their
    own, as those to few elements are, while blocks of rows compute a value once for all of these."""
    names, known = Names.of(program), dict(types)
    tables: dict[Expr, str] = {}
    done: list[Statement] = []
    apart: set[str] = set()
    stored = {*program.input_names(), *program.outputs}
    for s in program.statements:
        variables = None if s.output in barred else elementwise(s)
        extent = dict(zip(variables or (), known[s.output].shape, strict=False))
        if s.output in barred:
            found = []
        elif variables:
            whole = s.guard is None and _is_whole(s, extent, known)
            found = [*_invariant(s.body, extent, known)] if whole else []
        else:
            single = s.output in alone or known[s.output].numel < MULTIPROCESSORS
            extent = _ranges(s, known) if single else {}
            inside = (x for x in operands_of("mul", s.body) if not is_of_positions(x))
            found = [e for x in inside for e in _invariant(x, extent, known, is_of_positions)] if extent else []
        for e in dict.fromkeys(found):
            long = not variables and _takes_long(s, e, extent, known, stored)
            if not long and not (variables and _pays(s, e, extent, known)):
                continue
            own = [v for v in extent if v in index_variables(e)]
            place = {v: Index(f"i{k}") for k, v in enumerate(own)}
            table = replace_indices(_rounded(e, s.body, known), {v: linear(i) for v, i in place.items()})
            name = tables.get(table)
            if name is None:
                sizes = tuple(Int(extent[v]) for v in own)
                new = Statement(names.fresh(f"{s.output}_shared"), tuple(place.values()), sizes, table, span=s.span)
                name = tables[table] = new.output
                known[name] = statement_type(new, known)
                done.append(new)
            s = replace(s, body=with_parts(s.body, {e: Access(name, tuple(map(Index, own)))}))
            apart |= {name} if long else set()
        done.append(s)
    return replace(program, statements=tuple(done)), known, frozenset(apart)


def _ranges(s: Statement, types: Types) -> dict[str, int]:
    """The variables of an aggregation from 0 on, and how far they go; none of what is computed in another way."""
    domain = build_domain(s, types) if s.index is not None and is_pure(s) and s.aggregation != "assign" else None
    return {} if domain is None or any(domain.low.values()) else dict(domain.extent)


def instructions(program: Program, types: Types) -> dict[str, float]:
    """By outputs of elementwise statements, what their costly functions take for each element."""
    return {s.output: _instructions(s.body, types) for s in program.statements if elementwise(s)}


def _is_whole(s: Statement, extent: Mapping[str, int], types: Types) -> bool:
    """Whether it computes every element, from places that are whole numbers everywhere, and tests no elements for
    equality."""
    tests = (e for e in walk(s.body) if isinstance(e, Call) and e.function in ("eq", "ne"))
    if any(True for e in tests for _ in accesses_in(e)):
        return False  # what another kernel found equal was rounded with what it is a part of
    forms = [linear(e) for a in accesses_in(s.body) for e in a.index]
    return all(f.is_integral for f in forms) and math.prod(extent.values()) > 0 and writes_all(s, extent, types)


def _invariant(
    e: Expr, extent: Mapping[str, int], types: Types, wanted: Callable[[Expr], bool] = lambda e: True
) -> Iterator[Expr]:
    """The largest subexpressions with a costly function that LEAST_SHARED elements or more share, of no type whose
    values are rounded only where they are stored, of those `wanted`."""
    if not any(isinstance(x, Call) and x.function in COSTLY_FUNCTIONS for x in walk(e)):
        return
    own = {v for v in index_variables(e) if extent[v] > 1}
    shared = math.prod(n for v, n in extent.items() if v not in own)
    stored = isinstance(e, Call) and expression_type(e, types).dtype in ("float32", "float64")
    if stored and own and shared >= LEAST_SHARED and not draws(e) and wanted(e):
        yield e
    else:
        for child in value_children(e):
            yield from _invariant(child, extent, types, wanted)


def _rounded(e: Expr, body: Expr, types: Types) -> Expr:
    """What the body reads of a value in it: a double that only float32 values are computed from is rounded to that."""
    readers = [x for x in walk(body) if e in value_children(x)]
    single = bool(readers) and all(expression_type(x, types).dtype == "float32" for x in readers)
    return Call("float32", (e,)) if single and expression_type(e, types).dtype == "float64" else e


def _pays(s: Statement, e: Expr, extent: Mapping[str, int], types: Types) -> bool:
    """Whether what is left takes less time, with a launch for the table, than what memory or instructions take now."""
    every = math.prod(extent.values())
    table = TensorType(tuple(n for v, n in extent.items() if v in index_variables(e)), "float32")
    memory = sum(size_in_bytes(types[n]) for n in (s.output, *reads(s))) / H200.memory
    own, whole = _instructions(e, types), _instructions(s.body, types)
    now = max(memory, every * whole / INSTRUCTIONS)
    read = every * size_in_bytes(TensorType((), "float32")) / (CACHED * H200.memory)
    made = H200.launch + 2 * size_in_bytes(table) / H200.memory + math.prod(table.shape) * own / INSTRUCTIONS
    return now > max(memory + read, every * (whole - own) / INSTRUCTIONS) + made


def _takes_long(s: Statement, e: Expr, extent: Mapping[str, int], types: Types, stored: Collection[str]) -> bool:
    """Whether doubles of positions take longer than launches, and than memory does for what surely lies there."""
    doubles = any(isinstance(x, Call) and expression_type(x, types).dtype == "float64" for x in walk(e))
    if not doubles or not is_of_positions(e):
        return False
    memory = sum(size_in_bytes(types[n]) for n in (s.output, *reads(s)) if n in stored) / H200.memory
    taken = math.prod(extent.values()) * (_instructions(e, types) + CONVERTED) / INSTRUCTIONS
    return taken > max(memory, 2 * H200.launch)


def _instructions(e: Expr, types: Types) -> float:
    """Of costly functions, for each element."""
    return sum(costly_instructions(x, types) for x in {x for x in walk(e) if isinstance(x, Call)})


def costly_instructions(e: Call, types: Types) -> float:
    """Of a function by itself, 0 of one that is not costly."""
    if e.function not in COSTLY_FUNCTIONS or e.function == "pow" and e.args[1] in (Int(2), Int(3)):
        return 0.0  # such powers are products
    each = POWER if e.function == "pow" else QUICK if e.function in QUICK_FUNCTIONS else CALLED
    return float(each * (DOUBLE if expression_type(e, types).dtype == "float64" else 1))
