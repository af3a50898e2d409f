"""Sums of several products of tensors over windows as one product of these side by side: complex numbers and others."""

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.program import Call
from tilec.transforms.lower import stack_operands

G = "[n, y + j - 1, x + i - 1, c"
PARTS = "A[N, H, W, C], B[N, H, W, C], K[3, 3, C, O], L[3, 3, C, O]"
LAST = "A[N, H, W, C, 2], K[3, 3, C, O, 2]"
APART = "function ({}) -> (R, S) {{ R[n, y, x, o : N, H, W, O] = +({}); S[n, y, x, o : N, H, W, O] = +({}); }}"
REAL = f"A{G}, 0] * K[j, i, c, o, 0] - A{G}, 1] * K[j, i, c, o, 1]"
IMAGINARY = f"K[j, i, c, o, 1] * A{G}, 0] + A{G}, 1] * K[j, i, c, o, 0]"
STACKED = {  # text, and how many statements copy operands
    "two tensors": (
        APART.format(
            PARTS, f"A{G}] * K[j, i, c, o] - B{G}] * L[j, i, c, o]", f"L[j,i,c,o] * A{G}] + B{G}] * K[j,i,c,o]"
        ),
        3,
    ),
    "an axis of two": (APART.format(LAST, REAL, IMAGINARY), 3),
    "a part of the result": (
        f"function ({LAST}) -> (R) {{ R[n, y, x, o, p : N, H, W, O, 2] = +(p == 0 ? {REAL} : {IMAGINARY}); }}",
        2,
    ),
    "a sign first": (
        f"function ({PARTS}) -> (R) {{ R[n, y, x, o : N, H, W, O] = +(-B{G}] * L[j, i, c, o]"
        f" - A{G}] * K[j, i, c, o]); }}",
        2,
    ),
    "strided, of three terms": (
        "function (A[N, H, W, C], B[N, H, W, C], K[3, C, O], L[3, C, O]) -> (R) {"
        " R[n, y, x, o : N, H, W/2, O] = +(A[n, y, 2*x + j, c] * K[j, c, o] + B[n, y, 2*x + j, c] * L[j, c, o]"
        " - A[n, y, 2*x + j, c] * L[j, c, o]), j < 2; }",
        None,  # an operand twice
    ),
    "matrices along an axis of two": (
        "function (A[M, C, 2], K[C, O, 2]) -> (R) { R[m, p, o : M, 2, O] = +(p == 0 ?"
        " A[m, c, 0] * K[c, o, 0] - A[m, c, 1] * K[c, o, 1] : A[m, c, 0] * K[c, o, 1] + A[m, c, 1] * K[c, o, 0]); }",
        2,
    ),
    "matrices in a batch of one": (
        "function (A[1, M, C], B[1, M, C], K[C, O], L[C, O]) -> (R) {"
        " R[n, m, o : 1, M, O] = +(A[n, m, c] * K[c, o] - L[c, o] * B[n, m, c]); }",
        2,
    ),
    "two sums": (
        "function (A[M, N, C], B[M, N, C], K[O, N, C], L[O, N, C]) -> (R) {"
        " R[m, o : M, O] = +(A[m, n, c] * K[o, n, c] - B[m, n, c] * L[o, n, c]); }",
        2,
    ),
    "quaternions, two of four parts": (
        "function (A[M, C, 4], K[C, O, 4]) -> (R) { R[m, o, p : M, O, 2] = +(p == 0 ?"
        " A[m,c,0]*K[c,o,0] - A[m,c,1]*K[c,o,1] - A[m,c,2]*K[c,o,2] - A[m,c,3]*K[c,o,3] :"
        " A[m,c,0]*K[c,o,1] + A[m,c,1]*K[c,o,0] + A[m,c,2]*K[c,o,3] - A[m,c,3]*K[c,o,2]); }",
        2,
    ),
}
APART_STILL = {
    "other windows": f"function ({PARTS}) -> (R) {{ R[n, y, x, o : N, H, W, O] = +(A{G}] * K[j, i, c, o]"
    " - B[n, y + j, x + i - 1, c] * L[j, i, c, o]); }",
    "a branch of one term": f"function ({LAST}) -> (R) {{ R[n, y, x, o, p : N, H, W, O, 2] = +(p == 0 ? {REAL} :"
    f" A{G}, 0] * K[j, i, c, o, 1]); }}",
    "a bound of the channels": f"function ({PARTS}) -> (R) {{ R[n, y, x, o : N, H, W, O] = +(A{G}] * K[j, i, c, o]"
    f" - B{G}] * L[j, i, c, o]), c < 7; }}",
    "the greatest": f"function ({PARTS}) -> (R) {{ R[n, y, x, o : N, H, W, O] = >(A{G}] * K[j, i, c, o]"
    f" - B{G}] * L[j, i, c, o]); }}",
    "a branch by what is summed": f"function ({LAST}) -> (R) {{ R[n, y, x, o : N, H, W, O] = +(j == 0 ? {REAL} :"
    f" {IMAGINARY}); }}",
}
SIZES = {"N": 2, "H": 5, "W": 6, "C": 9, "O": 17, "M": 18}


