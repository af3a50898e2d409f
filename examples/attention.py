"""Causal attention in three sentences: scores, their softmax, the mixture; one kernel forward. For the gradient a row
keeps its output and one number."""

import torch
from checks import Checks, device

import tilec

attention = tilec.compile("""
function (Q[B, N, E], K[B, M, E], V[B, M, F], Scale) -> (O) {
    S[b, i, j : B, N, M] = Scale * sum(Q[b, i, e] * K[b, j, e]);
    L[b, i] = logsumexp(i - j >= 0 ? S[b, i, j]);
    O[b, i, f] = sum(i - j >= 0 ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}
""")


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, k, v, q.shape[-1] ** -0.5)


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main() -> None:
    checks = Checks("Causal attention\n  " + attention.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 100, 32, device=device(), requires_grad=True) for _ in range(3))
    checks.layer("float32", ours, reference, (q, k, v), floor=8)
    checks.layer("scores of 1e3", ours, reference, (30 * q, 30 * k, v), floor=1e4)
    most = q.nbytes + k.nbytes + 2 * v.nbytes + 4 * 4 * 100 + 8
    checks.keeps("q, k, v, o, 1 number a row", lambda: ours(q, k, v), most, torch=lambda: reference(q, k, v))
    large = [torch.randn(8, 512, 64, device=device()) for _ in range(3)]
    checks.gradient_time("8x512x64, forward and backward", ours, reference, large)
    checks.finish()


if __name__ == "__main__":
    main()
