"""Convolutions of torch's in other forms: gradients of a channel each, frames of a signal."""

import itertools

import pytest
import torch

import tilec
from tilec.backends.torch import runtime


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.covering
def test_one_channel_each(dims: int, dtype: torch.dtype) -> None:
    narrow, tested = dtype in (torch.bfloat16, torch.float16), 0
    for groups, taps, dilation, padding in itertools.product((1, 3), (1, 3, 4), (1, 2), (0, 1, 4)):
        one, shape = (1,) * dims, (2, groups, *(9,) * dims)
        generator = torch.Generator().manual_seed(0)
        x, k = (torch.randn(s, generator=generator).to(dtype) for s in (shape, (groups, 1, *(taps,) * dims)))
        how = (one, (padding,) * dims, (dilation,) * dims, groups)
        g = torch.randn(runtime.convolution(x, k, *how).shape, generator=generator).to(dtype)
        found = runtime.convolution_input(g, shape, k, *how)
        leaf = x.double().requires_grad_()
        (wanted,) = torch.autograd.grad(runtime.convolution(leaf, k.double(), *how), leaf, g.double())
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2 if narrow else 1e-5, atol=0.1 if narrow else 1e-4)
        tested += 1
    assert tested == 36


ROWS_LAST = """function (I[N, C, H, W], K[O, C, KH, KW]) -> (Y) {
    Y[n, o, y, x : N, O, (H - 1)/2, (W - 1)/2] = +(I[n, c, 2*y + j, 2*x + i] * K[o, c, j, i]);
}"""
CHANNELS_LAST = """function (I[N, H, W, C], K[O, KH, KW, C]) -> (Y) {
    Y[n, y, x, o : N, (H - 1)/2, (W - 1)/2, O] = +(I[n, 2*y + j, 2*x + i, c] * K[o, j, i, c]);
}"""


@pytest.mark.parametrize(
    "source, x, k, dtype, ours",
    [
        (ROWS_LAST, (2, 8, 33, 33), (16, 8, 3, 3), "float16", False),
        (ROWS_LAST, (2, 8, 33, 33), (16, 8, 1, 1), "bfloat16", False),
        (ROWS_LAST, (2, 8, 33, 33), (16, 8, 3, 3), "float32", True),
        (CHANNELS_LAST, (2, 33, 33, 8), (16, 3, 3, 8), "float16", True),
    ],
)
def test_strided_gradients_are_torchs_where_rows_lie_last(source, x, k, dtype, ours):
    f = tilec.compile(source).grad("I")
    found = f.lower(*(tilec.spec(s, dtype) for s in (x, k, (2, 16, 16, 16))), target="sm_90")
    assert ("convolution_input" not in found.source()) == ours


@pytest.mark.parametrize("x, k", [((2, 16, 16, 0), (64, 3, 3, 0)), ((2, 16, 16, 64), (64, 0, 0, 64))])
@pytest.mark.parametrize("wrt", ["", "I", "K"])
def test_no_channels_and_no_windows(x, k, wrt):
    f = tilec.compile(CHANNELS_LAST.replace("2*", ""))
    given = [tilec.spec(s, "bfloat16") for s in ((x, k, (2, 7, 7, 64)) if wrt else (x, k))]
    assert (f.grad(wrt) if wrt else f).lower(*given, target="sm_90").source()


def test_patches_are_not_torchs():
    f = tilec.compile(ROWS_LAST.replace("2*", "4*").replace("H - 1)/2", "H)/4").replace("W - 1)/2", "W)/4")).grad("I")
    given = [tilec.spec(s, "float16") for s in ((2, 8, 32, 32), (16, 8, 4, 4), (2, 16, 8, 8))]
    assert "convolution_input" not in f.lower(*given, target="sm_90").source()


@pytest.mark.parametrize(
    "channels, dtype, wrt, ours",
    [(1, "float16", "", True), (2, "float32", "", False), (1, "float32", "K", True), (1, "float16", "K", False)],
)
def test_filters_of_few_terms_are_not_torchs(channels, dtype, wrt, ours):
    f = tilec.compile(ROWS_LAST.replace("2*", ""))
    shapes = [(2, channels, 33, 33), (16, channels, 3, 3), (2, 16, 16, 16)]
    given = [tilec.spec(s, dtype) for s in (shapes if wrt else shapes[:2])]
    found = (f.grad(wrt) if wrt else f).lower(*given, target="sm_90")
    assert ("rt.convolution" not in found.source()) == ours


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("length", "width", "stride"), [(1000, 100, 40), (257, 64, 16), (300, 300, 300), (129, 65, 64)]
)
def test_frames_are_a_matrix(length: int, width: int, stride: int) -> None:
    """Long windows of one channel that hardly overlap, on a GPU."""
    x, k = numbers_of((3, 1, length)), numbers_of((5, 1, width))
    wanted = torch.nn.functional.conv1d(x, k, stride=stride)
    settings = (stride,), (0,), (1,), 1
    found = runtime.convolution(x.as_subclass(OnGpu), k, *settings).as_subclass(torch.Tensor)
    assert torch.equal(found, wanted)
    assert found.mT.is_contiguous()  # a product of matrices, with channels as its columns
    assert torch.equal(runtime.convolution(x, k, *settings), wanted)


def numbers_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).double()
