"""The one place that says which passes run, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilec import knobs
from tilec.backends.base import Lowering
from tilec.backends.common.chains.widen import widen_statistics
from tilec.ir.infer import infer
from tilec.ir.program import Program
from tilec.ir.types import TensorType, kind
from tilec.ir.verify import verify
from tilec.late import puts_off_collection
from tilec.transforms.bind.bind import bind
from tilec.transforms.lower.clamps.known_inside import known_inside
from tilec.transforms.lower.clamps.solved_sums import solve_sums
from tilec.transforms.lower.clamps.split_clamps import split_clamps
from tilec.transforms.lower.clamps.split_windows import split_windows
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.distribute import distribute
from tilec.transforms.lower.eliminate import eliminate
from tilec.transforms.lower.factor import factor
from tilec.transforms.lower.flatten import flatten
from tilec.transforms.lower.float_counts import float_counts
from tilec.transforms.lower.keyed_sums import split_keyed_sums
from tilec.transforms.lower.reduce import reduce
from tilec.transforms.lower.separate_windows import separate_windows
from tilec.transforms.lower.share_sums import share_sums
from tilec.transforms.lower.tighten_domains import tighten_domains
from tilec.transforms.simplify.axes.join_digits import join_digits
from tilec.transforms.simplify.axes.split_axes import split_axes
from tilec.transforms.simplify.axes.split_lags import split_lags
from tilec.transforms.simplify.axes.split_quotients import split_quotients
from tilec.transforms.simplify.copy_shared_outputs import copy_shared_outputs
from tilec.transforms.simplify.exact_remainders import exact_remainders
from tilec.transforms.simplify.identities import apply_identities
from tilec.transforms.simplify.lift_choices import lift_choices
from tilec.transforms.simplify.simplify import simplify
from tilec.transforms.simplify.sums_at_places import aggregate_where_read
from tilec.transforms.simplify.values_at_places import compute_where_read
from tilec.transforms.simplify.views import drop_views
from tilec.transforms.simplify.written_terms import sum_written_terms
from tilec.transforms.steps.step_sums import lift_step_sums
from tilec.transforms.steps.unroll_steps import unroll_steps
from tilec.transforms.util.kinds import Kinds


@dataclass(frozen=True)
class CallContext:
    """What a call knows that the source does not: the inputs' types and the values of the inputs that are sizes."""

    types: Mapping[str, TensorType]
    values: Mapping[str, int]

    def kinds(self) -> dict[str, Kinds]:
        return {name: frozenset((kind(t.dtype),)) for name, t in self.types.items()}


Transform = Callable[[Program, CallContext], Program]

# Every pass between a source and a backend, by name, so that each can be run alone (`tilec opt`).
TRANSFORMS: dict[str, Transform] = {
    "bind": lambda program, setting: bind(program, setting.types, setting.values),
    "solve_sums": lambda program, setting: solve_sums(program, setting.types),
    "unroll_steps": lambda program, setting: unroll_steps(program, setting.types),
    "flatten": lambda program, setting: flatten(program, setting.types),
    "simplify": lambda program, setting: simplify(program, inputs=setting.kinds()),
    "known_inside": lambda program, setting: known_inside(program, setting.types),
    "views": lambda program, setting: drop_views(program, setting.types),
    "split_windows": lambda program, setting: split_windows(program, setting.types),
    "join_digits": lambda program, setting: join_digits(program, setting.types),
    "split_axes": lambda program, setting: split_axes(program, setting.types),
    "split_quotients": lambda program, setting: split_quotients(program, setting.types),
    "compute_where_read": lambda program, setting: compute_where_read(program, setting.types),
    "sum_written_terms": lambda program, setting: sum_written_terms(program, setting.types),
    "aggregate_where_read": lambda program, setting: aggregate_where_read(program, setting.types),
    "split_clamps": lambda program, setting: split_clamps(program, setting.types),
    "split_lags": lambda program, setting: split_lags(program, setting.types),
    "tighten_domains": lambda program, setting: tighten_domains(program),
    "factor": lambda program, setting: factor(program, setting.types),
    "distribute": lambda program, setting: distribute(program, setting.types),
    "eliminate": lambda program, setting: eliminate(program, setting.types),
    "lift_step_sums": lambda program, setting: lift_step_sums(program, setting.types),
    "share_sums": lambda program, setting: share_sums(program, setting.types),
    "split_keyed_sums": lambda program, setting: split_keyed_sums(program, setting.types),
    "separate_windows": lambda program, setting: separate_windows(program, setting.types),
    "float_counts": lambda program, setting: float_counts(program, setting.types),
    "widen_statistics": lambda program, setting: widen_statistics(program, setting.types),
    "identities": lambda program, setting: apply_identities(program, setting.kinds()),
    "lift_choices": lambda program, setting: lift_choices(program, setting.types),
    "copy_shared_outputs": lambda program, setting: copy_shared_outputs(program, setting.types),
    "exact_remainders": lambda program, setting: exact_remainders(program, setting.types),
    "reduce": lambda program, setting: reduce(program),
    "defract": lambda program, setting: defract(program),
}


@dataclass(frozen=True)
class Pass:
    """`stage` names the program that the named transforms make, one after the other, of the stage before it."""

    stage: str
    transforms: tuple[str, ...]

    def run(self, program: Program, setting: CallContext) -> Program:
        return apply(self.transforms, program, setting)


CONTRACTIONS = (
    *(
        "solve_sums",
        "unroll_steps",
        "flatten",
        "known_inside",
        "simplify",
        "views",
        "split_windows",
        "split_quotients",
        "join_digits",
        "split_axes",
        "compute_where_read",
        "sum_written_terms",
        "aggregate_where_read",
        "split_clamps",
        "split_lags",
        "tighten_domains",
        "factor",
        "distribute",
        "eliminate",
        "lift_step_sums",
    ),
    *("share_sums", "split_keyed_sums", "separate_windows"),
    "simplify",
    "widen_statistics",
)
PASSES: tuple[Pass, ...] = (
    Pass("bound", ("bind",)),
    Pass(
        "flat", (*CONTRACTIONS, "float_counts", "identities", "lift_choices", "copy_shared_outputs", "exact_remainders")
    ),
    Pass("reduced", ("reduce",)),
    Pass("defracted", ("defract",)),
)
STAGES = ("source", *(p.stage for p in PASSES))


def apply(names: Sequence[str], program: Program, setting: CallContext) -> Program:
    """The program after these transforms, in this order."""
    for name in names:
        program = TRANSFORMS[name](program, setting)
    return program


def bind_flat(program: Program, types: Mapping[str, TensorType], values: Mapping[str, int]) -> Program:
    """The flat stage before counts and identities, which look at what a program needs besides: a program to be taken
    apart and lowered again."""
    return apply(("bind", *CONTRACTIONS), program, CallContext(types, values))


@puts_off_collection
def lower(program: Program, types: Mapping[str, TensorType], values: Mapping[str, int]) -> Lowering:
    """Run every pass for inputs of these types. `values` holds the integers of rank-0 inputs that stand in sizes.

    Raises TileError subclasses, with spans into the source's text, for whatever shapes and types make illegal.
    """
    setting = CallContext(types, values)
    stages = {"source": program}
    for step in PASSES:
        program = step.run(program, setting)
        if knobs.VERIFY.value:
            verify(program, bound=True)
        stages[step.stage] = program
    return Lowering(stages, infer(stages["flat"], types))
