"""Block programs run by NumPy, one program of the grid after the other: what a kernel means, on any machine.

16-bit values are held in float32 and rounded to nearest where they are cast or stored. A tensor's elements outside of
what a program may read are an error, as is an element that is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilec.backends.common.blocks.ir import (
    Apply,
    BlockProgram,
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
)
from tilec.ir.functions import FUNCTIONS

COMPUTE_DTYPES = {"bfloat16": np.float32, "float16": np.float32, "bool": np.bool_}
NUMPY_EXTRA: Mapping[str, Callable[..., np.ndarray]] = {
    "quotient": np.divide,
    "reciprocal": np.reciprocal,
    "exp2": np.exp2,
    "log2": np.log2,
    "floordiv": np.floor_divide,
    "rest": np.remainder,
    "larger": np.fmax,
    "smaller": np.fmin,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
NUMPY_REDUCTIONS: Mapping[tuple[str, bool], Callable[..., np.ndarray]] = {
    ("sum", False): np.sum,
    ("max", False): np.fmax.reduce,
    ("max", True): np.max,
    ("min", False): np.fmin.reduce,
    ("min", True): np.min,
}


def numpy_type(dtype: str) -> type:
    """The NumPy type that holds an element."""
    return COMPUTE_DTYPES.get(dtype) or getattr(np, dtype)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Values as elements of this type are, in the type that holds them."""
    if dtype == "bfloat16":
        bits = np.asarray(x, np.float32).view(np.uint32)
        near = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isnan(x), np.float32(np.nan), near)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return np.asarray(x, np.float16).astype(np.float32)
    return np.asarray(x).astype(numpy_type(dtype))


def run_kernel(kernel: BlockProgram, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs. `tensors`: every tensor, outputs for their shapes; 16-bit ones held in float32."""
    outputs: dict[str, np.ndarray] = {}
    for t in (t for t in kernel.tensors if t.written):
        outputs[t.name] = np.full(tensors[t.name].shape, 99, numpy_type(t.dtype))
    written = {name: np.zeros(x.shape, np.int32) for name, x in outputs.items()}
    with np.errstate(all="ignore"):
        for number in range(kernel.grid):
            _Run(kernel, {**tensors, **outputs}, written, number).run(kernel.body)
    for name, times in written.items():
        assert (times == 1).all(), f"{name}: {int((times != 1).sum())} elements not written exactly once"
    return outputs


class _Run:
    def __init__(
        self, kernel: BlockProgram, tensors: Mapping[str, np.ndarray], written: dict[str, np.ndarray], number: int
    ):
        self.kernel, self.tensors, self.written, self.number = kernel, tensors, written, number
        self.values: dict[Value, np.ndarray] = {}

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            match op:
                case Loop():
                    self._loop(op)
                case Store(tensor, index, value, condition):
                    axes = [a for a in self.kernel.axes if any(a in v.type.axes for v in index)]
                    places, inside = self._places(index, condition, axes)
                    x = rounded(self._spread(value, axes), self.kernel.tensor(tensor).dtype)
                    x = np.broadcast_to(x, inside.shape)
                    chosen = tuple(p[inside] for p in places)
                    self.tensors[tensor][chosen] = x[inside]
                    np.add.at(self.written[tensor], chosen, 1)
                case _:
                    found = np.asarray(self._value(op))
                    shape = tuple(self.kernel.axes[a] for a in op.out.type.axes)
                    assert found.shape == shape, f"{op!r}: {found.shape} is not {shape}"
                    self.values[op.out] = rounded(found, op.out.type.dtype)

    def _loop(self, op: Loop) -> None:
        carried = [self.values[v] for v in op.initial]
        for count in range(int(self.values[op.start]), int(self.values[op.stop]), op.step):
            self.values[op.counter] = np.asarray(count)
            self.values.update(zip(op.carried, carried, strict=True))
            self.run(op.body)
            carried = [self.values[v] for v in op.yielded]
        self.values.update(zip(op.results, carried, strict=True))

    def _spread(self, v: Value, axes: Sequence[str]) -> np.ndarray:
        """The value with dimensions for all of these axes, in their order."""
        shape = [self.kernel.axes[a] if a in v.type.axes else 1 for a in axes]
        return self.values[v].reshape(shape)

    def _places(self, index: Sequence[Value], condition: Value | None, axes: Sequence[str]):
        if condition is not None:
            axes = [a for a in self.kernel.axes if a in axes or a in condition.type.axes]
        shape = tuple(self.kernel.axes[a] for a in axes)
        places = [np.broadcast_to(self._spread(v, axes), shape) for v in index]
        inside = np.ones(shape, bool) if condition is None else np.broadcast_to(self._spread(condition, axes), shape)
        return places, inside

    def _value(self, op: Op):
        kernel = self.kernel
        match op:
            case Number(out, value):
                return np.asarray(value, numpy_type(out.type.dtype))
            case SizeArgument(_, name):
                return np.asarray(kernel.sizes[name])
            case ProgramId():
                return np.asarray(self.number)
            case Positions(out):
                return np.arange(kernel.axes[out.type.axes[0]])
            case Full(out, value):
                return np.full([kernel.axes[a] for a in out.type.axes], value, numpy_type(out.type.dtype))
            case Apply(out, function, args):
                of = NUMPY_EXTRA.get(function) if function in NUMPY_EXTRA else FUNCTIONS[function].numpy
                assert of is not None, function
                found = of(*(self._spread(v, out.type.axes) for v in args))
                return np.broadcast_to(found, [kernel.axes[a] for a in out.type.axes])
            case MaskWhere(out, test, mask, value, other):
                if not self.values[test]:
                    return self.values[value]
                return np.where(self._spread(mask, out.type.axes), self.values[value], self.values[other])
            case Cast(_, value):
                return self.values[value]
            case Load(out, tensor, index, condition, other):
                places, inside = self._places(index, condition, out.type.axes)
                x = np.full(inside.shape, other, self.tensors[tensor].dtype)
                chosen = [p[inside] for p in places]
                shape = self.tensors[tensor].shape
                reach = zip(chosen, shape, strict=True)
                assert all(((0 <= p) & (p < n)).all() for p, n in reach), f"{tensor}: read outside"
                x[inside] = self.tensors[tensor][tuple(chosen)]
                return x
            case Reduce(_, aggregation, axis, value, careful):
                place = value.type.axes.index(axis)
                return NUMPY_REDUCTIONS[aggregation, careful and aggregation != "sum"](self.values[value], axis=place)
            case CumulativeSum(_, axis, value):
                return np.cumsum(self.values[value], axis=value.type.axes.index(axis))
            case DotOp(out, axis, left, right, accumulator, _):
                a = np.moveaxis(self.values[left], left.type.axes.index(axis), -1)
                b = np.moveaxis(self.values[right], right.type.axes.index(axis), 0)
                found = a.astype(np.float32) @ b.astype(np.float32)
                return found if accumulator is None else found + self.values[accumulator]
        raise AssertionError(f"no operation: {op!r}")
