"""Products of tensors in which elements of other batches are neighbours: over copies, in which they lie apart."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.matmul import pack
from tilec.backends.triton.matmul.dot import MatrixProduct
from tilec.backends.triton.matmul.hopper import aligned_copies
from tilec.backends.triton.plan.plan import Setting

MONARCH = """function (X[N, D], L[G, P, P], M[P, G, G]) -> (Y) {
    Z = reshape(X, N, G, P);
    A[n, p, g] = sum(Z[n, g, q] * L[g, p, q]);
    B[n, p, g] = sum(A[n, p, h] * M[p, g, h]);
    C[n, g, p : N, G, P] = B[n, p, g];
    Y = reshape(C, N, D);
}"""
BETWEEN = "function (A[N, K, G], B[K, J, G]) -> (C) { C[n, j, g] = +(A[n, k, g] * B[k, j, g]); }"


def plan(text: str, *shapes: tuple[int, ...]) -> str:
    f = tilec.compile(text, backend="triton")
    return f.lower(*(tilec.spec(shape, "bfloat16") for shape in shapes), target="sm_90").source()


def test_copies_and_results() -> None:
    source = plan(MONARCH, (8192, 2048), (32, 64, 64), (64, 32, 32))
    assert "A_apart = torch.empty((8192, 32, 64)" in source and "Z = torch.empty" not in source
    source = plan(BETWEEN, (512, 256, 16), (256, 512, 16))
    assert all(f"{name} = torch.empty" in source for name in ("C_A_1", "C_B_1", "C_apart"))


def test_kernels_of_each_image() -> None:
    """A convolution with channels first and a kernel for each image, and its gradients, are Hopper's products over
    copies; both gradients read one copy of the cotangent."""
    text = """function (X[B, C, H, W], K[B, O, C, 3, 3], D[B, O, H, W]) -> (Y, DX, DK) {
        Y[b, o, y, x : B, O, H, W] = sum(X[b, c, y + j - 1, x + i - 1] * K[b, o, c, j, i]);
        DX[b, c, y, x : B, C, H, W] = sum(D[b, o, y - j + 1, x - i + 1] * K[b, o, c, j, i]);
        DK[b, o, c, j, i : B, O, C, 3, 3] = sum(D[b, o, y, x] * X[b, c, y + j - 1, x + i - 1]);
    }"""
    source = plan(text, (8, 128, 32, 32), (8, 128, 128, 3, 3), (8, 128, 32, 32))
    assert source.count("_apart = torch.empty") == 3 and "rt.convolution" not in source
    assert source.count("D_1 = torch.empty") == 1


@pytest.mark.parametrize(
    "shapes", [((64, 64, 16), (64, 64, 16)), ((4096, 512, 2), (512, 512, 2)), ((4096, 8, 64), (8, 512, 64))]
)
def test_where_little_is_gained(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Small tensors, few batches, few elements beside each other in a copy of the first."""
    assert "C_A_1" not in plan(BETWEEN, *shapes)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_BYTES_APART", 0)
    generator = torch.Generator().manual_seed(0)
    x, m, w = (
        torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in ((19, 320), (16, 20, 20), (20, 16, 16))
    )
    y = tilec.compile(MONARCH, backend="triton")(x, m, w)
    found = torch.autograd.grad(y, (x, m, w), y.detach())
    exact = [t.detach().double().requires_grad_() for t in (x, m, w)]
    inner = torch.einsum("ngq,gpq->npg", exact[0].unflatten(1, (16, 20)), exact[1])
    wanted = torch.einsum("nph,pgh->ngp", inner, exact[2]).flatten(1)
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    for a, b in zip((y, *found), (wanted, *torch.autograd.grad(wanted, exact, y.detach().double())), strict=True):
        assert (a.double() - b).norm() <= tolerance * b.norm()


GATED = """function (A[I, K, D], G[I, K, D], B[J, K, D]) -> (T) {
    T[i, j, d : I, J, D] = +(sigmoid(G[i, k, d]) * A[i, k, d] * B[j, k, d]);
}"""


