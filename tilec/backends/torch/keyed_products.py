"""Products of the rows of each key with its matrices, as generated programs call them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

Tensor = torch.Tensor
# the indices of the operands, kind by kind, and those of the product, in einsum's letters; `z` counts rows
Subscripts = tuple[tuple[Sequence[str], Sequence[str], Sequence[str]], str]


def products_by_key(
    out: Tensor, summed: bool, keys: Tensor, count: int, subscripts: Subscripts, operands: Sequence[Sequence[Tensor]]
) -> None:
    """For each key the product of its rows, its matrices, and tensors of all keys (`operands`),
    into its rows of `out`, or its entry where rows are `summed`. Keys outside of 0 to `count` are nobody's."""
    products = products_of_runs if out.device.type == "cpu" else products_of_masks
    products(out, summed, keys, count, subscripts, operands)


def products_of_runs(
    out: Tensor, summed: bool, keys: Tensor, count: int, subscripts: Subscripts, operands: Sequence[Sequence[Tensor]]
) -> None:
    rows, matrices, shared = operands
    ordered, order = torch.sort(keys, stable=True)
    ends = torch.searchsorted(ordered, torch.arange(count + 1)).tolist()
    equation = _equation(subscripts)
    for n, (first, end) in enumerate(itertools.pairwise(ends)):
        if first < end:
            own = order[first:end]
            stored = [*(r[own] for r in rows), *(m[n] for m in matrices), *shared]
            out[n if summed else own] = _rounded_once(equation, stored, out.dtype)


def products_of_masks(
    out: Tensor, summed: bool, keys: Tensor, count: int, subscripts: Subscripts, operands: Sequence[Sequence[Tensor]]
) -> None:
    """Of all rows for each key, those of others zero: how many are its own would have to be read back from a device."""
    rows, matrices, shared = operands
    (of_rows, of_matrices, of_shared), result = subscripts
    if summed:  # what rows of zeros multiply may be infinite
        rows = [*rows, *(t.expand(len(keys), *t.shape) for t in shared)]
        of_rows, of_shared, shared = [*of_rows, *("z" + term for term in of_shared)], (), ()
    equation = _equation(((of_rows, of_matrices, of_shared), result))
    for n in range(count):
        own = keys == n
        kept = [r.where(own.reshape(-1, *[1] * (r.dim() - 1)), 0) for r in rows]
        product = _rounded_once(equation, [*kept, *(m[n] for m in matrices), *shared], out.dtype)
        if summed:
            out[n] = product
        else:
            torch.where(own.reshape(-1, *[1] * (out.dim() - 1)), product, out, out=out)


def _equation(subscripts: Subscripts) -> str:
    kinds, result = subscripts
    return ",".join(term for kind in kinds for term in kind) + "->" + result


def _rounded_once(equation: str, factors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Such a product in this type; one of several is not rounded between them."""
    compute_dtype = torch.promote_types(dtype, torch.float32)
    exact = len(factors) == 2 or dtype == compute_dtype
    as_is = exact and all(t.dtype == dtype and multiplied_as_stored(t) for t in factors)
    return torch.einsum(equation, *(factors if as_is else [t.to(compute_dtype) for t in factors])).to(dtype)


def multiplied_as_stored(a: Tensor) -> bool:
    return (
        a.device.type != "cpu"
        or a.dtype not in (torch.float16, torch.bfloat16)
        or a.dtype is torch.bfloat16
        and torch.cpu._is_avx512_bf16_supported()
    )
