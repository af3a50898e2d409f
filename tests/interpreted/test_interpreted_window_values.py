"""What is computed at the places of windows: sums that compute it themselves, tensors of it laid out along rows, long
windows, and the taps of filters. By their plans for an H200, and interpreted."""

from __future__ import annotations

import os
import re

import pytest
import torch
from support.allocated import allocated

import tilec
from tilec.backends.triton.emit import contiguity
from tilec.backends.triton.fusion import window_layout, window_values
from tilec.backends.triton.pointwise import tiling, windows

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
WEIGHT = "exp(-(j - 1) * (j - 1) - abs(G[n, y, x] - G[n, y + j - 1, x + i - 2]))"
SUMS = """A[n, y, x : N, H, W] = +(K[n, y, x, j, i] * X[n, y + j - 1, x + i - 2]); B[n, y, x] = +(K[n, y, x, j, i]);
    Y = A / B;"""
JOINT = f"function (X[N, H, W], G[N, H, W]) -> (Y) {{ K[n, y, x, j, i : N, H, W, 3, 5] = {WEIGHT}; {SUMS} }}"
PATCHES = """D[n, y, x, u, v : N, H - 4, W - 4, 3, 3] = +((X[n, y + 1 + p, x + 1 + q] - X[n, y + u + p, x + v + q])
        * (X[n, y + 1 + p, x + 1 + q] - X[n, y + u + p, x + v + q])), p < 3, q < 3;"""
MEANS = f"""function (X[N, H, W]) -> (Y) {{ {PATCHES} E = exp(-D); B[n, y, x] = +(E[n, y, x, u, v]);
    A[n, y, x] = +(E[n, y, x, u, v] * X[n, y + u + 1, x + v + 1]); Y = A / B; }}"""
DISPARITY = """function (L[N, C, H, W], R[N, C, H, W]) -> (Y) {
    V[n, y, x, d : N, H, W, 4] = +(abs(L[n, c, y, x] - R[n, c, y, x - d])); M[n, y, x] = <(V[n, y, x, d]);
    E[n, y, x, d] = exp(M[n, y, x] - V[n, y, x, d]); B[n, y, x] = +(E[n, y, x, d]);
    A[n, y, x : N, H, W] = +(d * E[n, y, x, d]); Y = A / B; }"""
RESAMPLED = "function (X[B, N], H[K]) -> (Y) { Y[b, s : B, 3*N/2] = +(X[b, (2*s - k + 24)/3] * H[k]); }"
PHASES = "function (X[B, N], H[R, K]) -> (Y) { Y[b, 3*t + r : B, 3*N] = +(X[b, t + 3 - k] * H[r, k]), r < 3; }"
IMAGE = """function (X[N, H, W], K[4, 6]) -> (Y) {
    Y[n, y, x : N, 3*H/2, 3*W/2] = +(X[n, (2*y + j - 6)/3, (2*x + i - 6)/3] * K[j, i]); }"""
