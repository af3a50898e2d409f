"""Windows whose neighbours share what they read, interpreted: aggregations, strides, edges, infinities, epilogues."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.pointwise import taps, windows

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

IMAGE, KERNEL = (2, 5, 16, 33), (3, 3, 33)
SAME = "O[n, y, x, c : N, H, W, C] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c]);"
CASES = {  # source, image, kernel
    "same": (SAME, IMAGE, KERNEL),
    "an odd width": (SAME, (1, 3, 15, 32), (3, 5, 32)),
    "stride 2": ("O[n, y, x, c : N, H/2, W/2, C] = +(I[n, 2*y + j - 1, 2*x + i - 1, c] * K[j, i, c]);", IMAGE, KERNEL),
    "turned round": ("O[n, y, x, c : N, H, W, C] = +(I[n, y - j + 1, x - i + 1, c] * K[j, i, c]);", IMAGE, KERNEL),
    "rows alone": ("O[n, y, x, c : N, H, W, C] = +(I[n, y, x + i - 1, c] * K[0, i, c]);", IMAGE, KERNEL),
    "columns first": ("O[n, x, y, c : N, W, H, C] = +(I[n, y, x + i - 1, c] * K[0, i, c]);", IMAGE, KERNEL),
    "maximum": ("O[n, y, x, c : N, H/2, W/2, C] = >(I[n, 2*y + j - 1, 2*x + i - 1, c]), j < 3, i < 3;", IMAGE, KERNEL),
    "a guard": ("O[n, y, x, c : N, H, W, C] = +(i != j ? I[n, y + j, x + i - 2, c]), j < 2, i < 4;", IMAGE, KERNEL),
    "logsumexp": ("O[n, y, x, c : N, H, W, C] = logsumexp(I[n, y + j, x + i, c] - K[j, i, c]);", IMAGE, (2, 3, 33)),
    "epilogue": (
        "A[n, y, x, c : N, H, W, C] = +(I[n, y, x + i - 1, c] * K[0, i, c]); O = relu(A + I);",
        IMAGE,
        (3, 3, 33),
    ),
    "many taps": ("O[n, y, x, c : N, H, W, C] = +(I[n, y, x + i - 9, c] * K[0, i, c]);", IMAGE, (1, 19, 33)),
    "many taps of a function": (
        "O[n, y, x, c : N, H, W, C] = +(I[n, y, x + i - 9, c] * exp(K[0, i, c] - 2));",
        IMAGE,
        (1, 19, 33),
    ),
    "a maximum over many": ("O[n, y, x, c : N, H, W, C] = >(I[n, y, x + i - 9, c]), i < 19;", IMAGE, KERNEL),
    "over a larger output": (
        "O[n, y, x, c : N, H, W + 4, C] = +(I[n, y, x + i - 1, c] * K[0, i, c]);",
        IMAGE,
        (3, 3, 33),
    ),
}  # fmt: skip


def image(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LEAST_OUTPUTS", 0)
    monkeypatch.setattr(taps, "LEAST_PLACES", 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(8)
def test_neighbours_at_once(name: str) -> None:
    text, *shapes = CASES[name]
    source = f"function (I[N, H, W, C], K[R, S, C]) -> (O) {{ {text} }}"
    f = tilec.compile(source, backend="triton")
    for dtype in (torch.float32, torch.float16):
        tensors = [image(s, dtype) for s in shapes]
        wanted = tilec.compile(source, backend="torch")(*(t.double() for t in tensors))
        torch.testing.assert_close(f(*tensors).double(), wanted, rtol=2e-3, atol=1e-5)
    assert "acc_3" in f.lower(*tensors).source() or "top_3" in f.lower(*tensors).source()


def test_gradients() -> None:
    text, *shapes = CASES["stride 2"]
    source = f"function (I[N, H, W, C], K[R, S, C]) -> (O) {{ {text} }}"
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [image(s, dtype).requires_grad_() for s in shapes]
        value = tilec.compile(source, backend=backend)(*leaves)
        found.append(torch.autograd.grad(value, leaves, image(tuple(value.shape), dtype)))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_what_a_guard_alone_reads() -> None:
    text = "O[n, y, x, c : N, H, W, C] = +(I[n, y, x + i - 1, c] > 0 ? K[0, i, c]);"
    source = f"function (I[N, H, W, C], K[R, S, C]) -> (O) {{ {text} }}"
    i, k = map(image, (IMAGE, KERNEL))
    assert torch.equal(tilec.compile(source, backend="triton")(i, k), tilec.compile(source, backend="torch")(i, k))


@pytest.mark.parametrize("place", [(0, 0), (1, 1)])
def test_zeros_outside_do_not_meet_infinities(place: tuple[int, int]) -> None:
    text, *shapes = CASES["same"]
    source = f"function (I[N, H, W, C], K[R, S, C]) -> (O) {{ {text} }}"
    i, k = map(image, shapes)
    k[place[0], place[1], 3], i[1, 2, 3, 5] = float("inf"), float("nan")
    wanted = tilec.compile(source, backend="torch")(i.double(), k.double())
    got = tilec.compile(source, backend="triton")(i, k)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


CORRELATIONS = {  # of radius 4: features, offsets of an axis, a cotangent's index
    "channels last": (
        "F[b, y, x, c]",
        "G[b, y + v - 4, x + u - 4, c]",
        "[b, y, x, v, u : B, Y, X, 9, 9]",
        "B, Y, X, C",
    ),
    "channels first": (
        "F[b, c, y, x]",
        "G[b, c, y + v - 4, x + u - 4]",
        "[b, v, u, y, x : B, 9, 9, Y, X]",
        "B, C, Y, X",
    ),
    "along one axis": ("F[b, y, x, c]", "G[b, y, x + u - 4, c]", "[b, y, x, u : B, Y, X, 9]", "B, Y, X, C"),
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_gradients_of_correlations(name: str, special: bool) -> None:
    f, g, index, axes = CORRELATIONS[name]
    source = f"function (F[{axes}], G[{axes}]) -> (V) {{ V{index} = +({f} * {g}); }}"
    shape = (1, 17, 5, 37) if name == "channels first" else (1, 5, 11, 33)
    given = [image(shape), image(shape).flip(1).contiguous()]
    if special:
        given[0][0, 2, 3, 4], given[1][0, 1, 2, 5] = float("inf"), float("nan")
    exact = tilec.compile(source, backend="torch")
    cotangent = image(tuple(exact(*given).shape))
    gradient = tilec.compile(source, backend="triton").grad()
    wanted = exact.grad()(*(t.double() for t in (*given, cotangent)))
    for mine, want in zip(gradient(*given, cotangent), wanted, strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)
    text = gradient.lower(*given, cotangent).source()
    assert text.count("    acc_3 = ") >= 2


TAPS = {  # a sum over all places for each tap; whether zeros are read outside
    "same": "G[j, i, c : 3, 3, C] = +(D[n, y, x, c] * I[n, y + j - 1, x + i - 1, c]);",
    "stride 2": "G[j, i, c : 5, 5, C] = +(D[n, y, x, c] * I[n, 2*y + j - 2, 2*x + i - 2, c]);",
    "a guard": "G[j, i, c : 3, 3, C] = +(x != y ? D[n, y, x, c] - I[n, y + j - 1, x + i - 1, c]);",
    "greatest": "G[i, c : 3, C] = >(D[n, y, x, c] - I[n, y, x + i - 1, c]), x < 5;",
    "taps last": "G[c, j, i : C, 3, 3] = +(D[n, y, x, c] * I[n, y + j - 1, x + i - 1, c]);",
    "many taps": "G[c, i : C, 11] = +(D[n, y, x, c] * I[n, y, x + i - 5, c]);",
    "many taps, a guard": "G[i, c : 9, C] = +(x != i ? D[n, y, x, c] * I[n, y, x + i - 4, c]);",
    "greatest, many": "G[c, i : C, 13] = >(D[n, y, x, c] - I[n, y, x + i - 6, c]), x < 7;",
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", TAPS)
@pytest.mark.one_in(7)
def test_all_taps_from_what_they_share(monkeypatch: pytest.MonkeyPatch, name: str, special: bool) -> None:
    monkeypatch.setattr(windows, "LEAST_OUTPUTS", 2**20)
    source = f"function (I[N, H, W, C], D[N, P, Q, C]) -> (G) {{ {TAPS[name]} }}"
    i, d = image((4, 6, 15, 33)), image((4, 3, 7, 33) if name == "stride 2" else (4, 6, 15, 33))
    if special:
        d[0, 0, 0, 3], i[1, 2, 3, 5] = float("inf"), float("nan")
    f = tilec.compile(source, backend="triton")
    wanted = tilec.compile(source, backend="torch")(i.double(), d.double())
    torch.testing.assert_close(f(i, d).double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert f.lower(i, d).kernels[0].name in ("G_taps", "G_turned_taps")


TAPS_ALONG = {  # the same where memory runs along the places
    "same": "G[c, j, i : C, 3, 3] = +(D[n, c, y, x] * I[n, c, y + j - 1, x + i - 1]);",
    "stride 2": "G[c, j, i : C, 5, 5] = +(D[n, c, y, x] * I[n, c, 2*y + j - 2, 2*x + i - 2]);",
    "many taps": "G[i, c : 11, C] = +(D[n, c, y, x] * I[n, c, y, x + i - 5]);",
    "a guard": "G[c, i : C, 3] = +(x != y ? D[n, c, y, x] - I[n, c, y, x + i - 1]);",
    "greatest": "G[c, i : C, 13] = >(D[n, c, y, x] - I[n, c, y, x + i - 6]), x < 47;",
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", TAPS_ALONG)
@pytest.mark.one_in(5)
def test_all_taps_along_memory(monkeypatch: pytest.MonkeyPatch, name: str, special: bool) -> None:
    monkeypatch.setattr(taps, "LEAST_TAP_POINTS", 1)
    monkeypatch.setattr(taps, "MOST_PLACES_ALONG", 32)
    source = f"function (I[N, C, H, W], D[N, C, P, Q]) -> (G) {{ {TAPS_ALONG[name]} }}"
    i, d = image((2, 3, 9, 49)), image((2, 3, 5, 25) if name == "stride 2" else (2, 3, 9, 49))
    if special:
        d[0, 0, 0, 3], i[1, 2, 3, 5] = float("inf"), float("nan")
    f = tilec.compile(source, backend="triton")
    wanted = tilec.compile(source, backend="torch")(i.double(), d.double())
    torch.testing.assert_close(f(i, d).double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert "_taps" in f.lower(i, d).kernels[0].name


def test_points_that_no_factor_tells_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions of what a gradient does not read."""
    monkeypatch.setattr(windows, "LEAST_OUTPUTS", 2**20)
    text = "G[j, c, i : 2, C, 9] = +(D[n, y, x, c] - I[n, y - j, 2*x + i - 1, c]);"
    source = f"function (I[N, H, W, C], D[N, H, W, C]) -> (G) {{ {text} }}"
    i, d, g = (image(s) for s in ((1, 5, 4, 40), (1, 5, 4, 40), (2, 40, 9)))
    d.requires_grad_()
    values = (tilec.compile(source, backend=b)(i, d) for b in ("triton", "torch"))
    assert torch.equal(*(torch.autograd.grad(v, d, g)[0] for v in values))


