"""The code of one step of a recurrence: its body over the lanes, and its nested aggregations over lanes and their own
variables.

What does not read the recurrence's own output (a feed) is computed before the loop for all times together, unless that
would take more room than a few times the states; a step takes its slice. What reads it is computed step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.reference.access import Frame, free
from tilec.backends.reference.code import indented, literal, tuple_text
from tilec.backends.reference.domain import Domain, row_major
from tilec.backends.reference.factors import LOG, SUM, split_factors, split_terms
from tilec.backends.reference.general import REDUCE, accumulation_dtype
from tilec.backends.reference.scalar import NARROW, Evaluator, identity_text
from tilec.backends.reference.skew import Skew, level_domain, plan_read
from tilec.backends.reference.task import Task
from tilec.ir.functions import ONE, ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    children,
    index_variables,
    rebuild,
    walk,
)
from tilec.ir.types import ElementType, TensorType, kind
from tilec.lattice.sets import Box
from tilec.transforms.recurrence import initial

FEEDS = 4  # a feed may hold this many times the states' elements
SMALL = 2**14  # or this many
WORTH = 4096  # products in one step's aggregation, from which a matrix product is faster than a broadcast one


@dataclass(frozen=True)
class Local:
    """A tensor of one step: Python text, and the variables it depends on."""

    text: str
    variables: frozenset[str]


@dataclass
class Loose:
    """Whether points that a guard drops may be zeros of one operand, and whether they are: then no state may be
    infinite or NaN."""

    allowed: bool
    used: bool = False


class StepFrame(Frame):
    """The frame of one step: pseudo-tensors that hold feeds, states and aggregates, over all but time."""

    def __init__(self, level: Level):
        super().__init__(level.domain, level.order[1:], level.types, {}, level.names)
        self.level = level

    def read(self, access: Access) -> tuple[str, frozenset[str]]:
        local = self.level.locals[access.tensor]
        return local.text, local.variables

    def iota(self, variable: str) -> str:
        raise AssertionError("index variables are part of feeds")

    def assign(self, stem: str, text: str) -> str:
        if stem != "number":
            return super().assign(stem, text)
        if text not in self._made:
            self._made[text] = name = self.names.fresh(stem)
            self.level.before.append(f"{name} = {text}")
        return self._made[text]


class Level:
    """An expression over time, lanes and the variables of the aggregations around it. `lines` is the code of a step,
    which runs at `start + step`; `before` what comes first."""

    def __init__(
        self, task: Task, skew: Skew, state: str, domain: Domain, order: Sequence[str], start: int, loose: Loose
    ):
        self.task, self.skew, self.state, self.domain, self.loose = task, skew, state, domain, loose
        self.order = tuple(order)
        self.start = start  # the time of step 0
        self.names = task.names
        self.types: dict[str, TensorType] = dict(task.types)
        self.locals: dict[str, Local] = {}
        self.before: list[str] = []
        self.lines: list[str] = []
        self.frame = Frame(domain, self.order, task.types, task.local, task.names)
        self.lists: list[tuple[str, str]] = []  # names of lists of a step's slices, and what they are slices of
        self.feeds: dict[Expr, Access] = {}
        self.step = StepFrame(self)

    @property
    def own(self) -> str:
        return self.task.flat.output

    @property
    def time(self) -> str:
        return self.skew.names[0]

    def box(self) -> Box:
        return {v: (self.domain.low[v], self.domain.low[v] + self.domain.extent[v] - 1) for v in self.order}

    def shift(self) -> str:
        """Python text of the position of this step in a list that begins at the level's own first time."""
        offset = self.start - self.domain.low[self.time]
        return "k" if not offset else f"k {'+' if offset > 0 else '-'} {abs(offset)}"

    # expressions

    def prepared(self, e: Expr) -> Expr:
        """The expression over pseudo-tensors: feeds for what does not read the own output, the rest as it is."""
        if not reads_own(e, self.own):
            return self.feed(e)
        match e:
            case Access():
                return self.state_read(e)
            case Pad():
                return self.padded(e)
            case Aggregate():
                return nested(self, e)
            case Call("mul", (a, Inside())) if kind(expression_type(a, self.task.types).dtype) == 2:
                return self.prepared(a)
        return rebuild(e, self.prepared)

    def padded(self, e: Pad) -> Expr:
        """What `pad` reads of the own output, or says of it."""
        access = e.access if isinstance(e.access, Access) else e.access.access
        if access.tensor != self.own:
            inside, read = self.inside(access), self.feed(replace(e, value=ZERO))
        elif isinstance(e.access, Inside):
            inside, read = self.inside(access), ONE
        else:
            sliding = plan_read(self.skew, access, self.domain).back is not None
            read = self.state_read(access, padded=True)
            if sliding and e.value == ZERO and self.task.flat.init is None:
                return read  # the margins hold zeros
            inside = self.inside(access)
        return read if inside is None else Call("select", (inside, read, self.prepared(e.value)), span=e.span)

    def feed(self, e: Expr) -> Expr:
        """A pseudo-tensor that holds the expression for all times, or one of such."""
        if not any(isinstance(x, (Access, Index, Inside, Pad)) for x in walk(e)):
            return e
        if isinstance(e, Aggregate):
            return nested(self, e)
        if any(isinstance(x, Aggregate) for x in walk(e)):
            return rebuild(e, self.feed)
        if e in self.feeds:
            return self.feeds[e]
        if not isinstance(e, (Access, Index, Pad, Inside)) and self._large(e):
            return rebuild(e, self.feed)
        evaluator = Evaluator(self.frame, e)
        value = evaluator.value(e)
        if value.number is not None:
            return e
        text = evaluator.tensor(value, value.type.dtype)
        made = self.pseudo("feed", value.type, self._steps(text, value.variables), value.variables)
        self.feeds[e] = made
        return made

    def _large(self, e: Expr) -> bool:
        variables = [v for v in index_variables(e) if v in self.domain.extent]
        count = math.prod(self.domain.extent[v] for v in variables)
        return self.time in variables and count > max(FEEDS * self.task.elements, SMALL)

    def _steps(self, text: str, variables: frozenset[str]) -> str:
        """Text of a step's slice of a tensor over the level's order."""
        name = self.names.fresh("f")
        if self.time in variables:
            self.lists.append((name, text))
            return f"{name}[{self.shift()}]"
        self.frame.lines.append(f"{name} = rt.still({text}, {len(self.order)})")
        return name

    def pseudo(self, stem: str, element: ElementType, text: str, variables: frozenset[str]) -> Access:
        """An access to a new pseudo-tensor."""
        name = f"{stem} {len(self.locals)}"
        shape = () if element.scalar else (1,)
        self.types[name] = TensorType(shape, element.dtype, element.weak)
        self.locals[name] = Local(text, variables - {self.time})
        return Access(name, (Int(0),) * len(shape))

    def condition(self, text: str, variables: frozenset[str]) -> Expr:
        """A feed that holds a bool tensor."""
        return self.pseudo("mask", ElementType("bool"), self._steps(text, variables), variables)

    def inside(self, access: Access) -> Expr | None:
        """Where an access lies inside its tensor; None where it does everywhere."""
        found = self.frame.inside(access)
        return None if found is None else self.condition(*found)

    def mask(self) -> Expr | None:
        """The points of the level among those of its box, as far as that does not depend on the states."""
        text = self.frame.mask()
        if text is None:
            return None
        return self.condition(text, frozenset(v for c in self.domain.conditions for v in free(c.form)))

    # states

    def state_read(self, access: Access, padded: bool = False) -> Expr:
        """A pseudo-tensor that holds states of earlier steps; `padded`: what lies outside does not matter."""
        read = plan_read(self.skew, access, self.domain)
        element = self.types[self.own].element()
        element = ElementType(element.dtype, element.weak)
        if read.back is None:
            return self._gathered(access, read.forms, element, padded)
        shape = self.skew.shape
        moved = [f - first for f, first in zip(read.forms, self.skew.first, strict=True)]
        variables = frozenset(v for f in read.forms for v in free(f) if self.domain.extent[v] > 1)
        flat = row_major(moved, shape)
        if all(flat.coefficient(v) >= 0 for v in self.order):
            types = {**self.task.types, self.own: TensorType(shape, element.dtype)}
            local = {**self.task.local, self.own: self.state}
            frame = Frame(self.domain, self.order, types, local, self.names)
            text, _ = frame.read(Access(self.own, tuple(f.to_expr() for f in moved)))
            self.frame.prologue += frame.prologue
            assert not frame.lines, "a view"
            # a single time has no dimension of its own to move along
            return self.pseudo("state", element, self._steps(text, variables | {self.time}), variables)
        low = self.domain.low
        lanes = self.order[1:]
        start = [int(f.constant + sum(f.coefficient(v) * low[v] for v in lanes)) for f in moved[1:]]
        sizes = [self.domain.extent[v] if v in variables else 1 for v in lanes]
        moves = [tuple_text([int(f.coefficient(v)) for f in moved[1:]]) for v in lanes]
        place = self.start - self.skew.first[0] - read.back
        row = f"{self.state}[k + {place}]"
        text = f"rt.window({row}, {tuple_text(sizes)}, {tuple_text(start)}, {tuple_text(moves)})"
        return self.pseudo("state", element, self.step.assign_new("h", text), variables)

    def _gathered(self, access: Access, forms: Sequence[Affine], element: ElementType, padded: bool) -> Expr:
        """States at computed positions; outside of the tensor what `init` says, if anybody asks."""
        variables: set[str] = set()
        parts = []
        for form, first, n in zip(forms, self.skew.first, self.skew.shape, strict=True):
            moved = form - first
            depends = frozenset(v for v in free(form) if self.domain.extent[v] > 1)
            text = self.frame.index(self.frame._folded(moved))
            if not depends:
                parts.append(f"rt.clamped({text}, {n})")
                continue
            variables |= depends
            parts.append(self._steps(f"({text}).clamp(0, {n - 1})", depends))
        text = f"{self.state}[{', '.join(parts)}]"
        read: Expr = self.pseudo("state", element, self.step.assign_new("h", text), frozenset(variables))
        if padded:
            return read
        inside = self.inside(access)
        if inside is None:
            return read
        return Call("select", (inside, read, self.feed(self.outside(access))))

    def outside(self, access: Access) -> Expr:
        """What the recurrence holds at an access outside of its tensor; 0 where that is at no integers."""
        s = self.task.flat
        if s.init is None:
            return Call("bool", (ZERO,))
        value = initial(s, access)
        for form in map(linear, access.index):
            n = form.denominator
            if n > 1:
                whole = Call("eq", (Call("mod", ((form * n).to_expr(), Int(n))), ZERO))
                value = Call("select", (whole, value, ZERO))
        return value


