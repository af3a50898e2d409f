"""What the torch backend does on a CPU: which way it takes, by its text, and the values."""

import math

import pytest
import torch

import tilec

ROWS = "function (W[V, D], T[N]) -> (Y) { Y[n, d : N, D] = W[T[n], d]; }"
ADDED = "function (X[N, D], T[N]) -> (Y) { Y[T[n], d : 7, D] = +(X[n, d]); }"
JOINED = "function (X[N, D], Z[N, E]) -> (Y) { Y[n, d : N, D + E] = d < D ? X[n, d] : Z[n, d - D]; }"
TURNED = "function (X[N, T]) -> (Y) { Y[n, t : N, T] = X[n, (t - 3) % T]; }"
REFLECTED = "function (X[N, T]) -> (Y) { Y[n, t : N, T + 8] = X[n, T - 1 - abs(T - 1 - abs(t - 4))]; }"
DOUBLED = """function (X[N, T]) -> (Y) { Y[n, t : N, 2*T] = t % 2 == 0
    ? 0.25 * X[n, clamp(t/2 - 1, 0, T - 1)] + 0.75 * X[n, t/2]
    : 0.75 * X[n, (t - 1)/2] + 0.25 * X[n, clamp((t + 1)/2, 0, T - 1)]; }"""
CROSS = """function (X[N, T]) -> (Y) {
    Y[n, t : N, T] = pad(X[n - 1, t], 0) + pad(X[n + 1, t], 0) + pad(X[n, t - 1], 0); }"""
GROUPED = """function (X[N, T]) -> (Y) {
    Z[n, g, c : N, T/4, 4] = X[n, 4*g + c]; M[n, g] = mean(Z[n, g, c]); U[n, g, c] = Z[n, g, c] - M[n, g];
    Y[n, t : N, T] = U[n, (t - t % 4)/4, t % 4]; }"""
POOLED = "function (X[N, T]) -> (Y) { Y[n, t : N, T] = +(X[n, t + k - 1]), k < 3; }"
HIGHEST = "function (X[N, T]) -> (Y) { Y[n, t : N, T/2] = >(X[n, 2*t + k]), k < 2; }"
BACK = "function (X[N, T]) -> (Y) { Y[n, t : N, T] = X[n, T - 1 - t]; }"
HUBER = "Y[n, t] = abs(X[n, t]) < 1 ? 0.5 * X[n, t] * X[n, t] : abs(X[n, t]) - 0.5"

