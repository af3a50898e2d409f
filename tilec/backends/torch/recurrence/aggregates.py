"""Nested aggregations of a recurrence, in the code of one step: broadcast and reduced, or as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilec.backends.common.code import indented, literal, permuted, tuple_text
from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.common.skew import level_domain
from tilec.backends.common.terms import split_factors, split_terms
from tilec.backends.torch.expr.choices import identity_text
from tilec.backends.torch.expr.general import REDUCE
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.matmul.exponentials import exponential_form
from tilec.backends.torch.matmul.factors import LOG, SUM, TorchSemiring
from tilec.backends.torch.recurrence.steps import Level, reads_own
from tilec.ir.aggregations import LOGICAL
from tilec.ir.functions import ONE, ZERO
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import Access, Aggregate, Call, Expr, index_variables
from tilec.ir.types import NARROW, ElementType, is_floating

FEWEST_MATMUL_PRODUCTS = 4096  # of one step, from which a matrix product is faster than a broadcast one


def nested(outer: Level, e: Aggregate) -> Expr:
    """A nested aggregation as a pseudo-tensor of the level around it; its code comes before that level's."""
    domain = level_domain(outer.skew, e, outer.task.types, outer.box())
    element = aggregate_type(e.aggregation, expression_type(e.body, outer.task.types))
    identity = identity_text(e.aggregation, element.dtype)
    if domain is None:
        constant = f"torch.full((), {identity}, dtype=torch.{element.dtype}, device=device)"
        return outer.pseudo("nothing", element, outer.step.assign("number", constant), "", frozenset())
    bound = tuple(v for v in domain.low if v not in outer.order)
    name = outer.names.fresh("part")
    order = (*outer.order, *bound)
    level = outer.inside_of(domain, order)
    levels = [level]
    attempt = exponential_lines(level, e, bound, element)
    if attempt is not None:  # it gives None where its result is not sure
        levels.append(outer.inside_of(domain, order))
        text, variables = attempt
        code, found = _broadcast(levels[1], e, bound, element)
        variables = variables | found
        again = [*levels[1].step.lines, f"{name} = {code}"]
        lines = [*level.step.lines, f"{name} = {text}", f"if {name} is None:", *indented(again)]
    else:
        code, variables = _product(level, e, bound, element) or _broadcast(level, e, bound, element)
        lines = [*level.step.lines, f"{name} = {code}"]
    first = domain.low[outer.time] - outer.start
    last = first + domain.extent[outer.time] - 1
    if first > outer.domain.low[outer.time] - outer.start or last < first_to_last(outer):
        sizes = tuple_text([outer.domain.extent[v] if v in variables else 1 for v in outer.order[1:]])
        constant = f"torch.full({sizes}, {identity}, dtype=torch.{element.dtype}, device=device)"
        number = outer.step.assign("number", constant)
        lines = [f"if {first} <= k <= {last}:", *indented(lines), "else:", f"    {name} = {number}"]
    for level in levels:
        lists = (f"{name} = ({text}).unbind(0)" for name, text in level.lists)
        outer.before += [*level.frame.prologue, *level.frame.lines, *level.before, *lists]
    outer.step.lines += lines
    return outer.pseudo("aggregate", ElementType(element.dtype, element.weak), name, "", variables)


def first_to_last(level: Level) -> int:
    return level.domain.low[level.time] - level.start + level.domain.extent[level.time] - 1


def _broadcast(level: Level, e: Aggregate, bound: Sequence[str], element: ElementType) -> tuple[str, frozenset[str]]:
    """The values of all points, reduced; those that do not count hold the identity."""
    body = level.prepared(e.body)
    tests = level.tests()
    if e.guard is not None:
        tests.append(level.prepared(e.guard))
    evaluator = TorchScalars(level.step, body, *tests)
    value = evaluator.value(body)
    variables = value.variables
    dtype = accumulation_dtype(e.aggregation, element.dtype)
    if e.aggregation in LOGICAL:
        code = evaluator.condition(value)
    else:
        code = evaluator.tensor(value, dtype)
    for test in tests:
        condition = evaluator.value(test)
        variables |= condition.variables
        identity = level.step.assign(
            "number", f"torch.full((), {identity_text(e.aggregation, dtype)}, dtype=torch.{dtype}, device=device)"
        )
        code = f"torch.where({evaluator.condition(condition)}, {code}, {identity})"
    varying = [v for v in bound if level.domain.extent[v] > 1]
    if bound:
        if not variables.issuperset(varying) or not variables:
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
    summed = {v for v in bound if level.domain.extent[v] > 1}
    found = None if semiring is None or element.weak else _sides(level, e, semiring, summed)
    if semiring is None or found is None or not is_floating(element.dtype):
        return None
    fixed, moving, scale = found
    dtype = "float32" if element.dtype in NARROW else element.dtype
    times = "mul" if semiring is SUM else "add"
    if e.guard is not None:
        level.loose.used = True
    right, known, still = _operand(level, fixed, times, dtype, e.guard)
    left, walked, _ = _operand(level, moving, times, dtype)
    if not summed <= known & walked:
        return None
    lanes = [v for v in level.order[1:] if v not in bound]
    extent = level.domain.extent
    batch = [v for v in lanes if v in known and v in walked]
    rows = [v for v in lanes if v in walked and v not in known]
    columns = [v for v in lanes if v in known and v not in walked]
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
    code = permuted(code, [next(rest) if p is None else p for p in places])
    if scale != semiring.one:
        code = f"({semiring.scaled.format(code, literal(scale))})"
    if dtype != element.dtype:
        code = f"({code}).to(torch.{element.dtype})"
    return code, frozenset(order)