def reads_own(e: Expr, own: str) -> bool:
    """Does the value of an expression depend on the tensor? `in` of it does not."""
    if isinstance(e, Inside):
        return any(reads_own(i, own) for i in e.access.index)
    if isinstance(e, Pad) and isinstance(e.access, Inside):
        return reads_own(e.access, own) or reads_own(e.value, own)
    return isinstance(e, Access) and e.tensor == own or any(reads_own(x, own) for x in children(e))


def nested(outer: Level, e: Aggregate) -> Expr:
    """A nested aggregation as a pseudo-tensor of the level around it; its code comes before that level's."""
    domain = level_domain(outer.skew, e, outer.task.types, outer.box())
    element = aggregate_type(e.aggregation, expression_type(e.body, outer.task.types))
    identity = identity_text(e.aggregation, element.dtype)
    if domain is None:
        constant = f"torch.tensor({identity}, dtype=torch.{element.dtype}, device=device)"
        return outer.pseudo("nothing", element, outer.step.assign("number", constant), frozenset())
    bound = tuple(v for v in domain.low if v not in outer.order)
    level = Level(outer.task, outer.skew, outer.state, domain, (*outer.order, *bound), outer.start, outer.loose)
    code, variables = _product(level, e, bound, element) or _broadcast(level, e, bound, element)
    name = outer.names.fresh("part")
    lines = [*level.step.lines, f"{name} = {code}"]
    first = domain.low[outer.time] - outer.start
    last = first + domain.extent[outer.time] - 1
    if first > outer.domain.low[outer.time] - outer.start or last < first_to_last(outer):
        sizes = tuple_text([outer.domain.extent[v] if v in variables else 1 for v in outer.order[1:]])
        constant = f"torch.full({sizes}, {identity}, dtype=torch.{element.dtype}, device=device)"
        number = outer.step.assign("number", constant)
        lines = [f"if {first} <= k <= {last}:", *indented(lines), "else:", f"    {name} = {number}"]
    lists = (f"{name} = ({text}).unbind(0)" for name, text in level.lists)
    outer.before += [*level.frame.prologue, *level.frame.lines, *level.before, *lists]
    outer.step.lines += lines
    return outer.pseudo("aggregate", ElementType(element.dtype, element.weak), name, variables)


