"""A box cut where an output variable alone decides what is read: `d < D ? X[d] : Z[d - D]`, `y % 2 == 0 ? ...`,
`X[clamp(y - 1, 0, N - 1)]`. Each piece is a box of its own, whose reads are views and whose branches are taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.box_values import difference, resolved, truth_over
from tilec.backends.common.domain import Domain, boxed, build_domain
from tilec.backends.common.terms import sum_of
from tilec.ir.functions import all_of
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Program,
    Statement,
    index_variables,
    map_values,
    node_count,
    reads_itself,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import Types

_MOST_PIECES = 9
_MOST_ROUNDS = 2  # of an index that goes round, `X[(i + 1) % N]`
_FEWEST_ELEMENTS = 4096  # of a box, below which calls of torch cost more than what they do
_COMPARISONS = {"lt": (0,), "ge": (0,), "le": (1,), "gt": (1,), "eq": (0, 1), "ne": (0, 1)}  # where `a - b` changes it
_WRITTEN_OUT = ("float32", "float64")
_LARGEST_WRITTEN_OUT = 120  # nodes of a body
_Ranges = Mapping[str, tuple[int, int]]


def with_branches_taken(program: Program, types: Types) -> Program:
    """The program in which a sum over few values of a variable that choices test, `+(i == 0 ? A[n, i] : B[n])`, is the
    sum of the branches that they take."""
    statements = tuple(_written_out(s, types) for s in program.statements)
    same = all(a is b for a, b in zip(statements, program.statements, strict=True))
    return program if same else replace(program, statements=statements)


def _written_out(s: Statement, types: Types) -> Statement:
    plain = s.aggregation == "sum" and not s.guards and s.default is None and not reads_itself(s)
    tested = {v for e in _conditions(s) for v in index_variables(e)} if plain else set()
    tested -= {*index_variables(*(s.index or ()))}
    domain = build_domain(s, types) if tested and types[s.output].dtype in _WRITTEN_OUT else None
    if domain is None or domain.conditions or math.prod(domain.extent.values()) < _FEWEST_ELEMENTS:
        return s
    values = [range(domain.low[v], domain.low[v] + domain.extent[v]) for v in tested]
    if math.prod(map(len, values)) > _MOST_PIECES or node_count(s.body) > _LARGEST_WRITTEN_OUT:
        return s
    terms = []
    for place in itertools.product(*values):
        part = substitute_affine(s, {v: Affine.of((), n) for v, n in zip(tested, place, strict=True)})
        ranges = {v: (n, n + domain.extent[v] - 1) for v, n in domain.low.items() if v not in tested}
        terms.append(_resolved(part, ranges, types).body)
    return replace(s, body=_without_zeros(sum_of(terms)), constraints=())


def _without_zeros(e: Expr) -> Expr:
    """A sum without terms of branches not taken, and what is asked of places that are inside."""
    match e:
        case Call("add", (a, b)):
            left, right = _without_zeros(a), _without_zeros(b)
            return right if _zero(left) else left if _zero(right) else Call("add", (left, right))
        case Call("mul", (a, Inside())):
            return _without_zeros(a)
    return e


def _zero(e: Expr) -> bool:
    return e == Int(0) or isinstance(e, Call) and e.function in _WRITTEN_OUT and _zero(e.args[0])


def in_pieces(domain: Domain, types: Types) -> tuple[Domain, ...]:
    """The domain itself where nothing is cut."""
    written = domain.output_variables() if domain.target is not None else ()
    extents = [n for v, n in domain.extent.items() if v in written]
    if not _choices(domain.statement) or math.prod(extents) < _FEWEST_ELEMENTS:
        return (domain,)
    ranges = {v: (a, a + domain.extent[v] - 1) for v, a in domain.low.items()}
    found = _cut(domain.statement, ranges, written, types)
    found = found and [(s, box) for s, box in found if not _empty(s, box, types)]
    if found is None or all(_choices(s) >= _choices(domain.statement) for s, _ in found):
        return (domain,)
    made = tuple(boxed(s, piece, types) for s, piece in found)
    return made if all(d.target is not None for d in made) else (domain,)


def _cut(s: Statement, ranges: _Ranges, written: Sequence[str], types: Types) -> list[tuple[Statement, _Ranges]] | None:
    """What is left of the statement in each piece; None where they are too many."""
    found: list[tuple[Statement, _Ranges]] = []
    for part, box in _residues(s, ranges, written):
        for piece in _boxes(box, _cuts(part, box, written)):
            left = _resolved(part, piece, types)
            inner = _cut(left, piece, written, types) if 0 < _choices(left) < _choices(s) else [(left, piece)]
            found += inner or ()
            if inner is None or len(found) > _MOST_PIECES:
                return None
    return found


def _choices(s: Statement) -> int:
    """How many there are in the body."""
    return len(_conditions(s)) + sum(1 for form in _index_forms(s) for _ in _extrema(form))


def _conditions(s: Statement) -> list[Expr]:
    """Those of branches and of the guard that are about index variables alone."""
    found = [e.args[0] for e in walk(s.body) if isinstance(e, Call) and e.function == "select"]
    return [e for e in (*found, *s.guards) if _plain(e)]


def _index_forms(s: Statement) -> Iterator[Affine]:
    for e in walk(s.body):
        if isinstance(e, Access):
            yield from map(linear, e.index)


def _extrema(form: Affine) -> Iterator[Call]:
    for atom in form.atoms():
        if isinstance(atom, Call) and atom.function in ("clamp", "max", "min", "mod"):
            yield atom
            for e in atom.args:
                yield from _extrema(linear(e))


def _plain(e: Expr) -> bool:
    """Whether a condition is about index variables alone, and its value is that of a form: it divides nothing."""
    sides = ("add", "sub", "neg", "mul", "mod", "and", "or", "bool", *_COMPARISONS)
    return all(isinstance(x, Int | Index) or isinstance(x, Call) and x.function in sides for x in walk(e))


def _comparisons(s: Statement) -> Iterator[tuple[str, Affine]]:
    """Comparisons of conditions as forms that are compared with 0."""
    for e in walk(*_conditions(s)):
        if isinstance(e, Call) and e.function in _COMPARISONS and (form := difference(*e.args)) is not None:
            yield e.function, form


def _residues(s: Statement, ranges: _Ranges, written: Sequence[str]) -> Iterator[tuple[Statement, _Ranges]]:
    """The statement for each remainder of the output variables whose remainders are compared."""
    moduli: dict[str, int] = {}
    for _, form in _comparisons(s):
        for atom in form.atoms():
            match atom:
                case Call("mod", (e, Int(n))) if 1 < n <= _MOST_PIECES and len(linear(e).terms) == 1:
                    for v in linear(e).variables():
                        if v in written:
                            moduli[v] = math.lcm(moduli.get(v, 1), n)
    if math.prod(moduli.values()) > _MOST_PIECES:
        moduli = {}
    for residues in itertools.product(*(range(n) for n in moduli.values())):
        box, forms = dict(ranges), {}
        for (v, n), r in zip(moduli.items(), residues, strict=True):
            low, high = ranges[v]
            forms[v] = Affine.variable(v, n) + r
            box[v] = -((r - low) // n), (high - r) // n
        if all(low <= high for low, high in box.values()):
            yield substitute_affine(s, forms) if forms else s, box


def _cuts(s: Statement, ranges: _Ranges, written: Sequence[str]) -> dict[str, set[int]]:
    """For each output variable the values at which something changes."""
    forms = [(form, at) for function, form in _comparisons(s) for at in _COMPARISONS[function]]
    for form in _index_forms(s):
        for atom in _extrema(form):
            first, *others = map(linear, atom.args)
            if atom.function == "mod":
                forms += [(first - n, 0) for n in _rounds(first, others[0], s, ranges)]
            else:
                forms += [(first - other, 0) for other in others]
    cuts: dict[str, set[int]] = {}
    for form, least in forms:
        names = form.variables()
        if len(names) != 1 or len(form.terms) != 1 or names[0] not in written or not form.is_integral:
            continue
        (v,) = names
        c, rest = as_int(form.terms[0][1]), as_int(form.constant) - least
        at = -(rest // c) if c > 0 else rest // -c + 1  # where the form passes `least`
        if ranges[v][0] < at <= ranges[v][1]:
            cuts.setdefault(v, set()).add(at)
    return cuts


def _rounds(form: Affine, size: Affine, s: Statement, ranges: _Ranges) -> Sequence[int]:
    """The multiples of a size that a form passes, where they are few."""
    if size.terms or not form.is_affine or not form.is_integral:
        return ()
    n = as_int(size.constant)
    low, high = _box(s, ranges).interval(form)
    passed = range(as_int(low) // n + 1, as_int(high) // n + 1) if n > 0 else range(0)
    return [k * n for k in passed] if len(passed) <= _MOST_ROUNDS else ()


def _box(s: Statement, ranges: _Ranges) -> Domain:
    low = {v: a for v, (a, _) in ranges.items()}
    return Domain(s, low, {v: b - a + 1 for v, (a, b) in ranges.items()}, (), None)


def _boxes(ranges: _Ranges, cuts: Mapping[str, set[int]]) -> Iterator[_Ranges]:
    parts = []
    for v, (low, high) in ranges.items():
        starts = [low, *sorted(cuts.get(v, ()))]
        parts.append([(v, (a, b - 1)) for a, b in itertools.pairwise([*starts, high + 1])])
    return map(dict, itertools.product(*parts))


def _resolved(s: Statement, ranges: _Ranges, types: Types) -> Statement:
    """The statement with what is the same all over the box."""
    box = _box(s, ranges)
    found = map_values(s, lambda e: resolved(e, box, types))
    left = [e for e in found.guards if not (_plain(e) and truth_over(e, box, types))]
    return replace(found, guard=all_of(left))


def _empty(s: Statement, ranges: _Ranges, types: Types) -> bool:
    """Whether the guard lets no point of the box through."""
    return any(_plain(e) and truth_over(e, _box(s, ranges), types) is False for e in s.guards)
