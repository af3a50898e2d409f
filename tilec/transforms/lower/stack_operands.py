"""Sums of several products of two tensors each, windows and all, as one product of these side by side.

`O[y, o] = +(A[y + j, c] * K[j, c, o] - B[y + j, c] * L[j, c, o])`, a convolution of complex numbers in two tensors or
along an axis of two, is no product of two operands. Its terms are, over the same points, so it is one over twice as
many channels: of `A` beside `B` and of `K` beside `-L`. Signs go to the smaller tensor, and terms have the order of the
larger one's names, so that real and imaginary part share its copy.

Where an output variable says which terms there are (`p == 0 ? ... : ...`), each branch having the same larger operands,
the smaller one asks for it: one product with a column for each of its values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tilec.ir.functions import ZERO, call
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    reads,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import Types, is_floating
from tilec.transforms.lower.decompose import points_per_element
from tilec.transforms.util.factors import MINUS_ONE, Factor, factors_of, terms_of
from tilec.transforms.util.naming import Names, fresh_variable
from tilec.transforms.util.ranges import axis_places, ranges_of

_FEWEST_OF_MATRICES = 32  # rows, columns and terms of matrices whose operands are copied
_FEWEST = 16  # rows, columns and terms of a product of matrices
LEAST_STACKED = 2**24  # of all terms, below which the copies take as long

AxisWalk = tuple[tuple[Expr, int], ...]  # the indices of an access that hold variables, and how long their axes are


@dataclass(frozen=True)
class _Term:
    """A product of a larger and a smaller operand, and its sign."""

    negative: bool
    large: Access
    small: Access


@dataclass(frozen=True)
class _Branch:
    """Terms by their larger operands; `condition`: where they are summed, None: elsewhere."""

    condition: Expr | None
    terms: dict[Access, _Term]


def with_stacked_operands(program: Program, bound: Program, types: Types) -> Program:
    """The program with the operands of such sums side by side, so that their gradients are one product each. `bound`:
    the same with sizes; `types`: of its inputs."""
    known = infer(bound, types)
    names = Names.of(program)
    there = {*program.input_names(), *(s.output for s in program.statements)}
    own = [s for s in bound.statements if there.issuperset(reads(s))]
    made = {s.output: stack_operands(s, known, names, LEAST_STACKED) for s in own}
    divided = {name: parts for name, parts in made.items() if len(parts) > 1}
    statements = tuple(part for s in program.statements for part in divided.get(s.output, (s,)))
    return replace(program, statements=statements) if divided else program


def stack_operands(s: Statement, types: Types, names: Names, least: int = 0) -> list[Statement]:
    """The statement, or the operands side by side and their product, if it has so many points."""
    made = _of_matrices(s, types, names, least)
    return made if len(made) > 1 else _of_elements(s, types, names)


def plain_sum(s: Statement, types: Types, fixed: bool = False) -> tuple[tuple[str, ...], dict[str, int]] | None:
    """The variables of the output and the extent of each variable of a floating sum over all points of a box. `fixed`:
    indices may be numbers."""
    if s.aggregation != "sum" or s.index is None or s.default is not None or s.guard is not None or s.constraints:
        return None
    outputs = distinct_variables(s.index)
    if outputs is None or reads_itself(s) or not is_floating(types[s.output].dtype):
        return None
    if any(isinstance(e, (Inside, Pad)) for e in walk(s.body)):
        return None
    extent = full_extents(s, types, fixed)
    return None if extent is None or points_per_element(s, types) is None else (outputs, extent)


def full_extents(s: Statement, types: Types, fixed: bool = False) -> dict[str, int] | None:
    """How many values each variable has, where all are bare in what they index and every tensor says the same. `fixed`:
    beside numbers that are inside."""
    own = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))

    def is_number(e: Expr, n: int) -> bool:
        form = linear(e)
        return fixed and not form.terms and form.is_integral and 0 <= form.constant < n

    return ranges_of(axis_places(accesses_in(s.body), types), own, is_number)


def _of_matrices(s: Statement, types: Types, names: Names, least: int) -> list[Statement]:
    """A sum of products of two matrices each as one product of these side by side; the statement where it is none."""
    terms = terms_of(s.body, False)
    found = plain_sum(s, types) if len(terms) > 1 else None
    if found is None:
        return [s]
    outputs, extent = found
    if math.prod(extent.values()) * len(terms) < least:
        return [s]
    varying = {v for v, n in extent.items() if n > 1}
    summed = varying - set(outputs)
    pairs = [factors_of(e, types) for _, e in terms]
    if len(summed) != 1 or any(len(p) != 2 or any(f.divides for f in p) for p in pairs):
        return [s]
    (k,) = summed
    sides = [set(index_variables(f.value)) & varying for f in pairs[0]]
    counts = [math.prod(extent[v] for v in side) for side in (sides[0] - sides[1], sides[1] - sides[0], {k})]
    if sides[0] | sides[1] != varying or k not in sides[0] & sides[1] or min(counts) < _FEWEST_OF_MATRICES:
        return [s]
    operands: list[list[Expr]] = [[], []]
    for (negative, _), pair in zip(terms, pairs, strict=True):
        own = [set(index_variables(f.value)) & varying for f in pair]
        if own not in (sides, sides[::-1]):
            return [s]
        first, second = (f.value for f in (pair if own == sides else pair[::-1]))
        operands[0].append(call("neg", first) if negative else first)
        operands[1].append(second)
    if len({expression_type(e, types) for side in operands for e in side}) > 1:
        return [s]
    made = [_stacked_along(s, names, side, k, extent) for side in operands]
    known = {**types, **{m.output: statement_type(m, types) for m in made}}
    last = replace(s, body=call("mul", *(Access(m.output, m.index or ()) for m in made)))
    return [*made, last] if statement_type(last, known) == types[s.output] else [s]


def _stacked_along(s: Statement, names: Names, parts: list[Expr], k: str, extent: Mapping[str, int]) -> Statement:
    """The values of these parts one after the other along k."""
    own = set(index_variables(*parts))
    order = [v for v in extent if v in own and v != k]
    body: Expr | None = None
    for place, part in reversed([*enumerate(parts)]):
        here = replace_indices(part, {k: Affine.of([(Index(k), 1)], -place * extent[k])})
        here = _padded(here)
        inside = call("lt", Index(k), Int((place + 1) * extent[k]))
        body = here if body is None else call("select", inside, here, body)
    assert body is not None
    sizes = (*(extent[v] for v in order), len(parts) * extent[k])
    index = tuple(map(Index, (*order, k)))
    name = names.fresh(f"{s.output}_beside")
    return Statement(name, index, tuple(map(Int, sizes)), body, "assign", None, span=s.span)


def _padded(e: Expr) -> Expr:
    return Pad(e, ZERO) if isinstance(e, Access) else rebuild(e, _padded)


def _of_elements(s: Statement, types: Types, names: Names) -> list[Statement]:
    """A sum of products of two elements each, which walk their tensors alike, as one product of these side by side."""
    branches = _branches(s, types)
    if branches is None:
        return [s]
    terms = branches[0].terms
    first = next(iter(terms.values()))
    large, small = _walk(first.large, types), _walk(first.small, types)
    k = _along(s, large, small)
    asked = dict.fromkeys(v for b in branches if b.condition is not None for v in index_variables(b.condition))
    if k is None or large is None or small is None or set(asked) & set(index_variables(*(e for e, _ in small))):
        return [s]
    if not _pays(s, large, small, k, [*asked], len(terms), types):
        return [s]
    order = sorted(terms, key=_place)
    sizes = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))
    told = tuple((Index(v), sizes[v]) for v in asked)
    made = [
        _stacked(s, names, large, (), k, [[(None, False, a)] for a in order]),
        _stacked(s, names, small, told, k, [[_part(b, a) for b in branches] for a in order]),
    ]
    known = {**types, **{m.output: statement_type(m, types) for m in made}}
    indices = [tuple(e for e, _ in (*walk, *more)) for walk, more in ((large, ()), (small, told))]
    product = call("mul", *(Access(m.output, index) for m, index in zip(made, indices, strict=True)))
    last = replace(s, body=product)
    return [*made, last] if statement_type(last, known) == types[s.output] else [s]


def _branches(s: Statement, types: Types) -> list[_Branch] | None:
    """What is summed, branch by branch, each a sum of the same larger operands times smaller ones; None where it is
    not that."""
    outputs = distinct_variables(s.index)
    if s.aggregation != "sum" or s.default is not None or s.guard is not None or outputs is None or reads_itself(s):
        return None
    if not is_floating(types[s.output].dtype):
        return None
    parts: list[tuple[Expr | None, Expr]] = []
    body: Expr = s.body
    while isinstance(body, Call) and body.function == "select":
        condition, there, otherwise = body.args
        if [*accesses_in(condition)] or not set(index_variables(condition)) <= set(outputs):
            return None
        parts.append((condition, there))
        body = otherwise
    pairs = [(c, _pairs(e, types)) for c, e in (*parts, (None, body))]
    first = pairs[0][1]
    if first is None or len(first) < 2:
        return None
    walks = [w for a in first[0][1] if (w := _walk(a, types)) is not None]
    if len(walks) < 2 or walks[0] == walks[1]:
        return None
    wanted = tuple(sorted(walks, key=_elements, reverse=True))
    found: list[_Branch] = []
    for branch, products in pairs:
        terms: dict[Access, _Term] = {}
        for negative, (a, b) in products or ():
            own = _walk(a, types), _walk(b, types)
            if own not in (wanted, wanted[::-1]):
                return None
            large, small = (a, b) if own == wanted else (b, a)
            terms[large] = _Term(negative, large, small)
        if len(terms) != len(products or ()) or (found and terms.keys() != found[0].terms.keys()):
            return None
        found.append(_Branch(branch, terms))
    if len({types[a.tensor].dtype for b in found for t in b.terms.values() for a in (t.large, t.small)}) > 1:
        return None
    return found


def _pairs(e: Expr, types: Types) -> list[tuple[bool, tuple[Access, Access]]] | None:
    """The signs and the factors of a sum of products of two elements."""
    found = []
    for negative, term in terms_of(e, False):
        factors = factors_of(term, types)
        own = [f for f in factors if f.value != MINUS_ONE]
        match own:
            case [Factor(Access() as a, False), Factor(Access() as b, False)]:
                found.append((negative ^ bool((len(factors) - len(own)) % 2), (a, b)))
            case _:
                return None
    return found


def _walk(a: Access, types: Types) -> AxisWalk | None:
    """How an access walks its tensor; None where an index is no sum of multiples of variables, or is a number that is
    outside."""
    found = []
    for e, n in zip(a.index, types[a.tensor].shape, strict=True):
        form = linear(e)
        if not form.is_affine:
            return None
        if form.terms:
            found.append((e, n))
        elif not form.is_integral or not 0 <= form.constant < n:
            return None
    return tuple(found)


def _place(a: Access) -> tuple[str, list[Fraction]]:
    """Accesses that walk alike differ in their tensors and in what numbers they have for indices."""
    forms = map(linear, a.index)
    return a.tensor, [f.constant for f in forms if not f.terms]


def _elements(walk: AxisWalk) -> int:
    return math.prod(n for _, n in walk)


def _along(s: Statement, large: AxisWalk | None, small: AxisWalk | None) -> str | None:
    """The longest summed variable that walks one axis of each operand, alone and from end to end."""
    if large is None or small is None:
        return None
    outputs, found = set(index_variables(*(s.index or ()))), []
    for v in index_variables(*(e for e, _ in large)):
        axes = [[(linear(e).bare == v, n) for e, n in walk if v in index_variables(e)] for walk in (large, small)]
        bound = any(v in index_variables(c.expr) for c in s.constraints)
        if v not in outputs and not bound and axes[0] == axes[1] and len(axes[0]) == 1 and axes[0][0][0]:
            found.append((axes[0][0][1], v))
    return max(found)[1] if found else None


def _pays(
    s: Statement, large: AxisWalk, small: AxisWalk, k: str, asked: Sequence[str], parts: int, types: Types
) -> bool:
    """Whether it is a product of matrices, and large enough."""
    sizes = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))
    sides = [{*index_variables(*(e for e, _ in walk))} for walk in (large, small)]
    sides[1] |= set(asked)
    if not sizes.keys() <= sides[0] | sides[1]:
        return False
    rows, columns = (math.prod(sizes[v] for v in a - b if v in sizes) for a, b in (sides, sides[::-1]))
    length = next(n for e, n in small if linear(e).bare == k) * parts
    windows = math.prod(n for e, n in small if not set(index_variables(e)) & sizes.keys()) * parts
    points = math.prod(sizes.values()) * windows
    return min(rows, columns, length) >= _FEWEST and points >= LEAST_STACKED


def _part(b: _Branch, large: Access) -> tuple[Expr | None, bool, Access]:
    return b.condition, b.terms[large].negative, b.terms[large].small


def _stacked(
    s: Statement,
    names: Names,
    walk: AxisWalk,
    more: AxisWalk,
    k: str,
    parts: Sequence[Sequence[tuple[Expr | None, bool, Access]]],
) -> Statement:
    """One tensor of all parts, one after the other along the axis of k, and further axes, of which conditions among
    a part's alternatives know."""
    axis = next(n for n, (e, _) in enumerate(walk) if linear(e).bare == k)
    used = {v for e, _ in more for v in index_variables(e)}
    own = [fresh_variable(f"i{n}", used) for n in range(len(walk))]
    length = walk[axis][1]
    body: Expr | None = None
    for place in reversed(range(len(parts))):
        here: Expr | None = None
        for condition, negative, a in reversed(parts[place]):
            element = _element(a, own, axis, place * length)
            element = call("neg", element) if negative else element
            here = element if here is None or condition is None else call("select", condition, element, here)
        assert here is not None
        inside = call("lt", Index(own[axis]), Int((place + 1) * length))
        body = here if body is None else call("select", inside, here, body)
    assert body is not None
    sizes = [n * len(parts) if place == axis else n for place, (_, n) in enumerate(walk)]
    index = (*map(Index, own), *(e for e, _ in more))
    shape = (*map(Int, sizes), *(Int(n) for _, n in more))
    return Statement(names.fresh(f"{s.output}_beside"), index, shape, body, "assign", None, span=s.span)


def _element(a: Access, own: Sequence[str], axis: int, shift: int) -> Expr:
    """The element of a part that stands at `shift` along an axis, 0 where there is none."""
    index, place = [], 0
    for e in a.index:
        if not linear(e).terms:
            index.append(e)
            continue
        here = Affine.variable(own[place]) - (shift if place == axis else 0)
        index.append(here.to_expr())
        place += 1
    return Pad(replace(a, index=tuple(index)), ZERO)
