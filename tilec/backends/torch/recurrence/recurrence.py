"""Rule: a statement that reads its own output, step by step in the order of its schedule.

All elements of one time are computed together, a few torch calls a step, into a buffer that holds every state. Where
the schedule is not along an axis (an edit distance), the steps are the lines along which it is constant, and what of a
line lies outside the tensor is masked. See `skew` for the coordinates and `steps` for the code of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from tilec.backends.common.affine import affine_steps
from tilec.backends.common.code import indented, permuted, tuple_text
from tilec.backends.common.domain import Domain
from tilec.backends.common.skew import Skew, level_domain, plan_read, skewed
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.circular_shift import CircularShift, untwisted
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.recurrence.aggregates import nested
from tilec.backends.torch.recurrence.numpy_steps import HostStep
from tilec.backends.torch.recurrence.steps import Level, Loose, reads_own
from tilec.errors import Unsupported
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.constraining import constraining, product_of_demands
from tilec.ir.functions import ONE, ZERO, call
from tilec.ir.index import Affine
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Inside,
    Pad,
    Statement,
    children,
    index_variables,
    map_values,
    reads_itself,
    rebuild,
)
from tilec.ir.rational import as_int
from tilec.transforms.recurrence import initial

FEWEST_CHUNKED_STEPS = 512  # of which many are computed at once
MOST_CHUNKED_LANES = (
    64  # with more, a step has enough to do, and the chunks' passes over memory cost more than they save
)


def recurrence(task: Task) -> list[str] | None:
    """Lines that compute the output. Applies to statements that read it."""
    if not reads_itself(task.flat):
        return None
    task = replace(task, flat=assigned(task.flat))
    skew = skewed(task.flat, task.types)
    domain = None if 0 in task.type.shape else level_domain(skew, skew.statement, task.types, None)
    if domain is None:
        return [f"{task.out} = {task.allocation(filled=True)}"]
    loop = _Loop(task, skew, domain, Loose(True))
    if skew.wraps and (turned := _turned(task)) is not None:
        return ["if device.type == 'cpu':", *indented(turned), "else:", *indented(loop.lines(host=False))]
    lines = loop.lines()
    if not loop.loose.used:
        return lines
    exact = _Loop(task, skewed(task.flat, task.types), domain, Loose(False)).lines()
    return [*lines, f"if not rt.finite({task.out}):", *indented(exact)]


def _turned(task: Task) -> list[str] | None:
    """Lines for the CPU where lanes turn round; None where a step does not suit NumPy."""
    found = untwisted(task.flat, task.types)
    if found is None:
        return None
    plain, circular_shifts = found
    task = replace(task, flat=plain)
    skew = skewed(plain, task.types)
    domain = level_domain(skew, skew.statement, task.types, None)
    if domain is None or not skew.plain or skew.wraps:
        return None
    if any((domain.low[t.variable], domain.extent[t.variable]) != (0, t.size) for t in circular_shifts.values()):
        return None  # a row is turned as a whole, and steps that write a part of it read as much
    if any(t.variable == skew.names[0] for t in circular_shifts.values()):
        return None  # no row but time, in a read that is never inside
    loop = _Loop(task, skew, domain, Loose(False), circular_shifts)
    host = loop.host()
    return None if host is None else loop.around(host)


def assigned(s: Statement) -> Statement:
    """The statement as an assignment, its own aggregation nested, and mean spelled out by sums."""
    if s.aggregation != "assign":
        if s.default is not None:
            raise Unsupported(
                f"the recurrence {s.output} has a default beside an aggregation of its own",
                s.span,
                hint="assign the aggregation to an element of its own: `H[t : T] = sum(...) + ...`",
            )
        left = index_variables(*(s.index or ()))
        inside = (s.body, *s.guards, *(c.expr for c in s.constraints))
        bound = tuple(v for v in index_variables(*inside) if v not in left)
        body: Expr = Aggregate(s.aggregation, s.body, bound, s.guard, s.constraints, span=s.span)
        s = replace(s, aggregation="assign", body=body, guard=None, constraints=())
    return map_values(s, lambda e: _spelled(e, s.output))


def _only_outside(aggregation: str) -> bool:
    """Is it written with others, by statements that a recurrence cannot hold?"""
    return AGGREGATIONS[aggregation].torch is None and aggregation != "mean"


def _spelled(e: Expr, own: str) -> Expr:
    if isinstance(e, Aggregate) and _only_outside(e.aggregation) and reads_own(e, own):
        raise Unsupported(
            f"{e.aggregation} of what a recurrence computes cannot stand in the recurrence itself",
            e.span,
            hint="take it in a statement of its own, from the finished tensor",
        )
    if isinstance(e, Aggregate) and e.aggregation == "mean" and reads_own(e, own):
        body = _spelled(e.body, own)
        points = product_of_demands(dict.fromkeys(constraining(body, own=own, gathers=False)))
        count = replace(e, aggregation="sum", body=points)  # 1 at every point that the body's accesses allow
        return replace(e, aggregation="sum", body=body) / call("max", count, ONE)
    return rebuild(e, lambda x: _spelled(x, own))


class _Loop:
    """A recurrence's buffer, its loop, and the part of the buffer that is the output."""

    def __init__(
        self,
        task: Task,
        skew: Skew,
        domain: Domain,
        loose: Loose,
        circular_shifts: Mapping[Access, CircularShift] = MappingProxyType({}),
    ):
        """`circular_shifts`: self-reads whose rows are to be turned, which only the host's loop does."""
        self.circular_shifts = circular_shifts
        self.task, self.skew, self.domain, self.loose = task, skew, domain, loose
        self.s = skew.statement
        self._plan(self.s.body, domain)
        if self.s.guard is not None:
            self._plan(self.s.guard, domain)
        self.state, self.rows = task.names.fresh("state"), task.names.fresh("rows")
        self.level = Level(task, skew, self.state, domain, skew.names, domain.low[skew.names[0]], loose, nested)
        self.tests = self.level.tests()
        if self.s.guard is not None:
            self.tests.append(self.level.prepared(self.s.guard))

    def _plan(self, e: Expr, domain: Domain) -> None:
        """Plan all reads before the buffer's margins are used."""
        if isinstance(e, Access) and e.tensor == self.task.flat.output:
            plan_read(self.skew, e, domain)
        if isinstance(e, Aggregate):
            box = {v: (domain.low[v], domain.low[v] + n - 1) for v, n in domain.extent.items()}
            inner = level_domain(self.skew, e, self.task.types, box)
            if inner is None:
                return
            domain = inner
        for child in children(e):
            self._plan(child, domain)

    @property
    def covered(self) -> bool:
        """Are all elements of the tensor, and of the box of the new coordinates, computed?"""
        ends = zip(self.skew.names, self.skew.low, self.skew.high, strict=True)
        whole = all((self.domain.low[v], self.domain.extent[v]) == (low, high - low + 1) for v, low, high in ends)
        return whole and not self.tests

    def lines(self, host: bool = True) -> list[str]:
        """The loop in torch calls, and for the CPU in NumPy where that suits and `host` says so."""
        body = self.level.prepared(self.s.body)
        numpy = self._host(body) if host else None
        loop = self._torch(body)
        if numpy is not None:
            loop = ["if device.type == 'cpu':", *indented(numpy), "else:", *indented(loop)]
        if not self.task.options.exact:
            loop = self._parallel(loop)
        return self.around(loop)

    def host(self) -> list[str] | None:
        """The loop in NumPy alone."""
        return self._host(self.level.prepared(self.s.body))

    def around(self, loop: list[str]) -> list[str]:
        """The loop with what comes before and after it."""
        task, level = self.task, self.level
        return [
            *self._allocation(),
            *level.before,
            *level.frame.prologue,
            *level.frame.lines,
            *loop,
            f"{task.out} = {self._output()}",
        ]

    def _parallel(self, loop: list[str]) -> list[str]:
        """The loop behind an attempt to compute many times at once, where the step is affine and lanes are few. Chunks
        of about the square root of the number of steps run side by side, each composing its own; their ends give the
        states between them, to which the compositions are applied. Results are rounded differently than step by step.
        """
        task, skew, level = self.task, self.skew, self.level
        lanes = [self.domain.extent[v] for v in skew.names[1:]]
        few = self.domain.extent[level.time] >= FEWEST_CHUNKED_STEPS and math.prod(lanes) <= MOST_CHUNKED_LANES
        alone = not self.tests and not level.step.lines and not skew.wraps and len(skew.reads) == 1
        if not few or not alone or task.type.dtype not in ("float32", "float64"):
            return loop
        ((access, read),) = skew.reads.items()
        own = [Affine.variable(v) for v in skew.names[1:]]
        if read.back != (-1 if skew.falling else 1) or list(read.forms[1:]) != own:
            return loop
        for semiring, scale, offset in affine_steps(self.s.body, access, task.type.dtype):
            texts = []
            for e in (scale, offset):
                evaluator = TorchScalars(level.frame, e)
                texts.append(evaluator.tensor(evaluator.value(e), task.type.dtype))
            first = level.start - skew.first[0]
            row = first + self.domain.extent[level.time] if skew.falling else first - 1
            parts = [self._target(), f"{self.state}[{row}]", *texts, str(skew.falling), repr(semiring.name)]
            return [f"if not rt.affine_scan({', '.join(parts)}):", *indented(loop)]
        return loop

    def _lists(self) -> Iterator[tuple[str, str]]:
        """Names of lists of a step's rows, and what they are rows of: states themselves, of others copies if better."""
        states = {self.level.locals[t].name for t in self.level.read}
        return ((name, text if name in states else f"rt.in_rows({text})") for name, text in self.level.lists)

    def _torch(self, body: Expr) -> list[str]:
        """The loop in torch calls."""
        level, lists = self.level, [*self._lists(), (self.rows, self._target())]
        written = self._write(TorchScalars(level.step, body, *self.tests), body)
        step = [*level.step.lines, *written]
        for pair in self._margins(self._slice()):
            target, source = (self.task.names.fresh("edge") for _ in pair)
            lists += zip((target, source), pair, strict=True)
            step.append(f"{target}[k].copy_({source}[k])")
        count = self.domain.extent[level.time]
        steps = f"range({count - 1}, -1, -1)" if self.skew.falling else f"range({count})"
        return [*(f"{name} = ({text}).unbind(0)" for name, text in lists), f"for k in {steps}:", *indented(step)]

    def _host(self, body: Expr) -> list[str] | None:
        """The loop in NumPy, for the CPU, beside the one in torch calls; None where it does not suit."""
        level, names = self.level, self.task.names
        lanes = [self.domain.extent[v] for v in self.skew.names[1:]]
        host = HostStep(body, level.types, self.task.type.dtype, lanes, names)
        if level.step.lines or not host.suits(body) or not all(map(host.test, self.tests)):
            return None
        row = names.fresh("row")
        host.write(body, row, self.tests)
        texts = dict(self._lists())
        lists = [(row, self._target())]
        for tensor, x in host.rows.items():
            name, moves = level.locals[tensor].name, level.locals[tensor].at
            turn = self.circular_shifts.get(level.read[tensor]) if tensor in level.read else None
            if turn is not None:
                lists += self._turning(host, x, texts[name], turn)
            elif moves:
                lists.append((x, texts[name]))
            else:
                host.before.append(f"{x} = rt.array_in({name})")
        for pair in self._margins(self._slice()):
            target, source = (names.fresh("edge") for _ in pair)
            lists += zip((target, source), pair, strict=True)
            host.lines.append(f"{target}[...] = {source}")
        parts = [f"rt.rows({text}, {self.skew.falling})" for _, text in lists]
        heads = ", ".join(name for name, _ in lists) + ("," if len(lists) == 1 else "")
        loop = [
            *host.before,
            "with np.errstate(all='ignore'):",
            f"    for {heads} in zip({', '.join(parts)}):",
            *indented(host.lines, 2),
        ]
        return loop

    def _turning(self, host: HostStep, x: str, rows: str, turn: CircularShift) -> list[tuple[str, str]]:
        """Lines that turn each of the rows into the scratch array x, and the lists of their two parts."""
        lane, ahead, rest = self.skew.names.index(turn.variable), turn.shift, turn.size - turn.shift
        host.before.append(f"{x} = np.empty({tuple_text(host.lanes)}, {host.dtype!r})")
        parts = []
        for start, count, source in ((0, rest, ahead), (rest, ahead, 0)):
            place, part = host.names.fresh("place"), host.names.fresh("part")
            host.before.append(f"{place} = {x}[{':, ' * (lane - 1)}{start}:{start + count}]")
            host.lines.insert(0, f"{place}[...] = {part}")
            parts.append((part, f"({rows}).narrow({lane}, {source}, {count})"))
        return parts

    def _slice(self) -> str:
        """Text of the buffer's rows that steps write."""
        first = self.level.start - self.skew.first[0]
        return f"[{first}:{first + self.domain.extent[self.level.time]}]"

    # the buffer

    def _allocation(self) -> list[str]:
        task, skew, s = self.task, self.skew, self.task.flat
        dtype = task.type.dtype
        shape = tuple_text(skew.shape)
        if s.init is None and s.default is None:
            return [f"{self.state} = torch.zeros({shape}, dtype=torch.{dtype}, device=device)"]
        lines = [f"{self.state} = torch.empty({shape}, dtype=torch.{dtype}, device=device)"]
        coordinates = tuple(form.to_expr() for form in skew.old.values())
        own = Access(s.output, coordinates)
        value = initial(s, own)
        lanes = [k for k in range(1, len(skew.names)) if (skew.before[k] or skew.after[k]) and k not in skew.wraps]
        last = [high + a for high, a in zip(skew.high, skew.after, strict=True)]
        if self.covered and not lanes:
            lows, highs = list(skew.low), list(skew.high)
            slabs = [(skew.first[0], skew.low[0] - 1), (skew.high[0] + 1, last[0])]
            boxes = [([a, *lows[1:]], [b, *highs[1:]]) for a, b in slabs if a <= b]
        else:
            boxes = [(list(skew.first), last)]
            if s.default is not None:
                value = Pad(Access(s.default, coordinates), value)
            elif not self.covered:
                value = Call("select", (Pad(Inside(own), ZERO), ZERO, value))
        for low, high in boxes:
            lines += self._filled(value, low, high)
        return [*lines, *(f"{target}.copy_({source})" for target, source in self._margins(""))]

    def _filled(self, value: Expr, low: list[int], high: list[int]) -> list[str]:
        task, names = self.task, self.skew.names
        extent = {v: b - a + 1 for v, a, b in zip(names, low, high, strict=True)}
        domain = Domain(self.s, dict(zip(names, low, strict=True)), extent, (), None)
        frame = TensorFrame(domain, names, task.types, task.local, task.names)
        evaluator = TorchScalars(frame, value)
        found = evaluator.value(value)
        code = evaluator.tensor(found, found.type.dtype)
        place = ", ".join(
            f"{a - first}:{b - first + 1}" for a, b, first in zip(low, high, self.skew.first, strict=True)
        )
        return [*frame.prologue, *frame.lines, f"{self.state}[{place}] = {code}"]

    def _margins(self, rows: str) -> list[tuple[str, str]]:
        """The parts of the buffer's rows that repeat an end of a lane, and those ends."""
        found = []
        for k, (before, after) in self.skew.wraps.items():
            n = self.skew.high[k] - self.skew.low[k] + 1
            for target, source, count in ((0, n, before), (before + n, before, after)):
                if count:
                    part = f"{self.state}{rows}.narrow({k}, {{0}}, {count})"
                    found.append((part.format(target), part.format(source)))
        return found

    def _target(self) -> str:
        """The elements that the steps write, row by row."""
        parts = []
        for v, first in zip(self.skew.names, self.skew.first, strict=True):
            low = self.domain.low[v] - first
            parts.append(f"{low}:{low + self.domain.extent[v]}")
        return f"{self.state}[{', '.join(parts)}]"

    def _output(self) -> str:
        skew = self.skew
        shape = self.task.type.shape
        if not skew.plain:
            start = [-first for first in skew.first]
            moves = [tuple_text([as_int(row.coefficient(v)) for row in skew.rows]) for v in skew.old]
            return f"rt.window({self.state}, {', '.join(map(tuple_text, (shape, start, moves)))}).contiguous()"
        ends = zip(skew.before, skew.low, skew.high, strict=True)
        text = f"{self.state}[{', '.join(f'{b}:{b + high - low + 1}' for b, low, high in ends)}]"
        places = [skew.names.index(e.name) for e in self.task.flat.index or () if isinstance(e, Index)]
        return permuted(text, places)

    def _write(self, evaluator: TorchScalars, body: Expr) -> list[str]:
        value = evaluator.value(body)
        dtype = self.task.type.dtype
        conditions = [evaluator.value(test) for test in self.tests]
        lanes = {v for v in self.skew.names[1:] if self.domain.extent[v] > 1}
        target = f"{self.rows}[k]"
        if self.tests:
            test = " & ".join(evaluator.condition(c) for c in conditions)
            return [f"torch.where({test}, {evaluator.tensor(value, dtype)}, {target}, out={target})"]
        whole = value.compute_dtype == dtype and lanes <= value.variables
        if isinstance(body, Call) and body.function == "relu" and whole:
            inner = evaluator.value(body.args[0])
            if inner.call is not None and inner.compute_dtype == dtype and lanes <= inner.variables:
                return [inner.call.format(target), f"{target}.relu_()"]
        if value.call is not None and whole:
            return [value.call.format(target)]
        return [f"{target}.copy_({evaluator.tensor(value, dtype)})"]
