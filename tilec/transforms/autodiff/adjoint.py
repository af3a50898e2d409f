"""The gradient of a contraction: how the cotangent of an aggregation reaches its body, one rule an aggregation, and the
statement that adds up what one access receives.

A contraction `O[f : s] = AGG(guard ? body), constraints` is flipped for each access A[g] of its body:

    dA[g : sizes of A] = +(guard ? dO[f] * d body / d A[g] * in(...)), constraints

over the same index variables. `in(...)` stands for every access that constrains the points of the contraction and that
the derivative no longer reads, in the branch in which it did, so that the points are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.constraining import Branch, Demand, PointNode, always, as_factor, assume, demands, unmet, without_identity
from tilec.ir.functions import INFINITY, ONE
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Pad,
    Statement,
    accesses_in,
    children,
    index_variables,
    map_expressions,
    rebuild,
    walk,
)
from tilec.language.bounded import unbounded
from tilec.transforms.autodiff.pullback import Cotangent, Leaf, conjunction, known, product, pull_back, total
from tilec.transforms.simplify.simplify import fold
from tilec.transforms.util.extents import Extent, sizes
from tilec.transforms.util.naming import all_variables, fresh_variable, rename, rename_constraint, separate


@dataclass(frozen=True)
class LeafScope:
    """The points at which a leaf is read: all the aggregations it stands in, the statement's own first."""

    guards: tuple[Expr, ...]
    constraints: tuple[Constraint, ...]
    demands: tuple[Demand, ...]
    variables: tuple[str, ...]


@dataclass(frozen=True)
class AggregationSite:
    """One aggregation as its rule sees it, a statement's or a nested one.

    `value` is its result at the point at hand and `ones` a body that is 1 at each point that makes up that result;
    `over(name, body, called)` is the aggregation `name` of another body over those points (a statement's is a tensor
    `called` so) and `others()` the product of the body over them without the one at hand.
    """

    body: Expr
    value: Expr
    ones: Expr
    over: Callable[[str, Expr, str], Expr]
    others: Callable[[], Expr]


AdjointRule = Callable[[Cotangent, AggregationSite], Cotangent | None]


def _through(g: Cotangent, a: AggregationSite) -> Cotangent:
    return g


def _mean(g: Cotangent, a: AggregationSite) -> Cotangent:
    return g.over(a.over("sum", a.ones, "Count"))


def _product(g: Cotangent, a: AggregationSite) -> Cotangent:
    return g.times(a.others())


def _winner(a: AggregationSite) -> Expr:
    return Call("eq", (a.body, a.value))


def _extremum(g: Cotangent, a: AggregationSite) -> Cotangent | None:
    return g.over(a.over("sum", _winner(a), "Ties")).where(_winner(a))


def _among_winners(g: Cotangent, a: AggregationSite) -> Cotangent | None:
    return g.where(_winner(a))


def _logsumexp(g: Cotangent, a: AggregationSite) -> Cotangent | None:
    """At -inf no point contributes; at +inf the points that are +inf get NaN and the others 0, as torch has it."""
    return g.times(Call("exp", (a.body - a.value,))).where(Call("ne", (a.value, -INFINITY)))


# The cotangent of the body at a point, given that of the result; None: nothing flows.
ADJOINT_RULES: dict[str, AdjointRule | None] = {
    **{a.name: None for a in AGGREGATIONS.values() if a.result in ("bool", "bits", "int64")},
    "sum": _through,
    "assign": _through,
    "mean": _mean,
    "prod": _product,
    "max": _extremum,
    "min": _extremum,
    "logsumexp": _logsumexp,
}

# Forward, the tangent of the body takes the cotangent's place, and an aggregation adds up what the rule makes of it.
TANGENTS: dict[str, tuple[str, AdjointRule | None]] = {
    **{name: ("sum", rule) for name, rule in ADJOINT_RULES.items()},
    "assign": ("assign", _through),
    "mean": ("mean", _through),
}
# Nested, an extremum's ties would be counted at each of its points; a mean counts them once.
NESTED_TANGENTS = {**TANGENTS, "max": ("mean", _among_winners), "min": ("mean", _among_winners)}


