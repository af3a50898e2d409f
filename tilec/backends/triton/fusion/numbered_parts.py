"""Sums that write one slice of a concatenation, as tensors without its axis.

`P[n, 0 : N, 4] = +(A[n, m] * B[m, 2])` and `Q[n, 2 : N, 4] = +(...)`, of which a gradient reads `P[n, i] + Q[n, i]`,
are `P[n]`, `Q[n]` and `(i == 0 ? P[n] : 0) + (i == 2 ? Q[n] : 0)`. Nothing is filled with zeros, and sums that have the
rows and the terms in common are members of one group, or share what they read. So are sums that each write one element,
`P[0 : 4] = +(...)`: the gradients of coefficients that a program reads by number.

What is added up at places in data in some columns alone, `Y[T[m], c + 64 : N, 192] = +(X[m, c])`, is a tensor of these
columns, which go to their places afterwards: so each point is one of all columns, and not each element one by itself.
So are long products in half of their rows or columns at most, the gradients of weights that are read in parts,
`G[i, j : I, J] = +(D[n, i] * X[n, j - 128])`: blocks elsewhere would multiply zeros.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.domain import Domain, build_domain, size_of
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.fusion.fuse_producers import elementwise
from tilec.backends.triton.fusion.window_layout import LEAST_LINE
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.pointwise.residues import MOST_CLASS_ELEMENTS
from tilec.ir.functions import COSTLY_FUNCTIONS, ZERO, all_of, operands_of
from tilec.ir.index import Affine, distinct_variables, linear, substitute_affine
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
    map_values,
    value_accesses,
    variables_of,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import ITEM_BYTES, TensorType, Types, is_floating
from tilec.transforms.lower.reduce import keep_constraint_variables
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_plain_sum, is_pure
from tilec.transforms.util.rewrite import map_reads

_MOST_COLUMNS = 4
LEAST_APART = 2**20  # terms of a column
SLICE_TERMS, SLICE_PRODUCTS = 64, 2**26  # of an element and of all, of products in half of their columns or fewer
_MOST_TERM_BYTES = 2**28  # bytes of what a sum adds up


def with_numbered_parts(program: Program, types: Types) -> tuple[Program, Types]:
    """The program with such sums over fewer axes, and all types. Where nothing but short sums is put together, the
    program that does so computes them. What each place has whole lines of joins the group that these come from."""
    places = {s.output: found for s in program.statements if (found := _places(s, program, types)) is not None}
    short = {s.output for s in program.statements if s.output in places and _is_short(s, types, places[s.output])}
    for s in program.statements if short else ():
        own = {a.tensor for a in value_accesses(s)}
        if own & short and own <= short:
            for t in own:
                places.pop(t, None)
    for s in program.statements:
        for t in {a.tensor for a in value_accesses(s) if a.tensor in places} - _at_own_index(s, types):
            del places[t]
    known, names = dict(types), Names.of(program)
    parts = {t: (names.fresh(f"{t}_part"), found) for t, found in places.items()}
    statements: list[Statement] = []
    for s in program.statements:
        if s.output in places:
            output, found = parts[s.output]
            kept = [d for d, n in enumerate(found) if n is None]
            shape, index, sizes = types[s.output].shape, s.index or (), s.sizes or ()
            known[output] = TensorType(tuple(shape[d] for d in kept), types[s.output].dtype)
            s = replace(s, output=output, index=tuple(index[d] for d in kept), sizes=tuple(sizes[d] for d in kept))
        if any(a.tensor in places for a in value_accesses(s)):
            s = map_values(s, lambda e: map_reads(e, parts, lambda x: _where_it_is(x, parts[x.tensor])))
        statements.append(s)
    return replace(program, statements=tuple(statements)), known


def with_narrow_scatters(program: Program, types: Types) -> tuple[Program, Types]:
    """The program with sums at places in data of no more columns than they write, and of costly terms that are stored,
    and all types."""
    program, types = _with_stored_terms(program, types)
    known, names = dict(types), Names.of(program)
    statements: list[Statement] = []
    for s in program.statements:
        columns = _columns(s, types)
        if columns:
            part = _narrow(s, columns, names.fresh(f"{s.output}_part"))
            shape, index = types[s.output].shape, tuple(Index(f"i{d}") for d in range(len(s.index or ())))
            narrow = tuple(columns[d][2] if d in columns else n for d, n in enumerate(shape))
            known[part.output] = TensorType(narrow, types[s.output].dtype)
            places = tuple((linear(e) - columns[d][1]).to_expr() if d in columns else e for d, e in enumerate(index))
            put = Statement(s.output, index, s.sizes, Pad(Access(part.output, places), ZERO), span=s.span)
            statements.append(part)
            s = put
        statements.append(s)
    return replace(program, statements=tuple(statements)), known


def _with_stored_terms(program: Program, types: Types) -> tuple[Program, Types]:
    """The program with the costly terms of sums at places in data as tensors, and all types: a kernel that combines
    runs of points computes as many for each run as for the longest. Sums that write one slice each of an axis, all of
    its slices between them, and are added up, `G[T[m], d, 0 : N, D, 2] = +(...)`, are one sum of whole rows."""
    known, names = dict(types), Names.of(program)
    domains = {s.output: found for s in program.statements if (found := _costly_terms(s, types)) is not None}
    slices = {t: found for r in program.statements for found in _slices(r, program, domains, types) for t in found}
    terms: dict[str, Access] = {}
    dropped: set[str] = set()
    statements: list[Statement] = []
    for s in program.statements:
        if s.output in domains:
            made, terms[s.output] = _stored_terms(s, domains[s.output], names.fresh(f"{s.output}_terms"))
            known[made.output] = TensorType(tuple(map(size_of, made.sizes or ())), types[s.output].dtype)
            statements.append(made)
            together = slices.get(s.output, (s.output,))
            if not {*together} <= terms.keys():
                dropped.add(s.output)  # the last of them stands for all
                continue
            s = _of_terms(s, [terms[t] for t in together])
        elif dropped & {a.tensor for a in value_accesses(s)}:
            s = replace(s, body=_without_terms(s.body, dropped))
        statements.append(s)
    return replace(program, statements=tuple(statements)), known


def _costly_terms(s: Statement, types: Types) -> Domain | None:
    """The points of a large sum in float32 or float64 at places in data, beside which its index has columns and numbers
    alone, where each column calls the device's library."""
    rows, dtype = [linear(e) for e in s.index or ()], types[s.output].dtype
    if s.aggregation != "sum" or not is_pure(s) or dtype not in ("float32", "float64"):
        return None
    columns = {row.bare for row in rows if row.bare is not None}
    if not columns or not any(row.atoms() for row in rows) or any(r.variables() and r.bare is None for r in rows):
        return None
    heavy = (e for e in walk(s.body) if isinstance(e, Call) and e.function in COSTLY_FUNCTIONS)
    domain = build_domain(s, types) if any(columns <= {*index_variables(e)} for e in heavy) else None
    if domain is None or math.prod(domain.extent.values()) < LEAST_APART:
        return None
    count = math.prod(domain.extent[v] for v in index_variables(*(s.index or ())))
    return domain if count * ITEM_BYTES[dtype] <= _MOST_TERM_BYTES else None


