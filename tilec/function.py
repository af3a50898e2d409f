"""Function: what `compile` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.compiler import is_dynamo_compiling

from tilec.arguments import by_name, chosen_inputs, size_value, spec, types_of
from tilec.calls.call_cache import CallCache
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
from tilec.torch_op.graphs.nodes import handle_of, in_graph
from tilec.transforms.batching.ranks import UnknownRank
from tilec.transforms.batching.vmap import vmap

if TYPE_CHECKING:
    from tilec.explain import Page


@dataclass(frozen=True)
class Saved:
    """A tensor that torch's autograd keeps from a call for its backward pass: its name in the text, shape and element
    type; `bytes` is what its elements take in memory."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """What its elements take in memory."""
        return size_in_bytes(TensorType(self.shape, self.dtype))


class Function(Displayed):
    """A compiled Tile function.

    Call it on torch tensors, NumPy arrays or Python numbers: one output comes back as a tensor, several as a tuple;
    NumPy arrays alone give NumPy arrays back. torch's autograd works through it, to any order. Raises
    TileError subclasses.

    >>> f = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])")
    >>> f.inputs, f.outputs
    (('A', 'B'), ('C',))
    >>> f(torch.ones(2, 3), torch.ones(3, 4)).shape
    torch.Size([2, 4])
    >>> f(B=np.ones((3, 4)), A=np.ones((2, 3))).dtype
    dtype('float64')

    `grad`, `jvp` and `vmap` give Functions derived from it; `lower` shows its stages and generated code, `explain` all
    of that as a page, `saved` what autograd keeps of a call, `tile` and `latex()` its text and formulas.
    """

    __name__ = "tile"  # which torch.jit.trace asks of what it traces

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
        """The outputs for these inputs.

        Args:
            inputs: torch tensors, NumPy arrays or Python numbers, in the order of `inputs`, of the shapes that the text
                declares. A size or a seed is an int.
            named: Inputs by name.

        Returns:
            One tensor for each output, of the shape that the text gives it, and its type by the rules of the language;
            one output bare, several as a tuple. NumPy arrays where all inputs are arrays or numbers and one is an
            array.

        Raises:
            RankMistake: An input has another number of dimensions than declared.
            SizeMistake: Sizes that must agree do not.
            TypeMistake: An element type that Tile does not have.
            InputMistake: Too few or too many inputs, one that is none of these things, or inputs on several devices.
            TileError: Whatever else these shapes show, such as two points that assign one element.
        """
        if is_dynamo_compiling():  # outside of what handles errors, where Dynamo would give up the whole frame
            if named and set(named) == set(self.inputs[len(inputs) :]):
                return in_graph(self._handle, *by_name(self.inputs, inputs, named))
            return in_graph(self._handle, *inputs, **named)  # with names that do not fit, the error is raised there
        try:
            if named:
                inputs = by_name(self.inputs, inputs, named)
            if (known := self._calls.native) is not None and (found := known(inputs)) is not known:
                return found  # as `CallCache` does, a frame less
            return self._calls.unknown(inputs)
        except TileError as error:
            hide_frames(error)
            raise

    @public
    def saved(self, *args, **named) -> tuple[Saved, ...]:
        """What torch's autograd keeps from a call with these arguments for its backward pass.

        Gradients are taken to be needed of the tensors that require them; where none does, of every floating input that
        is no Python number.

        >>> tilec.compile("Y = exp(X)").saved(tilec.spec((8, 4)))
        (Saved(name='Y', shape=(8, 4), dtype='float32'),)

        Args:
            args: As for `lower`, by position.
            named: As for `lower`, by name.

        Returns:
            One Saved, with name, shape and type, for each tensor kept.

        Raises:
            TileError: What a call with these arguments raises.
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

        >>> f = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])")
        >>> a, b, dc = torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 4)
        >>> da, db = f.grad()(a, b, dc)
        >>> da.shape, db.shape
        (torch.Size([2, 3]), torch.Size([3, 4]))
        >>> f.grad("A")(a, b, dc)
        tensor([[4., 4., 4.],
                [4., 4., 4.]])

        Args:
            wrt: The inputs to differentiate with respect to, one name or several (default: all).

        Returns:
            A Function. It takes the inputs, and for each output a gradient of its shape, ignored where the output is an
            integer. It gives, for each input asked for, a gradient of its shape and type; None where that is not
            floating.

        Raises:
            NameMistake: There is no input of that name.
            InputMistake: `wrt` is neither a name nor names, or is empty.
        """
        names = chosen_inputs(wrt, self.inputs)
        if ("grad", names) not in self._derived:
            self._derived["grad", names] = Function.of(self._specialiser.grad(names))
        return self._derived["grad", names]

    @public
    def jvp(self, wrt: str | Sequence[str] | None = None) -> Function:
        """Values and tangents: (inputs..., tangents...) -> (outputs..., their tangents...), a Function like any other.

        >>> f = tilec.compile("Y = X * X").jvp()
        >>> f.inputs, f.outputs
        (('X', 'TX'), ('Y', 'TY'))
        >>> f(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
        (tensor([1., 4.]), tensor([2., 0.]))

        The tangent is the transpose of the gradient: ties of an extremum share, and that of `reverse_grad(X, s)` is -s
        times X's.

        Args:
            wrt: The inputs to differentiate with respect to, one name or several (default: all).

        Returns:
            A Function. It takes the inputs, and for each one of `wrt` a tangent of its shape, ignored where the input
            is not floating. It gives the outputs, and for each its tangent, of its shape; zeros where that is not
            floating.

        Raises:
            NameMistake: There is no input of that name.
            InputMistake: `wrt` is neither a name nor names, or is empty.
        """
        names = chosen_inputs(wrt, self.inputs)
        return self._derive(("jvp", names), lambda: Tangents(self._specialiser, names))

    @public
    def vmap(self, in_dims: AxesSpec = 0, out_dims: AxesSpec = 0, randomness: str = "same") -> Function | Deferred:
        """The function over a batch, a Function like any other, equal to a loop over the batch's elements.

        >>> f = tilec.compile("Y[i] = sum(A[i, k] * X[k])")
        >>> f.vmap(in_dims={"A": None, "X": 0})(torch.ones(2, 3), torch.ones(5, 3)).shape
        torch.Size([5, 2])

        Args:
            in_dims: The dimension of each input that is the batch's: one number for all inputs that are no sizes, one
                for each input in order, or a mapping by name; None for an input that all elements share.
            out_dims: Likewise, where the outputs have it.
            randomness: Random numbers are those of a loop ("same"), another series for each element ("different") or
                refused ("error").

        Returns:
            A Function whose inputs and outputs have one dimension more, at those places. Where the text leaves open how
            many dimensions inputs have and that matters, it is made at its first call with so many.

        Raises:
            SizeMistake: A size would depend on the element.
            InputMistake: Dimensions that do not fit, or random numbers where they are refused.
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
        """Lower for these arguments, without running. Nothing is measured; choices that tuning found before are used.

        >>> f = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])")
        >>> lowered = f.lower(tilec.spec((64, 32)), tilec.spec((32, 16)))
        >>> list(lowered.stages)
        ['source', 'bound', 'flat', 'reduced', 'defracted']
        >>> lowered.cost().flops
        65536

        `lowered.source()` is the generated code; with target="sm_90" it is that of a GPU, which need not be there.

        Args:
            args: Tensors, arrays, numbers or `tilec.spec(shape, dtype)`, in the order of `inputs`.
            backend: As for `compile`.
            target: An architecture such as "sm_90", for backends that compile for one; no GPU is needed.
            named: Arguments by name.

        Returns:
            A Lowered: the stages, the generated code, what it costs, the shapes and types of the outputs.

        Raises:
            Unsupported: An unknown target, or something that the backend does not do.
            TileError: What a call with these arguments raises.
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
        """A page of HTML about the function for these arguments, the gradient beside the forward pass: formulas, memory
        and time against the floor, roles of the indices, which elements a tile of an output reads, residue classes,
        every stage, and the generated code, each line linked to its statement. The page needs no network.

        Args:
            args: As for `lower`, by position.
            backend: As for `lower`.
            target: As for `lower`.
            named: As for `lower`, by name.

        Returns:
            A Page, which notebooks show; `.save(path)` writes it, `.html` is its text.

        Raises:
            TileError: What `lower` raises.
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
        self, placements: Mapping[str, object] | None = None, *args, ranks: int | Sequence[int] | None = None, **named
    ) -> Sharding:
        """Where the outputs lie if inputs lie so over the ranks of a mesh, and what a call communicates for that, in
        bytes, and why. Nothing runs.

        Args:
            placements: Of inputs by name, each torch's `Shard`, `Replicate` or `Partial`, the number of the dimension
                that is sharded, or None, and a list of these for a mesh of several dimensions. An input left out is on
                every rank, or lies as the DTensor given for it.
            args: As for `lower`, by position: whole shapes, not those of a rank.
            ranks: How many, along each dimension of the mesh; that of a DTensor's mesh by default.
            named: As for `lower`, by name.

        Returns:
            A Sharding: the outputs' placements, and each collective with its bytes.

        Raises:
            NameMistake: There is no input of that name.
            InputMistake: A key of `placements` that is no name, a dimension that the input does not have, or nothing
                says how many ranks there are.
            TileError: What a call with these arguments raises.
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
        types = types_of(self.inputs, args, self._specialiser.seeds, self._specialiser.sizes)
        positions = zip(self._specialiser.sizes, self._specialiser.size_positions, strict=True)
        return types, {name: size_value(name, args[p]) for name, p in positions}
