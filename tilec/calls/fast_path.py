"""Calls like one before, of which nothing has to be asked any more: the forward pass goes straight to what runs, and so
does the backward pass where its cotangents are plain tensors and nothing else records, transforms or watches it.

It is a node of its own, in the older form of a Function, which costs a call less in each pass; what is unusual is
left to `TileCall`, whose rules it shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from tilec.errors import TileError
from tilec.errors.tracebacks import hide_frames, public
from tilec.late import untraced
from tilec.torch_op.autograd_node import pulled_back
from tilec.torch_op.backward_pass import BackwardPass, GradientSource
from tilec.torch_op.levels import Outputs
from tilec.torch_op.recorded import Recorded
from tilec.torch_op.state import PLAIN, untouched

strided = torch.strided


class FastCall:
    """A recorded call of plain tensors on one device, ready to run: of its tensors, one by one, `run` gives outputs and
    extras."""

    def __init__(self, recorded: Recorded, tensors: Sequence[torch.Tensor]):
        self.recorded = recorded
        self.run = recorded.forward.prepared(tensors, recorded.weak, recorded.run.values).direct
        self.keep = _picker(recorded.kept)
        self.device = addressed(tensors)
        self.passes: dict[object, FastPass] = {}
        self.constant: tuple[int, ...] | None = None  # outputs without a derivative, once it has run


class FastPass:
    """A backward pass over what was kept, the cotangents and what stands in for others, as `run` of those that `pick`
    picks."""

    def __init__(self, backward: BackwardPass, kept: Sequence[torch.Tensor], d_outputs: Outputs):
        how = backward.run
        sources, self.beside, tensors = backward.placed(kept, d_outputs)
        self.run = _nothing if how is None else how.function.prepared(tensors, how.weak, how.values).direct
        self.pick = _picker(sources)
        self.kinds = [(t.shape, t.dtype) for t in kept]
        places = (0, *(r + 1 if isinstance(r, int) else 0 for r in backward.results))
        self.found = itemgetter(*places)  # in nothing and the results
        self.gradients = backward.gradients if any(isinstance(r, tuple) for r in backward.results) else None

    def takes(self, kept: Sequence[torch.Tensor]) -> bool:
        """Are these what it was made for? Hooks may give back others, and `x.data` may be set."""
        for t, (shape, dtype) in zip(kept, self.kinds, strict=True):
            if t.shape != shape or t.dtype is not dtype:
                return False
        return True


def _nothing() -> tuple:
    """What runs where all gradients are views."""
    return ()


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple]:
    """What gives the elements at these places, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda every: ()
    (place,) = places
    return lambda every: (every[place],)


class FastTileCall(torch.autograd.Function):
    """The node of a fast call."""

    @staticmethod
    @untraced
    def forward(ctx: Any, call: FastCall, *tensors: torch.Tensor) -> Outputs:
        results = call.run(*tensors)
        for r in results:
            if r is not None and r._is_view():  # which torch would take no operation in place on
                results = tuple([r if r is None or not r._is_view() else r.detach() for r in results])
                break
        ctx.call = call
        ctx.materialize_grads = False  # what torch's methods set, as they stand
        ctx.to_save = call.keep((*results, *tensors))
        if call.constant is None:
            integers = [place for place, r in enumerate(results) if r is not None and not r.is_floating_point()]
            call.constant = (*integers, *call.recorded.constant)
        if call.constant:
            ctx.non_differentiable = tuple([results[place] for place in call.constant])
        return results

    @staticmethod
    @untraced
    def backward(ctx: Any, *d_outputs: torch.Tensor | None) -> Outputs:
        if is_dynamo_compiling():
            return pulled_back(ctx.call.recorded, ctx, d_outputs)
        try:
            return FastTileCall._backward(ctx, d_outputs)
        except TileError as error:
            hide_frames(error)
            raise

    @staticmethod
    def _backward(ctx: Any, d_outputs: Outputs) -> Outputs:
        call: FastCall = ctx.call
        key = ctx.needs_input_grad, tuple([d is not None for d in d_outputs])
        kept = ctx.saved_tensors
        fast = call.passes.get(key)
        if fast is None:
            results = call.recorded.pulled_back(key[0][1:], kept, d_outputs)
            _add_fast_pass(call, key, kept, d_outputs)
            return (None, *results)
        if not plain(call.device, kept, d_outputs) or not fast.takes(kept):
            return (None, *call.recorded.pulled_back(key[0][1:], kept, d_outputs))
        given = (*kept, *d_outputs, *fast.beside)
        results = fast.run(*fast.pick(given))
        if fast.gradients is not None:
            return (None, *fast.gradients(results, given))
        return fast.found((None, *results))


