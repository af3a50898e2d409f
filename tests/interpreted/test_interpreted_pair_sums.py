"""Sums of functions of pairs, computed from what the pairs are made of, interpreted."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.fusion.recomputed import pair_sums
from tilec.backends.triton.pointwise import sharing, tiling

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
PAIRS = "function (X[B, N], Y[B, M]) -> (O) {{ D[b, i, j : B, N, M] = X[b, i] - Y[b, j]; {} }}"
CASES = {  # text, names of kernels
    "differences": ("O[b : B] = sum(D[b, i, j] < 0 ? D[b, i, j] * D[b, i, j] : abs(D[b, i, j]));", {"O_part", "O"}),
    "numbers of places": ("O[b : B] = sum(abs(i / 7.0 - (D[b, i, j] < 0 ? 1.0 : 0.0)) * D[b, i, j]);", {"O_part", "O"}),
    "greatest": ("E = D * D; O[b : B] = >(E[b, i, j] * (i + 1));", {"O_part", "O"}),
    "rounded once, perhaps": ("E = D * D + D; O[b : B] = >(E[b, i, j]);", None),
    "one variable": ("E = abs(D); O[b, j : B, M] = sum(E[b, i, j] * X[b, i]);", {"O"}),
    "spread again": ("E = abs(D); S[b] = sum(E[b, i, j]); O[b, i, j] = E[b, i, j] / S[b];", None),
    "found equal": ("E[b, i, j] = D[b, i, j] == 0 ? 1.0 : D[b, i, j]; O[b : B] = sum(E[b, i, j] * D[b, i, j]);", None),
}  # fmt: skip


@interpreted
@pytest.mark.parametrize("shape", [(2, 5, 7), (1, 1, 6), (3, 4, 1), (2, 0, 3)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(8)
def test_values_and_gradients(name: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, least in (("LEAST_SHARING", 2), ("LEAST_BESIDE_EACH", 1), ("LEAST_SUMS", 1)):
        monkeypatch.setattr(pair_sums, constant, least)
    monkeypatch.setattr(pair_sums, "LEAST_PAIRS", 50 if shape == (2, 5, 7) else 4)
    monkeypatch.setattr(tiling, "MANY_POINTS", 1)
    monkeypatch.setattr(sharing, "NARROWEST_BLOCK", 2)
    body, kernels = CASES[name]
    source, (b, n, m) = PAIRS.format(body), shape
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(b, n, generator=generator), torch.randn(b, m, generator=generator)
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        value = tilec.compile(source, backend=backend)(*leaves)
        found.append((value, *torch.autograd.grad(value.sum() + (value * value).sum(), leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    names = {k.name for k in tilec.compile(source, backend="triton").lower(*given).kernels}
    if shape == (2, 5, 7):
        assert {f"{k}_kernel" for k in kernels} <= names if kernels is not None else "O_part_kernel" not in names


def test_a_pairwise_loss_stores_no_pairs() -> None:
    """Values and both gradients walk what is summed, and numbers of places are computed once."""
    source = """function (Q[B, N], T[B, M]) -> (L) {
        D[b, i, j] = T[b, j] - Q[b, i];
        H = abs(D) <= 1 ? 0.5 * D * D : abs(D) - 0.5;
        W[b, i, j : B, N, M] = abs((i + 0.5) / (1.0*N) - (D[b, i, j] < 0 ? 1.0 : 0.0)) * H[b, i, j];
        S[b] = sum(W[b, i, j]) / M;
        L[] = mean(S[b]);
    }"""
    f, shape = tilec.compile(source), tilec.spec((2048, 200))
    forward = f.lower(shape, shape, target="sm_90")
    backward = f.grad().lower(shape, shape, tilec.spec(()), target="sm_90")
    for lowered, walks in ((forward, 1), (backward, 2)):
        assert lowered.temporary_bytes < 2**22
        walking = [k for k in lowered.source().split("@triton.jit")[1:] if "UNROLL" in k and "t = " in k or "q = " in k]
        assert len(walking) >= walks and not any("float64" in k for k in walking)


@pytest.mark.parametrize(
    "body", ["I[n, y + j, x + i, c] + K[j, i, c, o]", "abs(I[n, y + j, x + i, c] - K[j, i, c, o])"]
)
def test_products_of_rows_and_columns_stay_whole(body: str) -> None:
    """What several variables are reduced over in blocks of pixels and channels is one kernel."""
    f = tilec.compile(
        f"function (I[N, H, W, C], K[R, S, C, D]) -> (O) {{ O[n, y, x, o : N, H-R+1, W-S+1, D] = >({body}); }}"
    )
    lowered = f.lower(tilec.spec((4, 58, 58, 32)), tilec.spec((3, 3, 32, 32)), target="sm_90")
    assert [k.name for k in lowered.kernels] == ["O_kernel"]


@pytest.mark.parametrize(("function", "parts"), [("sigmoid", 16), ("abs", 2)])
def test_functions_that_wait_for_their_results_have_more_programs(function: str, parts: int) -> None:
    f = tilec.compile(f"function (X[B, N]) -> (A) {{ A[b, i] = sum({function}(X[b, i] - X[b, j])); }}")
    assert f"A_kernel[(128, 1, {parts})]" in f.lower(tilec.spec((64, 1024)), target="sm_90").source()
