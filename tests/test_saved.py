"""What autograd keeps of a call: no more than its rule allows, as `saved` says, and right to any order."""

from __future__ import annotations

import threading

import pytest
import torch
from support.tiers import slow_but

import tilec
from tests.support.saved import kept_bytes

LAYER_NORM = """
function (X[N, D], W[D], B[D]) -> (Y) {
    M[i] = mean(X[i, j]);
    R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
    Y[i, j] = (X[i, j] - M[i]) * R[i] * W[j] + B[j];
}
"""
SOFTMAX = "function (X[N, D]) -> (Y) { M[i] = max(X[i, k]); S[i] = sum(exp(X[i, k] - M[i])); Y = exp(X - reshape(M, N, 1)) / reshape(S, N, 1); }"  # noqa: E501
SNAKE = (
    "function (X[B, C, N], A[C]) -> (Y) { Y[b, c, n] = X[b, c, n] + sin(A[c]*X[b, c, n])*sin(A[c]*X[b, c, n])/A[c]; }"
)
DROPOUT = "function (X, R, S, P) -> (Y) { Y = R + (rand(S) < P ? X / P : 0); }"
WEIGHTED_MEAN = "function (X[N, D], W[N]) -> (Y) { M[i] = mean(X[i, j]); Y = M * W; }"
RECURRENCE = "function (X[T]) -> (H) { H[t : T] = tanh(H[t - 1] + X[t]); }"
POOL = "function (X[N, D, C]) -> (Y) { Y[i, c] = >(X[i, j, c]); }"
TWO = "function (X[N, D], W[D]) -> (L, Y) { L[i] = logsumexp(X[i, k]); Y[i, j] = (X[i, j] - L[i]) * W[j]; }"
STEP = "function (X[N], Z[N, D]) -> (Y) { S[i] = sum(Z[i, j] * Z[i, j]); Y = S > 1 ? X * X : X; }"
DENSE = "function (A[M, K], W[K, N], B[N]) -> (Y) { Z[i, j] = +(A[i, k] * W[k, j]); Y = gelu(Z + B); }"


def double(*shape: int) -> torch.Tensor:
    return torch.rand(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)), requires_grad=True
    )


