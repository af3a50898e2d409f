"""Elements that few statements read at computed places are computed there."""

import pytest
import torch

import tilec
from tilec.ir.program import Program, reads
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import CallContext, apply
from tilec.saving import partition

PLACES = torch.tensor([3, 0, 11, -1, 20, 7])
CAPPED = "function (X[N, V], T[N]) -> (C) { Y = 30 * tanh(X / 30); C[n : N] = Y[n, T[n]]; }"
CASES = {
    "a capped logit": CAPPED,
    "of a statistic": "function (X[N, V], T[N]) -> (R) { Z[n] = logsumexp(X[n, v]); P[n, v] = X[n, v] - Z[n]; "
    "R[n : N] = exp(P[n, T[n]] - 1); }",
    "in two steps": "function (X[N, V], T[N]) -> (C) { A = sin(X); Y = A * 2 + X; C[n : N] = Y[n, T[n]]; }",
    "a number": "function (X[N, V], T[N]) -> (C) { Y = sin(X); C[n : N] = Y[n, 2] + Y[n, T[n]]; }",
    "summed": "function (X[N, V], T[N]) -> (L) { Y = sin(X); L[] = sum(Y[n, T[n]] * n); }",
}
STAYS = {
    "of a product": "function (X[N, V], T[N]) -> (C, Y) { S[n, v : N, V] = sum(X[n, u] * X[v, u]); Y = S * 2; "
    "C[n : N] = Y[n, T[n]]; }",
    "compared": "function (X[N, V], T[N]) -> (C) { Y = sin(X); M[n] = max(Y[n, v]); "
    "C[n : N] = Y[n, T[n]] == M[n] ? 1.0 : 0; }",
    "padded": "function (X[N, V], T[N]) -> (C) { Y = sin(X); C[n : N] = pad(Y[n, T[n]], 5); }",
    "a larger tensor": "function (X[N, V], T[N]) -> (C) { Y[n, v : N, 9] = sin(X[n, v]); C[n : N] = Y[n, T[n]]; }",
    "a draw": "function (X[N, V], T[N]) -> (C) { Y = rand(3) + X; C[n : N] = Y[n, T[n]]; }",
    "places as values": "function (X[N, V], T[N]) -> (C) { Y[n, v] = X[n, v] * v; C[n : N] = Y[n, T[n]]; }",
    "as many": "function (X[N, V], T[N]) -> (C) { Y = sin(X); C[n, m : N, N] = Y[n, T[m]]; }",
}


def flat(text: str) -> Program:
    types = {"X": TensorType((6, 12), "float32"), "T": TensorType((6,), "int64")}
    return apply(("bind", "flatten", "simplify", "compute_where_read"), parse(text), CallContext(types, {}))


@pytest.mark.parametrize("text", (CASES | STAYS).values(), ids=(CASES | STAYS).keys())
def test_values_and_gradients(text: str) -> None:
    """As the oracle has them, which runs no pass; some places are outside."""
    torch.manual_seed(0)
    x = torch.randn(6, 12, dtype=torch.float64, requires_grad=True)
    f = tilec.compile(text)
    made, wanted = f(x, PLACES), tilec.interpret(text, x.detach().numpy(), PLACES.numpy())
    for value, want in zip(*((v if isinstance(v, tuple) else (v,)) for v in (made, wanted)), strict=True):
        assert torch.allclose(value.detach().double(), torch.as_tensor(want).double())
    if "==" not in text:
        assert torch.autograd.gradcheck(lambda x: f(x, PLACES), (x,))


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_what_is_computed(text: str) -> None:
    last = flat(text).statements[-1]
    assert not {"Y", "P", "A"} & set(reads(last)), last


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS.keys())
def test_what_stays(text: str) -> None:
    assert any("Y" in reads(s) for s in flat(text).statements if s.output == "C")


def test_rounded_as_what_would_be_stored() -> None:
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(0)).bfloat16() * 20
    y = tilec.compile("Y = 30 * tanh(X / 30)")(x)
    assert torch.equal(tilec.compile(CAPPED)(x, PLACES.clamp(0, 11)), y.gather(1, PLACES.clamp(0, 11)[:, None])[:, 0])


def test_a_loss_of_capped_logits_reads_them_once() -> None:
    """Forward; and backward, where what the mask's sum waits for keeps the logits in no kernel of their own."""
    text = """function (X[N, V], T[N]) -> (L) {
        Y = 30 * tanh(X / 30); Z[n] = logsumexp(Y[n, v]); C[n : N] = Y[n, T[n]]; K[n] = T[n] >= 0 ? 1.0 : 0.0;
        L[] = sum(K[n] * (Z[n] - C[n])) / sum(K[n]);
    }"""
    specs = (tilec.spec((2048, 8192), "bfloat16"), tilec.spec((2048,), "int64"))
    f = tilec.compile(text)
    assert f.lower(*specs, target="sm_90").cost().bytes_moved < 2048 * 8192 * 2 * 1.1
    types = {"X": TensorType((2048, 8192), "bfloat16"), "T": TensorType((2048,), "int64")}
    part = partition(f.program, ("X",), types, {}, True).backward
    given = (tilec.spec(part.types[n].shape, part.types[n].dtype) for n in part.program.input_names())
    backward = tilec.Function(part.program, text).lower(*given, target="sm_90")
    assert backward.cost().bytes_moved < 2048 * 8192 * 2 * 2.1
