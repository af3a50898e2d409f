"""Operations that move elements: views, slices, gathers, scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilec.torch_import.elementwise import as_text, infix
from tilec.torch_import.writer import Term, Writer, name_of, refuse

aten = torch.ops.aten
_Size = int | torch.SymInt


def normalized_dim(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def reshaped(w: Writer, x: Term, *_: object) -> Term:
    sizes = ", ".join(map(w.size, w.meta.shape))
    if list(map(w.size, w.meta.shape)) == list(map(w.size, x.shape)):
        return x
    if not w.meta.dim():
        return w.result([], w.access(x, ["0"] * x.rank))
    return w.expression(f"reshape({x.text}, {sizes})")


def moved(w: Writer, x: Term, order: Sequence[int]) -> Term:
    """`order[d]` is the dimension of `x` that stands at `d`."""
    dims = [normalized_dim(d, x.rank) for d in order]
    return w.read(x, lambda out: [out[dims.index(d)] for d in range(x.rank)])


def exchanged(w: Writer, x: Term, a: int = 0, b: int = 1) -> Term:
    order = list(range(x.rank))
    if x.rank > 1:
        a, b = normalized_dim(a, x.rank), normalized_dim(b, x.rank)
        order[a], order[b] = order[b], order[a]
    return moved(w, x, order)


def matrix_transposed(w: Writer, x: Term) -> Term:
    return exchanged(w, x, -2, -1)


def expanded(w: Writer, x: Term, *_: object, **__: object) -> Term:
    out = w.indices(w.meta.dim())
    return w.result(out, w.broadcast(x, out, w.meta.shape))


def at_dim(indices: Sequence[str], dim: int, index: str) -> list[str]:
    """These indices with another one for a dimension."""
    return [*indices[:dim], index, *indices[dim + 1 :]]


def start_of(w: Writer, start: _Size, size: _Size) -> str:
    """Where a slice begins; from the end where negative, 0 where that is before the beginning."""
    if isinstance(start, int) and start < 0:
        return f"max(0, {w.offset(size)} - {-start})"
    if isinstance(start, int) and isinstance(size, int):
        return str(min(start, size))
    return w.offset(start)


def sliced(w: Writer, x: Term, dim: int = 0, start: _Size | None = None, end: object = None, step: int = 1) -> Term:
    dim = normalized_dim(dim, x.rank)
    if not start and step == 1 and w.size(w.meta.shape[dim]) == w.size(x.shape[dim]):
        return x
    times = f"{step}*" if step != 1 else ""
    first = f" + {start_of(w, start, x.shape[dim])}" if start else ""
    return w.read(x, lambda out: at_dim(out, dim, f"{times}{out[dim]}{first}"))


def selected(w: Writer, x: Term, dim: int, at: _Size) -> Term:
    dim = normalized_dim(dim, x.rank)
    index = f"{w.offset(x.shape[dim])} - {-at}" if isinstance(at, int) and at < 0 else w.offset(at)
    return w.read(x, lambda out: [*out[:dim], index, *out[dim:]])


def _split(w: Writer, x: Term, sizes: object, dim: int = 0) -> tuple[Term, ...]:
    dim = normalized_dim(dim, x.rank)
    parts, before = [], ""
    for meta in w.results:
        first = f" + {before}" if before else ""
        parts.append(w.of(meta).read(x, lambda out, first=first: at_dim(out, dim, out[dim] + first)))  # type: ignore[misc]
        before = f"{before} + {w.offset(meta.shape[dim])}" if before else w.offset(meta.shape[dim])
    return tuple(parts)


def unbound(w: Writer, x: Term, dim: int = 0) -> tuple[Term, ...]:
    return tuple(selected(w.of(meta), x, dim, n) for n, meta in enumerate(w.results))


def item(w: Writer, parts: Sequence[Term], at: int) -> Term:
    return parts[at]


def _joined(w: Writer, parts: Sequence[Term], dim: int = 0) -> Term:
    """One tensor after another: a branch for each, which reads it only where it is taken."""
    parts = [p for p in parts if not (p.rank == 1 and p.shape[0] == 0 and w.meta.dim() > 1)]
    dim = normalized_dim(dim, w.meta.dim())
    out = w.indices(w.meta.dim())
    before, branches = "", []
    for p in parts:
        read = out[dim] + (f" - {_less(before)}" if before else "")
        before = f"{before} + {w.offset(p.shape[dim])}" if before else w.offset(p.shape[dim])
        branches.append((before, w.access(p, at_dim(out, dim, read))))
    conditions = [f"{out[dim]} < {end} ? {access} : " for end, access in branches[:-1]]
    return w.result(out, "".join(conditions) + branches[-1][1])


def _less(text: str) -> str:
    return f"({text})" if "+" in text else text


def _padded(w: Writer, x: Term, widths: Sequence[int], value: float = 0) -> Term:
    out = w.indices(x.rank)
    read = list(out)
    for n, width in enumerate(widths[::2]):
        dim = x.rank - 1 - n
        if width:
            read[dim] = f"{out[dim]} - {width}" if width > 0 else f"{out[dim]} + {-width}"
    return w.result(out, f"pad({w.access(x, read)}, {as_text(value)})")


def flipped(w: Writer, x: Term, dims: Sequence[int]) -> Term:
    turned = {d: f"{w.offset(x.shape[d])} - 1 - " for d in sorted({normalized_dim(d, x.rank) for d in dims})}
    return w.read(x, lambda out: [turned.get(d, "") + i for d, i in enumerate(out)])


def rolled(w: Writer, x: Term, shifts: Sequence[int], dims: Sequence[int] = ()) -> Term:
    if not dims:
        raise refuse("roll without dims")
    out = w.indices(x.rank)
    read = list(out)
    for shift, dim in zip(shifts, dims, strict=True):
        at = normalized_dim(dim, x.rank)
        read[at] = f"({out[at]} - {shift}) % {w.offset(x.shape[at])}".replace("- -", "+ ")
    return w.result(out, w.access(x, read))


def windows(w: Writer, x: Term, dim: int, size: int, step: int) -> Term:
    dim, times = normalized_dim(dim, x.rank), f"{step}*" if step != 1 else ""
    return w.read(x, lambda out: at_dim(out[:-1], dim, f"{times}{out[dim]} + {out[-1]}"))


def triangle(sign: str) -> Callable[..., Term]:
    def write(w: Writer, x: Term, diagonal: int = 0) -> Term:
        out = w.indices(x.rank)
        offset = f" + {diagonal}" if diagonal > 0 else f" - {-diagonal}" if diagonal else ""
        inside = f"{out[-2]}{offset} >= {out[-1]}" if sign == "low" else f"{out[-2]}{offset} <= {out[-1]}"
        return w.result(out, f"{inside} ? {w.access(x, out)} : 0")

    return write


def diagonal(w: Writer, x: Term, offset: int = 0, a: int = 0, b: int = 1) -> Term:
    a, b = normalized_dim(a, x.rank), normalized_dim(b, x.rank)
    out = w.indices(w.meta.dim())
    others = iter(out[:-1])
    on = {a: f"{out[-1]} + {-offset}" if offset < 0 else out[-1], b: f"{out[-1]} + {offset}" if offset > 0 else out[-1]}
    return w.result(out, w.access(x, [on.get(d) or next(others) for d in range(x.rank)]))


def embedded(w: Writer, table: Term, at: Term, *_: object) -> Term:
    return w.read(table, lambda out: [w.access(at, out[:-1]), out[-1]])


def _rows(w: Writer, x: Term, dim: int, at: Term) -> Term:
    dim = normalized_dim(dim, x.rank)
    return w.read(x, lambda out: at_dim(out, dim, w.access(at, [out[dim]])))


def _gathered(w: Writer, x: Term, dim: int, at: Term, **_: object) -> Term:
    dim = normalized_dim(dim, x.rank)
    return w.read(x, lambda out: at_dim(out, dim, w.access(at, out)))


def indexed(w: Writer, x: Term, at: Sequence[Term | None]) -> Term:
    """`x[..., a, b, ...]` with tensors of integers; their own dimensions stand where the first one does."""
    tensors = [(d, t) for d, t in enumerate(at) if t is not None]
    dims = [d for d, _ in tensors]
    if any(t.dtype in (torch.bool, torch.uint8) for _, t in tensors):
        raise refuse("an index of booleans, whose result has a size that depends on values")
    if dims != list(range(dims[0], dims[-1] + 1)):
        raise refuse("indices of tensors with slices between them")
    rank = max(t.rank for _, t in tensors)
    out = w.indices(w.meta.dim())
    inner, shape = out[dims[0] : dims[0] + rank], w.meta.shape[dims[0] : dims[0] + rank]
    plain = iter([*out[: dims[0]], *out[dims[0] + rank :]])
    read = []
    for d in range(x.rank):
        if d in dims:  # negative ones count from the end
            read.append(f"{w.broadcast(dict(tensors)[d], inner, shape)} % {w.offset(x.shape[d])}")
        else:
            read.append(next(plain))
    return w.result(out, w.access(x, read))


def _scattered(w: Writer, x: Term, dim: int, at: Term, source: Term) -> Term:
    """`x.scatter_add(dim, at, source)`."""
    dim = normalized_dim(dim, x.rank)
    i = w.indices(at.rank)
    added = w.result(at_dim(i, dim, w.access(at, i)), f"+({w.access(source, i)})")
    return infix("+")(w, x, added)


def rows_added(w: Writer, x: Term, dim: int, at: Term, source: Term, *, alpha: float = 1) -> Term:
    """`x.index_add(dim, at, source)`."""
    dim = normalized_dim(dim, x.rank)
    i = w.indices(x.rank)
    body = w.access(source, i) if alpha == 1 else f"{as_text(alpha)} * {w.access(source, i)}"
    added = w.result(at_dim(i, dim, w.access(at, [i[dim]])), f"+({body})")
    return infix("+")(w, x, added)


def one_hot(w: Writer, at: Term, classes: int = -1) -> Term:
    out = w.indices(w.meta.dim())
    return w.result(out, f"{name_of(w.meta.dtype)}({w.access(at, out[:-1])} == {out[-1]})")


HANDLERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.view.default, aten.reshape.default, aten._unsafe_view.default), reshaped),
    **dict.fromkeys((aten.flatten.using_ints, aten.unsqueeze.default), reshaped),
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), reshaped),
    aten.permute.default: moved,
    aten.transpose.int: exchanged,
    aten.t.default: exchanged,
    aten.mT.default: matrix_transposed,
    aten.expand.default: expanded,
    aten.slice.Tensor: sliced,
    aten.select.int: selected,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.chunk.default: _split,
    aten.unbind.int: unbound,
    aten.cat.default: _joined,
    aten.constant_pad_nd.default: _padded,
    aten.flip.default: flipped,
    aten.roll.default: rolled,
    aten.unfold.default: windows,
    aten.tril.default: triangle("low"),
    aten.triu.default: triangle("high"),
    aten.diagonal.default: diagonal,
    aten.embedding.default: embedded,
    aten.index_select.default: _rows,
    aten.gather.default: _gathered,
    aten.index.Tensor: indexed,
    aten.scatter_add.default: _scattered,
    aten.index_add.default: rows_added,
    aten.one_hot.default: one_hot,
}
