"""Which accesses constrain a point, for the oracle: those in a branch only where the branch is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilec.ir.aggregations import AGGREGATIONS, SPLITTABLE
from tilec.ir.program import Access, Aggregate, Call, Expr, Float, Inside, Int, Pad, walk


@dataclass
class Accesses:
    """Accesses that must lie inside, and conditionals with what each of their branches asks."""

    accesses: list[Access] = field(default_factory=list)
    choices: list[BranchChoice] = field(default_factory=list)


@dataclass
class BranchChoice:
    """`idle`: the branches (False, True) whose points change nothing, as they hold the aggregation's identity."""

    condition: Expr
    yes: Accesses
    no: Accesses
    idle: tuple[bool, ...] = ()

    @property
    def data(self) -> bool:
        """Does the condition read a tensor?"""
        return any(isinstance(e, (Access, Inside, Aggregate)) for e in walk(self.condition))


def branch_accesses(e: Expr, own: str | None, identity: float | None = None) -> Accesses:
    """All but padded accesses, nested aggregations' own and reads of the tensor `own` that the statement itself
    assigns. `identity` is the aggregation's, where e is its whole body or a branch of that."""
    result = Accesses()
    _visit(e, own, identity, result)
    return Accesses(result.accesses, merged_choices(result.choices))


def merged_choices(choices: list[BranchChoice]) -> list[BranchChoice]:
    """Those of equal conditions as one: all of them take the same branch."""
    found: dict[Expr, BranchChoice] = {}
    for c in choices:
        known = found.get(c.condition)
        if known is not None:
            yes, no = _both(known.yes, c.yes), _both(known.no, c.no)
            c = BranchChoice(c.condition, yes, no, (*known.idle, *c.idle))
        found[c.condition] = c
    return list(found.values())


def _both(a: Accesses, b: Accesses) -> Accesses:
    return Accesses([*a.accesses, *b.accesses], merged_choices([*a.choices, *b.choices]))


def _visit(e: Expr, own: str | None, identity: float | None, result: Accesses) -> None:
    match e:
        case Access():
            if e.tensor != own:
                result.accesses.append(e)
            for i in e.index:
                _visit(i, own, None, result)
        case Inside():
            _visit(e.access, own, None, result)
        case Pad():
            _visit(e.value, own, None, result)
        case Call("select", (condition, a, b)):
            _visit(condition, own, None, result)
            idle = tuple(sense for sense, x in ((True, a), (False, b)) if identity is not None and _is(x, identity))
            result.choices.append(
                BranchChoice(condition, branch_accesses(a, own, identity), branch_accesses(b, own, identity), idle)
            )
        case Call():
            for a in e.args:
                _visit(a, own, None, result)


def identity_of(aggregation: str) -> float | None:
    """The value whose points may be left out."""
    return float(AGGREGATIONS[aggregation].identity) if aggregation in SPLITTABLE else None


def _is(e: Expr, value: float) -> bool:
    match e:
        case Int(n) | Float(n):
            return n == value
        case Call("neg", (a,)):
            return _is(a, -value)
    return False


@dataclass(frozen=True)
class BranchPath:
    """One way through the conditionals: accesses, which branch each condition met takes, and whether it is idle."""

    accesses: tuple[Access, ...] = ()
    taken: tuple[tuple[BranchChoice, bool], ...] = ()
    idle: bool = False


def branch_paths(a: Accesses) -> Iterator[BranchPath]:
    """Every way: their points are distinct."""
    yield from _ways(a.choices, BranchPath(tuple(a.accesses)))


def _ways(choices: list[BranchChoice], way: BranchPath) -> Iterator[BranchPath]:
    if not choices:
        yield way
        return
    first, *rest = choices
    for sense, side in ((True, first.yes), (False, first.no)):
        for inner in branch_paths(side):
            joined = BranchPath(
                (*way.accesses, *inner.accesses),
                (*way.taken, (first, sense), *inner.taken),
                way.idle or inner.idle or sense in first.idle,
            )
            yield from _ways(rest, joined)
