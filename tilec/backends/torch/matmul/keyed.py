"""Rule: rows by the matrix that an index names, and sums of products at such indices, as one product for each index.

`+(X[t, c] * W[E[t], c, o])` would copy a matrix for each row, and `DW[E[t], c, o] = +(DY[t, o] * X[t, c])` make one of
each. Rows are sorted by their index (the key) instead; those of one key are a product. What is outside takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import permuted, tuple_text
from tilec.backends.common.terms import split_factors
from tilec.backends.torch.expr.task import Task
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr
from tilec.ir.rational import as_int
from tilec.ir.types import CASTS, FLOATS, NARROW

FEWEST_OF_KEY = 4096  # terms for each key, below which a product of its own takes longer


@dataclass(frozen=True)
class _Key:
    """The form of a computed place: an element of `access`, and a number added to it. `count`: places there are."""

    access: Access
    added: int
    count: int

    @property
    def rows(self) -> tuple[str, ...]:
        """The variables that it depends on, in the order of the index tensor."""
        return tuple(v for e in self.access.index if (v := linear(e).bare) is not None)


def keyed_products(task: Task) -> list[str] | None:
    """Lines that compute the output, None where it is no such sum or its products are small."""
    s = task.flat
    split = split_factors(s.body, task.types) if s.aggregation == "sum" and not s.constraints else None
    if split is None or s.guard is not None or s.default is not None or split[1] != 1:
        return None
    dtype = expression_type(s.body, task.types).dtype
    reads = [_read(f, dtype, task) for f in split[0]]
    if dtype not in FLOATS or len(reads) < 2 or any(a is None for a in reads):
        return None
    accesses = [a for a in reads if a is not None]
    places = [(tuple(map(linear, a.index)), task.types[a.tensor].shape) for a in accesses]
    written = tuple(map(linear, s.index or ())), task.type.shape
    keys = {_key(e, n, task) for forms, shape in (*places, written) for e, n in zip(forms, shape, strict=True)} - {None}
    if len(keys) != 1:
        return None
    (key,) = keys
    assert key is not None
    names = [_variables(forms, key) for forms, _ in (*places, written)]
    sizes = _sizes([*places, written, (tuple(map(linear, key.access.index)), task.types[key.access.tensor].shape)])
    rows = key.rows
    if any(n is None for n in names) or sizes is None or len({*rows}) != len(key.access.index):
        return None
    *operands, output = [n for n in names if n is not None]
    matrices = [n for n in operands if None in n]
    summed = None in output
    if any({*n} & {*rows} for n in (*matrices, *([output] if summed else []))) or summed == bool(matrices):
        return None
    if not summed and not {*rows} <= {*output} or not any({*n} & {*rows} for n in operands):
        return None
    if not {*output} <= {None, *rows}.union(*operands):
        return None
    if len({v for n in (*operands, output) for v in n} - {None, *rows}) < 2:
        return None  # what keys name are vectors, which are gathered, or added up, faster row by row
    if math.prod(sizes.values()) < FEWEST_OF_KEY * key.count or not 1 < math.prod(sizes[v] for v in rows):
        return None
    return _lines(task, key, accesses, operands, output, sizes)


def _lines(
    task: Task,
    key: _Key,
    accesses: Sequence[Access],
    operands: Sequence[tuple[str | None, ...]],
    output: tuple[str | None, ...],
    sizes: Mapping[str, int],
) -> list[str]:
    rows, points = key.rows, math.prod(sizes[v] for v in key.rows)
    letters = {v: chr(ord("a") + n) for n, v in enumerate(v for v in sizes if v not in rows)}
    kinds: dict[str, list[str]] = {"row": [], "matrix": [], "shared": []}
    subscripts: dict[str, list[str]] = {"row": [], "matrix": [], "shared": []}
    for a, names in zip(accesses, operands, strict=True):
        kind = "matrix" if None in names else "row" if {*names} & {*rows} else "shared"
        others = [v for v in names if v is not None and v not in rows]
        rounded = task.type.dtype in NARROW and task.types[a.tensor].dtype != task.type.dtype
        stored = task.local[a.tensor] + (f".to(torch.{task.type.dtype})" if rounded else "")
        text = permuted(stored, [names.index(v) for v in (*_first(names, rows), *others)])
        if kind == "row":
            text = _in_rows(text, names, rows, [sizes[v] for v in others], sizes, points)
        kinds[kind].append(text)
        subscripts[kind].append(("z" if kind == "row" else "") + "".join(letters[v] for v in others))
    summed, others = None in output, [v for v in output if v is not None and v not in rows]
    result = ("" if summed else "z") + "".join(letters[v] for v in others)
    named = tuple(tuple(subscripts[kind]) for kind in kinds)
    keys, made = task.names.fresh("keys"), task.names.fresh(task.out.lower())
    shape = tuple_text([key.count if summed else points, *(sizes[v] for v in others)])
    axes: list[str | None] = [*([None] if summed else rows), *others]
    place = f"{task.local[key.access.tensor]}.reshape(-1).to(torch.int64)" + (f" + {key.added}" if key.added else "")
    whole = made if summed else f"{made}.view({tuple_text([sizes[v] for v in (*rows, *others)])})"
    tensors = ", ".join(tuple_text(kinds[kind]) for kind in kinds)
    return [
        f"{keys} = {place}",
        f"{made} = torch.zeros({shape}, dtype=torch.{task.type.dtype}, device=device)",
        f'rt.products_by_key({made}, {summed}, {keys}, {key.count}, ({named}, "{result}"), ({tensors}))',
        f"{task.out} = {permuted(whole, [axes.index(v) for v in output])}",
    ]


def _first(names: Sequence[str | None], rows: Sequence[str]) -> list[str | None]:
    """The axis of the key, or those of rows in their order."""
    return [None] if None in names else [v for v in rows if v in names]


def _in_rows(
    text: str,
    names: Sequence[str | None],
    rows: Sequence[str],
    others: Sequence[int],
    sizes: Mapping[str, int],
    points: int,
) -> str:
    """A tensor with an element of its own for each row."""
    if not all(v in names for v in rows):
        shape = tuple_text([sizes[v] if v in names else 1 for v in rows] + [*others])
        text = f"{text}.reshape({shape}).expand({tuple_text([*(sizes[v] for v in rows), *others])})"
    return text if len(rows) == 1 else f"{text}.reshape({tuple_text([points, *others])})"


def _read(f: Expr, dtype: str, task: Task) -> Access | None:
    """What a factor reads, where it is an element, or one cast to the type of the sum."""
    inner = f.args[0] if isinstance(f, Call) and f.function in CASTS and f.function == dtype else f
    if not isinstance(inner, Access):
        return None
    return inner if inner is not f or task.types[inner.tensor].dtype == dtype else None


def _key(form: Affine, size: int, task: Task) -> _Key | None:
    """The computed place that a form is, None where it is a variable."""
    if len(form.terms) != 1 or not form.is_integral:
        return None
    ((atom, factor),) = form.terms
    if not isinstance(atom, Access) or factor != 1 or "int" not in task.types[atom.tensor].dtype:
        return None
    return _Key(atom, as_int(form.constant), size)


def _variables(forms: Sequence[Affine], key: _Key) -> tuple[str | None, ...] | None:
    """Each axis's variable, None for the key's; None altogether where an axis is something else, or two are alike."""
    found = [f.bare if f.bare is not None else None if _is(f, key) else "" for f in forms]
    return tuple(found) if len({*found}) == len(found) and "" not in found else None


def _is(form: Affine, key: _Key) -> bool:
    return form.constant == key.added and form.atoms() == (key.access,) and len(form.terms) == 1


def _sizes(places: Sequence[tuple[Sequence[Affine], Sequence[int]]]) -> dict[str, int] | None:
    """Each variable's size, None where axes that it walks differ."""
    found: dict[str, int] = {}
    for forms, shape in places:
        for form, n in zip(forms, shape, strict=True):
            if form.bare is not None and found.setdefault(form.bare, n) != n:
                return None
    return found
