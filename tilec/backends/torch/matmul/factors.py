"""A semiring sum of products (sum of `*`, logsumexp of `+`) as factors, each a function of some index variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilec.backends.common.code import literal, part_text, permuted, tuple_text
from tilec.backends.common.domain import Condition, Domain, access_conditions, free
from tilec.backends.common.terms import split_factors, split_terms
from tilec.backends.torch.expr.access import TensorFrame, read_box
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.ir.aggregations import SEMIRINGS as ALGEBRAS
from tilec.ir.aggregations import Semiring as Algebra
from tilec.ir.constraining import constraining
from tilec.ir.index import linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Index, Inside, Int, Pad, children, index_variables, walk
from tilec.ir.rational import Fraction
from tilec.ir.types import Types, is_floating


@dataclass(frozen=True)
class TorchSemiring:
    """How the generated code spells a semiring of `ir.aggregations`. Templates: `times` of two tensors, `total` over
    dimensions, `matrix` product of two matrices (also `batched`, `broadcast`), `plus` of a running total and a part,
    `scaled` by a number. `test` says that no tensor holds what times zero is not zero."""

    algebra: Algebra
    times: str
    total: str
    matrix: tuple[str, str, str]
    plus: str
    scaled: str
    test: str

    @property
    def zero(self) -> float:
        return self.algebra.zero

    @property
    def one(self) -> float:
        return self.algebra.one


SUM = TorchSemiring(
    ALGEBRAS["real"],
    "{0} * {1}",
    "torch.sum({0}, {1})",
    ("torch.mm({0}, {1})", "torch.bmm({0}, {1})", "torch.matmul({0}, {1})"),
    "{0}.add_({1})",
    "{0} * {1}",
    "rt.finite({0})",
)
LOG = TorchSemiring(
    ALGEBRAS["log"],
    "{0} + {1}",
    "torch.logsumexp({0}, {1})",
    ("rt.log_product({0}, {1}, budget={2})",) * 3,
    "torch.logaddexp({0}, {1})",
    "{0} + {1}",
    "rt.below_infinity({0})",
)
TORCH_SEMIRINGS = {s.algebra.plus: s for s in (SUM, LOG)}


@dataclass(frozen=True)
class Operand:
    """A tensor over `variables`: the product of `factors`, zero where `conditions` fail; or, where `code` is given, one
    that is already computed, with its dimensions in the order of `variables`."""

    variables: tuple[str, ...]
    factors: tuple[Expr, ...] = ()
    conditions: tuple[Condition, ...] = ()
    code: str | None = None

    def size(self, domain: Domain) -> int:
        return math.prod(domain.extent[v] for v in self.variables)

    def lone_access(self) -> Access | None:
        """The access that the operand is a plain view of."""
        if len(self.factors) == 1 and isinstance(self.factors[0], Access) and not self.conditions:
            return self.factors[0]
        return None

    def copied(self, domain: Domain, types: Types) -> bool:
        """Whether a matrix of it is larger than what it is read from: overlapping windows, or computed values."""
        access = self.lone_access()
        if self.code is not None:
            return False
        return access is None or self.size(domain) > math.prod(types[access.tensor].shape)


@dataclass
class Product:
    """`scale` times the product of operands; `checked`: tensors that must be finite, since some operand is zero at
    points that are not valid while others are not; None where finite tensors would not do."""

    operands: list[Operand]
    scale: float | int
    checked: list[str] | None = field(default_factory=list)


def factors_of_class(domain: Domain, types: Types, dtype: str, semiring: TorchSemiring) -> Product | None:
    """The body of a class as a product whose every point outside the domain is zero; None where the arithmetic of its
    type does not allow that (integers narrower than int64 wrap at each step)."""
    body = domain.statement.body
    split = split_factors(body, types) if semiring is SUM else split_terms(body, types)
    if split is None:
        return None
    expressions, scale = split
    if not is_floating(dtype):
        found = [expression_type(e, types) for e in expressions]
        if any(t.dtype != "int64" for t in found):
            return None
    groups: dict[frozenset[str], list[Expr]] = {}
    for e in expressions:
        groups.setdefault(value_variables(e, domain), []).append(e)
    conditions = {c: frozenset(v for v in free(c.form) if domain.extent[v] > 1) for c in domain.conditions}
    operands: list[Operand] = []
    zeroed: set[int] = set()
    for group, factors in groups.items():
        alone = factors[0] if len(factors) == 1 else None  # zeros outside of one factor meet infinities of the others
        absorbed = {*_own_conditions(alone, domain, types)} if isinstance(alone, Access) else set()
        inside = tuple(c for c, needed in conditions.items() if needed <= group and c not in absorbed)
        if absorbed & conditions.keys() or inside:
            zeroed.add(len(operands))
        for c in (*absorbed, *inside):
            conditions.pop(c, None)
        operands.append(Operand(_ordered(group, factors, types, domain), tuple(factors), inside))
    rest: dict[frozenset[str], list[Condition]] = {}
    for c, needed in conditions.items():
        rest.setdefault(needed, []).append(c)
    for needed, kept in rest.items():
        zeroed.add(len(operands))
        operands.append(Operand(tuple(v for v in domain.low if v in needed), (), tuple(kept)))
    guard = domain.statement.guard
    if guard is not None:
        zeroed.add(len(operands))
        zero = Int(0) if semiring is SUM else Call("neg", (Float(math.inf),))
        one = Call("select", (guard, Int(int(semiring.one)), zero))
        operands.append(Operand(_ordered(value_variables(guard, domain), [guard], types, domain), (one,)))
    result = Product(operands, scale)
    if zeroed:
        exposed = [o for k, o in enumerate(operands) if zeroed != {k} and o.factors]
        passes = _passes_finite if semiring is SUM else _passes_below_infinity
        if any(not passes(e) for o in exposed for e in o.factors):
            result.checked = None
            return result
        tensors = {a.tensor: None for o in exposed for e in o.factors for a in constraining(e)}
        result.checked = [t for t in tensors if is_floating(types[t].dtype)]
    return result


def _passes_finite(e: Expr) -> bool:
    """Whether finite tensors give finite values: a bare element does, and a select or product of such."""
    match e:
        case Access() | Int() | Float() | Call("rand" | "randn"):
            return True
        case Call("select", (_, a, b)):
            return _passes_finite(a) and _passes_finite(b)
        case Call("sin" | "cos" | "tanh" | "sigmoid" | "relu" | "neg" | "abs" | "erf" | "sign" | "max" | "min", args):
            return all(map(_passes_finite, args))
    return False


def _passes_below_infinity(e: Expr) -> bool:
    """Whether tensors below +inf, without NaN, give such values."""
    match e:
        case Access() | Int() | Float():
            return True
        case Call("add" | "max" | "min" | "relu", args):
            return all(map(_passes_below_infinity, args))
    return False


def _own_conditions(access: Access, domain: Domain, types: Types) -> tuple[Condition, ...]:
    """Conditions of an access that reading it from a copy extended by zeros takes care of."""
    forms = [linear(e) for e in access.index]
    if read_box(domain, forms, types[access.tensor].shape) is None:
        return ()
    return access_conditions(access, types)


def value_variables(e: Expr, domain: Domain) -> frozenset[str]:
    """The variables that the value depends on: what `in` names only constrains the point."""
    match e:
        case Inside():
            return frozenset()
        case Access() | Index() | Pad():
            below = e.value if isinstance(e, Pad) else e
            found = frozenset(v for v in index_variables(e) if domain.extent[v] > 1)
            return found if below is e else found | value_variables(below, domain)
    return frozenset().union(*(value_variables(c, domain) for c in children(e)))


def _ordered(group: frozenset[str], factors: list[Expr], types: Types, domain: Domain) -> tuple[str, ...]:
    """The variables by how far apart their neighbours lie in memory, if tensors are contiguous: farthest first."""
    accesses = [a for e in factors for a in walk(e) if isinstance(a, Access)]
    if not accesses:
        return tuple(v for v in domain.low if v in group)
    largest = max(accesses, key=lambda a: math.prod(types[a.tensor].shape))
    distance = dict.fromkeys(group, Fraction(0))
    stride = 1
    for e, n in zip(reversed(largest.index), reversed(types[largest.tensor].shape), strict=True):
        form = linear(e)
        for v in form.variables():
            if v in group:
                distance[v] += stride * abs(form.coefficient(v))
        stride *= n
    place = {v: k for k, v in enumerate(domain.low)}
    return tuple(sorted(group, key=lambda v: (-distance[v], place[v])))


def emit(
    task: Task,
    operand: Operand,
    order: tuple[str, ...],
    domain: Domain,
    loops: Mapping[str, tuple[str, str]],
    dtype: str,
    semiring: TorchSemiring,
) -> tuple[list[str], list[str], str]:
    """Lines before the loops, lines inside them, and text of the operand with dimensions `order`, in `dtype`."""
    if operand.code is not None:
        text = permuted(operand.code, [operand.variables.index(v) for v in order])
        return [], [], part_text(text, [":".join(loops[v]) if v in loops else ":" for v in order])
    frame = TensorFrame(domain, order, task.types, task.local, task.names, loops, semiring.zero)
    tests = [t for c in operand.conditions for t in frame.tests(c)]
    if not operand.factors:
        one = f"torch.full((), {literal(semiring.one)}, dtype=torch.{dtype}, device=device)"
        zero = f"torch.full((), {literal(semiring.zero)}, dtype=torch.{dtype}, device=device)"
        return frame.prologue, frame.lines, f"torch.where({' & '.join(tests)}, {one}, {zero})"
    evaluator = TorchScalars(frame, *operand.factors)
    values = [evaluator.value(e) for e in operand.factors]
    texts = [evaluator.tensor(v, dtype) for v in values]
    text = texts[0]
    for other in texts[1:]:
        text = f"({semiring.times.format(text, other)})"
    if tests:
        text = f"torch.where({' & '.join(tests)}, {text}, {literal(semiring.zero)})"
    found = {v for value in values for v in value.variables} | {v for c in operand.conditions for v in free(c.form)}
    if not found >= {v for v in order if domain.extent[v] > 1}:
        text = f"({text}).expand({tuple_text([frame.size(v) for v in order])})"
    return frame.prologue, frame.lines, text
