"""Scalar expressions as Triton text, with every promotion written out.

16-bit floating values are held in float32 and rounded where they are compared, cast or stored. A value made of numbers
alone is computed here; one that meets a tensor takes the tensor's type.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch

from tilec.backends.common.blocks.ir import MIRRORED
from tilec.backends.common.code import literal, parenthesised
from tilec.backends.common.scalar_writer import ScalarValue, ScalarWriter
from tilec.backends.common.scalars import fit, value_children
from tilec.backends.triton.emit.conditional_reads import conditions_of_reads, is_known_before
from tilec.backends.triton.emit.frame import Frame, free_of
from tilec.backends.triton.emit.kernel import triton_type
from tilec.backends.triton.emit.magnitudes import OF_MAGNITUDE, of_negated_magnitude
from tilec.backends.triton.emit.sines import BLOCKWISE, OR_NAN
from tilec.errors import TileError
from tilec.ir.at_sizes import followed
from tilec.ir.functions import FUNCTIONS, LIBRARY_FUNCTIONS, ROUNDING, SMALL_POWERS
from tilec.ir.index import Affine, linear
from tilec.ir.infer import call_type
from tilec.ir.program import Access, Call, Expr, Index, Statement, accesses_in, index_variables, walk
from tilec.ir.symbolic import Real, is_open_number
from tilec.ir.types import NARROW, WEAK_INDEX, ElementType, is_floating, is_integer, promote
from tilec.lattice.spans import IN_32_BITS, WIDEST, EndsOf

BITS_OF_POWERS = (1, 2, 3, 4)  # of exponents that indices say
LARGEST_SINGLE = 2**24  # up to which float32 holds each integer
MOST_IN_FLOATS = 8  # parts of an expression of positions that is computed in floats where it becomes one
MOST_NESTED = 6  # operators nested in one line


@followed
def as_half(n: bool | int | float, dtype: str) -> float:
    """The number as an element of a 16-bit type."""
    return float(torch.tensor(n, dtype=getattr(torch, dtype), device="cpu").item())


@followed
def single(n: bool | int | float) -> float:
    return float(np.float32(n))


@followed
def inverse_of(n: float) -> float:
    return float(np.float32(1) / np.float32(n))


def compute_dtype_of(dtype: str) -> str:
    """The dtype in which a value of this type is computed."""
    return "float32" if dtype in NARROW else dtype


class TritonScalars(ScalarWriter):
    most_nested = MOST_NESTED

    def __init__(
        self,
        frame: Frame,
        *roots: Expr,
        given: dict[Expr, ScalarValue] | None = None,
        guards: Sequence[Sequence[Expr]] | None = None,
    ):
        """`guards`: under which each of the roots is wanted."""
        super().__init__(*roots, given=given)
        self.frame = frame
        self.spans = EndsOf(frame.kernel.space.ends, frame.types)
        self._conditions = conditions_of_reads(zip(roots, guards or itertools.repeat(()), strict=False))
        self._divides = any(map(self._divides_outside, {e for e in walk(*roots) if isinstance(e, Call)}))

    @classmethod
    def of(cls, frame: Frame, statements: Sequence[Statement], given: dict[Expr, ScalarValue]) -> TritonScalars:
        """Of the bodies and guards of statements."""
        roots = [(r, () if k else s.guards) for s in statements for k, r in enumerate((s.body, *s.guards))]
        return cls(frame, *(r for r, _ in roots), given=given, guards=[guards for _, guards in roots])

    def compute_dtype_of(self, dtype: str) -> str:
        return compute_dtype_of(dtype)

    def read_first(self, *roots: Expr, made: Collection[str] = (), always: bool = False) -> None:
        """Read what the values of these need before any of them is computed, where some function looks at all of a
        block (no load passes that by itself), or `always`. `made`: tensors that are not read but computed here."""
        pending, found = list(roots[::-1] if always else roots), list[Access]()
        asks = always
        while pending:
            e = pending.pop()
            asks |= isinstance(e, Call) and e.function in BLOCKWISE
            if isinstance(e, Access):
                found.append(e)
            elif e not in self._values:
                pending += value_children(e)
        for access in found if always or asks and self.frame.kernel.blockwise else ():
            if access not in self._values and all(a.tensor not in made for a in accesses_in(access)):
                self.value(access)

    def _assigned(self, v: ScalarValue) -> str:
        return self.frame.assign("t", v.code, v.variables)

    def cast(self, v: ScalarValue, dtype: str) -> str:
        """Text of the value in this dtype, numbers as they stand in arithmetic with tensors."""
        if v.number is not None:
            n = fit(v.number, dtype)
            as_it_is = not is_open_number(n) and dtype not in ("float64", "uint8", "bool") or type(n) is Real
            return self._literal(n) if as_it_is and dtype != "float64" else self.tensor(v, dtype)
        if v.single is not None and (dtype == "float32" or dtype == "float64" and is_integer(v.type.dtype)):
            function, args = v.single
            return self._text(function, list(args), replace(v.type, dtype=dtype))[0]
        return v.code if v.compute_dtype == dtype else f"{parenthesised(v.code)}.to({triton_type(dtype)})"

    def tensor(self, v: ScalarValue, dtype: str) -> str:
        if v.number is None:
            return self.cast(v, dtype)
        n = fit(v.number, dtype)
        n = float(n) if dtype == "float64" else n  # kernels take numbers in single precision
        return f"tl.full((), {self._literal(n)}, {triton_type(dtype)})"

    def _literal(self, n: bool | int | float) -> str:
        """A number, as a parameter where it depends on sizes that are left open."""
        return self.frame.kernel.value(n) if is_open_number(n) else literal(n)

    def condition(self, v: ScalarValue) -> str:
        if v.number is not None:
            return f"tl.full((), {bool(v.number)}, tl.int1)"
        return v.code if v.compute_dtype == "bool" else f"({v.code} != 0)"

    def rounded(self, v: ScalarValue, dtype: str) -> str:
        """Text of the value as an element of this type is, in the dtype that holds it."""
        if dtype in NARROW and v.number is not None:
            return f"tl.full((), {self._literal(as_half(v.number, dtype))}, tl.float32)"
        if dtype not in NARROW:
            return self.tensor(v, compute_dtype_of(dtype))
        if v.type.dtype == dtype and v.exact:
            return v.code
        return f"{parenthesised(self.cast(v, 'float32'))}.to({triton_type(dtype)}).to(tl.float32)"

    def _index(self, name: str) -> ScalarValue:
        """A position; of 32 bits where its span is known."""
        text, names = self.frame.variable(name), frozenset((name,))
        dtype = "int64" if self.spans.of(Index(name)) is None else "int32"
        if text.lstrip("-").isdigit():
            text = f"tl.full((), {text}, tl.{dtype})"
        elif dtype == "int64" or self.frame.kernel.int64_index:
            text = f"({text}).to(tl.{dtype})"
        else:
            return ScalarValue(text, WEAK_INDEX, dtype, names)
        return ScalarValue(self.frame.assign("i", text, names), WEAK_INDEX, dtype, names)

    def _divides_outside(self, e: Call) -> bool:
        """Whether it divides where blocks overhang, by what is read there: zeros take a division's slow branch."""
        if e.function not in ("div", "recip"):
            return False
        overhanging = self.frame.dimensions(frozenset(index_variables(e.args[-1]))) & self.frame.tails.keys()
        return bool(overhanging - {"row"})

    def _access(self, e: Access) -> ScalarValue:
        t = self.frame.types[e.tensor]
        code = self.frame.read(e, 1 if self._divides and is_floating(t.dtype) else None, self._wanted(e))
        compute_dtype = compute_dtype_of(t.dtype)
        variables = self.frame.dependencies(e)
        if compute_dtype != t.dtype:
            code = self.frame.assign("wide", f"{code}.to({triton_type(compute_dtype)})", variables)
        return ScalarValue(code, t.element(), compute_dtype, variables, exact=True)

    def _wanted(self, e: Access) -> list[str]:
        """Texts of tests that say where the access is needed."""
        if e not in self._conditions:
            return []
        fast, alone = self.frame.vectors(e)
        own = self.frame.dependencies(e)
        known = [
            (c, holds) for c, holds in self._conditions[e]
            if own.issuperset(index_variables(c)) and is_known_before(c, e, alone, fast, self._number)
        ]  # fmt: skip
        return [self.test(c) if holds else f"({self.test(c)} == 0)" for c, holds in known]

    def _number(self, e: Expr) -> object:
        return None if index_variables(e) else self.value(e).number

    def _padded(
        self, inside: str, access: Access, read: ScalarValue, value: ScalarValue, t: ElementType
    ) -> ScalarValue:
        compute_dtype, variables = compute_dtype_of(t.dtype), free_of(access) | read.variables | value.variables
        code = f"tl.where({inside}, {self.tensor(read, compute_dtype)}, {self.tensor(value, compute_dtype)})"
        return ScalarValue(self.frame.assign("padded", code, variables), t, compute_dtype, variables, depth=1)

    def _call(self, e: Call, args: list[ScalarValue], result: ElementType) -> ScalarValue:
        if FUNCTIONS[e.function].result == "random":
            four = self._four(e, args)
            if four is not None:
                return four
        narrow = "int32" if self._is_narrow(e, args, result) else None
        special = self._of_magnitude(e, args) or self._whole_power(e, args, result)
        code, compute_dtype = special or self._text(e.function, args, result, narrow)
        variables = frozenset().union(*(a.variables for a in args))
        exact = FUNCTIONS[e.function].result in ("like1", result.dtype)
        single = (e.function, tuple(args)) if self._rounds_once(e, args, result) else None
        depth = 1 + max(a.depth for a in args)
        shared = e.function in LIBRARY_FUNCTIONS and self.frame.depth(variables) < len(self.frame.inner)
        if shared and not code.isidentifier():
            code, depth = self.frame.assign("t", code, variables), 0  # no compiler moves its branches out of a loop
        return ScalarValue(code, result, compute_dtype, variables, depth=depth, exact=exact, single=single)

    def _of_magnitude(self, e: Call, args: list[ScalarValue]) -> tuple[str, str] | None:
        """A comparison of the integer -|x| with a number, as one of x."""
        if e.function not in OF_MAGNITUDE:
            return None
        for place, test in ((0, e.function), (1, MIRRORED[e.function])):
            x, n = of_negated_magnitude(e.args[place]), args[1 - place].number
            common = promote(*(a.type for a in args)).dtype
            known = x is not None and n is not None and not is_open_number(n)
            if x is None or n is None or not known or not is_integer(common) or common != compute_dtype_of(common):
                continue
            if args[place].type.dtype == common and torch.iinfo(getattr(torch, common)).min < n <= 0:
                value = self.frame.assign("t", self.tensor(self.value(x), common), args[place].variables)
                return OF_MAGNITUDE[test].format(x=value, low=n, high=-n), "bool"
        return None

    def _whole_power(self, e: Call, args: list[ScalarValue], result: ElementType) -> tuple[str, str] | None:
        """A power of floats that an index says and that has few bits."""
        span = self.spans.of(e.args[1]) if e.function == "pow" and is_floating(result.dtype) else None
        if span is None or args[1].number is not None or span[0] < -1 or span[1] >= 2 ** BITS_OF_POWERS[-1]:
            return None
        dtype, bits = compute_dtype_of(result.dtype), next(n for n in BITS_OF_POWERS if span[1] < 2**n)
        x, n = self.tensor(args[0], dtype), self.tensor(args[1], "int32")
        return f"whole_power_({x}, {n}, {bits}, {-1 if span[0] < 0 else 0})", dtype

    def _rounds_once(self, e: Call, args: list[ScalarValue], result: ElementType) -> bool:
        """Whether a value of numbers and positions is the same rounded from float64 to float32 as computed in float32.
        An operation on numbers of 24 bits is: 53 bits are more than twice as many."""
        if result.dtype == "int64" and result.weak:
            few = sum(1 for _ in walk(e)) <= MOST_IN_FLOATS
            return few and self._keeps_zero(e) and all(map(self._fits_single, (e, *e.args)))
        if result.dtype != "float64" or not result.weak:
            return False
        if e.function in ("neg", "abs"):
            return args[0].single is not None
        if e.function == "mul":  # a product that is rounded may be so once with a sum
            powers = (a.number is not None and math.frexp(a.number)[0] in (0.5, -0.5) for a in args)
            return all(map(self._is_single, e.args, args)) and any(powers)
        return e.function in ("add", "sub", "div") and all(map(self._is_single, e.args, args))

    def _is_single(self, e: Expr, v: ScalarValue) -> bool:
        """Whether a value is a number that float32 holds, far from its limits."""
        if v.number is not None:
            small = not is_open_number(v.number) and (v.number == 0 or 2.0**-60 < abs(v.number) < 2.0**60)
            return small and single(float(v.number)) == v.number
        return v.compute_dtype in ("int32", "int64") and self._fits_single(e)

    def _fits_single(self, e: Expr) -> bool:
        span = self.spans.of(e)
        return span is not None and -LARGEST_SINGLE <= span[0] and span[1] <= LARGEST_SINGLE

    def _keeps_zero(self, e: Call) -> bool:
        """Whether an integer's zero is none with a sign in floats."""
        if e.function == "mul":
            spans = [self.spans.of(x) for x in e.args]
            return e.args[0] == e.args[1] or all(span is not None and span[0] >= 0 for span in spans)
        return e.function in ("add", "sub", "abs")

    def _is_narrow(self, e: Call, args: list[ScalarValue], result: ElementType) -> bool:
        """Whether an integer of 64 bits comes out the same of 32."""
        if result.dtype != "int64" or e.function not in IN_32_BITS or self.spans.of(e) is None:
            return False
        return all(map(_fits_32_bits, args)) and any(a.number is None for a in args)

    def _four(self, e: Call, args: list[ScalarValue]) -> ScalarValue | None:
        """Draws by blocks of four, which Philox makes at once: where the counter runs with the fastest axis, from a
        multiple of four."""
        frame, kernel = self.frame, self.frame.kernel
        axis = frame.axes[-1] if frame.axes else ""
        if axis not in kernel.quarters or frame.axes not in (("row",), ("col",), ("row", "col")):
            return None
        try:
            form = linear(e.args[1])
        except TileError:
            return None  # any integer may be a counter
        on_it = (v for v, a in kernel.axis_of.items() if a.name == axis and v in a.variables)
        along = [v for v in on_it if kernel.space.largest(v) > 1]
        if len(along) != 1 or kernel.low(along[0]) != "0" or form.coefficient(along[0]) != 1:
            return None
        rest = form.substitute({along[0]: Affine()})
        if not form.is_affine or any(c % 4 for _, c in rest.terms) or rest.constant % 4:
            return None
        base = self.tensor(self.value(rest.to_value()), "int64")
        quarter = frame.spread(frame.assign("quarter", kernel.quarters[axis], frozenset((axis,))), axis)
        here = {*frame.dimensions(frozenset(rest.variables())), axis}
        blocks = [{"row": "BM", "col": "BN"}[a] if a in here else "1" for a in frame.axes]
        shape = f"({', '.join(blocks)},)"
        counter = f"tl.broadcast_to({base} + ({quarter}).to(tl.int64) * 4, ({', '.join(blocks)} // 4,))"
        draws = f"{e.function}_four_({self.tensor(args[0], 'int64')}, {counter})"
        variables = frozenset((axis, *along)).union(*(a.variables for a in args))
        code = frame.assign("draws", f"tl.reshape({draws}, {shape})", variables)
        return ScalarValue(code, call_type(e.function, [a.type for a in args], e.span), "float32", variables, depth=1)

    def _text(
        self, function: str, args: list[ScalarValue], result: ElementType, computed: str | None = None
    ) -> tuple[str, str]:
        """Text of a call's value, and the dtype that it is computed in: `computed`, where that is known to do."""
        row = FUNCTIONS[function]
        compute_dtype = computed or compute_dtype_of(result.dtype)
        if row.result == "bool" and function != "bool":
            return self._comparison(row.triton or "", args), "bool"
        if function == "select":
            branches = [self.tensor(a, compute_dtype) for a in args[1:]]
            return f"tl.where({self.condition(args[0])}, {branches[0]}, {branches[1]})", compute_dtype
        if function == "as_type" or len(args) == 1 and function == result.dtype:
            return self._converted(args[0], result.dtype), compute_dtype
        if function in ("uint16", "uint32"):
            return f"({self._converted(args[0], 'int64')} & {2 ** int(function[4:]) - 1})", "int64"
        if function in ROUNDING and not is_floating(result.dtype):
            return self.tensor(args[0], compute_dtype), compute_dtype
        if function == "pow" and args[1].number in SMALL_POWERS and args[0].number is None:
            x = self.frame.assign("t", self.cast(args[0], compute_dtype), args[0].variables)
            n = int(args[1].number or 0)
            if n > 3:  # of squares
                x, n, odd = self.frame.assign("t", f"{x} * {x}", args[0].variables), n // 2, [x] * (n % 2)
                return f"({' * '.join([*[x] * n, *odd])})", compute_dtype
            return f"({' * '.join([x] * n)})", compute_dtype
        if row.result == "random":
            seed, counter = (self.tensor(a, "int64") for a in args)
            return (row.triton or "").format(seed, counter), compute_dtype
        if compute_dtype == "bool" and function in ("add", "mul", "max", "min"):
            a, b = (self.condition(x) for x in args)
            return f"({a} {'|' if function in ('add', 'max') else '&'} {b})", compute_dtype
        if function == "div" and compute_dtype == "float32":
            shared = self._shared_divisor(args[0], args[1])
            if shared is not None:
                return shared, compute_dtype
        template = row.triton
        if function in BLOCKWISE and compute_dtype == "float32" and self.frame.kernel.blockwise:
            template = BLOCKWISE[function] if self.frame.dimensions(args[0].variables) else template
        if function in OR_NAN and compute_dtype == "float32" and self.frame.kernel.or_nan:
            template = OR_NAN[function]
        assert template is not None, function
        plain = function in ("add", "sub", "mul") and any(a.number is None for a in args)
        operands = [self.cast(a, compute_dtype) if plain else self.tensor(a, compute_dtype) for a in args]
        if template.count("{0}") > 1 or template.startswith("(-"):
            operands[0] = f"({operands[0]})"
        text = template.format(*operands)
        if (
            is_integer(compute_dtype) and compute_dtype != "int64" and computed is None
        ):  # narrow integers wrap at each step
            text = f"{text}.to({triton_type(compute_dtype)})"
        return text, compute_dtype

    def _shared_divisor(self, a: ScalarValue, b: ScalarValue) -> str | None:
        """A quotient by a number or by a value that all columns of a row share, whose inverse is taken once."""
        frame = self.frame
        if a.number is not None:
            return None
        along = ["col" in frame.axes and "col" in frame.dimensions(v.variables) for v in (a, b)]
        if b.number is not None:
            divisor, sign = single(b.number), 1.0
            if divisor < 0:
                divisor, sign = -divisor, -1.0
            if not divisor > 2.0**-63 or not divisor < 2.0**63:
                return None
            if not is_open_number(divisor) and math.frexp(divisor)[0] == 0.5:  # a power of two: its inverse is exact
                return f"({parenthesised(self.tensor(a, 'float32'))} * {literal(sign / divisor)})"
            size, nearest = self._literal(divisor), self._literal(inverse_of(divisor))
            return f"times_inverse_({self.tensor(a, 'float32')}, {size}, {nearest}, {sign})"
        if along != [True, False]:
            return None
        scale = frame.assign("scale", f"scale_({self.cast(b, 'float32')})", b.variables)
        scaled = frame.assign("scaled", f"{parenthesised(self.cast(b, 'float32'))} * {scale}", b.variables)
        inverse = frame.assign("inverse", f"tl.div_rn(tl.full((), 1.0, tl.float32), {scaled})", b.variables)
        return f"times_inverse_({self.tensor(a, 'float32')}, {scaled}, {inverse}, {scale})"

    def _converted(self, v: ScalarValue, dtype: str) -> str:
        """A cast that rounds as the type it names does."""
        if dtype == "bool":
            return self.condition(v)
        if dtype in NARROW:
            return v.code if v.type.dtype == dtype and v.exact else f"{self.tensor(v, dtype)}.to(tl.float32)"
        return self.tensor(v, dtype)

    def _comparison(self, template: str, args: list[ScalarValue]) -> str:
        """Operands are rounded to their common type first: a wider value must not differ from a stored one."""
        common = promote(*(a.type for a in args)).dtype
        if common == "int64" and all(map(_fits_32_bits, args)):
            common = "int32"
        return template.format(*(self.rounded(a, common) for a in args))


def _fits_32_bits(v: ScalarValue) -> bool:
    if v.number is None:
        return v.compute_dtype == "int32"
    return not is_open_number(v.number) and float(v.number).is_integer() and abs(v.number) < WIDEST
