"""Soft dynamic time warping: a recurrence over two dimensions, run along its anti-diagonals."""

import torch
from checks import Checks

import tilec

soft_dtw = tilec.compile("""
function (X[N, D], Y[M, D], G[]) -> (R) {
    C[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));
    A[i, j : N, M] = C[i, j]
        - G[] * logaddexp(logaddexp(-A[i - 1, j] / G[], -A[i, j - 1] / G[]), -A[i - 1, j - 1] / G[])
        init i + j < -1 ? 0.0 : inf;
    R[] = +(A[N - 1, M - 1]);
}
""")


def loop(x: torch.Tensor, y: torch.Tensor, gamma: float) -> torch.Tensor:
    costs = (x[:, None] - y).square().sum(-1)
    infinite = torch.tensor(torch.inf, dtype=x.dtype)
    table = {(-1, -1): torch.zeros((), dtype=x.dtype)}
    for i in range(len(x)):
        for j in range(len(y)):
            ways = [table.get(at, infinite) for at in ((i - 1, j), (i, j - 1), (i - 1, j - 1))]
            table[i, j] = costs[i, j] - gamma * torch.logsumexp(-torch.stack(ways) / gamma, 0)
    return table[len(x) - 1, len(y) - 1]


def main() -> None:
    checks = Checks("Soft dynamic time warping\n  " + soft_dtw.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor(0.5, dtype=torch.float64)
    checks.equal("value", soft_dtw(x, y, gamma), loop(x, y, 0.5), 1e-12)
    ours = torch.autograd.grad(soft_dtw(x, y, gamma), (x, y))
    theirs = torch.autograd.grad(loop(x, y, 0.5), (x, y))
    for name, u, v in zip("XY", ours, theirs, strict=True):
        checks.equal(f"gradient of {name}", u, v, 1e-10)
    x, y, gamma = torch.randn(60, 3), torch.randn(60, 3), torch.tensor(1.0)
    checks.time("60 x 60", lambda: soft_dtw(x, y, gamma), lambda: loop(x, y, 1.0), rounds=3)
    checks.finish()


if __name__ == "__main__":
    main()
