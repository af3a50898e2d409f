"""Scalar expressions as torch expressions over a frame, with every promotion written out.

torch's own promotion is not relied on: a rank-0 tensor that stands in a frame looks like any other operand, so operands
are cast to the type that `ir.infer` gives. 16-bit floating values are held in float32 inside larger bodies and rounded
where they are compared, cast or returned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tilec.backends.common.code import literal, tuple_text
from tilec.backends.common.scalar_writer import ScalarValue, ScalarWriter
from tilec.backends.common.scalars import INTEGER_BITS, fit
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.choices import COMPARED, choice_text, triangle_text
from tilec.backends.torch.expr.pointwise import (
    PointwiseMatch,
    multiply_add,
    routine_of,
    shared_by_bits,
    tested_bit,
    tests_by_numbers,
)
from tilec.backends.torch.expr.weighed import parts_of_tests, weighed_text
from tilec.errors import AffineMistake
from tilec.ir.functions import FUNCTIONS, RANDOM
from tilec.ir.index import linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Index, Pad, walk
from tilec.ir.types import NARROW, WEAK_INDEX, ElementType, Types, is_floating, promote

NUMBERS_TOO = ("mod", "pow")  # functions of torch that take a Python number for either of two arguments
_ARITHMETIC = ("add", "sub", "mul", "div")  # written as operators; torch can also write their results into a tensor
WITH_OUT = frozenset(
    "exp log sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh sigmoid erf floor ceil round log1p expm1 abs recip "
    "pow max min atan2 logaddexp".split()
)
_METHODS = {f: f for f in "exp log sqrt rsqrt sin cos tanh sigmoid erf log1p expm1 abs".split()} | {
    "recip": "reciprocal"
}
MANY = 8192  # elements from which on a call in place of an operator pays
DEEPEST = 24  # operators nested in one Python expression


class TorchScalars(ScalarWriter):
    most_nested = DEEPEST

    def __init__(self, frame: TensorFrame, *roots: Expr):
        super().__init__(*roots)
        self.frame = frame
        self.widens = has_large_integers(self._uses, frame.types) or sum(isinstance(e, Call) for e in self._uses) > 1
        self._factored = {m for e in self._uses if (found := multiply_add(e)) for m in found.products}

    def compute_dtype_of(self, dtype: str) -> str:
        return "float32" if self.widens and dtype in NARROW else dtype

    def _operands(self, e: Expr) -> Sequence[Expr]:
        found, tests = routine_of(e), tests_by_numbers(e)
        if tests is not None and not self._uses_twice(tests):
            parts = parts_of_tests(self.frame, tests)
            return [x for test, _ in tests if test not in parts for x in test.args]
        bits = tested_bit(e, self.frame.types) or shared_by_bits(e, self.frame.types)
        return bits[:-1] if bits else tuple(found.tensors.values()) if found else super()._operands(e)

    def _uses_twice(self, tests: list[tuple[Call, int]]) -> bool:
        """Is one of these values read elsewhere too?"""
        return any(self._uses[test] > 1 for test, _ in tests)

    def _make(self, e: Expr) -> ScalarValue:
        found, tests = routine_of(e), tests_by_numbers(e)
        if tests is not None and not self._uses_twice(tests):
            t = expression_type(e, self.frame.types)
            code, variables = weighed_text(self, t.dtype, tests)
            return ScalarValue(code, t, t.dtype, variables)
        bits = tested_bit(e, self.frame.types) or shared_by_bits(e, self.frame.types)
        if bits is not None:
            return self._of_bits(e, [self._values[x] for x in bits[:-1]], bits[-1])
        if found is not None:
            made = self._routine(found)
            if made is not None:
                return made
            assert isinstance(e, Call)
            for x in e.args:
                self.value(x)
        return super()._make(e)

    def _routine(self, found: PointwiseMatch) -> ScalarValue | None:
        """The call of a routine, where its tensors are floating."""
        values = [self._values[x] for x in found.tensors.values()]
        t = promote(*(v.type for v in values))
        dtype = self.compute_dtype_of(t.dtype)
        if not is_floating(dtype) or any(v.number is not None for v in values) or dtype in NARROW:
            return None
        tensors = {n: self.cast(v, dtype) for n, v in zip(found.tensors, values, strict=True)}
        code = found.routine.call.format(**tensors, **{n: literal(x) for n, x in found.numbers.items()})
        call = f"{code[:-1]}, {found.routine.out}={{0}})"
        variables, depth = frozenset().union(*(v.variables for v in values)), 1 + max(v.depth for v in values)
        return ScalarValue(code, t, dtype, variables, depth=depth, call=call, own=True)

    def _of_bits(self, e: Expr, values: Sequence[ScalarValue], n: int) -> ScalarValue:
        """Whether integers have the bit of a number, or values divided by what stands in the bits from one on."""
        t, variables = expression_type(e, self.frame.types), frozenset().union(*(v.variables for v in values))
        texts, depth = [self.cast(v, v.type.dtype) for v in values], 2 + max(v.depth for v in values)
        if len(values) == 1:
            code = self._compared("ne", [f"({texts[0]} & {n})", "0"], variables)
            return ScalarValue(code, t, "bool", variables, depth=depth)
        code = f"rt.divided_by_bits({', '.join(texts)}, {n}"
        return ScalarValue(f"{code})", t, t.dtype, variables, depth=depth, call=f"{code}, out={{0}})", own=True)

    def _assigned(self, v: ScalarValue) -> str:
        return self.frame.assign("t", v.code)

    def cast(self, v: ScalarValue, dtype: str) -> str:
        """Text of the value as an operand of this dtype: a tensor, or a Python number that fits it."""
        if v.number is not None:
            return literal(fit(v.number, dtype))
        if v.single is not None and dtype != v.compute_dtype and is_floating(dtype):
            return self._chosen_numbers(v.single[1], dtype)
        if v.compute_dtype == "bool" and dtype != "bool":
            return f"{v.code}.view(torch.int8).to(torch.{dtype})"  # which torch does several at a time
        if v.rounded is not None and dtype == v.type.dtype:
            return v.rounded
        return v.code if v.compute_dtype == dtype else f"{v.code}.to(torch.{dtype})"

    def operand(self, v: ScalarValue, dtype: str) -> str:
        """The same for arithmetic, whose result is a tensor of its own: a Python number's conversion may be kept."""
        if v.number is None and v.compute_dtype != dtype and v.type.weak and not v.variables and v.code.isidentifier():
            return f"rt.number_as({v.code}, torch.{dtype})"
        return self.cast(v, dtype)

    def tensor(self, v: ScalarValue, dtype: str) -> str:
        if v.number is None:
            return self.cast(v, dtype)
        return self.frame.assign(
            "number", f"torch.full((), {literal(fit(v.number, dtype))}, dtype=torch.{dtype}, device=device)"
        )

    def condition(self, v: ScalarValue) -> str:
        if v.number is not None:
            return self.frame.assign("number", f"torch.full((), {bool(v.number)}, device=device)")
        return v.code if v.compute_dtype == "bool" else f"({v.code} != 0)"

    def _index(self, name: str) -> ScalarValue:
        return ScalarValue(self.frame.iota(name), WEAK_INDEX, "int64", frozenset((name,)))

    def _access(self, e: Access) -> ScalarValue:
        code, variables = self.frame.read(e)
        t = self.frame.types[e.tensor]
        compute_dtype = self.compute_dtype_of(t.dtype)
        if compute_dtype != t.dtype:
            code = self.frame.assign("wide", f"{code}.to(torch.{compute_dtype})")
        return ScalarValue(code, t.element(), compute_dtype, variables, exact=True)

    def _pad(self, e: Pad) -> ScalarValue:
        value = self._values[e.value]
        zero = value.number == 0 and math.copysign(1, value.number) == 1
        if zero and self.frame.outside == 0 and isinstance(e.access, Access):
            read = self._make(e.access)
            if e.access in self.frame.extended:  # what lies outside is there already
                t = promote(read.type, value.type)
                compute_dtype = self.compute_dtype_of(t.dtype)
                return ScalarValue(self.cast(read, compute_dtype), t, compute_dtype, read.variables)
        return super()._pad(e)

    def _padded(
        self, inside: Any, access: Access, read: ScalarValue, value: ScalarValue, t: ElementType
    ) -> ScalarValue:
        compute_dtype, (test, variables) = self.compute_dtype_of(t.dtype), inside
        if read.number is None:
            code = choice_text(test, self.cast(read, compute_dtype), self.cast(value, compute_dtype))
        else:
            code = f"torch.where({test}, {self.tensor(read, compute_dtype)}, {self.tensor(value, compute_dtype)})"
        return ScalarValue(
            self.frame.assign("padded", code), t, compute_dtype, variables | read.variables | value.variables
        )

    def _call(self, e: Call, args: list[ScalarValue], result: ElementType) -> ScalarValue:
        if e.function == "mul":
            for one, other in (args, args[::-1]):
                if one.number == 1 and other.type == result and other.number is None:
                    return other
        variables = frozenset().union(*(a.variables for a in args))
        depth = 1 + max(a.depth for a in args)
        combined, numbers = self._multiply_add(e, self.compute_dtype_of(result.dtype)), False
        if combined is not None:
            (code, args), compute_dtype = combined, self.compute_dtype_of(result.dtype)
            call: str | None = code[:-1] + ", out={0})"
        else:
            code, compute_dtype = self._text(
                e.function, args, result, self._counters(e) if e.function in RANDOM else None
            )
            if e.function == "select" and code.startswith("torch.where"):
                numbers = _all_numbers(args[1:])
                code = (
                    triangle_text(self.frame, e, args, self.cast, compute_dtype)
                    or self._choice(e, args, compute_dtype)
                    or code
                )
            call = self._writing(e.function, args, code, compute_dtype)
        own = call is not None and is_floating(compute_dtype)
        factored = e in self._factored
        if own and combined is None and not (factored and self._uses[e] > 1):
            code = self._in_place(e.function, args, compute_dtype) or code
        smaller = all(len(a.variables) < len(variables) for a in args) and len(variables) > 1
        if call is not None and smaller and not factored:
            return ScalarValue(self._laid_out(call, compute_dtype, variables), result, compute_dtype, variables)
        exact = FUNCTIONS[e.function].result in ("like1", result.dtype)
        single = ("select", tuple(args)) if numbers and code.startswith("rt.cho") else None
        narrowed = e.function == result.dtype in NARROW and args[0].number is None and not args[0].exact
        rounded = self.cast(args[0], result.dtype) if narrowed and compute_dtype != result.dtype else None
        return ScalarValue(code, result, compute_dtype, variables, None, depth, exact, call, single, own, rounded)

    def _in_place(self, function: str, args: list[ScalarValue], dtype: str) -> str | None:
        """The value written over an argument that is as large: fewer temporaries stay in cache."""
        if self.frame.domain is None:
            return None
        if len(args) == 1 and args[0].own and args[0].compute_dtype == dtype and function in _METHODS:
            return f"{args[0].code}.{_METHODS[function]}_()"
        if function in _ARITHMETIC:
            for one, other in (args, args[::-1])[: 2 if function in ("add", "mul") else 1]:
                large = bool(one.variables) and one.variables >= other.variables  # else it may lack axes
                if large and one.own and one.compute_dtype == dtype:
                    return f"{one.code}.{function}_({self.operand(other, dtype)})"
        return None

    def _multiply_add(self, e: Call, compute_dtype: str) -> tuple[str, list[ScalarValue]] | None:
        """`x + y * z` and `x - y * z` as one pass over memory, rounded once, and what it is made of. Whether that is
        done depends on the expression alone: what is compared with an extremum again is rounded as it was there."""
        found = multiply_add(e)
        if found is None or not is_floating(compute_dtype) or not self._values.keys() >= {*found.factors}:
            return None
        values = [self._values[x] for x in (found.added, *found.factors)]
        products = [self._values[m].compute_dtype for m in found.products]
        if any(v.number is not None for v in values) or {*products} != {compute_dtype}:
            return None
        texts, scale = ", ".join(self.cast(v, compute_dtype) for v in values), found.scale
        if len(values) == 2:
            add = "torch.add" if abs(math.frexp(scale)[0]) == 0.5 else "rt.add_scaled"  # what is exact is rounded once
            return f"{add}({texts}, alpha={literal(scale)})", values
        return f"torch.addcmul({texts}" + ("" if scale == 1 else f", value={literal(scale)}") + ")", values

    def _choice(self, e: Call, args: list[ScalarValue], compute_dtype: str) -> str | None:
        """One of two values by a test of elements of tensors, which no branch foresees."""
        if not any(isinstance(x, Access) and x.index for x in walk(e.args[0])):
            return None
        if _all_numbers(args[1:]):
            return self._chosen_numbers(args, compute_dtype)
        a, b = (self.cast(x, compute_dtype) for x in args[1:])
        return choice_text(self.condition(args[0]), a, b)

    def _chosen_numbers(self, args: Sequence[ScalarValue], dtype: str) -> str:
        """One of two numbers in a type, by a test of elements: rounded once, as one is that was chosen first."""
        a, b = (literal(fit(x.number, dtype)) for x in args[1:] if x.number is not None)
        return choice_text(self.condition(args[0]), a, b, dtype)

    def _laid_out(self, call: str, compute_dtype: str, variables: frozenset[str]) -> str:
        """The call's result in a tensor laid out like the frame: left alone, torch takes over the order of an operand,
        and every later step of the block walks against it."""
        sizes = tuple_text([self.frame.size(v) if v in variables else "1" for v in self.frame.order])
        room = self.frame.assign_new("t", f"torch.empty({sizes}, dtype=torch.{compute_dtype}, device=device)")
        self.frame.lines.append(call.format(room))
        return room

    def _writing(self, function: str, args: list[ScalarValue], code: str, compute_dtype: str) -> str | None:
        """The call that writes the value into a tensor `{0}`; None where torch has no such form."""
        if function in WITH_OUT and code.startswith("torch."):
            return code[:-1] + ", out={0})"
        if function == "relu":
            return f"torch.clamp_min({self.cast(args[0], compute_dtype)}, 0, out={{0}})"
        if function == "select" and code.startswith("torch.tri"):
            return code[:-1] + ", out={0})"
        if function == "select" and code.endswith(")") and not any(a.number is not None for a in args[1:]):
            return code[:-1] + ", out={0})"
        if function in ("add", "mul") and args[0].number is not None:
            args = args[::-1]
        if function in _ARITHMETIC and is_floating(compute_dtype) and args[0].number is None:
            left, right = (self.operand(a, compute_dtype) for a in args)
            return f"torch.{function}({left}, {right}, out={{0}})"
        return None

    def _counters(self, e: Call) -> str | None:
        """The counter of a draw as a form in index variables: whether it counts up is then told without looking."""
        try:
            form = linear(e.args[1])
        except AffineMistake:
            return None
        terms = []
        for atom, c in form.terms:
            if isinstance(atom, Index) and atom.name in self.frame.order:
                terms.append(f"({c}, {self.frame.iota(atom.name)})")
            elif isinstance(atom, Access) and not atom.index and atom in self._values:
                terms.append(f"({c}, {self._values[atom].code})")
        whole = all(c.denominator == 1 for c in (form.constant, *(c for _, c in form.terms)))
        if not terms or len(terms) < len(form.terms) or not whole:
            return None
        return f"rt.philox.Counters({form.constant}, ({', '.join(terms)},))"

    def _text(
        self, function: str, args: list[ScalarValue], result: ElementType, counters: str | None = None
    ) -> tuple[str, str]:
        row = FUNCTIONS[function]
        assert row.torch is not None or function == "as_type", function
        compute_dtype = self.compute_dtype_of(result.dtype)
        template = row.torch or "{0}"
        if row.result == "bool" and function != "bool":
            return self._comparison(function, args), "bool"
        if function == "select":
            condition = self.condition(args[0])
            if [a.number for a in args[1:]] == [1, 0]:
                return condition, "bool"  # whoever reads it converts it
            branches = [
                self.tensor(a, compute_dtype) if _all_numbers(args[1:]) else self.cast(a, compute_dtype)
                for a in args[1:]
            ]
            return f"torch.where({condition}, {branches[0]}, {branches[1]})", compute_dtype
        if function in RANDOM:
            return template.format(
                self.tensor(args[0], "int64"), counters or self.tensor(args[1], "int64")
            ), compute_dtype
        if function == "as_type" or len(args) == 1 and function == result.dtype:
            return self._converted(args[0], result.dtype)
        if function in ("uint16", "uint32"):
            return f"torch.remainder({self.tensor(args[0], 'int64')}, 2 ** {function[4:]})", "int64"
        if function in ("max", "min") and not _all_numbers(args) and any(a.number is not None for a in args):
            x, n = (args[0], args[1]) if args[0].number is None else (args[1], args[0])
            if compute_dtype != "bool":
                side = "min" if function == "max" else "max"
                return (
                    f"torch.clamp({self.cast(x, compute_dtype)}, {side}={self.cast(n, compute_dtype)})",
                    compute_dtype,
                )
        if not is_floating(result.dtype) and function in ("div", "mod"):
            name = "rt.divide_integers" if function == "div" else "rt.modulo_integers"
            operands = [self.cast(a, compute_dtype) for a in args]
            if _all_numbers(args):
                operands[0] = self.tensor(args[0], compute_dtype)
            return f"{name}({operands[0]}, {operands[1]})", compute_dtype
        negative = function == "pow" and not is_floating(result.dtype) and (args[1].number or 0) < 0  # in a tensor only
        if _tensors_only(function) or _all_numbers(args) or negative:
            operands = [self.tensor(a, compute_dtype) for a in args]
        else:
            cast = self.operand if function in _ARITHMETIC else self.cast
            operands = [cast(a, compute_dtype) for a in args]
        if template.count("{0}") > 1:
            operands[0] = self.frame.assign("t", operands[0])
        return template.format(*operands), compute_dtype

    def _converted(self, v: ScalarValue, dtype: str) -> tuple[str, str]:
        """A cast that rounds as the type it names does."""
        if dtype == "bool":
            return self.condition(v), "bool"
        compute_dtype = self.compute_dtype_of(dtype)
        if v.type.dtype == dtype and v.exact and v.compute_dtype == compute_dtype:
            return v.code, compute_dtype
        if dtype == "int64" and v.compute_dtype in INTEGER_BITS:
            return v.code, v.compute_dtype  # whatever reads it converts it, to what it needs
        code = self.tensor(v, dtype)
        return code if compute_dtype == dtype else f"{code}.to(torch.{compute_dtype})", compute_dtype

    def _comparison(self, function: str, args: list[ScalarValue]) -> str:
        """Operands are rounded to their common type first: a wider value must not differ from a stored one."""
        if function == "eq" and args[0].compute_dtype == "bool" and args[1].number == 0:
            return f"torch.logical_not({args[0].code})"
        common = promote(*(a.type for a in args)).dtype
        operands = [(self.tensor if _tensors_only(function) else self.cast)(a, common) for a in args]
        if args[0].number is not None:
            operands[0] = self.tensor(args[0], common)
        return self._compared(function, operands, frozenset().union(*(a.variables for a in args)))

    def _compared(self, function: str, operands: Sequence[str], variables: frozenset[str]) -> str:
        points = math.prod(self.frame.domain.extent[v] for v in variables)
        if points >= MANY:
            return f"{COMPARED}torch.{function}, {', '.join(operands)})"
        return (FUNCTIONS[function].torch or "").format(*operands)


def has_large_integers(parts: Iterable[Expr], types: Types) -> bool:
    """Are there integers among the parts that a float16 would hold as infinity?"""
    return any(
        isinstance(e, Index) or isinstance(e, Access) and types[e.tensor].dtype in ("int32", "int64") for e in parts
    )


def _tensors_only(function: str) -> bool:
    """Is it one of torch's that takes no Python number for any of several arguments?"""
    row = FUNCTIONS[function]
    return row.arity[1] > 1 and (row.torch or "").startswith("torch.") and function not in NUMBERS_TOO


def _all_numbers(args: list[ScalarValue]) -> bool:
    return all(a.number is not None for a in args)
