"""16-bit types on the torch backend: what is rounded, and what is not."""

import pytest
import torch
from support.half_precision import CASES, MARKOV, MARKOV_SHAPES, check

import tilec


@pytest.mark.one_in(5)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.covering
def test_values_and_gradients(case, dtype):
    check(case, dtype, "torch", "cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_in_the_text_rounds(dtype):
    a, b = (torch.randn(100, 7, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (1, 2))
    name = str(dtype)[6:]
    f = tilec.compile(f"O[i] = +({name}(A[i, j] * B[i, j] + A[i, j]));")
    exact = (a.double() * b.double() + a.double()).to(dtype).float().sum(1).to(dtype)
    torch.testing.assert_close(f(a, b), exact, rtol=0, atol=0)


def test_products_are_not_rounded_before_their_mean():
    a = torch.tensor([1 + 2**-7, -1]).bfloat16()
    b = torch.tensor([1 + 2**-7, 1 + 2**-6]).bfloat16()
    f = tilec.compile("function (A[K], B[K]) -> (Y) { Y[] = mean(A[k] * B[k]); }")
    assert f(a, b).item() == 2**-15
    shape = tilec.spec((8, 4096, 128), "bfloat16")
    gram = tilec.compile("function (X[N, P, C]) -> (G) { G[n, a, b : N, C, C] = mean(X[n, p, a] * X[n, p, b]); }")
    kernels = gram.lower(shape, backend="triton", target="sm_90").kernels
    assert [k.name for k in kernels][:1] == ["product"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["matrices", "batches"])
def test_a_product_is_scaled_in_one_pass(batch, dtype):
    b = "B, " if batch else ""
    i = "b, " if batch else ""
    f = tilec.compile(
        f"function (X[{b}I, K], Y[{b}K, J]) -> (O) {{ O[{i}i, j : {b}I, J] = +(X[{i}i, k] / 3 * Y[{i}k, j]); }}"
    )
    x, y = (torch.randn(*batch, *s, generator=torch.Generator().manual_seed(1)).to(dtype) for s in ((5, 7), (7, 6)))
    assert "rt.scaled_product" in f.lower(x, y, backend="torch").source()
    exact = (x.double() @ y.double()) / 3
    torch.testing.assert_close(f(x, y).double(), exact, rtol=2e-3 if dtype is torch.float16 else 1e-5, atol=1e-5)


def test_a_normaliser_is_kept_in_32_bits_and_its_readers_types_stay():
    g = tilec.compile(MARKOV).grad()
    specs = [tilec.spec(s, "bfloat16") for s in (*MARKOV_SHAPES, MARKOV_SHAPES[1])]
    lowered = g.lower(*specs)
    held = {name: t.dtype for name, t in lowered._types.items() if "logsumexp" in name}
    assert held and set(held.values()) == {"float32"}
    assert {t.dtype for t in lowered.outputs} == {"bfloat16"}


@pytest.mark.parametrize("aggregation", ["+", "*", ">", "mean", "logsumexp"])
def test_types_of_statements_that_read_a_normaliser(aggregation):
    text = f"O[i : N] = {aggregation}(exp(A[i, j] - logsumexp(A[i, k])) + A[i, j]) default D;"
    for source in (text, text.replace(" default D", "")):
        f = tilec.compile(f"function (A[N, M], D[N]) -> (O) {{ {source} }}")
        a, d = torch.randn(5, 9, generator=torch.Generator().manual_seed(4)).bfloat16(), torch.ones(5).bfloat16()
        got = f(a, d)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), f(a.double(), d.double()), rtol=2e-2, atol=2e-2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "source",
    [
        "function (A[N]) -> (L) { L[i : N] = logsumexp(1.01 * A[i]); }",
        "function (A[N]) -> (L) { L[i/2 - j/2 + 3/2, k : 1, N] = logsumexp(A[k]), i < 3; }",
        "function (A[N], D[N]) -> (L) { L[i : N] = logsumexp(1.01 * A[i + j]), j < 2 default D; }",
        "function (A[N]) -> (L) { L = logaddexp(A, 0.99 * A); }",
        "function (A[N]) -> (L, Y) { L[i : N] = logsumexp(1.01 * A[i]); Y[i] = exp(A[i] - L[i]) * L[i]; }",
    ],
)
def test_a_gradient_takes_its_exponentials_of_unrounded_logarithms(source):
    """However few terms they have: a rounded one of 90 is off by up to a quarter."""
    f = tilec.compile(source)
    a = 90 + torch.randn(40, generator=torch.Generator().manual_seed(0))
    inputs = [a.bfloat16(), torch.ones(40).bfloat16()][: len(f.inputs)]
    wide = [t.double() for t in inputs]
    values = f(*inputs) if len(f.outputs) > 1 else (f(*inputs),)
    assert {v.dtype for v in values} == {torch.bfloat16}
    ones = [torch.ones(v.shape) for v in values]
    found = f.grad(("A",))(*inputs, *(t.bfloat16() for t in ones))
    exact = f.grad(("A",))(*wide, *(t.double() for t in ones))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2e-2, atol=1e-2)
    recorded = inputs[0].clone().requires_grad_()
    results = f(recorded, *inputs[1:])
    for v in results if isinstance(results, tuple) else (results,):
        v.backward(torch.ones_like(v), retain_graph=True)
    torch.testing.assert_close(recorded.grad.double(), exact, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("Y = X * C", 80_000),
        ("Y = X / C", 1 / 80_000),
        ("Y[i] = X[i] * (i - i + 80000)", 80_000),
        ("Y[i] = sum(X[i] * M[i, j] * C[j]) / 4", 80_000),
    ],
)
def test_integers_that_a_float16_does_not_hold(text: str, factor: float) -> None:
    x, c, m = torch.rand(4).half() / 1000, torch.full((4,), 80_000), torch.ones(4, 4).half()
    f = tilec.compile(text)
    y = f(**{n: t for n, t in {"X": x, "C": c, "M": m}.items() if n in f.inputs})
    torch.testing.assert_close(y.double(), x.double() * factor, rtol=2**-10, atol=2**-24)


