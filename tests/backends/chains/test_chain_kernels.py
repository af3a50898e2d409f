"""Kernels of chains by the NumPy interpreter against torch in float64: bodies, guards, sizes, types, tilings."""

import numpy as np
import pytest
from support.chains import VARIANTS, both_ways, run

import tilec
from tilec.backends.common.chains import recognise
from tilec.backends.common.chains.places import Tiling
from tilec.ir.types import TensorType
from tilec.pipeline import lower

SIZES = {"B": 2, "N": 50, "M": 37, "E": 20, "F": 24}


def check(mine, theirs, tolerance):
    for x, y in zip(mine, theirs, strict=True):
        assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y) + 1e-30


@pytest.mark.parametrize("name", VARIANTS)
def test_value_and_gradients(name, monkeypatch):
    monkeypatch.setattr(recognise, "LARGE", 0)  # small matrices may as well be stored where they have no exponential
    mine, theirs, forward, backward = both_ways(VARIANTS[name], "float32", SIZES, Tiling(32, 16))
    check(mine, theirs, 3e-6)
    assert len(forward) == 1 and len(backward) >= 2


@pytest.mark.parametrize("name", ["causal", "divided", "bias"])
def test_16_bits(name):
    """As accurate as operands of products that are rounded to 16 bits let it be."""
    mine, theirs, *_ = both_ways(VARIANTS[name], "bfloat16", SIZES, Tiling(16, 32))
    check(mine, theirs, 6e-3)


@pytest.mark.parametrize(
    "sizes", [(1, 16, 16, 2, 2), (1, 64, 32, 16, 16), (3, 17, 90, 5, 40), (2, 53, 24, 20, 1)], ids=str
)
@pytest.mark.parametrize("tiling", [Tiling(16, 16), Tiling(64, 32)], ids=lambda t: f"{t.block}x{t.step}")
def test_sizes_and_blocks(sizes, tiling):
    """Whole blocks and overhanging ones, more columns than rows, rows that see nothing."""
    for name in ("causal", "window", "ahead"):
        mine, theirs, *_ = both_ways(VARIANTS[name], "float32", dict(zip("BNMEF", sizes, strict=True)), tiling)
        check(mine, theirs, 3e-6)


SQUARES = "T[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]))"
KERNELS = {
    "gaussian": ("O[i : N] = +(exp(-T[i, j]) * B[j])", lambda t, b: np.exp(-t) @ b),
    "softened": ("O[i : N] = logsumexp(-T[i, j] + B[j])", lambda t, b: np.log(np.exp(b - t).sum(1))),
}


@pytest.mark.parametrize("name", KERNELS)
def test_inner_sums_in_registers(name, monkeypatch):
    """A sum of few terms that is no product of a row and a column, reduced without being stored."""
    monkeypatch.setattr(recognise, "LARGE", 0)
    statement, formula = KERNELS[name]
    text = f"function (X[N, D], Y[M, D], B[M]) -> (O) {{ {SQUARES}; {statement}; }}"
    g = np.random.default_rng(0)
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in (("X", (50, 3)), ("Y", (37, 3)), ("B", (37,)))}
    types = {n: TensorType(x.shape, "float32") for n, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(32, 16))
    assert ran.kernels == [("O",)]
    x, y, b = (a.astype(float) for a in arrays.values())
    np.testing.assert_allclose(ran.values["O"], formula(((x[:, None] - y) ** 2).sum(2), b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", [
    f"function (X[N, D], Y[M, D]) -> (O) {{ {SQUARES}; O[i : N] = <(T[i, j]); }}",
    f"function (X[N, D], Y[M, D], L[N], G[N]) -> (O) {{ {SQUARES}; O[j : M] = +(T[i, j] == L[i] ? G[i]); }}",
], ids=["an extremum", "its gradient"])  # fmt: skip
def test_what_is_found_again_by_equality_is_stored(text, monkeypatch):
    """The values of an extremum and of its gradient come from one kernel: another may round otherwise, and then no
    value equals the extremum."""
    monkeypatch.setattr(recognise, "LARGE", 0)
    types = {"X": TensorType((50, 3), "float32"), "Y": TensorType((37, 3), "float32")}
    types |= {"L": TensorType((50,), "float32"), "G": TensorType((50,), "float32")}
    program = tilec.compile(text).program
    lowered = lower(program, {n: types[n] for n in program.input_names()}, {})
    assert not recognise.chained(lowered.stages["flat"], lowered.types).kernels
