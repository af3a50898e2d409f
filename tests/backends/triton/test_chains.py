"""When a product of several operands is divided into pairs."""

import pytest

import tilec

BILINEAR = "O[b, k] = +(X[b, i] * W[k, i, j] * Y[b, j])"


def launches(statement, *shapes):
    f = tilec.compile(statement, backend="triton")
    return [k.statements for k in f.lower(*map(tilec.spec, shapes), target="sm_90").kernels]


def test_tensor_cores_do_what_they_can():
    assert len(launches(BILINEAR, (4096, 256), (64, 256, 256), (4096, 256))) > 1
    chain = "O[i, l] = +(A[i, j] * B[j, k] * C[k, l])"
    assert len(launches(chain, (512, 512), (512, 512), (512, 512))) > 1


@pytest.mark.parametrize(
    "shapes",
    [((9, 8), (3, 8, 8), (9, 8)), ((2**14, 512), (256, 512, 512), (2**14, 512))],
    ids=["a launch costs more", "2 GiB would be stored in between"],
)
def test_what_stays_one_sum(shapes):
    assert launches(BILINEAR, *shapes) == [("O",)]


def test_products_of_few_channels_are_products_where_that_is_much_work():
    kernel = "DK[g, o, j, i, c : G, D, 3, 3, C] = +(I[n, y + j - 1, x + i - 1, g, c] * DO[n, y, x, g, o])"
    source = f"function (I[N, H, W, G, C], DO[N, H, W, G, D]) -> (DK) {{ {kernel}; }}"
    for size, used in ((56, True), (2, False)):
        image = tilec.spec((32, size, size, 32, 8), "bfloat16")
        lowered = tilec.compile(source).lower(image, image, backend="triton", target="sm_80")
        assert any("tl.dot" in k.source for k in lowered.kernels) == used
    lowered = tilec.compile("O[i] = +(A[i, k] * B[k])").lower(
        tilec.spec((16384, 16384)), tilec.spec((16384,)), backend="triton", target="sm_90"
    )
    assert not any("tl.dot" in k.source for k in lowered.kernels), "memory takes longer than the terms"


@pytest.mark.parametrize("shape, stored", [((32, 1152, 8), True), ((128, 300, 4), False)])
def test_small_matrices_of_a_walk_are_stored(shape, stored):
    """Votes between capsules: each step of a walk over them would make a matrix of operands that it alone reads."""
    b, i, d = shape
    text = """function (U[B, I, D], W[I, O, D, E], L[B, I]) -> (Y) {
        P[b, i, o, e : B, I, O, E] = +(U[b, i, d] * W[i, o, d, e]);
        M[b, i, o : B, I, O] = >(P[b, i, o, e]);
        Y[b, o, e : B, O, E] = +(exp(P[b, i, o, e] - M[b, i, o]) * L[b, i]); }"""
    width = 16 if stored else 64
    specs = [tilec.spec(shape), tilec.spec((i, 10, d, width)), tilec.spec((b, i))]
    kernels = [k.name for k in tilec.compile(text).lower(*specs, target="sm_90").kernels]
    assert any("chain" in name for name in kernels) != stored
