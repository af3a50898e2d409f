"""Function: what `compile` returns. Calls, gradients, lowering; everything is cached by what it depends on."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tilec import knobs
from tilec.arguments import DTYPE_NAMES, by_name, size_value, to_tensors, types_of
from tilec.backends import choose
from tilec.backends.base import Backend, Executable, Lowering, Options
from tilec.backends.common.checkpoint_runner import ChunkedProgram
from tilec.cost import size_in_bytes
from tilec.errors import InputMistake, NameMistake, TileError, TileWarning, Unsupported
from tilec.ir.infer import infer
from tilec.ir.program import Program
from tilec.ir.types import TensorType, kind
from tilec.language import show
from tilec.lowered import Lowered, dump_numbered
from tilec.pipeline import bind_flat, lower
from tilec.saving import Partition, partition, share_at_once
from tilec.torch_op import Recorded, TileCall, recording
from tilec.tracebacks import hide_frames, public
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.bind.bind import bind, size_inputs
from tilec.transforms.bind.lint_sizes import mismatches
from tilec.transforms.bind.sizes import seed_inputs
from tilec.transforms.checkpoint.calls import chunk_calls
from tilec.transforms.checkpoint.chunks import Chunks
from tilec.transforms.checkpoint.plan import Calls
from tilec.transforms.simplify.simplify import simplify

CACHED_CALLS = 4096  # shapes and types remembered by one function; beyond that the oldest is forgotten


@dataclass(frozen=True)
class Gradient:
    """Where a gradient function comes from: the function it differentiates and the inputs it differentiates by."""

    forward: Function
    wrt: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """An executable and, for each output that the caller sees, which of its results that is (None: no result).
    `replaced` says, by position, what takes the place of d_outputs that are not floating."""

    executable: Executable
    results: tuple[int | None, ...]
    replaced: dict[int, Replaced]

    @property
    def plain(self) -> bool:
        """Whether the executable's results are the caller's, and its inputs too."""
        return not self.replaced and self.results == tuple(range(len(self.results)))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        if self.replaced:
            tensors = [self.replaced[i](t) if i in self.replaced else t for i, t in enumerate(tensors)]
        results = self.executable(tensors)
        return tuple([None if r is None else results[r] for r in self.results])


@dataclass(frozen=True)
class Replaced:
    """What a d_output that is not floating becomes: zeros where its output carries no gradient (an integer's), the same
    numbers in the output's type where it does."""

    type: TensorType
    ignored: bool

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        dtype = getattr(torch, self.type.dtype)
        return torch.zeros(self.type.shape, dtype=dtype, device=t.device) if self.ignored else t.to(dtype)


@dataclass(frozen=True)
class Saved:
    """A tensor that torch's autograd keeps from a call for its backward pass."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return size_in_bytes(TensorType(self.shape, self.dtype))


@dataclass(frozen=True)
class Specialised:
    """What a function runs for given types: for a gradient, without the results that are None and over d_outputs that
    have their outputs' types."""

    program: Program
    types: dict[str, TensorType]
    results: tuple[int | None, ...]
    replaced: dict[int, Replaced]


class Function:
    """A compiled Tile function.

    Call it on torch tensors, NumPy arrays or Python numbers: one output comes back as a tensor, several as a tuple;
    NumPy arrays alone give NumPy arrays back. torch's autograd works through it, to any order. Raises
    TileError subclasses.
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
    ):
        self.program = program
        self.source = source
        self.filename = filename
        self.backend = backend
        self.gradient = gradient
        self.tune = tune
        self.exact = exact
        self.chunks = chunks
        self.inputs = program.input_names()
        self.outputs = program.outputs
        # a gradient may need no size that its function has, but checks the shapes of cotangents by it
        needed = {*size_inputs(program), *(gradient.forward._sizes if gradient else ())}
        self._sizes: tuple[str, ...] = tuple(name for name in self.inputs if name in needed)
        self._size_positions = tuple(self.inputs.index(name) for name in self._sizes)
        self._seeds: tuple[str, ...] = seed_inputs(program) if gradient is None else gradient.forward._seeds
        self._prepared: dict[object, Prepared] = {}
        self._settled: dict[object, Callable[[Sequence[torch.Tensor]], tuple]] = {}
        self._recorded: dict[object, Recorded] = {}
        self._gradients: dict[tuple[str, ...], Function] = {}

    @property
    def tile(self) -> str:
        """Canonical Tile text; compiles to the same function."""
        return show(self.program)

    def __str__(self) -> str:
        return self.tile

    def __repr__(self) -> str:
        return f"<tilec.Function {self.program.name or ''}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})>"

    def __reduce__(self) -> tuple:
        how = (self.backend, self.gradient, self.tune, self.exact, self.chunks)
        return Function, (self.program, self.source, self.filename, *how)

    def __call__(self, *inputs, **named):
        """Outputs for these inputs, given by position or by name; shapes and types as the function declares and
        language rules infer."""
        try:
            if named:
                inputs = by_name(self.inputs, inputs, named)
            signature = _signature(inputs)
            settled = self._settled.get(signature)
            if settled is None:
                return self._first_call(signature, inputs)
            outputs = settled(inputs)
            return outputs[0] if len(outputs) == 1 else outputs
        except TileError as error:
            hide_frames(error)
            raise

    def _first_call(self, signature: tuple | None, inputs: Sequence[object]):
        """A call whose arguments are to be looked at, or to be compiled for."""
        arguments = to_tensors(self.inputs, inputs, self._seeds)
        results: tuple = self.call(arguments.tensors, arguments.weak)
        if signature and all(a is b for a, b in zip(arguments.tensors, inputs, strict=True)):  # none was moved
            self._settle(signature, arguments.tensors)
        if arguments.numpy:
            results = tuple(map(_to_numpy, results))
        return results[0] if len(results) == 1 else results

    def _settle(self, signature: tuple, tensors: Sequence[torch.Tensor]) -> None:
        """Let later calls with such tensors go straight to what they run."""
        if self._sizes or len(self._settled) >= CACHED_CALLS:
            return
        weak = (False,) * len(tensors)
        if recording(tensors):
            recorded, count = self._record(tensors, weak), len(self.outputs)
            self._settled[signature] = lambda inputs: TileCall.apply(recorded, *inputs)[:count]
        elif (prepared := self.prepared(tensors, weak)).plain:
            self._settled[signature] = prepared.executable

    def call(self, tensors: Sequence[torch.Tensor], weak: tuple[bool, ...]) -> tuple[torch.Tensor | None, ...]:
        """Outputs as a tuple, recorded for autograd where an input asks for it; `weak` marks Python numbers."""
        if recording(tensors):
            return TileCall.apply(self._record(tensors, weak), *tensors)[: len(self.outputs)]
        return self.prepared(tensors, weak)(tensors)

    def prepared(self, tensors: Sequence[torch.Tensor], weak: tuple[bool, ...]) -> Prepared:
        """What runs for such tensors, not recorded for autograd."""
        device = tensors[0].device.type if tensors else "cpu"
        values = tuple([size_value(self.inputs[p], tensors[p]) for p in self._size_positions])
        key = (device, weak, values, *signature_types(tensors))
        prepared = self._prepared.get(key)
        return self._prepare(key, device, values, tensors, weak) if prepared is None else prepared

    def _record(self, tensors: Sequence[torch.Tensor], weak: tuple[bool, ...]) -> Recorded:
        """How torch is to record a call with such tensors."""
        values = tuple([size_value(self.inputs[p], tensors[p]) for p in self._size_positions])
        key = (tuple([t.requires_grad for t in tensors]), weak, values, *signature_types(tensors))
        recorded = self._recorded.get(key)
        if recorded is None:
            types = {
                name: TensorType(tuple(t.shape), DTYPE_NAMES[t.dtype], w)
                for name, t, w in zip(self.inputs, tensors, weak, strict=True)
            }
            wrt = tuple(name for name, t in zip(self.inputs, tensors, strict=True) if t.requires_grad)
            special, parts = self._partition(wrt, types, dict(zip(self._sizes, values, strict=True)))
            forward = self
            if parts.forward is not None:
                self._warn(types, dict(zip(self._sizes, values, strict=True)))
                forward = self._made(parts.forward, parts.chunks)
            outputs = tuple([None if r is None else special.program.outputs[r] for r in special.results])
            recorded = Recorded(forward, weak, wrt, outputs, special.replaced, parts, self._made)
            if len(self._recorded) >= CACHED_CALLS:
                self._recorded.pop(next(iter(self._recorded)), None)
            self._recorded[key] = recorded
        return recorded

    def _partition(self, wrt, types, values) -> tuple[Specialised, Partition]:
        try:
            special = self._specialised(types, values)
            return special, partition(special.program, wrt, special.types, values, extras=self.gradient is None)
        except TileError as error:
            raise error.located(self.source, self.filename) from None

    def _made(self, program: Program, chunks: Chunks | None) -> Function:
        """A function of another program that runs as this one does, in chunks of time where these are given."""
        return Function(program, self.source, self.filename, self.backend, None, self.tune, self.exact, chunks)

    @public
    def saved(self, *args, **named) -> tuple[Saved, ...]:
        """What torch's autograd keeps from a call with these arguments (as for `lower`) for its backward pass.

        Gradients are taken to be needed of the tensors that require them; where none does, of every floating input
        that is no Python number.
        """
        args = by_name(self.inputs, args, named) if named else args
        types = types_of(self.inputs, args, self._seeds)
        values = {name: size_value(name, args[p]) for name, p in zip(self._sizes, self._size_positions, strict=True)}
        asking = [n for n, a in zip(self.inputs, args, strict=True) if isinstance(a, torch.Tensor) and a.requires_grad]
        wrt = tuple(asking or [n for n, t in types.items() if kind(t.dtype) == 2 and not t.weak])
        if not wrt:
            return ()
        _, parts = self._partition(wrt, types, values)
        return tuple(Saved(name, t.shape, t.dtype) for name, t in parts.kept.items())

    def _prepare(self, key, device, values, tensors, weak) -> Prepared:
        types = {
            name: TensorType(tuple(t.shape), DTYPE_NAMES[t.dtype], w)
            for name, t, w in zip(self.inputs, tensors, weak, strict=True)
        }
        sizes = dict(zip(self._sizes, values, strict=True))
        lowering, _, prepared = self._lower(types, sizes, self.backend, device, None, self.tune)
        if (folder := knobs.DUMP.value) is not None:
            dump_numbered(Lowered(dict(lowering.stages), dict(lowering.types), prepared.executable), folder)
        if len(self._prepared) >= CACHED_CALLS:
            self._prepared.pop(next(iter(self._prepared)), None)
        self._prepared[key] = prepared
        return prepared

    def _lower(self, types, values, backend, device, target, tune):
        """Lowering, backend and executable for these types; for a gradient, without the results that are None."""
        try:
            chosen = choose(backend, device, target)
            special = self._specialised(types, values)
            lowering = lower(special.program, special.types, values)
            if self.gradient is None:
                self._warn(types, values)
            options = Options.from_environment(tune, self.exact)
            calls = self._calls(special, values, lowering)
            if calls is None:
                executable = chosen.build(lowering, options)
            else:
                executable = ChunkedProgram(calls, partial(_built, chosen, options))
            return lowering, chosen, Prepared(executable, special.results, special.replaced)
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

    def _warn(self, types: dict[str, TensorType], values: dict[str, int]) -> None:
        """Say what is legal and most likely not meant, once for each combination of shapes, at the caller's line."""
        if all(s.index is None or s.sizes is not None for s in self.program.statements):
            return
        for mistake in mismatches(self.program, infer(bind(self.program, types, values), types)):
            warnings.warn(str(mistake.located(self.source, self.filename)), TileWarning, _outside())

    def _specialised(self, types: dict[str, TensorType], values: dict[str, int]) -> Specialised:
        if self.gradient is None:
            return Specialised(self.program, types, tuple(range(len(self.outputs))), {})
        replaced = self._replaced_cotangents(types, values)
        types = {**types, **{self.inputs[i]: r.type for i, r in replaced.items()}}
        floating = [kind(types[name].dtype) == 2 for name in self.gradient.wrt]
        program = simplify(self.program, [o for o, f in zip(self.outputs, floating, strict=True) if f])
        count = iter(range(len(program.outputs)))
        return Specialised(program, types, tuple([next(count) if f else None for f in floating]), replaced)

    def _replaced_cotangents(self, types: dict[str, TensorType], values: dict[str, int]) -> dict[int, Replaced]:
        """By position, what takes the place of the d_outputs that are not floating and of those that carry nothing. The
        others must have their output's shape: the gradient's text alone would read a wrong one as a legal one."""
        assert self.gradient is not None
        forward = self.gradient.forward
        inputs = {name: types[name] for name in forward.inputs}
        needed = {name: values[name] for name in forward._sizes if name in values}
        outputs = infer(bind(forward.program, inputs, needed), inputs)
        replaced = {}
        for position, output in enumerate(forward.outputs, len(forward.inputs)):
            name, wanted = self.inputs[position], outputs[output]
            if kind(wanted.dtype) != 2:
                replaced[position] = Replaced(TensorType(wanted.shape, "float32"), True)
                continue
            if types[name].shape != wanted.shape:
                raise InputMistake(
                    f"{name} has shape {types[name].shape}, but the output {output} has shape {wanted.shape}"
                )
            if kind(types[name].dtype) != 2:
                replaced[position] = Replaced(TensorType(wanted.shape, wanted.dtype), False)
        return replaced

    @public
    def grad(self, wrt: str | Sequence[str] | None = None) -> Function:
        """The gradient: (inputs..., d_outputs...) -> (d_inputs...), a Function like any other.

        `wrt` names the inputs to differentiate by (default all). One d_output an output, of its shape, ignored where
        the output is an integer; a result is None where its input is not floating. Raises NameMistake for an
        unknown input.
        """
        names = self.inputs if wrt is None else (wrt,) if isinstance(wrt, str) else tuple(wrt)
        if not names:
            raise InputMistake("there is no input to differentiate by")
        if names not in self._gradients:
            for name in names:
                if name not in self.inputs:
                    raise NameMistake(f"no input is called {name}", hint="inputs: " + ", ".join(self.inputs))
            try:
                program = grad(self.program, names)
            except TileError as error:
                raise error.located(self.source, self.filename) from None
            origin = Gradient(self, names)
            self._gradients[names] = Function(
                program, self.source, self.filename, self.backend, origin, self.tune, self.exact
            )
        return self._gradients[names]

    def tuned(self) -> Function:
        """The same function, which measures candidates on its first call with new shapes or types."""
        how = (self.backend, self.gradient, True, self.exact, self.chunks)
        return Function(self.program, self.source, self.filename, *how)

    @public
    def lower(self, *args, backend: str | None = None, target: str | None = None, **named) -> Lowered:
        """Lower for these arguments (tensors, arrays, numbers or `tilec.spec(shape, dtype)`), given by position or by
        name, without running.

        `backend`: as in `compile`. `target`: an architecture such as "sm_90", for backends that compile for one.
        Nothing is measured; choices that tuning found before are used.
        """
        args = by_name(self.inputs, args, named) if named else args
        types = types_of(self.inputs, args, self._seeds)
        values = {name: size_value(name, args[p]) for name, p in zip(self._sizes, self._size_positions, strict=True)}
        devices = {a.device.type for a in args if isinstance(a, torch.Tensor)}
        device = next(iter(devices - {"cpu"}), "cpu")
        lowering, _, prepared = self._lower(types, values, backend or self.backend, device, target, False)
        return Lowered(dict(lowering.stages), dict(lowering.types), prepared.executable)


def _built(backend: Backend, options: Options, program: Program, types: Sequence[TensorType]) -> Executable:
    """The executable of a bound program for inputs of these types."""
    return backend.build(lower(program, dict(zip(program.input_names(), types, strict=True)), {}), options)


PLAIN = (torch.Tensor, torch.nn.Parameter)


def _signature(inputs: Sequence[object]) -> tuple | None:
    """What a call depends on where all inputs are plain tensors."""
    found: list[object] = [torch.is_grad_enabled()]
    for t in inputs:
        if type(t) not in PLAIN:
            return None
        found.append((t.shape, t.dtype, t.device, t.requires_grad))  # type: ignore[attr-defined]
    return tuple(found)


def signature_types(tensors: Sequence[torch.Tensor]) -> list[tuple]:
    return [(t.shape, t.dtype) for t in tensors]


def _outside() -> int:
    """How many calls up, for a warning of the caller's, the first line outside this package is."""
    package = os.path.dirname(__file__)
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def _to_numpy(result: torch.Tensor | None) -> np.ndarray | None:
    if result is None:
        return None
    if result.dtype is torch.bfloat16:
        raise Unsupported("NumPy has no bfloat16", hint="pass torch tensors, or cast the output with float32(...)")
    return result.numpy()
