"""A topological order of kernels: statements that share one are one unit, which comes after all that it reads."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from tilec.ir.program import Program

Reads = Mapping[str, Collection[str]]  # what each statement reads


def ordered(units: Sequence[Collection[str]], read: Reads) -> list[int] | None:
    """Places of the units, each after what it reads and otherwise as given; None where they need each other."""
    unit_of = {name: k for k, unit in enumerate(units) for name in unit}
    needs = [{unit_of[n] for name in unit for n in read[name] if n in unit_of} - {k} for k, unit in enumerate(units)]
    needed_by: list[list[int]] = [[] for _ in units]
    for k, found in enumerate(needs):
        for n in found:
            needed_by[n].append(k)
    missing = [len(found) for found in needs]
    ready = [k for k, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for other in needed_by[k]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    return order if len(order) == len(units) else None


def by_unit(program: Program, unit_of: Mapping[str, object]) -> dict[object, list[str]]:
    """Outputs by unit, in order; a statement without one is its own."""
    units: dict[object, list[str]] = {}
    for s in program.statements:
        units.setdefault(unit_of.get(s.output, s.output), []).append(s.output)
    return units


class Units:
    """Units that grow by joins. A join looks at what stands between its units in the order, and at nothing else."""

    def __init__(self, program: Program, kernels: Sequence[Collection[str]], read: Reads):
        """`kernels`: outputs of statements that are one unit already."""
        self._read = read
        units = list(by_unit(program, {name: k for k, names in enumerate(kernels) for name in names}).values())
        order = ordered(units, read)
        self._sound = order is not None
        self._at = {rank: units[k] for rank, k in enumerate(order or ())}
        self._rank = {name: rank for rank, unit in self._at.items() for name in unit}

    def join(self, names: Collection[str]) -> bool:
        """Make these statements' units one; False, and nothing changes, where it would need what needs it."""
        if not self._sound:
            return False
        joined = {self._rank[n] for n in names}
        late: set[int] = set()
        before: list[list[str]] = []
        after: list[list[str]] = []
        ranks = [r for r in range(min(joined), max(joined) + 1) if r in self._at]
        for rank in ranks:
            needs = {self._rank[n] for name in self._at[rank] for n in self._read[name] if n in self._rank}
            if rank in joined:
                if needs & late:
                    return False
            elif needs & (joined | late):
                late.add(rank)
                after.append(self._at[rank])
            else:
                before.append(self._at[rank])
        one = [name for rank in ranks if rank in joined for name in self._at[rank]]
        for rank in ranks:
            del self._at[rank]
        for rank, unit in zip(ranks, [*before, one, *after], strict=False):
            self._at[rank] = unit
            self._rank.update(dict.fromkeys(unit, rank))
        return True
