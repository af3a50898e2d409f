"""The rules of block programs."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.backends.common.blocks.ir import (
    COMPARED,
    Apply,
    BlockProgram,
    Cast,
    CumulativeSum,
    DotOp,
    Load,
    Loop,
    Op,
    Positions,
    Reduce,
    Store,
    Value,
    operands,
    results,
)
from tilec.errors import InternalMistake
from tilec.knobs import VERIFY

INDEX_TYPES = ("int32", "int64")


def verify_kernel(kernel: BlockProgram) -> BlockProgram:
    """The kernel itself. With TILEC_VERIFY, raises InternalMistake where a value is used outside of its scope or before
    it is defined, or where axes, types or tensors do not fit."""
    if VERIFY.value:
        _Verifier(kernel).region(kernel.body)
    return kernel


def _expect(condition: bool, op: Op, what: str) -> None:
    if not condition:
        raise InternalMistake(f"a block program is wrong: {what}: {op!r}")


class _Verifier:
    """`known`: the values that are defined where it is. `places`: of axes in the kernel's order."""

    def __init__(self, kernel: BlockProgram):
        self.tensors = {t.name: t for t in kernel.tensors}
        self.places = {a: n for n, a in enumerate(kernel.axes)}
        self.known: set[int] = set()

    def region(self, ops: Sequence[Op], given: Sequence[Value] = (), yielded: Sequence[Value] = ()) -> None:
        trail = [v.number for v in given]
        self.known.update(trail)
        for op in ops:
            self._defined(operands(op), op)
            if isinstance(op, Loop):
                self._loop(op)
            else:
                self._check(op)
            for v in results(op):
                _expect(v.number not in self.known, op, "a value is defined twice")
                order = [self.places[a] for a in v.type.axes]
                _expect(len(order) < 2 or order == sorted(order), op, "axes are not in the kernel's order")
                self.known.add(v.number)
                trail.append(v.number)
        self._defined(yielded, ops[-1] if ops else None)
        self.known.difference_update(trail)

    def _defined(self, values: Sequence[Value], op: Op | None) -> None:
        for v in values:
            if v.number not in self.known:
                raise InternalMistake(f"a block program is wrong: {v} is not defined here: {op!r}")

    def _loop(self, op: Loop) -> None:
        _expect(op.step > 0, op, "a loop does not advance")
        pairs = zip(op.carried, op.initial, op.yielded, op.results, strict=True)
        _expect(all(c.type == i.type == y.type == r.type for c, i, y, r in pairs), op, "carried types differ")
        self.region(op.body, (op.counter, *op.carried), op.yielded)

    def _check(self, op: Op) -> None:
        match op:
            case Positions(out):
                _expect(len(out.type.axes) == 1, op, "positions have one axis")
            case Apply(out, function, args):
                _expect(set(out.type.axes) == _axes(args), op, "axes are not the operands'")
                typed = args[1:] if function == "select" else args
                _expect(len({v.type.dtype for v in typed}) == 1, op, "operands of different types")
                _expect((out.type.dtype == "bool") or out.type.dtype == typed[0].type.dtype, op, "result's type")
                _expect(function not in COMPARED or out.type.dtype == "bool", op, "a comparison is a bool")
                _expect(function != "select" or args[0].type.dtype == "bool", op, "a condition is a bool")
            case Cast(out, value):
                _expect(out.type.axes == value.type.axes, op, "a cast keeps axes")
            case Load(out, tensor, index, condition, _):
                self._index(op, tensor, index, condition)
                inputs = (*index, *(() if condition is None else (condition,)))
                _expect(set(out.type.axes) == _axes(inputs), op, "axes are not the index's")
                _expect(out.type.dtype == self.tensors[tensor].dtype, op, "element type")
            case Store(tensor, index, value, condition):
                self._index(op, tensor, index, condition)
                _expect(self.tensors[tensor].written, op, "the tensor is not an output")
                _expect(value.type.dtype == self.tensors[tensor].dtype, op, "element type")
                _expect(set(value.type.axes) <= _axes(index), op, "elements written more than once")
            case Reduce(out, _, axis, value, _):
                _expect(set(out.type.axes) == set(value.type.axes) - {axis}, op, "axes")
                _expect(axis in value.type.axes, op, "nothing to reduce")
            case CumulativeSum(out, axis, value):
                _expect(out.type == value.type and axis in value.type.axes, op, "axes")
            case DotOp(out, axis, left, right, accumulator, _):
                _expect(axis in left.type.axes and axis in right.type.axes, op, "an operand lacks the axis")
                _expect(len(left.type.axes) == len(right.type.axes) == len(out.type.axes) == 2, op, "two axes each")
                _expect(left.type.dtype == right.type.dtype, op, "operands of different types")
                _expect(set(out.type.axes) == _axes((left, right)) - {axis}, op, "axes")
                _expect(accumulator is None or accumulator.type == out.type, op, "accumulator")

    def _index(self, op: Op, tensor: str, index: Sequence[Value], condition: Value | None) -> None:
        _expect(len(index) == self.tensors[tensor].rank, op, "one index a dimension")
        _expect(all(v.type.dtype in INDEX_TYPES for v in index), op, "indices are integers")
        _expect(condition is None or condition.type.dtype == "bool", op, "a condition is a bool")


def _axes(values: Sequence[Value]) -> set[str]:
    return {a for v in values for a in v.type.axes}
