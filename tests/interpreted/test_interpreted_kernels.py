"""What kernels of each family are made of, interpreted: awkward sizes, strides, types, and the text that runs alone."""

import importlib.util
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import tilec
from tilec.backends.common import pairs

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

MATMUL = "O[i, j : M, N] = +(A[i, k] * B[k, j]);"
CONVOLUTION = "O[n, y, x, o : N, H, W, CO] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);"
STRIDED = "O[n, y, x, o : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, c] * K[j, i, c, o]);"
IMAGES = "I[N, H, W, CI], K[KH, KW, CI, CO]"


def function(inputs: str, text: str) -> str:
    return f"function ({inputs}) -> (O) {{ {text} }}"


def normal(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-9, 10, shape, generator=generator).to(dtype)


def check(source, *inputs, tolerance=1e-5, kernels=None):
    """The same as the torch backend in float64; `kernels`: how many are launched."""
    f = tilec.compile(source, backend="triton")
    got = f(*inputs)
    wide = [x.double() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x for x in inputs]
    wanted = tilec.compile(source, backend="torch")(*wide)
    assert got.shape == wanted.shape
    scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if kernels is not None:
        assert [k.name for k in f.lower(*inputs).kernels] == kernels
    return got


@pytest.mark.parametrize(
    "m, k, n", [(1, 17, 5), (16, 16, 16), (33, 129, 17), (64, 47, 127), (0, 5, 4), (4, 0, 5), (40, 1, 40)]
)
def test_matmul(m, k, n):
    check(function("A[M, K], B[K, N]", MATMUL), normal(m, k), normal(k, n), tolerance=2e-6 * max(1, math.sqrt(k)))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_types_of_products(dtype, tolerance):
    inputs = normal(33, 40, dtype=dtype), normal(40, 35, dtype=dtype)
    got = check(function("A[M, K], B[K, N]", MATMUL), *inputs, tolerance=tolerance, kernels=["O_dot"])
    assert got.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_operands_are_computed_as_they_are_read(dtype):
    source = function("A[M, K], B[K, N], S[M]", "O[i, j : M, N] = +(exp(A[i, k] - S[i]) * sin(B[k, j]) * 0.5);")
    inputs = normal(33, 40, dtype=dtype), normal(40, 35, dtype=dtype), normal(33, dtype=dtype)
    check(source, *inputs, tolerance=5e-3 if dtype is torch.float16 else 1e-5, kernels=["O_dot"])
    source = function("A[M, K], B[K, N]", "O[i, j : M, N] = +(A[i, k] * sin(B[k, j]));")
    check(source, *inputs[:2], tolerance=3e-3 if dtype is torch.float16 else 1e-5, kernels=["O_dot"])
    source = function("A[M, K], B[K, N]", "O[i, j : M, N] = +(float32(A[i, k]) * float32(B[k, j]));")
    assert check(source, *inputs[:2], tolerance=1e-5, kernels=["O_dot"]).dtype is torch.float32


def test_eight_bit_integers_are_exact():
    a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((20, 300), (300, 20)))
    f = tilec.compile(
        function("A[M, K], B[K, N]", "O[i, j : M, N] = +(int32(A[i, k]) * int32(B[k, j]));"), backend="triton"
    )
    assert [k.name for k in f.lower(a, b).kernels] == ["O_dot"]
    got = f(a, b)
    assert got.dtype == torch.int64 and torch.equal(got, a.long() @ b.long())


def test_long_reductions_are_split_and_combined():
    x = normal(1, 17000, dtype=torch.float64)
    for aggregation in ("+", ">", "logsumexp", "any"):
        source = function("A[M, K]", f"O[i : M] = {aggregation}(A[i, k]);")
        got = tilec.compile(source, backend="triton")(x)
        names = [k.name for k in tilec.compile(source, backend="triton").lower(x).kernels]
        assert names == ["O_kernel", "O_kernel"], aggregation
        wanted = tilec.compile(source, backend="torch")(x)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizes", [(2, 5, 6, 32, 24), (1, 1, 1, 17, 16), (1, 7, 3, 3, 19)])
def test_convolution_forward_and_backward(sizes):
    n, h, w, ci, co = sizes
    source = function(IMAGES, CONVOLUTION)
    i, k = normal(n, h, w, ci), normal(3, 3, ci, co)
    check(source, i, k, tolerance=3e-6 * math.sqrt(9 * ci))
    gradient = tilec.compile(source).grad()
    for got, wanted in zip(
        tilec.compile(gradient.tile, backend="triton")(i, k, normal(n, h, w, co)),
        tilec.compile(gradient.tile, backend="torch")(i, k, normal(n, h, w, co)),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)


def test_residue_classes_are_one_launch():
    i, k = normal(2, 20, 20, 24), normal(3, 3, 24, 17)
    gradient = tilec.compile(function(IMAGES, STRIDED)).grad(("I",))
    ours = tilec.compile(gradient.tile, backend="triton")
    d = normal(2, 6, 6, 17)
    torch.testing.assert_close(ours(i, k, d), gradient(i, k, d), rtol=1e-4, atol=1e-4)
    assert [kernel.name for kernel in ours.lower(i, k, d).kernels] == ["DI_dot"]


