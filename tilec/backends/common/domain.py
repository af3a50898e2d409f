"""The points of a statement as a box of its index variables plus the conditions that the box does not imply."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import slice_text, tuple_text
from tilec.ir.constraining import constraining
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.infer import once, own_shapes
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Int, Statement, accesses_in, index_variables
from tilec.ir.rational import Fraction, as_fraction, as_int
from tilec.ir.types import Types
from tilec.lattice.questions import InRange
from tilec.lattice.sets import Interval, bounds, interval_of

Condition = InRange


@dataclass(frozen=True)
class WriteTarget:
    """What a statement writes: `rows`, one form for each output axis, name a different element for different values of
    `variables`."""

    variables: tuple[str, ...]
    rows: tuple[Affine, ...]

    def text(self, tensor: str, shape: Sequence[int], low: Mapping[str, int], extent: Mapping[str, int]) -> str:
        """Python text of a view of `tensor`, one dimension a variable; the name itself where that is all of it."""
        if any(len(row.terms) > 1 for row in self.rows) or len(self.variables) < sum(bool(r.terms) for r in self.rows):
            start = [as_int(r.constant + sum(r.coefficient(v) * low[v] for v in r.variables())) for r in self.rows]
            steps = [tuple_text([as_int(r.coefficient(v)) for r in self.rows]) for v in self.variables]
            sizes = [extent[v] for v in self.variables]
            return f"rt.window({tensor}, {tuple_text(sizes)}, {tuple_text(start)}, {tuple_text(steps)})"
        texts = []
        for row, size in zip(self.rows, shape, strict=True):
            if not row.terms:
                texts.append(str(as_int(row.constant)))
                continue
            ((atom, c),) = row.terms
            assert isinstance(atom, Index)
            step, count = as_int(c), extent[atom.name]
            texts.append(slice_text(as_int(row.constant) + step * low[atom.name], step, count, size))
        return tensor if all(t == ":" for t in texts) else f"{tensor}[{', '.join(texts)}]"


@dataclass(frozen=True)
class Domain:
    """`low` and `extent` give each variable's range; `conditions` are those that do not hold on all of the box.

    `target` is None where the output index is not affine in variables of its own. `assured` hold by a test of values
    that is made before.
    """

    statement: Statement
    low: Mapping[str, int]
    extent: Mapping[str, int]
    conditions: tuple[Condition, ...]
    target: WriteTarget | None
    assured: frozenset[Condition] = frozenset()

    @property
    def masked(self) -> bool:
        return bool(self.conditions) or self.statement.guard is not None

    def output_variables(self) -> tuple[str, ...]:
        assert self.target is not None
        return self.target.variables

    def reductions(self) -> tuple[str, ...]:
        written = set(self.output_variables())
        return tuple(v for v in self.low if v not in written)

    def interval(self, form: Affine) -> Interval:
        """Least and greatest value over the box."""
        found = interval_of(form, self._atom_interval)
        whole = _multiples(form)
        if whole is None:
            return found
        # what a form less its remainder is: the size times a quotient that is rounded down
        rest, size, inner, c = whole
        least, most = (size * (e // size) if abs(e) != math.inf else e for e in self.interval(inner))
        low, high = self.interval(rest)
        return max(found[0], low + c * least), min(found[1], high + c * most)

    def _atom_interval(self, atom: Expr) -> Interval:
        match atom:
            case Index(name):
                first = self.low[name]
                return as_fraction(first), as_fraction(first + self.extent[name] - 1)
            case Call("mod", (_, n)) if linear(n).is_affine and not linear(n).terms:
                size = linear(n).constant
                return (Fraction(0), size - 1) if size > 0 else (size + 1, Fraction(0))
            case Call("max" | "min" | "clamp", (x, *limits)):
                (a, b), *others = (_rounded(self.interval(linear(e))) for e in (x, *limits))
                if atom.function != "min":
                    a, b = max(a, others[0][0]), max(b, others[0][1])
                if atom.function != "max":
                    a, b = min(a, others[-1][0]), min(b, others[-1][1])
                if atom.function != "clamp":  # neither end is nearer than the mean of both: a magnitude is at least 0
                    low, high = self.interval((linear(x) + linear(limits[0])) / 2)
                    a, b = (max(a, low), b) if atom.function == "max" else (a, min(b, high))
                return a, b
        return -math.inf, math.inf

    def holds(self, condition: Condition) -> bool:
        """Whether the box implies it, or a test before."""
        if condition in self.assured:
            return True
        form = condition.form
        whole = _multiples(form)
        if not form.is_integral and (whole is None or not _integral(*whole)):
            return False
        low, high = self.interval(form)
        return low >= 0 and high < condition.bound

    def inside(self, access: Access, types: Types) -> bool:
        """Whether the box implies that the access lies in its tensor."""
        return all(map(self.holds, read_conditions(access, types)))


def _multiples(form: Affine) -> tuple[Affine, Fraction, Affine, Fraction] | None:
    """`rest + c * (inner - inner % size)` with c > 0: the rest, the size, the inner form and c."""
    for atom, c in form.terms:
        if isinstance(atom, Call) and atom.function == "mod" and c < 0:
            inner, size = map(linear, atom.args)
            rest = form - Affine(((atom, c),)) + inner * c
            if not size.terms and size.constant > 0 and inner.is_integral and len(rest.terms) < len(form.terms) - 1:
                return rest, size.constant, inner, -c
    return None


def _integral(rest: Affine, size: Fraction, inner: Affine, c: Fraction) -> bool:
    return rest.is_integral and (c * size).denominator == 1


def _rounded(interval: Interval) -> Interval:
    """What the values become where they are rounded, in either direction: an argument that is no integer."""
    low, high = interval
    return low if low == -math.inf else Fraction(math.floor(low)), high if high == math.inf else Fraction(
        math.ceil(high)
    )


def whole_arguments(indices: Sequence[Expr]) -> Iterator[Condition]:
    """The conditions that what `%` and `clamp` in these indices are applied to is an integer."""
    for e in indices:
        for atom in linear(e).atoms():
            if isinstance(atom, Call):
                yield from whole_arguments(atom.args)
                for form in map(linear, atom.args):
                    n = form.denominator
                    if n > 1:
                        rest = Call("mod", ((form * n).to_expr(), Int(n)))
                        yield Condition(Affine.of([(rest, 1)]), 1)


def may_wrap(form: Affine, types: Types, ends: Iterable[float | Fraction]) -> bool:
    """Whether a form, whose values are between these ends, may take more than 64 bits: it then turns round, to beyond a
    bound that it is known not to pass."""
    alone = len(form.terms) == 1 and form.terms[0][1] == 1 and isinstance(form.terms[0][0], Access)
    holds_elements = any(types[a.tensor].dtype == "int64" for a in accesses_in(*form.atoms()))
    return not alone and holds_elements and any(abs(end) == math.inf for end in ends)


def access_conditions(access: Access, types: Types) -> tuple[Condition, ...]:
    """The conditions under which the access itself lies in its tensor; those of elements in its index are apart."""
    return tuple(Condition(linear(e), n) for e, n in zip(access.index, types[access.tensor].shape, strict=True))


def read_conditions(access: Access, types: Types) -> tuple[Condition, ...]:
    """Those under which its index has a value that lies in its tensor."""
    return (*access_conditions(access, types), *whole_arguments(access.index))


def all_conditions(access: Access, types: Types, own: str | None = None) -> tuple[Condition, ...]:
    """The conditions under which an access lies in its tensor, and those in its index in theirs; of elements of `own`
    there nothing is asked."""
    wanted: dict[Condition, None] = {}
    pending = [access]
    while pending:
        a = pending.pop()
        if a is access or a.tensor != own:
            wanted |= dict.fromkeys(read_conditions(a, types))
        pending += [x for e in a.index for x in gathered(linear(e))]
    return tuple(wanted)


def size_of(e: Expr) -> int:
    assert isinstance(e, Int)
    return e.value


@once
def build_domain(s: Statement, types: Types) -> Domain | None:
    """The domain of a bound statement, None where it has no valid point. Residue variables must have been replaced."""
    shapes = own_shapes(s, types)
    ranges = bounds(s, shapes)
    if ranges is None:
        return None
    return boxed(_forward(s, ranges, types), ranges, types)


def boxed(s: Statement, ranges: Mapping[str, tuple[int, int]], types: Types, own: str | None = None) -> Domain:
    """The domain of a bound statement over a box that holds all its points; reads of `own` do not constrain."""
    low = {v: a for v, (a, _) in ranges.items()}
    extent = {v: b - a + 1 for v, (a, b) in ranges.items()}
    box = Domain(s, low, extent, (), None)
    conditions = tuple(c for c in conditions_of(s, types, own) if not box.holds(c))
    return Domain(s, low, extent, conditions, _target(s, box, types[s.output].shape))


def conditions_of(s: Statement, types: Types, own: str | None = None) -> tuple[Condition, ...]:
    """Everything that a bound statement asks of a point, its guard's value and tensors' elements in indices aside: the
    accesses, those in `in` and of values that are dropped included, its constraints and its output index. Reads of
    `own` ask nothing."""
    assert s.index is not None and s.sizes is not None
    points = point_conditions((s.body, *s.guards, *s.index), s.constraints, types, own)
    stored = (Condition(linear(e), size_of(n)) for e, n in zip(s.index, s.sizes, strict=True))
    return tuple(dict.fromkeys((*points, *stored, *whole_arguments(s.index))))


def point_conditions(
    roots: Iterable[Expr], constraints: Sequence[Constraint], types: Types, own: str | None = None
) -> tuple[Condition, ...]:
    """What the accesses in these expressions and the constraints ask of a point; those of `own` ask nothing."""
    read = (c for access in constraining(*roots, own=own) for c in read_conditions(access, types))
    bounds = (Condition(linear(c.expr), signed(c.bound)) for c in constraints)
    return tuple(dict.fromkeys((*read, *bounds, *whole_arguments([c.expr for c in constraints]))))


def _forward(s: Statement, ranges: Mapping[str, tuple[int, int]], types: Types) -> Statement:
    """The statement with summed variables turned round, so that each moves forward in the largest tensor it indexes:
    a view that moves backward would have to be copied."""
    assert s.index is not None
    written = {v for e in s.index for v in index_variables(e)}
    largest: dict[str, tuple[int, Fraction]] = {}
    for access in constraining(s.body):
        shape = types[access.tensor].shape
        flat = row_major([linear(e) for e in access.index], shape)
        for v in flat.variables():
            size = math.prod(shape)
            if v not in written and size > largest.get(v, (0, 0))[0]:
                largest[v] = size, flat.coefficient(v)
    turned = {
        v: Affine.variable(v, -1) + (ranges[v][0] + ranges[v][1])
        for v, (_, move) in largest.items()
        if move < 0 and ranges[v][0] < ranges[v][1]
    }
    return substitute_affine(s, turned) if turned else s


def signed(e: Expr) -> int:
    """The value of an integer literal of either sign."""
    form = linear(e)
    assert not form.terms and form.constant.denominator == 1
    return as_int(form.constant)


def _target(s: Statement, box: Domain, shape: Sequence[int]) -> WriteTarget | None:
    """Each row adds at most one variable to those before it, so that the variables can be read off the element; and
    every variable moves forward in a contiguous output, so that the part written is a view."""
    assert s.index is not None
    rows = tuple(map(linear, s.index))
    variables: dict[str, None] = {}
    for row, n in zip(rows, shape, strict=True):
        new = [v for v in row.variables() if v not in variables]
        if not row.is_affine or len(new) > 1 or not box.holds(Condition(row, n)):
            return None
        variables.update(dict.fromkeys(new))
    flat = row_major(rows, shape)
    if any(flat.coefficient(v) <= 0 for v in variables):
        return None
    plain = all(len(r.terms) <= 1 for r in rows) and len(variables) == sum(bool(r.terms) for r in rows)
    if plain and any(c < 0 for r in rows for _, c in r.terms):
        return None
    return WriteTarget(tuple(variables), rows)


def gathered(form: Affine) -> list[Access]:
    """Accesses that stand in a form and constrain, those inside `%` and clamp included."""
    found: list[Access] = []
    pending = [a for a, _ in form.terms]
    while pending:
        e = pending.pop()
        if isinstance(e, Access):
            found.append(e)
        elif isinstance(e, Call):
            pending += e.args
    return found


def free(form: Affine) -> frozenset[str]:
    """All index variables that a form depends on, inside atoms too."""
    return frozenset(v for atom, _ in form.terms for v in index_variables(atom))


def row_major(forms: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """The form of the element's position in a contiguous tensor."""
    flat = Affine()
    stride = 1
    for form, size in zip(reversed(forms), reversed(shape), strict=True):
        flat = flat + form * stride
        stride *= size
    return flat


