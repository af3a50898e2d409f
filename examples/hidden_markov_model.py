"""The forward algorithm of a hidden Markov model in log space; the gradient gives the expected counts."""

import torch
from checks import Checks

import tilec

forward = tilec.compile("""
function (P[S, S], E[T, N, S], F0[N, S]) -> (L) {
    F[t, n, j : T, N, S] = logsumexp(F[t - 1, n, i] + P[i, j]) + E[t, n, j] init F0[n, j];
    L[n : N] = logsumexp(F[T - 1, n, j]);
}
""")


def loop(p: torch.Tensor, e: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    for t in range(e.shape[0]):
        f = torch.logsumexp(f[:, :, None] + p, 1) + e[t]
    return torch.logsumexp(f, 1)


def main() -> None:
    checks = Checks("Hidden Markov model\n  " + forward.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    p = torch.randn(6, 6, dtype=torch.float64).log_softmax(1).requires_grad_()
    e = torch.randn(30, 4, 6, dtype=torch.float64)
    f = torch.randn(4, 6, dtype=torch.float64).log_softmax(1)
    checks.equal("log-likelihood", forward(p, e, f), loop(p, e, f), 1e-12)
    (counts,) = torch.autograd.grad(forward(p, e, f).sum(), p)
    (theirs,) = torch.autograd.grad(loop(p, e, f).sum(), p)
    checks.equal("expected transitions", counts, theirs, 1e-11)
    checks.equal("one transition a step", counts.sum(), torch.tensor(4 * 30.0, dtype=torch.float64), 1e-12)
    banded = torch.where((torch.arange(6)[:, None] - torch.arange(6)).abs() < 2, p.detach(), -torch.inf)
    checks.equal("a banded model", forward(banded, e, f), loop(banded, e, f), 1e-12)
    p, e, f = torch.randn(128, 128).log_softmax(1), torch.randn(60, 8, 128), torch.randn(8, 128)
    checks.time("60 steps, 8 sequences, 128 states", lambda: forward(p, e, f), lambda: loop(p, e, f), rounds=3)
    checks.finish()


if __name__ == "__main__":
    main()
