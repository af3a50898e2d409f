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


GRADIENTS = {  # of kernels where channels lie last: text, inputs
    "depthwise": (
        "function (D[N, H, W, C], I[N, H, W, C]) -> (K) { "
        "K[c, j, i : C, 3, 3] = +(D[n, y, x, c] * I[n, y + j - 1, x + i - 1, c]); }",
        ((16, 45, 45, 90),) * 2,
    ),
    "strided": (
        "function (D[N, P, Q, C], I[N, H, W, C]) -> (K) { "
        "K[c, j, i : C, 5, 5] = +(D[n, y, x, c] * I[n, 2*y + j, 2*x + i, c]); }",
        ((16, 27, 27, 72), (16, 57, 57, 72)),
    ),
    "causal, of few places": (
        "function (D[N, T, C], I[N, T, C]) -> (K) { K[c, j : C, 4] = +(D[n, t, c] * I[n, t + j - 3, c]); }",
        ((2, 2000, 1030),) * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_kernel_gradients_are_written_as_they_lie(name: str) -> None:
    """No launch turns what was added up with channels last."""
    text, shapes = GRADIENTS[name]
    specs = [tilec.spec(shape, "bfloat16") for shape in shapes]
    names = [k.name for k in tilec.compile(text, backend="triton").lower(*specs, target="sm_90").kernels]
    assert names == ["K_taps", "K_kernel"]


SIGNALS = {  # text, inputs, whether torch's convolution does it
    "spectrum": (
        "function (X[N, T], K[O, 400]) -> (Y) { Y[n, o, t : N, O, (T - 400)/160 + 1] = +(X[n, 160*t + j] * K[o, j]); }",
        ((8, 16000), (80, 400)),
        False,
    ),
    "dilated": (
        "function (X[N, C, T], K[O, C, 3]) -> (Y) { Y[n, o, t : N, O, T] = +(X[n, c, t + 64*j - 64] * K[o, c, j]); }",
        ((8, 60, 3001), (120, 60, 3)),
        True,
    ),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_strided_windows_of_a_signal_are_no_dilated_convolutions(name: str) -> None:
    text, shapes, library = SIGNALS[name]
    source = tilec.compile(text).lower(*map(tilec.spec, shapes), target="sm_90").source()
    assert ("rt.convolution" in source) == library


def test_gradients_of_many_filters_of_one_channel() -> None:
    """Neighbours share reads, however many terms an element has, and kernels' taps the places that are summed."""
    specs = tilec.spec((16, 1, 111, 113)), tilec.spec((64, 1, 3, 3)), tilec.spec((16, 64, 111, 113))
    lowered = tilec.compile(TEXT, backend="triton").grad().lower(*specs, target="sm_90")
    assert [k.name for k in lowered.kernels][:2] == ["DI_kernel", "DK_taps"]


def test_rows_that_begin_anywhere_go_to_the_library_and_nothing_is_looked_for_after() -> None:
    """A 1x1 convolution's gradient adds no zeros that an infinity could meet."""
    text = "function (I[N, C, H, W], K[O, C, 1, 1]) -> (Y) { "
    text += "Y[n, o, y, x : N, O, H, W] = +(I[n, c, y + j, x + i] * K[o, c, j, i]); }"
    specs = [tilec.spec(s, "bfloat16") for s in ((16, 97, 45, 45), (61, 97, 1, 1), (16, 61, 45, 45))]
    f = tilec.compile(text)
    for lowered in (f.lower(*specs[:2], target="sm_90"), f.grad().lower(*specs, target="sm_90")):
        assert "rt.convolution" in lowered.source() and not any("repair" in k.name for k in lowered.kernels)
