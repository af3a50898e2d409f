"""A lowered program as a plan: each statement by the family that fits it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.base import Lowering
from tilec.backends.common.chains.chain import ChainKernel
from tilec.backends.common.chains.recognise import reads_of, with_reads
from tilec.backends.triton.chains.launch import chain_steps
from tilec.backends.triton.emit.epilogue import riders
from tilec.backends.triton.fusion.groups import Group, Grouped
from tilec.backends.triton.iteration.coalesce import Viewed, coalesce
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.blocks import LEAST_REUSE, choose_config, inner_variables
from tilec.backends.triton.matmul.chain import pairwise
from tilec.backends.triton.matmul.columns import columns
from tilec.backends.triton.matmul.dot import (
    Dot,
    operand_accesses,
    recognise_dot,
    variables_outside,
    worthwhile,
    worthwhile_padded,
)
from tilec.backends.triton.matmul.exp_weighted_matmul import Weighted, WeightedWriter, recognise_weighted
from tilec.backends.triton.matmul.hopper.steps import hopper_steps
from tilec.backends.triton.matmul.kernel import PRECISION, dot_steps, launched
from tilec.backends.triton.matmul.library import is_plain, library_steps
from tilec.backends.triton.matmul.logsumexp_matmul import (
    LogDot,
    LogWriter,
    recognise_log,
    viewed_with_tops,
    with_guards,
)
from tilec.backends.triton.matmul.pack import LEAST_WORK, columns_packed, packed, work
from tilec.backends.triton.matmul.precompute_operands import hoisted, shared
from tilec.backends.triton.matmul.side_by_side import side_by_side
from tilec.backends.triton.matmul.split import Parts, fitted, in_parts
from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Release, Request, Setting, Step, TorchLines
from tilec.backends.triton.plan.sizes import NARROWEST, contiguous, reach
from tilec.backends.triton.pointwise.pointwise import fill, pointwise
from tilec.backends.triton.recurrence.recurrence import recurrence_steps, with_riders
from tilec.backends.triton.rows.rows import row_launch
from tilec.backends.triton.scan.form import recognise_scan, terms_first
from tilec.backends.triton.scan.scan import affine_recurrence, scan_of_terms, scan_steps
from tilec.backends.triton.scatter.scatter import scattered
from tilec.backends.triton.schedule.candidates import MatmulProblem, steps_of
from tilec.backends.triton.schedule.materialize import settled
from tilec.ir.index import linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Int, Program, Statement, reads, reads_itself
from tilec.ir.types import TensorType


def make_plan(lowering: Lowering, together: Grouped, strides: Sequence[tuple[int, ...]], setting: Setting) -> Plan:
    """The plan of a lowered program, whose statements are in groups, for inputs of these strides (elements)."""
    flat, types = together.program, dict(together.types)
    kept = with_reads(flat, together.chains.values())
    defracted = {s.output: s for s in lowering.stages["defracted"].statements}
    defracted |= {s.output: s for s in flat.statements if s.output in together.rewritten}
    members = {s.output for g in together.groups.values() for s in (*g.statements, *g.after)}
    members |= {s.output for kernel in together.chains.values() for s in kernel.statements}
    known = {name: tuple(s) for name, s in zip(flat.input_names(), strides, strict=True)}
    units: list[Unit] = []
    done: set[str] = set()
    for place, s in enumerate(flat.statements):
        if s.output in done:
            continue
        if s.output in together.chains:
            units.append(_chain_unit(together.chains[s.output], types, known, setting))
            done |= {m.output for m in units[-1].statements}
            continue
        if s.output in together.groups:
            units.append(_row_unit(together.groups[s.output], types, known, setting))
            done |= {m.output for m in units[-1].statements}
            continue
        if reads_itself(s):
            units.append(_recurrence_unit(kept, place, types, known, setting, members))
            done |= {m.output for m in units[-1].statements}
            continue
        riding = riders(kept, place, types, members)
        for output in (s.output, *(r.output for r in riding)):
            known[output] = contiguous(types[output].shape)
        made: list[Step] | None = None
        if riding and _elements(types[s.output]):
            made = ridden_steps(defracted[s.output], s, riding, types, known, setting)
        statements = (s, *riding) if made is not None else (s,)
        output, t = statements[-1].output, types[statements[-1].output]
        if made is None and _elements(t):
            made = statement_steps(defracted[s.output], s, types, known, setting)
        units.append(Unit(statements, (output,), (Allocate(output, t.shape, t.dtype), *(made or ()))))
        done |= {m.output for m in statements}
    return Plan(tuple(_without_overwritten(settled(_with_releases(units, flat)))), flat.outputs)


@dataclass(frozen=True)
class Unit:
    """Statements that are carried out together, the tensors that are made for them, the steps, and what these read
    beside what the statements say."""

    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    reads: tuple[str, ...] = ()

    def touched(self) -> tuple[str, ...]:
        return (*self.reads, *(n for s in self.statements for n in (s.output, *reads(s))))


def _chain_unit(
    kernel: ChainKernel, types: Mapping[str, TensorType], strides: dict[str, tuple[int, ...]], setting: Setting
) -> Unit:
    """A chain's kernel. `strides` learns its outputs'."""
    strides.update((o, contiguous(types[o].shape)) for o in kernel.outputs)
    steps: list[Step] = [Allocate(o, types[o].shape, types[o].dtype) for o in kernel.outputs]
    steps += chain_steps(kernel, types, strides, setting)
    return Unit(kernel.statements, kernel.outputs, tuple(steps), reads_of(kernel))


def _recurrence_unit(
    flat: Program,
    place: int,
    types: Mapping[str, TensorType],
    known: dict[str, tuple[int, ...]],
    setting: Setting,
    barred: Collection[str],
) -> Unit:
    """A recurrence and what rides on it, none of `barred`: many steps at once where they are affine and that pays."""
    s = flat.statements[place]
    t = types[s.output]
    known.update((later.output, contiguous(types[later.output].shape)) for later in flat.statements[place:])
    if _elements(t):
        for riding in dict.fromkeys((riders(flat, place, types, barred), ())):
            wide = _is_wide((s, *riding), types, known, None)
            steps = affine_recurrence(s, types, known, setting, wide, riding)
            if steps is not None:
                last = (s, *riding)[-1]
                allocated = Allocate(last.output, types[last.output].shape, types[last.output].dtype)
                return Unit((s, *riding), (last.output,), (allocated, *steps))
    ridden = with_riders(flat, place, types, known, setting, barred)
    if ridden is not None:
        statements, made = ridden
        names = {m.output for m in statements}
        stored = tuple(a.tensor for a in made if isinstance(a, Allocate) and a.tensor in names)
        return Unit(statements, stored, tuple(made))
    steps = recurrence_steps(s, types, known, setting) if _elements(t) else []
    return Unit((s,), (s.output,), (Allocate(s.output, t.shape, t.dtype), *steps))


def _with_releases(units: Sequence[Unit], flat: Program) -> list[Step]:
    """The steps of all units, with each intermediate let go after the last unit that reads it."""
    kept = {name for unit in units for name in unit.outputs} - set(flat.outputs)
    last: dict[str, int] = {}
    for place, unit in enumerate(units):
        last.update(dict.fromkeys([n for n in unit.touched() if n in kept], place))
    steps: list[Step] = []
    for place, unit in enumerate(units):
        steps += unit.steps
        unused = tuple(n for n, p in last.items() if p == place)
        if unused:
            steps.append(Release(unused))
    return steps


def _row_unit(
    group: Group, types: Mapping[str, TensorType], strides: dict[str, tuple[int, ...]], setting: Setting
) -> Unit:
    """A group's kernel and, where outputs add up over rows, the one that combines the partial sums. `strides` learns
    the members'."""
    members = (*group.statements, *group.after)
    strides.update((s.output, contiguous(types[s.output].shape)) for s in members)
    outputs = tuple(s.output for s in members if s.output in group.stored)
    wide = _is_wide(members, types, strides, None)
    made = row_launch(group, types, strides, wide, misaligned=setting.misaligned)
    steps: list[Step] = [Allocate(name, types[name].shape, types[name].dtype) for name in outputs]
    steps += [Allocate(name, t.shape, t.dtype) for name, t in made.partial.items()]
    steps.append(made.launch)
    types = {**types, **made.partial}
    known = {**strides, **{name: contiguous(t.shape) for name, t in made.partial.items()}}
    if made.second is not None:
        steps.append(row_launch(made.second, types, known, wide).launch)
        steps.append(Release(tuple(made.partial)))
    return Unit(members, outputs, tuple(steps))


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
    scan = recognise_scan(space, seen)
    if scan is not None or terms_first(space, seen) is not None:
        return None if scan is None else scan_steps(scan, seen, flat, wide, riding)
    dot = recognise_dot(space, seen)
    library = dot is not None and setting.library and not _ours_is_faster(dot, space, seen, setting)
    if library and dot is not None and library_steps(defracted, flat, types, dot, space, seen) is not None:
        return None
    if dot is not None and (side_by_side(dot, space, seen, setting) or columns(dot, space, seen, setting)):
        return None
    if dot is not None and worthwhile(dot, space):
        if hopper_steps(dot, space, seen, setting) is not None or hoisted(dot, space, seen) is not None:
            return None
        return dot_steps(dot, space, seen, flat, wide, setting, riding)
    if dot is not None and worthwhile_padded(dot, space, seen):
        return dot_steps(dot, space, seen, flat, wide, setting, riding)
    found = recognise_log(space, seen) or recognise_weighted(space, seen)
    if found is not None:
        return _exponential_steps(found, space, seen, flat, wide, setting, riding) if space.covers else None
    once = columns_packed(space, seen, wide)
    if once is None:
        return pointwise(space, seen, flat, wide, riding)
    before, seen, space, after = once
    made = pointwise(space, seen, flat, wide, riding)
    return None if made is None else [*before, *made, *after]


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
    scan = recognise_scan(space, seen)
    if scan is not None:
        return scan_steps(scan, seen, flat, wide)
    apart = terms_first(space, seen)
    if apart is not None:
        return scan_of_terms(*apart, seen, flat, partial(statement_steps, setting=setting))
    dot = recognise_dot(space, seen)
    if dot is not None:
        task = MatmulProblem(defracted, flat, types, dot, space, seen, wide, setting)
        choice = setting.known(task) if setting.known is not None else None
        chosen = None if choice is None else steps_of(task, choice)
        if chosen is not None:
            return [*first, *chosen]
    rewritten = None if dot is None else side_by_side(dot, space, seen, setting) or columns(dot, space, seen, setting)
    if rewritten is not None:
        return [*first, *rewritten.carried_out(partial(_over_views, setting=replace(setting, library=False)))]
    if dot is not None and setting.library and not _ours_is_faster(dot, space, seen, setting):
        steps = library_steps(defracted, flat, types, dot, space, seen, wide)
        if steps is not None:
            return steps
    stages = pairwise(space, seen.types, variables_outside) if dot is None else None
    if stages is not None:
        return _in_turn(stages, flat, seen, setting)
    if dot is not None and worthwhile(dot, space):
        computed = hoisted(dot, space, seen, wide)
        if computed is not None:
            before, seen, space, dot, after = computed
            return [*first, *before, *_product_steps(dot, space, seen, flat, wide, setting), *after]
        return [*first, *_product_steps(dot, space, seen, flat, wide, setting)]
    if dot is not None and worthwhile_padded(dot, space, seen):
        return [*first, *(dot_steps(dot, space, seen, flat, wide, setting) or ())]
    found = recognise_log(space, seen) or recognise_weighted(space, seen)
    if found is not None:
        return [*first, *_exponential_steps(found, space, seen, flat, wide, setting)]
    last: list[Step] = []
    for prepared in (shared, columns_packed):
        once = prepared(space, seen, wide)
        if once is not None:
            made, seen, space, released = once
            first, last = [*first, *made], [*released, *last]
    return [*first, *(pointwise(space, seen, flat, wide) or ()), *last]


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
        steps.append(Request(s, seen.types, seen.strides, wide, partial(_allocated_steps, s, seen, setting)))
    product = with_guards(found.dot)
    inner = inner_variables(product, space, seen, LEAST_REUSE)
    last = inner[0] if len(inner) == 1 and product.dtype == "float32" else None
    much = work(product, space) >= LEAST_WORK
    divisible = isinstance(found, Weighted) and much and setting.precision == "highest"
    divided = in_parts(product, space, seen, wide) if divisible else None
    computed = hoisted(product, space, seen, wide, last, True) if much and divided is None else None
    config = replace(choose_config(product, space, setting.device.shared), parts=1)
    after: list[Step] = []
    parts: Parts | None = None
    if divided is not None:
        before, seen, parts, after = divided
        steps += before
        config = fitted(config, setting.device.shared)
    elif computed is not None:
        before, known, _, product, after = computed
        seen = replace(known, statement=seen.statement)
        steps += before
    how = (product, space, seen, wide, PRECISION[setting.precision], config, riding, parts)
    own = launched(LogWriter(found, *how) if isinstance(found, LogDot) else WeightedWriter(found, *how), flat)
    steps += [replace(s, sociable=True) if isinstance(s, Launch) else s for s in own]
    return [*steps, *after, Release(tuple(s.output for s in found.tops))]


