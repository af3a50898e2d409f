"""The one place that says which passes run, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilec import knobs
from tilec.backends.base import Lowering
from tilec.ir.infer import infer
from tilec.ir.program import Program
from tilec.ir.types import TensorType, kind
from tilec.ir.verify import verify
from tilec.transforms.bind.bind import bind
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.factor import factor
from tilec.transforms.lower.flatten import flatten
from tilec.transforms.lower.own_outputs import own_outputs
from tilec.transforms.lower.reduce import reduce
from tilec.transforms.lower.tighten_domains import narrow
from tilec.transforms.lower.views import drop_views
from tilec.transforms.simplify.identities import apply_identities
from tilec.transforms.simplify.simplify import simplify
from tilec.transforms.util.kinds import Kinds


@dataclass(frozen=True)
class Setting:
    """What a call knows that the source does not: the inputs' types and the values of the inputs that are sizes."""

    types: Mapping[str, TensorType]
    values: Mapping[str, int]

    def kinds(self) -> dict[str, Kinds]:
        return {name: frozenset((kind(t.dtype),)) for name, t in self.types.items()}


@dataclass(frozen=True)
class Pass:
    """`stage` names the program that `run` makes of the one before it."""

    stage: str
    run: Callable[[Program, Setting], Program]


def _flat(program: Program, setting: Setting) -> Program:
    return own_outputs(apply_identities(_contractions(program, setting), setting.kinds()), setting.types)


def _contractions(program: Program, setting: Setting) -> Program:
    simple = simplify(flatten(program, setting.types), inputs=setting.kinds())
    shared = factor(narrow(drop_views(simple, setting.types)), setting.types)
    return simplify(shared, inputs=setting.kinds())


def bind_flat(program: Program, types: Mapping[str, TensorType], values: Mapping[str, int]) -> Program:
    """The flat stage before identities, which look at what a program needs beside: a program to be taken apart and
    lowered again."""
    return _contractions(bind(program, types, values), Setting(types, values))


PASSES: tuple[Pass, ...] = (
    Pass("bound", lambda program, setting: bind(program, setting.types, setting.values)),
    Pass("flat", _flat),
    Pass("reduced", lambda program, setting: reduce(program)),
    Pass("defracted", lambda program, setting: defract(program)),
)
STAGES = ("source", *(p.stage for p in PASSES))


def lower(program: Program, types: Mapping[str, TensorType], values: Mapping[str, int]) -> Lowering:
    """Run every pass for inputs of these types. `values` holds the integers of rank-0 inputs that stand in sizes.

    Raises TileError subclasses, with spans into the source's text, for whatever shapes and types make illegal.
    """
    setting = Setting(types, values)
    stages = {"source": program}
    for step in PASSES:
        program = step.run(program, setting)
        if knobs.VERIFY.value:
            verify(program, bound=True)
        stages[step.stage] = program
    return Lowering(stages, infer(stages["flat"], types))
