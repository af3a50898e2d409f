"""Layer normalisation: the variance keeps its digits far from zero, and the gradient keeps two numbers a row."""

import torch
from checks import Checks, device

import tilec

EPSILON = 1e-5

layer_norm = tilec.compile("""
function (X[N, D], W[D], B[D]) -> (Y) {
    M[i] = mean(X[i, j]);
    R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
    Y[i, j] = (X[i, j] - M[i]) * R[i] * W[j] + B[j];
}
""")
# 16-bit inputs: statistics in float32, the result in the inputs' type
layer_norm_16 = tilec.compile("""
function (X[N, D], W[D], B[D]) -> (Y) {
    M[i] = mean(float32(X[i, j]));
    R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
    Z[i, j] = (X[i, j] - M[i]) * R[i] * W[j] + B[j];
    Y = as_type(Z, X);
}
""")


def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, w.shape, w, b, EPSILON)


def main() -> None:
    checks = Checks("Layer norm\n  " + layer_norm.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x, w, b = (torch.randn(s, device=device(), requires_grad=True) for s in ((64, 512), (512,), (512,)))
    checks.layer("float32", layer_norm, reference, (x, w, b))
    checks.layer("1e4 + noise", layer_norm, reference, (1e4 + x, w, b), floor=2e3)  # half a unit of 1e4 is 4e-4
    checks.layer("bfloat16", layer_norm_16, reference, [t.bfloat16() for t in (x, w, b)])
    small = [t.detach().double().requires_grad_() for t in (x[:3, :10], w[:10], b[:10])]
    checks.equal(
        "gradgradcheck", torch.tensor(float(torch.autograd.gradgradcheck(layer_norm, small))), torch.ones(()), 0
    )
    rows, columns = x.shape
    most = 4 * (x.numel() + columns + 2 * rows)
    checks.keeps("x, weight, 2 numbers a row", lambda: layer_norm(x, w, b), most, torch=lambda: reference(x, w, b))
    large = torch.randn(2048, 1024, device=device()), *(torch.randn(1024, device=device()) for _ in range(2))
    checks.gradient_time("2048x1024, forward and backward", layer_norm, reference, large)
    checks.finish()


if __name__ == "__main__":
    main()
