"""Reductions, scans and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilec.torch_import.elementwise import BINDING, as_text
from tilec.torch_import.indexing import at_dim, normalized_dim
from tilec.torch_import.writer import Term, Writer, converted_term, name_of, refuse

aten = torch.ops.aten


def _reduced(w: Writer, x: Term, dims: Sequence[int] | None, keep: bool, body: str) -> Term:
    """`body` holds `{0}` for the access; dimensions that are kept have size 1."""
    out = _left(w, x, _dims(x, dims), keep)
    return w.result(out, body.format(w.access(x, w.indices(x.rank))))


def _dims(x: Term, dims: Sequence[int] | None) -> set[int]:
    return {normalized_dim(d, x.rank) for d in dims or range(x.rank)}


def _left(w: Writer, x: Term, summed: set[int], keep: bool) -> list[str]:
    """The indices of what is left of x, whose own are the first ones."""
    free = w.indices(2 * x.rank)
    return [free[d + x.rank * (d in summed)] for d in range(x.rank) if keep or d not in summed]


def _reduction(name: str) -> Callable[..., Term]:
    def write(w: Writer, x: Term, dims: object = None, keep: bool = False, **_: object) -> Term:
        dims = [dims] if isinstance(dims, int) else dims
        if not (x.rank or name.startswith("arg")):
            return converted_term(x, w.meta.dtype)
        inner = (
            f"{name_of(w.meta.dtype)}({{0}})" if name in ("sum", "prod", "mean") and x.dtype != w.meta.dtype else "{0}"
        )
        return _reduced(w, x, dims, keep, f"{name}({inner})")  # type: ignore[arg-type]

    return write


def moments(
    w: Writer, x: Term, dims: Sequence[int] | None = None, *, correction: float | None = 1, keepdim: bool = False
) -> tuple[Term, Term]:
    """Variance and mean over dimensions."""
    summed = _dims(x, dims)
    x = w.named(x)
    mean = _reduced(w, x, dims, keepdim, "mean({0})")
    read = w.indices(x.rank)
    at = ["0" if d in summed else i for d, i in enumerate(read) if keepdim or d not in summed]
    apart = f"({w.access(x, read)} - {w.access(mean, at)})"
    count = " * ".join(w.size(x.shape[d]) for d in sorted(summed))
    less = as_text(1 if correction is None else correction)
    body = f"mean({apart} * {apart})" if correction == 0 else f"sum({apart} * {apart}) / ({count} - {less})"
    return w.result(_left(w, x, summed, keepdim), body), mean


def variance(*given: Any, **options: Any) -> Term:
    return moments(*given, **options)[0]


def deviation(*given: Any, **options: Any) -> Term:
    found = variance(*given, **options)
    return Term(f"sqrt({found.text})", found.shape, found.dtype, is_name=False)


def norm(
    w: Writer, x: Term, order: float = 2, dims: Sequence[int] | None = None, keep: bool = False, **_: object
) -> Term:
    bodies = {2: "sqrt(sum({0} * {0}))", 1: "sum(abs({0}))", float("inf"): "max(abs({0}))"}
    if order not in bodies:
        raise refuse(f"a norm of order {order}")
    return _reduced(w, w.named(x), dims, keep, bodies[order])


def extremum(name: str) -> Callable[..., tuple[Term, ...]]:
    def write(w: Writer, x: Term, dim: int, keep: bool = False) -> tuple[Term, ...]:
        x = w.named(x)
        parts = zip(w.results, (name, f"arg{name}"), strict=True)
        return tuple(_reduced(w.of(meta), x, [dim], keep, f"{part}({{0}})") for meta, part in parts)

    return write


def scanned(name: str) -> Callable[..., Term]:
    def write(w: Writer, x: Term, dim: int, **_: object) -> Term:
        dim = normalized_dim(dim, x.rank)
        *out, s = w.indices(x.rank + 1)
        read = at_dim(out, dim, s)
        inner = w.access(x, read) if x.dtype == w.meta.dtype else f"{name_of(w.meta.dtype)}({w.access(x, read)})"
        limit = f"{out[dim]} - {s} < {w.size(x.shape[dim])}"
        return w.result(out, f"{name}({inner})", constraints=[limit])

    return write


def _softmax(w: Writer, x: Term, dim: int, dtype: torch.dtype | None = None) -> Term:
    x, read, total = _normalised(w, x, dim)
    return w.result(read, f"exp({w.access(x, read)} - {total})")


def log_softmax(w: Writer, x: Term, dim: int, dtype: torch.dtype | None = None) -> Term:
    x, read, total = _normalised(w, x, dim)
    return w.result(read, f"{w.access(x, read)} - {total}")


def _normalised(w: Writer, x: Term, dim: int) -> tuple[Term, list[str], str]:
    x = w.named(converted_term(w.named(x), w.meta.dtype))
    dim = normalized_dim(dim, x.rank)
    *read, other = w.indices(x.rank + 1)
    return x, read, f"logsumexp({w.access(x, at_dim(read, dim, other))})"


def _product(w: Writer, a: Term, b: Term) -> Term:
    """`a @ b` for every rank: vectors, matrices, batches that broadcast."""
    *out, k = w.indices(w.meta.dim() + 1)
    batch = out[: w.meta.dim() - (a.rank > 1) - (b.rank > 1)]
    rows, columns = out[len(batch) : len(batch) + (a.rank > 1)], out[len(out) - 1 :] if b.rank > 1 else []
    left = _batched(w, a, batch, [*rows, k])
    right = _batched(w, b, batch, [k, *columns])
    return w.result(out, f"sum({left} * {right})")


def _batched(w: Writer, x: Term, batch: Sequence[str], inner: Sequence[str]) -> str:
    shape = (*w.meta.shape[: len(batch)], *x.shape[x.rank - len(inner) :])
    return w.broadcast(x, [*batch, *inner], shape)


def _linear(w: Writer, x: Term, weight: Term, bias: Term | None = None) -> Term:
    *out, k = w.indices(w.meta.dim() + 1)
    body = f"sum({w.access(x, [*out[:-1], k])} * {w.access(weight, [out[-1], k])})"
    if bias is not None:
        body += f" + {w.access(bias, [out[-1]])}"
    return w.result(out, body)


def _added(w: Writer, c: Term, a: Term, b: Term, *, beta: float = 1, alpha: float = 1) -> Term:
    """`beta * c + alpha * (a @ b)`."""
    found = _product(w, a, b)
    right = found.text if alpha == 1 else f"{as_text(alpha)} * {found.text}"
    left = w.named(c).text if beta == 1 else f"{as_text(beta)} * {w.named(c).text}"
    return w.expression(f"{left} + {right}", BINDING["+"])


def _einsum(w: Writer, equation: str, tensors: Sequence[Term], **_: object) -> Term:
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
    return w.result([letter[c] for c in right], f"sum({' * '.join(factors)})")


def trilinear(
    w: Writer,
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
    return w.result(out, f"sum({' * '.join(factors)})")


def outer(w: Writer, a: Term, b: Term) -> Term:
    i, j = w.indices(2)
    return w.result([i, j], f"{w.access(a, [i])} * {w.access(b, [j])}")


_REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "sum": (aten.sum.default, aten.sum.dim_IntList),
    "mean": (aten.mean.default, aten.mean.dim),
    "prod": (aten.prod.default, aten.prod.dim_int),
    "max": (aten.max.default, aten.amax.default),
    "min": (aten.min.default, aten.amin.default),
    "logsumexp": (aten.logsumexp.default,),
    "any": (aten.any.default, aten.any.dim),
    "all": (aten.all.default, aten.all.dim),
    "argmax": (aten.argmax.default,),
    "argmin": (aten.argmin.default,),
}
HANDLERS: dict[Any, Callable[..., Any]] = {
    **{operation: _reduction(name) for name, found in _REDUCTIONS.items() for operation in found},
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.matmul.default), _product),
    **dict.fromkeys((aten.mv.default, aten.dot.default), _product),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default, aten.addmv.default), _added),
    aten.max.dim: extremum("max"),
    aten.min.dim: extremum("min"),
    aten.var.correction: variance,
    aten.std.correction: deviation,
    aten.var_mean.correction: moments,
    aten.linalg_vector_norm.default: norm,
    aten.cumsum.default: scanned("sum"),
    aten.cumprod.default: scanned("prod"),
    aten.logcumsumexp.default: scanned("logsumexp"),
    aten.softmax.int: _softmax,
    aten.log_softmax.int: log_softmax,
    aten.linear.default: _linear,
    aten.einsum.default: _einsum,
    aten.outer.default: outer,
    aten._trilinear.default: trilinear,
}
