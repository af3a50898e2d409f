"""The points of a statement as boxes of its index variables, one a residue class, over the whole output.

Where the torch backend's domain is the tight box of the valid points, output variables range over every element of the
output here: an element without valid points is computed like the others and comes out as the identity, so that nothing
has to be filled beforehand. Residues stay variables, with one number a class.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.backends.common.domain import Condition, Domain, point_conditions, size_of
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.infer import once, own_shapes
from tilec.ir.program import Constraint, Index, Int, Statement, index_variables
from tilec.ir.types import Types
from tilec.lattice.sets import bounds
from tilec.transforms.util.roles import roles

MOST_CLASSES = 64  # classes enumerated on the grid, each with its own ranges; beyond, residues are output variables
MANY_BESIDE = 32  # classes, of which a warp reads and writes neighbours


@dataclass(frozen=True)
class Space:
    """`outputs` name an element within a class, `reductions` are aggregated over, `residues` name the class.

    `low` and `extent` hold, for each class, every variable's range; a class of no points has reductions of extent 0.
    `valid`: conditions on a point that some class's box does not imply; `stored`: the same for the element written.
    `covers`: whether the classes write every element of the output, each once. `steps`: outputs that are residues, of
    which the statement's own coefficients say how many there are.
    """

    statement: Statement
    outputs: tuple[str, ...]
    reductions: tuple[str, ...]
    residues: tuple[str, ...]
    classes: tuple[Mapping[str, int], ...]
    low: tuple[Mapping[str, int], ...]
    extent: tuple[Mapping[str, int], ...]
    valid: tuple[Condition, ...]
    stored: tuple[Condition, ...]
    covers: bool
    steps: frozenset[str] = frozenset()

    @property
    def rows(self) -> tuple[Affine, ...]:
        return tuple(map(linear, self.statement.index or ()))

    def box(self, k: int) -> Domain:
        """The box of class k, for interval arithmetic; residues have one value."""
        return _box(self.statement, self.classes[k], self.low[k], self.extent[k])

    def largest(self, v: str) -> int:
        return max((e.get(v, 1) for e in self.extent), default=0)

    def ends(self, v: str) -> tuple[int, int] | None:
        """What a variable's values lie between, the end beyond the greatest; None of a residue."""
        if not self.low or not all(v in a for a in self.low):
            return None
        return min(a[v] for a in self.low), max(a[v] + n[v] for a, n in zip(self.low, self.extent, strict=True))

    def single(self, v: str) -> bool:
        """Whether the variable has one value in every class, as residues do."""
        return all(e.get(v, 1) == 1 for e in self.extent)

    def count(self, variables: tuple[str, ...]) -> int:
        """The greatest number of values over classes that the variables take together."""
        return max((math.prod(e[v] for v in variables) for e in self.extent), default=0)


def _box(s: Statement, residues: Mapping[str, int], low: Mapping[str, int], extent: Mapping[str, int]) -> Domain:
    ones = dict.fromkeys(residues, 1)
    at_least_one = {v: max(n, 1) for v, n in extent.items()}  # an empty range is read like one of a single value
    return Domain(s, {**low, **residues}, {**at_least_one, **ones}, (), None)


@once
def build_space(s: Statement, types: Types) -> Space | None:
    """The space of a defracted statement, None where its output index is no change of variables."""
    found = roles(s)
    if found is None:
        return None
    moduli = dict(found.classes)
    outputs = found.outputs
    output_constraints: tuple[Constraint, ...] = ()
    if math.prod(moduli.values()) > MOST_CLASSES:
        # residues become outputs like any other, which only their own constraints bound
        output_constraints = tuple(c for c in s.constraints if moduli.keys() >= set(index_variables(c.expr)))
        outputs, moduli = (*outputs, *moduli), {}
    free = index_variables(*(s.index or ()), s.body, *s.guards)
    constrained = (v for c in s.constraints for v in index_variables(c.expr))
    reductions = tuple(v for v in dict.fromkeys((*free, *constrained)) if v not in outputs and v not in moduli)
    shapes = own_shapes(s, types)
    classes: tuple[Mapping[str, int], ...] = tuple(
        dict(zip(moduli, values, strict=True)) for values in itertools.product(*map(range, moduli.values()))
    )
    ranges = [_ranges(s, c, outputs, reductions, shapes, output_constraints) for c in classes]
    kept = [(c, r) for c, r in zip(classes, ranges, strict=True) if r is not None]
    low = tuple({v: a for v, (a, _) in r.items()} for _, r in kept)
    extent = tuple({v: n for v, (_, n) in r.items()} for _, r in kept)
    classes = tuple(c for c, _ in kept)
    steps: frozenset[str] = frozenset()
    if len(kept) == len(ranges) > 1 and _alike(low, extent, reductions):
        # one box holds all classes: their elements lie beside each other, and so do they in a block
        low = ({**low[0], **dict.fromkeys(moduli, 0)},)
        extent = ({**extent[0], **moduli},)
        steps, last = frozenset(moduli), set(index_variables(*(s.index or ())[-1:]))
        # memory runs along many of them
        before = outputs if steps <= last and math.prod(moduli.values()) >= MANY_BESIDE else outputs[:-1]
        outputs, moduli, classes = (*before, *moduli, *outputs[len(before) :]), {}, ({},)
    boxes = [_box(s, c, a, n) for c, a, n in zip(classes, low, extent, strict=True)]
    valid = point_conditions((s.body, *s.guards), s.constraints, types)
    stored = dict.fromkeys(Condition(linear(e), size_of(n)) for e, n in zip(s.index or (), s.sizes or (), strict=True))
    nonempty = [b for b, n in zip(boxes, extent, strict=True) if all(n[v] for v in reductions)]
    open_valid = tuple(c for c in valid if not all(b.holds(c) for b in nonempty) and c not in stored)
    open_stored = tuple(c for c in stored if not all(b.holds(c) for b in boxes))
    written = sum(math.prod(n[v] for v in outputs) for n in extent)
    covers = not open_stored and written == types[s.output].numel
    return Space(s, outputs, reductions, tuple(moduli), classes, low, extent, open_valid, open_stored, covers, steps)


