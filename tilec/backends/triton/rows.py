"""Family rows: the statements of a group in one kernel, what only they read staying on the chip.

Three forms. `whole`: a program sees all columns of its rows at once, so that each outside element is read once; where
outputs add up over rows it walks a part of the rows and keeps the sums. `looped`: rows too long for that are walked
block by block, once for each level of statistics. `tiled`: nothing is aggregated over columns, and programs share rows
and columns alike. Sums over rows are two-stage: partial sums a program, combined in order by a second launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.code import tuple_text
from tilec.backends.triton.accumulate import Accumulator
from tilec.backends.triton.coalesce import Viewed, candidates, merge
from tilec.backends.triton.device_text import module_text
from tilec.backends.triton.grouping import ON_CHIP, variables_of
from tilec.backends.triton.groups import Group, conditions
from tilec.backends.triton.kernel import Axis, Frame, Kernel, Scope, triton_type
from tilec.backends.triton.plan import Launch, python_name
from tilec.backends.triton.scalar import Evaluator, Value, held_as
from tilec.backends.triton.sizes import power_of_two
from tilec.backends.triton.space import Space
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement, index_variables, walk
from tilec.ir.types import TensorType

MULTIPROCESSORS = 132  # of an H200


@dataclass(frozen=True)
class Tiling:
    """`form`: whole, looped or tiled. `rows`, `columns`: of a block. `parts`: programs that share the rows where
    outputs add up over them, else 0. `stages`: of the walk over rows."""

    form: str
    rows: int
    columns: int
    parts: int
    warps: int
    stages: int = 1


def choose_tiling(group: Group, strides: Mapping[str, tuple[int, ...]]) -> Tiling:
    """A first guess that is good untuned, fitted to what was measured on an H200: about 32 elements a thread, fewer
    where a program reads several tensors at each point; partial sums of two programs a multiprocessor, loads of the
    next rows under way, or of one where rows are long."""
    rows, columns = group.count(group.rows), group.count(group.columns)
    needed = power_of_two(columns)
    statistics = any(group.reductions(s) and s.output not in group.sums for s in group.statements)
    together = _rows_together(group, strides)
    if not statistics:
        block = min(needed, 2048)
        down = min(power_of_two(rows), max(together, 2048 // block, 1))
        across = -(-columns // block)
        parts = min(-(-rows // down), max(1, 4 * MULTIPROCESSORS // across)) if group.sums else 0
        return Tiling("tiled", down, block, parts, 4)
    heavy = len(_full_reads(group)) > 1 and not group.sums
    again = levels(group).depth > 1 or needed <= 1024
    if group.sums or (again and max(1, together) * needed <= ON_CHIP):
        elements = 1024 if heavy else 4096
        down = max(1, min(power_of_two(rows), max(together, elements // needed), ON_CHIP // needed))
        warps = max(4, min(16, down * needed // 1024))
        programs = MULTIPROCESSORS * (2 if down * needed <= 4096 else 1)
        parts = min(-(-rows // down), programs) if group.sums else 0
        return Tiling("whole", down, needed, parts, warps, 2 if parts else 1)
    down = min(power_of_two(rows), together)
    block = min(needed, max(1, (8192 if again else 1024) // down))
    return Tiling("looped", down, block, 0, 16 if down * block > 4096 else 4)


def _full_reads(group: Group) -> set[str]:
    """Tensors from outside that are read at each point."""
    many = {v for v, n in group.extent.items() if n > 1}
    members = {s.output for s in group.statements}
    return {
        a.tensor
        for s in group.statements
        for a in accesses(s)
        if a.tensor not in members and many <= set(index_variables(*a.index))
    }


NEIGHBOURS = 64  # rows of a block where memory runs along the rows


def _rows_together(group: Group, strides: Mapping[str, tuple[int, ...]]) -> int:
    """How many rows a block needs for memory to be read in runs: one where it runs along the columns."""
    best, answer = -1, 1
    for s in group.statements:
        for a in accesses(s):
            if a.tensor not in strides:
                continue
            moves = [
                (abs(step), v)
                for e, step in zip(a.index, strides[a.tensor], strict=True)
                if (v := linear(e).bare) is not None and group.extent[v] > 1 and step
            ]
            size = math.prod(group.extent[v] for _, v in moves)
            if moves and size > best:
                best, answer = size, NEIGHBOURS if min(moves)[1] in group.rows else 1
    return answer


@dataclass(frozen=True)
class Levels:
    """`of`: the walk over the columns in which each member's operands are known, 0 the first. `depth`: walks needed."""

    of: Mapping[str, int]
    depth: int


