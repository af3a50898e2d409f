"""Numbers made of positions: in float32 where that rounds as float64 does, and in float64 elsewhere."""

import os

import pytest
import torch

import tilec

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
HEAD = "function (X[I, J]) -> (Y) { Y[i, j : I, J] = "
SINGLE = {
    "thirds": "X[i, j] - abs(i - j) / 3.0",
    "eighths": "X[i, j] * (-((i - 2) * (i - 2) + j * j) / 8.0)",
    "inverse": "X[i, j] * (1.0 / (j + 1))",
    "by zero": "X[i, j] + 1.0 / (i - j)",
    "negative": "X[i, j] * -(abs((i - 5) / -7.0))",
    "halves": "X[i, j] + (i * 0.5)",
    "sum": "X[i, j] * (i + 0.5)",
    "read twice": "X[i, j] * (i / 3.0) + max(X[i, j], i / 3.0)",
}
DOUBLE = {
    "no such number": "X[i, j] - i / 0.1",
    "two operations": "X[i, j] - (i / 3.0 + 0.5)",
    "a product that is rounded": "X[i, j] - i * 16777215.0",
    "tiny": "X[i, j] + i / 1e30",
    "great positions": "X[i, j] * ((i * 16777216 + j) / 3.0)",
    "a function": "X[i, j] + exp(i / 8.0)",
}


def given(shape, dtype):
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("name", [*SINGLE, *DOUBLE])
def test_text(name):
    source = HEAD + {**SINGLE, **DOUBLE}[name] + "; }"
    for dtype, double in (("float32", name in DOUBLE), ("bfloat16", name in DOUBLE), ("float64", True)):
        text = tilec.compile(source).lower(tilec.spec((6, 9), dtype), backend="triton", target="sm_90").source()
        assert ("tl.float64" in text.split("def Y_kernel")[1]) == double


@pytest.mark.parametrize(("width", "narrow"), [(2**24 - 1, True), (2**24 + 2, False)])
def test_float32_holds_the_positions(width, narrow):
    f = tilec.compile("function (X[J]) -> (Y) { Y[j : J] = X[j] + j / 3.0; }")
    text = f.lower(tilec.spec((width,)), backend="triton", target="sm_90").source()
    assert ("to(tl.float64)" not in text) == narrow


@pytest.mark.one_in(3)
@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*SINGLE, *DOUBLE])
@pytest.mark.covering
def test_values(name, dtype):
    source, x = HEAD + {**SINGLE, **DOUBLE}[name] + "; }", given((6, 9), dtype)
    wanted = tilec.compile(source, backend="torch")(x)
    found = tilec.compile(source, backend="triton")(x)
    if dtype == torch.bfloat16 or name in ("a function", "read twice"):
        torch.testing.assert_close(found, wanted)
    else:
        assert torch.equal(found, wanted)


@interpreted
def test_quotients_of_all_small_positions_are_those_of_float64():
    f = "function (X[I, J]) -> (Y) { Y[i, j : I, J] = X[i, j] + (j - 40) / (i + 1.5); }"
    x = torch.zeros(50, 900)
    assert torch.equal(tilec.compile(f, backend="triton")(x), tilec.compile(f, backend="torch")(x))
    for n in (3.0, 7.0, 10.0, 1023.0):
        f = f"function (X[J]) -> (Y) {{ Y[j : J] = X[j] + (j * 257 + 1) / {n}; }}"
        x = torch.zeros(20000)
        assert torch.equal(tilec.compile(f, backend="triton")(x), tilec.compile(f, backend="torch")(x))


POWERS = {  # the exponent, and whether it is squared up to
    "from none": ("j", True),
    "from -1": ("j - 1", True),
    "backward": ("J - 1 - j", True),
    "of few": ("j % 2 * 7", True),
    "further below": ("j - 2", False),
    "of many": ("j * 2", False),
}


@interpreted
@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.covering
def test_powers_that_indices_say(name, dtype):
    exponent, squared = POWERS[name]
    source = f"function (X[I, J]) -> (Y) {{ Y[i, j : I, J] = pow(X[i, 0], {exponent}) + X[i, j] * 0.001; }}"
    x = given((7, 9), dtype)
    x[:4, 0] = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan])
    f, wide = tilec.compile(source, backend="triton"), x.double()
    bound = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    wanted = tilec.compile(source, backend="torch")(wide)
    torch.testing.assert_close(f(x).double(), wanted, rtol=bound, atol=bound, equal_nan=True)
    assert ("whole_power_(" in f.lower(x).source()) == squared