CASES = {  # text, shapes
    "weights of elements and places": (JOINT, [(2, 10, 40), (2, 10, 40)]),
    "few rows": (JOINT, [(1, 3, 33), (1, 3, 33)]),
    "zeros at the border": (f"""function (X[N, H, W], G[N, H, W]) -> (Y) {{
        K[n, y, x, j, i : N, H, W, 3, 5] = {WEIGHT}; Y[n, y, x] = +(K[n, y, x, j, i] + X[n, y, x]); }}""",
        [(1, 12, 40), (1, 12, 40)]),
    "means by patches": (MEANS, [(2, 12, 36)]),
    "disparities": (DISPARITY, [(1, 3, 8, 32), (1, 3, 8, 32)]),
    "a resampled signal": (RESAMPLED, [(3, 2400), (48,)]),
    "phases": (PHASES, [(2, 2000), (3, 8)]),
    "a resampled image": (IMAGE, [(2, 32, 64), (4, 6)]),
    "an odd length": (RESAMPLED, [(3, 1602), (33,)]),
}  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large enough."""
    for module, name, value in (
        (windows, "LEAST_OUTPUTS", 0),
        (window_values, "LEAST_OUTPUTS", 0),
        (window_layout, "_LEAST_ELEMENTS", 0),
        (window_layout, "_LEAST_ROW", 16),
        (window_layout, "_MOST_PLACES", 9),
        (contiguity, "LARGEST_WINDOW", 16),
        (contiguity, "MANY_WINDOWS", 0),
        (tiling, "MANY_POINTS", 512),
    ):
        monkeypatch.setattr(module, name, value)


@interpreted
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.covering
@pytest.mark.one_in(7)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    source, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.rand(s, generator=generator).to(dtype) for s in shapes]
    found: list[list[torch.Tensor]] = []
    cotangent = None
    for backend, leaves in (("triton", tensors), ("torch", [t.double() for t in tensors])):
        leaves = [t.clone().requires_grad_() for t in leaves]
        value = tilec.compile(source, backend=backend)(*leaves)
        cotangent = torch.rand(value.shape, generator=generator).to(dtype) if cotangent is None else cotangent
        found.append([value.detach(), *torch.autograd.grad(value, leaves, cotangent.to(value.dtype))])
    for a, b in zip(*found, strict=True):
        most = b.abs().max().item()
        torch.testing.assert_close(a.double(), b, rtol=0, atol=most * (1e-5 if dtype == torch.float32 else 4e-2))


def lowered(source: str, *shapes: tuple[int, ...], gradient: bool = False) -> tilec.Lowered:
    f = tilec.compile(source, backend="triton")
    return (f.grad() if gradient else f).lower(*map(tilec.spec, shapes), target="sm_90")


def test_weights_are_computed_by_the_sums() -> None:
    made = lowered(JOINT, (8, 512, 512), (8, 512, 512))
    assert [k.statements for k in made.kernels] == [("A", "B", "Y")]
    assert "acc_15" in made.source()  # eight neighbours of both
    back = lowered(JOINT, *[(8, 512, 512)] * 3, gradient=True)
    assert all(len(s.index) == 3 for s in back.stages["grouped"].statements)


@pytest.mark.parametrize(
    "text",
    [
        "B[n, y, x] = +(K[n, y, x, j, i] + 1.0);",  # adds up what lies outside as well
        "B[n, y, x] = >(K[n, y, x, j, i]);",  # so that a gradient may look for it
        "B[n, y, x] = +(K[n, y, x, j, i] == X[n, y, x] ? 1.0 : 0.0);",
        "B[n, y, x, i] = +(K[n, y, x, j, i]); C[n, y, x, j, i : N, H, W, 3, 5] = K[n, y, x, j, i] / B[n, y, x, i];",
    ],
)
def test_other_values_of_windows_stay(text: str) -> None:
    source = f"function (X[N, H, W], G[N, H, W]) -> (B) {{ K[n, y, x, j, i : N, H, W, 3, 5] = {WEIGHT}; {text} }}"
    source = source.replace("-> (B)", "-> (C)") if "C[" in text else source
    made = lowered(source, (8, 512, 512), (8, 512, 512))
    assert "K" in {s.output for s in made.stages.get("grouped", made.stages["flat"]).statements}


def laid_out(made: tilec.Lowered) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (shape, _) in allocated(made).items() if len(shape) > 3}


def test_distances_are_laid_out_along_rows() -> None:
    made = lowered(MEANS, (4, 512, 512))
    assert laid_out(made) == {"E": (4, 3, 3, 508, 508)}
    assert "acc_7" in made.source()
    back = lowered(MEANS, (4, 512, 512), (4, 508, 508), gradient=True)
    assert set(laid_out(back).values()) == {(4, 3, 3, 508, 508)}
    assert laid_out(lowered(DISPARITY, *[(4, 3, 512, 512)] * 2)) == {"V": (4, 512, 4, 512)}


def test_what_runs_along_channels_stays() -> None:
    last = DISPARITY.replace("N, C, H, W]", "N, H, W, C]").replace("[n, c, y, x]", "[n, y, x, c]")
    last = last.replace("[n, c, y, x - d]", "[n, y, x - d, c]")
    assert laid_out(lowered(last, *[(4, 512, 512, 3)] * 2)) == {"V": (4, 512, 512, 4)}
    returned = MEANS.replace("-> (Y)", "-> (Y, D)")
    assert laid_out(lowered(returned, (4, 512, 512)))["D"] == (4, 508, 508, 3, 3)


PAIRS = """function (A[B, C, I, J], Q[B, I, D], K[C, J, D]) -> (X, Y) {
    T[b, c, i, j : B, C, I, J] = exp(A[b, c, i, j]);
    X[b, i, d] = sum(T[b, c, i, j] * K[c, j, d]); Y[c, j, d] = sum(T[b, c, i, j] * Q[b, i, d]);
}"""


def test_operands_lie_as_products_take_them() -> None:
    shapes = (64, 48, 32, 180), (64, 32, 64), (48, 180, 64)
    made = tilec.compile(PAIRS).lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90")
    assert laid_out(made)["T"] == (64, 32, 48, 180) and "permute" not in made.source()
    stored = PAIRS.replace("-> (X, Y)", "-> (X, Y, T)")
    made = tilec.compile(stored).lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90")
    assert laid_out(made)["T"] == (64, 48, 32, 180)


@interpreted
def test_values_of_operands_that_lie_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_layout, "_LEAST_COPYING", 0)
    torch.manual_seed(0)
    given = [torch.randn(s) for s in ((2, 3, 4, 33), (2, 4, 5), (3, 33, 5))]
    made = tilec.compile(PAIRS, backend="triton")
    assert laid_out(made.lower(*given))["T"] == (2, 4, 3, 33)
    wide = [x.double() for x in given]
    for x, w in zip(made(*given), tilec.compile(PAIRS, backend="torch")(*wide), strict=True):
        torch.testing.assert_close(x.double(), w, rtol=1e-4, atol=1e-4)


def test_long_windows_of_many_outputs_are_walked_by_neighbours() -> None:
    text = PATCHES.replace("y, x, u, v : N, H - 4, W - 4, 3, 3", "y, x : N, H - 4, W - 4")
    source = f"function (X[N, H, W]) -> (D) {{ {text.replace('q < 3;', 'q < 3, u < 3, v < 3;')} }}"
    assert "BR" not in lowered(source, (4, 516, 516)).source()  # 81 points
    assert "BR" in lowered(source, (1, 36, 36)).source()


@pytest.mark.parametrize(
    "source, shapes",
    [
        (RESAMPLED, [(32, 160000), (48,), (32, 240000)]),
        (IMAGE.replace("4, 6", "12, 12"), [(24, 512, 512), (12, 12), (24, 768, 768)]),
    ],
)
def test_taps_share_what_they_read(source: str, shapes: list[tuple[int, ...]]) -> None:
    """Sixteen of a block, in blocks of the last variable, whose points ask for no quotient."""
    text = lowered(source, *shapes, gradient=True).source()
    name = "DK" if "DK_parts" in text else "DH"
    assert re.search(rf"{name}_kernel\[.*BM=16, BR=256", text)
    walk = text[text.index(f"def {name}_kernel(") :].split("@triton.jit")[0]
    assert "window = first //" in walk and "red //" not in walk


def test_taps_along_memory_are_written_out() -> None:
    text = lowered(PHASES, (32, 160000), (3, 16), (32, 480000), gradient=True).source()
    assert "def DH_taps(" in text and "acc_7" in text


def test_lines_of_odd_length_stay_aligned() -> None:
    """Rows that are no multiples of vectors are read one after the other, as one."""
    source = "function (X[R, C], W[R]) -> (L) { L[] = +(X[r, c] * W[r] * W[r]); }"
    for columns, apart in ((2**16, True), (2**16 + 1, False)):
        assert ("window = first //" in lowered(source, (64, columns), (64,)).source()) == apart
