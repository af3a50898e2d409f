"""Affine forms: canonical text, arithmetic, substitution, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.errors import AffineMistake
from tilec.ir.index import Affine, as_stored, linear, natural, substitute_affine
from tilec.ir.program import Access, Call, Expr, Float, Index, Int, Pad
from tilec.language import parse, show
from tilec.language.show import show_expr, show_statement

NUMBERS = st.builds(Fraction, st.integers(-4, 4), st.integers(1, 3))
NAMES = ["i", "v1_0", "v1_1", "v2", "v10"]
FORMS = st.builds(Affine.combine, st.dictionaries(st.sampled_from(NAMES), NUMBERS, max_size=4), NUMBERS)


def index_of(text: str) -> Expr:
    """An index expression as the parser reads it."""
    program = parse(f"function (A[9], J[9]) -> (O) {{ O[i, j, v2, v10 : 9, 9, 9, 9] = A[{text}]; }}")
    return program.statements[0].body.index[0]


def value(e: Expr, env: dict[str, int]) -> Fraction:
    """The exact value of an affine tree."""
    match e:
        case Index(name):
            return Fraction(env[name])
        case Int(n):
            return Fraction(n)
        case Call("neg", (a,)):
            return -value(a, env)
        case Call(function, (a, b)):
            x, y = value(a, env), value(b, env)
            return {"add": x + y, "sub": x - y, "mul": x * y}[function] if function != "div" else x / y
    raise AssertionError(e)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("3*j + 2*i", "2*i + 3*j"),
        ("v10 + v2", "v2 + v10"),
        ("7 - 1 - i", "-i + 6"),
        ("(i - j + 1)/2", "1/2*i - 1/2*j + 1/2"),
        ("i - i", "0"),
        ("-(2i)/3 - 1/2", "-2/3*i - 1/2"),
        ("2*(j + 1 - 1) % 5 + i", "i + 2*j % 5"),
        ("i + 2*((j - 3 + 1) % 5)", "i + 2*((j - 2) % 5)"),
        ("clamp(j*2/2, 0, 4 - 1)", "clamp(j, 0, 3)"),
        ("abs(i - 1 + 2)", "max(i + 1, -i - 1)"),
        ("max(j, 1 + 1) - min(-3, 2)", "max(j, 2) + 3"),
        ("abs(1 - 4) + i", "i + 3"),
        ("7 % 5 + clamp(9, 0, 3) - -7 % 3", "3"),
        ("J[j - 1 + 2] + i", "i + J[j + 1]"),
    ],
)
def test_canonical_text(text, canonical):
    e = linear(index_of(text)).to_expr()
    assert e == index_of(canonical)
    assert e == index_of(show_expr(e))


@given(FORMS)
def test_a_form_is_the_form_of_its_tree(form):
    tree = form.to_expr()
    assert linear(tree) == form
    wrapped = Call("add", (Index("i"), Int(1)))  # something to print the tree in
    program = parse("function (A[9]) -> (O) { O[i, v1_0, v1_1, v2, v10 : 9, 9, 9, 9, 9] = A[i + 1]; }")
    (s,) = program.statements
    assert s.body.index == (wrapped,)
    text = show(program).replace(show_statement(s), show_statement(s).replace("A[i + 1]", f"A[{show_expr(tree)}]"))
    assert parse(text).statements[0].body.index == (tree,)


@given(FORMS, FORMS, NUMBERS, st.lists(st.integers(-5, 5), min_size=5, max_size=5))
def test_arithmetic(a, b, factor, values):
    env = dict(zip(NAMES, values, strict=True))

    def at(form):
        return value(form.to_expr(), env)

    assert at(a + b) == at(a) + at(b)
    assert at(a - b) == at(a) - at(b)
    assert at(a * factor) == at(a) * factor
    assert at(a + 3) == at(a) + 3
    whole = at(a)
    assert value(a.to_value(), env) == whole
    assert (a * a.denominator).is_integral
    image = a.substitute({"i": b, "v2": Affine.variable("i", 2)})
    assert at(image) == value(a.to_expr(), env | {"i": at(b), "v2": 2 * env["i"]})


def test_parts_of_a_form():
    form = linear(index_of("i/2 + 3*(j % 4) + J[v2] - 1"))
    assert form.variables() == ("i",)
    assert form.coefficient("i") == Fraction(1, 2) and form.coefficient("j") == 0
    assert [show_expr(a) for a in form.atoms()] == ["J[v2]", "j % 4"]
    assert not form.is_affine and not form.is_integral and form.denominator == 2
    assert linear(Index("i")).bare == "i"
    assert linear(Int(2) * Index("i")).bare is None and linear(Index("i") + Int(1)).bare is None


def test_substitution_reaches_into_atoms_and_accesses():
    change = {"i": Affine.combine({"j": 2}, 1), "j": Affine.variable("v2", Fraction(1, 3))}
    assert (
        show_expr(linear(index_of("(i + 1) % 5 + J[j]")).substitute(change).to_expr()) == "J[1/3*v2] + (2 * j + 2) % 5"
    )


def test_a_statement_divides_by_place():
    text = "function (A[9], B[9]) -> (O) { O[i, j : 9, 9] = i > j ? pad(A[j], i) * B[i - j] + j / 2, i < 4; }"
    (s,) = parse(text).statements
    third = Affine.combine({"j": Fraction(1, 3), "k": Fraction(-2, 3)})
    once = substitute_affine(s, {"j": third})
    assert show_statement(once) == (
        "O[i, 1/3*j - 2/3*k : 9, 9] = i > (j - 2 * k) / 3 ? pad(A[1/3*j - 2/3*k], i) * B[i - 1/3*j + 2/3*k]"
        " + (j - 2 * k) / 3 / 2, i < 4;"
    )
    twice = substitute_affine(once, {"j": Affine.combine({"k": 2, "t": 3})})
    assert show_statement(twice) == ("O[i, t : 9, 9] = i > t ? pad(A[t], i) * B[i - t] + t / 2, i < 4;")


@pytest.mark.parametrize(
    "e",
    [
        Index("i") * Index("j"),
        Int(3) / Index("i"),
        Index("i") / Int(0),
        Float(1.5),
        Call("exp", (Index("i"),)),
        Access("J", (Index("i"),)) * Index("j"),
        Call("mod", (Index("i") * Index("i"), Int(3))),
    ],
)
def test_what_is_not_affine(e):
    with pytest.raises(AffineMistake):
        linear(e)


def test_natural_order():
    names = ["v10", "v2", "v1_1", "v1_0", "v1", "b", "a2", "a"]
    assert sorted(names, key=natural) == ["a", "a2", "b", "v1", "v1_0", "v1_1", "v2", "v10"]


def test_padded_elements_are_atoms():
    form = linear(Pad(Access("J", (Index("i") - Index("i"),)), Int(1)))
    assert form.atoms() == (Pad(Access("J", (Int(0),)), Int(1)),)


def test_kept_variables_are_stored_in_their_order() -> None:
    """A product of `C[s, k, t]` and `D[t, l]` that is summed over s later, and read along k and l."""
    operands = [Access("C", (Index("s"), Index("k"), Index("t"))), Access("D", (Index("t"), Index("l")))]
    assert as_stored(["k", "l", "s"], ["s"], operands) == ("s", "k", "l")
    assert as_stored(["k", "s", "l"], ["s"], [Access("C", (Index("l"), Index("s"), Index("k")))]) == ("l", "s", "k")
