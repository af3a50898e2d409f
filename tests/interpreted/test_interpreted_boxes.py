"""Grouped products whose operands the copy engine brings in boxes: keys that are outside, missing or many, layouts,
ends of tensors, what stands in other rows."""

import os
import re

import pytest
import torch

import tilec
from tilec.backends.triton.grouped_matmul import boxes, kernels, products
from tilec.backends.triton.matmul.blocks import Config
from tilec.transforms.lower import keyed_sums

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
ROWS = "function (X[T, C], W[E, C, O], Ix[T]) -> (Y) { Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o]); }"


@pytest.fixture(autouse=True)
def wherever_it_fits(monkeypatch):
    """In the interpreter as on a Hopper, whatever it takes."""
    monkeypatch.setattr(products, "GAIN", 0.0)
    monkeypatch.setattr(boxes, "HOPPER", 0)
    monkeypatch.setattr(boxes, "FEWEST_POINTS", 0)
    monkeypatch.setattr(boxes, "COPY_SECONDS", -1.0)
    monkeypatch.setattr(kernels, "BOXED_TILES", (Config(32, 64, 32, 4, 2),))


def normal(*shape, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def keys(*shape, below):
    """From -1 to `below`: the ends are outside."""
    return torch.randint(-1, below + 1, shape, generator=torch.Generator().manual_seed(below))


def agree(source, *inputs, boxed=(1, 2), copies=(0, 2), wrt=("X", "W")):
    """Values, and gradients, as the torch backend's in float64; `boxed`: products by boxes, and `copies` of rows in
    order, forward and backward."""
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    wanted = g(*wide)
    cotangent = normal(*wanted.shape, dtype=inputs[0].dtype)
    lowered = f.lower(*inputs), f.grad(list(wrt)).lower(*inputs, cotangent)
    for made, n, m in zip(lowered, boxed, copies, strict=True):
        grouped = [k for k in made.source().splitlines() if "_grouped[" in k]
        assert sum("tensor_map(" in k for k in grouped) == n
        assert len(re.findall(r"_in_order\d*\[", made.source())) == m
    found = f(*inputs), *f.grad(list(wrt))(*inputs, cotangent)
    for a, b in zip(found, (wanted, *g.grad(list(wrt))(*wide, cotangent.double())), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=4e-3, atol=4e-2, equal_nan=True)


@pytest.mark.parametrize(("t", "c", "o", "e"), [(70, 40, 24, 3), (150, 72, 136, 5), (17, 16, 16, 40), (128, 64, 32, 1)])
@pytest.mark.one_in(3)
@pytest.mark.usefixtures("launches_apart")
def test_each_row_by_the_matrix_of_its_key(t, c, o, e):
    agree(ROWS, normal(t, c), normal(e, c, o), keys(t, below=e))


@pytest.mark.parametrize("t, o", [(300, 72)])
def test_rows_in_order_are_copied_once(t, o, monkeypatch):
    monkeypatch.setattr(kernels, "rows_in_place", lambda *_: False)
    agree(ROWS, normal(t, 40), normal(5, 40, o), keys(t, below=5), copies=(1, 2))


@pytest.mark.usefixtures("launches_apart")
def test_rows_that_begin_between_vectors_are_copied():
    agree(ROWS, normal(130, 37), normal(3, 37, 45), keys(130, below=3), copies=(1, 2))
    f = tilec.compile(ROWS, backend="triton").grad(["X", "W"])
    text = f.lower(normal(130, 37), normal(3, 37, 45), keys(130, below=3), normal(130, 45)).source()
    assert text.count("W_padded_kernel[") == 1


SPELLINGS = {
    "result transposed": "Y[o, t : O, T] = +(W[Ix[t], c, o] * X[t, c])",
    "rows of a condition": "Y[t, o : T, O] = +(t > 5 ? X[t, c] * W[Ix[t], c, o])",
    "scale of a row": "Y[t, o : T, O] = +(X[t, c] * exp(X[t, 0]) * W[Ix[t], c, o])",
    "matrices turned": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t], o, c])",
    "key plus one": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t] + 1, c, o])",
    "key is clamped": "Y[t, o : T, O] = +(X[t, c] * W[clamp(Ix[t], 0, E - 1), c, o])",
    "epilogue": "Y[t, o : T, O] = relu(sum(X[t, c] * W[Ix[t], c, o])) * B[o]",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.one_in(4)
def test_spellings(spelling):
    turned = spelling == "matrices turned"
    source = (
        f"function (X[T, C], W[E, {'O, C' if turned else 'C, O'}], Ix[T], B[O]) -> (Y) {{ {SPELLINGS[spelling]}; }}"
    )
    t, c, o, e = 150, 80, 48, 3
    inputs = normal(t, c) / 8, normal(e, *((o, c) if turned else (c, o))) / 4, keys(t, below=e), normal(o)
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    torch.testing.assert_close(f(*inputs).double(), g(*wide), rtol=4e-3, atol=4e-3)
    assert "TensorDescriptor" in f.lower(*inputs).source()
    cotangent = normal(*g(*wide).shape)
    found, wanted = (h.grad(["X", "W"])(*i, cotangent.to(i[0])) for h, i in ((f, inputs), (g, wide)))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=4e-3, atol=3e-2)


