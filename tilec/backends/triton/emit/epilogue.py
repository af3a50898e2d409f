"""Epilogues: elementwise statements computed on the block of the one they read, before it is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.code import python_name
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import triton_type
from tilec.backends.triton.emit.scalar import TritonScalars, compute_dtype_of
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.ir.constraining import access_of
from tilec.ir.functions import ZERO
from tilec.ir.index import distinct_variables, replace_indices
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Pad,
    Program,
    Statement,
    accesses_in,
    children,
    index_variables,
    reads,
)
from tilec.ir.types import NARROW, TensorType, is_floating
from tilec.transforms.util.plain import is_pure, is_unmasked

ANCHOR = "=anchor"  # what an anchor's value depends on, for frames of a scope in which it is named


def find_epilogue(
    program: Program, place: int, types: Mapping[str, TensorType], barred: Collection[str] = (), stored: bool = False
) -> tuple[Statement, ...]:
    """The statements, in order, that the one at that place can take as its epilogue: each reads the one before it at
    its own element, is its only reader, and needs nothing that is not there yet. `barred`: outputs that may not.
    `stored`: the one at that place is stored too, so that others may read it later."""
    found: list[Statement] = []
    anchor = program.statements[place]
    there: set[str] = set()
    while True:
        readers = [s for s in program.readers(anchor.output) if s.output != anchor.output]
        alone = len(readers) == 1 and anchor.output not in program.outputs
        if not readers or not alone and not (stored and not found) or readers[0].output in barred:
            break
        there = there or {*program.input_names(), *(s.output for s in program.statements[:place])}
        reader = as_assignment(readers[0], types)
        if not joins(reader, anchor, there, types):
            break
        anchor = reader
        found.append(anchor)
    return tuple(found)


def as_assignment(s: Statement, types: Mapping[str, TensorType]) -> Statement:
    """A sum that has one term an element as an assignment: what its guard drops is 0."""
    if s.aggregation != "sum" or not is_floating(types[s.output].dtype) or s.constraints:
        return s
    if not set(index_variables(*s.roots)) <= set(index_variables(*(s.index or ()))):
        return s
    body = s.body if s.guard is None else Call("select", (s.guard, s.body, ZERO))
    return replace(s, aggregation="assign", body=body, guard=None)


def joins(s: Statement, anchor: Statement, there: Collection[str], types: Mapping[str, TensorType]) -> bool:
    """Whether `s` can be the epilogue of `anchor`, where all of `there` is."""
    if s.aggregation != "assign" or not is_pure(s) or not is_unmasked(s) or s.index is None:
        return False
    if distinct_variables(s.index) is None or types[s.output].shape != types[anchor.output].shape:
        return False
    if not all(name in there or name == anchor.output for name in reads(s)):
        return False
    if not reads_own_element(s.body, anchor.output, s.index):
        return False
    space = build_space(s, types)
    return space is not None and not space.reductions and not space.valid and space.covers


def reads_own_element(e: Expr, tensor: str, index: tuple[Expr, ...], places: bool = False) -> bool:
    """Whether all that an expression reads of the tensor is the value of its element at that index: none of it through
    `pad`, and none to find where another tensor is read, unless `places`."""
    match e:
        case Access() if places and e.tensor != tensor:
            return all(reads_own_element(i, tensor, index, True) for i in e.index)
        case Access():
            return (e.tensor, e.index) == (tensor, index) or all(a.tensor != tensor for a in accesses_in(e))
        case Pad():
            elsewhere = all(a.tensor != tensor for a in accesses_in(e.access))
            if places and access_of(e.access).tensor != tensor:
                elsewhere = reads_own_element(access_of(e.access), tensor, index, True)
            return elsewhere and reads_own_element(e.value, tensor, index, places)
    return all(reads_own_element(c, tensor, index, places) for c in children(e))


def epilogue_over(space: Space, statements: Sequence[Statement]) -> list[Statement]:
    """The epilogue over the anchor's own index variables."""
    rows = space.rows
    result = []
    for s in statements:
        mapping = dict(zip(distinct_variables(s.index) or (), rows, strict=True))
        result.append(replace(s, index=tuple(r.to_expr() for r in rows), body=replace_indices(s.body, mapping)))
    return result


def finish(
    frame: Frame,
    space: Space,
    value: str,
    compute_dtype: str,
    statements: Sequence[Statement],
    given: Mapping[Expr, ScalarValue] | None = None,
    stored: bool = False,
) -> tuple[str, str]:
    """Text and dtype of the epilogue's last value, given the anchor's and others. `stored`: the anchor is read in other
    places too, as it is stored."""
    output = space.statement.output
    known = dict(given or {})
    for s in epilogue_over(space, statements):
        known |= as_read(frame, space, output, value, compute_dtype, stored and output == space.statement.output)
        evaluator = TritonScalars(frame, s.body, given=known)
        result = evaluator.value(s.body)
        out = frame.types[s.output].dtype
        if out == "bool":
            value, compute_dtype = evaluator.condition(result), "bool"
        else:
            value, compute_dtype = evaluator.tensor(result, compute_dtype_of(out)), compute_dtype_of(out)
        output = s.output
    return value, compute_dtype


def as_read(
    frame: Frame, space: Space, output: str, value: str, compute_dtype: str, stored: bool = True
) -> dict[Expr, ScalarValue]:
    """A value, which goes into a tensor's own element, as it is read there, or before it is rounded to be stored."""
    t = frame.types[output]
    narrow = t.dtype == "int64" and compute_dtype == "int32"
    exact = stored or t.dtype not in NARROW or compute_dtype != "float32"
    text = value if compute_dtype == t.dtype or narrow or not exact else f"({value}).to({triton_type(t.dtype)})"
    text = f"{text}.to(tl.float32)" if exact and t.dtype in NARROW else text
    name = frame.kernel.names.fresh(python_name(output).lower())
    frame.kernel.assign(name, text)
    variables = frozenset((*space.outputs, *space.residues, ANCHOR))
    dtype = compute_dtype if narrow else compute_dtype_of(t.dtype)
    found = ScalarValue(name, t.element(), dtype, variables, exact=exact)
    return {Access(output, tuple(r.to_expr() for r in space.rows)): found}
