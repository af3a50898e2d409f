"""Gradients of a kernel that may be asked of the library in two ways: with input and output exchanged, or not."""

import re

import numpy as np
import pytest
import torch

import tilec

# texts and axes of their inputs
BANKS = {
    "bank of filters": ("Y[b, f, t : B, F, T] = +(X[b, t - l] * H[f, l]);", "B T", "F L"),
    "filters ahead": ("Y[b, f, t : B, F, T] = +(X[b, t + l] * H[f, l]);", "B T", "F L"),
    "stride": ("Y[b, f, t : B, F, T / 2] = +(X[b, 2*t - l] * H[f, l]);", "B T", "F L"),
    "dilation and shift": ("Y[b, f, t : B, F, T] = +(X[b, t - 3*l + 2] * H[f, l]);", "B T", "F L"),
    "image": ("Y[b, f, u, t : B, F, U, T] = +(X[b, u - j + 1, t - l] * H[f, j, l]);", "B U T", "F 3 L"),
    "groups": ("Y[b, g, f, t : B, G, F, T] = +(X[b, g, t - l] * H[g, f, l]);", "B G T", "G F L"),
    "one output": ("Y[b, t : B, T] = +(X[b, c, t + l - 1] * H[c, l]);", "B C T", "C L"),
    "depthwise": ("Y[b, c, t : B, C, T] = +(X[b, c, t + l - 1] * H[c, l]);", "B C T", "C L"),
}
SIZES = {"B": 2, "T": 9, "U": 5, "F": 3, "L": 4, "C": 3, "G": 2, "3": 3}


def gradient(name):
    text, x, h = BANKS[name]
    return tilec.compile(f"function (X[{', '.join(x.split())}], H[{', '.join(h.split())}]) -> (Y) {{ {text} }}").grad(
        "H"
    )


def inputs(name, sizes, dtype=np.float64):
    text, x, h = BANKS[name]
    generator = np.random.default_rng(0)
    out = text.partition(":")[2].partition("]")[0].replace("T / 2", "HALF").replace(",", "")
    sizes = {**sizes, "HALF": sizes["T"] // 2}
    return [generator.standard_normal([sizes[v] for v in axes.split()]).astype(dtype) for axes in (x, h, out)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", BANKS)
def test_values(name):
    f = gradient(name)
    for change in ({}, {"T": 3, "L": 7}, {"T": 1, "L": 1}, {"B": 0}, {"F": 1, "C": 1, "G": 1}, {"L": 0}):
        for spoilt in (None, 0, 2):
            given = inputs(name, {**SIZES, **change})
            if spoilt is not None and given[spoilt].size:
                given[spoilt].reshape(-1)[-1 if spoilt == 0 else 0] = np.inf
            with np.errstate(invalid="ignore"):
                wanted = tilec.interpret(str(f.program), *given)
            found = f(*map(torch.from_numpy, given))
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-12, err_msg=f"{change} {spoilt}")


@pytest.mark.parametrize("name", BANKS)
def test_no_gradient_of_one_output_channel_by_several(name):
    """Of two ways, that one takes 14 times as long."""
    specs = [tilec.spec(x.shape, "float32") for x in inputs(name, {**SIZES, "F": 5, "C": 5})]
    source = gradient(name).lower(*specs, backend="torch").source()
    ((shape, groups),) = re.findall(r"convolution_kernel\(\w+, \w+, \(([\d, ]+)\),.* (\d+)\)", source)
    out, into, *_ = map(int, shape.split(", "))
    assert out > int(groups) or into == 1, source


@pytest.mark.parametrize("taps", [1, 2, 3, 4])
def test_infinities_of_bfloat16_meet_their_own_terms_alone(taps):
    """The library fills pairs of terms up with zeros, which an infinity beside them makes NaN."""
    f = tilec.compile("function (X[C, T], H[F, C, L]) -> (Y) { Y[f, t : F, T - L + 1] = +(X[c, t + l] * H[f, c, l]); }")
    x = np.random.default_rng(0).integers(1, 4, (3, 12)).astype(float)
    x[0, 4] = x[2, 11] = np.inf
    h, d = np.full((2, 3, taps), 2.0), np.full((2, 13 - taps), 3.0)
    for g, given in ((f, (x, h)), (f.grad("H"), (x, h, d)), (f.grad("X"), (x, h, x[:2, : 13 - taps]))):
        found = g(*[torch.from_numpy(a).to(torch.bfloat16) for a in given])
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(found.double().numpy(), tilec.interpret(str(g.program), *given))


@pytest.mark.parametrize("images", [1, 2])
def test_kernels_gradient_of_one_image_whose_groups_lie_innermost(images: int) -> None:
    """Groups and channels become one axis of torch's, which leaves one image a stride that is less than its size."""
    head = "function (D[N, Y, X, G, C], K[G, O, J, I, C]) -> (R)"
    text = "R[n, y, x, g, o : N, Y, X, G, O] = +(D[n, y + j - 1, x + i - 1, g, c] * K[g, o, j, i, c]);"
    f = tilec.compile(f"{head} {{ {text} }}", backend="torch")
    generator = torch.Generator().manual_seed(0)
    shapes = (images, 4, 5, 2, 6), (2, 4, 3, 3, 6), (images, 4, 5, 2, 4)
    d, k, g = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    windows = torch.nn.functional.pad(d, (0, 0, 0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
    torch.testing.assert_close(f.grad(["K"])(d, k, g), torch.einsum("nyxgo,nyxgcji->gojic", g, windows))