def test_operands_that_are_made_beforehand_lie_apart() -> None:
    """A product over the third corner of triangles: the gated operand is stored with its channels outermost."""
    source = plan(GATED, (312, 312, 128), (312, 312, 128), (312, 312, 128))
    assert "T_apart = torch.empty" in source and "T_left = torch.empty((312, 128, 320)" in source
    assert "T_dot[" not in source and "product[" in source


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_of_operands_that_are_made_beforehand(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_BYTES_APART", 0)
    monkeypatch.setattr(pack, "LEAST_WORK", 0)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator).to(dtype) for s in ((67, 17, 5), (67, 17, 5), (71, 17, 5))]
    given = [t.requires_grad_() for t in given]
    t = tilec.compile(GATED, backend="triton")(*given)
    exact = [x.detach().double().requires_grad_() for x in given]
    wanted = torch.einsum("ikd,jkd->ijd", torch.sigmoid(exact[1]) * exact[0], exact[2])
    found = torch.autograd.grad(t, given, t.detach())
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    for a, b in zip((t, *found), (wanted, *torch.autograd.grad(wanted, exact, t.detach().double())), strict=True):
        assert (a.double() - b).norm() <= tolerance * b.norm()


HEADS = """function (X[B, H, N, E], W[H, E, D], C[D]) -> (Y) {
    O[b, n, d : B, N, D] = +(X[b, h, n, e] * W[h, e, d]);
    Y = relu(O + C);
}"""


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [((0, 2, 1, 3), 2), ((2, 0, 1, 3), 2), ((2, 0, 1, 3), 3), ((0, 1, 2, 3), 1)])
def test_copies_with_joined_axes(layout: tuple, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def copied(product: MatrixProduct, _: Setting) -> pack.OperandRewrite | None:
        heads = {a: pack.CopyLayout(*layout) for a in product.accesses() if len(a.index) == 4 and "." not in a.tensor}
        made.extend(a.tensor for a in heads)
        return pack.over_copied(product, heads)

    monkeypatch.setattr(aligned_copies, "with_batches_apart", copied)
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 5, 19, 7), (5, 7, 33), (33,)
    x, w, c = (torch.randint(-2, 3, shape, generator=generator).to(dtype) for shape in shapes)
    y = tilec.compile(HEADS, backend="triton")(x, w, c)
    wanted = (torch.einsum("bhne,hed->bnd", x.double(), w.double()) + c.double()).relu()
    assert made and torch.equal(y.double(), wanted.to(dtype).double())


POINTWISE = """function (I[N, H, W, C], K[O, 1, 1, C]) -> (Y) {
    Y[n, y, x, o : N, H, W, O] = +(I[n, y + j, x + i, c] * K[o, j, i, c]);
}"""


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7, 19), (1, 1, 23, 17)])
def test_windows_of_one_place_over_copies(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def copied(product: MatrixProduct, _: Setting) -> pack.OperandRewrite | None:
        plain = aligned_copies.of_matrices(product)
        layouts = {
            a: pack.CopyLayout.with_last(1, 2) for a in plain.accesses() if len(a.index) == 2 and "." not in a.tensor
        }
        made.extend(a.tensor for a in layouts)
        return pack.over_copied(plain, layouts)

    monkeypatch.setattr(aligned_copies, "with_batches_apart", copied)
    monkeypatch.setattr(aligned_copies, "worthwhile", lambda dot, space: True)
    generator = torch.Generator().manual_seed(0)
    i, k = (
        torch.randint(-2, 3, s, generator=generator).to(dtype).requires_grad_() for s in (shape, (33, 1, 1, shape[-1]))
    )
    y = tilec.compile(POINTWISE, backend="triton")(i, k)
    found = torch.autograd.grad(y, (i, k), y.detach())
    exact = [t.detach().double().requires_grad_() for t in (i, k)]
    wanted = torch.einsum("nyxc,oc->nyxo", exact[0], exact[1][:, 0, 0])
    assert torch.equal(y.double(), wanted.to(dtype).double()) and {"I", "K", "DY"} <= {*made}
    for a, b in zip(found, torch.autograd.grad(wanted, exact, y.detach().double()), strict=True):
        assert torch.equal(a.double(), b.to(dtype).double())
