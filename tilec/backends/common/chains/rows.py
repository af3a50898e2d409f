"""Values of rows that a kernel computes before it walks, where they were statements of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.chains.chain import ChainKernel, RowStatement
from tilec.backends.common.chains.splits import split_of
from tilec.backends.common.chains.values import (
    DOT_DTYPES,
    LONGEST_INNER,
    extents_of,
    is_computable,
    open_conditions,
    plain_index,
    reduction_variables,
)
from tilec.backends.common.units import ordered
from tilec.ir.index import Affine, distinct_variables, substitute_affine
from tilec.ir.program import Access, Program, Statement, accesses_in, reads
from tilec.ir.types import Types
from tilec.transforms.util.naming import fresh_variable


def with_rows(program: Program, kernels: Sequence[ChainKernel], types: Types) -> list[ChainKernel]:
    """The kernels, the first that reads a row's value computing it where that takes a row of inputs, as the sum of a
    row's products does."""
    taken = {s.output for k in kernels for s in k.statements}
    found = []
    for kernel in kernels:
        if split_of(kernel, types) is not None:  # whose programs share rows
            found.append(kernel)
            continue
        rows: dict[str, RowStatement] = {}
        read = [a for r in kernel.targets for a in accesses_in(r.target.body, *r.target.conditions)]
        for a in read:
            _take(a, read, kernel, program, types, taken, rows)
        taken |= rows.keys()
        found.append(replace(kernel, rows=tuple(_stored(row, rows, program, kernel) for row in rows.values())))
    return found


def _stored(row: RowStatement, rows: Mapping[str, RowStatement], program: Program, kernel: ChainKernel) -> RowStatement:
    """The row, stored if the program gives it back or others read it."""
    name = row.statement.output
    own = {*rows, *(r.target.output for r in kernel.targets)}
    others = any(name in reads(s) for s in program.statements if s.output not in own)
    return replace(row, stored=others or name in program.outputs)


def _take(
    a: Access,
    read: Sequence[Access],
    kernel: ChainKernel,
    program: Program,
    types: Types,
    taken: set[str],
    rows: dict[str, RowStatement],
) -> None:
    """Make a row of what an access of the kernel reads, and first of what that reads, if it is one. `read`: all that
    the kernel reads; where it reads elements of columns as well (`M[i] + M[j]`), these are of others' rows."""
    if any(o.tensor == a.tensor and o.index != a.index for o in read):
        return
    s = next((s for s in program.statements if s.output == a.tensor), None)
    if s is None or a.tensor in taken or a.tensor in rows or len(kernel.blocked) != 1 or kernel.looped is None:
        return
    row = _row(s, a, kernel, types)
    if row is None:
        return
    for inner in accesses_in(row.statement.body):
        _take(inner, read, kernel, program, types, taken, rows)
    rows[a.tensor] = row


def _row(s: Statement, a: Access, kernel: ChainKernel, types: Types) -> RowStatement | None:
    index, extent = plain_index(s), extents_of(s, types)
    names = distinct_variables(a.index)
    wanted = {*kernel.blocked, *(v for v in kernel.batch if kernel.extent[v] > 1)}
    if index is None or extent is None or names is None or s.guard is not None:
        return None
    sizes = tuple(kernel.extent.get(v, 0) for v in names)
    if not wanted <= set(names) or sizes != types[s.output].shape:
        return None
    summed = reduction_variables(s)
    if len(summed) > 1 or types[s.output].dtype not in DOT_DTYPES or not is_computable(s.body):
        return None
    if s.aggregation not in (("sum",) if summed else ("sum", "assign")):
        return None
    if summed and not 1 < extent[summed[0]] <= LONGEST_INNER:
        return None
    if open_conditions(s, types) or set(names) - wanted - {v for v in names if v is not None and kernel.extent[v] == 1}:
        return None
    mapping = {v: Affine.variable(w) for v, w in zip(index, names, strict=True) if w is not None}
    feature = None
    if summed:
        feature = fresh_variable(summed[0], {*kernel.extent, *extent})
        mapping[summed[0]] = Affine.variable(feature)
    return RowStatement(substitute_affine(s, mapping), feature, False)


def order_of(
    program: Program, kernels: Sequence[ChainKernel], matrices: Collection[str]
) -> list[tuple[str, ...]] | None:
    """Outputs by kernel, each after what it reads and those of a kernel in its own order, which has rows' values first;
    None where kernels need each other."""
    unit_of = {s.output: k for k, kernel in enumerate(kernels) for s in kernel.statements}
    units: dict[object, list[str]] = {}
    read = {s.output: reads(s) for s in program.statements}
    for s in program.statements:
        if s.output not in matrices:
            units.setdefault(unit_of.get(s.output, s.output), []).append(s.output)
    for k, kernel in enumerate(kernels):
        units[k] = [s.output for s in kernel.statements]
        read.update(dict.fromkeys(units[k], kernel.reads))
    every = list(units.values())
    order = ordered(every, read)
    return None if order is None else [tuple(every[k]) for k in order]
