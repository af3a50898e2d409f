"""Values of expressions at points: the oracle's heart.

An expression is evaluated at all points at once, over columns of index values; in an elementwise statement over whole
tensors, by NumPy's broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilec.errors import RankMistake, SizeMistake, TypeMistake, WriteConflict
from tilec.ir.aggregations import NUMBERED
from tilec.ir.functions import FUNCTIONS, RANDOM, STRUCTURAL
from tilec.ir.infer import aggregate_type, call_type
from tilec.ir.oracle import whole
from tilec.ir.oracle.accumulate import PointAccumulator, wrap
from tilec.ir.oracle.branches import identity_of
from tilec.ir.oracle.memory import PointValue, require_integers
from tilec.ir.oracle.points import Columns, form
from tilec.ir.oracle.sites import Points, Site, Sites
from tilec.ir.program import Access, Aggregate, Call, Expr, Float, Index, Inside, Int, Name, Pad
from tilec.ir.types import WEAK_FLOAT, WEAK_INDEX, WEAK_INT, ElementType, kind, promote

ONE_TYPE = ("promote", "division", "float", "bits", "bool")  # result rules under which arguments take one type first


class PointEvaluator(Sites):
    """Evaluates expressions, and enumerates the points at which they count."""

    # values

    def value(self, e: Expr, at: Points) -> PointValue:
        """Elements of an expression at the points, or of whole tensors in an elementwise statement."""
        result = at.known.get(id(e))
        if result is None:
            result = at.known[id(e)] = self.compute(e, at)
        return result

    def compute(self, e: Expr, at: Points) -> PointValue:
        match e:
            case Int(value):
                return PointValue(np.asarray(value if value < 2**63 else value - 2**64, np.int64), WEAK_INT)
            case Float(value):
                return PointValue(np.asarray(value, np.float64), WEAK_FLOAT)
            case Index(name):
                return PointValue(at.columns[name], WEAK_INDEX)
            case Name(name):
                return self.name(e, at)
            case Access():
                place, good = self.locate(e, at)
                data = self.fetch(e, place)
                if e.tensor == self.own:
                    data = self.before(e, at, data, good)
                elif at.zeroed:
                    data = np.where(good, data, np.zeros_like(data))
                return PointValue(data, self.tensor(e.tensor, e.span).element())
            case Inside():
                return PointValue(np.asarray(1), WEAK_INT)
            case Pad():
                return self.pad(e, at)
            case Aggregate():
                return self.nested(e, at)
            case Call(function):
                if function in STRUCTURAL or function in ("index", "shape"):
                    return self.structural(e, at)
                return self.call(e, at)
        raise TypeMistake(f"{type(e).__name__} has no value", e.span)

    def before(self, e: Access, at: Points, data: np.ndarray, good: np.ndarray | bool) -> np.ndarray:
        """Elements of a recurrence's own output, `init` or 0 at the coordinates that lie outside."""
        if np.all(good):
            return data
        other: np.ndarray = np.zeros((), data.dtype)
        if self.initial is not None:
            names, value = self.initial
            parts = [self.form_value(form(i, None, self.size), at) for i in e.index]
            whole: np.ndarray | bool = True
            for _, sound in parts:
                whole = whole & sound
            count = np.broadcast_shapes((1,), *(np.shape(x) for x, _ in parts))
            columns = {v: np.broadcast_to(x, count) for v, (x, _) in zip(names, parts, strict=True)}
            columns[""] = np.zeros(count, np.int64)
            site = Site(names, (), [], None)
            found = self.value(value, Points(columns, site, zeroed=True))
            other = np.where(whole, wrap(found.data, self.tensor(e.tensor, e.span).dtype), 0)
        return np.where(good, data, other).astype(data.dtype)

    def name(self, e: Name, at: Points) -> PointValue:
        if e.name in self.sizes:
            return PointValue(np.asarray(self.sizes[e.name]), WEAK_INT)
        tensor = self.tensor(e.name, e.span)
        if tensor.data.ndim and not at.whole:
            raise RankMistake(f"{e.name} has {tensor.data.ndim} dimensions and needs as many indices here", e.span)
        return PointValue(tensor.data, tensor.element())

    def pad(self, e: Pad, at: Points) -> PointValue:
        access = e.access.access if isinstance(e.access, Inside) else e.access
        place, good = self.locate(access, at)
        inside = self.fetch(access, place) if isinstance(e.access, Access) else np.asarray(1)
        element = self.tensor(access.tensor, access.span).element() if isinstance(e.access, Access) else WEAK_INT
        other = self.value(e.value, at)
        element = promote(element, other.type)
        return PointValue(np.where(good, wrap(inside, element.dtype), wrap(other.data, element.dtype)), element)

    def call(self, e: Call, at: Points) -> PointValue:
        function = FUNCTIONS[e.function]
        args = [self.value(a, at) for a in e.args]
        if e.function in RANDOM:
            args = self.counted(e, args, at)
        element = call_type(e.function, [a.type for a in args], e.span)
        data = [a.data for a in args]
        if function.result in ONE_TYPE:
            common = promote(*(a.type for a in args)) if function.result == "bool" else element
            data = [wrap(d, common.dtype) if kind(common.dtype) else d for d in data]
        try:
            result = data[0] if function.numpy is None else function.numpy(*data)
        except ValueError:
            shapes = " and ".join(str(np.shape(d)) for d in data)
            raise SizeMistake(f"shapes {shapes} do not broadcast", e.span) from None
        return PointValue(wrap(result, element.dtype), element)

    def counted(self, e: Call, args: list[PointValue], at: Points) -> list[PointValue]:
        """The seed and the counter of a draw: its row-major position in an elementwise statement, if none is given."""
        if at.whole and np.ndim(args[0].data):
            raise RankMistake(f"the seed of {e.function} is one integer", e.span)
        shape = at.shape or ()
        return args if len(args) == 2 else [*args, PointValue(np.arange(math.prod(shape)).reshape(shape), WEAK_INDEX)]

    def nested(self, e: Aggregate, at: Points) -> PointValue:
        """A nested aggregation at each point: evaluated once for each combination of its free variables."""
        site = at.site.inner.get(id(e))
        if site is None:
            site = self.site(e.body, e.guard, e.constraints, (), at.site, e.bound, identity_of(e.aggregation))
            at.site.inner[id(e)] = site
        inverse: np.ndarray | int = 0
        start: Columns = {"": np.zeros(1, np.int64)}
        if site.free:
            rows, inverse = np.unique(np.stack([at.columns[v] for v in site.free]), axis=1, return_inverse=True)
            start = {v: rows[k] for k, v in enumerate(site.free)} | {"": np.arange(rows.shape[1])}
        accumulator = PointAccumulator(e.aggregation, len(start[""]))
        for columns in self.candidates(site, start):
            if e.aggregation == "assign" and len(np.unique(columns[""])) != len(columns[""]):
                raise WriteConflict("two valid points of one nested assign", e.span)
            inner = Points(self.restrict(site, e.guard, columns), site)
            number = self.number(site, e.bound, inner.columns) if e.aggregation in NUMBERED else None
            value = self.value(e.body, inner)
            accumulator.add(inner.columns[""], value.data, value.type, number)
        element = aggregate_type(e.aggregation, accumulator.type)
        element = ElementType(element.dtype, element.weak, not site.free)
        return PointValue(accumulator.result(element.dtype)[np.ravel(inverse) if site.free else 0], element)

    # whole tensors

    def structural(self, e: Call, at: Points) -> PointValue:
        first = e.args[0]
        x = self.value(first, at if e.function != "shape" else Points(at.columns, at.site, whole=True))
        rest = [] if e.function in ("index", "shape", "reshape") else [self.value(a, at) for a in e.args[1:]]
        types = [r.type for r in rest] or [WEAK_INT] * len(e.args[1:])  # an axis, or sizes
        element = call_type(e.function, [x.type, *types], e.span)
        data = self.moved(e, x, rest, element)
        if e.function == "simple_reduce":  # a sum, as strong as one
            element = ElementType(element.dtype, element.weak, not np.ndim(data))
        return PointValue(wrap(data, element.dtype), element)

    def moved(self, e: Call, x: PointValue, rest: list[PointValue], element: ElementType) -> np.ndarray:
        shape = np.shape(x.data)
        match e.function:
            case "shape":
                return np.array(shape, np.int64) if len(e.args) == 1 else np.asarray(shape[self.axis(e, shape)])
            case "index":
                return whole.axis_coordinates(shape, self.axis(e, shape))
            case "reshape":
                return whole.reshape(x.data, self.new_shape(e.args[1:]), e.span)
            case "simple_reduce":
                return whole.simple_reduce(x.data, np.shape(rest[0].data), e.span)
        require_integers(rest[0].type, e.span)
        if e.function == "gather":
            return whole.take_slices(x.data, rest[0].data, e.span)
        return whole.add_slices(wrap(x.data, element.dtype), rest[0].data, np.shape(rest[1].data), e.span)

    def axis(self, e: Call, shape: tuple[int, ...]) -> int:
        axis = int(self.size(e.args[1]))
        if not 0 <= axis < len(shape):
            raise SizeMistake(f"there is no dimension {axis}: the tensor has {len(shape)}", e.span)
        return axis

    def new_shape(self, sizes: tuple[Expr, ...]) -> Sequence[int]:
        match sizes:
            case (Call("shape", (like,)),):
                return np.shape(self.value(like, Points({}, Site((), (), [], None), whole=True)).data)
        return [int(self.size(e)) for e in sizes]
