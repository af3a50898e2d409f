"""Reductions, scans and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilec.torch_import.elementwise import BINDING, as_text
from tilec.torch_import.indexing import normalized_dim
from tilec.torch_import.writer import Term, Writer, name_of, refuse

aten = torch.ops.aten


def _reduced(w: Writer, meta: torch.Tensor, x: Term, dims: Sequence[int] | None, keep: bool, body: str) -> Term:
    """`body` holds `{0}` for the access; dimensions that are kept have size 1."""
    summed = {normalized_dim(d, x.rank) for d in dims} if dims else set(range(x.rank))
    read = w.indices(x.rank)
    if not keep:
        out = [i for d, i in enumerate(read) if d not in summed]
    else:
        free = w.indices(2 * x.rank)[x.rank :]
        out = [free[d] if d in summed else i for d, i in enumerate(read)]
    return w.state(out, meta.shape, body.format(w.access(x, read)), meta.dtype)


def _reduction(name: str) -> Callable[..., Term]:
    def write(w: Writer, meta: torch.Tensor, x: Term, dims: object = None, keep: bool = False, **_: object) -> Term:
        dims = [dims] if isinstance(dims, int) else dims
        if not x.rank:
            return (
                x if x.dtype == meta.dtype else Term(f"{name_of(meta.dtype)}({x.text})", (), meta.dtype, is_name=False)
            )
        inner = f"{name_of(meta.dtype)}({{0}})" if name in ("sum", "prod", "mean") and x.dtype != meta.dtype else "{0}"
        return _reduced(w, meta, x, dims, keep, f"{name}({inner})")  # type: ignore[arg-type]

    return write


def variance(
    w: Writer,
    meta: torch.Tensor,
    x: Term,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
) -> Term:
    return moments(w, meta, x, dims, 1 if correction is None else correction, keepdim)[0]


def deviation(
    w: Writer,
    meta: torch.Tensor,
    x: Term,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
) -> Term:
    found = variance(w, meta, x, dims, correction=correction, keepdim=keepdim)
    return Term(f"sqrt({found.text})", found.shape, found.dtype, is_name=False)


def variance_and_mean(
    w: Writer,
    metas: Sequence[torch.Tensor],
    x: Term,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
) -> tuple[Term, ...]:
    return moments(w, metas[0], x, dims, 1 if correction is None else correction, keepdim)


def moments(
    w: Writer, meta: torch.Tensor, x: Term, dims: Sequence[int] | None, correction: float, keep: bool
) -> tuple[Term, Term]:
    """Variance and mean over dimensions."""
    summed = sorted({normalized_dim(d, x.rank) for d in dims} if dims else range(x.rank))
    x = w.named(x)
    mean = _reduced(w, meta, x, dims, keep, "mean({0})")
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
    squares = w.state(out, meta.shape, f"sum({apart} * {apart}) / ({count} - {as_text(correction)})", meta.dtype)
    return squares, mean


def norm(
    w: Writer,
    meta: torch.Tensor,
    x: Term,
    order: float = 2,
    dims: Sequence[int] | None = None,
    keep: bool = False,
    **_: object,
) -> Term:
    bodies = {2: "sqrt(sum({0} * {0}))", 1: "sum(abs({0}))", float("inf"): "max(abs({0}))"}
    if order not in bodies:
        raise refuse(f"a norm of order {order}")
    return _reduced(w, meta, w.named(x), dims, keep, bodies[order])


def extremum(name: str) -> Callable[..., tuple[Term, ...]]:
    def write(w: Writer, metas: Sequence[torch.Tensor], x: Term, dim: int, keep: bool = False) -> tuple[Term, ...]:
        x = w.named(x)
        return (
            _reduced(w, metas[0], x, [dim], keep, f"{name}({{0}})"),
            _reduced(w, metas[1], x, [dim], keep, f"arg{name}({{0}})"),
        )

    return write


def _position(name: str) -> Callable[..., Term]:
    def write(w: Writer, meta: torch.Tensor, x: Term, dim: int | None = None, keep: bool = False) -> Term:
        return _reduced(w, meta, x, None if dim is None else [dim], keep, f"{name}({{0}})")

    return write


def scanned(name: str) -> Callable[..., Term]:
    def write(w: Writer, meta: torch.Tensor, x: Term, dim: int, **_: object) -> Term:
        dim = normalized_dim(dim, x.rank)
        *out, s = w.indices(x.rank + 1)
        read = [*out[:dim], s, *out[dim + 1 :]]
        inner = w.access(x, read) if x.dtype == meta.dtype else f"{name_of(meta.dtype)}({w.access(x, read)})"
        limit = f"{out[dim]} - {s} < {w.size(x.shape[dim])}"
        return w.state(out, meta.shape, f"{name}({inner})", meta.dtype, constraints=[limit])

    return write


def _softmax(w: Writer, meta: torch.Tensor, x: Term, dim: int, dtype: torch.dtype | None = None) -> Term:
    x, read, total = _normalised(w, meta, x, dim)
    return w.state(read, meta.shape, f"exp({w.access(x, read)} - {total})", meta.dtype)


def log_softmax(w: Writer, meta: torch.Tensor, x: Term, dim: int, dtype: torch.dtype | None = None) -> Term:
    x, read, total = _normalised(w, meta, x, dim)
    return w.state(read, meta.shape, f"{w.access(x, read)} - {total}", meta.dtype)


def _normalised(w: Writer, meta: torch.Tensor, x: Term, dim: int) -> tuple[Term, list[str], str]:
    x = w.named(x)
    if x.dtype != meta.dtype:
        x = w.named(Term(f"{name_of(meta.dtype)}({x.text})", x.shape, meta.dtype, is_name=False))
    dim = normalized_dim(dim, x.rank)
    *read, other = w.indices(x.rank + 1)
    return x, read, f"logsumexp({w.access(x, [*read[:dim], other, *read[dim + 1 :]])})"


def _product(w: Writer, meta: torch.Tensor, a: Term, b: Term) -> Term:
    """`a @ b` for every rank: vectors, matrices, batches that broadcast."""
    *out, k = w.indices(meta.dim() + 1)
    batch = out[: meta.dim() - (a.rank > 1) - (b.rank > 1)]
    rows, columns = out[len(batch) : len(batch) + (a.rank > 1)], out[len(out) - 1 :] if b.rank > 1 else []
    left = _batched(w, a, batch, meta, [*rows, k])
    right = _batched(w, b, batch, meta, [k, *columns])
    return w.state(out, meta.shape, f"sum({left} * {right})", meta.dtype)


def _batched(w: Writer, x: Term, batch: Sequence[str], meta: torch.Tensor, inner: Sequence[str]) -> str:
    count = x.rank - len(inner)
    far = list(meta.shape)[len(batch) - count : len(batch)]
    own = list(batch)[len(batch) - count :]
    pairs = zip(x.shape, far, own, strict=False)
    outer = ["0" if w.size(n) == "1" and w.size(m) != "1" else i for n, m, i in pairs]
    return w.access(x, [*outer, *inner])


def _linear(w: Writer, meta: torch.Tensor, x: Term, weight: Term, bias: Term | None = None) -> Term:
    *out, k = w.indices(meta.dim() + 1)
    body = f"sum({w.access(x, [*out[:-1], k])} * {w.access(weight, [out[-1], k])})"
    if bias is not None:
        body += f" + {w.access(bias, [out[-1]])}"
    return w.state(out, meta.shape, body, meta.dtype)


def _added(w: Writer, meta: torch.Tensor, c: Term, a: Term, b: Term, *, beta: float = 1, alpha: float = 1) -> Term:
    """`beta * c + alpha * (a @ b)`."""
    found = _product(w, meta, a, b)
    right = found.text if alpha == 1 else f"{as_text(alpha)} * {found.text}"
    left = w.named(c).text if beta == 1 else f"{as_text(beta)} * {w.named(c).text}"
    return Term(f"{left} + {right}", tuple(meta.shape), meta.dtype, BINDING["+"], is_name=False)


def _einsum(w: Writer, meta: torch.Tensor, equation: str, tensors: Sequence[Term], **_: object) -> Term:
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
    a: Term,
    b: Term,
    c: Term,
    wide_a: Sequence[int],
    wide_b: Sequence[int],
    wide_c: Sequence[int],
    summed: Sequence[int],
    *_: object,
) -> Term:
    """The product of three tensors, each with dimensions of 1 put in at `wide_...`, summed over some."""
    rank = a.rank + len(wide_a)
    i = w.indices(rank)
    factors = []
    for x, wide in ((a, wide_a), (b, wide_b), (c, wide_c)):
        factors.append(w.access(x, [v for d, v in enumerate(i) if d not in wide]))
    out = [v for d, v in enumerate(i) if d not in summed]
    return w.state(out, meta.shape, f"sum({' * '.join(factors)})", meta.dtype)


def outer(w: Writer, meta: torch.Tensor, a: Term, b: Term) -> Term:
    i, j = w.indices(2)
    return w.state([i, j], meta.shape, f"{w.access(a, [i])} * {w.access(b, [j])}", meta.dtype)


HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.sum.default: _reduction("sum"),
    aten.sum.dim_IntList: _reduction("sum"),
    aten.mean.default: _reduction("mean"),
    aten.mean.dim: _reduction("mean"),
    aten.prod.default: _reduction("prod"),
    aten.prod.dim_int: _reduction("prod"),
    aten.amax.default: _reduction("max"),
    aten.amin.default: _reduction("min"),
    aten.max.default: _reduction("max"),
    aten.min.default: _reduction("min"),
    aten.logsumexp.default: _reduction("logsumexp"),
    aten.any.default: _reduction("any"),
    aten.any.dim: _reduction("any"),
    aten.all.default: _reduction("all"),
    aten.all.dim: _reduction("all"),
    aten.max.dim: extremum("max"),
    aten.min.dim: extremum("min"),
    aten.argmax.default: _position("argmax"),
    aten.argmin.default: _position("argmin"),
    aten.var.correction: variance,
    aten.std.correction: deviation,
    aten.var_mean.correction: variance_and_mean,
    aten.linalg_vector_norm.default: norm,
    aten.cumsum.default: scanned("sum"),
    aten.cumprod.default: scanned("prod"),
    aten.logcumsumexp.default: scanned("logsumexp"),
    aten.softmax.int: _softmax,
    aten.log_softmax.int: log_softmax,
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.matmul.default: _product,
    aten.mv.default: _product,
    aten.dot.default: _product,
    aten.linear.default: _linear,
    aten.addmm.default: _added,
    aten.baddbmm.default: _added,
    aten.addmv.default: _added,
    aten.einsum.default: _einsum,
    aten.outer.default: outer,
    aten._trilinear.default: trilinear,
}
