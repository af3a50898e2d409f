"""Elementwise statements after a reshape that merges axes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.program import Access, Call, walk
from tilec.ir.types import TensorType
from tilec.language import parse, show
from tilec.pipeline import lower

SHAPES = {"X": (2, 3, 4, 5), "R": (2, 12, 5), "B": (12, 1), "S": (24, 5), "T": (2, 3, 20), "U": (2, 1, 3, 4, 1, 5)}
MADE = "O[a, b, c, d : 2, 3, 4, 5] = X[a, b, c, d] * X[a, b, c, d];"

SOURCES = {  # the statement that no longer divides indices, and what it reads
    "one operand": (f"function (X) -> (Y) {{ {MADE} P = reshape(O, 2, 12, 5); Y = silu(P); }}", "Y_1", {"O"}),
    "a residual": (f"function (X, R) -> (Y) {{ {MADE} P = reshape(O, 2, 12, 5); Y = relu(P + R); }}", "Y_1", {"O", "R"}),  # noqa: E501
    "operands that broadcast": (f"function (X, B) -> (Y) {{ {MADE} P = reshape(O, 2, 12, 5); Y = P * B; }}", "Y_1", {"O", "B"}),  # noqa: E501
    "two in a row": (f"function (X) -> (Y) {{ {MADE} P = reshape(O, 24, 5); A = exp(P); Y = A - P; }}", "Y_1", {"O", "A_1"}),  # noqa: E501
    "two merged tensors": (f"function (X) -> (Y) {{ {MADE} P = reshape(O, 24, 5); A = exp(X); Q = reshape(A, 24, 5); Y = P * Q; }}", "Y_1", {"O", "A"}),  # noqa: E501
    "two groups of axes": (f"function (X) -> (Y) {{ {MADE} P = reshape(O, 6, 20); Y = P + 1; }}", "Y_1", {"O"}),
    "axes of size 1": ("function (U) -> (Y) { O = exp(U); P = reshape(O, 1, 6, 4, 5, 1); Y = P * P; }", "Y_1", {"O"}),
    "merged and apart": (f"function (X, R) -> (Y) {{ {MADE} P = reshape(O, 2, 12, 5); A = P * R; Y = reshape(A, 2, 3, 4, 5); }}", "Y", {"O", "R"}),  # noqa: E501
    "an index as a value": (f"function (X) -> (Y) {{ {MADE} P = reshape(O, 24, 5); Y[i, j : 24, 5] = P[i, j] + (i % 3) * j; }}", "Y_1", {"O"}),  # noqa: E501
    "a table": (f"function (X, R) -> (Y) {{ {MADE} P = reshape(O, 24, 5); Y[i, j : 24, 5] = P[i, j] * R[0, i % 7, j]; }}", "Y_1", {"O", "R"}),  # noqa: E501
}  # fmt: skip
STAYING = {
    "rows of the merged axes": f"function (X) -> (Y) {{ {MADE} P = reshape(O, 2, 60); A = exp(P); Y[i] = +(A[i, j]); }}",  # noqa: E501
    "another place": f"function (X) -> (Y) {{ {MADE} P = reshape(O, 2, 12, 5); Y[i, j, k : 2, 12, 5] = P[i, j, k] + P[i, (j + 1) % 12, k]; }}",  # noqa: E501
    "axes that do not merge": f"function (X) -> (Y) {{ {MADE} P = reshape(O, 4, 30); Y = exp(P); }}",
    "an input": "function (X) -> (Y) { P = reshape(X, 24, 5); Y = exp(P); }",
    "some elements": f"function (X) -> (Y) {{ {MADE} P = reshape(O, 24, 5); Y[i, j : 24, 5] = exp(P[i, j]), i < 7; }}",
}  # fmt: skip


def flat(source: str, dtype: str = "float64"):
    program = parse(source)
    types = {name: TensorType(SHAPES[name], dtype) for name in program.input_names()}
    return lower(program, types, {}).stages["flat"]


def check_meaning(source: str) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=SHAPES[n]) for n in parse(source).input_names()]
    np.testing.assert_allclose(
        tilec.interpret(show(flat(source)), *inputs), tilec.interpret(source, *inputs), rtol=1e-12
    )


@pytest.mark.parametrize("name", SOURCES)
def test_elementwise_statements_run_over_the_axes_apart(name: str) -> None:
    source, output, read = SOURCES[name]
    (found,) = [s for s in flat(source).statements if s.output == output]
    accesses = [e for e in walk(found.body) if isinstance(e, Access)]
    assert {e.tensor for e in accesses} == read
    own = [e for e in accesses if e.tensor not in parse(source).input_names()]
    assert not any(isinstance(e, Call) for access in own for i in access.index for e in walk(i))
    check_meaning(source)


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    assert not [s for s in flat(STAYING[name]).statements if "_1" in s.output]
    check_meaning(STAYING[name])


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("dtype", ("float64", "bfloat16"))
def test_results_keep_their_type_and_gradients(name: str, dtype: str) -> None:
    source = SOURCES[name][0]
    generator = torch.Generator().manual_seed(0)
    names = parse(source).input_names()
    inputs = [torch.randn(SHAPES[n], generator=generator).to(getattr(torch, dtype)) for n in names]
    call = tilec.compile(source)
    found = call(*inputs)
    wanted = torch.from_numpy(np.asarray(tilec.interpret(source, *[x.double().numpy() for x in inputs])))
    assert found.dtype == getattr(torch, dtype)
    rtol, atol = (1e-9, 1e-9) if dtype == "float64" else (0.05, 0.3)
    torch.testing.assert_close(found.double(), wanted, rtol=rtol, atol=atol)
    if dtype == "float64":
        assert torch.autograd.gradcheck(call, [x.requires_grad_() for x in inputs])


def test_a_norm_of_groups_takes_in_the_activation() -> None:
    source = """function (X[N, C, P]) -> (Y) {
        Z = reshape(X, N, 4, C / 4, P);
        M[n, g : N, 4] = mean(Z[n, g, c, p]);
        O[n, g, c, p : N, 4, C / 4, P] = Z[n, g, c, p] - M[n, g];
        R = reshape(O, N, C, P);
        Y = silu(R);
    }"""
    lowered = tilec.compile(source).lower(tilec.spec((4, 40, 64), "bfloat16"), backend="triton", target="sm_90")
    assert len(lowered.kernels) == 1
