"""The oracle: what a program means, worked out by enumerating every valid point with NumPy. Slow, exact, independent.

It runs any program, with sizes known or not, before or after any pass, and shares no code with the passes or backends
that it judges. Floating values are float64 throughout; integers wrap to their inferred type; bool is bool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import NamedTuple

import numpy as np

from tilec.errors import (
    AssignmentMistake,
    InputMistake,
    NameMistake,
    RankMistake,
    SizeMistake,
    Span,
    TypeMistake,
    UnboundIndex,
    Unsupported,
    WriteConflict,
)
from tilec.ir.accumulate import Accumulator, wrap
from tilec.ir.functions import FUNCTIONS, RANDOM, STRUCTURAL
from tilec.ir.infer import aggregate_type, call_type
from tilec.ir.points import Columns, Form, enumerate_points, form, take
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
    Program,
    Statement,
    index_variables,
    reads,
    walk,
)
from tilec.ir.types import DTYPES, WEAK_FLOAT, WEAK_INT, ElementType, kind, promote

ONE_TYPE = ("promote", "division", "float", "bits", "bool")  # result rules under which arguments take one type first


class Value(NamedTuple):
    """Elements as float64, int64 or bool, broadcast against the points at hand, and their type."""

    data: np.ndarray
    type: ElementType


@dataclass(frozen=True)
class Tensor:
    data: np.ndarray
    dtype: str
    weak: bool = False

    def element(self) -> ElementType:
        return ElementType(self.dtype, weak=self.weak, scalar=not self.weak and not self.data.ndim)


def evaluate(program: Program, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Outputs of a program for its inputs, one array or Python number each, in order.

    Floating results are float64 whatever their type, integer and bool results have their inferred type. Raises
    TileError subclasses for inputs that do not fit the program, and Unsupported for random numbers and for statements
    with too many points.
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


def _outcome(tensor: Tensor) -> np.ndarray:
    dtype = "float64" if kind(tensor.dtype) == 2 else tensor.dtype
    return np.array(tensor.data, dtype)


def _constraining(e: Expr) -> Iterator[Access]:
    """Accesses that the points of an expression must satisfy: all but padded ones and nested aggregations' own."""
    match e:
        case Access():
            yield e
            for i in e.index:
                yield from _constraining(i)
        case Inside():
            yield from _constraining(e.access)
        case Pad():
            yield from _constraining(e.value)
        case Call():
            for a in e.args:
                yield from _constraining(a)


@dataclass
class _Site:
    """An aggregation's place in the program: what its points are. Its free variables belong to `outer`."""

    variables: tuple[str, ...]
    free: tuple[str, ...]
    forms: list[Form]
    outer: _Site | None
    inner: dict[int, _Site] = field(default_factory=dict)
    box: dict[str, tuple[int, int]] | None = None  # exact, once asked for

    def __post_init__(self) -> None:
        self.affine = [f for f in self.forms if f.affine]
        self.quasi = [f for f in self.forms if not f.affine and not f.dynamic]
        self.dynamic = [f for f in self.forms if f.dynamic]


@dataclass
class _Points:
    """Points at which expressions are evaluated, all at once. `whole`: an elementwise statement, over whole tensors."""

    columns: Columns
    site: _Site
    whole: bool = False
    known: dict[int, Value] = field(default_factory=dict)


def _position(values: Sequence, shape: Sequence[int]) -> np.ndarray:
    position: np.ndarray | int = 0
    for value, size in zip(values, shape, strict=True):
        position = position * size + value
    return np.asarray(position)


