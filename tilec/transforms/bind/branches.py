"""Accesses in branches, once sizes are known: none is left that constrains only where its branch is taken.

A branch's access that may lie outside is read through `pad`, and the guard drops the points where the branch is taken
all the same. What only branches bounded gets a constraint: the range over all ways through the conditionals.

    Y[i : 6] = i < 3 ? X[i + 3] : X[i - 3];                       before
    Y[i : 6] = i < 3 ? pad(X[i + 3], 0) : pad(X[i - 3], 0);       after: no guard, since each is inside where it is read
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilec.errors import AffineMistake, UnboundIndex, Unsupported
from tilec.ir.aggregations import NUMBERED
from tilec.ir.constraining import (
    Branch,
    Demand,
    PointNode,
    always,
    conditional,
    constraining,
    demands,
    product_of_demands,
    without_identity,
)
from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Pad,
    Statement,
    index_variables,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType
from tilec.lattice.sets import Box, InRange, IntegerSet, Shapes, bounds_of, depends_on_data, domain_of, sizes_of
from tilec.transforms.simplify.keep_variables import combined_condition, keep_aggregate, keep_variables
from tilec.transforms.util.naming import separate

MOST_PATHS = 64  # through the conditionals of one region that are looked at one by one
ENDLESS = 2**62  # the bound of a condition that has none
CONSTRAIN = "bound them by constraints such as `i < N`"


def resolve(s: Statement, types: Mapping[str, TensorType]) -> Statement:
    """A bound statement without demands under conditions, its nested aggregations likewise.

    Raises UnboundIndex where a way through the conditionals leaves a variable unbounded.
    """
    return _Resolver(s, types).statement()


@dataclass(frozen=True)
class ConditionalPath:
    """One way through the conditionals: the accesses that constrain there, and what its conditions say of indices."""

    accesses: tuple[Access, ...] = ()
    conditions: tuple[InRange, ...] = ()


def conditional_paths(wanted: Iterable[Demand]) -> list[ConditionalPath] | None:
    """All ways through the demands' conditionals; None where they are too many."""
    result = [ConditionalPath()]
    for d in wanted:
        if isinstance(d, Access):
            result = [replace(w, accesses=(*w.accesses, d)) for w in result]
            continue
        sides = [(side, alternatives(d.condition, taken)) for side, taken in ((d.yes, True), (d.no, False))]
        within = [conditional_paths(side) for side, _ in sides]
        branches = [
            ConditionalPath(inner.accesses, (*conditions, *inner.conditions))
            for (_, found), inside in zip(sides, within, strict=True)
            for conditions in found
            for inner in inside or ()
        ]
        if None in within or len(result) * len(branches) > MOST_PATHS:
            return None
        result = [
            ConditionalPath((*w.accesses, *b.accesses), (*w.conditions, *b.conditions))
            for w in result
            for b in branches
        ]
    return result


def enclosing_paths(wanted: Iterable[Demand], bounded: Callable[[ConditionalPath], bool]) -> list[ConditionalPath]:
    """Ways through no more conditionals than make each of them `bounded`: every valid point is one of theirs, and
    others may be. Raises Unsupported where even these are too many."""

    def shared(d: Branch) -> int:
        yes, no = (set(index_variables(product_of_demands(side))) for side in (d.yes, d.no))
        return len(yes & no)

    result: list[ConditionalPath] = []
    pending: list[tuple[ConditionalPath, list[Demand]]] = [(ConditionalPath(), list(wanted))]
    while pending:
        way, asked = pending.pop()
        way = replace(way, accesses=(*way.accesses, *always(asked)))
        branches = sorted((d for d in asked if isinstance(d, Branch)), key=shared)
        if not branches or bounded(way):
            result.append(way)
            continue
        d = branches.pop()
        for side, taken in ((d.yes, True), (d.no, False)):
            for conditions in alternatives(d.condition, taken):
                pending.append((replace(way, conditions=(*way.conditions, *conditions)), [*side, *branches]))
        if len(result) + len(pending) > 8 * MOST_PATHS:
            raise Unsupported("index variables are bounded by too many conditionals", hint=CONSTRAIN)
    return result