class Contraction:
    """A contraction to be flipped, given the name of its output's cotangent.

    `emit` appends a statement to the gradient program under a fresh name like the one it has, which it returns.
    """

    def __init__(self, s: Statement, cotangent: str, known: Mapping[str, Extent], emit: Callable[[Statement], str]):
        assert s.index is not None
        self.s = separate(bounded(s))
        self.index = s.index
        self.extents = {**known, cotangent: known[s.output]}
        self.result = Access(s.output, s.index)
        self.place = Access(cotangent, s.index)
        self.cotangent: Expr = self.place
        self.emit = emit
        self.used = all_variables(self.s)

    def contributions(self, active: Callable[[str], bool]) -> Iterator[Statement]:
        """One statement for each access of an active tensor; its output is named after that tensor."""
        for access, where, g in self.leaves(active):
            yield self._flip(access, g, where)

    def leaves(self, active: Callable[[str], bool]) -> Iterator[tuple[Access, LeafScope, Cotangent]]:
        """Each access of an active tensor, the points at which it stands, and its cotangent there."""
        s = self.s
        variables = index_variables(*self.index, *s.roots, *parts(s.constraints))
        scope = LeafScope(s.guards, s.constraints, demands(*s.roots), variables)
        start = self._enter_statement()
        if start is None:
            return
        groups: dict[tuple[Access, LeafScope], list[Cotangent]] = {}
        known = self.result if s.aggregation == "assign" else None
        for leaf in pull_back(s.body, start, scope, active, self._enter_nested, known):
            assert isinstance(leaf.scope, LeafScope)
            groups.setdefault((_as_access(leaf), leaf.scope), []).append(leaf.cotangent)
        for (access, where), terms in groups.items():
            yield access, where, total(terms)

    def written(self) -> str:
        """The name of a tensor that says which elements of the output some point writes, or how many points do."""
        gathers = any(accesses_in(*self.index))  # where `any` cannot write
        ones = self._ones(self._demands(), self.result)
        return self._statement("sum" if gathers else "any", ones, "Written")

    def _demands(self) -> tuple[Demand, ...]:
        return demands(self.s.guard, self.s.body)

    def aggregation(self) -> AggregationSite:
        """The statement's own."""
        s = self.s
        return AggregationSite(
            s.body,
            self.result,
            self._ones(self._demands(), self.result),
            lambda name, body, called: Access(self._statement(name, body, called), self.index),
            lambda: self._others(s.body, s.guard, s.constraints, self._summed(), self.index),
        )

    def nested(self, e: Aggregate) -> AggregationSite:
        """One that stands in the statement's body."""

        def over(name: str, body: Expr, called: str) -> Expr:
            if not e.bound:  # a single point
                return body
            guard = self.keep(e.bound, e.guard, body)
            return replace(e, aggregation=name, body=body, guard=guard)

        others = lambda: self._others(e.body, e.guard, e.constraints, e.bound, ())  # noqa: E731
        return AggregationSite(e.body, e, self._ones(demands(e.guard, e.body), None), over, others)

    def _enter_statement(self) -> Cotangent | None:
        rule = ADJOINT_RULES[self.s.aggregation]
        return None if rule is None else rule(Cotangent(self.cotangent), self.aggregation())

    def _enter_nested(self, e: Aggregate, g: Cotangent, scope: object) -> tuple[Cotangent, object] | None:
        assert isinstance(scope, LeafScope)
        rule = ADJOINT_RULES[e.aggregation]
        inner = None if rule is None else rule(g, self.nested(e))
        if inner is None:
            return None
        return inner, LeafScope(
            (*scope.guards, *e.guards),
            (*scope.constraints, *e.constraints),
            (*scope.demands, *demands(e.guard, e.body)),
            (*scope.variables, *e.bound),
        )

    def _flip(self, access: Access, g: Cotangent, scope: LeafScope) -> Statement:
        guard, body = conjunction((*scope.guards, *g.masks)), g.value
        provided = (access, *demands(*access.index, guard, body))
        asked = assume((*scope.demands, self.place), *known(g.masks))
        body = product(body, *map(as_factor, self.missing(asked, provided)))
        guard = self.keep(scope.variables, guard, *access.index, body)
        extent = sizes(self.extents[access.tensor], len(access.index))
        constraints = tuple(dict.fromkeys(scope.constraints))
        return separate(Statement(access.tensor, access.index, extent, body, "sum", guard, constraints))

    def _ones(self, wanted: tuple[Demand, ...], given: Access | None) -> Expr:
        """1 at the points that meet all the demands."""
        provided = () if given is None else (given,)
        return product(ONE, *map(as_factor, self.missing(wanted, provided)))

    def missing(self, wanted: Iterable[Demand], provided: Iterable[Demand]) -> list[Demand]:
        """The demands that constrain the points more than the provided ones do."""
        wanted, provided = list(wanted), list(provided)
        result: list[Demand] = [*unmet(always(wanted), always(provided), self._pairs)]
        for d in (d for d in wanted if isinstance(d, Branch)):
            given: list[Demand] = [*always(provided), *always(result)]
            also = [p for p in provided if isinstance(p, Branch) and p.condition == d.condition]
            yes = self.missing(d.yes, [*given, *(x for p in also for x in p.yes)])
            no = self.missing(d.no, [*given, *(x for p in also for x in p.no)])
            if yes or no:
                result.append(Branch(d.condition, tuple(yes), tuple(no)))
        return result

    def _pairs(self, a: Access) -> Iterator[tuple[Expr, Expr]]:
        """What an access demands: each index inside that size."""
        return zip(a.index, sizes(self.extents[a.tensor], len(a.index)), strict=True)

    def keep(self, variables: tuple[str, ...], guard: Expr | None, *roots: Expr) -> Expr | None:
        """The guard, naming also what would otherwise stand in constraints or nested aggregations alone."""
        found = set(_outside(*roots, *(() if guard is None else (guard,))))
        extra = tuple(Call("eq", (Index(v), Index(v))) for v in variables if v not in found)
        return conjunction((*(() if guard is None else (guard,)), *extra))

    def _statement(self, aggregation: str, body: Expr, called: str) -> str:
        s = self.s
        guard = self.keep(index_variables(s.body), s.guard, *self.index, body)
        extent = sizes(self.extents[s.output], len(self.index))
        made = Statement(called, self.index, extent, body, aggregation, guard, s.constraints)
        name = self.emit(separate(made))
        self.extents[name] = self.extents[s.output]
        return name

    def _summed(self) -> tuple[str, ...]:
        """The variables that two points of one output element may differ in."""
        s = self.s
        fixed = {e.name for e in self.index if isinstance(e, Index)}
        return tuple(v for v in index_variables(*self.index, *s.roots) if v not in fixed)

    def _others(
        self,
        body: Expr,
        guard: Expr | None,
        constraints: tuple[Constraint, ...],
        summed: tuple[str, ...],
        index: tuple[Expr, ...],
    ) -> Expr:
        """The product over the other points of the same element: `prod(k' != k ? body at k')`."""
        if not summed:
            return ONE
        names = {v: fresh_variable(v, self.used) for v in summed}
        differ: Expr | None = None
        for old, new in names.items():
            one = Call("ne", (Index(new), Index(old)))
            differ = one if differ is None else Call("or", (differ, one))
        assert differ is not None
        conditions = [differ]
        moved = [rename_constraint(c, names) for c in constraints if set(index_variables(*parts((c,)))) & set(names)]
        for e in index:
            if set(index_variables(e)) & set(names):
                other = rename(e, names)
                if any(isinstance(x, (Access, Pad)) for x in walk(e)):
                    conditions.append(Call("eq", (other, e)))
                else:
                    moved.append(Constraint(other - e, Int(1)))
        if guard is not None:
            conditions.append(rename(guard, names))
        return Aggregate(
            "prod", rename(body, names), tuple(names.values()), conjunction(tuple(conditions)), tuple(moved)
        )


