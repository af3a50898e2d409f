"""`in(...)` of what lies inside wherever the statement has a point: it says nothing.

The gradient of `X[i] - X[max(i - 1, 0)]` hands on `D[i] * in(X[max(i - 1, 0)])`, which is D[i]. Without the question it
is no statement of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import infer
from tilec.ir.program import Inside, Int, Pad, Program, Statement, index_variables, reads_itself, walk
from tilec.ir.types import TensorType, Types, is_floating
from tilec.lattice.sets import Shapes, shapes_of
from tilec.transforms.lower.reduce import keep_constraint_variables
from tilec.transforms.lower.tighten_domains import box_in_text, interval_over
from tilec.transforms.util.rewrite import with_parts


def known_inside(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """A flat program without such questions; a sum of one value for each element that is left is that value."""
    if not any(isinstance(e, Inside) for s in program.statements for e in walk(*s.roots)):
        return program
    shapes, types = shapes_of(program), infer(program, inputs)
    return replace(program, statements=tuple(_without(s, shapes, types) for s in program.statements))


def _without(s: Statement, shapes: Shapes, types: Types) -> Statement:
    padded = {e.access for e in walk(*s.roots) if isinstance(e, Pad)}
    asked = dict.fromkeys(e for e in walk(s.body) if isinstance(e, Inside) and e not in padded)
    left = s
    for question in () if reads_itself(s) else asked:
        forms = list(zip(map(linear, question.access.index), shapes[question.access.tensor], strict=True))
        if all(form.is_affine for form, _ in forms):
            continue  # bounds say the same
        known = replace(left, body=with_parts(left.body, {question: Int(1)}))
        box = box_in_text(known, shapes)
        spans = [None if box is None else interval_over(form, box) for form, _ in forms]
        if all(span and span[0] >= 0 and span[1] < n for span, (_, n) in zip(spans, forms, strict=True)):
            left = keep_constraint_variables(known)
    return left if left is s else _as_value(left, types)


def _as_value(s: Statement, types: Types) -> Statement:
    names = distinct_variables(s.index)
    alone = names is not None and {*index_variables(*s.roots)} <= {*names} and not s.constraints and s.default is None
    floats = is_floating(types[s.output].dtype)
    return replace(s, aggregation="assign") if alone and floats and s.aggregation == "sum" else s
