"""How kernels find their places: positions are divided by products, and addresses added up axis by axis."""

from __future__ import annotations

import re
from random import Random

import torch

import tilec
from tilec.backends.triton.plan.sizes import bits_below, multiplier


def test_positions_are_divided_by_products() -> None:
    random = Random(0)
    numbers = [*range(1, 300), *(random.randint(1, 2**31 - 1) for _ in range(300)), 2**30, 2**31 - 1]
    for n in numbers:
        by, shift = multiplier(n) % 2**32, bits_below(n)
        edges = {m * n + d for m in (0, 1, 2, (2**31 - 1) // n) for d in (-1, 0, 1)}
        for x in edges | {random.randint(0, 2**31 - 1), 2**31 - 1}:
            if 0 <= x < 2**31:
                total = (x * by >> 32) + x
                assert total < 2**32 and total >> shift == x // n


def test_a_division_stays_where_it_says_where_vectors_lie() -> None:
    """Channels first of channels last, of 15 and of 16: rows are read along x, whose places are a remainder."""
    text = "function (I[N, Y, X, C]) -> (O) { O[n, c, y, x : N, C, Y, X] = I[n, y, x, c]; }"
    odd, even = (
        tilec.compile(text).lower(torch.empty(64, 30, 30, n, device="meta"), target="sm_90").source() for n in (67, 64)
    )
    assert "% n_c" not in odd and "% (n_c" not in odd and "quotient_(" in odd
    assert "quotient_(row, by_c" not in even and "quotient_(col, by_c" not in even


def test_an_address_takes_one_sum_an_axis() -> None:
    text = "function (I[N, H, W, C]) -> (O) { O[n, y, x, j, i, c : N, H - 2, W - 2, 3, 3, C] = I[n, y + j, x + i, c]; }"
    source = tilec.compile(text).lower(torch.empty(27, 72, 127, 23, device="meta"), target="sm_90").source()
    (load,) = re.findall(r"tl\.load\((.*), mask", source)
    assert load.count("[:, None]") == load.count("[None, :]") == 1


def test_columns_that_memory_runs_through_fill_a_block_together() -> None:
    """36 channels fill 64 columns by half, and those of three neighbours 128 by five sixths."""
    text = "function (I[N, H, W, C]) -> (O) { O[n, y, x, j, i, c : N, H - 2, W - 2, 3, 3, C] = I[n, y + j, x + i, c]; }"
    given = (torch.empty(16, 120, 118, c, device="meta") for c in (36, 64))
    together, apart = (tilec.compile(text).lower(image, target="sm_90").source() for image in given)
    assert "BN=128" in together and "i1 = tl.load(I + at[:, None] + col[None, :] * I_col_" in together
    assert "BN=64" in apart


def test_single_elements_of_classes_are_written_as_slowly_as_they_are_best() -> None:
    """Of factors that differ beside each other, which are not stored in whole vectors."""
    text = """function (I[N, H, W, C], F[2]) -> (O) {
        O[n, 2*y + j, 2*x + i, c : N, 2*H, 2*W, C] = I[n, y, x, c] * F[i], j < 2, i < 2;
    }"""
    image, factors = (40, 120, 85, 33), (2,)
    odd, wide = (
        tilec.compile(text)
        .lower(*(torch.empty(shape, device="meta", dtype=t) for shape in (image, factors)), target="sm_90")
        .source()
        for t in (torch.bfloat16, torch.float32)
    )
    assert "quotient_(" not in odd and "quotient_(" in wide
