"""What a program costs: operations, bytes moved, and the bytes that no program computing the same could avoid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import opt_einsum

from tilec.ir.functions import all_of, call, operands_of
from tilec.ir.program import Access, Call, Expr, Int, Pad, Program, Statement, index_variables, reads, walk
from tilec.ir.types import FLOATS, ITEM_BYTES, TensorType, shapes_in
from tilec.lattice.index_values import index_values
from tilec.lattice.sets import Box, bounds

GRID, MOST_VARIABLES = 64, 3  # places of a variable, and variables, at which a condition is tried


@dataclass(frozen=True)
class Cost:
    """`flops`: scalar operations, one a function or operator and one an aggregation step, over the bounding box of the
    valid points of each statement, of which conditions and constraints leave a share. `bytes_moved`: every tensor a
    statement reads, once, and the one it writes; of statements marked `[[kernel(k)]]`, which share a kernel, what comes
    from outside and what goes there. `least_bytes`: the inputs that are read and the outputs, once each. `least_flops`:
    operations that the outputs need, with an intermediate computed only where a statement that reads it needs it, and a
    sum of products of three factors or more by the cheapest pairs."""

    flops: int
    bytes_moved: int
    least_bytes: int
    least_flops: int


@dataclass(frozen=True)
class KernelCost:
    """One kernel of a program: the outputs of its statements, its operations, the bytes that it moves, the narrowest
    floating type that it reads ("float32" where it reads none)."""

    outputs: tuple[str, ...]
    flops: int
    bytes_moved: int
    dtype: str


@dataclass(frozen=True)
class Rates:
    """What a device reaches: bytes of memory a second, operations a second by element type, seconds of a launch."""

    device: str
    memory: float
    operations: Mapping[str, float]
    launch: float

    def seconds(self, flops: int, bytes_moved: int, dtype: str) -> float:
        """The least time for this work: whichever of memory and arithmetic takes longer (the roofline model)."""
        return max(bytes_moved / self.memory, flops / self.operations.get(dtype, self.operations["float32"]))


# Memory, 16-bit products and launches as measured; the other types as rated.
H200 = Rates("H200", 4e12, {"bfloat16": 790e12, "float16": 790e12, "float32": 60e12, "float64": 60e12}, 5e-6)


def cost(
    program: Program,
    types: Mapping[str, TensorType],
    flat: Program | None = None,
    kernels: Sequence[Sequence[str]] = (),
) -> Cost:
    """Cost of a flat program whose tensors have these types, or of its statements as kernels carry them out, `flat`
    being the whole: what kernels read and no statement of theirs makes, they compute themselves, each anew. `kernels`:
    outputs that share one, beside those that are marked."""
    units = _units(program, flat or program, kernels)
    shapes = shapes_in(types)
    size = {name: size_in_bytes(t) for name, t in types.items()}
    flops = sum(_unit_operations(program, unit, shapes) for unit in units)
    moved = sum(size[name] for unit in units for name in _touched(program, unit, units))
    read = {r for unit in units for s in unit for r in reads(s)} & set(program.input_names())
    least = sum(size[name] for name in read) + sum(size[name] for name in dict.fromkeys(program.outputs))
    return Cost(flops, moved, least, _least_flops(flat or program, shapes))


def _least_flops(program: Program, shapes: Mapping[str, tuple[int, ...]]) -> int:
    boxes = {s.output: bounds(s, dict(shapes)) or {} for s in program.statements}
    shares: dict[str, float] = {}  # of the points of each statement, those that count
    filled: dict[str, float] = {}  # of the elements of each value, those that may differ from zero
    for s in program.statements:
        box, kept = boxes[s.output], {*index_variables(*s.index or ())}
        asked = _conditions(s)
        guarded, value = _share(asked, box), _filled(s.body, filled)
        shares[s.output] = min(guarded, value)
        if s.aggregation in ("sum", "assign") and s.default is None:
            tested = {*index_variables(*([] if asked is None else [asked]))}
            filled[s.output] = min(guarded if tested <= kept else 1.0, value if box.keys() <= kept else 1.0)
    needed = dict.fromkeys(program.outputs, 1.0)
    found = 0
    for s in reversed(program.statements):
        share = min(needed.get(s.output, 0.0), shares[s.output])
        needed.update((name, max(needed.get(name, 0.0), share)) for name in reads(s))
        found += round(share * _least_operations(s, {v: 1 + high - low for v, (low, high) in boxes[s.output].items()}))
    return found


def _filled(e: Expr, filled: Mapping[str, float]) -> float:
    """Of the points at which an expression is read, the share at which it may differ from zero."""
    if isinstance(e, Access):
        return filled.get(e.tensor, 1.0)
    if isinstance(e, Call) and e.function == "mul":
        return min(_filled(arg, filled) for arg in e.args)
    if isinstance(e, Call) and e.function == "div":
        return _filled(e.args[0], filled)
    if isinstance(e, Call) and e.function in ("add", "sub", "neg", *FLOATS):
        return max(_filled(arg, filled) for arg in e.args)
    return 1.0


def _least_operations(s: Statement, extents: Mapping[str, int]) -> int:
    """Operations of a statement, each at the points that it tells apart, products summed in pairs of factors."""

    def points(variables: Iterable[str]) -> int:
        return prod(extents[v] for v in variables if v in extents)

    factors = operands_of("mul", s.body) if s.aggregation == "sum" else [s.body]
    found = sum(points(index_variables(e)) for f in factors for e in _calls(f))
    if len(factors) < 3:
        return found + (len(factors) - 1 + (s.aggregation != "assign")) * points(extents)
    left = [frozenset(index_variables(f)) & extents.keys() for f in factors]
    kept = frozenset(index_variables(*s.index or ())) & {v for f in left for v in f}
    for pair in opt_einsum.paths.auto(left, kept, dict(extents)):
        chosen = [left[k] for k in pair]
        variables: frozenset[str] = frozenset().union(*chosen)
        left = [f for k, f in enumerate(left) if k not in pair]
        left.append(variables.intersection(kept.union(*left)))
        found += 2 * points(variables)
    return found


def kernel_costs(
    program: Program,
    types: Mapping[str, TensorType],
    flat: Program | None = None,
    kernels: Sequence[Sequence[str]] = (),
) -> list[KernelCost]:
    """The same kernel by kernel; statements that nothing says share one count as a kernel each."""
    shapes = shapes_in(types)
    own = {s.output for s in program.statements}
    found = []
    units = _units(program, flat or program, kernels)
    for unit in units:
        touched = _touched(program, unit, units)
        floats = [types[n].dtype for n in touched if types[n].dtype in FLOATS]
        narrowest = min(floats, key=lambda d: (ITEM_BYTES[d], d), default="float32")
        moved = sum(size_in_bytes(types[n]) for n in touched)
        outputs = tuple(s.output for s in unit if s.output in own)
        found.append(KernelCost(outputs, _unit_operations(program, unit, shapes), moved, narrowest))
    return found


def _units(program: Program, flat: Program, kernels: Sequence[Sequence[str]]) -> list[list[Statement]]:
    """Statements by kernel, with those of `flat` that are computed inside of a kernel."""
    units: dict[object, list[Statement]] = {}
    shared = {output: number for number, outputs in reversed(list(enumerate(kernels))) for output in outputs}
    for s in program.statements:
        mark = next((a for a in s.attributes if a.name == "kernel"), shared.get(s.output, s.output))
        units.setdefault(mark, []).append(s)
    own = {s.output for s in program.statements}
    inner = {s.output: s for s in flat.statements if s.output not in own}
    return [[*_inside(unit, inner), *unit] for unit in units.values()]


def _inside(unit: Sequence[Statement], inner: Mapping[str, Statement]) -> list[Statement]:
    """The statements of `inner` that these read, and those that they read."""
    found: dict[str, Statement] = {}
    waiting = list(unit)
    while waiting:
        for name in reads(waiting.pop()):
            if name in inner and name not in found:
                found[name] = inner[name]
                waiting.append(inner[name])
    return list(found.values())


def _unit_operations(program: Program, unit: Sequence[Statement], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Operations of a kernel. What is computed inside of it is computed where a statement that reads it needs it."""
    own = {s.output for s in program.statements}
    readers = {s.output: [r for r in unit if s.output in reads(r) and r is not s] for s in unit}

    def needed(s: Statement) -> float:
        if s.output in own:
            return 1.0
        return max((needed(r) * share(r) for r in readers[s.output]), default=1.0)

    def share(s: Statement) -> float:
        return _share(_conditions(s), bounds(s, dict(shapes)) or {})

    return sum(round(needed(s) * round(share(s) * operations(s, shapes))) for s in unit)