def levels(group: Group) -> Levels:
    found: dict[str, int] = {}  # when a value is known
    starts: dict[str, int] = {}
    for s in group.statements:
        start = max((found[a.tensor] for a in accesses(s) if a.tensor in found), default=0)
        starts[s.output] = start
        statistic = bool(group.reductions(s)) and s.output not in group.sums
        found[s.output] = start + statistic
    full = [s.output for s in group.statements if set(variables_of(s)) & set(group.columns)]
    return Levels(starts, 1 + max((starts[name] for name in full), default=0))


def accesses(s: Statement) -> list[Access]:
    roots = (s.body,) if s.guard is None else (s.guard, s.body)
    return [e for root in roots for e in walk(root) if isinstance(e, Access)]


@dataclass(frozen=True)
class Rows:
    """What a group becomes: the launch, the partial sums that it makes and the group that combines them, if any."""

    launch: Launch
    partial: Mapping[str, TensorType]
    second: Group | None


def row_launch(
    group: Group,
    types: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
    wide: bool,
    tiling: Tiling | None = None,
) -> Rows:
    """The launch that carries out a group, whose statements head the kernel."""
    merged, merged_types, merged_strides = _coalesced(group, types, strides)
    tiling = tiling or choose_tiling(merged, merged_strides)
    writer = _Writer(merged, merged_types, merged_strides, wide, tiling)
    partial, second = _second_stage(group, types, tiling.parts)
    return Rows(writer.launch(group.statements), partial, second)


def _second_stage(
    group: Group, types: Mapping[str, TensorType], parts: int
) -> tuple[dict[str, TensorType], Group | None]:
    """Partial sums, one row a program, and the group that combines them: their columns are its rows."""
    partial: dict[str, TensorType] = {}
    statements: list[Statement] = []
    columns = tuple(v for v in group.columns if group.extent[v] > 1)
    part = _unlike("p", group.extent)
    for s in group.statements:
        if s.output in group.sums:
            name = f"{s.output}.parts"
            shape = (parts, *(group.extent[v] for v in columns))
            partial[name] = TensorType(shape, Accumulator.of(s.aggregation, types[s.output].dtype).dtype)
            body = Access(name, (Index(part), *map(Index, columns)))
            statements.append(replace(s, body=body, guard=None, constraints=()))
    if not statements:
        return partial, None
    extent = {part: parts, **{v: group.extent[v] for v in group.extent if v not in group.rows or group.extent[v] == 1}}
    rows = tuple(v for v in extent if v != part)
    return partial, Group((*statements, *group.after), rows, (part,), extent, group.stored, frozenset())


