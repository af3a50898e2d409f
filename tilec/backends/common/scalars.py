"""What every backend knows of scalar values: how numbers fold and fit into types, what sums are held in."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable

import numpy as np

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.at_sizes import followed
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import Access, Call, Expr, Pad, Statement, walk
from tilec.ir.types import NARROW, ElementType, is_floating

LEAST_CERTAIN = {"float32": 2.0**-99, "float64": 2.0**-966}  # least sum, a term, whose relative error is sure
INTEGER_BITS = {"uint8": (8, False), "int8": (8, True), "int16": (16, True), "int32": (32, True), "int64": (64, True)}


def value_children(e: Expr) -> tuple[Expr, ...]:
    """Subexpressions whose values the value of e is computed from: not those in indices."""
    match e:
        case Call():
            return e.args
        case Pad():
            return (e.value,)
    return ()


def count_uses(roots: Iterable[Expr]) -> Counter[Expr]:
    """How often each value is asked for, by the roots' readers or by other values; equal ones are one."""
    uses: Counter[Expr] = Counter(roots)
    seen: set[Expr] = set()
    stack = list(uses)
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            uses.update(value_children(e))
            stack.extend(value_children(e))
    return uses


def values_in(*roots: Expr) -> dict[Expr, None]:
    """All that the values of these are computed from, themselves included, each once."""
    found: dict[Expr, None] = {}
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in found:
            found[e] = None
            stack.extend(value_children(e))
    return found


def rounds_each(statements: Iterable[Statement]) -> bool:
    """Must a kernel of these statements round products before it subtracts? Where one subtracts a product from what is
    computed from it, or the reverse, what is left are roundings, so the product must be what it was there. The same
    holds in an exponential of a product less what may be the logarithm of a sum of such, from another kernel. A sum
    that has a product in it and is looked for an extremum among, or is compared with one, is the same in both."""
    bodies = {s.output: s for s in statements}
    computed = {Access(s.output, s.index or ()): s.body for s in bodies.values() if s.aggregation == "assign"}

    def meant(e: Expr) -> Expr:
        while e in computed or isinstance(e, Call) and e.function in ("neg", "ident", "reverse_grad"):
            e = computed[e] if e in computed else value_children(e)[0]
        return e

    def depends(e: Expr, part: Expr) -> bool:
        seen: set[Expr] = set()
        stack = [e]
        while stack:
            for x in values_in(stack.pop()):
                if meant(x) == part:
                    return True
                if x in computed and x not in seen:
                    seen.add(x)
                    stack.append(computed[x])
        return False

    def is_logarithm(e: Expr) -> bool:
        s = bodies.get(e.tensor) if isinstance(e, Access) else None
        return isinstance(e, Access) and (s is None or s.aggregation == "logsumexp")

    def adds_product(e: Expr) -> bool:
        sums = (x for x in values_in(meant(e)) if isinstance(x, Call) and x.function in ("add", "sub"))
        products = (y for s in sums for x in s.args if isinstance(y := meant(x), Call) and y.function in ("mul", "pow"))
        return any(isinstance(x, Access) for y in products for x in values_in(y))

    every = values_in(*(r for s in bodies.values() for r in s.roots))
    compared = [s.body for s in bodies.values() if s.aggregation in ("max", "min")]
    inner = (e for s in bodies.values() for r in s.roots for e in walk(r))
    compared += [x for e in inner if isinstance(e, Call) and e.function in ("eq", "ne") for x in e.args]
    if any(map(adds_product, compared)):
        return True
    exponents = {meant(x) for e in every if isinstance(e, Call) and e.function == "exp" for x in e.args}
    for e in (e for e in every if isinstance(e, Call) and e.function == "sub"):
        for x, y in (e.args, e.args[::-1]):
            product, other = meant(x), meant(y)
            if not isinstance(product, Call) or product.function not in ("mul", "pow") or other == product:
                continue
            if depends(y, product) or e in exponents and is_logarithm(other):
                return True
    return False


def fold_literals(function: str, numbers: list, result: ElementType) -> bool | int | float | None:
    """The value of a function of literals alone; None where its row has no NumPy function or it casts."""
    if FUNCTIONS[function].numpy is None or not result.weak:
        return None
    return _folded(function, result.dtype, *numbers)


@followed
def _folded(function: str, dtype: str, *numbers: bool | int | float) -> bool | int | float:
    row = FUNCTIONS[function]
    assert row.numpy is not None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        value = row.numpy(*(np.float64(n) if isinstance(n, float) else np.asarray(n) for n in numbers))
    value = np.asarray(value).item()
    return float(value) if is_floating(dtype) else bool(value) if dtype == "bool" else int(value)


@followed
def fit(n: bool | int | float, dtype: str) -> bool | int | float:
    """A number as an element of this type: integers wrap, as they do where a tensor is cast."""
    if dtype == "bool":
        return bool(n)
    if is_floating(dtype):
        return float(n)
    if isinstance(n, float) and not math.isfinite(n):
        n = 0
    bits, signed = INTEGER_BITS[dtype]
    n = int(n) & ((1 << bits) - 1)
    return n - (1 << bits) if signed and n >> (bits - 1) else n


def identity(aggregation: str, dtype: str) -> bool | int | float:
    """What an element of this type holds that no point reaches."""
    value = AGGREGATIONS[aggregation].identity
    if is_floating(dtype) or math.isfinite(value):
        return fit(value, dtype)
    if dtype == "bool":
        return value > 0
    bits, signed = INTEGER_BITS[dtype]
    high = (1 << (bits - signed)) - 1
    return high if value > 0 else (-high - 1 if signed else 0)


def accumulation_dtype(aggregation: str, dtype: str) -> str:
    """What values are combined in: 16-bit floating sums, products and logsumexp in float32."""
    return "float32" if aggregation in ("sum", "prod", "logsumexp") and dtype in NARROW else dtype
