"""Every generated text is Python that defines its names first; no GPU is needed to find one that does not."""

from __future__ import annotations

import pytest
import torch
from gpu_cases import make, plan
from gpu_examine import _tensor
from run import DTYPES
from support.generated_text import check_texts, mistakes

import tilec

# sums of residue classes that torch's own convolution makes, recomputed where they are not finite
REPAIRED = [
    ("I[n, y + 2*j, x + 2*i, c] * K[j, i, c, o]", "H - 4", "W - 2"),
    ("I[n, (y - j)/2, x - i, c] * K[j, i, c, o]", "2*H", "W"),
    ("I[n, 3*y + 2*j, 3*x + 2*i, c] * K[j, i, c, o]", "H/3", "W/3"),
]
REFUSED = (tilec.WriteConflict, tilec.SizeMistake, tilec.Unsupported)


@pytest.mark.parametrize("body, down, across", REPAIRED)
@pytest.mark.one_in(2)
def test_texts_of_convolutions(body: str, down: str, across: str) -> None:
    source = f"function (I[N, H, W, C], K[P, Q, C, O]) -> (Y) {{ Y[n, y, x, o : N, {down}, {across}, O] = +({body}); }}"
    assert check_texts(source, [torch.zeros(2, 9, 11, 3), torch.zeros(3, 2, 3, 4)]) > 8


def texts_of(names: list[str], seed: int) -> int:
    count = 0
    for name in names:
        case = make(name, seed)
        try:
            count += check_texts(case.source, [_tensor(a, case.dtype) for a in case.arrays])
        except REFUSED:
            pass
    return count


@pytest.mark.parametrize("kind", ["sized", "random"])
def test_texts_of_a_sample(kind: str) -> None:
    assert texts_of([n for n in plan(5, DTYPES) if n.startswith(kind)][:3], 5) > 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "sized", "random"])
def test_texts_of_all_programs(kind: str) -> None:
    """Every program in one of the three types."""
    programs = {n.rsplit("/", 1)[0]: n for n in plan(6, DTYPES, rounds=1) if n.startswith(kind)}
    assert texts_of(list(programs.values()), 6) > 4 * len(programs)


BAD = {
    "def f(x):\n    if x:\n    y = 1\n        z = 2\n": "expected an indented block",
    "def f(x):\n    return y\n": "y is not defined",
    "def f(x):\n    if x:\n        y = 1\n    return y\n": "y is not defined",
    "def f(x):\n    for i in range(x):\n        z = y\n        y = 1\n": "y is not defined",
    "def f(x):\n    for i in range(x):\n        y = 1\n    return y\n": "y is not defined",
    "def f(x, x):\n    pass\n": "duplicate",
}
GOOD = (
    "import torch\ndef g(a):\n    return a\ndef f(x):\n    if x:\n        y = 1\n    else:\n        y = 2\n"
    "    for i in range(x):\n        y += i\n    return torch.where(x, g(y), (lambda a: a)(1), [b for b in x])\n"
)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_python_is_found(text: str) -> None:
    assert any(BAD[text] in m for m in mistakes(text))


def test_what_is_python_is_not_found() -> None:
    assert mistakes(GOOD) == []
