"""Functions whose text depends on how many dimensions their inputs have: made once these are known, at a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilec.arguments import Spec, by_name, chosen_inputs
from tilec.derived.axes import out_axes
from tilec.display.people import PublicNames
from tilec.errors import InputMistake
from tilec.transforms.batching.ranks import UnknownRank


class Deferred(PublicNames):
    """A Function still to be made: `base` is one, or another such, and `step` the method that makes this of it.

    Calls, `lower`, `saved`, `grad`, `jvp` and `vmap` are those of a Function. `at` gives the Function for inputs of so
    many dimensions each, which has a text; `tile` alone raises UnknownRank.
    """

    def __init__(self, base: Any, step: str, arguments: tuple, inputs: tuple[str, ...], outputs: tuple[str, ...]):
        self.base, self.step, self.arguments = base, step, arguments
        self.inputs, self.outputs = inputs, outputs
        self._made: dict[tuple[int, ...], Any] = {}

    def __reduce__(self) -> tuple:
        return Deferred, (self.base, self.step, self.arguments, self.inputs, self.outputs)

    def __repr__(self) -> str:
        return f"<tilec.Function ({', '.join(self.inputs)}) -> ({', '.join(self.outputs)}), of any rank>"

    @property
    def tile(self) -> str:
        raise UnknownRank(
            "the text depends on how many dimensions the inputs have",
            hint=f"f.at({', '.join('rank of ' + n for n in self.inputs)}).tile shows it, or declare them: X[N, M]",
        )

    def at(self, *ranks: int) -> Any:
        """The Function for inputs of so many dimensions, the batch's included."""
        if len(ranks) != len(self.inputs):
            raise InputMistake(f"{len(ranks)} ranks for {len(self.inputs)} inputs: {', '.join(self.inputs)}")
        if ranks not in self._made:
            self._made[ranks] = self._at(ranks)
        return self._made[ranks]

    def _at(self, ranks: tuple[int, ...]) -> Any:
        if self.step == "vmap":
            axes, places, randomness = self.arguments
            ranks = tuple([r - (a is not None) for r, a in zip(ranks, axes, strict=True)])
            base = self.base.at(*ranks) if isinstance(self.base, Deferred) else self.base
            named = dict(zip(base.inputs, ranks, strict=True))
            return base.batched(axes, out_axes(base.program, places), randomness, ranks=named)
        base = self.base.at(*ranks[: len(self.base.inputs)])
        return getattr(base, self.step)(*self.arguments)

    def _for(self, args: Sequence[object]) -> Any:
        return self.at(*map(_rank, args))

    def __call__(self, *inputs, **named):
        args = by_name(self.inputs, inputs, named)
        return self._for(args)(*args)

    def lower(self, *args, backend: str | None = None, target: str | None = None, **named):
        """As `Function.lower`."""
        args = by_name(self.inputs, args, named)
        return self._for(args).lower(*args, backend=backend, target=target)

    def saved(self, *args, **named):
        """As `Function.saved`."""
        args = by_name(self.inputs, args, named)
        return self._for(args).saved(*args)

    def grad(self, wrt: str | Sequence[str] | None = None) -> Deferred:
        """As `Function.grad`."""
        names = chosen_inputs(wrt, self.inputs)
        seeds, results = (tuple(f"D{n}" for n in found) for found in (self.outputs, names))
        return Deferred(self, "grad", (names,), (*self.inputs, *seeds), results)

    def jvp(self, wrt: str | Sequence[str] | None = None) -> Deferred:
        """As `Function.jvp`."""
        names = chosen_inputs(wrt, self.inputs)
        given, results = (tuple(f"T{n}" for n in found) for found in (names, self.outputs))
        return Deferred(self, "jvp", (names,), (*self.inputs, *given), (*self.outputs, *results))

    def vmap(self, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "same") -> Deferred:
        """As `Function.vmap`, with one number of a dimension for all inputs or one for each."""
        axes = (in_dims,) * len(self.inputs) if in_dims is None or isinstance(in_dims, int) else tuple(in_dims)
        return Deferred(self, "vmap", (axes, out_dims, randomness), self.inputs, self.outputs)


def _rank(argument: object) -> int:
    return len(argument.shape) if isinstance(argument, Spec) else getattr(argument, "ndim", 0)
