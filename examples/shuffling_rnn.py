"""A recurrent network whose only mixing is a shuffle of its lanes, trained to remember what came three steps ago."""

import torch
from checks import Checks

import tilec

shuffle = tilec.compile(
    """
function (B[N, T, D], H0[N, D]) -> (H) {
    H[n, t, i : N, T, D] = relu(B[n, t, i] + H[n, t - 1, (i - 1) % D]) init H0[n, i];
}
""",
    exact=True,
)
gated = tilec.compile("""
function (B[N, T, D], G[N, T, D], H0[N, D]) -> (H) {
    H[n, t, i : N, T, D] = sigmoid(G[n, t, i]) * H[n, t - 1, (i - 1) % D] + (1 - sigmoid(G[n, t, i])) * B[n, t, i]
        init H0[n, i];
}
""")


def loop(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    states = []
    for t in range(b.shape[1]):
        h = torch.relu(b[:, t] + torch.roll(h, 1, -1))
        states.append(h)
    return torch.stack(states, 1)


def gated_loop(b: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    states = []
    for t in range(b.shape[1]):
        keep = torch.sigmoid(g[:, t])
        h = keep * torch.roll(h, 1, -1) + (1 - keep) * b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def trained(recurrence, steps: int) -> list[float]:
    """Losses of a small model that learns which of 4 symbols came three steps ago."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(4, 16, generator=generator, requires_grad=True)
    readout = (0.3 * torch.randn(16, 4, generator=generator)).requires_grad_()
    optimizer = torch.optim.Adam([weights, readout], 0.02)
    losses = []
    for _ in range(steps):
        symbols = torch.randint(0, 4, (8, 12), generator=generator)
        states = recurrence(weights[symbols] - 0.5, torch.zeros(8, 16))
        loss = torch.nn.functional.cross_entropy((states[:, 3:] @ readout).flatten(0, 1), symbols[:, :-3].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    checks = Checks("Shuffling RNN\n  " + shuffle.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    b, h = torch.randn(2, 50, 32, requires_grad=True), torch.randn(2, 32, requires_grad=True)
    checks.equal("states, bit for bit", shuffle(b, h), loop(b, h), 0)
    d = torch.randn(2, 50, 32)
    wanted = torch.autograd.grad(loop(b, h), (b, h), d)
    for name, ours, theirs in zip(("B", "H0"), shuffle.grad()(b, h, d), wanted, strict=True):
        checks.equal(f"gradient of {name}, bit for bit", ours, theirs, 0)
    g = torch.randn(2, 50, 32)
    checks.equal("gated states", gated(b, g, h), gated_loop(b, g, h), 1e-5)
    ours, theirs = trained(shuffle, 60), trained(loop, 60)
    checks.equal("losses in training", torch.tensor(ours), torch.tensor(theirs), 1e-3)
    checks.equal("the loss falls", torch.tensor(float(ours[-1] < 0.8 * ours[0])), torch.tensor(1.0), 0)
    b, h = torch.randn(1, 2000, 512) / 10, torch.randn(1, 512)
    checks.time("2000 steps of 512 lanes", lambda: shuffle(b, h), lambda: loop(b, h), rounds=3)
    checks.finish()


if __name__ == "__main__":
    main()
