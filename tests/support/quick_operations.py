"""Operators of interpreted blocks, without the steps between an operator and NumPy's function.

Triton's interpreter derives the types of each operation, casts and broadcasts before NumPy does it again. Two types, or
a type and a number, give the same type each time: the interpreter derives it once. That serves operands of one element
type, integers and floats of 32 and 64 bits and truth, of which NumPy's functions give what the interpreter gives;
anything else goes the interpreter's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

ARITHMETIC = {
    t.name: n
    for t, n in ((tl.int32, np.int32), (tl.int64, np.int64), (tl.float32, np.float32), (tl.float64, np.float64))
}
ARITHMETIC_OPERATORS: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
INTEGERS = {"int32", "int64"}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
LOGICAL: dict[str, Callable[..., Any]] = {"and": np.bitwise_and, "or": np.bitwise_or}
OWN_PATCH = interpreter._patch_attr
TYPES: dict[tuple, tl.dtype | None] = {}  # of results, by operator and the types of its operands; None: not served
NUMBERS: dict[tuple, np.ndarray] = {}  # by value, its class and the type it takes
WHOLE = slice(None)


def handle_of(data: np.ndarray, dtype: tl.dtype) -> TensorHandle:
    """A handle whose data have its type's size."""
    handle = TensorHandle.__new__(TensorHandle)
    handle.data, handle.dtype, handle.attr = data, dtype, {}
    return handle


def _number(value: float, dtype: tl.dtype) -> np.ndarray | None:
    """An operand of one element; None where the type does not hold it."""
    key = (value, type(value), dtype.name)
    if key not in NUMBERS:
        kind: Any = ARITHMETIC[dtype.name]
        if isinstance(value, int) and dtype.is_int() and not np.iinfo(kind).min <= value <= np.iinfo(kind).max:
            return None
        NUMBERS[key] = np.array([value], dtype=kind)
    return NUMBERS[key]


def _learned(key: tuple, own: Callable[..., tl.tensor], a: tl.tensor, b: Any, types: Any) -> tl.tensor:
    """What the interpreter computes, from which the type of the next such operation is known."""
    result = own(a, b)
    served = a.dtype.name in types
    if isinstance(b, tl.tensor):
        served = served and (a.dtype.name == b.dtype.name or {a.dtype.name, b.dtype.name} == INTEGERS)
    else:  # a number takes the type of the tensor
        served = served and (a.dtype.is_floating() or type(b) is int)
    TYPES[key] = result.type if served else None
    return result


def _operator(own: Callable[..., tl.tensor], function: Callable[..., Any], types: Any, reverse: bool) -> Any:
    def apply(self: tl.tensor, other: Any) -> tl.tensor:
        if type(other) is tl.constexpr:
            other = other.value
        kind = type(other)
        if kind is tl.tensor:
            key = (function, self.type.name, other.type.name)
        elif kind is int or kind is float:
            key = (function, self.type.name, kind)
        else:
            return own(self, other)
        if key not in TYPES:
            return _learned(key, own, self, other, types)
        found = TYPES[key]
        if found is None:
            return own(self, other)
        value = other.handle.data if kind is tl.tensor else _number(other, self.dtype)
        if value is None:
            return own(self, other)
        a = self.handle.data
        data = function(value, a) if reverse else function(a, value)
        return tl.tensor(handle_of(data, tl.int1 if data.dtype == bool else found.scalar), found)

    return apply


def _addition(own: Callable[..., tl.tensor], reverse: bool) -> Any:
    """An addition, of an offset to a pointer too."""
    apply = _operator(own, np.add, ARITHMETIC, reverse)

    def add(self: tl.tensor, other: Any) -> tl.tensor:
        if not self.type.scalar.is_ptr() or type(other) is not tl.tensor or other.dtype.name not in INTEGERS:
            return apply(self, other)
        key = ("offset", self.type.name, other.type.name)
        if key not in TYPES:
            result = own(self, other)
            TYPES[key] = result.type
            return result
        found = TYPES[key]
        assert found is not None
        return tl.tensor(interpreter.interpreter_builder.create_addptr(self.handle, other.handle), found)

    return add


def _item(own: Callable[..., tl.tensor]) -> Any:
    """A block with further axes of one element."""

    def item(self: tl.tensor, places: Any) -> tl.tensor:
        if type(places) is not tuple or not self.type.is_block():
            return own(self, places)
        key = ("item", self.type.name, tuple([p is None for p in places]))
        if any(p is not None and p != WHOLE for p in places):
            return own(self, places)
        if key not in TYPES:
            result = own(self, places)
            TYPES[key] = result.type
            return result
        found = TYPES[key]
        assert found is not None
        return tl.tensor(handle_of(self.handle.data[places], self.handle.dtype.scalar), found)

    return item


def _quick(name: str, own: Callable[..., tl.tensor]) -> Any:
    """The operator of this name; None where the interpreter's is as quick."""
    bare = name.strip("_")
    reverse = bare[1:] in ARITHMETIC_OPERATORS and bare.startswith("r")
    bare = bare[1:] if reverse else bare
    if bare == "getitem":
        return _item(own)
    if bare == "add":
        return _addition(own, reverse)
    if bare in ARITHMETIC_OPERATORS:
        return _operator(own, ARITHMETIC_OPERATORS[bare], ARITHMETIC, reverse)
    if bare in COMPARISONS:
        return _operator(own, COMPARISONS[bare], ARITHMETIC, False)
    if bare in LOGICAL:
        return _operator(own, LOGICAL[bare], ("int1", "int32", "int64"), False)
    return None


def patch(owner: Any, name: str, member: Any, *scope: Any) -> None:
    """A function of the language with the interpreter's semantics, and where there is a quick operator, that before
    it. What the interpreter sets first is what it restores afterwards."""
    OWN_PATCH(owner, name, member, *scope)
    own = getattr(member, "__wrapped__", member)

    def called(*arguments: Any, **options: Any) -> Any:
        options["_semantic"] = interpreter.interpreter_semantic
        return own(*arguments, **options)

    quick = _quick(name, called) if owner is tl.tensor and name.startswith("__") else None
    setattr(owner, name, quick or called)
