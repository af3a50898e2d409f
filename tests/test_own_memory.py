"""Outputs have memory of their own: they share none with an input, with each other or with what autograd keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from support.memory import PROGRAMS, SHAPES, called, drawn, owned
from support.programs import PHASES, Case, Options, programs
from support.scale import scaled
from support.stages import REFUSALS

import tilec


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(5)
def test_outputs_share_no_memory(name):
    source = PROGRAMS[name]
    f = tilec.compile(source)
    for sizes in SHAPES:
        for dtype in (torch.float64, torch.bfloat16):
            inputs = drawn(source, sizes, dtype)
            owned(called(f, inputs), inputs)
            results = called(f, inputs)
            again = called(f, inputs)  # by the way that later calls take
            owned(again, [*results, *inputs])
            cotangents = [torch.ones_like(r) for r in results]
            owned(called(f.grad(), [*inputs, *cotangents]), [*inputs, *cotangents])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded_outputs_share_no_memory(name):
    source = PROGRAMS[name]
    f = tilec.compile(source)
    for sizes in SHAPES:
        inputs = [t.requires_grad_() for t in drawn(source, sizes, torch.float64)]
        results = called(f, inputs)
        owned(results, inputs)
        if not any(r.requires_grad for r in results) or "maximum" in name:
            continue  # a maximum keeps its output
        wanted = torch.autograd.grad(sum(r.sum() for r in called(f, inputs) if r.requires_grad), inputs)
        results = called(f, inputs)
        changed = [r.add_(1) for r in results if r.requires_grad]  # what is linear keeps none of its outputs
        got = torch.autograd.grad(sum(r.sum() for r in changed), inputs)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_arrays_stay_as_they_are():
    x = np.ones((3, 4))
    for name in ("an input", "a cast to its own type", "two names of an input"):
        results = tilec.compile(PROGRAMS[name])(x)
        for y in results if isinstance(results, tuple) else (results,):
            assert not np.shares_memory(x, y)
            y += 1
    assert (x == 1).all()


def test_layers_take_operations_in_place():
    conv = tilec.compile(PROGRAMS["a convolution"])
    x, k = torch.randn(2, 5, 2, requires_grad=True), torch.randn(3, 2, 2, requires_grad=True)
    bias = torch.randn(2, requires_grad=True)
    y = conv(x, k)
    y += bias
    (F.relu_(y) ** 2).sum().backward()
    found = [t.grad for t in (x, k, bias)]
    wanted = torch.autograd.grad((F.relu(conv(x, k) + bias) ** 2).sum(), (x, k, bias))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_what_the_backward_pass_needs_is_not_overwritten_in_silence():
    f = tilec.compile("function (X[N]) -> (Y) { Y = exp(X); }")
    x = torch.randn(5, requires_grad=True)
    y = f(x)
    assert [s.name for s in f.saved(x)] == ["Y"]
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_programs_in_chunks_of_time(monkeypatch):
    monkeypatch.setenv("TILEC_STATE_BUDGET", "2000")
    f = tilec.compile(
        "function (X[T, N]) -> (X, Y, Y) { H[t, n : T, N] = tanh(H[t - 1, n] + X[t, n]); Y[n : N] = +(H[t, n]); }"
    )
    x = torch.rand(200, 3, dtype=torch.float64, requires_grad=True)
    owned(called(f, [x]), [x])
    results = called(f, [x])
    torch.autograd.grad(sum(r.sum() for r in results), x)


def test_nothing_is_copied_twice():
    """A gather and a turn are copies already; a value that is computed is one too."""
    x, i = tilec.spec((5, 3)), tilec.spec((4,), "int64")
    for source in (
        "function (X[N, M], I[K]) -> (Y) { Y[k, j : K, M] = X[I[k], j]; }",
        "function (X[N, M], I[K]) -> (Y) { Y[i, j : N, M] = X[(i + 1) % N, j]; }",
        "function (X[N, M], I[K]) -> (Y) { Y = float64(X); }",
    ):
        text = tilec.compile(source).lower(x, i).source()
        assert "clone" not in text, text


def test_random_programs():
    ran = []

    @settings(max_examples=scaled(60), phases=PHASES)
    @given(programs(Options(statements=3)))
    def run(case: Case):
        inputs = [torch.from_numpy(np.array(a)) for a in case.inputs.values()]
        try:
            results = called(tilec.compile(case.source), inputs)
        except REFUSALS:
            return
        owned(results, inputs)
        ran.append(1)

    run()
    assert len(ran) > scaled(30)


def test_a_part_does_not_keep_the_whole() -> None:
    """Elements of an intermediate that are returned lie in memory of their own, not in all of its."""
    y = tilec.compile("function (X[N, L]) -> (Y) { A = X * 2; Y[i, j : 2, L] = A[i, j]; }")(torch.randn(64, 8))
    assert y.untyped_storage().nbytes() == y.nbytes
