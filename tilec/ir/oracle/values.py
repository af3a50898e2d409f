"""Values of expressions at points, and the points of aggregations: the oracle's heart.

An expression is evaluated at all points at once, over columns of index values; in an elementwise statement over whole
tensors, by NumPy's broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilec.errors import RankMistake, SizeMistake, TypeMistake, WriteConflict
from tilec.ir.functions import FUNCTIONS, RANDOM, STRUCTURAL
from tilec.ir.infer import aggregate_type, call_type
from tilec.ir.oracle import whole
from tilec.ir.oracle.accumulate import Accumulator, wrap
from tilec.ir.oracle.memory import Memory, Value, require_integers
from tilec.ir.oracle.points import Columns, Form, enumerate_points, form, take
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    index_variables,
    walk,
)
from tilec.ir.types import WEAK_FLOAT, WEAK_INT, ElementType, kind, promote

ONE_TYPE = ("promote", "division", "float", "bits", "bool")  # result rules under which arguments take one type first
NUMBERED = ("argmax", "argmin")


def constraining(e: Expr, own: str | None = None) -> Iterator[Access]:
    """Accesses that the points of an expression must satisfy: all but padded ones, nested aggregations' own and reads
    of the tensor `own` that the statement itself writes."""
    match e:
        case Access():
            if e.tensor != own:
                yield e
            for i in e.index:
                yield from constraining(i, own)
        case Inside():
            yield from constraining(e.access, own)
        case Pad():
            yield from constraining(e.value, own)
        case Call():
            for a in e.args:
                yield from constraining(a, own)


@dataclass
class Site:
    """An aggregation's place in the program: what its points are. Its free variables belong to `outer`."""

    variables: tuple[str, ...]
    free: tuple[str, ...]
    forms: list[Form]
    outer: Site | None
    inner: dict[int, Site] = field(default_factory=dict)
    box: dict[str, tuple[int, int]] | None = None  # exact, once asked for

    def __post_init__(self) -> None:
        self.affine = [f for f in self.forms if f.affine]
        self.quasi = [f for f in self.forms if not f.affine and not f.dynamic]
        self.dynamic = [f for f in self.forms if f.dynamic]


@dataclass
class Points:
    """Points at which expressions are evaluated, all at once. `whole`: an elementwise statement, over whole tensors;
    `shape`: that of its result, once it is known. `zeroed`: elements outside are 0."""

    columns: Columns
    site: Site
    whole: bool = False
    shape: tuple[int, ...] | None = None
    zeroed: bool = False
    known: dict[int, Value] = field(default_factory=dict)


def row_major(values: Sequence, shape: Sequence[int]) -> np.ndarray:
    position: np.ndarray | int = 0
    for value, size in zip(values, shape, strict=True):
        position = position * size + value
    return np.asarray(position)