def first_to_last(level: Level) -> int:
    """The last step of a level."""
    return level.domain.low[level.time] - level.start + level.domain.extent[level.time] - 1


def _broadcast(level: Level, e: Aggregate, bound: Sequence[str], element: ElementType) -> tuple[str, frozenset[str]]:
    """The values of all points, reduced; those that do not count hold the identity."""
    body = level.prepared(e.body)
    tests = [] if (mask := level.mask()) is None else [mask]
    if e.guard is not None:
        tests.append(level.prepared(e.guard))
    evaluator = Evaluator(level.step, body, *tests)
    value = evaluator.value(body)
    variables = value.variables
    dtype = accumulation_dtype(e.aggregation, element.dtype)
    if e.aggregation in ("any", "all"):
        code = evaluator.condition(value)
    else:
        code = evaluator.tensor(value, dtype)
    for test in tests:
        condition = evaluator.value(test)
        variables |= condition.variables
        identity = level.step.assign(
            "number", f"torch.tensor({identity_text(e.aggregation, dtype)}, dtype=torch.{dtype}, device=device)"
        )
        code = f"torch.where({evaluator.condition(condition)}, {code}, {identity})"
    wide = [v for v in bound if level.domain.extent[v] > 1]
    if bound:
        if not variables.issuperset(wide) or not variables:
            lanes = level.order[1:]
            sizes = [level.step.size(v) if v in variables or v in bound else "1" for v in lanes]
            code = f"({code}).expand({tuple_text(sizes)})"
        dims = tuple_text(range(len(level.order) - 1 - len(bound), len(level.order) - 1))
        aggregation = "any" if e.aggregation == "assign" and dtype == "bool" else e.aggregation
        code = REDUCE[aggregation].format(code, dims, dtype)
    if dtype != element.dtype:
        code = f"({code}).to(torch.{element.dtype})"
    return code, variables - set(bound)