def _alike(
    low: tuple[Mapping[str, int], ...], extent: tuple[Mapping[str, int], ...], reductions: tuple[str, ...]
) -> bool:
    """Whether all classes have the same points but for their residues, one for each element."""
    same = all(n == low[0] for n in low) and all(n == extent[0] for n in extent)
    return same and all(extent[0][v] == 1 for v in reductions)


def _ranges(
    s: Statement,
    residues: Mapping[str, int],
    outputs: tuple[str, ...],
    reductions: tuple[str, ...],
    shapes: Mapping[str, tuple[int, ...]],
    output_constraints: tuple[Constraint, ...],
) -> dict[str, tuple[int, int]] | None:
    """Low end and extent of each variable in a class, None if the class has no element of the output. The constraints
    that are `output_constraints` say which elements there are; the others, which points."""
    if residues:
        s = substitute_affine(s, {v: Affine.of((), r) for v, r in residues.items()})
    elements = bounds(replace(s, body=Int(1), guard=None, constraints=output_constraints), shapes)
    if elements is None:
        return None
    points = bounds(s, shapes) if reductions else {}
    found = {v: (a, b - a + 1) for v, (a, b) in elements.items()}
    for v in reductions:
        a, b = (0, -1) if points is None else points[v]
        found[v] = (a, b - a + 1)
    return {v: found[v] for v in (*outputs, *reductions)}


def with_points(space: Space, types: Types) -> Space:
    """The space of the elements alone that have points, where these are one box: what else there is must be filled."""
    s, shapes = space.statement, own_shapes(space.statement, types)
    if s.aggregation != "sum" or not space.reductions or not (space.stored or space.residues):
        return space
    own = (substitute_affine(s, {v: Affine.of((), r) for v, r in c.items()}) if c else s for c in space.classes)
    ranges = (bounds(x, shapes) for x in own)
    first = next(ranges, None)
    counts = {v: len({c[v] for c in space.classes}) for v in space.residues}
    if first is None or len(space.classes) < math.prod(counts.values()) or any(r != first for r in ranges):
        return space
    box = {v: first[v] for v in (*space.outputs, *space.reductions)} | {v: (0, n - 1) for v, n in counts.items()}
    low, extent = {v: a for v, (a, _) in box.items()}, {v: b - a + 1 for v, (a, b) in box.items()}
    outputs = (*space.outputs[:-1], *space.residues, *space.outputs[-1:])
    if math.prod(extent[v] for v in outputs) == types[s.output].numel:
        return space
    whole = _box(s, {}, low, extent)
    valid, stored = (tuple(c for c in conditions if not whole.holds(c)) for conditions in (space.valid, space.stored))
    return Space(s, outputs, space.reductions, (), ({},), (low,), (extent,), valid, stored, False, space.steps)


def elements_of(s: Statement, types: Types) -> tuple[tuple[str, ...], Space]:
    """Variables along the axes of a statement's output, and the space of its elements by these."""
    shape = types[s.output].shape
    variables = tuple(f"{s.output}.{a}" for a in range(len(shape)))
    element = replace(s, index=tuple(map(Index, variables)), sizes=tuple(map(Int, shape)), body=Int(0), guard=None)
    space = build_space(replace(element, aggregation="assign", constraints=(), default=None), types)
    assert space is not None
    return variables, space
