"""Group normalisation: a group is one more index, and the channel 16*g + c of the input is read where it lies."""

import torch
from checks import Checks, device

import tilec

group_norm = tilec.compile("""
function (X[N, C, L], W[C], B[C], G) -> (Y) {
    Z = reshape(X, N, G, C/G, L);
    M[n, g] = mean(Z[n, g, c, l]);
    R[n, g] = rsqrt(mean((Z[n, g, c, l] - M[n, g]) * (Z[n, g, c, l] - M[n, g])) + 0.00001);
    Y[n, (C/G)*g + c, l : N, C, L] = (Z[n, g, c, l] - M[n, g]) * R[n, g] * W[(C/G)*g + c] + B[(C/G)*g + c];
}
""")
GROUPS = 4


def ours(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return group_norm(x, w, b, GROUPS)


def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.group_norm(x, GROUPS, w, b)


def main() -> None:
    checks = Checks("Group norm\n  " + group_norm.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x, w, b = (torch.randn(s, device=device(), requires_grad=True) for s in ((8, 16, 100), (16,), (16,)))
    checks.layer("float32", ours, reference, (x, w, b))
    checks.layer("1e4 + noise", ours, reference, (1e4 + x, w, b), floor=2e3)
    most = 4 * (x.numel() + 16 + 2 * 8 * GROUPS)
    checks.keeps("x, weight, 2 numbers a group", lambda: ours(x, w, b), most, torch=lambda: reference(x, w, b))
    large = torch.randn(16, 64, 1024, device=device()), *(torch.randn(64, device=device()) for _ in range(2))
    checks.gradient_time("16x64x1024, forward and backward", ours, reference, large)
    checks.finish()


if __name__ == "__main__":
    main()
