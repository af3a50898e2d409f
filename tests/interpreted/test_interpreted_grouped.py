"""Products of rows by the matrix that a computed index names, and sums of products for each value of such an index:
keys that are outside, repeated, missing, computed; element types, layouts, epilogues, gradients."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.grouped_matmul import products

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
ROWS = "function (X[T, C], W[E, C, O], Ix[T]) -> (Y) { Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o]); }"


@pytest.fixture(autouse=True)
def whatever_it_takes(monkeypatch):
    monkeypatch.setattr(products, "GAIN", 0.0)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def keys(*shape, below):
    """From -1 to `below`: the ends are outside."""
    return torch.randint(-1, below + 1, shape, generator=torch.Generator().manual_seed(below))


def agree(source, *inputs, launches=1, gradients=0, tolerance=1e-5):
    """Values, and gradients by floating inputs, as the torch backend's; `launches` and `gradients`: of grouped
    products."""
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    assert f.lower(*inputs).source().count("_grouped[") == launches
    found, wanted = f(*inputs), g(*inputs)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    cotangent = normal(*wanted.shape, dtype=wanted.dtype)
    names = [n for n, t in zip(f.inputs, inputs, strict=True) if torch.is_tensor(t) and t.is_floating_point()]
    assert f.grad(names).lower(*inputs, cotangent).source().count("_grouped[") == gradients
    both = [h.grad(names)(*inputs, cotangent) for h in (f, g)]
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in both), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * 20, equal_nan=True)


@pytest.mark.parametrize(
    ("t", "c", "o", "e"), [(70, 33, 18, 3), (200, 64, 48, 7), (17, 16, 16, 40), (64, 20, 130, 1), (33, 1, 17, 2)]
)
@pytest.mark.one_in(3)
def test_each_row_by_the_matrix_of_its_key(t, c, o, e):
    some = min(c, o) >= 16
    agree(ROWS, normal(t, c), normal(e, c, o), keys(t, below=e), launches=int(some), gradients=2 if some else 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_element_types(dtype):
    inputs = normal(70, 32, dtype=dtype), normal(4, 32, 24, dtype=dtype), keys(70, below=4).int()
    agree(ROWS, *inputs, gradients=2, tolerance=3e-3 if dtype == torch.float16 else 1e-12)


SPELLINGS = {
    "key plus one": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t] + 1, c, o])",
    "key wraps": "Y[t, o : T, O] = +(X[t, c] * W[(Ix[t]) % E, c, o])",
    "key is clamped": "Y[t, o : T, O] = +(X[t, c] * W[clamp(Ix[t], 0, E - 1), c, o])",
    "result transposed": "Y[o, t : O, T] = +(W[Ix[t], c, o] * X[t, c])",
    "rows of a condition": "Y[t, o : T, O] = +(t > 5 ? X[t, c] * W[Ix[t], c, o])",
    "scale of a row": "Y[t, o : T, O] = +(X[t, c] * exp(X[t, 0]) * W[Ix[t], c, o])",
    "key of a formula": "Y[t, o : T, O] = +(X[t, c] * W[(t) % E, c, o])",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling):
    source = f"function (X[T, C], W[E, C, O], Ix[T]) -> (Y) {{ {SPELLINGS[spelling]}; }}"
    inputs = normal(50, 20), normal(3, 20, 17), keys(50, below=3)
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    torch.testing.assert_close(f(*inputs), g(*inputs), rtol=1e-5, atol=1e-4)
    assert "_grouped[" in f.lower(*inputs).source() or spelling == "key of a formula"


def test_keys_of_several_axes_and_a_batch():
    source = """function (X[T, K, H, C], W[E, H, C, O], Ix[T, K], B[E, O]) -> (Y) {
        S[t, k, h, o : T, K, H, O] = +(X[t, k, h, c] * W[Ix[t, k], h, c, o]);
        Y[t, k, h, o : T, K, H, O] = relu(S[t, k, h, o] + B[(Ix[t, k]) % E, o]);
    }"""
    inputs = normal(21, 2, 3, 18), normal(4, 3, 18, 20), keys(21, 2, below=4), normal(4, 20)
    agree(source, *inputs, gradients=3)


def test_what_other_rows_hold_touches_nothing():
    x, w, ix = normal(40, 16), normal(3, 16, 16), keys(40, below=3)
    w[1] = torch.inf
    x[ix == 2] = torch.nan
    f = tilec.compile(ROWS, backend="triton")
    y = f(x, w, ix)
    assert y[ix == 0].isfinite().all() and (y[(ix < 0) | (ix > 2)] == 0).all()
    assert not y[ix == 1].isfinite().any() and y[ix == 2].isnan().all()
    _, dw = f.grad(["X", "W"])(x, w, ix, torch.ones(40, 16))
    assert dw[:2].isfinite().all() and dw[2].isnan().all()


def test_same_kernel_for_other_keys_and_sizes():
    f = tilec.compile(ROWS, backend="triton")
    for t, e in ((64, 3), (65, 3), (64, 5), (128, 2)):
        x, w = normal(t, 16), normal(e, 16, 16)
        for ix in (keys(t, below=e), torch.zeros(t, dtype=torch.int64), torch.full((t,), e), torch.arange(t) % e):
            wanted = torch.stack([a @ w[i] if 0 <= i < e else torch.zeros(16) for a, i in zip(x, ix, strict=True)])
            torch.testing.assert_close(f(x, w, ix), wanted, rtol=1e-5, atol=1e-5)


SUMS = {
    "relations": "Y[B[t], o : T, O] = +(X[Ax[t], c] * W[Ix[t], c, o])",
    "a guard": "Y[Ix[t], c, o : 3, C, O] = +(S[t] > 0 ? X[t, c] * Z[t, o])",
    "elements elsewhere": "Y[Ix[t], c, o : 3, C, O] = +(X[Ax[t], c] * Z[B[t], o])",
    "constraints alone bound": "Y[Ix[t] + a, c, o : 3, C, O] = +((a == 0 ? S[t] : 2) * X[t, c] * Z[t, o]), a < 2",
    "places alone bound": "Y[(Ix[t] + 2*a) % 3, c, 3*a + t, o : 3, C, T, O] = +(X[t, c] * Z[t, o])",
    "two computed axes": "Y[c, Ix[t], o, (t) % 2 : C, 3, O, 2] = +(X[t, c] * S[t] * Z[t, o])",
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.one_in(3)
def test_sums_at_keys(name):
    t, c, o, e = 28, 17, 20, 3
    declared = "X[T, C], W[E, C, O], Z[T, O], S[T], Ix[T], Ax[T], B[T]"
    source = f"function ({declared}) -> (Y) {{ {SUMS[name]}; }}"
    places = keys(t, below=e), keys(t, below=t), torch.arange(t).flip(0) - 3
    inputs = normal(t, c), normal(e, c, o), normal(t, o), normal(t), *places
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    assert "_grouped[" in f.lower(*inputs).source()
    found, wanted = f(*inputs), g(*inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    cotangent, names = normal(*wanted.shape), ["X", "W", "Z", "S"]
    for a, b in zip(*(h.grad(names)(*inputs, cotangent) for h in (f, g)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


def test_points_that_are_left_out_meet_no_infinity():
    source = "Y[Ix[t], c, o : 2, 16, 16] = +(X[Ax[t], c] * Z[t, o])"
    x, z = torch.ones(4, 16), torch.full((20, 16), torch.inf)
    ix, ax = torch.zeros(20, dtype=torch.int64), torch.full((20,), 9)
    z[3], ax[3] = 2.0, 1
    y = tilec.compile(source, backend="triton")(Ix=ix, X=x, Ax=ax, Z=z)
    assert (y[0] == 2).all() and (y[1] == 0).all()
