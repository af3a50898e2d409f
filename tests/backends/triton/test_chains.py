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
