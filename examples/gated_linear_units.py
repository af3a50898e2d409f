"""GEGLU and SwiGLU: both halves of one tensor are read where they lie, nothing is split or kept beside it."""

import torch
from checks import Checks, device

import tilec

GATES = {"GEGLU": "gelu", "SwiGLU": "silu"}
SOURCE = "function (X[N, E]) -> (Y) { Y[i, j : N, E/2] = X[i, j] * GATE(X[i, j + E/2]); }"
units = {name: tilec.compile(SOURCE.replace("GATE", gate)) for name, gate in GATES.items()}


def reference(name: str, x: torch.Tensor) -> torch.Tensor:
    a, g = x.chunk(2, dim=-1)
    return a * getattr(torch.nn.functional, GATES[name])(g)


def main() -> None:
    checks = Checks(
        "Gated linear units\n  " + "\n  ".join(f.tile.strip().replace("\n", "\n  ") for f in units.values())
    )
    torch.manual_seed(0)
    x = torch.randn(64, 1024, device=device(), requires_grad=True)
    large = torch.randn(1024, 4096, device=device())
    for name, f in units.items():

        def theirs(t: torch.Tensor, name: str = name) -> torch.Tensor:
            return reference(name, t)

        checks.layer(f"{name}, float32", f, theirs, (x,))
        checks.layer(f"{name}, bfloat16", f, theirs, (x.bfloat16(),))
        checks.layer(f"{name}, wide", f, theirs, (30 * x,))
        checks.keeps(f"{name}, the input alone", lambda f=f: f(x), x.nbytes, torch=lambda t=theirs: t(x))
        checks.gradient_time(f"{name} 1024x4096, forward and backward", f, theirs, (large,))
    checks.finish()


if __name__ == "__main__":
    main()
