"""Sums of floating terms at places that are data, without a sort: terms as integers, added by atomic operations.

Adding integers gives the same in whatever order they come. A first kernel finds the range of the terms' exponents. Few
terms are far below the greatest one, so mostly a few planes, each with an integer for every element, hold all terms as
they are: a plane takes terms within so many powers of two of the greatest that it may hold, and as many as there are
fit. A second kernel clears these planes. Where a term is no number, or too far below the greatest one, it finds the
greatest exponent of each element instead (an atomic maximum), whose unit is a power of two by that, so that an element
of small terms loses nothing beside elements of large ones; infinities and NaN are counted in the place of terms. A
third kernel adds terms as multiples of the unit, a fourth one rounds what they come to. float64 has two integers an
element, the second for what is below the unit.

What many points add to one element, a program adds up first: additions at an element wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import Condition
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.common.terms import sum_of
from tilec.backends.triton.emit.epilogue import as_read, finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, triton_type
from tilec.backends.triton.iteration.space import elements_of
from tilec.backends.triton.plan.lines import RELAXED, CodeLine, Effect, ForLoop, If, Return, StoreLine, assign
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Step
from tilec.backends.triton.plan.sizes import SECTOR
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.scatter.exact import (
    BLOCK_POINTS,
    FEWEST_ADDED,
    combined_at_pivot,
    point_kernel,
    point_launch,
    point_programs,
    terms_of_points,
)
from tilec.backends.triton.scatter.places import PointPlaces, asks_for_bounds, place_families
from tilec.backends.triton.scatter.runs import Runs
from tilec.ir.functions import operands_of
from tilec.ir.index import Affine
from tilec.ir.program import Access, Expr, Statement, accesses_in
from tilec.ir.types import NARROW, Types

INTEGERS_OF = {"float32": 1, "float64": 2}  # of an element
MOST_ADDED = 2**30
MOST_OF_A_TERM = 44  # of a term, so that halves are added to what has fewer than 53
MANTISSA = {"float32": 24, "float64": 53}
FEWEST_PLANES, MOST_PLANES = 3, 4  # of as many elements as there are terms; of half as many or fewer
FEWEST_TOTALS = 1024  # fewer are waited for
CACHED_ELEMENTS = 2**22  # that the level-two cache holds
SORTED = 6  # sectors of memory that a point may touch in the time that it takes to be sorted


@dataclass(frozen=True)
class Fixed:
    """A scatter whose points are added in fixed point at `place`, where they are `wanted`. Steps `before` that; `made`
    is let go after it. `into`: whose integers they are added to, where not its own."""

    before: tuple[Step, ...]
    runs: Runs
    place: Affine
    wanted: tuple[Condition, ...]
    made: tuple[str, ...]
    into: Runs | None = None
    added: int = 0  # points that are added to the same integers

    @property
    def dtype(self) -> str:
        return self.runs.accumulator.dtype

    @property
    def elements(self) -> int:
        return self.runs.count * self.runs.width

    @property
    def integers(self) -> int:
        return self.elements * INTEGERS_OF[self.dtype]

    @property
    def bits(self) -> int:
        """Of a term, so that the sum of all fits."""
        return min(MOST_OF_A_TERM, 62 - ((self.added or self.runs.points) - 1).bit_length())

    @property
    def constants(self) -> dict[str, int]:
        """How many planes there may be, the exponents of one, and the bits of a term there."""
        few = 2 * self.elements <= (self.added or self.runs.points) * self.runs.width
        planes = MOST_PLANES if few else FEWEST_PLANES
        width = self.bits * INTEGERS_OF[self.dtype] - MANTISSA[self.dtype] + 1
        return {"PLANES": planes, "WIDTH": width, "BITS": self.bits}

    @property
    def span(self) -> str:
        """The greatest exponent of all terms, and what the least one lacks to the greatest number."""
        return (self.into or self.runs).name("span")

    @property
    def greatest(self) -> str:
        """Of an element's terms, the exponent where it stands in a float of their type."""
        return (self.into or self.runs).name("exponents")

    @property
    def total(self) -> str:
        return (self.into or self.runs).name("total")

    def allocated(self) -> list[Step]:
        total = (self.integers * self.constants["PLANES"],)
        return [
            Allocate(self.span, (2,), "int32", 0),
            Allocate(self.greatest, (self.elements,), "int32"),
            Allocate(self.total, total, "int64"),
        ]


