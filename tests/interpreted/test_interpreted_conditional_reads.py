"""Reads under conditions on positions, interpreted: the same values as on the torch backend, with their gradients."""

import os
import re

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

CASES = {  # over X[N, H, C] and Z[N, H, C]
    "shifts by groups": """Y[n, y, c : N, H, C] = c < C/4 ? pad(X[n, y + 1, c], 0)
        : (c < C/2 ? pad(X[n, y - 1, c], 0) : X[n, y, c] * 2);""",
    "two tensors": "Y[n, y, c : N, H, C] = c >= 16 ? 1 / X[n, y, c] : Z[n, y, c];",
    "rows": "Y[n, y, c : N, H, C] = y % 2 == 0 & n != 1 ? X[n, y, c] / Z[n, y, c] : Z[n, H - 1 - y, c];",
    "read elsewhere too": "Y[n, y, c : N, H, C] = (c < 32 ? X[n, y, c] : 0) + X[n, y, c] * Z[n, y, c];",
    "guards": """A[n, y, c : N, H, C] = +(c < 32 ? X[n, y, c]);
        Y[n, y, c : N, H, C] = A[n, y, c] + (c < 32 == 0 ? Z[n, y, c] : 1) * 3;""",
    "then a norm": """A[n, y, c : N, H, C] = c < 32 ? pad(X[n, y - 1, c], 0) : Z[n, y, c];
        Y[n, y, c : N, H, C] = A[n, y, c] / sum(A[n, y, d] * A[n, y, d] + 1);""",
    "other conditions": "Y[n, y, c : N, H, C] = c > 16 & y < c ? X[n, y, c] : (Z[n, y, c] > 0 ? X[n, y, c] : 4);",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [64, 40])
@pytest.mark.covering
@pytest.mark.one_in(7)
def test_values_and_gradients(name: str, width: int) -> None:
    source = f"function (X[N, H, C], Z[N, H, C]) -> (Y) {{ {CASES[name]} }}"
    for dtype in (torch.float32, torch.bfloat16):
        g = torch.Generator().manual_seed(width)
        given = [torch.randn(3, 5, width, generator=g).to(dtype).requires_grad_() for _ in range(2)]
        d = torch.randn(3, 5, width, generator=g).to(dtype)
        found, wanted = (
            (y := tilec.compile(source, backend=backend)(*given), *torch.autograd.grad(y, given, d))
            for backend in ("triton", "torch")
        )
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_what_is_not_read_may_be_anything() -> None:
    source = "function (X[N, C], Z[N, C]) -> (Y) { Y[n, c] = c < 32 ? X[n, c] * 2 : Z[n, c]; }"
    x, z = torch.ones(4, 64), torch.ones(4, 64)
    x[:, 32:], z[:, :32] = torch.nan, torch.inf
    y = tilec.compile(source, backend="triton")(x, z)
    assert (y[:, :32] == 2).all() and (y[:, 32:] == 1).all()


def test_padding_reads_no_row() -> None:
    source = "function (W[V, D], T[B, L]) -> (S) { S[b, d : B, D] = sum(T[b, l] > 0 ? W[T[b, l], d] : 0); }"
    given = tilec.spec((300, 72)), tilec.spec((500, 17), "int64")
    text = tilec.compile(source).lower(*given, backend="triton", target="sm_90").source()
    (mask,) = re.findall(r"= tl\.load\(W \+ .*mask=(.*), other", text)
    (condition,) = re.findall(r"(\w+) = \(t > tl\.full\(\(\), 0", text)
    assert f" & {condition} & " in mask
    w, t = torch.rand(9, 5), torch.tensor([[0, 3, 8, -1, 0], [-4, 0, 0, 0, 0], [1, 1, 9, 2, 4]])
    found, wanted = (tilec.compile(source, backend=b)(w, t) for b in ("triton", "torch"))
    torch.testing.assert_close(found, wanted)
