"""Gradients of scans, aggregations over all k up to i (or from i on), in as many steps as there are elements.

The rules of `adjoint` are right for them too, but read every pair (i, k). Here what an element passes on is gathered by
a recurrence that runs against the scan. The sum needs none of this: its gradient is a sum of the same kind, by what its
terms are made of too, once these are a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.errors import AffineMistake
from tilec.ir.constraining import always, conditional, demands
from tilec.ir.functions import INFINITY, ONE, ZERO, call, operands_of
from tilec.ir.index import Affine, linear, same_form
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
    Program,
    Statement,
    index_variables,
    reads_itself,
    walk,
)
from tilec.ir.rational import as_int
from tilec.lattice.conditions import bound_of
from tilec.transforms.util.extents import Extent, extents, sizes
from tilec.transforms.util.naming import Names, rename, rename_constraint

KINDS = ("prod", "max", "min", "logsumexp")
ANCHORS = 4  # from each other: what is relative to one stays in any type's range
IDENTITY = {"prod": ONE, "logsumexp": -INFINITY}  # of those that have the same one for each type of element


@dataclass(frozen=True)
class _Scan:
    """`output` runs over the elements, `summed` over what they are made of: all up to them if `rising`."""

    output: str
    summed: str
    rising: bool


def split_scans(program: Program, names: Names) -> tuple[Statement, ...]:
    """The program's statements, each such scan over the elements of one tensor at its own index, up to its place."""
    known = extents(program)
    result: list[Statement] = []
    constrained = (_constrained(s, known) for s in program.statements)
    for s in (part for whole in constrained for part in _up_to_itself(whole, known, names)):
        found = _scan(s, known)
        if found is not None and not _plain(s, found, known):
            terms, s = _stored_terms(s, found, s.sizes or (), names)
            result.append(terms)
        elif (running := _running_sum(s, known)) is not None:
            terms, s = _stored_terms(s, *running, names)
            result.append(terms)
        result.append(s)
    return tuple(result)


def is_running(s: Statement, known: Mapping[str, Extent]) -> bool:
    """Whether a statement is one that `split_scans` takes for a scan, or for a running sum."""
    whole = _constrained(s, known)
    parts = _up_to_itself(whole, known, Names(()))
    return len(parts) > 1 or _scan(whole, known) is not None or _running_sum(whole, known) is not None


def _constrained(s: Statement, known: Mapping[str, Extent]) -> Statement:
    """A scan guarded by `k <= i`, or `k < i`, with the constraint that says the same; any other statement as it is."""
    guarded = _guarded(s)
    form = None if guarded.guard is None else bound_of(guarded.guard)
    if form is None:
        return s
    for size in s.sizes or ():
        if not all(_follows(c, form, size) for c in s.constraints):
            continue
        made = replace(guarded, guard=None, constraints=(Constraint(form.to_expr(), size),))
        if _scan(made, known) is not None or len(_up_to_itself(made, known, Names(()))) > 1:
            return made
    return s


def _follows(c: Constraint, form: Affine, size: Expr) -> bool:
    """Whether `0 <= form` says as much as a constraint, where form is i - k less a constant and i below the size."""
    try:
        rest = linear(c.expr) - form
    except AffineMistake:
        return False
    return not rest.terms and 0 <= rest.constant <= -form.constant and same_form(c.bound, size)


def _guarded(s: Statement) -> Statement:
    """`c ? e : identity` as `c ? e`: no weight falls on the points that are left out, as it may among ties."""
    match s.body:
        case Call("select", (test, body, other)) if s.guard is None and other == IDENTITY.get(s.aggregation):
            return replace(s, body=body, guard=test)
    return s


def _stored_terms(s: Statement, found: _Scan, shape: tuple[Expr, ...], names: Names) -> tuple[Statement, Statement]:
    """What a scan aggregates as a tensor of that shape, and the scan of it."""
    moved = {found.summed: found.output}
    joint = tuple(c for c in s.constraints if found.output in index_variables(c.expr))
    free = tuple(rename_constraint(c, moved) for c in s.constraints if c not in joint)
    body, name = rename(s.body, moved), names.fresh(f"{s.output}_terms")
    terms = replace(s, output=name, sizes=shape, body=body, guard=None, constraints=free, attributes=())
    return terms, replace(s, body=Access(name, _at(s, found.output, Index(found.summed))), constraints=joint)