def _unlike(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _coalesced(
    group: Group, types: Mapping[str, TensorType], strides: Mapping[str, tuple[int, ...]]
) -> tuple[Group, Mapping[str, TensorType], Mapping[str, tuple[int, ...]]]:
    """The group with neighbouring variables that all its tensors walk as one merged."""
    parts: list[Expr] = []
    for s in group.statements:
        parts += [Access(s.output, s.index or ()), s.body, *(() if s.guard is None else (s.guard,))]
    constraints = tuple(c for s in group.statements for c in s.constraints)
    all_of_it = Statement("", (), (), Call("tuple", tuple(parts)), constraints=constraints)
    seen = Viewed(all_of_it, {**types, "": TensorType((), "float32")}, {**strides, "": ()})
    extent, rows, columns = dict(group.extent), list(group.rows), list(group.columns)
    alike = not any(map(group.reductions, group.statements))  # rows and columns are all the same to it
    pending = True
    while pending:
        pending = False
        for outer, inner in candidates(seen.statement):
            merged = merge(seen, outer, inner) if alike or (outer in rows) == (inner in rows) else None
            if merged is not None:
                seen, pending = merged, True
                extent[inner] *= extent.pop(outer)
                (rows if outer in rows else columns).remove(outer)
                break
    assert isinstance(seen.statement.body, Call)
    left = iter(seen.statement.body.args)
    statements = []
    for s in group.statements:
        target = next(left)
        assert isinstance(target, Access)
        body, guard = next(left), None if s.guard is None else next(left)
        sizes = tuple(map(Int, seen.types[s.output].shape))
        statements.append(replace(s, index=target.index, sizes=sizes, body=body, guard=guard))
    found = replace(group, statements=tuple(statements), rows=tuple(rows), columns=tuple(columns), extent=extent)
    return found, seen.types, seen.strides


@dataclass(frozen=True)
class _Reduction:
    """A statistic whose values stand in a block of that name."""

    statement: Statement
    accumulator: Accumulator
    block: str


class _Writer:
    """The kernel of a group."""

    def __init__(
        self,
        group: Group,
        types: Mapping[str, TensorType],
        strides: Mapping[str, tuple[int, ...]],
        wide: bool,
        tiling: Tiling,
    ):
        self.group, self.types, self.tiling = group, types, tiling
        zero = dict.fromkeys(group.extent, 0)
        last = group.statements[-1]
        outputs = (*group.rows, *group.columns)
        space = Space(last, outputs, (), (), ({},), (zero,), (group.extent,), (), (), True)
        self.k = Kernel(python_name(last.output) + "_rows", space, types, strides, wide, powers=True)
        self.values: dict[Expr, Value] = {}  # of members, at hand where the next line goes
        self.accumulators: dict[str, Accumulator] = {}
        self.count = 0

    def launch(self, flat: tuple[Statement, ...]) -> Launch:
        k, t, group = self.k, self.tiling, self.group
        {"whole": self._whole, "looped": self._looped, "tiled": self._tiled}[t.form]()
        k.constants = {"BM": t.rows, "BN": t.columns, **k.constants}
        tiles = t.parts or -(-group.count(group.rows) // t.rows)
        if t.form == "tiled":
            tiles *= -(-group.count(group.columns) // t.columns)
        outputs = tuple(s.output for s in group.statements)
        text = module_text(k.text(*flat))
        arguments, constants = tuple(k.parameters.items()), tuple(k.constants.items())
        return Launch(k.name, text, (tiles, 1, 1), arguments, constants, t.warps, t.stages, outputs)

    # forms

    def _whole(self) -> None:
        self.k.emit(f"down = {self._program()}")
        self._position("col", self.group.columns, "0")
        self._walk_rows(self._all_at_once)

    def _tiled(self) -> None:
        k = self.k
        k.emit(f"tile = {self._program()}")
        k.emit(f"across = tl.cdiv({k.count(self.group.columns)}, BN)")
        k.emit("down = tile // across")
        k.emit("over = tile % across")
        self._position("col", self.group.columns, "over * BN")
        self._walk_rows(self._all_at_once)

    def _walk_rows(self, body: Callable[[Frame], None]) -> None:
        """The rows of this program: one block, or one after the other where outputs add up over them."""
        k, group = self.k, self.group
        if not group.sums:
            self._position("row", group.rows, "down * BM")
            body(self._frame())
            return
        blocks = math.ceil(group.count(group.rows) / self.tiling.rows)
        share = math.ceil(blocks / self.tiling.parts) * self.tiling.rows
        part = k.number("part", "part_size", share)
        k.emit(f"start = down * {part}")
        k.emit(f"end = tl.minimum(start + {part}, {k.count(group.rows)})")
        for s in group.statements:
            if s.output in group.sums:
                accumulator = self.accumulators[s.output] = self._accumulator(s)
                k.scopes[0].lines += accumulator.start("(BM, BN)")
        k.scopes.append(Scope())
        self._position("row", group.rows, "first", "end")
        body(self._frame(frozenset(("row", *group.rows))))
        lines = k.scopes.pop().lines
        stages = self.tiling.stages
        walk = f"tl.range(start, end, BM, num_stages={stages})" if stages > 1 else "range(start, end, BM)"
        k.scopes[0].lines += [f"for first in {walk}:", *(f"    {line}" for line in lines)]
        for s in group.statements:
            if s.output in group.sums:
                self._store_part(s)

    def _looped(self) -> None:
        """Rows stay, columns pass once for each level of statistics."""
        k, group = self.k, self.group
        k.emit(f"down = {self._program()}")
        self._position("row", group.rows, "down * BM")
        found = levels(group)
        for level in range(found.depth):
            self._pass(level, found)
        frame = self._frame()
        self._evaluate(frame, [s for s in group.statements if not self._walks(s) and not group.reductions(s)])
        for s in group.statements:
            if s.output in group.stored and not self._walks(s, written=True):
                self._store(frame, s)

    def _walks(self, s: Statement, written: bool = False) -> bool:
        """Whether a member's value, or with `written` what it writes, depends on the column."""
        names = index_variables(*(s.index or ())) if written else variables_of(s)
        return any(v in self.group.columns and self.group.extent[v] > 1 for v in names)

    def _pass(self, level: int, found: Levels) -> None:
        k, group = self.k, self.group
        k.scopes.append(Scope())
        self._position("col", group.columns, "first")
        frame = self._frame(frozenset(("col", *group.columns)))
        here = [s for s in group.statements if found.of[s.output] <= level]
        statistics = [s for s in here if group.reductions(s) and found.of[s.output] == level]
        stored = [
            s for s in here
            if s.output in group.stored and self._walks(s, written=True) and found.of[s.output] == level
        ]  # fmt: skip
        wanted = self._with_operands([*statistics, *stored])
        self._evaluate(frame, wanted, {s.output for s in statistics})
        for s in stored:
            self._store(frame, s)
        lines = k.scopes.pop().lines
        k.scopes[0].lines += [
            f"for first in range(0, {k.count(group.columns)}, BN):",
            *(f"    {line}" for line in lines),
        ]
        for s in statistics:
            accumulator = self.accumulators[s.output]
            k.scopes[0].lines += accumulator.reduce(1)
            self._give_statistic(frame, s, accumulator, accumulator.result())
        for s in wanted:
            if self._walks(s, written=True):
                del self.values[Access(s.output, s.index or ())]

    def _with_operands(self, statements: Sequence[Statement]) -> list[Statement]:
        """These, and the members whose values they need and that are not at hand, in order."""
        by_name = {s.output: s for s in self.group.statements}
        wanted: set[str] = set()
        pending = list(statements)
        while pending:
            s = pending.pop()
            wanted.add(s.output)
            pending += [
                by_name[a.tensor] for a in accesses(s)
                if a.tensor in by_name and a.tensor not in wanted and a not in self.values
            ]  # fmt: skip
        return [s for s in self.group.statements if s.output in wanted]

    def _all_at_once(self, frame: Frame) -> None:
        group = self.group
        self._evaluate(frame, group.statements)
        for s in group.statements:
            if s.output in group.stored and s.output not in group.sums:
                self._store(frame, s)

    # positions

    def _program(self) -> str:
        return "tl.program_id(0)" + (".to(tl.int64)" if self.k.wide else "")

    def _position(self, name: str, variables: tuple[str, ...], start: str, end: str | None = None) -> None:
        k, block = self.k, {"row": "BM", "col": "BN"}[name]
        k.emit(f"{name} = {start} + tl.arange(0, {block})")
        k.emit(f"{name}_in = {name} < {end or k.count([v for v in variables if self.group.extent[v] > 1])}")
        if name == "col" and self.tiling.columns >= 4:
            k.quarters[name] = f"{start} // 4 + tl.arange(0, BN // 4)"
        k.decode(Axis(name, variables, block))

    def _frame(self, *inner: frozenset[str]) -> Frame:
        return Frame(self.k, ["row", "col"], {"row": "row_in", "col": "col_in"}, *inner)

    # values

    def _evaluate(self, frame: Frame, statements: Sequence[Statement], running: Collection[str] = ()) -> None:
        """Values of statements in order; those in `running` are added to their accumulators."""
        roots = [r for s in statements for r in (s.body, s.guard) if r is not None]
        evaluator = Evaluator(frame, *roots, given=self.values)
        pending: list[_Reduction] = []
        for s in statements:
            target = Access(s.output, s.index or ())
            if target in self.values:
                continue
            if any(a.tensor == r.statement.output for a in accesses(s) for r in pending):
                self._reduce(frame, evaluator, pending)
            tests = frame.tests(conditions(s, self.group, self.types))
            if s.guard is not None:
                tests.append(evaluator.condition(evaluator.value(s.guard)))
            value = evaluator.value(s.body)
            if s.output in self.group.sums:
                self._add(s, evaluator, value, [*tests, frame.spread("row_in", "row")], self.accumulators[s.output])
            elif s.output in running:
                accumulator = self.accumulators[s.output] = self._accumulator(s)
                self.k.scopes[0].lines += accumulator.start("(BM, BN)")
                self._add(s, evaluator, value, [*tests, frame.spread("col_in", "col")], accumulator)
            elif self.group.reductions(s):
                accumulator = self._accumulator(s)
                code = self._spread(s, evaluator, value, [*tests, frame.spread("col_in", "col")], accumulator)
                pending.append(_Reduction(s, accumulator, code))
            else:
                self.values[target] = evaluator.give(target, self._plain(frame, s, evaluator, value, tests))
        self._reduce(frame, evaluator, pending)

    def _reduce(self, frame: Frame, evaluator: Evaluator, pending: list[_Reduction]) -> None:
        """Combine blocks of values along the columns; sums of one type go together, which takes one exchange."""
        while pending:
            r = pending.pop(0)
            alike = [
                o for o in pending if (o.accumulator.aggregation, o.accumulator.dtype) == ("sum", r.accumulator.dtype)
            ]
            if r.accumulator.aggregation == "sum" and alike:
                pair = [r, alike[0]]
                pending.remove(alike[0])
                names = [o.accumulator.state[0] for o in pair]
                blocks = ", ".join(o.block for o in pair)
                self.k.emit(f"{', '.join(names)} = tl.reduce(({blocks}), 1, add_two_)")
            else:
                pair = [r]
                for line in r.accumulator.at_once(r.block, 1):
                    self.k.emit(line)
            for o in pair:
                s, result = o.statement, o.accumulator.result()
                target = Access(s.output, s.index or ())
                evaluator.give(target, self._give_statistic(frame, s, o.accumulator, result))

    def _plain(self, frame: Frame, s: Statement, evaluator: Evaluator, value: Value, tests: Sequence[str]) -> Value:
        """The value of a statement that aggregates nothing, the identity where the point is not valid."""
        t = self.types[s.output]
        held = held_as(t.dtype)
        code = evaluator.condition(value) if held == "bool" else evaluator.tensor(value, held)
        mask = " & ".join(dict.fromkeys(tests))
        if mask:
            code = f"tl.where({mask}, {code}, {Accumulator(s.aggregation, held).identity_text})"
        variables = frozenset(variables_of(s))
        exact = value.exact and value.type.dtype == t.dtype
        return Value(frame.assign("at", code, variables), t.element(), held, variables, exact=exact)

    def _accumulator(self, s: Statement) -> Accumulator:
        suffix = ""
        while not suffix or any(self.k.names.fresh(n) != n for n in (f"acc{suffix}", f"top{suffix}", f"total{suffix}")):
            self.count += 1
            suffix = f"_{self.count}"
        return replace(Accumulator.of(s.aggregation, self.types[s.output].dtype), suffix=suffix)

    def _spread(
        self, s: Statement, evaluator: Evaluator, value: Value, tests: Sequence[str], accumulator: Accumulator
    ) -> str:
        """A name of the block of values, the identity where the point does not count."""
        truth = accumulator.aggregation in ("any", "all") or accumulator.dtype == "bool"
        code = evaluator.condition(value) if truth else evaluator.tensor(value, accumulator.dtype)
        mask = " & ".join(dict.fromkeys(tests))
        name = self.k.names.fresh("value")
        self.k.emit(f"{name} = tl.where({mask}, tl.broadcast_to({code}, (BM, BN)), {accumulator.identity_text})")
        return name

    def _add(
        self, s: Statement, evaluator: Evaluator, value: Value, tests: Sequence[str], accumulator: Accumulator
    ) -> None:
        for line in accumulator.step(self._spread(s, evaluator, value, tests, accumulator)):
            self.k.emit(line)

    def _give_statistic(self, frame: Frame, s: Statement, accumulator: Accumulator, result: str) -> Value:
        t = self.types[s.output]
        held = held_as(t.dtype)
        cast = "" if held == accumulator.dtype else f".to({triton_type(held)})"
        variables = frozenset(index_variables(*(s.index or ())))
        name = frame.assign("statistic", f"({result}){cast}[:, None]", variables)
        value = Value(name, t.element(), held, variables)
        self.values[Access(s.output, s.index or ())] = value
        return value

    # stores

    def _store(self, frame: Frame, s: Statement) -> None:
        k, group = self.k, self.group
        written = {v for v in index_variables(*(s.index or ())) if group.extent[v] > 1}
        axes = [a for a, names in (("row", group.rows), ("col", group.columns)) if written & set(names)]
        shape = tuple_text([{"row": "BM", "col": "BN"}[a] if a in axes else "1" for a in ("row", "col")])
        tests = [frame.spread(frame.tails[a], a) for a in axes]
        tests += ["(down == 0)"] if "row" not in axes else []
        tests += ["(over == 0)"] if "col" not in axes and self.tiling.form == "tiled" else []
        value = self.values[Access(s.output, s.index or ())]
        dtype = self.types[s.output].dtype
        cast = "" if value.held == dtype else f".to({triton_type(dtype)})"
        address = frame.address(s.output, [frame.form(e) for e in s.index or ()], frozenset(axes))
        address += "" if axes else f" + tl.full({shape}, 0, tl.int32)"
        mask = " & ".join(tests)
        k.emit(
            f"tl.store({address}, tl.broadcast_to({value.code}, {shape}){cast}, mask=tl.broadcast_to({mask}, {shape}))"
        )

    def _store_part(self, s: Statement) -> None:
        k = self.k
        accumulator = self.accumulators[s.output]
        k.scopes[0].lines += accumulator.reduce(0)
        parts, count = k.pointer(f"{s.output}.parts"), k.count(self.group.columns)
        k.emit(f"tl.store({parts} + down.to(tl.int64) * ({count}) + col, {accumulator.result()}, mask=col_in)")
