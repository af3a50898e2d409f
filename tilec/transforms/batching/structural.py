"""Functions of whole tensors over a batch: with the batch's dimension in front where they can have it there, as
contractions where it would get in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilec.ir.program import Access, Call, Expr, Index, Int, Name, Statement

if TYPE_CHECKING:
    from tilec.transforms.batching.vmap import Batch


def _name(e: Expr) -> str:
    assert isinstance(e, Name), "the operand of a structural function is a tensor's name"
    return e.name


def _reshape(batch: Batch, s: Statement, e: Call) -> None:
    tensor, sizes = _name(e.args[0]), e.args[1:]
    match sizes:
        case (Call("shape", (Name(like),)),):
            if tensor not in batch.axis and like not in batch.axis:
                batch.emit(s, False)
                return
            if tensor in batch.axis and like in batch.axis:
                whole = Call("shape", (batch.whole(like),))
                batch.emit(_elementwise(s, Call("reshape", (batch.whole(tensor), whole))), True)
                return
            sizes = batch.sizes(like)
            if not sizes and like in batch.axis:
                e = Call("reshape", (e.args[0], Call("shape", (Name(_element(batch, like)),))))
        case _:
            sizes = tuple(map(batch.unbatched, sizes))
    lead = (batch.size,) if tensor in batch.axis else ()
    if not lead and not sizes:  # to a scalar
        batch.emit(_elementwise(s, e), False)
        return
    batch.emit(_elementwise(s, Call("reshape", (batch.whole(tensor), *lead, *sizes))), bool(lead))


def _gather(batch: Batch, s: Statement, e: Call) -> None:
    tensor, places = map(_name, e.args)
    if tensor not in batch.axis:
        batch.emit(_elementwise(s, Call("gather", (Name(tensor), batch.whole(places)))), places in batch.axis)
        return
    count, rest = batch.ranks.of(places), batch.ranks.of(tensor) - 1
    index = batch.variables(count + rest)
    outer, inner = index[:count], index[count:]
    body = batch.read(tensor, (_position(batch, places, outer), *inner))
    _contraction(batch, s, index, (*batch.sizes(places), *batch.sizes(tensor)[1:]), body)


def _scatter(batch: Batch, s: Statement, e: Call) -> None:
    tensor, places, like = map(_name, e.args)
    if tensor not in batch.axis and places not in batch.axis:
        if like in batch.axis:
            like = _element(batch, like)
        batch.emit(_elementwise(s, Call("scatter", (Name(tensor), Name(places), Name(like)))), False)
        return
    count = batch.ranks.of(places)
    index = batch.variables(batch.ranks.of(tensor))
    outer, inner = index[:count], index[count:]
    body = batch.read(tensor, index)
    _contraction(batch, s, (_position(batch, places, outer), *inner), batch.sizes(like), body, "sum")


def _simple_reduce(batch: Batch, s: Statement, e: Call) -> None:
    tensor, like = map(_name, e.args)
    if tensor not in batch.axis:
        target = _element(batch, like) if like in batch.axis else like
        batch.emit(_elementwise(s, Call("simple_reduce", (Name(tensor), Name(target)))), False)
        return
    same = batch.known[tensor] == batch.known[like]
    if same and like in batch.axis:
        batch.emit(_elementwise(s, Call("simple_reduce", (batch.whole(tensor), batch.whole(like)))), True)
        return
    own, wanted = batch.ranks.of(tensor), batch.ranks.of(like)
    if like not in batch.axis:
        like = _spread(batch, like)
    longer = tensor if own >= wanted else like
    reduced = Call("simple_reduce", (batch.aligned(tensor, longer), batch.aligned(like, longer)))
    if wanted >= own:
        batch.emit(_elementwise(s, reduced), True)
        return
    name = batch.emit(Statement(batch.names.fresh(s.output), None, None, reduced), True)
    batch.emit(_elementwise(s, Call("reshape", (Name(name), batch.size, *batch.sizes(like)))), True)


BATCH_RULES: dict[str, Callable[[Batch, Statement, Call], None]] = {
    "reshape": _reshape,
    "gather": _gather,
    "scatter": _scatter,
    "simple_reduce": _simple_reduce,
}


def _elementwise(s: Statement, body: Expr) -> Statement:
    return Statement(s.output, None, None, body, attributes=s.attributes, span=s.span)


def _contraction(
    batch: Batch,
    s: Statement,
    index: tuple[Expr, ...],
    sizes: tuple[Expr, ...],
    body: Expr,
    aggregation: str = "assign",
) -> None:
    made = Statement(s.output, (batch.variable, *index), (batch.size, *sizes), body, aggregation, span=s.span)
    batch.emit(made, True)


def _position(batch: Batch, places: str, index: tuple[Index, ...]) -> Expr:
    """An element of the tensor of positions; a rank-0 input in an index would count as a size."""
    if places not in batch.axis and not index:
        made = Statement(batch.names.fresh(places), None, None, Call("int64", (Name(places),)))
        return Access(batch.emit(made, False), ())
    return batch.read(places, index)


def _element(batch: Batch, tensor: str) -> str:
    """A tensor of an element's shape; its values are not read."""
    index = batch.variables(batch.ranks.of(tensor))
    places: list[Expr] = list(index)
    places.insert(batch.axis[tensor], Int(0))
    made = Statement(batch.names.fresh(tensor), index, batch.sizes(tensor), Access(tensor, tuple(places)))
    return _like(batch, made, tensor, False)


def _spread(batch: Batch, tensor: str) -> str:
    """An unbatched tensor once for each element of the batch."""
    index = batch.variables(batch.ranks.of(tensor))
    sizes = (batch.size, *batch.sizes(tensor))
    made = Statement(batch.names.fresh(tensor), (batch.variable, *index), sizes, Access(tensor, index))
    return _like(batch, made, tensor, True)


def _like(batch: Batch, made: Statement, tensor: str, batched: bool) -> str:
    batch.ranks.give(made.output, batch.ranks.of(tensor))
    batch.known[made.output] = batch.known[tensor]
    return batch.emit(made, batched)
