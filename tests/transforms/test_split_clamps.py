"""Sums written at clamped places: the same values as reads, with what the ends receive beside."""

from __future__ import annotations

import numpy as np
import pytest
from support.stages import check, setting_of

from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.language.show import show_statement
from tilec.pipeline import bind_flat

CASES = {  # source, shapes, outputs of the flat statements
    "an edge repeated": (
        "function (A[N, D]) -> (O) { O[clamp(i - 1, 0, N - 1), d : N, D] = +(A[i, d]); }",
        ((5, 2),),
        ["O_first", "O_inside", "O"],
    ),
    "halves": (
        "function (A[N]) -> (O) { O[clamp((i + 1)/2, 0, N/2 - 1) : N/2] = +(i % 2 != 0 ? A[i]); }",
        ((8,),),
        ["O_last", "O_inside", "O"],
    ),
    "many beyond both ends": (
        "function (A[N, D]) -> (O) { O[clamp(7 - 2*i, -1, 1) + 0, d : 4, D] = +(A[i, d] * i); }",
        ((7, 2),),
        ["O_last_sum", "O_inside", "O"],
    ),
    "windows at an edge": (
        "function (A[N]) -> (O) { O[clamp(i + j - 2, 0, N - 1) : N] = +(A[i]), j < 5; }",
        ((4,),),
        ["O_first_sum", "O_last_sum", "O_inside", "O"],
    ),
    "both axes": (
        "function (A[N, M]) -> (O) { O[clamp(i - 1, 0, N), clamp(j, 1, 2) : N, M] = +(A[i, j]); }",
        ((4, 4),),
        None,
    ),
    "a filter of both axes": (
        """function (A[N, M], K[J]) -> (O) {
            O[clamp(y + j - 3, 0, N - 1), clamp(x + i - 3, 0, M - 1) : N, M] = +(A[y, x] * K[j] * K[i]);
        }""",
        ((5, 6), (7,)),
        None,
    ),
    "phases of both axes": (
        """function (A[B, N, M], K[2, 4]) -> (O) {
            O[b, clamp(y + j + p - 2, 0, N/2 - 1), clamp(x + i + q - 2, 0, M/2 - 1) : B, N/2, M/2] =
                +(A[b, 2*y + p, 2*x + q] * K[p, j] * K[q, i]), p < 2, q < 2;
        }""",
        ((2, 6, 8), (2, 4)),
        None,
    ),
    "a filter of three axes": (
        """function (A[L, N, M], K[J]) -> (O) {
            O[clamp(z + k - 2, 0, L - 1), clamp(y + j - 2, 0, N - 1), clamp(x + i - 2, 0, M - 1) : L, N, M] =
                +(A[z, y, x] * K[j] * K[i] * K[k]);
        }""",
        ((3, 4, 5), (5,)),
        None,
    ),
    "other factors and constraints": (
        """function (A[N, M], K[J], S[N], T[M]) -> (O) {
            O[clamp(y + j - 3, 0, N - 1), clamp(x + i - 3, 0, M - 1) : N, M] =
                +(A[y, x] * K[j] * K[i] * S[y] * T[x]), 2*i - x < 9, j - 1 < 6;
        }""",
        ((5, 6), (7,), (5,), (6,)),
        None,
    ),
    "weights of both axes": (
        """function (A[N, M], K[J, J]) -> (O) {
            O[clamp(y + j - 3, 0, N - 1), clamp(x + i - 3, 0, M - 1) : N, M] = +(A[y, x] * K[j, i] * K[i, j]);
        }""",
        ((5, 6), (7, 7)),
        None,
    ),
    "aslant": (
        """function (A[N, M], K[J]) -> (O) {
            O[clamp(y + j - 3, 0, N - 1), clamp(x + i + y - 3, 0, M - 1) : N, M] = +(A[y, x] * K[j] * K[i]);
        }""",
        ((5, 6), (7,)),
        None,
    ),
    "elements that nothing reaches": (
        """function (A[N, M], K[J]) -> (O) {
            O[clamp(9*y + j - 3, 0, 20), clamp(9*x + i - 3, 0, 20) : 21, 21] = +(A[y, x] * K[j] * K[i]);
        }""",
        ((3, 3), (7,)),
        None,
    ),
    "ends by max and min": (
        "function (A[N, M]) -> (O) { O[max(i - 2, 0), min(j + 1, M - 1) : N, M] = +(A[i, j]); }",
        ((5, 4),),
        None,
    ),
    "a filter with ends by max and min": (
        """function (A[N, M], K[J]) -> (O) {
            O[max(min(y + j - 3, N - 1), 0), min(max(x + i - 3, 0), M - 1) : N, M] = +(A[y, x] * K[j] * K[i]);
        }""",
        ((5, 6), (7,)),
        None,
    ),
    "an end beyond the output": (
        "function (A[N]) -> (O) { O[max(i - 2, 0) : 4] = +(A[i]); }",
        ((9,),),
        ["O_first_sum", "O_inside", "O"],
    ),
    "a turn with places beyond the output": (
        "function (A[N], K[J]) -> (O) { O[clamp(i + 2*j - 1, 0, 5), (2*i + 5) % 6 + 1 : 7, 6] = +(A[i] * K[j]); }",
        ((7,), (3,)),
        None,
    ),
    "one reflection": (
        "function (A[N, D]) -> (O) { O[abs(i - 1), d : N, D] = +(A[i, d]); }",
        ((5, 2),),
        ["O_last", "O_inside", "O"],
    ),
    "reflections of windows": (
        "function (A[N]) -> (O) { O[N - 1 - abs(N - 1 - abs(i + j - 2)) : N] = +(A[i]), j < 5; }",
        ((6,),),
        ["O_inside", "O_inside_1", "O_inside_2", "O"],
    ),
    "a reflection and a stop": ("function (A[N]) -> (O) { O[min(abs(i - 3), 2) : N] = +(A[i] * i); }", ((9,),), None),
    "the greater of two places": ("function (A[N]) -> (O) { O[max(i - 2, 3 - 2*i) : N] = +(A[i]); }", ((9,),), None),
    "what lies beyond a place": ("function (A[N]) -> (O) { O[i - max(i - 3, 0) : N] = +(A[i]); }", ((9,),), None),
    "a turn by steps": ("function (A[N]) -> (O) { O[(2*i + 3) % (2*N) : 2*N] = +(A[i]); }", ((5,),), ["O"]),
    "a turn from another place": (
        "function (A[N, 3]) -> (O) { O[n, (i + 1) % 3 + 1 : N, 5] = +(A[n, i]); }",
        ((4, 3),),
        ["O"],
    ),
    "a turn into more places": ("function (A[N]) -> (O) { O[(2*i + 3) % (2*N) : 2*N + 2] = +(A[i]); }", ((5,),), ["O"]),
    "a turn by steps back": ("function (A[N]) -> (O) { O[(1 - 3*i) % (3*N) : 3*N] = +(A[i]); }", ((5,),), ["O"]),
    "a turn by steps of a window": (
        "function (A[N], K[J]) -> (O) { O[(2*i + j) % (2*N) : 2*N] = +(A[i] * K[j]); }",
        ((5,), (4,)),
        ["O_inside", "O_inside_1", "O"],
    ),
    "a few turns": ("function (A[N]) -> (O) { O[(i - 2) % 3 : 3] = +(A[i]); }", ((7,),), None),
    "many turns": ("function (A[N]) -> (O) { O[(i + 2) % 3 : 4] = +(A[i] * i); }", ((40,),), ["O"]),
    "repeated elements": ("function (A[N]) -> (O) { O[(i - i % 3)/3 : 4] = +(A[i]); }", ((11,),), ["O"]),
    "repeated elements of a window": (
        "function (A[N], K[J]) -> (O) { O[clamp((i - i % 2)/2 + j - 1, 0, 3) : 4] = +(A[i] * K[j]); }",
        ((8,), (3,)),
        None,
    ),
    "two remainders": ("function (A[N]) -> (O) { O[i % 3, (i - i % 2)/2 : 3, 4] = +(A[i]); }", ((8,),), None),
    "nothing inside": ("function (A[N]) -> (O) { O[clamp(i - 9, 0, N - 1) : N] = +(A[i]); }", ((4,),), None),
    "an element beyond the output": ("function (A[N]) -> (O) { O[clamp(i, 2, 9) : 3] = +(A[i]); }", ((5,),), None),
    "other aggregations": ("function (A[N]) -> (O) { O[clamp(i, 1, 2) : N] = >(A[i]); }", ((5,),), ["O"]),
    "limits that meet": ("function (A[N]) -> (O) { O[clamp(i, 2, 2) : N] = +(A[i]); }", ((5,),), None),
    "no such number": ("function (A[N]) -> (O) { O[clamp(i, 3, 1) : N] = +(A[i]); }", ((5,),), ["O"]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(5)
def test_same_values_in_parts(name: str) -> None:
    source, shapes, outputs = CASES[name]
    random = np.random.default_rng(0)
    arrays = [random.integers(-3, 4, s).astype(float) for s in shapes]
    program = parse(source)
    check(program, arrays)
    if outputs is not None:
        setting = setting_of(program, arrays)
        assert [s.output for s in bind_flat(program, setting.types, setting.values).statements] == outputs


def test_half_precision_is_rounded_once() -> None:
    """256 + 1 + 1 in float32, which bfloat16 would lose one by one."""
    import torch

    import tilec

    source = "function (A[N]) -> (O) { O[clamp(i - 2, 0, 1) : 2] = +(A[i]); }"
    a = torch.tensor([1.0, 1.0, 256.0, 4.0], dtype=torch.bfloat16)
    assert tilec.compile(source, backend="torch")(a).tolist() == [258.0, 4.0]


def test_half_precision_is_rounded_once_along_both_axes() -> None:
    import torch

    import tilec

    source = """function (A[N, M], K[J]) -> (O) {
        O[clamp(y + j - 3, 0, N - 1), clamp(x + i - 3, 0, M - 1) : N, M] = +(A[y, x] * K[j] * K[i]);
    }"""
    g = torch.Generator().manual_seed(0)
    a, k = torch.randint(1, 200, (5, 6), generator=g).bfloat16(), torch.ones(7, dtype=torch.bfloat16)
    function = tilec.compile(source, backend="torch")
    assert torch.equal(function(a, k), function(a.double(), k.double()).bfloat16())


def test_products_of_16_bits_stay_products_of_elements() -> None:
    text = """function (D[N, H, O], K[O, 3, C]) -> (I) {
        I[n, min(abs(y + j - 1), 2*H - 2 - abs(y + j - 1)), c : N, H, C] = +(D[n, y, o] * K[o, j, c]), j < 3;
    }"""
    setting = {"D": TensorType((2, 9, 4), "bfloat16"), "K": TensorType((4, 3, 5), "bfloat16")}
    flat = bind_flat(parse(text), setting, {})
    sums = {s.output: show_statement(s) for s in flat.statements if s.aggregation == "sum"}
    assert len(sums) == 3 and all("float32(D[" in s and "float32(K[" in s for s in sums.values())
    assert any("D[n, 0, o]) * float32(K[o, 0, c]))" in s for s in sums.values()), "one point, at numbers"