def _running_sum(s: Statement, known: Mapping[str, Extent]) -> tuple[_Scan, tuple[Expr, ...]] | None:
    """How a statement is a sum over all k up to i, or from i on, or any number before, of terms of which several read
    one element, and the shape of the terms. That element's gradient would be a sum over all pairs (i, k)."""
    left, shape = _own_variables(s.index), known.get(s.output, "")
    if s.aggregation != "sum" or left is None or isinstance(shape, str) or s.default or reads_itself(s):
        return None
    moving = index_variables(s.body)
    summed = [v for v in moving if v not in left]
    tests = [*(c.expr for c in s.constraints), *(t for g in s.guards for t in operands_of("and", g))]
    joint = [t for t in tests if not {*left}.isdisjoint(index_variables(t))]
    if len(summed) != 1 or len(joint) != 1 or any(isinstance(e, Aggregate) for e in walk(s.body)):
        return None
    (k,), form = summed, _difference(joint[0])
    tensors = [e for e in walk(s.body) if isinstance(e, Access) or isinstance(e, Name) and e.name in known]
    if form is None or all({*moving} <= {*index_variables(e)} for e in tensors):
        return None
    reach = (n for e in tensors if isinstance(e, Access) for i, n in _places(e, known) if i == Index(k))
    size = next(reach, None)
    for i in left:
        rising = form.coefficient(i) == 1
        step = Affine.variable(i) - Affine.variable(k)
        if size is not None and i not in moving and not (form - step if rising else form + step).terms:
            return _Scan(i, k, rising), tuple(size if v == i else n for v, n in zip(left, shape, strict=True))
    return None


def _own_variables(index: Sequence[Expr] | None) -> tuple[str, ...] | None:
    """The variables of an index whose parts are one each; sizes are not known yet, so that others may not be affine."""
    found = tuple(e.name for e in index or () if isinstance(e, Index))
    return found if index and len({*found}) == len(index) else None


def _difference(test: Expr) -> Affine | None:
    """A form that a constraint bounds, or a comparison."""
    try:
        match test:
            case Call("le" | "lt" | "ge" | "gt", (a, b)):
                return linear(a) - linear(b)
            case Call(function) if function not in ("add", "sub", "neg"):
                return None
        return linear(test)
    except AffineMistake:
        return None


def _places(a: Access, known: Mapping[str, Extent]) -> Iterator[tuple[Expr, Expr]]:
    return zip(a.index, sizes(known[a.tensor], len(a.index)), strict=True)


def _up_to_itself(s: Statement, known: Mapping[str, Extent], names: Names) -> tuple[Statement, ...]:
    """A scan of all k up to i - 1, or any number before (from i + 1 on), as one of all up to i and what reads it there,
    the first elements being of no points; any other statement as it is."""
    if s.aggregation not in IDENTITY or s.index is None or len(s.constraints) != 1 or _scan(s, known) is not None:
        return (s,)
    (c,) = s.constraints
    try:
        form = linear(c.expr)
    except AffineMistake:
        return (s,)
    gap = -as_int(form.constant) if form.is_affine and form.constant.denominator == 1 else 0
    whole = replace(s, output=names.fresh(f"{s.output}_scan"), constraints=(replace(c, expr=(form + gap).to_expr()),))
    found = _scan(whole, known) if gap > 0 else None
    if found is None:
        return (s,)
    place = (Affine.variable(found.output) + (-gap if found.rising else gap)).to_expr()
    before = Pad(Access(whole.output, _at(s, found.output, place)), IDENTITY[s.aggregation])
    return whole, replace(s, body=before, aggregation="assign", constraints=(), attributes=())


def _scan(s: Statement, known: Mapping[str, Extent]) -> _Scan | None:
    """How a statement is a scan; None where it is none, or may have elements without points before others with some."""
    if s.aggregation not in KINDS or s.index is None or s.sizes is None or s.default or s.guard or reads_itself(s):
        return None
    if any(isinstance(e, Aggregate) for e in walk(s.body)):
        return None
    left = [e.name if isinstance(e, Index) else "" for e in s.index]
    if "" in left or len(set(left)) < len(left):
        return None
    summed = [v for v in index_variables(s.body) if v not in left]
    joint = [c for c in s.constraints if set(index_variables(c.expr)) & set(left)]
    if len(summed) != 1 or len(joint) != 1:
        return None
    (k,), (c,) = summed, joint
    try:
        form = linear(c.expr)
    except AffineMistake:
        return None
    for i, size in zip(left, s.sizes, strict=True):
        rising = form == Affine.variable(i) - Affine.variable(k)
        falling = form == Affine.variable(k) - Affine.variable(i)
        if not (rising or falling) or i in index_variables(s.body):
            continue
        if s.aggregation in IDENTITY:  # elements without points hold it
            fits = _bounded(s.body, k, None if rising else size, known)
        else:
            fits = _all_fit(s.body, k, size, known)
        if same_form(c.bound, size) and fits:
            return _Scan(i, k, rising)
    return None


