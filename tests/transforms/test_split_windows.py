"""Sums over windows of an axis, rolled round or not: windows are an axis of their own, and the values the same."""

from __future__ import annotations

import numpy as np
import pytest
from support.gradcheck import check_gradient
from support.stages import check, setting_of

from tilec.language import parse, show
from tilec.pipeline import lower
from tilec.transforms.autodiff.grad import grad

ONE = """function (Q[N, E], K[N, E], V[N, E]) -> (O) {{
    S[u, i, j : N/{w}, {w}, {w}] = +(Q[({w}*u + i + {s}) % N, e] * K[({w}*u + j + {s}) % N, e]);
    O[({w}*u + i + {s}) % N, e : N, E] = +(S[u, i, j] * V[({w}*u + j + {s}) % N, e]);
}}"""
TWO = """function (Q[Y, X, E], K[Y, X, E], V[Y, X, E]) -> (O) {
    S[u, v, i, j, k, l : Y/2, X/3, 2, 3, 2, 3] =
        +(Q[(2*u + i + 1) % Y, (3*v + j - 2) % X, e] * K[(2*u + k + 1) % Y, (3*v + l - 2) % X, e]);
    O[2*u + i, (3*v + j + 1) % X, e : Y, X, E] = +(S[u, v, i, j, k, l] * V[(2*u + k + 1) % Y, 3*v + l, e]);
}"""
WINDOWS = {  # source, their shape; how many tensors are rolled, and with the gradient's in windows
    "one axis": (ONE.format(w=4, s=3), (12, 3), 4, 0),
    "back": (ONE.format(w=4, s=-5), (12, 3), 4, 0),
    "not rolled": (ONE.format(w=4, s=0), (12, 3), 0, 0),
    "once round": (ONE.format(w=4, s=12), (12, 3), 0, 0),
    "one window": (ONE.format(w=5, s=2), (5, 3), 4, 0),
    "two axes": (TWO, (6, 9, 2), 0, 11),
    "a part of the axis": ("""function (Q[N, E], K[N, E], V[N, E]) -> (O) {
        S[u, i, j : 2, 4, 4] = +(Q[(4*u + i + 7) % N, e] * K[(4*u + j + 7) % N, e]);
        O[u, e : 2, E] = +(S[u, i, j] * V[u, e]);
    }""", (11, 3), 2, 0),
}  # fmt: skip
HEAD = "function (Q[N, E], K[N, E], V[N, E]) -> (O) { "
OTHERS = {  # what stays as it is
    "a circular convolution": "O[x, e : N, E] = +(Q[(x + k) % N, e] * K[k, e] * V[k, e]), k < 3; }",
    "steps of a transposed convolution": "O[2*x + k, e : 2*N, E] = +(Q[x, d] * K[k, d] * V[d, e]), k < 2; }",
    "once read": "O[u, e : N/4, E] = +(Q[(4*u + i + 1) % N, e] * K[u, e] * V[u, e]), i < 4; }",
}


def arrays(shape, count=3):
    return [np.random.default_rng(n).normal(size=shape) for n in range(count)]


def flat(program, given):
    setting = setting_of(program, given)
    return show(lower(program, setting.types, setting.values).stages["flat"])


@pytest.mark.parametrize("name", WINDOWS)
def test_values_and_gradients(name: str):
    source, shape, rolled, apart = WINDOWS[name]
    program, given = parse(source), arrays(shape)
    (value,) = check(program, given)
    check(grad(program), [*given, np.random.default_rng(9).normal(size=value.shape)])
    text = flat(program, given)
    assert len({line.split("[")[0] for line in text.splitlines() if "_rolled[" in line.split("=")[0]}) == rolled
    text += flat(grad(program), [*given, value])
    assert len([line for line in text.splitlines() if "_windows[" in line.split("=")[0]]) == apart
    check_gradient(source, *given)


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays(name: str):
    program, given = parse(HEAD + OTHERS[name]), arrays((12, 3))
    assert check(program, given) is not None
    assert "_windows[" not in flat(program, given) and "_rolled[" not in flat(program, given)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (4, 1), (7, 2), (13, 2)])
def test_odd_sizes(shape: tuple[int, int]):
    """Of an axis that windows do not fill the last places are in none."""
    program, given = parse(ONE.format(w=4, s=3)), arrays(shape)
    found = check(program, given)
    assert found is not None
    check(grad(program), [*given, *found])
