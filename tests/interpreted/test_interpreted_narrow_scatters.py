"""Sums at places in data that write some columns alone are sorted by points, not by elements."""

from __future__ import annotations

import os
import re

import pytest
import torch

import tilec
from tilec.backends.triton.fusion import numbered_parts

CASES = {
    "the last columns": "function (X[M, C], T[M], Z[K]) -> (Y) { Y[T[m], c + C : 6, 2*C] = +(X[m, c]); }",
    "between others": "function (X[M, C], T[M], Z[K]) -> (Y) { Y[c + 2, T[m] : C + 4, 6] = +(X[m, c] * X[m, c]); }",
    "added to others": """function (X[M, C], T[M], Z[K]) -> (Y) {
        A[T[m], c + C : 6, 2*C] = +(X[m, c]); B[T[m], c : 6, 2*C] = +(X[m, c] * Z[k]); Y = A + B; }""",
    "two axes": "function (X[M, C], T[M], Z[K]) -> (Y) { Y[k + 1, T[m], c : K + 3, 6, C + 1] = +(X[m, c] * Z[k]); }",
    "up to a bound": "function (X[M, C], T[M], Z[K]) -> (Y) { Y[T[m], c : 6, C] = +(X[m, c]), c < 2; }",
    "out of range": "function (X[M, C], T[M], Z[K]) -> (Y) { Y[T[m], c - 1 : 6, C] = +(X[m, c]); }",
    "counted": "function (X[M, C], T[M], Z[K]) -> (Y) { Y[T[m], c + 1 : 6, C + 3] = +(X[m, c] * (c + m)); }",
}


@pytest.mark.usefixtures("launches_apart")
def test_points_are_sorted_once() -> None:
    f = tilec.compile(CASES["added to others"].replace("6,", "600,"), backend="triton")
    specs = [tilec.spec((20000, 64)), tilec.spec((20000,), "int64"), tilec.spec((3,))]
    source = f.lower(*specs, target="sm_90").source().split("def program")[1]
    assert source.count("_at_kernel[") == 1 and "1280000" not in source


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(30, 5), (1, 1), pytest.param((0, 3), marks=pytest.mark.slow)])
@pytest.mark.one_in(3)
def test_values_and_gradients(name: str, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    t = torch.randint(-1, 7, shape[:1], generator=generator)
    z = torch.randn(3, generator=generator)
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        a, b = (v.to(dtype).requires_grad_() for v in (x, z))
        y = tilec.compile(CASES[name], backend=backend)(a, t, b)
        g = torch.autograd.grad(y, (a, b), y.detach(), allow_unused=True)
        found.append([y.double(), *(torch.zeros(()) if v is None else v.double() for v in g)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


COSTLY = {  # whose gradients are sums at places in data: text, how many tensors of terms there are
    "two slices": ("Y[m, d : M, D] = sin(X[T[m], d, 0]) * cos(X[T[m], d, 1]) * W[m, d];", 2),
    "one of three": ("Y[m, d : M, D] = sin(X[T[m], d, 2]) * W[m, d];", 1),
    "slices at two places": ("Y[m, d : M, D] = sin(X[T[m], d, 0]) * cos(X[S[m], d, 1]) * W[m, d];", 2),
    "summed first": ("Y[m : M] = sum(exp(X[T[m], d, 0] - W[m, d]) * sin(X[T[m], d, 1]));", 2),
    "cheap": ("Y[m, d : M, D] = X[T[m], d, 0] * X[T[m], d, 1] * W[m, d];", 0),
}


@pytest.mark.one_in(3)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", COSTLY)
@pytest.mark.parametrize("shape", [(23, 5), (1, 1)])
def test_costly_terms_are_stored(name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_parts, "LEAST_APART", 1)
    text, count = COSTLY[name]
    source = f"function (X[N, D, K], W[M, D], T[M], S[M]) -> (Y) {{ {text} }}"
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, shape[1], 2 + ("three" in name), generator=generator)
    w, (t, s) = torch.randn(shape, generator=generator), torch.randint(-1, 9, (2, shape[0]), generator=generator)
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        a, b = (v.to(dtype).requires_grad_() for v in (x, w))
        y = tilec.compile(source, backend=backend)(a, b, t, s)
        found.append([v.double() for v in (y, *torch.autograd.grad(y, (a, b), torch.cos(y.detach())))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    specs = [tilec.spec(v.shape, str(v.dtype)[6:]) for v in (x, w, t, s)]
    gradient = tilec.compile(source, backend="triton").grad("X")
    text = gradient.lower(*specs, tilec.spec(y.shape), target="sm_90").source().split("def program")[1]
    assert len({*re.findall(r"(\w+_terms) = ", text)}) == count
