"""On a CUDA device: scans and affine recurrences against float64, blocks and chunks of every form, the same bits each
time, overflowing compositions, gradients."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec.backends.triton.scan import scan as scans
from tilec.backends.triton.scan.kernel import ScanTiling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ALONG = "function (X[B, N]) -> (O) { O[b, i : B, N] = %s(X[b, k]), %s < N; }"
ACROSS = "function (X[N, B]) -> (O) { O[i, b : N, B] = %s(X[k, b]), %s < N; }"
REFERENCES = {
    "+": lambda x, d: x.cumsum(d),
    "*": lambda x, d: x.cumprod(d),
    ">": lambda x, d: x.cummax(d).values,
    "<": lambda x, d: x.cummin(d).values,
    "logsumexp": lambda x, d: x.logcumsumexp(d),
}
STEPS = {
    "real": "A[t, i] * H[t - 1, i] + B[t, i]",
    "backward": "A[t, i] * H[t + 1, i] + B[t, i]",
    "shuffle": "relu(B[t, i] + H[t - 1, (i - 1) % D])",
    "max-plus": "max(B[t, i], H[t - 1, i] - A[t, i])",
    "min-plus": "min(B[t, i], H[t - 1, i] + A[t, i])",
    "log": "logaddexp(B[t, i], H[t - 1, i] - A[t, i])",
}


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def stepping(step: str) -> str:
    return f"function (A[T, D], B[T, D]) -> (H) {{ H[t, i : T, D] = {step} + 0 * A[t, i] + 0 * B[t, i]; }}"


def same(f: tilec.Function, *inputs: torch.Tensor) -> torch.Tensor:
    got = f(*inputs)
    assert torch.equal(got.nan_to_num(), f(*inputs).nan_to_num()), "the same bits each time"
    return got


@pytest.mark.parametrize("aggregation", REFERENCES)
@pytest.mark.parametrize("rows, steps", [(1, 100_003), (3, 5000), (1000, 777), (70_000, 33), (2000, 1)])
def test_aggregations(aggregation: str, rows: int, steps: int) -> None:
    """One way along memory and the other across it, in turns with the lengths."""
    reference = REFERENCES[aggregation]
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11), (torch.bfloat16, 1e-2)):
        x = normal(rows, steps, dtype=dtype)
        x = (1 + x / 1000).to(dtype) if aggregation == "*" else x
        for source, t, d, rising in ((ALONG, x, 1, steps % 2), (ACROSS, x.T.contiguous(), 0, 1 - steps % 2)):
            constraint, flips = ("i - k", ()) if rising else ("k - i", (d,))
            wanted = reference(t.double().flip(flips), d).flip(flips)
            got = same(tilec.compile(source % (aggregation, constraint), backend="triton"), t)
            torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance * wanted.abs().max().item())


@pytest.mark.parametrize("tiling", [
    ScanTiling(64, 1, True), ScanTiling(4096, 1, True, 3, warps=8), ScanTiling(64, 8, True, 1),
    ScanTiling(16, 4, True, 2, warps=1), ScanTiling(8, 32, False, 3, warps=1, apart=True),
    ScanTiling(32, 64, False, 1, apart=True), ScanTiling(32, 32, False, 1),
    ScanTiling(128, 2, False, 1), ScanTiling(8, 128, False, 9, warps=8),
    ScanTiling(16, 1, False, 40, warps=1),
])  # fmt: skip
def test_blocks(tiling: ScanTiling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "choose_scan_tiling", lambda scan, view: tiling)
    x = normal(5, 12_345)
    for aggregation in ("+", "logsumexp"):
        got = same(tilec.compile(ALONG % (aggregation, "i - k"), backend="triton"), x)
        torch.testing.assert_close(got.double(), REFERENCES[aggregation](x.double(), 1), rtol=3e-5, atol=1e-2)
    a, b = normal(3000, 7).sigmoid(), normal(3000, 7)
    for name in ("backward", "shuffle"):
        got = same(tilec.compile(stepping(STEPS[name]), backend="triton"), a, b)
        wanted = tilec.compile(stepping(STEPS[name]), backend="triton", exact=True)(a.double(), b.double())
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-3)


def test_integers_and_truth() -> None:
    x = torch.randint(-9, 10, (4, 9000), device="cuda", dtype=torch.int8)
    for aggregation, wanted in (("+", x.long().cumsum(1)), (">", x.cummax(1).values), ("<", x.cummin(1).values)):
        assert torch.equal(same(tilec.compile(ALONG % (aggregation, "i - k"), backend="triton"), x), wanted)
    truth = torch.rand(4, 9000, device="cuda") < 1e-3
    assert torch.equal(same(tilec.compile(ALONG % ("any", "i - k"), backend="triton"), truth), truth.cummax(1).values)
    steps = torch.randint(-9, 10, (70_000,), device="cuda", dtype=torch.int32)
    f = tilec.compile("function (X[T]) -> (H) { H[t : T] = 3 * H[t - 1] + X[t]; }", backend="triton")
    h, wanted = 0, []
    for v in steps.tolist():
        h = (3 * h + v + 2**31) % 2**32 - 2**31
        wanted.append(h)
    assert same(f, steps).tolist() == wanted


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("steps, lanes", [(2000, 512), (20_000, 3), (65_536, 1), (700, 5000)])
def test_recurrences(step: str, steps: int, lanes: int) -> None:
    a, b = normal(steps, lanes).sigmoid(), normal(steps, lanes)
    f = tilec.compile(stepping(STEPS[step]), backend="triton")
    assert f.lower(a, b).kernels[-1].name == "H_scan"
    wanted = tilec.compile(stepping(STEPS[step]), backend="triton", exact=True)(a.double(), b.double())
    torch.testing.assert_close(same(f, a, b).double(), wanted, rtol=1e-4, atol=1e-3)


def test_compositions_that_overflow() -> None:
    a = torch.where(torch.arange(5000, device="cuda") % 8 < 4, 1e30, 1e-30).repeat(64, 1).T.contiguous()
    b = torch.zeros(5000, 64, device="cuda")
    b[17, 3], b[4001, 60] = 1e-20, float("inf")
    source = stepping(STEPS["real"]).replace(" + 0 * A[t, i] + 0 * B[t, i]", "")
    got = tilec.compile(source, backend="triton")(a, b)
    wanted = tilec.compile(source, backend="triton", exact=True)(a, b)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    assert got[:4001].isfinite().any() and (got[:, 0] == 0).all()


@pytest.mark.parametrize("aggregation", REFERENCES)
@pytest.mark.parametrize("rows, steps", [(1, 50_000), (300, 1000)])
def test_gradients(aggregation: str, rows: int, steps: int) -> None:
    x, d = normal(rows, steps), normal(rows, steps)
    x = 1 + x / 1000 if aggregation == "*" else x.mul(4).round() if aggregation in "><" else x
    ours = tilec.compile(tilec.compile(ALONG % (aggregation, "i - k")).grad().tile, backend="triton")
    wanted = tilec.compile(tilec.compile(ALONG % (aggregation, "i - k")).grad().tile, backend="torch")
    torch.testing.assert_close(ours(x, d).double(), wanted(x.double(), d.double()), rtol=1e-3, atol=1e-2)
