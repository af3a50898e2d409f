"""Rows by the matrix of their key, and sums of products at keys, on the CPU: against the oracle."""

import numpy as np
import pytest
import torch

import tilec
from tilec.backends.torch import keyed_products, runtime
from tilec.backends.torch.matmul import keyed

SIZES = {"T": 13, "K": 2, "C": 3, "O": 4, "E": 3}
INPUTS = "X[T, C] Z[T, K, C] W[E, C, O] V[C, E, O] G[T, K] S[O] B[E, O] D[T, O] Ix[T] Jx[T, K]"
ROWS = {
    "rows": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o])",
    "transposed": "Y[o, t : O, T] = +(W[Ix[t], c, o] * X[t, c])",
    "key in the middle": "Y[t, o : T, O] = +(X[t, c] * V[c, Ix[t] + 1, o])",
    "several": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o] * D[t, o] * B[Ix[t], o] * S[o])",
    "two axes of rows": "Y[t, k, o : T, K, O] = +(Z[t, k, c] * W[Jx[t, k], c, o])",
    "rows that share an operand": "Y[k, o, t : K, O, T] = +(X[t, c] * W[Jx[t, k], c, o])",
    "no summed variable": "Y[t, c, o : T, C, O] = +(X[t, c] * W[Ix[t], c, o])",
    "sums at keys": "Y[Ix[t], c, o : 3, C, O] = +(X[t, c] * D[t, o])",
    "sums of shared operands at keys": "Y[c, Jx[t, k] - 1, o : C, 3, O] = +(X[t, c] * D[t, o] * G[t, k])",
    "sums by what all share": "Y[Ix[t], c, o : 3, C, O] = +(X[t, c] * D[t, o] * S[o])",
    "an axis of its own": "Y[t, o, p : T, O, 2] = +(X[t, c] * W[Ix[t], c, o])",
    "a sum with another": "Y[Jx[t, k], o : 3, O] = +(Z[t, k, c] * D[t, o])",
}
OTHERS = {
    "sums over keys": "Y[o : O] = +(X[t, c] * W[Ix[t], c, o])",
    "no operand of rows": "Y[t, o : T, O] = +(W[Ix[t], c, o] * S[o])",
    "a window of rows": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t - 1], c, o])",
    "one variable twice": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o] * V[c, c, o])",
    "two keys": "Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o] * B[Ix[t] + 1, o])",
    "vectors": "Y[t, k : T, K] = +(Z[t, k, c] * B[Jx[t, k], c])",
    "sums of vectors by what all share": "Y[Ix[t], o : 3, O] = +(X[t, c] * D[t, o] * S[o])",
    "sums of vectors": "Y[Jx[t, k], c : 3, C] = +(G[t, k] * X[t, c])",
    "a condition": "Y[t, o : T, O] = +(X[t, c] > 0 ? X[t, c] * W[Ix[t], c, o])",
}


def call(text, dtype=torch.float64):
    """A source over the inputs that the text reads, and arrays for it."""
    inputs = [i + "]" for i in INPUTS.removesuffix("]").split("] ") if i[: i.index("[") + 1] in text]
    generator = np.random.default_rng(3)
    arrays = []
    for i in inputs:
        shape = [SIZES[d] for d in i[i.index("[") + 1 : -1].split(", ")]
        values = generator.integers(-1, SIZES["E"] + 1, shape) if i[1] == "x" else generator.normal(size=shape)
        arrays.append(values if i[1] == "x" else torch.tensor(values).to(dtype).double().numpy())
    return f"function ({', '.join(inputs)}) -> (Y) {{ {text}; }}", arrays


@pytest.fixture(autouse=True)
def however_few(monkeypatch):
    monkeypatch.setattr(keyed, "FEWEST_OF_KEY", 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*ROWS, *OTHERS])
def test_values_and_gradients_are_the_oracles(name):
    source, arrays = call({**ROWS, **OTHERS}[name])
    f, inputs = tilec.compile(source, backend="torch"), [torch.tensor(a) for a in arrays]
    assert ("products_by_key" in f.lower(*inputs).source()) == (name in ROWS)
    y = f(*inputs)
    torch.testing.assert_close(y, torch.tensor(tilec.interpret(source, *arrays)))
    leaves = [t.requires_grad_() for t in inputs if t.is_floating_point()]
    assert torch.autograd.gradcheck(lambda *_: f(*inputs), leaves, fast_mode=True)


@pytest.mark.parametrize("name", ROWS)
def test_values_as_on_devices(name, monkeypatch):
    """Where the number of a key's rows is not asked; what the rows of others hold touches nothing."""
    monkeypatch.setattr(runtime, "products_by_key", keyed_products.products_of_masks)
    source, arrays = call(ROWS[name])
    arrays[-2 if name == "sums by what all share" else 0][0] = np.inf
    y = tilec.compile(source, backend="torch")(*map(torch.tensor, arrays))
    torch.testing.assert_close(y, torch.tensor(tilec.interpret(source, *arrays)), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["rows", "sums at keys"])
def test_element_types(name, dtype):
    source, arrays = call(ROWS[name], dtype)
    inputs = [torch.tensor(a).to(dtype) if a.dtype == np.float64 else torch.tensor(a) for a in arrays]
    y = tilec.compile(source, backend="torch")(*inputs)
    assert y.dtype == dtype
    wanted = torch.tensor(tilec.interpret(source, *arrays))
    torch.testing.assert_close(y.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps)


def test_sums_of_16_bits_that_are_kept_in_float32():
    source, arrays = call("Y[t, o : T, O] = +(float32(X[t, c]) * float32(W[Ix[t], c, o]))", torch.bfloat16)
    inputs = [torch.tensor(a).bfloat16() if a.dtype == np.float64 else torch.tensor(a) for a in arrays]
    y = tilec.compile(source, backend="torch")(*inputs)
    torch.testing.assert_close(y.double(), torch.tensor(tilec.interpret(source, *arrays)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_elements_that_are_cast_to_16_bits_are_rounded(dtype):
    cast, a_little = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps / 4
    x, w, ix = torch.tensor([[1 + a_little, -1.0]] * 3), torch.ones(2, 2, 4, dtype=dtype), torch.tensor([0, 1, 1])
    f = tilec.compile(f"Y[t, o] = +({cast}(X[t, c]) * W[Ix[t], c, o])", backend="torch")
    assert "products_by_key" in f.lower(x, w, ix).source()
    assert (f(x, w, ix) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_several_of_16_bits_are_rounded_once(dtype):
    source, arrays = call(ROWS["several"], dtype)
    inputs = [torch.tensor(a).to(dtype) if a.dtype == np.float64 else torch.tensor(a) for a in arrays]
    y = tilec.compile(source, backend="torch")(*inputs)
    wanted = torch.tensor(tilec.interpret(source, *arrays))
    torch.testing.assert_close(y.double(), wanted, rtol=0.6 * torch.finfo(dtype).eps, atol=1e-7)


def test_what_other_rows_hold_touches_nothing():
    x, w, ix = torch.ones(6, 3), torch.ones(3, 3, 4), torch.tensor([0, 1, 2, 3, -1, 0])
    w[1], x[2] = torch.inf, torch.nan
    y = tilec.compile("Y[t, o] = +(X[t, c] * W[Ix[t], c, o])", backend="torch")(x, w, ix)
    assert (y[[0, 5]] == 3).all() and (y[[3, 4]] == 0).all() and y[1].isinf().all() and y[2].isnan().all()
