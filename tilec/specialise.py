"""A program for given shapes and types: what runs, what a recorded call keeps, and the functions derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from tilec import knobs
from tilec.arguments import DTYPE_NAMES
from tilec.backends import choose_backend
from tilec.backends.base import Backend, Executable, Lowering, Options
from tilec.backends.common.tiled_program import TiledProgram
from tilec.errors import TileError
from tilec.ir.at_sizes import with_numbers
from tilec.ir.infer import infer
from tilec.ir.program import Program
from tilec.ir.shape_class import Recorder, ShapeClass
from tilec.ir.symbolic import Pinned, symbols_of
from tilec.ir.types import TensorType, Types, is_floating
from tilec.lowered import Lowered, dump_numbered
from tilec.pipeline import bind_flat, lower
from tilec.prepare.classes import Classes, Opened, OpenProgram
from tilec.prepare.prepared import Bounded, Prepared, Replaced, Specialised, replaced_cotangent
from tilec.prepare.warn import say, warnings_of
from tilec.saving import Partition, partition
from tilec.transforms.autodiff.grad import are_mixed, grad
from tilec.transforms.autodiff.jvp import jvp
from tilec.transforms.batching.vmap import vmap
from tilec.transforms.bind.bind import bind
from tilec.transforms.bind.value_inputs import seed_inputs, size_inputs
from tilec.transforms.checkpoint.calls import chunk_calls
from tilec.transforms.checkpoint.chunks import Chunks, share_at_once
from tilec.transforms.simplify.simplify import simplify
from tilec.transforms.util.tiled import Calls

UNLIMITED = 2**62  # bytes


@dataclass(frozen=True)
class Gradient:
    """Where a gradient comes from: the function it differentiates and the inputs it differentiates by."""

    forward: Specialiser
    wrt: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """What is warned of in a call: the program's own text, or that of the function `origin` it is derived from, whose
    inputs are its first ones, each with a batch's dimension where `dims` says so. `strict`: are warnings errors?"""

    strict: bool = False
    origin: Specialiser | None = None
    dims: tuple[int | None, ...] = ()


