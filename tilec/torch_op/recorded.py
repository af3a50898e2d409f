"""A call of a Tile function as torch records it: what runs forward, what is kept, and the backward pass, which is again
a Tile function.

A recorded call becomes a node of torch's autograd graph (`autograd_node.py`). What is left when all of torch.func's
transforms are done runs, or becomes a call of the operator (`operator.py`) where torch traces and wants no more than to
see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Thread
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from tilec.ir.at_sizes import with_numbers
from tilec.ir.symbolic import Pinned
from tilec.ir.types import TensorType, Types, is_floating
from tilec.prepare.classes import Opened
from tilec.prepare.prepared import Prepared, Specialised
from tilec.saving import Partition
from tilec.specialise import AtSizes, Specialiser
from tilec.torch_op import dtensors, symbolic
from tilec.torch_op.autograd_node import TileCall
from tilec.torch_op.backward_pass import (
    BackwardPass,
    CotangentView,
    GradientSource,
    OpenRecord,
    OpenRecordAt,
    elements_read,
    gradient_by,
    input_views,
    standing_in,
)
from tilec.torch_op.dispatch import SizeValues, Weak, operator, run_plain
from tilec.torch_op.graphs.nodes import handle_of
from tilec.torch_op.levels import Outputs, through_levels
from tilec.torch_op.state import asking, exporting, ordinary, recording, transforming
from tilec.transforms.checkpoint.backward import Backward

Written = TypeVar("Written")


def recorded_call(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Weak, values: SizeValues) -> Outputs:
    """The outputs, recorded and transformed as torch asks. `weak` marks Python numbers, `values` are those of the
    inputs that stand in sizes."""
    if exporting():
        return operator(function, tensors, weak, values)
    if transforming():
        recorded = record(function, tensors, weak, values)
        return through_levels(TileCall, recorded, tensors)[: len(function.outputs)]
    if recording(tensors):
        return TileCall.apply(record(function, tensors, weak, values), *tensors)[: len(function.outputs)]
    return run_plain(function, tensors, weak, values)


def record(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Weak, values: SizeValues) -> Recorded:
    """How torch is to record a call with such tensors."""
    asked = asking(tensors)
    if symbolic.is_open(tensors, values):
        return _open(function, tensors, weak, values)
    key = (asked, weak, values, *[(t.shape, t.dtype) for t in tensors])
    recorded = function.recorded.get(key)
    if recorded is None:
        recorded = _for_class(function, tensors, asked, weak, values)
        if recorded is None:
            recorded = _recorded(function, tensors, asked, weak, values)
        function.recorded[key] = recorded
    return recorded


def _recorded(function: Specialiser, tensors: Any, asked: Sequence[bool], weak: Weak, values: SizeValues) -> Recorded:
    types, sizes = function.types(tensors, weak), dict(zip(function.sizes, values, strict=True))
    wrt = tuple(name for name, a in zip(function.inputs, asked, strict=True) if a)
    if not wrt:  # tangents or a batch alone
        return unrecorded(function, tensors, weak, values)
    special, parts = function.partition(wrt, types, sizes, tensors[0].device.type)
    forward = function if parts.forward is None else function.made(parts.forward, parts.chunks)
    return Recorded(forward, weak, values, wrt, special.result_names, special, parts, function)


def _for_class(
    function: Specialiser, tensors: Any, asked: Sequence[bool], weak: Weak, values: SizeValues
) -> Recorded | None:
    """The same of what serves a class of shapes; None where sizes cannot be left open, or are not yet."""
    possible = any(asked) and ordinary(tensors) and function.may_leave_open()
    if not possible or transforming() or forward_ad._current_level >= 0:
        return None
    wrt = tuple(name for name, a in zip(function.inputs, asked, strict=True) if a)

    def make(opened: Opened) -> OpenRecord:
        sizes = dict(zip(function.sizes, values, strict=True))
        special, parts = function.partition(wrt, opened.types, sizes, tensors[0].device.type)
        if parts.chunks is not None:
            raise Pinned(opened.symbols)
        forward = None if parts.forward is None else function.open_program(opened, parts.forward)
        return OpenRecord(opened, wrt, special, parts, forward, input_views(wrt, parts.backward))

    types, divisor = function.types(tensors, weak), function.divisor(tensors[0].device.type)
    found = function.recorded_classes.get((asked, weak, divisor), types, values, divisor, make)
    return None if found is None else recorded_at(function, found, weak, values)


def recorded_at(function: Specialiser, known: OpenRecordAt, weak: Weak, values: SizeValues) -> Recorded:
    """A recorded call of a class of shapes, at the sizes that are known with it."""
    shared, sizes = known
    special = with_numbers(shared.special, sizes) if shared.special.replaced else shared.special
    forward = function if shared.forward is None else AtSizes(shared.forward, sizes)
    outputs = special.result_names
    return Recorded(forward, weak, values, shared.wrt, outputs, special, shared.partition, function, known)


def _open(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Weak, values: SizeValues) -> Open:
    """A call whose sizes a compiler leaves open."""
    types = symbolic.example_types(function, tensors, weak)
    special = function.specialised(types, dict(zip(function.sizes, map(symbolic.example, values), strict=True)))
    results = symbolic.result_types(function, tensors, weak, values)
    given = {n: replace(types[n], shape=tuple(t.shape)) for n, t in zip(function.inputs, tensors, strict=True)}
    asked = tuple([name for name, a in zip(function.inputs, asking(tensors), strict=True) if a])
    asked = () if any(map(dtensors.is_distributed, tensors)) else asked  # whose gradients are placed as inputs are
    how = (special.result_names, special, None, function)
    return Open(function, weak, values, (), *how, types=results, input_types=given, asked=asked)


def unrecorded(function: Specialiser, tensors: Sequence[torch.Tensor], weak: Weak, values: SizeValues) -> Recorded:
    """A call that no gradient is asked of."""
    special = function.specialised(function.types(tensors, weak), dict(zip(function.sizes, values, strict=True)))
    return Recorded(function, weak, values, (), special.result_names, special, None, function)


def over_batch(
    function: Specialiser,
    randomness: str,
    dims: Sequence[int | None],
    tensors: Sequence[torch.Tensor],
    weak: Weak,
    values: Callable[[Specialiser], SizeValues],
) -> Outputs:
    """The outputs of a function that is no gradient over a batch, which each tensor has along a dimension or not."""
    ranks = tuple([t.dim() - (d is not None) for t, d in zip(tensors, dims, strict=True)])
    batch = function.vmap(tuple(dims), ranks, "different" if randomness == "different" else "same")
    return recorded_call(batch, tensors, weak, values(batch))


@dataclass(frozen=True)
class Recorded:
    """A function's call as torch records it, for one combination of shapes, types and inputs that need gradients.

    `forward` gives the outputs (None: no result) and then the extras, of inputs of which `weak` are Python numbers and
    `values` those that stand in sizes; `outputs` names those that are there, by position. `wrt` are the inputs that
    need gradients (none: there is no `partition`). `function` is what is recorded, `special` its program. `shared`:
    what other shapes of a class run too, and the sizes here. `beside`: threads that make a backward pass ready.
    `handle`: by which graphs know it.
    """

    forward: Specialiser
    weak: Weak
    values: SizeValues
    wrt: tuple[str, ...]
    outputs: tuple[str | None, ...]
    special: Specialised
    partition: Partition | None
    function: Specialiser
    shared: OpenRecordAt | None = None
    beside: list[Thread] = field(default_factory=list)
    handle: str = field(init=False)
    _gradients: dict[object, tuple[Specialiser, Backward]] = field(default_factory=dict)
    _passes: dict[object, BackwardPass] = field(default_factory=dict)
    _views: dict[bool, dict[str, CotangentView]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "handle", handle_of(self))

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.forward.inputs

    @property
    def result_count(self) -> int:
        """How many outputs and extras there are."""
        return len(self.outputs) + (len(self.partition.extra) if self.partition else 0)

    @cached_property
    def run(self) -> Ready:
        return Ready(self.forward, self.weak, self.values if self.forward is self.function else ())

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Where what is kept stands in outputs, extras and inputs, in that order."""
        if self.partition is None:
            return ()
        names = (*self.outputs, *self.partition.extra, *self.inputs)
        last = {name: place for place, name in enumerate(names)}  # an input that is an output is kept as an input
        return tuple(last[name] for name in self.partition.kept)

    @cached_property
    def constant(self) -> tuple[int, ...]:
        """Where the extras that have no derivative stand in outputs and extras."""
        first, parts = len(self.outputs), self.partition
        return () if parts is None else tuple(first + parts.extra.index(name) for name in parts.constant)

    @cached_property
    def plain(self) -> Specialiser:
        """A program that gives the results which there are, of inputs in the place of which stands what is to."""
        return self.forward.plain(self.special)

    def given(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs of `plain`."""
        return [self.special.replaced[i](t) if i in self.special.replaced else t for i, t in enumerate(tensors)]

    def values_of(self, function: Specialiser) -> SizeValues:
        """Those of the inputs that stand in sizes of a function derived from this one."""
        known = dict(zip(self.function.sizes, self.values, strict=True))
        return tuple([known[name] for name in function.sizes])

    def results(self, found: Sequence[torch.Tensor | None]) -> Outputs:
        """All outputs and extras, of those that `plain` has."""
        if self.plain is self.forward:
            return tuple(found)
        return tuple([None if r is None else found[r] for r in self.special.results])

    def tangents(self, inputs: Sequence[torch.Tensor], tangents: Outputs) -> Outputs:
        tensors = self.given(inputs)
        moving = {name: t for name, t in zip(self.inputs, tangents, strict=True) if t is not None}
        moving = {name: t for name, t in moving.items() if t.is_floating_point()}
        if not moving:
            return (None,) * len(self.results([None] * len(self.plain.outputs)))
        derived = self.plain.jvp(tuple(moving))
        weak = (*self.weak, *[False] * len(moving))
        found = recorded_call(derived, [*tensors, *moving.values()], weak, self.values_of(derived))
        return self.results([t if t is not None and t.is_floating_point() else None for t in found])

    def over_batch(self, randomness: str, dims: Sequence[int | None], tensors: Sequence[torch.Tensor]) -> Outputs:
        tensors = self.given(tensors)
        return self.results(over_batch(self.plain, randomness, dims, tensors, self.weak, self.values_of))

    def gradient(
        self, wanted: tuple[str, ...], extended: bool, absent: tuple[str, ...] = ()
    ) -> tuple[Specialiser, Backward]:
        """The gradient by some of `wrt`, and what it reads, where the cotangents `absent` are not there."""
        key = extended, wanted, absent
        if key not in self._gradients:
            backward = self._gradient_part(extended)
            function = self._shared_gradient(wanted, extended, absent)
            if function is not None:
                self._gradients[key] = function, backward
                return self._gradients[key]
            program = gradient_by(wanted, self.wrt, self._numbers(backward), absent)
            chunks = None if extended or self.partition is None else self.partition.chunks
            self._gradients[key] = self.function.made(program, chunks), backward
        return self._gradients[key]

    def _gradient_part(self, extended: bool) -> Backward:
        assert self.partition is not None, "nothing asked for a gradient"
        backward = self.partition.extended if extended else self.partition.backward
        assert backward is not None, "extras without a derivative have no cotangent"
        return backward

    def views(self, extended: bool) -> dict[str, CotangentView]:
        """The gradients that are views of cotangents, by the input's name."""
        if extended not in self._views:
            if self.shared is not None and not extended:
                self._views[extended] = self._numbers(self.shared[0].views)
            else:
                self._views[extended] = input_views(self.wrt, self._numbers(self._gradient_part(extended)))
        return self._views[extended]

    def _numbers(self, x: Written) -> Written:
        """With numbers in the place of sizes that the partition leaves open."""
        return x if self.shared is None else with_numbers(x, self.shared[1])

    def _shared_gradient(self, wanted: tuple[str, ...], extended: bool, absent: tuple[str, ...]) -> Specialiser | None:
        """The same as what a class of shapes shares."""
        if self.shared is None:
            return None
        shared, sizes = self.shared
        key = extended, wanted, absent
        if key not in shared.gradients:
            backward = self._gradient_part(extended)
            try:
                program = gradient_by(wanted, self.wrt, backward, absent)
            except Pinned:
                return None
            opened = Opened(shared.opened.recorder, dict(backward.types))
            shared.gradients[key] = self.function.open_program(opened, program)
        return AtSizes(shared.gradients[key], sizes)

    def backward(self, needed: tuple[bool, ...], there: tuple[bool, ...], computed: bool = False) -> BackwardPass:
        """A backward pass by the inputs that are `needed`, where `there` says which cotangents are. `computed`: views
        of cotangents too."""
        key = needed, there, computed
        if key not in self._passes:
            assert self.partition is not None, "nothing asked for a gradient"
            extended, first = any(there[len(self.outputs) :]), len(self.partition.kept)
            cotangents = [place for place, o in enumerate(self.outputs) if o is not None]
            cotangents += range(len(self.outputs), len(there))
            given = {name: place for place, name in enumerate(self.partition.kept)}
            names = list(zip(self._gradient_part(extended).cotangents, cotangents, strict=False))
            given |= {name: first + place for name, place in names if there[place]}
            absent = tuple([name for name, place in names if not there[place]])
            asked = tuple(name for name, need in zip(self.inputs, needed, strict=True) if need)
            found = {} if computed else self.views(extended)
            views = {n: (given[v.source], v) for n, v in found.items() if n in asked and v.source in given}
            wanted = tuple(name for name in asked if name not in views)
            places: list[GradientSource] = [views.get(n, wanted.index(n) if n in wanted else None) for n in self.inputs]
            if not wanted:
                self._passes[key] = BackwardPass(None, (), tuple(places), {})
                return self._passes[key]
            function, backward = self.gradient(wanted, extended, absent)
            weak = dict(zip(self.inputs, self.weak, strict=True))
            replaced = {self.inputs[p]: r for p, r in self.special.replaced.items()}
            self._passes[key] = BackwardPass(
                Ready(function, tuple(weak.get(name, False) for name in function.inputs), ()),
                tuple(given[n] if n in given else self._numbers(backward.types[n]) for n in function.inputs),
                tuple(places),
                {place: replaced[name] for place, name in enumerate(self.partition.kept) if name in replaced},
                all(n in given or n in backward.shapes for n in function.inputs),
            )
        return self._passes[key]

    def pulled_back(self, needed: tuple[bool, ...], kept: Sequence[torch.Tensor], d_outputs: Outputs) -> Outputs:
        """The inputs' gradients from what was kept, which a checkpoint lets be asked for once."""
        there = tuple([d is not None and place not in self.constant for place, d in enumerate(d_outputs)])
        if not any(needed) or not any(there):
            return (None,) * len(self.inputs)
        for thread in self.beside:
            thread.join()
        like = next(d for d in d_outputs if d is not None)
        backward = self.backward(needed, there, dtensors.is_distributed(like))  # its placements follow the input's
        if backward.replaced:
            kept = [backward.replaced[i](t) if i in backward.replaced else t for i, t in enumerate(kept)]
        given: Any = (*kept, *d_outputs)
        tensors = [given[s] if isinstance(s, int) else standing_in(s, like) for s in backward.sources]
        return backward.gradients(() if backward.run is None else backward.run(tensors), given)


@dataclass(frozen=True)
class Open(Recorded):
    """A call whose sizes are open, so that nothing can be weighed: inputs are kept, those that a gradient by the ones
    `asked` may read, and the backward pass is the gradient as its text says. `types` are the outputs'."""

    types: tuple[TensorType | None, ...] = ()
    input_types: Types = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    @cached_property
    def kept(self) -> tuple[int, ...]:
        return tuple([len(self.outputs) + place for place in self._kept_inputs])

    @cached_property
    def _kept_inputs(self) -> tuple[int, ...]:
        """Their places. What is not read may change in place."""
        if not self.asked:
            return tuple(range(len(self.inputs)))
        read = elements_read(self.plain.grad(self.asked).program)
        lent = {n for n, t in self.input_types.items() if n not in read and is_floating(t.dtype) and not t.weak}
        return tuple([p for p, n in enumerate(self.inputs) if n not in lent or p in self.special.replaced])

    def _of(self, outputs: tuple[str, ...]) -> Specialiser:
        return self.plain.made(replace(self.plain.program, outputs=outputs))

    def backward(self, needed: tuple[bool, ...], there: tuple[bool, ...], computed: bool = False) -> BackwardPass:
        wanted = tuple([name for name, need in zip(self.inputs, needed, strict=True) if need])
        places = [p for p, t in enumerate(self.types) if t is not None]
        outputs = tuple([o for o, p in zip(self.plain.outputs, places, strict=True) if there[p]])
        whole = self.plain if outputs == self.plain.outputs else self._of(outputs)
        gradient = whole.grad(wanted)
        kept = {self.inputs[p]: k for k, p in enumerate(self._kept_inputs)}
        assert elements_read(gradient.program).isdisjoint(self.input_types.keys() - kept.keys()), "not all is kept"
        cotangents = [len(kept) + p for p in places if there[p]]
        weak = (*self.weak, *[False] * len(cotangents))
        return BackwardPass(
            Ready(gradient, weak, self.values_of(gradient)),
            (*[kept.get(name, self.input_types[name]) for name in self.inputs], *cotangents),
            tuple([wanted.index(name) if name in wanted else None for name in self.inputs]),
            {k: self.special.replaced[p] for k, p in enumerate(self._kept_inputs) if p in self.special.replaced},
        )


class Ready:
    """A function whose inputs mostly have the same shapes and types in each call: what hooks give back in the place of
    what was kept may have others. `weak` are Python numbers."""

    def __init__(self, function: Specialiser, weak: Weak, values: SizeValues):
        self.function, self.weak, self.values = function, weak, values
        self._prepared: dict[object, tuple[Prepared, Callable[[Sequence[torch.Tensor]], Outputs]]] = {}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Outputs:
        if transforming() or recording(tensors) or not ordinary(tensors):
            return recorded_call(self.function, tensors, self.weak, self.values)
        key = (tensors[0].device.type if tensors else "cpu", *[(t.shape, t.dtype) for t in tensors])
        if key not in self._prepared:
            prepared = self.function.prepared(tensors, self.weak, self.values)
            self._prepared[key] = prepared, prepared.unrecorded
        return self._prepared[key][not torch._C._is_any_autocast_enabled()](tensors)
