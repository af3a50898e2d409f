"""A linear-chain conditional random field: log-partition, marginals as its gradient, and the best path likewise."""

import torch
from checks import Checks

import tilec

partition = tilec.compile("""
function (P[C, C], E[B, T, C]) -> (Z) {
    A[b, t, j : B, T, C] = E[b, t, j] + (t == 0 ? 0 : logsumexp(A[b, t - 1, i] + P[i, j]));
    Z[b : B] = logsumexp(A[b, T - 1, j]);
}
""")
best = tilec.compile("""
function (P[C, C], E[B, T, C]) -> (V) {
    A[b, t, j : B, T, C] = E[b, t, j] + (t == 0 ? 0 : max(A[b, t - 1, i] + P[i, j]));
    V[b : B] = >(A[b, T - 1, j]);
}
""")


def loop(p: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    a = e[:, 0]
    for t in range(1, e.shape[1]):
        a = e[:, t] + torch.logsumexp(a[:, :, None] + p, 1)
    return torch.logsumexp(a, 1)


def backtracked(p: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """The best path by the textbook's back pointers."""
    a, pointers = e[:, 0], []
    for t in range(1, e.shape[1]):
        values, chosen = (a[:, :, None] + p).max(1)
        pointers.append(chosen)
        a = e[:, t] + values
    path = [a.argmax(1)]
    for chosen in reversed(pointers):
        path.append(chosen.gather(1, path[-1][:, None])[:, 0])
    return torch.stack(path[::-1], 1)


def main() -> None:
    checks = Checks("Linear-chain conditional random field\n  " + partition.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    p, e = torch.randn(7, 7, dtype=torch.float64), torch.randn(3, 20, 7, dtype=torch.float64, requires_grad=True)
    checks.equal("log-partition", partition(p, e), loop(p, e), 1e-12)
    (marginals,) = torch.autograd.grad(partition(p, e).sum(), e)
    (theirs,) = torch.autograd.grad(loop(p, e).sum(), e)
    checks.equal("marginals", marginals, theirs, 1e-11)
    checks.equal("marginals of one place sum to 1", marginals.sum(2), torch.ones(3, 20, dtype=torch.float64), 1e-12)
    (path,) = torch.autograd.grad(best(p, e).sum(), e)
    checks.equal("Viterbi's gradient is the best path", path.argmax(2), backtracked(p, e), 0)
    checks.equal("one label a place", path.sum(2), torch.ones(3, 20, dtype=torch.float64), 0)
    p, e = torch.randn(32, 32), torch.randn(16, 100, 32)
    checks.time("log-partition of 16 x 100 places, 32 labels", lambda: partition(p, e), lambda: loop(p, e), rounds=3)
    checks.finish()


if __name__ == "__main__":
    main()
