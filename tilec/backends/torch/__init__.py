"""The torch backend: torch operations on any device, chosen by rules over the lowered program."""

from __future__ import annotations

from tilec.backends.base import Lowering, Options
from tilec.backends.torch.program import TorchProgram, build_program
from tilec.late import puts_off_collection


class TorchBackend:
    name = "torch"
    tells_apart = 1
    chooses = False

    @puts_off_collection
    def build(self, lowering: Lowering, options: Options | None = None) -> TorchProgram:
        """The executable of a lowered program; options come from the environment unless given."""
        return build_program(lowering, options or Options.from_environment())


__all__ = ["TorchBackend", "TorchProgram"]
