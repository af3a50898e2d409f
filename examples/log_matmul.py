"""The matrix product of the log semiring, the inner step of CRFs and HMMs: no overflow, no I*J*K floats."""

import torch
from checks import Checks

import tilec

log_matmul = tilec.compile("""
function (A[B, I, K], W[B, K, J]) -> (C) { C[b, i, j : B, I, J] = logsumexp(A[b, i, k] + W[b, k, j]); }
""")


def broadcast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(a[:, :, :, None] + b[:, None, :, :], dim=2)


def main() -> None:
    checks = Checks("Log-semiring matrix product\n  " + log_matmul.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    a = (3 * torch.randn(2, 40, 50)).requires_grad_()
    b = (3 * torch.randn(2, 50, 30)).requires_grad_()
    theirs = broadcast(a.double(), b.double())
    d = torch.randn_like(theirs)
    wanted = torch.autograd.grad(theirs, (a, b), d)
    checks.equal("value", log_matmul(a, b).double(), theirs, 3e-6)
    for name, ours, other in zip("AW", log_matmul.grad()(a, b, d.float()), wanted, strict=True):
        checks.equal(f"gradient of {name}", ours, other, 1e-5)
    hard = log_matmul(torch.tensor([[[0.0, -200.0]]]), torch.tensor([[[-200.0], [0.0]]]))
    checks.equal("where exp alone underflows", hard, torch.tensor([[[-199.306853]]]), 1e-7)
    a, b = torch.randn(1, 256, 256), torch.randn(1, 256, 256)
    checks.time("256x256x256", lambda: log_matmul(a, b), lambda: broadcast(a, b), rounds=3)
    checks.finish()


if __name__ == "__main__":
    main()