@pytest.fixture
def small(monkeypatch):
    """Small products are taken for large ones."""
    monkeypatch.setattr(stack_operands, "LEAST_STACKED", 0)
    monkeypatch.setattr(stack_operands, "_FEWEST_OF_MATRICES", 0)


def given(f, dtype):
    g = torch.Generator().manual_seed(0)
    shapes = [[SIZES.get(str(d), d) for d in shape] for shape in shapes_of(f)]
    return [torch.randn([int(n) for n in shape], generator=g).to(dtype) for shape in shapes]


def shapes_of(text):
    head = text[text.index("(") + 1 : text.index(") ->")]
    return [[d.strip() for d in part.strip(" ],").split("[")[1].split(",")] for part in head.split("],")]


def beside(text, tensors):
    statements = tilec.compile(text).lower(*tensors).stages["flat"].statements
    return [s for s in statements if "_beside" in s.output]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", STACKED)
@pytest.mark.covering
@pytest.mark.one_in(5)
def test_values_and_gradients(small, name, dtype):
    text, copies = STACKED[name]
    tensors = given(text, dtype)
    assert len(beside(text, tensors)) == (copies or 0)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2}[dtype]
    arrays = [t.double().numpy() for t in tensors]
    exact = tilec.interpret(text, *arrays)
    exact = exact if isinstance(exact, tuple) else (exact,)
    inputs = [t.clone().requires_grad_() for t in tensors]
    found = tilec.compile(text)(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    cotangents = [torch.randn(e.shape, generator=torch.Generator().manual_seed(1)).to(dtype) for e in exact]
    gradients = torch.autograd.grad(found, inputs, cotangents)
    gradient = tilec.compile(text).grad()
    wanted = tilec.interpret(gradient.tile, *arrays, *(c.double().numpy() for c in cotangents))
    for mine, want in zip((*found, *gradients), (*exact, *wanted), strict=True):
        scale = tolerance * np.abs(want).max()
        torch.testing.assert_close(mine.detach().double(), torch.as_tensor(want), rtol=tolerance, atol=scale)


@pytest.mark.parametrize("name", APART_STILL)
def test_what_is_no_product_side_by_side(small, name):
    text = APART_STILL[name]
    assert not beside(text, given(text, torch.float32))


def test_small_sums_are_not_worth_copies():
    text, _ = STACKED["two tensors"]
    assert not beside(text, given(text, torch.float32))


def test_gradients_are_one_product_for_each_operand(small):
    text, _ = STACKED["a part of the result"]
    tensors = [t.requires_grad_() for t in given(text, torch.float32)]
    f = tilec.compile(text)
    types, values = f.types_of(tensors)
    _, parts = f._specialiser.partition(tuple(types), types, values)
    bodies = [s.body for s in parts.backward.program.statements if s.aggregation == "sum"]
    assert sum(isinstance(e, Call) and e.function == "mul" for e in bodies) == 2


def test_an_infinite_element_stays_in_its_windows(small):
    text, _ = STACKED["two tensors"]
    tensors = given(text, torch.float32)
    tensors[1][0, 2, 3, 1] = torch.inf
    for part in tilec.compile(text)(*tensors):
        touched = ~part.isfinite()
        assert touched[0, 1:4, 2:5].all() and touched.sum() == 9 * SIZES["O"]
