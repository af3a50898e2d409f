"""Attention of heads of odd widths on a device: values and gradients beside float64."""

from __future__ import annotations

import pytest
import torch

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TEXT = """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {{
    S[b, i, j : B, N, M] = 0.125 * sum(Q[b, i, e] * K[b, j, e]);
    L[b, i : B, N] = logsumexp({0}S[b, i, j]);
    O[b, i, f : B, N, F] = sum({0}exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}}"""


WIDTHS = [(65, 65), (72, 72), (96, 96), (104, 120), (127, 127), (128, 72), (136, 64), (160, 160), (192, 128)]
WIDTHS += [(128, 192), (192, 192), (200, 144), (255, 129), (256, 64), (256, 256)]


@pytest.mark.parametrize("batch, rows", [(3, 300), (132, 768)], ids=["small", "large"])
@pytest.mark.parametrize(
    ("widths", "dtype", "guard"),
    [  # by default half of the kinds of calls of each width, the other half of the next one
        pytest.param(w, d, g, id=f"{w}-{d}-{g or 'full'}", marks=[pytest.mark.slow] * ((k + m) % 2))
        for k, w in enumerate(WIDTHS)
        for m, (d, g) in enumerate(
            ((torch.bfloat16, "i >= j ? "), (torch.float16, "i >= j ? "), (torch.float16, ""), (torch.bfloat16, ""))
        )
    ],
)
def test_widths(widths: tuple[int, int], dtype: torch.dtype, guard: str, batch: int, rows: int) -> None:
    """The large ones are enough for tensor maps and for warps with work of their own."""
    e, f = widths
    generator = torch.Generator("cuda").manual_seed(e)
    shapes = ((batch, rows, e), (batch, rows, e), (batch, rows, f), (batch, rows, f))
    *given, cotangent = (torch.randn(s, device="cuda", generator=generator).to(dtype) for s in shapes)
    given = [t.requires_grad_() for t in given]
    value = tilec.compile(TEXT.format(guard))(*given)
    ours = torch.autograd.grad(value, given, cotangent)
    q, k, v = (t.detach().double().requires_grad_() for t in given)
    scores = 0.125 * q @ k.mT
    if guard:
        scores = scores.masked_fill(torch.ones(rows, rows, device="cuda", dtype=torch.bool).triu(1), -torch.inf)
    exact = scores.softmax(-1) @ v
    theirs = torch.autograd.grad(exact, (q, k, v), cotangent.double())
    for mine, other in zip((value, *ours), (exact, *theirs), strict=True):
        assert (mine.double() - other).norm() <= 8e-3 * other.norm()


@pytest.mark.parametrize("heads, columns, width", [(600, 1100, 64), (3, 20000, 128), (40, 4096, 192), (256, 2000, 72)])
@pytest.mark.parametrize("guard", ["", "j < 1030 ? "], ids=["all", "some"])
def test_one_query(guard: str, heads: int, columns: int, width: int) -> None:
    """Decoding: programs enough, and few of them that share the columns."""
    generator = torch.Generator("cuda").manual_seed(width)
    shapes = ((heads, 1, width), (heads, columns, width), (heads, columns, width))
    q, k, v = (torch.randn(s, device="cuda", generator=generator).bfloat16() for s in shapes)
    value = tilec.compile(TEXT.format(guard))(q, k, v)
    seen = slice(1030 if guard else None)
    scores = 0.125 * q.double() @ k[:, seen].double().mT
    exact = scores.softmax(-1) @ v[:, seen].double()
    assert (value.double() - exact).norm() <= 8e-3 * exact.norm()


RELATIVES = {  # declarations, guard, score, as torch has them
    "window": ("", "i - j >= 0 & i - j < 200 ? ", "D[b, i, j]", lambda s, i, j, p: s),
    "cap": ("", "i >= j ? ", "20 * tanh(D[b, i, j] / 20)", lambda s, i, j, p: 20 * torch.tanh(s / 20)),
    "bias": (", P[N, M]", "", "D[b, i, j] + P[i, j]", lambda s, i, j, p: s + p),
    "slopes": ("", "i >= j ? ", "D[b, i, j] - 0.03 * (i - j)", lambda s, i, j, p: s - 0.03 * (i - j)),
}


@pytest.mark.parametrize("dtype, widths", [(torch.bfloat16, (192, 128)), (torch.float16, (256, 256))])
@pytest.mark.parametrize("name", RELATIVES)
def test_relatives(name: str, dtype: torch.dtype, widths: tuple[int, int]) -> None:
    """Other bodies and guards, keys and values that three heads share, lengths that no block divides; scores are
    rounded twice."""
    declared, guard, score, scored = RELATIVES[name]
    text = f"""function (Q[B, R, N, E], K[B, M, E], V[B, M, F]{declared}) -> (O) {{
        D[b, r, i, j : B, R, N, M] = 0.125 * sum(Q[b, r, i, e] * K[b, j, e]);
        S[b, r, i, j : B, R, N, M] = {score.replace("[b, i, j]", "[b, r, i, j]")};
        L[b, r, i : B, R, N] = logsumexp({guard}S[b, r, i, j]);
        O[b, r, i, f : B, R, N, F] = sum({guard}exp(S[b, r, i, j] - L[b, r, i]) * V[b, j, f]);
    }}"""
    generator = torch.Generator("cuda").manual_seed(1)
    n, m = 700, 650
    shapes = ((40, 3, n, widths[0]), (40, m, widths[0]), (40, m, widths[1]), (40, 3, n, widths[1]), (n, m))
    *given, cotangent, bias = (torch.randn(s, device="cuda", generator=generator).to(dtype) for s in shapes)
    given = [t.requires_grad_() for t in given]
    value = tilec.compile(text)(*given, *([bias] if declared else []))
    ours = torch.autograd.grad(value, given, cotangent)
    q, k, v = (t.detach().double().requires_grad_() for t in given)
    i, j = torch.arange(n, device="cuda")[:, None], torch.arange(m, device="cuda")
    scores = scored(0.125 * q @ k.mT[:, None], i, j, bias.double())
    if guard:
        unseen = (i < j) | (i - j >= 200) if name == "window" else i < j
        scores = scores.masked_fill(unseen, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    exact = weights @ v[:, None]
    theirs = torch.autograd.grad(exact, (q, k, v), cotangent.double())
    for mine, other in zip((value, *ours), (exact, *theirs), strict=True):
        assert (mine.double() - other).norm() <= 1.5e-2 * other.norm()
