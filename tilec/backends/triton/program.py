"""A lowered program as a plan: each statement by the family that fits it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilec.backends.base import Lowering
from tilec.backends.triton.chain import pairwise
from tilec.backends.triton.coalesce import Viewed, coalesce
from tilec.backends.triton.dot import Dot, accesses_in, recognise, variables_of, worthwhile
from tilec.backends.triton.dot_blocks import choose_config, inner_variables
from tilec.backends.triton.dot_text import PRECISION, dot_steps, launched
from tilec.backends.triton.epilogue import riders
from tilec.backends.triton.hoist import LEAST_REUSE, hoisted, shared
from tilec.backends.triton.hopper_steps import hopper_steps
from tilec.backends.triton.library import library_steps
from tilec.backends.triton.log_dot import LogDot, LogWriter, recognise_log, viewed_with_tops, with_guards
from tilec.backends.triton.pack import LEAST_WORK, packed, work
from tilec.backends.triton.plan import Allocate, Plan, Release, Setting, Step, TorchLines
from tilec.backends.triton.pointwise import fill, pointwise
from tilec.backends.triton.scatter import scattered
from tilec.backends.triton.sizes import contiguous
from tilec.backends.triton.space import Space, build_space
from tilec.backends.triton.ways import Task, steps_of
from tilec.backends.triton.weighted import Weighted, WeightedWriter, recognise_weighted
from tilec.ir.index import linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Int, Program, Statement, reads
from tilec.ir.types import TensorType

NARROWEST = 2**31 - 2**20  # positions up to here are 32-bit; blocks may overhang


def make_plan(lowering: Lowering, strides: Sequence[tuple[int, ...]], setting: Setting) -> Plan:
    """The plan of a lowered program for inputs of these strides (elements)."""
    flat = lowering.stages["flat"]
    defracted = {s.output: s for s in lowering.stages["defracted"].statements}
    types = dict(lowering.types)
    known = {name: tuple(s) for name, s in zip(flat.input_names(), strides, strict=True)}
    groups: list[tuple[tuple[Statement, ...], list[Step]]] = []
    done: set[str] = set()
    for place, s in enumerate(flat.statements):
        if s.output in done:
            continue
        riding = riders(flat, place, types)
        for output in (s.output, *(r.output for r in riding)):
            known[output] = contiguous(types[output].shape)
        made: list[Step] | None = None
        if riding and _elements(types[s.output]):
            made = ridden_steps(defracted[s.output], s, riding, types, known, setting)
        group = (s, *riding) if made is not None else (s,)
        t = types[group[-1].output]
        steps: list[Step] = [Allocate(group[-1].output, t.shape, t.dtype)]
        if made is None and _elements(t):
            made = statement_steps(defracted[s.output], s, types, known, setting)
        groups.append((group, [*steps, *(made or ())]))
        done |= {g.output for g in group}
    return Plan(tuple(_without_overwritten(_with_releases(groups, flat))), flat.outputs)


def _with_releases(groups: Sequence[tuple[tuple[Statement, ...], list[Step]]], flat: Program) -> list[Step]:
    """The steps of all groups, with each intermediate let go after the last group that reads it."""
    kept = {g[-1].output for g, _ in groups} - set(flat.outputs)
    last: dict[str, int] = {}
    for place, (group, _) in enumerate(groups):
        last.update(dict.fromkeys([n for s in group for n in (s.output, *reads(s)) if n in kept], place))
    steps: list[Step] = []
    for place, (_, made) in enumerate(groups):
        steps += made
        unused = tuple(n for n, p in last.items() if p == place)
        if unused:
            steps.append(Release(unused))
    return steps


def ridden_steps(
    defracted: Statement,
    flat: Statement,
    riding: Sequence[Statement],
    types: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
    setting: Setting,
) -> list[Step] | None:
    """Steps that compute a statement and those riding on it in one launch; None where it has no such form."""
    seen = Viewed(defracted, types, strides)
    space = build_space(defracted, types)
    if space is None or not space.classes:
        return None
    wide = _is_wide((flat, *riding), types, strides, space)
    dot = recognise(space, seen)
    library = dot is not None and setting.library and not _ours_is_faster(dot, space, seen, setting)
    if library and dot is not None and library_steps(defracted, flat, types, dot, space, seen) is not None:
        return None
    if dot is not None and worthwhile(dot, space):
        if hopper_steps(dot, space, seen, setting) is not None or hoisted(dot, space, seen) is not None:
            return None
        return dot_steps(dot, space, seen, flat, wide, setting, riding)
    found = recognise_log(space, seen) or recognise_weighted(space, seen)
    if found is not None:
        return _exponential_steps(found, space, seen, flat, wide, setting, riding) if space.covers else None
    return pointwise(space, seen, flat, wide, riding)


def statement_steps(
    defracted: Statement,
    flat: Statement,
    types: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
    setting: Setting,
) -> list[Step]:
    """Steps that compute one statement into its allocated output, by the first family that fits."""
    seen = coalesce(Viewed(defracted, types, strides))
    space = build_space(seen.statement, seen.types)
    wide = _is_wide((flat,), types, strides, space)
    if space is None:
        return scattered(flat, types, strides, wide, partial(statement_steps, setting=setting))
    first = fill(space, types)
    if not space.classes:
        return first
    dot = recognise(space, seen)
    if dot is not None:
        task = Task(defracted, flat, types, dot, space, seen, wide, setting)
        choice = setting.known(task) if setting.known is not None else None
        chosen = None if choice is None else steps_of(task, choice)
        if chosen is not None:
            return [*first, *chosen]
    if dot is not None and setting.library and not _ours_is_faster(dot, space, seen, setting):
        steps = library_steps(defracted, flat, types, dot, space, seen, wide)
        if steps is not None:
            return steps
    stages = pairwise(space, seen.types, variables_of) if dot is None else None
    if stages is not None:
        return _in_turn(stages, flat, seen, setting)
    if dot is not None and worthwhile(dot, space):
        computed = hoisted(dot, space, seen, wide)
        if computed is not None:
            before, seen, space, dot, after = computed
            return [*first, *before, *_product_steps(dot, space, seen, flat, wide, setting), *after]
        return [*first, *_product_steps(dot, space, seen, flat, wide, setting)]
    found = recognise_log(space, seen) or recognise_weighted(space, seen)
    if found is not None:
        return [*first, *_exponential_steps(found, space, seen, flat, wide, setting)]
    once = shared(space, seen, wide)
    if once is not None:
        before, seen, space, after = once
        return [*first, *before, *(pointwise(space, seen, flat, wide) or ()), *after]
    return [*first, *(pointwise(space, seen, flat, wide) or ())]


def _product_steps(dot: Dot, space: Space, seen: Viewed, flat: Statement, wide: bool, setting: Setting) -> list[Step]:
    """Hopper's kernels where they fit, over copies where those help; pointer kernels elsewhere."""
    fast = hopper_steps(dot, space, seen, setting)
    if fast is not None:
        return fast
    copied = packed(dot, space, seen, wide)
    before: list[Step] = []
    after: list[Step] = []
    if copied is not None:
        before, seen, space, dot, after = copied
        fast = hopper_steps(dot, space, seen, setting)
    return [*before, *(fast or dot_steps(dot, space, seen, flat, wide, setting) or ()), *after]