T, E = torch.tensor, torch.Tensor
WAYS = {  # the text, what its lines hold and what not, in torch
    "joined": (JOINED, "[:, 0:40]", "where", lambda x: torch.cat([x, x], 1)),
    "turned": (TURNED, "[:, 0:3]", "turned", lambda x: x.roll(3, 1)),
    "reflected": (REFLECTED, "", "where", lambda x: torch.nn.functional.pad(x[:, None], (4, 4), mode="reflect")[:, 0]),
    "doubled": (DOUBLED, "2]", "where",
                lambda x: torch.nn.functional.interpolate(x[:, None], scale_factor=2, mode="linear")[:, 0]),
    "cross": (CROSS, "rt.extend", "where",
              lambda x: sum(torch.nn.functional.pad(x, p)[:200, :40] for p in ((0, 0, 1, 0), (1, 0, 0, 0)))
              + torch.nn.functional.pad(x, (0, 0, 0, 1))[1:]),
    "pooled": (POOLED, "slices(torch.add,", "torch.sum", lambda x: 3 * torch.nn.functional.avg_pool1d(x, 3, 1, 1)),
    "highest": (HIGHEST, "slices(torch.maximum,", "amax", lambda x: x.unflatten(1, (-1, 2)).amax(2)),
    "back": (BACK, "rt.owned(", "clone", lambda x: x.flip(1)),
    "Huber": (HUBER, "rt.choose(", "torch.where",
              lambda x: torch.nn.functional.smooth_l1_loss(x, torch.zeros_like(x), reduction="none")),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_the_way_that_is_taken(name: str) -> None:
    source, held, missing, in_torch = WAYS[name]
    f = tilec.compile(source)
    x = torch.randn(200, 40, generator=torch.Generator().manual_seed(1))
    inputs = [x] * len(f.inputs)
    text = f.lower(*inputs).source()
    assert held in text and missing not in text
    torch.testing.assert_close(f(*inputs), in_torch(x))
    given = [t.clone().requires_grad_() for t in inputs]
    weights = torch.randn(f(*inputs).shape, generator=torch.Generator().manual_seed(2))
    (f(*given) * weights).sum().backward()
    whole = x.clone().requires_grad_()
    (in_torch(whole) * weights).sum().backward()
    torch.testing.assert_close(sum(t.grad for t in given), whole.grad)


def test_a_reshape_back_is_a_view() -> None:
    f = tilec.compile(GROUPED)
    x = torch.randn(8, 40)
    assert "remainder" not in f.lower(x).source()
    torch.testing.assert_close(f(x), (x.view(8, 10, 4) - x.view(8, 10, 4).mean(2, keepdim=True)).flatten(1))


def test_rows_are_masked_only_where_an_index_is_outside() -> None:
    f, g = tilec.compile(ROWS), tilec.compile(ADDED)
    w = torch.randn(7, 3)
    assert "if rt.all_within((T, 0, 6)):" in f.lower(w, T([1])).source()
    for index in ([0, 6, 3], [0, 7, -1], []):
        t = T(index, dtype=torch.int64)
        inside = (t >= 0) & (t < 7)
        wanted = torch.where(inside[:, None], w[t.clamp(0, 6)], 0.0)
        torch.testing.assert_close(f(w, t), wanted)
        torch.testing.assert_close(g(wanted, t), torch.zeros(7, 3).index_add(0, t.clamp(0, 6), wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_a_choice_keeps_every_bit(dtype: torch.dtype) -> None:
    from tilec.backends.torch.selection import choose

    odd = [0.0, -0.0, float("inf"), float("nan"), 3.0] if dtype.is_floating_point else [0, 1, -5, 7, 9]
    a, b = T(odd, dtype=dtype).repeat(2000), T(odd[::-1], dtype=dtype).repeat(2000)
    condition = torch.arange(10_000) % 3 == 0
    for x, y in ((a, b), (a, 0), (0, b), (a, odd[2]), (a[:5].view(5, 1), b), (a[0], b), (a.expand(3, -1), b)):
        kept = condition if not isinstance(x, E) or x.dim() < 2 else condition[: x.shape[-1]]
        kept = condition if x is not a and isinstance(x, E) and x.shape == (5, 1) else kept
        wanted, found = torch.where(kept, x, y), choose(kept, x, y)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


def test_a_reduction_of_a_view_is_one_call() -> None:
    f = tilec.compile("Y[j] = sum(X[i, j, k])")
    x = torch.randn(40, 50, 120)
    assert "for " not in f.lower(x).source()
    torch.testing.assert_close(f(x), x.sum((0, 2)))


def test_comparisons_of_many() -> None:
    """As torch's operators, at NaN and infinities too, of operands that lie in any way and of numbers."""
    from tilec.backends.torch.selection import compared

    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randint(-3, 4, (100, 120), generator=generator).float() for _ in range(2))
    x[0], y[:, 0], x[1, :50] = math.nan, math.inf, -math.inf
    for test in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool):
            a, b = (t.nan_to_num(0, 1, -1).to(dtype) if not dtype.is_floating_point else t.to(dtype) for t in (x, y))
            number = 1 if not dtype.is_floating_point else 1.0
            for other in (b, b.T.contiguous().T, b[:1].expand(b.shape), b[:1], b[:, :1], b[0, 0], number):
                expected, found = test(a, other), compared(test, a, other)
                assert found.dtype == torch.bool and found.shape == expected.shape and torch.equal(found, expected)


def test_places_of_a_tensor_without_elements() -> None:
    """What stands for a place that none reads is inside, whatever the index adds to it."""
    f = tilec.compile("function (A[N, M], P[K, L], Q) -> (Y) { Y[i : 3] = sum(A[P[i, Q[i, i]] - 1, i]); }")
    p = torch.empty(5, 0, dtype=torch.int64)
    assert not f(torch.ones(1, 4), p, torch.zeros(2, 4, dtype=torch.int32)).any()


SUMS = {  # what the text holds, what not, and the sum by torch
    "G[j] = sum(X[i,j] * (Z[i,j] - 1) * exp(X[i,0]))": (
        "total.add_(",
        "expand",
        lambda x, z: (x * (z - 1) * x[:, :1].exp()).sum(0),
    ),
    "G[j] = sum((X[i,j] > 0) == 0 ? X[i,j] * Z[i,j])": (
        "torch.logical_not(",
        "mm(",
        lambda x, z: torch.where(~(x > 0), x * z, 0.0).sum(0),
    ),
    "G[i] = sum((X[i,j] > 0) * exp(Z[i,j]))": ("torch.sum(", "mm(", lambda x, z: ((x > 0) * z.exp()).sum(1)),
}


@pytest.mark.parametrize("bad", [0.5, math.inf, math.nan])
@pytest.mark.parametrize("shape", [(1021, 513), (3, 5), (1, 1)])
@pytest.mark.parametrize("source", SUMS)
def test_sums_of_what_is_computed(source: str, shape: tuple[int, int], bad: float) -> None:
    """In blocks where one factor is read once, and by no matrix product where all factors have all points."""
    held, missing, in_torch = SUMS[source]
    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    x[-1, -1] = bad
    f = tilec.compile(source)
    torch.testing.assert_close(f(x, z), in_torch(x, z), equal_nan=True)
    text = f.lower(x, z).source()
    assert shape[0] < 1000 or held in text and missing not in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_slabs_are_written_where_they_belong(dtype: torch.dtype) -> None:
    x, t = (3 * torch.randn(701, 513, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    x, t = x.to(dtype), t.to(dtype)
    f = tilec.compile("D = abs(X - T); S[i] = max(D[i,j]); Y = D < 2 ? D * D : D - X; Z = D * D + T")
    d = (x - t).abs()
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {}
    for ours, expected in zip(f(x, t), (d.amax(1), torch.where(d < 2, d * d, d - x), d * d + t), strict=True):
        torch.testing.assert_close(ours, expected, **tolerance)
    text = f.lower(x, t).source()
    assert "_slab(" in text and "_part" not in text
