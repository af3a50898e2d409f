"""Accesses in branches, once sizes are known: none is left that constrains only where its branch is taken.

A branch's access that may lie outside is read through `pad`, and the guard drops the points where the branch is taken
all the same. What only branches bounded gets a constraint: the range over all ways through the conditionals.

    Y[i : 6] = i < 3 ? X[i + 3] : X[i - 3];                       before
    Y[i : 6] = i < 3 ? pad(X[i + 3], 0) : pad(X[i - 3], 0);       after: no guard, since each is inside where it is read
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tilec.errors import UnboundIndex
from tilec.ir.constraining import Branch, PointNode, always, conditional, constraining, demands, without_identity
from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Inside,
    Int,
    Pad,
    Statement,
    index_variables,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType, shapes_in
from tilec.lattice.conditions import ENDLESS, alternatives
from tilec.lattice.questions import InRange
from tilec.lattice.sets import Box, IntegerSet, bounds_of, depends_on_data, sizes_of
from tilec.transforms.bind.conditional_paths import ConditionalPath, domains, path_domain
from tilec.transforms.simplify.keep_variables import combined_condition, keep_aggregate, keep_variables
from tilec.transforms.util.naming import separate


def resolve(s: Statement, types: Mapping[str, TensorType]) -> Statement:
    """A bound statement without demands under conditions, its nested aggregations likewise.

    Raises UnboundIndex where a way through the conditionals leaves a variable unbounded.
    """
    return _Resolver(s, types).statement()


class _Resolver:
    def __init__(self, s: Statement, types: Mapping[str, TensorType]):
        self.s, self.types = s, types
        self.own = s.output

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_in(self.types)

    def statement(self) -> Statement:
        s = self.s
        sizes = sizes_of(s)
        if not any(conditional(demands(*roots, own=self.own)) for roots in _regions(s)):
            return s
        nothing = IntegerSet((), ())
        s, points = self.region(s, nothing, s.index or (), sizes)
        s = keep_variables(s, self.s)
        guard = None if s.guard is None else self.nested(s.guard, points)
        s = replace(s, guard=guard, body=self.nested(s.body, points))
        return separate(s) if _shares_constraints(s) else s

    def nested(self, e: Expr, around: IntegerSet) -> Expr:
        if not isinstance(e, Aggregate):
            return rebuild(e, lambda x: self.nested(x, around))
        new, points = self.region(e, around, (), ())
        e = new if new is e else keep_aggregate(new)
        return rebuild(e, lambda x: self.nested(x, points))

    def region(
        self, s: PointNode, around: IntegerSet, index: Sequence[Expr], sizes: Sequence[int]
    ) -> tuple[PointNode, IntegerSet]:
        """The region resolved, and the points of it and of those around it, or more."""
        wanted = demands(*index, s.guard, s.body, own=self.own)
        here = tuple(always(wanted))
        base: IntegerSet = path_domain(s, self.shapes, around, self.own, index, sizes, ConditionalPath(here))
        if not conditional(wanted):
            return s, base
        try:
            box: Box | None = self.box(s, around, index, sizes)
        except UnboundIndex as mistake:
            pruned = self.pruned(s)
            if pruned is None:
                mistake.span = mistake.span or s.span
                raise
            return self.region(pruned, around, index, sizes)
        bound: tuple[str, ...] = s.bound if isinstance(s, Aggregate) else base.variables
        s = replace(s, constraints=tuple(dict.fromkeys((*s.constraints, *self.ranges(base, box, bound)))))
        base = path_domain(s, self.shapes, around, self.own, index, sizes, ConditionalPath(here))
        guards: list[Expr] = [c for d in wanted if isinstance(d, Branch) if (c := self.guards(d, base, ())) is not None]
        guard: Expr | None = None if s.guard is None else self.padded(s.guard, base)
        body = self.padded(s.body, base)
        if guards:
            guard = combined_condition([*guards, *(() if guard is None else (guard,))])
        return replace(s, guard=guard, body=body), base

    def pruned(self, s: PointNode) -> PointNode | None:
        """The region without the branches that are its identity, in the type that it had; None where it has none."""
        new = without_identity(s)
        if new is s:
            return None
        was = expression_type(s.body, self.types)
        if expression_type(new.body, self.types) == was:
            return new
        return None if was.weak else replace(new, body=Call(was.dtype, (new.body,)))

    def box(self, s: PointNode, around: IntegerSet, index, sizes) -> Box | None:
        """The range of each variable over all ways; None where there is no point."""
        found = domains(s, self.shapes, around, self.own, index, sizes, _bounded)
        boxes = [b for d in found if (b := bounds_of(d)) is not None]
        free = {v: None for b in boxes for v in _endless(b)}
        if free:
            names = f"the index variable{'s' * (len(free) > 1)} {', '.join(free)}"
            raise UnboundIndex(
                f"in a branch of this conditional nothing bounds {names}",
                s.span,
                hint="a bound is the index of a tensor read there, or a constraint; a branch such as `: 0` of a sum "
                "needs none",
            )
        if not boxes:
            return None
        return {v: (min(b[v][0] for b in boxes), max(b[v][1] for b in boxes)) for v in boxes[0]}

    def ranges(self, base: IntegerSet, box: Box | None, bound: Sequence[str]) -> Iterator[Constraint]:
        """Constraints for what the unconditional demands leave wider than the box."""
        try:
            known = bounds_of(base) or {}
        except UnboundIndex:
            known = {}
        for v in bound:
            low, high = (0, -1) if box is None else box[v]
            if known.get(v) != (low, high):
                yield Constraint((Affine.variable(v) - low).to_expr(), Int(high - low + 1))

    # accesses

    def guards(self, d: Branch, base: IntegerSet, given: tuple[InRange, ...], branch: bool = False) -> Expr | None:
        """The condition that the taken branch's accesses lie inside; None where they surely do. `branch`: is what it
        depends on itself asked in a branch alone?"""
        sides: list[Expr] = []
        for side, sense in ((d.yes, True), (d.no, False)):
            conditions = []
            found = alternatives(d.condition, sense)
            inner = {i for a in always(side) for e in a.index for i in constraining(e)}
            for x in side:
                if isinstance(x, Branch):
                    if len(found) <= 1:
                        one = self.guards(x, base, (*given, *(found[0] if found else ())), True)
                    else:
                        one = self.guards(x, base, given, True)
                elif x in inner or all(self.inside(x, base, (*given, *way)) for way in found):
                    one = None
                else:
                    one = Call("ne", (Pad(Inside(x), ZERO), ZERO))
                if one is not None:
                    conditions.append(one)
            sides.append(combined_condition(conditions) if conditions else Int(1))
        if sides == [Int(1), Int(1)]:
            return None
        return Call("select", (self.padded(d.condition, base, branch), *sides))

    def inside(self, a: Access, base: IntegerSet, given: tuple[InRange, ...]) -> bool:
        """Does the access surely lie inside, at all the points at which the given conditions hold?"""
        for e, n in zip(a.index, self.shapes[a.tensor], strict=True):
            form = linear(e)
            asked = InRange(form, n)
            if asked in base.conditions or asked in given:
                continue
            if depends_on_data(form) or not _whole(form) or n <= 0:
                return False
            for outside in (InRange(-form - 1, ENDLESS), InRange(form - n, ENDLESS)):
                try:
                    if bounds_of(replace(base, conditions=(*base.conditions, *given, outside))) is not None:
                        return False
                except UnboundIndex:
                    return False
        return True

    def padded(self, e: Expr, base: IntegerSet, branch: bool = False) -> Expr:
        """The expression with the accesses in its branches read through `pad`, where they may lie outside."""
        match e:
            case Access():
                if e.tensor == self.own:
                    return replace(e, index=tuple(self.padded(i, base, branch) for i in e.index))
                if branch and not self.inside(e, base, ()):
                    return Pad(e, self.zero(e), span=e.span)
                return e
            case Inside(access):
                return Int(1) if branch and not self.inside(access, base, ()) else e
            case Pad():
                return replace(e, value=self.padded(e.value, base, branch))
            case Aggregate():
                return e
            case Call("select", (c, a, b)):
                parts = self.padded(c, base, branch), self.padded(a, base, True), self.padded(b, base, True)
                return replace(e, args=parts)
        return rebuild(e, lambda x: self.padded(x, base, branch))

    def zero(self, e: Access) -> Expr:
        return Call("ne", (ZERO, ZERO)) if self.types[e.tensor].dtype == "bool" else ZERO


def _bounded(d: IntegerSet) -> bool:
    try:
        return not _endless(bounds_of(d) or {})
    except UnboundIndex:
        return False


def _endless(box: Box) -> list[str]:
    """The variables that one-sided conditions alone bound."""
    return [v for v, ends in box.items() if max(map(abs, ends)) > ENDLESS // 4]


def _whole(form: Affine) -> bool:
    """Is the form an integer at every integer point, the arguments of its words included?"""
    if not form.is_integral:
        return False
    return all(_whole(linear(x)) for a in form.atoms() if isinstance(a, Call) for x in a.args)


def _shares_constraints(s: Statement) -> bool:
    """Would a constraint of one nested aggregation, as text, belong to another that binds a variable of that name?"""
    nested = [e for e in walk(*s.roots) if isinstance(e, Aggregate)]
    wanted = dict.fromkeys(c for e in nested for c in e.constraints)
    return any(c not in e.constraints and set(index_variables(c.expr)) & set(e.bound) for e in nested for c in wanted)


def _regions(s: Statement) -> Iterator[tuple[Expr, ...]]:
    stack: list[Expr] = list(s.roots)
    yield tuple(stack)
    while stack:
        e = stack.pop()
        if isinstance(e, Aggregate):
            yield e.roots
            stack.extend(e.roots)
        elif isinstance(e, (Call, Pad)):
            stack.extend(e.args if isinstance(e, Call) else (e.value,))