def test_padding_meets_infinities():
    i, k = normal(2, 5, 6, 32), normal(3, 3, 32, 24)
    k[0, 0, 0, 0] = float("inf")
    i[1, 2, 3, 4] = float("nan")
    source = function(IMAGES, CONVOLUTION)
    got = check(source, i, k, tolerance=1e-4)
    assert got[0, 0, 0].isfinite().all(), "the infinite weight stands over padding there"
    assert got[0].isinf().any() and got[1].isnan().any() and not got[0].isnan().any()


def test_three_operands_are_two_products(monkeypatch):
    monkeypatch.setattr(pairs, "GAIN", 0.0)  # however small they are
    source = function("A[M, K], B[K, L], C[L, N]", "O[i, j : M, N] = +(A[i, k] * B[k, l] * C[l, j]);")
    check(source, normal(33, 40), normal(40, 50), normal(50, 35), tolerance=1e-4, kernels=["O_1_dot", "O_dot"])


def test_elementwise_statements_ride():
    source = function("A[M, K], B[K, N], C[N]", f"T{MATMUL[1:]} U = relu(T + C); O = U * 2.0;")
    check(source, normal(33, 40), normal(40, 35), normal(35), tolerance=1e-5, kernels=["T_dot"])
    root = function("A[M, K]", "O[i : M] = sqrt(sum(A[i, k] * A[i, k])) + 1;")
    assert len(tilec.compile(root, backend="triton").lower(normal(5, 7)).kernels) == 1
    check(root, normal(5, 7))


def test_what_is_returned_or_read_twice_does_not_ride():
    source = "function (A[M, K]) -> (T, O) { T[i : M] = +(A[i, k]); O = T * 2.0; }"
    f = tilec.compile(source, backend="triton")
    t, o = f(torch.ones(3, 4))
    assert t.tolist() == [4.0] * 3 and o.tolist() == [8.0] * 3


def test_strided_inputs_are_read_where_they_lie():
    source = function("A[M, K], B[K, N]", MATMUL)
    a, b = normal(40, 66), normal(35, 80)
    check(source, a[:, ::2], b.T[::2][:33])
    check(source, a.T[:33].T, b[:, :33].T)
    check(function("X[M, N]", "O[j, i : N, M] = X[i, j];"), normal(5, 9)[:, 1::3])
    check(function("X[M, N]", "O[i : M] = +(X[i, j]);"), normal(7).expand(4, 7))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool])
@pytest.mark.covering
def test_repeated_elements(axes, dtype):
    """Tensors of stride 0 along one axis or both, in sizes that no block divides."""

    def repeated(rows, columns):
        whole = normal(rows, columns).to(dtype)
        return whole[: 1 if 0 in axes else rows, : 1 if 1 in axes else columns].expand(rows, columns)

    check(function("A[M, K], B[K, N]", MATMUL), repeated(37, 19), normal(19, 21).to(dtype))
    check(function("A[M, K], B[K, N]", MATMUL), normal(37, 19).to(dtype), repeated(19, 21))
    two = "X[M, N], Y[M, N]"
    check(function(two, "O[j, i : N, M] = X[i, j] * Y[i, j] + X[i, j];"), repeated(21, 19), normal(21, 19))
    check(function(two, "O[i : M] = <(X[i, j] + Y[i, j]);"), repeated(21, 19), normal(21, 19))
    check(function(two, "O[j : N] = +(X[i, j] * Y[i, j]);"), repeated(300, 19), normal(300, 19))


@pytest.mark.parametrize("summed", [(0, 1), (0,), (1,)])
@pytest.mark.one_in(3)
def test_gradients_of_sums_of_log_products(summed):
    """Their cotangent repeats its elements."""
    a, b = normal(77, 129).requires_grad_(), normal(129, 33).requires_grad_()
    f = tilec.compile("C[i, j] = logsumexp(A[i, k] + B[k, j])", backend="triton")
    got = torch.autograd.grad(f(a, b).sum(summed).pow(2).sum(), (a, b))
    wide = a.double(), b.double()
    wanted = torch.autograd.grad(torch.logsumexp(wide[0][:, :, None] + wide[1], 1).sum(summed).pow(2).sum(), (a, b))
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-3)


def test_the_source_runs_alone(tmp_path):
    source = function(IMAGES, STRIDED)
    i, k = normal(1, 9, 9, 3), normal(3, 3, 3, 4)
    text = tilec.compile(source, backend="triton").lower(i, k).source()
    assert "# O[n, y, x, o] = +(I[n, 2*j + 3*y, 2*i + 3*x, c] * K[j, i, c, o]);" in text
    assert "# O[n, y, x, o : 1, 3, 3, 4] = +(I[n, 2*j + 3*y, 2*i + 3*x, c] * K[j, i, c, o]);" in text
    path = tmp_path / "pasted.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("pasted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (got,) = module.program(i, k)
    torch.testing.assert_close(got, tilec.compile(source, backend="torch")(i, k), rtol=1e-5, atol=1e-5)


