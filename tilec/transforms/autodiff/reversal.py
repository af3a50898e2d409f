"""The gradient of a recurrence: the recurrence of its cotangents, which runs the other way.

What an element H[x] receives is DH[x], from the statements after it, and, for each read H[e(p)] at a point p with
e(p) = x, what the element written at p has received times the derivative there:

    G[x] = DH[x] + G[y(x)] * W[x] + ...

where a read can be solved for its point, p = y(x): W, the derivative at that point, is then a statement of its own, of
which all times are computed at once, and so is the condition `Gate` under which it counts. Otherwise the points are
summed over in a nested aggregation. With all cotangents known, the other tensors get theirs as from any statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilec.errors import AffineMistake
from tilec.ir.constraining import as_factor, assume, demands
from tilec.ir.functions import ONE, ZERO
from tilec.ir.index import Affine, canonical, linear, same_form
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Int,
    Name,
    Pad,
    Statement,
    index_variables,
    walk,
)
from tilec.transforms.autodiff.adjoint import Contraction, LeafScope
from tilec.transforms.autodiff.pullback import Cotangent, conjunction, known, product
from tilec.transforms.recurrence import padded, substituted
from tilec.transforms.simplify.keep_variables import as_conditions
from tilec.transforms.simplify.simplify import fold, is_bool
from tilec.transforms.util.extents import Extent, sizes
from tilec.transforms.util.naming import Names, all_variables, fresh_variable, rename, rename_constraint, separate

UNIT = Float(1.0)  # the seed of a derivative: an integer would make quotients of integers


def cotangents(
    s: Statement, received: str, known: Mapping[str, Extent], names: Names, emit: Callable[[Statement], str]
) -> Statement | None:
    """The statement of all that the elements of a recurrence receive, given the name of the tensor of what they receive
    from the statements after it; None where that is all. `emit` appends a statement that it needs under a fresh name
    like its own."""
    return _Reversal(s, received, known, names, emit).run()


@dataclass(frozen=True)
class _Points:
    """The points at which the element at the left's variables is read: the renamed and solved variables of the
    statement, those that are left to sum over, and equations that remain."""

    names: dict[str, str]
    solved: dict[str, Expr]
    bound: tuple[str, ...]
    equations: tuple[Constraint, ...]

    def at(self, e: Expr) -> Expr:
        return substituted(rename(e, self.names), self.solved)

    def constraint(self, c: Constraint) -> Constraint:
        moved = rename_constraint(c, self.names)
        return replace(moved, expr=substituted_index(moved.expr, self.solved))


def substituted_index(e: Expr, solved: dict[str, Expr]) -> Expr:
    """An index expression with variables replaced, canonical where it can be."""
    try:
        return linear(e).substitute({v: linear(x) for v, x in solved.items()}).to_expr()
    except AffineMistake:
        return substituted(e, solved)


class _Reversal:
    def __init__(
        self, s: Statement, received: str, known: Mapping[str, Extent], names: Names, emit: Callable[[Statement], str]
    ):
        self.s = padded(s)
        assert self.s.index is not None
        self.index = self.s.index
        self.emit, self.received = emit, received
        self.known = dict(known)
        self.output = names.fresh(f"G{s.output}")
        self.sizes = sizes(self.known[s.output], len(self.index))
        self.used = all_variables(self.s)
        bare = [e.name if isinstance(e, Index) else "" for e in self.index]
        self.left = [v if v and bare.count(v) == 1 else fresh_variable("x", self.used) for v in bare]

    def run(self) -> Statement | None:
        s = self.s
        own = s.output.__eq__
        whole = Contraction(s, self.output, self.known, self.emit)
        unit = Contraction(s, self.output, self.known, self.emit)
        unit.cotangent = UNIT
        place = tuple(map(Index, self.left))
        terms: list[Expr] = [Access(self.received, place)]
        for (access, scope, g), (_, _, d) in zip(whole.leaves(own), unit.leaves(own), strict=True):
            points = self._points(access, scope, g)
            terms.append(self._summed(g, scope, points) if points.bound else self._gated(d, scope, points))
        if len(terms) == 1:
            return None
        body = terms[0]
        for term in terms[1:]:
            body = body + term
        return separate(Statement(self.output, place, self.sizes, fold(body)))

    # the points of a read

    def _points(self, access: Access, scope: LeafScope, g: Cotangent) -> _Points:
        inner = (e for root in (g.value, *g.masks) for e in walk(root) if isinstance(e, Aggregate))
        used = {*self.used, *scope.variables, *self.left, *(v for e in inner for v in e.bound)}
        names = {v: fresh_variable(v, used) for v in scope.variables}
        solved: dict[str, Affine] = {}
        equations: list[Constraint] = []
        for i, x in zip(access.index, self.left, strict=True):
            target = Affine.variable(x)
            renamed = rename(i, names)
            try:
                form = linear(renamed).substitute(solved)
            except AffineMistake:
                equations.append(Constraint(renamed - Index(x), Int(1)))
                continue
            found = self._solved(form, target, set(names.values()) - set(solved), names)
            if found is None:
                equations.append(Constraint((form - target).to_expr(), Int(1)))
                continue
            v, value = found
            solved = {u: other.substitute({v: value}) for u, other in solved.items()}
            solved[v] = value
        bound = tuple(n for n in names.values() if n not in solved)
        final = {v: form.to_expr() for v, form in solved.items()}
        moved = (replace(c, expr=substituted_index(c.expr, final)) for c in equations)
        return _Points(names, final, bound, tuple(moved))

    def _solved(
        self, form: Affine, target: Affine, free: set[str], names: Mapping[str, str]
    ) -> tuple[str, Affine] | None:
        """A variable that the equation `form = target` gives as an integer form of the others."""
        own_variables = set(index_variables(*form.atoms()))
        for v in form.variables():
            c = form.coefficient(v)
            if abs(c) == 1 and v in free and v not in own_variables:
                rest = form - Affine.variable(v, c)
                if rest.is_integral:
                    return v, (target - rest) * (1 / c)
        match form.atoms():
            case (Call("mod", (inner, n)),) if form == Affine.of([(form.atoms()[0], 1)]):
                return self._unwrapped(linear(inner), n, target, free, names)
        return None

    def _unwrapped(
        self, inner: Affine, n: Expr, target: Affine, free: set[str], names: Mapping[str, str]
    ) -> tuple[str, Affine] | None:
        """`(v + c) % n = x` is `v = (x - c) % n` where v runs over 0 .. n - 1."""
        variables = inner.variables()
        if len(variables) != 1 or index_variables(*inner.atoms()):
            return None
        (v,) = variables
        c = inner.coefficient(v)
        rest = inner - Affine.variable(v, c)
        runs = (
            names.get(e.name) == v and same_form(m, n)
            for e, m in zip(self.index, self.sizes, strict=True)
            if isinstance(e, Index)
        )
        if abs(c) != 1 or v not in free or not any(runs):
            return None
        return v, Affine.of([(Call("mod", (((target - rest) * c).to_expr(), n)), 1)])

    # what one read gives

    def _conditions(self, d: Cotangent, scope: LeafScope, points: _Points) -> tuple[Expr | None, Expr, list[Expr]]:
        """The guard and the derivative at the points, and `in` of the accesses that confine these beside both."""
        guard = conjunction((*scope.guards, *d.masks))
        provided = demands(guard, d.value)
        written = Access(self.received, self.index)  # of the output's shape, and there without computing that again
        asked = assume((*scope.demands, written), *known(d.masks))
        insides = [as_factor(x) for x in dict.fromkeys(asked) if x not in provided]
        moved = None if guard is None else points.at(guard)
        return moved, points.at(d.value), [points.at(i) for i in insides]

    def _gated(self, d: Cotangent, scope: LeafScope, points: _Points) -> Expr:
        """One point: its cotangent times the derivative there, if the gate is open."""
        guard, factor, insides = self._conditions(d, scope, points)
        factor = _stripped(factor)
        constraints = (*map(points.constraint, scope.constraints), *points.equations)
        place = tuple(map(Index, self.left))
        opened: Expr | None
        g: Expr = Access(self.output, tuple(map(_index, map(points.at, self.index))))
        confined = bool(constraints) or len(insides) > 1
        if guard is None and not confined and _literal(factor):
            return g if factor == UNIT else g * factor
        if guard is not None or confined and factor == UNIT:
            condition = guard if guard is not None else Call("eq", (ZERO, ZERO))
            condition = condition if is_bool(condition) else Call("ne", (condition, ZERO))
            own_variables = product(ONE, *insides)
            gate = Statement("Gate", place, self.sizes, condition, "assign", own_variables, constraints)
            guard = opened = Access(self.emit(separate(gate)), place)
        else:
            opened = None
        if factor != UNIT:
            body = product(factor, *insides)
            made = Statement("Weight", place, self.sizes, body, "assign", guard, constraints)
            g = g * Access(self.emit(separate(made)), place)
        return g if opened is None else Call("select", (opened, g, ZERO))

    def _summed(self, g: Cotangent, scope: LeafScope, points: _Points) -> Expr:
        """The sum over the points that read one element."""
        guard, body, insides = self._conditions(g, scope, points)
        conditions = [] if guard is None else [guard]
        kept = []
        for c in (*map(points.constraint, scope.constraints), *points.equations):
            gathers = any(isinstance(e, (Access, Pad)) for e in walk(c.expr))
            if not gathers and set(index_variables(c.expr)).intersection(points.bound):
                kept.append(c)
            else:  # a constraint holds no elements; and as text it would be the statement's
                conditions += _as_conditions(c)
        body = product(body, *insides)
        seen = index_variables(body, *conditions)
        conditions += [Call("eq", (Index(v), Index(v))) for v in points.bound if v not in seen]
        return Aggregate("sum", body, points.bound, conjunction(tuple(conditions)), tuple(kept))


def _as_conditions(c: Constraint) -> list[Expr]:
    try:
        return as_conditions(c)
    except AffineMistake:  # elements of tensors, which are integers
        return [Call("ge", (c.expr, ZERO)), Call("lt", (c.expr, c.bound))]


def _literal(e: Expr) -> bool:
    return not any(isinstance(x, (Access, Index, Name)) for x in walk(e))


def _index(e: Expr) -> Expr:
    try:
        return canonical(e)
    except AffineMistake:
        return e


def _stripped(e: Expr) -> Expr:
    """A product without the seed it begins with."""
    match e:
        case Call("mul", (a, b)) if a == UNIT:
            return b
        case Call("mul", (a, b)):
            return Call("mul", (_stripped(a), b), span=e.span)
    return e
