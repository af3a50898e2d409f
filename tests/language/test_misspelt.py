"""Names that a bare list of statements makes inputs and that look like a tensor of it; paths and texts mixed up."""

from __future__ import annotations

import warnings

import pytest

import tilec
from tilec.errors import InputMistake
from tilec.language.hints.misspelt import alike

ATTENTION = "Scores[i, j] = sum(Q[i, d] * K[j, d]); P[i, j] = exp({0}[i, j]) / sum(exp({0}[i, k]));"


@pytest.mark.parametrize("name", ["Score", "Scoress", "Scroes", "Skores", "scores".upper()])
def test_a_misspelt_tensor(name: str) -> None:
    with pytest.warns(tilec.TileWarning) as caught:
        tilec.compile(ATTENTION.format(name))
    text = str(caught[0].message)
    assert text.startswith(f"<tile>:1:54: `{name}` is an input, for no statement assigns it; was `Scores` meant?")
    assert f"the inputs are Q, K, {name}" in text and caught[0].filename == __file__


@pytest.mark.parametrize("name, hint", [("True", "comparisons give"), ("None", "left out"), ("NaN", "write `nan`")])
def test_a_constant_of_python(name: str, hint: str) -> None:
    with pytest.warns(tilec.TileWarning, match=f"`{name}` is an input, not a constant") as caught:
        tilec.compile(f"Y = X * {name}")
    assert hint in str(caught[0].message)


LEGAL = {
    "no such input": ATTENTION.format("Scores"),
    "a name of its own": ATTENTION.format("Bias"),
    "short names": "Qk = Q * K; Y = Qk + Qj + Q;",
    "numbers": "Layer1 = X * Weight1; Layer2 = Layer1 * Layer3;",
    "read before it is assigned": "Weights = exp(Weight); Y = Weights + Weight;",
    "declared constants": "function (X, None) -> (Y) { Y = X + None; }",
    "declared": "function (Score[N]) -> (Y) { Scores[i : N] = exp(Score[i]); Y = Score + Scores; }",
}


@pytest.mark.parametrize("case", LEGAL)
def test_nothing_to_say(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilec.compile(LEGAL[case])


def test_alike() -> None:
    assert alike("Score", "SCORE") and alike("Mean", "Mena") and alike("Bias", "Bia") is False
    assert not alike("Mean", "Meat") and not alike("Weight1", "Weight2") and not alike("Same", "Same")


def test_message(golden) -> None:
    with pytest.warns(tilec.TileWarning) as caught:
        tilec.compile(ATTENTION.format("Score"))
    golden("language/misspelt.txt", f"{caught[0].message}\n")


@pytest.mark.parametrize("path", ["conv.tile", "/some/where/conv.tile", "../a-b/conv.txt", "~/conv.tile"])
def test_a_path_given_to_compile(path: str) -> None:
    with pytest.raises(InputMistake) as caught:
        tilec.compile(path)
    assert str(caught.value) == f"{path!r} is a path, and compile takes Tile text\n  hint: write tilec.load({path!r})"


@pytest.mark.parametrize("text", ["Y = X", "Y[i : N] = X[i]", "function (X) -> (X) {}", "// nothing\nY = X"])
def test_a_text_given_to_load(text: str) -> None:
    with pytest.raises(InputMistake) as caught:
        tilec.load(text)
    assert str(caught.value).startswith(
        "this is Tile text, and load takes the path of a file\n  hint: write tilec.comp"
    )


def test_a_path_that_no_file_has() -> None:
    for path in ("none.tile", "a\0b.tile"):
        with pytest.raises(InputMistake, match="cannot read"):
            tilec.load(path)
