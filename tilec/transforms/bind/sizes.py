"""Sizes: dimensions from the inputs' shapes, size arithmetic, and the numbers that stand in indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilec.errors import DividesByZero, InputMistake, NameMistake, RankMistake, SizeMistake, Span, TypeMistake
from tilec.ir.constraining import constraining
from tilec.ir.index import QUASI_AFFINE, Affine, canonical_access, linear
from tilec.ir.program import Access, Aggregate, Call, Expr, Float, Inside, Int, Name, Pad, Program, walk
from tilec.ir.rational import Fraction, as_int
from tilec.ir.types import DTYPES, TensorType, is_integer
from tilec.language import show_expr
from tilec.transforms.bind.value_inputs import names_in_size, size_inputs


def _truncate(a: int, b: int) -> int:
    if b == 0:
        raise ZeroDivisionError
    quotient = abs(a) // abs(b)
    return quotient if bool(a < 0) == bool(b < 0) else -quotient


def _decided(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    """The comparison as a bool at once: torch computes nothing with one that it has yet to decide."""
    return lambda a, b: bool(compare(a, b))


def as_number(n: Any) -> Any:
    """A truth value as 0 or 1; any other size, open ones too, as it is."""
    return int(n) if isinstance(n, bool) else n


def promoting(compute: Callable[..., Any], among: int = 0) -> Callable[..., Any]:
    """A function of which truth values make a truth value, and anything else an integer; of its operands from `among`
    on."""

    def function(*args):
        if all(isinstance(a, bool) for a in args[among:]):
            return bool(compute(*args))
        return compute(*map(as_number, args))

    return function


def _same(*values):
    if len(set(values)) > 1:
        raise ValueError
    return as_int(values[0])


SIZE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": promoting(operator.add),
    "sub": operator.sub,
    "mul": promoting(operator.mul),
    "div": _truncate,
    "mod": operator.mod,
    "neg": operator.neg,
    "abs": abs,
    "ident": lambda a: a,
    "max": promoting(max),
    "min": promoting(min),
    "clamp": promoting(lambda e, low, high: min(max(e, low), high)),
    "select": promoting(lambda c, a, b: a if c else b, among=1),
    "same": _same,
    "eq": _decided(operator.eq),
    "ne": _decided(operator.ne),
    "lt": _decided(operator.lt),
    "le": _decided(operator.le),
    "gt": _decided(operator.gt),
    "ge": _decided(operator.ge),
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": lambda a: not a if isinstance(a, bool) else -1 ^ a,
    "shl": operator.lshift,
    "shr": operator.rshift,
}
_TRUTHS = ("add", "mul", "max", "min", "clamp")  # affine of numbers; of truth values alone none
AFFINE_FUNCTIONS = ("add", "sub", "mul", "div", "neg", *QUASI_AFFINE)


@dataclass
class Sizes:
    """What is known of sizes: `values` and `sources` (where each came from) by name, and the tensors' shapes.

    `failed` holds size statements whose arithmetic went wrong, which matters only where they are used as a size.
    """

    values: dict[str, int] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    failed: dict[str, SizeMistake] = field(default_factory=dict)

    def value(self, e: Name | Access) -> int:
        """The integer of a name (or of a rank-0 element) that is used in a size."""
        name = e.name if isinstance(e, Name) else e.tensor
        if name in self.values:
            return self.values[name]
        if name in self.failed:
            raise self.failed[name]
        if name in self.shapes:
            raise SizeMistake(
                f"{name} is a tensor that is computed, so it cannot stand in a size",
                e.span,
                hint="sizes are made of dimensions, integers, rank-0 integer inputs and statements of these alone"
                + ("" if self.shapes[name] else f"; in an index, {name}[] reads the element"),
            )
        raise NameMistake(f"no dimension is called {name}", e.span)

    def evaluate(self, e: Expr) -> int:
        """Size arithmetic: an integer, or a truth value, which counts as 0 or 1; division truncates toward zero,
        operation by operation."""
        match e:
            case Int(value):
                return value
            case Name() | Access(index=()):
                return self.value(e)
            case Call("shape", (Name() as tensor, axis)):
                return self.dimension(tensor, axis, e.span)
            case Call(function, args) if function in SIZE_FUNCTIONS:
                result = self.apply(e, [self.evaluate(a) for a in args])
                return result if isinstance(result, bool) else as_int(result)
            case Float():
                raise TypeMistake(f"a size is an integer; {show_expr(e, tight=True)} is floating", e.span)
        raise TypeMistake(f"`{show_expr(e, tight=True)}` cannot be worked out when only shapes are known", e.span)

    def apply(self, e: Call, args: list) -> Any:
        """A size function of numbers, with the mistakes that numbers can make."""
        if e.function in ("shl", "shr") and args[1] < 0:
            shown = show_expr(e, tight=True)
            raise SizeMistake(f"`{shown}` shifts by {args[1]} bits, and a shift is at least 0", e.span)
        if e.function == "shl" and args[1] > 64 and args[0]:
            raise self._too_large(e)
        try:
            result = SIZE_FUNCTIONS[e.function](*args)
            if abs(result) > 2**63:
                raise self._too_large(e)
            return result
        except ZeroDivisionError:
            raise DividesByZero(
                f"division by zero in `{show_expr(e, tight=True)}`", e.span, hint=self.explain(e)
            ) from None
        except TypeError:  # bits of a fraction
            raise SizeMistake(
                f"`{show_expr(e, tight=True)}` takes integers", e.span, hint="`/` in an index is exact"
            ) from None
        except ValueError:
            shown = ", ".join(f"`{show_expr(a, tight=True)}` = {v}" for a, v in zip(e.args, args, strict=True))
            raise SizeMistake(f"sizes that must agree do not: {shown}", e.span, hint=self.explain(e)) from None

    def _too_large(self, e: Expr) -> SizeMistake:
        shown = show_expr(e, tight=True)
        return SizeMistake(f"`{shown}` does not fit into 64 bits", e.span, hint=self.explain(e))

    def size(self, e: Expr, what: str) -> Int:
        """A tensor's size as a literal; `what` names it in the error for a negative one."""
        if isinstance(e, Int):
            return e
        value = self.evaluate(e)
        if value < 0:
            least = "a size is 0 or more: max(0, ...) where nothing is left"
            raise SizeMistake(
                f"{what} is `{show_expr(e, tight=True)}` = {value}, a negative size",
                e.span,
                hint="; ".join(filter(None, (self.explain(e), least))),
            )
        return Int(as_number(value), span=e.span)

    def dimension(self, tensor: Name, axis: Expr, span: Span | None) -> int:
        shape = self.shape(tensor)
        d = self.evaluate(axis)
        if not 0 <= d < len(shape):
            told = f"{tensor.name} has {counted(len(shape), 'dimension')}, so no dimension {d}"
            raise RankMistake(told, span, hint="dimensions are counted from 0")
        return shape[d]

    def shape(self, tensor: Name) -> tuple[int, ...]:
        if tensor.name in self.shapes:
            return self.shapes[tensor.name]
        if tensor.name in self.values or tensor.name in self.failed:
            return ()
        raise NameMistake(f"no tensor is called {tensor.name}", tensor.span)

    def explain(self, e: Expr) -> str | None:
        """The values that went into an expression and where each came from."""
        names = tuple(dict.fromkeys(names_in_size(e)))
        parts = [f"{n} is {self.values[n]} ({self.sources[n]})" for n in names if n in self.values]
        asked = (x.args[0] for x in walk(e) if isinstance(x, Call) and x.function == "shape")
        tensors = dict.fromkeys(x.name for x in asked if isinstance(x, Name))
        parts += [f"{n} has shape {self.shapes[n]}" for n in tensors if n in self.shapes]
        return ", ".join(parts) or None

    def is_size(self, e: Expr) -> bool:
        """Is the expression made of integers, known names and size functions alone?"""
        match e:
            case Int():
                return True
            case Name(name) | Access(name, ()):
                return name in self.values or name in self.failed
            case Call("shape", (Name(), axis)):
                return self.is_size(axis)
            case Call(function, args) if function in SIZE_FUNCTIONS:
                return all(map(self.is_size, args))
        return False

    def index(self, e: Expr, read: Callable[[Expr], Expr]) -> Affine:
        """The form of an index expression with numbers for sizes; `read` binds tensor elements within it."""
        bound = self._numbers(e, read)
        form = linear(bound)
        for a in constraining(bound):  # as in `i + 0*Ix[j]`, which has points where Ix[j] is
            if canonical_access(a) not in walk(form.to_expr()):
                form += linear(Call("mod", (a, Int(1))))
        return form

    def _numbers(self, e: Expr, read: Callable[[Expr], Expr]) -> Expr:
        match e:
            case Name():
                return self._number(self.value(e))
            case Access() | Pad() | Inside() | Aggregate():
                return read(e)
            case Call("shape", (Name() as tensor, axis)):
                return Int(self.dimension(tensor, axis, e.span), span=e.span)
            case Call(function, args) if function in SIZE_FUNCTIONS:
                new = Call(function, tuple(self._numbers(a, read) for a in args), span=e.span)
                truths = [isinstance(a, Int) and isinstance(a.value, bool) for a in new.args]
                if function in AFFINE_FUNCTIONS and not (function in _TRUTHS and all(truths)):
                    return self._checked_modulus(e, new) if function == "mod" else new
                forms = [linear(a) for a in new.args]
                if all(not form.terms for form in forms):
                    numbers = [as_int(c) if (c := form.constant).denominator == 1 else c for form in forms]
                    numbers = [bool(n) if truth else n for n, truth in zip(numbers, truths, strict=True)]
                    return self._number(self.apply(e, numbers))
        return e

    @staticmethod
    def _number(value: Any) -> Expr:
        return Int(value) if isinstance(value, bool) else Affine((), Fraction(value)).to_expr()

    def _checked_modulus(self, old: Call, new: Call) -> Expr:
        """`e % 0` has no value at any point, and a fraction in an index says just that."""
        form = linear(new.args[1])
        if form.terms:
            return new
        if form.constant == 0:
            return Affine((), Fraction(1, 2)).to_expr()
        if form.constant < 0 or form.constant.denominator != 1:
            shown = show_expr(old.args[1], tight=True)
            raise SizeMistake(
                f"the modulus `{shown}` is {form.constant}; it must be a positive integer",
                old.span,
                hint=self.explain(old.args[1]),
            )
        return new


