"""Elements of elementwise tensors, computed where few of them are read: the logit of the label, a chosen probability.

`Y = 30 * tanh(X / 30); C[n] = Y[n, T[n]]` reads one element of each row of Y, at a place that is data. No kernel that
computes Y knows which, so Y would be stored for it. C[n] is `30 * tanh(X[n, T[n]] / 30)`, rounded as Y is.

So it is with what reads at numbers or at computed places, at an eighth of the elements or fewer. What such an element
is made of must be in memory anyhow: inputs, tensors that are as small, or elementwise of those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.constraining import always, demands
from tilec.ir.functions import RANDOM
from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import expression_type, infer
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    expressions,
    map_values,
    node_count,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, TensorType, Types, is_floating
from tilec.transforms.simplify.sums_at_places import bounded_extents, positions_in
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import body_at

_FEWER = 8  # times as many elements as are read
_MOST_NODES = 64  # of an element's expression
_COMPARING = ("eq", "ne")


def compute_where_read(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The program with such reads computed; `inputs` are the types of its inputs."""
    types = infer(program, inputs)
    made = {s.output: s for s in program.statements}
    elements = _Elements(made, types)
    statements = tuple(elements.computed(s) for s in program.statements)
    return program if statements == program.statements else replace(program, statements=statements)


class _Elements:
    def __init__(self, made: Mapping[str, Statement], types: Types):
        self.made, self.types = made, types

    def computed(self, s: Statement) -> Statement:
        """The statement, which computes the elements that it reads at few places."""
        points = _points(s, self.types)
        if points is None:
            return s
        hidden = [e for e in walk(*expressions(s)) if isinstance(e, (Pad, Inside))]
        asked = {a.tensor for e in hidden for a in walk(e) if isinstance(a, Access)}
        compared = {a.tensor for e in walk(*s.roots) if _compares(e) for a in accesses_in(e)}

        def visit(e: Expr) -> Expr:
            e = rebuild(e, visit)
            if not isinstance(e, Access) or e.tensor in asked | compared or e.tensor not in self.made:
                return e
            few = points * _FEWER <= self.types[e.tensor].numel
            if not few or not any(isinstance(i, Int) or any(accesses_in(i)) for i in e.index):
                return e
            value = self.value(e, points)
            return e if value is None or node_count(value) > _MOST_NODES else value

        return map_values(s, visit)

    def value(self, e: Access, points: int) -> Expr | None:
        """What the element is, of tensors that are stored; None where it is made of others."""
        s = self.made.get(e.tensor)
        if s is None or points * _FEWER > self.types[e.tensor].numel:
            return e
        if not _gives_values(s, self.types):
            return None
        failed = False

        def visit(x: Expr) -> Expr:
            nonlocal failed
            if not isinstance(x, Access):
                return rebuild(x, visit)
            found = self.value(x, points)
            failed = failed or found is None
            return x if found is None else found

        value = visit(body_at(s, e.index))
        if failed:
            return None
        dtype = self.types[e.tensor].dtype
        return Call(dtype, (value,)) if dtype in NARROW else value


def _compares(e: Expr) -> bool:
    return isinstance(e, Call) and e.function in _COMPARING


def _points(s: Statement, types: Types) -> int | None:
    """How many points an assignment or a sum visits, at most, where bare indices bound all its variables."""
    extent = bounded_extents(s, types)
    return None if extent is None else math.prod(extent.values())


def _gives_values(s: Statement, types: Types) -> bool:
    """Whether a statement gives each element of its output a floating value, of elements that are there."""
    names, t = distinct_variables(s.index), types[s.output]
    free = s.aggregation == "assign" and is_pure(s) and is_unmasked(s)
    if names is None or not free or s.attributes or not is_floating(t.dtype) or t.weak:
        return False
    extent = dict(zip(names, t.shape, strict=True))
    for e in walk(s.body):
        if isinstance(e, (Pad, Inside)) or _compares(e) or isinstance(e, Call) and e.function in RANDOM:
            return False
        if isinstance(e, Access):
            for i, n in zip(e.index, types[e.tensor].shape, strict=True):
                if not (isinstance(i, Int) and i.value < n or isinstance(i, Index) and extent.get(i.name, n + 1) <= n):
                    return False
    if positions_in(s.body) or expression_type(s.body, types).dtype != t.dtype:
        return False
    bounds = {
        (linear(i).bare, n)
        for a in always(demands(s.body))
        for i, n in zip(a.index, types[a.tensor].shape, strict=True)
    }
    return set(extent.items()) <= bounds
