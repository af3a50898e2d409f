"""A network of Tile modules, trained beside the same one of torch's."""

import copy

import torch
from checks import Checks, device

import tilec


def norm(width: int) -> tilec.nn.Tile:
    return tilec.nn.Tile(
        "function (X[N, D], W[D]) -> (Y) { Y[i, j] = X[i, j] * rsqrt(mean(X[i, k] * X[i, k]) + 0.000001) * W[j]; }",
        parameters={"W": (width,)},
        init={"W": torch.nn.init.ones_},
    )


def linear(inner: int, outer: int, function: str) -> tilec.nn.Tile:
    source = "function (X[N, I], W[O, I], B[O]) -> (Y) { H[n, o : N, O] = +(X[n, i] * W[o, i]); Y = f(H + B); }"
    return tilec.nn.Tile(source.replace("f(", f"{function}("), parameters={"W": (outer, inner), "B": (outer,)})


torch.manual_seed(0)
ours = torch.nn.Sequential(norm(32), linear(32, 64, "gelu"), norm(64), linear(64, 8, "ident")).to(device())
theirs = torch.nn.Sequential(
    torch.nn.RMSNorm(32, eps=1e-6),
    torch.nn.Linear(32, 64),
    torch.nn.GELU(),
    torch.nn.RMSNorm(64, eps=1e-6),
    torch.nn.Linear(64, 8),
).to(device())
with torch.no_grad():
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        other.copy_(mine)

checks = Checks("modules: root-mean-square normalisation and linear layers, AdamW")
x, y = torch.randn(256, 32, device=device()), torch.randn(256, 8, device=device())


def train(model: torch.nn.Module, steps: int) -> torch.Tensor:
    step = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        step.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        step.step()
    return loss


start = copy.deepcopy(ours)
checks.equal("the loss after 20 steps", train(ours, 20), train(theirs, 20), 1e-4)
start.load_state_dict(ours.state_dict())
checks.equal("the outputs of a copy with its state", start(x), theirs(x), 1e-4)
checks.finish()
