"""Schedules of recurrences: an integer vector tau with tau . d >= 1 for every dependence d, found exactly.

A dependence is the difference between an element's coordinates and those of an element that it reads. The differences
of one read form an integer set (`F[t-1, i]` for all i). The search is guided by counterexamples: the least vector that
suits the differences seen so far is tried on the sets themselves, each of which either has none that it fails or shows
one. Least: a unit vector if one will do, else the least sum of absolute values.
Source of the idea of a linear schedule: L. Lamport, The parallel execution of DO loops, 1974.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index

from tilec.ir.at_sizes import followed
from tilec.ir.index import Affine
from tilec.ir.symbolic import value_of
from tilec.lattice import isl, projection
from tilec.lattice.hermite import hermite, inverse
from tilec.lattice.projection import Inexact
from tilec.lattice.questions import InRange, IslText, images

MOST_ROUNDS = 500  # of the search; each adds a difference that the vector before fails

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Dependence:
    """At the points of `variables` where the conditions hold, the element at `writes` is computed from the one at
    `reads` (as many forms each); conditions keep the latter inside its tensor."""

    variables: tuple[str, ...]
    conditions: tuple[InRange, ...]
    writes: tuple[Affine, ...]
    reads: tuple[Affine, ...]


@dataclass(frozen=True)
class Conflict:
    """Positions of dependences that no schedule suits together, none of which can be left out."""

    among: tuple[int, ...]


def find_schedule(dependences: Sequence[Dependence], rank: int) -> Vector | Conflict:
    """The least tau of that many entries. Any will do for no dependence: (1, 0, ...)."""
    unit = _unit(dependences, rank)
    if unit is not None:
        return unit
    numbers: list[int] = []
    texts = tuple((len(d.variables), _text(d, numbers)) for d in dependences)
    found = _find(texts, rank, tuple(map(value_of, numbers)))
    if isinstance(found, Conflict):  # which is told of sizes that are numbers
        return _find(texts, rank, tuple(map(index, numbers)))
    assert _finds(found, texts, rank, *numbers)
    return found


def _unit(dependences: Sequence[Dependence], rank: int) -> Vector | None:
    """The first unit vector that suits, where elimination says so: sizes may be open. None where it says nothing."""
    try:
        return next((tau for tau in _units(rank) if all(_advances(d, tau) for d in dependences)), None)
    except Inexact:
        return None


def _advances(d: Dependence, tau: Vector) -> bool:
    """Is every difference of a dependence at least 1 along a unit vector? Raises Inexact."""
    ((axis, sign),) = [(k, c) for k, c in enumerate(tau) if c]
    step = (d.writes[axis] - d.reads[axis]) * sign
    if not step.terms and step.constant >= 1:
        return True
    others = [(c.form, c.bound) for c in d.conditions]
    value = Affine.variable("#")
    system = projection.inequalities([*others, (step - value, 1), (value - step, 1)])
    ends = projection.interval(projection.project_out(system, d.variables), "#")
    return ends is None or ends[0] is not None and ends[0] >= 1


def _text(d: Dependence, numbers: list[int]) -> str:
    """What `questions` asks about; the numbers in it are added to those that are there."""
    differences = [w - r for w, r in zip(d.writes, d.reads, strict=True)]
    writer = IslText({v: f"x{i}" for i, v in enumerate(d.variables)}, numbers)
    text = writer.text(d.conditions, differences)
    numbers[:] = writer.numbers
    return text


@followed
def _finds(tau: Vector, texts: tuple[tuple[int, str], ...], rank: int, *numbers: int) -> bool:
    return _find(texts, rank, numbers) == tau


@lru_cache(maxsize=1024)
def _find(texts: tuple[tuple[int, str], ...], rank: int, numbers: tuple[int, ...]) -> Vector | Conflict:
    sets = [images(n, rank, text, numbers) for n, text in texts]
    seen: list[list[Vector]] = [[] for _ in sets]
    for _ in range(MOST_ROUNDS):
        tau = _least([d for found in seen for d in found], rank)
        if tau is None:
            return _conflict(seen, rank)
        failed = False
        for found, differences in zip(seen, sets, strict=True):
            bad = differences.intersect(_half_space(tau))
            if not bad.is_empty():
                found.append(_vector(bad.sample_point(), rank))
                failed = True
        if not failed:
            return tau
    return _conflict(seen, rank)


def _half_space(tau: Vector) -> isl.Set:
    image = "[" + ", ".join(f"o{i}" for i in range(len(tau))) + "]"
    total = " + ".join(f"{c}*o{i}" for i, c in enumerate(tau))
    return isl.Set(f"{{ {image} : {total or 0} <= 0 }}")


def _vector(point: isl.Point, rank: int) -> Vector:
    return tuple(point.get_coordinate_val(isl.dim_type.set, i).to_python() for i in range(rank))


def _units(rank: int) -> Iterator[Vector]:
    for sign in (1, -1):
        for axis in range(rank):
            yield tuple(sign * int(k == axis) for k in range(rank))


def _suits(tau: Vector, differences: Sequence[Vector]) -> bool:
    return all(sum(a * b for a, b in zip(tau, d, strict=True)) >= 1 for d in differences)


def _least(differences: Sequence[Vector], rank: int) -> Vector | None:
    unit = next((tau for tau in _units(rank) if _suits(tau, differences)), None)
    if unit is not None:
        return unit
    if not rank:
        return None if differences else ()
    facts = [f"c = {' + '.join(f'u{i}' for i in range(rank))}"]
    facts += [f"u{i} >= s{i} and u{i} >= 0 - s{i}" for i in range(rank)]
    facts += [" + ".join(f"{0 - c}*s{i}" for i, c in enumerate(d)) + " >= 1" for d in differences]
    space = ", ".join(["c", *(f"u{i}" for i in range(rank)), *(f"s{i}" for i in range(rank))])  # s is -tau
    best = isl.Set(f"{{ [{space}] : {' and '.join(facts)} }}").lexmin()
    if best.is_empty():
        return None
    point = _vector(best.sample_point(), 2 * rank + 1)
    return tuple(-x for x in point[1 + rank :])


def _conflict(seen: Sequence[Sequence[Vector]], rank: int) -> Conflict:
    kept = [k for k, found in enumerate(seen) if found]
    for k in list(kept):
        rest = [j for j in kept if j != k]
        if rest and _least([d for j in rest for d in seen[j]], rank) is None:
            kept = rest
    return Conflict(tuple(kept))


def completed(tau: Vector, sizes: Sequence[int]) -> list[list[int]]:
    """A unimodular matrix whose first row is tau, the entries of which have no common divisor. Where one of them is 1
    or -1, all coordinates but one such (that of the greatest size, the first of these) stay as they are."""
    rank = len(tau)
    ones = [k for k, c in enumerate(tau) if abs(c) == 1]
    if ones:
        dropped = max(ones, key=lambda k: sizes[k])
        return [list(tau), *([int(j == k) for j in range(rank)] for k in range(rank) if k != dropped)]
    _, change = hermite([list(tau)])
    return [[int(x) for x in row] for row in inverse(change)]
