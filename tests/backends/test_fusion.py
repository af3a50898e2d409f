"""Statements that walk the same points in one set of loops, and products folded into sums."""

import pytest
import torch
from conformance.programs import GROUPS, SHAPES
from support.agreement import SMALL, agree, run, tensors

import tilec
from tilec.backends.base import Options


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block", [1, 7, 24])
@pytest.mark.parametrize("source, shapes", list(zip(GROUPS, SHAPES, strict=True)), ids=range(3))
def test_fused_statements_agree_with_the_oracle(source, shapes, block, dtype):
    inputs = tensors(*shapes, dtype=dtype)
    tolerance = 1e-12 if dtype is torch.float64 else 4e-2
    agree(source, *inputs, options=Options(block=block), tolerance=tolerance)
    _, text = run(source, inputs, Options(block=block))
    comments = [k for k, line in enumerate(text.splitlines()) if line.strip().startswith("#")]
    assert comments == list(range(comments[0], comments[0] + len(comments)))  # one group


def test_what_fused_statements_share_is_computed_once():
    _, text = run(GROUPS[0], tensors(*SHAPES[0]), SMALL)
    assert text.count(".cos_()") == 1


def test_a_statement_that_reads_the_one_before_stays_apart():
    source = "function (X[N, M]) -> (Y, Z) { Y = exp(X) * 2; Z[i : N] = +(exp(X[i, j]) * Y[0, j]); }"
    agree(source, *tensors((5, 6)), options=SMALL)


SUMS = """X + Y * Z; X - Y * Z; Y * Z + X; X + Y * 2; X - 3 * Y; X + 2 * (Y * Z); X - (Y * Z) * 3; X + 2 * (3 * Y);
    Y * Z - X; 2 + Y * Z; X * Y + Y * Z; (X + Y * Z) * (Y * Z); X * 2 - Y * 3; X + Y * X0[]; -X - Y * Z""".split(";")


@pytest.mark.parametrize("options", [None, SMALL], ids=["whole", "blocks"])
@pytest.mark.parametrize("body", SUMS)
def test_products_in_sums(body, options):
    x, y, z = tensors((5, 6), (5, 1), (1, 6))
    names = [n for n in "XYZ" if n in body]
    text = body.replace("X0[]", "X0")
    scalar = ", X0[]" if "X0" in body else ""
    source = f"function ({', '.join(names)}{scalar}) -> (O) {{ O = {text}; }}"
    given = [{"X": x, "Y": y, "Z": z}[n] for n in names] + [torch.tensor(1.5, dtype=torch.float64)] * bool(scalar)
    agree(source, *given, options=options)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("body", SUMS[:9])
def test_products_in_sums_of_other_types(body, dtype):
    names = [n for n in "XYZ" if n in body]
    given = tensors(*[(5, 6)] * len(names), dtype=dtype)
    tolerance = {torch.float16: 1e-2, torch.float32: 1e-5}.get(dtype, 0)
    agree(f"function ({', '.join(names)}) -> (O) {{ O = {body}; }}", *given, tolerance=tolerance)


def test_gradient_of_a_row_statement_equals_autograd():
    f = tilec.compile("function (X[N, M], W[M]) -> (Y) { Y[i, j : N, M] = sin(W[j] * X[i, j]) * X[i, j]; }")
    x, w = (t.requires_grad_() for t in tensors((300, 700), (700,)))
    (g,) = tensors((300, 700), seed=1)
    wanted = torch.autograd.grad(torch.sin(w * x) * x, (x, w), g)
    got = f.grad()(x.detach(), w.detach(), g)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
