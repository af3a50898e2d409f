"""Elementwise statements over a batch, and what they draw."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.ir.functions import RANDOM, ZERO, counts_positions
from tilec.ir.program import Call, Expr, Int, Name, Statement, rebuild
from tilec.transforms.util.extents import shaping

if TYPE_CHECKING:
    from tilec.transforms.batching.vmap import Batch


def batch_elementwise(batch: Batch, s: Statement) -> None:
    """The statement on whole tensors, with the batch's dimension in front."""
    draws: dict[Expr, str] = {}

    def value(e: Expr) -> Expr:
        match e:
            case Name(name) if name in batch.known:
                return batch.as_scalar(e, batch.aligned(name, s.output))
            case Call("index", (Name(tensor), d)) if tensor in batch.axis:
                whole, more = batch.aligned(tensor, s.output), 1
                if batch.known[tensor] != batch.known[s.output]:
                    more += max(0, batch.ranks.of(s.output) - batch.ranks.of(tensor))
                return replace(e, args=(whole, Int(d.value + more) if isinstance(d, Int) else d + Int(more)))
            case Call("shape", (Name(tensor), d)):
                return batch.shape(tensor, d)
            case Call("as_type", (inner, like)):
                return replace(e, args=(value(inner), like))
            case Call(function, args) if function in RANDOM:
                if counts_positions(e) or batch.different or batch.batched(args[0]):
                    if e not in draws:
                        draws[e] = _draw(batch, e, s)
                    return batch.aligned(draws[e], s.output)
                return replace(e, args=(args[0], value(args[1])))
        return rebuild(e, value)

    batch.emit(replace(s, body=value(s.body)), True)


def _draw(batch: Batch, e: Call, s: Statement) -> str:
    """A draw of an elementwise statement as a statement of its own, with the counters that an element of the batch
    has on its own and with the element's seed."""
    place = _counter(batch, e.args[1], s) if len(e.args) > 1 else _broadcast_over(batch, s)
    index = batch.variables(0 if place is None else batch.ranks.of(place))
    sizes = () if place is None else batch.sizes(place)
    counter: Expr = Int(0)
    if len(e.args) > 1:
        counter = batch.read(place or "", index)
    else:
        for i, n in zip(index, sizes, strict=True):
            counter = i if counter == Int(0) else counter * n + i
    batched = batch.batched(e)
    seed = batch.seed(batch.value(e.args[0]))
    made = Statement(
        batch.names.fresh("Draw"),
        (batch.variable, *index) if batched else index,
        (batch.size, *sizes) if batched else sizes,
        replace(e, args=(seed, counter)),
    )
    batch.ranks.give(made.output, len(index))
    batch.known[made.output] = () if place is None else batch.known[place]
    return batch.emit(made, batched)


def _counter(batch: Batch, e: Expr, s: Statement) -> str:
    made = Statement(batch.names.fresh("Counter"), None, None, e)
    batch.note(made)
    batch.statement(made)
    return made.output


def _broadcast_over(batch: Batch, s: Statement) -> str | None:
    """A tensor of the shape of an elementwise statement; None where that is one number."""
    if batch.ranks.of(s.output) == 0:
        return None
    body: Expr = ZERO
    for name in dict.fromkeys(shaping(s.body)):
        body = Call("select", (Int(0), name, body))
    made = Statement(batch.names.fresh("Positions"), None, None, body)
    batch.note(made)
    batch.known[made.output] = batch.known[s.output]
    batch.statement(made)
    return made.output