def _slices(
    reader: Statement, program: Program, domains: Mapping[str, Domain], types: Types
) -> Iterator[tuple[str, ...]]:
    """Of such sums that a statement adds up, and nothing else reads: those that write all slices of an axis, in
    order."""
    places: dict[tuple[int, object], dict[int, str]] = {}
    read = [a.tensor for a in value_accesses(reader)]
    terms = operands_of("add", reader.body) if elementwise(reader) is not None else ()
    for t in (e for e in terms if isinstance(e, Access)):
        if t.tensor not in domains or t.index != reader.index or read.count(t.tensor) > 1:
            continue
        s, shape = domains[t.tensor].statement, types[t.tensor].shape
        alone = t.tensor not in program.outputs and [r.output for r in program.readers(t.tensor)] == [reader.output]
        rows = [linear(e) for e in s.index or ()]
        numbered = [a for a, row in enumerate(rows) if not row.terms]
        if len(numbered) != 1 or not alone or shape != types[reader.output].shape:
            continue
        (axis,) = numbered
        extent = tuple(
            (v, domains[t.tensor].low[v], domains[t.tensor].extent[v]) for v in index_variables(*s.index or ())
        )
        key = shape[axis], (axis, tuple(row for a, row in enumerate(rows) if a != axis), extent)
        places.setdefault(key, {})[as_int(rows[axis].constant)] = t.tensor
    for (count, _), found in places.items():
        if not is_symbolic(count) and 2 <= count <= _MOST_COLUMNS and set(found) == set(range(count)):
            yield tuple(found[n] for n in range(count))