def test_taps_beyond_the_last_one() -> None:
    text = "O[n, y, x, c : N, H, W, C] = +(I[n, y, x + i - 9, c] * K[0, i, c] * in(L[i]));"
    source = f"function (I[N, H, W, C], K[R, S, C], L[T]) -> (O) {{ {text} }}"
    given = [image(s) for s in (IMAGE, (1, 20, 33), (17,))]
    assert torch.equal(*(tilec.compile(source, backend=b)(*given) for b in ("triton", "torch")))


POOLS = {
    "channels last": ("O[n, y, x, c : N, H/2, W/2, C] = >(X[n, 2*y + j, 2*x + i, c]), j < 2, i < 2;", (2, 6, 8, 5)),
    "channels first": ("O[n, y, x, c : N, H, W/2, C/2] = <(X[n, y, 2*x + j, 2*c + i]), j < 2, i < 2;", (2, 3, 6, 8)),
    "edges": ("O[n, y, x, c : N, (H + 1)/2, W, C] = >(X[n, 2*y + j - 1, x, c]), j < 3;", (2, 7, 3, 5)),
    "thirds": ("O[n, y, x, c : N, H/3, W, C] = >(X[n, 3*y + j, x, c]), j < 3;", (2, 6, 3, 5)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.one_in(4)
def test_extrema_and_where_they_stand(name: str) -> None:
    """One kernel reads a window for both."""
    text, shape = POOLS[name]
    source = f"function (X[N, H, W, C]) -> (O) {{ {text} }}"
    f, wanted = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")
    for dtype in (torch.float32, torch.bfloat16):
        x, z = (image(shape, dtype).requires_grad_() for _ in "ab")
        y, expected = f(x), wanted(z)
        g = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        assert torch.equal(y, expected)
        assert torch.equal(*(torch.autograd.grad(o, t, g)[0] for o, t in ((y, x), (expected, z))))
        (where,) = f.saved(x)
        assert where.dtype == "uint8"


COPIES = {
    "image": "(I[N, H, W, C]) -> (O) { O[n, y, x, j, i, c : N, H - 2, W - 2, 3, 3, C] = I[n, y + j, x + i, c]; }",
    "strided": """(I[N, H, W, C]) -> (O) {
        O[n, y, x, j, i, c : N, (H - 3)/2 + 1, (W - 3)/2 + 1, 3, 3, C] = I[n, 2*y + j, 2*x + i, c]; }""",
    "dilated": """(I[N, H, W, C]) -> (O) {
        O[n, y, x, j, i, c : N, H - 4, W - 4, 3, 3, C] = I[n, y + 2*j, x + 2*i, c] * 2.0; }""",
    "padded": "(I[N, H, W, C]) -> (O) { O[n, y, x, j, i, c : N, H, W, 3, 3, C] = I[n, y + j - 1, x + i - 1, c]; }",
    "channels first": """(I[N, C, H, W]) -> (O) {
        O[n, c, j, i, y, x : N, C, 3, 3, H - 2, W - 2] = I[n, c, y + j, x + i]; }""",
    "three terms": "(I[N, C, H, W]) -> (O) { O[n, c, y, x, k, m : N, C, H, W - 4, 3, 3] = I[n, c, y, x + k + m]; }",
    "frames": "(I[B, A, D, L]) -> (O) { O[b, a, d, t, k : B, A, D, L/4 - 1, 8] = I[b, a, d, 4*t + k]; }",
}


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "a part"])
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.one_in(7)
def test_copies_of_windows(name: str, layout: str) -> None:
    """A window's places and the channels fill a block's columns together where memory runs so."""
    f = tilec.compile(f"function {COPIES[name]}")
    for shape in ((2, 7, 9, 12), (1, 5, 5, 9), (2, 6, 8, 16)):
        whole = torch.randn(shape)
        image = {
            "contiguous": whole,
            "transposed": whole.transpose(0, 3).contiguous().transpose(0, 3),
            "a part": torch.cat([whole, whole], 3)[..., : shape[3]],
        }[layout].requires_grad_()
        value = f(image)
        wanted = tilec.compile(f.tile, backend="torch")(image)
        assert torch.equal(value, wanted)
        weights = torch.randn(value.shape)
        own, other = (torch.autograd.grad(y, image, weights)[0] for y in (value, wanted))
        torch.testing.assert_close(own, other)
