"""Reductions, scans and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilec.torch_import.elementwise import LEVELS, number
from tilec.torch_import.indexing import place
from tilec.torch_import.writer import Value, Writer, name_of, refuse

aten = torch.ops.aten


def reduced(w: Writer, meta: torch.Tensor, x: Value, dims: Sequence[int] | None, keep: bool, body: str) -> Value:
    """`body` holds `{0}` for the access; dimensions that are kept have size 1."""
    summed = {place(d, x.rank) for d in dims} if dims else set(range(x.rank))
    read = w.indices(x.rank)
    if not keep:
        out = [i for d, i in enumerate(read) if d not in summed]
    else:
        free = w.indices(2 * x.rank)[x.rank :]
        out = [free[d] if d in summed else i for d, i in enumerate(read)]
    return w.state(out, meta.shape, body.format(w.access(x, read)), meta.dtype)


def reduction(name: str) -> Callable[..., Value]:
    def write(w: Writer, meta: torch.Tensor, x: Value, dims: object = None, keep: bool = False, **_: object) -> Value:
        dims = [dims] if isinstance(dims, int) else dims
        if not x.rank:
            return (
                x if x.dtype == meta.dtype else Value(f"{name_of(meta.dtype)}({x.text})", (), meta.dtype, is_name=False)
            )
        inner = f"{name_of(meta.dtype)}({{0}})" if name in ("sum", "prod", "mean") and x.dtype != meta.dtype else "{0}"
        return reduced(w, meta, x, dims, keep, f"{name}({inner})")  # type: ignore[arg-type]

    return write


def variance(
    w: Writer,
    meta: torch.Tensor,
    x: Value,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
) -> Value:
    return moments(w, meta, x, dims, 1 if correction is None else correction, keepdim)[0]


def deviation(
    w: Writer,
    meta: torch.Tensor,
    x: Value,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
) -> Value:
    found = variance(w, meta, x, dims, correction=correction, keepdim=keepdim)
    return Value(f"sqrt({found.text})", found.shape, found.dtype, is_name=False)


def variance_and_mean(
    w: Writer,
    metas: Sequence[torch.Tensor],
    x: Value,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
) -> tuple[Value, ...]:
    return moments(w, metas[0], x, dims, 1 if correction is None else correction, keepdim)


def moments(
    w: Writer, meta: torch.Tensor, x: Value, dims: Sequence[int] | None, correction: float, keep: bool
) -> tuple[Value, Value]:
    """Variance and mean over dimensions."""
    summed = sorted({place(d, x.rank) for d in dims} if dims else range(x.rank))
    x = w.named(x)
    mean = reduced(w, meta, x, dims, keep, "mean({0})")
    read = w.indices(x.rank)
    extra = w.indices(2 * x.rank)[x.rank :]
    at = (
        [("0" if d in summed else i) for d, i in enumerate(read)]
        if keep
        else [i for d, i in enumerate(read) if d not in summed]
    )
    out = [extra[d] if d in summed else i for d, i in enumerate(read)] if keep else at
    apart = f"({w.access(x, read)} - {w.access(mean, at)})"
    if correction == 0:
        return w.state(out, meta.shape, f"mean({apart} * {apart})", meta.dtype), mean
    count = " * ".join(w.size(x.shape[d]) for d in summed)
    squares = w.state(out, meta.shape, f"sum({apart} * {apart}) / ({count} - {number(correction)})", meta.dtype)
    return squares, mean


def norm(
    w: Writer,
    meta: torch.Tensor,
    x: Value,
    order: float = 2,
    dims: Sequence[int] | None = None,
    keep: bool = False,
    **_: object,
) -> Value:
    bodies = {2: "sqrt(sum({0} * {0}))", 1: "sum(abs({0}))", float("inf"): "max(abs({0}))"}
    if order not in bodies:
        raise refuse(f"a norm of order {order}")
    return reduced(w, meta, w.named(x), dims, keep, bodies[order])


def extremum(name: str) -> Callable[..., tuple[Value, ...]]:
    def write(w: Writer, metas: Sequence[torch.Tensor], x: Value, dim: int, keep: bool = False) -> tuple[Value, ...]:
        x = w.named(x)
        return (
            reduced(w, metas[0], x, [dim], keep, f"{name}({{0}})"),
            reduced(w, metas[1], x, [dim], keep, f"arg{name}({{0}})"),
        )

    return write


def position(name: str) -> Callable[..., Value]:
    def write(w: Writer, meta: torch.Tensor, x: Value, dim: int | None = None, keep: bool = False) -> Value:
        return reduced(w, meta, x, None if dim is None else [dim], keep, f"{name}({{0}})")

    return write


def scanned(name: str) -> Callable[..., Value]:
    def write(w: Writer, meta: torch.Tensor, x: Value, dim: int, **_: object) -> Value:
        dim = place(dim, x.rank)
        *out, s = w.indices(x.rank + 1)
        read = [*out[:dim], s, *out[dim + 1 :]]
        inner = w.access(x, read) if x.dtype == meta.dtype else f"{name_of(meta.dtype)}({w.access(x, read)})"
        limit = f"{out[dim]} - {s} < {w.size(x.shape[dim])}"
        return w.state(out, meta.shape, f"{name}({inner})", meta.dtype, constraints=[limit])

    return write


def softmax(w: Writer, meta: torch.Tensor, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    x, read, total = _normalised(w, meta, x, dim)
    return w.state(read, meta.shape, f"exp({w.access(x, read)} - {total})", meta.dtype)


def log_softmax(w: Writer, meta: torch.Tensor, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    x, read, total = _normalised(w, meta, x, dim)
    return w.state(read, meta.shape, f"{w.access(x, read)} - {total}", meta.dtype)


def _normalised(w: Writer, meta: torch.Tensor, x: Value, dim: int) -> tuple[Value, list[str], str]:
    x = w.named(x)
    if x.dtype != meta.dtype:
        x = w.named(Value(f"{name_of(meta.dtype)}({x.text})", x.shape, meta.dtype, is_name=False))
    dim = place(dim, x.rank)
    *read, other = w.indices(x.rank + 1)
    return x, read, f"logsumexp({w.access(x, [*read[:dim], other, *read[dim + 1 :]])})"


def product(w: Writer, meta: torch.Tensor, a: Value, b: Value) -> Value:
    """`a @ b` for every rank: vectors, matrices, batches that broadcast."""
    *out, k = w.indices(meta.dim() + 1)
    batch = out[: meta.dim() - (a.rank > 1) - (b.rank > 1)]
    rows, columns = out[len(batch) : len(batch) + (a.rank > 1)], out[len(out) - 1 :] if b.rank > 1 else []
    left = _batched(w, a, batch, meta, [*rows, k])
    right = _batched(w, b, batch, meta, [k, *columns])
    return w.state(out, meta.shape, f"sum({left} * {right})", meta.dtype)


def _batched(w: Writer, x: Value, batch: Sequence[str], meta: torch.Tensor, inner: Sequence[str]) -> str:
    count = x.rank - len(inner)
    far = list(meta.shape)[len(batch) - count : len(batch)]
    own = list(batch)[len(batch) - count :]
    pairs = zip(x.shape, far, own, strict=False)
    outer = ["0" if w.size(n) == "1" and w.size(m) != "1" else i for n, m, i in pairs]
    return w.access(x, [*outer, *inner])


def linear(w: Writer, meta: torch.Tensor, x: Value, weight: Value, bias: Value | None = None) -> Value:
    *out, k = w.indices(meta.dim() + 1)
    body = f"sum({w.access(x, [*out[:-1], k])} * {w.access(weight, [out[-1], k])})"
    if bias is not None:
        body += f" + {w.access(bias, [out[-1]])}"
    return w.state(out, meta.shape, body, meta.dtype)


def added(w: Writer, meta: torch.Tensor, c: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    """`beta * c + alpha * (a @ b)`."""
    found = product(w, meta, a, b)
    right = found.text if alpha == 1 else f"{number(alpha)} * {found.text}"
    left = w.named(c).text if beta == 1 else f"{number(beta)} * {w.named(c).text}"
    return Value(f"{left} + {right}", tuple(meta.shape), meta.dtype, LEVELS["+"], is_name=False)


def einsum(w: Writer, meta: torch.Tensor, equation: str, tensors: Sequence[Value], **_: object) -> Value:
    if "." in equation:
        raise refuse("einsum with `...`")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = "".join(terms)
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    # a letter over dimensions of 1 and of more is read at 0 where the dimension is 1
    longest = {
        c: w.size(n)
        for term, x in zip(terms, tensors, strict=True)
        for c, n in zip(term, x.shape, strict=True)
        if w.size(n) != "1"
    }
    letter = {c: (c if c.islower() else f"{c.lower()}_upper") for c in "".join(terms)}
    factors = [
        w.access(
            x, ["0" if w.size(n) == "1" and c in longest else letter[c] for c, n in zip(term, x.shape, strict=True)]
        )
        for term, x in zip(terms, tensors, strict=True)
    ]
    return w.state([letter[c] for c in right], meta.shape, f"sum({' * '.join(factors)})", meta.dtype)


def trilinear(
    w: Writer,
    meta: torch.Tensor,
    a: Value,
    b: Value,
    c: Value,
    wide_a: Sequence[int],
    wide_b: Sequence[int],
    wide_c: Sequence[int],
    summed: Sequence[int],
    *_: object,
) -> Value:
    """The product of three tensors, each with dimensions of 1 put in at `wide_...`, summed over some."""
    rank = a.rank + len(wide_a)
    i = w.indices(rank)
    factors = []
    for x, wide in ((a, wide_a), (b, wide_b), (c, wide_c)):
        factors.append(w.access(x, [v for d, v in enumerate(i) if d not in wide]))
    out = [v for d, v in enumerate(i) if d not in summed]
    return w.state(out, meta.shape, f"sum({' * '.join(factors)})", meta.dtype)


def outer(w: Writer, meta: torch.Tensor, a: Value, b: Value) -> Value:
    i, j = w.indices(2)
    return w.state([i, j], meta.shape, f"{w.access(a, [i])} * {w.access(b, [j])}", meta.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.sum.default: reduction("sum"),
    aten.sum.dim_IntList: reduction("sum"),
    aten.mean.default: reduction("mean"),
    aten.mean.dim: reduction("mean"),
    aten.prod.default: reduction("prod"),
    aten.prod.dim_int: reduction("prod"),
    aten.amax.default: reduction("max"),
    aten.amin.default: reduction("min"),
    aten.max.default: reduction("max"),
    aten.min.default: reduction("min"),
    aten.logsumexp.default: reduction("logsumexp"),
    aten.any.default: reduction("any"),
    aten.any.dim: reduction("any"),
    aten.all.default: reduction("all"),
    aten.all.dim: reduction("all"),
    aten.max.dim: extremum("max"),
    aten.min.dim: extremum("min"),
    aten.argmax.default: position("argmax"),
    aten.argmin.default: position("argmin"),
    aten.var.correction: variance,
    aten.std.correction: deviation,
    aten.var_mean.correction: variance_and_mean,
    aten.linalg_vector_norm.default: norm,
    aten.cumsum.default: scanned("sum"),
    aten.cumprod.default: scanned("prod"),
    aten.logcumsumexp.default: scanned("logsumexp"),
    aten.softmax.int: softmax,
    aten.log_softmax.int: log_softmax,
    aten.mm.default: product,
    aten.bmm.default: product,
    aten.matmul.default: product,
    aten.mv.default: product,
    aten.dot.default: product,
    aten.linear.default: linear,
    aten.addmm.default: added,
    aten.baddbmm.default: added,
    aten.addmv.default: added,
    aten.einsum.default: einsum,
    aten.outer.default: outer,
    aten._trilinear.default: trilinear,
}
