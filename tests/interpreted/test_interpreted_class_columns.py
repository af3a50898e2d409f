"""Gradients of strided convolutions by images of few channels, interpreted: classes as columns of one product."""

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

STEM = """function (I[N, H, W, C], K[D, R, R, C]) -> (O) {
    O[n, y, x, o : N, (H + 2*%(pad)d - R) / %(stride)d + 1, (W + 2*%(pad)d - R) / %(stride)d + 1, D] =
        +(I[n, %(stride)d*y + j - %(pad)d, %(stride)d*x + i - %(pad)d, c] * K[o, j, i, c]);
}"""


def numbers(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(
    ("taps", "stride", "channels", "sides", "special"),
    [
        (5, 2, 3, (9, 9), False),
        pytest.param(3, 2, 3, (8, 8), True, marks=pytest.mark.slow),
        (3, 2, 2, (2, 17), False),
        (3, 2, 1, (8, 8), True),
    ],
    # two rows: one quotient; one channel: no product without its classes
)
@pytest.mark.one_in(2)
def test_gradients_by_images_of_few_channels(taps: int, stride: int, channels: int, sides, special: bool) -> None:
    source = STEM % {"pad": taps // 2, "stride": stride}
    filters = 16 if special else 18  # of which rows of whole vectors are no multiple
    image, kernel = numbers((1, *sides, channels), 1), numbers((filters, taps, taps, channels), 2) / 4
    found = []
    for backend, dtype in (("triton", torch.bfloat16), ("torch", torch.float64)):
        f = tilec.compile(source, backend=backend)
        leaves = [image.to(dtype).requires_grad_(), kernel.to(dtype).requires_grad_()]
        value = f(*leaves)
        cotangent = numbers(tuple(value.shape), 3)
        if special:
            cotangent[0, 0, 1, 2], cotangent[0, 1, 0, 5] = float("inf"), float("nan")
        found.append(torch.autograd.grad(value, leaves[:1], cotangent.to(dtype)))
    (got,), (wanted,) = found
    torch.testing.assert_close(got.double(), wanted, rtol=1e-2, atol=1e-2, equal_nan=True)
    g = tilec.compile(source, backend="triton").grad("I")
    specs = [
        tilec.spec(image.shape, "bfloat16"),
        tilec.spec(kernel.shape, "bfloat16"),
        tilec.spec(value.shape, "bfloat16"),
    ]
    assert "DI_columns" in g.lower(*specs, target="sm_80").source()
