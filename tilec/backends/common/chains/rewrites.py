"""Programs written otherwise where that makes chains of them: aggregations of whole matrices as aggregations of rows,
and then of what these gave, since a kernel has a block of rows; reads at computed positions as statements of their own,
which a kernel then reads; elements that lanes read beside each other laid out so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.chains.chain import ChainKernel, Inner, Reduced
from tilec.backends.common.chains.cost import MOST_STORED_BYTES
from tilec.backends.common.chains.sheared import is_aslant
from tilec.backends.common.chains.targets import REDUCED, Matrices, matrices_of, roles_of
from tilec.backends.common.chains.values import DOT_DTYPES, Apart, extents_of, plain_index, rebuilt, reduction_variables
from tilec.ir.constraining import access_of, constraining
from tilec.ir.functions import ONE, ZERO, all_of, call
from tilec.ir.index import linear
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_values,
    reads,
    rebuild,
    value_accesses,
)
from tilec.ir.types import FLOATS, ITEM_BYTES, NARROW, TensorType, Types, is_floating
from tilec.transforms.util.naming import Names

# of kernels without products: points for each row that a thread has at once, lanes of a warp, bytes of a cache line,
# and lines a second that the multiprocessors of an H200 read from their caches
_ROWS, _LANES, _LINE, _LINES_A_SECOND = 4, 32, 128, 2.2e11
BY_TERMS_GAIN = 20e-6  # seconds, for which another launch is worth it
# bytes of a point's terms, which a thread reads in few loads where they are fewer: at 16 terms of float32 laying out
# makes a chain three times as fast, at 8 it made one 2.7 times as slow
BY_TERMS_BYTES = 64
MOST_TIMES_MADE = 3  # kernels that make the same values of two products sooner than one stores them


def by_rows(program: Program, types: Types, matrices: Matrices) -> Apart:
    """The program with aggregations over both sides of a matrix in two steps. What a row gives is held in float32."""
    names = Names.of(program)
    known = dict(types)
    made: list[Statement] = []
    changed: set[str] = set()
    for s in program.statements:
        roles = None if s.output in matrices.values or s.aggregation not in REDUCED else roles_of(s, matrices)
        index, extent = plain_index(s), extents_of(s, types)
        summed = reduction_variables(s)
        whole = roles is not None and set(roles) <= set(summed) and types[s.output].dtype in DOT_DTYPES
        if not whole or roles is None or index is None or extent is None:
            made.append(s)
            continue
        _, column = roles
        kept = (*index, *(v for v in summed if v != column))
        dtype = types[s.output].dtype
        t = TensorType(tuple(extent[v] for v in kept), "float32" if dtype in NARROW else dtype)
        name = names.fresh(f"{s.output}_rows")
        known[name] = t
        place = tuple(map(Index, kept))
        made.append(replace(s, output=name, index=place, sizes=tuple(map(Int, t.shape))))
        made.append(
            replace(
                s, body=Access(name, place), guard=None, constraints=(), sizes=tuple(map(Int, types[s.output].shape))
            )
        )
        changed |= {name, s.output}
    return Apart(replace(program, statements=tuple(made)), known, frozenset(changed))


def with_gathers_apart(program: Program, types: Types) -> Apart:
    """The program in which floats are read at computed positions through statements of their own, and scatters of
    matrix values have their sums at each place first. Both have the variables of the positions alone, so at most as
    many elements as the matrix values, which would be stored otherwise. Sums without matrix values stay as they are:
    kernels of their own store them."""
    written = [i for s in program.statements for i in s.index or ()]
    positions = [i for s in program.statements for a in value_accesses(s) for i in a.index]
    if all(linear(i).is_affine for i in (*positions, *written)) and not any(map(is_aslant, written)):
        return Apart(program, types)
    made = _Rewriter(program, types)
    statements: list[Statement] = []
    of_matrices: set[str] = set()
    for s in program.statements:
        before = dict(made.found), set(made.changed)
        parts = made.read_apart(s)
        if not of_matrices.isdisjoint(reads(s)) or _is_of_pairs(s, types):
            of_matrices.add(s.output)
        elif reduction_variables(s):
            (made.found, made.changed), parts = before, [s]
        statements += parts
    parted = replace(program, statements=tuple(statements))
    matrices = matrices_of(parted, made.types)
    statements = []
    for s in parted.statements:
        statements += made.summed_first(s, matrices)
    found = replace(parted, statements=tuple(statements))
    return Apart(found, made.types, frozenset(made.changed), frozenset(made.summed))


class _Rewriter:
    def __init__(self, program: Program, types: Types):
        self.names = Names.of(program)
        self.types = dict(types)
        self.changed: set[str] = set()
        self.summed: set[str] = set()
        self.found: dict[tuple[Expr, tuple[int, ...]], str] = {}

    def read_apart(self, s: Statement) -> list[Statement]:
        """The statement after those of its reads at computed positions."""
        index, extent = plain_index(s), extents_of(s, self.types)
        floats = is_floating(self.types[s.output].dtype)
        if index is None or extent is None or not floats or 0 in extent.values() or s.aggregation == "argmax":
            return [s]
        every = [e for e in _outermost(s.body) if _is_computed(e)]
        constrain = set(constraining(s.body))
        if not every or any(
            access_of(e) not in constrain or not set(index_variables(e)) <= extent.keys() for e in every
        ):
            return [s]
        before: list[Statement] = []
        inside: dict[Expr, None] = {} if s.guard is None else {s.guard: None}
        reads: dict[Expr, Access] = {}
        for e in every:
            a = access_of(e)
            shape = self.types[a.tensor].shape
            fixed = tuple(ZERO if _is_whole(i, n, extent) else i for i, n in zip(a.index, shape, strict=True))
            if any(i != ZERO for i in fixed):
                within = call("ne", Inside(replace(a, index=fixed)), ZERO)
                inside[self._stored(s, within, "bool", "inside", extent, before)] = None
            if isinstance(e, Access):
                reads[e] = self._stored(s, a, self.types[a.tensor].dtype, "read", extent, before)
        self.changed.add(s.output)
        return [*before, replace(s, body=_replaced(s.body, reads), guard=all_of(inside))]

    def _stored(
        self, s: Statement, value: Expr, dtype: str, suffix: str, extent: Mapping[str, int], before: list[Statement]
    ) -> Access:
        """The element of a new statement, or of one that has the value: laid out as the statement where it has no other
        variables, else as what is read."""
        variables = tuple(dict.fromkeys(index_variables(value)))
        written = index_variables(*(s.index or ()))
        if set(variables) <= set(written):
            variables = tuple(v for v in dict.fromkeys(written) if v in variables)
        place, shape = tuple(map(Index, variables)), tuple(extent[v] for v in variables)
        if (value, shape) not in self.found:
            name = self.found[value, shape] = self.names.fresh(f"{s.output}_{suffix}")
            self.types[name] = TensorType(shape, dtype)
            self.changed.add(name)
            before.append(Statement(name, place, tuple(map(Int, shape)), value, span=s.span))
        return Access(self.found[value, shape], place)

    def summed_first(self, s: Statement, matrices: Matrices) -> list[Statement]:
        """A scatter of sums of matrix values after the sums."""
        more = s.index is None or s.default is not None or s.init is not None
        if more or s.aggregation != "sum" or plain_index(s) is not None or roles_of(s, matrices) is None:
            return [s]
        kept = tuple(dict.fromkeys(index_variables(*(s.index or ()))))
        whole = replace(s, index=tuple(map(Index, kept)))
        dtype = self.types[s.output].dtype
        extent = extents_of(replace(s, index=()), {**matrices.types, s.output: TensorType((), dtype)})
        if extent is None or not set(kept) <= extent.keys() or 0 in extent.values():
            return [s]
        if any(map(_is_computed, _outermost(s.body))):
            return [s]
        name = self.names.fresh(f"{s.output}_points")
        alone = not reduction_variables(whole) and _is_one_to_one(s.index or ())
        t = TensorType(tuple(extent[v] for v in kept), "float32" if dtype in NARROW and not alone else dtype)
        self.types[name] = t
        self.changed |= {name, s.output}
        self.summed.add(name)
        first = replace(whole, output=name, sizes=tuple(map(Int, t.shape)))
        if not reduction_variables(first):
            first = replace(first, aggregation="assign")
        return [first, replace(s, body=Access(name, whole.index or ()), guard=None)]


def _is_one_to_one(index: Sequence[Expr]) -> bool:
    """Whether positions say the variables of each point, one after the other: then no two points have the same."""
    known: set[str] = set()
    for _ in index:
        left = [{*linear(e).variables()} - known for e in index if linear(e).is_affine]
        known |= {v for own in left if len(own) == 1 for v in own}
    return known >= {*index_variables(*index)}


def _is_of_pairs(s: Statement, types: Types) -> bool:
    """Whether a sum adds up what is made of several floats each, as products and distances are."""
    summed = {*reduction_variables(s)}
    read = {a for a in accesses_in(s.body) if is_floating(types[a.tensor].dtype) and summed & {*index_variables(a)}}
    return len(read) > 1


def _outermost(e: Expr) -> list[Access | Inside]:
    """The accesses of a body that no other access computes with."""
    if isinstance(e, (Access, Inside)):
        return [e]
    return [a for x in (e.args if isinstance(e, Call) else ()) for a in _outermost(x)]


def _is_computed(e: Access | Inside) -> bool:
    return any(not linear(i).is_affine for i in access_of(e).index)


def _is_whole(i: Expr, n: int, extent: Mapping[str, int]) -> bool:
    """Whether a position is inside at every point."""
    match i:
        case Call("mod", (inner, Int(modulus))) if 0 < modulus <= n and linear(inner).is_integral:
            return not any(accesses_in(inner))
    v = linear(i).bare
    return v is not None and extent[v] <= n


def _replaced(e: Expr, reads: Mapping[Expr, Access]) -> Expr:
    if isinstance(e, (Access, Inside)):
        return reads.get(e, ONE if _is_computed(e) else e)
    return rebuild(e, lambda x: _replaced(x, reads)) if isinstance(e, Call) else e


def with_shared_value(program: Program, kernels: Sequence[ChainKernel], matrices: Matrices, types: Types) -> Apart:
    """The program with the last matrix value that many kernels would make of several products stored, and of 16-bit
    products rounded as operands are, for the sums that read it: gradients by rows, by columns and by two tables of
    biases. `summed` names it; as it is where there is none."""
    of_kernel = {r.target.output: k.first for k in kernels for r in k.targets}
    users: dict[str, set[str]] = {}
    for s in reversed(program.statements):
        needed = users.get(s.output, set()) if s.output in matrices.values else {of_kernel.get(s.output, "")} - {""}
        for n in reads(s):
            if n in matrices.values:
                users.setdefault(n, set()).update(needed)
    names = [n for n in (s.output for s in program.statements) if len(users.get(n, ())) > MOST_TIMES_MADE]
    names = [n for n in names if all(_is_linear(s.body, n) for s in program.readers(n))]
    value = matrices.written_out(matrices.values[names[-1]][1]) if names else ZERO
    products = [i for n, i in matrices.inners.items() if any(a.tensor == n for a in accesses_in(value))]
    dtypes = {i.dtype for i in products if i.left is not None}
    if len(products) < 2 or len(dtypes) != 1:
        return Apart(program, types)
    (dtype,), name = dtypes, names[-1]
    if math.prod(types[name].shape) * ITEM_BYTES[dtype] > MOST_STORED_BYTES:
        return Apart(program, types)
    if dtype not in NARROW:
        return Apart(program, types, frozenset(), frozenset((name,)))
    copy = Names.of(program).fresh(f"{name}_stored")
    made: list[Statement] = []
    for s in program.statements:
        made.append(map_values(s, lambda e: rebuilt(e, lambda a: _in_float32(a, name, copy))))
        if s.output == name:
            body = Call(dtype, (Access(name, s.index or ()),))
            made.append(Statement(copy, s.index, s.sizes, body, "assign", span=s.span))
    known = {**types, copy: replace(types[name], dtype=dtype)}
    changed = {copy, *(r.output for r in program.readers(name))}
    return Apart(replace(program, statements=tuple(made)), known, frozenset(changed), frozenset((copy,)))


def _is_linear(e: Expr, name: str) -> bool:
    """Whether a value is a product of one of a tensor's elements and others."""
    match e:
        case Access(tensor):
            return tensor == name
        case Call("mul", (x, y)):
            return _is_linear(x, name) != _is_linear(y, name)
        case Call(function, (x,)) if function in ("neg", *FLOATS):
            return _is_linear(x, name)
    return False


