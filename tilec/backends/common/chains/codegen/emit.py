"""Values of expressions as block operations.

16-bit values are held in float32 and rounded where they are cast, compared or stored. Factors of a product that are the
same for a row, a column or all points are multiplied first, so that they leave loops; exponentials are powers of two.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from functools import cache, reduce

from tilec.backends.common.blocks.builder import INDEX_TYPE, INT64, Builder
from tilec.backends.common.blocks.ir import Value
from tilec.backends.common.chains.chain import ReadInPlace
from tilec.backends.common.chains.codegen.walk import index_dtype_of
from tilec.backends.common.chains.in_place import place_ends, quotients_of
from tilec.backends.common.scalars import fit, fold_literals
from tilec.ir.functions import COMPARISONS, FUNCTIONS, RANDOM, SMALL_POWERS, ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.infer import call_type, expression_types
from tilec.ir.program import Access, Call, Expr, Float, Index, Inside, Int, Statement, children, index_variables
from tilec.ir.rational import as_int
from tilec.ir.types import NARROW, ElementType, Types, is_floating, is_integer, kind
from tilec.lattice.conditions import is_affine
from tilec.lattice.spans import WIDEST, EndsOf
from tilec.transforms.util.factors import Factor, factors_of, quotient_of

LOG2E, LN2 = math.log2(math.e), math.log(2.0)
Masking = Callable[[Value], Value]  # what is made of a value where points do not count
EXACT_IN_FLOAT32 = 2**24  # integers up to there


def _compute_dtype_of(t: ElementType) -> str:
    """The dtype in which values of this type are computed."""
    return "float32" if t.dtype in NARROW or t.weak and is_floating(t.dtype) else t.dtype


class Emitter:
    """Values at the points that `positions` gives each variable, which has as many values as `extent` says. `given`:
    values of accesses that are not read. `within`: for the variables of an access, the condition under which they have
    such a value. `in_place`: what is read at computed positions, by name. `in_exponents`: values of which absolute
    errors count. `masked`: what exponents are where points do not count, so that exponentials are 0 there. What was
    asked for once is kept."""

    def __init__(
        self,
        builder: Builder,
        types: Types,
        positions: Mapping[str, Value],
        extent: Mapping[str, int],
        within: Callable[[tuple[str, ...]], Value | None],
        given: Callable[[Access], Value | None],
        in_place: Mapping[str, ReadInPlace],
        in_exponents: Collection[Expr] = (),
        masked: Masking | None = None,
    ):
        self.b, self.types, self.positions, self.extent = builder, types, positions, extent
        self._within, self._given, self._in_place = within, given, in_place
        self.in_exponents = in_exponents
        self._masked = masked
        self.type_of = expression_types(types)
        self.spans = EndsOf(lambda v: (0, extent[v] - 1), types)
        self.place, self.read, self.value = cache(self._place), cache(self._read), cache(self._value)

    # indices

    def form(self, form: Affine) -> Value:
        """An affine form of index variables as an integer."""
        b, dtype = self.b, index_dtype_of(form, self.extent)
        total = b.number(as_int(form.constant), dtype) if form.constant or not form.terms else None
        for atom, c in form.terms:
            assert isinstance(atom, Index)
            place = b.cast(self.positions[atom.name], dtype)
            term = place if c == 1 else place * as_int(c)
            total = term if total is None else total + term
        assert total is not None
        return total

    def not_negative(self, form: Affine) -> Value:
        """Whether a form is at least 0: its positive terms beside the others, so that each side leaves loops alone."""
        positive = Affine.of([(a, c) for a, c in form.terms if c > 0], form.constant)
        negative = Affine.of([(a, -c) for a, c in form.terms if c < 0])
        return self.form(positive) >= self.form(negative)

    def _place(self, form: Affine) -> Value:
        """A position, which elements of integers, remainders and quotients may be part of."""
        if form.is_affine and form.is_integral:
            return self.form(form)
        quotients, rest = quotients_of(form)
        dtype = INDEX_TYPE if max(map(abs, place_ends(form, self.extent))) < WIDEST else INT64
        parts = [self.b.cast(self.form(x) // n, dtype) * k for x, n, k in quotients]
        int64_index = len(parts) + len(rest.terms) > 1 or bool(rest.constant) or any(c != 1 for _, c in rest.terms)
        others = [(self._atom(a, int64_index), as_int(c)) for a, c in rest.terms if not isinstance(a, Index)]
        parts += [(v if v.type.dtype == INT64 else self.b.cast(v, dtype)) * c for v, c in others]
        plain = Affine.of([(a, c) for a, c in rest.terms if isinstance(a, Index)], rest.constant)
        parts += [self.form(plain)] if plain != Affine() else []
        return reduce(operator.add, parts)

    def _atom(self, e: Expr, int64_index: bool) -> Value:
        """`int64_index`: arithmetic with elements has to have room."""
        b = self.b
        match e:
            case Access():
                v = self.read(e)
                return v if v.type.dtype == "int64" else b.cast(v, "int64" if int64_index else INDEX_TYPE)
            case Call("mod", (x, Int(n))):
                return self.form(linear(x)) % n
        raise AssertionError(f"{type(e).__name__} is no part of a position")

    def _lies_inside(self, form: Affine, n: int) -> bool:
        """Whether remainders and quotients of places are positions of an axis, wherever these are."""
        if form.is_affine or any(isinstance(a, Access) for a in quotients_of(form)[1].atoms()):
            return False
        low, high = place_ends(form, self.extent)
        return low >= 0 and high < n

    def _read(self, a: Access) -> Value:
        """An element of a tensor, in the tensor's type; 0 where there is none."""
        forms = [linear(e) for e in a.index]
        condition = self._inside(a, self._within(index_variables(*(f.to_expr() for f in forms))))
        places = [self.place(f) for f in forms]
        return self.b.load(a.tensor, self.types[a.tensor].dtype, places, condition)

    def _inside(self, a: Access, condition: Value | None) -> Value | None:
        """The condition, and that there is such an element: where points do not count, a place may lie outside."""
        for e, n in zip(a.index, self.types[a.tensor].shape, strict=True):
            f = linear(e)
            for x in f.atoms():
                condition = self._inside(x, condition) if isinstance(x, Access) else condition
            moved = f.bare is None and bool(f.terms) and not self._lies_inside(f, n)
            if moved:
                condition = self.both(condition, self.place(f) >= 0)
            if moved or n < self.extent.get(f.bare or "", n):
                condition = self.both(condition, self.place(f) < n)
        return condition

    def store(self, s: Statement, value: Value) -> None:
        """Store a value as the statement's element."""
        forms = [linear(e) for e in s.index or ()]
        stored, names = self.b.cast(value, self.types[s.output].dtype), tuple(v for f in forms for v in f.variables())
        self.b.store(s.output, [self.form(f) for f in forms], stored, self._within(names))

    def both(self, x: Value | None, y: Value | None) -> Value | None:
        if x is None or y is None:
            return y if x is None else x
        return x & y

    # values

    def number(self, e: Expr) -> float | int | bool | None:
        """The number that an expression of literals alone is."""
        match e:
            case Int(n) | Float(n):
                return n
            case Inside():
                return 1
            case Call(function, args):
                numbers = [self.number(a) for a in args]
                if None in numbers:
                    return None
                return fold_literals(function, numbers, self.type_of(e))
        return None

    def _value(self, e: Expr, dtype: str | None = None) -> Value:
        """The value, held in `dtype` or as its own type asks."""
        n = self.number(e)
        if n is not None:
            wanted = dtype or self._dtype_of(e)
            return self.b.number(fit(n, wanted), wanted)
        if dtype == "float32" and self._across(e):
            return self._float_form(linear(e))
        made = self._make(e)
        return made if dtype is None else self.b.cast(made, dtype)

    def _dtype_of(self, e: Expr) -> str:
        """The dtype in which a value is computed: integers of literals and indices alone in 32 bits, where these hold
        them and all that they are made of."""
        t = self.type_of(e)
        narrow = t.weak and is_integer(t.dtype) and self.spans.of(e) is not None
        return INDEX_TYPE if narrow else _compute_dtype_of(t)

    def _across(self, e: Expr) -> bool:
        """Whether a value is a form of several axes' positions, and float32 holds all its parts exactly: these are
        converted for each axis then, and not for each point."""
        if not isinstance(e, Call) or not is_affine(e):
            return False
        form = linear(e)
        if len([v for v in form.variables() if self.positions[v].type.axes]) < 2:
            return False
        reach = abs(as_int(form.constant))
        reach += sum(abs(as_int(form.coefficient(v))) * self.extent[v] for v in form.variables())
        return reach < EXACT_IN_FLOAT32

    def _float_form(self, form: Affine) -> Value:
        """An affine form of positions in float32."""
        b, total = self.b, self.b.number(float(as_int(form.constant)), "float32")
        for v in form.variables():
            c, x = as_int(form.coefficient(v)), b.cast(self.positions[v], "float32")
            x = x if abs(c) == 1 else x * float(abs(c))
            total = b.apply("add" if c > 0 else "sub", total, x)
        return total

    def _as_int64(self, e: Expr) -> Value:
        """A seed or a counter, which no 32 bits need hold."""
        form = linear(e) if is_affine(e) else None
        if form is None or not form.is_integral:
            return self.value(e, INT64)
        terms = [self.b.cast(self.positions[v], INT64) * as_int(form.coefficient(v)) for v in form.variables()]
        return reduce(operator.add, [self.b.number(as_int(form.constant), INT64), *terms])

    def condition(self, e: Expr) -> Value:
        v = self.value(e)
        return v if v.type.dtype == "bool" else v.differs(fit(0, v.type.dtype))

    def scaled(self, e: Expr, c: Value | float) -> Value:
        """c times a floating value, c as far inside as it takes to leave loops."""
        match e:
            case Call("add" | "sub" as f, (x, y)):
                return self.b.apply(f, self.scaled(x, c), self.scaled(y, c))
            case Call("neg", (x,)):
                return self.scaled(x, -c) if isinstance(c, float) else self.b.apply("neg", self.scaled(x, c))
        factors = [Factor(e, False)] if isinstance(e, Access) else factors_of(e, self.types)
        return self.product(factors, c)

    def parted(self, e: Expr) -> tuple[float, list[Factor]]:
        """A product as a finite number and the other factors."""
        number, rest = 1.0, []
        for f in factors_of(e, self.types):
            n = self.number(f.value)
            if n is None or not math.isfinite(n) or not n:
                rest.append(f)
            else:
                number = number / float(n) if f.divides else number * float(n)
        return number, rest

    def product(self, factors: list[Factor], c: Value | float = 1.0) -> Value:
        """The product of factors in float32, those of the fewest axes first."""
        b = self.b
        values: list[Value] = [] if isinstance(c, float) else [c]
        number = c if isinstance(c, float) else 1.0
        for f in factors:
            n = self.number(f.value)
            if n is not None and not (f.divides and not n):
                number = number / float(n) if f.divides else number * float(n)
                continue
            v = self.value(f.value, "float32")
            if f.divides:
                v = self._inverse(v)
            values.append(v)
        if number != 1.0 or not values:
            values.append(b.number(number, "float32"))
        values.sort(key=lambda v: len(v.type.axes))
        result = values[0]
        for v in values[1:]:
            result = result * v
        return result

    def _inverse(self, v: Value) -> Value:
        """1 over a value: of points by the quicker of two divisions, as there are many."""
        function = "quotient" if len(v.type.axes) > 1 else "div"
        return self.b.apply(function, self.b.number(1.0, "float32"), v)

    def _logistic(self, e: Expr, c: float) -> Value:
        """1 over 1 and two to the power of c times a value."""
        p = self.b.apply("exp2", self.scaled(e, c), hint="p") + 1.0
        return self.b.apply("reciprocal", p) if len(p.type.axes) > 1 else self._inverse(p)

    def _make(self, e: Expr) -> Value:
        b = self.b
        match e:
            case Index(name):
                return self.positions[name]
            case Access():
                given = self._given(e)
                if given is not None:
                    return given
                if e.tensor in self._in_place:
                    return self.value(self._in_place[e.tensor].at(e))
                return b.cast(self.read(e), self._dtype_of(e))
            case Call("ident" | "reverse_grad", (x, *_)):
                return self.value(x)
            case Call():
                return self._call(e)
        raise AssertionError(f"{type(e).__name__} is no value in a body")

    def _call(self, e: Call) -> Value:
        b, f = self.b, e.function
        result = self.type_of(e)
        compute_dtype = self._dtype_of(e)
        if f in COMPARISONS:
            return b.apply(f, *self.alike(e.args))
        if f in RANDOM:
            return b.apply(f, *map(self._as_int64, e.args))
        if f == "select":
            return b.apply("select", self.condition(e.args[0]), *(self.value(a, compute_dtype) for a in e.args[1:]))
        if f in ("and", "or", "xor", "not") and compute_dtype == "bool":
            return b.apply(f, *map(self.condition, e.args))
        if f == "as_type" or len(e.args) == 1 and f == result.dtype:
            return self._converted(e.args[0], result, compute_dtype)
        if compute_dtype == "float32" and f in ("mul", "div", "neg"):
            return self.product(factors_of(e, self.types))
        if compute_dtype == "float32" and f in ("add", "sub"):
            shared = _common(e.args[0], e.args[1], self.types)
            if shared is not None:
                common, x, y = shared
                return self.product([*common, Factor(Call(f, (x, y)), False)])
        if compute_dtype == "float32" and f == "exp":
            exponent = self.scaled(e.args[0], LOG2E)
            return b.apply("exp2", exponent if self._masked is None else self._masked(exponent), hint="p")
        if compute_dtype == "float32" and f == "sigmoid":
            return self._logistic(e.args[0], -LOG2E)
        if f == "tanh" and result.dtype in NARROW and e in self.in_exponents:
            # within 2^-22, which is no more than what products leave; the library's, which is as exact for small values
            # too, takes as long as all else that is done to a score
            return b.number(1.0, "float32") - self._logistic(e.args[0], 2 * LOG2E) * 2.0
        if f == "pow" and compute_dtype == "float32" and self.number(e.args[1]) in SMALL_POWERS:
            base, n = self.value(e.args[0], compute_dtype), int(self.number(e.args[1]) or 0)
            square = base * base
            return reduce(operator.mul, [square] * (n // 2) + [base] * (n % 2))
        assert FUNCTIONS[f].triton is not None and FUNCTIONS[f].numpy is not None, f
        return b.apply(f, *(self.value(a, compute_dtype) for a in e.args))

    def alike(self, args: tuple[Expr, ...]) -> list[Value]:
        """Operands of a comparison in their common type, rounded as it is stored."""
        types = [self.type_of(a) for a in args]
        both_count = all(kind(t.dtype) > 0 for t in types)  # truth values have no sum
        common = call_type("add" if both_count else "max", types)
        narrow = common.weak and {INDEX_TYPE} == {*map(self._dtype_of, args)}
        compute_dtype = INDEX_TYPE if narrow else _compute_dtype_of(common)
        values = [self.value(a, compute_dtype) for a in args]
        if common.dtype not in NARROW:
            return values
        return [v if isinstance(a, Access) else self._round(v, common.dtype) for a, v in zip(args, values, strict=True)]

    def _round(self, v: Value, dtype: str) -> Value:
        n = self.b.number_of(v)
        if n is not None and (n == 0 or math.isinf(n)):
            return v
        return self.b.cast(self.b.cast(v, dtype), _compute_dtype_of(ElementType(dtype)))

    def _converted(self, x: Expr, result: ElementType, compute_dtype: str) -> Value:
        if result.dtype == "bool":
            return self.condition(x)
        v = self.value(x, compute_dtype)
        return self._round(v, result.dtype) if result.dtype in NARROW else v


def distance(e: Expr, part: Access) -> int:
    """How many functions lie between a part of an expression and its value; -1 where it is no part."""
    found = [distance(c, part) for c in children(e)]
    return 0 if e == part else max((n + 1 for n in found if n >= 0), default=-1)


def _common(x: Expr, y: Expr, types: Types) -> tuple[list[Factor], Expr, Expr] | None:
    """Exponentials that two terms share, and what is left of these; `c ? p * x : 0` is p times `c ? x : 0` beside
    another multiple of p."""
    first, second = _terms_of(x, types), _terms_of(y, types)
    others, common = list(second[1]), list[Factor]()
    for f in first[1]:
        if f in others and isinstance(f.value, Call) and f.value.function == "exp":
            others.remove(f)
            common.append(f)
    if not common or first[0] is not None and second[0] is not None:
        return None
    rest = []
    for condition, factors in (first, second):
        left = list(factors)
        for f in common:
            left.remove(f)
        value = quotient_of(left)
        rest.append(value if condition is None else Call("select", (condition, value, ZERO)))
    return common, rest[0], rest[1]


def _terms_of(e: Expr, types: Types) -> tuple[Expr | None, list[Factor]]:
    match e:
        case Call("select", (c, x, Int(0))):
            return c, factors_of(x, types)
    return None, factors_of(e, types)
