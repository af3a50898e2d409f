"""Positions that are computed, and windows over tensors that memory runs through another way than they are written."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.emit import contiguity
from tilec.backends.triton.pointwise import sharing, tiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

F64 = torch.float64
DEPTHWISE = """function (X[N, C, H, W], K[C, J, I]) -> (O) {
    O[n, c, y, x : N, C, H, W] = +(X[n, c, y + j - 1, x + i - 1] * K[c, j, i]);
}"""
TEMPLATES = """function (X[B, C, H, W], Z[B, C, J, I]) -> (Y) {
    Y[b, y, x : B, H - J + 1, W - I + 1] = sum(X[b, c, y + j, x + i] * Z[b, c, j, i]);
}"""
SUMMED = "function (X[N, C], O[K]) -> (Y) { Y[n, c : N, C] = sum(X[(n + O[k]) % N, c]); }"
PLACES = {  # text, input's sizes, of which type, and what it is
    "round both ways": (
        "Y[y, x : H, W] = sum(A[(y + j - 1) % H, (x + i - 1) % W]), j < 3, i < 3;", (6, 7), torch.uint8,
        lambda a: sum(torch.roll(a.long(), (j, i), (0, 1)) for j in (-1, 0, 1) for i in (-1, 0, 1)),
    ),
    "round by a power": (
        "Y[y, x : H, W] = A[(y - 3) % H, (x + 5) % W];", (8, 4), torch.float32,
        lambda a: torch.roll(a, (3, -5), (0, 1)),
    ),
    "reflected": (
        "Y[y, x : H, W] = sum(A[y, W - 1 - abs(W - 1 - abs(x + i - 2))]), i < 5;", (3, 6), torch.float32,
        lambda a: torch.nn.functional.pad(a, (2, 2), mode="reflect").unfold(1, 5, 1).sum(-1),
    ),
    "counted": (
        "Y[y : H] = sum(A[y, x] == 3);", (5, 300), torch.int64, lambda a: (a == 3).sum(1),
    ),
    "wrapped in the type": (
        "B[y, x : H, W] = A[y, x] - uint8(200); Y[y : H] = sum(B[y, x]);", (3, 4), torch.uint8,
        lambda a: (a - 200).long().sum(1),
    ),
    "signs of zeros": (
        "Y[y, x : H, W] = 1.0 / float32(-x * y) + 0 * A[y, x];", (3, 4), torch.float32,
        lambda a: torch.where((1.0 / -(torch.arange(4) * torch.arange(3)[:, None])).isinf(), torch.inf,
                              1.0 / -(torch.arange(4) * torch.arange(3)[:, None]).float()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_positions_and_counts_of_32_bits(name):
    text, sizes, dtype, wanted = PLACES[name]
    a = torch.randint(0, 7, sizes).to(dtype)
    found = tilec.compile(f"function (A[H, W]) -> (Y) {{ {text} }}", backend="triton")(a)
    torch.testing.assert_close(found, wanted(a), equal_nan=True, check_dtype=found.dtype == torch.int64)


def test_positions_that_fit_are_of_32_bits():
    f = tilec.compile("""function (A[H, W]) -> (Y) {
        Y[y, x : H, W] = sum(A[(y + j - 1) % H, clamp(x + i - 1, 0, W - 1)] > 0), j < 3, i < 3;
    }""")
    text = f.lower(tilec.spec((600, 700)), backend="triton", target="sm_90").source()
    kernel = text[text.index("acc = ") : text.index("tl.store")]
    assert "int64" not in kernel and "%" not in kernel
    far = f.lower(tilec.spec((1 << 16, 1 << 16)), backend="triton", target="sm_90").source()
    assert "tl.int64" in far[far.index("def ") : far.index("acc = ")]


def test_offsets_of_a_table_beyond_32_bits():
    x, o = torch.randn(9, 2), torch.tensor([-1, 5, 2**40, -(2**33) - 3])
    wanted = sum(x[(torch.arange(9) + k) % 9] for k in o)
    torch.testing.assert_close(tilec.compile(SUMMED, backend="triton")(x, o), wanted)


@pytest.fixture
def small(monkeypatch):
    for module, name, value in (
        (tiling, "MANY_POINTS", 1000), (tiling, "SHORTEST_TURNED", 2), (tiling, "SHORT_ROW", 16),
        (contiguity, "VALUES_OF_A_LINE", 2), (sharing, "TWO_A_MULTIPROCESSOR", 1), (tiling, "TURNED_BLOCK", (4, 16)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def gradients(f, formula, inputs):
    own = [x.requires_grad_() for x in inputs]
    exact = [x.detach().to(F64).requires_grad_() for x in inputs]
    found, wanted = f(*own), formula(*exact)
    d = torch.randn_like(found)
    pairs = [(found, wanted)]
    pairs += zip(torch.autograd.grad(found, own, d), torch.autograd.grad(wanted, exact, d.to(F64)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.to(F64), b, rtol=1e-4, atol=1e-4)


def test_channels_last(small):
    x = torch.randn(2, 6, 7, 5).contiguous(memory_format=torch.channels_last)
    conv = lambda x, k: torch.nn.functional.conv2d(x, k[:, None], padding=1, groups=6)  # noqa: E731
    gradients(tilec.compile(DEPTHWISE, backend="triton"), conv, [x, torch.randn(6, 3, 3)])


def test_templates_of_each_image(small):
    def formula(x, z):
        return torch.nn.functional.conv2d(x.reshape(1, -1, *x.shape[2:]), z, groups=2).view(2, 6, 6)

    gradients(tilec.compile(TEMPLATES, backend="triton"), formula, [torch.randn(2, 16, 9, 8), torch.randn(2, 16, 4, 3)])
