"""Groups found: from a seed, all statements that walk the same points and can share its kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.units import Reads
from tilec.backends.triton.emit.epilogue import reads_own_element
from tilec.backends.triton.fusion.invariants import CALLED, INSTRUCTIONS, LEAST_SHARED, QUICK
from tilec.backends.triton.fusion.loop_nest import LoopNest, ScanForm, Shared, Touched, reduced, walked, walked_by
from tilec.backends.triton.fusion.memory_order import memory_order, rows_and_columns, runs_fastest, share_of_programs
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.cost import H200, size_in_bytes
from tilec.ir.index import linear
from tilec.ir.program import (
    Access,
    Program,
    Statement,
    index_variables,
    reads,
    value_accesses,
    variables_of,
    walk,
)
from tilec.ir.types import Types

FEW_ROWS, LONG_ROW = 32, 2**16  # fewer rows, longer than that: statistics are split over programs, each by itself
LAUNCH_BYTES = 2**25  # bytes that memory moves while one more kernel is launched, by the host too
NARROWEST_STRIP = 128  # of a strip that a program goes down, where there are as many
ON_CHIP = 2**14  # elements of a row, at most, that a program holds at once
PLACES_AROUND_SEED = 48  # places from a seed at which its group is sought first
LEAST_FUSION_GAIN = 1.15  # bytes apart over bytes together, at least
Members = tuple[list[Statement], list[Statement], set[str], set[str]]  # see `_members`


class Neighbourhood:
    """A program's statements by place and by reader, and those that are free to join a group. Built once: growing a
    group looks at what is near its seed, however long the program is."""

    def __init__(
        self,
        program: Program,
        free: Mapping[str, LoopNest],
        read: Reads,
        instructions: Mapping[str, float],
        scans: Mapping[str, ScanForm],
        epilogues: Collection[str] = (),
    ):
        """`read`: what each statement reads; one of a chain, all that its kernel does. `instructions`: what elementwise
        statements take for each element. `scans`: those of the free, which stand for the values that they add up.
        `epilogues`: elementwise statements that stay beside products."""
        self.program, self.read, self.instructions, self.scans = program, read, instructions, scans
        self.epilogues = epilogues
        self.place = {s.output: k for k, s in enumerate(program.statements)}
        self.free = dict(free)
        self.renamed: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Statement, Touched]] = {}

    def near(self, seed: LoopNest, distance: int) -> list[LoopNest]:
        """The free statements at most so many places from the seed, in order."""
        place = self.place[seed.statement.output]
        around = self.program.statements[max(0, place - distance) : place + distance + 1]
        return [self.free[s.output] for s in around if s.output in self.free]

    def between(self, statements: Sequence[Statement]) -> Sequence[Statement]:
        """All statements of the program from the first to the last of these."""
        places = [self.place[s.output] for s in statements]
        return self.program.statements[min(places) : max(places) + 1]

    def stored_outside(self, names: set[str]) -> set[str]:
        """Those that something else reads, or that the program returns."""
        return {n for n in names if n in self.program.outputs or {s.output for s in self.program.readers(n)} - names}


@dataclass(frozen=True)
class GroupCandidate:
    """Members over shared variables, those that follow their sums, and which of them are sums over rows or are cut."""

    members: tuple[Statement, ...]
    after: tuple[Statement, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    extent: Mapping[str, int]
    sums: frozenset[str]
    cut: frozenset[str]


def grown(seed: LoopNest, around: Neighbourhood, types: Types, without: Collection[str] = ()) -> GroupCandidate | None:
    """The group of a seed, `without` these: sought near it, and farther where its members come near that's edge."""
    distance = PLACES_AROUND_SEED
    while True:
        near = [form for form in around.near(seed, distance) if form.statement.output not in without]
        found = _grown(seed, near, around, types)
        places = [] if found is None else [around.place[s.output] for s in (*found.members, *found.after)]
        seat = around.place[seed.statement.output]
        if all(2 * abs(p - seat) <= distance for p in places) or distance >= len(around.place):
            return found
        distance *= 2


