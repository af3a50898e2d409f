"""Modules of torch whose forward pass is a Tile program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from tilec.api import compile
from tilec.arguments import by_name
from tilec.errors import InputMistake, NameMistake, RankMistake, SizeMistake, TileError, TypeMistake, listed
from tilec.errors.tracebacks import hide_frames, public
from tilec.function import Function
from tilec.ir.program import Access, Index, Program, expressions, index_variables, walk

Initial = Callable[[torch.Tensor], object]
TensorOrShape = torch.Tensor | Sequence[int]


class Tile(torch.nn.Module):
    """A module that computes a Tile program, some of whose inputs are its parameters or buffers.

        norm = tilec.nn.Tile(
            "Y[i, j : N, D] = X[i, j] * rsqrt(mean(X[i, k] * X[i, k]) + 1e-6) * W[j];",
            parameters={"W": (64,)}, init={"W": torch.nn.init.ones_},
        )
        y = norm(x)

    Called with the other inputs, by position in the order of the text or by name, of the shapes that the text declares;
    returns what the Function returns, and raises what it raises. `requires_grad_`, `.to()`, `state_dict`, `torch.save`,
    copies, pickling and sharding are torch's own: parameters are plain torch.nn.Parameters, under their names in the
    text.

    Args:
        source: Tile text or a compiled Function.
        parameters: Names of inputs, each with a shape or a tensor, whose values are then the initial ones. It is
            copied; a torch.nn.Parameter is taken as it is, and stays shared.
        buffers: The same for inputs that are no parameters.
        init: Names, of those given by shape, each with a function that fills a tensor in place, such as
            `torch.nn.init.ones_`. Without, a parameter of two or more dimensions is uniform within 1/sqrt(n), as a
            linear layer's is, where n is how many of its elements are summed for one element of the result; anything
            else is zero.
        device: Of what is given by shape, as in torch's modules.
        dtype: Of what is given by shape, as in torch's modules.
        entry: This and the further options are those of `tilec.compile`, for a text.
        backend: As for `tilec.compile`.
        tune: As for `tilec.compile`.
        exact: As for `tilec.compile`.

    Raises:
        NameMistake: A name that is no input.
        InputMistake: A name that is both a parameter and a buffer, or what is no tensor and no shape.
        TypeMistake: A parameter of integers.
        RankMistake: A shape of another rank than the text declares.
        SizeMistake: Sizes that the text does not allow.
        TileError: The text is no Tile program.
    """

    @public
    def __init__(
        self,
        source: str | Function,
        parameters: Mapping[str, TensorOrShape] | None = None,
        buffers: Mapping[str, TensorOrShape] | None = None,
        *,
        init: Mapping[str, Initial] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        entry: str | None = None,
        backend: str | None = None,
        tune: bool = False,
        exact: bool = False,
    ):
        super().__init__()
        if not isinstance(source, Function):
            source = compile(source, entry=entry, backend=backend, tune=tune, exact=exact)
        self.function = source
        parameters, buffers = parameters or {}, buffers or {}
        self._check(parameters, buffers, init or {})
        self.own_inputs = tuple(name for name in source.inputs if name in parameters or name in buffers)
        self.call_inputs = tuple(name for name in source.inputs if name not in self.own_inputs)
        self.init: dict[str, Initial | None] = {}  # of what reset_parameters fills
        for name, given in parameters.items():
            if not isinstance(given, torch.nn.Parameter):
                given = torch.nn.Parameter(self._tensor(name, given, init or {}, device, dtype))
            self.register_parameter(name, given)
        for name, given in buffers.items():
            self.register_buffer(name, self._tensor(name, given, init or {}, device, dtype))
        self.reset_parameters()

    def _check(
        self, parameters: Mapping[str, TensorOrShape], buffers: Mapping[str, TensorOrShape], init: Mapping[str, Initial]
    ) -> None:
        inputs = {i.name: i for i in self.function.program.inputs}
        for what, mapping in (("parameters", parameters), ("buffers", buffers), ("init", init)):
            if not isinstance(mapping, Mapping):
                hint = "name each with a tensor or its shape, as in {'W': (3, 4)}"
                raise InputMistake(f"{what} is a mapping of names; got {type(mapping).__name__}", hint=hint)
        for name in (*parameters, *buffers, *init):
            if name not in inputs:
                raise NameMistake(f"no input is called {name}", hint=listed(name, inputs))
        given = {**parameters, **buffers}
        for name in (n for n in parameters if n in buffers):
            raise InputMistake(f"{name} is both a parameter and a buffer")
        for name in (n for n in init if n not in given or isinstance(given[n], torch.Tensor)):
            raise InputMistake(f"init fills what is given by its shape, and {name} is not")
        sizes: dict[str, tuple[int, str]] = {}
        for name, value in given.items():
            shape = _shape(name, value)
            if name in parameters and isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                kind = str(value.dtype).removeprefix("torch.")
                if not value.is_floating_point():
                    hint = "pass it as one of the buffers, which have no gradient"
                    raise TypeMistake(f"{name} is a parameter, so it must be floating, not {kind}", hint=hint)
            dims = inputs[name].dims
            if dims is None:
                continue
            if len(dims) != len(shape):
                hint = f"its dimensions in the text: {name}[{', '.join(map(str, dims))}]"
                raise RankMistake(
                    f"{name} is declared with {len(dims)} dimensions, and its shape is {shape}", hint=hint
                )
            for d, n in zip(dims, shape, strict=True):
                known, place = (d, "declared") if isinstance(d, int) else sizes.setdefault(d, (n, name))
                if known != n:
                    raise SizeMistake(f"{name} has shape {shape}, but {d} is {known} ({place})")

    def _tensor(
        self,
        name: str,
        given: TensorOrShape,
        init: Mapping[str, Initial],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> torch.Tensor:
        if isinstance(given, torch.Tensor):
            return given.detach().clone()
        self.init[name] = init.get(name)
        return torch.empty(tuple(given), device=device, dtype=dtype)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fill what was given by its shape, as at the start: after `to_empty` of a module built on the meta device."""
        for name, fill in self.init.items():
            tensor = getattr(self, name)
            if fill is not None:
                fill(tensor)
            elif isinstance(tensor, torch.nn.Parameter) and tensor.ndim > 1 and tensor.is_floating_point():
                bound = 1 / math.sqrt(max(1, fan_in(self.function.program, name, tensor.shape)))
                tensor.uniform_(-bound, bound)
            else:
                tensor.zero_()

    def forward(self, *inputs: object, **named: object) -> object:
        try:
            names, own = self.call_inputs, self.own_inputs
            given = iter(by_name(names, inputs, named) if named or len(inputs) != len(names) else inputs)
            return self.function(*[getattr(self, n) if n in own else next(given) for n in self.function.inputs])
        except TileError as error:
            hide_frames(error)
            raise

    def extra_repr(self) -> str:
        kinds = ((n, "parameter" if n in self._parameters else "buffer") for n in self.own_inputs)
        own = [f"{kind} {n}{list(getattr(self, n).shape)}" for n, kind in kinds]
        return ", ".join([f"({', '.join(self.call_inputs)}) -> ({', '.join(self.function.outputs)})", *own])


def fan_in(program: Program, name: str, shape: Sequence[int]) -> int:
    """How many elements of an input are read for one element of what reads it first: the sizes of the dimensions whose
    index does not stand on the left."""
    for s in program.statements:
        for e in walk(*expressions(s)):
            if isinstance(e, Access) and e.tensor == name:
                left = index_variables(*(s.index or ()))
                summed = (not set(index_variables(i)) <= set(left) or not isinstance(i, Index) for i in e.index)
                return math.prod(n for n, inner in zip(shape, summed, strict=True) if inner)
    return math.prod(shape[:-1])


def _shape(name: str, given: TensorOrShape) -> tuple[int, ...]:
    if isinstance(given, torch.Tensor):
        return tuple(given.shape)
    if not isinstance(given, Sequence) or not all(isinstance(n, int) for n in given):
        hint = f"write {name}=torch.tensor(...), or a shape: () is that of one number"
        raise InputMistake(f"{name} is given by a tensor or by its shape; got {given!r}", hint=hint)
    return tuple(given)
