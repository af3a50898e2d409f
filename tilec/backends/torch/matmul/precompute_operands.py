"""Factors that read windows through one set of index forms are computed before the windows are taken.

`sin(I[x + k])` has as many values as I, not as the windows; `M[x + k] > 0 ? I[x + k, c]` likewise. Factors whose index
forms another factor has too are merged with it, and what is then computed rather than read becomes a tensor of its own,
indexed by the forms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.common.domain import Domain
from tilec.backends.torch.expr.access import read_box
from tilec.backends.torch.expr.general import general
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.factors import SUM, Operand, Product, TorchSemiring
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Call, Expr, Index, Inside, Int, Pad, Statement, rebuild, walk
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, Types

LEAST_PRECOMPUTED_GAIN = (
    1.5  # values of an operand, by those of the forms it reads through, from which computing them first pays
)

FormKey = Affine  # an index form without its constant


def merged(p: Product, domain: Domain) -> Product:
    """The product with operands multiplied where one reads through forms of another, as long as two remain."""
    operands = list(p.operands)
    while len(operands) > 2:
        pair = _mergeable(operands, domain)
        if pair is None:
            break
        o, target = pair
        both = replace(
            target,
            factors=(*target.factors, *o.factors),
            conditions=tuple(dict.fromkeys((*target.conditions, *o.conditions))),
        )
        operands = [both if x is target else x for x in operands if x is not o]
    return replace(p, operands=operands)


def _mergeable(operands: list[Operand], domain: Domain) -> tuple[Operand, Operand] | None:
    """An operand, and the smallest one that has all its forms."""
    keys = {id(o): _keys(o, domain) for o in operands if o.factors}
    for o in sorted((o for o in operands if o.factors), key=lambda o: o.size(domain)):
        mine = keys[id(o)]
        wider = [x for x in operands if x is not o and x.factors and _within(mine, keys[id(x)])]
        if wider:
            return o, min(wider, key=lambda x: x.size(domain))
    return None


def _within(a: frozenset[FormKey] | None, b: frozenset[FormKey] | None) -> bool:
    return a is not None and b is not None and a <= b


def _keys(o: Operand, domain: Domain) -> frozenset[FormKey] | None:
    """The forms that an operand reads through; None where it does in other ways too."""
    keys: set[FormKey] = set()
    for factor in o.factors:
        for e in walk_values(factor):
            forms = [linear(i) for i in e.index] if isinstance(e, Access) else [linear(e)]
            for form in forms:
                if not form.is_affine or not form.is_integral:
                    return None
                key = _key(form, domain)
                if key.terms:
                    keys.add(key)
    return frozenset(keys)


def _key(form: Affine, domain: Domain) -> FormKey:
    """The form's part that varies."""
    fixed = {v: Affine.combine({}, domain.low[v]) for v in form.variables() if domain.extent[v] == 1}
    moved = form.substitute(fixed)
    return moved - moved.constant


def walk_values(e: Expr) -> list[Access | Index]:
    """Accesses, and index variables that stand as values."""
    match e:
        case Access() | Index():
            return [e]
        case Inside():
            return []
        case Pad():
            inner = e.access if isinstance(e.access, Access) else e.access.access
            return [inner, *walk_values(e.value)]
        case Call():
            return [x for a in e.args for x in walk_values(a)]
    return []


def precomputed_operands(
    task: Task, domain: Domain, p: Product, dtype: str, semiring: TorchSemiring
) -> tuple[Task, Product, list[str]]:
    """The task and product with such operands as tensors of their own, and the lines that compute these."""
    lines: list[str] = []
    operands: list[Operand] = []
    for o in merged(p, domain).operands:
        made = _producer(task, domain, o, dtype, semiring)
        if made is None:
            operands.append(o)
            continue
        task, operand, written = made
        operands.append(operand)
        lines += written
    return task, replace(p, operands=operands), lines


