"""Triton's interpreter makes the types of blocks anew at each operation, which takes most of its time. Here what
follows from the name of a type is made once; what operations compute remains the interpreter's."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

OWN_BLOCK, OWN_TENSOR, OWN_EQUAL = tl.block_type.__init__, tl.tensor.__init__, tl.dtype.__eq__
OWN_UNWRAP, OWN_NUMPY_TYPE = core._unwrap_if_constexpr, interpreter._get_np_dtype
OWN_BROADCAST = TritonSemantic.broadcast_impl_value
BLOCKS: dict[tuple, dict[str, Any]] = {}  # attributes, by element type and sizes
TENSORS: dict[str, dict[str, Any]] = {}  # attributes besides the handle, by type
NUMPY_TYPES: dict[str, Any] = {}
UNWRAPPED: dict[type, bool] = {}  # the classes of which unwrapping gives something else


def _block(self: Any, element_ty: tl.dtype, shape: Any) -> None:
    sizes = shape.values if isinstance(shape, tl.tuple) else shape
    key = (element_ty.name, *(s.value if isinstance(s, tl.constexpr) else s for s in sizes))
    if key not in BLOCKS:
        OWN_BLOCK(self, element_ty, shape)
        BLOCKS[key] = dict(vars(self))
    vars(self).update(BLOCKS[key])


def _tensor(self: Any, handle: Any, type: tl.dtype) -> None:
    if type.name not in TENSORS:
        OWN_TENSOR(self, handle, type)
        TENSORS[type.name] = dict(vars(self))
    vars(self).update(TENSORS[type.name])
    self.handle = handle


def _equal(self: tl.dtype, other: object) -> bool:
    return self is other or OWN_EQUAL(self, other)


def _unwrap(value: Any) -> Any:
    kind = type(value)
    if kind not in UNWRAPPED:
        UNWRAPPED[kind] = issubclass(kind, (list, tuple, tl.tuple, tl.constexpr))
    return OWN_UNWRAP(value) if UNWRAPPED[kind] else value


def _numpy_type(dtype: tl.dtype) -> Any:
    if dtype.name not in NUMPY_TYPES:
        NUMPY_TYPES[dtype.name] = OWN_NUMPY_TYPE(dtype)
    return NUMPY_TYPES[dtype.name]


def _broadcast(self: TritonSemantic, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    a, b = lhs.type, rhs.type
    if a.is_block() and b.is_block() and a.shape.values == b.shape.values:
        return lhs, rhs
    return OWN_BROADCAST(self, lhs, rhs)


def hasten() -> None:
    tl.block_type.__init__, tl.tensor.__init__ = _block, _tensor
    tl.dtype.__eq__ = _equal
    core._unwrap_if_constexpr, interpreter._get_np_dtype = _unwrap, _numpy_type
    TritonSemantic.broadcast_impl_value = _broadcast
