"""Factors that leave sums which read elements at places in data, where an element may have no point."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.program import reads
from tilec.ir.types import TensorType
from tilec.language import parse, show
from tilec.pipeline import lower
from tilec.saving import partition
from tilec.transforms.lower import factor

SHAPES = {"A": (4, 3), "B": (5, 3), "P": (7,), "T": (4,), "U": (5,), "Z": (4, 3), "N": (7, 3), "I": (7,), "J": (7,)}

# a statement, and whether factors leave its sum
SOURCES = {
    "scores over the degree": ("Y[m : 7] = +(A[I[m], c] * B[J[m], c] / T[I[m]]);", True),
    "by both ends": ("Y[m : 7] = +(A[I[m], c] * B[J[m], c] / T[I[m]] / U[J[m]]);", True),
    "one place away": ("Y[m : 7] = +(A[I[m] + 1, c] * B[J[m], c] / P[m]);", True),
    "clamped": ("Y[m : 7] = +(A[clamp(I[m], 0, 3), c] * B[J[m], c] / exp(P[m]));", True),
    "turned round": ("Y[m : 7] = +(A[I[m] % 4, c] * B[J[m], c] / P[m]);", True),
    "padded": ("Y[m : 7] = +(pad(A[I[m], c], 1) * B[J[m], c] / P[m]);", True),
    "rows added at places": ("Y[J[m] : 5] = +(A[I[m], c] * P[m] / T[I[m]]);", True),
    "pairs added at places": ("Y[I[m] : 4] = +(-(Z[I[m], c] * (B[J[m], c] * P[m] / T[I[m]]) / T[I[m]]));", True),
    "at places, some asked for": ("Y[I[m] : 4] = +(P[m] > 0 ? Z[I[m], c] * B[J[m], c] / U[J[m]]);", True),
    "columns of their own": ("Y[I[m], k : 4, 3] = +(B[J[m], c] * Z[k, c] / U[J[m]]);", False),
    "at half the places": ("Y[m : 7] = +(A[I[m] / 2, c] * B[J[m], c] / P[m]);", False),
    "of data that is summed": ("Y[c : 3] = +(A[I[m], c] * B[J[m], c] / U[c]);", False),
    "of a default": ("Y[I[m] : 4] = +(Z[I[m], c] * B[J[m], c] / U[J[m]]) default T;", False),
}


def lowered(source: str, dtype: str):
    program = parse(source)
    integers = ("I", "J")
    types = {n: TensorType(SHAPES[n], "int8" if n in integers else dtype) for n in program.input_names()}
    return lower(program, types, {}).stages["flat"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SOURCES)
def test_factors_leave_sums_of_gathered_elements(name: str) -> None:
    body, factored = SOURCES[name]
    used = [n for n in SHAPES if f"{n}[" in body or f"default {n}" in body]
    shapes = {n: ", ".join(map(str, SHAPES[n])) for n in used}
    source = f"function ({', '.join(f'{n}[{dims}]' for n, dims in shapes.items())}) -> (Y) {{ {body} }}"
    flat = lowered(source, "float64")
    assert any("_total" in s.output for s in flat.statements) is factored, show(flat)
    narrow = lowered(source, "bfloat16")
    assert any("_total" in s.output for s in narrow.statements) is factored
    rng = np.random.default_rng(0)
    for _ in range(3):
        inputs = [rng.normal(size=SHAPES[n]) for n in used]
        for k, n in enumerate(used):
            if n in "TU":  # a quotient by nothing, at a point that is there or not
                inputs[k][rng.random(inputs[k].shape) < 0.3] = 0
            elif n in "IJ":
                inputs[k] = rng.integers(-3, 8, 7).astype("int8")
        with np.errstate(all="ignore"):
            told, wanted = tilec.interpret(show(flat), *inputs), tilec.interpret(source, *inputs)
        finite = np.isfinite(wanted)
        np.testing.assert_allclose(told[finite], wanted[finite], rtol=1e-12, atol=1e-12)
        assert not np.isfinite(told[~finite]).any()


def test_gradients_of_attention_over_edges_share_one_sum() -> None:
    source = """function (E[M], S[M], D[M], H[V, C], Z[V, C]) -> (Y) {
        G[D[m] : V] = >(E[m]); P[m : M] = exp(E[m] - G[D[m]]); T[D[m] : V] = +(P[m]);
        Y[D[m], c : V, C] = +(H[S[m], c] * P[m] / T[D[m]]);
    }"""
    edges, rows = tilec.spec((40,)), tilec.spec((9, 3))
    at = tilec.spec((40,), "int64")
    flat = tilec.compile(source).grad(["E", "H"]).lower(edges, at, at, rows, rows, rows).stages["flat"]
    rows_read = [s.output for s in flat.statements if {"DY", "H"} <= set(reads(s))]
    assert rows_read == ["DT_values_total"]


def test_gradients_of_attention_over_edges_sort_twice() -> None:
    """By target and by source, also in a backward pass, which is bound again."""
    source = """function (E[M], S[M], D[M], H[V, C], Z[V, C]) -> (Y) {
        G[D[m] : V] = >(E[m]); P[m : M] = exp(E[m] - G[D[m]]); T[D[m] : V] = +(P[m]);
        Y[D[m], c : V, C] = +(H[S[m], c] * P[m] / T[D[m]]);
    }"""
    program = parse(source)
    edges, at, rows = TensorType((9000,), "float32"), TensorType((9000,), "int64"), TensorType((900, 64), "float32")
    types = dict(zip(program.input_names(), (edges, at, at, rows, rows), strict=True))
    backward = partition(program, ["E", "H"], types, {}, True).backward
    specs = [tilec.spec(backward.types[n].shape, backward.types[n].dtype) for n in backward.program.input_names()]
    lowered = tilec.Function(backward.program, source).lower(*specs, backend="triton", target="sm_90")
    (both,) = [k for k in lowered.kernels if "_at_kernel" in k.name]
    assert both.statements == ("DT.at", "DH.at")


@pytest.mark.parametrize("rows, value, other", [
    ("N", "S[i] / M", lambda mean: mean),
    ("N", "exp(S[i] / M)", np.exp),
    ("N", "-(S[i] / M)", np.negative),
    ("N/2", "S[i] / M", lambda mean: mean * (np.arange(6) < 3)),
])  # fmt: skip
def test_only_deviations_from_a_mean_add_up_to_nothing(rows: str, value: str, other) -> None:
    """A function of the mean is no mean, nor is what stands where there is none."""
    f = tilec.compile(f"""function (X[N, M], W[N]) -> (O) {{
        S[i : {rows}] = sum(X[i, k]);
        T[i : N] = {value};
        O[i : N] = sum(W[i] * (X[i, j] - T[i]));
    }}""")
    x, w = np.random.default_rng(0).standard_normal((2, 6, 7))
    np.testing.assert_allclose(f(x, w[:, 0]), w[:, 0] * (x - other(x.mean(1))[:, None]).sum(1), atol=1e-12)


RUNNING = {  # a sum over places up to an element or from it on, and whether what is left of it is a scan
    "before": ("Y[i : 6] = +(V[k] * W[i]), i - k - 1 < 6;", True),
    "before, as a condition says": ("Y[i : 6] = +(V[k] * W[i]), i - k - 1 < 5;", True),
    "before, but for one": ("Y[i : 6] = +(V[k] * W[i]), i - k - 1 < 4;", False),
    "where an element says": ("Y[i : 6] = +(i > 3 | W[i] > 1 ? V[k]), i - k - 1 < 5;", True),
    "after, where a test holds": ("Y[i : 6] = +(W[i] > 0 ? V[k] * W[i]), k - i - 2 < 6;", True),
    "up to one beyond": ("Y[i : 6] = +(V[k] / W[i] + V[k] * W[i]), i - k + 1 < 7;", True),
    "a test of terms": ("Y[i : 6] = +(V[k] > 0 ? V[k] * W[i]), i - k - 1 < 6;", False),
    "not that far": ("Y[i : 6] = +(V[k] * W[i]), i - k + 1 < 6;", False),
}


@pytest.mark.parametrize("name", RUNNING)
def test_factors_leave_running_sums(name: str) -> None:
    """An infinite factor of an element without a point adds nothing."""
    body, scanned = RUNNING[name]
    source = f"function (V[6], W[6]) -> (Y) {{ {body} }}"
    flat = lower(parse(source), {n: TensorType((6,), "float64") for n in "VW"}, {}).stages["flat"]
    assert any("_total" in s.output for s in flat.statements) is scanned, show(flat)
    inputs = np.array([3.0, 1, 2, 2, 4, 1]), np.array([np.inf, np.inf, -1, 2, np.inf, np.inf])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(tilec.interpret(show(flat), *inputs), tilec.interpret(source, *inputs))


PRODUCTS = {
    "of rows": ("function (X[B, N]) -> (P) { P[b] = prod(X[b, n]); }", (3, 33), lambda x: x.prod(1)),
    "of columns": ("function (X[N, B]) -> (P) { P[b] = prod(1 - X[n, b]); }", (9, 5), lambda x: (1 - x).prod(0)),
    "over two axes": (
        "function (X[B, N, M]) -> (P) { P[b] = prod(X[b, n, m]); }",
        (2, 3, 8),
        lambda x: x.prod(2).prod(1),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_all_but_one_are_cumulative(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact with zeros, and so are their own derivatives."""
    monkeypatch.setattr(factor, "LEAST_TERMS", 1)
    source, shape, product = PRODUCTS[name]
    f = tilec.compile(source)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    x.view(-1)[:2] = 0
    for _ in range(2):
        found, wanted = (_twice(call, x) for call in (f, product))
        torch.testing.assert_close(found, wanted)
        x.view(-1)[1] = 1
    types = {"X": TensorType(shape, "float64"), "DP": TensorType(tuple(f(x).shape), "float64")}
    program = lower(f.grad().program, types, {}).stages["flat"]
    terms = [s for s in program.statements if s.guard is not None and s.aggregation == "prod"]
    assert bool(terms) is (name == "over two axes"), show(program)


def _twice(call, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    value = call(x)
    (first,) = torch.autograd.grad(value.square().sum(), x, create_graph=True)
    return value, first, torch.autograd.grad(first.sin().sum(), x)[0]
