"""The oracle: what a program means, worked out by enumerating every valid point with NumPy. Slow, exact, independent.

It runs any program, with sizes known or not, before or after any pass, and shares no code with the passes or backends
that it judges. Floating values are float64 throughout; integers wrap to their inferred type; bool is bool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilec.errors import (
    AssignmentMistake,
    InputMistake,
    NoSchedule,
    SizeMistake,
    TypeMistake,
    UnboundIndex,
    WriteConflict,
)
from tilec.ir.aggregations import NUMBERED
from tilec.ir.functions import counts_positions
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.oracle.accumulate import PointAccumulator, wrap
from tilec.ir.oracle.branches import identity_of
from tilec.ir.oracle.memory import StoredTensor
from tilec.ir.oracle.points import form
from tilec.ir.oracle.sites import Points
from tilec.ir.oracle.values import PointEvaluator
from tilec.ir.program import Access, Expr, Index, Program, Statement, reads_itself, walk
from tilec.ir.types import MOST_ELEMENTS, ElementType, TensorType, is_floating, promote


def evaluate(program: Program, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Outputs of a program for its inputs, one array or Python number each, in order.

    Floating results are float64 whatever their type, integer and bool results have their inferred type. Raises
    TileError subclasses for inputs that do not fit the program, and Unsupported for statements with too many points.
    """
    if len(arrays) != len(program.inputs):
        raise InputMistake(f"the program takes {len(program.inputs)} inputs; got {len(arrays)}")
    run = _Run()
    for i, array in zip(program.inputs, arrays, strict=True):
        run.bind(i.name, i.dims, array, i.span)
    with np.errstate(all="ignore"):
        for s in program.statements:
            if s.output in run.tensors or s.output in run.sizes:
                raise AssignmentMistake(f"{s.output} is assigned twice", s.span)
            run.tensors[s.output] = run.statement(s)
    return tuple(_outcome(run.tensors[name]) for name in program.outputs)


def _same(a: StoredTensor, b: StoredTensor) -> bool:
    equal = np.array_equal(a.data, b.data, equal_nan=a.data.dtype == np.float64 == b.data.dtype)
    return (a.dtype, a.weak) == (b.dtype, b.weak) and equal


def _outcome(tensor: StoredTensor) -> np.ndarray:
    dtype = "float64" if is_floating(tensor.dtype) else tensor.dtype
    return np.array(tensor.data, dtype)


