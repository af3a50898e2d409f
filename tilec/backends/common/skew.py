"""Loop skewing: a recurrence in the coordinates in which it is run, time first, then the lanes of a step.

The schedule tau is completed to a unimodular matrix; its first row is the time. States are kept in a buffer over the
box of the new coordinates, with margins for what is read outside: cells outside the tensor hold what `init` says there,
so that a read is a view of an earlier state. A margin of a lane that wraps round repeats the other end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.backends.common.domain import Domain, boxed
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Aggregate, Call, Index, Int, Statement
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, Types, shapes_in
from tilec.lattice.hermite import inverse
from tilec.lattice.schedule import completed
from tilec.lattice.sets import Box, bounds
from tilec.transforms.recurrence import schedule
from tilec.transforms.util.naming import all_variables, unlike

MARGIN_LIMIT = 4  # a buffer with margins may be this many times the box of the states, plus MARGIN_SLACK elements
MARGIN_SLACK = 2**14


@dataclass(frozen=True)
class Read:
    """How a state is read: `forms`, one a coordinate of the buffer without its margins, and `back`, the steps since.
    None for `back`: at positions worked out for each element."""

    forms: tuple[Affine, ...]
    back: int | None


@dataclass(frozen=True)
class Skew:
    """`statement` over `names` (time, then lanes); `rows` gives each of them in the old coordinates, `old` each old one
    in the new. Steps run from the greatest time to the least where `falling`. `low`, `high`: the box of the tensor in
    the new coordinates; `before`, `after`: margins; `wraps`: for each lane that wraps, margins that repeat."""

    statement: Statement
    names: tuple[str, ...]
    rows: tuple[Affine, ...]
    old: Mapping[str, Affine]
    falling: bool
    low: tuple[int, ...]
    high: tuple[int, ...]
    plain: bool  # the new coordinates are the old ones in another order
    reads: dict[Access, Read] = field(default_factory=dict)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    wraps: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the buffer, margins included."""
        ends = zip(self.low, self.high, self.before, self.after, strict=True)
        return tuple(high - low + 1 + b + a for low, high, b, a in ends)

    @property
    def first(self) -> tuple[int, ...]:
        """Coordinates of the buffer's first element."""
        return tuple(low - b for low, b in zip(self.low, self.before, strict=True))


def skewed(s: Statement, types: Types) -> Skew:
    """A flat recurrence in time and lanes."""
    shape = types[s.output].shape
    tau = schedule(s, shapes_in(types))
    falling = sum(c < 0 for c in tau) > sum(c > 0 for c in tau)
    matrix = completed(tuple(-c for c in tau) if falling else tau, shape)
    names = [e.name for e in s.index or () if isinstance(e, Index)]
    taken = all_variables(s)
    new = [_name(row, names, k, taken) for k, row in enumerate(matrix)]
    rows = tuple(Affine.combine(dict(zip(names, row, strict=True))) for row in matrix)
    old = {
        name: Affine.combine({v: as_int(c) for v, c in zip(new, row, strict=True)})
        for name, row in zip(names, inverse(matrix), strict=True)
    }
    low = tuple(sum(min(0, c * (n - 1)) for c, n in zip(row, shape, strict=True)) for row in matrix)
    high = tuple(sum(max(0, c * (n - 1)) for c, n in zip(row, shape, strict=True)) for row in matrix)
    plain = all(sum(map(abs, row)) == 1 for row in matrix)
    moved = substitute_affine(s, {k: f for k, f in old.items() if f.bare != k})
    zero = [0] * len(new)
    return Skew(moved, tuple(new), rows, old, falling, low, high, plain, {}, zero, list(zero))


def _name(row: Sequence[int], names: Sequence[str], k: int, taken: set[str]) -> str:
    ones = [v for v, c in zip(names, row, strict=True) if c]
    if len(ones) == 1 and sum(row) == 1:
        return ones[0]
    name = unlike(f"w{k}", taken)
    taken.add(name)
    return name


