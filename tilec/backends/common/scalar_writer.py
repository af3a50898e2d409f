"""What the writers of scalar expressions share: each value is written once, after those that it is computed from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilec.backends.common.code import literal
from tilec.backends.common.scalars import count_uses, fit, fold_literals, value_children
from tilec.ir.infer import call_type
from tilec.ir.program import Access, Call, Expr, Float, Index, Inside, Int, Pad
from tilec.ir.types import WEAK_FLOAT, WEAK_INT, ElementType, promote


@dataclass(frozen=True)
class ScalarValue:
    """`code`: text of a tensor of dtype `compute_dtype`, or, where that is None, of the number `number`. `depth`:
    operators nested in it. `exact`: a 16-bit value that is held in float32 has been rounded. `call`: a statement that
    writes the value into an existing tensor, `{0}`. `single`: the function and the arguments that give in float32 what
    this value is when rounded to float32. `own`: a tensor that nothing else has, as large as its variables say.
    `rounded`: text of the same in a 16-bit type, from which it has been converted."""

    code: str
    type: ElementType
    compute_dtype: str | None
    variables: frozenset[str] = frozenset()
    number: bool | int | float | None = None
    depth: int = 0
    exact: bool = False
    call: str | None = None
    single: tuple[str, tuple[ScalarValue, ...]] | None = None
    own: bool = False
    rounded: str | None = None


def number_value(n: bool | int | float, t: ElementType | None = None) -> ScalarValue:
    weak = ElementType("bool", True, True) if isinstance(n, bool) else WEAK_FLOAT if isinstance(n, float) else WEAK_INT
    return ScalarValue(literal(n), t or weak, None, number=n)


class ScalarWriter(ABC):
    """Writes into `frame` what expressions need; equal subexpressions are computed once. `given`: values of accesses
    that need not be read."""

    frame: Any
    most_nested: int  # operators nested in one expression of the text

    def __init__(self, *roots: Expr, given: dict[Expr, ScalarValue] | None = None):
        self._values: dict[Expr, ScalarValue] = dict(given or {})
        self._uses = count_uses(roots)

    def give(self, e: Expr, v: ScalarValue) -> ScalarValue:
        """Take a value that is at hand from now on."""
        self._values[e] = v
        return v

    def test(self, e: Expr) -> str:
        """Text of `e != 0`."""
        return self.condition(self.value(e))

    def text(self, e: Expr, dtype: str) -> str:
        """Text of an expression's value as a tensor of this dtype, which is a test where that is bool."""
        return self.test(e) if dtype == "bool" else self.tensor(self.value(e), dtype)

    def value(self, root: Expr) -> ScalarValue:
        """The value of an expression; iterative in depth, so long chains are no problem."""
        stack = [root]
        while stack:
            e = stack[-1]
            missing = [] if e in self._values else [c for c in self._operands(e) if c not in self._values]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if e in self._values:
                continue
            v = self._make(e)
            named = self._uses[e] > 1 or v.depth > self.most_nested
            if v.compute_dtype is not None and isinstance(e, Call) and named and v.single is None:
                v = ScalarValue(self._assigned(v), v.type, v.compute_dtype, v.variables, exact=v.exact)
            self._values[e] = v
        return self._values[root]

    def _operands(self, e: Expr) -> Sequence[Expr]:
        """Expressions whose values that of `e` is made of."""
        return value_children(e)

    def _make(self, e: Expr) -> ScalarValue:
        match e:
            case Int(n) | Float(n):
                return number_value(n)
            case Inside():
                return number_value(1)
            case Index(name):
                return self._index(name)
            case Access():
                return self._access(e)
            case Pad():
                return self._pad(e)
            case Call("ident" | "reverse_grad", (x, *_)):
                return self._values[x]
            case Call():
                args = [self._values[a] for a in e.args]
                result = call_type(e.function, [a.type for a in args], e.span)
                if all(a.number is not None for a in args):
                    folded = fold_literals(e.function, [a.number for a in args if a.number is not None], result)
                    if folded is not None:
                        return number_value(folded, result)
                return self._call(e, args, result)
        raise AssertionError(f"{type(e).__name__} is no value in a body")

    def _pad(self, e: Pad) -> ScalarValue:
        access = e.access if isinstance(e.access, Access) else e.access.access
        inside = self.frame.inside(access)
        value, read = self._values[e.value], self._make(e.access)
        t = promote(read.type, value.type)
        if inside is not None:
            return self._padded(inside, access, read, value, t)
        if read.number is not None:
            return number_value(fit(read.number, t.dtype), t)
        compute_dtype = self.compute_dtype_of(t.dtype)
        return ScalarValue(self.cast(read, compute_dtype), t, compute_dtype, read.variables, depth=read.depth + 1)

    @abstractmethod
    def compute_dtype_of(self, dtype: str) -> str:
        """The dtype in which a value of this type is computed."""

    @abstractmethod
    def cast(self, v: ScalarValue, dtype: str) -> str:
        """Text of the value as an operand of this dtype."""

    @abstractmethod
    def tensor(self, v: ScalarValue, dtype: str) -> str:
        """Text of the value as a tensor of this dtype."""

    @abstractmethod
    def condition(self, v: ScalarValue) -> str:
        """Text of `v != 0` as a bool tensor."""

    @abstractmethod
    def _assigned(self, v: ScalarValue) -> str:
        """A name for the value."""

    @abstractmethod
    def _index(self, name: str) -> ScalarValue: ...

    @abstractmethod
    def _access(self, e: Access) -> ScalarValue: ...

    @abstractmethod
    def _padded(
        self, inside: Any, access: Access, read: ScalarValue, value: ScalarValue, t: ElementType
    ) -> ScalarValue:
        """One of two values; `inside` is what the frame says of the access."""

    @abstractmethod
    def _call(self, e: Call, args: list[ScalarValue], result: ElementType) -> ScalarValue: ...
