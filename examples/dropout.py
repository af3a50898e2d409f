"""Dropout with a residual, and dropout on the way into a matrix product: the mask is drawn again, never stored."""

import torch
from checks import Checks

import tilec

KEPT = 0.9

dropout = tilec.compile("""
function (X, R, S, P) -> (Y) { Y = R + (rand(S) < P ? X / P : 0); }
""")
dropped_product = tilec.compile("""
function (X[N, K], W[K, M], S[], P[]) -> (Y) { Y[i, j : N, M] = +((rand(S, i*K + k) < P ? X[i, k] / P : 0) * W[k, j]); }
""")


def main() -> None:
    checks = Checks("Dropout\n  " + dropout.grad("X").tile.strip().replace("\n", "\n  "))
    generator = torch.Generator().manual_seed(0)
    x, r = (torch.randn(512, 256, requires_grad=True) for _ in range(2))
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
    y = dropout(x, r, seed, KEPT)
    mask = (dropout(torch.ones_like(x), torch.zeros_like(x), seed, KEPT) != 0).float()

    checks.equal("value", y, r + x * mask / KEPT, 1e-6)
    checks.equal("the same seed again", dropout(x, r, int(seed), KEPT), y, 0)
    d = torch.randn_like(y)
    for name, ours, theirs in zip("XR", torch.autograd.grad(y, (x, r), d), (d * mask / KEPT, d), strict=True):
        checks.equal(f"gradient of {name}", ours, theirs, 1e-6)
    checks.equal("share kept", mask.mean(), torch.tensor(KEPT), 4 * (0.1 * 0.9 / mask.numel()) ** 0.5 / KEPT)
    ones = dropout(torch.ones_like(x), torch.zeros_like(x), generator, KEPT)
    checks.equal("mean of dropped ones", ones.mean(), torch.tensor(1.0), 4 * (0.1 / 0.9 / ones.numel()) ** 0.5)
    checks.equal("their variance", ones.var(), torch.tensor(0.1 / 0.9), 0.03)
    between = ((mask[1:] - KEPT) * (mask[:-1] - KEPT)).mean()
    checks.equal("neighbouring rows", 1 + between, torch.tensor(1.0), 4 * 0.1 * 0.9 / mask.numel() ** 0.5)

    w = torch.randn(256, 64, requires_grad=True)
    product = dropped_product(x, w, seed, KEPT)
    checks.equal("product", product, (x * mask / KEPT) @ w, 1e-5)
    d = torch.randn_like(product)
    wanted = torch.autograd.grad((x * mask / KEPT) @ w, (x, w), d)
    for name, ours, theirs in zip("XW", torch.autograd.grad(product, (x, w), d), wanted, strict=True):
        checks.equal(f"gradient of {name}", ours, theirs, 1e-5)

    torch_dropout = torch.nn.functional.dropout
    checks.keeps("seed and probability", lambda: dropout(x, r, seed, KEPT), 16, torch=lambda: r + torch_dropout(x, 0.1))
    print("  saved for the gradient:", ", ".join(s.name for s in dropout.saved(x, r, seed, KEPT)))
    x, r = torch.randn(1024, 1024), torch.randn(1024, 1024)
    checks.time("1024x1024", lambda: dropout(x, r, 1, KEPT), lambda: r + torch_dropout(x, 1 - KEPT), rounds=3)
    checks.finish()


if __name__ == "__main__":
    main()
