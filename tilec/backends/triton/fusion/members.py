"""Which statements a kernel over given rows and columns can hold: its members."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from tilec.backends.triton.emit.epilogue import reads_own_element
from tilec.backends.triton.fusion.invariants import CALLED, INSTRUCTIONS, LEAST_SHARED, QUICK
from tilec.backends.triton.fusion.loop_nest import reduced
from tilec.backends.triton.fusion.memory_order import runs_fastest
from tilec.backends.triton.fusion.neighbourhood import Neighbourhood
from tilec.cost import H200
from tilec.ir.index import linear
from tilec.ir.program import Statement, accesses_in, index_variables, reads, value_accesses, variables_of

ON_CHIP = 2**14  # elements of a row, at most, that a program holds at once
GroupMembers = tuple[list[Statement], list[Statement], set[str], set[str]]  # see `members_of`


def members_of(
    around: Neighbourhood,
    statements: Sequence[Statement],
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    extent: Mapping[str, int],
    kept: Collection[str] | None = None,
) -> GroupMembers:
    """Those that a kernel over these rows can hold; those that follow its sums; which add up over rows, and over
    columns too where all of these `kept` are rows; which are cut in two."""
    by_name = {s.output: s for s in statements}
    across = {v for v in rows if extent[v] > 1}
    statistics = any(reduced(s, extent) == set(v for v in columns if extent[v] > 1) for s in statements)
    along = {v for v in columns if extent[v] > 1}
    members: dict[str, Statement] = {}
    late: set[str] = set()  # what is not there while the kernel runs
    sums: set[str] = set()
    cut: set[str] = set()
    after: dict[str, Statement] = {}
    at_points: set[str] = set()  # members that give a value to each point
    apart = _stored_first(around, statements, across, along, extent)
    for original in around.between(statements):
        s = by_name.get(original.output)
        if s is not None and not late & set(reads(s)) and _reads_in_place(s, members, at_points):
            kind = "sum" if kept is not None and reduced(s, extent) else kind_of(s, across, along, extent)
            if kind == "sum" and kept is None and statistics and math.prod(extent[v] for v in along) > ON_CHIP:
                kind = None
            if s.output in apart:
                kind = None
            if s.output in around.scans and (kept is not None or not scans_columns(s, around, columns, extent)):
                kind = None
            if kind is not None:
                members[s.output] = s
                if not reduced(s, extent) and s.output not in around.scans:
                    at_points.add(s.output)
                if kind != "plain":
                    late.add(s.output)
                    (sums if kind == "sum" else cut).add(s.output)
                continue
        needs = (late | members.keys()) & set(around.read[original.output])
        if needs:
            late.add(original.output)
        own = set() if s is None else {v for v in variables_of(s) if extent[v] > 1}
        over_kept = s is not None and own <= set(along if kept is None else kept)
        follows = s is not None and over_kept and not reduced(s, extent) and _reads_in_place(s, by_name)
        if s is not None and follows and needs and needs <= sums | after.keys():
            after[s.output] = s
    return list(members.values()), list(after.values()), sums, cut


def _reads_in_place(s: Statement, members: Mapping[str, Statement], at_points: Collection[str] = ()) -> bool:
    """Whether it reads members at its own point alone; those `at_points` also to find where another tensor is read."""
    hidden = {a.tensor for a in accesses_in(*(c.expr for c in s.constraints))}
    read = {a.tensor for a in value_accesses(s)} & members.keys()
    own = (reads_own_element(r, n, members[n].index or (), n in at_points) for r in s.roots for n in read)
    return not hidden & members.keys() and all(own)


def kind_of(s: Statement, across: set[str], along: set[str], extent: Mapping[str, int]) -> str | None:
    """What a member is: "plain" (a value at each point, row or column, or a statistic of each row), a "sum" over rows
    for each column, a "cut" aggregation over columns and rows; None where it is none of these. A row that a statement
    has no variable for would count its sums again."""
    summed = reduced(s, extent)
    written = {v for v in index_variables(*(s.index or ())) if extent[v] > 1}
    if not summed or (summed == along and written == across):
        return "plain"
    if summed == across and written == along:
        return "sum"
    if along and along < summed and across <= summed | written and not written & along and s.aggregation != "assign":
        return "cut"
    return None


def _stored_first(
    around: Neighbourhood, statements: Sequence[Statement], across: set[str], along: set[str], extent: Mapping[str, int]
) -> set[str]:
    """Outputs of statements whose values many rows share in each column: those that a kernel waits for, and where it
    takes longer than a launch to read what the others need and compute them for each row, these and what they need, if
    nothing of it is a statistic or has further variables."""
    repeated = [
        s
        for s in statements
        if s.output in around.instructions
        and _is_repeated(s, across, along, extent)
        and kind_of(s, across, along, extent) is not None
    ]
    if not repeated:
        return set()
    by_name = {s.output: s for s in statements if kind_of(s, across, along, extent) is not None}
    apart = {s.output for s in repeated if around.instructions[s.output] >= 2 * CALLED}
    found, each = set[str](), 0.0
    for s in repeated:
        own = {v for v in variables_of(s) if extent[v] > 1}
        needed: dict[str, Statement] = {}
        pending = [s] if own & across else []  # else once for each column of a program
        while pending:
            t = pending.pop()
            needed[t.output] = t
            pending += [by_name[n] for n in reads(t) if n in by_name and n not in needed]
        within = ({v for v in variables_of(t) if extent[v] > 1} <= own for t in needed.values())
        if needed and all(within) and needed.keys() <= around.instructions.keys():
            found |= needed.keys()
            each += around.instructions[s.output] + QUICK
    pays = math.prod(extent.values()) * int(each) > int(H200.launch * INSTRUCTIONS)
    return apart | found if pays else apart


def _is_repeated(s: Statement, across: set[str], along: set[str], extent: Mapping[str, int]) -> bool:
    """Whether many rows have the same value of a statement in each column."""
    own = set(variables_of(s))
    return bool(own & along) and math.prod(extent[v] for v in across - own) >= LEAST_SHARED


def scans_columns(s: Statement, around: Neighbourhood, columns: Sequence[str], extent: Mapping[str, int]) -> bool:
    """Whether a scan goes through all columns, along which memory runs."""
    along = linear((s.index or ())[around.scans[s.output].axis]).bare
    return [v for v in columns if extent[v] > 1] == [along] and runs_fastest([s], extent, around.layouts) == along
