"""Sums of which few elements are read, or summands of which few are written, are computed at these places alone."""

import pytest
import torch

import tilec
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import CallContext, apply

N, V, K, M, E = 5, 320, 3, 2, 7
SCORES = "S[n, v : N, V] = sum(A[n, k] * B[v, k]);"
ROWS = "function (A[N, K], B[V, K], I[N, M]) -> (O) "
EDGES = "function (A[N, K], B[V, K], R[E], C[E]) -> (O) "
CASES = {
    "candidates": ROWS + "{ " + SCORES + " O[n, m : N, M] = S[n, I[n, m]]; }",
    "distances": ROWS + "{ S[n, v : N, V] = sum[k]((A[n, k] - B[v, k]) * (A[n, k] - B[v, k])); "
    "O[n, m : N, M] = exp(-S[n, I[n, m]]); }",
    "other aggregations": ROWS + "{ S[n, v : N, V] = logsumexp(A[n, k] + B[v, k]); T[n, v : N, V] = "
    "max(A[n, k] * B[v, k]); O[n, m : N, M] = S[n, I[n, m]] * T[n, I[n, m]]; }",
    "edges": EDGES + "{ " + SCORES + " W[e : E] = exp(S[R[e], C[e]]); Z[R[e] : N] = +(W[e]); "
    "O[R[e], k : N, K] = +(W[e] / Z[R[e]] * B[C[e], k]); }",
    "a row's own": "function (A[N, K], B[V, K], T[N], I[N, M]) -> (L) { "
    + SCORES
    + " Z[n : N] = logsumexp(S[n, I[n, m]]);"
    " L[] = mean(Z[n] - S[n, T[n]]); }",
    "elementwise between": ROWS + "{ " + SCORES + " Y[n, v : N, V] = tanh(S[n, v]) * S[n, v] + S[n, v] / 3;"
    " Q = 2 * Y; O[n : N] = logsumexp(Q[n, I[n, m]]); }",
    "beyond the last": ROWS + "{ " + SCORES + " O[n, m : N, M] = S[n, I[n, m] + m] - S[n, clamp(I[n, m], 0, V - 1)]; }",
    "of a mask": ROWS + "{ S[n, v : N, V] = sum(A[n, k] > 0 ? A[n, k] * B[v, k]); O[n, m : N, M] = S[n, I[n, m]]; }",
    "names that clash": ROWS + "{ " + SCORES + " O[k, v : N, M] = S[k, I[k, v]]; }",
    "a diagonal": "function (B[V, K]) -> (O) { S[n, v : V, V] = sum(sin(B[n, k]) * B[v, k]); O[n : V] = S[n, n]; }",
    "a slice": "function (A[N, K], B[V, K]) -> (O) { S[v, n : V, N] = sum(A[n, k] * B[v, k]); "
    "O[n : N] = S[V - 1, n]; }",
}
STAYS = {
    "read whole": ROWS + "{ " + SCORES + " Z[n : N] = max(S[n, v]); O[n, m : N, M] = S[n, I[n, m]] - Z[n]; }",
    "an output": "function (A[N, K], B[V, K], I[N, M]) -> (O, S) { " + SCORES + " O[n, m : N, M] = S[n, I[n, m]]; }",
    "in a branch": ROWS + "{ " + SCORES + " O[n, m : N, M] = I[n, m] > 3 ? S[n, I[n, m]] : 2.0; }",
    "padded": ROWS + "{ " + SCORES + " O[n, m : N, M] = pad(S[n, I[n, m]], 5.0); }",
    "places as values": ROWS + "{ S[n, v : N, V] = sum(A[n, k] * B[v, k] * v); O[n, m : N, M] = S[n, I[n, m]]; }",
    "written and asked": ROWS + "{ S[n, I[n, 0] : N, V] = +(A[n, 0]);"
    " O[n, k : N, K] = sum(S[n, v] > 0 ? S[n, v] * B[v, k]); }",
    "at as many": ROWS + "{ " + SCORES + " O[n, u, m : N, V, M] = S[n, I[n, m] + u]; }",
}


def tensors(text: str) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    made = {"A": torch.randn(N, K, generator=g).double(), "B": torch.randn(V, K, generator=g).double()}
    made |= {"I": torch.randint(-1, V + 1, (N, M), generator=g), "T": torch.randint(-1, V + 1, (N,), generator=g)}
    made |= {"R": torch.randint(-1, N + 1, (E,), generator=g), "C": torch.randint(-1, V + 1, (E,), generator=g)}
    return {name: made[name] for name in parse(text).input_names()}


def flat(program: Program, given: dict[str, torch.Tensor]) -> Program:
    types = {n: TensorType(tuple(t.shape), str(t.dtype).split(".")[1]) for n, t in given.items()}
    passes = ("bind", "flatten", "simplify", "sum_written_terms", "aggregate_where_read", "simplify")
    return apply(passes, program, CallContext(types, {}))


