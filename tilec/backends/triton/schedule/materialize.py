"""Intermediates that several statements ask for, made once: rows' maxima, the order of scattered points.

Each product asks for its own (`Request`). A logsumexp and its gradients ask for the same greatest terms, and what they
ask for walks the same points: so equal ones are one tensor, and where a row's greatest term and the exponentials
relative to it fit on the chip, one kernel makes both and reads the operand once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name
from tilec.backends.triton.fusion.groups import Group
from tilec.backends.triton.fusion.loop_nest import Shared, form_of, reduced
from tilec.backends.triton.plan.plan import (
    Allocate,
    Launch,
    Once,
    Release,
    Repeat,
    Request,
    Step,
    TorchLines,
    made_by,
)
from tilec.backends.triton.plan.sizes import contiguous, power_of_two
from tilec.backends.triton.rows.rows import row_launch
from tilec.backends.triton.rows.tiling import rows_of_a_block
from tilec.backends.triton.rows.walks import RowTiling
from tilec.ir.index import linear
from tilec.ir.program import Statement, reads
from tilec.ir.types import TensorType
from tilec.language.show import show_statement
from tilec.transforms.simplify.simplify import rename_reads

AT_ONCE = 2**15  # elements that a program holds at once
FEWEST_NEIGHBOURS = 16  # rows of a block where memory runs along the rows; and the fewest, 32 bytes of them
FEWEST_ROWS = 8
TOLD = 400  # characters of a statement that heads a kernel
LONG_ROWS = 512  # columns beyond which a program has 16 warps

Renamed = dict[str, str]


@dataclass
class _Maker:
    """What one launch may make, of statements over the same points, the first of them a statistic of rows. `place`: the
    step that the launch comes after; `shared`: the statements over common variables, None where the first is no walk
    over a box."""

    first: Request
    place: int
    shared: Shared | None
    all: list[Request]

    @property
    def names(self) -> list[str]:
        return [p.statement.output for p in self.all]


def resolve_requests(steps: Sequence[Step]) -> list[Step]:
    """The steps with all that is prepared made, each once, as soon as what it is made of is there."""
    asked = [s for s in steps if isinstance(s, Request)]
    if not asked:
        return list(steps)
    written = {name: place for place, s in enumerate(steps) for name in _written(s)}
    makers: list[_Maker] = []
    names: Renamed = {}
    for step in asked:
        step = _with_names(step, names)
        s = step.statement
        place = max((written.get(name, -1) for name in reads(s)), default=-1)
        written[s.output] = place
        if not _joined(step, place, makers, names):
            form = form_of(s, step.types)
            makers.append(_Maker(step, place, None if form is None else Shared(form, step.types), [step]))
    result: list[Step] = []
    for place in range(-1, len(steps)):
        if place >= 0 and not isinstance(steps[place], Request):
            result.append(steps[place])
        for maker in makers:
            result += _made(maker) if maker.place == place else []
    own = {s.statement.output for s in asked}
    return _released([_renamed(s, names) for s in result], own)


def made_once(steps: Sequence[Step]) -> list[Step]:
    """The steps with what several would make made by the first and let go after the last that reads it."""
    first: dict[object, Once] = {}
    names: Renamed = {}
    result: list[Step] = []
    for step in steps:
        if not isinstance(step, Once):
            result.append(_renamed(step, names))
        elif (twin := first.setdefault(step.key, step)) is step:
            result += [_renamed(s, names) for s in step.steps]
        else:
            names |= dict(zip(step.makes, twin.makes, strict=True))
    return _released(result, {*names, *(name for once in first.values() for name in once.makes)})


def _written(step: Step) -> tuple[str, ...]:
    match step:
        case Launch() | Repeat():
            return step.statements
    return tuple(made_by(step))


def _with_names(step: Request, names: Renamed) -> Request:
    types = {**step.types, **{names[n]: step.types[n] for n in names if n in step.types}}
    strides = {**step.strides, **{names[n]: step.strides[n] for n in names if n in step.strides}}
    return replace(step, statement=rename_reads(step.statement, names), types=types, strides=strides)


def _joined(step: Request, place: int, makers: Sequence[_Maker], names: Renamed) -> bool:
    """Let a maker make it too, or what one makes already stand for it."""
    own = step.statement
    for maker in makers:
        first = maker.first
        alike = _equal(own, first.statement) and step.types[own.output] == first.types[first.statement.output]
        if alike and place <= maker.place and _same_views(step, maker):
            names[own.output] = first.statement.output
            return True
    form = form_of(own, step.types)
    if form is None:
        return False
    for maker in makers:
        if maker.shared is None or place > maker.place or not _same_views(step, maker):
            continue
        shared = maker.shared.copy()
        if not shared.admit(form):
            continue
        own = shared.statements[step.statement.output]
        twin = next((m for m in maker.shared.statements.values() if _equal(m, own)), None)
        if twin is not None:
            names[own.output] = twin.output
            return True
        if _fits(shared, own, maker.first):
            maker.shared = shared
            maker.all.append(step)
            return True
    return False


def _same_views(step: Request, maker: _Maker) -> bool:
    """Whether the tensors that the statement reads are the same to those that are there."""
    types, strides = _known(maker)
    for name in set(reads(step.statement)) - set(maker.names):
        if name in types and (step.types[name] != types[name] or tuple(step.strides[name]) != tuple(strides[name])):
            return False
    return step.int64_index == maker.first.int64_index


def _known(maker: _Maker) -> tuple[dict[str, TensorType], dict[str, tuple[int, ...]]]:
    """Types and strides of what its statements read: the first knows tensors that others may not, and the reverse."""
    types, strides = dict(maker.first.types), dict(maker.first.strides)
    for p in maker.all:
        for name in reads(p.statement):
            types.setdefault(name, p.types[name])
            strides.setdefault(name, p.strides[name])
    return types, strides


def _equal(a: Statement, b: Statement) -> bool:
    return (a.aggregation, a.index, a.sizes, a.body, a.guard, a.constraints) == (
        b.aggregation, b.index, b.sizes, b.body, b.guard, b.constraints,
    )  # fmt: skip


def _fits(shared: Shared, own: Statement, first: Request) -> bool:
    """Whether a program can hold the rows of the first statement's statistic, from which each element is computed; or
    whether both have an element at each point, which lie alike."""
    top = next(iter(shared.statements.values()))
    many = {v for v, n in shared.extent.items() if n > 1}
    if reduced(own, shared.extent) or not many <= {linear(e).bare for e in own.index or ()}:
        return False
    if not reduced(top, shared.extent):
        return own.index == top.index
    return top.output in reads(own) and _tiling(_group(shared), first.strides) is not None


def _group(shared: Shared) -> Group:
    """Columns are what the first statement aggregates over, or else what its output's memory runs along."""
    statements = tuple(shared.statements.values())
    columns = tuple(v for v in shared.extent if v in reduced(statements[0], shared.extent))
    if not columns:
        many = [v for e in statements[0].index or () if (v := linear(e).bare) and shared.extent[v] > 1]
        columns = tuple(many[-1:])
    rows = tuple(v for v in shared.extent if v not in columns)
    stored = frozenset(shared.statements)
    return Group(statements, rows, columns, shared.extent, stored, frozenset())