class _Run:
    """One evaluation: the tensors and dimensions known so far."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.sizes: dict[str, int] = {}
        self.forms: dict[int, tuple[Expr, list[Form]]] = {}  # by identity of the access, which is kept alive

    def bind(self, name: str, dims: tuple[str | int, ...] | None, array, span: Span | None) -> None:
        """Take an input, and the dimensions that it names."""
        weak = isinstance(array, Number) and not isinstance(array, np.generic)
        array = np.asarray(array)
        dtype = array.dtype.name
        if dtype not in DTYPES:
            raise TypeMistake(f"{name}: element type {dtype} is not supported", span)
        if dims is not None and len(dims) != array.ndim:
            raise RankMistake(f"{name} has {len(dims)} dimensions; the array has {array.ndim}", span)
        for d, size in zip(dims or (), array.shape, strict=False):
            wanted = self.sizes.setdefault(d, size) if isinstance(d, str) else d
            if wanted != size:
                raise SizeMistake(f"{name}: dimension {d} is {wanted}, not {size}", span)
        self.tensors[name] = Tensor(wrap(array, dtype), dtype, weak)

    def tensor(self, name: str, span: Span | None) -> Tensor:
        if name not in self.tensors:
            raise NameMistake(f"unknown tensor {name}", span)
        return self.tensors[name]

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
                result = self.value(e, _Points({}, _Site((), (), [], None)))
                if kind(result.type.dtype) == 1 and np.ndim(result.data) == 0:
                    return int(result.data)
        raise SizeMistake("a size is an integer, made of dimensions, integers and integer scalars", e.span)

    # statements

    def statement(self, s: Statement) -> Tensor:
        if s.init is not None or s.output in reads(s):
            raise Unsupported("the oracle does not run recurrences yet", s.span)
        if s.index is None:
            return self.elementwise(s)
        sizes = self.statement_sizes(s)
        site = self.site(s.body, s.guard, s.constraints, zip(s.index, sizes, strict=True))
        place = [form(e, size, self.size) for e, size in zip(s.index, sizes, strict=True)]
        exact = s.aggregation == "assign" and not any(f.dynamic for f in place)
        total = int(np.prod(sizes, dtype=object))
        numbered = tuple(v for v in site.variables if v not in index_variables(*s.index))
        accumulator = Accumulator(s.aggregation, total)
        writers = np.zeros(total if exact else 0, np.int64)
        for columns in self.candidates(site, {"": np.zeros(1, np.int64)}):
            if exact:
                np.add.at(writers, self.places(place, sizes, columns, site), 1)
                if (writers > 1).any():
                    element = np.unravel_index(int(np.argmax(writers > 1)), sizes)
                    where = f"{s.output}[{', '.join(map(str, element))}]"
                    raise WriteConflict(f"two valid points write {where}", s.span)
            at = _Points(self.restrict(site, s.guard, columns), site)
            number = self.number(site, numbered, at.columns) if s.aggregation in ("argmax", "argmin") else None
            value = self.value(s.body, at)
            accumulator.add(self.places(place, sizes, at.columns, site), value.data, value.type, number)
        element = aggregate_type(s.aggregation, accumulator.type)
        data = accumulator.result(element.dtype)
        if s.default is not None:
            default = self.tensor(s.default, s.span)
            if default.data.shape != tuple(sizes):
                raise SizeMistake(f"{s.default} has shape {default.data.shape}; {s.output} has {tuple(sizes)}", s.span)
            if element.weak:
                element = promote(element, default.element())
            data = np.where(accumulator.reached, wrap(data, element.dtype), wrap(default.data.ravel(), element.dtype))
        return Tensor(data.reshape(sizes), element.dtype, element.weak)

    def elementwise(self, s: Statement) -> Tensor:
        site = self.site(s.body, None, s.constraints, ())
        if site.variables:
            raise UnboundIndex(f"nothing bounds the index variables {', '.join(site.variables)}", s.span)
        at = _Points({}, site, whole=True)
        value = self.value(s.body, at)
        data = np.asarray(wrap(value.data, value.type.dtype))
        if not all(self.form_value(f, at)[1] for f in site.forms):
            data = np.zeros_like(data)
        return Tensor(data, value.type.dtype, value.type.weak)

    def statement_sizes(self, s: Statement) -> list[int]:
        assert s.index is not None
        if s.sizes is None:
            return [self.implied_size(s, e) for e in s.index]
        sizes = [self.size(e) for e in s.sizes]
        for size, e in zip(sizes, s.sizes, strict=True):
            if size < 0:
                raise SizeMistake(f"{s.output} would have the size {size}", e.span)
        return sizes

    def implied_size(self, s: Statement, e: Expr) -> int:
        """The size left out for an output index: that of the dimensions in which the same bare variable stands."""
        found = {
            self.tensor(a.tensor, a.span).data.shape[d]
            for root in (*(s.index or ()), s.body, *(() if s.guard is None else (s.guard,)))
            for a in walk(root)
            if isinstance(a, Access)
            for d, i in enumerate(a.index)
            if isinstance(e, Index) and isinstance(i, Index) and i.name == e.name
        }
        if len(found) != 1:
            raise SizeMistake(f"the size of {s.output} cannot be told: {sorted(found) or 'nothing'} to go by", e.span)
        return found.pop()

    # points

    def site(
        self, body: Expr, guard: Expr | None, constraints: tuple[Constraint, ...], index, outer=None, bound=None
    ) -> _Site:
        """The points of an aggregation over `body`; of a nested one (with `outer`), those of the variables `bound`."""
        index = list(index)
        roots = [e for e, _ in index] + ([] if guard is None else [guard]) + [body]
        forms = [form(e, size, self.size) for e, size in index]
        for root in roots:
            for access in _constraining(root):
                forms.extend(self.access_forms(access))
        forms.extend(form(c.expr, self.size(c.bound), self.size) for c in constraints)
        present = index_variables(*roots, *(c.expr for c in constraints))
        variables = present if bound is None else bound
        return _Site(variables, tuple(v for v in present if v not in variables), list(dict.fromkeys(forms)), outer)

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

    def candidates(self, site: _Site, start: Columns) -> Iterator[Columns]:
        """Points valid by what is known without looking at elements: indices and constraints without gathers."""
        for columns in enumerate_points(site.affine, site.variables, start):
            for f in site.quasi:
                columns = take(columns, self.form_value(f, _Points(columns, site))[1])
            yield columns

    def restrict(self, site: _Site, guard: Expr | None, columns: Columns) -> Columns:
        """Those of the candidates at which the gathers and the guard hold as well."""
        for f in site.dynamic:
            columns = take(columns, self.form_value(f, _Points(columns, site))[1])
        if guard is not None:
            condition = self.value(guard, _Points(columns, site)).data != 0
            columns = take(columns, condition if np.ndim(condition) else bool(condition))
        return columns

    def places(self, place: Sequence[Form], sizes: Sequence[int], columns: Columns, site: _Site) -> np.ndarray:
        at = _Points(columns, site)
        position = _position([self.form_value(f, at)[0] for f in place], sizes)
        return np.broadcast_to(position, columns[""].shape)

    def bounds(self, site: _Site) -> dict[str, tuple[int, int]] | None:
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
            whole = _Site(variables, (), affine + site.quasi, site.outer, site.inner)
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

    def number(self, site: _Site, variables: Sequence[str], columns: Columns) -> np.ndarray:
        """Row-major number of each point in the box of the variables' exact bounds."""
        box = self.bounds(site) or {}
        ranges = [box.get(v, (0, 0)) for v in variables]
        position = _position(
            [columns[v] - low for v, (low, _) in zip(variables, ranges, strict=True)],
            [high - low + 1 for low, high in ranges],
        )
        return np.broadcast_to(position, columns[""].shape)

    # index arithmetic

    def form_value(self, f: Form, at: _Points) -> tuple[np.ndarray | int, np.ndarray | bool]:
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

    def atom(self, e: Expr, at: _Points) -> tuple[np.ndarray, np.ndarray | bool]:
        match e:
            case Access():
                place, good = self.locate(e, at)
                return self.fetch(e, place), good
            case Pad():
                value = self.value(e, at)
                self.require_integers(value.type, e.span)
                return value.data, True
            case Call("mod" | "clamp", args):
                parts = [self.form_value(form(a, None, self.size), at) for a in args]
                x, *rest = (value for value, _ in parts)
                good = True
                for _, sound in parts:
                    good = good & sound
                if e.function == "clamp":
                    return np.minimum(np.maximum(x, rest[0]), rest[1]), good
                divisor = np.asarray(rest[0])
                return np.mod(x, np.where(divisor == 0, 1, divisor)), good & (divisor != 0)
        raise TypeMistake("an index holds integers", e.span)

    def require_integers(self, element: ElementType, span: Span | None) -> None:
        if kind(element.dtype) != 1:
            raise TypeMistake(f"an index holds integers; this one holds {element.dtype}", span)

    def locate(self, access: Access, at: _Points) -> tuple[tuple, np.ndarray | bool]:
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
                self.require_integers(self.tensor(a.tensor, a.span).element(), a.span)

    # values

    def value(self, e: Expr, at: _Points) -> Value:
        """Elements of an expression at the points, or of whole tensors in an elementwise statement."""
        result = at.known.get(id(e))
        if result is None:
            result = at.known[id(e)] = self.compute(e, at)
        return result

    def compute(self, e: Expr, at: _Points) -> Value:
        match e:
            case Int(value):
                return Value(np.asarray(value, np.int64), WEAK_INT)
            case Float(value):
                return Value(np.asarray(value, np.float64), WEAK_FLOAT)
            case Index(name):
                return Value(at.columns[name], WEAK_INT)
            case Name(name):
                return self.name(e, at)
            case Access():
                return Value(self.fetch(e, self.locate(e, at)[0]), self.tensor(e.tensor, e.span).element())
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

    def name(self, e: Name, at: _Points) -> Value:
        if e.name in self.sizes:
            return Value(np.asarray(self.sizes[e.name]), WEAK_INT)
        tensor = self.tensor(e.name, e.span)
        if tensor.data.ndim and not at.whole:
            raise RankMistake(f"{e.name} has {tensor.data.ndim} dimensions and needs as many indices here", e.span)
        return Value(tensor.data, tensor.element())

    def pad(self, e: Pad, at: _Points) -> Value:
        access = e.access.access if isinstance(e.access, Inside) else e.access
        place, good = self.locate(access, at)
        inside = self.fetch(access, place) if isinstance(e.access, Access) else np.asarray(1)
        element = self.tensor(access.tensor, access.span).element() if isinstance(e.access, Access) else WEAK_INT
        other = self.value(e.value, at)
        element = promote(element, other.type)
        return Value(np.where(good, wrap(inside, element.dtype), wrap(other.data, element.dtype)), element)

    def call(self, e: Call, at: _Points) -> Value:
        if e.function in RANDOM:
            raise Unsupported("the oracle draws no random numbers", e.span)
        function = FUNCTIONS[e.function]
        args = [self.value(a, at) for a in e.args]
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

    def nested(self, e: Aggregate, at: _Points) -> Value:
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
            inner = _Points(self.restrict(site, e.guard, columns), site)
            number = self.number(site, e.bound, inner.columns) if e.aggregation in ("argmax", "argmin") else None
            value = self.value(e.body, inner)
            accumulator.add(inner.columns[""], value.data, value.type, number)
        element = aggregate_type(e.aggregation, accumulator.type)
        element = ElementType(element.dtype, element.weak, not element.weak and not site.free)
        return Value(accumulator.result(element.dtype)[np.ravel(inverse) if site.free else 0], element)

    # whole tensors

    def structural(self, e: Call, at: _Points) -> Value:
        x, *rest = (self.value(a, at) for a in e.args) if e.function not in ("index", "shape", "reshape") else (None,)
        if e.function in ("index", "shape", "reshape"):
            x = self.value(e.args[0], at if e.function != "shape" else _Points(at.columns, at.site, whole=True))
        shape = np.shape(x.data)
        element = call_type(e.function, [x.type, *(r.type for r in rest)], e.span)
        match e.function:
            case "shape" if len(e.args) == 1:
                return Value(np.array(shape, np.int64), element)
            case "shape":
                return Value(np.asarray(shape[self.axis(e, shape)]), element)
            case "index":
                axis = self.axis(e, shape)
                ranks = [-1 if d == axis else 1 for d in range(len(shape))]
                return Value(np.broadcast_to(np.arange(shape[axis]).reshape(ranks), shape), element)
            case "reshape":
                return Value(self.reshape(e, x.data), element)
            case "gather":
                return Value(self.gather(e, x.data, rest[0]), element)
            case "scatter":
                return Value(wrap(self.scatter(e, wrap(x.data, element.dtype), *rest), element.dtype), element)
        return Value(wrap(self.simple_reduce(e, x.data, np.shape(rest[0].data)), element.dtype), element)

    def axis(self, e: Call, shape: tuple[int, ...]) -> int:
        axis = self.size(e.args[1])
        if not 0 <= axis < len(shape):
            raise SizeMistake(f"there is no dimension {axis}: the tensor has {len(shape)}", e.span)
        return axis

    def reshape(self, e: Call, data: np.ndarray) -> np.ndarray:
        match e.args[1:]:
            case (Call("shape", (like,)),):
                sizes = list(self.value(like, _Points({}, _Site((), (), [], None), whole=True)).data.shape)
            case sizes_:
                sizes = [self.size(a) for a in sizes_]
        if any(n < 0 for n in sizes) or int(np.prod(sizes, dtype=object)) != data.size:
            raise SizeMistake(f"a tensor of shape {data.shape} cannot be reshaped to {tuple(sizes)}", e.span)
        return data.reshape(sizes)

    def gather(self, e: Call, data: np.ndarray, indices: Value) -> np.ndarray:
        self.require_integers(indices.type, e.span)
        if not data.ndim:
            raise RankMistake("gather needs a tensor with a dimension to choose from", e.span)
        good = (indices.data >= 0) & (indices.data < data.shape[0])
        result = np.zeros((*np.shape(indices.data), *data.shape[1:]), data.dtype)
        result[good] = data[indices.data[good]]
        return result

    def scatter(self, e: Call, data: np.ndarray, indices: Value, like: Value) -> np.ndarray:
        self.require_integers(indices.type, e.span)
        result = np.zeros(np.shape(like.data), data.dtype)
        rank = np.ndim(indices.data)
        if not result.ndim or data.shape[:rank] != np.shape(indices.data) or data.shape[rank:] != result.shape[1:]:
            shapes = f"{data.shape} at {np.shape(indices.data)} into {result.shape}"
            raise SizeMistake(f"scatter: these shapes do not fit: {shapes}", e.span)
        good = (indices.data >= 0) & (indices.data < result.shape[0])
        np.add.at(result, indices.data[good], data[good])
        return result

    def simple_reduce(self, e: Call, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        lead = data.ndim - len(shape)
        if lead < 0 or any(n not in (1, m) for n, m in zip(shape, data.shape[lead:], strict=True)):
            raise SizeMistake(f"{data.shape} does not reduce to {shape}", e.span)
        dtype = np.float64 if data.dtype == np.float64 else np.int64
        axes = (*range(lead), *(lead + d for d, n in enumerate(shape) if n == 1 and data.shape[lead + d] != 1))
        return data.sum(axis=axes, dtype=dtype).reshape(shape)

