"""Extrema of small windows, point by point where what reads them reads the same windows."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.index import distinct_variables, linear, replace_indices
from tilec.ir.program import Access, Index, Program, Statement, accesses_in
from tilec.ir.types import Types
from tilec.transforms.autodiff.window_places import SmallWindow


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