def _producer(
    task: Task, domain: Domain, o: Operand, dtype: str, semiring: TorchSemiring
) -> tuple[Task, Operand, list[str]] | None:
    keys = _keys(o, domain) if o.factors and o.lone_access() is None else None
    if not keys or {v for k in keys for v in k.variables()} != set(o.variables):
        return None
    ranges = {k: _range(k, o, domain, task.types) for k in _in_order(keys, o, domain)}
    if any(low > high for low, high in ranges.values()):
        return None
    shape = tuple(high - low + 1 for low, high in ranges.values())
    if math.prod(shape) * LEAST_PRECOMPUTED_GAIN > o.size(domain):
        return None
    name = task.unused("_factor")
    variables = {k: Affine.variable(f"u{n}") + low for n, (k, (low, _)) in enumerate(ranges.items())}
    body: Expr = _moved(o.factors[0], variables, domain)
    for factor in o.factors[1:]:
        body = Call("mul" if semiring is SUM else "add", (body, _moved(factor, variables, domain)))
    if dtype != "int64":
        body = Call(dtype, (body,))
    index = tuple(Index(f"u{n}") for n in range(len(ranges)))
    statement = Statement(name, index, tuple(map(Int, shape)), body)
    access = Access(name, tuple((k - low).to_expr() for k, (low, _) in ranges.items()))
    if read_box(domain, [linear(e) for e in access.index], shape) is None:
        return None
    made = task.before(statement, TensorType(shape, dtype), "_factor")
    written = general(made)
    if written is None:
        return None
    left = tuple(c for c in o.conditions if not _implied(_key(c.form, domain), c.form, c.bound, ranges))
    return replace(task, types=made.types, local=made.local), replace(o, factors=(access,), conditions=left), written


def _in_order(keys: frozenset[FormKey], o: Operand, domain: Domain) -> list[FormKey]:
    """The forms in the order of the axes of the access that has most of them."""
    accesses = [e for factor in o.factors for e in walk_values(factor) if isinstance(e, Access)]
    found: dict[FormKey, None] = {}
    for e in sorted(accesses, key=lambda e: -len(e.index)):
        found.update(dict.fromkeys(k for i in e.index if (k := _key(linear(i), domain)) in keys))
    found.update(dict.fromkeys(sorted(keys, key=lambda k: repr(k.to_expr()))))
    return list(found)


def _range(key: FormKey, o: Operand, domain: Domain, types: Types) -> tuple[int, int]:
    """Values of a form at which every access through it lies inside its tensor."""
    low, high = domain.interval(key)
    for factor in o.factors:
        inside = [e.access for e in walk(factor) if isinstance(e, Pad)]
        padded = {id(e.access if isinstance(e, Inside) else e) for e in inside}
        for e in walk_values(factor):
            if not isinstance(e, Access) or id(e) in padded:
                continue
            for i, n in zip(e.index, types[e.tensor].shape, strict=True):
                if _key(linear(i), domain) == key:
                    shift = _shift(linear(i), domain)
                    low, high = max(low, -shift), min(high, n - 1 - shift)
    return as_int(low), as_int(high)


def _shift(form: Affine, domain: Domain) -> int:
    fixed = {v: Affine.combine({}, domain.low[v]) for v in form.variables() if domain.extent[v] == 1}
    return as_int(form.substitute(fixed).constant)


def _implied(key: FormKey, form: Affine, bound: int, ranges: Mapping[FormKey, tuple[int, int]]) -> bool:
    if key not in ranges:
        return False
    low, high = ranges[key]
    shift = form.constant
    return low + shift >= 0 and high + shift < bound


def _moved(e: Expr, variables: Mapping[FormKey, Affine], domain: Domain) -> Expr:
    """The expression with each form replaced by the variable that stands for it."""

    def moved(i: Expr) -> Expr:
        form = linear(i)
        key = _key(form, domain)
        shift = _shift(form, domain)
        return (variables[key] + shift if key.terms else Affine.combine({}, shift)).to_expr()

    match e:
        case Access():
            return replace(e, index=tuple(map(moved, e.index)))
        case Index():
            return moved(e)
        case Inside():
            return Int(1)
        case Pad():
            return replace(
                e, access=_moved_inside(e.access, variables, domain), value=_moved(e.value, variables, domain)
            )
    return rebuild(e, lambda x: _moved(x, variables, domain))


def _moved_inside(e: Access | Inside, variables: Mapping[FormKey, Affine], domain: Domain) -> Access | Inside:
    access = e if isinstance(e, Access) else e.access
    moved = _moved(access, variables, domain)
    assert isinstance(moved, Access)
    return moved if isinstance(e, Access) else replace(e, access=moved)
