"""Products of three operands, pair by pair: by a library over tensors as they are, and by kernels."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.common import pairs
from tilec.backends.triton import TritonBackend

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
# rows of two axes that a kernel walks as one, which come first, last and apart in their tensor
CASES = {
    "first": ("xyj,jk,kl->xyl", (4, 4, 4), (4, 6), (6, 5)),
    "last": ("jxy,jk,kl->xyl", (4, 4, 4), (4, 6), (6, 5)),
    "other sizes": ("jxy,jk,kl->xyl", (16, 3, 7), (16, 18), (18, 20)),
    "batches": ("bcij,bcjk,kl->bcil", (2, 2, 4, 4), (2, 2, 4, 4), (4, 5)),
    "summed together": ("iab,abk,kl->il", (6, 4, 4), (4, 4, 3), (3, 7)),
}


@pytest.fixture(params=[True, False])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """May a library serve?"""
    made = TritonBackend.__init__
    monkeypatch.setattr(TritonBackend, "__init__", lambda self, target=None, **_: made(self, target, request.param))
    return request.param


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "TERMS", 1.0)
    equation, *shapes = CASES[name]
    operands, output = equation.split("->")
    declared = ", ".join(f"T{n}[{', '.join(o.upper())}]" for n, o in enumerate(operands.split(",")))
    body = " * ".join(f"T{n}[{', '.join(o)}]" for n, o in enumerate(operands.split(",")))
    index = f"{', '.join(output)} : {', '.join(output.upper())}"
    f = tilec.compile(f"function ({declared}) -> (O) {{ O[{index}] = +({body}); }}", backend="triton")
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(-3, 4, shape, generator=generator).float() for shape in shapes]
    assert torch.equal(f(*given), torch.einsum(equation, *given))


@pytest.mark.parametrize("shape", [(19, 17, 4), (1, 1, 1), (3, 0, 2)])
def test_ranges_of_summed_variables(
    shape: tuple[int, int, int], library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of what scales six weights of a row each, which are made of their bytes."""
    monkeypatch.setattr(pairs, "TERMS", 1.0)
    m, n, g = shape
    source = """function (X[M, K], D[M, N], Q[L, N], S[G, N]) -> (Y) {
        Y[g, n : G, N] = +(D[m, n] * X[m, 6*g + 2*h + l] * (int32(Q[3*g + h, n]) >> l)), h < 3, l < 2;
    }"""
    generator = torch.Generator().manual_seed(0)
    x, d = (torch.randint(-3, 4, s, generator=generator).float() for s in ((m, 6 * g + 5), (m, n)))
    q = torch.randint(0, 8, (3 * g + 2, n), generator=generator).to(torch.uint8)
    f = tilec.compile(source, backend="triton")
    products = (d.T @ x)[:, : 6 * g].reshape(n, g, 3, 2)
    digits = torch.stack([q >> k for k in range(2)], -1)[: 3 * g].reshape(g, 3, n, 2)
    assert torch.equal(f(x, d, q, torch.empty(g, n)), torch.einsum("nghl,ghnl->gn", products, digits.float()))
    if min(shape) > 1:
        assert "Y_1" in f.lower(x, d, q, torch.empty(g, n)).source()


def test_terms_of_a_scan(library: bool) -> None:
    """What is scanned is a product over axes that kernels walk as one."""
    source = """function (X[A, B, T, D], W[D, F]) -> (O) {
        O[a, b, t, f : A, B, T, F] = +(X[a, b, s, d] * W[d, f]), t - s < T;
    }"""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-3, 4, s, generator=generator).float() for s in ((2, 3, 40, 16), (16, 16)))
    assert torch.equal(tilec.compile(source, backend="triton")(x, w), (x @ w).cumsum(2))
