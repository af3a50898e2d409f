"""Rule: any body, any aggregation, over a box evaluated block by block; where the domain is no box, a mask.

Covers elementwise statements too: they are the case without reductions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.code import assignable, indented, literal, part_text, tuple_text
from tilec.backends.common.domain import Domain, free, row_major
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.common.tiled_program import COMBINED
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.assured import assured, either
from tilec.backends.torch.expr.choices import choice_text, identity_text
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.ir.aggregations import AGGREGATIONS, LOGICAL
from tilec.ir.functions import RANDOM
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Float, Inside, Int, accesses_in, reads, walk
from tilec.lattice.conditions import bound_of

REDUCE = {a.name: a.torch.reduce for a in AGGREGATIONS.values() if a.torch}

OF_A_DRAW = 10  # 8-byte temporaries that a random number takes, where it is alone in its block


def general(task: Task) -> list[str] | None:
    """Lines that compute the output. Applies where each output axis is one variable of its own in every class."""
    if task.classes is None:
        return None
    certified = assured(task.classes[0], task.types, task.local) if len(task.classes) == 1 else None
    if certified is not None:
        test, inside = certified
        return either(test, _classes_lines(task, (inside,)), _classes_lines(task, task.classes))
    return _classes_lines(task, task.classes)


def _classes_lines(task: Task, classes: Sequence[Domain]) -> list[str]:
    lone = len(classes) == 1 and task.covered
    if lone and not task.has_room:
        direct = lines_of_class(task, classes[0], direct=True)
        if direct is not None:
            return direct
    unfilled = task.covered and task.elements > 0
    lines = [f"{task.out} = {task.allocation(filled=not unfilled)}"]
    for domain in classes:
        written = lines_of_class(task, domain, direct=False)
        assert written is not None
        lines += written
    return lines


def blocks(extents: Sequence[tuple[str, int]], limit: int) -> dict[str, int]:
    """Steps of the loops that keep a block within `limit` elements: outer variables one by one, then one in steps."""
    steps: dict[str, int] = {}
    inner = 1
    for variable, n in reversed(extents):
        if inner * n <= limit:
            inner *= n
            continue
        step = max(1, limit // inner)
        if step < n:
            steps[variable] = step
        inner *= step
    return steps


def block_limit(task: Task, domain: Domain) -> int:
    """Elements a block: what stays in cache, and within the budget whatever the body holds at once."""
    calls = point_operations(domain) + sum(isinstance(e, Access) for e in walk(domain.statement.body))
    return max(1, min(task.options.block, task.options.memory_budget // (8 * (calls + 2))))


def point_operations(domain: Domain) -> int:
    """Of one point of the body, in temporaries that they leave: a draw has many."""
    inside = {x for a in accesses_in(domain.statement.body) for e in a.index for x in walk(e)}
    calls = [e.function for e in walk(domain.statement.body) if isinstance(e, Call) and e not in inside]
    return len(calls) + sum(OF_A_DRAW for function in calls if function in RANDOM)


class Loops:
    """Loops over blocks: their headers, and the names of a block's two ends."""

    def __init__(self, task: Task, domain: Domain, order: Sequence[str], steps: Mapping[str, int]):
        self.ends: dict[str, tuple[str, str]] = {}
        self.headers: list[tuple[str, list[str]]] = []
        for v in order:
            if v not in steps:
                continue
            n, step = domain.extent[v], steps[v]
            first = task.names.fresh(f"{v.rstrip(chr(39))}_from")
            last = task.names.fresh(f"{v.rstrip(chr(39))}_to")
            self.ends[v] = (first, last)
            end = f"{first} + {step}" if n % step == 0 else f"min({first} + {step}, {n})"
            self.headers.append((f"for {first} in range(0, {n}, {step}):", [f"{last} = {end}"]))

    def wrap(self, inner: list[str]) -> list[str]:
        for header, first in reversed(self.headers):
            inner = [header, *indented([*first, *inner])]
        return inner

    def part(self, tensor: str, variables: Sequence[str]) -> str:
        """The block's part of a tensor whose dimensions are these variables."""
        return part_text(tensor, [":".join(self.ends[v]) if v in self.ends else ":" for v in variables])