def test_rows_that_are_scaled_by_their_key_are_read_through_pointers():
    scaled = "Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o] * B[Ix[t], c])"
    source = f"function (X[T, C], W[E, C, O], Ix[T], B[E, C]) -> (Y) {{ {scaled}; }}"
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    x, w, ix, b = normal(32, 24), normal(3, 24, 136), keys(32, below=3), normal(3, 24)
    wanted = g(x.double(), w.double(), ix, b.double())
    torch.testing.assert_close(f(x, w, ix, b).double(), wanted, rtol=4e-3, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_biases_of_the_keys(dtype):
    bias = "Y[t, o : T, O] = relu(sum(X[t, c] * W[Ix[t], c, o]) + B[Ix[t], o]) + 1"
    f, g = (
        tilec.compile(f"function (X[T, C], W[E, C, O], Ix[T], B[E, O]) -> (Y) {{ {bias}; }}", backend=b)
        for b in ("triton", "torch")
    )
    inputs = normal(90, 40, dtype=dtype), normal(3, 40, 24, dtype=dtype), keys(90, below=3), normal(3, 24, dtype=dtype)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    torch.testing.assert_close(f(*inputs).double(), g(*wide), rtol=4e-3, atol=2e-2)


ASKED = ["in(B[Ix[t], o]) ? Z[t, o] : 7", "Z[t, o] + B[Ix[t], o] + pad(B[Ix[t], o], 5)"]


@pytest.mark.parametrize("value", ASKED)
def test_whether_a_key_has_a_bias_may_be_asked(value):
    source = f"""function (X[T, C], W[E, C, O], Ix[T], B[E, O]) -> (Y) {{
        Z[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o]); Y[t, o : T, O] = {value}; }}"""
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    x, w, ix, b = normal(9, 5), normal(3, 5, 4), keys(9, below=3), normal(3, 4)
    torch.testing.assert_close(f(x, w, ix, b).double(), g(x.double(), w.double(), ix, b.double()), rtol=4e-3, atol=2e-2)


@pytest.mark.parametrize("in_place", [True, False])
def test_what_other_rows_hold_touches_nothing(in_place, monkeypatch):
    monkeypatch.setattr(kernels, "rows_in_place", lambda *_: in_place)
    x, w, ix = torch.ones(100, 24).half(), torch.ones(3, 24, 16).half(), torch.arange(100) % 3
    x[1::3], w[1] = torch.inf, torch.nan
    f = tilec.compile(ROWS, backend="triton")
    found, wanted = f(x, w, ix), torch.full((100, 16), 24.0).half()
    wanted[1::3] = torch.nan
    torch.testing.assert_close(found, wanted, equal_nan=True)
    dw = f.grad(["W"])(x, w, ix, torch.ones(100, 16).half())
    assert torch.isinf(dw[1]).all() and (dw[0] == 34).all() and (dw[2] == 33).all()


@pytest.mark.parametrize("boxed", [True, False])
def test_points_of_a_key_shared_among_programs(boxed, monkeypatch):
    monkeypatch.setattr(boxes, "SHARE_STEPS", 1)
    monkeypatch.setattr(kernels, "boxed_time", lambda found, config: -config.parts)
    if not boxed:
        monkeypatch.setattr(boxes, "HOPPER", 90)
    x, dy, ix = normal(500, 32), normal(500, 40), keys(500, below=2) // 2
    f = tilec.compile(ROWS, backend="triton").grad(["W"])
    text = f.lower(x, normal(2, 32, 40), ix, dy).source()
    assert "DW_parts" in text and text.count("tensor_map(") == 3 * boxed  # its definition among them
    wanted = torch.stack([x[ix == e].double().T @ dy[ix == e].double() for e in range(2)])
    torch.testing.assert_close(f(x, normal(2, 32, 40), ix, dy).double(), wanted, rtol=4e-3, atol=2e-2)


def test_no_keys_and_no_rows():
    x, w = torch.ones(40, 24).half(), torch.ones(3, 24, 16).half()
    f = tilec.compile(ROWS, backend="triton")
    assert (f(x, w, torch.full((40,), 7)) == 0).all()
    assert (f.grad(["W"])(x, w, torch.full((40,), -1), torch.ones(40, 16).half()) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("c", "f"), [(40, 48), (19, 33)])
def test_a_layer_of_experts(c, f, monkeypatch):
    monkeypatch.setattr(keyed_sums, "LEAST_SUMMED_TWICE", 0)
    source = """function (X[T, C], G[T, K], E[T, K], U[N, C, F], V[N, C, F], W[N, F, C]) -> (Y) {
        A[t, k, f : T, K, F] = sum(X[t, c] * U[E[t, k], c, f]);
        H[t, k, f : T, K, F] = silu(A[t, k, f]) * sum(X[t, c] * V[E[t, k], c, f]);
        Y[t, o : T, C] = +(G[t, k] * H[t, k, f] * W[E[t, k], f, o]);
    }"""
    matrices = (normal(3, *s) / c**0.5 for s in ((c, f), (c, f), (f, c)))
    inputs = normal(60, c), normal(60, 2), keys(60, 2, below=3), *matrices
    layer, exact = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    cotangent = normal(60, c)
    found = layer(*inputs), *layer.grad(list("XGUVW"))(*inputs, cotangent)
    wanted = exact(*wide), *exact.grad(list("XGUVW"))(*wide, cotangent.double())
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=4e-2)
