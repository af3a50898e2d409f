"""Calls that differ from known ones in open sizes alone: what runs is filled in with these, forward and backward, and
nothing else of such a call is looked at. What cannot be filled in is left to the way of the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tilec.calls.fast_path import NativeBackward, addressed, gradient_of, plain
from tilec.ir.at_sizes import Template
from tilec.ir.types import TensorType
from tilec.late import untraced
from tilec.prepare.prepared import CACHED_CALLS, OpenRun, Prepared
from tilec.specialise import AtSizes, Specialiser
from tilec.torch_op.backward_pass import OpenRecord, standing_in
from tilec.torch_op.levels import Outputs, TensorSequence
from tilec.torch_op.recorded import Recorded, recorded_at


class OpenRuns:
    """What fills in programs with open sizes, by what plans depend on beside sizes."""

    def __init__(self) -> None:
        self._made: dict[object, tuple[Prepared, OpenRun | None]] = {}

    def at(self, prepared: Prepared, sizes: Mapping[str, int], tensors: TensorSequence) -> Any | None:
        """What the library runs at these sizes, if that has been made for such tensors."""
        key = id(prepared), torch.get_float32_matmul_precision(), *[t.data_ptr() & 15 for t in tensors]
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = prepared, prepared.open_run(tensors)
        return None if found[1] is None else found[1](sizes, tensors)


class OpenCalls:
    """Calls of tensors like these; the library asks it to add one that is new."""

    def __init__(self, library: Any, function: Specialiser, tensors: TensorSequence, recorded: Recorded | None):
        self._library, self._function = library, function
        self._cuda = tensors[0].is_cuda
        weak = (False,) * len(tensors)
        types, device = function.types(tensors, weak), tensors[0].device.type
        self._programs = function.open_class(types, device)
        self._recorded = None
        if recorded is not None:
            asked = tuple([t.requires_grad for t in tensors])
            self._recorded = function.recorded_classes.known((asked, weak, function.divisor(device)), types)
        self._key = device, *[(t.dtype, t.weak) for t in types.values()]
        self._runs = OpenRuns()
        self._kinds: dict[int, OpenKind] = {}

    @untraced
    def __call__(self, calls: Any, tensors: TensorSequence) -> bool:
        """Add the call of such tensors; False where it has to be looked at."""
        if len(calls) >= CACHED_CALLS or not self._function.may_leave_open():
            return False
        if self._cuda and torch.cuda.is_current_stream_capturing():
            return False
        sizes = tuple([n for t in tensors for n in t.shape])
        if self._recorded is None:
            run, record_of = self._run(self._own(sizes), tensors), None
        else:
            found = self._recorded.find(sizes)
            if found is None or found[0].special.replaced:
                return False
            kind = self._kind(*found)
            forward = found[0].forward
            program = self._own(sizes) if forward is None else (forward.find(found[1], self._key), found[1])
            run, record_of = self._run(program, tensors), kind.record(found[1], tensors)
        if run is None:
            return False
        return calls.add(tensors, run, record_of, len(self._function.outputs), [], None)

    def _own(self, sizes: tuple[int, ...]) -> tuple[Prepared, Mapping[str, int]] | None:
        """The function itself."""
        return None if self._programs is None else self._programs.find(sizes)

    def _run(self, found: tuple[Prepared | None, Mapping[str, int]] | None, tensors: TensorSequence) -> Any | None:
        return None if found is None or found[0] is None else self._runs.at(found[0], found[1], tensors)

    def _kind(self, shared: OpenRecord, sizes: Mapping[str, int]) -> OpenKind:
        if id(shared) not in self._kinds:
            recorded = recorded_at(self._function, (shared, sizes), (False,) * len(self._function.inputs), ())
            self._kinds[id(shared)] = OpenKind(self._library, recorded)
        return self._kinds[id(shared)]


class OpenKind:
    """Recorded calls that share what was made with open sizes; `recorded` is one of them."""

    def __init__(self, library: Any, recorded: Recorded):
        assert recorded.shared is not None
        self.library, self.recorded, self.shared = library, recorded, recorded.shared[0]
        self._kept = list(recorded.kept)
        self._constant = [place in recorded.constant for place in range(recorded.result_count)]
        self._passes: dict[object, OpenPass | None] = {}
        self.runs = OpenRuns()

    def record(self, sizes: Mapping[str, int], tensors: TensorSequence) -> Any:
        """The library's record of a call."""
        python = OpenBackward(self, sizes, addressed(tensors))
        return self.library.recorded(python, len(tensors), self._kept, self._constant)

    def find(self, needed: tuple[bool, ...], there: tuple[bool, ...]) -> OpenPass | None:
        """The backward pass by such inputs of such cotangents."""
        if (needed, there) not in self._passes:
            self._passes[needed, there] = self._made(needed, there)
        return self._passes[needed, there]

    def _made(self, needed: tuple[bool, ...], there: tuple[bool, ...]) -> OpenPass | None:
        recorded, part = self.recorded, self.shared.partition.backward
        if not any(needed) or any(there[len(recorded.outputs) :]):
            return None
        backward = recorded.backward(needed, there)
        if backward.replaced or not backward.unread:
            return None
        program, names = None, tuple[str, ...]()
        if backward.run is not None:
            if not isinstance(backward.run.function, AtSizes):
                return None
            program, names = backward.run.function.opened_program, backward.run.function.inputs
        sources = zip(names, backward.sources, strict=True)
        beside = tuple([part.types[name] for name, s in sources if isinstance(s, TensorType)])
        results = zip(recorded.inputs, backward.results, strict=True)
        gradients = [gradient_of((r[0], self.shared.views[name]) if isinstance(r, tuple) else r) for name, r in results]
        first = len(self.shared.partition.kept) + len(there)
        places = iter(range(first, first + len(beside)))
        return OpenPass(
            program,
            tuple([part.types[name] for name in names]),
            [s if isinstance(s, int) else next(places) for s in backward.sources],
            Template(
                (beside, tuple([part.types[name].shape for name in names]), gradients), self.shared.opened.symbols
            ),
        )


