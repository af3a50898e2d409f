"""Block programs: what one program of a kernel does, in SSA form with regions.

A value is a block with *named* axes and an element type; broadcasting is by name, so that no axis is ever inserted by
hand. A scalar is a block without axes. The extent of an axis is the kernel's; sizes and strides of tensors are not
part of a kernel. Nodes are frozen; loops alone hold regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any


@dataclass(frozen=True)
class BlockType:
    """`axes` in the kernel's order; `dtype` of each element."""

    axes: tuple[str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(self.axes)}]" if self.axes else self.dtype


def _operator(function: str, turned: bool = False) -> Callable[[Value, Value | float], Value]:
    def apply(x: Value, y: Value | float) -> Value:
        return x.builder.together(function, *((y, x) if turned else (x, y)))

    return apply


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One SSA value, which is the same as itself alone; `number` tells values of a kernel apart. Operators make further
    values by its `builder`: of integers in the longer type, numbers in the other operand's; integers that `//` and `%`
    divide are not negative."""

    number: int
    type: BlockType
    hint: str = "t"
    builder: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"%{self.hint}{self.number}"

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __floordiv__, __mod__ = _operator("floordiv"), _operator("rest")
    __and__, __or__ = _operator("and"), _operator("or")
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))
    equals, differs = _operator("eq"), _operator("ne")


@dataclass(frozen=True)
class Number:
    """A literal."""

    out: Value
    value: float | int | bool


@dataclass(frozen=True)
class SizeArgument:
    """An integer that is known at the launch: the kernel's argument of that name."""

    out: Value
    name: str


@dataclass(frozen=True)
class ProgramId:
    """The number of this program in the grid."""

    out: Value


@dataclass(frozen=True)
class Positions:
    """0, 1, ... along one axis."""

    out: Value


@dataclass(frozen=True)
class Full:
    """A block whose elements are all one number."""

    out: Value
    value: float | int | bool


@dataclass(frozen=True)
class Apply:
    """A row of the table of scalar functions, element by element, or one of EXTRA."""

    out: Value
    function: str
    args: tuple[Value, ...]


@dataclass(frozen=True)
class MaskWhere:
    """The value where the scalar `test` is false; where it holds, `other` takes the place of elements that the mask
    leaves out. The mask is computed there alone."""

    out: Value
    test: Value
    mask: Value
    value: Value
    other: Value


@dataclass(frozen=True)
class Cast:
    """The value in another element type, rounded to nearest."""

    out: Value
    value: Value


@dataclass(frozen=True)
class Load:
    """Elements of a tensor, `index` giving the position along each dimension; `other` where the condition is false."""

    out: Value
    tensor: str
    index: tuple[Value, ...]
    condition: Value | None
    other: float | int | bool = 0


@dataclass(frozen=True)
class Store:
    """Elements of a tensor, written where the condition holds. Each is written once in the whole grid."""

    tensor: str
    index: tuple[Value, ...]
    value: Value
    condition: Value | None


@dataclass(frozen=True)
class Reduce:
    """An aggregation along one axis; `max` and `min` propagate NaN where `careful`."""

    out: Value
    aggregation: str
    axis: str
    value: Value
    careful: bool = False


@dataclass(frozen=True)
class CumulativeSum:
    """Sums along one axis from its beginning to each place, that included."""

    out: Value
    axis: str
    value: Value


@dataclass(frozen=True)
class DotOp:
    """The sum of products along one axis that both operands have, in float32, added to the accumulator.
    `precision`: of float32 operands, as Triton names them; None for 16-bit ones."""

    out: Value
    axis: str
    left: Value
    right: Value
    accumulator: Value | None
    precision: str | None


@dataclass(frozen=True)
class Loop:
    """`counter` runs from `start` to below `stop` by `step`. `carried` stand for the values of the last round, first
    `initial`; `yielded` are the next round's; after the loop they are `results`."""

    counter: Value
    start: Value
    stop: Value
    step: int
    carried: tuple[Value, ...]
    initial: tuple[Value, ...]
    body: tuple[Op, ...]
    yielded: tuple[Value, ...]
    results: tuple[Value, ...]


Op = (
    Number
    | SizeArgument
    | ProgramId
    | Positions
    | Full
    | Apply
    | MaskWhere
    | Cast
    | Load
    | Store
    | Reduce
    | CumulativeSum
    | DotOp
    | Loop
)

# beside the rows of the table of scalar functions: powers and logarithms to base 2, quotients of integers that are not
# negative and what these leave, extremes that need not propagate NaN, quotients within two units in the last place, 1
# over a positive number within four
MIRRORED = {"ge": "le", "gt": "lt", "lt": "gt", "le": "ge", "eq": "eq", "ne": "ne"}  # with their sides exchanged
EXTRA: Mapping[str, int] = {
    "quotient": 2, "reciprocal": 1, "exp2": 1, "log2": 1, "floordiv": 2, "rest": 2, "larger": 2, "smaller": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor that a kernel is given."""

    name: str
    dtype: str
    rank: int
    written: bool = False


@dataclass(frozen=True)
class BlockProgram:
    """`axes`: extent of each axis, in the order in which blocks have them. `grid`: programs."""

    name: str
    axes: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    sizes: Mapping[str, int]
    grid: int
    body: tuple[Op, ...]

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)


def every_operation(ops: Sequence[Op]) -> Iterator[Op]:
    """The operations of a program or of a loop, with those inside of loops."""
    for op in ops:
        yield op
        if isinstance(op, Loop):
            yield from every_operation(op.body)


def _given(v: Value | None) -> tuple[Value, ...]:
    return () if v is None else (v,)


_READ: Mapping[type, Callable[[Any], tuple[Value, ...]]] = {
    Apply: attrgetter("args"),
    MaskWhere: attrgetter("test", "mask", "value", "other"),
    Cast: lambda op: (op.value,),
    Load: lambda op: (*op.index, *_given(op.condition)),
    Store: lambda op: (*op.index, op.value, *_given(op.condition)),
    Reduce: lambda op: (op.value,),
    CumulativeSum: lambda op: (op.value,),
    DotOp: lambda op: (op.left, op.right, *_given(op.accumulator)),
    Loop: lambda op: (op.start, op.stop, *op.initial),
}


def operands(op: Op) -> tuple[Value, ...]:
    """The values that an operation reads; of a loop those from outside that stand in its head."""
    read = _READ.get(type(op))
    return () if read is None else read(op)


def results(op: Op) -> tuple[Value, ...]:
    """The values that an operation defines after itself."""
    if isinstance(op, Loop):
        return op.results
    return () if isinstance(op, Store) else (op.out,)