def test_equal_classes_of_shapes_are_one_text():
    f = tilec.compile(function(IMAGES, CONVOLUTION), backend="triton")
    texts = {f.lower(normal(4, h, h, 32), normal(3, 3, 32, 32)).kernels[0].source for h in (40, 41, 43)}
    assert len(texts) == 1


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_integers_wrap_and_divide_as_torch_does(dtype):
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randint(-100, 100, (50,), generator=generator).to(dtype) for _ in range(2))
    for text in (
        "O = X / Y;",
        "O = X * Y;",
        "O = X % Y;",
        "O = X + Y;",
        "O = (X & Y) ^ (X | Y);",
        "O = X == Y ? X : Y;",
        "O = pow(X, Y);",
    ):
        if dtype is torch.bool and ("%" in text or "pow" in text):
            continue
        source = function("X, Y", text)
        got = tilec.compile(source, backend="triton")(x, y)
        wanted = tilec.compile(source, backend="torch")(x, y)
        assert got.dtype == wanted.dtype and torch.equal(got, wanted), text


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_random_numbers_are_the_same_bits(name):
    source = function("X, S", f"O = {name}(S) + X * 0;")
    for seed in (0, -3, 2**62):
        got = tilec.compile(source, backend="triton")(torch.zeros(33), seed)
        assert torch.equal(got, tilec.compile(source, backend="torch")(torch.zeros(33), seed))


def test_scatters_are_deterministic_and_exact():
    u, places = normal(40, 5), torch.randint(-1, 8, (40,), generator=torch.Generator().manual_seed(1))
    source = function("U[K, D], Ix[K]", "O[Ix[k], j : 7, D] = +(U[k, j]);")
    f = tilec.compile(source, backend="triton")
    got = f(u, places)
    assert torch.equal(got, f(u, places))
    inside = (places >= 0) & (places < 7)
    wanted = torch.zeros(7, 5, dtype=torch.float64).index_add_(0, places[inside], u[inside].double())
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_every_function():
    from tilec.ir.functions import FUNCTIONS

    x = torch.linspace(-0.9, 0.9, 31, dtype=torch.float64)
    results = ("float", "promote", "bool")
    rows = [f for f in FUNCTIONS.values() if f.triton and not f.symbol and f.result in results]
    assert len(rows) > 25
    for f in rows:
        arguments = ["X", "Y", "Y + 1"][: f.arity[1]]
        several = [["X", "0.5", "2"][: f.arity[1]], ["0.5", "X", "X"][: f.arity[1]]] if f.arity[1] > 1 else []
        sources = [f"O = {f.name}({', '.join(given)}) + Y * 0;" for given in (arguments, *several)]
        cases = [(source, x) for source in sources]
        if f.result == "promote":  # an integer stays one
            cases.append((f"O = {f.name}({', '.join(arguments)}) + Y;", torch.arange(-3, 9, dtype=torch.int32)))
        for text, t in cases:
            source = function("X, Y", text)
            a, b = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")
            close = {"rtol": 1e-12, "atol": 1e-12} if t.is_floating_point() else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(a(t, t + 1), b(t, t + 1), **close, equal_nan=True, msg=text)


def test_numpy_in_numpy_out():
    got = tilec.compile("Y = X + 1;", backend="triton")(np.arange(3.0))
    assert isinstance(got, np.ndarray) and got.tolist() == [1.0, 2.0, 3.0]


def test_an_operand_that_is_used_often_is_computed_once():
    source = function("A[M, K], B[K, N], S[K]", "O[i, j : M, N] = +(A[i, k] * exp(sin(B[k, j]) - S[k]));")
    inputs = normal(70, 40), normal(40, 70), normal(40)
    names = ["O_right_kernel", "O_dot"]
    check(source, *inputs, tolerance=1e-5, kernels=names)
    check(source, *(x.half() for x in inputs), tolerance=5e-3, kernels=names)
    check(source, normal(33, 40), normal(40, 70), normal(40), tolerance=1e-5, kernels=["O_dot"])


def test_what_would_grow_is_not_computed_first():
    source = function("X[N, C], B[KW, C, D]", "O[n, d : N, D] = +(sin(X[n + k, c]) * B[k, c, d]);")
    check(source, normal(90, 16), normal(3, 16, 80), tolerance=1e-4, kernels=["O_dot"])


def test_functions_in_several_threads():
    """Triton's interpreter has one state for all of them."""
    texts = "Y = 3 * X;", "Y[i] = sum(X[i, j]);", "Y[i, j] = exp(X[i, j] - max(X[i, k]));", "Y[i] = argmax(X[i, j]);"
    functions = [tilec.compile(text, backend="triton") for text in texts * 3]
    with ThreadPoolExecutor(len(functions)) as pool:
        for _ in pool.map(lambda f: f(normal(8, 8)), functions):
            pass