def bounded(s: Statement) -> Statement:
    """The statement with branches that are the aggregation's identity dropped by its guard, where only the others bound
    its variables; nested aggregations likewise."""

    def visit(e: Expr) -> Expr:
        e = rebuild(e, visit)
        match e:
            case Aggregate():
                return _pruned(e, e.bound, ())
            case Call("select", (condition, a, b)):  # as the masks of a cotangent have it
                return replace(e, args=(fold(condition), a, b))
        return e

    s = map_expressions(s, visit)
    return _pruned(s, index_variables(*(s.index or ()), s.body), s.index or ())


def _pruned(s: PointNode, variables: tuple[str, ...], index: tuple[Expr, ...]) -> PointNode:
    forms: list[Expr] = [i for a in always(demands(*index, s.guard, s.body)) for i in a.index]
    loose = unbounded(variables, [*index, *forms, *(c.expr for c in s.constraints)])
    return without_identity(s) if loose else s


def parts(constraints: tuple[Constraint, ...]) -> tuple[Expr, ...]:
    return tuple(e for c in constraints for e in (c.expr, c.bound))


def _as_access(leaf: Leaf) -> Access:
    """A whole tensor that stands in a contraction has rank 0."""
    return leaf.read if isinstance(leaf.read, Access) else Access(leaf.read.name, ())


def _outside(*roots: Expr) -> Iterator[str]:
    """Index variables that stand outside nested aggregations."""
    stack = list(roots)
    while stack:
        e = stack.pop()
        if isinstance(e, Index):
            yield e.name
        elif not isinstance(e, Aggregate):
            stack.extend(children(e))
