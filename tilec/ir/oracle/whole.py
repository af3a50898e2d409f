"""Functions of whole tensors, in NumPy: reshape, gather, scatter, simple_reduce, index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilec.errors import RankMistake, SizeMistake, Span


def axis_coordinates(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """The coordinate of each element along an axis."""
    sizes = [-1 if d == axis else 1 for d in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis]).reshape(sizes), shape)


def reshape(data: np.ndarray, sizes: Sequence[int], span: Span | None) -> np.ndarray:
    if any(n < 0 for n in sizes) or int(np.prod(sizes, dtype=object)) != data.size:
        raise SizeMistake(f"a tensor of shape {data.shape} cannot be reshaped to {tuple(sizes)}", span)
    return data.reshape(sizes)


def take_slices(data: np.ndarray, indices: np.ndarray, span: Span | None) -> np.ndarray:
    """Slices of data along its first axis; zeros where the index is out of range."""
    if not data.ndim:
        raise RankMistake("gather needs a tensor with a dimension to choose from", span)
    good = (indices >= 0) & (indices < data.shape[0])
    result = np.zeros((*np.shape(indices), *data.shape[1:]), data.dtype)
    result[good] = data[indices[good]]
    return result


def add_slices(data: np.ndarray, indices: np.ndarray, shape: tuple[int, ...], span: Span | None) -> np.ndarray:
    """Zeros of a shape with data's slices added where the indices say."""
    rank = np.ndim(indices)
    if not shape or data.shape[:rank] != np.shape(indices) or data.shape[rank:] != shape[1:]:
        raise SizeMistake(f"scatter: shapes do not fit: {data.shape} at {np.shape(indices)} into {shape}", span)
    result = np.zeros(shape, data.dtype)
    good = (indices >= 0) & (indices < shape[0])
    np.add.at(result, indices[good], data[good])
    return result


def simple_reduce(data: np.ndarray, shape: tuple[int, ...], span: Span | None) -> np.ndarray:
    """Data summed over the axes along which a tensor of the shape would be broadcast to data's."""
    lead = data.ndim - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, data.shape[lead:], strict=True)):
        raise SizeMistake(f"{data.shape} does not reduce to {shape}", span)
    axes = (*range(lead), *(lead + d for d, n in enumerate(shape) if n == 1 and data.shape[lead + d] != 1))
    return data.sum(axis=axes, dtype=np.float64 if data.dtype == np.float64 else np.int64).reshape(shape)
