"""The public surface: calls, conversions, lowering, caching, errors at the call."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import tilec
from tilec.backends.torch import TorchBackend

MATMUL = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"
CONVOLUTION = """
function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
}
"""


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_one_output_is_a_tensor_and_several_a_tuple() -> None:
    x = torch.arange(3.0)
    assert torch.equal(tilec.compile("Y = 2 * X;")(x), 2 * x)
    y, z = tilec.compile("function (X) -> (Y, Z) { Y = 2 * X; Z = X + 1; }")(x)
    assert torch.equal(y, 2 * x) and torch.equal(z, x + 1)


def test_numpy_in_numpy_out() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    c = tilec.compile(MATMUL)(a, b)
    assert isinstance(c, np.ndarray) and c.dtype == np.float32
    np.testing.assert_array_equal(c, a @ b)
    mixed = tilec.compile(MATMUL)(a, torch.from_numpy(b))
    assert isinstance(mixed, torch.Tensor)


@pytest.mark.parametrize(
    "make", [lambda a: a[::-1], lambda a: a.T.copy().T, lambda a: a[:, ::2], lambda a: a.astype(">f8")]
)
def test_numpy_layouts(make) -> None:
    a = make(np.random.default_rng(0).normal(size=(4, 6)))
    b = np.eye(a.shape[1])
    np.testing.assert_allclose(tilec.compile(MATMUL)(a, b), a, rtol=1e-12)


def test_read_only_arrays_are_not_written() -> None:
    a = np.ones(3)
    a.flags.writeable = False
    np.testing.assert_array_equal(tilec.compile("Y = X + 1;")(a), 2 * np.ones(3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_d_outputs_that_are_not_floating_count_as_the_output_does(dtype) -> None:
    f = tilec.compile("function (A[N], B[N]) -> (Y, S) { Y = B - A; S[] = +(A[i] * B[i]); }").grad()
    a, b, ones = torch.randn(3), torch.randn(3), torch.ones(3)
    for told, want in zip(f(a, b, ones.to(dtype), 1), f(a, b, ones, torch.tensor(1.0)), strict=True):
        torch.testing.assert_close(told, want)


def test_python_numbers_are_weak() -> None:
    f = tilec.compile("Y = X * S;")
    assert f(torch.ones(3), 2).dtype is torch.float32
    assert f(torch.ones(3, dtype=torch.float16), 2.5).dtype is torch.float16
    assert f(torch.ones(3, dtype=torch.int32), 2).dtype is torch.int32
    assert f(torch.ones(3, dtype=torch.int32), 2.5).dtype is torch.float32


def test_size_inputs_specialise() -> None:
    f = tilec.compile("function (X[N], P[]) -> (Y) { Y[i : N + P] = X[i - P]; }")
    for p in (0, 2, 1):
        assert torch.equal(f(torch.ones(3), p), torch.cat([torch.zeros(p), torch.ones(3)]))
    assert torch.equal(f(torch.ones(3), torch.tensor(2)), f(torch.ones(3), 2))


def test_no_inputs() -> None:
    assert torch.equal(tilec.compile("function () -> (A) { A[i, j : 2, 3] = 10*i + j; }")(),
                       torch.tensor([[0, 1, 2], [10, 11, 12]]))  # fmt: skip


def test_outputs_may_be_inputs_and_repeat() -> None:
    f = tilec.compile("function (X, Y) -> (X, Z, Z) { Z = X * Y; }")
    x, y = double(3), double(3)
    a, b, c = f(x, y)
    (a.sum() + 2 * b.sum() + 3 * c.sum()).backward()
    torch.testing.assert_close(x.grad, 1 + 5 * y.detach())
    torch.testing.assert_close(y.grad, 5 * x.detach())


def test_tile_is_canonical() -> None:
    f = tilec.compile(CONVOLUTION)
    assert tilec.compile(str(f)).program == f.program and tilec.compile(f.tile).tile == f.tile


def test_entry_and_load(tmp_path) -> None:
    source = "function twice(X) -> (Y) { Y = 2 * X; } function four(X) -> (Y) { Z = twice(X); Y = twice(Z); }"
    path = tmp_path / "f.tile"
    path.write_text(source)
    assert tilec.load(path)(1.5) == 6 and tilec.load(path, entry="twice")(1.5) == 3
    with pytest.raises(tilec.NameMistake):
        tilec.load(path, entry="thrice")


def test_copies_and_pickles() -> None:
    f = tilec.compile(MATMUL)
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    for other in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert torch.equal(other(a, b), f(a, b))
    g = pickle.loads(pickle.dumps(f.grad("A")))
    torch.testing.assert_close(g(a, b, torch.ones(2, 4)), torch.ones(2, 4) @ b.T)


def test_lowered_outputs() -> None:
    f = tilec.compile("function (A[I, K]) -> (S, M) { S[i : I] = +(A[i, k]); M[] = argmax(A[i, k]); }")
    lowered = f.lower(tilec.spec((3, 4), "float16"))
    assert [(t.shape, t.dtype) for t in lowered.outputs] == [((3,), "float16"), ((), "int64")]


def test_lower_without_running() -> None:
    f = tilec.compile(MATMUL)
    lowered = f.lower(tilec.spec((20, 30)), tilec.spec((30, 40), torch.float32))
    assert list(lowered.stages) == ["source", "bound", "flat", "reduced", "defracted"]
    cost = lowered.cost()
    assert cost.flops == 2 * 20 * 30 * 40 and cost.least_bytes == 4 * (20 * 30 + 30 * 40 + 20 * 40)
    assert lowered.asm("ptx") == "" and lowered.kernels and "torch" in lowered.source()


def test_least_operations() -> None:
    """Products of three factors in pairs, what no inner index changes once, intermediates where they are read."""
    n, m = 16, 64

    def least(source: str, *shapes: tuple[int, ...]) -> int:
        return tilec.compile(source).lower(*[tilec.spec(shape) for shape in shapes]).cost().least_flops

    assert least("O[i, l] = +(A[i, j] * B[j, k] * C[k, l]);", (m, n), (n, m), (m, n)) == 4 * m * n * n
    assert least("O[i, k] = +(exp(A[i, j]) * B[j, k]);", (m, n), (n, m)) == 2 * m * n * m + m * n
    scores = "S[i, j] = +(A[i, e] * B[j, e]); "
    whole = least(scores + "O[i, f] = +(S[i, j] * B[j, f]);", (m, n), (m, n))
    lower = least(scores + "O[i, f] = +(i >= j ? S[i, j] * B[j, f]);", (m, n), (m, n))
    assert whole == 4 * m * m * n and 0.5 * whole <= lower <= 0.52 * whole
    masked = least(
        scores + "T[i, j] = +(i >= j ? S[i, j]); U = T / 3.0; O[i, f] = +(U[i, j] * B[j, f]);", (m, n), (m, n)
    )
    assert 0.5 * whole <= masked <= 0.55 * whole


def test_generated_source_runs_when_pasted() -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    f = tilec.compile(MATMUL)
    lowered = f.lower(a, b)
    namespace: dict = {}
    exec(lowered.source(), namespace)
    assert torch.equal(namespace[lowered.kernels[0].name](a, b)[0], f(a, b))


def test_a_second_call_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    f = tilec.compile(MATMUL)
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    expected = f(a, b)
    monkeypatch.setattr(f._specialiser, "lower", None)
    assert torch.equal(f(a, b), expected)


CALLS = {
    "too few inputs": (MATMUL, (np.ones((2, 3)),), tilec.InputMistake, "takes 2 inputs (A, B); got 1"),
    "too many inputs": ("Y = X;", (1, 2), tilec.InputMistake, "takes 1 input (X); got 2"),
    "rank": (MATMUL, (np.ones(3), np.ones((3, 4))), tilec.RankMistake, "A"),
    "size": (MATMUL, (np.ones((2, 3)), np.ones((4, 4))), tilec.SizeMistake, "K"),
    "complex": ("Y = X;", (np.ones(3, complex),), tilec.TypeMistake, "complex128"),
    "an object": ("Y = X;", ("text",), tilec.InputMistake, "str"),
    "a huge integer": ("Y = X;", (2**70,), tilec.InputMistake, "64 bits"),
    "a fractional size": ("function (P[]) -> (Y) { Y[i : P] = i; }", (2.5,), tilec.InputMistake, "one integer"),
    "a negative size": ("function (P[]) -> (Y) { Y[i : P] = i; }", (-1,), tilec.SizeMistake, "-1"),
    "a write conflict": (
        "function (A[N, M]) -> (O) { O[i + j : N] = A[i, j]; }",
        (np.ones((4, 2)),),
        tilec.WriteConflict,
        "O[i + j",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_mistakes_at_the_call(case: str) -> None:
    source, inputs, error, text = CALLS[case]
    with pytest.raises(error) as caught:
        tilec.compile(source)(*inputs)
    assert text in str(caught.value)


def test_a_failed_call_leaves_the_function_usable() -> None:
    f = tilec.compile(MATMUL)
    with pytest.raises(tilec.SizeMistake):
        f(torch.ones(2, 3), torch.ones(4, 4))
    assert torch.equal(f(torch.ones(2, 3), torch.ones(3, 4)), torch.full((2, 4), 3.0))


def test_cotangent_of_a_wrong_shape() -> None:
    with pytest.raises(tilec.InputMistake, match=r"DC has shape \(2, 5\)"):
        tilec.compile(MATMUL).grad()(torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 5))


def test_backends() -> None:
    with pytest.raises(tilec.InputMistake, match="no backend is called 'cuda'"):
        tilec.compile(MATMUL, backend="cuda")
    with pytest.raises(tilec.InputMistake, match="runs on CUDA tensors; these are on cpu"):
        tilec.compile(MATMUL, backend="triton")(torch.ones(2, 3), torch.ones(3, 4))
    with pytest.raises(tilec.Unsupported, match="the torch backend compiles for no target; got 'sm_90'"):
        tilec.compile(MATMUL, backend="torch").lower(tilec.spec((2, 3)), tilec.spec((3, 4)), target="sm_90")


@pytest.mark.parametrize("tune", [False, True])
def test_tune_reaches_the_backend(tune: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In calls, gradients, copies; never in `lower`, which runs nothing."""
    seen = []
    build = TorchBackend.build

    def noting(self, lowering, options=None):
        seen.append(options.tune)
        return build(self, lowering, options)

    monkeypatch.setattr(TorchBackend, "build", noting)
    f = tilec.compile(MATMUL, tune=tune)
    f(double(2, 3), double(3, 4)).sum().backward()
    f.grad()(torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 4))
    pickle.loads(pickle.dumps(f))(torch.ones(2, 3), torch.ones(3, 4))
    assert seen == [tune] * 4
    f.lower(torch.ones(2, 3), torch.ones(3, 4))
    assert seen.pop() is False
    f.tuned()(torch.ones(2, 3), torch.ones(3, 4))
    assert seen.pop() is True


