"""Placements derived from indices: what each rank computes of its own part, put together, is the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.stages import setting_of

import tilec
from tilec.distributed.sharding import Sharding, shard
from tilec.errors import InputMistake, NameMistake
from tilec.ir.evaluate import evaluate
from tilec.ir.infer import infer
from tilec.ir.program import Access, Index, Input, Int, Program, expressions, reads, walk
from tilec.language import parse
from tilec.pipeline import apply

RANKS = 3
COMBINED = {"sum": np.sum, "max": np.max, "min": np.min, "product": np.prod}


def sharding(source: str, arrays, dims, ranks=RANKS) -> Sharding:
    program = parse(source)
    setting = setting_of(program, arrays)
    flat = apply(("bind", "flatten", "simplify"), program, setting)
    return shard(flat, infer(flat, setting.types), dims, ranks)


def simulated(source: str, arrays, dims) -> list[np.ndarray]:
    """The outputs of ranks that each compute on their own part of what a statement's variable runs over."""
    told = sharding(source, arrays, dims)
    known = dict(zip(parse(source).input_names(), map(np.asarray, arrays), strict=True))
    for step in told.steps:
        s, v = step.statement, step.variable
        names = [n for n in reads(s) if n in known]
        if v is None:
            parts = [slice(None)]
        else:
            size = next(
                known[e.tensor].shape[d]
                for root in expressions(s)
                for e in walk(root)
                if isinstance(e, Access) and e.tensor in known
                for d, i in enumerate(e.index)
                if i == Index(v)
            )
            bounds = np.linspace(0, size, RANKS + 1).astype(int)
            parts = [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
        results = []
        for part in parts:
            local = {n: known[n] for n in names}
            own = s
            if v is not None:
                for n in names:
                    dim = {d for a in _reads(s, n) for d, i in enumerate(a.index) if i == Index(v)}
                    for d in dim:
                        local[n] = local[n][(slice(None),) * d + (part,)]
                if step.placement.dim is not None:
                    sizes = list(s.sizes)
                    sizes[step.placement.dim] = Int(part.stop - part.start)
                    own = replace(s, sizes=tuple(sizes))
            inputs = tuple(Input(n, tuple(local[n].shape)) for n in names)
            results += evaluate(Program(None, inputs, (s.output,), (own,)), list(local.values()))
        if step.placement.dim is not None:
            known[s.output] = np.concatenate(results, step.placement.dim)
        elif step.placement.reduction is not None:
            known[s.output] = COMBINED[step.placement.reduction](np.stack(results), 0)
        else:
            known[s.output] = results[0]
    return [known[o] for o in told.outputs]


def _reads(s, name):
    return [e for root in expressions(s) for e in walk(root) if isinstance(e, Access) and e.tensor == name]


def _(*shape):
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(float)


MATMUL = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"
SOFTMAX = "function (X[N, D]) -> (Y) { E[i, j] = exp(X[i, j] - max(X[i, k])); Y[i, j] = E[i, j] / sum(E[i, k]); }"
CONVOLUTION = "function (X[N, C], K[J, C, O]) -> (Y) { Y[n, o : N - J + 1, O] = +(X[n + j, c] * K[j, c, o]); }"
LOGSUMEXP = "function (X[N, D]) -> (Y) { Y[i : N] = logsumexp(X[i, j]); }"
RECURRENCE = "function (X[T, D]) -> (H) { H[t, i : T, D] = tanh(H[t - 1, i] + X[t, i]); }"
CASES = [
    (MATMUL, [_(6, 4), _(4, 5)], {"A": 0}, "Shard(0)", 0),
    (MATMUL, [_(6, 4), _(4, 5)], {"B": -1}, "Shard(1)", 0),
    (MATMUL, [_(6, 4), _(4, 5)], {"A": 1, "B": 0}, "Partial(sum)", 0),
    (MATMUL, [_(6, 4), _(4, 5)], {"A": 1}, "Partial(sum)", 0),
    (MATMUL, [_(6, 4), _(4, 5)], {"A": 0, "B": 1}, "Replicate()", 2),
    (MATMUL.replace("+(", ">("), [_(6, 4), _(4, 5)], {"A": 1, "B": 0}, "Partial(max)", 0),
    (MATMUL.replace("+(", "*("), [_(6, 4), _(4, 5)], {"A": 1, "B": 0}, "Partial(product)", 0),
    (LOGSUMEXP, [_(5, 6)], {"X": 1}, "Replicate()", 2),
    (LOGSUMEXP, [np.full((2, 6), -np.inf)], {"X": 1}, "Replicate()", 2),
    (LOGSUMEXP, [np.array([[np.inf, 1, -np.inf]])], {"X": 1}, "Replicate()", 2),
    (LOGSUMEXP, [_(5, 6)], {"X": 0}, "Shard(0)", 0),
    ("function (X[N]) -> (Y) { Y[] = any(X[i] > 0); }", [_(6)], {"X": 0}, "Partial(max)", 0),
    ("function (X[N]) -> (Y) { Y[] = mean(X[i]); }", [_(6)], {"X": 0}, "Replicate()", 1),
    (SOFTMAX, [_(5, 4)], {"X": 0}, "Shard(0)", 0),
    (SOFTMAX, [_(5, 4)], {"X": 1}, "Shard(1)", 2),
    (CONVOLUTION, [_(7, 2), _(3, 2, 4)], {"K": 2}, "Shard(1)", 0),
    (CONVOLUTION, [_(7, 3), _(3, 3, 4)], {"X": 1, "K": 1}, "Partial(sum)", 0),
    (CONVOLUTION, [_(7, 2), _(3, 2, 4)], {"X": 0}, "Replicate()", 1),
    (RECURRENCE, [_(4, 6)], {"X": 1}, "Shard(1)", 0),
    (RECURRENCE, [_(4, 6)], {"X": 0}, "Replicate()", 1),
    ("function (X[N]) -> (Y) { Y[i : N] = X[i] * i; }", [_(6)], {"X": 0}, "Replicate()", 1),
    ("function (X[N]) -> (Y) { Y[i : N + 1] = X[i]; }", [_(6)], {"X": 0}, "Replicate()", 1),
    ("function (X[N], Y[M]) -> (Z) { Z[] = +(X[i] * Y[i]); }", [_(6), _(4)], {"X": 0}, "Replicate()", 1),
    ("function (X[N, D]) -> (Y) { Y[i : N] = argmax(X[i, j]); }", [_(6, 4)], {"X": 1}, "Replicate()", None),
]


@pytest.mark.parametrize("source, arrays, dims, placement, count", CASES)
def test_parts_make_the_whole(source, arrays, dims, placement, count):
    told = sharding(source, arrays, dims)
    assert str(next(iter(told.outputs.values()))) == placement
    assert count is None or len(told.communications) == count, str(told)
    for got, expected in zip(simulated(source, arrays, dims), evaluate(parse(source), arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_what_is_communicated_is_told():
    told = sharding(CONVOLUTION, [_(9, 2), _(3, 2, 4)], {"X": 0})
    (gathered,) = told.communications
    assert (gathered.tensor, gathered.collective, gathered.bytes) == ("X", "all-gather", 9 * 2 * 8 * 2 // 3)
    assert "other places of dimension 0" in gathered.reason
    reduced = sharding(SOFTMAX, [_(5, 6)], {"X": 1}).communications
    assert [c.collective for c in reduced] == ["all-reduce", "all-reduce"]
    assert [c.bytes for c in reduced] == [2 * ((5 * 8 * 2 + 2) // 3)] * 2


def test_of_a_function():
    told = tilec.compile(MATMUL).sharding({"A": 1, "B": 0}, tilec.spec((6, 4)), tilec.spec((4, 5)), ranks=2)
    assert str(told) == "C: Partial(sum)"


def test_refused():
    for dims, error in (({"Q": 0}, NameMistake), ({"A": 2}, InputMistake)):
        with pytest.raises(error):
            sharding(MATMUL, [_(6, 4), _(4, 5)], dims)
    with pytest.raises(InputMistake):
        sharding(MATMUL, [_(6, 4), _(4, 5)], {}, 0)
