"""Shapes of outputs where a compiler leaves sizes open: size arithmetic on torch's symbolic integers.

Element types, ranks and which operand of an operation broadcasts do not depend on sizes, as far as a compiled graph
holds: it takes 0 and 1 for themselves. They come from the sizes that stand for the class. A program whose shapes cannot
be followed is compiled for these sizes alone.

The order in which memory holds a result's axes is a rule over the program and the inputs' strides, as torch's own
operations have one: what traces and what computes share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tilec.errors import Unsupported
from tilec.ir.functions import RANDOM, STRUCTURAL
from tilec.ir.program import Access, Call, Expr, Index, Int, Name, Program, Statement, accesses_in, expressions
from tilec.ir.types import TensorType
from tilec.specialise import Specialiser
from tilec.transforms.axis_orders import AxisOrder, axes_back, axis_order, axis_orders, in_order
from tilec.transforms.bind.bind import bind
from tilec.transforms.bind.sizes import SIZE_FUNCTIONS, as_number, promoting
from tilec.transforms.bind.value_inputs import size_inputs

OpenSize = Any  # int or torch.SymInt
OpenShape = tuple[OpenSize, ...]
SYMBOLIC_FUNCTIONS: dict[str, Callable[..., OpenSize]] = {
    **SIZE_FUNCTIONS,
    "max": promoting(lambda *a: reduce(torch.sym_max, a)),
    "min": promoting(lambda *a: reduce(torch.sym_min, a)),
    "clamp": promoting(lambda e, low, high: torch.sym_min(torch.sym_max(e, low), high)),
    "same": lambda first, *_: first,
}


class _Unfollowed(Exception):
    """A shape that is not followed."""


def example(size: OpenSize, name: str = "an input") -> int:
    """The number that stands for a size's class. Raises Unsupported for one of `name` that depends on data."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise Unsupported(
            f"{name} has a size that depends on data, which no shape can be worked out of",
            hint="mark the size as an argument's, or call the function outside of the traced part",
        )
    return int(hint)


def example_types(
    function: Specialiser, tensors: Sequence[torch.Tensor], weak: Sequence[bool]
) -> dict[str, TensorType]:
    """The inputs' types for the sizes that stand for the class."""
    shapes = [tuple(example(n, name) for n in t.shape) for name, t in zip(function.inputs, tensors, strict=True)]
    meta = [torch.empty(s, dtype=t.dtype, device="meta") for s, t in zip(shapes, tensors, strict=True)]
    return function.types(meta, weak)


def result_types(
    function: Specialiser, tensors: Sequence[torch.Tensor], weak: Sequence[bool], values: Sequence[OpenSize]
) -> tuple[TensorType | None, ...]:
    """The type of each output (None: no result), with sizes as open as the inputs'."""
    types = example_types(function, tensors, weak)
    found = function.results(types, dict(zip(function.sizes, map(example, values), strict=True)))
    shapes = dict(zip(function.inputs, (tuple(t.shape) for t in tensors), strict=True))
    try:
        made = _Shapes(function.program, shapes, dict(zip(function.sizes, values, strict=True))).run()
    except _Unfollowed:
        made = {}
    known = []
    for name, t in zip(function.outputs, found, strict=True):
        shape = made.get(name)
        if t is not None and (shape is None or tuple(map(example, shape)) != t.shape):
            for s in (s for given in shapes.values() for s in given):
                int(s)  # from here on the graph is for this size
        known.append(t if t is None or shape is None else replace(t, shape=shape))
    return tuple(known)


