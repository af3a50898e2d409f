"""What is legal and most likely not meant is said, once, where the caller stands; and nothing else is."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch

import tilec
from tilec.transforms.bind.bind import bind

SHAPES = {"A": (2, 3), "B": (5, 4), "V": (5,), "X": (2, 5, 3)}

SAID = {
    "C[i, j] = sum(A[i, k] * B[k, j])": "index of different sizes: 3 (dimension 1 of A), 5 (dimension 0 of B)",
    "C[i, j] = +(A[i, k] * B[k, j])": "only the first 3 of each count",
    "C[i] = tanh(sum(A[i, k] * V[k])) + A[i, 0]": "3 (dimension 1 of A), 5 (dimension 0 of V)",
    "C[i] = logsumexp(max(A[i, k] + V[k]) + A[i, l])": "`k` stands",
    "C[i, j : 2, 4] = +(A[i, k] * B[k, j])": "only the first 3 of each count",
    "C[i, j : 2, 4] = +(A[i, k] * B[k, j]), i - j + 4 < 9": "`k` stands",
    "D = V; C[i] = sum(A[i, k] * D[k])": "5 (dimension 0 of V)",
    "D = 2 * V; C[i] = sum(A[i, k] * D[k])": "5 (dimension 0 of D)",
}  # fmt: skip
MEANT = [
    "C[i, j] = sum(A[i, k] * B[k, j]), k < 3",
    "C[i, j : 2, 4] = +(A[i, k] * B[k, j]), k < 3",
    "C[i, j : 2, 4] = +(A[i, k] * B[k + 1, j])",
    "C[i : 2] = +(A[i, k] * (V[k] > 0 ? B[k, 0] : 0))",
    "C[i, j : 2, 4] = A[i, j] + B[i, j]",  # the output's sizes cut
    "C[i : 2] = sum(A[i, k] * (k < 4 ? V[k]))",
    "C[i] = sum(A[i, k] * V[k + 1])",
    "C[i] = sum(A[i, k] * V[2*k])",
    "C[i] = sum(A[i, k] * pad(V[k], 0))",
    "C[i] = sum(k < 3 ? A[i, k] * V[k])",
    "C[i] = sum(A[i, k]) * sum(V[k])",  # two variables called k
    "C[i] = sum(A[i, k] * A[i, k])",
    "C[i] = sum(A[i, k] * k * V[k])",  # a position is a value here
    "C[i, k] = A[i, k] * X[i, 0, k]",
]


def call(source: str) -> list[warnings.WarningMessage]:
    function = tilec.compile(source)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            function(*(torch.ones(SHAPES[name]) for name in function.inputs))
    return [w for w in caught if w.category is tilec.TileWarning]


@pytest.mark.parametrize("source", SAID)
def test_a_likely_mistake_is_said_once_with_its_place(source: str) -> None:
    (said,) = call(source)
    text = str(said.message)
    assert SAID[source] in text and "^" in text and "hint: declare" in text
    assert said.filename == __file__


def test_differently_named_dimensions():
    function = tilec.compile(
        "function (A[I, K], B[L, J]) -> (C) {\n  C[i, j : I, J] = +(A[i, k] * B[k, j]);\n}", warnings="error"
    )
    function(torch.ones(2, 5), torch.ones(5, 4))
    with pytest.raises(tilec.TileError) as caught:
        function(torch.ones(2, 3), torch.ones(5, 4))
    assert str(caught.value) == (
        "<tile>:2:22: `k` stands as an index of different sizes: K = 3 (dimension 1 of A), L = 5 (dimension 0 of B); "
        "only the first 3 of each count\n"
        "    2 |   C[i, j : I, J] = +(A[i, k] * B[k, j]);\n"
        "      |                      ^^^^^^^   ^^^^^^^\n"
        "  hint: call the dimension K everywhere to have them checked, or say that it is meant: ..., k < 3"
    )


@pytest.mark.parametrize("source", MEANT)
def test_what_is_meant_is_not(source: str) -> None:
    assert not call(source)


def test_calls_that_record_gradients_say_it_too() -> None:
    function = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j]) * max(A[i, k])")
    with pytest.warns(tilec.TileWarning, match="only the first 3 of each"):
        function(torch.ones(2, 3).repeat(1, 1).requires_grad_(), torch.ones(5, 4))


def test_new_shapes_are_told_anew_and_gradients_do_not_repeat_it() -> None:
    function = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for columns in (3, 4, 5, 3):
            a, b = torch.ones(2, columns, requires_grad=True), torch.ones(5, 4)
            function(a, b).sum().backward()
    assert [str(w.message).count("only the first 3") for w in caught] == [1, 0]


def test_a_warning_can_be_an_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", tilec.TileWarning)
        with pytest.raises(tilec.TileWarning):
            tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])")(torch.ones(2, 3), torch.ones(5, 4))


QUOTIENTS = {
    "Y[i : N] = 1/2 * X[i]": "truncates to 0",
    "Y[i : N] = X[i] * exp(-i/N)": "quotient by the size `N`",
    "Y = X * (3/2)": "truncates to 1",
}
NO_QUOTIENTS = [
    "Y[i : N/2] = X[2*i]",
    "H = N/2; Y[i : H] = X[i + 3/2 - 1]",
    "Y[i : N] = 4/2 * X[i]",
    "Y[i : N] = i/N == 0 ? X[i] : 0",
    "Y[i : N] = X[i] * (i/2)",
    "Y[i : N] = X[i] * (i - i/N*N)",
    "Y = X / N",
    "Y[i : N] = 1.0/2 * X[i] + i*1.0/N",
]


@pytest.mark.parametrize("text", QUOTIENTS)
def test_quotients_of_integers_in_a_value(text):
    source = f"function (X[N]) -> (Y) {{ {text}; }}"
    with pytest.warns(tilec.TileWarning, match=QUOTIENTS[text]):
        tilec.compile(source)
    with pytest.raises(tilec.TileError, match=QUOTIENTS[text]):
        tilec.compile(source, warnings="error")


@pytest.mark.parametrize("text", NO_QUOTIENTS)
def test_quotients_that_are_meant(text):
    tilec.compile(f"function (X[N]) -> (Y) {{ {text}; }}", warnings="error")


@pytest.mark.parametrize("text", ["Y[i : 4] = X[-1] + i", "Y[i : 4] = X[i + 9]", "Y[i : 4] = +(X[i]), i + 9 < 3"])
def test_a_statement_without_a_point(text, monkeypatch):
    source = f"function (X[N]) -> (Y) {{ {text}; }}"
    with pytest.warns(tilec.TileWarning, match="no point of this statement is valid"):
        tilec.compile(source)(torch.ones(4))
    with pytest.raises(tilec.TileError, match="no point of this statement is valid"):
        tilec.compile(source, warnings="error")(torch.ones(4))
    monkeypatch.setenv("TILEC_WARNINGS_ARE_ERRORS", "1")
    with pytest.raises(tilec.TileError, match="no point"):
        tilec.compile(source)(torch.ones(4))


@pytest.mark.parametrize(
    "text, hint",
    [
        ("Y[i : 4] = X[i] + X[7]", "`X[7]` is outside of X, whose shape is (4,)"),
        ("Y[i : 4] = X[-1] + i", "an index does not count from the end"),
        ("Y[i : 4] = X[i] * X[i + 9]", "`X[i + 9]` is outside"),
        ("Y[i : 4] = +(X[i]), i + 9 < 3", "a constraint that never holds"),
        ("Y[i : 4] = +(X[j + k] * X[j] * X[9])", "`X[9]` is outside"),
        ("Y[i : 4] = +(X[j + k] * X[j]), j - 9 < 3", "a constraint that never holds"),
        ("Y[i : 4] = X[i - 3/2]", "an index of `X[i - 3/2]` is never an integer"),
        ("Y[i : 4] = +(X[i/2 + j + 1/4]), j < 2", "never an integer, since division in an index is exact"),
        ("Y[i : 4] = X[i % 0]", "1/2 stands for `e % 0` too, which has no value"),
        ("Y[i : 4] = X[i/2 + 7/2]", "`X[1/2*i + 7/2]` is outside"),
    ],
)
def test_the_access_that_leaves_no_point_is_named(text, hint):
    with pytest.raises(tilec.TileError) as caught:
        tilec.compile(f"function (X[N]) -> (Y) {{ {text}; }}", warnings="error")(torch.ones(4))
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "text", ["Y[i : N] = X[i - 1]", "Y[i : N - 1] = X[i + 1] - X[i]", "Y[i : N] = +(X[i - 1] * X[j])"]
)
def test_a_sequence_of_one_element_has_none_before_it(text):
    f = tilec.compile(f"function (X[N]) -> (Y) {{ {text}; }}", warnings="error")
    assert not f(torch.ones(1)).any()
    assert f(torch.ones(3)).shape[0] >= 2


def test_a_dimension_of_one_excuses_no_other():
    f = tilec.compile("function (X[B, N]) -> (Y) { Y[b, i : B, N] = X[b, i + 9]; }", warnings="error")
    with pytest.raises(tilec.TileError, match="no point of this statement is valid"):
        f(torch.ones(1, 4))


def test_sizes_of_zero_are_meant():
    tilec.compile("function (X[N]) -> (Y) { Y[i : 4] = X[i]; }", warnings="error")(torch.ones(0))


PRODUCT = "C[i, j] = sum(A[i, k] * B[k, j])"
A, B, C = torch.ones(2, 3), torch.ones(5, 4), torch.ones(2, 4)
DERIVED = {
    "grad": lambda f: f.grad()(A, B, C),
    "gradient of a gradient": lambda f: f.grad().grad()(A, B, C, A, B),
    "jvp": lambda f: f.jvp()(A, B, A, B),
    "vmap": lambda f: f.vmap((-1, None))(torch.ones(2, 3, 7), B),
    "gradient of a vmap": lambda f: f.vmap((1, None)).grad()(torch.ones(2, 7, 3), B, torch.ones(7, 2, 4)),
    "torch.func.jvp": lambda f: torch.func.jvp(f, (A, B), (A, B)),
    "backward": lambda f: f(A.clone().requires_grad_(), B).sum().backward(),
    "pickle": lambda f: pickle.loads(pickle.dumps(f))(A, B),
}


@pytest.mark.parametrize("how", DERIVED)
def test_derived_functions_warn_of_the_text_they_are_derived_from(how):
    """Once, with the sizes of that text, and as an error where its warnings are."""
    function = tilec.compile(PRODUCT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DERIVED[how](function)
        if how != "pickle":
            function(A, B)
        DERIVED[how](function) if how == "backward" else None
    (said,) = [str(w.message) for w in caught if w.category is tilec.TileWarning]
    assert "3 (dimension 1 of A), 5 (dimension 0 of B)" in said
    strict = tilec.compile(PRODUCT, warnings="error")
    for _ in range(2):
        with pytest.raises(tilec.TileError, match="index of different sizes"):
            DERIVED[how](strict)


@pytest.mark.parametrize(
    ("how", "most"), [("call", 1), ("grad", 2), ("backward", 6)], ids=["call", "gradient", "recorded call"]
)
def test_checks_bind_nothing_again(how, most, monkeypatch):
    """A call binds as often as it would without warnings, a cached call not at all."""
    bound = []
    for module in (tilec.specialise, tilec.pipeline, tilec.saving):
        monkeypatch.setattr(module, "bind", lambda *args: bound.append(args) or bind(*args))
    function = tilec.compile("C[i, j] = sum(A[i, k] * A[k, j])")
    run = {
        "call": lambda: function(C[:, :2]),
        "grad": lambda: function.grad()(C[:, :2], C[:, :2]),
        "backward": lambda: function(C[:, :2].clone().requires_grad_()).sum().backward(),
    }[how]
    run()
    first = len(bound)
    run()
    assert len(bound) == first <= most


NEVER_TAKEN_INSIDE = {
    "Y[i : 6] = i < 3 ? X[i + 30] : X[i - 3]": "X[i + 30]",
    "Y[i : 6] = i < 3 ? X[i] : X[i + 3]": "X[i + 3]",
    "Y[i : 6] = +(X[j] * (i > 2 & j < 2 ? X[i + j + 4] : 1))": "X[i + j + 4]",
    "Y[i : 6] = X[i] > 0 ? X[i + 6] : 2": "X[i + 6]",
    "Y[i : 6] = i < 3 ? (i > 0 ? X[i - 3] : X[i]) : X[i]": "X[i - 3]",
    "Y[i : 6] = X[i] + max(j < 2 ? X[j - i - 2] : X[j])": "X[j - i - 2]",
    "Y[i : 6] = i % 2 == 0 ? X[(i + 1)/2] : X[i]": "X[(i + 1)/2]",
}
TAKEN_INSIDE = [
    "Y[i : 6] = i < 3 ? X[i + 3] : X[i - 3]",
    "Y[i : 6] = i < 0 ? X[i + 30] : X[i]",  # never taken
    "Y[i : 6] = N > 9 ? X[i + 30] : X[i]",
    "Y[i : 6] = N/4 > 3 ? X[i + 30] : X[i]",  # not looked into
    "Y[i : 6] = i < 3 ? pad(X[i + 30], 0) : X[i]",
    "Y[i : 6] = i % 2 == 0 ? X[i/2] : X[(i + 1)/2]",
    "Y[i : 6] = i == 5 ? X[i] : X[i + 1]",
    "Y[i : 6] = X[i] > 0 ? X[i + 5] : 0",
]


@pytest.mark.parametrize("text", NEVER_TAKEN_INSIDE)
def test_a_branch_whose_access_is_never_inside(text):
    function = tilec.compile(f"function (X[N]) -> (Y) {{ {text}; }}", warnings="error")
    with pytest.raises(tilec.TileError, match="never inside X, of shape .6,., where its branch is taken") as caught:
        function(torch.ones(6))
    span = caught.value.span
    assert function.source[span.start : span.stop] == NEVER_TAKEN_INSIDE[text]


@pytest.mark.parametrize("text", TAKEN_INSIDE)
def test_branches_with_points(text):
    tilec.compile(f"function (X[N]) -> (Y) {{ {text}; }}", warnings="error")(torch.ones(6))


def test_what_is_said_of_a_branch():
    with pytest.raises(tilec.TileError) as caught:
        tilec.compile("Y[i : 6] = i < 3 ? X[i] : X[i + 3]", warnings="error")(torch.ones(6))
    assert str(caught.value) == (
        "<tile>:1:27: this access is never inside X, of shape (6,), where its branch is taken: "
        "no point of the branch counts\n"
        "    1 | Y[i : 6] = i < 3 ? X[i] : X[i + 3]\n"
        "      |                           ^^^^^^^^\n"
        "  hint: check the index and the condition; an access in a branch constrains where that is taken"
    )


GAPS = {
    "Y[i : 8] = X[i/2]": "X[i/2]",
    "Y[i : 9] = +(X[i/2])": "X[i/2]",
    "Y[i : 8] = 2 * X[(i + 1)/3] + X[0]": "X[(i + 1)/3]",
    "Z[i : 8] = X[i/2]; Y = 2 * Z": "X[i/2]",
}
NO_GAPS = [
    "Y[i : 8] = X[(i - i % 2)/2]",
    "Y[i : 8] = i % 2 == 0 ? X[i/2] : 0",
    "Y[i : 8] = pad(X[i/2], 0)",
    "Z[i : 8] = 3; Y[i : 8] = X[i/2] default Z",
    "Y[i : 8] = +(X[(i - k)/2]), k < 2",  # a transposed convolution
    "Z[i : 8] = X[i/2]; W[i : 8] = X[(i - 1)/2]; Y = Z + W",
    "Y[2*i : 8] = X[i]",
    "Y[i : 1] = X[i/2]",
]


@pytest.mark.parametrize("text", GAPS)
def test_elements_that_a_quotient_in_an_index_leaves_out(text):
    function = tilec.compile(f"function (X[N]) -> (Y) {{ {text}; }}", warnings="error")
    with pytest.raises(tilec.TileError, match="no integer for some elements of `[YZ]`, which nothing fills") as caught:
        function(torch.ones(4))
    span = caught.value.span
    assert function.source[span.start : span.stop] == GAPS[text]
    assert "(i - i % 2)/2 rounds down" in str(caught.value) and "^" in str(caught.value)


@pytest.mark.parametrize("text", NO_GAPS)
def test_quotients_in_an_index_that_leave_no_gap(text):
    tilec.compile(f"function (X[N]) -> (Y) {{ {text}; }}", warnings="error")(torch.ones(4))


POINTLESS = {
    "O[i : 4] = A[i] + sum(B[k] * A[k + 5]);": "no point of this aggregation is valid at these sizes: it is 0",
    "O[i : 4] = A[i] * sum(B[k - i - 20]), k < 3;": "no point of this aggregation",
    "O[i : 4] = A[i] - max(B[k] * A[k - 5]);": "it is -inf everywhere",
    "O[i : 4] = tanh(mean(A[i + k] * B[i + k + 9]));": "no point of this aggregation",
    "O[i : 4] = A[i] + (i < 2 ? A[i + 3] * B[i - 1] : 1);": "never inside their tensors together",
    "O[i : 4] = A[i] + sum(k < 2 ? B[k + 4] * A[k - 1] : 0);": "no point of this aggregation",
}
WITH_POINTS = [
    "O[i : 4] = A[i] + sum(B[k + 5]);",  # over k from -5
    "O[i : 4] = A[i] + (i < 2 ? A[i + 2] * B[i - 1] : 1);",
    "O[i : 4] = A[i] + sum(k < 2 ? B[k + 3] * A[k - 1] : 0);",
    "O[i : 4] = A[i] + (i < 2 ? pad(A[i + 3], 0) * B[i - 1] : 1);",
    "O[i : 4] = A[i] + sum(pad(B[k - 20], 1) * A[k]);",
    "O[i : 4] = A[i] + (i < 2 ? (i < 1 ? A[i + 3] : B[i - 1]) : 1);",
    "O[i : 4] = A[i] + (i < 2 ? sum(A[k + 3] * A[k]) * B[i] : 1);",
]


@pytest.mark.parametrize("text", [*POINTLESS, *WITH_POINTS])
def test_aggregations_and_branches_that_never_have_a_point(text: str) -> None:
    f = tilec.compile(f"function (A[4], B[5]) -> (O) {{ {text} }}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f(torch.ones(4), torch.ones(5))
    said = [str(w.message) for w in caught if w.category is tilec.TileWarning]
    assert len(said) == (text in POINTLESS), said
    if said:
        assert POINTLESS[text] in said[0] and "^" in said[0] and "hint: " in said[0]
