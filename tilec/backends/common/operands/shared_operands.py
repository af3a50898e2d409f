"""Products that are added up, those of one operand as one product: layers of features, their differences and products.

`Y[n, e] = tanh(+(U[n, d] * A[d, e]) + +(V[n, d] * B[d, e]) + +((U[n, d] - V[n, d]) * C[d, e]))` multiplies three
operands. By what is all the same it is `+(U[n, d] * (A[d, e] + C[d, e])) + +(V[n, d] * (B[d, e] - C[d, e]))`, where the
matrices in brackets are small. So there are as many products fewer, of values and of each gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.ir.index import distinct_variables
from tilec.ir.infer import infer
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
    rebuild,
    substitute,
    walk,
)
from tilec.ir.types import Types, is_floating
from tilec.transforms.util.factors import added, factors_of, terms_of
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.ranges import axis_places, ranges_of

FEWER_POINTS = 2**24  # multiplications that there are fewer
LEAST_USES = 16  # times that each element of a matrix in brackets is


@dataclass(frozen=True)
class _Term:
    """A product of an operand and a matrix, over the reader's variables and the summed one, and its sign."""

    negative: bool
    operand: Access
    matrix: Access


@dataclass(frozen=True)
class _Sum:
    """What a statement adds up: products by what is read of them, and what they are taken apart into."""

    products: dict[Access, list[_Term]]
    extent: dict[str, int]
    summed: str


def with_shared_operands(program: Program, bound: Program, types: Types) -> tuple[Program, Program]:
    """Both programs with such sums as fewer products, `bound` with sizes; `types`: of its inputs."""
    known, names = infer(bound, types), Names.of(bound)
    made = {s.output: s for s in bound.statements}
    for s in bound.statements:
        found = _sum_of(s, made, bound, known)
        parts = None if found is None else _fewer(found, s, known, names)
        if found is not None and parts is not None:
            statements, terms = parts
            program, bound = (_rewritten(p, s.output, found, statements, terms) for p in (program, bound))
    return program, bound


def _sum_of(s: Statement, made: Mapping[str, Statement], program: Program, types: Types) -> _Sum | None:
    """The first sum within a statement that has several such products."""
    outputs = distinct_variables(s.index)
    if outputs is None or not is_pure(s):
        return None
    extent = dict(zip(outputs, types[s.output].shape, strict=True))
    summed = "k"
    while summed in {*outputs, *index_variables(*s.roots)}:
        summed += "'"
    every = [a.tensor for a in accesses_in(*s.roots)]
    for terms in _sums(s.body):
        found = _Sum({}, {}, summed)
        for _, e in terms:
            product = made.get(e.tensor) if isinstance(e, Access) else None
            if product is None or not isinstance(e, Access) or e.tensor in program.outputs:
                continue
            if {r.output for r in program.readers(e.tensor)} == {s.output} and every.count(e.tensor) == 1:
                _take(found, e, product, extent, types)
        dtypes = {types[a.tensor].dtype for a in found.products}
        if len(found.products) > 1 and len(dtypes) == 1:
            signs = {e: minus for minus, e in terms if isinstance(e, Access)}
            products = {
                a: [replace(t, negative=t.negative != signs[a]) for t in own] for a, own in found.products.items()
            }
            return replace(found, products=products)
    return None


def _sums(e: Expr) -> list[list[tuple[bool, Expr]]]:
    """The sums within an expression, as terms."""
    terms = terms_of(e, False)
    inner = [x for _, t in terms for c in _parts_of(t) for x in _sums(c)]
    return [terms, *inner] if len(terms) > 1 else inner


def _parts_of(e: Expr) -> tuple[Expr, ...]:
    return e.args if isinstance(e, Call) else ()