_apply = super(torch.autograd.Function, FastTileCall).apply  # torch's own binds the arguments to a signature each time


def fast_call(recorded: Recorded, tensors: Sequence[torch.Tensor]) -> Callable[..., Outputs]:
    return partial(_apply, FastCall(recorded, tensors))


def _add_fast_pass(call: FastCall, key: tuple, kept: Sequence[torch.Tensor], d_outputs: Outputs) -> None:
    """Let later backward passes with such cotangents go straight to what they run."""
    needed, there = key[0][1:], key[1]
    if any(needed) and any(there) and plain(call.device, kept, d_outputs):
        backward = call.recorded.backward(needed, there)
        if not backward.replaced and backward.unread:
            call.passes[key] = FastPass(backward, kept, d_outputs)


def addressed(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """Where addresses are handed over."""
    return tensors[0].device if tensors[0].is_cuda else None


def plain(device: torch.device | None, kept: Sequence[torch.Tensor], d_outputs: Outputs) -> bool:
    """May a backward pass of these go straight to what runs? Hooks may give back other tensors than were kept."""
    if torch.is_grad_enabled() or not untouched():
        return False
    for d in d_outputs:
        if d is None:
            continue
        if type(d) not in PLAIN or d.layout is not strided or d.is_neg() or d._is_zerotensor():
            return False
    for t in kept:
        if type(t) not in PLAIN or device is not None and t.device != device:
            return False
    return True


class NativeBackward:
    """What the library's node asks of Python: backward passes that are unusual, or the first of their kind."""

    def __init__(self, library: Any, recorded: Recorded, tensors: Sequence[torch.Tensor]):
        self._library, self._recorded, self._device = library, recorded, addressed(tensors)

    @public
    def pulled_back(self, native: Any, needed: tuple[bool, ...], kept: Any, d_outputs: Outputs) -> Outputs | None:
        """The inputs' gradients from what was kept; `native` is the recorded call as the library has it, None
        where nothing is to be added to it."""
        results = self._recorded.pulled_back(needed, kept, d_outputs)
        there = tuple([d is not None for d in d_outputs])
        if native is not None and any(needed) and any(there) and plain(self._device, kept, d_outputs):
            backward = self._recorded.backward(needed, there)
            if not backward.replaced and backward.unread:
                how = backward.run
                sources, beside, tensors = backward.placed(kept, d_outputs)
                run = None if how is None else how.function.prepared(tensors, how.weak, how.values).native(tensors)
                gradients = [gradient_of(r) for r in backward.results]
                self._library.add_pass(native, needed, kept, d_outputs, run, sources, beside, gradients)
        return results


def gradient_of(source: GradientSource) -> tuple[int, bool, list[int], list[int]]:
    """A gradient's place among results (-1: none), or as a view of what has the place among what was kept and the
    cotangents: with the axes that it has there (-1: repeated), and its shape."""
    if not isinstance(source, tuple):
        return -1 if source is None else source, False, [], []
    place, view = source
    return place, True, [-1 if a is None else a for a in view.axes], list(view.shape)


def native_call(library: Any, recorded: Recorded, tensors: Sequence[torch.Tensor]) -> tuple[object, Any]:
    """What the library runs for a recorded call of tensors like these, and its record."""
    run = recorded.forward.prepared(tensors, recorded.weak, recorded.run.values).native(tensors)
    constant = [place in recorded.constant for place in range(recorded.result_count)]
    python = NativeBackward(library, recorded, tensors)
    return run, library.recorded(python, len(tensors), list(recorded.kept), constant)