@dataclass(frozen=True)
class OpenPass:
    """A backward pass with open sizes. `types` are those of the inputs of its `program`, `sources` their places;
    `numbers` gives the types of what stands in for others, the inputs' shapes and the gradients."""

    program: Any
    types: tuple[TensorType, ...]
    sources: list[int]
    numbers: Callable[[Mapping[str, int]], tuple[Sequence[TensorType], Sequence[tuple[int, ...]], list]]

    @cached_property
    def dtypes(self) -> list[torch.dtype]:
        return [getattr(torch, t.dtype) for t in self.types]


class OpenBackward(NativeBackward):
    """What the library's node of such a call asks of Python."""

    def __init__(self, kind: OpenKind, sizes: Mapping[str, int], device: torch.device | None):
        self._kind, self._sizes = kind, sizes
        self._library, self._device = kind.library, device

    @cached_property
    def _recorded(self) -> Recorded:  # type: ignore[override]
        like = self._kind.recorded
        return recorded_at(like.function, (self._kind.shared, self._sizes), like.weak, like.values)

    @untraced
    def pulled_back(self, native: Any, needed: tuple[bool, ...], kept: Any, d_outputs: Outputs) -> Outputs | None:
        """None where the pass is added, for the library to run."""
        if native is not None and plain(self._device, kept, d_outputs) and self._add(native, needed, kept, d_outputs):
            return None
        return super().pulled_back(native, needed, kept, d_outputs)

    def _add(self, native: Any, needed: tuple[bool, ...], kept: TensorSequence, d_outputs: Outputs) -> bool:
        there = tuple([d is not None for d in d_outputs])
        found = self._kind.find(needed, there) if any(there) else None
        if found is None:
            return False
        types, shapes, gradients = found.numbers(self._sizes)
        like = next(d for d in d_outputs if d is not None)
        beside = [standing_in(t, like) for t in types]
        given: Any = (*kept, *d_outputs, *beside)
        tensors = [given[s] for s in found.sources]
        if [t.dtype for t in tensors] != found.dtypes or tuple([tuple(t.shape) for t in tensors]) != shapes:
            return False  # hooks may give back others than were kept
        run = None
        if found.program is not None:
            key = like.device.type, *[(t.dtype, t.weak) for t in found.types]
            prepared = found.program.find(self._sizes, key)
            run = None if prepared is None else self._kind.runs.at(prepared, self._sizes, tensors)
            if run is None:
                return False
        self._library.add_pass(native, needed, kept, d_outputs, run, found.sources, beside, gradients)
        return True
