"""Simplification: what goes, what must stay, and that no value or type changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.errors import TypeMistake
from tilec.ir.evaluate import evaluate
from tilec.ir.infer import infer
from tilec.ir.program import Call, Float, Int, Name, Program, Statement
from tilec.ir.types import DTYPES, TensorType, is_floating, kind
from tilec.ir.verify import verify
from tilec.language import parse, show, show_expr
from tilec.pipeline import lower
from tilec.transforms.bind.bind import bind
from tilec.transforms.simplify.simplify import fold, simplify, truth


def expression(text: str):
    return parse(f"function (X, Y) -> (Z) {{ Z = {text}; }}").statements[0].body


@pytest.mark.parametrize(
    "before, after",
    [
        ("2 * 3 + 4", "10"),
        ("2 - 5", "-3"),
        ("8 / 2", "4"),
        ("0.5 * 4", "2.0"),
        ("sin(X) * 1", "sin(X)"),
        ("1 * sin(X)", "sin(X)"),
        ("int8(X) + 0", "int8(X)"),
        ("0 + int8(X)", "int8(X)"),
        ("sin(X) - 0", "sin(X)"),
        ("sin(X) / 1", "sin(X)"),
        ("--sin(X)", "sin(X)"),
        ("--uint8(X)", "uint8(X)"),
        ("sin(X) + -sin(Y)", "sin(X) - sin(Y)"),
        ("int8(X) - -(Y * 0.5)", "int8(X) + Y * 0.5"),
        ("ident(ident(X))", "X"),
        ("1 < 2 ? sin(X) : 0", "sin(X)"),
        ("2 == 3 ? 0 : sin(X)", "sin(X)"),
        ("3 > 2 ? X : X", "X"),
        ("(X < Y) == 0 ? X : 2.0", "X < Y ? 2.0 : X"),
        ("exp(2 * 3 * X)", "exp(6 * X)"),
    ],
)
def test_identities(before, after):
    assert show_expr(fold(expression(before))) == after


@pytest.mark.parametrize(
    "text",
    [
        "X * 1",  # a bool times 1 is an integer
        "X + 0",
        "X / 1",
        "(X > Y) * 1",
        "(X == Y) + -Y",
        "(X == Y) + -sin(Y)",  # refused: `-` takes no bool
        "--X",
        "sin(X) + 0",  # -0.0 + 0 is 0.0
        "0 + sin(X)",
        "X - -Y",  # -Y may wrap in a narrower type than the difference has
        "sin(X) - -uint8(Y)",
        "sin(X) + -int64(Y)",
        "9007199254740993 == 9007199254740992.0 ? X : 0",  # equal, in float64
        "X * 0",  # infinite or NaN
        "X - X",
        "sin(X) * 1.0",  # an integer argument would become floating
        "X + 2 + 3",  # floating addition is not associative
        "2 * (3 * X)",
        "X == 0 ? Y : 2.0",  # X may be no truth
        "X > 0 ? Y : Y",  # the shape comes from X as well
        "0 ? X : 0.0",  # zeros of X's shape
        "1 ? X : 0.5",  # floating even where X is an integer
        "1 ? X : 0",  # an integer even where X is bool
        "9223372036854775807 + 1",
        "1e200 * 1e200",
        "7 / 2",
        "1 / 0",
    ],
)
def test_what_stays(text):
    e = expression(text)
    assert fold(e) is e


def test_conditions_that_literals_decide():
    for text, known in {
        "0": False,
        "-2": True,
        "1 < 2": True,
        "2 != 2": False,
        "X": None,
        "X > 0": None,
        "2 == 0 & X > 0": False,
        "2 != 0 & X > 0": None,
        "2 != 0 | X > 0": True,
        "(2 == 0 & X > 0) == 0": True,
        "2 & 1": None,
    }.items():
        assert truth(expression(text)) is known, text


def test_numbers_meet_in_float64_where_they_are_compared():
    assert truth(expression("9007199254740993 == 9007199254740992.0")) is True
    assert truth(expression("9007199254740993 == 9007199254740992")) is False


@pytest.mark.parametrize("x", DTYPES)
@pytest.mark.parametrize("y", DTYPES)
@pytest.mark.covering
def test_negation_wraps_in_its_own_type(x, y):
    """Every pair of types, at the ends of their ranges: the oracle on the source against the simplified statement."""
    arrays = [_extremes(x), _extremes(y)]
    types = {"X": TensorType((6,), x), "Y": TensorType((6,), y)}
    for text in ("X - -Y", "X + -Y", "X + 0", "0 + X", "X - 0", "--X", "-(-X - -Y)", "X*1 - -(Y*1)", "1 / (X + 0)"):
        program = parse(f"function (X, Y) -> (Z) {{ Z = {text}; }}")
        try:
            bound = bind(program, types, {})
        except TypeMistake:
            assert "bool" in (x, y)
            continue
        known = {name: frozenset((kind(t.dtype),)) for name, t in types.items()}
        changed = simplify(bound, inputs=known)
        assert infer(changed, types)["Z"] == infer(bound, types)["Z"], text
        expected, got = (evaluate(p, arrays)[0] for p in (bound, changed))
        np.testing.assert_array_equal(got, expected, err_msg=text)
        if expected.dtype.kind == "f":
            signs = np.signbit(got) == np.signbit(expected)
            assert (signs | np.isnan(expected)).all(), text


def _extremes(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.array([0, 1, 1, 0, 1, 0], bool)
    if is_floating(dtype):
        return np.array([-0.0, 0.0, 1.5, -2.0, np.inf, np.nan])
    ends = np.iinfo(dtype)
    return np.array([0, 1, ends.max, ends.min, ends.max - 1, 3], dtype)


def test_where_types_are_known_signs_are_merged():
    program = parse("function (X[N], Y[N]) -> (Z) { T = -Y; Z = X - -Y; }")
    for dtype, kept in (("float32", False), ("float64", False), ("uint8", True), ("int64", True)):
        types = {"X": TensorType((3,), "float64"), "Y": TensorType((3,), dtype)}
        assert ("- -" in show(lower(program, types, {}).stages["flat"])) is kept


def test_a_guard_with_reads_stays_even_if_it_is_true():
    source = "function (A[N], B[M]) -> (O) { O[i : N] = +((A[i] > 0 | 1 == 1) ? B[i]); }"
    assert simplify(parse(source)) == parse(source)
    assert show(simplify(parse(source.replace("A[i] > 0 | ", "")))).count("?") == 0


def test_equal_statements_copies_and_dead_ones_go():
    program = parse("""function (X[N], W) -> (Y, Z, C) {
        T = X; V = sin(X); V2 = sin(T); Dead = V * W; Y = V + V2;
        P[i : N] = +(X[i] * X[j]); Z[i : N] = +(T[i] * X[j]); B = Y + P; D = B; C = D * D;
    }""")
    assert [line.strip() for line in show(simplify(program)).splitlines()[1:-1]] == [
        "V = sin(X);",
        "Y = V + V;",
        "P[i : N] = +(X[i] * X[j]);",
        "Z[i0 : N] = P[i0];",
        "B = Y + P;",
        "C = B * B;",
    ]
    assert [s.output for s in simplify(program, ["Y"]).statements] == ["V", "Y"]
    assert simplify(program, ["Y"]).outputs == ("Y",)


def test_an_output_that_copies_takes_the_place_of_what_it_copies():
    program = simplify(parse("function (X) -> (Y, X) { T = X * X; U = T + 1; Y = U; }"))
    assert [line.strip() for line in show(program).splitlines()[1:-1]] == ["T = X * X;", "Y = T + 1;"]
    for same in ("function (X) -> (Y) { Y = X; }", "function (X) -> (Y, T) { T = X * X; Y = T; }"):
        assert simplify(parse(same)) == parse(same)


def test_statements_that_differ_in_anything_but_the_name_stay():
    source = "function (A[N]) -> (O) { P[i : N] = +(A[i]) default A; Q[i : N] = +(A[i]); O = P - Q; }"
    assert simplify(parse(source)) == parse(source)


def test_a_copied_bound_statement_is_still_bound():
    program = parse("function (A[N, M]) -> (O, P) { O = A * A; P = A * A; }")
    bound = bind(program, {"A": TensorType((2, 3), "float32")}, {})
    result = simplify(bound)
    verify(result, bound=True)
    assert show(result).count("A[") == 3  # the declaration, and one product


LEAVES = [Name("X"), Name("K"), Name("B"), Int(0), Int(1), Int(2), Float(0.0), Float(1.0), Float(2.5)]
BINARY = ["add", "sub", "mul", "div", "eq", "lt", "max"]
UNARY = ["neg", "ident", "abs", "sin"]
VALUES = {"X": np.array([-0.5, 0.0, np.inf, np.nan]), "K": np.array([3, -2, 0, 7]), "B": np.array([True, False] * 2)}


def branch(below):
    return st.one_of(
        st.builds(lambda f, a: Call(f, (a,)), st.sampled_from(UNARY), below),
        st.builds(lambda f, a, b: Call(f, (a, b)), st.sampled_from(BINARY), below, below),
        st.builds(lambda c, a, b: Call("select", (c, a, b)), below, below, below),
    )


@given(st.recursive(st.sampled_from(LEAVES), branch, max_leaves=8))
def test_no_value_shape_or_type_changes(e):
    """Over floats, integers and bool: an identity that holds for one kind only would show."""
    inputs = parse("function (X, K, B) -> (X) { }").inputs
    program = Program(None, inputs, ("O",), (Statement("O", None, None, e),))
    types = {"X": TensorType((4,), "float32"), "K": TensorType((4,), "int32"), "B": TensorType((4,), "bool")}
    try:
        expected = infer(bind(program, types, {}), types)["O"]
        (value,) = evaluate(program, list(VALUES.values()))
    except Exception as error:  # not a program that has a value: nothing to keep
        assert type(error).__module__ == "tilec.errors"
        return
    result = simplify(program)
    assert infer(bind(result, types, {}), types)["O"] == expected
    np.testing.assert_array_equal(evaluate(result, list(VALUES.values()))[0], value)
