"""`in(...)` of what lies inside wherever the statement has a point: it says nothing.

The gradient of `X[i] - X[max(i - 1, 0)]` hands on `D[i] * in(X[max(i - 1, 0)])`, which is D[i]. Without the question it
is no statement of its own. The same holds for a guard that asks by branches: `i < N/2 ? i + N/2 : i - N/2` lies inside
at all i < N, so `X[i] * R[i < N/2 ? i + N/2 : i - N/2]`, read in two halves, has all of its points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.functions import ZERO, all_of, operands_of
from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    reads_itself,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, Types, is_floating
from tilec.lattice.conditions import bound_of
from tilec.lattice.sets import Box, Shapes, shapes_of
from tilec.transforms.lower.reduce import keep_constraint_variables
from tilec.transforms.lower.tighten_domains import box_in_text, interval_over
from tilec.transforms.simplify.simplify import fold, is_bool
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
    left = s if reads_itself(s) else _unguarded(s, shapes)
    for question in () if reads_itself(s) else asked:
        if all(linear(i).is_affine for i in question.access.index):
            continue  # bounds say the same
        known = replace(left, body=with_parts(left.body, {question: Int(1)}))
        box = box_in_text(known, shapes)
        if box is not None and _surely_inside(question.access, box, shapes):
            left = keep_constraint_variables(known)
    return left if left is s else _as_value(left, types)


def _unguarded(s: Statement, shapes: Shapes) -> Statement:
    """The statement without tests of its guard that ask in branches what lies inside, and hold at all of its points."""
    tests = () if s.guard is None else operands_of("and", s.guard)
    choices = [t for t in tests if isinstance(t, Call) and t.function == "select"]
    asking = [t for t in choices if any(isinstance(e, Inside) for e in walk(t))]
    if not asking or len(tests) > 1 and not all(map(is_bool, tests)):  # 1 & 2 is false
        return s
    kept = list(tests)
    for test in asking:
        rest = [t for t in kept if t is not test]
        box = box_in_text(replace(s, guard=all_of(rest)), shapes)
        if box is not None and {*index_variables(test)} <= box.keys() and _holds(test, box, shapes):
            kept = rest
    return s if len(kept) == len(tests) else keep_constraint_variables(replace(s, guard=all_of(kept)))


def _holds(e: Expr, box: Box, shapes: Shapes) -> bool:
    """Whether a test that asks what lies inside surely holds wherever variables are in the box."""
    match e:
        case Int(value):
            return value != 0
        case Call("select", (test, yes, no)):
            boxes = zip((yes, no), (_narrower(box, test, sense) for sense in (True, False)), strict=True)
            return all(own is None or _holds(branch, own, shapes) for branch, own in boxes)
        case Call("and", (a, b)):
            return _holds(a, box, shapes) and _holds(b, box, shapes)
        case Call("ne", (Pad(Inside(access), value), zero)) if value == ZERO == zero:
            return _surely_inside(access, box, shapes)
    return False


def _surely_inside(access: Access, box: Box, shapes: Shapes) -> bool:
    """Whether an access, and those that its index reads, lie inside wherever variables are in the box."""
    places = [(linear(i), n) for a in accesses_in(access) for i, n in zip(a.index, shapes[a.tensor], strict=True)]
    spans = [(interval_over(form, box), n) for form, n in places]
    return all(span is not None and span[0] >= 0 and span[1] < n for span, n in spans)


def _narrower(box: Box, test: Expr, sense: bool) -> Box | None:
    """The part of a box where a comparison of one variable holds, or (by `sense`) does not; all of it for other tests,
    None where there is none."""
    form = bound_of(fold(test))
    if form is None or len(form.variables()) != 1:
        return box
    form = form if sense else form * -1 - 1
    (v,) = form.variables()
    (low, high), step = box[v], form.coefficient(v)
    if step not in (1, -1):
        return box
    low, high = (max(low, as_int(-form.constant)), high) if step == 1 else (low, min(high, as_int(form.constant)))
    return {**box, v: (low, high)} if low <= high else None


def _as_value(s: Statement, types: Types) -> Statement:
    names = distinct_variables(s.index)
    alone = names is not None and {*index_variables(*s.roots)} <= {*names} and not s.constraints and s.default is None
    floats = is_floating(types[s.output].dtype)
    return replace(s, aggregation="assign") if alone and floats and s.aggregation == "sum" else s
