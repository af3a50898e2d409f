"""Rule: a matrix product of 16 bits and the bias for each column that is added to it, which are rounded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.factors import SUM
from tilec.backends.torch.matmul.matrices import ContractionWriter, lay_out, plan_steps
from tilec.backends.torch.matmul.product import class_product
from tilec.ir.index import distinct_variables
from tilec.ir.program import Access, Call, Statement
from tilec.ir.types import NARROW
from tilec.transforms.util.plain import is_plain_sum


def adds_bias(s: Statement, out: Statement) -> bool:
    """Whether one statement is a product of two matrices, or of rows of more axes, and the other adds one number for
    each of its columns."""
    index = distinct_variables(s.index)
    match s.body:
        case Call("mul", (Access() as a, Access() as b)) if is_plain_sum(s) and index is not None:
            forms = [distinct_variables(x.index) for x in (a, b)]
        case _:
            return False
    bias = _bias(s.output, out)
    if bias is None or bias.index != (out.index or ())[-1:] or None in forms:
        return False
    rows, columns = sorted(({*f} for f in forms if f), key=lambda f: index[-1] in f)
    return rows & {*index} == {*index[:-1]} and columns & {*index} == {index[-1]} and len(rows & columns) == 1


def _bias(name: str, out: Statement) -> Access | None:
    """What a statement adds to the elements of a tensor at their own places."""
    if out.aggregation != "assign" or out.guard is not None or out.constraints or out.default is not None:
        return None
    match out.body:
        case Call("add", (Access() as x, Access() as y)) if distinct_variables(out.index) is not None:
            own, other = (x, y) if x.tensor == name else (y, x)
            return other if own == Access(name, out.index or ()) else None
    return None


def biased_product(tasks: Sequence[Task]) -> list[str] | None:
    """Lines that compute the second of two statements, which alone reads the first."""
    first, then = tasks[0], tasks[1]
    bias, domains = _bias(first.flat.output, then.flat), first.classes or ()
    alone = first.flat.output in first.once and first.type == then.type and first.type.dtype in NARROW
    if not alone or bias is None or not adds_bias(first.flat, then.flat) or len(domains) != 1:
        return None
    (domain,) = domains
    order, t = domain.output_variables(), first.type
    p = class_product(first, domain, SUM)
    whole = first.covered and first.part(domain) == first.out and not domain.masked
    if p is None or not whole or p.checked or len(p.operands) != 2 or p.scale != 1:
        return None
    a, b = p.operands
    layout = lay_out(a, b, order, domain)
    fits = first.types[bias.tensor] == replace(t, shape=t.shape[-1:]) and layout.columns == order[-1:]
    if not fits or layout.batch or layout.outer or plan_steps(first, domain, layout, SUM):
        return None
    writer = ContractionWriter(first, domain, t.dtype, SUM, {})
    code = writer.text(a, b, order, bias=first.local[bias.tensor])
    return [*writer.before, *writer.lines, f"{then.out} = {code}"]
