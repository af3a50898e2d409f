"""Both gradients of a convolution as one call of torch."""

import itertools

import pytest
import torch

import tilec
from tilec.backends.torch import runtime


@pytest.mark.parametrize("transposed", [False, True])
def test_both_are_those_of_each(transposed: bool) -> None:
    generator, tested = torch.Generator().manual_seed(0), 0
    for stride, padding, dilation, groups, size in itertools.product((1, 2, 3), (0, 1), (1, 2), (1, 2), (9, 10)):
        how = ((stride, 1), (padding, 0), (dilation, 1), groups)
        x = torch.randn(2, 4, size, 5, dtype=torch.float64, generator=generator)
        k = torch.randn(6, 4 // groups, 3, 2, dtype=torch.float64, generator=generator)
        y = torch.randn(runtime.convolution(x, k, *how).shape, dtype=torch.float64, generator=generator)
        by_kernel = runtime.convolution_kernel(y, x, k.shape, *how)
        if transposed:
            one, other = runtime.convolution_gradients(x, y, k, *how, transposed=True)
            wanted = runtime.convolution(x, k, *how)
        else:
            one, other = runtime.convolution_gradients(y, x, k, *how)
            wanted = runtime.convolution_input(y, x.shape, k, *how)
        torch.testing.assert_close(one, wanted)
        torch.testing.assert_close(other, by_kernel)
        tested += 1
    assert tested == 48


FORWARD = """function (X[N, C, H, W], K[O, C, 3, 3]) -> (Y) {
    Y[n, o, y, x : N, O, H, W] = +(X[n, c, y + j - 1, x + i - 1] * K[o, c, j, i]);
}"""
TRANSPOSED = """function (X[N, C, H, W], K[C, O, 3, 3]) -> (Y) {
    Y[n, o, 2*y + j, 2*x + i : N, O, 2*H + 1, 2*W + 1] = +(X[n, c, y, x] * K[c, o, j, i]);
}"""


@pytest.mark.parametrize("source, out, how", [(FORWARD, 31, ""), (TRANSPOSED, 63, ", transposed=True")])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_one_call_makes_both(source: str, out: int, how: str, dtype: str) -> None:
    if how and dtype == "float32":
        pytest.skip("a strided window of float32 has kernels of ours")
    gradient = tilec.compile(source).grad()
    given = [tilec.spec(s, dtype) for s in ((2, 24, 31, 31), (24, 24, 3, 3), (2, 24, out, out))]
    text = gradient.lower(*given, target="sm_90").source()
    assert text.count("rt.convolution") == 1 and f"1{how})" in text
    assert "rt.convolution_gradients(" in text


def test_what_is_made_between_stays_apart() -> None:
    """The second call reads what the first one's result leads to."""
    source = """function (D[N, O, H, W], K[O, C, 3, 3], X[N, C, H, W]) -> (A, B) {
        A[n, c, y, x : N, C, H, W] = +(D[n, o, y - j + 1, x - i + 1] * K[o, c, j, i]);
        Z = A * X;
        B[o, c, j, i : O, C, 3, 3] = +(D[n, o, y, x] * Z[n, c, y + j - 1, x + i - 1]);
    }"""
    given = [tilec.spec(s, "float16") for s in ((2, 24, 31, 31), (24, 24, 3, 3), (2, 24, 31, 31))]
    text = tilec.compile(source).lower(*given, target="sm_90").source()
    assert "convolution_gradients" not in text and text.count("rt.convolution") == 2