def _in_float32(a: Access, name: str, copy: str) -> Expr:
    return Call("float32", (replace(a, tensor=copy),)) if a.tensor == name else a


@dataclass(frozen=True)
class LaidByTerms:
    """A program with statements that lay elements out by term, its kernels, which read these, and the statements'
    outputs."""

    program: Program
    types: Types
    kernels: list[ChainKernel]
    made: frozenset[str]


def by_terms(program: Program, kernels: Sequence[ChainKernel], types: Types) -> LaidByTerms:
    """The elements that kernels without products read term by term for the points that they walk, `Y[j, d]`, laid out
    as `[d, j]` where that is sooner: a warp's lanes, which lie along the walk, then read one cache line, and not one
    for each few points."""
    made = _ByTerms(program, types)
    found = [made.kernel(k) if k.elementwise else k for k in kernels]
    if not made.statements:
        return LaidByTerms(program, types, list(kernels), frozenset())
    changed = {r.target.output: r.target.statement for k in found for r in k.targets}
    statements = (*made.statements, *(changed.get(s.output, s) for s in program.statements))
    outputs = frozenset(s.output for s in made.statements)
    return LaidByTerms(replace(program, statements=statements), made.types, found, outputs)


class _ByTerms:
    def __init__(self, program: Program, types: Types):
        self.names, self.types = Names.of(program), dict(types)
        self.statements: list[Statement] = []
        self.found: dict[str, str] = {}

    def kernel(self, kernel: ChainKernel) -> ChainKernel:
        inners = [(i, _walk_of_sum(i, kernel)) for i in kernel.inners.values()]
        targets = [(r, _walk_of_mixture(r, kernel)) for r in kernel.targets]
        reads = {a: i.extent for i, walk in inners for a in self._by_points(i.body, walk)}
        reads |= {a: r.unrolled or 1 for r, walk in targets for a in self._by_points(r.target.body, walk)}
        variables = (*kernel.blocked, *kernel.batch, *kernel.walked, kernel.looped or "")
        walked = math.prod(kernel.extent[v] for v in variables) / (_ROWS * _LANES)
        lines = sum(terms * (self._lines(a) - 1) for a, terms in reads.items())
        if walked * lines / _LINES_A_SECOND < BY_TERMS_GAIN:
            return kernel
        return replace(
            kernel,
            inners={i.output: replace(i, body=self._laid(i.body, walk)) for i, walk in inners},
            targets=tuple(self._target(r, walk) for r, walk in targets),
        )

    def _target(self, r: Reduced, walk: _Walk) -> Reduced:
        t, s = r.target, r.target.statement
        target = replace(t, statement=replace(s, body=self._laid(s.body, walk)), body=self._laid(t.body, walk))
        return replace(r, target=target, inner=tuple(replace(f, value=self._laid(f.value, walk)) for f in r.inner))

    def _lines(self, a: Access) -> int:
        """Cache lines in which a warp's lanes read."""
        t = self.types[a.tensor]
        return min(_LANES, -(-_LANES * t.shape[-1] * ITEM_BYTES[t.dtype] // _LINE))

    def _laid(self, e: Expr, walk: _Walk) -> Expr:
        return rebuilt(e, lambda a: self._by_term(a) if self._is_by_points(a, walk) else a)

    def _by_points(self, e: Expr, walk: _Walk) -> list[Access]:
        return [a for a in accesses_in(e) if self._is_by_points(a, walk)]

    def _is_by_points(self, a: Access, walk: _Walk) -> bool:
        """Whether an access has one point's terms side by side, and many of them."""
        bare = [linear(e).bare for e in a.index]
        if len(bare) < 2 or bare[-1] is None or bare[-1] != walk.term or bare[-2] not in walk.points:
            return False
        t = self.types[a.tensor]
        return t.shape[-1] * ITEM_BYTES[t.dtype] >= BY_TERMS_BYTES

    def _by_term(self, a: Access) -> Access:
        *others, point, term = a.index
        if a.tensor not in self.found:
            name = self.found[a.tensor] = self.names.fresh(f"{a.tensor}_terms")
            t = self.types[a.tensor]
            *sizes, points, terms = t.shape
            self.types[name] = replace(t, shape=(*sizes, terms, points))
            *kept, x, y = (Index(f"v{k}") for k in range(len(t.shape)))
            shape = tuple(map(Int, self.types[name].shape))
            self.statements.append(Statement(name, (*kept, y, x), shape, Access(a.tensor, (*kept, x, y))))
        return Access(self.found[a.tensor], (*others, term, point))


@dataclass(frozen=True)
class _Walk:
    """The variables of a value that lie along the lanes, and that of its terms."""

    points: frozenset[str]
    term: str | None


def _walk_of_sum(inner: Inner, kernel: ChainKernel) -> _Walk:
    """In an inner sum's own variables, which each access gives values."""
    used = [a for r in kernel.targets for a in accesses_in(r.target.body, *r.target.conditions)]
    own = [dict(zip(inner.index, a.index, strict=True)) for a in used if a.tensor == inner.output]
    points = {v for v in inner.index if all(linear(names[v]).bare == kernel.looped for names in own)}
    return _Walk(frozenset(points), inner.axis)


def _walk_of_mixture(r: Reduced, kernel: ChainKernel) -> _Walk:
    return _Walk(frozenset({kernel.looped or ""}), r.target.feature if r.unrolled else None)
