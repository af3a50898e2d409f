"""Blocks of some of a kernel's axes: what depends on which, and the text of positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tilec.backends.common.domain import free
from tilec.backends.triton.emit.kernel import Kernel
from tilec.backends.triton.plan.heading import LITERAL
from tilec.backends.triton.plan.sizes import NARROWEST
from tilec.errors import AffineMistake
from tilec.ir.functions import FUNCTIONS
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Pad
from tilec.ir.rational import as_int
from tilec.ir.symbolic import is_symbolic

_SMALL = 2**20  # what positions of 32 bits have room for beside them


class PositionText(ABC):
    """Index expressions over the axes of a frame, as text."""

    kernel: Kernel
    axes: tuple[str, ...]
    inner: tuple[frozenset[str], ...]

    @abstractmethod
    def read(self, access: Access, other: float | int | None, wanted: Sequence[str] = ()) -> str:
        """A name of the elements read."""

    @abstractmethod
    def inside(self, access: Access) -> str | None:
        """Text of the test that an access lies in its tensor; None: it always does."""

    # dependence

    def dimensions(self, variables: frozenset[str]) -> frozenset[str]:
        """Axes that the variables stand on."""
        found = (self.kernel.axis_of.get(v) for v in variables)
        return frozenset(a.name for a in found if a is not None and a.block is not None)

    def depth(self, variables: frozenset[str]) -> int:
        needed = variables | self.dimensions(variables)
        return max((place for place, bound in enumerate(self.inner, 1) if needed & bound), default=0)

    def spread(self, text: str, axis: str) -> str:
        """A 1-D block as a block of this frame."""
        if len(self.axes) == 1:
            return text
        return f"{text}[{', '.join(':' if a == axis else 'None' for a in self.axes)}]"

    def variable(self, v: str) -> str:
        axis = self.kernel.axis_of.get(v)
        value = self.kernel.value_of[v]
        return value if axis is None or axis.block is None else self.spread(value, axis.name)

    def assign(self, stem: str, text: str, variables: frozenset[str]) -> str:
        return self.kernel.line(stem, text, self.depth(variables))

    # index arithmetic

    def form(self, e: Expr) -> Affine:
        """An index expression with variables of a single known value replaced by it."""
        form = linear(e)
        values = self.kernel.value_of
        known = {v: Affine.of((), int(values[v])) for v in free(form) if values[v].lstrip("-").isdigit()}
        return form.substitute(known) if known else form

    def index(self, form: Affine) -> str:
        """The form's value; where it is no integer, some integer."""
        scale = form.denominator
        int64_index = self._needs_64_bits(form * scale)
        terms = [(self._placed(a, int64_index), as_int(c * scale)) for a, c in form.terms]
        text = self.sum(terms, as_int(form.constant * scale), form)
        return text if scale == 1 else f"({text}) // {scale}"

    def _needs_64_bits(self, form: Affine) -> bool:
        """Whether 32 bits do not hold a form of positions of 32 bits. What wraps on the way there comes back, unless
        parts of it are of 64 bits."""
        factors = [abs(c) for _, c in form.terms]
        if self.kernel.int64_index or max(factors, default=0) <= 1 and abs(form.constant) < _SMALL:
            return False
        spans = {a: self._span(Affine.of([(a, 1)])) for a, _ in form.terms}
        if None not in spans.values() and max(*factors, abs(form.constant)) < NARROWEST:
            return self._span(form) is None
        reach = sum(abs(c) * max(map(abs, span)) for a, c in form.terms if (span := spans[a]) is not None)
        return reach + abs(form.constant) >= NARROWEST

    def _placed(self, e: Expr, int64_index: bool) -> str:
        text = self.atom(e)
        return f"tl.cast({text}, tl.int64)" if int64_index and isinstance(e, Index) and not text.isdigit() else text

    def sum(self, terms: Sequence[tuple[str, int]], constant: int, key: object) -> str:
        text = ""
        for value, c in terms:
            factor = "" if abs(c) == 1 else f"{abs(c)} * "
            if abs(c) > LITERAL:
                factor = self.kernel.number(("coefficient", key, value), "c", abs(c), False) + " * "
            sign = "-" if c < 0 else "+" if text else ""
            text += (f" {sign} " if text else sign) + factor + value
        if constant or not text:
            number = str(abs(constant))
            if abs(constant) > LITERAL:
                number = self.kernel.number(("constant", key), "c", abs(constant), self._runs_fast(key))
            text += f" {'-' if constant < 0 else '+'} {number}" if text else ("-" if constant < 0 else "") + number
        return text

    def _runs_fast(self, form: object) -> bool:
        """Whether blocks may run along the form, so that it matters what a number beside it is divisible by."""
        return isinstance(form, Affine) and any(map(self.kernel.runs_fast, form.variables()))

    def atom(self, e: Expr) -> str:
        match e:
            case Index(name):
                return self.variable(name)
            case Access():
                return f"{self.read(e, 0)}.to(tl.int64)"  # an element may be out of 32 bits, and so out of every range
            case Call("mod", (a, Int(n))) if (turn := self._remainder(self.form(a), n)) is not None:
                return turn
            case Call("mod" | "max" | "min" | "clamp", args):
                forms = [self.form(a) for a in args]
                narrow = all(self._span(f) is not None for f in forms)
                operands = [self.block(f, None if narrow else "int64") for f in forms]
                text = (FUNCTIONS[e.function].triton or "").format(*operands)
                if not narrow and self._span(linear(e)) is not None:
                    text = f"{text}.to(tl.{self._position_type})"
            case Pad():
                access = e.access if isinstance(e.access, Access) else e.access.access
                read = f"{self.read(e.access, 0)}.to(tl.int64)" if isinstance(e.access, Access) else "1"
                inside = self.inside(access)
                if inside is None:
                    return read
                text = f"tl.where({inside}, {read}, {self._integer(e.value)})"
            case _:
                raise AssertionError(f"no index atom: {e!r}")
        return self.assign("at", text, free(Affine.of([(e, 1)])))

    def _integer(self, e: Expr) -> str:
        """The value of what stands in for an element in an index: sums and products of forms."""
        try:
            return self.index(self.form(e))
        except AffineMistake:
            match e:
                case Call("add" | "sub" | "mul" as function, (a, b)):
                    return f"({self._integer(a)} {FUNCTIONS[function].symbol} {self._integer(b)})"
            raise

    def _span(self, form: Affine) -> tuple[int, int] | None:
        """Least and greatest value of a form whose values are positions of 32 bits; None where they may be others."""
        if not form.is_integral:
            return None
        spans = [self.kernel.space.box(k).interval(form) for k in range(len(self.kernel.space.classes))]
        low, high = min((a for a, _ in spans), default=0), max((b for _, b in spans), default=0)
        return (as_int(low), as_int(high)) if -NARROWEST < low <= high < NARROWEST else None

    def _remainder(self, form: Affine, n: int) -> str | None:
        """`form % n` in the width of positions; None where that takes more. Elements of tensors that fewer axes have
        than the rest are divided by themselves."""
        if not form.terms or not form.is_integral or not 0 < n < NARROWEST:
            return None
        span = self._span(form)
        if span is not None:
            return self._turned(form, *span, n)
        if not is_symbolic(n) and n & (n - 1) == 0:
            return self._masked(form, n, self._position_type)
        data = Affine(tuple((a, c) for a, c in form.terms if self._span(Affine.of([(a, 1)])) is None))
        rest = form - data
        if not data.is_integral or self.dimensions(free(data)) >= self.dimensions(free(rest)):
            return None
        apart = rest + Affine.of([(Call("mod", (data.to_expr(), Int(n))), 1)])
        span = self._span(apart)
        return None if span is None else self._turned(apart, *span, n)

    def _masked(self, form: Affine, n: int, dtype: str | None = None) -> str:
        """`form % n` for a power of two, of which the last bits of a form of any width tell."""
        mask = str(n - 1) if n <= LITERAL else self.kernel.number(("mask", n), "mask", n - 1, False)
        return self.assign("at", f"{self.block(form, dtype)} & {mask}", free(form))

    def _turned(self, form: Affine, low: int, high: int, n: int) -> str:
        """The same of a form from `low` to `high`. Where it runs along memory and turns between vectors the remainder
        says so, elsewhere a form that goes no further than once round in each direction needs no division."""
        before = low // n * n
        if high < before + n:
            return self.assign("at", self.index(form - before), free(form))
        along = any(self.kernel.runs_fast(v) and abs(form.coefficient(v)) == 1 for v in form.variables())
        others = sum(c % 4 != 0 for _, c in form.terms) > 1
        vectors = along and not others and n % 4 == 0 and form.constant % 4 == 0
        if not vectors and not is_symbolic(n) and n & (n - 1) == 0:
            return self._masked(form, n)
        both = high >= before + 2 * n
        form = form - before
        size = str(n) if n <= LITERAL else self.kernel.number(("turn", n, vectors), "n", n, vectors)
        if vectors or high >= before + 3 * n:
            return self.assign("at", f"({self.index(form)}) % {size}", free(form))
        form = form - n if both else form
        name = self.assign("at", self.index(form), free(form))
        text = f"tl.where({name} >= {size}, {name} - {size}, {name})"
        return self.assign("at", f"tl.where({name} < 0, {name} + {size}, {text})" if both else text, free(form))

    @property
    def _position_type(self) -> str:
        return "int64" if self.kernel.int64_index else "int32"

    def block(self, form: Affine, dtype: str | None = "int64") -> str:
        """The form as a tensor of this type (None: as wide as positions, which its parts are)."""
        text = self.index(form)
        if dtype is None:
            return f"({text})" if form.terms else f"tl.full((), {text}, tl.{self._position_type})"
        return f"({text}).to(tl.{dtype})" if form.terms else f"tl.full((), {text}, tl.{dtype})"
