"""Groups found: from a seed, all statements that walk the same points and can share its kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.triton.fusion.loop_nest import LoopNest, Shared, reduced, walked, walked_by
from tilec.backends.triton.fusion.members import GroupMembers, members_of, scans_columns
from tilec.backends.triton.fusion.memory_order import memory_order, rows_and_columns, runs_fastest, share_of_programs
from tilec.backends.triton.fusion.neighbourhood import Neighbourhood
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.cost import size_in_bytes
from tilec.ir.program import (
    Statement,
    index_variables,
    reads,
    value_accesses,
    variables_of,
)
from tilec.ir.types import Types

FEW_ROWS, LONG_ROW = 32, 2**16  # fewer rows, longer than that: statistics are split over programs, each by itself
LAUNCH_BYTES = 2**25  # bytes that memory moves while one more kernel is launched, by the host too
NARROWEST_STRIP = 128  # of a strip that a program goes down, where there are as many
PLACES_AROUND_SEED = 48  # places from a seed at which its group is sought first
LEAST_FUSION_GAIN = 1.15  # bytes apart over bytes together, at least


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
        members = members_of(around, in_order, *split, shared.extent)
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
        members = members_of(around, rest, rows, columns, extent)
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
    members = members_of(around, statements, rows, columns, extent)
    if not any(reduced(s, extent) for s in members[0]):  # they read the others elsewhere: at computed positions
        members = members_of(around, [s for s in statements if s not in members[0]], rows, columns, extent)
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
    found = members_of(around, statements, rows, columns, extent, kept)
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
    found: GroupMembers,
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
    if any(s.output in around.scans and scans_columns(s, around, many, extent) for s in statements):
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
