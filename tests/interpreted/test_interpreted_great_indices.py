"""Elements at the ends of int64 in indices: a remainder is exact, and no other index is inside after it has wrapped."""

import os

import pytest
import torch

import tilec

LEAST, MOST = -(2**63), 2**63 - 1
VALUES = [LEAST, LEAST + 1, LEAST + 5, -(2**62), -9, -1, 0, 1, 3, 6, 7, 2**62, MOST // 3 + 1, MOST - 2, MOST]
INDICES = [
    *("(T[j] - i) % 7", "(T[j] + i) % 7", "(T[j] % 7 - i) % 7", "(3 * T[j] + i) % 7", "(T[j] - i) % 8"),
    *("(T[j] + U[j]) % 7", "(4611686018427387905 * T[j] + i) % 7", "4611686018427387904 * T[j] + i"),
    *("abs(T[j] - i)", "max(T[j], 0) + i", "i - min(T[j], 0)", "2 * max(T[j], 0)", "max(T[j], 0) - min(U[j], 0)"),
    *("clamp(T[j] - i, 0, 6)", "(T[j] + i) / 3", "T[j] - U[j]"),
]
backends = ("torch", "triton") if os.environ.get("TRITON_INTERPRET") == "1" else ("torch",)


@pytest.mark.parametrize("backend", backends)
@pytest.mark.parametrize("dtype", [torch.int64, pytest.param(torch.int32, marks=pytest.mark.slow)])
def test_indices_at_the_ends(backend, dtype):
    t = torch.tensor(VALUES).clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max).to(dtype)
    u = t.roll(4)
    n = len(t)
    for index in INDICES:
        read = f"function (X[K], T[J], U[J]) -> (Y) {{ Y[i, j : 5, J] = pad(X[{index}], -1); }}"
        written = f"function (X[I, J], T[J], U[J]) -> (Y) {{ Y[{index}, j : 7, J] = +(X[i, j]); }}"
        # the byte tensor is one whose address no index wraps round to
        for source, x in ((read, torch.arange(1, 8, dtype=torch.int8)), (written, torch.arange(9.0 * n).view(9, n))):
            expected = torch.as_tensor(tilec.interpret(source, x, t, u))
            got = tilec.compile(source, backend=backend)(x, t, u)
            assert torch.equal(got, expected.to(got.dtype)), source