def lines_of_class(task: Task, domain: Domain, direct: bool, added: bool = False) -> list[str] | None:
    """Lines for one class. `direct`: bind the output's name to the result; None where blocks make that impossible.
    `added`: to what is there."""
    domain = _triangle_chosen(domain)
    outputs, reductions = domain.output_variables(), domain.reductions()
    order, steps = _plan(task, domain)
    if direct and (steps or task.part(domain) != task.out):
        return None
    outer = Loops(task, domain, outputs, steps)
    inner = Loops(task, domain, reductions, steps)
    frame = TensorFrame(domain, order, task.types, task.local, task.names, {**outer.ends, **inner.ends})
    body = _Body(task, domain, frame, outer, inner)
    lines = body.added_lines() if added else body.lines(direct)
    return [*frame.prologue, *outer.wrap(lines)]


def _triangle_chosen(domain: Domain) -> Domain:
    """With zeros on one side of a diagonal in place of points fewer."""
    s = domain.statement
    form = bound_of(s.guard) if s.guard is not None and s.aggregation in ("sum", "assign") and not s.default else None
    if s.guard is None or form is None or domain.conditions or domain.reductions():
        return domain
    if {*form.variables()} != {*domain.output_variables()[-2:]}:
        return domain
    return replace(domain, statement=replace(s, body=Call("select", (s.guard, s.body, Int(0))), guard=None))