class Specialiser:
    """A program and how it is to run; makes what runs for given shapes and types, each once.

    `gradient` says whose gradient the program is, `chunks` that it runs in chunks of time, `checked` what its calls are
    warned of (None: nothing, since another function's calls are).
    """

    def __init__(
        self,
        program: Program,
        source: str,
        filename: str = "<tile>",
        backend: str | None = None,
        gradient: Gradient | None = None,
        tune: bool = False,
        exact: bool = False,
        chunks: Chunks | None = None,
        checked: Checked | None = Checked(),
    ):
        self.program = program
        self.source = source
        self.filename = filename
        self.backend = backend
        self.gradient = gradient
        self.tune = tune
        self.exact = exact
        self.chunks = chunks
        self.checked = checked
        origin = checked.origin if checked else None
        self.inputs = program.input_names()
        self.outputs = program.outputs
        # a gradient may need no size that its function has, but checks the shapes of cotangents by it
        needed = {*size_inputs(program), *(gradient.forward.sizes if gradient else origin.sizes if origin else ())}
        self.sizes: tuple[str, ...] = tuple(name for name in self.inputs if name in needed)
        self.size_positions = tuple(self.inputs.index(name) for name in self.sizes)
        self.seeds: tuple[str, ...] = seed_inputs(program) if gradient is None else gradient.forward.seeds
        self._forget()

    def _forget(self) -> None:
        """Begin without anything made."""
        self.recorded: Bounded = Bounded()  # by types, size values, inputs that need gradients
        self.recorded_classes: Classes[Any] = Classes()
        self.shares: Bounded = Bounded()  # what a rank runs of a call on DTensors
        self._prepared: Bounded = Bounded()
        self._classes: Classes[Prepared] = Classes()
        self._derived: dict[tuple[str, tuple], Specialiser] = {}
        self._plain: Bounded = Bounded()
        self._told: Bounded = Bounded()  # types and size values whose warnings were given

    def __reduce__(self) -> tuple:
        how = (self.backend, self.gradient, self.tune, self.exact, self.chunks, self.checked)
        return Specialiser, (self.program, self.source, self.filename, *how)

    # what runs

    def types(self, tensors: Sequence[torch.Tensor], weak: Sequence[bool]) -> dict[str, TensorType]:
        """The inputs' types, of tensors whose sizes are numbers."""
        return {
            name: TensorType(tuple(t.shape), DTYPE_NAMES[t.dtype], w)
            for name, t, w in zip(self.inputs, tensors, weak, strict=True)
        }

    def prepared(self, tensors: Sequence[torch.Tensor], weak: tuple[bool, ...], values: tuple[int, ...]) -> Prepared:
        """What runs for such tensors; `weak` marks Python numbers, `values` are those of the inputs that are sizes."""
        device = tensors[0].device.type if tensors else "cpu"
        key = (device, weak, values, *[(t.shape, t.dtype) for t in tensors])
        prepared = self._prepared.get(key)
        if prepared is None:
            types, sizes = self.types(tensors, weak), dict(zip(self.sizes, values, strict=True))
            opened = self._for_class(types, values, device)
            if opened is not None:
                self._prepared[key] = opened
                return opened
            lowering, prepared = self.lower(types, sizes, self.backend, device, None, self.tune)
            if (folder := knobs.DUMP.value) is not None:
                dump_numbered(Lowered(dict(lowering.stages), dict(lowering.types), prepared.executable), folder)
            self._prepared[key] = prepared
        return prepared

    def _for_class(self, types: dict[str, TensorType], values: tuple[int, ...], device: str) -> Prepared | None:
        """What serves a class of shapes, these among them; None where sizes cannot be left open, or are not yet."""
        if not self.may_leave_open():
            return None
        sizes = dict(zip(self.sizes, values, strict=True))
        how = self.backend, device, None, False

        def make(opened: Opened) -> Prepared:
            return self.lower(opened.types, sizes, *how, opened.recorder)[1]

        found = self._classes.get((device,), types, values, self.divisor(device), make)
        return None if found is None else found[0].at(found[1])

    def open_class(self, types: Types, device: str) -> ShapeClass[Prepared] | None:
        """What was made with open sizes for such types, if anything was."""
        return self._classes.known((device,), types)

    def may_leave_open(self) -> bool:
        """May sizes be left open? What is tuned or dumped has sizes."""
        return not self.tune and knobs.DUMP.value is None

    def divisor(self, device: str) -> int:
        """What open sizes are told apart by."""
        return choose_backend(self.backend, device).tells_apart

    def open_program(self, opened: Opened, program: Program) -> OpenProgram[Specialiser]:
        """A program derived from this one whose inputs leave sizes open."""

        def run(opened: Opened, symbols: Mapping[str, int], device: str) -> Prepared:
            how = self.backend, device, None, False
            made = self.made(with_numbers(program, symbols))
            return made.lower(opened.types, {}, *how, opened.recorder)[1]

        return OpenProgram(opened, self.made(program), run)

    def lower(
        self,
        types: dict[str, TensorType],
        values: dict[str, int],
        backend: str | None,
        device: str,
        target: str | None,
        tune: bool,
        recorder: Recorder | None = None,
    ) -> tuple[Lowering, Prepared]:
        """Lowering and executable for these types; for a gradient, without the results that are None. `recorder`: of
        sizes that are left open."""
        try:
            chosen = choose_backend(backend, device, target)
            special = self.specialised(types, values)
            lowering = lower(special.program, special.types, values)
            if recorder is not None:
                lowering = replace(lowering, recorder=recorder)
            if self.gradient is None:
                self.warn(types, values, lowering.stages["bound"])
            options = Options.from_environment(tune, self.exact)
            calls = self._calls(special, values, lowering)
            if calls is None:
                executable = chosen.build(lowering, options)
            elif recorder is not None:
                raise Pinned(recorder.names)
            else:
                executable = TiledProgram(calls, partial(_built, chosen, options))
            return lowering, Prepared(executable, special.results, special.replaced)
        except TileError as error:
            raise error.located(self.source, self.filename) from None

    def ahead(
        self, types: dict[str, TensorType], values: dict[str, int], target: str, recorder: Recorder | None = None
    ) -> tuple[Specialised, Executable]:
        """What runs for these types on a target, by generated kernels alone and all at once: neither slab by slab nor
        in chunks of time. `recorder`: of sizes that are left open."""
        try:
            special = self.specialised(types, values)
            lowering = replace(lower(special.program, special.types, values), recorder=recorder)
            options = replace(Options.from_environment(exact=self.exact), device_budget=UNLIMITED)
            return special, choose_backend("triton", "cuda", target).build(lowering, options)
        except TileError as error:
            raise error.located(self.source, self.filename) from None

    def _calls(self, special: Specialised, values: dict[str, int], lowering: Lowering) -> Calls | None:
        """What runs in chunks of time: both parts of a recorded call, and a gradient called by hand."""
        cotangents = () if self.gradient is None else self.inputs[len(self.gradient.forward.inputs) :]
        if self.gradient is not None:
            chunks: Chunks | float | None = share_at_once(lowering.stages["flat"], cotangents, lowering.types)
        else:
            chunks = self.chunks
        if chunks is None:
            return None
        flat = bind_flat(special.program, special.types, values)
        return chunk_calls(flat, infer(flat, special.types), chunks, cotangents)

    def warn(self, types: Types, values: Mapping[str, int], bound: Program | None = None) -> None:
        """Say what is legal and most likely not meant, once for each combination of shapes, at the caller's line."""
        if self.checked is None:
            return
        open_sizes = symbols_of(n for t in types.values() for n in t.shape)
        if open_sizes:  # a warning names sizes
            if any(warnings_of(self.program, bound or bind(self.program, types, values))):
                raise Pinned(open_sizes)
            return
        key = tuple(types.values()), tuple(values.items())
        if key in self._told:
            return
        if self.checked.origin is not None:
            self._warn_of_origin(self.checked.origin, self.checked.dims, types, values)
        else:
            if bound is None:
                bound = bind(self.program, types, values)
            for mistake in warnings_of(self.program, bound):
                say(mistake, self.source, self.filename, self.checked.strict)
        self._told[key] = True

    def _warn_of_origin(self, origin: Specialiser, dims: Sequence[int | None], types: Types, values) -> None:
        inputs = {}
        for name, own, dim in zip(origin.inputs, self.inputs, dims, strict=False):
            shape = list(types[own].shape)
            if dim is not None:
                del shape[dim]
            inputs[name] = replace(types[own], shape=tuple(shape))
        origin.warn(inputs, {name: values[name] for name in origin.sizes})

    def specialised(self, types: dict[str, TensorType], values: dict[str, int]) -> Specialised:
        if self.gradient is None:
            return Specialised(self.program, types, tuple(range(len(self.outputs))), {})
        replaced = self._replaced_cotangents(types, values)
        types = {**types, **{self.inputs[i]: r.type for i, r in replaced.items()}}
        floating = [is_floating(types[name].dtype) for name in self.gradient.wrt]
        mixed = are_mixed(types[name] for name in self.gradient.forward.inputs)
        whole = grad(self.gradient.forward.program, self.gradient.wrt, rounded=True) if mixed else self.program
        program = simplify(whole, [o for o, f in zip(self.outputs, floating, strict=True) if f])
        count = iter(range(len(program.outputs)))
        return Specialised(program, types, tuple([next(count) if f else None for f in floating]), replaced)

    def _replaced_cotangents(self, types: Types, values: Mapping[str, int]) -> dict[int, Replaced]:
        """By position, what takes the place of d_outputs."""
        assert self.gradient is not None
        forward = self.gradient.forward
        inputs = {name: types[name] for name in forward.inputs}
        needed = {name: values[name] for name in forward.sizes if name in values}
        bound = bind(forward.program, inputs, needed)
        forward.warn(inputs, needed, bound)
        outputs, first = infer(bound, inputs), len(forward.inputs)
        given = zip(self.inputs[first:], forward.outputs, strict=True)
        found = (replaced_cotangent(name, types[name], output, outputs[output]) for name, output in given)
        return {position: r for position, r in enumerate(found, first) if r is not None}

    def results(self, types: dict[str, TensorType], values: dict[str, int]) -> tuple[TensorType | None, ...]:
        """The type of each output (None: no result), from the inputs' alone. Raises what a call raises."""
        try:
            special = self.specialised(types, values)
            found = infer(bind(special.program, special.types, values), special.types)
        except TileError as error:
            raise error.located(self.source, self.filename) from None
        return tuple(None if n is None else found[n] for n in special.result_names)

    def there(self, dtypes: Sequence[torch.dtype]) -> tuple[bool, ...]:
        """Which outputs there are for inputs of these element types: a gradient has none by what is not floating."""
        if self.gradient is None:
            return (True,) * len(self.outputs)
        return tuple(dtypes[self.inputs.index(name)].is_floating_point for name in self.gradient.wrt)

    # what is derived

    def partition(self, wrt, types, values, device: str = "cpu") -> tuple[Specialised, Partition]:
        """The program for these types, and how values and gradient by `wrt` are divided on this kind of device."""
        try:
            special = self.specialised(types, values)
            bound = bind(special.program, special.types, values)
            if self.gradient is None:
                self.warn(types, values, bound)
            how = self.gradient is None, bound, choose_backend(self.backend, device).chooses
            return special, partition(special.program, wrt, special.types, values, *how)
        except TileError as error:
            raise error.located(self.source, self.filename) from None

    def made(self, program: Program, chunks: Chunks | None = None, checked: Checked | None = None) -> Specialiser:
        """Another program that runs as this one does, in chunks of time where these are given."""
        how = (self.backend, None, self.tune, self.exact, chunks, checked)
        return Specialiser(program, self.source, self.filename, *how)

    def derived(self, program: Program, dims: Sequence[int | None] | None = None) -> Specialiser:
        """A program that computes with this one's inputs, over a batch where `dims` are given, and others."""
        return self.made(program, checked=self.checked_here(dims))

    def checked_here(self, dims: Sequence[int | None] | None = None) -> Checked:
        """What functions derived from this one are warned of: the same as this one."""
        return Checked(origin=self, dims=tuple(dims or (None,) * len(self.inputs)))

    def tuned(self) -> Specialiser:
        """The same program, whose candidates are measured for new shapes or types."""
        how = (self.backend, self.gradient, True, self.exact, self.chunks, self.checked)
        return Specialiser(self.program, self.source, self.filename, *how)

    def plain(self, special: Specialised) -> Specialiser:
        """What this runs for given types, as a program that says all by itself."""
        if self.gradient is None:
            return self
        key = tuple(special.program.outputs)
        if key not in self._plain:
            self._plain[key] = self.made(special.program)
        return self._plain[key]

    def grad(self, names: tuple[str, ...]) -> Specialiser:
        """The gradient by inputs: (inputs..., d_outputs...) -> (d_inputs...)."""
        return self.derive("grad", names, lambda: self._gradient(names))

    def _gradient(self, names: tuple[str, ...]) -> Specialiser:
        program = grad(self.program, names)
        how = (Gradient(self, names), self.tune, self.exact, None, self.checked_here())
        return Specialiser(program, self.source, self.filename, self.backend, *how)

    def jvp(self, names: tuple[str, ...]) -> Specialiser:
        """The outputs' tangents: (inputs..., tangents of the inputs `names`...) -> (tangents...)."""
        return self.derive("jvp", names, lambda: self.derived(self._tangents(names)))

    def _tangents(self, names: tuple[str, ...]) -> Program:
        program = jvp(self.program, names)
        return simplify(program, program.outputs[len(self.outputs) :])

    def vmap(self, dims: tuple[int | None, ...], ranks: tuple[int, ...], randomness: str) -> Specialiser:
        """The program over a batch, which each input has along a dimension or not, and each output along its first.
        `ranks` are the inputs', without the batch."""

        def make() -> Specialiser:
            first = (0,) * len(self.outputs)
            named = dict(zip(self.inputs, ranks, strict=True))
            return self.derived(vmap(self.program, dims, first, randomness, named), dims)

        return self.derive("vmap", (dims, ranks, randomness), make)

    def derive(self, kind: str, key: tuple, make: Callable[[], Specialiser]) -> Specialiser:
        if (kind, key) not in self._derived:
            try:
                self._derived[kind, key] = make()
            except TileError as error:
                raise error.located(self.source, self.filename) from None
        return self._derived[kind, key]


class AtSizes(Specialiser):
    """A program of a class of shapes at these sizes: it runs what the class does, and is written out with its numbers
    only where something else is asked of it."""

    def __init__(self, open_program: OpenProgram[Specialiser], sizes: Mapping[str, int]):
        self.__dict__.update(open_program.program.__dict__)
        del self.__dict__["program"]
        self._forget()
        self.opened_program, self._open_sizes = open_program, sizes

    @cached_property
    def program(self) -> Program:  # type: ignore[override]
        return with_numbers(self.opened_program.program.program, self._open_sizes)

    def _for_class(self, types: dict[str, TensorType], values: tuple[int, ...], device: str) -> Prepared | None:
        return self.opened_program.prepared(self._open_sizes, types, device) if self.may_leave_open() else None


def _built(backend: Backend, options: Options, program: Program, types: Sequence[TensorType]) -> Executable:
    """The executable of a bound program for inputs of these types."""
    return backend.build(lower(program, dict(zip(program.input_names(), types, strict=True)), {}), options)
