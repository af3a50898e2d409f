"""Tangents as functions of their own."""

from __future__ import annotations

from tilec.errors import InputMistake
from tilec.ir.types import TensorType, kind
from tilec.prepare.prepared import Replaced, Specialised
from tilec.specialise import Specialiser
from tilec.transforms.autodiff.jvp import jvp


class Tangents(Specialiser):
    """Values and tangents of a function: (inputs..., tangents of those in `wrt`) -> (outputs..., d_outputs...)."""

    def __init__(self, of: Specialiser, wrt: tuple[str, ...], tune: bool = False):
        how = (of.source, of.filename, of.backend, None, tune or of.tune, of.exact)
        super().__init__(jvp(of.program, wrt), *how, checked=of.checked_here())
        self.of, self.wrt = of, wrt
        self.seeds = of.seeds

    def __reduce__(self) -> tuple:
        return Tangents, (self.of, self.wrt, self.tune)

    def tuned(self) -> Specialiser:
        return Tangents(self.of, self.wrt, True)

    def specialised(self, types: dict[str, TensorType], values: dict[str, int]) -> Specialised:
        """A tangent has its input's shape; that of an input that is not floating is ignored. InputMistake otherwise."""
        replaced: dict[int, Replaced] = {}
        for position, name in enumerate(self.wrt, len(self.of.inputs)):
            tangent = self.inputs[position]
            given, wanted = types[tangent], types[name]
            if kind(wanted.dtype) != 2:
                replaced[position] = Replaced(TensorType(wanted.shape, "float32"), True)
            elif given.shape != wanted.shape:
                raise InputMistake(f"{tangent} has shape {given.shape}, but the input {name} has shape {wanted.shape}")
            elif kind(given.dtype) != 2:
                replaced[position] = Replaced(TensorType(wanted.shape, wanted.dtype), False)
        types = {**types, **{self.inputs[p]: r.type for p, r in replaced.items()}}
        return Specialised(self.program, types, tuple(range(len(self.outputs))), replaced)
