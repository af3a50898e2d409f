"""Axes of which sums read the quotient by a number are taken apart."""

import pytest
import torch

import tilec
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import CallContext, apply

HEADS = """function (Q[B, H, N, D], K[B, G, N, D], V[B, G, N, D]) -> (O) {
    S[b, h, i, j : B, H, N, N] = sum(Q[b, h, i, d] * K[b, (h - h % (H/G))/(H/G), j, d]);
    L[b, h, i] = logsumexp(i >= j ? S[b, h, i, j]);
    O[b, h, i, d : B, H, N, D] = sum(i >= j ? exp(S[b, h, i, j] - L[b, h, i]) * V[b, (h - h % (H/G))/(H/G), j, d]);
}"""
TWICE = "S[h, i : 8, 3] = sum(Q[h, i, d] * K[(h - h % 2)/2, d]); "

CASES = {
    "heads": (HEADS, ((2, 4, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2))),
    "an output that is read": (TWICE + "Y = sin(S); Z = S; T[i] = sum(S[h, i] * h)", ((8, 3, 2), (4, 2))),
    "no multiple": ("S[h, i : 7, 3] = sum(Q[h, i, d] * K[(h - h % 2)/2, d])", ((7, 3, 2), (4, 2))),
    "fewer rows": ("S[h, i : 8, 3] = sum(Q[h, i, d] * K[(h - h % 2)/2, d])", ((6, 3, 2), (2, 2))),
    "another reader": (TWICE + "Y[h, i : 8, 3] = S[h, i] + pad(S[h + 1, i], 0)", ((8, 3, 2), (4, 2))),
    "two divisors": (TWICE + "T[h, i : 8, 3] = sum(S[h, i] * Q[h, i, d] * K[(h - h % 4)/4, d])", ((8, 3, 2), (4, 2))),
    "groups of channels": (
        "Y[x, o : 5, 6] = sum(X[x + j, 2*(o - o % 3)/3 + c] * K[j, c, o] * o), c < 2",
        ((6, 4), (2, 2, 6)),
    ),
    "rests": ("Y[h, i : 8, 3] = sum(Q[h, i, d] * K[h % 4, d])", ((8, 3, 2), (4, 2))),
    "constraints": ("Y[h, i : 8, 3] = sum(Q[h, i, d] * K[(h - h % 2)/2, d]), h - 1 < 5", ((8, 3, 2), (4, 2))),
    "a recurrence": (
        TWICE + "H[t, h, i : 3, 8, 3] = H[t - 1, h, i] * 0.5 + S[h, i] * X[t]",
        ((8, 3, 2), (4, 2), (3,)),
    ),
}


def flat(text: str, *shapes: tuple[int, ...]) -> Program:
    source = parse(text)
    types = {i.name: TensorType(s, "float32") for i, s in zip(source.inputs, shapes, strict=True)}
    return apply(("bind", "flatten", "simplify", "views", "split_quotients"), source, CallContext(types, {}))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(5)
def test_values_and_gradients(name: str) -> None:
    """As the oracle has them, which runs no pass."""
    text, shapes = CASES[name]
    torch.manual_seed(0)
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    f = tilec.compile(text)
    made = f(*given)
    made = made if isinstance(made, tuple) else (made,)
    wanted = tilec.interpret(text, *[t.detach().numpy() for t in given])
    for value, want in zip(made, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert torch.allclose(value.detach(), torch.as_tensor(want))
    assert torch.autograd.gradcheck(f, given)


@pytest.mark.parametrize("name", ("no multiple", "another reader", "two divisors", "a recurrence"))
def test_what_stays(name: str) -> None:
    text, shapes = CASES[name]
    assert not [s for s in flat(text, *shapes).statements if "_apart" in s.output]


def test_heads_that_share_keys_are_chains() -> None:
    """Forward and backward; as it is written, the gradients of keys and values would be scatters."""
    specs = [tilec.spec(s, "bfloat16") for s in ((2, 8, 256, 64), (2, 2, 256, 64), (2, 2, 256, 64))]
    f = tilec.compile(HEADS)
    assert [k.name for k in f.lower(*specs, target="sm_90").kernels] == ["O_apart_chain"]
    backward = f.grad().lower(*specs, specs[0], target="sm_90")
    names = {k.name for k in backward.kernels if "chain" not in k.name and "rows" not in k.name}
    assert names <= {"DK_kernel", "DV_kernel"}, "which add up the parts of chains"
