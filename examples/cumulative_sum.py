"""What runs along an axis: sums so far, extrema so far, means of a window, and an exponential mean, which is a
recurrence. Each has its gradient; that of a sum from one end is the sum from the other."""

import torch
from checks import Checks

import tilec

cumulative = tilec.compile("function (X[N]) -> (S) { S[i : N] = +(X[k]), i - k < N; }")  # i - k < N: k is at most i
largest_so_far = tilec.compile("function (X[N]) -> (S) { S[i : N] = >(X[k]), i - k < N; }")
moving_mean = tilec.compile("function (X[N]) -> (M) { M[i : N] = mean(X[i - k]), k < 5; }")  # fewer at the beginning
exponential = tilec.compile("function (X[N], A) -> (E) { E[i : N] = A * E[i - 1] + (1 - A) * X[i]; }")


def exponential_by_steps(x: torch.Tensor, a: float) -> torch.Tensor:
    steps, state = [], torch.zeros((), dtype=x.dtype)
    for value in x:
        state = a * state + (1 - a) * value
        steps.append(state)
    return torch.stack(steps)


def main() -> None:
    checks = Checks("What runs along an axis\n  " + cumulative.tile.strip().replace("\n", "\n  "))
    print("  its gradient\n  " + cumulative.grad().tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x = torch.randn(1000, dtype=torch.float64, requires_grad=True)
    d = torch.randn(1000, dtype=torch.float64)
    checks.equal("cumulative sum", cumulative(x), x.cumsum(0), 1e-12)
    checks.equal("its gradient", cumulative.grad()(x, d), torch.autograd.grad(x.cumsum(0), x, d)[0], 1e-12)
    checks.equal("largest so far", largest_so_far(x), x.cummax(0).values, 0)
    means = torch.stack([x[max(0, i - 4) : i + 1].mean() for i in range(len(x))])
    checks.equal("mean of a window", moving_mean(x), means, 1e-12)
    steps = exponential_by_steps(x, 0.9)
    checks.equal("exponential mean", exponential(x, 0.9), steps, 1e-12)
    (ours,), (theirs,) = (torch.autograd.grad(y, x, d) for y in (exponential(x, 0.9), steps))
    checks.equal("its gradient", ours, theirs, 1e-12)
    x = torch.randn(1000)
    checks.time("exponential mean, 1000 elements", lambda: exponential(x, 0.9), lambda: exponential_by_steps(x, 0.9))
    checks.finish()


if __name__ == "__main__":
    main()
