"""Rule: a semiring sum of products as matrix products over strided windows, one residue class after the other.

Each factor is a tensor over its own index variables (a view, where it is a plain access), so that a class is a tensor
contraction, in the order that opt_einsum finds. The last pair is evaluated in blocks where a matrix must be copied out
of overlapping windows. Points that are not valid are zeros of one operand, so the other ones must be finite there: that
is tested at run time, on what is read or on the result, and the exact masked evaluation takes over where it fails.

The same holds of logsumexp over sums: its matrix product shifts by maxima, exponentiates, multiplies, and recomputes
the few elements whose certificate fails (`runtime.log_product`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import opt_einsum

from tilec.backends.common.code import assignable, indented, literal, tuple_text
from tilec.backends.common.domain import Domain
from tilec.backends.common.scalars import count_uses
from tilec.backends.torch.expr.general import Loops, general
from tilec.backends.torch.expr.scalar import has_large_integers
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.factors import (
    LOG,
    SUM,
    TORCH_SEMIRINGS,
    Operand,
    Product,
    TorchSemiring,
    factors_of_class,
)
from tilec.backends.torch.matmul.matrices import ContractionWriter, lay_out, plan_steps
from tilec.backends.torch.matmul.precompute_operands import precomputed_operands
from tilec.ir.infer import expression_type
from tilec.ir.types import NARROW, is_floating


def product_lines(task: Task) -> list[str] | None:
    """Lines that compute the output. Applies to sums of at least two factors that share a summed variable."""
    semiring = TORCH_SEMIRINGS.get(task.flat.aggregation)
    if semiring is None or not task.classes:
        return None
    direct = len(task.classes) == 1 and task.covered and task.part(task.classes[0]) == task.out
    lines: list[str] = []
    if not direct:
        lines.append(f"{task.out} = {task.allocation(filled=not task.covered)}")
    checked: dict[str, None] = {}
    certain = True
    for domain in task.classes:
        p = class_product(task, domain, semiring)
        if p is None or _pointwise(p, domain):
            return None
        dtype = _operand_dtype(task, domain, semiring)
        task, p, computed = precomputed_operands(task, domain, p, dtype, semiring)
        if not _fits(task, domain, p):
            return None
        written = class_lines(task, domain, p, dtype, direct, semiring)
        if written is None:
            return None
        lines += computed + written
        checked.update(dict.fromkeys(p.checked or ()))
        certain = certain and p.checked is not None and not _regrouped(p, domain)
    if not is_floating(task.type.dtype) or certain and not checked:
        return lines
    exact = general(task)
    assert exact is not None, "general carries out what has classes"
    if not certain:
        return [*lines, f"if not {semiring.test.format(task.out)}:", *indented(exact)]
    test = f"if {semiring.test.format(', '.join(task.local[t] for t in checked))}:"
    return [test, *indented(lines), "else:", *indented(exact)]


def _pointwise(p: Product, domain: Domain) -> bool:
    """Whether every operand has all of the points, and one is computed: a sum over what is computed at each."""
    varying = {v for o in p.operands for v in o.variables if domain.extent[v] > 1}
    return all(varying <= set(o.variables) for o in p.operands) and any(o.lone_access() is None for o in p.operands)


def _regrouped(p: Product, domain: Domain) -> bool:
    """Whether something is summed before all factors are multiplied: an infinite factor may then miss a zero. It shows
    in the result, which no infinite operand leaves finite."""
    kept = set(domain.output_variables())
    alone = (sum(v in o.variables for o in p.operands) == 1 for o in p.operands for v in o.variables if v not in kept)
    return len(p.operands) > 2 or any(alone)


def class_product(task: Task, domain: Domain, semiring: TorchSemiring) -> Product | None:
    """The class as a product, where matrix products gain anything: some variable must be summed over two operands."""
    if domain.masked and task.flat.default is not None:
        return None
    element = expression_type(domain.statement.body, task.types)
    if element.weak or not is_floating(element.dtype) and (element.dtype != "int64" or semiring is not SUM):
        return None
    p = factors_of_class(domain, task.types, element.dtype, semiring)
    if p is None or len(p.operands) < 2:
        return None
    summed = [v for v in domain.reductions() if domain.extent[v] > 1]
    if not any(sum(v in o.variables for o in p.operands) > 1 for v in summed):
        return None
    varying = {v for o in p.operands for v in o.variables if domain.extent[v] > 1}
    if semiring is not SUM and any(varying <= set(o.variables) for o in p.operands):
        return None  # as many points as that operand has elements: a mask, a bias
    return p


def _operand_dtype(task: Task, domain: Domain, semiring: TorchSemiring) -> str:
    """The dtype in which factors are computed and multiplied."""
    dtype = expression_type(domain.statement.body, task.types).dtype
    in_float32 = semiring is LOG or has_large_integers(count_uses((domain.statement.body,)), task.types)
    return "float32" if in_float32 and dtype in NARROW else dtype


def _fits(task: Task, domain: Domain, p: Product) -> bool:
    """Whether the budget holds every operand that is computed rather than read."""
    largest = task.options.memory_budget // 16
    computed = (o for o in p.operands if o.copied(domain, task.types) and o.lone_access() is None)
    return all(o.size(domain) <= largest for o in computed)


def class_lines(
    task: Task, domain: Domain, p: Product, dtype: str, direct: bool, semiring: TorchSemiring
) -> list[str] | None:
    """Lines that write one class; None where an intermediate would pass the memory budget."""
    operands = list(p.operands)
    present = {v for o in operands for v in o.variables}
    kept = tuple(v for v in domain.output_variables() if v in present)
    count = math.prod(domain.extent[v] for v in domain.reductions() if v not in present)
    scale = p.scale * count if semiring is SUM else p.scale + math.log(count)
    lines: list[str] = []
    for pair in contraction_path(operands, kept, domain):
        chosen = [operands[k] for k in pair]
        operands = [o for k, o in enumerate(operands) if k not in pair]
        assert len(chosen) == 2
        if not operands:
            last = _Result(task, domain, kept, dtype, semiring, chosen, scale)
            return [*lines, *last.store(direct)]
        later = {v for o in operands for v in o.variables} | set(kept)
        order = _intermediate_order(chosen, later)
        if math.prod(domain.extent[v] for v in order) > task.options.memory_budget // 16:
            return None
        name = task.names.fresh("p")
        lines += _Result(task, domain, order, dtype, semiring, chosen).bind(name)
        operands.append(Operand(order, code=name))
    raise AssertionError("a product of two operands has a last pair")


def contraction_path(operands: Sequence[Operand], kept: Sequence[str], domain: Domain) -> list[tuple[int, ...]]:
    """Pairs of positions to contract in turn, each pair taken out and its result appended."""
    if len(operands) == 2:
        return [(0, 1)]
    inputs = [frozenset(o.variables) for o in operands]
    return [tuple(p) for p in opt_einsum.paths.auto(inputs, frozenset(kept), dict(domain.extent))]


def _intermediate_order(chosen: Sequence[Operand], later: set[str]) -> tuple[str, ...]:
    first, second = chosen
    both = [v for v in first.variables if v in second.variables and v in later]
    rows = [v for v in first.variables if v not in both and v in later]
    columns = [v for v in second.variables if v not in both and v in later]
    return (*both, *rows, *columns)


class _Result:
    """The contraction of two operands to `kept`, in blocks."""

    def __init__(
        self,
        task: Task,
        domain: Domain,
        kept: tuple[str, ...],
        dtype: str,
        semiring: TorchSemiring,
        chosen: Sequence[Operand],
        scale: float | None = None,
    ):
        scale = semiring.one if scale is None else scale
        self.task, self.domain, self.kept, self.dtype, self.semiring = task, domain, kept, dtype, semiring
        layout = lay_out(chosen[0], chosen[1], kept, domain)
        steps = plan_steps(task, domain, layout, semiring)
        self.outer = Loops(task, domain, kept, steps)
        self.inner = Loops(task, domain, layout.summed, steps)
        block = ContractionWriter(task, domain, dtype, semiring, {**self.outer.ends, **self.inner.ends})
        matrices = semiring is SUM and is_floating(dtype) and bool(layout.summed)
        within = scale != semiring.one and matrices and not self.outer.headers and not self.inner.headers
        self.scale = semiring.one if within else scale
        self.code = block.text(chosen[0], chosen[1], kept, literal(scale) if within else None)
        self.before, self.lines = block.before, block.lines
        if self.inner.headers:
            total = task.names.fresh("total")
            plus = semiring.plus.format(total, "part")
            step = [f"part = {self.code}", f"{total} = part if {total} is None else {plus}"]
            self.lines = [f"{total} = None", *self.inner.wrap([*self.lines, *step])]
            self.code = total

    def bind(self, name: str) -> list[str]:
        """Lines that make it a tensor over `kept`, of the product's type, which the next factor has too."""
        if not self.outer.headers:
            narrowed = f".to(torch.{self.dtype})" if self.inner.headers and self.dtype in NARROW else ""
            return [*self.before, *self.lines, f"{name} = {self.code}{narrowed}"]
        shape = tuple_text([self.domain.extent[v] for v in self.kept])
        start = f"{name} = torch.empty({shape}, dtype=torch.{self.dtype}, device=device)"
        target = self.outer.part(name, self.kept)
        return [start, *self.before, *self.outer.wrap([*self.lines, f"{target} = {self.code}"])]

    def store(self, direct: bool) -> list[str]:
        """Lines that write it into the part of the output that its class has, or, `direct`, make it the output."""
        task, domain, code = self.task, self.domain, self.code
        outputs = domain.output_variables()
        if self.scale != self.semiring.one:
            code = f"({self.semiring.scaled.format(code, literal(self.scale))})"
        missing = [v for v in outputs if v not in self.kept]
        if missing:
            code = f"({code})[{', '.join('None' if v in missing else ':' for v in outputs)}]"
        if direct and not self.outer.headers:
            if self.dtype != task.type.dtype or self.inner.headers and self.dtype in NARROW:
                code = f"{code}.to(torch.{task.type.dtype})"
            if any(domain.extent[v] > 1 for v in missing):
                code = f"{code}.expand({tuple_text(task.type.shape)}).contiguous()"
            return [*self.before, *self.lines, f"{task.out} = {code}"]
        start = [f"{task.out} = {task.allocation(filled=False)}"] if direct else []
        target = self.outer.part(task.part(domain), outputs)
        target = assignable(target)
        return [*start, *self.before, *self.outer.wrap([*self.lines, f"{target} = {code}"])]