def _exponential_steps(
    found: LogDot | Weighted,
    space: Space,
    seen: Viewed,
    flat: Statement,
    wide: bool,
    setting: Setting,
    riding: Sequence[Statement] = (),
) -> list[Step]:
    """A product of exponentials: the greatest terms of each operand, then the product."""
    seen = viewed_with_tops(found.tops, seen)
    steps: list[Step] = []
    for s in found.tops:
        t = seen.types[s.output]
        steps.append(Allocate(s.output, t.shape, t.dtype))
        steps += statement_steps(s, s, seen.types, seen.strides, setting)
    product = with_guards(found.dot)
    inner = inner_variables(product, space, seen, LEAST_REUSE)
    last = inner[0] if len(inner) == 1 and product.dtype == "float32" else None
    computed = hoisted(product, space, seen, wide, last) if work(product, space) >= LEAST_WORK else None
    after: list[Step] = []
    if computed is not None:
        before, known, _, product, after = computed
        seen = replace(known, statement=seen.statement)
        steps += before
    config = replace(choose_config(product, space, setting.shared), parts=1)
    how = (product, space, seen, wide, PRECISION[setting.precision], config, riding)
    steps += launched(LogWriter(found, *how) if isinstance(found, LogDot) else WeightedWriter(found, *how), flat)
    return [*steps, *after, Release(tuple(s.output for s in found.tops))]


