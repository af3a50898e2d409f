"""Operands that become tensors of their own before a product, and products that keep to the places of their tensors."""

import re

import pytest
import torch

import tilec
from tilec.backends.triton.matmul import precompute_operands
from tilec.backends.triton.plan.device_info import PLANNED_FOR
from tilec.backends.triton.plan.plan import Allocate, TorchLines

BF, BYTE = torch.bfloat16, torch.int8
WEIGHTS = "Y[i, j] = +(X[i, k] * bfloat16(W[j, k]) * S[j])"


def plan_of(f, *specs):
    lowered = f.lower(*(tilec.spec(shape, dtype) for shape, dtype in specs), target="sm_90")
    return lowered, lowered._executable.plan.steps


def stored(steps):
    made = {s.tensor: s.shape for s in steps if isinstance(s, Allocate) and "." in s.tensor}
    return {name: shape for name, shape in made.items() if not name.endswith(".parts")}


def by_hopper(lowered):
    return [k.statements for k in lowered.kernels if "warpgroup_mma" in k.source]


def test_a_scale_joins_the_weight_that_is_cast_anyway():
    """One tensor of weights times scales, for a product of 16-bit elements; none of cotangents times scales."""
    specs = ((1024, 512), BF), ((2048, 512), BYTE), ((2048,), BF), ((1024, 2048), BF)
    lowered, steps = plan_of(tilec.compile(WEIGHTS).grad("X"), *specs)
    assert stored(steps) == {"DX.right": (2048, 512)} and by_hopper(lowered) == [("DX",)]


def test_a_scale_joins_the_smaller_of_two_operands():
    f = tilec.compile("Y[i, j] = +(X[i, k] * S[k] * W[k, j])")
    assert stored(plan_of(f, ((8192, 512), BF), ((512,), BF), ((512, 256), BF))[1]) == {"Y.right": (512, 256)}
    assert stored(plan_of(f, ((256, 512), BF), ((512,), BF), ((512, 8192), BF))[1]) == {"Y.left": (256, 512)}


@pytest.mark.parametrize(
    ("rows", "dtype", "kept"), [(4096, BYTE, True), (4096, torch.float32, True), (64, BYTE, False)]
)
def test_casts_are_stored_for_long_products(rows, dtype, kept):
    f = tilec.compile("Y[i, j] = +(X[i, k] * bfloat16(W[j, k]))")
    lowered, steps = plan_of(f, ((rows, 2048), BF), ((2048, 2048), dtype))
    assert bool(stored(steps)) == bool(by_hopper(lowered)) == kept


def test_a_computed_operand_of_float32_lies_along_the_sum_at_once():
    f = tilec.compile("Y[i, k] = +(D[i, j] * exp(W[j, k]))", backend="triton")
    _, steps = plan_of(f, ((1024, 1024), torch.float32), ((1024, 1024), torch.float32))
    assert len(stored(steps)) == 1


SINE = """function (I[N, H, W, C], K[P, Q, C, D]) -> (Y) {
    Y[n, y, x, d : N, H - P + 1, W - Q + 1, D] = +(I[n, y + j, x + i, c] * sin(K[j, i, c, d]));
}"""
STEM = """function (I[N, H, W, C], K[7, 7, C, D]) -> (Y) {
    Y[n, y, x, d : N, 112, 112, D] = +(I[n, 2 * y + j - 3, 2 * x + i - 3, c] * K[j, i, c, d]);
}"""


def test_a_computed_kernel_of_float32_goes_by_parts():
    """As the same convolution of a stored kernel does: a library chooses slow algorithms here."""
    specs = ((16, 66, 66, 64), torch.float32), ((5, 5, 64, 64), torch.float32)
    lowered, steps = plan_of(tilec.compile(SINE), *specs)
    assert any("split_dot" in k.name for k in lowered.kernels) and not any(isinstance(s, TorchLines) for s in steps)


@pytest.mark.parametrize(("channels", "library"), [(3, True), (8, False)])
def test_gradients_of_images_of_few_channels_are_a_library_s(channels, library):
    specs = ((8, 224, 224, channels), torch.float32), ((7, 7, channels, 64), torch.float32)
    _, steps = plan_of(tilec.compile(STEM).grad("I"), *specs, ((8, 112, 112, 64), torch.float32))
    assert any(isinstance(s, TorchLines) for s in steps) == library


VOTES = "U[b, i, j, d] = +(W[i, j, d, k] * X[b, i, k])"
TURNED = "U[b, j, i, d] = +(W[j, i, d, k] * X[b, i, k])"


