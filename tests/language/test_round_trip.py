"""parse(show(p)) == p, and show gives the canonical text."""

import math
from pathlib import Path

import pytest

from tilec.ir.functions import call
from tilec.ir.program import (
    Access,
    Aggregate,
    Attribute,
    Constraint,
    Float,
    Index,
    Input,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
)
from tilec.ir.verify import verify
from tilec.language import parse, show, show_expr, show_statement

PROGRAMS = [text.strip() + "\n" for text in (Path(__file__).parent / "canonical.tile").read_text().split("---")]


@pytest.mark.parametrize("text", PROGRAMS)
def test_canonical_text_is_shown_as_it_is(text):
    p = parse(text)
    verify(p)
    assert show(p) == text
    assert parse(show(p)) == p


SAME = [
    # two ways of writing one program, statements only
    ("O[i, j] = +(A[i, k] * B[k, j])", "O[i, j] = sum(A[i, k] * B[k, j]);"),
    ("O[i : 3] = =(A[i]);", "O[i:3]=A[i]"),
    ("O[i : 3] = assign(A[i]);", "O[i:3]=A[i]"),
    ("O[ : ] = +(A[i]);", "O[] = +(A[i]);"),
    ("O[i : 3] = +(A[2i + 1]);", "O[i : 3] = +(A[2 * i + 1]);"),
    ("O[i : 3] = >(A[B[i]]);", "O[i : 3] = max(A[ B[ i ] ] );"),
    ("O = cond(A, 1, 2)", "O = A ? 1 : 2"),
    ("O = A ? 1 : B ? 2 : 3", "O = A ? 1 : (B ? 2 : 3)"),
    ("O = A ? B ? 1 : 2 : 3", "O = A ? (B ? 1 : 2) : 3"),
    ("O = A - B - C", "O = (A - B) - C"),
    ("O = A ^ B | C & D == E", "O = A ^ (B | (C & (D == E)))"),
    ("O = A < B << C + D * -E", "O = A < (B << (C + (D * (-E))))"),
    ("O = -A * B", "O = (-A) * B"),
    ("O = add(A, mul(B, cmp_lt(A, bit_not(B))))", "O = A + B * (A < ~B)"),
    (
        "O = as_float(A, 16) + as_int(A, 8) + as_uint(A, 32) + as_bool(A)",
        "O = float16(A) + int8(A) + uint32(A) + bool(A)",
    ),
    ("O[i] = A[i] + (A[i] > 0 ? B[i])", "O[i] = A[i] > 0 ? (A[i] + B[i])"),
    ("O[i] = (A[i] > 0 ? B[i]) + (A[i] ? 1)", "O[i] = (A[i] > 0) & (A[i] != 0) ? B[i] + 1"),
    ("O[i] = A[i] ? B[i] ? 1", "O[i] = (A[i] != 0) & (B[i] != 0) ? 1"),
    ("O[i] = +(A[i, j]), j < 3, j < 3", "O[i] = +(A[i, j]), j < 3"),
    ("O = A; // a comment\n# another\nP = O", "O = A;P = O;"),
    ("\ufeffO\t=\r\n  A;\r\n", "O = A"),
    ("O = 1.5e3 + 1e2 + .5 + 2.", "O = 1500.0 + 100.0 + 0.5 + 2.0"),
    ("O = A' + exp(B)", "O=A'+exp(B)"),
]


@pytest.mark.parametrize("a, b", SAME)
def test_the_same_program(a, b):
    assert parse(a) == parse(b)
    assert parse(show(parse(a))) == parse(a)


def test_a_colon_goes_with_the_nearest_question_mark():
    p = parse("O[i : 3] = A[i] ? B[i] ? 1 : 2;")
    assert show_statement(p.statements[0]) == "O[i : 3] = A[i] ? (B[i] ? 1 : 2);"


i, j = Index("i"), Index("j")
x = Access("A", (i,))


def made(body, aggregation="assign", **parts):
    return Statement("O", (i,), (Int(4),), body, aggregation, **parts)


# what passes make and the parser alone would not
MADE = [
    made(Aggregate("sum", Access("A", (j,)), ("j",))),
    made(Aggregate("sum", x, ())),
    made(x + call("neg", -Int(3))),
    made(x - (x - -Float(1e-300))),
    made(call("select", call("select", x, x, Int(1)), x, call("select", x, x, x))),
    made(x, guard=call("select", x, x, Int(0))),
    made(x, guard=call("and", call("lt", x, Int(2)), x)),
    made(call("lt", call("lt", x, x), call("eq", x, x))),
    made(call("eq", call("eq", x, x), x)),
    made(Access("A", (call("mod", Int(2) * call("mod", i, Int(3)), Int(4)),))),
    made(Access("A", (-i - Int(1) / Int(2),))),
    made(Access("A", (-(Int(1) / Int(3)) * i,))),
    made(Pad(Inside(x), -Float(math.inf))),
    made(Inside(x) * Pad(x, Int(1))),
    made(Access("A", (j,)), constraints=(Constraint(i - j, Int(1)),)),
    made(Access("A", (j,)), "max", constraints=(Constraint(i - j, Int(3)),)),
    made(call("same", Int(3), Int(3), Int(3))),
    made(Int(2), "sum", default="A", no_defract=True, attributes=(Attribute("a", ("b",)),)),
    Statement("O", None, None, Aggregate("argmax", x, ("i",), guard=call("gt", x, Int(0)))),
    Statement("O", (), (), Aggregate("sum", x * Aggregate("max", Access("A", (i + j,)), ("j",)), ("i",))),
    Statement(
        "O",
        None,
        None,
        Aggregate("sum", x, ("i",), constraints=(Constraint(i, Int(2)), Constraint(Int(2) * i, Int(3)))),
    ),
]


@pytest.mark.parametrize("statement", MADE, ids=range(len(MADE)))
def test_made_programs_go_round(statement):
    p = Program(None, (Input("A", (4,)),), ("O",), (statement,))
    verify(p)
    assert parse(show(p)) == p


def test_assign_of_an_aggregation_is_not_that_aggregation():
    assert show_statement(made(Aggregate("sum", x, ()))) == "O[i : 4] = =(sum(A[i]));"


def test_show_expr():
    assert show_expr((i + Int(1)) * Name("N")) == "(i + 1) * N"
    assert show_expr((i + Int(1)) * Name("N"), tight=True) == "(i + 1)*N"
