"""Products of exponentials as matrix products: shifted by maxima, with a certificate for each element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilec.backends.common.scalars import LEAST_CERTAIN
from tilec.backends.torch.certainty import askable, below_infinity, finite

Tensor = torch.Tensor
Ints = Sequence[int]
CERTAIN = {getattr(torch, dtype): least for dtype, least in LEAST_CERTAIN.items()}


def log_product(a: Tensor, b: Tensor, budget: int) -> Tensor:
    """`logsumexp_k(a[..., i, k] + b[..., k, j])` by a matrix product of exponentials, shifted by row and column maxima.

    What underflow loses of a sum of K terms is a few K * 2^-126 (float64: 2^-1022), so where the sum is at least
    K * 2^-99 (2^-966) it is as accurate as the product's arithmetic. The other elements, and those that are not finite,
    are computed again term by term, within `budget` bytes; where no term is above -inf they are just that. All elements
    are, where it cannot be asked which. The larger maxima are added last: small ones may be constants of a recurrence,
    which would be rounded alike at each step.
    """
    if not askable(a):
        return _log_directly(a, b, budget)
    count = a.shape[-1]
    top_a, top_b = _finite_or_zero(a.amax(-1, keepdim=True)), _finite_or_zero(b.amax(-2, keepdim=True))
    total = torch.matmul(torch.exp(a - top_a), torch.exp(b - top_b))
    larger_b = 0 not in total.shape and bool(top_a.abs().amax() < top_b.abs().amax())
    first, last = (top_a, top_b) if larger_b else (top_b, top_a)
    result = torch.log(total).add_(first).add_(last)
    certain = (total >= count * CERTAIN[a.dtype]) & (total < float("inf"))
    if not certain.all():
        _recompute_log(a, b, result, ~certain, budget)
    return result


def log_factor(b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A right operand of `log_step`: itself, its column maxima, and its exponentials below them."""
    top = _finite_or_zero(b.amax(-2, keepdim=True))
    return b, top, torch.exp(b - top)


def log_step(a: Tensor, factor: tuple[Tensor, Tensor, Tensor], budget: int) -> Tensor:
    """`log_product` by the same matrix again and again; where something is not sure, by that function."""
    b, top_b, exponentials = factor
    if not askable(a):
        return _log_directly(a, b, budget)
    top_a = a.amax(-1, keepdim=True)
    total = torch.matmul(torch.sub(a, top_a).exp_(), exponentials)
    least, most = torch.aminmax(total)
    if least >= a.shape[-1] * CERTAIN[a.dtype] and most < float("inf"):
        return total.log_().add_(top_b).add_(top_a)
    return log_product(a, b, budget)


def _finite_or_zero(t: Tensor) -> Tensor:
    return torch.where(torch.isfinite(t), t, 0.0)


def exponential_product(
    w: Tensor, weights: Tensor | int, right: tuple[Tensor, Tensor], u: Tensor, outer: Tensor | int, valid: Tensor | None
) -> Tensor | None:
    """Sum over k of `weights[.., i, k] * exp(w[.., i, k] + v[.., k, j] + u[.., i, j]) * factor[.., k, j]`, times
    `outer[.., i, j]`, where `valid`, with `right` the `right_factor` of v and factor; None where that is not sure to be
    as accurate as adding the terms up."""
    if not askable(u):
        return None
    top_u, (top_v, powers) = _finite_or_zero(u.amax(-1, keepdim=True)), right
    exponent = w + top_u + top_v.mT
    if valid is not None:
        exponent = exponent.masked_fill(~valid, float("-inf"))
    if not exponent.amax() <= -math.log(powers.shape[-2] * CERTAIN[u.dtype]):
        return None
    inner = exponent.exp_() * weights
    if valid is not None:
        inner = inner.masked_fill(~valid, 0.0)
    result = torch.matmul(inner, powers) * torch.exp(u - top_u) * outer
    return result if finite(result) else None


def right_factor(v: Tensor, factor: Tensor | int) -> tuple[Tensor, Tensor]:
    """Row maxima of v, and its exponentials below them times a factor."""
    top = _finite_or_zero(v.amax(-1, keepdim=True))
    return top, torch.exp(v - top) * factor


def exponential_step(
    w: Tensor,
    weights: Tensor | int,
    right: tuple[Tensor, Tensor],
    u: Tensor,
    outer: Tensor | int,
    valid: Tensor | None,
    shape: Ints,
    places: Ints,
) -> Tensor | None:
    """`exponential_product` with its dimensions taken apart and put in order: `places` says which of `shape` each
    dimension of the result is, -1 for one of size 1."""
    result = exponential_product(w, weights, right, u, outer, valid)
    if result is None:
        return None
    result = result.reshape(shape).permute([p for p in places if p >= 0])
    return result[tuple(slice(None) if p >= 0 else None for p in places)]


def _log_directly(a: Tensor, b: Tensor, budget: int) -> Tensor:
    """A log product term by term, within `budget` bytes or one row of it."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (rows, count), columns = a.shape[-2:], b.shape[-1]
    result = a.new_empty((*batch, rows, columns))
    step = max(1, budget // max(1, 4 * a.element_size() * count * columns * math.prod(batch)))
    for first in range(0, rows, step):
        terms = a[..., first : first + step, :, None] + b[..., None, :, :]
        result[..., first : first + step, :] = torch.logsumexp(terms, -2)
    return result


def _recompute_log(a: Tensor, b: Tensor, result: Tensor, failed: Tensor, budget: int) -> None:
    """Compute the failed elements of a log product term by term, into `result`."""
    if below_infinity(a, b):
        support = torch.matmul((a != float("-inf")).to(a.dtype), (b != float("-inf")).to(a.dtype))
        result.masked_fill_(support == 0, float("-inf"))
        failed = failed & (support > 0)
    batch = result.shape[:-2]
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    step = max(1, budget // (4 * a.element_size() * a.shape[-1]))
    places = failed.nonzero()
    for first in range(0, len(places), step):
        *lead, i, j = places[first : first + step].unbind(-1)
        terms = a[(*lead, i)] + b.mT[(*lead, j)]
        result[(*lead, i, j)] = torch.logsumexp(terms, -1)
