"""Values that others read at neighbours: computed there, or stored, whichever takes less; in which blocks."""

import re

from support.allocated import allocated

import tilec

FLUX = """function (A[H, W], K[H, W], DY[H, W]) -> (DA, DK) {
    P[y, x : H, W] = DY[y, x] * K[y, x] * 3;
    DA[y, x : H, W] = DY[y, x] + pad(P[y - 1, x], 0) + pad(P[y + 1, x], 0) - pad(P[y, x - 1], 0) - P[y, x];
    DK[y, x : H, W] = K[y, x] * pad(P[y, x + 1], 0) + A[y, x];
}"""
READ = """function (X[H, W]) -> (Y, Z) {
    P[y, x : H, W] = VALUE; Z = P * 2;
    Y[y, x : H, W] = pad(P[y - 1, x], 0) AND P[y, x] ? 1.0 : 0.0;
}"""


def source(text: str, *shapes: tuple[int, ...], dtype: str = "float32") -> str:
    return tilec.compile(text, backend="triton").lower(*(tilec.spec(s, dtype) for s in shapes), target="sm_90").source()


def kernels(text: str, *shapes: tuple[int, ...]) -> int:
    return len(re.findall(r"^    \w+\[\(", source(text, *shapes), re.M))


def test_products_are_computed_where_they_are_read():
    text = source(FLUX, *[(4096, 4096)] * 3)
    assert text.count("@triton.jit") == 1 and "P" not in allocated(text)


def test_what_takes_longer_to_compute_is_stored():
    summed = READ.replace("VALUE", "{}").replace("AND", "+").replace("? 1.0 : 0.0", "")
    many = " + ".join(f"pow(X[y, x] + {k}, 1.7)" for k in range(1, 9))
    assert kernels(summed.replace("{}", "exp(X[y, x])"), (4096, 4096)) == 1
    assert kernels(summed.replace("{}", many), (4096, 4096)) == 2


def test_what_is_compared_is_stored():
    compared = READ.replace("VALUE", "X[y, x] * X[y, x]")
    assert kernels(compared.replace("AND", "=="), (64, 64)) == 2


def test_threads_take_vectors_unless_much_is_read_beside_them():
    beside = "function (X[H, W]) -> (Y, Z) { Y[y, x : H, W] = %s; Z[y, x : H, W] = Y[y, x] * 2; }"
    one = beside % "X[y, x] + pad(X[y, x - 1], 0)"
    many = beside % " + ".join(f"X[y, (x + {k}) % W]" for k in range(-3, 4))
    single = "tl.multiple_of(over * BN + tl.arange(0, BN), 1)"
    assert single not in source(one, (4096, 4096), dtype="bfloat16")
    assert single in source(many, (4096, 4096), dtype="bfloat16") and single not in source(many, (4096, 4096))
    halves = beside % " + ".join(f"X[y, (x + {k}) % 4096]" for k in range(-192, 193, 64))
    assert single not in source(halves, (4096, 4096), dtype="bfloat16")  # whole vectors away
