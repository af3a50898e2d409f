"""Which sums are grouped products (grouped GEMM): rows that are multiplied by the matrix that a computed index names,
and their gradient by the matrices.

`Y[t, o] = +(X[t, c] * W[E[t], c, o])` is a matrix product for the rows of one expert. The rows are sorted by the index
(the key); a block of sorted rows is of one expert, or of few. `DW[E[t], c, o] = +(DY[t, o] * X[t, c])` is a product for
each expert, summed over its rows, which follow each other once they are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilec.backends.common.domain import Condition, build_domain, free
from tilec.backends.common.pairs import GAIN, LEAST, PRODUCTS, TERMS
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.dot import POINTERS, MatrixProduct, operand_accesses, recognise_dot, variables_outside
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.sizes import Strides
from tilec.backends.triton.scatter.places import PointPlaces
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Constraint, Expr, Index, Inside, Int, Pad, Statement, accesses_in, rebuild
from tilec.ir.types import FLOATS, ITEM_BYTES, TensorType, Types
from tilec.transforms.util.naming import all_variables, fresh_variable

CACHED_BYTES = 6e12  # bytes a second that terms one by one read of matrices, through the level-two cache


@dataclass(frozen=True)
class GroupedProduct(MatrixProduct):
    """A product in which `group` stands for the keys. `places`: the keys of its points, which are
    sorted by them. `count`: how many keys there are. `asked`: of the points, beside their keys."""

    group: tuple[str, ...]
    places: PointPlaces
    types: Types
    strides: Strides
    count: int
    asked: tuple[Condition | Expr, ...] = ()

    @property
    def points(self) -> int:
        return self.space.count(self.places.keyed)


# rows by the matrix of their key


def recognise_grouped(space: Space, view: StridedView) -> GroupedProduct | None:
    """The statement as a product of each row by the matrix that its key names, None where it is none. Conditions on
    elements of the result alone may hold or not; others must hold for every point."""
    s = space.statement
    single = len(space.classes) == 1 and not space.residues and not space.stored
    if s.aggregation != "sum" or s.default is not None or not single:
        return None
    return next((g for form, groups in _keys(space, view) if (g := _by_key(form, groups, space, view))), None)


def _keys(space: Space, view: StridedView) -> Iterator[tuple[Affine, int]]:
    """Computed places of elements of the output at which factors are read, and how many matrices these have there."""
    split = split_factors(space.statement.body, view.types)
    groups: dict[Affine, int] = {}
    for f in split[0] if split is not None else ():
        for a in operand_accesses(f):
            for e, n in zip(a.index, view.types[a.tensor].shape, strict=True):
                form = linear(e)
                if not form.is_affine and form.is_integral and free(form) <= {*space.outputs}:
                    groups[form] = min(n, groups.get(form, n))
    yield from groups.items()


def _by_key(key: Affine, groups: int, space: Space, view: StridedView) -> GroupedProduct | None:
    s = space.statement
    group = fresh_variable("g", all_variables(s))

    def at_group(e: Expr) -> Expr:
        if isinstance(e, Access):
            return replace(e, index=tuple(Index(group) if linear(i) == key else i for i in e.index))
        return e if isinstance(e, Inside | Pad) else rebuild(e, at_group)

    def of_rows(f: Expr) -> bool:
        variables = variables_outside(f)
        return group not in variables and bool(variables & free(key))

    outputs = {*space.outputs}
    asked = [c for c in space.valid if c.form != key or c.bound < groups]
    if not all(free(c.form) <= outputs for c in asked):
        return None
    if s.guard is not None and not variables_outside(s.guard) <= outputs:
        return None
    of_groups = replace(s, body=at_group(s.body), guard=None)
    low, extent = {**space.low[0], group: 0}, {**space.extent[0], group: groups}
    own = replace(space, statement=of_groups, valid=(), low=(low,), extent=(extent,))
    over = replace(view, statement=of_groups)
    dot = recognise_dot(own, over, joined=of_rows)
    if dot is None or dot.dtype not in FLOATS:
        return None
    varying = {v for v in free(key) if not space.single(v)}
    if varying == {*dot.columns}:
        dot = replace(dot, left=dot.right, right=dot.left, rows=dot.columns, columns=dot.rows)
    if varying != {*dot.rows} or not groups:
        return None
    places, types, strides = _key_places(key, groups, space, view)
    if places is None or not _numbers_alike(places, space):
        return None
    zeros: tuple[Condition | Expr, ...] = (*asked, *s.guards)
    dot = replace(dot, rows=tuple(v for v in places.keyed if v in dot.rows), zero_result=zeros)
    return GroupedProduct(dot, own, over, (group,), places, types, strides, groups)


def _key_places(key: Affine, groups: int, space: Space, view: StridedView) -> tuple[PointPlaces | None, Types, Strides]:
    """The rows as points that are written at their keys."""
    s = space.statement
    rows = sorted(free(key), key=space.outputs.index)
    ranges = tuple(Constraint((Affine.variable(v) - space.low[0][v]).to_expr(), Int(space.extent[0][v])) for v in rows)
    written = Statement(s.output, (key.to_expr(),), (Int(groups),), Int(1), "sum", None, ranges, span=s.span)
    types = {**view.types, s.output: TensorType((groups,), "int64")}
    domain = build_domain(written, types)
    return None if domain is None else PointPlaces.of(domain, types, sort=True), types, view.strides


def _numbers_alike(places: PointPlaces, space: Space) -> bool:
    """Whether the points are numbered as the space numbers the values of their variables."""
    low, extent = places.domain.low, places.domain.extent
    return all((low[v], extent[v]) == (space.low[0][v], space.extent[0][v]) for v in places.keyed)


def grouped_pays(found: GroupedProduct, bm: int) -> bool:
    """Whether products of whole blocks, some of which are computed for several keys, take less time than terms one by
    one."""
    dot, space = found.dot, found.space
    columns, summed, batch = (space.count(v) for v in (dot.columns, dot.summed, dot.batch))
    if min(columns, summed) < LEAST or found.points < LEAST:
        return False
    blocks = -(-found.points // bm)
    walked = blocks + min(found.count, found.points, blocks * bm)
    products = walked * bm * columns * summed * batch / (POINTERS * PRODUCTS[dot.dtype])
    terms = found.points * columns * summed * batch / min(TERMS, CACHED_BYTES / ITEM_BYTES[dot.dtype])
    return terms > GAIN * products


# matrices of the keys, each summed over its rows


def recognise_group_sums(s: Statement, types: Types, strides: Strides, int64_index: bool) -> GroupedProduct | None:
    """A flat scatter as products of two operands, one for each key, summed over the points of the key; None where it is
    none."""
    split = split_factors(s.body, types) if s.aggregation == "sum" and s.default is None else None
    if split is None or len(split[0]) < 2:
        return None
    domain = build_domain(s, types)
    if domain is None:
        return None
    places = PointPlaces.of(domain, types, sort=True)
    term, group = _at_keys(places)
    space = build_space(term, types)
    if space is None or len(space.classes) != 1 or space.residues or space.stored or not space.covers:
        return None
    if not {*places.keyed} <= {*space.reductions} or not _numbers_alike(places, space):
        return None
    guard = places.statement.guard if places.whole_guard else None
    if not all(free(c.form) <= {*places.keyed} for c in space.valid):
        return None
    if guard is not None and not variables_outside(guard) <= {*places.keyed}:
        return None
    # sorting asks the rest, elements' places aside
    asked: tuple[Condition | Expr, ...] = (
        *(c for c in space.valid if any(accesses_in(*c.form.atoms()))),
        *([] if guard is None else [guard]),
    )
    space = replace(space, valid=())
    view = StridedView(term, types, strides, int64_index)
    last = next((v for v in reversed(space.outputs) if v not in group and not space.single(v)), None)
    dot = recognise_dot(space, view, joined=lambda f: last not in variables_outside(f))
    varying = tuple(v for v in places.keyed if not space.single(v))
    if dot is None or dot.dtype not in FLOATS or {*dot.summed} != {*varying}:
        return None
    outer = [v for v in (*dot.batch, *dot.rows, *dot.columns) if v in group]
    free_of_group = {n: tuple(v for v in getattr(dot, n) if v not in group) for n in ("batch", "rows", "columns")}
    batch = (*outer, *free_of_group["batch"])
    dot = replace(dot, batch=batch, rows=free_of_group["rows"], columns=free_of_group["columns"], summed=varying)
    count = space.count(tuple(group))
    return GroupedProduct(dot, space, view, group, places, types, strides, count, asked)


def _at_keys(places: PointPlaces) -> tuple[Statement, tuple[str, ...]]:
    """The terms written at variables that stand for the computed places, and these; without a guard."""
    s = places.statement
    used = all_variables(s)
    group = tuple(fresh_variable("g", used) for _ in range(places.split))
    index = list(s.index or ())
    for a, v in zip(places.axes[: places.split], group, strict=True):
        index[a] = Index(v)
    ranges = (Constraint(places.shifted(v), Int(places.domain.extent[v])) for v in places.keyed)
    return replace(s, index=tuple(index), guard=None, constraints=(*s.constraints, *ranges)), group


def group_sums_pay(found: GroupedProduct, tiles: int) -> bool:
    """Whether products take less time than terms one by one; there may be fewer programs than multiprocessors."""
    dot, space = found.dot, found.space
    rows, columns = space.count(dot.rows), space.count(dot.columns)
    beside = space.count(tuple(v for v in dot.batch if v not in found.group))
    if min(rows, columns) < LEAST or not tiles:
        return False
    products = max(rows, LEAST) * max(columns, LEAST) * beside * (found.points + found.count * LEAST)
    waiting = max(1.0, MULTIPROCESSORS / tiles)
    terms = rows * columns * beside * found.points
    return terms / TERMS > GAIN * products * waiting / (POINTERS * PRODUCTS[dot.dtype])