def _ours_is_faster(dot: Dot, space: Space, seen: Viewed, setting: Setting) -> bool:
    """Hopper's kernels against cuDNN on 16-bit and tf32 convolutions: even at worst, whatever the kernel's layout, and
    no look at the result for infinities at its borders afterwards. Matrix products stay the library's, and so do sums
    that must be split over programs for few columns: kernel gradients of 64 channels take ours a third longer."""
    accesses = [a for side in (dot.left, dot.right) for f in side for a in accesses_in(f)]
    bare = all(linear(e).bare is not None for a in accesses for e in a.index)
    steps = None if bare else hopper_steps(dot, space, seen, setting)
    split = steps is not None and len(steps) > 1
    return steps is not None and not (split and space.count(dot.columns) <= FEW_COLUMNS)


FEW_COLUMNS = 64


def product_task(
    defracted: Statement,
    flat: Statement,
    types: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
    setting: Setting,
) -> Task | None:
    """A statement as a product that there are several ways to carry out, None where it is none."""
    seen = coalesce(Viewed(defracted, types, strides))
    space = build_space(seen.statement, seen.types)
    dot = recognise(space, seen) if space is not None and space.classes else None
    if space is None or dot is None:
        return None
    wide = _is_wide((flat,), types, strides, space)
    return Task(defracted, flat, types, dot, space, seen, wide, setting)


def _in_turn(stages: list[Statement], flat: Statement, seen: Viewed, setting: Setting) -> list[Step]:
    """Steps of a statement that was cut into several."""
    types, strides = dict(seen.types), dict(seen.strides)
    steps: list[Step] = []
    for s in stages[:-1]:
        shape = tuple(n.value for n in s.sizes or () if isinstance(n, Int))
        types[s.output] = TensorType(shape, expression_type(s.body, types).dtype)
        strides[s.output] = contiguous(shape)
        steps.append(Allocate(s.output, shape, types[s.output].dtype))
        steps += statement_steps(s, s, types, strides, setting)
    steps += statement_steps(stages[-1], flat, types, strides, replace(setting, library=False))
    return [*steps, Release(tuple(s.output for s in stages[:-1]))]


def _is_wide(
    statements: Sequence[Statement],
    types: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
    space: Space | None,
) -> bool:
    """Whether some tensor that the statements touch, or the reduction, needs 64-bit positions."""
    touched = {n for s in statements for n in (s.output, *reads(s)) if n in types}
    if any(_reach(types[n].shape, strides[n]) > NARROWEST for n in touched):
        return True
    return space is not None and bool(space.classes) and space.count(space.reductions) > NARROWEST


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    span = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True) if n)
    return max(span, math.prod(shape))


def _without_overwritten(steps: list[Step]) -> list[Step]:
    """Without allocations that the next step makes again, filled."""
    return [
        s
        for k, s in enumerate(steps)
        if not (isinstance(s, Allocate) and s.fill is None and any(s.tensor in _makes(o) for o in steps[k + 1 : k + 2]))
    ]


def _makes(step: Step) -> tuple[str, ...]:
    match step:
        case Allocate(tensor):
            return (tensor,)
        case TorchLines(writes=writes):
            return writes
    return ()


def _elements(t: TensorType) -> int:
    return math.prod(t.shape)