def _without_terms(e: Expr, dropped: Collection[str]) -> Expr:
    if not isinstance(e, Call) or e.function != "add":
        return e
    left = [_without_terms(a, dropped) for a in e.args if not isinstance(a, Access) or a.tensor not in dropped]
    return Call("add", tuple(left)) if len(left) == 2 else left[0] if left else ZERO


def _stored_terms(s: Statement, domain: Domain, name: str) -> tuple[Statement, Access]:
    """A statement that stores what a sum adds up at places in data, columns last, and how the sum reads it."""
    rows = sorted(s.index or (), key=lambda e: linear(e).bare is not None)
    names = index_variables(*rows)
    index = tuple((Affine.variable(v) - domain.low[v]).to_expr() for v in names)
    sizes = tuple(Int(domain.extent[v]) for v in names)
    return replace(s, output=name, index=index, sizes=sizes), Access(name, index)


def _of_terms(s: Statement, terms: Sequence[Access]) -> Statement:
    """The sum of stored terms, of one slice each where there are several."""
    body: Expr = terms[-1]
    index, c = s.index or (), Index(fresh_variable("c", {*all_variables(s)}))
    if len(terms) > 1:
        index = tuple(e if linear(e).terms else c for e in index)
        for n in reversed(range(len(terms) - 1)):
            body = Call("select", (Call("eq", (c, Int(n))), terms[n], body))
    return replace(s, index=index, body=body, guard=None, constraints=())


def _columns(s: Statement, types: Types) -> dict[int, tuple[str, int, int]]:
    """Of a sum at places in data, the axes along which it writes a part: by axis the variable, the first place, and how
    many there are."""
    rows = [linear(e) for e in s.index or ()]
    floating = s.aggregation == "sum" and is_floating(types[s.output].dtype)
    product = all(row.is_affine for row in rows)
    if not floating or not is_pure(s) or product and not _is_long_product(s, types):
        return {}
    domain, found = build_domain(s, types), dict[int, tuple[str, int, int]]()
    for d, (row, size) in enumerate(zip(rows, types[s.output].shape, strict=True)):
        v = row.variables()[0] if row.is_affine and len(row.variables()) == 1 else ""
        beside = {w for k, e in enumerate(s.index or ()) if k != d for w in index_variables(e)}
        if domain is None or not v or v in beside or row.coefficient(v) != 1 or not row.is_integral:
            continue
        first, count = domain.low[v] + as_int(row.constant), domain.extent[v]
        if 0 <= first and first + count <= size and (2 if product else 1) * count < size + product:
            found[d] = v, first, count
    return found


def _is_long_product(s: Statement, types: Types) -> bool:
    """Whether a statement adds up many products for each element, wherever what it reads is inside."""
    split = split_factors(s.body, types) if is_plain_sum(s) and distinct_variables(s.index) is not None else None
    if (
        split is None
        or sum(bool(index_variables(f)) for f in split[0]) < 2
        or any(map(is_symbolic, types[s.output].shape))
    ):
        return False
    domain = build_domain(s, types)
    summed = set() if domain is None else domain.extent.keys() - set(index_variables(*(s.index or ())))
    terms = 0 if domain is None else math.prod(domain.extent[v] for v in summed)
    return domain is not None and terms >= SLICE_TERMS and math.prod(domain.extent.values()) >= SLICE_PRODUCTS


def _narrow(s: Statement, columns: Mapping[int, tuple[str, int, int]], output: str) -> Statement:
    rows = [linear(e) for e in s.index or ()]
    moved = {v: Affine.variable(v) + first - rows[d].constant for d, (v, first, _) in columns.items()}
    index = tuple(
        Index(columns[d][0]) if d in columns else e for d, e in enumerate(substitute_affine(s, moved).index or ())
    )
    sizes = tuple(Int(columns[d][2]) if d in columns else n for d, n in enumerate(s.sizes or ()))
    return keep_constraint_variables(replace(substitute_affine(s, moved), output=output, index=index, sizes=sizes))


def _places(s: Statement, program: Program, types: Types) -> tuple[int | None, ...] | None:
    """The number of the place along each axis, None along others; None for another form."""
    rows = [linear(e) for e in s.index or ()]
    if s.aggregation != "sum" or not is_pure(s) or s.output in program.outputs:
        return None
    bare = [row.bare for row in rows if row.terms]
    if None in bare or len(set(bare)) < len(bare) or len(bare) == len(rows):
        return None
    if build_space(s, types) is None:
        return None
    return tuple(None if row.terms else as_int(row.constant) for row in rows)