def _all_fit(body: Expr, k: str, size: Expr, known: Mapping[str, Extent]) -> bool:
    asked = demands(body)
    return not conditional(asked) and all(_fits(a, k, size, known) for a in always(asked))


def _bounded(body: Expr, k: str, size: Expr | None, known: Mapping[str, Extent]) -> bool:
    """Whether some access allows no value of k below 0, nor from the size on, if one is given."""
    places = (place for a in always(demands(body)) for place in _places(a, known))
    return any(e == Index(k) and (size is None or same_form(n, size)) for e, n in places)


def _fits(a: Access, k: str, size: Expr, known: Mapping[str, Extent]) -> bool:
    """Does the access allow all values of k below the size, and no others?"""
    return all(same_form(n, size) if e == Index(k) else k not in index_variables(e) for e, n in _places(a, known))


def _plain(s: Statement, found: _Scan, known: Mapping[str, Extent]) -> bool:
    """Whether a scan is one over the elements of one tensor, each at its own index."""
    if not isinstance(s.body, Access) or s.body.index != _at(s, found.output, Index(found.summed)):
        return False
    size = next(n for e, n in zip(s.index or (), s.sizes or (), strict=True) if e == Index(found.output))
    return _all_fit(s.body, found.summed, size, known)


def _at(s: Statement, v: str, e: Expr) -> tuple[Expr, ...]:
    return tuple(e if i == Index(v) else i for i in s.index or ())


def scan_gradient(
    s: Statement, cotangent: str, known: Mapping[str, Extent], names: Names, append: Callable[[Statement], None]
) -> Statement | None:
    """What the tensor that a scan aggregates receives, as a statement named after it; None where s is no such scan.
    `append` adds a statement that it needs."""
    found = _scan(s, known)
    if found is None or not _plain(s, found, known) or not isinstance(s.body, Access):
        return None
    return _Adjoint(s, s.body.tensor, found, cotangent, names, append).run()


def scan_tangent(
    s: Statement,
    tangents: Mapping[str, str],
    known: Mapping[str, Extent],
    names: Names,
    append: Callable[[Statement], None],
) -> Statement | None:
    """The statement of a scan's tangent, a recurrence that runs as the scan does; None where s is no such scan.
    `tangents` names those of tensors; `append` adds a statement that it needs."""
    found = _scan(s, known)
    if found is None or not _plain(s, found, known) or not isinstance(s.body, Access) or s.body.tensor not in tangents:
        return None
    return _Tangent(s, s.body.tensor, found, tangents[s.body.tensor], names, append).run()


def _anchor(value: Expr) -> Expr:
    """What a logarithm is near. Between two elements of one anchor nothing is multiplied, and nothing rounded: many
    weights close to 1, each rounded, would multiply to one that is far off."""
    return call("round", value * Float(1 / ANCHORS)) * Int(ANCHORS)


def _off_anchor(value: Expr) -> Expr:
    return call("select", call("eq", value, INFINITY), ZERO, call("exp", _anchor(value) - value))


def _decay(earlier: Expr, later: Expr) -> Expr:
    """How what is relative to the later anchor counts at the earlier, or the other way round."""
    a, b = _anchor(earlier), _anchor(later)
    return call("select", call("eq", a, b), ONE, call("exp", a - b))


def _where_reached(value: Expr, e: Expr) -> Expr:
    """The expression, or 0, never NaN, where nothing is added up."""
    return call("select", call("ne", value, -INFINITY), e, ZERO)