def _tiling(group: Group, strides: Mapping[str, tuple[int, ...]]) -> RowTiling | None:
    """For a statistic and what needs it again; None where that is too long, or there is no statistic."""
    if not any(map(group.reductions, group.statements)):
        return None
    columns = power_of_two(group.count(group.columns))
    rows = power_of_two(group.count(group.rows))
    turned = any(s.index and linear(s.index[-1]).bare in group.rows for s in group.statements[1:])
    if turned or rows_of_a_block(group, strides) > 1:
        down = min(rows, FEWEST_NEIGHBOURS, AT_ONCE // columns)
        if down < min(rows, FEWEST_ROWS):
            return None
    else:
        down = min(rows, max(1, 8 * LONG_ROWS // columns))
    return (
        RowTiling("whole", down, columns, 0, 8 if columns <= LONG_ROWS else 16) if down * columns <= AT_ONCE else None
    )


def _made(maker: _Maker) -> list[Step]:
    if len(maker.all) == 1:
        return [replace(s, horizontal=True) if isinstance(s, Launch) else s for s in maker.first.alone()]
    assert maker.shared is not None
    types, strides = _known(maker)
    steps: list[Step] = []
    for p in maker.all:
        name, t = p.statement.output, p.types[p.statement.output]
        types[name], strides[name] = t, contiguous(t.shape)
        steps.append(Allocate(name, t.shape, t.dtype))
    group = _group(maker.shared)
    told = tuple(s for s in group.statements if len(show_statement(s)) <= TOLD)
    launch = row_launch(group, types, strides, maker.first.int64_index, _tiling(group, strides), told=told).launch
    return [*steps, replace(launch, horizontal=True)]


def _renamed(step: Step, names: Renamed) -> Step:
    match step:
        case Launch():
            return step.given(names)
        case TorchLines() if names.keys() & {*step.reads}:
            given = tuple(f"{python_name(n)} = {python_name(names[n])}" for n in step.reads if n in names)
            reads = tuple(dict.fromkeys(names.get(n, n) for n in step.reads))
            return replace(step, lines=(*given, *step.lines), reads=reads)
    return step


def _released(steps: Sequence[Step], asked: set[str]) -> list[Step]:
    """With what was asked for let go after the last step that reads it."""
    last: dict[str, int] = {}
    for place, step in enumerate(steps):
        if isinstance(step, Launch | TorchLines):
            read = step.tensors if isinstance(step, Launch) else step.reads
            last.update(dict.fromkeys(sorted(set(read) & asked), place))
    result: list[Step] = []
    for place, step in enumerate(steps):
        if isinstance(step, Release):
            kept = tuple(name for name in step.tensors if name not in asked)
            result += [Release(kept)] if kept else []
            continue
        result.append(step)
        unused = tuple(name for name in last if last[name] == place)
        result += [Release(unused)] if unused else []
    return result
