"""A cumulative sum is a contraction with a constraint; its gradient is the sum from the other end."""

import torch
from checks import Checks

import tilec

cumulative = tilec.compile("function (X[N]) -> (S) { S[i : N] = +(X[k]), i - k < N; }")
largest_so_far = tilec.compile("function (X[N]) -> (S) { S[i : N] = >(X[k]), i - k < N; }")


def main() -> None:
    checks = Checks("Cumulative sum\n  " + cumulative.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x = torch.randn(1000, dtype=torch.float64, requires_grad=True)
    d = torch.randn(1000, dtype=torch.float64)
    checks.equal("value", cumulative(x), x.cumsum(0), 1e-12)
    checks.equal("gradient", cumulative.grad()(x, d), torch.autograd.grad(x.cumsum(0), x, d)[0], 1e-12)
    checks.equal("largest so far", largest_so_far(x), x.cummax(0).values, 0)
    x = torch.randn(4000)
    checks.time("4000 elements", lambda: cumulative(x), lambda: x.cumsum(0))
    checks.finish()


if __name__ == "__main__":
    main()