def level_domain(skew: Skew, e: Aggregate | Statement, types: Types, box: Box | None) -> Domain | None:
    """Where a statement's points, or a nested aggregation's for the lanes of `box`, lie; None where there are none. An
    aggregation has its own exact range of time; its lanes are those of the box, whether it has points there or not."""
    own = skew.statement.output
    shapes = shapes_in(types)
    if isinstance(e, Statement):
        ranges = bounds(e, shapes)
        return None if ranges is None else boxed(e, ranges, types, own)
    assert box is not None
    index = tuple((Affine.variable(v) - low).to_expr() for v, (low, _) in box.items())
    sizes = tuple(Int(high - low + 1) for low, high in box.values())
    s = Statement(own, index, sizes, e.body, e.aggregation, e.guard, e.constraints)
    ranges = bounds(s, shapes)
    if ranges is None:
        return None
    time = skew.names[0]
    kept = {v: ranges[v] if v == time or v not in box else box[v] for v in (*box, *(v for v in ranges if v not in box))}
    return boxed(s, kept, {**types, own: TensorType(tuple(n.value for n in sizes), types[own].dtype)}, own)


def plan_read(skew: Skew, access: Access, domain: Domain) -> Read:
    """How an access of the own output is read; margins grow as far as it needs."""
    if access not in skew.reads:
        given = dict(zip(skew.old, map(linear, access.index), strict=True))
        forms = [row.substitute(given) for row in skew.rows]
        skew.reads[access] = _sliding(skew, forms, domain) or Read(tuple(forms), None)
    return skew.reads[access]


def _sliding(skew: Skew, forms: list[Affine], domain: Domain) -> Read | None:
    step = Affine.variable(skew.names[0]) - forms[0]
    if step.terms or step.constant.denominator > 1:
        return None
    back = as_int(step.constant)
    wraps = dict(skew.wraps)
    before, after = list(skew.before), list(skew.after)
    plain: list[Affine] = [forms[0]]
    for k, form in enumerate(forms[1:], 1):
        turned = _wrapped(skew, k, form, domain)
        form = form if turned is None else turned
        if not form.is_affine or not form.is_integral:
            return None
        a, b = domain.interval(form)
        need = max(0, skew.low[k] - as_int(a)), max(0, as_int(b) - skew.high[k])
        if any(need) and (k in wraps) != (turned is not None) and (k in wraps or before[k] or after[k]):
            return None  # one margin cannot both repeat the other end and hold what lies outside
        before[k], after[k] = max(before[k], need[0]), max(after[k], need[1])
        if turned is not None and any(need):
            wraps[k] = before[k], after[k]
        plain.append(form)
    a, b = domain.interval(forms[0])
    before[0], after[0] = max(before[0], skew.low[0] - as_int(a)), max(after[0], as_int(b) - skew.high[0])
    trial = replace(skew, before=before, after=after)
    states = math.prod(high - low + 1 for low, high in zip(skew.low, skew.high, strict=True))
    lanes = math.prod(high - low + 1 for low, high in zip(skew.low[1:], skew.high[1:], strict=True))
    if math.prod(trial.shape) > MARGIN_LIMIT * states + MARGIN_SLACK + lanes:
        return None
    skew.before[:], skew.after[:] = before, after
    skew.wraps.update(wraps)
    return Read(tuple(plain), back)


def _wrapped(skew: Skew, k: int, form: Affine, domain: Domain) -> Affine | None:
    """`v + c` for `(v + c) % n` where v runs over a lane of n elements: the margins then repeat the lane's ends."""
    size = skew.high[k] - skew.low[k] + 1
    atoms = form.atoms()
    if not skew.plain or len(atoms) != 1 or form != Affine.of([(atoms[0], 1)]):
        return None
    match atoms[0]:
        case Call("mod", (e, Int(n))) if n == size:
            inner = linear(e)
        case _:
            return None
    names = inner.variables()
    if len(inner.terms) != 1 or len(names) != 1 or inner.terms[0][1] != 1 or not inner.is_integral:
        return None
    low, high = domain.interval(Affine.variable(names[0]))
    shift = (as_int(inner.constant) + size // 2) % size - size // 2
    return Affine.variable(names[0]) + shift if low >= 0 and high < size else None
