"""Fusion groups grown: from a seed, all statements that walk the same points and can share its kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.triton.emit.epilogue import find_epilogue
from tilec.backends.triton.fusion.fuse_producers import elementwise
from tilec.backends.triton.fusion.loop_nest import LoopNest, Shared, reduced, walked, walked_by
from tilec.backends.triton.fusion.members import ON_CHIP, GroupMembers, kind_of, members_of, scans_columns
from tilec.backends.triton.fusion.memory_order import memory_order, occupancy, rows_and_columns, runs_fastest
from tilec.backends.triton.fusion.neighbourhood import Neighbourhood
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.cost import size_in_bytes
from tilec.ir.program import Statement, index_variables, reads, value_accesses, variables_of
from tilec.ir.types import Types

FEW_ROWS, LONG_ROW = 32, 2**16  # fewer rows, longer than that: statistics are split over programs, each by itself
LAUNCH_BYTES = 2**25  # bytes that memory moves while one more kernel is launched, by the host too
NARROWEST_STRIP = 128  # of a strip that a program goes down, where there are as many
PLACES_AROUND_SEED = 48  # places from a seed at which its group is sought first
LEAST_FUSION_GAIN = 1.15  # bytes apart over bytes together, at least
LEAST_GAIN_OF_PAIRS = 1.8  # the same with scans of pairs: at 3 one was 1.4 times as fast, at 1.5 one 1.2 times as slow
FEW_ELEMENTS = 2**10  # of a value that is computed by the launch that adds it up
FILLING_LINES = 8  # rows of a block that fill the lines of memory that run along them
_Variables = tuple[str, ...]


@dataclass(frozen=True)
class GroupCandidate:
    """Members over shared variables, those that follow their sums, and which of them are sums over rows or are cut."""

    members: tuple[Statement, ...]
    after: tuple[Statement, ...]
    rows: _Variables
    columns: _Variables
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


def ends_a_sum(c: GroupCandidate, around: Neighbourhood, types: Types) -> bool:
    """Whether members of few elements are all that follows one aggregation, whose kernel computes that before it stores
    the value: a mean of what is negated, or weighted by a number."""
    outputs = {s.output for s in (*c.members, *c.after)}
    if math.prod(c.extent.values()) > FEW_ELEMENTS or any(elementwise(s) is None for s in c.members):
        return False
    sums = (k for k, s in enumerate(around.program.statements) if s.aggregation != "assign" and s.output not in outputs)
    return any(outputs <= {s.output for s in find_epilogue(around.program, place, types)} for place in sums)


def _grown(seed: LoopNest, near: Sequence[LoopNest], around: Neighbourhood, types: Types) -> GroupCandidate | None:
    shared = Shared(seed, types, around.renamed)
    left = [form for form in near if form.statement.output != seed.statement.output]
    pending = True
    while pending:
        before = len(left)
        left = [form for form in left if not shared.admit(form)]
        pending = len(left) < before
    in_order = sorted(shared.statements.values(), key=lambda s: around.place[s.output])
    growth = _Growth(around, shared.extent, types)
    found, scanning = growth.totals(in_order), growth.with_scans_alone(in_order)
    while found is None and len(in_order) > 1:
        split = growth.split(in_order)
        if split is None:
            return None
        busy = occupancy(in_order, split[0], shared.extent, around.layouts)
        members = growth.members(in_order, *split)
        found = growth.candidate(members, *split, busy)
        if found is None and busy < 1 and any(reduced(s, shared.extent) for s in in_order):
            found = growth.few_long_rows(in_order, split[1])
        if found is None or not any(reduced(s, shared.extent) for s in found.members):
            found = growth.sums_of_rows(in_order, split[1]) or found
        # what something elsewhere that the seed needs waits for goes without it, or all that stands before that
        early = {s.output for s in (*members[0], *members[1])}
        if not early or seed.statement.output in early:
            break
        apart = _blocking(around, [s for s in in_order if growth.may_join(s, *split)], early) or early
        in_order = [s for s in in_order if s.output not in apart]
    return scanning if scanning is not None and growth.saved(scanning) > growth.saved(found) else found


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


class _Growth:
    """Looks for the kernel of statements over shared variables, of these extents."""

    def __init__(self, around: Neighbourhood, extent: Mapping[str, int], types: Types):
        self.around, self.extent, self.types = around, extent, types

    def _count(self, variables: Iterable[str]) -> int:
        return math.prod(self.extent[v] for v in variables)

    def _reduced(self, s: Statement) -> set[str]:
        return reduced(s, self.extent)

    def members(
        self,
        statements: Sequence[Statement],
        rows: _Variables,
        columns: _Variables,
        kept: Collection[str] | None = None,
    ) -> GroupMembers:
        return members_of(self.around, statements, rows, columns, self.extent, kept)

    def may_join(self, s: Statement, rows: _Variables, columns: _Variables) -> bool:
        """Whether a kernel over these rows can hold a statement that waits for nothing else."""
        across, along = ({v for v in names if self.extent[v] > 1} for names in (rows, columns))
        return kind_of(s, across, along, self.extent) is not None

    def few_long_rows(self, statements: Sequence[Statement], rows_of: Collection[str]) -> GroupCandidate | None:
        """The kernel of few long rows (along `rows_of`), which walks along memory: statistics add up over programs."""
        rows, columns = rows_and_columns(statements, self.extent, self.around.layouts)
        rest = statements if set(columns) != set(rows_of) else []
        found = None
        while found is None and len(rest) > 1:
            members = self.members(rest, rows, columns)
            found = self.candidate(members, rows, columns)
            # each by itself, where one does not pay; the others may compute values of each point
            early = [*members[0], *members[1]]
            at_points = {s.output for s in early if s.aggregation == "assign" and self._is_whole(s)}
            every = {s.output for s in early or rest[:1]}
            apart = every - at_points or every
            rest = [s for s in rest if s.output not in apart]
        return found

    def sums_of_rows(self, statements: Sequence[Statement], columns_of: Collection[str]) -> GroupCandidate | None:
        """The kernel of several statistics over the same columns (other than `columns_of`), across memory perhaps."""
        sets = [r for s in statements if (r := self._reduced(s))]
        order = memory_order(statements, self.extent, self.around.layouts)
        if order is None or len(sets) < 2 or any(r != sets[0] for r in sets) or sets[0] == {*columns_of}:
            return None
        rows, columns = tuple(v for v in order if v not in sets[0]), tuple(v for v in order if v in sets[0])
        busy = occupancy(statements, rows, self.extent, self.around.layouts)
        members = self.members(statements, rows, columns)
        if not any(map(self._reduced, members[0])):  # they read the others elsewhere: at computed positions
            members = self.members([s for s in statements if s not in members[0]], rows, columns)
        if sum(map(bool, map(self._reduced, members[0]))) < 2:
            return None
        return self.candidate(members, rows, columns, busy)

    def with_scans_alone(self, statements: Sequence[Statement]) -> GroupCandidate | None:
        """The kernel of scans and what walks their points alone, where others have further variables: memory may run
        along these, and a scan goes through columns along which it runs."""
        scans = [s for s in statements if s.output in self.around.scans]
        own = {v for s in scans for v in variables_of(s)}
        rest = [s for s in statements if {v for v in variables_of(s) if self.extent[v] > 1} <= own]
        if not scans or len(rest) == len(statements):
            return None
        within = _Growth(self.around, {v: n for v, n in self.extent.items() if v in own or n == 1}, self.types)
        split = within.split(rest)
        if split is None:
            return None
        busy = occupancy(rest, split[0], within.extent, self.around.layouts)
        found = within.candidate(within.members(rest, *split), *split, busy)
        return found if found is not None and any(s in found.members for s in scans) else None

    def totals(self, statements: Sequence[Statement]) -> GroupCandidate | None:
        """The kernel of aggregations of all points, which programs share: of several, or of one that reads neighbours,
        which are read once along the columns. None where they keep other variables than the first and few, or points
        are few."""
        many = {v for v, n in self.extent.items() if n > 1}
        order = memory_order(statements, self.extent, self.around.layouts)
        sets = [r for s in statements if (r := self._reduced(s))]
        if order is None or not sets or any(r != sets[0] for r in sets):
            return None
        kept = many - sets[0]
        varied = [v for v in order if v in many]
        if self._count(kept) >= MULTIPROCESSORS or self._count(sets[0]) <= LONG_ROW:
            return None
        sums = (s for s in statements if self._reduced(s))
        if kept and (set(varied[: len(kept)]) != kept or any(self._is_needed_again(s, statements) for s in sums)):
            return None
        own = varied[len(kept) :]
        enough = (n for n in range(1, len(own)) if self._count(own[-n:]) >= NARROWEST_STRIP)
        columns = tuple(own[-next(enough, max(len(own) - 1, 1)) :])
        rows = tuple(v for v in order if v not in columns)
        found = self.members(statements, rows, columns, kept)
        if len(found[2]) > 1:
            return self.candidate(found, rows, columns)
        read = dict.fromkeys(a for s in found[0] for a in value_accesses(s) if many <= walked(a, many))
        walks = Counter((a.tensor, tuple(walked_by(e, many) for e in a.index)) for a in read)
        neighbours = len(many) > 1 and any(n > 1 for n in walks.values())
        if not found[2] or not neighbours:
            return None
        return GroupCandidate(
            tuple(found[0]), tuple(found[1]), rows, columns, self.extent, frozenset(found[2]), frozenset()
        )

    def candidate(
        self, found: GroupMembers, rows: _Variables, columns: _Variables, busy: float = 1.0
    ) -> GroupCandidate | None:
        """The kernel of these members over rows and columns; None where it would not pay."""
        members, after, sums, cut = found
        if len(members) < 2:
            return None
        own = {v for s in (*members, *after) for v in variables_of(s)}  # not of those that stay apart
        rows = tuple(v for v in rows if v in own or self.extent[v] == 1)
        statistics = not sums and any(self._reduced(s) or s.output in self.around.scans for s in members)
        few = self._count(rows) < FEW_ROWS
        if statistics and few and self._count(columns) > LONG_ROW:
            return None
        if self._is_across(members, sums, rows, columns):
            return None
        if not self._pays(members, sums | cut, rows, busy if statistics else 1.0):
            return None
        return GroupCandidate(tuple(members), tuple(after), rows, columns, self.extent, frozenset(sums), frozenset(cut))

    def _is_across(
        self, members: Sequence[Statement], sums: Collection[str], rows: _Variables, columns: _Variables
    ) -> bool:
        """Whether rows that a program holds whole, as others are summed over rows, lie across memory and are too long
        for a block to have neighbours of each."""
        statistics = any(self._reduced(s) for s in members if s.output not in sums)
        long = self._count(columns) * FILLING_LINES > ON_CHIP
        return bool(sums) and statistics and long and runs_fastest(members, self.extent, self.around.layouts) in rows

    def split(self, statements: Sequence[Statement]) -> tuple[_Variables, _Variables] | None:
        """Rows and columns, each as memory runs. Columns are what a scan goes through, or what the first statistic that
        is needed at each point again aggregates over; where there is neither, the fastest axes of a tensor that spans
        the space which all aggregations treat alike."""
        order = memory_order(statements, self.extent, self.around.layouts)
        if order is None:
            return None
        columns: Collection[str] = ()
        many = [v for v in order if self.extent[v] > 1][-1:]
        if any(s.output in self.around.scans and scans_columns(s, self.around, many, self.extent) for s in statements):
            columns = many
        varied = {v for v in order if self.extent[v] > 1}
        for s in () if columns else statements:
            summed = self._reduced(s)
            of_each_row = varied - summed <= set(index_variables(*(s.index or ())))  # else it is no member
            if summed and of_each_row and self._is_needed_again(s, statements):
                columns = summed
                break
        if not columns:
            return rows_and_columns(statements, self.extent, self.around.layouts)
        return tuple(v for v in order if v not in columns), tuple(v for v in order if v in columns)

    def _is_whole(self, s: Statement) -> bool:
        """Whether a statement has a point for each point of the kernel."""
        return {v for v, n in self.extent.items() if n > 1} <= set(variables_of(s))

    def _is_needed_again(self, s: Statement, statements: Sequence[Statement]) -> bool:
        """Whether a statement over more than the statistic's own variables reads it, by way of others perhaps. One over
        others alone reads it along another axis."""
        own = {v for v in index_variables(*(s.index or ())) if self.extent[v] > 1}
        values = {s.output}
        for t in statements:
            if values & set(reads(t)):
                if own < {v for v in variables_of(t) if self.extent[v] > 1}:
                    return True
                values.add(t.output)
        return False

    def saved(self, found: GroupCandidate | None) -> int:
        """The bytes that kernels of their own would move and one of them does not."""
        if found is None:
            return 0
        each = self._bytes_of_each(found.members)
        stored = self.around.stored_outside({*each}) | found.sums | found.cut
        return sum(each.values()) - self._fused_bytes(found.members, stored)

    def _bytes_of_each(self, members: Sequence[Statement]) -> dict[str, int]:
        """What kernels of their own move, by output."""
        moved = {s.output: (n for n in (s.output, *reads(s)) if n in self.types) for s in members}
        return {output: sum(size_in_bytes(self.types[n]) for n in names) for output, names in moved.items()}

    def _fused_bytes(self, members: Sequence[Statement], stored: Collection[str]) -> int:
        names = {s.output for s in members}
        read = {n for s in members for n in reads(s) if n in self.types} - names
        return sum(size_in_bytes(self.types[n]) for n in read | set(stored))

    def _pays(self, members: Sequence[Statement], late: set[str], rows: Sequence[str], busy: float) -> bool:
        """Whether one kernel over a share of the device takes less time than several, which have all of it: memory
        traffic counts, and launches. Whole rows along which memory runs are many bytes for each program, so that these
        are counted as others would read them: once for each statistic, once for all that is left at each point."""
        each = self._bytes_of_each(members)
        stored = self.around.stored_outside({*each}) | late
        together = self._fused_bytes(members, stored)
        apart, launches = sum(each.values()), len(members)
        pairs = any(s.output in self.around.scans and self.around.scans[s.output].before for s in members)
        if apart < (LEAST_GAIN_OF_PAIRS if pairs else LEAST_FUSION_GAIN) * together:
            return False
        if busy < 1 and runs_fastest(members, self.extent, self.around.layouts) not in rows:
            many = {v for v, n in self.extent.items() if n > 1}
            whole = [s for s in members if many <= set(variables_of(s))]
            statistics = [s.output for s in whole if self._reduced(s)]
            at_points = {s.output: s for s in whole if s.output not in statistics}
            walked_once = {n for s in at_points.values() for n in reads(s) if n in self.types} - at_points.keys()
            walked_once |= at_points.keys() & stored
            apart = sum(each[n] for n in statistics) + sum(size_in_bytes(self.types[n]) for n in walked_once)
            launches = len(statistics) + bool(at_points) + (len(members) > len(whole))
        return apart + LAUNCH_BYTES * (launches - 1) >= together / busy
