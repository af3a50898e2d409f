"""Reads that values need at some positions only: `c < 96 ? X[i, c] : Y[i, c]` loads nothing of X from column 96 on.

A condition goes into a load's mask where positions alone say whether it holds, or elements that say where is read, so
that it is known before, and where whole vectors lie on one side of it. What shifts groups of channels by different
steps then reads each element once, not once for each group; and tokens that are padding do not all wait for one row
(`T[b, l] > 0 ? W[T[b, l], d] : 0`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from tilec.backends.common.scalars import value_children
from tilec.ir.functions import COMPARISONS
from tilec.ir.program import Access, Call, Expr, Index, Pad, accesses_in, index_variables, walk

LONGEST_VECTOR = 16  # elements, of which the largest vector has a part
LOGIC = frozenset(("and", "or"))
Taken = tuple[tuple[Expr, bool], ...]  # conditions, and what each is where something is read


def conditions_of_reads(bodies: Iterable[tuple[Expr, Sequence[Expr]]]) -> Mapping[Access, Taken]:
    """What holds wherever an access is needed, by access. `bodies`: values and the guards under which they are."""
    found: dict[Access, Taken] = {}
    for body, guards in bodies:
        for root, holds in ((body, tuple((g, True) for g in guards)), *((g, ()) for g in guards)):
            for access, taken in _reads(root, holds):
                found[access] = tuple(t for t in found[access] if t in taken) if access in found else taken
    return {a: taken for a, taken in found.items() if taken}


def _reads(root: Expr, holds: Taken) -> Iterator[tuple[Access, Taken]]:
    pending, seen = [(root, holds)], set[tuple[Expr, Taken]]()
    while pending:
        e, taken = pending.pop()
        if (e, taken) in seen:
            continue
        seen.add((e, taken))
        match e:
            case Access():
                yield e, taken
                yield from ((a, ()) for i in e.index for a in walk(i) if isinstance(a, Access))
            case Call("select", (c, a, b)):
                pending += [(c, taken), (a, (*taken, (c, True))), (b, (*taken, (c, False)))]
            case Pad(Access() as access):
                pending += [(access, taken), (e.value, taken)]
            case _:
                pending += [(x, taken) for x in value_children(e)]


def is_known_before(
    c: Expr, access: Access, alone: Collection[str], fast: Collection[str], number: Callable[[Expr], object]
) -> bool:
    """Whether positions alone, or elements in the access's index, say if a condition holds, and vectors lie on one side
    of it. `fast`: the variables along which vectors may lie; `alone`: those that are all of an axis of a block, from 0
    on. `number`: the value of an expression that is a number, None of others."""
    used, asked = set(index_variables(c)), set(accesses_in(c))
    if not used or not asked.issubset(accesses_in(*access.index)):
        return False
    if used.isdisjoint(fast):
        return True
    if asked:
        return False
    match c:
        case Call(f, parts) if f in LOGIC:
            return all(is_known_before(p, access, alone, fast, number) for p in parts)
        case Call("eq" | "ne", (Call(f) as inner, zero)) if f in COMPARISONS or f in LOGIC:
            return number(zero) == 0 and is_known_before(inner, access, alone, fast, number)
        case Call("lt" | "ge", (Index(v), end)) if v in alone:
            n = number(end)
            return type(n) is int and n % LONGEST_VECTOR == 0
    return False