def in_fixed_point(scatters: Sequence[Statement], types: Types) -> frozenset[str]:
    """The outputs of those of the flat scatters that take less time so than sorted by what they share."""
    found: set[str] = set()
    for members in place_families(scatters, types).values():
        points = min(math.prod(m.domain.extent[v] for v in m.keyed) for m in members)
        touched = [n for m in members if (n := _sectors(m)) is not None]
        if len(touched) == len(members) and sum(touched) <= SORTED * points:
            found |= {m.statement.output for m in members}
    return frozenset(found)


def _sectors(places: PointPlaces) -> int | None:
    """That all points of a scatter touch in fixed point; None where it is not for that."""
    own = PointPlaces.of(places.domain, places.types, sort=False)
    s = own.statement
    dtype = own.types[s.output].dtype
    integers = INTEGERS_OF.get("float32" if dtype in NARROW else dtype)
    points, elements = math.prod(own.domain.extent[v] for v in own.keyed), math.prod(own.shape)
    if integers is None or s.aggregation != "sum" or s.default is not None:
        return None
    width = math.prod(own.shape[own.split :])
    few = points < FEWEST_ADDED or elements < FEWEST_TOTALS * width
    if few or points * width > MOST_ADDED or elements > CACHED_ELEMENTS:
        return None
    return points * (-(-width * 8 // SECTOR) * integers + 2 * -(-width * 4 // SECTOR))


def fixed_steps(members: Sequence[Fixed], epilogue: Sequence[Statement]) -> list[Step]:
    """Steps that compute the scatters and an epilogue that takes their values together."""
    joined, told = _joined(members, epilogue), (*(m.runs.statement for m in members), *epilogue)
    if joined is not None:
        added = sum(m.runs.points for m in members)
        members, epilogue = [replace(m, into=members[-1].runs, added=added) for m in members], joined
    apart = list({m.total: m for m in members}.values())
    steps = [*(step for m in members for step in m.before), *(step for m in apart for step in m.allocated())]
    clears = [(m, m in apart) for m in members]
    steps += [*(_range(*m) for m in clears), *(_greatest(*m) for m in clears), *map(_added, members)]
    steps.append(_rounded(apart, epilogue, told))
    made = [
        *(name for m in apart for name in (m.span, m.greatest, m.total)),
        *(name for m in members for name in m.made),
    ]
    return [*steps, Release(tuple(made))]


def _joined(members: Sequence[Fixed], epilogue: Sequence[Statement]) -> list[Statement] | None:
    """The epilogue with the last member's value as the sum of all, where it begins by adding these up: nothing is
    rounded before that. None where it does not."""
    types = members[-1].runs.view.types
    plain = {(m.dtype, types[m.runs.statement.output].dtype) for m in members}
    added = sum(m.runs.points * m.runs.width for m in members)
    if len(members) < 2 or plain != {(members[-1].dtype, members[-1].dtype)} or added > MOST_ADDED:
        return None
    terms = operands_of("add", epilogue[0].body)
    names = sorted(m.runs.statement.output for m in members)
    own = [e for e in terms if isinstance(e, Access) and e.tensor in names]
    others = [e for e in terms if e not in own]
    if sorted(e.tensor for e in own) != names or {a.tensor for a in accesses_in(*others)}.intersection(names):
        return None
    total = next(e for e in own if e.tensor == members[-1].runs.statement.output)
    return [replace(epilogue[0], body=sum_of([total, *others])), *epilogue[1:]]


def _range(m: Fixed, clears: bool) -> Launch:
    """What is already there is read first: few blocks have greater or lesser exponents. `clears`: also what the next
    kernels add to."""
    k = point_kernel(m.runs, "_range")
    s, runs, wanted = m.runs.statement, m.runs, m.wanted
    if not any(any(accesses_in(*a.index)) for a in accesses_in(*s.roots)):
        # terms that are written nowhere may be among them
        wanted = tuple(c for c in wanted if not any(accesses_in(*c.form.atoms())))
        guard = None if s.guard is None or asks_for_bounds(s.guard) else s.guard
        runs = replace(runs, statement=replace(s, guard=guard))
    terms_of_points(k, runs, None, wanted, m.dtype)
    k.assign("value", "tl.where(valid, value, 0)")
    k.assign("exponent", "exponent_(value)")
    k.assign("top", "tl.max(exponent)")
    k.assign("least", "tl.max(tl.where(value != 0, 0x7FFFFFFF - exponent, 0))")
    for n, name in enumerate(("top", "least")):
        at = f"{k.pointer(m.span)} + {n}"
        k.store(at, name, f"{name} > tl.load({at})", "atomic_max", RELAXED)
    if clears:
        k.add(_cleared(k, m, m.total, "0", _integers(k, m)), _cleared(k, m, m.greatest, "0", _elements(k, m)))
    return point_launch(k, m.runs)


def _greatest(m: Fixed, clears: bool) -> Launch:
    """Of each element where planes do not hold all terms; elsewhere the planes after the first are `cleared`."""
    k = point_kernel(m.runs, "_greatest")
    _planes(k, m)
    integers = _integers(k, m)
    cleared = [_cleared(k, m, m.total, integers, f"{integers} * planes")] if clears else []
    k.add(If("planes > 0", (*cleared, Return())))
    _terms(k, m)
    pointer = k.pointer(m.greatest)
    k.assign("exponent", "exponent_(value)")
    own = f"{pointer} + pivot * {m.runs.width} + col"
    common = assign("common", "tl.max(tl.where(here, exponent, 0), 0)")
    combined_at_pivot(k, m.runs, common, StoreLine(own, "common", "common > 0", "atomic_max", RELAXED))
    k.assign("known", f"tl.load({pointer} + element, mask=valid, other=0)")
    k.store(f"{pointer} + element", "exponent", "valid & (exponent > known)", "atomic_max", RELAXED)
    return point_launch(k, m.runs)


def _cleared(k: Kernel, m: Fixed, tensor: str, begin: str, end: str) -> Effect:
    programs = k.number("programs", "programs", point_programs(m.runs), False)
    return Effect(f"cleared_({k.pointer(tensor)}, {begin}, {end}, {PROGRAM[0]}, {programs}, {BLOCK_POINTS})")


def _added(m: Fixed) -> Launch:
    k = point_kernel(m.runs, "_added")
    _planes(k, m)
    _terms(k, m)
    pointer, count = k.pointer(m.total), INTEGERS_OF[m.dtype]
    k.assign("exponent", f"tl.load({k.pointer(m.greatest)} + element, mask=valid & (planes == 0), other=0)")
    k.assign(("below", "highest"), "plane_(value, top, WIDTH)")
    k.assign("exponent", "tl.where(planes > 0, highest, exponent)")
    k.assign("below", "tl.where(planes > 0, below, 0)")
    names = ("units", "rest")[:count]
    at = [f"({{}}) * {count} + {n}" if count > 1 else "{}" for n in range(count)]
    elements = _elements(k, m)
    own = f"plane * {elements} + pivot * {m.runs.width} + col"
    common: list[CodeLine] = []
    for n, name in enumerate(names):
        k.assign(name, f"{name}_(value, exponent, BITS)")
        total = f"tl.sum(tl.where(here & (below == plane), {name}, 0), 0)"
        common += [assign("common", total)]
        common += [StoreLine(f"{pointer} + {at[n].format(own)}", "common", "common != 0", "atomic_add", RELAXED)]
    lower = f"element + below * {elements}"
    combined_at_pivot(k, m.runs, ForLoop("plane", "range(0, tl.maximum(planes, 1))", tuple(common)))
    # neighbouring columns of the first plane are neighbours in memory, as Triton can tell
    for place, test in (("element", "below == 0"), (lower, "below > 0")):
        added = [
            StoreLine(
                f"{pointer} + {a.format(place)}", name, f"valid & ({test}) & ({name} != 0)", "atomic_add", RELAXED
            )
            for name, a in zip(names, at, strict=True)
        ]
        k.add(*(added if place == "element" else [If("planes > 1", tuple(added))]))
    return point_launch(k, m.runs)


def _terms(k: Kernel, m: Fixed) -> None:
    terms_of_points(k, m.runs, m.place, m.wanted, m.dtype)
    k.assign("value", "tl.where(valid, value, 0)")


def _planes(k: Kernel, m: Fixed) -> None:
    """Lines that ask how many planes hold all terms."""
    k.constants |= m.constants
    span = k.pointer(m.span)
    k.assign("top", f"tl.load({span})")
    k.assign("planes", f"planes_({span}, {triton_type(m.dtype)}, PLANES, WIDTH)")


def _elements(k: Kernel, m: Fixed) -> str:
    return k.number("elements", "elements", m.elements)


def _integers(k: Kernel, m: Fixed) -> str:
    integers = INTEGERS_OF[m.dtype]
    return _elements(k, m) if integers == 1 else f"{integers} * {_elements(k, m)}"


def _rounded(members: Sequence[Fixed], epilogue: Sequence[Statement], told: Sequence[Statement]) -> Launch:
    """The elements, from what has been added; `told`: the statements as written."""
    runs = members[-1].runs
    s = runs.statement
    types = {n: t for m in members for n, t in m.runs.view.types.items()}
    strides = {n: t for m in members for n, t in m.runs.view.strides.items()}
    variables, space = elements_of(s, types)
    k = Kernel("", space, types, strides, runs.int64_index, powers=True)
    k.name = k.names.fresh(python_name(s.output) + "_rounded")
    k.constants = {"BM": BLOCK_POINTS}
    k.assign("row", f"{k.program()} * BM + tl.arange(0, BM)")
    k.assign("row_in", f"row < {k.count(variables)}")
    k.decode(Axis("row", variables, "BM"))
    frame = Frame(k, ["row"], {"row": "row_in"})
    read: dict[Expr, ScalarValue] = {}
    for m in members:
        k.assign("value", _sum_text(k, m))
        if m is not members[-1]:
            kept = k.names.fresh("combined")
            k.assign(kept, "value")
            read |= as_read(frame, space, m.runs.statement.output, kept, m.dtype)
    text, output = finish(frame, space, "value", members[-1].dtype, epilogue, read)[0], s.output
    if epilogue:
        output = epilogue[-1].output
    k.store(f"{k.pointer(output)} + row", f"({text}).to({triton_type(types[output].dtype)})", "row_in")
    grid = (-(-math.prod(runs.shape) // BLOCK_POINTS), 1, 1)
    return k.launch(grid, 4, 2, *told)


def _sum_text(k: Kernel, m: Fixed) -> str:
    """The text of a scatter's value at `row`."""
    _planes(k, m)
    k.assign("exponent", f"tl.load({k.pointer(m.greatest)} + row, mask=row_in & (planes == 0), other=0)")
    name = "rounded_" if INTEGERS_OF[m.dtype] == 1 else "rounded_two_"
    given = (k.pointer(m.total), "row.to(tl.int64)", "row_in", _elements(k, m), "top", "planes", "exponent")
    return f"{name}({', '.join(given)}, PLANES, WIDTH, BITS)"
