"""Builds block programs. Equal operations are one, and each stands outside of all loops that it does not depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilec.backends.common.blocks.ir import (
    COMPARED,
    EXTRA,
    Apply,
    BlockType,
    Cast,
    CumulativeSum,
    DotOp,
    Full,
    Load,
    Loop,
    Number,
    Op,
    Positions,
    ProgramId,
    Reduce,
    SizeArgument,
    Store,
    Value,
    operands,
    results,
)
from tilec.ir.functions import FUNCTIONS

INDEX_TYPE, INT64 = "int32", "int64"


@dataclass
class _Scope:
    ops: list[Op] = field(default_factory=list)
    known: dict[tuple, Value] = field(default_factory=dict)


class Builder:
    """`axes`: extent of each axis, in order."""

    def __init__(self, axes: Mapping[str, int]):
        self.axes = dict(axes)
        self.sizes: dict[str, int] = {}
        self._order = {a: n for n, a in enumerate(axes)}
        self._scopes = [_Scope()]
        self._depth: dict[int, int] = {}
        self._numbers: dict[int, float | int | bool] = {}
        self._origin: dict[int, Value] = {}
        self._count = 0

    @property
    def body(self) -> tuple[Op, ...]:
        """The operations, without those that nothing depends on."""
        assert len(self._scopes) == 1
        return _alive(self._scopes[0].ops, ())[0]

    # scalars and positions

    def number(self, value: float | int | bool, dtype: str = INDEX_TYPE) -> Value:
        made = self._add(Number, (value,), (), dtype, "c", key=str(value))
        self._numbers[made.number] = value
        return made

    def number_of(self, v: Value) -> float | int | bool | None:
        """The literal that a value is, if it is one."""
        return self._numbers.get(v.number)

    def size(self, name: str, value: int) -> Value:
        assert self.sizes.setdefault(name, value) == value
        dtype = INDEX_TYPE if abs(value) < 2**31 else INT64
        return self._add(SizeArgument, (name,), (), dtype, name)

    def program(self) -> Value:
        return self._add(ProgramId, (), (), INDEX_TYPE, "program")

    def positions(self, axis: str) -> Value:
        return self._add(Positions, (), (axis,), INDEX_TYPE, axis)

    def fill(self, axes: Sequence[str], value: float | int | bool, dtype: str = "float32") -> Value:
        return self._add(Full, (value,), self._sorted(axes), dtype, "fill")

    # values

    def apply(self, function: str, *args: Value, hint: str = "t") -> Value:
        """Operands of one type, but for the condition of a `select`."""
        assert function in FUNCTIONS or function in EXTRA, function
        folded = self._folded(function, args)
        if folded is not None:
            return folded
        dtype = "bool" if function in COMPARED else args[-1].type.dtype
        axes = self._sorted({a for v in args for a in v.type.axes})
        return self._add(Apply, (function, args), axes, dtype, hint)

    def together(self, function: str, *args: Value | float, hint: str = "t") -> Value:
        """The same of integers of two types, and of numbers beside values."""
        types = [a.type.dtype for a in args if isinstance(a, Value)]
        dtype = INT64 if {*types} == {INDEX_TYPE, INT64} else types[0]
        alike = (self.cast(a, dtype) if isinstance(a, Value) else self.number(a, dtype) for a in args)
        return self.apply(function, *alike, hint=hint)

    def _folded(self, function: str, args: Sequence[Value]) -> Value | None:
        """Arithmetic of integer literals, sums with 0, products with 1, conditions that are literals."""
        numbers = [self._numbers.get(a.number) for a in args]
        if function == "select":
            return None if numbers[0] is None else args[1 if numbers[0] else 2]
        if function == "and" and True in [n if isinstance(n, bool) else None for n in numbers]:
            return args[1] if numbers[0] is True else args[0]
        whole = all(a.type.dtype in (INDEX_TYPE, INT64) for a in args)
        if whole and len(args) == 2 and all(isinstance(n, int) for n in numbers):
            a, b = (int(n) for n in numbers if n is not None)
            made = FOLDED.get(function)
            if made is not None:
                value = made(a, b)
                return self.number(value, "bool" if isinstance(value, bool) else args[0].type.dtype)
        if function in ("add", "mul") and whole:
            neutral = 0 if function == "add" else 1
            for n, other in zip(numbers, reversed(args), strict=True):
                if n == neutral:
                    return other
        if function in ("sub", "floordiv") and whole and numbers[1] == (0 if function == "sub" else 1):
            return args[0]
        return None

    def cast(self, value: Value, dtype: str) -> Value:
        n = self._numbers.get(value.number)
        if value.type.dtype == dtype:
            return value
        if n is not None and dtype not in ("bfloat16", "float16"):
            return self.number(float(np.float32(n)) if dtype == "float32" else int(n), dtype)
        origin = self._origin.get(value.number)
        if origin is not None and origin.type.dtype == dtype:
            return origin  # what was only held wider
        made = self._add(Cast, (value,), value.type.axes, dtype, value.hint)
        if value.type.dtype in ("bfloat16", "float16") and dtype == "float32":
            self._origin[made.number] = value
        return made

    def reduce(self, aggregation: str, axis: str, value: Value, careful: bool = False) -> Value:
        axes = tuple(a for a in value.type.axes if a != axis)
        return self._add(Reduce, (aggregation, axis, value, careful), axes, value.type.dtype, "t")

    def running_sum(self, axis: str, value: Value) -> Value:
        return self._add(CumulativeSum, (axis, value), value.type.axes, value.type.dtype, "t")

    def dot(
        self, axis: str, left: Value, right: Value, accumulator: Value | None = None, precision: str | None = None
    ) -> Value:
        axes = self._sorted((set(left.type.axes) | set(right.type.axes)) - {axis})
        if axes and axes[0] not in left.type.axes:
            left, right = right, left
        return self._add(DotOp, (axis, left, right, accumulator, precision), axes, "float32", "dot")

    # memory

    def load(
        self,
        tensor: str,
        dtype: str,
        index: Sequence[Value],
        condition: Value | None = None,
        other: float | int | bool = 0,
    ) -> Value:
        condition = self._needed(condition)
        inputs = (*index, *(() if condition is None else (condition,)))
        axes = self._sorted({a for v in inputs for a in v.type.axes})
        hint = "".join(c for c in tensor.lower() if c.isalnum()) or "x"
        return self._add(Load, (tensor, tuple(index), condition, other), axes, dtype, hint)

    def store(self, tensor: str, index: Sequence[Value], value: Value, condition: Value | None = None) -> None:
        self._scopes[-1].ops.append(Store(tensor, tuple(index), value, self._needed(condition)))

    def _needed(self, condition: Value | None) -> Value | None:
        return None if condition is None or self._numbers.get(condition.number) is True else condition

    # loops

    def loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        initial: Sequence[Value],
        body: Callable[[Value, tuple[Value, ...]], Sequence[Value]],
        hint: str = "first",
    ) -> tuple[Value, ...]:
        """`body` is given the counter and the carried values and returns their next values."""
        self._scopes.append(_Scope())
        depth = len(self._scopes) - 1
        counter = self._value((), INDEX_TYPE, hint, depth)
        carried = tuple(self._value(v.type.axes, v.type.dtype, v.hint, depth) for v in initial)
        yielded = tuple(body(counter, carried))
        assert [v.type for v in yielded] == [v.type for v in carried]
        ops = tuple(self._scopes.pop().ops)
        outer = max([0, *(self._depth[v.number] for v in (start, stop, *initial))])
        assert outer <= depth - 1
        made = tuple(self._value(v.type.axes, v.type.dtype, v.hint, depth - 1) for v in initial)
        self._scopes[-1].ops.append(Loop(counter, start, stop, step, carried, tuple(initial), ops, yielded, made))
        return made

    # the rest

    def _sorted(self, axes) -> tuple[str, ...]:
        return tuple(sorted(axes, key=self._order.__getitem__))

    def _value(self, axes: Sequence[str], dtype: str, hint: str, depth: int) -> Value:
        self._count += 1
        made = Value(self._count, BlockType(tuple(axes), dtype), hint, self)
        self._depth[made.number] = depth
        return made

    def _add(
        self, kind: Callable[..., Op], given: tuple, axes: Sequence[str], dtype: str, hint: str, key: object = None
    ) -> Value:
        """The value of an operation of that kind; `key`: what tells it from others besides what it is given."""
        key = kind, given, tuple(axes), dtype, key
        for scope in self._scopes:
            if key in scope.known:
                return scope.known[key]
        out = self._value(axes, dtype, hint, 0)
        op = kind(out, *given)
        depth = max([0, *(self._depth[v.number] for v in operands(op))])
        self._depth[out.number] = depth
        self._scopes[depth].ops.append(op)
        self._scopes[depth].known[key] = out
        return out


FOLDED: Mapping[str, Callable[[int, int], int | bool]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "rest": lambda a, b: a % b,
    "larger": max,
    "smaller": min,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
}


def _alive(ops: Sequence[Op], needed: Sequence[Value]) -> tuple[tuple[Op, ...], set[int]]:
    """The operations that stores and the values `needed` depend on, and the numbers of all values that these read."""
    wanted = {v.number for v in needed}
    kept: list[Op] = []
    for op in reversed(ops):
        if isinstance(op, Loop):
            body, inside = _alive(op.body, op.yielded)
            if not body and not any(v.number in wanted for v in op.results):
                continue
            op = Loop(op.counter, op.start, op.stop, op.step, op.carried, op.initial, body, op.yielded, op.results)
            wanted |= inside
        elif not isinstance(op, Store) and not any(v.number in wanted for v in results(op)):
            continue
        wanted |= {v.number for v in operands(op)}
        kept.append(op)
    return tuple(reversed(kept)), wanted