def _grown(seed: LoopNest, near: Sequence[LoopNest], around: Neighbourhood, types: Types) -> GroupCandidate | None:
    shared = Shared(seed, types, around.renamed)
    left = [form for form in near if form.statement.output != seed.statement.output]
    pending = True
    while pending:
        before = len(left)
        left = [form for form in left if not shared.admit(form)]
        pending = len(left) < before
    in_order = sorted(shared.statements.values(), key=lambda s: around.place[s.output])
    found = _totals(around, in_order, shared.extent, types)
    while found is None and len(in_order) > 1:
        split = _split(around, in_order, shared.extent)
        if split is None:
            return None
        busy = share_of_programs(in_order, split[0], shared.extent)
        members = _members(around, in_order, *split, shared.extent)
        found = _candidate(around, members, *split, shared.extent, busy, types)
        if found is None and busy < 1 and any(reduced(s, shared.extent) for s in in_order):
            found = _few_long_rows(around, in_order, split[1], shared.extent, types)
        if found is None or not any(reduced(s, shared.extent) for s in found.members):
            found = _sums_of_rows(around, in_order, split[1], shared.extent, types) or found
        # what something elsewhere that the seed needs waits for goes without it, or all that stands before that
        early = {s.output for s in (*members[0], *members[1])}
        if not early or seed.statement.output in early:
            break
        apart = _blocking(around, in_order, early) or early
        in_order = [s for s in in_order if s.output not in apart]
    return found


def _blocking(around: Neighbourhood, statements: Sequence[Statement], early: set[str]) -> set[str]:
    """Those of the early members that keep the others waiting: what other kernels read and give the others."""
    names = {s.output for s in statements}
    needed = {n for s in statements if s.output not in early for n in around.read[s.output]} - names
    found: set[str] = set()
    for s in reversed(around.between(statements)):
        if s.output in needed:
            found |= early & set(around.read[s.output])
            needed |= set(around.read[s.output]) - names
    return found


def _few_long_rows(
    around: Neighbourhood,
    statements: Sequence[Statement],
    rows_of: Collection[str],
    extent: Mapping[str, int],
    types: Types,
) -> GroupCandidate | None:
    """The kernel of few long rows (along `rows_of`), which walks along memory; statistics are sums over programs."""
    rows, columns = rows_and_columns(statements, extent)
    rest = statements if set(columns) != set(rows_of) else []
    found = None
    while found is None and len(rest) > 1:
        members = _members(around, rest, rows, columns, extent)
        found = _candidate(around, members, rows, columns, extent, 1.0, types)
        # each by itself, where one does not pay
        apart = {s.output for s in (*members[0], *members[1])} or {rest[0].output}
        rest = [s for s in rest if s.output not in apart]
    return found


def _sums_of_rows(
    around: Neighbourhood,
    statements: Sequence[Statement],
    columns_of: Collection[str],
    extent: Mapping[str, int],
    types: Types,
) -> GroupCandidate | None:
    """The kernel of several statistics over the same columns (other than `columns_of`), across memory perhaps."""
    sets = [r for s in statements if (r := reduced(s, extent))]
    order = memory_order(statements, extent)
    if order is None or len(sets) < 2 or any(r != sets[0] for r in sets) or sets[0] == {*columns_of}:
        return None
    rows, columns = tuple(v for v in order if v not in sets[0]), tuple(v for v in order if v in sets[0])
    busy = share_of_programs(statements, rows, extent)
    members = _members(around, statements, rows, columns, extent)
    if not any(reduced(s, extent) for s in members[0]):  # they read the others elsewhere: at computed positions
        members = _members(around, [s for s in statements if s not in members[0]], rows, columns, extent)
    if sum(bool(reduced(s, extent)) for s in members[0]) < 2:
        return None
    return _candidate(around, members, rows, columns, extent, busy, types)


