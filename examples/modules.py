"""Layers of one line each, as modules with parameters: a network of them is trained beside the same one of torch's."""

import copy

import torch
from checks import Checks, device

import tilec


def norm(width: int) -> tilec.nn.Tile:
    """Root-mean-square normalisation: `W` is a parameter of `width` elements, which begin as ones."""
    return tilec.nn.Tile(
        "function (X[N, D], W[D]) -> (Y) { Y[i, j] = X[i, j] * rsqrt(mean(X[i, k] * X[i, k]) + 0.000001) * W[j]; }",
        parameters={"W": (width,)},
        init={"W": torch.nn.init.ones_},
    )


def linear(inner: int, outer: int, activation: str = "") -> tilec.nn.Tile:
    """A linear layer; the bias and an activation share its kernel on a GPU."""
    source = f"""
    function (X[N, I], W[O, I], B[O]) -> (Y) {{
        H[n, o : N, O] = +(X[n, i] * W[o, i]);
        Y = {activation}(H + B);
    }}"""
    return tilec.nn.Tile(source, parameters={"W": (outer, inner), "B": (outer,)})


def train(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """The loss before each step."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def main() -> None:
    torch.manual_seed(0)
    ours = torch.nn.Sequential(norm(32), linear(32, 64, "gelu"), norm(64), linear(64, 8)).to(device())
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
    untrained = copy.deepcopy(ours)

    checks = Checks("A network of Tile modules, AdamW")
    for name, p in ours.named_parameters():
        print(f"  {name}: {tuple(p.shape)}")
    x, y = torch.randn(256, 32, device=device()), torch.randn(256, 8, device=device())
    losses, expected = train(ours, x, y, 20), train(theirs, x, y, 20)
    print(f"  loss {losses[0]:.3f} before the first step, {losses[-1]:.3f} before the last")
    checks.equal("the losses of 20 steps", torch.stack(losses), torch.stack(expected), 1e-4)
    untrained.load_state_dict(ours.state_dict())
    checks.equal("a copy with its state", untrained(x), theirs(x), 1e-4)
    checks.finish()


if __name__ == "__main__":
    main()