def test_the_gradient_of_a_mean_of_more_points_than_a_float16_counts() -> None:
    x = torch.rand(70_001).half().requires_grad_()
    f = tilec.compile("function (X[N]) -> (M) { M[] = mean(i > 3 ? X[i]); }")
    (found,) = torch.autograd.grad(f(x), x)
    assert found[4].item() == pytest.approx(1 / 69_997, rel=1e-2) and not found[:4].any()


LOGS = "L[t, b : T, B] = logsumexp(X[s, b]), t - s < T; P = exp(X - L);"
ROWS = "L[t, b : T, B] = logsumexp(X[t, b, c]); P[t, b, c : T, B, C] = exp(X[t, b, c] - L[t, b]);"
STEPS = "H[t, b : T, B] = L[t, b] * A[t, b] + 0.5 * H[t - 1, b];"
MATRIX = "H[t, b : T, B] = tanh(0.1 * L[t, b] + 0.5 * sum(A[b, c] * H[t - 1, c]));"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "source",
    [
        f"(X[T, B]) -> (P) {{ {LOGS} }}",
        f"(X[T, B], A[T, B]) -> (H, P) {{ {LOGS} {STEPS} }}",
        f"(X[T, B, C], A[T, B]) -> (O) {{ {ROWS} {STEPS} O[t, b, c : T, B, C] = P[t, b, c] * H[t, b]; }}",
        f"(X[T, B, C], A[B, B]) -> (O) {{ {ROWS} {MATRIX} O[t, b, c : T, B, C] = P[t, b, c] * H[t, b]; }}",
        f"(X[T, B, C], A[B, B]) -> (H, P) {{ {ROWS} {MATRIX} }}",
    ],
    ids=["its gradient", "a result", "of rows", "of matrices", "of matrices, a result"],
)
def test_recurrences_read_logarithms_that_are_held_in_float32(source: str) -> None:
    """States of results and of products keep 16 bits, others those of what they read."""
    f = tilec.compile("function " + source)
    g = torch.Generator().manual_seed(0)
    shapes = [(9, 5, 7) if "X[T, B, C]" in source else (9, 5), (5, 5) if "A[B, B]" in source else (9, 5)]
    given = [torch.randn(s, generator=g).bfloat16().requires_grad_() for s in shapes[: len(f.inputs)]]
    wide = [t.detach().double().requires_grad_() for t in given]
    found, wanted = (f(*x) if len(f.outputs) > 1 else (f(*x),) for x in (given, wide))
    assert {v.dtype for v in found} == {torch.bfloat16}
    weights = [torch.randn(v.shape, generator=g).bfloat16() for v in found]
    ours = torch.autograd.grad(found, given, weights)
    exact = torch.autograd.grad(wanted, wide, [w.double() for w in weights])
    for x, y in zip((*found, *ours), (*wanted, *exact), strict=True):
        assert (x.double() - y).norm() <= 2e-2 * y.norm()


RUNNING = {  # recurrences, and scans whose gradients are some, beside statistics that are kept in float32
    "a running logarithm": "Y[t, j : N, D] = logsumexp(k <= t ? X[k, j]);",
    "of the rest": "Y[t, j : N, D] = tanh(logsumexp(k >= t ? X[k, j]));",
    "a sum of states": """L[i : D] = logsumexp(P[i, j]);
        Y[t, j : N, D] = +(Y[t-1, i] * exp(P[i, j] - L[i])) init X[0, j];""",
    "the greatest of states": """L[i : D] = logsumexp(P[i, j]);
        Y[t, j : N, D] = >(Y[t-1, i] + P[i, j] - L[i]) init X[0, j];""",
    "not returned, the greatest": """L[i : D] = logsumexp(P[i, j]);
        H[t, j : N, D] = >(H[t-1, i] + P[i, j] - L[i]) init X[0, j]; Y = 2 * H;""",
    "not returned": """L[i : D] = logsumexp(P[i, j]); H[t, j : N, D] = +(H[t-1, i] * exp(P[i, j] - L[i])) init X[0, j];
        Y = 2 * H;""",
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_recurrences_beside_wide_statistics(name, dtype):
    function = tilec.compile(f"function (X[N, D], P[D, D]) -> (Y) {{ {RUNNING[name]} }}")
    g = torch.Generator().manual_seed(0)
    given = [(torch.randn(s, generator=g) / 2).to(dtype).requires_grad_() for s in ((7, 3), (3, 3))]
    exact = [t.detach().double().requires_grad_() for t in given]
    made, wanted = function(*given), function(*exact)
    weights = torch.randn(wanted.shape, generator=g).to(dtype)
    found = torch.autograd.grad(made, given, weights)
    for a, b in zip((made, *found), (wanted, *torch.autograd.grad(wanted, exact, weights.double())), strict=True):
        assert a.dtype == dtype and (a.double() - b).norm() <= 8 * torch.finfo(dtype).eps * (b.norm() + 0.1)
