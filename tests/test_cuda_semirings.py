"""Log products over wide ranges and max-plus products on a GPU: what the interpreter cannot show (tensor cores' own
arithmetic, the compiler's exponentials)."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec.bench.sweep.points import OUR_CURVE, RANGES, log_product_point

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("n", [100, 640])  # from 2^27 terms on exponentials are computed first
@pytest.mark.parametrize("range_", RANGES)
def test_log_products_of_any_range(range_: str, n: int) -> None:
    setup = log_product_point(n, range_)(torch.Generator("cuda").manual_seed(n), "cuda")
    assert setup.check(setup.builds[OUR_CURVE]()()) <= 1


@pytest.mark.parametrize("range_", RANGES)
def test_their_gradients(range_: str) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (RANGES[range_](generator, "cuda", 520, 520) for _ in range(2))
    d = torch.randn(520, 520, generator=generator, device="cuda")
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); }"
    f = tilec.compile(source).grad(("A", "B")).tile
    found = tilec.compile(f, backend="triton")(a, b, d)
    wanted = tilec.compile(f, backend="torch")(*(x.double().cpu() for x in (a, b, d)))
    for g, w in zip(found, wanted, strict=True):
        assert (g.double().cpu() - w).norm() <= 1e-5 * w.norm()


@pytest.mark.parametrize("sizes", [(64, 64, 64), (130, 33, 77), (600, 16, 520)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.float16], ids=str)
def test_max_plus_products_and_their_gradients(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = >(A[i, k] + B[k, j]); }"
    a, b = (torch.randint(-9, 10, s).to(dtype) for s in ((m, k), (k, n)))
    f = tilec.compile(source, backend="triton")
    wanted = (a[:, :, None] + b).amax(1)
    assert torch.equal(f(a.cuda(), b.cuda()).cpu(), wanted)
    if dtype.is_floating_point:
        a[3, 2] = float("nan")
        assert torch.equal(f(a.cuda(), b.cuda()).isnan().cpu(), (a[:, :, None] + b).amax(1).isnan())
        gradient = f.grad(("A", "B"))
        a[3, 2], d = 0, torch.randint(-9, 10, (m, n)).to(dtype)
        exact = tilec.compile(source, backend="torch").grad(("A", "B"))(a.double(), b.double(), d.double())
        for g, w in zip(gradient(a.cuda(), b.cuda(), d.cuda()), exact, strict=True):
            assert (g.double().cpu() - w).norm() <= (1e-5 if dtype != torch.float16 else 2e-3) * w.norm()
