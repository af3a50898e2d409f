"""Products with a bias for each column are one call of a library."""

import re

import pytest
import torch

import tilec
from tilec.backends.torch import runtime

LINEAR = "function (X[N, K], W[J, K], B[J]) -> (Y) { Y[n, j] = sum(X[n, k] * W[j, k]) + B[j]; }"
TURNED = "function (X[P, N, K], W[K, J], B[J]) -> (Y) { Y[p, n, j] = B[j] + sum(W[k, j] * X[p, n, k]); }"
APART = "function (X[N, K], W[J, K], B[J]) -> (Y) { S[n, j : N, J] = sum(X[n, k] * W[j, k]); Y = S + B; }"
PART = LINEAR.replace("Y[n, j] = sum(X[n, k] * W[j, k])", "S[n, j] = sum(X[n, k] * W[j, k]), k < 64; Y[n, j] = S[n, j]")
WRITTEN = LINEAR.replace("n, j]", "n, j : N, P]", 1).replace("B[J]", "B[P]")
OTHERS = {
    "part of the sum": (PART, None),
    "a longer result": (WRITTEN, ((256, 128), (512, 128), (600,))),
    "a shorter result": (WRITTEN, ((256, 128), (512, 128), (256,))),
    "operands of two lengths": (LINEAR.replace("W[J, K]", "W[J, L]"), ((256, 128), (512, 160), (512,))),
    "a bias of rows": (LINEAR.replace("B[J]", "B[N]").replace("+ B[j]", "+ B[n]"), ((256, 128), (512, 128), (256,))),
    "a wider bias": (LINEAR, ((256, 128), (512, 128), (512,))),
    "a function of it": (LINEAR.replace("sum(X[n, k] * W[j, k]) + B[j]", "tanh(sum(X[n, k] * W[j, k]) + B[j])"), None),
}


def lines_of(text, shapes, dtypes=("bfloat16",) * 3):
    specs = [tilec.spec(s, d) for s, d in zip(shapes, dtypes, strict=True)]
    return tilec.compile(text).lower(*specs, target="sm_90").source()


@pytest.mark.parametrize(
    "text, shapes",
    [
        (LINEAR, ((256, 128), (512, 128), (512,))),
        (TURNED, ((4, 64, 128), (128, 512), (512,))),
        (APART, ((256, 128), (512, 128), (512,))),
    ],
)
def test_a_bias_is_added_by_the_library(text, shapes):
    source = lines_of(text, shapes)
    assert "bias=" in source and "triton.jit" not in source


@pytest.mark.filterwarnings("ignore::tilec.TileWarning")
@pytest.mark.parametrize("other", OTHERS)
def test_others_are_not(other):
    text, shapes = OTHERS[other]
    dtypes = ("bfloat16", "bfloat16", "float32" if other == "a wider bias" else "bfloat16")
    assert "bias=" not in lines_of(text, shapes or ((256, 128), (512, 128), (512,)), dtypes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values(dtype):
    a, b, bias = torch.randn(5, 7).to(dtype), torch.randn(7, 6).to(dtype), torch.randn(6).to(dtype)
    wanted = a.double() @ b.double() + bias.double()
    made = runtime.multiply(a, b, bias=bias)
    assert made.dtype == dtype and torch.allclose(made.double(), wanted, rtol=2**-7, atol=2**-6)


def test_a_circulant_matrix_is_stored_for_the_library():
    text = "function (X[N, D], C[D]) -> (Y) { Y[n, i : N, D] = sum(X[n, j] * C[(i - j) % D]); }"
    source = lines_of(text, ((8192, 1024), (1024,)), ("bfloat16",) * 2)
    assert "Y_right" in source and "rt.multiply" in source and "tl.dot" not in source


ADAPTER = """function (X[M, R], B[R, J], O[M, J]) -> (Y) {
    D[m, j : M, J] = +(X[m, r] * B[r, j]); Y[m, j : M, J] = O[m, j] + 2 * D[m, j];
}"""


@pytest.mark.parametrize("terms, kernel", [(12, "D_dot["), (60, "D_dot["), (1024, "gluon_map(X")])
def test_a_product_of_few_terms_is_not_stored_for_what_follows(terms, kernel):
    """Its kernel takes as long as memory does: a library would write the product, and another kernel read it."""
    source = lines_of(ADAPTER, ((1500, terms), (terms, 3072), (1500, 3072)))
    assert kernel in source and "D_lines" not in source and "Y_kernel" not in source, source


BATCHED = "function (X[P, N, K], W[P, J, K], B[J]) -> (Y) { Y[p, n, j] = sum(X[p, n, k] * W[p, j, k]) + B[j]; }"
ON_A_CPU = {  # whether the bias is added before the product is rounded
    "a function of it": (OTHERS["a function of it"][0], True),
    "a relu": (LINEAR.replace("sum(X[n, k] * W[j, k]) + B[j]", "relu(sum(X[n, k] * W[j, k]) + B[j])"), True),
    "rows of two axes": (TURNED, True),
    "a bias of rows": (LINEAR.replace("B[J]", "B[N]").replace("+ B[j]", "+ B[n]"), False),
    "read alone too": (APART.replace("Y = S + B", "Y = S + B - S"), False),
    "an output": (APART.replace("-> (Y)", "-> (S, Y)"), False),
    "of batches": (BATCHED, False),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ON_A_CPU)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bias_is_added_before_rounding_on_a_cpu(name, dtype):
    text, biased = ON_A_CPU[name]
    function = tilec.compile(text, backend="torch")
    g = torch.Generator().manual_seed(0)
    sizes = dict(P=3, N=7, J=5, K=65)
    axes = re.findall(r"\w\[([A-Z, ]+)\]", text.split(" -> ")[0])
    given = [torch.randn([sizes[d] for d in found.split(", ")], generator=g).to(dtype) for found in axes]
    assert ("bias=" in function.lower(*given).source()) == biased
    assert "bias=" not in function.lower(*(t.float() for t in given)).source()
    exact = function(*(t.double() for t in given))
    found = function(*given)
    exact, found = (t[-1] if isinstance(t, tuple) else t for t in (exact, found))
    step = torch.finfo(dtype).eps * exact.abs().clamp(min=1)
    assert ((found.double() - exact).abs() <= (0.6 if biased and name != "a function of it" else 8) * step).all()