def counted(n: int, what: str) -> str:
    """`1 dimension`, `2 dimensions`."""
    return f"{n} {what}" + ("" if n == 1 else "s")


def bind_inputs(program: Program, types: Mapping[str, TensorType], values: Mapping[str, int]) -> Sizes:
    """Dimensions and shapes from the inputs. Raises where a rank, a size or an element type is not as declared."""
    sizes = Sizes()
    for i in program.inputs:
        if i.name not in types:
            raise InputMistake(f"the input {i.name} is missing", i.span)
        t = types[i.name]
        if t.dtype not in DTYPES:
            raise TypeMistake(
                f"{i.name}: element type {t.dtype} is not supported", i.span, hint="one of " + ", ".join(DTYPES)
            )
        sizes.shapes[i.name] = t.shape
        if i.dims is None:
            continue
        if len(i.dims) != len(t.shape):
            declared = f"{i.name}[{', '.join(map(str, i.dims))}]"
            raise RankMistake(
                f"{i.name} has {counted(len(t.shape), 'dimension')}, shape {t.shape}, but is declared {declared}",
                i.span,
                hint=_rank_hint(i.name, i.dims, len(t.shape)),
            )
        for axis, (dim, size) in enumerate(zip(i.dims, t.shape, strict=True)):
            _bind_dimension(sizes, i.name, axis, dim, size, i.span)
    for name in size_inputs(program):
        _bind_value(sizes, name, types[name], values, program)
    return sizes


