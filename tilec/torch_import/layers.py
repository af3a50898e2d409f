"""Layers: norms, attention, losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilec.torch_import.elementwise import as_text
from tilec.torch_import.indexing import normalized_dim
from tilec.torch_import.writer import Term, Writer, refuse

aten = torch.ops.aten


def _normalised(
    w: Writer,
    x: Term,
    own: Sequence[int],
    weight: Term | None,
    bias: Term | None,
    scale_at: Callable[[Sequence[str]], Sequence[str]],
    eps: float,
    centred: bool = True,
) -> Term:
    """`own` are the dimensions that statistics sum over; `scale_at` gives the indices of weight and bias."""
    x = w.named(x)
    read = w.indices(x.rank)
    kept = [i for d, i in enumerate(read) if d not in own]
    shape = [n for d, n in enumerate(x.shape) if d not in own]
    here = w.access(x, read)
    if centred:
        mean = w.state(kept, shape, f"mean({here})", hint="mean")
        here = f"({here} - {w.access(mean, kept)})"
    spread = w.state(kept, shape, f"mean({here} * {here})", hint="variance" if centred else "square")
    body = f"{here} * rsqrt({w.access(spread, kept)} + {as_text(eps)}){_affine(w, weight, bias, scale_at(read))}"
    return w.result(read, body)


def _affine(w: Writer, weight: Term | None, bias: Term | None, at: Sequence[str]) -> str:
    scale = "" if weight is None else f" * {w.access(weight, at)}"
    return scale if bias is None else f"{scale} + {w.access(bias, at)}"


def _layer_norm(
    w: Writer,
    x: Term,
    shape: Sequence[int],
    weight: Term | None = None,
    bias: Term | None = None,
    eps: float = 1e-5,
    *_: object,
    centred: bool = True,
) -> Term:
    own = range(x.rank - len(shape), x.rank)
    return _normalised(w, x, own, weight, bias, lambda read: read[own[0] :], eps, centred)


def rms_norm(w: Writer, x: Term, shape: Sequence[int], weight: Term | None = None, eps: float | None = None) -> Term:
    small = torch.finfo(w.meta.dtype).eps if eps is None else eps
    return _layer_norm(w, x, shape, weight, None, small, centred=False)


def group_norm(
    w: Writer, x: Term, groups: int, weight: Term | None = None, bias: Term | None = None, eps: float = 1e-5, *_: object
) -> Term:
    """Channels are divided into groups by a reshape, and put together again."""
    size = int(x.shape[1]) // groups
    parts = (x.shape[0], groups, size, *x.shape[2:])
    text = ", ".join(map(w.size, parts))
    apart = w.named(Term(f"reshape({w.named(x).text}, {text})", parts, x.dtype, is_name=False), "groups")
    own = range(2, len(parts))
    wide = w.of(w.meta.unflatten(1, (groups, size)))
    found = _normalised(wide, apart, own, weight, bias, lambda read: [f"{size}*{read[1]} + {read[2]}"], eps)
    return w.expression(f"reshape({found.text}, {', '.join(map(w.size, w.meta.shape))})")


def batch_norm_of_batch(
    w: Writer, x: Term, weight: Term | None, bias: Term | None, training: bool, momentum: float, eps: float
) -> tuple[Term, ...]:
    own = [d for d in range(x.rank) if d != 1]
    return (_normalised(w, x, own, weight, bias, lambda read: [read[1]], eps),)


def batch_norm_kept(
    w: Writer, x: Term, weight: Term | None, bias: Term | None, mean: Term, variance: Term, momentum: float, eps: float
) -> tuple[Term, ...]:
    read = w.indices(x.rank)
    c = [read[1]]
    body = f"({w.access(x, read)} - {w.access(mean, c)}) * rsqrt({w.access(variance, c)} + {as_text(eps)})"
    return (w.result(read, body + _affine(w, weight, bias, c)),)


def attention(
    w: Writer,
    q: Term,
    k: Term,
    v: Term,
    mask: Term | None = None,
    p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Term:
    if p or enable_gqa:
        raise refuse("scaled_dot_product_attention with dropout or enable_gqa")
    if scale is None and not isinstance(q.shape[-1], int):
        factor = f"rsqrt({w.size(q.shape[-1])})"
    else:
        factor = as_text(float(q.shape[-1]) ** -0.5 if scale is None else scale)
    q, k, v = (w.named(x) for x in (q, k, v))
    lead = w.indices(w.meta.dim() + 2)
    *batch, i, j, e, f = lead
    shape = list(w.meta.shape[:-2])
    scores = f"{factor} * sum({w.access(q, [*batch, i, e])} * {w.access(k, [*batch, j, e])})"
    guard = f"{i} - {j} >= 0 ? " if is_causal else ""
    wide = [*shape, q.shape[-2], k.shape[-2]]
    if mask is not None and mask.dtype == torch.bool:
        guard = f"{w.broadcast(mask, [*batch, i, j], wide)} ? "
    elif mask is not None:
        scores += f" + {w.broadcast(mask, [*batch, i, j], wide)}"
    s = w.access(w.state([*batch, i, j], wide, scores, hint="scores"), [*batch, i, j])
    total = w.state([*batch, i], wide[:-1], f"logsumexp({guard}{s})", hint="total")
    body = f"sum({guard}exp({s} - {w.access(total, [*batch, i])}) * {w.access(v, [*batch, j, f])})"
    return w.result([*batch, i, f], body)


def cross_entropy(
    w: Writer,
    x: Term,
    target: Term,
    weight: Term | None = None,
    reduction: int = 1,
    ignored: object = -100,
    smoothing: float = 0.0,
) -> Term:
    """Labels outside the classes count nothing, which is what `ignore_index` means."""
    counted = not isinstance(ignored, int) or ignored >= 0
    if weight is not None or smoothing or target.dtype.is_floating_point or counted:
        raise refuse("cross_entropy with weights, smoothing, probabilities as targets or another ignore_index")
    x, target = w.named(x), w.named(target)
    at = w.indices(target.rank + 1)
    rows, v = at[:-1], at[-1]
    channel = 1 if x.rank > 1 else 0
    everything = [*rows[:channel], v, *rows[channel:]]
    picked = [*rows[:channel], w.access(target, rows), *rows[channel:]]
    total = w.state(rows, target.shape, f"logsumexp({w.access(x, everything)})", hint="total")
    return _loss(w, rows, f"{w.access(total, rows)} - {w.access(x, picked)}", reduction)


def _loss(w: Writer, indices: list[str], term: str, reduction: int) -> Term:
    if reduction == 0:
        return w.result(indices, term)
    return w.state([], [], f"{'mean' if reduction == 1 else 'sum'}({term})")


def losses(body: str) -> Callable[..., Term]:
    """`{0}` and `{1}` are the elements of prediction and target."""

    def write(w: Writer, x: Term, y: Term, reduction: int = 1) -> Term:
        x, y = w.named(x), w.named(y)
        shape = torch.broadcast_shapes(x.shape, y.shape)
        i = w.indices(len(shape))
        return _loss(w, i, body.format(w.broadcast(x, i, shape), w.broadcast(y, i, shape)), reduction)

    return write


def similarity(w: Writer, a: Term, b: Term, dim: int = 1, eps: float = 1e-8) -> Term:
    a, b = w.named(a), w.named(b)
    shape = torch.broadcast_shapes(a.shape, b.shape)
    i = w.indices(len(shape))
    out = [x for d, x in enumerate(i) if d != normalized_dim(dim, len(shape))]
    x, y = w.broadcast(a, i, shape), w.broadcast(b, i, shape)
    body = f"sum({x} * {y}) / (max(sqrt(sum({x} * {x})), {as_text(eps)}) * max(sqrt(sum({y} * {y})), {as_text(eps)}))"
    return w.result(out, body)


HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.layer_norm.default: _layer_norm,
    aten.rms_norm.default: rms_norm,
    aten.group_norm.default: group_norm,
    aten._native_batch_norm_legit.no_stats: batch_norm_of_batch,
    aten._native_batch_norm_legit_no_training.default: batch_norm_kept,
    aten.scaled_dot_product_attention.default: attention,
    aten.cross_entropy_loss.default: cross_entropy,
    aten.mse_loss.default: losses("({0} - {1}) * ({0} - {1})"),
    aten.l1_loss.default: losses("abs({0} - {1})"),
    aten.cosine_similarity.default: similarity,
    aten.binary_cross_entropy_with_logits.default: lambda w, x, y, weight=None, pos=None, reduction=1: losses(
        "softplus({0}) - {0} * {1}"
    )(w, x, y, reduction),
}