def test_the_torch_backend_has_nothing_to_tune() -> None:
    with pytest.raises(tilec.InputMistake, match="nothing to tune"):
        tilec.compile(MATMUL, backend="torch", tune=True)
    with pytest.raises(tilec.InputMistake, match="nothing to tune"):
        tilec.tune(tilec.compile(MATMUL, backend="torch"), tilec.spec((2, 3)), tilec.spec((3, 4)))
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    torch.testing.assert_close(tilec.compile(MATMUL, tune=True)(a, b), a @ b)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_tuning_needs_a_gpu() -> None:
    with pytest.raises(tilec.Unsupported, match="no GPU to tune for"):
        tilec.tune(tilec.compile(MATMUL), tilec.spec((2, 3)), tilec.spec((3, 4)))


def test_seven_spatial_dimensions() -> None:
    d = range(7)
    out = ", ".join(f"y{i}" for i in d)
    image_dims, kernel_dims = ", ".join(f"H{i}" for i in d), ", ".join(f"KH{i}" for i in d)
    source = f"""function (I[N, {image_dims}, CI], K[{kernel_dims}, CI, CO]) -> (O) {{
        O[n, {out}, co : N, {", ".join(f"H{i}/3" for i in d)}, CO] =
            +(I[n, {", ".join(f"3*y{i} + 2*k{i}" for i in d)}, ci] * K[{", ".join(f"k{i}" for i in d)}, ci, co]);
    }}"""
    f = tilec.compile(source)
    torch.manual_seed(0)
    image, kernel = double(1, *([4] * 7), 2), double(*([2] * 7), 2, 2)
    value = f(image, kernel)
    window = (0, *(slice(0, 4, 2),) * 7)
    torch.testing.assert_close(value.reshape(2), torch.tensordot(image[window], kernel, dims=8))
    d_image, d_kernel = torch.autograd.grad(value.sum(), (image, kernel))
    torch.testing.assert_close(d_image[window], kernel.detach().sum(-1))
    assert d_image.count_nonzero() == 2**7 * 2
    torch.testing.assert_close(d_kernel, image.detach()[window][..., None].expand_as(kernel))


