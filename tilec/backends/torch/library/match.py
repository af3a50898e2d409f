"""Flat statements that mean what a few lines of Tile say, up to names, the order of axes and that of factors and terms.

A pattern's index variable stands for an axis or for several, its number (`E[]`) for a literal (as a factor also for a
tensor of rank 0, or for 1), the name of a size (`J`) for the number of points along `j`. Statements without a reduction
are looked through, in the pattern's place too: nothing depends on which values have a name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.ir.functions import draws, operands_of
from tilec.ir.index import Affine, distinct_variables
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    Statement,
    children,
    index_variables,
    substitute,
    walk,
)
from tilec.ir.symbolic import is_open_number
from tilec.ir.types import Types
from tilec.lattice.conditions import bound_of
from tilec.transforms.util.plain import is_pure, is_unmasked

MOST_AXES = 6  # of a tensor
_PRODUCT = ("mul", "div", "neg")


@dataclass(frozen=True)
class Pattern:
    """`statements` by output; `several`: variables that stand for any number of axes, where others stand for one;
    `free`: tensors that stand for any term or condition of their variables, or for none."""

    statements: Mapping[str, Statement]
    several: frozenset[str]
    free: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Occurrence:
    """`tensors`: of a name in the pattern the tensor and the axis of each of its dimensions; `axes`: of a variable the
    axes that it stands for; `sizes` of these; `numbers`; `free`: terms or conditions, of axes; `at`: the axes of the
    variables of the statement at hand."""

    tensors: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Expr] = field(default_factory=dict)
    free: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)
    at: Mapping[str, str] = field(default_factory=dict)

    def name(self, tensor: str) -> str:
        return self.tensors[tensor][0]

    def extent(self, variable: str) -> int:
        return math.prod(self.sizes[a] for a in self.axes[variable])


class Matcher:
    """Finds a pattern among the statements of a program."""

    def __init__(self, pattern: Pattern, statements: Mapping[str, Statement], types: Types):
        self.pattern, self.statements, self.types = pattern, statements, types
        self._values: dict[tuple[bool, Access], Expr | None] = {}
        self._called_for: dict[tuple[bool, Access], set[str]] = {}

    def root(self, name: str, s: Statement, match: Occurrence) -> Iterator[Occurrence]:
        """Ways in which statement `s` is the pattern's of this name."""
        p = self.pattern.statements[name]
        variables, packs = distinct_variables(s.index), [i.name for i in p.index or () if isinstance(i, Index)]
        if variables is None or len(variables) > MOST_AXES or not _alike(p, s):
            return
        told = self._functions(p.body, self.pattern.statements)
        found = self._functions(s.body, self.statements)
        if not told - {"add"} <= found if self.pattern.free else told != found:
            return
        sizes = dict(zip(variables, self.types[s.output].shape, strict=True))
        for chosen in _assigned(variables, packs, self.pattern.several):
            for m in self._placed(chosen, sizes, packs, match):
                own = tuple(m.at[v] for v in variables)
                yield from self._bodies(p, s, replace(m, tensors={**m.tensors, name: (s.output, own)}))

    def _functions(self, e: Expr, among: Mapping[str, Statement]) -> set[str]:
        """Those that a value is made of, but products, which may be written otherwise."""
        if isinstance(e, Access):
            key = among is self.statements, e
            if key not in self._called_for:
                inner = self._inner(e, among)
                self._called_for[key] = set() if inner is None else self._functions(inner, among)
            return self._called_for[key]
        found = {e.function} - {*_PRODUCT} if isinstance(e, Call) else set()
        return found.union(*(self._functions(x, among) for x in children(e)))

    def _placed(
        self, pack: Mapping[str, str], sizes: Mapping[str, int], packs: Sequence[str], match: Occurrence
    ) -> Iterator[Occurrence]:
        """The match with the variables of an output's index at axes of these packs."""
        groups = {p: [v for v, q in pack.items() if q == p] for p in packs}
        ways = []
        for p, group in groups.items():
            known = match.axes.get(p)
            if known is not None and len(known) != len(group):
                return
            new = [tuple(f"{p}{k}" for k in range(len(group)))]
            ways.append([(p, group, order) for order in (new if known is None else itertools.permutations(known))])
        for way in itertools.product(*ways):
            at = {v: a for _, group, order in way for v, a in zip(group, order, strict=True)}
            known_sizes = {**{at[v]: sizes[v] for v in at}, **match.sizes}
            if any(known_sizes[at[v]] != sizes[v] for v in at):
                continue
            axes = {**{p: order for p, _, order in way}, **match.axes}
            yield replace(match, at=at, axes=axes, sizes=known_sizes)

    def _bodies(self, p: Statement, s: Statement, match: Occurrence) -> Iterator[Occurrence]:
        """The statements' bodies and guards, once their outputs' axes are known."""
        for m in self.unified(p.body, s.body, match):
            yield from self._matched(_conditions(p), _conditions(s), m)

    def unified(self, p: Expr, e: Expr, match: Occurrence) -> Iterator[Occurrence]:
        match p:
            case Access(tensor) if self._is_number(p):
                if isinstance(e, Int | Float) and match.numbers.get(tensor, e) == e:
                    yield replace(match, numbers={**match.numbers, tensor: e})
            case Access():
                if isinstance(e, Access):
                    yield from self._accessed(p, e, match)
                    if self._inner(e, self.statements) is not None:
                        return
                if (inner := self._inner(p, self.pattern.statements)) is not None:
                    yield from self.unified(inner, e, match)
            case Call("ge") if (wanted := bound_of(p)) is not None:
                told = {v: Affine.variable(n) for v, x in match.at.items() if (n := _alone(x, match)) is not None}
                if (form := bound_of(e)) is not None and form.substitute(told) == wanted:
                    yield match
            case Name(name):
                if isinstance(e, Int | Float) and e.value == match.extent(name.lower()):
                    yield match
            case Int() | Float():
                if isinstance(e, Int | Float) and not is_open_number(e.value) and e.value == p.value:
                    yield match
            case Call():
                yield from self._called(p, e, match)

    def _is_number(self, p: Access) -> bool:
        return not p.index and p.tensor not in self.pattern.statements

    def _called(self, p: Call, e: Expr, match: Occurrence) -> Iterator[Occurrence]:
        if p.function in _PRODUCT:
            yield from self._products(p, e, match)
        elif p.function == "add":
            yield from self._matched(self._terms(p, self.pattern.statements), self._terms(e, self.statements), match)
        elif isinstance(e, Access) and (inner := self._inner(e, self.statements)) is not None:
            yield from self.unified(p, inner, match)
        elif isinstance(e, Call) and e.function == p.function and len(e.args) == len(p.args):
            matches = iter([match])
            for x, y in zip(p.args, e.args, strict=True):
                matches = self._each(x, y, matches)
            yield from matches

    def _each(self, x: Expr, y: Expr, matches: Iterator[Occurrence]) -> Iterator[Occurrence]:
        for m in matches:
            yield from self.unified(x, y, m)

    def _matched(self, some: Sequence[Expr], others: Sequence[Expr], match: Occurrence) -> Iterator[Occurrence]:
        """In some order; what is free stands for the rest."""
        free = next((x for x in some if isinstance(x, Access) and x.tensor in self.pattern.free), None)
        if free is not None:
            some = [x for x in some if x is not free]
            if not some:
                yield from self._freed(free, others, match)
                return
        elif len(some) != len(others):
            return
        if not some:
            yield match
            return
        for k, e in enumerate(others):
            for m in self.unified(some[0], e, match):
                rest = some[1:] if free is None else [*some[1:], free]
                yield from self._matched(rest, [*others[:k], *others[k + 1 :]], m)

    def _freed(self, p: Access, parts: Sequence[Expr], match: Occurrence) -> Iterator[Occurrence]:
        """Terms or conditions of the variables of `p`, all of whose reads are inside."""
        own = {a for i in p.index if isinstance(i, Index) for a in match.axes.get(i.name, ())}
        used = {v: match.at.get(v, "") for v in index_variables(*parts)}
        reads = {x: self.types[x.tensor].shape for x in walk(*parts) if isinstance(x, Access)}
        inside = all(
            isinstance(i, Index) and n == match.sizes.get(used[i.name])
            for x, shape in reads.items()
            for i, n in zip(x.index, shape, strict=True)
        )
        odd = any(isinstance(x, Pad | Inside) for x in walk(*parts)) or draws(*parts)
        if odd or not inside or not own.issuperset(used.values()):
            return
        told = tuple(substitute(x, {v: Index(a) for v, a in used.items()}) for x in parts)
        if match.free.get(p.tensor, told) == told:
            yield replace(match, free={**match.free, p.tensor: told})

    def _products(self, p: Expr, e: Expr, match: Occurrence) -> Iterator[Occurrence]:
        above, below, number = self._factors(p, self.pattern.statements)
        over, under, other = self._factors(e, self.statements)
        told = next((x for x in above if isinstance(x, Access) and self._is_number(x)), None)
        if isinstance(told, Access):
            above = [x for x in above if x is not told]
            given = next((x for x in over if isinstance(x, Access) and not x.index), None)
            known = match.numbers.get(told.tensor, Float(other / number) if given is None else given)
            if isinstance(known, Float):
                number *= known.value
            elif known in over:
                place = over.index(known)
                over = over[:place] + over[place + 1 :]
            else:
                return
            match = replace(match, numbers={**match.numbers, told.tensor: known})
        if len(above) != len(over):
            return
        for size in [x for x in below if isinstance(x, Name)]:
            open_, rest = [x for x in under if _number(x) is None], 1.0
            wanted = match.extent(size.name.lower()) if size.name.lower() in match.axes else 0
            found = next((x for x in open_ if isinstance(x, Int | Float) and x.value == wanted), None)
            if found is not None:
                under = [x for x in under if x is not found]
            elif not is_open_number(wanted) and wanted:
                rest = float(wanted)
            else:
                return
            below = [x for x in below if x is not size]
            number /= rest
        if len(below) != len(under) or not math.isclose(number, other, rel_tol=1e-14):
            return
        for m in self._matched(below, under, match):
            yield from self._matched(above, over, m)

    def _factors(self, e: Expr, among: Mapping[str, Statement]) -> tuple[list[Expr], list[Expr], float]:
        """Factors above and below the line, and the product of the plain numbers."""
        match e:
            case Call("mul", (a, b)):
                (x, y, n), (u, v, k) = self._factors(a, among), self._factors(b, among)
                return x + u, y + v, n * k
            case Call("div", (a, b)):
                (x, y, n), (u, v, k) = self._factors(a, among), self._factors(b, among)
                return x + v, y + u, n / k if k else math.nan
            case Call("neg", (a,)):
                x, y, n = self._factors(a, among)
                return x, y, -n
            case Access() if (inner := self._inner(e, among)) is not None and _is_product(inner):
                return self._factors(inner, among)
        number = _number(e)
        return ([e], [], 1.0) if number is None else ([], [], number)

    def _terms(self, e: Expr, among: Mapping[str, Statement]) -> list[Expr]:
        match e:
            case Call("add", (a, b)):
                return [*self._terms(a, among), *self._terms(b, among)]
            case Call("sub", (a, b)):
                return [*self._terms(a, among), *(Call("neg", (x,)) for x in self._terms(b, among))]
            case Access() if (inner := self._inner(e, among)) is not None and _calls(inner, "add", "sub"):
                return self._terms(inner, among)
        return [e]

    def _inner(self, e: Access, among: Mapping[str, Statement]) -> Expr | None:
        """The value of an element that a statement without reductions gives, in the variables that read it."""
        key = among is self.statements, e
        if key not in self._values:
            self._values[key] = self._value(e, among)
        return self._values[key]

    def _value(self, e: Access, among: Mapping[str, Statement]) -> Expr | None:
        s = among.get(e.tensor)
        if s is None or not is_pure(s) or not is_unmasked(s) or s.aggregation not in ("assign", "sum"):
            return None
        variables = distinct_variables(s.index)
        if variables is None or set(index_variables(s.body)) - set(variables):
            return None
        return substitute(s.body, dict(zip(variables, e.index, strict=True)))

    def _accessed(self, p: Access, e: Access, match: Occurrence) -> Iterator[Occurrence]:
        variables = distinct_variables(e.index)
        shape = self.types[e.tensor].shape
        if variables is None:
            return
        known = match.tensors.get(p.tensor)
        if known is not None and known[0] != e.tensor:
            return
        packs = [i.name for i in p.index if isinstance(i, Index)]
        at, axes, sizes = dict(match.at), dict(match.axes), dict(match.sizes)
        for d, v in enumerate(variables):
            if v not in at:
                fresh = self._axis(known[1][d] if known else None, packs, at, axes)
                if fresh is None:
                    return
                at[v] = fresh
            if sizes.setdefault(at[v], shape[d]) != shape[d]:
                return
        own = tuple(at[v] for v in variables)
        if sorted(own) != sorted(a for p_ in packs for a in axes.get(p_, ())) or known and known[1] != own:
            return
        m = replace(match, tensors={**match.tensors, p.tensor: (e.tensor, own)}, at=at, axes=axes, sizes=sizes)
        inner = self.pattern.statements.get(p.tensor)
        if inner is None or known is not None:
            yield m
            return
        s = self.statements.get(e.tensor)
        if s is None or not _alike(inner, s) or (index := distinct_variables(s.index)) is None:
            return
        for found in self._bodies(inner, s, replace(m, at=dict(zip(index, own, strict=True)))):
            yield replace(found, at=m.at)

    def _axis(
        self, told: str | None, packs: Sequence[str], at: Mapping[str, str], axes: dict[str, tuple[str, ...]]
    ) -> str | None:
        """The axis of a variable that is summed over."""
        if told is not None:
            return told
        for p in packs:
            if p not in axes and p not in self.pattern.several:
                axes[p] = (f"{p}0",)
            for a in axes.get(p, ()):
                if a not in at.values():
                    return a
        return None