def _totals(
    around: Neighbourhood, statements: Sequence[Statement], extent: Mapping[str, int], types: Types
) -> GroupCandidate | None:
    """The kernel of aggregations of all points, which programs share: of several, or of one that reads neighbours,
    which are read once along the columns. None where they keep other variables than the first and few, or points are
    few."""
    many = {v for v, n in extent.items() if n > 1}
    order = memory_order(statements, extent)
    sets = [r for s in statements if (r := reduced(s, extent))]
    if order is None or not sets or any(r != sets[0] for r in sets):
        return None
    kept = many - sets[0]
    varied = [v for v in order if v in many]
    if math.prod(extent[v] for v in kept) >= MULTIPROCESSORS or math.prod(extent[v] for v in sets[0]) <= LONG_ROW:
        return None
    sums = (s for s in statements if reduced(s, extent))
    if kept and (set(varied[: len(kept)]) != kept or any(_is_needed_again(s, statements, extent) for s in sums)):
        return None
    own = varied[len(kept) :]
    enough = (n for n in range(1, len(own)) if math.prod(extent[v] for v in own[-n:]) >= NARROWEST_STRIP)
    columns = tuple(own[-next(enough, max(len(own) - 1, 1)) :])
    rows = tuple(v for v in order if v not in columns)
    found = _members(around, statements, rows, columns, extent, kept)
    if len(found[2]) > 1:
        return _candidate(around, found, rows, columns, extent, 1.0, types)
    read = dict.fromkeys(a for s in found[0] for a in value_accesses(s) if many <= walked(a, many))
    walks = Counter((a.tensor, tuple(walked_by(e, many) for e in a.index)) for a in read)
    neighbours = len(many) > 1 and any(n > 1 for n in walks.values())
    if not found[2] or not neighbours:
        return None
    return GroupCandidate(tuple(found[0]), tuple(found[1]), rows, columns, extent, frozenset(found[2]), frozenset())


def _candidate(
    around: Neighbourhood,
    found: Members,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    extent: Mapping[str, int],
    busy: float,
    types: Types,
) -> GroupCandidate | None:
    """The kernel of these members over rows and columns; None where it would not pay."""
    members, after, sums, cut = found
    if len(members) < 2:
        return None
    statistics = not sums and any(reduced(s, extent) or s.output in around.scans for s in members)
    few = math.prod(extent[v] for v in rows) < FEW_ROWS
    if statistics and few and math.prod(extent[v] for v in columns) > LONG_ROW:
        return None
    if not _pays(around, members, sums | cut, rows, extent, types, busy if statistics else 1.0):
        return None
    return GroupCandidate(tuple(members), tuple(after), rows, columns, extent, frozenset(sums), frozenset(cut))


