"""Element types and how they promote: as torch's do, weak literals and rank-0 tensors included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

FLOATS = ("float16", "bfloat16", "float32", "float64")
NARROW = ("float16", "bfloat16")  # floats that are combined in float32
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = ("uint8", *SIGNED)
DTYPES = (*FLOATS, *INTEGERS, "bool")
CASTS = (*FLOATS, *INTEGERS)
MOST_ELEMENTS = 2**44  # of a tensor: in float64 the 128 TiB that a process can address
ITEM_BYTES = {
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "bool": 1},
    **{"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8},
}
DEFAULT_FLOAT = "float32"  # what an integer becomes where a floating value is needed, as torch's default


class Kind(IntEnum):
    """Category of an element type in torch's sense; the greater of two wins in promotion."""

    BOOL = 0
    INTEGER = 1
    FLOATING = 2


def is_floating(dtype: str) -> bool:
    return dtype in FLOATS


def is_integer(dtype: str) -> bool:
    """Is it signed or unsigned; bool is neither."""
    return dtype in INTEGERS


def kind(dtype: str) -> Kind:
    return Kind.FLOATING if is_floating(dtype) else Kind.BOOL if dtype == "bool" else Kind.INTEGER


@cache
def promote_dtypes(a: str, b: str) -> str:
    """The type of a combination of two elements, neither of them weak."""
    if a == b:
        return a
    if kind(a) != kind(b):
        return a if kind(a) > kind(b) else b
    if is_floating(a):
        return "float32" if {a, b} == {"float16", "bfloat16"} else max(a, b, key=FLOATS.index)
    if "uint8" in (a, b):
        other = b if a == "uint8" else a
        return "int16" if other == "int8" else other
    return max(a, b, key=SIGNED.index)


@dataclass(frozen=True)
class ElementType:
    """Type of a value: `weak` if made of literals, sizes and index variables alone, `scalar` if it has no dimensions:
    nothing in it is an index variable, an element of a tensor with dimensions or such a tensor."""

    dtype: str
    weak: bool = False
    scalar: bool = False

    @property
    def rank(self) -> int:
        """Priority in promotion: tensors with dimensions, then rank-0 tensors, then weak values."""
        return 0 if self.weak else 1 if self.scalar else 2


@cache
def _element(dtype: str, weak: bool, scalar: bool) -> ElementType:
    """The type, one object for all equal ones: it is asked for at each access and promotion."""
    return ElementType(dtype, weak, scalar)


WEAK_INT = ElementType("int64", weak=True, scalar=True)  # a literal's
WEAK_FLOAT = ElementType("float64", weak=True, scalar=True)
WEAK_INDEX = ElementType("int64", weak=True)  # an index variable's


def promote(*types: ElementType) -> ElementType:
    """torch's rule: a lower priority counts only where its category is higher, and then with its default type."""
    result = types[0]
    for t in types[1:]:
        if t is result:
            continue
        high, low = (result, t) if result.rank >= t.rank else (t, result)
        if high.rank == low.rank:
            dtype = promote_dtypes(high.dtype, low.dtype)
        elif kind(low.dtype) <= kind(high.dtype):
            dtype = high.dtype
        else:
            dtype = low.dtype if not low.weak else DEFAULT_FLOAT if is_floating(low.dtype) else "int64"
        result = _element(dtype, high.weak, high.scalar and low.scalar)
    return result


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor. A tensor computed from weak values alone stays weak, as in JAX; one of rank 0
    is `strong` if it is the name of a value that counts like a tensor with dimensions (an element of one, a cast)."""

    shape: tuple[int, ...]
    dtype: str
    weak: bool = False
    strong: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def element(self) -> ElementType:
        return _element(self.dtype, self.weak, not self.shape and not self.strong)


Types = Mapping[str, TensorType]  # of tensors, by name


def shapes_in(types: Types) -> dict[str, tuple[int, ...]]:
    return {name: t.shape for name, t in types.items()}