RUNNING = "function running(X[N]) -> (H) { H[t : N] = H[t - 1] + X[t]; }"


@pytest.mark.parametrize(
    ("source", "inputs", "wanted"),
    [
        (RUNNING + "function (X[N], Y[N]) -> (Z) { Z = running(X) * running(Y); }", 2, [0, 1, 9, 36]),
        ("H[t] = 2 * H[t - 1] + X[t]; Y = H + 1;", 1, [1, 2, 5, 12]),
        ("function (X[N]) -> (G) { H[t : N] = H[t - 1] + X[t]; G[t : N] = G[t + 1] + H[t]; }", 1, [10, 10, 9, 6]),
        ("function (X[N]) -> (H) { H[t : N] = H[clamp(t - 1, -1, N)] + X[t]; }", 1, [0, 1, 3, 6]),
        ("function (X[N]) -> (H) { H[t : N] = H[t - 2*t - 1] + X[t] init 5; }", 1, [5, 6, 7, 8]),
    ],
)
def test_recurrences_among_statements(source: str, inputs: int, wanted: list[int]) -> None:
    assert tilec.compile(source)(*[torch.arange(4.0)] * inputs).tolist() == wanted


def test_a_recurrence_by_a_size_that_is_a_value() -> None:
    function = tilec.compile("function (X[N], K[]) -> (H) { H[t : N] = H[t - K] + X[t]; }")
    assert function(torch.arange(5.0), 2).tolist() == [0, 1, 2, 4, 6]
    with pytest.raises(tilec.NoSchedule, match="before this read"):
        function(torch.arange(5.0), 0)


