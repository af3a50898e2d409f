"""Attention and its relatives: one product, statistics of a row, another product."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from tilec.bench.suite.workload import CUDNN, FLEX, Formula, Workload

KIND = "attention"
SCALE = 0.125
INPUTS = ("Q: B H N E", "K: B H N E", "V: B H N E")
HEADS = {"B": (1, 4, 2), "H": (2, 16, 32), "N": (9, 2048, 4096), "E": (8, 64, 64)}


def scored(score: str, guard: str, declared: str = "") -> str:
    """The text for a score beside `D` (the scaled product of query and key), where a guard holds."""
    condition = f"{guard} ? " if guard else ""
    return f"""function (Q[B, H, N, E], K[B, H, M, E], V[B, H, M, F]{declared}) -> (O) {{
        D[b, h, i, j : B, H, N, M] = {SCALE} * sum(Q[b, h, i, e] * K[b, h, j, e]);
        S[b, h, i, j : B, H, N, M] = {score};
        L[b, h, i : B, H, N] = logsumexp({condition}S[b, h, i, j]);
        O[b, h, i, f : B, H, N, F] = sum({condition}exp(S[b, h, i, j] - L[b, h, i]) * V[b, h, j, f]);
    }}"""


def sdpa(causal: bool = False) -> Formula:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=SCALE)


def grouped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal, four query heads to one of keys and values: q has shape (B, G, R, N, E)."""
    found = F.scaled_dot_product_attention(q.flatten(1, 2), k, v, is_causal=True, scale=SCALE, enable_gqa=True)
    return found.unflatten(1, q.shape[1:3])


def cudnn(formula: Formula) -> tuple[str, Formula]:
    """torch's attention with cuDNN's kernel and no other."""

    def forced(*tensors: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return formula(*tensors)

    return CUDNN, forced


@functools.cache
def _flex() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex(score: Callable | None = None, mask: Callable | None = None) -> tuple[str, Formula]:
    """FlexAttention; `score` and `mask` take the further inputs first and make its functions."""
    blocks: dict[tuple, object] = {}

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention.flex_attention import create_block_mask

        key = (q.shape, k.shape, q.device, *map(id, more))
        if mask is not None and key not in blocks:
            blocks[key] = create_block_mask(mask(*more), None, None, q.shape[2], k.shape[2], device=str(q.device))
        modified = score(*more) if score is not None else None
        return _flex()(q, k, v, score_mod=modified, block_mask=blocks.get(key), scale=SCALE)

    return FLEX, run


def positions(n: int, m: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n, device=device)[:, None], torch.arange(m, device=device)


def masked(bias: Callable[..., torch.Tensor], allowed: Callable[..., torch.Tensor] | None = None) -> Formula:
    """torch's attention with a dense bias of shape (..., N, M), -inf where positions are not allowed."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        i, j = positions(q.shape[2], k.shape[2], q.device)
        mask = bias(i, j, *more).to(q.dtype)
        if allowed is not None:
            mask = mask.masked_fill(~allowed(i, j, *more), -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE)

    return run


def softcap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = positions(q.shape[2], k.shape[2], q.device)
    scores = 30 * torch.tanh(SCALE / 30 * (q @ k.mT))
    return torch.softmax(scores.masked_fill(j > i, -torch.inf), -1) @ v


def sigmoid(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(SCALE * (q @ k.mT) - 5) @ v


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.tril(SCALE * (q @ k.mT)) @ v


def cosine(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, scale=10.0)


def shifted_windows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, side: int = 7, by: int = 3
) -> torch.Tensor:
    """Within windows of an image (B, Y, X, H, E) that is rolled round; the bias is by relative place."""
    b, rows, columns, h, e = q.shape
    ups, lefts = rows // side, columns // side

    def windows(t: torch.Tensor) -> torch.Tensor:
        parts = t.roll((-by, -by), (1, 2)).view(b, ups, side, lefts, side, h, e)
        return parts.permute(0, 1, 3, 5, 2, 4, 6).reshape(-1, h, side * side, e)

    y, x = (t.flatten() for t in torch.meshgrid(*[torch.arange(side, device=q.device)] * 2, indexing="ij"))
    places = (y[:, None] - y + side - 1) * (2 * side - 1) + x[:, None] - x + side - 1
    mask = bias[:, places][None]
    found = F.scaled_dot_product_attention(windows(q), windows(k), windows(v), attn_mask=mask, scale=SCALE)
    parts = found.view(b, ups, lefts, h, side, side, e).permute(0, 1, 4, 2, 5, 3, 6)
    return parts.reshape(q.shape).roll((by, by), (1, 2))


def pair_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Along rows of pairs (I, J, H, E), with a bias of pairs and a gate."""
    mask = p.permute(2, 0, 1)[None].contiguous()
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE)
    return torch.sigmoid(g) * found.transpose(1, 2)


