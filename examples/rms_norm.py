"""Root-mean-square normalisation, with the residual that goes into it: one function of two outputs."""

import torch
from checks import Checks, device

import tilec

rms_norm = tilec.compile("""
function (X[N, D], W[D]) -> (Y) {
    R[i] = rsqrt(mean(X[i, j] * X[i, j]) + 0.000001);
    Y[i, j] = X[i, j] * R[i] * W[j];
}
""")
# 16-bit inputs: the mean square in float32, the result in the inputs' type
rms_norm_16 = tilec.compile("""
function (X[N, D], W[D]) -> (Y) {
    R[i] = rsqrt(mean(float32(X[i, j]) * X[i, j]) + 0.000001);
    Z[i, j] = X[i, j] * R[i] * W[j];
    Y = as_type(Z, X);
}
""")
added = tilec.compile("""
function (X[N, D], H[N, D], W[D]) -> (S, Y) {
    S = X + H;
    R[i] = rsqrt(mean(S[i, j] * S[i, j]) + 0.000001);
    Y[i, j] = S[i, j] * R[i] * W[j];
}
""")


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, w.shape, w, 1e-6)


def both(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    s = x + h
    return torch.cat([s, reference(s, w)])


def main() -> None:
    checks = Checks("RMS norm\n  " + rms_norm.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    x, h, w = (torch.randn(s, device=device(), requires_grad=True) for s in ((64, 512), (64, 512), (512,)))
    checks.layer("float32", rms_norm, reference, (x, w))
    checks.layer("bfloat16", rms_norm_16, reference, (x.bfloat16(), w.bfloat16()))
    checks.layer("after a residual", lambda *inputs: torch.cat(added(*inputs)), both, (x, h, w))
    rows, columns = x.shape
    most = 4 * (x.numel() + columns + rows)
    checks.keeps("x, weight, 1 number a row", lambda: rms_norm(x, w), most, torch=lambda: reference(x, w))
    large = torch.randn(2048, 1024, device=device()), torch.randn(1024, device=device())
    checks.gradient_time("2048x1024, forward and backward", rms_norm, reference, large)
    checks.finish()


if __name__ == "__main__":
    main()