def _product(
    level: Level, e: Aggregate, bound: Sequence[str], element: ElementType
) -> tuple[str, frozenset[str]] | None:
    """A sum of products, or a logsumexp of sums, of states and a feed as a matrix product."""
    semiring = {"sum": SUM, "logsumexp": LOG}.get(e.aggregation)
    if semiring is None or level.domain.conditions or kind(element.dtype) != 2 or element.weak:
        return None
    if e.guard is not None and (not level.loose.allowed or semiring is LOG or reads_own(e.guard, level.own)):
        return None
    split = split_factors(e.body, level.task.types) if semiring is SUM else split_terms(e.body)
    if split is None:
        return None
    factors, scale = split
    summed = {v for v in bound if level.domain.extent[v] > 1}
    moving = [f for f in factors if reads_own(f, level.own)]
    if not moving or not summed or any(summed - set(index_variables(f)) for f in moving):
        return None
    reach = {v for f in moving for v in index_variables(f)}
    fixed = [f for f in factors if f not in moving and not set(index_variables(f)) <= reach | {level.time}]
    moving = [f for f in factors if f not in fixed]
    if not fixed or summed - {v for f in fixed for v in index_variables(f)}:
        return None
    count = math.prod(level.domain.extent[v] for v in level.order[1:])
    if count < WORTH:
        return None
    dtype = "float32" if element.dtype in NARROW else element.dtype
    times = "mul" if semiring is SUM else "add"
    if e.guard is not None:
        level.loose.used = True
    right, known, still = _operand(level, fixed, times, dtype, e.guard)
    left, found, _ = _operand(level, moving, times, dtype)
    if not summed <= known & found:
        return None
    lanes = [v for v in level.order[1:] if v not in bound]
    extent = level.domain.extent
    batch = [v for v in lanes if v in known and v in found]
    rows = [v for v in lanes if v in found and v not in known]
    columns = [v for v in lanes if v in known and v not in found]
    inner = [v for v in bound if v in summed]
    a = _matrix(level, left, batch, rows, inner)
    b = _matrix(level, right, batch, inner, columns)
    if still:  # made once
        name = level.names.fresh("matrix")
        made = f"{b}.contiguous()"
        level.frame.lines.append(f"{name} = {made if semiring is SUM else f'rt.log_factor({made})'}")
        b = name
    if semiring is SUM:
        code = f"torch.matmul({a}, {b})"
    else:
        code = f"rt.{'log_step' if still else 'log_product'}({a}, {b}, budget={level.task.options.memory_budget})"
    order = [*batch, *rows, *columns]
    code += f".reshape({tuple_text([extent[v] for v in order] + [1] * (len(lanes) - len(order)))})"
    places = [order.index(v) if v in order else None for v in lanes]
    rest = iter(range(len(order), len(lanes)))
    permutation = [next(rest) if p is None else p for p in places]
    if permutation != sorted(permutation):
        code += f".permute({', '.join(map(str, permutation))})"
    if scale != semiring.one:
        code = f"({semiring.scaled.format(code, literal(scale))})"
    if dtype != element.dtype:
        code = f"({code}).to(torch.{element.dtype})"
    return code, frozenset(order)


