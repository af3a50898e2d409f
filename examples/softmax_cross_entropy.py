"""Softmax cross-entropy over class numbers: it does not overflow and keeps no probabilities."""

import torch
from checks import Checks, device

import tilec

cross_entropy = tilec.compile("""
function (X[N, C], T[N]) -> (L) {
    M[i] = max(X[i, k]);
    S[i] = logsumexp(X[i, k] - M[i]);
    L[i] = S[i] - (X[i, T[i]] - M[i]);
}
""")
softmax = tilec.compile("""
function (X[N, C]) -> (Y) { Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l]))); }
""")


def reference(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x, t, reduction="none")


def main() -> None:
    checks = Checks("Softmax cross-entropy\n  " + cross_entropy.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x = torch.randn(64, 1000, device=device(), requires_grad=True)
    t = torch.randint(0, 1000, (64,), device=device())
    checks.layer("cross-entropy", lambda a: cross_entropy(a, t), lambda a: reference(a, t), (x,))
    checks.layer("logits of 1e4", lambda a: cross_entropy(a, t), lambda a: reference(a, t), (1e4 * x,))
    checks.layer("softmax", softmax, lambda a: torch.softmax(a, 1), (x,))
    checks.layer("softmax, bfloat16", softmax, lambda a: torch.softmax(a, 1), (x.bfloat16(),))
    rows = torch.tensor([[1e38, 1e38, -1e38], [float("-inf"), 0, 0]], device=device())
    halves = torch.tensor([[0.5, 0.5, 0], [0, 0.5, 0.5]], device=device())
    checks.equal("rows of 1e38 and -inf", softmax(rows), halves, 1e-6)
    numbers = 8 * t.numel()  # the classes, int64
    most = 4 * x.numel() + numbers + 2 * 4 * t.numel()
    checks.keeps("logits, classes, 2 numbers a row", lambda: cross_entropy(x, t), most, torch=lambda: reference(x, t))
    large, classes = torch.randn(256, 8192, device=device()), torch.randint(0, 8192, (256,), device=device())
    checks.gradient_time(
        "256x8192, forward and backward", lambda a: cross_entropy(a, classes), lambda a: reference(a, classes), (large,)
    )
    checks.finish()


if __name__ == "__main__":
    main()
