"""Runs of statements that share an axis, a slab at a time: which are cut, and that results are those of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tilec
from tests.support.saved import kept_bytes
from tilec.backends.base import Options
from tilec.backends.torch import TorchBackend
from tilec.backends.torch.axis_tiling import in_slabs
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower
from tilec.transforms.autodiff.grad import grad

WHOLE = Options(block=2**40)
SMALL = Options(block=64)

PROGRAMS = {
    "layer norm": "function (X[13, 20], W[20], B[20]) -> (Y) { M[i] = mean(X[i, j]); R[i] = rsqrt(mean((X[i, j] - M[i])*(X[i, j] - M[i])) + 0.1); Y[i, j] = (X[i, j] - M[i]) * R[i] * W[j] + B[j]; }",  # noqa: E501
    "softmax": "function (X[13, 20]) -> (Y) { Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l]))); }",  # noqa: E501
    "the second axis": "function (X[20, 13]) -> (Y) { M[j] = max(X[i, j]); Y[i, j] = exp(X[i, j] - M[j]); Z[j] = sum(Y[i, j]); }",  # noqa: E501
    "an outer product": "function (X[13, 20]) -> (Y, S, L) { Y = X * X; S[j] = sum(Y[i, j]); L[] = max(Y[i, j]); }",
    "the number of a row": "function (X[13, 20]) -> (Y) { M[i] = sum(i >= j ? X[i, j]); Y[i, j] = i * M[i] * X[i, j] + rand(3, 20*i + j); }",  # noqa: E501
    "attention": "function (Q[13, 5], K[20, 5], V[20, 7]) -> (O) { S[i, j] = sum(Q[i, e] * K[j, e]); L[i] = logsumexp(S[i, j]); O[i, f] = sum(exp(S[i, j] - L[i]) * V[j, f]); }",  # noqa: E501
    "what columns give": "function (X[13, 20]) -> (Y, Z) { A = X * X; S[j] = sum(A[i, j]); Y[i, j] = A[i, j] / S[j]; Z = exp(X) + A; }",  # noqa: E501
    "other rows": "function (X[13, 20]) -> (Y) { A = X * X; Y[i, j : 13, 20] = A[i, j] + A[12 - i, j] + A[i - 1, j]; }",
    "extrema": "function (X[13, 20]) -> (A, B, C) { Y = X * X - X; A[j] = >(Y[i, j]); B[j] = <(Y[i, j]); C[j] = *(Y[i, j]); }",  # noqa: E501
    "integers": "function (X[13, 20]) -> (A) { Y = int64(X * 10) * int64(X * 7); A[j] = +(Y[i, j] * Y[i, j]); }",
}


def inputs_of(program) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(i.dims, dtype=torch.float64, generator=generator) for i in program.inputs]


def run(program, inputs, options: Options):
    types = {n: TensorType(tuple(t.shape), "float64") for n, t in zip(program.input_names(), inputs, strict=True)}
    executable = TorchBackend().build(lower(program, types, {}), options)
    return executable, executable(inputs)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("budget", [64 * 2**20, 300])
@pytest.mark.one_in(8)
def test_slabs_give_what_the_whole_gives(name: str, budget: int) -> None:
    """Forward and gradient, slabs that come out even and slabs that do not; a tiny budget cuts matrix products too."""
    program = parse(PROGRAMS[name])
    inputs = inputs_of(program)
    _, wanted = run(program, inputs, WHOLE)
    for block in (64, 100, 20):
        _, told = run(program, inputs, Options(block=block, memory_budget=budget))
        for a, b in zip(told, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    if name == "integers":
        return
    gradient = grad(program)
    dims = {o: tuple(t.shape) for o, t in zip(program.outputs, wanted, strict=True)}
    cotangents = [torch.rand(dims[o], dtype=torch.float64) for o in program.outputs]
    _, wanted = run(gradient, [*inputs, *cotangents], WHOLE)
    _, told = run(gradient, [*inputs, *cotangents], Options(block=64, memory_budget=budget))
    for a, b in zip(told, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


CUT = {
    "layer norm": 1,
    "softmax": 1,
    "the second axis": 1,
    "an outer product": 1,
    "the number of a row": 1,
    "attention": 0,
    "what columns give": 1,
    "other rows": 1,  # by columns
    "extrema": 1,
    "integers": 1,
}


@pytest.mark.parametrize("name", CUT)
def test_which_runs_are_cut(name: str) -> None:
    program = parse(PROGRAMS[name])
    lowering = lower(program, {i.name: TensorType(i.dims, "float64") for i in program.inputs}, {})  # type: ignore[arg-type]
    flat, types = lowering.stages["flat"], lowering.types
    steps = in_slabs(flat, types, SMALL)
    assert sum(step.slab is not None for step in steps) == CUT[name]
    assert sorted(s.output for step in steps for s in step.members) == sorted(s.output for s in flat.statements)
    assert not any(step.slab for step in in_slabs(flat, types, WHOLE))


def test_products_are_cut_where_an_intermediate_passes_the_budget() -> None:
    program = parse(PROGRAMS["attention"])
    lowering = lower(program, {i.name: TensorType(i.dims, "float64") for i in program.inputs}, {})  # type: ignore[arg-type]
    steps = in_slabs(lowering.stages["flat"], lowering.types, Options(memory_budget=13 * 20 * 8 - 1))
    (slab,) = [step.slab for step in steps if step.slab]
    assert slab.wanted == ("O",) and slab.rows * (20 + 1) * 8 <= 13 * 20 * 8


def test_sixteen_bits_are_not_added_up_piece_by_piece() -> None:
    program = parse("function (X[13, 20]) -> (Y, S) { Y = X * X; S[] = sum(Y[i, j]); }")
    lowering = lower(program, {"X": TensorType((13, 20), "bfloat16")}, {})
    assert not any(step.slab for step in in_slabs(lowering.stages["flat"], lowering.types, SMALL))


def test_what_is_shared_is_computed_once() -> None:
    program = parse(PROGRAMS["softmax"])
    executable, _ = run(program, inputs_of(program), replace(SMALL, library=False))
    assert executable.source().count(".exp_()") == 2  # for slabs of three rows and for the last one


@pytest.mark.parametrize("budget", [pytest.param("1MiB", marks=pytest.mark.slow), "256KiB"])
def test_attention_stays_within_the_budget(budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """300^2 scores of 4 heads take 1.4 MiB. No tensor of a forward or backward pass is larger than the budget."""
    monkeypatch.setenv("TILEC_MEMORY_BUDGET", budget)
    attention = tilec.compile("""
    function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
        S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
        L[b, i] = logsumexp(i - j >= 0 ? S[b, i, j]);
        O[b, i, f] = sum(i - j >= 0 ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }""")
    q, k, v = (
        torch.randn(4, 300, 16, generator=torch.Generator().manual_seed(n), requires_grad=True) for n in range(3)
    )
    largest = 0

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.untyped_storage().nbytes())
            return result

    with Watching():
        value = attention(q, k, v)
        found = torch.autograd.grad(value.sin().sum(), (q, k, v))
    limit = {"1MiB": 2**20, "256KiB": 2**18}[budget]
    assert largest <= limit
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1)
    torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(found, torch.autograd.grad(wanted.sin().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert kept_bytes(lambda: attention(q, k, v)) == 4 * (4 * q.numel() + 4 * 300)
