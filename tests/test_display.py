"""Programs for people: formulas, notebooks, signatures, names."""

from __future__ import annotations

import inspect
import random
import re
from html.parser import HTMLParser

import pytest
import torch
from support.texts import SOURCES, mutated

import tilec
from tilec.cli import main
from tilec.display.latex import latex
from tilec.errors import TileError
from tilec.language import parse

MATMUL = "function mm(A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"
A, B = torch.ones(2, 3), torch.ones(3, 4)
FORMULAS = {
    "C[i, j] = +(A[i, k] * B[k, j])": r"{C}_{i,\,j} = \sum_{k} {A}_{i,\,k} \, {B}_{k,\,j}",
    "Y = (A + B) * 2 - -C": r"Y = \left(A + B\right) \cdot 2 - -C",
    "Y = exp(A) / sqrt(B)": r"Y = \frac{\exp\left(A\right)}{\sqrt{B}}",
    "Y = pow(A + 1, 2)": r"Y = {\left(A + 1\right)}^{2}",
    "Y = A > 0 ? A : 0": r"Y = \begin{cases} A & \text{if } A > 0 \\ 0 & \text{otherwise} \end{cases}",
    "Y[i : N] = >(X[2*i + j]), j < 2": r"{Y}_{i} = \max_{\substack{j \\ 0 \le j < 2}} {X}_{2i + j} \qquad 0 \le i < N",
    "Y[i : N/2] = X[i]": r"{Y}_{i} = {X}_{i} \qquad 0 \le i < \left\lfloor \frac{N}{2} \right\rfloor",
    "Y[i : N] = +(i - k >= 0 ? X[k])": r"{Y}_{i} = \sum_{\substack{k \\ i - k \ge 0}} {X}_{k} \qquad 0 \le i < N",
    "Y[2*i : N] = +(X[i])": r"{Y}_{2i} \overset{+}{\longleftarrow} {X}_{i} \qquad 0 \le 2i < N",
    "Y[i] = mean(X[i, j]) + 1": r"{Y}_{i} = \operatorname*{mean}_{j} \left({X}_{i,\,j}\right) + 1",
    "Y = A_in + H0' + Xs": r"Y = {A}_{\mathrm{in}} + {H}_{0}' + \mathrm{Xs}",
    "Y = A * 1e-5 + 1.5": r"Y = A \cdot 1 \cdot 10^{-5} + 1.5",
    "H[t : T] = H[t - 1] + X[t] init X[0]": r"0 \le t < T,\; {H}_{t} = {X}_{0} \text{ outside}",
    "Y[i : N] = X[i] default Z": r"Z \text{ elsewhere}",
}


def body(text: str) -> str:
    lines = latex(parse(text)).split("\n")
    return lines[1].replace(" &=", " =").replace(r" &\overset", r" \overset")


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas(text: str) -> None:
    assert FORMULAS[text] in body(text), body(text)


def balanced(text: str) -> bool:
    """Braces, environments and \\left with \\right each open and close in turn."""
    stack = []
    for found in re.finditer(r"\\[{}]|([{}])|\\(left|right)\b|\\(begin|end)\{(\w+)\}", text):
        mark = found[1] or found[2] or found[3]
        if mark in ("{", "left", "begin"):
            stack.append((mark, found[4]))
        elif mark:
            opener = {"}": "{", "right": "left", "end": "begin"}[mark]
            if not stack or stack.pop() != (opener, found[4]):
                return False
    return not stack


def test_whatever_parses_has_a_formula() -> None:
    """Mutated programs, their gradients, and stages of the sources."""
    count = 0
    for seed in range(300):
        r = random.Random(seed)
        text = mutated(r, r.choice(SOURCES)[0])
        try:
            f = tilec.compile(text)
            programs = [f.program, f.grad().program]
        except TileError:
            continue
        count += 1
        assert all(balanced(p.latex()) for p in programs), text
    assert count > 40


def test_stages() -> None:
    lowered = (
        tilec.compile("C[i : 3] = +(X[(i + j)/2] * W[j])").grad().lower(torch.ones(2), torch.ones(4), torch.ones(3))
    )
    for stage in lowered.stages:
        assert balanced(lowered.latex(stage)) and lowered.latex(stage).startswith("\\begin{aligned}")
    assert lowered.latex() == lowered.latex("flat")
    with pytest.raises(tilec.NameMistake, match="no stage is called none") as caught:
        lowered.latex("none")
    assert "reduced" in (caught.value.hint or "")