def _sides(
    level: Level, e: Aggregate, semiring: TorchSemiring, summed: set[str]
) -> tuple[list[Expr], list[Expr], float | int] | None:
    """The factors of a product of matrices that no state is part of, those of states, and the scale of both."""
    if level.domain.conditions or level.moving or not summed:
        return None
    if e.guard is not None and (not level.loose.allowed or semiring is LOG or reads_own(e.guard, level.own)):
        return None
    split = split_factors(e.body, level.task.types) if semiring is SUM else split_terms(e.body, level.task.types)
    if split is None or math.prod(level.domain.extent[v] for v in level.order[1:]) < FEWEST_MATMUL_PRODUCTS:
        return None
    factors, scale = split
    own = [f for f in factors if reads_own(f, level.own)]
    if not own or any(summed - set(index_variables(f)) for f in own):
        return None
    reach = {level.time, *index_variables(*own)}
    fixed = [f for f in factors if f not in own and not set(index_variables(f)) <= reach]
    whole = bool(fixed) and summed <= {*index_variables(*fixed)}
    return (fixed, [f for f in factors if f not in fixed], scale) if whole else None


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
    evaluator = TorchScalars(level.step, made)
    value = evaluator.value(made)
    still = isinstance(made, Access) and made in level.step_inputs.values() and not level.locals[made.tensor].at
    return evaluator.tensor(value, dtype), value.variables, still


def _matrix(level: Level, text: str, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> str:
    """A tensor of one step as a batch of matrices."""
    order = level.order[1:]
    extent = level.domain.extent
    kept = [*batch, *rows, *columns]
    text = permuted(text, [order.index(v) for v in (*kept, *(v for v in order if v not in kept))])
    sides = [math.prod(extent[v] for v in side) for side in (rows, columns)]
    return f"{text}.reshape({tuple_text([*(extent[v] for v in batch), *sides])})"


def exponential_lines(
    level: Level, e: Aggregate, bound: Sequence[str], element: ElementType
) -> tuple[str, frozenset[str]] | None:
    """A sum of products with the exponential of a sum, as `exponentials` has it: text that may give None, and the
    variables of the result."""
    if e.aggregation != "sum" or level.domain.conditions or level.moving or element.dtype not in ("float32", "float64"):
        return None
    split = split_factors(e.body, level.task.types)
    extent = {**level.domain.extent, level.time: 1}
    if split is None or split[1] != 1 or math.prod(extent.values()) < FEWEST_MATMUL_PRODUCTS:
        return None
    domain = replace(level.domain, extent=extent)
    lanes = [v for v in level.order[1:] if v not in bound]
    form = exponential_form(split[0], e.guard, domain, lanes, bound)
    if form is None:
        return None
    batch, pairs = form.batch, form.groups
    texts = []
    for part, pair in zip(form.parts, pairs, strict=True):
        count = len(level.step.lines)
        two = [
            "1" if x == ONE else _step_matrix(level, x, batch, *pair, element.dtype)
            for x in (part.exponent, part.factor)
        ]
        if part is not form.parts[1]:
            texts += two
            continue
        right = f"rt.right_factor({', '.join(two)})"
        if len(level.step.lines) == count and "[k" not in right:  # the same in every step
            name = level.names.fresh("right")
            level.frame.lines.append(f"{name} = {right}")
            right = name
        texts.append(right)
    valid = "None" if e.guard is None else _step_matrix(level, e.guard, batch, *pairs[0], "bool")
    order = [*batch, *form.rows, *form.columns]
    places = tuple_text([order.index(v) if v in order else -1 for v in lanes])
    shape = tuple_text([extent[v] for v in order])
    return f"rt.exponential_step({', '.join([*texts, valid])}, {shape}, {places})", frozenset(order)


def _step_matrix(
    level: Level, e: Expr, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str], dtype: str
) -> str:
    """An expression in one step as a batch of matrices."""
    made = level.prepared(e)
    evaluator = TorchScalars(level.step, made)
    value = evaluator.value(made)
    code = evaluator.condition(value) if dtype == "bool" else evaluator.tensor(value, dtype)
    needed = {*batch, *rows, *columns}
    if not needed <= value.variables:
        sizes = [level.domain.extent[v] if v in needed else 1 for v in level.order[1:]]
        code = f"({code}).expand({tuple_text(sizes)})"
    return _matrix(level, f"({code})", batch, rows, columns)
