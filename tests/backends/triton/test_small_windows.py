"""Filters of one channel, on a device that need not be there: neighbours share what they read."""

import pytest

import tilec

TEXT = """function (I[N, C, H, W], K[O, C, J, L]) -> (Y) {
    Y[n, o, y, x : N, O, H, W] = +(I[n, c, y + j - 1, x + i - 1] * K[o, c, j, i]);
}"""
LAST = """function (I[N, H, W, C], K[J, L, C, O]) -> (Y) {
    Y[n, y, x, o : N, H, W, O] = >(I[n, y + j - 1, x + i - 1, c] + K[j, i, c, o]);
}"""
SHAPES = {  # text, image, kernel, whether neighbours share reads
    "one channel to twelve": (TEXT, (32, 1, 120, 119), (12, 1, 3, 3), True),
    "one channel to many": (TEXT, (8, 1, 97, 100), (64, 1, 3, 3), True),
    "few outputs": (TEXT, (1, 1, 20, 64), (12, 1, 3, 3), False),
    "other channels last, which no window moves along": (LAST, (16, 40, 41, 4), (2, 2, 4, 64), False),
}


@pytest.mark.parametrize("name", SHAPES)
def test_neighbours(name: str) -> None:
    text, image, kernel, shared = SHAPES[name]
    source = tilec.compile(text, backend="triton").lower(tilec.spec(image), tilec.spec(kernel), target="sm_90").source()
    assert ("acc_3" in source) == shared