def _plan(task: Task, domain: Domain) -> tuple[tuple[str, ...], dict[str, int]]:
    """The order of dimensions, and the steps of the loops over blocks.

    The last dimension is the one along which most operands lie side by side in memory: a summed variable, or, where
    that is better, the last output variable, with the summed ones in front.
    """
    outputs, reductions = domain.output_variables(), domain.reductions()
    limit = block_limit(task, domain)
    if not reductions:
        if point_operations(domain) <= 1 and not domain.masked:
            return outputs, {}
        return outputs, blocks([(v, domain.extent[v]) for v in outputs], limit)
    plain = task.flat.aggregation in ("sum", "max", "min") and not domain.masked and _read_alone(task, domain)
    if plain:  # the reduction itself reads it: no block of values is made
        limit = max(limit, math.prod(domain.extent.values()))
    score = _scores(task, domain)
    best = max(reductions, key=lambda v: score[v])
    if outputs and score[outputs[-1]] > score[best]:
        steps = blocks([(v, domain.extent[v]) for v in outputs], max(1, limit if plain else limit // 8))
        size = math.prod(steps.get(v, domain.extent[v]) for v in outputs)
        steps |= blocks([(v, domain.extent[v]) for v in reductions], max(1, limit // size))
        return (*reductions, *outputs), steps
    order = (*outputs, *(v for v in reductions if v != best), best)
    return order, blocks([(v, domain.extent[v]) for v in order], limit)


def _read_alone(task: Task, domain: Domain) -> bool:
    """Whether the body is a view of a tensor."""
    body = domain.statement.body
    if not isinstance(body, Access) or not domain.inside(body, task.types):
        return False
    return all(f.is_affine and f.is_integral for f in map(linear, body.index))


def _scores(task: Task, domain: Domain) -> dict[str, int]:
    """For each variable: accesses that move by single elements along it, less those that jump."""
    score = {v: 0 if n > 1 else -(10**6) for v, n in domain.extent.items()}
    for access in {e for e in walk(domain.statement.body) if isinstance(e, Access)}:
        flat = row_major([linear(e) for e in access.index], task.types[access.tensor].shape)
        for v in flat.variables():
            score[v] += 1 if abs(flat.coefficient(v)) == 1 else -1
    return score


class _Body:
    def __init__(self, task: Task, domain: Domain, frame: TensorFrame, outer: Loops, inner: Loops):
        self.task, self.domain, self.frame, self.outer, self.inner = task, domain, frame, outer, inner
        self.aggregation = domain.statement.aggregation
        self.outputs, self.reductions = domain.output_variables(), domain.reductions()

    def lines(self, direct: bool) -> list[str]:
        s, frame = self.domain.statement, self.frame
        evaluator = TorchScalars(frame, *s.roots)
        mask, tested = self._mask(evaluator)
        value = evaluator.value(s.body)
        dtype = accumulation_dtype(self.aggregation, self.task.type.dtype)
        code = self._masked(evaluator, value, dtype, mask, tested)
        variables = tested | value.variables
        reached = mask if mask is not None and self._needs_reached() else None
        if self.reductions:
            code, reached = self._reduce(code, dtype, variables, reached, bool(tested))
            lines = self._lines
            variables = variables & frozenset(self.outputs)
        else:
            lines = frame.lines
        if reached is not None:
            code = f"torch.where({reached}, {code}, {self._fill()})"
            variables = variables | frozenset(self.outputs)
        return [*lines, *self._write(code, dtype, variables, value, direct)]

    def added_lines(self) -> list[str]:
        """Lines that add a value of the output's type, of one term and without a guard, to what is there."""
        body, scale = self.domain.statement.body, ""
        while isinstance(body, Call) and body.function == "mul" and isinstance(body.args[1], Inside):
            body = body.args[0]
        match body:
            case Call("mul", (x, Float(n))) if not isinstance(x, Int | Float):
                body, scale = x, f", alpha={literal(n)}"
        evaluator = TorchScalars(self.frame, body)
        value = evaluator.value(body)
        code = evaluator.tensor(value, self.task.type.dtype)
        if self.reductions and value.variables:
            code = f"{_atom(code)}.squeeze({self._reduced_dims()})"
        target = self.outer.part(self.task.part(self.domain), self.outputs)
        return [*self.frame.lines, f"{target}.add_({code}{scale})"]

    def _mask(self, evaluator: TorchScalars) -> tuple[str | None, frozenset[str]]:
        mask = self.frame.mask()
        variables = frozenset(v for c in self.domain.conditions for v in free(c.form))
        guard = self.domain.statement.guard
        if guard is None:
            return mask, variables
        value = evaluator.value(guard)
        test = evaluator.condition(value)
        variables = variables | value.variables
        return self.frame.assign("valid", test if mask is None else f"{mask} & {test}"), variables

    def _needs_reached(self) -> bool:
        return self.task.flat.default is not None

    def _masked(
        self, evaluator: TorchScalars, value: ScalarValue, dtype: str, mask: str | None, tested: frozenset[str]
    ) -> str:
        """The value with the identity where the point is not valid."""
        before = dtype
        if self.reductions and self.aggregation in ("sum", "prod") and value.compute_dtype is not None:
            before = value.compute_dtype  # reductions convert while they read
        if self.aggregation in LOGICAL:
            code = evaluator.condition(value)
        elif mask is None:
            code = evaluator.cast(value, before) if value.number is None else evaluator.tensor(value, before)
        else:
            code = evaluator.tensor(value, before)
        if mask is None:
            return code
        identity = identity_text(self.aggregation, before)
        if self.aggregation == "assign" and not self.reductions and self._needs_reached():
            return code
        if value.number is not None:
            identity = f"torch.full((), {identity}, dtype=torch.{before}, device=device)"
        spread = tested < value.variables or self._by_elements()
        if self.aggregation == "sum" and value.number is None and spread and value.compute_dtype == before:
            return choice_text(mask, code, identity)  # torch.where branches at each element
        return f"torch.where({mask}, {code}, {identity})"

    def _by_elements(self) -> bool:
        """Whether elements of tensors say which points are valid."""
        guard = self.domain.statement.guard
        return guard is not None and any(e.index for e in accesses_in(guard))

    def _fill(self) -> str:
        default = self.task.local[self.task.flat.default or ""]
        part = self.outer.part(self.task.part(self.domain, default), self.outputs)
        same = self.task.types[self.task.flat.default or ""].dtype == self.task.type.dtype
        return part if same else f"{part}.to(torch.{self.task.type.dtype})"

    def _reduce(
        self, code: str, dtype: str, variables: frozenset[str], reached: str | None, has_axes: bool
    ) -> tuple[str, str | None]:
        """Text of the reduced value, and of the test that a point was valid. `has_axes`: the test depends on variables,
        and is not one truth for all points."""
        frame = self.frame
        absent = [v for v in self.reductions if v not in variables and self.domain.extent[v] != 1]
        if absent or not variables:
            sizes = [frame.size(v) if v in variables or v in self.reductions else "1" for v in frame.order]
            code = f"{_atom(code)}.expand({tuple_text(sizes)})"
        dims = self._reduced_dims()
        aggregation = "any" if self.aggregation == "assign" and dtype == "bool" else self.aggregation
        part = REDUCE[aggregation].format(code, dims, dtype)
        seen = reached
        if reached is not None:  # one truth may have axes of size 1, or none
            seen = f"torch.any({reached}, {dims})" if has_axes else f"{reached}.reshape(())"
        if not self.inner.headers:
            self._lines = frame.lines
            return part, seen
        total = self.task.names.fresh("total")
        body = [*frame.lines]
        starts = [f"{total} = None"]
        step = COMBINED[aggregation].format(total, "part")
        body += [f"part = {part}", f"{total} = part if {total} is None else {step}"]
        if seen is not None:
            found = self.task.names.fresh("reached")
            starts.append(f"{found} = False")
            body.append(f"{found} = {seen} | {found}")
            seen = found
        self._lines = [*starts, *self.inner.wrap(body)]
        return total, seen

    def _reduced_dims(self) -> str:
        return tuple_text([d for d, v in enumerate(self.frame.order) if v in self.reductions])

    def _write(self, code: str, dtype: str, variables: frozenset[str], value: ScalarValue, direct: bool) -> list[str]:
        task = self.task
        out = task.type.dtype
        if not direct:
            target = self.outer.part(task.part(self.domain), self.outputs)
            whole = all(v in variables or self.domain.extent[v] == 1 for v in self.outputs)
            whole = whole and bool(variables or not self.outputs)  # without axes it fills no view that has some
            if value.call is not None and code == value.code and dtype == value.compute_dtype == out and whole:
                return [value.call.format(target)]
            return [f"{assignable(target)} = {code}"]
        if dtype != out:
            code = f"{_atom(code)}.to(torch.{out})"
        missing = [v for v in self.outputs if v not in variables and self.domain.extent[v] != 1]
        spread = bool(missing or not variables and self.outputs)
        if spread:
            code = f"{_atom(code)}.expand({tuple_text(task.type.shape)})"
        if task.returned and (spread or code in self.frame.views):
            of = self.frame.backward.get(code)
            copied = f"{_atom(code)}.clone(memory_format=torch.contiguous_format)"
            own = set(reads(task.flat)) <= task.fresh and not spread
            code = f"{_atom(code)}.contiguous()" if own else copied if of is None else f"rt.owned({code}, {of})"
        return [f"{task.out} = {code}"]


def _atom(code: str) -> str:
    """The text as something a method can be called on."""
    return code if code.replace("_", "").isalnum() or code.endswith(")") and _balanced(code) else f"({code})"


def _balanced(code: str) -> bool:
    """Whether the text is one call or one parenthesised expression."""
    depth = 0
    for place, c in enumerate(code):
        depth += (c in "([") - (c in ")]")
        if depth == 0 and c in ")]" and place != len(code) - 1 and code[place + 1] not in ".[(":
            return False
        if depth == 0 and c == " ":
            return False
    return True
