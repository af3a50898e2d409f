"""Snake, x + sin^2(a x) / a, as a module with learned a, on inputs (..., C, N) of any rank: it keeps x and a alone."""

import torch
from checks import Checks, device

import tilec

snake = tilec.compile("""
function (X, A[C]) -> (Y) {
    B = reshape(A, C, 1);
    Y = X + sin(B * X) * sin(B * X) / B;
}
""")


def reference(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    b = a.unsqueeze(-1)
    return x + torch.sin(b * x).square() / b


class Snake(torch.nn.Module):
    """Inputs (..., channels, N); one learned frequency a channel."""

    def __init__(self, channels: int):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return snake(x, self.a)


def trained(steps: int) -> list[float]:
    """Losses of a small network that learns a periodic function."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv1d(1, 16, 1), Snake(16), torch.nn.Conv1d(16, 16, 1), Snake(16), torch.nn.Conv1d(16, 1, 1)
    ).to(device())
    x = torch.linspace(-3, 3, 256, device=device()).view(1, 1, -1)
    y = torch.sin(3 * x) + 0.3 * x
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        loss = (network(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def peak(f, x: torch.Tensor) -> int:
    """Bytes of GPU memory that a forward and backward pass take beside the input."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    f(x).sum().backward()
    torch.cuda.synchronize()
    x.grad = None
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    checks = Checks("Snake\n  " + snake.grad().tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    a = (torch.rand(6, device=device()) + 0.5).requires_grad_()
    for shape in ((6, 40), (3, 6, 40), (2, 2, 3, 6, 40)):
        checks.layer(f"shape {shape}", snake, reference, (torch.randn(shape, device=device(), requires_grad=True), a))
    sixteen = torch.randn(3, 6, 40, device=device()).bfloat16(), a.detach().bfloat16()
    checks.layer("bfloat16", snake, reference, sixteen)
    small = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True), a[:3].detach().double().requires_grad_()
    second = torch.autograd.gradgradcheck(snake, [t.to(device()) for t in small])
    checks.equal("gradgradcheck", torch.tensor(float(second)), torch.ones(()), 0)
    losses = trained(60)
    print(f"  loss {losses[0]:.3f} after the first step, {losses[-1]:.4f} after the last")
    checks.equal("training, loss falls to a tenth", torch.tensor(float(losses[-1] < losses[0] / 10)), torch.ones(()), 0)

    x = torch.randn(4, 6, 1000, device=device(), requires_grad=True)
    most = x.nbytes + a.nbytes
    relu = torch.nn.functional.relu
    checks.keeps("x and a", lambda: snake(x, a), most, eager=lambda: reference(x, a), relu=lambda: relu(x))
    if device() == "cuda":
        x = torch.randn(16, 512, 8192, device="cuda", requires_grad=True)
        a = torch.ones(512, device="cuda", requires_grad=True)
        compiled = torch.compile(reference)
        compared = {"tilec": lambda t: snake(t, a), "eager": lambda t: reference(t, a), "ReLU": relu}
        compared["torch.compile"] = lambda t: compiled(t, a)
        peaks = {}
        for name, f in compared.items():
            f(x).sum().backward()
            peaks[name] = peak(f, x)
        print("  peak beside the input, MiB (over sizes: docs/figures)")
        for name, bytes_ in peaks.items():
            print(f"  {name:>13} {'#' * round(40 * bytes_ / max(peaks.values()))} {bytes_ / 2**20:.0f}")
    large = torch.randn(8, 64, 4096, device=device()), torch.rand(64, device=device()) + 0.5
    checks.gradient_time("8x64x4096, forward and backward", snake, reference, large)
    checks.finish()


if __name__ == "__main__":
    main()