def _is_short(s: Statement, types: Types, places: tuple[int | None, ...]) -> bool:
    """Whether a sum has few terms, and no place of whole lines of single ones."""
    space = build_space(s, types)
    terms = MOST_CLASS_ELEMENTS + 1 if space is None else space.count(space.reductions)
    lines = places[-1] is None and types[s.output].shape[-1] >= LEAST_LINE
    return terms <= MOST_CLASS_ELEMENTS and not (terms == 1 and lines)


def _at_own_index(s: Statement, types: Types) -> set[str]:
    """What an elementwise statement reads at its own index alone."""
    if elementwise(s) is None:
        return set()
    asked = {a.tensor for e in walk(*s.roots) if isinstance(e, Inside | Pad) for a in accesses_in(e)}
    found = {a.tensor for a in value_accesses(s)} - asked
    moved = {
        a.tensor for a in value_accesses(s) if a.index != s.index or types[a.tensor].shape != types[s.output].shape
    }
    return found - moved


def _where_it_is(e: Access, part: tuple[str, tuple[int | None, ...]]) -> Expr:
    name, places = part
    found = list(zip(e.index, places, strict=True))
    here = all_of([Call("eq", (i, Int(n))) for i, n in found if n is not None])
    assert here is not None
    return Call("select", (here, Access(name, tuple(i for i, n in found if n is None)), ZERO))


def with_stored_columns(program: Program, types: Types, barred: Collection[str]) -> tuple[Program, Types]:
    """The program with the columns of such sums as statements of their own, and all types. `barred`: outputs of
    statements that stay as they are."""
    names, known = Names.of(program), dict(types)
    statements: list[Statement] = []
    for s in program.statements:
        column = None if s.output in barred else _few_columns(s, known)
        if column is None:
            statements.append(s)
            continue
        index, sizes, shape = s.index or (), s.sizes or (), known[s.output].shape
        value: Expr | None = None
        for n in reversed(range(shape[-1])):
            at = {column: Affine.of((), n)}
            part = replace(substitute_affine(s, at), output=names.fresh(f"{s.output}_column"))
            part = replace(part, index=index[:-1], sizes=sizes[:-1])
            known[part.output] = TensorType(shape[:-1], known[s.output].dtype)
            statements.append(part)
            read = Access(part.output, index[:-1])
            test = Call("eq", (Index(column), Int(n)))
            value = read if value is None else Call("select", (test, read, value))
        assert value is not None
        statements.append(replace(s, body=value, aggregation="assign"))
    return replace(program, statements=tuple(statements)), known


def _few_columns(s: Statement, types: Types) -> str | None:
    """The last output variable of a sum of float32 or float64 products along rows of memory, if it has few values, and
    what the terms compute of tensors that lack it takes longer than a product does; None elsewhere."""
    t = types[s.output]
    names = distinct_variables(s.index)
    if not is_plain_sum(s) or names is None or t.dtype not in ("float32", "float64") or len(names) < 2:
        return None
    split = split_factors(s.body, types)
    if split is None or is_symbolic(t.shape[-1]) or set(variables_of(s)) <= set(names):
        return None
    if not 2 <= t.shape[-1] <= _MOST_COLUMNS:
        return None
    own = [f for f in split[0] if names[-1] not in index_variables(f)]
    beside = [f for f in split[0] if names[-1] in index_variables(f)]
    if not all(isinstance(f, Access) and linear(f.index[-1]).bare == names[-1] for f in beside) or len(beside) != 1:
        return None
    space = build_space(s, types)
    if space is None or len(space.classes) != 1 or space.valid or not space.covers:
        return None
    summed = {v for v in space.reductions if not space.single(v)}
    shared = set().union(*map(set, map(index_variables, own)))
    every = {v for v in (*names[:-1], *summed) if space.largest(v) > 1}
    many = math.prod(map(space.largest, every)) >= LEAST_APART
    computed = any(isinstance(e, Call) and e.function in COSTLY_FUNCTIONS for f in own for e in walk(f))
    rows = {linear(e.index[-1]).bare for f in own for e in walk(f) if isinstance(e, Access) and e.index}
    return names[-1] if rows <= summed and every <= shared and many and computed else None