class _Shapes:
    """One pass over the statements of a program."""

    def __init__(self, program: Program, shapes: Mapping[str, OpenShape], values: Mapping[str, OpenSize]):
        self.program = program
        self.shapes = dict(shapes)
        self.values = {name: values[name] for name in size_inputs(program) if name in values}
        for i in program.inputs:
            for dim, size in zip(i.dims or (), self.shapes[i.name], strict=False):
                if isinstance(dim, str):
                    self.values.setdefault(dim, size)

    def run(self) -> dict[str, OpenShape]:
        for s in self.program.statements:
            self.shapes[s.output] = self._statement(s)
        return self.shapes

    def _statement(self, s: Statement) -> OpenShape:
        if s.index is None:
            try:
                self.values[s.output] = self.evaluate(s.body)
            except (_Unfollowed, ZeroDivisionError):
                pass
            return self.of(s.body)
        if s.sizes is not None:
            return self._sizes(s.sizes)
        return tuple(self._left_out(s, e) for e in s.index)

    def _sizes(self, sizes: Sequence[Expr]) -> OpenShape:
        return tuple(as_number(self.evaluate(n)) for n in sizes)

    def _left_out(self, s: Statement, e: Expr) -> OpenSize:
        """The size of an output index, from where the variable stands bare."""
        for access in accesses_in(*expressions(s)):
            if isinstance(e, Index) and e in access.index and access.tensor in self.shapes:
                return self.shapes[access.tensor][access.index.index(e)]
        raise _Unfollowed

    def evaluate(self, e: Expr) -> OpenSize:
        match e:
            case Int(value):
                return value
            case Name(name) | Access(name, ()):
                if name in self.values:
                    return self.values[name]
            case Call("shape", (Name(name), axis)):
                return self.shapes[name][example(self.evaluate(axis))]
            case Call(function, args) if function in SYMBOLIC_FUNCTIONS:
                return SYMBOLIC_FUNCTIONS[function](*map(self.evaluate, args))
        raise _Unfollowed

    def of(self, e: Expr) -> OpenShape:
        """The shape of an elementwise expression."""
        match e:
            case Call("reshape", (_, Call("shape", (Name(like),)))):
                return self.shapes[like]
            case Call("reshape", (_, *sizes)):
                return self._sizes(sizes)
            case Call("gather", (x, i)):
                return (*self.of(i), *self.of(x)[1:])
            case Call("scatter", (_, _, like)) | Call("simple_reduce", (_, like)):
                return self.of(like)
            case Call(function) if function in STRUCTURAL:
                raise _Unfollowed
        return broadcast_sizes(tuple(self._operands(e)))

    def _operands(self, e: Expr) -> Iterator[OpenShape]:
        match e:
            case Name(name):
                yield self.shapes.get(name, ())
            case Call("shape", (Name(name),)):
                yield (len(self.shapes[name]),)
            case Call("as_type" | "index", args):
                yield self.of(args[0])
            case Call(function) if function in STRUCTURAL:
                yield self.of(e)
            case Call(function, args):
                for a in args[function in RANDOM :]:
                    yield from self._operands(a)


def broadcast_sizes(shapes: Sequence[OpenShape]) -> OpenShape:
    """The shape of operands together, as their examples say."""
    rank = max(map(len, shapes), default=0)
    sizes = []
    for d in range(-rank, 0):
        here = [s[d] for s in shapes if len(s) >= -d]
        sizes.append(next((n for n in here if example(n) != 1), here[0]))
    return tuple(sizes)


def is_open(tensors: Sequence[torch.Tensor], values: Sequence[OpenSize]) -> bool:
    """Are some sizes left open?"""
    return any([not isinstance(n, int) for t in tensors for n in t.shape]) or any(
        not isinstance(n, int) for n in values
    )


MOST_ORDERS = 256  # kinds of calls of a function

_known: WeakKeyDictionary[Specialiser, dict[object, tuple[AxisOrder | None, ...]]] = WeakKeyDictionary()


def output_orders(
    function: Specialiser, strides: Mapping[str, Sequence[Any]], types: Mapping[str, TensorType], values: Sequence[Any]
) -> tuple[AxisOrder | None, ...]:
    """Of each output, None for a row-major one. `strides` and `types`: of the inputs."""
    given: dict[str, AxisOrder] = {}
    for name, steps in strides.items():
        order = axis_order(types[name].shape, [example(n, name) for n in steps])
        given |= {} if order is None else {name: order}
    if not given:
        return (None,) * len(function.outputs)
    sizes = tuple(map(example, values))
    key = tuple(given.items()), tuple(types.values()), sizes
    known = _known.setdefault(function, {})
    if key not in known:
        if len(known) >= MOST_ORDERS:
            known.clear()
        by_name = dict(zip(function.sizes, sizes, strict=True))
        special = function.specialised(dict(types), by_name)
        found = axis_orders(bind(special.program, special.types, by_name), given)
        known[key] = tuple([None if n is None else found.get(n) for n in special.result_names])
    return known[key]


def named_strides(function: Specialiser, tensors: Sequence[torch.Tensor]) -> dict[str, Sequence[Any]]:
    """The strides of a call's inputs, by name."""
    return {name: t.stride() for name, t in zip(function.inputs, tensors, strict=True)}


def lying_order(t: torch.Tensor) -> AxisOrder | None:
    """The order in which a tensor's axes lie, for the sizes that stand for the class."""
    return axis_order([example(n) for n in t.shape], [example(n) for n in t.stride()])


def empty_in_order(
    shape: Sequence[Any], order: AxisOrder | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A new tensor whose axes stand so in memory."""
    made = torch.empty(in_order(shape, order), dtype=dtype, device=device)
    return made if order is None else made.permute(axes_back(order))


def lies_in_order(t: torch.Tensor, order: AxisOrder | None) -> bool:
    """Is that how a tensor lies, without gaps?"""
    return (t if order is None else t.permute(order)).is_contiguous()