@dataclass(frozen=True)
class ScanCondition:
    """A condition that holds an output variable and a summed one together from one side: the terms up to summed =
    output + shift count (`rising`), or those from there on."""

    output: str
    summed: str
    condition: Condition
    rising: bool
    shift: int


def scan_condition(
    conditions: Sequence[Condition], summed: Collection[str], roots: Sequence[Expr], box: Domain, least: int = 1
) -> ScanCondition | None:
    """The one whose output variable neither the body nor another condition names, of variables with `least` values or
    more; None where there is none."""
    read = index_variables(*roots)
    for c in conditions:
        pair = free(c.form)
        own = pair & {*summed}
        if len(pair) != 2 or len(own) != 1:
            continue
        (k,), (i,) = own, pair - own
        side = one_sided(c, i, k, box)
        alone = i not in read and not any(i in free(d.form) for d in conditions if d is not c)
        if side is not None and alone and min(box.extent[i], box.extent[k]) >= least:
            return ScanCondition(i, k, c, *side)
    return None


def one_sided(c: Condition, i: str, k: str, box: Domain) -> tuple[bool, int] | None:
    """For a condition that holds i and k together from one side: whether the k up to i + shift count, or those from
    there on, and that shift."""
    sign = c.form.coefficient(i)
    if abs(sign) != 1 or c.form.coefficient(k) != -sign or len(c.form.terms) != 2 or not c.form.is_integral:
        return None
    low, high = box.interval(c.form)
    if (low < 0) == (high >= c.bound):
        return None  # a window has two ends
    # 0 <= sign * (i - k) + constant, or sign * (i - k) + constant <= bound - 1
    limit = c.form.constant if low < 0 else c.bound - 1 - c.form.constant
    rising = (sign > 0) == (low < 0)
    return rising, as_int(limit if rising else -limit)