def domains(
    s: Statement | Aggregate,
    shapes: Shapes,
    around: IntegerSet,
    own: str | None,
    index: Sequence[Expr] = (),
    sizes=(),
    enough: Callable[[IntegerSet], bool] | None = None,
) -> list[IntegerSet]:
    """Sets whose union holds every valid point of a region, and none that is not one whatever the elements are. Where
    they would be too many, sets that hold others too, each of which is `enough`."""
    wanted = demands(*index, s.guard, s.body, own=own)
    at = partial(_domain, s, shapes, around, own, index, sizes)
    found = conditional_paths(wanted)
    if found is None:
        if s.aggregation in NUMBERED:
            raise Unsupported(f"{s.aggregation} numbers the points of too many conditionals", s.span)
        found = enclosing_paths(wanted, lambda way: enough is None or enough(at(way)))
    return [at(way) for way in found]


def _domain(s, shapes: Shapes, around: IntegerSet, own: str | None, index, sizes, way: ConditionalPath) -> IntegerSet:
    inner = domain_of(way.accesses, shapes, s.constraints, index, sizes, own=own)
    named = index_variables(*index, *s.roots, *(c.expr for c in s.constraints))
    variables = dict.fromkeys((*around.variables, *named))
    conditions = dict.fromkeys((*around.conditions, *inner.conditions, *way.conditions))
    return IntegerSet(tuple(variables), tuple(conditions), (*around.dependent, *inner.dependent))


def _bounded(d: IntegerSet) -> bool:
    try:
        return not _endless(bounds_of(d) or {})
    except UnboundIndex:
        return False


def _endless(box: Box) -> list[str]:
    """The variables that one-sided conditions alone bound."""
    return [v for v, ends in box.items() if max(map(abs, ends)) > ENDLESS // 4]


# conditions on indices


def alternatives(e: Expr, sense: bool) -> list[tuple[InRange, ...]]:
    """Conditions of which some hold wherever `e` is true (or, by `sense`, false); no conditions where it says nothing
    of indices."""
    match e:
        case Int(value) | Float(value):
            return [()] if bool(value) == sense else []
        case Call("and" | "or", (a, b)) if _truth(a) and _truth(b):
            left, right = alternatives(a, sense), alternatives(b, sense)
            if (e.function == "and") == sense:
                both = [(*x, *y) for x in left for y in right]
                return both if len(both) <= MOST_PATHS else [()]
            return [*left, *right]
        case Call("eq" | "ne", (a, b)) if b == ZERO and _truth(a):
            return alternatives(a, sense == (e.function == "ne"))
        case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne", (a, b)):
            x, y = _form(a), _form(b)
            if x is not None and y is not None:
                return _compared(e.function, x - y, sense)
    return [()]


def _truth(e: Expr) -> bool:
    match e:
        case Call("and" | "or" | "xor", (a, b)):
            return _truth(a) and _truth(b)
    return isinstance(e, Call) and e.function in _NOT


_NOT = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def _compared(function: str, difference: Affine, sense: bool) -> list[tuple[InRange, ...]]:
    function = function if sense else _NOT[function]
    below, above = InRange(-difference - 1, ENDLESS), InRange(difference - 1, ENDLESS)
    match function:
        case "lt":
            return [(below,)]
        case "gt":
            return [(above,)]
        case "le":
            return [(InRange(-difference, ENDLESS),)]
        case "ge":
            return [(InRange(difference, ENDLESS),)]
        case "eq":
            return [(InRange(difference, 1),)]
    return [(below,), (above,)]


def _form(e: Expr) -> Affine | None:
    """The form of a value that is integer arithmetic of index variables; between values `/` truncates, so none."""
    stack = [e]
    while stack:
        match stack.pop():
            case Index() | Int():
                pass
            case Call("add" | "sub" | "neg" | "mul" | "max" | "min" | "abs" | "clamp", args):
                stack.extend(args)
            case Call("mod", (a, Int(n))) if n:
                stack.append(a)
            case _:
                return None
    try:
        return linear(e)
    except AffineMistake:
        return None


# the statement


class _Resolver:
    def __init__(self, s: Statement, types: Mapping[str, TensorType]):
        self.s, self.types = s, types
        self.shapes = {name: t.shape for name, t in types.items()}
        self.own = s.output

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
        base: IntegerSet = _domain(s, self.shapes, around, self.own, index, sizes, ConditionalPath(here))
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
        base = _domain(s, self.shapes, around, self.own, index, sizes, ConditionalPath(here))
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