def _take(found: _Sum, read: Access, s: Statement, extent: Mapping[str, int], types: Types) -> None:
    """Add a product, if it is one of an operand, or a sum of two, and a matrix over all points of a box."""
    names, own = distinct_variables(read.index), distinct_variables(s.index)
    if s.aggregation != "sum" or s.guard is not None or s.default is not None or s.constraints or None in (names, own):
        return
    assert names is not None and own is not None
    free = {v for v in index_variables(s.body) if v not in own}
    if len(free) != 1 or not set(names) <= extent.keys() or any(isinstance(e, Inside | Pad) for e in walk(s.body)):
        return
    renamed: dict[str, Expr] = {**dict(zip(own, map(Index, names), strict=True)), free.pop(): Index(found.summed)}
    factors = [f.value for f in factors_of(substitute(s.body, renamed), types) if not f.divides]
    if len(factors) != len(factors_of(s.body, types)) or len(factors) != 2:
        return
    known = {**{v: extent[v] for v in names}, **{v: n for v, n in found.extent.items() if v == found.summed}}
    if any(types[s.output].shape[d] != extent[v] for d, v in enumerate(names)):
        return
    places = axis_places(accesses_in(*factors), types)
    sizes = ranges_of(places, known, lambda e, n: isinstance(e, Int) and 0 <= e.value < n)
    if sizes is None:
        return
    smaller = sorted(factors, key=lambda f: math.prod(sizes[v] for v in set(index_variables(f))))
    for matrix, operand in (smaller, smaller[::-1]):
        terms = terms_of(operand, False)
        if len(terms) > 2 or not all(_is_element(e, found.summed) for e in (*(e for _, e in terms), matrix)):
            continue
        assert isinstance(matrix, Access)
        used = set(index_variables(matrix))
        beside = math.prod(n for v, n in sizes.items() if v not in used)
        if beside >= LEAST_USES and is_floating(types[matrix.tensor].dtype):
            found.products[read] = [_Term(m, e, matrix) for m, e in terms if isinstance(e, Access)]
            found.extent.update(sizes)
            return


def _is_element(e: Expr, summed: str) -> bool:
    """Whether an operand is an element of a tensor at the summed variable and at no places in data."""
    return isinstance(e, Access) and Index(summed) in e.index and not any(accesses_in(*e.index))


def _fewer(
    found: _Sum, s: Statement, types: Types, names: Names
) -> tuple[list[Statement], list[tuple[bool, Expr]]] | None:
    """Statements of fewer products, and the terms that these are; None where too little is saved."""
    extent, groups = found.extent, dict[Access, list[_Term]]()
    before = sum(_points(own, extent) for own in found.products.values())
    for own in found.products.values():
        for t in own:
            groups.setdefault(t.operand, []).append(t)
    wider = {op: {v for t in own for v in index_variables(t.matrix)} for op, own in groups.items()}
    if any(set(index_variables(t.matrix)) != wider[op] for op, own in groups.items() for t in own):
        return None
    if before - sum(_points(own[:1], extent) for own in groups.values()) < max(FEWER_POINTS, 1):
        return None
    statements: list[Statement] = []
    terms: list[tuple[bool, Expr]] = []

    def stated(name: str, variables: list[str], body: Expr, aggregation: str) -> Access:
        index, sizes = tuple(map(Index, variables)), tuple(Int(extent[v]) for v in variables)
        statements.append(Statement(names.fresh(name), index, sizes, body, aggregation, span=s.span))
        return Access(statements[-1].output, index)

    for operand, own in groups.items():
        if len({types[t.matrix.tensor].dtype for t in own}) > 1:
            return None
        negative, matrix = own[0].negative, own[0].matrix
        if len(own) > 1:
            body = added([(t.negative != negative, t.matrix) for t in own])
            matrix = stated(f"{s.output}_matrix", [*index_variables(matrix)], body, "assign")
        used = {*index_variables(operand), *index_variables(matrix)}
        own_index = [v for v in distinct_variables(s.index) or () if v in used]
        terms.append((negative, stated(f"{s.output}_product", own_index, Call("mul", (operand, matrix)), "sum")))
    return statements, sorted(terms, key=lambda t: t[0])


def _points(terms: list[_Term], extent: Mapping[str, int]) -> int:
    """Multiplications of a product."""
    return math.prod(extent[v] for v in {v for t in terms for a in (t.operand, t.matrix) for v in index_variables(a)})


def _rewritten(
    program: Program, output: str, found: _Sum, statements: list[Statement], terms: list[tuple[bool, Expr]]
) -> Program:
    gone = {a.tensor for a in found.products}

    def visit(e: Expr) -> Expr:
        own = terms_of(e, False)
        if not any(isinstance(x, Access) and x in found.products for _, x in own):
            return rebuild(e, visit)
        kept = [(minus, visit(x)) for minus, x in own if x not in found.products]
        return added([*(t for t in kept if not t[0]), *terms, *(t for t in kept if t[0])])

    result: list[Statement] = []
    for s in program.statements:
        if s.output == output:
            result += [*statements, replace(s, body=visit(s.body))]
        elif s.output not in gone:
            result.append(s)
    return replace(program, statements=tuple(result))