@pytest.mark.parametrize("dtype", [torch.float32, BF], ids=str)
@pytest.mark.parametrize("source", [VOTES, TURNED])
def test_few_terms_go_to_their_places(source, dtype):
    """A library writes the batch i first, and a copy of all results then takes longer than the product."""
    weights = (1152, 10, 16, 8) if source == VOTES else (10, 1152, 16, 8)
    lowered, steps = plan_of(tilec.compile(source), (weights, dtype), ((128, 1152, 8), dtype))
    assert len(lowered.kernels) == 1 and not any(isinstance(s, TorchLines) for s in steps)


def test_operands_that_a_library_would_copy():
    specs = ((10, 1152, 16, 8), torch.float32), ((128, 1152, 8), torch.float32), ((128, 10, 1152, 16), torch.float32)
    _, steps = plan_of(tilec.compile(TURNED).grad(), *specs)
    assert not any(isinstance(s, TorchLines) for s in steps)


@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        ("U[b, i, d] = +(W[i, d, k] * X[b, i, k])", ((4, 16, 8), (32, 4, 8))),  # small
        ("O[b, i, h, d] = +(P[b, h, i, j] * V[b, j, h, d])", ((8, 16, 512, 256), (8, 256, 16, 64))),  # many terms
        ("C[b, i, j] = +(A[b, i, k] * B[b, k, j])", ((1024, 128, 8), (1024, 8, 128))),  # nothing to copy
    ],
)
def test_what_stays_a_librarys(source, shapes):
    _, steps = plan_of(tilec.compile(source), *((s, torch.float32) for s in shapes))
    assert any(isinstance(s, TorchLines) for s in steps)


@pytest.mark.parametrize(
    ("source", "shapes", "made"),
    [
        ("C[i, j] = +(A[i, k] * B[k, j])", ((16384, 8192), (8192, 64)), (8192, 64)),
        ("C[i, j] = +(A[k, i] * B[k, j])", ((16384, 64), (16384, 8192)), (16384, 64)),  # the smaller operand's
        ("C[i, j] = +(A[i, k] * B[k, j])", ((8192, 256), (256, 1024)), None),  # few terms
        ("C[i, j] = +(A[i, k] * B[k, j])", ((16384, 8192), (8192, 80)), None),  # no block is filled
        ("C[i, j] = +(A[i, k] * B[k, j])", ((16384, 8190), (8190, 64)), None),  # rows that are not aligned
        ("C[i, j] = +(A[i, k] * B[k, j])", ((4096, 4096), (4096, 32)), None),  # few columns
    ],
)
def test_products_of_three_parts(source, shapes, made):
    lowered, steps = plan_of(tilec.compile(source), *((s, torch.float32) for s in shapes))
    parts = [s.shape for s in steps if isinstance(s, Allocate) and s.dtype == "bfloat16"]
    assert parts == ([made] * 3 if made else [])
    assert any("split_dot" in k.name for k in lowered.kernels) == bool(made)


CONVOLUTION = """function (I[N, H, W, C], K[3, 3, C, O]) -> (R) {
    R[n, y, x, o : N, H, W, O] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);
}"""
BLOCKS = {(32, 28, 256): (128, 128), (32, 14, 256): (128, 128), (32, 28, 128): (64, 64), (32, 7, 512): (64, 64)}


@pytest.mark.parametrize("sizes", BLOCKS)
def test_blocks_of_kernel_gradients_are_those_of_which_most_is_multiplied_at_a_time(sizes):
    n, h, c = sizes
    image, kernel = tilec.spec((n, h, h, c)), tilec.spec((3, 3, c, c))
    gradient = tilec.compile(CONVOLUTION).grad(["K"])
    source = gradient.lower(image, kernel, image, target="sm_90").source()
    rows, columns = BLOCKS[sizes]
    assert re.search(rf"DK_split_dot\[.*\bBM={rows}, BN={columns}\b", source)


def test_copies_that_part_batches_are_written_in_runs():
    """What stores single elements of neighbours far apart takes eight times what loads them."""
    f = tilec.compile("Y[n, e, h : 4096, 64, 16] = +(X[n, d, h] * W[h, d, e])")
    source = f.lower(*(tilec.spec(s, "bfloat16") for s in ((4096, 64, 16), (16, 64, 64))), target="sm_90").source()
    assert "# Y.X_1[i0, i2, i1] = X[i0, i1, i2];" in source and "# Y[i0, i1, i2] = Y.apart[i0, i1, i2];" in source


