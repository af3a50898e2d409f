"""Convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilec.torch_import.writer import Term, Writer, refuse

aten = torch.ops.aten


def _each(value: int | Sequence[int], count: int) -> list[int]:
    found = [value] * count if isinstance(value, int) else list(value)
    return found * count if len(found) == 1 else found


def _index(step: int, out: str, dilation: int, inner: str, before: int) -> str:
    text = f"{out if step == 1 else f'{step}*{out}'} + {inner if dilation == 1 else f'{dilation}*{inner}'}"
    return f"{text} - {before}" if before > 0 else f"{text} + {-before}" if before else text


@dataclass(frozen=True)
class _Window:
    """Index variables of a convolution: `lead` of the batch, if there is one, `out` and `channel` of the channels that
    are kept and summed, `at` and `taps` of places and kernels; `space`: where the taps of a place lie."""

    lead: list[str]
    out: str
    channel: str
    at: list[str]
    taps: list[str]
    space: list[str]


def _window(w: Writer, x: Term, weight: Term, stride: object, padding: object, dilation: object) -> _Window:
    count = weight.rank - 2
    steps, before, apart = (_each(v, count) for v in (stride, padding, dilation))  # type: ignore[arg-type]
    batch, out, channel, *inside = w.indices(2 * count + 3)
    at, taps = inside[:count], inside[count:]
    space = [_index(*given) for given in zip(steps, at, apart, taps, before, strict=True)]
    return _Window([batch] if x.rank == count + 2 else [], out, channel, at, taps, space)


def _with_bias(w: Writer, found: Term, bias: Term | None, channel: int) -> Term:
    if bias is None:
        return found
    i = w.indices(w.meta.dim())
    return w.result(i, f"{w.access(found, i)} + {w.access(bias, [i[channel]])}")


def _convolution(
    w: Writer,
    x: Term,
    weight: Term,
    bias: Term | None = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
) -> Term:
    """Channels in second place; without a batch the first."""
    if isinstance(padding, str):
        raise refuse(f"a convolution with padding={padding!r}")
    o = _window(w, x, weight, stride, padding, dilation)
    read, inner = o.channel, o.channel
    if groups > 1:
        if w.size(weight.shape[1]) != "1" or int(weight.shape[0]) != groups:
            return _grouped(w, x, weight, bias, groups, o)
        read, inner = o.out, "0"  # each channel by itself
    body = f"sum({w.access(x, [*o.lead, read, *o.space])} * {w.access(weight, [o.out, inner, *o.taps])})"
    if bias is not None:
        body += f" + {w.access(bias, [o.out])}"
    return w.result([*o.lead, o.out, *o.at], body)


def _grouped(w: Writer, x: Term, weight: Term, bias: Term | None, groups: int, o: _Window) -> Term:
    """The output's channel is `group * size + member`."""
    size, per = int(weight.shape[0]) // groups, w.size(weight.shape[1])
    group, member = "g", "d"
    out = f"{size}*{group} + {member}"
    read = f"{per}*{group} + {o.channel}"
    factors = f"{w.access(x, [*o.lead, read, *o.space])} * {w.access(weight, [out, o.channel, *o.taps])}"
    limits = [f"{member} < {size}", f"{group} < {groups}"]
    found = w.result([*o.lead, out, *o.at], f"+({factors})", constraints=limits)
    return _with_bias(w, found, bias, len(o.lead))


def _transposed(
    w: Writer,
    x: Term,
    weight: Term,
    bias: Term | None = None,
    stride: object = 1,
    padding: object = 0,
    output_padding: object = 0,
    groups: int = 1,
    dilation: object = 1,
) -> Term:
    if groups != 1:
        raise refuse("a transposed convolution of several groups")
    o = _window(w, x, weight, stride, padding, dilation)
    body = f"+({w.access(x, [*o.lead, o.channel, *o.at])} * {w.access(weight, [o.channel, o.out, *o.taps])})"
    found = w.result([*o.lead, o.out, *o.space], body)
    return _with_bias(w, found, bias, len(o.lead))


def any_convolution(
    w: Writer,
    x: Term,
    weight: Term,
    bias: Term | None,
    stride: object,
    padding: object,
    dilation: object,
    is_transposed: bool,
    output_padding: object,
    groups: int,
) -> Term:
    if is_transposed:
        return _transposed(w, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolution(w, x, weight, bias, stride, padding, dilation, groups)


def pool(name: str, count: int) -> Callable[..., Term]:
    def write(
        w: Writer, x: Term, size: object, stride: object = (), padding: object = 0, *more: object, **options: object
    ) -> Term:
        sizes = _each(size, count)  # type: ignore[arg-type]
        steps = _each(stride, count) if stride not in ((), []) else sizes  # type: ignore[arg-type]
        before, apart, every = _each(padding, count), [1] * count, ""  # type: ignore[arg-type]
        if name == "max":
            apart = _each(more[0] if more else options.get("dilation", 1), count)  # type: ignore[arg-type]
        else:
            ceil, inside, divisor = [*more, *[False, True, None][len(more) :]][:3]
            if divisor is not None or (ceil and inside and any(before)):
                raise refuse("an average pool with a divisor, or whose border is counted in ceiling mode")
            if inside and any(before):
                every = " / " + str(torch.Size(sizes).numel())
        out = w.indices(x.rank + count)
        out, taps = out[: x.rank], out[x.rank :]
        lead, at = out[:-count], out[-count:]
        space = [_index(*given) for given in zip(steps, at, apart, taps, before, strict=True)]
        body = f"{'sum' if every else name}({w.access(x, [*lead, *space])}){every}"
        limits = [f"{t} < {n}" for t, n in zip(taps, sizes, strict=True)]
        return w.result(out, body, constraints=limits)

    return write


def pool_and_positions(w: Writer, *arguments: object, **options: object) -> tuple[Term, ...]:
    return (pool("max", 2)(w, *arguments, **options),)


def pool_to(count: int) -> Callable[..., Term]:
    """Adaptive average pools, where windows are equal and side by side."""

    def write(w: Writer, x: Term, size: object) -> Term:
        sizes, far = w.meta.shape[-count:], x.shape[-count:]
        for n, m in zip(sizes, far, strict=True):
            if not (isinstance(n, int) and (n == 1 or isinstance(m, int) and m % n == 0)):
                raise refuse("an adaptive pool whose windows differ in size")
        out = w.indices(x.rank)
        taps = w.indices(x.rank + count)[x.rank :]
        read = list(out)
        limits = []
        for d, (n, m, t) in enumerate(zip(sizes, far, taps, strict=True), x.rank - count):
            window = w.offset(m) if n == 1 else str(m // n)
            read[d] = t if n == 1 else f"{window}*{out[d]} + {t}"
            limits.append(f"{t} < {window}")
        return w.result(out, f"mean({w.access(x, read)})", constraints=limits)

    return write


HANDLERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), _convolution),
    aten.conv_transpose1d.default: _transposed,
    **dict.fromkeys((aten.conv_transpose2d.input, aten.conv_transpose3d.input), _transposed),
    aten.convolution.default: any_convolution,
    **{getattr(aten, f"max_pool{n}d").default: pool("max", n) for n in (1, 2, 3)},
    aten.max_pool2d_with_indices.default: pool_and_positions,
    **{getattr(aten, f"avg_pool{n}d").default: pool("mean", n) for n in (1, 2, 3)},
    **{getattr(aten, f"adaptive_avg_pool{n}d").default: pool_to(n) for n in (1, 2, 3)},
}
