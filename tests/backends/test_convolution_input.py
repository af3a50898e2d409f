"""The gradient of a convolution by its input where each channel has a kernel of its own."""

import itertools

import pytest
import torch

from tilec.backends.torch import runtime


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