class _Along:
    """A scan element by element. `d` is what its output receives, or the tangent of what it aggregates."""

    def __init__(
        self,
        s: Statement,
        tensor: str,
        found: _Scan,
        cotangent: str,
        names: Names,
        append: Callable[[Statement], None],
    ):
        self.s, self.tensor, self.names, self.append = s, tensor, names, append
        assert s.index is not None
        one = 1 if found.rising else -1
        self.place = s.index
        self.next = _at(s, found.output, (Affine.variable(found.output) + one).to_expr())
        self.before = _at(s, found.output, (Affine.variable(found.output) - one).to_expr())
        self.d = Access(cotangent, s.index)
        self.value, self.term = Access(s.output, s.index), Access(tensor, s.index)

    def _statement(self, name: str, body: Expr) -> Statement:
        return Statement(name, self.place, self.s.sizes, body)

    def _made(self, name: str, body: Expr) -> str:
        name = self.names.fresh(name)
        self.append(self._statement(name, body))
        return name

    def _recurrence(self, stem: str, body: Callable[[str], Expr]) -> Access:
        """A statement whose body reads its own output, of the name that the body is given."""
        name = self.names.fresh(stem)
        self.append(self._statement(name, body(name)))
        return Access(name, self.place)


class _Adjoint(_Along):
    def run(self) -> Statement:
        body = {"prod": self._product, "logsumexp": self._log, "max": self._extreme, "min": self._extreme}
        return self._statement(self.tensor, body[self.s.aggregation]())

    def _product(self) -> Expr:
        after = Pad(Access(self.tensor, self.next), ZERO)
        g = self._recurrence("Received", lambda name: self.d + Access(name, self.next) * after)
        return g * Pad(Access(self.s.output, self.before), ONE)

    def _log(self) -> Expr:
        """What an element passes on is relative to its anchor, so that it is rounded no more than a sum is."""
        later = Pad(Access(self.s.output, self.next), INFINITY)
        weight = Access(self._made("Weight", _decay(self.value, later)), self.place)
        scaled = Access(self._made("Scaled", _where_reached(self.value, self.d * _off_anchor(self.value))), self.place)
        g = self._recurrence("Received", lambda name: scaled + Access(name, self.next) * weight)
        share = _where_reached(self.value, call("exp", self.term - _anchor(self.value)))
        return g * Access(self._made("Share", share), self.place)

    def _extreme(self) -> Expr:
        """Ties share: each of those up to an element that hold its value gets the same part of what it receives."""
        wins = call("eq", self.term, self.value)
        earlier = call("eq", self.value, Pad(Access(self.s.output, self.before), ZERO))
        later = call("eq", self.value, Pad(Access(self.s.output, self.next), ZERO))

        def count(name: str) -> Expr:
            return call("select", wins, ONE, ZERO) + call("select", earlier, Access(name, self.before), ZERO)

        ties = self._recurrence("Ties", count)

        def gathered(name: str) -> Expr:
            return self.d / ties + call("select", later, Access(name, self.next), ZERO)

        g = self._recurrence("Received", gathered)
        return call("select", wins, g, ZERO)


class _Tangent(_Along):
    """An element's tangent from that of the element before it."""

    def run(self) -> Statement:
        body = {"prod": self._product, "logsumexp": self._log, "max": self._extreme, "min": self._extreme}
        return self._statement(f"T{self.s.output}", body[self.s.aggregation]())

    def _product(self) -> Expr:
        term = self.d * Pad(Access(self.s.output, self.before), ONE)
        return self._recurrence("Grown", lambda name: Access(name, self.before) * self.term + term)

    def _log(self) -> Expr:
        earlier = Pad(Access(self.s.output, self.before), -INFINITY)
        weight = Access(self._made("Weight", _decay(earlier, self.value)), self.place)
        own = _where_reached(self.value, self.d * call("exp", self.term - _anchor(self.value)))
        share = Access(self._made("Share", own), self.place)
        grown = self._recurrence("Grown", lambda name: share + Access(name, self.before) * weight)
        return _where_reached(self.value, grown * _off_anchor(self.value))

    def _extreme(self) -> Expr:
        """The mean over those up to an element that hold its value."""
        wins = call("eq", self.term, self.value)
        earlier = call("eq", self.value, Pad(Access(self.s.output, self.before), ZERO))

        def gathered(one: Expr) -> Callable[[str], Expr]:
            own = call("select", wins, one, ZERO)
            return lambda name: own + call("select", earlier, Access(name, self.before), ZERO)

        ties = self._recurrence("Ties", gathered(ONE))
        return self._recurrence("Grown", gathered(self.d)) / call("max", ties, ONE)
