"""A Gaussian-kernel matrix-vector product: the kernel matrix is never stored, in the gradient neither."""

import torch
from checks import Checks

import tilec

gaussian = tilec.compile("""
function (X[M, D], Y[N, D], B[N], S[]) -> (A) {
    A[i : M] = +(exp(-sum((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d])) / (2 * S[] * S[])) * B[j]);
}
""")


def dense(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(x[:, None, :] - y[None, :, :]).square().sum(-1) / (2 * s * s)) @ b


def main() -> None:
    checks = Checks("Gaussian-kernel matrix-vector product\n  " + gaussian.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    shapes = ((60, 3), (80, 3), (80,), ())
    x, y, b, s = (torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    theirs = dense(x, y, b, s)
    d = torch.randn_like(theirs)
    checks.equal("value", gaussian(x, y, b, s), theirs, 1e-12)
    wanted = torch.autograd.grad(theirs, (x, y, b, s), d)
    for name, ours, other in zip("XYBS", gaussian.grad()(x, y, b, s, d), wanted, strict=True):
        checks.equal(f"gradient of {name}", ours, other, 1e-11)
    x, y, b, s = torch.rand(2000, 3), torch.rand(2000, 3), torch.rand(2000), torch.tensor(0.5)
    checks.time("2000 x 2000 points", lambda: gaussian(x, y, b, s), lambda: dense(x, y, b, s))
    checks.finish()


if __name__ == "__main__":
    main()
