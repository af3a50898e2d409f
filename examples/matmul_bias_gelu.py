"""A dense layer with its activation: what is dear to compute again is kept, what is cheap is not."""

import torch
from checks import Checks, device

import tilec

dense = tilec.compile("""
function (A[M, K], W[K, N], B[N]) -> (Y) {
    Z[i, j] = +(A[i, k] * W[k, j]);
    Y = gelu(Z + B);
}
""")


def reference(a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(a @ w + b)


def main() -> None:
    checks = Checks("Matrix product, bias, GELU\n  " + dense.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)

    def inputs(m: int, k: int, n: int) -> list[torch.Tensor]:
        shapes = ((m, k), (k, n), (n,))
        return [torch.randn(s, device=device(), requires_grad=True) / s[0] ** 0.5 for s in shapes]

    for shape in ((64, 16, 48), (64, 512, 256)):
        given = [x.detach().requires_grad_() for x in inputs(*shape)]
        checks.layer("x".join(map(str, shape)), dense, reference, given, floor=8)
        names = ", ".join(s.name for s in dense.saved(*given))
        most = sum(s.bytes for s in dense.saved(*given))
        checks.keeps(f"keeps {names}", lambda g=given: dense(*g), most, torch=lambda g=given: reference(*g))
    checks.gradient_time("512x512x512, forward and backward", dense, reference, inputs(512, 512, 512))
    checks.finish()


if __name__ == "__main__":
    main()
