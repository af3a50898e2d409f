"""Gradients of aggregations over windows that do not overlap, such as a maximum's: the program that writes a window's
elements computes what they share, the maximum and the number of its ties, from the elements that it reads anyway.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce as reduce_terms

from tilec.backends.triton.fusion.fuse_producers import CHEAP, LONGEST_BODY, is_faster, reads_values
from tilec.backends.triton.iteration.coalesce import StridedView, values
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.sizes import contiguous_strides
from tilec.backends.triton.pointwise.residues import reads_of_elements
from tilec.ir.index import distinct_variables, linear, replace_indices
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    map_values,
    node_count,
    reads_itself,
    walk,
)
from tilec.ir.types import NARROW, Types, is_floating, shapes_in
from tilec.transforms.autodiff.window_places import SmallWindow
from tilec.transforms.lower.defract import defract_statement
from tilec.transforms.lower.reduce import reduce_statement
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import body_at, map_reads

POINTS_OF_A_WINDOW = 9  # of a window: 16 take 16 seconds to plan
WINDOWS = {"sum": "add", "max": "max", "min": "min"}  # aggregations of a window's points, and of two


def with_windows(
    program: Program, types: Types, barred: Collection[str], reads: Mapping[str, Sequence[str]]
) -> Program:
    """The program with such statements in one kernel, where that pays. `barred`: outputs that stay as they are;
    `reads`: by output, what each reads."""
    statements = {s.output: s for s in program.statements}
    place = {output: k for k, output in enumerate(statements)}
    read = {output: set(names) for output, names in reads.items() if output in statements}
    readers: dict[str, set[str]] = {}
    for output, names in read.items():
        for name in names:
            readers.setdefault(name, set()).add(output)
    fixed = {*barred, *program.outputs}

    def sole(output: str, parts: Collection[str]) -> list[str]:
        """Those that a statement reads and that it and the parts alone need, the last first."""
        own = {output, *parts}
        near = {name for t in own for name in read[t] if name in statements and name not in fixed | own}
        return sorted((name for name in near if readers[name] <= own), key=place.__getitem__, reverse=True)

    for s in program.statements:
        if s.output not in statements or s.output in barred:
            continue
        near = read[s.output].union(*(read.get(n, ()) for n in read[s.output]))
        if not any(statements[t].aggregation in WINDOWS for t in near if t in statements):
            continue
        found = _with_windows(s, read[s.output], statements, sole, types)
        if found is not None:
            statements[s.output], parts = found
            left = read[s.output].union(*(read.pop(t) for t in parts)) - parts
            for name in left:
                readers[name] = readers[name] - parts | {s.output}
            read[s.output] = left
            for t in parts:
                del statements[t]
    kept = tuple(statements[s.output] for s in program.statements if s.output in statements)
    return replace(program, statements=kept)


def with_points_written_out(program: Program, types: Types) -> tuple[Program, Types]:
    """The program with extrema of small windows as elementwise statements, where one that reads them reads these
    windows too, so that both share a kernel."""
    changed: dict[str, Statement] = {}
    for s in program.statements:
        readers = program.readers(s.output) if s.aggregation in ("max", "min") else ()
        if not readers or (window := SmallWindow.of(s, types)) is None:
            continue
        written = window.written_out(types[s.output].dtype)
        for reader in readers:
            place = distinct_variables(reader.index)
            if reader.aggregation != "assign" or place is None or types[reader.output].shape != types[s.output].shape:
                continue
            renamed = {v: linear(Index(w)) for v, w in zip(distinct_variables(s.index) or (), place, strict=True)}
            read = set(accesses_in(reader.body))
            own = {replace_indices(a, renamed) for a in accesses_in(written.body)}
            if own | {Access(s.output, reader.index or ())} <= read:
                changed[s.output] = written
    statements = tuple(changed.get(s.output, s) for s in program.statements)
    return replace(program, statements=statements), types


def _with_windows(
    reader: Statement,
    direct: Collection[str],
    statements: Mapping[str, Statement],
    sole: Callable[[str, Collection[str]], list[str]],
    types: Types,
) -> tuple[Statement, set[str]] | None:
    """A statement, which reads `direct`, whose program writes a window's elements, with what they share computed from
    the window; and what is computed there. None where nothing is aggregated, or that takes longer."""
    near = sole(reader.output, ())
    if not near or reads_itself(reader) or reader.aggregation not in ("assign", "sum"):
        return None
    shapes = shapes_in(types)
    made = reduce_statement(reader, shapes)
    own = defract_statement(made, shapes)
    read_once = _read_at_one_place(own, types)
    if read_once.isdisjoint(near):
        return None
    parts: dict[str, Statement] = {}
    seen: set[str] = set()
    while near:
        s = statements[near.pop(0)]
        seen.add(s.output)
        written = None if s.output in direct and s.output not in read_once else _written_out(s, types)
        inside = None if written is None else _read_inside(made, s.output, written, types)
        if inside is not None:
            made, parts[s.output] = inside, s
            near = [name for name in sole(reader.output, parts) if name not in seen]
    if not any(s.aggregation in WINDOWS for s in parts.values()):
        return None
    made = defract_statement(made, shapes)
    if not _read_at_one_place(made, types):
        return None
    return (made, set(parts)) if is_faster(made, (own, *parts.values()), types, summed=True) else None


def _read_at_one_place(s: Statement, types: Types) -> set[str]:
    """The tensors of which all elements that a program writes at a place read one; none where it writes one alone."""
    space = build_space(s, types)
    if space is None:
        return set()
    view = StridedView(s, types, contiguous_strides(types))
    accesses, elements = reads_of_elements(space, view)
    counted = Counter(a.tensor for a in accesses)
    return {t for t, n in counted.items() if n == 1} if elements > 1 else set()


def _written_out(s: Statement, types: Types) -> Statement | None:
    """A statement with the few points of each element written out; None where it is of another form."""
    names, space = distinct_variables(s.index), build_space(s, types)
    plain = is_pure(s) and s.guard is None
    if names is None or space is None or not plain or len(space.classes) != 1 or space.residues or space.steps:
        return None
    points = math.prod(space.extent[0][v] for v in space.reductions)
    counted = any(isinstance(e, Index) for e in values(s.body))
    cheap = all(e.function in CHEAP or e.function == "div" for e in values(s.body) if isinstance(e, Call))
    if space.valid or not space.covers or counted or not cheap or not 1 <= points <= POINTS_OF_A_WINDOW:
        return None
    if any(isinstance(e, Inside | Pad) for e in walk(s.body)) or s.aggregation not in ("assign", *WINDOWS):
        return None
    dtype, own = types[s.output].dtype, expression_type(s.body, types).dtype
    counts = s.aggregation == "sum" and own == "bool" and not is_floating(dtype)
    if not counts and own != dtype and not (is_floating(own) and is_floating(dtype)):
        return None
    point = Call("int32", (s.body,)) if counts else s.body
    low, extent = space.low[0], space.extent[0]
    ranges = [range(low[v], low[v] + extent[v]) for v in space.reductions]
    terms = (
        replace_indices(point, {v: linear(Int(n)) for v, n in zip(space.reductions, place, strict=True)})
        for place in itertools.product(*ranges)
    )
    body = reduce_terms(lambda a, b: Call(WINDOWS[s.aggregation], (a, b)), terms)
    if dtype in NARROW or counts or own != dtype:
        body = Call(dtype, (body,))
    return replace(s, body=body, aggregation="assign", constraints=())


def _read_inside(reader: Statement, name: str, s: Statement, types: Types) -> Statement | None:
    """The reader with elements of an elementwise statement, which writes all of its own, computed where it reads them;
    None where it reads them outside or by an element."""
    if not reads_values(reader, name):
        return None
    ranges = dict[Constraint, None]()

    def value(e: Access) -> Expr:
        ranges.update((Constraint(i, Int(n)), None) for i, n in zip(e.index, types[name].shape, strict=True))
        return body_at(s, e.index)

    made = map_values(reader, lambda e: map_reads(e, (name,), value))
    constraints = tuple(dict.fromkeys((*reader.constraints, *ranges)))
    return replace(made, constraints=constraints) if node_count(made.body) <= LONGEST_BODY else None
