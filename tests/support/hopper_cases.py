"""Products with edges, strides, classes and shares, and small tiles for them."""

from __future__ import annotations

from dataclasses import replace

from support.products import Convolution, einsum, matmul, worked_example

from tilec.backends.triton.matmul.hopper.form import HopperConfig

SAME = Convolution(3, (9, 10), 24, 40, (3, 3), pad=1)
STORED_OTHERWISE = replace(SAME, kernel="ohwi")
SEED = Convolution(2, (16, 19), 16, 24, (3, 3), stride=3, dilation=2)
STRIDED = replace(SEED, stride=2, pad=1, dilation=1)


def boxes(warps: int = 4, split: int = 1, tf32: bool = False, **sizes: int) -> HopperConfig:
    return HopperConfig(tuple(sizes.items()), warps, 3, split, tf32=tf32)


CASES = {
    "matmul": (matmul(200, 136, 168), boxes(8, m=128, n=64, k=64), "bfloat16"),
    "matmul, left turned": (matmul(200, 136, 168, left="km", right="nk"), boxes(m=64, n=128, k=32), "bfloat16"),
    "matmul, output turned": (matmul(200, 136, 168, out="nm"), boxes(n=64, m=64, k=64), "bfloat16"),
    "batches, in shares": (matmul(72, 136, 104, batch=3, scale=0.5), boxes(8, 3, m=128, n=64, k=32), "float16"),
    "tf32": (matmul(100, 132, 100, right="nk"), boxes(m=64, n=64, k=32, tf32=True), "float32"),
    "forward": (SAME.forward(), boxes(8, n=4, y0=4, y1=8, o=64, i=32), "bfloat16"),
    "forward in shares": (STORED_OTHERWISE.forward(), boxes(split=2, n=4, y1=16, o=64, i=32), "bfloat16"),
    "input gradient": (SAME.input_gradient(), boxes(q0=8, q1=8, o=32, i=16), "float16"),
    "kernel gradient": (SAME.kernel_gradient(), boxes(split=3, i=64, o=32, n=4, y0=4, y1=2), "float16"),
    "kernel gradient, three values at once": (
        STORED_OTHERWISE.kernel_gradient(),
        replace(boxes(split=3, o=64, i=32, n=4, y0=4, y1=2), unrolled=("j1", 3)),
        "float16",
    ),
    "boxes of columns side by side": (
        matmul(200, 139, 168, right="nk"),
        replace(boxes(8, m=128, n=32, k=32), unrolled=("n", 3)),
        "bfloat16",
    ),
    "strided forward": (STRIDED.forward(), boxes(n=2, y0=4, y1=8, o=32, i=16), "float16"),
    "strided, dilated forward": (SEED.forward(), boxes(n=2, y0=4, y1=8, o=32, i=16), "float16"),
    "strided input gradient": (STRIDED.input_gradient(), boxes(n=2, q0=4, q1=8, i=16, o=32), "float16"),
    "strided, dilated input gradient": (SEED.input_gradient(), boxes(n=2, q0=4, q1=8, i=16, o=32), "float16"),
    "classes stored through maps": (
        SEED.input_gradient(),
        replace(boxes(n=2, q0=4, q1=8, i=16, o=32), mapped=True),
        "float16",
    ),
    "the worked example": (worked_example(4, 17, 16, 24), boxes(n=4, q0=4, q1=4, i=16, o=32), "float16"),
    "strided kernel gradient": (STRIDED.kernel_gradient(), boxes(split=2, i=64, o=32, n=2, y0=4, y1=8), "bfloat16"),
    "one dimension": (Convolution(2, (33,), 16, 16, (5,), pad=2).forward(), boxes(n=2, y0=32, o=16, i=16), "bfloat16"),
    "four dimensions": (
        Convolution(9, (4, 3, 5, 4), 16, 16, (2, 2, 3, 2)).forward(),
        boxes(n=16, y0=4, o=16, i=16),
        "bfloat16",
    ),
    "four dimensions, strided input gradient": (
        Convolution(9, (5, 3, 4, 4), 16, 16, (2, 1, 2, 2), stride=2).input_gradient(),
        boxes(n=64, i=16, o=16),
        "bfloat16",
    ),
    "three dimensions": (
        Convolution(2, (5, 6, 7), 16, 16, (3, 3, 3), pad=1).forward(),
        boxes(8, y0=4, y1=4, y2=8, o=16, i=16),
        "bfloat16",
    ),
}

HEADS = {"b": 3, "h": 5, "n": 40, "e": 64, "d": 72}
CASES |= {
    "rows in slabs": (einsum("bhne", "bnd", "hed", HEADS), boxes(8, h=2, e=64, d=64, b=2, n=32), "bfloat16"),
    "columns of several axes": (
        einsum("bnd", "hed", "bhne", HEADS),
        boxes(b=2, n=32, h=4, e=64, d=64),
        "bfloat16",
    ),
    "columns in slabs, in shares": (
        einsum("bnd", "bhne", "dhe", HEADS),
        boxes(split=2, d=64, h=2, e=64, b=1, n=64),
        "float16",
    ),
}

# many tiles with more steps than buffers, some with fewer than others
STAYING = {
    "the worked example": (worked_example(4, 17, 16, 24), boxes(n=4, q0=4, q1=4, i=16, o=16), "float16"),
    "matmul": (matmul(200, 136, 168), boxes(m=64, n=64, k=32), "bfloat16"),
    "batches, in shares": (matmul(72, 136, 104, batch=3, scale=0.5), boxes(split=3, m=64, n=64, k=32), "float16"),
    "forward": (SAME.forward(), boxes(n=2, y0=4, y1=8, o=16, i=16), "bfloat16"),
    "strided input gradient": (STRIDED.input_gradient(), boxes(n=2, q0=4, q1=8, i=16, o=16), "float16"),
    "kernel gradient": (STRIDED.kernel_gradient(), boxes(split=2, i=64, o=16, n=2, y0=2, y1=8), "bfloat16"),
    "kernel gradient, two of three values at once": (
        replace(STRIDED, kernel="ohwi").kernel_gradient(),
        replace(boxes(split=2, o=64, i=16, n=2, y0=2, y1=8), unrolled=("j0", 2)),
        "bfloat16",
    ),
    "forward, boxes of columns side by side": (
        STORED_OTHERWISE.forward(),
        replace(boxes(n=2, y0=4, y1=8, o=16, i=16), unrolled=("o", 2)),
        "bfloat16",
    ),
    "matmul, boxes of columns side by side": (
        matmul(200, 136, 168, out="mn"),
        replace(boxes(m=64, n=16, k=32), unrolled=("n", 3)),
        "bfloat16",
    ),
}
