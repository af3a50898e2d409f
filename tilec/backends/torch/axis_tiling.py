"""Statements that share an axis are carried out together, a slab of that axis at a time.

A slab of rows that fits in cache goes through all of a run (`backends.slabs`) before the next one comes. A run of
matrix products is cut up too, though in larger slabs, where an intermediate would pass the memory budget (attention).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilec.backends.base import Lowering, Options
from tilec.backends.common.axis_tiling import IN_PLACE, Rules, TileInput, TileRegion, bytes_by_row, run_over, slab_of
from tilec.backends.common.code import FreshNames, indented, tuple_text
from tilec.backends.torch.sharing import share
from tilec.cost import size_in_bytes
from tilec.ir.at_sizes import followed
from tilec.ir.infer import infer
from tilec.ir.program import Index, Statement, reads
from tilec.ir.types import Types
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.reduce import reduce

PASS_RULES = Rules(products=False, wider=False, shifted=False, strict=True)
PRODUCT_RULES = Rules(products=True, wider=False, shifted=False, strict=True)


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
    largest = max(math.prod(types[t].shape) for t in run.hints) // run.size
    return options.block // largest or None


def _rows_for_budget(run: TileRegion, types: Types, options: Options, outputs: Sequence[str]) -> int | None:
    inner = [s.output for s in run.rows if s.output not in outputs]
    if max((size_in_bytes(types[t]) for t in inner), default=0) <= options.memory_budget:
        return None
    return max(1, options.memory_budget // bytes_by_row(inner, run, types))


# their text


def _lowering(
    run: TileRegion, rows: int, types: Types, wanted: Sequence[str]
) -> tuple[Lowering, tuple[TileInput, ...], bool]:
    """The run over `rows` rows, what it is given, and whether it asks which row it is at."""
    slab = slab_of(run, rows, types, wanted)
    flat = share(slab.program, slab.types)
    known = {name: slab.types[name] for name in flat.input_names()}
    reduced = reduce(flat)
    stages = {"flat": flat, "reduced": reduced, "defracted": defract(reduced)}
    return Lowering(stages, infer(flat, known)), slab.given, slab.start is not None


def slab_lines(
    slab: SlabPlan, types: Types, local: Mapping[str, str], names: FreshNames, function: Callable[[Lowering], str]
) -> list[str]:
    """Lines that carry out a run; `function` makes a function of a program and gives its name."""
    run, rows, wanted = slab.run, slab.rows, slab.wanted
    first, last = names.fresh("first"), names.fresh("last")
    parts = {t: names.fresh(f"{local[t]}_part") for t in wanted}

    def part(tensor: str, axis: int | None) -> str:
        return local[tensor] if axis is None else f"{local[tensor]}[{':, ' * axis}{first}:{last}]"

    def call(size: int) -> str:
        lowering, given, asks = _lowering(run, size, types, wanted)
        asked = [f"torch.full((), {first}, device=device)"] if asks else []
        arguments = ", ".join([*(part(g.tensor, g.axis) for g in given), *asked])
        return f"{', '.join(parts[t] for t in wanted)}, = {function(lowering)}({arguments})"

    before, body = [], [f"{last} = min({first} + {rows}, {run.size})"]
    remainder = run.size % rows
    if remainder:
        body += [f"if {last} - {first} == {rows}:", *indented([call(rows)]), "else:", *indented([call(remainder)])]
    else:
        body.append(call(rows))
    combined = {s.output: IN_PLACE[s.aggregation] for s in run.columns}
    for t in wanted:
        if t in combined:
            before.append(f"{local[t]} = None")
            body.append(f"{local[t]} = {parts[t]} if {local[t]} is None else {combined[t].format(local[t], parts[t])}")
        else:
            shape = tuple_text(types[t].shape)
            before.append(f"{local[t]} = torch.empty({shape}, dtype=torch.{types[t].dtype}, device=device)")
            body.append(f"{part(t, run.axis[t])} = {parts[t]}")
    return [*before, f"for {first} in range(0, {run.size}, {rows}):", *indented(body)]