def _zero(i: torch.Tensor, j: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(i - j, dtype=torch.float32)


CAUSAL = scored("D[b, h, i, j]", "i - j >= 0")
WORKLOADS = (
    Workload("causal attention, d 64", KIND, CAUSAL, sdpa(True), INPUTS, HEADS, others=(cudnn(sdpa(True)),)),
    Workload("causal attention, d 128", KIND, CAUSAL, sdpa(True), INPUTS,
             {**HEADS, "H": (2, 8, 16), "E": (8, 128, 128), "N": (9, 2048, 8192)}, others=(cudnn(sdpa(True)),)),
    Workload("full attention", KIND, scored("D[b, h, i, j]", ""), sdpa(), INPUTS, HEADS, others=(cudnn(sdpa()),)),
    Workload("grouped-query causal attention", KIND, f"""
    function (Q[B, G, R, N, E], K[B, G, M, E], V[B, G, M, F]) -> (O) {{
        S[b, g, r, i, j : B, G, R, N, M] = {SCALE} * sum(Q[b, g, r, i, e] * K[b, g, j, e]);
        L[b, g, r, i : B, G, R, N] = logsumexp(i - j >= 0 ? S[b, g, r, i, j]);
        O[b, g, r, i, f : B, G, R, N, F] = sum(i - j >= 0 ? exp(S[b, g, r, i, j] - L[b, g, r, i]) * V[b, g, j, f]);
    }}""", grouped_attention, ("Q: B G R N E", "K: B G N E", "V: B G N E"), {**HEADS, "G": (2, 4, 8), "R": (2, 4, 4)},
             others=(cudnn(grouped_attention),)),
    Workload("attention with ALiBi and a window of 256", KIND,
             scored("D[b, h, i, j] - A[h] * (i - j)", "i - j >= 0 & i - j < 256", ", A[H]"),
             masked(lambda i, j, a: -a[:, None, None] * (i - j), lambda i, j, a: (j <= i) & (i - j < 256)),
             (*INPUTS, "A: H ~ 0.02"), HEADS, wrt=("Q", "K", "V"),
             others=(flex(lambda a: lambda s, b, h, i, j: s - a[h] * (i - j),
                          lambda a: lambda b, h, i, j: (j <= i) & (i - j < 256)),)),
    Workload("attention in a window of 512", KIND, scored("D[b, h, i, j]", "i - j >= 0 & i - j < 512"),
             masked(_zero, lambda i, j: (j <= i) & (i - j < 512)), INPUTS, HEADS,
             others=(flex(None, lambda: lambda b, h, i, j: (j <= i) & (i - j < 512)),)),
    Workload("attention within documents", KIND,
             scored("D[b, h, i, j]", "i - j >= 0 & Doc[i] == Doc[j]", ", Doc[N]"),
             masked(_zero, lambda i, j, doc: (j <= i) & (doc[:, None] == doc)), (*INPUTS, "Doc: N << 8"), HEADS,
             others=(flex(None, lambda doc: lambda b, h, i, j: (j <= i) & (doc[i] == doc[j])),)),
    Workload("attention with a bias for each head", KIND, scored("D[b, h, i, j] + P[h, i, j]", "", ", P[H, N, M]"),
             masked(lambda i, j, p: p), (*INPUTS, "P: H N N"), {**HEADS, "N": (9, 1024, 2048)}),
    Workload("attention with capped scores", KIND,
             scored("30 * tanh(D[b, h, i, j] / 30)", "i - j >= 0"), softcap, INPUTS, {**HEADS, "N": (9, 1024, 2048)},
             others=(flex(lambda: lambda s, b, h, i, j: 30 * torch.tanh(s / 30),
                          lambda: lambda b, h, i, j: j <= i),)),
    Workload("attention with a prefix", KIND, scored("D[b, h, i, j]", "i - j >= 0 | j < 256"),
             masked(_zero, lambda i, j: (j <= i) | (j < 256)), INPUTS, HEADS,
             others=(flex(None, lambda: lambda b, h, i, j: (j <= i) | (j < 256)),)),
    Workload("sigmoid attention", KIND, f"""function (Q[B, H, N, E], K[B, H, M, E], V[B, H, M, F]) -> (O) {{
        S[b, h, i, j : B, H, N, M] = sigmoid({SCALE} * sum(Q[b, h, i, e] * K[b, h, j, e]) - 5);
        O[b, h, i, f : B, H, N, F] = sum(S[b, h, i, j] * V[b, h, j, f]);
    }}""", sigmoid, INPUTS, {**HEADS, "N": (9, 1024, 2048)}),
    Workload("linear attention, causal", KIND, f"""function (Q[B, H, N, E], K[B, H, M, E], V[B, H, M, F]) -> (O) {{
        S[b, h, i, j : B, H, N, M] = {SCALE} * sum(Q[b, h, i, e] * K[b, h, j, e]);
        O[b, h, i, f : B, H, N, F] = sum(i - j >= 0 ? S[b, h, i, j] * V[b, h, j, f]);
    }}""", linear_attention, INPUTS, {**HEADS, "N": (9, 1024, 2048)}),
    Workload("cosine attention", KIND, """function (Q[B, H, N, E], K[B, H, M, E], V[B, H, M, F]) -> (O) {
        A[b, h, i, e : B, H, N, E] = Q[b, h, i, e] * rsqrt(sum(Q[b, h, i, d] * Q[b, h, i, d]));
        C[b, h, j, e : B, H, M, E] = K[b, h, j, e] * rsqrt(sum(K[b, h, j, d] * K[b, h, j, d]));
        S[b, h, i, j : B, H, N, M] = 10 * sum(A[b, h, i, e] * C[b, h, j, e]);
        L[b, h, i : B, H, N] = logsumexp(S[b, h, i, j]);
        O[b, h, i, f : B, H, N, F] = sum(exp(S[b, h, i, j] - L[b, h, i]) * V[b, h, j, f]);
    }""", cosine, INPUTS, HEADS),
    Workload("attention in shifted windows of 7x7", KIND, f"""
    function (Q[B, Y, X, H, E], K[B, Y, X, H, E], V[B, Y, X, H, E], P[H, 169]) -> (O) {{
        S[b, u, v, h, i, j, k, l : B, Y/7, X/7, H, 7, 7, 7, 7] = P[h, 13*(i - k + 6) + j - l + 6] + {SCALE}
            * sum(Q[b, (7*u + i + 3) % Y, (7*v + j + 3) % X, h, e] * K[b, (7*u + k + 3) % Y, (7*v + l + 3) % X, h, e]);
        L[b, u, v, h, i, j : B, Y/7, X/7, H, 7, 7] = logsumexp(S[b, u, v, h, i, j, k, l]);
        O[b, (7*u + i + 3) % Y, (7*v + j + 3) % X, h, e : B, Y, X, H, E] =
            sum(exp(S[b, u, v, h, i, j, k, l] - L[b, u, v, h, i, j])
                * V[b, (7*u + k + 3) % Y, (7*v + l + 3) % X, h, e]);
    }}""", shifted_windows, ("Q: B Y X H E", "K: B Y X H E", "V: B Y X H E", "P: H 169"),
             {"B": (1, 8, 16), "Y": (14, 56, 56), "X": (7, 56, 56), "H": (2, 3, 6), "E": (4, 32, 32)}),
    Workload("attention along rows of pairs, a bias of pairs", KIND, f"""
    function (Q[I, J, H, E], K[I, J, H, E], V[I, J, H, E], P[J, J, H], G[I, J, H, E]) -> (O) {{
        S[i, h, j, k : I, H, J, J] = {SCALE} * sum(Q[i, j, h, e] * K[i, k, h, e]) + P[j, k, h];
        A[i, h, j, k : I, H, J, J] = exp(S[i, h, j, k] - logsumexp(S[i, h, j, l]));
        O[i, j, h, e : I, J, H, E] = sigmoid(G[i, j, h, e]) * sum(A[i, h, j, k] * V[i, k, h, e]);
    }}""", pair_attention, ("Q: I J H E", "K: I J H E", "V: I J H E", "P: J J H", "G: I J H E"),
             {"I": (3, 200, 256), "J": (5, 200, 256), "H": (2, 4, 4), "E": (4, 32, 32)}),
    Workload("attention of one query, decoding", KIND, scored("D[b, h, i, j]", "").replace("H, N, E]", "H, 1, E]")
             .replace("B, H, N", "B, H, 1"), sdpa(), ("Q: B H 1 E", "K: B H N E", "V: B H N E"),
             {**HEADS, "B": (1, 8, 16), "N": (9, 4096, 8192)}, wrt=()),
)  # fmt: skip
