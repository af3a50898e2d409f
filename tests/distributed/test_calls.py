"""Calls on DTensors: outputs and gradients of one rank, placed as the indices say, for the bytes that the plan says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.ranks import Received, in_ranks
from support.sharded import check_ranks, distributed
from support.tiers import slow_but
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import tilec
from tilec.ir.evaluate import evaluate
from tilec.language import parse
from tilec.transforms.autodiff.grad import grad

RANKS = 3


def _(*shape):
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(float)


MATMUL = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"
SOFTMAX = "function (X[N, D]) -> (Y) { E[i, j] = exp(X[i, j] - max(X[i, k])); Y[i, j] = E[i, j] / sum(E[i, k]); }"
WINDOW = "function (X[N, C], K[J, C, O]) -> (Y) { Y[n, o : N - J + 1, O] = +(X[n + j, c] * K[j, c, o]); }"
STRIDED = """function (X[N, C], K[J, C, O]) -> (Y) {
    Y[n, o : (N + 1)/2, O] = +(X[2*n + 3*j - 3, c] * K[j, c, o]);
}"""
ATTENTION = """function (Q[N, E], K[M, E], V[M, F]) -> (O) {
    S[i, j : N, M] = sum(Q[i, e] * K[j, e]);
    L[i] = logsumexp(j <= i ? S[i, j]);
    O[i, f : N, F] = sum(j <= i ? exp(S[i, j] - L[i]) * V[j, f]);
}"""
LOGSUMEXP = "function (X[N, D]) -> (Y) { Y[i : N] = logsumexp(X[i, j]); }"
RECURRENCE = "function (X[T, D]) -> (H) { H[t, i : T, D] = tanh(H[t - 1, i] + X[t, i]) init X[0, i]; }"
STATES = "function (X[T, D], Z[D]) -> (H) { H[t, i : T, D] = tanh(H[t - 1, i] + X[t, i]) init Z[i]; }"
SCAN = """function (A[T, D], X[T, D], Z[D]) -> (H) {
    H[t, i : T, D] = A[t, i] * H[t - 1, i] + X[t, i] * t init Z[i];
}"""
MAXIMA = "function (X[T, D]) -> (H) { H[t, i : T, D] = max(H[t - 1, i] + X[t, i], X[t, i]); }"
LOGARITHMS = "function (X[T, D]) -> (H) { H[t, i : T, D] = logaddexp(H[t + 1, i] + X[t, i], X[t, i]); }"
LANE = "function (X[T]) -> (H) { H[t : T] = 0.5 * H[t + 1] + X[t] init 3 + t; }"
PADDED = "function (X[T, D]) -> (H) { H[t, i : T, D] = 0.5 * pad(H[t - 1, i], X[t, i]) + X[t, i]; }"
BACKWARD = "function (X[T, D]) -> (H) { H[t, i : T, D] = 0.5 * H[t + 1, i] + X[t, i] init 0.1 * t; }"
ACROSS = """function (X[T, D], H0[C, D]) -> (H) {
    H[t, i : T, D] = tanh(H[t - 1, (i - 1) % D] + 0.5 * H[t - 2, i + 1]) + X[t, i] init H0[t + 2, i];
}"""
CHAIN = "function (X[T, D], W[D, D]) -> (H) { H[t, i : T, D] = logsumexp(H[t - 1, j] + W[j, i]) + X[t, i]; }"
FAR = "function (X[T]) -> (H) { H[t : T] = 0.5 * H[t - 4] + 0.3 * H[t - 1] + X[t] init 0.2 * t; }"
TABLE = "function (T[V, D], I[N]) -> (Y) { Y[n, d] = T[I[n], d]; }"
MASK = "function (X[N, D], S[]) -> (Y) { Y[i, j : N, D] = rand(S[], 7*i + j) < 0.5 ? X[i, j] * i; }"
INDICES = np.array([3, 0, 7, 9, 2, 3, -1])
S, R, P = Shard, Replicate(), Partial("sum")
CASES = {
    "rows": (MATMUL, [_(7, 4), _(4, 5)], [S(0), R], "Shard(0)", ""),
    "columns": (MATMUL, [_(7, 4), _(4, 5)], [R, S(1)], "Shard(1)", ""),
    "terms": (MATMUL, [_(7, 4), _(4, 5)], [S(1), S(0)], "Partial(sum)", ""),
    "terms of one": (MATMUL, [_(7, 4), _(4, 5)], [S(1), R], "Partial(sum)", ""),
    "maxima": (MATMUL.replace("+(", ">("), [_(6, 4), _(4, 5)], [S(1), S(0)], "Partial(max)", ""),
    "products": (MATMUL.replace("+(", "*("), [_(6, 4), _(4, 5)], [S(1), S(0)], "Partial(product)", ""),
    "rows and columns": (MATMUL, [_(7, 4), _(4, 5)], [S(0), S(1)], "Shard(0)", "all-gather"),
    "parts": (MATMUL, [_(7, 4), _(4, 5)], [P, R], "Replicate()", "all-reduce"),
    "logsumexp": (LOGSUMEXP, [_(2, 24)], [S(1)], "Replicate()", "all-reduce all-reduce"),
    "infinities": (LOGSUMEXP, [np.full((2, 24), -np.inf)], [S(1)], "Replicate()", "all-reduce all-reduce"),
    "infinity": (LOGSUMEXP, [np.array([[np.inf, 1, -np.inf] * 5])], [S(1)], "Replicate()", "all-reduce all-reduce"),
    "softmax of rows": (SOFTMAX, [_(5, 4)], [S(0)], "Shard(0)", ""),
    "softmax": (SOFTMAX, [_(5, 4)], [S(1)], "Shard(1)", "all-reduce all-reduce"),
    "window": (WINDOW, [_(13, 2), _(3, 2, 4)], [S(0), R], "Shard(0)", "halo exchange"),
    "window's channels": (WINDOW, [_(7, 3), _(3, 3, 4)], [S(1), S(1)], "Partial(sum)", ""),
    "window's kernels": (WINDOW, [_(7, 2), _(3, 2, 4)], [R, S(2)], "Shard(1)", ""),
    "stride and dilation": (STRIDED, [_(23, 2), _(3, 2, 4)], [S(0), R], "Shard(0)", "halo exchange"),
    "causal rows": (ATTENTION, [_(9, 2), _(9, 2), _(9, 3)], [S(0)] * 3, "Shard(0)", "all-gather all-to-all"),
    "recurrence": (RECURRENCE, [_(4, 6)], [S(1)], "Shard(1)", ""),
    "time": (STATES, [_(40, 3), _(3)], [S(0), R], "Shard(0)", "passing states"),
    "scan": (SCAN, [_(50, 2), _(50, 2), _(2)], [S(0), S(0), R], "Shard(0)", "all-gather of steps"),
    "scan back": (BACKWARD, [_(80, 2)], [S(0)], "Shard(0)", "all-gather of steps"),
    "scan of maxima": (MAXIMA, [_(60, 2)], [S(0)], "Shard(0)", "all-gather of steps"),
    "scan of logarithms": (LOGARITHMS, [_(60, 2)], [S(0)], "Shard(0)", "all-gather of steps"),
    "scan in blocks": (
        *("function (X[T]) -> (H) { H[t : T] = 0.5 * H[t - 1] + X[t] init 3; }", [_(1536)], [S(0)]),
        *("Shard(0)", "all-gather of steps"),
    ),
    "scan back in blocks": (LANE, [_(1536)], [S(0)], "Shard(0)", "all-gather of steps"),
    "scan of a rank without steps": (LANE, [_(4)], [S(0)], "Shard(0)", "all-gather of steps"),
    "two steps back, across lanes": (ACROSS, [_(11, 6), _(3, 6)], [S(0), R], "Shard(0)", "passing states"),
    "padded states": (PADDED, [_(8, 3)], [S(0)], "Shard(1)", "all-to-all"),
    "chain of states": (CHAIN, [_(13, 4), _(4, 4)], [S(0), R], "Shard(0)", "passing states"),
    "more steps back than a rank has": (FAR, [_(9)], [S(0)], "Shard(0)", "passing states"),
    "rows of a table": (TABLE, [_(8, 4), INDICES], [R, S(0)], "Shard(0)", ""),
    "table": (TABLE, [_(8, 4), INDICES], [S(1), R], "Shard(1)", ""),
    "draws": (MASK, [_(7, 3), np.array(5)], [S(0), R], "Shard(0)", ""),
    "more ranks than rows": (MATMUL, [_(2, 4), _(4, 5)], [S(0), R], "Shard(0)", ""),
    "any": ("function (X[N]) -> (Y) { Y[] = any(X[i] > 0); }", [_(6)], [S(0)], "Replicate()", "all-reduce"),
    "mean": ("function (X[N]) -> (Y) { Y[] = mean(X[i]); }", [_(6)], [S(0)], "Replicate()", "all-reduce"),
    "larger": ("function (X[N]) -> (Y) { Y[i : N + 1] = X[i]; }", [_(6)], [S(0)], "Shard(0)", "all-to-all"),
    "diagonal": ("function (X[N, N]) -> (Y) { Y[i : N] = X[i, i]; }", [_(6, 6)], [S(1)], "Shard(0)", ""),
    "argmax": (
        "function (X[N, D]) -> (Y) { Y[i : N] = argmax(X[i, j]); }",
        *([_(6, 40)], [S(1)], "Replicate()", "all-reduce all-reduce"),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(8)
def test_ranks_compute_what_one_does(name):
    source, arrays, placements, placement, collectives = CASES[name]
    check_case(source, arrays, RANKS, placements, placement, collectives)


def check_case(source, arrays, ranks, placements, placement, collectives):
    program, f = parse(source), tilec.compile(source)
    expected = evaluate(program, arrays)
    gradients = None
    floating = [n for n, a in zip(program.input_names(), arrays, strict=True) if a.dtype.kind == "f"]
    if expected[0].dtype.kind == "f":
        cotangents = [np.random.default_rng(0).normal(size=expected[0].shape)]
        gradients = cotangents, evaluate(grad(program, tuple(floating)), [*arrays, *cotangents])
    check_ranks(f, (), arrays, ranks, placements, expected, 1e-6, gradients)
    told = f.sharding(dict(zip(program.input_names(), placements, strict=True)), *arrays, ranks=ranks)
    assert str(next(iter(told.outputs.values()))) == placement
    assert " ".join(c.collective for c in told.communications) == collectives, str(told)


FIRST = {case[4]: name for name, case in reversed(CASES.items())}  # of those with the same collectives


@pytest.mark.parametrize("name", slow_but(CASES, FIRST.values()))
@pytest.mark.one_in(5)
def test_what_is_communicated_is_told(name):
    source, arrays, placements, _, _ = CASES[name]
    check_bytes(source, arrays, RANKS, placements)


def check_bytes(source, arrays, ranks, placements):
    """Forward and backward, on every rank."""
    f = tilec.compile(source)
    names = f.inputs

    def body(mesh):
        given = [distributed(a, mesh, p) for a, p in zip(arrays, placements, strict=True)]
        Received.reset()
        result = f(*given)
        forward = Received.bytes(), f.sharding({}, *given)
        if not result.is_floating_point():
            return [forward]
        gradient = f.grad([n for n, g in zip(names, given, strict=True) if g.is_floating_point()])
        cotangent = distributed(np.ones(result.shape), mesh, [Replicate()] * mesh.ndim)
        Received.reset()
        gradient(*given, cotangent)
        return [forward, (Received.bytes(), gradient.sharding({}, *given, cotangent))]

    with Received.counted():
        for rank, results in enumerate(in_ranks(ranks, body)):
            for received, told in results:
                assert received == sum(c.received[rank] for c in told.communications), str(told)


SQUARE, WIDE = (2, 2), (2, 3)
ON_MESHES = {
    "rows and columns": (MATMUL, [_(7, 4), _(4, 5)], SQUARE, [[S(0), R], [R, S(1)]], "[Shard(0), Shard(1)]", ""),
    "rows and terms": (MATMUL, [_(7, 4), _(4, 5)], SQUARE, [[S(0), S(1)], [R, S(0)]], "[Shard(0), Partial(sum)]", ""),
    "terms twice": (MATMUL, [_(7, 9), _(9, 5)], WIDE, [[S(1), S(1)], [S(0), S(0)]], "[Partial(sum), Partial(sum)]", ""),
    "rows twice": (MATMUL, [_(7, 4), _(4, 5)], WIDE, [[S(0), S(0)], [R, R]], "[Shard(0), Shard(0)]", ""),
    "blocks": (
        *(MATMUL, [_(6, 6), _(6, 6)], SQUARE, [[S(0), S(1)], [S(0), S(1)]]),
        *("[Shard(0), Shard(1)]", "all-gather all-gather"),
    ),
    "parts": (
        *(MATMUL, [_(7, 4), _(4, 5)], SQUARE, [[S(0), P], [P, R]]),
        *("[Shard(0), Replicate()]", "all-reduce all-reduce"),
    ),
    "window": (
        *(WINDOW, [_(13, 4), _(3, 4, 4)], SQUARE, [[S(0), R], [R, S(2)]]),
        *("[Shard(0), Shard(1)]", "halo exchange"),
    ),
    "window of parts of parts": (
        *(WINDOW, [_(30, 2), _(3, 2, 4)], SQUARE, [[S(0), S(0)], [R, R]]),
        *("[Shard(0), Shard(0)]", "all-to-all halo exchange"),
    ),
    "softmax": (SOFTMAX, [_(5, 6)], SQUARE, [[S(0), S(1)]], "[Shard(0), Shard(1)]", "all-reduce all-reduce"),
    "logsumexp": (
        *(LOGSUMEXP, [_(2, 24)], SQUARE, [[S(1), S(1)]]),
        *("[Replicate(), Replicate()]", "all-reduce all-reduce all-reduce all-reduce"),
    ),
    "time and lanes": (
        *(STATES, [_(40, 4), _(4)], SQUARE, [[S(0), S(1)], [R, S(0)]]),
        *("[Shard(0), Shard(1)]", "passing states"),
    ),
    "time and lanes of a scan": (
        *(SCAN, [_(50, 2), _(50, 2), _(2)], SQUARE, [[S(0), S(1)], [S(0), S(1)], [R, S(0)]]),
        *("[Shard(0), Shard(1)]", "all-gather of steps"),
    ),
    "time twice": (
        *(STATES, [_(40, 4), _(4)], SQUARE, [[S(0), S(0)], [R, R]]),
        *("[Shard(0), Shard(1)]", "all-to-all passing states"),
    ),
    "table": (TABLE, [_(80, 4), INDICES], SQUARE, [[S(0), S(1)], [R, R]], "[Partial(sum), Shard(1)]", ""),
    "table twice": (TABLE, [_(800, 4), INDICES], SQUARE, [[S(0), S(0)], [R, R]], "[Partial(sum), Partial(sum)]", ""),
    "rows of a table": (TABLE, [_(80, 4), INDICES], SQUARE, [[S(0), R], [R, S(0)]], "[Partial(sum), Shard(0)]", ""),
    "attention": (
        *(ATTENTION, [_(9, 2), _(9, 2), _(9, 3)], SQUARE, [[S(0), R], [R, S(0)], [R, S(0)]]),
        *("[Shard(0), Partial(sum)]", "all-to-all all-to-all"),
    ),
}


def some(names):
    return [pytest.param(n, marks=[] if n in names else pytest.mark.slow) for n in ON_MESHES]


@pytest.mark.parametrize("name", some({"rows and terms", "window", "parts", "time and lanes", "table"}))
@pytest.mark.one_in(3)
def test_meshes(name):
    """Each dimension of a mesh divides in a way of its own."""
    source, arrays, mesh, placements, placement, collectives = ON_MESHES[name]
    check_case(source, arrays, mesh, placements, placement, collectives)


@pytest.mark.parametrize("name", some({"blocks", "window of parts of parts"}))
def test_what_is_communicated_on_meshes_is_told(name):
    source, arrays, mesh, placements, _, _ = ON_MESHES[name]
    check_bytes(source, arrays, mesh, placements)


def test_plan_of_specs():
    f = tilec.compile(MATMUL)
    told = f.sharding({"A": 1, "B": Shard(0)}, tilec.spec((6, 4)), tilec.spec((4, 5)), ranks=2)
    assert str(told) == "C: Partial(sum)"
    window = tilec.compile(WINDOW).sharding({"X": 0}, tilec.spec((9, 2)), tilec.spec((3, 2, 4)), ranks=3)
    (halo,) = window.communications
    assert (halo.tensor, halo.received, halo.bytes) == ("X", (2 * 2 * 4,) * 2 + (0,), 16)
    assert "reads up to 2 beyond" in halo.reason


def test_rows_are_exchanged_for_heads():
    """Where that moves less than all keys and values: what was sharded along rows is then along heads."""
    source = ATTENTION.replace("[", "[b, ").replace("function (Q[b, N", "function (Q[B, N").replace("K[b, M", "K[B, M")
    source = (
        source.replace("V[b, M", "V[B, M").replace("i, j : N, M", "i, j : B, N, M").replace("f : N, F", "f : B, N, F")
    )
    told = tilec.compile(source).sharding(dict.fromkeys("QKV", 1), *[tilec.spec((4, 64, 8))] * 3, ranks=2)
    assert str(told.outputs["O"]) == "Shard(0)"
    assert [c.collective for c in told.communications] == ["all-to-all"] * 3


def test_exact_recurrences_pass_states():
    told = [
        tilec.compile(SCAN, exact=exact).sharding(
            {"A": 0, "X": 0}, *[tilec.spec(s) for s in ((50, 2), (50, 2), (2,))], ranks=2
        )
        for exact in (False, True)
    ]
    assert [t.communications[0].collective for t in told] == ["all-gather of steps", "passing states"]
    assert [t.communications[0].received for t in told] == [(16, 16), (0, 8)]


def test_new_shapes():
    """Beside calls on plain tensors, for which sizes are left open from the second shape on."""
    f = tilec.compile(WINDOW)
    for rows in (13, 17, 14):
        arrays = [_(rows, 2), _(3, 2, 4)]
        f(*[torch.tensor(a, requires_grad=True) for a in arrays]).sum().backward()
        cotangents = [np.random.default_rng(0).normal(size=(rows - 2, 4))]
        gradients = cotangents, evaluate(grad(parse(WINDOW), ("X", "K")), [*arrays, *cotangents])
        check_ranks(f, (), arrays, 2, [S(0), R], evaluate(parse(WINDOW), arrays), 1e-6, gradients)


def test_backward_of_two_outputs_one_of_which_is_used():
    f = tilec.compile("function (X[N, D]) -> (Y, Z) { Y[i, j] = X[i, j] * X[i, j]; Z[j] = sum(X[i, j]); }")

    def body(mesh):
        x = distributed(_(5, 3), mesh, Shard(0)).requires_grad_()
        (found,) = torch.autograd.grad(f(x)[1].redistribute(placements=[Replicate()]).sum(), x)
        return found.placements, found.full_tensor()

    for placements, found in in_ranks(2, body):
        assert placements == (Replicate(),)  # as of the sum alone: every rank has what it is made of
        assert (found == 1).all()


def test_forward_mode():
    """A tangent is a Function like any other; that torch makes no dual of a DTensor is torch's own error."""
    f, arrays = tilec.compile(MATMUL), [_(7, 4), _(4, 5), _(7, 4) + 1, _(4, 5) * 2]
    expected = [arrays[0] @ arrays[1], arrays[2] @ arrays[1] + arrays[0] @ arrays[3]]
    check_ranks(f.jvp(), (), arrays, 2, [S(1), S(0), S(1), S(0)], expected, 1e-9)

    def body(mesh):
        a, b = distributed(_(4, 4), mesh, S(0)), distributed(_(4, 4), mesh, R)
        for call in (f, torch.matmul):
            with pytest.raises(NotImplementedError, match="sharding strategy"):
                torch.func.jvp(lambda a, call=call: call(a, b), (a,), (a,))

    in_ranks(1, body)  # levels of forward mode are those of the process