class _Run(PointEvaluator):
    """One evaluation of a program, statement by statement."""

    def statement(self, s: Statement) -> StoredTensor:
        if s.index is None:
            return self.elementwise(s)
        sizes = self.statement_sizes(s)
        return self.recurrence(s, s.index, sizes) if reads_itself(s) else self.contraction(s, s.index, sizes)

    def recurrence(self, s: Statement, index: tuple[Expr, ...], sizes: list[int]) -> StoredTensor:
        """The whole statement evaluated over and over, reading what it gave the time before, until nothing changes.

        Where each element depends on others along chains without a circle, every round settles one more link, whatever
        stood there at first. So two beginnings that differ show a circle.
        """
        self.own = s.output
        if s.init is not None:
            self.initial = tuple(e.name for e in index if isinstance(e, Index)), s.init
        try:
            iterated = [self.iterate(s, index, sizes, start) for start in (0, 1)]
        finally:
            self.own = self.initial = None
        if not _same(*iterated):
            raise NoSchedule(f"no order computes the elements of {s.output}", s.span)
        return iterated[0]

    def iterate(self, s: Statement, index: tuple[Expr, ...], sizes: list[int], start: int) -> StoredTensor:
        tensor = StoredTensor(np.full(sizes, bool(start)), "bool", True)
        for _ in range(int(np.prod(sizes, dtype=object)) + 4):
            self.tensors[s.output] = tensor
            try:
                new = self.contraction(s, index, sizes)
            except TypeMistake:
                if tensor.dtype != "bool":
                    raise
                new = StoredTensor(np.full(sizes, start), "int64", True)
            if s.init is not None:
                known = {n: TensorType(t.data.shape, t.dtype, t.weak) for n, t in self.tensors.items()}
                element = promote(ElementType(new.dtype, new.weak, not sizes), expression_type(s.init, known))
                new = StoredTensor(wrap(new.data, element.dtype), element.dtype, element.weak)
            if _same(tensor, new):
                del self.tensors[s.output]
                return new
            tensor = new
        raise NoSchedule(f"no order computes the elements of {s.output}", s.span)

    def contraction(self, s: Statement, index: tuple[Expr, ...], sizes: list[int]) -> StoredTensor:
        identity = None if s.default is not None else identity_of(s.aggregation)
        placed = zip(index, sizes, strict=True)
        site = self.site(s.body, s.guard, s.constraints, placed, identity=identity)
        place = [form(e, size, self.size) for e, size in zip(index, sizes, strict=True)]
        exact = s.aggregation == "assign" and not any(f.dynamic for f in place)
        total = int(np.prod(sizes, dtype=object))
        kept = {v for f in place for v in f.variables}
        numbered = tuple(v for v in site.variables if v not in kept)
        accumulator = PointAccumulator(s.aggregation, total)
        writers = np.zeros(total if exact else 0, np.int64)
        for columns in self.candidates(site, {"": np.zeros(1, np.int64)}):
            if exact:
                np.add.at(writers, self.places(place, sizes, columns, site), 1)
                if (writers > 1).any():
                    place_of = np.unravel_index(int(np.argmax(writers > 1)), sizes)
                    where = f"{s.output}[{', '.join(map(str, place_of))}]"
                    raise WriteConflict(f"two valid points write {where}", s.span)
            at = Points(self.restrict(site, s.guard, columns), site)
            number = self.number(site, numbered, at.columns) if s.aggregation in NUMBERED else None
            value = self.value(s.body, at)
            accumulator.add(self.places(place, sizes, at.columns, site), value.data, value.type, number)
        element = aggregate_type(s.aggregation, accumulator.type)
        data = accumulator.result(element.dtype)
        if s.default is not None:
            default = self.tensor(s.default, s.span)
            if element.weak:
                element = promote(element, default.element())
            try:
                others = np.broadcast_to(wrap(default.data, element.dtype), sizes).ravel()
            except ValueError:
                shapes = f"{s.default} has shape {default.data.shape}, {s.output} {tuple(sizes)}"
                raise SizeMistake(f"the default does not fit: {shapes}", s.span) from None
            data = np.where(accumulator.reached, wrap(data, element.dtype), others)
        strong = s.aggregation == "assign" and not element.scalar and not sizes
        return StoredTensor(data.reshape(sizes), element.dtype, element.weak, strong)

    def elementwise(self, s: Statement) -> StoredTensor:
        site = self.site(s.body, None, s.constraints, ())
        if site.variables:
            raise UnboundIndex(f"nothing bounds the index variables {', '.join(site.variables)}", s.span)
        value = self.value(s.body, Points({}, site, whole=True))
        at = Points({}, site, whole=True, shape=np.shape(value.data))
        if any(map(counts_positions, walk(s.body))):
            value = self.value(s.body, at)  # now that the shape over which the draws are counted is known
        data = np.asarray(wrap(value.data, value.type.dtype))
        good = self.sound(site.accesses, at) & np.asarray(all(self.form_value(f, at)[1] for f in site.forms))
        data = np.where(good, data, np.zeros_like(data))
        return StoredTensor(data, value.type.dtype, value.type.weak, not value.type.scalar and not data.ndim)

    def statement_sizes(self, s: Statement) -> list[int]:
        assert s.index is not None
        if s.sizes is None:
            return [self.implied_size(s, e) for e in s.index]
        sizes = [int(self.size(e)) for e in s.sizes]
        for size, e in zip(sizes, s.sizes, strict=True):
            if size < 0:
                raise SizeMistake(f"{s.output} would have the size {size}", e.span)
        if math.prod(sizes) > MOST_ELEMENTS:
            shape = tuple(sizes)
            raise SizeMistake(f"{s.output} would have the shape {shape}: more elements than memory can hold", s.span)
        return sizes

    def implied_size(self, s: Statement, e: Expr) -> int:
        """The size left out for an output index: that of the dimensions in which the same bare variable stands."""
        found = {
            self.tensor(a.tensor, a.span).data.shape[d]
            for root in (*(s.index or ()), s.body, *s.guards)
            for a in walk(root)
            if isinstance(a, Access) and a.tensor != s.output
            for d, i in enumerate(a.index)
            if isinstance(e, Index) and isinstance(i, Index) and i.name == e.name
        }
        if len(found) != 1:
            raise SizeMistake(f"the size of {s.output} cannot be told: {sorted(found) or 'nothing'} to go by", e.span)
        return found.pop()