def _touched(program: Program, unit: Sequence[Statement], units: Sequence[Sequence[Statement]]) -> set[str]:
    """The tensors that a kernel reads or writes in memory."""
    made = {s.output for s in program.statements} & {s.output for s in unit}
    outside = {r for other in units if other is not unit for s in other for r in reads(s)} | set(program.outputs)
    return {r for s in unit for r in reads(s)} - {s.output for s in unit} | made & outside


def size_in_bytes(t: TensorType) -> int:
    return prod(t.shape) * ITEM_BYTES[t.dtype]


def operations(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Scalar operations of one statement over the box of its valid points, whose sizes may be open."""
    box = bounds(s, dict(shapes))
    return 0 if box is None else _operations(s) * prod(high - low + 1 for low, high in box.values())


def _conditions(s: Statement) -> Expr | None:
    """What is asked of points in the box: the guard, and the constraints that tie variables to each other."""
    tied = (c for c in s.constraints if len(index_variables(c.expr)) > 1)
    inside = [ask for c in tied for ask in (call("ge", c.expr, Int(0)), call("lt", c.expr, c.bound))]
    return all_of(inside if s.guard is None else [s.guard, *inside])


def _share(guard: Expr | None, box: Box) -> float:
    """The share of the box at which the conditions on indices hold: of all of its points where these are few, else on a
    grid of up to GRID places a variable; at least one of them."""
    if guard is None:
        return 1.0
    if (
        isinstance(guard, Call)
        and guard.function == "and"
        and not {*index_variables(guard.args[0])} & {*index_variables(guard.args[1])}
    ):
        return prod(_share(part, box) for part in guard.args)
    names = [v for v in index_variables(guard) if v in box]
    if not 0 < len(names) <= MOST_VARIABLES:
        both = guard.args if isinstance(guard, Call) and guard.function == "and" else ()
        return min((_share(part, box) for part in both), default=1.0)
    lengths = {v: 1 + box[v][1] - box[v][0] for v in names}
    few = prod(lengths.values()) <= GRID**MOST_VARIABLES
    axes = [np.unique(np.linspace(*box[v], lengths[v] if few else GRID).round()) for v in names]
    grid = dict(zip(names, np.meshgrid(*axes, indexing="ij"), strict=True))
    return _holds(guard, grid)


def _holds(guard: Expr, grid: Mapping[str, np.ndarray]) -> float:
    """Conditions on data are taken to hold."""

    def value(e: Expr) -> np.ndarray:
        found = index_values(e, grid)
        if found is None and isinstance(e, Call) and e.function == "and":
            return np.logical_and(*map(value, e.args))
        return np.asarray(True if found is None else found, bool)

    holds = np.broadcast_to(value(guard), next(iter(grid.values())).shape)
    return max(int(holds.sum()), 1) / holds.size


def _operations(s: Statement) -> int:
    """Operations of one point: those of the body and the guard; index arithmetic is free."""
    return len(_calls(*s.roots)) + (s.aggregation != "assign")


def _calls(*values: Expr) -> list[Expr]:
    inside_indices = {id(x) for e in walk(*values) if isinstance(e, Access) for i in e.index for x in walk(i)}
    return [e for e in walk(*values) if isinstance(e, (Call, Pad)) and id(e) not in inside_indices]