def _split(
    around: Neighbourhood, statements: Sequence[Statement], extent: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Rows and columns, each as memory runs. Columns are what a scan goes through, or what the first statistic that is
    needed at each point again aggregates over; where there is neither, the fastest axes of a tensor that spans the
    space which all aggregations treat alike."""
    order = memory_order(statements, extent)
    if order is None:
        return None
    columns: Collection[str] = ()
    many = [v for v in order if extent[v] > 1][-1:]
    if any(s.output in around.scans and _scans_columns(s, around, many, extent) for s in statements):
        columns = many
    varied = {v for v in order if extent[v] > 1}
    for s in () if columns else statements:
        summed = reduced(s, extent)
        of_each_row = varied - summed <= set(index_variables(*(s.index or ())))  # else it is no member
        if summed and of_each_row and _is_needed_again(s, statements, extent):
            columns = summed
            break
    if not columns:
        return rows_and_columns(statements, extent)
    return tuple(v for v in order if v not in columns), tuple(v for v in order if v in columns)


def _is_needed_again(s: Statement, statements: Sequence[Statement], extent: Mapping[str, int]) -> bool:
    """Whether a statement over more than the statistic's own variables reads it, by way of others perhaps. One over
    others alone reads it along another axis."""
    own = {v for v in index_variables(*(s.index or ())) if extent[v] > 1}
    values = {s.output}
    for t in statements:
        if values & set(reads(t)):
            if own < {v for v in variables_of(t) if extent[v] > 1}:
                return True
            values.add(t.output)
    return False


def _members(
    around: Neighbourhood,
    statements: Sequence[Statement],
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    extent: Mapping[str, int],
    kept: Collection[str] | None = None,
) -> Members:
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
    apart = _computed_apart(around, statements, across, along, extent)
    for original in around.between(statements):
        s = by_name.get(original.output)
        if s is not None and not late & set(reads(s)) and _reads_in_place(s, members):
            kind = "sum" if kept is not None and reduced(s, extent) else _kind(s, across, along, extent)
            if kind == "sum" and kept is None and statistics and math.prod(extent[v] for v in along) > ON_CHIP:
                kind = None
            if s.output in apart:
                kind = None
            if s.output in around.scans and (kept is not None or not _scans_columns(s, around, columns, extent)):
                kind = None
            if kind is not None:
                members[s.output] = s
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


def _reads_in_place(s: Statement, members: Mapping[str, Statement]) -> bool:
    """Whether it reads members at its own point alone."""
    hidden = {a.tensor for c in s.constraints for a in walk(c.expr) if isinstance(a, Access)}
    read = {a.tensor for a in value_accesses(s)} & members.keys()
    return not hidden & members.keys() and all(
        reads_own_element(root, name, members[name].index or ()) for root in s.roots for name in read
    )


def _kind(s: Statement, across: set[str], along: set[str], extent: Mapping[str, int]) -> str | None:
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


def _computed_apart(
    around: Neighbourhood,
    statements: Sequence[Statement],
    across: set[str],
    along: set[str],
    extent: Mapping[str, int],
) -> set[str]:
    """Outputs of statements whose values many rows share in each column: those that a kernel waits for, and where it
    takes longer than a launch to read what the others need and compute them for each row, these and what they need, if
    nothing of it is a statistic or has further variables."""
    repeated = [
        s
        for s in statements
        if s.output in around.instructions
        and _is_repeated(s, across, along, extent)
        and _kind(s, across, along, extent) is not None
    ]
    if not repeated:
        return set()
    by_name = {s.output: s for s in statements if _kind(s, across, along, extent) is not None}
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


def _scans_columns(s: Statement, around: Neighbourhood, columns: Sequence[str], extent: Mapping[str, int]) -> bool:
    """Whether a scan goes through all columns, along which memory runs."""
    along = linear((s.index or ())[around.scans[s.output].axis]).bare
    return [v for v in columns if extent[v] > 1] == [along] and runs_fastest([s], extent) == along


def _pays(
    around: Neighbourhood,
    members: Sequence[Statement],
    late: set[str],
    rows: Sequence[str],
    extent: Mapping[str, int],
    types: Types,
    busy: float,
) -> bool:
    """Whether one kernel over a share of the device takes less time than several, which have all of it: memory traffic
    counts, and launches. Whole rows along which memory runs are many bytes for each program, so that these are counted
    as others would read them: once for each statistic, once for all that is left at each point."""
    names = {s.output for s in members}
    each = {s.output: sum(size_in_bytes(types[n]) for n in (s.output, *reads(s)) if n in types) for s in members}
    read = {n for s in members for n in reads(s) if n in types} - names
    stored = around.stored_outside(names) | late
    together = sum(size_in_bytes(types[n]) for n in read | stored)
    apart, launches = sum(each.values()), len(members)
    if apart < LEAST_FUSION_GAIN * together:
        return False
    if busy < 1 and runs_fastest(members, extent) not in rows:
        many = {v for v, n in extent.items() if n > 1}
        whole = [s for s in members if many <= set(variables_of(s))]
        statistics = [s.output for s in whole if reduced(s, extent)]
        at_points = {s.output: s for s in whole if s.output not in statistics}
        walked_once = {n for s in at_points.values() for n in reads(s) if n in types} - at_points.keys()
        walked_once |= at_points.keys() & stored
        apart = sum(each[n] for n in statistics) + sum(size_in_bytes(types[n]) for n in walked_once)
        launches = len(statistics) + bool(at_points) + (len(members) > len(whole))
    return apart + LAUNCH_BYTES * (launches - 1) >= together / busy
