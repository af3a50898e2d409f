"""Builds block programs. Equal operations are one, and each stands outside of all loops that it does not depend on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

import numpy as np

from tilec.backends.common.blocks.ir import (
    EXTRA,
    Apply,
    BlockType,
    Cast,
    CumulativeSum,
    DotOp,
    Full,
    Load,
    Loop,
    MaskWhere,
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
from tilec.ir.functions import COMPARISONS, FUNCTIONS, RANDOM

INDEX_TYPE, INT64 = "int32", "int64"


@dataclass
class _Scope:
    """`keys`: of the operations in it, which nothing finds after its end."""

    ops: list[Op] = field(default_factory=list)
    keys: list[tuple] = field(default_factory=list)


_type = lru_cache(1 << 12)(BlockType)


class Builder:
    """`axes`: extent of each axis, in order."""

    def __init__(self, axes: Mapping[str, int]):
        self.axes = dict(axes)
        self.sizes: dict[str, int] = {}
        self._order = {a: n for n, a in enumerate(axes)}
        self._scopes = [_Scope()]
        self._known: dict[tuple, Value] = {}
        self._depth: dict[Value, int] = {}
        self._numbers: dict[Value, float | int | bool] = {}
        self._origin: dict[Value, Value] = {}
        self._count = 0

    @property
    def body(self) -> tuple[Op, ...]:
        """The operations, without those that nothing depends on."""
        assert len(self._scopes) == 1
        return _alive(self._scopes[0].ops, ())[0]

    # scalars and positions

    def number(self, value: float | int | bool, dtype: str = INDEX_TYPE) -> Value:
        made = self._add(Number, (value,), (), dtype, "c", key=str(value))
        self._numbers[made] = value
        return made

    def number_of(self, v: Value) -> float | int | bool | None:
        """The literal that a value is, if it is one."""
        return self._numbers.get(v)

    def size(self, name: str, value: int) -> Value:
        assert self.sizes.setdefault(name, value) == value
        dtype = INDEX_TYPE if abs(value) < 2**31 else INT64
        return self._add(SizeArgument, (name,), (), dtype, name)

    def program(self) -> Value:
        return self._add(ProgramId, (), (), INDEX_TYPE, "program")

    def positions(self, axis: str) -> Value:
        return self._add(Positions, (), (), INDEX_TYPE, axis, (axis,))

    def fill(self, axes: Sequence[str], value: float | int | bool, dtype: str = "float32") -> Value:
        return self._add(Full, (value,), (), dtype, "fill", self._sorted(axes))

    # values

    def apply(self, function: str, *args: Value, hint: str = "t") -> Value:
        """Operands of one type, but for the condition of a `select`."""
        assert function in FUNCTIONS or function in EXTRA, function
        folded = self._folded(function, args)
        if folded is not None:
            return folded
        dtype = "bool" if function in COMPARISONS else "float32" if function in RANDOM else args[-1].type.dtype
        return self._add(Apply, (function, args), args, dtype, hint)

    def mask_where(self, test: Value, mask: Value, value: Value, other: Value) -> Value:
        """The value, masked where a scalar condition holds."""
        inputs = (test, mask, value, other)
        return self._add(MaskWhere, inputs, inputs, value.type.dtype, value.hint)

    def together(self, function: str, *args: Value | float) -> Value:
        """The same of integers of two types, and of numbers beside values."""
        types = [a.type.dtype for a in args if isinstance(a, Value)]
        dtype = INT64 if {*types} == {INDEX_TYPE, INT64} else types[0]
        alike = [self.cast(a, dtype) if isinstance(a, Value) else self.number(a, dtype) for a in args]
        return self.apply(function, *alike)

    def _folded(self, function: str, args: Sequence[Value]) -> Value | None:
        """Arithmetic of integer literals, sums with 0, products with 1, conditions that are literals."""
        numbers = [self._numbers.get(a) for a in args]
        if numbers.count(None) == len(numbers):
            return None
        if function == "select":
            return None if numbers[0] is None else args[1 if numbers[0] else 2]
        if function == "and" and True in [n if isinstance(n, bool) else None for n in numbers]:
            return args[1] if numbers[0] is True else args[0]
        if len(args) != 2 or not all(a.type.dtype in (INDEX_TYPE, INT64) for a in args):
            return None
        made = FOLDED.get(function)
        if made is not None and None not in numbers:
            value = made(*map(int, numbers))  # type: ignore[arg-type]
            return self.number(value, "bool" if isinstance(value, bool) else args[0].type.dtype)
        neutral = NEUTRAL.get(function)
        if neutral is None or neutral not in numbers:
            return None
        if numbers[1] == neutral:
            return args[0]
        return args[1] if function in ("add", "mul") else None

    def cast(self, value: Value, dtype: str) -> Value:
        if value.type.dtype == dtype:
            return value
        n = self._numbers.get(value)
        if n is not None and dtype not in ("bfloat16", "float16"):
            return self.number(float(np.float32(n)) if dtype == "float32" else int(n), dtype)
        origin = self._origin.get(value)
        if origin is not None and origin.type.dtype == dtype:
            return origin  # what was only held wider
        made = self._add(Cast, (value,), (value,), dtype, value.hint)
        if value.type.dtype in ("bfloat16", "float16") and dtype == "float32":
            self._origin[made] = value
        return made

    def reduce(self, aggregation: str, axis: str, value: Value, careful: bool = False) -> Value:
        axes = tuple(a for a in value.type.axes if a != axis)
        return self._add(Reduce, (aggregation, axis, value, careful), (value,), value.type.dtype, "t", axes)

    def running_sum(self, axis: str, value: Value) -> Value:
        return self._add(CumulativeSum, (axis, value), (value,), value.type.dtype, "t")

    def dot(
        self, axis: str, left: Value, right: Value, accumulator: Value | None = None, precision: str | None = None
    ) -> Value:
        axes = self._sorted((set(left.type.axes) | set(right.type.axes)) - {axis})
        if axes and axes[0] not in left.type.axes:
            left, right = right, left
        inputs = (left, right) if accumulator is None else (left, right, accumulator)
        return self._add(DotOp, (axis, left, right, accumulator, precision), inputs, "float32", "dot", axes)

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
        hint = "".join(c for c in tensor.lower() if c.isalnum()) or "x"
        return self._add(Load, (tensor, tuple(index), condition, other), inputs, dtype, hint)

    def store(self, tensor: str, index: Sequence[Value], value: Value, condition: Value | None = None) -> None:
        self._scopes[-1].ops.append(Store(tensor, tuple(index), value, self._needed(condition)))

    def _needed(self, condition: Value | None) -> Value | None:
        return None if condition is None or self._numbers.get(condition) is True else condition

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
        scope = self._scopes.pop()
        for key in scope.keys:
            del self._known[key]
        outer = max([0, *(self._depth[v] for v in (start, stop, *initial))])
        assert outer <= depth - 1
        made = tuple(self._value(v.type.axes, v.type.dtype, v.hint, depth - 1) for v in initial)
        self._scopes[-1].ops.append(
            Loop(counter, start, stop, step, carried, tuple(initial), tuple(scope.ops), yielded, made)
        )
        return made

    # the rest

    def _sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(axes, key=self._order.__getitem__))

    def _value(self, axes: Sequence[str], dtype: str, hint: str, depth: int) -> Value:
        self._count += 1
        made = Value(self._count, _type(tuple(axes), dtype), hint, self)
        self._depth[made] = depth
        return made

    def _add(
        self,
        kind: Callable[..., Op],
        given: tuple,
        inputs: Sequence[Value],
        dtype: str,
        hint: str,
        axes: Sequence[str] | None = None,
        key: object = None,
    ) -> Value:
        """The value of an operation of that kind, which reads `inputs` and has their axes if none are named. `key`:
        what tells it from others besides what it is given."""
        known = kind, given, dtype, axes, key
        out = self._known.get(known)
        if out is None:
            own = self._sorted({a for v in inputs for a in v.type.axes}) if axes is None else axes
            depth = max((self._depth[v] for v in inputs), default=0)
            out = self._known[known] = self._value(own, dtype, hint, depth)
            scope = self._scopes[depth]
            scope.ops.append(kind(out, *given))
            scope.keys.append(known)
        return out


NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}
FOLDED: Mapping[str, Callable[[int, int], int | bool]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv},
    **{"rest": operator.mod, "larger": max, "smaller": min, **COMPARISONS},
}


def loads_first(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The operations, what is loaded before the first loop first: it is under way together, and none of it is asked for
    only after something else arrived."""
    head = list(takewhile(lambda op: not isinstance(op, Loop), ops))
    stored = {op.tensor for op in head if isinstance(op, Store)}
    wanted: set[Value] = set()
    rest: list[Op] = []
    early: list[Op] = []
    for op in reversed(head):
        first = isinstance(op, Load) or not wanted.isdisjoint(results(op))
        first = first and not (isinstance(op, Load) and op.tensor in stored)
        (early if first else rest).append(op)
        wanted.update(operands(op) if first else ())
    return tuple(ops) if len(head) == len(ops) else (*reversed(early), *reversed(rest), *ops[len(head) :])


def _alive(ops: Sequence[Op], needed: Sequence[Value]) -> tuple[tuple[Op, ...], set[Value]]:
    """The operations that stores and the values `needed` depend on, and all values that these read."""
    wanted = {*needed}
    kept: list[Op] = []
    for op in reversed(ops):
        if isinstance(op, Loop):
            body, inside = _alive(op.body, op.yielded)
            if not body and wanted.isdisjoint(op.results):
                continue
            op = replace(op, body=body)
            wanted |= inside
        elif not isinstance(op, Store) and op.out not in wanted:
            continue
        wanted.update(operands(op))
        kept.append(op)
    return tuple(reversed(kept)), wanted