def _allocated_steps(s: Statement, seen: Viewed, setting: Setting) -> list[Step]:
    t = seen.types[s.output]
    return [Allocate(s.output, t.shape, t.dtype), *statement_steps(s, s, seen.types, seen.strides, setting)]


def _ours_is_faster(dot: Dot, space: Space, seen: Viewed, setting: Setting) -> bool:
    """Hopper's kernels against cuDNN on 16-bit and tf32 convolutions: even at worst, whatever the kernel's layout, and
    no look at the result for infinities at its borders afterwards. Matrix products stay the library's where they are
    plain: it would copy others before or after. So do sums that must be split over programs for few columns: kernel
    gradients of 64 channels take ours a third longer."""
    accesses = [a for side in (dot.left, dot.right) for f in side for a in operand_accesses(f)]
    bare = all(linear(e).bare is not None for a in accesses for e in a.index)
    steps = None if bare and is_plain(dot, space, seen) else hopper_steps(dot, space, seen, setting)
    split = steps is not None and len(steps) > 1
    return steps is not None and not (split and space.count(dot.columns) <= FEW_COLUMNS)


FEW_COLUMNS = 64


def product_task(
    defracted: Statement,
    flat: Statement,
    types: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
    setting: Setting,
) -> MatmulProblem | None:
    """A statement as a product that there are several ways to carry out, None where it is none."""
    seen = coalesce(Viewed(defracted, types, strides))
    space = build_space(seen.statement, seen.types)
    dot = recognise_dot(space, seen) if space is not None and space.classes else None
    if space is None or dot is None:
        return None
    wide = _is_wide((flat,), types, strides, space)
    return MatmulProblem(defracted, flat, types, dot, space, seen, wide, setting)


def _over_views(seen: Viewed, setting: Setting) -> list[Step]:
    """Steps of a statement over views, into a tensor that is there."""
    return statement_steps(seen.statement, seen.statement, seen.types, seen.strides, setting)


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
    if any(reach(types[n].shape, strides[n]) > NARROWEST for n in touched):
        return True
    return space is not None and bool(space.classes) and space.count(space.reductions) > NARROWEST


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