def _operand(
    level: Level, factors: Sequence[Expr], times: str, dtype: str, guard: Expr | None = None
) -> tuple[str, frozenset[str], bool]:
    """Text of the product of factors as a tensor of one step, 0 where the guard drops the point, the variables it
    depends on, and whether it is the same in every step."""
    e = factors[0]
    for f in factors[1:]:
        e = Call(times, (e, f))
    if guard is not None:
        e = Call("select", (guard, e, ZERO))
    made = level.prepared(e)
    evaluator = Evaluator(level.step, made)
    value = evaluator.value(made)
    feed = isinstance(made, Access) and made.tensor.startswith("feed")
    still = feed and isinstance(made, Access) and "[" not in level.locals[made.tensor].text
    return evaluator.tensor(value, dtype), value.variables, still


def _matrix(level: Level, text: str, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> str:
    """A tensor of one step as a batch of matrices."""
    order = level.order[1:]
    extent = level.domain.extent
    kept = [*batch, *rows, *columns]
    permutation = [order.index(v) for v in (*kept, *(v for v in order if v not in kept))]
    if permutation != sorted(permutation):
        text += f".permute({', '.join(map(str, permutation))})"
    sides = [math.prod(extent[v] for v in side) for side in (rows, columns)]
    return f"{text}.reshape({tuple_text([*(extent[v] for v in batch), *sides])})"