def largest(program: Program) -> int:
    sizes = [
        [getattr(n, "value", 0) for n in s.sizes or ()] for s in program.statements if s.output not in program.outputs
    ]
    return max((torch.Size(x).numel() for x in sizes), default=0)


def in_tuple(values):
    return values if isinstance(values, tuple) else (values,)


def check(f: tilec.Function, text: str, given: dict[str, torch.Tensor]) -> None:
    """Values and gradients as the oracle has them, which runs no pass. That the text of the gradient is one,
    differences along random directions say."""
    floating = [n for n, t in given.items() if t.is_floating_point()]
    plain = [t.numpy() for t in given.values()]
    values = [given[n].clone().requires_grad_() for n in floating]

    def called(*x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return in_tuple(f(**(given | dict(zip(floating, x, strict=True)))))

    made = called(*values)
    cotangents = [torch.randn(value.shape, dtype=value.dtype) for value in made]
    gradients = torch.autograd.grad(made, values, cotangents, retain_graph=True)
    wanted = tilec.interpret(f.grad(floating).tile, *plain, *(c.numpy() for c in cotangents))
    oracle = (*in_tuple(tilec.interpret(text, *plain)), *in_tuple(wanted))
    for result, want in zip((*made, *gradients), oracle, strict=True):
        assert torch.allclose(result.detach(), torch.as_tensor(want))
    assert torch.autograd.gradcheck(called, values, fast_mode=True)


@pytest.mark.parametrize("text", (CASES | STAYS).values(), ids=(CASES | STAYS).keys())
def test_values_and_gradients(text: str) -> None:
    """Some places are outside."""
    check(tilec.compile(text), text, tensors(text))


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_what_is_computed(text: str) -> None:
    """Nothing of N x V elements, forward or backward."""
    given = tensors(text)
    f = tilec.compile(text)
    assert largest(flat(f.program, given)) < N * V
    made = f(**given)
    cotangents = {f"D{f.program.outputs[0]}": made}
    assert largest(flat(f.grad().program, given | cotangents)) < N * V


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS.keys())
def test_what_stays(text: str) -> None:
    assert any(s.output == "S" for s in flat(tilec.compile(text).program, tensors(text)).statements)


def test_few_of_what_few_are_read_of() -> None:
    """Both are computed at these places alone, and each once what reads it is."""
    reading = "T[v, n : V, N] = sum(S[n, I[n, m]] * B[v, k]); O[n : N] = T[3, n] * T[I[n, 0], n];"
    text = ROWS + "{ " + SCORES + reading + " }"
    given = tensors(text)
    f = tilec.compile(text)
    assert largest(flat(f.program, given)) < N * V
    check(f, text, given)


def test_conditions_stay_conditions() -> None:
    text = ROWS + "{ S[n, v : N, V] = A[n, 0] > B[v, 0]; O[n, m : N, M] = S[n, I[n, m]]; }"
    given = tensors(text)
    assert all(s.output != "S" for s in flat(tilec.compile(text).program, given).statements)
    made, inside = tilec.compile(text)(**given), (given["I"] >= 0) & (given["I"] < V)
    wanted = (given["A"][:, :1] > given["B"][given["I"].clamp(0, V - 1), 0]) & inside
    assert made.dtype == torch.bool and torch.equal(made, wanted)


def test_gradient_that_something_needs_whole() -> None:
    """A gradient of the scores that is an output, and one that is added to what is dense."""
    text = (
        "function (A[N, K], B[V, K], I[N, M]) -> (O, P) { "
        + SCORES
        + (" O[n, m : N, M] = S[n, I[n, m]]; P[n : N] = logsumexp(S[n, v]); }")
    )
    check(tilec.compile(text), text, tensors(text))


def test_products_keep_more_places() -> None:
    """Where rows still serve columns, a quarter of the elements is few; where each reads for itself, a 64th."""
    product = "function (B[V, K], W[L, K], J[Q]) -> (O) { Y[v, l] = sum(B[v, k] * W[l, k]); O[q, l] = Y[J[q], l]; }"
    types = {"B": torch.empty(64, 8), "W": torch.empty(8, 8)}
    for places, few in ((16, True), (17, False)):
        program = flat(tilec.compile(product).program, types | {"J": torch.zeros(places, dtype=torch.int64)})
        assert any(s.output == "Y" for s in program.statements) != few
    for places, few in ((4, True), (5, False)):
        given = {"A": torch.empty(8, 8), "B": torch.empty(256, 8), "I": torch.zeros(8, places, dtype=torch.int64)}
        program = flat(tilec.compile(CASES["candidates"]).program, given)
        assert any(s.output == "S" for s in program.statements) != few
