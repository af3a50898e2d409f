"""Statements that share an axis are carried out together, a slab of that axis at a time.

A slab of rows that fits in cache goes through all of a run (`common/axis_tiling.py`) before the next one comes. A run
of matrix products is cut up too, though in larger slabs, where an intermediate would pass the memory budget
(attention).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilec.backends.base import Lowering, Options
from tilec.backends.common.axis_tiling import Rules, Slab, TileRegion, run_over, slab_of
from tilec.backends.common.code import FreshNames, tuple_text
from tilec.backends.common.tiled_program import CallWriter, lies_together
from tilec.backends.torch.sharing import share
from tilec.cost import size_in_bytes
from tilec.ir.at_sizes import followed
from tilec.ir.infer import infer
from tilec.ir.program import Index, Statement, reads
from tilec.ir.types import Types
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.reduce import reduce
from tilec.transforms.util.tiled import Combine, Into

PASS_RULES = Rules(products=False, strict=True)
LEAST_TOGETHER = 1 / 2048  # of a block, side by side in memory: below that a slab takes longer than what it saves
PRODUCT_RULES = Rules(products=True, strict=True)


@dataclass(frozen=True)
class SlabPlan:
    """A run, the rows of a slab, and what is read of its results."""

    run: TileRegion
    rows: int
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class TiledStep:
    """Statements in the order in which they are carried out: one, or those of a run."""

    members: tuple[Statement, ...]
    slab: SlabPlan | None = None


def in_slabs(program, types: Types, options: Options) -> list[TiledStep]:
    """A flat program's statements in an order in which runs stand together."""
    todo, steps = list(program.statements), list[TiledStep]()
    elements = [math.prod(types[t].shape) for s in todo for t in (s.output, *reads(s))]
    inner = [size_in_bytes(types[s.output]) for s in todo if s.output not in program.outputs]
    rules = [PASS_RULES] if max(elements, default=0) > options.block else []
    rules += [PRODUCT_RULES] if max(inner, default=0) > options.memory_budget else []
    while todo:
        found = _find(todo, types, options, program.outputs, rules) if rules and len(todo) > 1 else None
        if found is None:
            steps.append(TiledStep((todo.pop(0),)))
            continue
        run, rows = found
        todo = [*run.after, *todo[len(run.before) + len(run.members) + len(run.after) :]]
        steps += [TiledStep((s,)) for s in run.before]
        steps.append(TiledStep(tuple(run.members), SlabPlan(run, rows, run.wanted(todo, program.outputs))))
    return steps


def _find(
    statements: Sequence[Statement], types: Types, options: Options, outputs: Sequence[str], every: Sequence[Rules]
) -> tuple[TileRegion, int] | None:
    """The longest run that begins with the first statement and the rows of a slab; None where none is worth cutting."""
    first = statements[0]
    best: tuple[TileRegion, int] | None = None
    for dimension, v in enumerate(first.index or ()):
        if not isinstance(v, Index) or types[first.output].shape[dimension] < 2:
            continue
        for rules in every:
            run = run_over(statements, types, v.name, dimension, rules)
            # without that nothing is gained that loops over blocks lack
            if not run.passes_on() or best is not None and len(run.members) <= len(best[0].members):
                continue
            if rules is PRODUCT_RULES:
                rows = _rows_for_budget(run, types, options, outputs)
            else:
                rows = _rows_for_cache(run, types, options)
                rows = rows if rows is None or _together(run, rows, types) >= LEAST_TOGETHER * options.block else None
                rows = rows if _again(run, types, options) else None
            if rows is not None and rows < run.size:
                best = run, _even(run.size, rows)
    return best


@followed
@lru_cache
def _even(size: int, rows: int) -> int:
    """The most rows, from half as many on, that leave no smaller slab over, which would be a function of its own."""
    return next((n for n in range(rows, rows // 2, -1) if size % n == 0), rows)


def _rows_for_cache(run: TileRegion, types: Types, options: Options) -> int | None:
    """As many rows of the largest tensor as a block has elements."""
    largest = max(1, max(math.prod(types[t].shape) for t in run.hints) // run.size)
    return options.block // largest or None


def _together(run: TileRegion, rows: int, types: Types) -> float:
    """The fewest elements of a slab that lie side by side in memory."""
    shapes = [(types[t].shape, axis) for t, axis in run.axis.items()]
    return min((rows * math.prod(s[a + 1 :]) for s, a in shapes if math.prod(s[:a]) > 1), default=math.inf)


def _again(run: TileRegion, types: Types, options: Options) -> bool:
    """Is a tensor that fills a good part of a block walked twice, by a statement after one that makes or reads it?"""
    walked = Counter(t for s in run.members for t in (s.output, *dict.fromkeys(reads(s))))
    return any(n > 1 and math.prod(types[t].shape) * 4 >= options.block for t, n in walked.items())


def _rows_for_budget(run: TileRegion, types: Types, options: Options, outputs: Sequence[str]) -> int | None:
    inner = [s.output for s in run.rows if s.output not in outputs]
    if max((size_in_bytes(types[t]) for t in inner), default=0) <= options.memory_budget:
        return None
    return max(1, options.memory_budget // _bytes_by_row(inner, run, types))


# their text


def _lowering(slab: Slab) -> Lowering:
    flat = share(slab.program, slab.types)
    known = {name: slab.types[name] for name in flat.input_names()}
    reduced = reduce(flat)
    return Lowering({"flat": flat, "reduced": reduced, "defracted": defract(reduced)}, infer(flat, known))


def slab_lines(
    slab: SlabPlan, types: Types, local: Mapping[str, str], names: FreshNames, function: Callable[..., str]
) -> list[str]:
    """Lines that carry out a run; `function` makes a function of a program, which is given memory for some of its
    outputs, and gives its name."""
    run, wanted = slab.run, slab.wanted
    combined = {s.output: Combine(s.output, s.aggregation) for s in run.columns}
    results = [combined.get(t) or Into(t, run.axis[t], slab.rows) for t in wanted]
    lines = []
    for t in wanted:
        made = f"torch.empty({tuple_text(types[t].shape)}, dtype=torch.{types[t].dtype}, device=device)"
        lines.append(f"{local[t]} = {None if t in combined else made}")
    writer = CallWriter(local.__getitem__, names, in_place=True)
    placed = [n for n, x in enumerate(results) if lies_together(x)]
    rest = run.size % slab.rows
    for rows, first, count in ((slab.rows, 0, run.size // slab.rows), (rest, run.size - rest, 1)):
        if rows:
            part = slab_of(run, rows, types, wanted)
            lowering = _lowering(part)
            lines += writer.lines(part.call(lowering, results, first, count), function(lowering, placed=placed))
    return lines


def _bytes_by_row(names: Sequence[str], run: TileRegion, types: Types) -> int:
    """Bytes that one row takes of these tensors, which have the axis."""
    return sum(size_in_bytes(types[t]) // run.size for t in names)
