"""torch.autocast, by one rule: a program counts as the kind of operation that it holds, and is called accordingly.

- Products: a sum over products of different tensors, both of which run along what is summed (matrix products,
  convolutions, attention), takes its inputs in the type that autocast asks for, as torch's own do.
- Otherwise, sums, products, means, logsumexps, recurrences and functions that lose a 16-bit type's range or precision
  take 16-bit inputs in float32, as torch's do.
- Anything else takes what it is given.

float64 and Python numbers stay what they are. A product's inputs are cast before the call, which torch records. What
takes 16-bit inputs in float32 reads them as they are: it becomes a program that casts each element, whose gradients
are rounded where they are written. Within the call autocast is off, in the backward pass too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import compress

import torch

from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Program,
    accesses_in,
    expressions,
    index_variables,
    reads_itself,
    walk,
)
from tilec.specialise import Specialiser
from tilec.transforms.in_float32 import in_float32

SENSITIVE = frozenset(
    "exp expm1 log log1p logaddexp pow rsqrt recip tan asin acos sinh cosh softplus".split()  # torch's, by name
)
ADDING = frozenset(("sum", "prod", "mean", "logsumexp"))
HALF_DTYPES = (torch.float16, torch.bfloat16)


def autocast_call(
    function: Specialiser, tensors: Sequence[torch.Tensor], weak: Sequence[bool]
) -> tuple[Specialiser, Sequence[torch.Tensor]]:
    """The function and the inputs by which autocast has a call done; where `weak` says so, numbers that are no tensors
    yet."""
    device = next((t.device.type for t, w in zip(tensors, weak, strict=True) if not w), "cpu")
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):  # meta has none
        return function, tensors
    how = _kind_of(function)
    if how == "as given":
        return function, tensors
    taken = (torch.float32, *HALF_DTYPES) if how == "product" else HALF_DTYPES
    mine = [not w and t.dtype in taken for t, w in zip(tensors, weak, strict=True)]
    if how == "float32" and function.gradient is None:
        return computed_in_float32(function, tuple(compress(function.inputs, mine))), tensors
    wanted = torch.get_autocast_dtype(device) if how == "product" else torch.float32
    return function, [t.to(wanted) if m else t for t, m in zip(tensors, mine, strict=True)]


def computed_in_float32(function: Specialiser, names: tuple[str, ...]) -> Specialiser:
    """The function of 16-bit inputs `names`, computed with their float32 values."""
    make = lambda: function.derived(in_float32(function.program, names))  # noqa: E731
    return function.derive("float32", names, make) if names else function


def _kind_of(function: Specialiser) -> str:
    while function.gradient is not None:
        function = function.gradient.forward
    return autocast_kind(function.program)


@cache
def autocast_kind(program: Program) -> str:
    """Which kind of operation autocast is to take a program for: "product", "float32" or "as given"."""
    nodes = [e for s in program.statements for e in walk(*expressions(s))]
    sums: list[tuple[Expr, set[str]]] = []
    for s in program.statements:
        scatters = any(accesses_in(*(s.index or ())))
        if s.aggregation == "sum" and s.index is not None and not scatters:
            sums.append((s.body, set(index_variables(s.body)) - set(index_variables(*s.index))))
    nested = [e for e in nodes if isinstance(e, Aggregate) and e.aggregation == "sum"]
    sums += [(e.body, set(index_variables(e.body)) - set(index_variables(e))) for e in nested]
    if any(_multiplies(body, summed) for body, summed in sums):
        return "product"
    adding = any(s.aggregation in ADDING or reads_itself(s) for s in program.statements)
    adding = adding or any(isinstance(e, Aggregate) and e.aggregation in ADDING for e in nodes)
    return "float32" if adding or any(isinstance(e, Call) and e.function in SENSITIVE for e in nodes) else "as given"


def _multiplies(body: Expr, summed: Iterable[str]) -> bool:
    products = (e.args for e in walk(body) if isinstance(e, Call) and e.function == "mul")
    return any(_apart(a, b, set(summed)) for a, b in products)


def _apart(a: Expr, b: Expr, summed: set[str]) -> bool:
    """Are these of different tensors, and do both run along what is summed?"""
    one, other = ({x.tensor for x in walk(e) if isinstance(x, Access)} for e in (a, b))
    run = all(summed & set(index_variables(e)) for e in (a, b))
    return bool(one and other) and one.isdisjoint(other) and run