def _rank_hint(name: str, dims: Sequence[str | int], rank: int) -> str:
    """What to do where a declared input is given a tensor of another rank."""
    told = f"pass a tensor of {counted(len(dims), 'dimension')}"
    if rank == len(dims) + 1:
        return f"{told}, one after another or all at once by torch.vmap; or declare one more: {name}[..., D]"
    return f"{told}, or declare {name} with {rank}"


def _bind_dimension(sizes: Sizes, name: str, axis: int, dim: str | int, size: int, span: Span | None) -> None:
    source = f"dimension {axis} of {name}"
    if isinstance(dim, int):
        if dim != size:
            hint = f"pass a tensor that has {dim} there; a name in the place of the {dim} takes any size"
            raise SizeMistake(f"{source} must be {dim}, as declared; it is {size}", span, hint=hint)
    elif sizes.values.setdefault(dim, size) != size:
        raise SizeMistake(
            f"{dim} is {sizes.values[dim]} ({sizes.sources[dim]}) and {size} ({source})",
            span,
            hint="one name is one size: pass tensors that agree, or give one of these dimensions another name",
        )
    sizes.sources.setdefault(str(dim), source)


def _bind_value(sizes: Sizes, name: str, t: TensorType, values: Mapping[str, int], program: Program) -> None:
    span = next(i.span for i in program.inputs if i.name == name)
    if t.shape:
        raise RankMistake(
            f"{name} is used in a size, so it must be one integer; its shape is {t.shape}", span, hint="pass an int"
        )
    if not is_integer(t.dtype):
        raise TypeMistake(
            f"{name} is used in a size, so it must be an integer, not {t.dtype}", span, hint="pass an int"
        )
    if name not in values:
        raise InputMistake(f"{name} is used in a size, so its value is needed", span, hint="pass an int")
    sizes.values[name] = as_int(values[name])
    sizes.sources[name] = f"the input {name}"
