"""Matrix products: plain, batched with a transposed operand, and a chain of three whose order is found by cost."""

import torch
from checks import Checks

import tilec

matmul = tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }")
scores = tilec.compile("S[b, i, j] = sum(Q[b, i, d] * K[b, j, d])")
chain = tilec.compile("D[i, l] = sum(A[i, j] * B[j, k] * C[k, l])")


def main() -> None:
    checks = Checks("Matrix products\n  " + matmul.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    a, b = torch.randn(200, 300, requires_grad=True), torch.randn(300, 150, requires_grad=True)
    d = torch.randn(200, 150)
    checks.equal("value", matmul(a, b), a @ b, 1e-5)
    for name, ours, theirs in zip("AB", matmul.grad()(a, b, d), torch.autograd.grad(a @ b, (a, b), d), strict=True):
        checks.equal(f"gradient of {name}", ours, theirs, 1e-5)

    q, k = torch.randn(4, 60, 32), torch.randn(4, 70, 32)
    checks.equal("batched, second operand transposed", scores(q, k), q @ k.mT, 1e-5)

    x, y, z = torch.randn(500, 20), torch.randn(20, 400), torch.randn(400, 30)
    checks.equal("three factors", chain(x, y, z), x @ y @ z, 1e-4)
    checks.time("500x20x400x30", lambda: chain(x, y, z), lambda: x @ y @ z)
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    checks.time("512x512x512", lambda: matmul(a, b), lambda: a @ b)
    checks.finish()


if __name__ == "__main__":
    main()
