"""Sums of floating terms at places that are data, without a sort: terms as integers, added by atomic operations.

Adding integers gives the same in whatever order they come. So each element has a unit of its own, a power of two by
the greatest of its terms: a first kernel finds that (an atomic maximum), a second one adds terms as multiples of the
unit, a third one rounds what they come to. The unit is 2^-32 of the power of two above the greatest term, so that 2^30
terms fit, and an element of small terms loses nothing beside elements of large ones. float64 has two integers an
element, the second for what is below the unit. Infinities and NaN are counted in the place of terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import Condition
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.epilogue import as_read, finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, triton_type
from tilec.backends.triton.iteration.space import elements_of
from tilec.backends.triton.plan.lines import RELAXED
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Step
from tilec.backends.triton.scatter.exact import BLOCK_POINTS, FEWEST_ADDED, point_launch, terms_of_points
from tilec.backends.triton.scatter.places import PointPlaces, place_families
from tilec.backends.triton.scatter.segments import Runs
from tilec.ir.index import Affine
from tilec.ir.program import Access, Call, Expr, Statement, accesses_in
from tilec.ir.types import NARROW, Types

INTEGERS_OF = {"float32": 1, "float64": 2}  # of an element
MOST_ADDED = 2**30
FEWEST_TOTALS = 1024  # fewer are waited for
CACHED_ELEMENTS = 2**22  # that the level-two cache holds
SORTED = 6  # sectors of memory that a point may touch in the time that it takes to be sorted
SECTOR = 32  # bytes


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

    @property
    def dtype(self) -> str:
        return self.runs.accumulator.dtype

    @property
    def elements(self) -> int:
        return self.runs.count * self.runs.width

    @property
    def greatest(self) -> str:
        """Of an element's terms, the exponent where it stands in a float of their type."""
        return (self.into or self.runs).name("exponents")

    @property
    def total(self) -> str:
        return (self.into or self.runs).name("total")

    def allocated(self) -> list[Step]:
        total = (self.elements * INTEGERS_OF[self.dtype],)
        return [Allocate(self.greatest, (self.elements,), "int32", 0), Allocate(self.total, total, "int64", 0)]


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
        members, epilogue = [replace(m, into=members[-1].runs) for m in members], joined
    apart = {m.total: m for m in members}.values()
    steps = [*(step for m in members for step in m.before), *(step for m in apart for step in m.allocated())]
    steps += [*map(_greatest, members), *map(_added, members), _rounded(list(apart), epilogue, told)]
    made = [*(name for m in apart for name in (m.greatest, m.total)), *(name for m in members for name in m.made)]
    return [*steps, Release(tuple(made))]


def _joined(members: Sequence[Fixed], epilogue: Sequence[Statement]) -> list[Statement] | None:
    """The epilogue with the last member's value as the sum of all, where it begins by adding these up: nothing is
    rounded before that. None where it does not."""
    types = members[-1].runs.view.types
    plain = {(m.dtype, types[m.runs.statement.output].dtype) for m in members}
    added = sum(m.runs.points * m.runs.width for m in members)
    if len(members) < 2 or plain != {(members[-1].dtype, members[-1].dtype)} or added > MOST_ADDED:
        return None
    terms = list(_terms_of(epilogue[0].body))
    names = sorted(m.runs.statement.output for m in members)
    own = [e for e in terms if isinstance(e, Access) and e.tensor in names]
    others = [e for e in terms if e not in own]
    if sorted(e.tensor for e in own) != names or {a.tensor for a in accesses_in(*others)}.intersection(names):
        return None
    body: Expr = next(e for e in own if e.tensor == members[-1].runs.statement.output)
    for e in others:
        body = Call("add", (body, e))
    return [replace(epilogue[0], body=body), *epilogue[1:]]


def _terms_of(e: Expr) -> Iterator[Expr]:
    match e:
        case Call("add", args):
            for a in args:
                yield from _terms_of(a)
        case _:
            yield e


def _greatest(m: Fixed) -> Launch:
    """What is already there is read first: few points are greater."""
    k = _terms(m, "_greatest")
    pointer = k.pointer(m.greatest)
    k.assign("exponent", "exponent_(value)")
    k.assign("known", f"tl.load({pointer} + element, mask=valid, other=0)")
    k.store(f"{pointer} + element", "exponent", "valid & (exponent > known)", "atomic_max", RELAXED)
    return point_launch(k, m.runs)


def _added(m: Fixed) -> Launch:
    k = _terms(m, "_added")
    pointer, integers = k.pointer(m.total), INTEGERS_OF[m.dtype]
    k.assign("exponent", f"tl.load({k.pointer(m.greatest)} + element, mask=valid, other=0)")
    for n, name in enumerate(("units", "rest")[:integers]):
        k.assign(name, f"{name}_(value, exponent)")
        at = "element" if integers == 1 else f"element * {integers} + {n}"
        k.store(f"{pointer} + {at}", name, f"valid & ({name} != 0)", "atomic_add", RELAXED)
    return point_launch(k, m.runs)


def _terms(m: Fixed, suffix: str) -> Kernel:
    runs = m.runs
    k = Kernel("", runs.space, runs.view.types, runs.view.strides, runs.int64_index, powers=True)
    k.name = k.names.fresh(python_name(runs.statement.output) + suffix)
    terms_of_points(k, runs, m.place, m.wanted, m.dtype)
    k.assign("value", "tl.where(valid, value, 0)")
    return k


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
    integers = INTEGERS_OF[m.dtype]
    at = ["row" if integers == 1 else f"row.to(tl.int64) * {integers} + {n}" for n in range(integers)]
    given = [f"tl.load({k.pointer(m.total)} + {a}, mask=row_in, other=0)" for a in at]
    given.append(f"tl.load({k.pointer(m.greatest)} + row, mask=row_in, other=0)")
    return f"{'rounded_' if integers == 1 else 'rounded_two_'}({', '.join(given)})"