def test_the_longest_common_subsequence() -> None:
    function = tilec.compile("""function (A[N], B[M]) -> (L) {
        L[i, j : N, M] = A[i] == B[j] ? L[i - 1, j - 1] + 1 : max(L[i - 1, j], L[i, j - 1]);
    }""")
    assert function(torch.tensor([1, 2, 3, 2, 4]), torch.tensor([2, 3, 4]))[-1, -1] == 3


def test_cost_counts_the_points_at_which_conditions_hold() -> None:
    f = tilec.compile("function (X[N, N]) -> (Y) { Y[i : N] = sum(i - j >= 0 & X[i, j] > 0 ? X[i, j]); }")
    points = 100 * 101 / 2
    assert f.lower(tilec.spec((100, 100))).cost().flops == (4 + 1) * points  # condition, sum
    running = tilec.compile("function (X[N]) -> (Y) { Y[i : N] = sum(i - j >= 0 & X[j] > 0 ? X[j]); }")  # a constraint
    cost = running.lower(tilec.spec((100,))).cost()
    assert cost.flops == 2 * points and cost.least_flops == points
    cost = running.grad().lower(tilec.spec((100,)), tilec.spec((100,))).cost()
    assert cost.flops == points + 100 and cost.least_flops == points  # the condition is the elements' own
    many = running.lower(tilec.spec((5000,))).cost().flops
    assert many == pytest.approx(2 * 5000 * 5001 / 2, rel=0.02)
    band = tilec.compile("function (X[N]) -> (Y) { Y[i : N] = +(X[j]), i - j < 5; }").lower(tilec.spec((64,)))
    assert band.cost().flops == 5 * 64 - (1 + 2 + 3 + 4)
    never = tilec.compile("Y[i : 8] = sum(i - j > 90 ? X[j])").lower(tilec.spec((8,)))
    assert never.cost().flops < 10


def test_exact_survives_pickling_and_differentiation() -> None:
    function = pickle.loads(pickle.dumps(tilec.compile(RUNNING, exact=True)))
    assert function.exact and function.grad().exact and not tilec.compile(RUNNING).exact
    cost = function.lower(tilec.spec((4,))).cost()
    assert cost.bytes_moved == cost.least_bytes == 32


@pytest.mark.parametrize("repeats", [1, 3])
def test_repeated_calls_do_as_the_first(repeats: int) -> None:
    """What is remembered of a call holds for recorded calls, for parameters, and with gradients turned off and on."""
    function = tilec.compile("function (X[N], W[N]) -> (Y, S) { Y = X * W * W; S[] = +(X[i]); }")
    x, w = torch.randn(5), torch.nn.Parameter(torch.randn(5))
    for _ in range(repeats):
        y, s = function(x, w)
        assert y.requires_grad
        torch.testing.assert_close(torch.autograd.grad(y.sum(), w)[0], 2 * x * w.detach())
        with torch.no_grad():
            y, _ = function(x, w)
            assert not y.requires_grad
        y, s = function(x.requires_grad_(), w.detach())
        torch.testing.assert_close(torch.autograd.grad(y.sum() + 2 * s, x)[0], w.detach() ** 2 + 2)
        (g,) = torch.autograd.grad(function(x, w)[0].sum(), w, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(g.sum(), w)[0], 2 * x.detach())
        torch.testing.assert_close(torch.func.grad(lambda t: function(x, t)[0].sum())(w.detach()), g.detach())
        x.requires_grad_(False)