def _alone(axis: str, match: Occurrence) -> str | None:
    """The variable of the pattern that stands for this axis and no other."""
    return next((v for v, axes in match.axes.items() if axes == (axis,)), None)


def _assigned(variables: Sequence[str], packs: Sequence[str], several: frozenset[str]) -> Iterator[dict[str, str]]:
    """Ways to share variables out to what stands for one, which the last ones mostly do, and for several."""
    alone, others = [p for p in packs if p not in several][::-1], [p for p in packs if p in several]
    for taken in itertools.permutations(variables[::-1], len(alone)):
        rest = [v for v in variables if v not in taken]
        for chosen in itertools.product(others, repeat=len(rest)):
            yield dict(zip((*taken, *rest), (*alone, *chosen), strict=True))


def _alike(p: Statement, s: Statement) -> bool:
    kinds = {"assign", "sum"} if not _reduces(p) else {p.aggregation}
    return is_pure(s) and not s.constraints and s.aggregation in kinds and (_reduces(p) == _reduces(s))


def _reduces(s: Statement) -> bool:
    return bool(set(index_variables(s.body)) - set(index_variables(*(s.index or ()))))


def _number(e: Expr) -> float | None:
    return float(e.value) if isinstance(e, Int | Float) and not is_open_number(e.value) else None


def _is_product(e: Expr) -> bool:
    return isinstance(e, Call) and e.function in _PRODUCT


def _calls(e: Expr, *functions: str) -> bool:
    return isinstance(e, Call) and e.function in functions


def _conditions(s: Statement) -> list[Expr]:
    """All of which must hold."""
    return [c for guard in s.guards for c in operands_of("and", guard)]
