"""The code of one step of a recurrence: its body over the lanes, and its nested aggregations over lanes and their own
variables.

What does not read the recurrence's own output (a feed) is computed before the loop for all times together, unless that
would take more room than a few times the states; a step takes its slice. What reads it is computed step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import tuple_text
from tilec.backends.common.domain import Condition, Domain, all_conditions, free, row_major
from tilec.backends.common.skew import Skew, plan_read
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.ir.functions import ONE, ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
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
from tilec.ir.rational import as_int
from tilec.ir.types import ElementType, TensorType, is_floating
from tilec.lattice.sets import Box
from tilec.transforms.recurrence import initial

STEP_INPUTS = 4  # a feed may hold this many times the states' elements
SMALL = 2**14  # or this many


@dataclass(frozen=True)
class StepTensor:
    """A tensor of one step: its name, or that of what a step takes its slice of at the index `at`, and the variables it
    depends on."""

    name: str
    at: str
    variables: frozenset[str]

    @property
    def text(self) -> str:
        return f"{self.name}[{self.at}]" if self.at else self.name


@dataclass
class Loose:
    """Whether points that a guard drops may be zeros of one operand, and whether they are: then no state may be
    infinite or NaN."""

    allowed: bool
    used: bool = False


class TensorStepFrame(TensorFrame):
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
        self,
        task: Task,
        skew: Skew,
        state: str,
        domain: Domain,
        order: Sequence[str],
        start: int,
        loose: Loose,
        nested: Callable[[Level, Aggregate], Expr],
    ):
        """`start`: the time of step 0. `nested` makes a pseudo-tensor of an aggregation that stands in the level."""
        own = task.flat.output
        self.moving = [c for c in domain.conditions if reads_own(c.form.to_expr(), own)]
        domain = replace(domain, conditions=tuple(c for c in domain.conditions if c not in self.moving))
        self.task, self.skew, self.state, self.domain = task, skew, state, domain
        self.loose, self.nested = loose, nested
        self.order = tuple(order)
        self.start = start
        self.names = task.names
        self.types: dict[str, TensorType] = dict(task.types)
        self.locals: dict[str, StepTensor] = {}
        self.before: list[str] = []
        self.lines: list[str] = []
        self.frame = TensorFrame(domain, self.order, task.types, task.local, task.names)
        self.lists: list[tuple[str, str]] = []  # names of lists of a step's slices, and what they are slices of
        self.step_inputs: dict[Expr, Access] = {}
        self.read: dict[str, Access] = {}  # what the pseudo-tensors of states stand for
        self.step = TensorStepFrame(self)

    def inside_of(self, domain: Domain, order: Sequence[str]) -> Level:
        return Level(self.task, self.skew, self.state, domain, order, self.start, self.loose, self.nested)

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
            case Access() if e.tensor != self.own:
                return self.looked_up(e)
            case Access():
                return self.state_read(e)
            case Inside():
                return ONE  # the tests ask
            case Pad():
                return self.padded(e)
            case Aggregate():
                return self.nested(self, e)
            case Call("mul", (a, Inside())) if is_floating(expression_type(a, self.task.types).dtype):
                return self.prepared(a)
        return rebuild(e, self.prepared)

    def padded(self, e: Pad) -> Expr:
        """What `pad` reads of the own output, or says of it."""
        access = e.access if isinstance(e.access, Access) else e.access.access
        if access.tensor != self.own and any(reads_own(i, self.own) for i in access.index):
            inside, read = self.inside(access), ONE if isinstance(e.access, Inside) else self.looked_up(access)
        elif access.tensor != self.own:
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
            return self.nested(self, e)
        if any(isinstance(x, Aggregate) for x in walk(e)):
            return rebuild(e, self.feed)
        if e in self.step_inputs:
            return self.step_inputs[e]
        if not isinstance(e, (Access, Index, Pad, Inside)) and self._large(e):
            return rebuild(e, self.feed)
        evaluator = TorchScalars(self.frame, e)
        value = evaluator.value(e)
        if value.number is not None:
            return e
        text = evaluator.tensor(value, value.type.dtype)
        made = self.pseudo("feed", value.type, *self._steps(text, value.variables), value.variables)
        self.step_inputs[e] = made
        return made

    def _large(self, e: Expr) -> bool:
        variables = [v for v in index_variables(e) if v in self.domain.extent]
        count = math.prod(self.domain.extent[v] for v in variables)
        return self.time in variables and count > max(STEP_INPUTS * self.task.elements, SMALL)

    def _steps(self, text: str, variables: frozenset[str]) -> tuple[str, str]:
        """Name and index of a step's slice of a tensor over the level's order."""
        name = self.names.fresh("f")
        if self.time in variables:
            self.lists.append((name, text))
            return name, self.shift()
        self.frame.lines.append(f"{name} = rt.still({text}, {len(self.order)})")
        return name, ""

    def pseudo(self, stem: str, element: ElementType, text: str, at: str, variables: frozenset[str]) -> Access:
        """An access to a new pseudo-tensor."""
        name = f"{stem} {len(self.locals)}"
        shape = () if element.scalar else (1,)
        self.types[name] = TensorType(shape, element.dtype, element.weak)
        self.locals[name] = StepTensor(text, at, variables - {self.time})
        return Access(name, (Int(0),) * len(shape))

    def condition(self, text: str, variables: frozenset[str]) -> Expr:
        """A feed that holds a bool tensor."""
        return self.pseudo("mask", ElementType("bool"), *self._steps(text, variables), variables)

    def inside(self, access: Access) -> Expr | None:
        """Where an access lies inside its tensor; None where it does everywhere."""
        if any(reads_own(i, self.own) for i in access.index):
            return self._all(all_conditions(access, self.types, self.own))
        found = self.frame.inside(access)
        return None if found is None else self.condition(*found)

    def tests(self) -> list[Expr]:
        """What says whether a point of the level's box is valid, the guard aside."""
        return [t for t in (self.mask(), self._all(self.moving)) if t is not None]

    def _all(self, conditions: Sequence[Condition]) -> Expr | None:
        """Do conditions hold? They may be on what states say; None where they do at all points of the box."""
        result: Expr | None = None
        for c in conditions:
            if self.domain.holds(c):
                continue
            n = c.form.denominator
            place = self.prepared((c.form * n).to_expr())
            asked = [Call("ge", (place, ZERO)), Call("lt", (place, Int(c.bound * n)))]
            if n > 1:
                asked.append(Call("eq", (Call("mod", (place, Int(n))), ZERO)))
            for test in asked:
                result = test if result is None else Call("and", (result, test))
        return result

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
            frame = TensorFrame(self.domain, self.order, types, local, self.names)
            text, _ = frame.read(Access(self.own, tuple(f.to_expr() for f in moved)))
            self.frame.prologue += frame.prologue
            assert not frame.lines, "a view"
            # a single time has no dimension of its own to move along
            made = self.pseudo("state", element, *self._steps(text, variables | {self.time}), variables)
            self.read[made.tensor] = access
            return made
        low = self.domain.low
        lanes = self.order[1:]
        start = [as_int(f.constant + sum(f.coefficient(v) * low[v] for v in lanes)) for f in moved[1:]]
        sizes = [self.domain.extent[v] if v in variables else 1 for v in lanes]
        moves = [tuple_text([as_int(f.coefficient(v)) for f in moved[1:]]) for v in lanes]
        place = self.start - self.skew.first[0] - read.back
        row = f"{self.state}[k + {place}]"
        text = f"rt.window({row}, {tuple_text(sizes)}, {tuple_text(start)}, {tuple_text(moves)})"
        return self.pseudo("state", element, self.step.assign_new("h", text), "", variables)

    def _gathered(self, access: Access, forms: Sequence[Affine], element: ElementType, padded: bool) -> Expr:
        """States at computed positions; outside of the tensor what `init` says, if anybody asks."""
        variables: set[str] = set()
        parts = []
        for form, first, n in zip(forms, self.skew.first, self.skew.shape, strict=True):
            moved = form - first
            if reads_own(moved.to_expr(), self.own):
                text, found = self._position(moved, n)
                parts.append(text)
                variables |= found
                continue
            depends = frozenset(v for v in free(form) if self.domain.extent[v] > 1)
            folded = self.frame._folded(moved)
            text = self.frame.index(folded)
            if not folded.terms:
                parts.append(f"rt.clamped({text}, {n})")
                continue
            variables |= depends
            slices, at = self._steps(f"({text}).clamp(0, {n - 1})", depends)
            parts.append(f"{slices}[{at}]" if at else slices)
        text = f"rt.elements_at({self.state}, {', '.join(parts)})"
        read: Expr = self.pseudo("state", element, self.step.assign_new("h", text), "", frozenset(variables))
        if padded:
            return read
        inside = self.inside(access)
        if inside is None:
            return read
        return Call("select", (inside, read, self.prepared(self.outside(access))))

    def looked_up(self, access: Access) -> Expr:
        """An element of another tensor at a place that states say; any where that is outside."""
        t = self.task.types[access.tensor]
        places = [self._position(linear(i), n) for i, n in zip(access.index, t.shape, strict=True)]
        text = f"rt.elements_at({self.task.local[access.tensor]}, {', '.join(x for x, _ in places)})"
        variables = frozenset(v for _, found in places for v in found)
        element = t.element()
        return self.pseudo("taken", element, self.step.assign_new("taken", text), "", variables)

    def _position(self, form: Affine, size: int) -> tuple[str, frozenset[str]]:
        """Text of the nearest place inside of an axis, computed in the step, and the variables that it depends on."""
        n = form.denominator
        e = self.prepared((form * n).to_expr())
        e = e if n == 1 else Call("div", (e, Int(n)))
        evaluator = TorchScalars(self.step, e)
        value = evaluator.value(e)
        return f"({evaluator.tensor(value, 'int64')}).clamp(0, {size - 1})", value.variables

    def outside(self, access: Access) -> Expr:
        """What the recurrence holds at an access outside of its tensor."""
        s = self.task.flat
        if s.init is None:
            return Call("bool", (ZERO,)) if self.types[self.own].dtype == "bool" else ZERO
        return initial(s, access)


def reads_own(e: Expr, own: str) -> bool:
    """Does the value of an expression depend on the tensor? `in` of it does not."""
    if isinstance(e, Inside):
        return any(reads_own(i, own) for i in e.access.index)
    if isinstance(e, Pad) and isinstance(e.access, Inside):
        return reads_own(e.access, own) or reads_own(e.value, own)
    return isinstance(e, Access) and e.tensor == own or any(reads_own(x, own) for x in children(e))
