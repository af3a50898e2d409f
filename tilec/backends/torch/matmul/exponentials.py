"""Rule: sums of products with the exponential of a sum, as matrix products of exponentials: what the gradient of a log
product is made of.

`+(G[i, j] * exp(A[i, k] + B[k, j] - C[i, j]))` over j has an exponential a term. With a_i and b_j the maxima of A and B
over k it is `exp(A - a) * ((G * exp(a + b - C)) @ exp(B - b))`. The outer exponentials are at most 1; where the inner
exponent stays below 99 log 2 - log(terms) what they lose to underflow is below 2^-27 of G (float64: 966), which is
tested at run time. Otherwise, and where something is infinite or NaN, the terms are added one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import indented, literal, permuted, tuple_text
from tilec.backends.common.domain import Domain
from tilec.backends.common.terms import split_factors
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.factors import value_variables
from tilec.ir.functions import ONE, ZERO
from tilec.ir.infer import expression_type
from tilec.ir.program import Call, Expr

FEWEST_FACTORED = 4096  # terms, below which adding them one by one is as fast

Variables = frozenset[str]


@dataclass(frozen=True)
class ExponentialPart:
    """The exponent's terms over some variables, and the factors beside the exponential over them."""

    exponent: Expr
    factor: Expr


def exponentials(task: Task, exact: Callable[[Task], list[str]]) -> list[str] | None:
    """Lines that compute the output, or None; `exact` adds the terms one by one."""
    if task.flat.aggregation != "sum" or task.flat.default is not None or not task.classes or len(task.classes) > 1:
        return None
    (domain,) = task.classes
    s = domain.statement
    dtype = expression_type(s.body, task.types).dtype
    if domain.conditions or not task.covered or task.part(domain) != task.out or dtype not in ("float32", "float64"):
        return None
    split = split_factors(s.body, task.types)
    if split is None or math.prod(domain.extent.values()) < FEWEST_FACTORED:
        return None
    kept = [v for v in domain.output_variables() if domain.extent[v] > 1]
    form = exponential_form(split[0], s.guard, domain, kept, domain.reductions())
    if form is None:
        return None
    batch, rows, summed, columns = form.batch, form.rows, form.summed, form.columns
    orders = ([*batch, *rows, *summed], [*batch, *summed, *columns], [*batch, *rows, *columns])
    lines: list[str] = []
    texts: list[str] = []
    for part, order, pair in zip(form.parts, orders, form.groups, strict=True):
        shape = _shape(domain, batch, *pair)
        for e in (part.exponent, part.factor):
            texts.append(_matrix(task, domain, e, order, shape, dtype, lines))
    test = "None"
    if s.guard is not None:
        test = _matrix(task, domain, s.guard, orders[0], _shape(domain, batch, *form.groups[0]), "bool", lines)
    texts[2:4] = [f"rt.right_factor({', '.join(texts[2:4])})"]
    result = f"rt.exponential_product({', '.join([*texts, test])})"
    lines.append(f"{task.out} = {result}")
    order = orders[2]
    shaped = f"{task.out}.reshape({tuple_text([domain.extent[v] for v in order])})"
    shaped = permuted(shaped, [order.index(v) for v in kept])
    if len(domain.output_variables()) != len(kept):
        shaped += f".reshape({tuple_text(task.type.shape)})"
    if split[1] != 1:
        shaped += f" * {literal(split[1])}"
    if dtype != task.type.dtype:
        shaped = f"({shaped}).to(torch.{task.type.dtype})"
    return [*lines, f"if {task.out} is None:", *indented(exact(task)), "else:", f"    {task.out} = {shaped}"]


@dataclass(frozen=True)
class ExponentialForm:
    """A sum over `summed` of a product with one exponential as a batch of matrix products: `parts` over (rows, summed),
    (summed, columns) and (rows, columns)."""

    batch: list[str]
    rows: list[str]
    summed: list[str]
    columns: list[str]
    parts: list[ExponentialPart]

    @property
    def groups(self) -> tuple[tuple[list[str], list[str]], ...]:
        """Rows and columns of each part."""
        return (self.rows, self.summed), (self.summed, self.columns), (self.rows, self.columns)