STRIDED_SHARD = _StridedShard(0, split_factor=1)


def test_one_dimension_of_a_larger_mesh():
    def body(mesh):
        larger = dist.init_device_mesh("cpu", (1, 2))
        a = distribute_tensor(torch.from_numpy(_(7, 4)), larger, [R, S(0)])
        b = distribute_tensor(torch.from_numpy(_(4, 5)), larger, [R, R])
        result = tilec.compile(MATMUL)(a, b)
        return result.placements, result.full_tensor().numpy()

    for placements, found in in_ranks(2, body):
        assert placements == (R, S(0))
        np.testing.assert_allclose(found, _(7, 4) @ _(4, 5))


REFUSED = {
    "a plain tensor": (lambda mesh: [distributed(_(4, 4), mesh, R), torch.ones(4, 4)], "B is a plain tensor"),
    "other meshes": (
        lambda mesh: [distributed(_(4, 4), mesh, R), distributed(_(4, 4), dist.init_device_mesh("cpu", (1, 2)), R)],
        "different meshes",
    ),
    "parts in strides": (
        lambda mesh: [DTensor.from_local(torch.ones(2, 4), mesh, [STRIDED_SHARD]), distributed(_(4, 4), mesh, R)],
        "A is placed as",
    ),
    "parts of another size": (
        lambda mesh: [
            DTensor.from_local(torch.ones(3, 4), mesh, [S(0)], shape=torch.Size((4, 4)), stride=(4, 1)),
            distributed(_(4, 4), mesh, R),
        ],
        "it should hold",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, message = REFUSED[name]

    def body(mesh):
        with pytest.raises(tilec.TileError, match=message):
            tilec.compile(MATMUL)(*make(mesh))

    in_ranks(2, body)


def test_parts_of_several_reductions_are_refused():
    f, specs = tilec.compile(MATMUL), (tilec.spec((6, 4)), tilec.spec((4, 5)))
    with pytest.raises(tilec.Unsupported, match="not put together by one reduction"):
        f.sharding({"A": [P, Partial("max")]}, *specs, ranks=SQUARE)
    with pytest.raises(tilec.InputMistake, match="A has 1 placements; the mesh has 2 dimensions"):
        f.sharding({"A": 0}, *specs, ranks=SQUARE)


def test_refused_plans():
    f, specs = tilec.compile(MATMUL), (tilec.spec((6, 4)), tilec.spec((4, 5)))
    for placements, error in (({"Q": 0}, tilec.errors.NameMistake), ({"A": 2}, tilec.errors.InputMistake)):
        with pytest.raises(error):
            f.sharding(placements, *specs, ranks=2)
    for ranks in (0, None):
        with pytest.raises(tilec.errors.InputMistake):
            f.sharding({}, *specs, ranks=ranks)
