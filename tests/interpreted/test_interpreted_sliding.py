"""Long filters as products: neighbouring outputs are columns."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.schedule import sliding

BANK = "function (X[B, S], H[K, L]) -> (Y) { Y[b, k, t : B, K, S - L + 1] = sum(X[b, t + l] * H[k, l]); }"


def test_the_signals_gradient_of_a_filter_bank_is_a_product() -> None:
    specs = tilec.spec((16, 16127)), tilec.spec((64, 128)), tilec.spec((16, 64, 16000))
    found = [k.name for k in tilec.compile(BANK).grad("X").lower(*specs, target="sm_90").kernels]
    assert any("split_dot" in name for name in found), found


@pytest.mark.parametrize(
    ("text", "taps"),
    [
        pytest.param("(D[B, S], H[L]) -> (Y) { Y[b, t : B, S] = sum(D[b, t - l + 7] * H[l]); }", 33),
        pytest.param(
            "(D[B, S], H[L]) -> (Y) { Y[b, t : B, S] = 3 * sum(D[b, S - 1 - t + l - 7] * H[l]); }",
            33,
            marks=pytest.mark.slow,
        ),
        pytest.param("(D[B, S], H[L]) -> (Y) { Y[b, t : B, S - L + 1] = sum(D[b, t + l] * H[l]); }", 62),
        pytest.param(
            "(D[B, S], H[L]) -> (Y) { Y[b, t : B, S] = sum(D[b, S - 1 - t - l] * H[l]); }", 33, marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted where TRITON_INTERPRET=1 is set")
def test_values(text: str, taps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what is not finite, which meets no zero of the band."""
    monkeypatch.setattr(sliding, "_pays", lambda *_: True)
    made: list[object] = []
    monkeypatch.setattr(sliding, "product_over", lambda view, own=sliding.product_over: made.append(view) or own(view))
    random = torch.Generator().manual_seed(0)
    d, h = torch.randn((8, 125), generator=random), torch.randn(taps, generator=random)
    d[2, 70] = float("nan")
    found = tilec.compile(f"function {text}", backend="triton")(d, h).double()
    wanted = tilec.compile(f"function {text}")(d.double(), h.double())
    assert made
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted where TRITON_INTERPRET=1 is set")
@pytest.mark.parametrize("size", [128, 125])
def test_batches_innermost(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding, "_pays", lambda *_: True)
    text = "function (U[B, T, D], K[D, L]) -> (C) { C[b, t, d : B, T, D] = sum(K[d, s] * U[b, t - s, d]); }"
    random = torch.Generator().manual_seed(0)
    u, k = torch.randn((16, size, 2), generator=random), torch.randn((2, 34), generator=random)
    f = tilec.compile(text, backend="triton")
    assert any("U_1" in n.name for n in f.lower(u, k).kernels)
    wanted = tilec.compile(text)(u.double(), k.double())
    torch.testing.assert_close(f(u, k).double(), wanted, atol=1e-4, rtol=1e-4)


GATED = {
    "sum[s](H[t - s, d] * X[b, s, d] * V[b, s, d])": 3,
    "sum[s](H[s - t, d] * X[b, s, d] * V[b, s, d] * 0.5 * H[s, d])": 3,
    "sum[s](X[b, s, d] * H[t - s, d])": 1,  # fewer columns than tensor cores take
}


@pytest.mark.one_in(3)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted where TRITON_INTERPRET=1 is set")
@pytest.mark.parametrize("size", [1024, 999])
@pytest.mark.parametrize("text", GATED)
def test_several_factors_of_the_signal(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What knows nothing of the place is multiplied first."""
    monkeypatch.setattr(sliding, "_pays", lambda *_: True)
    text = f"function (H[T, D], X[B, T, D], V[B, T, D]) -> (Y) {{ Y[b, t, d : B, T, D] = {text}; }}"
    random = torch.Generator().manual_seed(0)
    h, x, v = (torch.randn(s, generator=random) for s in ((size, 2), (2, size, 2), (2, size, 2)))
    f = tilec.compile(text, backend="triton")
    assert any("apart" in k.name or "dot" in k.name for k in f.lower(h, x, v).kernels)
    wanted = tilec.compile(text)(*(z.double() for z in (h, x, v)))
    torch.testing.assert_close(f(h, x, v).double(), wanted, atol=1e-4, rtol=1e-4)


def test_a_gated_long_convolution_is_a_product() -> None:
    body = "sum(H[t - s, d] * X[b, s, d] * V[b, s, d])"
    text = f"(V[B, T, D], X[B, T, D], H[T, D]) -> (Y) {{ Y[b, t, d : B, T, D] = {body}; }}"
    specs = *[tilec.spec((4, 1024, 256))] * 2, tilec.spec((1024, 256))
    found = [k.name for k in tilec.compile(f"function {text}").lower(*specs, target="sm_90").kernels]
    assert any("apart_dot" in name for name in found), found


def test_copies_of_large_tensors_have_positions_of_64_bits() -> None:
    text = "function (U[B, T, D], K[D, L]) -> (C) { C[b, t, d : B, T, D] = sum(K[d, s] * U[b, t - s, d]); }"
    specs = tilec.spec((16, 2**13, 2**15)), tilec.spec((2**15, 64))
    kernels = tilec.compile(text, backend="triton").lower(*specs, target="sm_90").kernels
    assert len(kernels) == 3 and all("tl.int64" in k.source for k in kernels)
