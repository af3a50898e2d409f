"""Reduce and defract on random statements: the same points contribute the same, and the form is the promised one."""

from __future__ import annotations

from dataclasses import replace

import brute_force
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_statements import scatters, statements
from support.scale import scaled

from tilec.ir.index import linear
from tilec.ir.program import Call, Index, Int, index_variables
from tilec.lattice.sets import bounds, domain
from tilec.transforms.lower.defract import defract_statement
from tilec.transforms.lower.reduce import reduce_statement
from tilec.transforms.util.roles import roles


def weighted(s):
    """Distinguishes the points of the statement: one integer from the values of all index variables."""
    value = Int(0)
    for i, v in enumerate(index_variables(*s.index, s.body, *(c.expr for c in s.constraints))):
        value = Call("add", (value, Call("mul", (Int(1000**i), Index(v)))))
    return value


def with_value(s):
    """The statement with that integer in its body, so that passes rewrite it."""
    return replace(s, body=Call("add", (weighted(s), s.body)))


def contributions(s, shapes):
    try:
        return brute_force.contributions(s, shapes, s.body.args[0])
    except brute_force.TooManyPoints:
        assume(False)


@settings(max_examples=scaled(80))
@given(st.one_of(statements(), scatters()))
def test_passes_keep_every_point(case):
    s, shapes = case
    s = with_value(s)
    before = contributions(s, shapes)
    reduced = reduce_statement(s, shapes)
    assert contributions(reduced, shapes) == before
    defracted = defract_statement(reduced, shapes)
    assert contributions(defracted, shapes) == before
    box = bounds(defracted, shapes)
    assert (box is None) == (not before)
    assert defract_statement(defracted, shapes) == defracted


@settings(max_examples=scaled(80))
@given(st.one_of(statements(), scatters()))
def test_reduced_and_defracted_form(case):
    s, shapes = case
    reduced = reduce_statement(s, shapes)
    rows = [linear(e) for e in reduced.index]
    bare = list(dict.fromkeys(r.bare for r in rows if r.bare))
    assert set(bare) == {v for r in rows for v in r.variables()}
    defracted = defract_statement(reduced, shapes)
    part = roles(defracted)
    assert part is not None
    box = bounds(defracted, shapes)
    if box is None:
        return
    assert all(c.form.is_integral for c in domain(defracted, shapes).conditions)
    assert all(0 <= box[v][0] and box[v][1] < n for v, n in part.classes)
    try:
        env, count = brute_force.valid_points(defracted, shapes)
    except brute_force.TooManyPoints:
        assume(False)
    named = [env[v].tolist() for v in (*(v for v, _ in part.classes), *part.outputs)]
    names = set(zip(*named, strict=True)) if named else {()} if count else set()
    assert len(names) == len(brute_force.elements(defracted, shapes))


@settings(max_examples=scaled(80))
@given(st.one_of(statements(), scatters()))
def test_bounds_are_exact(case):
    s, shapes = case
    try:
        env, count = brute_force.valid_points(s, shapes)
    except brute_force.TooManyPoints:
        assume(False)
    expected = {v: (int(x.min()), int(x.max())) for v, x in env.items()} if count else None
    assert bounds(s, shapes) == expected
