"""What the oracle holds while it runs: tensors, dimensions, values at points."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from typing import NamedTuple

import numpy as np

from tilec.errors import NameMistake, RankMistake, SizeMistake, Span, TypeMistake
from tilec.ir.oracle.accumulate import wrap
from tilec.ir.types import DTYPES, ElementType, is_integer

GIVE_RANK = "pass an array with as many dimensions as the text gives indices"


class PointValue(NamedTuple):
    """Elements as float64, int64 or bool, broadcast against the points at hand, and their type."""

    data: np.ndarray
    type: ElementType


@dataclass(frozen=True)
class StoredTensor:
    data: np.ndarray
    dtype: str
    weak: bool = False
    strong: bool = False  # of rank 0, but of a value that counts like a tensor with dimensions

    def element(self) -> ElementType:
        return ElementType(self.dtype, weak=self.weak, scalar=not self.data.ndim and not self.strong)


def require_integers(element: ElementType, span: Span | None) -> None:
    if not is_integer(element.dtype):
        raise TypeMistake(f"an index holds integers; this one holds {element.dtype}", span)


class Memory:
    """The tensors and dimensions known so far."""

    def __init__(self) -> None:
        self.tensors: dict[str, StoredTensor] = {}
        self.sizes: dict[str, int] = {}
        self.given: set[str] = set()  # names of inputs

    def bind(self, name: str, dims: tuple[str | int, ...] | None, array, span: Span | None) -> None:
        """Take an input, and the dimensions that it names."""
        self.given.add(name)
        weak = isinstance(array, Number) and not isinstance(array, np.generic)
        array = np.asarray(array)
        dtype = array.dtype.name
        if dtype not in DTYPES:
            raise TypeMistake(f"{name}: element type {dtype} is not supported", span)
        if dims is not None and len(dims) != array.ndim:
            raise RankMistake(f"{name} has {len(dims)} dimensions; the array has {array.ndim}", span, hint=GIVE_RANK)
        for d, size in zip(dims or (), array.shape, strict=False):
            wanted = self.sizes.setdefault(d, size) if isinstance(d, str) else d
            if wanted != size:
                raise SizeMistake(f"{name}: dimension {d} is {wanted}, not {size}", span)
        self.tensors[name] = StoredTensor(wrap(array, dtype), dtype, weak)

    def tensor(self, name: str, span: Span | None) -> StoredTensor:
        if name not in self.tensors:
            raise NameMistake(f"unknown tensor {name}", span)
        return self.tensors[name]