CASES = {
    "layer norm": (LAYER_NORM, [(3, 40), (40,), (40,)], {"X": 120, "W": 40, "M": 3, "R": 3}),
    "snake": (SNAKE, [(2, 3, 5), (3,)], {"X": 30, "A": 3}),
    "a weighted mean": (WEIGHTED_MEAN, [(3, 40), (3,)], {"W": 3, "M": 3}),
    "exp": ("Y = exp(X);", [(5,)], {"Y": 5}),
    "a recurrence": (RECURRENCE, [(20,)], {"H": 20}),
    "logsumexp": ("function (X[N, D]) -> (Y) { Y[i] = logsumexp(X[i, k]); }", [(3, 40)], {"X": 120, "Y": 3}),
    "max": (POOL, [(2, 20, 3)], {"X": 120, "Y": 6, "Ties": 6}),
    "two outputs": (TWO, [(3, 40), (40,)], {"X": 120, "W": 40, "L": 3}),
    "a sum": ("function (X[N, D]) -> (Y) { Y[i] = 2 * sum(X[i, j]); }", [(3, 4)], {}),
    "sizes alone": ("function (X, Z) -> (Y) { Y = X / shape(Z, 0); }", [(3, 4), (7,)], {}),
    "a small matrix product": (DENSE, [(4, 3), (3, 2), (2,)], {"A": 12, "W": 6, "B": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(7)
def test_what_is_kept(name: str) -> None:
    source, shapes, wanted = CASES[name]
    function, inputs = tilec.compile(source), [double(*s) for s in shapes]
    said = function.saved(*inputs)
    assert {s.name: torch.Size(s.shape).numel() for s in said} == wanted
    assert sum(s.bytes for s in said) == 8 * sum(wanted.values()) == kept_bytes(lambda: function(*inputs))
    assert function.saved(*(tilec.spec(s, "float64") for s in shapes)) == said
    few = [double(*(min(n, 12) for n in s)) for s in shapes]
    assert torch.autograd.gradcheck(function, few)
    assert torch.autograd.gradgradcheck(function, few, fast_mode=True)


@pytest.mark.parametrize(
    "name",
    slow_but(
        ("layer norm", "snake", "a weighted mean", "exp", "a recurrence", "logsumexp"),
        ("exp", "a recurrence", "logsumexp"),
    ),
)
@pytest.mark.one_in(2)
def test_third_order(name: str) -> None:
    """The derivative along a direction is differentiated twice more."""
    source, shapes, _ = CASES[name]
    function = tilec.compile(source)
    inputs = [double(*(min(n, 12) for n in s)) for s in shapes]
    directions = [torch.rand_like(x) for x in inputs]

    def along(*x: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(function(*x).square().sum(), x, create_graph=True)
        return sum((d * g).sum() for d, g in zip(directions, found, strict=True))  # type: ignore[return-value]

    assert torch.autograd.gradgradcheck(along, inputs, fast_mode=True)


def test_dropout_keeps_numbers_alone() -> None:
    function, x, r = tilec.compile(DROPOUT), double(30, 40), double(30, 40)
    seed = torch.tensor(3)
    assert {s.name for s in function.saved(x, r, seed, 0.9)} == {"S", "P"}
    assert kept_bytes(lambda: function(x, r, seed, 0.9)) == 16
    assert torch.autograd.gradcheck(lambda a, b: function(a, b, seed, 0.9), (double(5, 8), double(5, 8)))


def test_what_is_dear_is_kept() -> None:
    function = tilec.compile(DENSE)
    shapes = ((256, 512), (512, 256), (256,))
    assert [s.name for s in function.saved(*map(tilec.spec, shapes))] == ["A", "W", "B", "Z"]
    inputs = [torch.randn(s, generator=torch.Generator().manual_seed(0), requires_grad=True) for s in shapes]
    value = function(*inputs)
    ours = torch.autograd.grad(value.sum(), inputs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    theirs = torch.autograd.grad(torch.nn.functional.gelu(exact[0] @ exact[1] + exact[2]).sum(), exact)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-3)


def test_float32_products_are_kept_sooner() -> None:
    """Where they are no larger than outputs: of 201 terms, not of 128, which a chain computes again as fast."""
    function = tilec.compile("""function (X[N, K], M[K, U]) -> (Y) {
        P = X * X;
        E[n, u] = sum(P[n, k] * M[k, u]);
        Y = log(E + 0.000001);
    }""")

    def kept(terms: int, dtype: str) -> bool:
        given = (tilec.spec((4096, terms), dtype), tilec.spec((terms, 80), dtype))
        return "E" in {s.name for s in function.saved(*given)}

    assert kept(201, "float32") and not kept(201, "float64") and not kept(128, "float32")
    assert kept(256, "bfloat16") and not kept(120, "bfloat16")


def test_what_is_added_up_at_places_that_are_data_is_kept() -> None:
    """The greatest message of a node, as large as the nodes: else the edges would be sorted for it again."""
    f = tilec.compile("function (X[N, D], S[E], T[E]) -> (Y) { Y[T[e], d : N, D] = >(X[S[e], d]); }")
    edges = tilec.spec((500,), "int64"), tilec.spec((500,), "int64")
    kept = {s.name: s.shape for s in f.saved(tilec.spec((100, 8)), *edges)}
    assert kept == {"X": (100, 8), "S": (500,), "T": (500,), "Y": (100, 8)}


def test_logits_are_kept_while_they_are_few() -> None:
    """Those of a linear layer into a cross-entropy; never scores that a chain computes."""
    function = tilec.compile("""function (X[N, H], W[V, H], T[N]) -> (Y) {
        S[i, v : N, V] = sum(X[i, h] * W[v, h]);
        L[i : N] = logsumexp(S[i, v]);
        Y[i : N] = L[i] - S[i, T[i]];
    }""")

    def kept(rows: int, vocabulary: int, width: int, dtype: str = "bfloat16") -> set[str]:
        given = (tilec.spec((rows, width), dtype), tilec.spec((vocabulary, width), dtype))
        return {s.name for s in function.saved(*given, tilec.spec((rows,), "int64"))}

    assert "S" in kept(4096, 32000, 2048)
    assert "S" not in kept(8192, 131072, 4096)  # 2 GiB
    assert "S" not in kept(4096, 32000, 128)  # little to compute
    assert "S" not in kept(2048, 32000, 256) and "S" in kept(2048, 32000, 256, "float32")  # which is slower to compute


def test_ties_that_the_gradient_alone_counts_are_counted_there() -> None:
    function = tilec.compile("function (A[N, K], B[K, M]) -> (Y) { Y[i, j] = max(A[i, k] + B[k, j]); }")
    assert {s.name for s in function.saved(tilec.spec((512, 600)), tilec.spec((600, 512)))} == {"A", "B", "Y"}


def test_only_what_the_wanted_gradients_read() -> None:
    function = tilec.compile("function (A[N], B[N]) -> (Y) { Y = A * B; }")
    a, b = double(5), double(5).detach()
    assert [s.name for s in function.saved(a, b)] == ["B"]
    assert kept_bytes(lambda: function(a, b)) == 40
    (found,) = torch.autograd.grad(function(a, b).sum(), a)
    assert torch.equal(found, b)


def test_a_gradient_by_some_of_the_inputs() -> None:
    function, inputs = tilec.compile(LAYER_NORM), [double(3, 40), double(40), double(40)]
    y = function(*inputs)
    whole = torch.autograd.grad(y.square().sum(), inputs, retain_graph=True)
    for x, wanted in zip(inputs, whole, strict=True):
        (found,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        torch.testing.assert_close(found, wanted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wanted", ["XWAV", "X", "W", "A", "V", "XV", "AV"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_hidden_layer_by_some_of_the_inputs_and_outputs(dtype: torch.dtype, wanted: str) -> None:
    """What is kept in the place of sums depends on both; and torch sees when the layer itself is changed."""
    f = tilec.compile("""function (X[M, H], W[J, H], A[J], V[J, L]) -> (Y, Z) {
        O[m, j : M, J] = +(X[m, h] * W[j, h]);
        Y = relu(O + A);
        Z[m, l : M, L] = +(Y[m, j] * V[j, l]);
    }""")
    g = torch.Generator().manual_seed(3)
    inputs = [torch.randn(s, generator=g).to(dtype) for s in ((64, 192), (64, 192), (64,), (64, 16))]
    cotangents = [torch.randn(64, n, generator=g).to(dtype) for n in (64, 16)]

    def layer(x, w, a, v):
        y = torch.relu(torch.nn.functional.linear(x, w, a))
        return y, y @ v

    def gradients(function, type: torch.dtype, places: tuple[int, ...], change: bool = False):
        given = [t.to(type, copy=True).requires_grad_(n in wanted) for t, n in zip(inputs, "XWAV", strict=True)]
        results = function(*given)
        if change:
            results[0].detach().zero_()
        outputs = [results[k] for k in places if results[k].requires_grad]
        by = [cotangents[k].to(type) for k in places if results[k].requires_grad]
        asked = [t for t in given if t.requires_grad]
        return torch.autograd.grad(outputs, asked, by, materialize_grads=True)

    for places in ((1,), (0, 1)) if wanted == "V" else ((0,), (1,), (0, 1)):
        expected = gradients(layer, torch.float64, places)
        for ours, exact in zip(gradients(f, dtype, places), expected, strict=True):
            assert ours.dtype == dtype
            error = (ours.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-9)
            assert error < (1.5e-2 if dtype is torch.bfloat16 else 1e-5), (places, error)
        try:
            changed = gradients(f, dtype, places, change=True)
        except RuntimeError as e:
            assert "modified by an inplace operation" in str(e)
        else:
            assert all(map(torch.equal, changed, gradients(f, dtype, places)))


def test_a_statistic_whose_derivative_asks_for_more() -> None:
    """The gradient reads S, whose own derivative would read all of Z: the step function has none, so nothing is kept
    for it, and derivatives of every order are right."""
    function, inputs = tilec.compile(STEP), [double(4), double(4, 20)]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
    kept = {s.name for s in function.saved(*inputs)}
    assert kept <= {"X", "S", "Z"} and sum(s.bytes for s in function.saved(*inputs)) <= 8 * (4 + 80)


@pytest.mark.parametrize("source", [SOFTMAX, LAYER_NORM, TWO])
@pytest.mark.one_in(3)
def test_memory_of_many_calls(source: str) -> None:
    """The second derivative through what was kept equals that of torch's own operations on the gradient program."""
    function = tilec.compile(source)
    inputs = [double(4, 40), double(40), double(40)][: len(function.inputs)]
    value = function(*inputs)
    value = value if isinstance(value, torch.Tensor) else value[1]
    first = torch.autograd.grad(value.sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.cos().sum() for g in first), inputs)
    program = function.grad()

    def again(*x: torch.Tensor) -> torch.Tensor:
        y = function(*x)
        y = y if isinstance(y, tuple) else (y,)
        cotangents = [torch.zeros_like(t) for t in y[:-1]] + [y[-1].cos()]
        found = program(*x, *cotangents)
        return sum(g.cos().sum() for g in (found if isinstance(found, tuple) else (found,)))  # type: ignore[return-value]

    fresh = [x.detach().clone().requires_grad_() for x in inputs]
    for a, b in zip(second, torch.autograd.grad(again(*fresh), fresh), strict=True):
        torch.testing.assert_close(a, b)


def test_weak_numbers_and_integers() -> None:
    function = tilec.compile(
        "function (X[N, D], I[M], S, E) -> (Y) { Y[m, d : M, D] = E * X[I[m], d] * X[I[m], d] / S; }"
    )
    x, i = double(4, 2), torch.tensor([1, 1, 3])
    assert [s.name for s in function.saved(x, i, 2, 3.5)] == ["X", "I", "S", "E"]
    assert torch.autograd.gradcheck(lambda t: function(t, i, 2, 3.5), x)
    assert torch.autograd.gradgradcheck(lambda t: function(t, i, 2, 3.5), x)
    half = x.detach().half().requires_grad_()
    function(half, i, 2, 3.5).sum().backward()
    assert half.grad is not None and half.grad.dtype is torch.float16


def test_sizes_in_inputs() -> None:
    function = tilec.compile("function (X[N], P[]) -> (Y) { Y[i : N + P] = exp(X[i - P]); }")
    x = double(5)
    assert torch.autograd.gradcheck(lambda t: function(t, 2), x)
    assert torch.autograd.gradgradcheck(lambda t: function(t, torch.tensor(1)), x)


def test_integer_outputs_and_outputs_without_a_gradient() -> None:
    function = tilec.compile("function (X[N, D]) -> (A, Y, X) { A[i] = argmax(X[i, j]); Y[i] = logsumexp(X[i, j]); }")
    x = double(3, 20)
    a, y, same = function(x)
    assert not a.requires_grad and y.requires_grad and same.requires_grad
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, torch.softmax(x.detach(), 1))
    (found,) = torch.autograd.grad(function(x)[2].sum(), x)
    assert torch.equal(found, torch.ones_like(x))


@pytest.mark.parametrize("name", ["X", "Y", "M"])
def test_changes_in_place_are_noticed(name: str) -> None:
    """Of what is kept only: the bias of a layer norm may change."""
    if name == "M":
        x, w, b = double(3, 40), double(40), torch.zeros(40, dtype=torch.float64)
        y = tilec.compile(LAYER_NORM)(x, w, b)
        b.add_(1)
        y.sum().backward()
        return
    function = tilec.compile("Y = X * X;" if name == "X" else "Y = exp(X);")
    x = double(5) * 1
    y = function(x)
    (x if name == "X" else y).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_gradient_function_recorded() -> None:
    """Calls of `grad()` with tensors that ask for gradients keep what their own gradient reads."""
    gradient = tilec.compile(TWO).grad("X")
    inputs = [double(3, 40), double(40), double(3), double(3, 40)]
    assert torch.autograd.gradcheck(gradient, inputs, fast_mode=True)
    integer = torch.ones(3, 40, dtype=torch.int64)
    (found,) = torch.autograd.grad(gradient(*inputs[:3], integer).square().sum(), inputs[0])
    (wanted,) = torch.autograd.grad(gradient(*inputs[:3], integer.double()).square().sum(), inputs[0])
    torch.testing.assert_close(found, wanted)


def test_nothing_asks_for_a_gradient() -> None:
    function = tilec.compile("Y = X * X;")
    assert function.saved(tilec.spec((3,), "int64")) == ()
    assert kept_bytes(lambda: function(torch.ones(3))) == 0


def test_threads() -> None:
    function, failed = tilec.compile(LAYER_NORM), []

    def work(rows: int) -> None:
        for _ in range(5):
            inputs = [double(rows % 3 + 2, 40), double(40), double(40)]
            found = torch.autograd.grad(function(*inputs).square().sum(), inputs)
            wanted = torch.nn.functional.layer_norm(inputs[0], (40,), inputs[1], inputs[2])
            others = torch.autograd.grad(wanted.square().sum(), inputs)
            if not all(torch.allclose(a, b) for a, b in zip(found, others, strict=True)):
                failed.append(rows)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_errors_are_those_of_the_call() -> None:
    function = tilec.compile(LAYER_NORM)
    with pytest.raises(tilec.SizeMistake) as caught:
        function(double(3, 40), double(40), double(41))
    assert "B[D]" in str(caught.value) or "D" in str(caught.value)
    with pytest.raises(tilec.InputMistake, match="takes 3 inputs"):
        function.saved(double(3, 40))
