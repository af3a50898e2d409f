"""Costly values that an elementwise statement would compute again for each value of variables that they do not know,
computed once (loop-invariant code motion): the sines of positions, which all elements of a batch add.

Beside memory that is slower anyway such values cost nothing, and a table of them is read as often as they were
computed: an estimate of both times decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tilec.backends.common.scalars import value_children
from tilec.backends.triton.fusion.fuse_producers import CACHED, elementwise, writes_all
from tilec.cost import H200, size_in_bytes
from tilec.ir.functions import COSTLY_FUNCTIONS, RANDOM
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
from tilec.transforms.util.naming import Names
from tilec.transforms.util.rewrite import with_parts

LEAST_SHARED = 8  # elements that share a value
INSTRUCTIONS = 3e13  # a second, of float32
CALLED, QUICK, POWER, DOUBLE = 35, 6, 90, 4  # instructions of a costly function, as measured; of float64 so many times
QUICK_FUNCTIONS = frozenset(("ceil", "div", "exp", "floor", "recip", "round", "rsqrt", "shl", "shr", "sign", "sqrt"))


def with_invariants(program: Program, types: Types, barred: Collection[str]) -> tuple[Program, Types, frozenset[str]]:
    """The program with such values as tensors of their own, all types, and the outputs of what is new or changed.
    `barred`: outputs of statements that stay as they are."""
    names, known = Names.of(program), dict(types)
    tables: dict[Expr, str] = {}
    done: list[Statement] = []
    rewritten: set[str] = set()
    for s in program.statements:
        variables = None if s.output in barred else elementwise(s)
        extent = dict(zip(variables or (), known[s.output].shape, strict=False))
        if not variables or s.guard is not None or not _is_whole(s, extent, known):
            done.append(s)
            continue
        for e in dict.fromkeys(_invariant(s.body, extent, known)):
            if not _pays(s, e, extent, known):
                continue
            own = [v for v in variables if v in index_variables(e)]
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
            rewritten |= {name, s.output}
        done.append(s)
    return replace(program, statements=tuple(done)), known, frozenset(rewritten)


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


def _invariant(e: Expr, extent: Mapping[str, int], types: Types) -> Iterator[Expr]:
    """The largest subexpressions with a costly function that LEAST_SHARED elements or more share, of no type whose
    values are rounded only where they are stored."""
    calls = {x for x in walk(e) if isinstance(x, Call)}
    if not any(x.function in COSTLY_FUNCTIONS for x in calls):
        return
    own = {v for v in index_variables(e) if extent[v] > 1}
    shared = math.prod(n for v, n in extent.items() if v not in own)
    stored = isinstance(e, Call) and expression_type(e, types).dtype in ("float32", "float64")
    if stored and own and shared >= LEAST_SHARED and not any(x.function in RANDOM for x in calls):
        yield e
    else:
        for child in value_children(e):
            yield from _invariant(child, extent, types)


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


def _instructions(e: Expr, types: Types) -> float:
    """Of costly functions, for each element."""
    return sum(costly_instructions(x, types) for x in {x for x in walk(e) if isinstance(x, Call)})


def costly_instructions(e: Call, types: Types) -> float:
    """Of a function by itself, 0 of one that is not costly."""
    if e.function not in COSTLY_FUNCTIONS or e.function == "pow" and e.args[1] in (Int(2), Int(3)):
        return 0.0  # such powers are products
    each = POWER if e.function == "pow" else QUICK if e.function in QUICK_FUNCTIONS else CALLED
    return float(each * (DOUBLE if expression_type(e, types).dtype == "float64" else 1))