def test_golden(golden) -> None:
    f = tilec.compile(MATMUL)
    softmax = tilec.compile("Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))")
    golden("display/formulas.txt", "\n\n".join([f.latex(), f.grad().latex(), softmax.latex()]) + "\n")


class Checker(HTMLParser):
    """Every element that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.seen.append(data)


def text_of(html: str) -> str:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert not checker.open
    return "".join(checker.seen)


def test_notebooks() -> None:
    f = tilec.compile(MATMUL)
    lowered = f.lower(A, B)
    assert "+(A[i, k] * B[k, j])" in text_of(f._repr_html_()) and f.latex() in text_of(f._repr_html_())
    assert f.latex() in text_of(f.program._repr_html_())  # type: ignore[attr-defined]
    shown = text_of(lowered._repr_html_())
    assert "defracted" in shown and lowered.source() in shown and "48" in shown
    assert "bytes moved104 (104 B)" in text_of(lowered.cost()._repr_html_())  # type: ignore[attr-defined]
    with pytest.raises(TileError) as caught:
        tilec.compile("Y = A < B <C> D")
    assert text_of(caught.value._repr_html_()).startswith("SyntaxMistake: <tile>:1:")  # type: ignore[attr-defined]


def test_signature() -> None:
    f = tilec.compile(MATMUL)
    signature = inspect.signature(f)
    assert str(signature) == "(A: 'Tensor[I, K]', B: 'Tensor[K, J]') -> 'Tensor'"
    assert signature.bind(A, B=B).arguments == {"A": A, "B": B}
    assert str(inspect.signature(f.grad())).endswith("-> 'tuple[Tensor, Tensor]'")
    assert "program" in inspect.signature(tilec.Function).parameters  # the class keeps its own
    odd = inspect.signature(tilec.compile("function (A, X', None, Y) -> (Z) { Z = A + X' + None + Y; }"))
    assert str(odd) == "(A: 'Tensor', X_: 'Tensor', None_: 'Tensor', /, Y: 'Tensor') -> 'Tensor'"


def test_names() -> None:
    f = tilec.compile(MATMUL)
    names = {n for n in dir(f) if not n.startswith("_")}
    assert {"grad", "lower", "saved", "tile", "latex", "inputs", "outputs"} <= names
    assert "of" not in names and not [n for n in dir(f) if re.match("_[^_]", n)]
    assert all(hasattr(f, n) for n in names)
    assert not {"specialiser", "types_of", "batched"} & names
    lowered = {n for n in dir(f.lower(A, B)) if not n.startswith("__")}
    assert {"stages", "source", "cost", "latex"} <= lowered and not [n for n in lowered if n.startswith("_")]
    later = {n for n in dir(tilec.compile("Y = X + Z").vmap()) if not n.startswith("__")}
    assert {"at", "grad", "inputs"} <= later and not {"_made", "base"} & later
    assert set(dir(tilec)) == set(tilec.__all__) and all(hasattr(tilec, n) for n in dir(tilec))


def test_repr() -> None:
    f = tilec.compile(MATMUL)
    assert repr(f) == "<tilec.Function mm(A[I, K], B[K, J]) -> (C)>"
    assert repr(tilec.compile("Y = X + P[] ")) == "<tilec.Function (X, P) -> (Y)>"
    assert repr(f.lower(A, B)).startswith(
        "<tilec.Lowered mm(A: float32[2, 3], B: float32[3, 4]) -> (C: float32[2, 4]): "
    )


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    f = tilec.compile(MATMUL)
    assert main(["show", "-e", MATMUL, "--latex"]) == 0 and capsys.readouterr().out == f.latex() + "\n"
    assert main(["grad", "-e", MATMUL, "--latex"]) == 0 and capsys.readouterr().out == f.grad().latex() + "\n"
    argv = ["show", "-e", MATMUL, "--latex", "--stage", "flat", "--shape", "A=2,3", "B=3,4"]
    assert main(argv) == 0 and capsys.readouterr().out == f.lower(A, B).latex() + "\n"
