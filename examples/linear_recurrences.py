"""An exponential moving average, and a diagonal state-space model: recurrences that are linear in their state."""

import torch
from checks import Checks

import tilec

average = tilec.compile("function (X[B, T], A[]) -> (Y) { Y[b, t : B, T] = A[] * Y[b, t - 1] + (1 - A[]) * X[b, t]; }")
state_space = tilec.compile("""
function (L[C, S], P[C, S], Q[C, S], X[B, T, C]) -> (Y) {
    H[b, t, c, s : B, T, C, S] = exp(-L[c, s]) * H[b, t - 1, c, s] + P[c, s] * X[b, t, c];
    Y[b, t, c : B, T, C] = +(Q[c, s] * H[b, t, c, s]);
}
""")


def average_loop(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    y, states = torch.zeros(len(x), dtype=x.dtype), []
    for t in range(x.shape[1]):
        y = a * y + (1 - a) * x[:, t]
        states.append(y)
    return torch.stack(states, 1)


def state_space_loop(rate, into, out, x):
    h, results = torch.zeros(len(x), *rate.shape, dtype=x.dtype), []
    decay = torch.exp(-rate)
    for t in range(x.shape[1]):
        h = decay * h + into * x[:, t, :, None]
        results.append((out * h).sum(-1))
    return torch.stack(results, 1)


def main() -> None:
    checks = Checks("Linear recurrences\n  " + state_space.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x, a = torch.randn(2, 300, dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    checks.equal("moving average", average(x, a), average_loop(x, a), 1e-12)
    (ours,) = torch.autograd.grad(average(x, a).square().sum(), a)
    (theirs,) = torch.autograd.grad(average_loop(x, a).square().sum(), a)
    checks.equal("gradient of the rate", ours, theirs, 1e-11)
    inputs = [torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    signal = torch.randn(2, 50, 3, dtype=torch.float64)
    checks.equal("state space", state_space(*inputs, signal), state_space_loop(*inputs, signal), 1e-12)
    ours = torch.autograd.grad(state_space(*inputs, signal).square().sum(), inputs)
    theirs = torch.autograd.grad(state_space_loop(*inputs, signal).square().sum(), inputs)
    for name, u, v in zip("LPQ", ours, theirs, strict=True):
        checks.equal(f"gradient of {name}", u, v, 1e-11)
    x = torch.randn(1, 20000)
    a = torch.tensor(0.99)
    checks.time("moving average of 20000 elements", lambda: average(x, a), lambda: average_loop(x, a), rounds=3)
    checks.finish()


if __name__ == "__main__":
    main()