class Evaluator(Memory):
    """Evaluates expressions, and enumerates the points at which they count."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[int, tuple[Expr, list[Form]]] = {}  # by identity of the access, which is kept alive
        self.own: str | None = None  # the output of the recurrence at hand, and what it holds outside
        self.initial: tuple[tuple[str, ...], Expr] | None = None

    def size(self, e: Expr) -> int:
        """The integer that a size expression stands for; division truncates, operation by operation."""
        match e:
            case Int(value):
                return value
            case Name(name):
                if name in self.sizes:
                    return self.sizes[name]
                t = self.tensor(name, e.span)
                if t.data.ndim or kind(t.dtype) != 1:
                    raise SizeMistake(f"{name} is no size: it is {t.dtype} of shape {t.data.shape}", e.span)
                return int(t.data)
            case Call(function) if function not in STRUCTURAL + RANDOM:
                result = self.value(e, Points({}, Site((), (), [], None)))
                if kind(result.type.dtype) == 1 and np.ndim(result.data) == 0:
                    return int(result.data)
        raise SizeMistake("a size is an integer, made of dimensions, integers and integer scalars", e.span)

    # points

    def site(
        self, body: Expr, guard: Expr | None, constraints: tuple[Constraint, ...], index, outer=None, bound=None
    ) -> Site:
        """The points of an aggregation over `body`; of a nested one (with `outer`), those of the variables `bound`."""
        index = list(index)
        roots = [e for e, _ in index] + ([] if guard is None else [guard]) + [body]
        forms = [form(e, size, self.size) for e, size in index]
        for root in roots:
            for access in constraining(root, self.own):
                forms.extend(self.access_forms(access))
        forms.extend(form(c.expr, self.size(c.bound), self.size) for c in constraints)
        present = index_variables(*roots, *(c.expr for c in constraints))
        variables = present if bound is None else bound
        return Site(variables, tuple(v for v in present if v not in variables), list(dict.fromkeys(forms)), outer)

    def access_forms(self, access: Access) -> list[Form]:
        known = self.forms.get(id(access))
        if known is None:
            shape = self.tensor(access.tensor, access.span).data.shape
            if len(shape) != len(access.index):
                raise RankMistake(
                    f"{access.tensor} has {len(shape)} dimensions; {len(access.index)} indices here", access.span
                )
            forms = [form(e, n, self.size) for e, n in zip(access.index, shape, strict=True)]
            known = self.forms[id(access)] = (access, forms)
        return known[1]

    def candidates(self, site: Site, start: Columns) -> Iterator[Columns]:
        """Points valid by what is known without looking at elements: indices and constraints without gathers."""
        for columns in enumerate_points(site.affine, site.variables, start):
            for f in site.quasi:
                columns = take(columns, self.form_value(f, Points(columns, site))[1])
            yield columns

    def restrict(self, site: Site, guard: Expr | None, columns: Columns) -> Columns:
        """Those of the candidates at which the gathers and the guard hold as well."""
        for f in site.dynamic:
            columns = take(columns, self.form_value(f, Points(columns, site))[1])
        if guard is not None:
            condition = self.value(guard, Points(columns, site)).data != 0
            columns = take(columns, condition if np.ndim(condition) else bool(condition))
        return columns

    def places(self, place: Sequence[Form], sizes: Sequence[int], columns: Columns, site: Site) -> np.ndarray:
        at = Points(columns, site)
        position = row_major([self.form_value(f, at)[0] for f in place], sizes)
        return np.broadcast_to(position, columns[""].shape)

    def bounds(self, site: Site) -> dict[str, tuple[int, int]] | None:
        """Exact range of each variable over the valid points, elements and guards aside; None if there are none.

        Free variables of a nested aggregation take every value of their own ranges, as in a statement of its own.
        """
        if site.box is None:
            ranges = {} if site.outer is None else self.bounds(site.outer)
            if ranges is None:
                return None
            affine = list(site.affine)
            for v in site.free:
                low, high = ranges[v]
                affine.append(Form(((v, 1),), -low, 1, high - low + 1))
            variables = (*site.free, *site.variables)
            whole = Site(variables, (), affine + site.quasi, site.outer, site.inner)
            box: dict[str, tuple[int, int]] = {}
            for columns in self.candidates(whole, {"": np.zeros(1, np.int64)}):
                for v in variables if len(columns[""]) else ():
                    low, high = int(columns[v].min()), int(columns[v].max())
                    a, b = box.get(v, (low, high))
                    box[v] = (min(a, low), max(b, high))
            if variables and not box:
                return None
            site.box = box
        return site.box

    def number(self, site: Site, variables: Sequence[str], columns: Columns) -> np.ndarray:
        """Row-major number of each point in the box of the variables' exact bounds."""
        box = self.bounds(site) or {}
        ranges = [box.get(v, (0, 0)) for v in variables]
        position = row_major(
            [columns[v] - low for v, (low, _) in zip(variables, ranges, strict=True)],
            [high - low + 1 for low, high in ranges],
        )
        return np.broadcast_to(position, columns[""].shape)

    # index arithmetic

    def form_value(self, f: Form, at: Points) -> tuple[np.ndarray | int, np.ndarray | bool]:
        """The form's integers, and where they are integers within its extent (and its atoms are sound)."""
        total: np.ndarray | int = f.constant
        good: np.ndarray | bool = True
        for key, c in f.terms:
            if isinstance(key, str):
                x = at.columns[key]
            else:
                x, sound = self.atom(key, at)
                good = good & sound
            total = total + x * c
        if f.denominator != 1:
            good = good & (total % f.denominator == 0)
            total = total // f.denominator
        if f.extent is not None:
            good = good & (total >= 0) & (total < f.extent)
        return total, good

    def atom(self, e: Expr, at: Points) -> tuple[np.ndarray, np.ndarray | bool]:
        match e:
            case Access():
                place, good = self.locate(e, at)
                return self.fetch(e, place), good
            case Pad():
                value = self.value(e, at)
                require_integers(value.type, e.span)
                return value.data, True
            case Call("mod" | "clamp" | "max" | "min" | "abs", args):
                parts = [self.form_value(form(a, None, self.size), at) for a in args]
                x, *rest = (value for value, _ in parts)
                good = True
                for _, sound in parts:
                    good = good & sound
                match e.function:
                    case "abs":
                        return np.abs(x), good
                    case "max":
                        return np.maximum(x, rest[0]), good
                    case "min":
                        return np.minimum(x, rest[0]), good
                    case "clamp":
                        return np.minimum(np.maximum(x, rest[0]), rest[1]), good
                divisor = np.asarray(rest[0])
                return np.mod(x, np.where(divisor == 0, 1, divisor)), good & (divisor != 0)
        raise TypeMistake("an index holds integers", e.span)

    def locate(self, access: Access, at: Points) -> tuple[tuple, np.ndarray | bool]:
        """Coordinates of an access, 0 where it lies outside, and where it lies inside."""
        parts = [self.form_value(f, at) for f in self.access_forms(access)]
        good: np.ndarray | bool = True
        for _, inside in parts:
            good = good & inside
        if np.size(good) and np.all(good):
            return tuple(value for value, _ in parts), good
        return tuple(np.where(good, value, 0) for value, _ in parts), good

    def fetch(self, access: Access, place: tuple) -> np.ndarray:
        tensor = self.tensor(access.tensor, access.span)
        if any(isinstance(e, Access) for i in access.index for e in walk(i)):
            for i in access.index:
                self.check_gathers(i)
        if tensor.data.size == 0:  # nothing to read: no coordinates, or all of them outside
            return np.zeros(np.broadcast_shapes(*(np.shape(p) for p in place)), tensor.data.dtype)
        return tensor.data[place]

    def check_gathers(self, e: Expr) -> None:
        for a in walk(e):
            if isinstance(a, Access):
                require_integers(self.tensor(a.tensor, a.span).element(), a.span)

    # values

    def value(self, e: Expr, at: Points) -> Value:
        """Elements of an expression at the points, or of whole tensors in an elementwise statement."""
        result = at.known.get(id(e))
        if result is None:
            result = at.known[id(e)] = self.compute(e, at)
        return result

    def compute(self, e: Expr, at: Points) -> Value:
        match e:
            case Int(value):
                return Value(np.asarray(value if value < 2**63 else value - 2**64, np.int64), WEAK_INT)
            case Float(value):
                return Value(np.asarray(value, np.float64), WEAK_FLOAT)
            case Index(name):
                return Value(at.columns[name], WEAK_INT)
            case Name(name):
                return self.name(e, at)
            case Access():
                place, good = self.locate(e, at)
                data = self.fetch(e, place)
                if e.tensor == self.own:
                    data = self.before(e, at, data, good)
                elif at.zeroed:
                    data = np.where(good, data, np.zeros_like(data))
                return Value(data, self.tensor(e.tensor, e.span).element())
            case Inside():
                return Value(np.asarray(1), WEAK_INT)
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

    def name(self, e: Name, at: Points) -> Value:
        if e.name in self.sizes:
            return Value(np.asarray(self.sizes[e.name]), WEAK_INT)
        tensor = self.tensor(e.name, e.span)
        if tensor.data.ndim and not at.whole:
            raise RankMistake(f"{e.name} has {tensor.data.ndim} dimensions and needs as many indices here", e.span)
        return Value(tensor.data, tensor.element())

    def pad(self, e: Pad, at: Points) -> Value:
        access = e.access.access if isinstance(e.access, Inside) else e.access
        place, good = self.locate(access, at)
        inside = self.fetch(access, place) if isinstance(e.access, Access) else np.asarray(1)
        element = self.tensor(access.tensor, access.span).element() if isinstance(e.access, Access) else WEAK_INT
        other = self.value(e.value, at)
        element = promote(element, other.type)
        return Value(np.where(good, wrap(inside, element.dtype), wrap(other.data, element.dtype)), element)

    def call(self, e: Call, at: Points) -> Value:
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
        return Value(wrap(result, element.dtype), element)

    def counted(self, e: Call, args: list[Value], at: Points) -> list[Value]:
        """The seed and the counter of a draw: its row-major position in an elementwise statement, if none is given."""
        if at.whole and np.ndim(args[0].data):
            raise RankMistake(f"the seed of {e.function} is one integer", e.span)
        shape = at.shape or ()
        return args if len(args) == 2 else [*args, Value(np.arange(math.prod(shape)).reshape(shape), WEAK_INT)]

    def nested(self, e: Aggregate, at: Points) -> Value:
        """A nested aggregation at each point: evaluated once for each combination of its free variables."""
        site = at.site.inner.get(id(e))
        if site is None:
            site = self.site(e.body, e.guard, e.constraints, (), at.site, e.bound)
            at.site.inner[id(e)] = site
        inverse: np.ndarray | int = 0
        start: Columns = {"": np.zeros(1, np.int64)}
        if site.free:
            rows, inverse = np.unique(np.stack([at.columns[v] for v in site.free]), axis=1, return_inverse=True)
            start = {v: rows[k] for k, v in enumerate(site.free)} | {"": np.arange(rows.shape[1])}
        accumulator = Accumulator(e.aggregation, len(start[""]))
        for columns in self.candidates(site, start):
            if e.aggregation == "assign" and len(np.unique(columns[""])) != len(columns[""]):
                raise WriteConflict("two valid points of one nested assign", e.span)
            inner = Points(self.restrict(site, e.guard, columns), site)
            number = self.number(site, e.bound, inner.columns) if e.aggregation in NUMBERED else None
            value = self.value(e.body, inner)
            accumulator.add(inner.columns[""], value.data, value.type, number)
        element = aggregate_type(e.aggregation, accumulator.type)
        element = ElementType(element.dtype, element.weak, not element.weak and not site.free)
        return Value(accumulator.result(element.dtype)[np.ravel(inverse) if site.free else 0], element)

    # whole tensors

    def structural(self, e: Call, at: Points) -> Value:
        first = e.args[0]
        x = self.value(first, at if e.function != "shape" else Points(at.columns, at.site, whole=True))
        rest = [] if e.function in ("index", "shape", "reshape") else [self.value(a, at) for a in e.args[1:]]
        element = call_type(e.function, [x.type, *(r.type for r in rest)], e.span)
        return Value(wrap(self.moved(e, x, rest, element), element.dtype), element)

    def moved(self, e: Call, x: Value, rest: list[Value], element: ElementType) -> np.ndarray:
        shape = np.shape(x.data)
        match e.function:
            case "shape":
                return np.array(shape, np.int64) if len(e.args) == 1 else np.asarray(shape[self.axis(e, shape)])
            case "index":
                return whole.index(shape, self.axis(e, shape))
            case "reshape":
                return whole.reshape(x.data, self.new_shape(e.args[1:]), e.span)
            case "simple_reduce":
                return whole.simple_reduce(x.data, np.shape(rest[0].data), e.span)
        require_integers(rest[0].type, e.span)
        if e.function == "gather":
            return whole.gather(x.data, rest[0].data, e.span)
        return whole.scatter(wrap(x.data, element.dtype), rest[0].data, np.shape(rest[1].data), e.span)

    def axis(self, e: Call, shape: tuple[int, ...]) -> int:
        axis = self.size(e.args[1])
        if not 0 <= axis < len(shape):
            raise SizeMistake(f"there is no dimension {axis}: the tensor has {len(shape)}", e.span)
        return axis

    def new_shape(self, sizes: tuple[Expr, ...]) -> Sequence[int]:
        match sizes:
            case (Call("shape", (like,)),):
                return np.shape(self.value(like, Points({}, Site((), (), [], None), whole=True)).data)
        return [self.size(e) for e in sizes]
