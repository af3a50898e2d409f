"""Attention over a cache of which a length is used: memory beyond it may hold anything."""

import pytest
import torch

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TEXT = """function (Q[B, H, I, D], K[B, H, J, D], V[B, H, J, F], T[B]) -> (O) {
    S[b, h, i, j : B, H, I, J] = 0.1 * sum(Q[b, h, i, d] * K[b, h, j, d]);
    L[b, h, i : B, H, I] = logsumexp(CONDITION ? S[b, h, i, j]);
    O[b, h, i, f : B, H, I, F] = +(CONDITION ? exp(S[b, h, i, j] - L[b, h, i]) * V[b, h, j, f]);
}"""


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("j < T[b]", torch.int32),
        ("j <= T[b] + i - I", torch.int64),
        pytest.param("j < T[b]", torch.int64, marks=pytest.mark.slow),
        pytest.param("j <= T[b] + i - I", torch.int32, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("sizes", [(2, 16, 1024, 2048, 128), (2, 3, 200, 500, 64), (3, 8, 1, 4096, 128)])
def test_memory_beyond_a_length(condition, kind, sizes):
    batch, heads, rows, columns, width = sizes
    g = torch.Generator("cuda").manual_seed(0)

    def drawn(n):
        return torch.randn((batch, heads, n, width), generator=g, device="cuda", dtype=torch.bfloat16)

    q, k, v = drawn(rows), drawn(columns), drawn(columns)
    lengths = torch.tensor([columns - 7, columns - 131, columns][:batch], device="cuda", dtype=kind)
    i, j = torch.arange(rows, device="cuda")[:, None], torch.arange(columns, device="cuda")
    end = lengths[:, None, None].expand(batch, rows, 1)
    seen = (j < end if condition == "j < T[b]" else j <= end + i - rows)[:, None]
    scores = (0.1 * (q.double() @ k.double().mT)).masked_fill(~seen, float("-inf"))
    exact = torch.softmax(scores, -1) @ v.double()
    for n, keys, values in zip(lengths.tolist(), k, v, strict=True):
        keys[:, n:] = float("nan")
        values[:, n:] = float("inf")
        values[:, n + 1 :] = float("nan")
    found = tilec.compile(TEXT.replace("CONDITION", condition), backend="triton")(q, k, v, lengths)
    assert (found.double() - exact).norm() <= 1e-2 * exact.norm()