FILTERS = "function (X[B, N], G[F, 63], W[63]) -> (Y) { Y[b, f, n : B, F, N] = +(X[b, n + k - 31] * G[f, k] * W[k]); }"


@pytest.mark.parametrize(("dtype", "library"), [(torch.float32, True), (BF, False)], ids=str)
def test_filters_times_a_window_are_a_library_s_convolution(dtype, library):
    """Filters of float32 by their window, stored once; what lies outside of the signal is the library's to know."""
    _, steps = plan_of(tilec.compile(FILTERS), ((16, 65536), dtype), ((64, 63), dtype), ((63,), dtype))
    text = "".join(line for s in steps if isinstance(s, TorchLines) for line in s.lines)
    assert ("convolution" in text) == library and len(stored(steps)) == 1


@pytest.mark.parametrize("rows, stored", [(512, True), (96, False)])
def test_weights_of_four_bits_are_stored_for_products_of_many_rows(rows, stored):
    """Two weights lie in each byte: the operand has more elements than what it is read from."""
    text = """function (X[N, G, K, 2], W[J, G, K], S[J, G]) -> (Y) {
        Y[n, j : N, J] = sum(X[n, g, k, h] * (bfloat16((h == 0 ? W[j, g, k] : W[j, g, k] >> 4) & 15) - 8) * S[j, g]),
            h < 2; }"""
    specs = (
        tilec.spec((rows, 64, 32, 2), "bfloat16"),
        tilec.spec((4096, 64, 32), "uint8"),
        tilec.spec((4096, 64), "bfloat16"),
    )
    source = tilec.compile(text).lower(*specs, target="sm_90").source()
    assert ("gluon_map(X, 0, (512, 4096), (4096, 1)" in source) == stored
    assert ("Y_right = " in source) == stored


HOPS = "function (X[B, L], C[N, F]) -> (Y) { Y[b, t, f : B, (L - N)/160 + 1, F] = +(X[b, 160*t + n] * C[n, f]); }"


def test_products_of_windows_that_overlap_are_added_up_after_a_library_made_them():
    """The gradient by a signal."""
    _, steps = plan_of(tilec.compile(HOPS), ((16, 64000), torch.float32), ((400, 201), torch.float32))
    assert not any(isinstance(s, TorchLines) for s in steps)
    given = ((16, 64000), torch.float32), ((400, 201), torch.float32), ((16, 398, 201), torch.float32)
    _, steps = plan_of(tilec.compile(HOPS).grad("X"), *given)
    assert any(isinstance(s, TorchLines) and any(n.endswith(".products") for n in s.writes) for s in steps)
    few = ((1, 1000), torch.float32), ((400, 20), torch.float32), ((1, 4, 20), torch.float32)
    assert not any(isinstance(s, TorchLines) for s in plan_of(tilec.compile(HOPS).grad("X"), *few)[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_windows_that_overlap(dtype, monkeypatch):
    monkeypatch.setattr(precompute_operands, "LAUNCH_SECONDS", -1.0)
    x, c = (torch.randn(shape, dtype=getattr(torch, dtype)) for shape in ((2, 100), (17, 20)))
    text = HOPS.replace("160", "5")
    found = [t.requires_grad_() for t in (x, c)]
    given = [t.detach().double().requires_grad_() for t in (x, c)]
    y, wanted = tilec.compile(text)(*found), given[0].unfold(1, 17, 5) @ given[1]
    for a, b in zip(
        (y, *torch.autograd.grad(y.sin().sum(), found)),
        (wanted, *torch.autograd.grad(wanted.sin().sum(), given)),
        strict=True,
    ):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_steps_of_operands_made_of_several_tensors_fit_on_the_chip():
    """The gradient of a maximum over points, by weights: the mask reads three tensors for each element of a step."""
    source = """function (X[B, N, C], S[B, N, D], Y[B, D], T[B, D]) -> (W) {
        W[c, d : C, D] = +(S[b, n, d] == Y[b, d] ? T[b, d] * X[b, n, c]); }"""
    shapes = (32, 2500, 128), (32, 2500, 1024), (32, 1024), (32, 1024)
    lowered = tilec.compile(source).lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90")
    found = re.search(r"BM=(\d+), BN=(\d+), BK=(\d+).*num_stages=(\d+)", lowered.source())
    bm, bn, bk, stages = map(int, found.groups())
    assert bm == 128 and stages > 1
    assert 2 * stages * bk * (bm + 3 * bn) <= PLANNED_FOR.shared
