"""The rules of block programs."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.backends.common.blocks.ir import (
    Apply,
    BlockProgram,
    BlockType,
    Cast,
    CumulativeSum,
    DotOp,
    Load,
    Loop,
    MaskWhere,
    Op,
    Positions,
    Reduce,
    Store,
    Value,
    operands,
    results,
)
from tilec.errors import InternalMistake
from tilec.ir.functions import COMPARISONS, RANDOM
from tilec.knobs import VERIFY

INDEX_TYPES = ("int32", "int64")


def verify_kernel(kernel: BlockProgram) -> BlockProgram:
    """The kernel itself. With TILEC_VERIFY, raises InternalMistake where a value is used outside of its scope or before
    it is defined, or where axes, types or tensors do not fit."""
    if VERIFY.value:
        _verify(kernel.body, set(), kernel)
    return kernel


def _expect(condition: bool, op: Op, what: str) -> None:
    if not condition:
        raise InternalMistake(f"a block program is wrong: {what}: {op!r}")


def _verify(ops: Sequence[Op], defined: set[Value], kernel: BlockProgram) -> None:
    known = set(defined)
    for op in ops:
        _expect(known.issuperset(operands(op)), op, "a value is not defined here")
        if isinstance(op, Loop):
            inside = known | {op.counter, *op.carried}
            _expect(op.step > 0, op, "a loop does not advance")
            pairs = zip(op.carried, op.initial, op.yielded, op.results, strict=True)
            _expect(all(c.type == i.type == y.type == r.type for c, i, y, r in pairs), op, "carried types differ")
            _verify(op.body, inside, kernel)
            there = inside.union(*map(results, op.body))
            _expect(there.issuperset(op.yielded), op, "a carried value is not defined")
        else:
            _check(op, kernel)
        for v in results(op):
            _expect(v not in known, op, "a value is defined twice")
            order = [list(kernel.axes).index(a) for a in v.type.axes]
            _expect(order == sorted(order), op, "axes are not in the kernel's order")
            known.add(v)


def _axes(values: Sequence[Value]) -> set[str]:
    return {a for v in values for a in v.type.axes}


def _check(op: Op, kernel: BlockProgram) -> None:
    match op:
        case Positions(out):
            _expect(len(out.type.axes) == 1, op, "positions have one axis")
        case Apply(out, function, args):
            _expect(set(out.type.axes) == _axes(args), op, "axes are not the operands'")
            typed = args[1:] if function == "select" else args
            _expect(len({v.type.dtype for v in typed}) == 1, op, "operands of different types")
            own = "float32" if function in RANDOM else typed[0].type.dtype
            _expect(out.type.dtype in ("bool", own), op, "result's type")
            _expect(function not in COMPARISONS or out.type.dtype == "bool", op, "a comparison is a bool")
            _expect(function != "select" or args[0].type.dtype == "bool", op, "a condition is a bool")
        case MaskWhere(out, test, mask, value, other):
            _expect(test.type == BlockType((), "bool") and mask.type.dtype == "bool", op, "a condition is a bool")
            _expect(out.type == value.type and set(mask.type.axes) <= set(value.type.axes), op, "axes")
            _expect(other.type == BlockType((), value.type.dtype), op, "operands of different types")
        case Cast(out, value):
            _expect(out.type.axes == value.type.axes, op, "a cast keeps axes")
        case Load(out, tensor, index, condition, _):
            _index(op, tensor, index, condition, kernel)
            inputs = (*index, *(() if condition is None else (condition,)))
            _expect(set(out.type.axes) == _axes(inputs), op, "axes are not the index's")
            _expect(out.type.dtype == kernel.tensor(tensor).dtype, op, "element type")
        case Store(tensor, index, value, condition):
            _index(op, tensor, index, condition, kernel)
            _expect(kernel.tensor(tensor).written, op, "the tensor is not an output")
            _expect(value.type.dtype == kernel.tensor(tensor).dtype, op, "element type")
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


def _index(op: Op, tensor: str, index: Sequence[Value], condition: Value | None, kernel: BlockProgram) -> None:
    _expect(len(index) == kernel.tensor(tensor).rank, op, "one index a dimension")
    _expect(all(v.type.dtype in INDEX_TYPES for v in index), op, "indices are integers")
    _expect(condition is None or condition.type.dtype == "bool", op, "a condition is a bool")
