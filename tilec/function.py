"""Function: what `compile` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.compiler import is_dynamo_compiling

from tilec.arguments import by_name, size_value, spec, types_of
from tilec.call_cache import CallCache
from tilec.cost import size_in_bytes
from tilec.derived.axes import AxesSpec, in_axes, out_axes
from tilec.derived.deferred import Deferred
from tilec.derived.tangents import Tangents
from tilec.display.people import Displayed
from tilec.distributed.plan import Sharding
from tilec.errors import TileError
from tilec.errors.tracebacks import hide_frames, public
from tilec.ir.program import Program
from tilec.ir.types import TensorType, is_floating
from tilec.language import show
from tilec.lowered import Lowered
from tilec.specialise import Specialiser
from tilec.torch_op import dtensors
from tilec.torch_op.operator import handle_of, in_graph
from tilec.transforms.batching.ranks import UnknownRank
from tilec.transforms.batching.vmap import vmap

if TYPE_CHECKING:
    from tilec.explain import Page


@dataclass(frozen=True)
class Saved:
    """A tensor that torch's autograd keeps from a call for its backward pass."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return size_in_bytes(TensorType(self.shape, self.dtype))


class Function(Displayed):
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
        tune: bool = False,
        exact: bool = False,
        *,
        specialiser: Specialiser | None = None,
    ):
        how = specialiser or Specialiser(program, source, filename, backend, None, tune, exact)
        self._specialiser = how
        self._calls = CallCache(how)
        self._handle = handle_of(self._calls)
        self._derived: dict[object, Function] = {}
        self.program = how.program
        self.source = how.source
        self.filename = how.filename
        self.backend = how.backend
        self.tune = how.tune
        self.exact = how.exact
        self.inputs = how.inputs
        self.outputs = how.outputs

    @staticmethod
    def of(specialiser: Specialiser) -> Function:
        """The function that runs what this makes."""
        return Function(specialiser.program, specialiser.source, specialiser=specialiser)

    @property
    def specialiser(self) -> Specialiser:
        """What makes what runs."""
        return self._specialiser

    @property
    def tile(self) -> str:
        """Canonical Tile text; compiles to the same function."""
        return show(self.program)

    def __str__(self) -> str:
        return self.tile

    def __reduce__(self) -> tuple:
        return Function.of, (self._specialiser,)

    def __call__(self, *inputs, **named):
        """Outputs for these inputs, given by position or by name; shapes and types as the function declares and
        language rules infer."""
        try:
            if named:
                inputs = by_name(self.inputs, inputs, named)
            return in_graph(self._handle, *inputs) if is_dynamo_compiling() else self._calls(inputs)
        except TileError as error:
            hide_frames(error)
            raise

    @public
    def saved(self, *args, **named) -> tuple[Saved, ...]:
        """What torch's autograd keeps from a call with these arguments (as for `lower`) for its backward pass.

        Gradients are taken to be needed of the tensors that require them; where none does, of every floating input
        that is no Python number.
        """
        args = by_name(self.inputs, args, named) if named else args
        types, values = self.types_of(args)
        asking = [n for n, a in zip(self.inputs, args, strict=True) if isinstance(a, torch.Tensor) and a.requires_grad]
        wrt = tuple(asking or [n for n, t in types.items() if is_floating(t.dtype) and not t.weak])
        if not wrt:
            return ()
        _, parts = self._specialiser.partition(wrt, types, values)
        return tuple(Saved(name, t.shape, t.dtype) for name, t in parts.kept.items())

    @public
    def grad(self, wrt: str | Sequence[str] | None = None) -> Function:
        """The gradient: (inputs..., d_outputs...) -> (d_inputs...), a Function like any other.

        `wrt` names the inputs to differentiate by (default all). One d_output an output, of its shape, ignored where
        the output is an integer; a result is None where its input is not floating. Raises NameMistake for an
        unknown input.
        """
        names = self.inputs if wrt is None else (wrt,) if isinstance(wrt, str) else tuple(wrt)
        if ("grad", names) not in self._derived:
            self._derived["grad", names] = Function.of(self._specialiser.grad(names))
        return self._derived["grad", names]

    @public
    def jvp(self, wrt: str | Sequence[str] | None = None) -> Function:
        """Values and tangents: (inputs..., tangents...) -> (outputs..., d_outputs...), a Function like any other.

        `wrt` names the inputs to differentiate by (default all), each of which has a tangent of its shape, ignored
        where the input is not floating; one d_output an output, zeros where that is not floating. The tangent is the
        transpose of the gradient: ties of an extremum share, and that of `reverse_grad(X, s)` is -s times X's. Raises
        NameMistake for an unknown input.
        """
        names = self.inputs if wrt is None else (wrt,) if isinstance(wrt, str) else tuple(wrt)
        return self._derive(("jvp", names), lambda: Tangents(self._specialiser, names))

    @public
    def vmap(self, in_dims: AxesSpec = 0, out_dims: AxesSpec = 0, randomness: str = "same") -> Function | Deferred:
        """The function over a batch, a Function like any other, equal to a loop over the batch's elements.

        `in_dims` says which dimension of each input is the batch's: one number for all inputs that are no sizes, one
        for each input in order, or a mapping by name; None for an input that all elements share. `out_dims` likewise
        where the outputs have it. Random numbers are those of a loop ("same"), another series for each element
        ("different") or refused ("error"). Where the text leaves open how many dimensions inputs have and that
        matters, the Function is made at its first call with so many. Raises SizeMistake where a size would depend on
        the element, InputMistake for dimensions that do not fit.
        """
        axes = in_axes(self.program, in_dims), out_axes(self.program, out_dims)
        try:
            return self.batched(*axes, randomness)
        except UnknownRank:
            return Deferred(self, "vmap", (*axes, randomness), self.inputs, self.outputs)

    def batched(self, axes, places, randomness: str, ranks: Mapping[str, int] | None = None) -> Function:
        """The same, where the inputs have as many dimensions as `ranks` says, without the batch's."""
        key = ("vmap", axes, places, randomness, tuple((ranks or {}).items()))
        make = lambda: self._specialiser.derived(vmap(self.program, axes, places, randomness, ranks), axes)  # noqa: E731
        return self._derive(key, make)

    def _derive(self, key: tuple, make: Callable[[], Specialiser]) -> Function:
        if key not in self._derived:
            try:
                self._derived[key] = Function.of(make())
            except TileError as error:
                raise error.located(self.source, self.filename) from None
        return self._derived[key]

    def tuned(self) -> Function:
        """The same function, which measures candidates on its first call with new shapes or types."""
        return Function.of(self._specialiser.tuned())

    @public
    def lower(self, *args, backend: str | None = None, target: str | None = None, **named) -> Lowered:
        """Lower for these arguments (tensors, arrays, numbers or `tilec.spec(shape, dtype)`), given by position or by
        name, without running.

        `backend`: as in `compile`. `target`: an architecture such as "sm_90", for backends that compile for one.
        Nothing is measured; choices that tuning found before are used.
        """
        args = by_name(self.inputs, args, named) if named else args
        types, values = self.types_of(args)
        devices = {a.device.type for a in args if isinstance(a, torch.Tensor)}
        device = next(iter(devices - {"cpu"}), "cpu")
        how = (backend or self.backend, device, target, False)
        lowering, prepared = self._specialiser.lower(types, values, *how)
        return Lowered(dict(lowering.stages), dict(lowering.types), prepared.executable)

    @public
    def explain(self, *args, backend: str | None = None, target: str | None = None, **named) -> Page:
        """What the function does for these arguments, as one page of HTML: formulas, roles of the indices, which
        elements a tile of an output reads, every stage, the generated code, what it costs; the gradient beside it.

        Arguments as for `lower`. Notebooks show the page; `.save(path)` writes it, `.html` is its text.
        """
        from tilec.explain import explanation_page  # with all that generates code

        forward = self.lower(*args, backend=backend, target=target, **named)
        given = by_name(self.inputs, args, named) if named else args
        further = [spec(t.shape, t.dtype) for t in forward.outputs]
        try:
            gradient = self.grad().lower(*given, *further, backend=backend, target=target)
        except TileError as error:
            return explanation_page(self.source, forward, None, error.message)
        return explanation_page(self.source, forward, gradient)

    @public
    def sharding(
        self,
        placements: Mapping[str, object] | None = None,
        *args,
        ranks: int | Sequence[int] | None = None,
        **named,
    ) -> Sharding:
        """Where the outputs lie if inputs lie so over the ranks of a mesh, and what a call communicates for that, in
        bytes, and why. Nothing runs.

        `placements`: of inputs by name, each torch's `Shard`, `Replicate` or `Partial`, the number of the dimension
        that is sharded, or None, and a list of these for a mesh of several dimensions; one left out is on every rank,
        or lies as the DTensor given for it. Arguments as for `lower`. `ranks`: how many, along each dimension of the
        mesh; that of a DTensor's mesh by default. Raises NameMistake for an unknown input, InputMistake for a dimension
        that it does not have or where nothing says how many ranks there are.
        """
        args = by_name(self.inputs, args, named) if named else args
        types, values = self.types_of(args)
        placed, mesh = dtensors.placements(self.inputs, args, placements or {}, ranks)
        try:
            special = self._specialiser.specialised(types, values)
            return dtensors.plan_of(self._specialiser, special, values, placed, mesh)
        except TileError as error:
            raise error.located(self.source, self.filename) from None

    def types_of(self, args: Sequence[object]) -> tuple[dict[str, TensorType], dict[str, int]]:
        """Types of arguments that may be specs, and the values of those that are sizes."""
        types = types_of(self.inputs, args, self._specialiser.seeds)
        positions = zip(self._specialiser.sizes, self._specialiser.size_positions, strict=True)
        return types, {name: size_value(name, args[p]) for name, p in positions}
