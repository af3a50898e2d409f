"""The identities: true, no less accurate than what they replace, applied where they pay and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scale import scaled
from support.stages import check, gradient

import tilec
from tilec.ir.evaluate import evaluate
from tilec.ir.infer import infer
from tilec.ir.program import Call, expressions, walk
from tilec.ir.types import DTYPES, TensorType, kind
from tilec.language import parse, show
from tilec.pipeline import lower
from tilec.transforms.bind.bind import bind
from tilec.transforms.simplify.identities import IDENTITY_RULES, _one_minus_cosine, _sine_and_cosine, apply_identities
from tilec.transforms.simplify.simplify import simplify

# what is written -> what is computed of it
TABLE = {
    "sin(X) * cos(X)": (_sine_and_cosine, "0.5 * sin(2 * X)"),
    "cos(X) * sin(X)": (_sine_and_cosine, "0.5 * sin(2 * X)"),
    "2 * sin(X) * cos(X)": (_sine_and_cosine, "sin(2 * X)"),
    "Z * sin(X) / Z * cos(X) * Z * 2": (_sine_and_cosine, "Z * sin(2 * X) / Z * Z"),
    "-(Z * cos(X)) / 3 * sin(X)": (_sine_and_cosine, "-(Z * (0.5 * sin(2 * X))) / 3"),
    "1 - cos(X)": (_one_minus_cosine, "2 * (sin(0.5 * X) * sin(0.5 * X))"),
    "1.0 - cos(2 * X)": (_one_minus_cosine, "2 * (sin(X) * sin(X))"),
    "1 - cos(4 * Z * X)": (_one_minus_cosine, "2 * (sin(2 * Z * X) * sin(2 * Z * X))"),
    "cos(X) - 1": (_one_minus_cosine, "-(2 * (sin(0.5 * X) * sin(0.5 * X)))"),
}


def flat(source: str, dtype: str = "float64", **other: str) -> str:
    program = parse(source)
    types = {name: TensorType((4,), other.get(name, dtype)) for name in program.input_names()}
    return show(lower(program, types, {}).stages["flat"]).replace("[i0]", "").replace("[i0 : 4]", "")


def calls(text: str, source: str) -> int:
    return sum(
        e.function in ("sin", "cos")
        for s in parse(source.format(text)).statements
        for root in expressions(s)
        for e in set(walk(root))
        if isinstance(e, Call)
    )


PROGRAM = "function (X, Z) -> (Y) {{ Y = {}; }}"


@pytest.mark.parametrize("written", TABLE)
def test_each_row(written):
    rule, computed = TABLE[written]
    assert rule in IDENTITY_RULES
    assert f"Y = {computed};" in flat(PROGRAM.format(written))
    x, z = sympy.symbols("X Z", positive=True)
    before, after = (sympy.sympify(t.replace("0.5", "1/2"), {"X": x, "Z": z}) for t in (written, computed))
    assert sympy.simplify(sympy.expand_trig(sympy.expand(before - after))) == 0
    assert calls(computed, PROGRAM) <= calls(written, PROGRAM)


def test_every_rule_has_a_row():
    assert {rule for rule, _ in TABLE.values()} == set(IDENTITY_RULES)


def errors(text: str, dtype: torch.dtype) -> torch.Tensor:
    """Relative errors in units of the last place, against float64 (of what is written in double: exact to 1e-13)."""
    scale = torch.logspace(-12, 4, 4001, dtype=torch.float64)
    x = torch.cat((scale, -scale)).to(dtype)
    z = torch.tensor([0.5, 1, 2, 4], dtype=dtype).repeat(x.numel())[: x.numel()]  # rounds no argument
    names = {"X": x, "Z": z, "sin": torch.sin, "cos": torch.cos}
    exact = {"X": x.double().numpy(), "Z": z.double().numpy(), "sin": np.sin, "cos": np.cos}
    got = eval(text, names).double().numpy()
    want = eval(TABLE[text][1] if text in TABLE else text, exact)
    return torch.from_numpy(np.abs(got - want) / np.abs(want)) / torch.finfo(dtype).eps


@pytest.mark.parametrize("written", TABLE)
def test_what_is_computed_is_no_less_accurate(written):
    """Over 16 decades of float32: within a few units in the last place, and not much beyond the form it replaces."""
    computed = TABLE[written][1]
    before, after = errors(written, torch.float32), errors(computed, torch.float32)
    products = written.count("*") + written.count("/") + 2
    assert after.max() <= 2 + products
    assert after.max() <= before.max() + 2
    if TABLE[written][0] is _one_minus_cosine:
        assert before.max() > 1e6 * after.max()  # all digits are lost where cos(x) rounds to 1


@pytest.mark.parametrize(
    "text",
    [
        "sin(X) * cos(Z)",
        "sin(X) * cos(X) + cos(X)",  # the cosine is needed all the same
        "sin(X) * cos(X) + sin(X)",
        "sin(X) * sin(X)",
        "(1 - cos(X)) * cos(X)",
        "2 - cos(X)",
        "1 + cos(X)",
        "Z * (X * sin(X)) * cos(X)",  # not of one chain: what stands between might truncate or round
        "Z / sin(X) * cos(X)",
    ],
)
def test_what_stays(text):
    assert f"Y = {text};" in flat(PROGRAM.format(text))


def test_what_another_statement_computes_is_shared():
    both = flat("function (X, Z) -> (Y, S) { Y = sin(X) * cos(X); S = sin(X); }")
    assert "Y = sin(X) * cos(X);" in both
    both = flat("function (X, Z) -> (Y, S) { Y = sin(X) * cos(X); S = sin(Z); }")
    assert "Y = 0.5 * sin(2 * X);" in both


def test_integers_stay():
    """2 * X of an int8 may wrap, and what is left of a product of integers may truncate."""
    for text in ("sin(X) * cos(X)", "1 - cos(X)"):
        assert f"Y = {text};" in flat(PROGRAM.format(text), "int8")
    kept = flat(PROGRAM.format("Z * 2 / 3 * sin(X) * cos(X)"), Z="int32")
    assert "Y = Z * 2 / 3 * (0.5 * sin(2 * X));" in kept
    random = np.random.default_rng(0)
    arrays = [random.integers(-9, 9, 6).astype(np.int8), random.integers(-9, 9, 6)]
    assert "cos" not in flat(PROGRAM.format("1 - cos(2 * Z * X)"), "float32", Z="int8")
    wrapping = [np.array([0.1, 0.2, 0.3]), np.array([100, -128, 5], np.int8)]
    for text in ("1 - cos(2 * Z * X)", "1 - cos(X * (2 * Z))", "1 - cos(4 / Z * X)", "1 - cos(2 * (Z * X))"):
        check(parse(PROGRAM.format(text)), wrapping)
    for text in ("Z * 2 / 3 * sin(0.5 * X) * cos(0.5 * X)", "Z * cos(0.1 * X) / 4 * sin(0.1 * X)", "sin(X) * cos(X)"):
        check(parse(PROGRAM.format(text)), arrays)


@pytest.mark.parametrize("wave", ["sin(A*X)*sin(A*X)/A", "pow(sin(A*X), 2)/A", "(1 - cos(2*A*X))/(2*A)"])
def test_the_gradient_of_a_snake_has_one_sine(wave):
    """By x alone; with the gradient by alpha, which needs the sine itself, sine and cosine are shared by both."""
    program = parse(f"function (X[N], A[N]) -> (Y) {{ Y = X + {wave}; }}")
    arrays = [np.linspace(-3, 3, 7), np.linspace(0.2, 2, 7)]
    check(program, arrays)
    check(gradient(program, arrays), [*arrays, np.linspace(1, 2, 7)])
    f = tilec.compile(show(program)).grad("X")
    spec = tilec.spec((7,), "float64")
    text = show(f.lower(spec, spec, spec).stages["flat"])
    assert text.count("sin(") + text.count("cos(") == 1


FACTORS = ("sin(X)", "cos(X)", "2", "3", "Z", "I", "0.5", "sin(Z)", "cos(Z)", "(2 * X)", "(I * cos(X))", "X")


@st.composite
def chains(draw) -> str:
    """A product of factors and divisors in which a sine and a cosine of one argument stand, or nearly."""
    text = draw(st.sampled_from(FACTORS))
    for _ in range(draw(st.integers(1, 5))):
        operation = draw(st.sampled_from(("*", "*", "*", "/")))
        divisors = ("2", "3", "I", "Z")
        text += f" {operation} {draw(st.sampled_from(FACTORS if operation == '*' else divisors))}"
        text = draw(st.sampled_from((text, text, f"-({text})", f"1 - cos({text})", f"1 - cos(2 * I * ({text}))")))
    return text


@settings(max_examples=scaled(150))
@given(chains(), st.sampled_from(DTYPES[:4]), st.sampled_from(DTYPES[:4]), st.sampled_from(("int8", "int64")))
def test_chains_keep_their_value_and_type(text, x, z, integer):
    program = parse(f"function (X, Z, I) -> (Y) {{ Y = {text}; }}")
    types = {n: TensorType((5,), d) for n, d in zip(program.input_names(), (x, z, integer), strict=True)}
    known = {name: frozenset((kind(t.dtype),)) for name, t in types.items()}
    before = simplify(bind(program, types, {}), inputs=known)
    after = apply_identities(before, known)
    assert infer(after, types) == infer(before, types)
    arrays = [np.linspace(-2, 2, 5) + 0.1, np.linspace(0.5, 1.5, 5), np.array([1, 100, -3, -128, 5], integer)]
    (expected,), (got,) = evaluate(before, arrays), evaluate(after, arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12, err_msg=show(after))