def exponential_form(
    factors: Sequence[Expr], guard: Expr | None, domain: Domain, outputs: Sequence[str], reductions: Sequence[str]
) -> ExponentialForm | None:
    """The product of these factors so; None where it has no such form."""
    powers = [f for f in factors if isinstance(f, Call) and f.function == "exp"]
    summed = [v for v in reductions if domain.extent[v] > 1]
    if len(powers) != 1 or not summed:
        return None
    terms = _exponent_terms(powers[0].args[0])
    sides = _exponent_sides(terms, domain, summed)
    if sides is None:
        return None
    batch = [v for v in outputs if all(v in side for side in sides)]
    rows, columns = ([v for v in outputs if v in side and v not in batch] for side in sides[:2])
    whole = ({*batch, *rows, *summed}, {*batch, *columns, *summed}, {*batch, *rows, *columns})
    if set(rows) & set(columns) or whole != tuple(map(set, sides)):
        return None
    parts = _parts_of(terms, [f for f in factors if f is not powers[0]], guard, sides, domain)
    return None if parts is None else ExponentialForm(batch, rows, summed, columns, parts)


def _exponent_terms(e: Expr, sign: int = 1) -> list[tuple[int, Expr]]:
    match e:
        case Call("add", (a, b)):
            return [*_exponent_terms(a, sign), *_exponent_terms(b, sign)]
        case Call("sub", (a, b)):
            return [*_exponent_terms(a, sign), *_exponent_terms(b, -sign)]
        case Call("neg", (a,)):
            return _exponent_terms(a, -sign)
    return [(sign, e)]


def _exponent_sides(
    terms: Sequence[tuple[int, Expr]], domain: Domain, reductions: Sequence[str]
) -> tuple[Variables, Variables, Variables] | None:
    """The three sets of variables of the terms: those of the result that is subtracted and, of the other two, those
    with and without summed variables."""
    found = {value_variables(e, domain) for _, e in terms}
    largest = [v for v in found if not any(v < other for other in found)]
    taken = {value_variables(e, domain) for sign, e in terms if sign < 0}
    summed = set(reductions)
    inner = [v for v in largest if v in taken and v & summed]
    right = [v for v in largest if v not in taken and v & summed]
    outer = [v for v in largest if not v & summed]
    return None if (len(inner), len(right), len(outer)) != (1, 1, 1) else (inner[0], right[0], outer[0])


def _parts_of(
    terms: Sequence[tuple[int, Expr]],
    factors: Sequence[Expr],
    guard: Expr | None,
    sides: tuple[Variables, Variables, Variables],
    domain: Domain,
) -> list[ExponentialPart] | None:
    """What stands over each of the three sets of variables; None where something, or the guard, does not."""
    if guard is not None and not value_variables(guard, domain) <= sides[0]:
        return None
    exponents: list[Expr] = [ZERO, ZERO, ZERO]
    products: list[Expr] = [ONE, ONE, ONE]
    for sign, e in terms:
        place = _place(e, sides, domain)
        if place is None:
            return None
        exponents[place] = Call("add" if sign > 0 else "sub", (exponents[place], e))
    for e in factors:
        place = _place(e, sides, domain)
        if place is None:
            return None
        products[place] = e if products[place] == ONE else Call("mul", (products[place], e))
    return [ExponentialPart(*pair) for pair in zip(exponents, products, strict=True)]


def _place(e: Expr, sides: tuple[Variables, Variables, Variables], domain: Domain) -> int | None:
    variables = value_variables(e, domain)
    return next((k for k, side in enumerate(sides) if variables <= side), None)


def _shape(domain: Domain, batch: Sequence[str], *groups: Sequence[str]) -> list[int]:
    return [domain.extent[v] for v in batch] + [math.prod(domain.extent[v] for v in g) for g in groups]


def _matrix(
    task: Task, domain: Domain, e: Expr, order: Sequence[str], shape: Sequence[int], dtype: str, lines: list[str]
) -> str:
    """Text of an expression over `order` as a batch of matrices; the number 1 where it is that."""
    if e == ONE:
        return "1"
    frame = TensorFrame(domain, order, task.types, task.local, task.names)
    evaluator = TorchScalars(frame, e)
    value = evaluator.value(e)
    code = evaluator.condition(value) if dtype == "bool" else evaluator.tensor(value, dtype)
    lines += [*frame.prologue, *frame.lines]
    sizes = tuple_text([domain.extent[v] for v in order])
    return f"({code}).expand({sizes}).reshape({tuple_text(shape)})"
