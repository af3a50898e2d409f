"""A count that a gradient divides by is kept, and what it counts is not read again."""

import pytest
import torch

import tilec

MEAN = "function (X[N], M[N]) -> (L) { L[] = sum(M[n] != 0 ? X[n] * X[n] * X[n] : 0) / sum(M[n]); }"


def test_what_is_kept() -> None:
    f = tilec.compile(MEAN)
    found = {s.name: s for s in f.saved(tilec.spec((2**17,)), tilec.spec((2**17,), "int64"))}
    assert found["L_sum_1_kept"].dtype == "int64" and found["L_sum_1_kept"].shape == (1,)
    assert "L_sum_1_kept" not in {s.name for s in f.saved(tilec.spec((99,)), tilec.spec((99,), "int64"))}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", [torch.int64, torch.int8, torch.bool])
def test_derivatives(dtype: torch.dtype, mask: torch.dtype) -> None:
    """Of first and second order, in the types that a rank-0 integer promotes to."""
    torch.manual_seed(0)
    m = (torch.rand(2**17) < 0.3).to(mask)
    x = torch.rand(2**17, dtype=torch.float64).to(dtype)
    found = []
    for loss in (tilec.compile(MEAN), lambda x, m: (x * x * x * (m != 0)).sum() / m.sum()):
        given = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(given, m), given, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), given)
        assert g.dtype == h.dtype == dtype
        found.append((g.detach(), h))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5)
