"""The rules of the torch backend: strides, awkward sizes, domains, what the library is called for."""

import pytest
import torch
from conformance.programs import CONTRACTIONS, CONVOLUTIONS, GENERAL, LOGS
from support.agreement import agree, run, tensors

import tilec
from tilec.backends.base import Options


@pytest.mark.parametrize("case", CONTRACTIONS + CONVOLUTIONS + LOGS + GENERAL, ids=lambda c: c[0])
@pytest.mark.one_in(6)
def test_any_strides_give_the_same(case):
    source, *shapes = case
    inputs = tensors(*shapes)
    wanted, _ = run(source, inputs)
    for move in (transposed_in_memory, every_second, expanded_from_one):
        moved = [move(t) for t in inputs]
        if move is expanded_from_one:
            wanted, _ = run(source, [t.contiguous() for t in moved])
        got, _ = run(source, moved)
        for g, w in zip(got, wanted, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12, equal_nan=True)


def transposed_in_memory(t):
    order = tuple(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


def every_second(t):
    """The same elements at every second place of a larger tensor, starting past its beginning."""
    if t.dim() == 0:
        return torch.stack([t, t])[1]
    room = t.new_full([2 * n + 3 for n in t.shape], float("nan"))
    view = room[tuple(slice(1, 2 * n + 1, 2) for n in t.shape)]
    view.copy_(t)
    return view


def expanded_from_one(t):
    return t if t.dim() == 0 else t[:1].expand_as(t)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CONTRACTIONS + CONVOLUTIONS, ids=lambda c: c[0])
def test_without_library_convolutions(case):
    source, *shapes = case
    agree(source, *tensors(*shapes), options=Options(library=False))
    _, text = run(source, tensors(*shapes), Options(library=False))
    assert "rt.convolution" not in text


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: c[0])
def test_convolutions_that_torch_has_are_recognised(case):
    source, *shapes = case
    _, text = run(source, tensors(*shapes))
    assert "rt.convolution" in text


@pytest.mark.parametrize("n", [0, 1, 2, 17])
@pytest.mark.parametrize("k", [0, 1, 13])
@pytest.mark.covering
def test_awkward_sizes(n, k):
    a, b = tensors((n, k), (k, 3))
    agree("function (A[N, K], B[K, M]) -> (O) { O[i, j : N, M] = +(A[i, k] * B[k, j]); }", a, b)
    agree("function (A[N, K], B[K, M]) -> (O) { O[i, j : N, M] = logsumexp(A[i, k] + B[k, j]); }", a, b)
    agree("function (A[N, K]) -> (O) { O[i : N] = >(A[i, k]); }", a)
    agree("function (A[N, K]) -> (O) { O = sin(A) * 2 + A; }", a)
    agree("function (A[N, K]) -> (O) { O[i : N + 2] = +(A[i - 1, k]); }", a)
    agree("function (A[N, K]) -> (O) { O[2*i + k : 2*N + K] = +(A[i, k]); }", a)


def test_scatter_is_deterministic():
    source = "function (Ix[K], U[K, J]) -> (O) { O[Ix[k], j : 3, J] = +(U[k, j]); }"
    index = torch.randint(0, 3, (5000,), generator=torch.Generator().manual_seed(0))
    (values,) = tensors((5000, 7), dtype=torch.float32)
    first, _ = run(source, [index, values])
    for _ in range(3):
        again, _ = run(source, [index, values])
        assert torch.equal(first[0], again[0])


def test_seven_spatial_dimensions():
    """More residue classes than can be written out, and a window of 2^7 positions."""
    d = range(7)
    x, k = ", ".join(f"x{i}" for i in d), ", ".join(f"k{i}" for i in d)
    places = ", ".join(f"3*x{i} + 2*k{i}" for i in d)
    twos, sixes = ", ".join("2" * 7), ", ".join("6" * 7)
    dy, kernel, image = tensors((1, *(2,) * 7, 3), ((2,) * 7 + (2, 3)), (1, *(6,) * 7, 2))
    forward, _ = run(f"Y[n, {x}, o : 1, {twos}, 3] = +(I[n, {places}, c] * K[{k}, c, o]);", [image, kernel])
    backward, _ = run(f"D[n, {places}, c : 1, {sixes}, 2] = +(G[n, {x}, o] * K[{k}, c, o]);", [dy, kernel])
    torch.testing.assert_close((forward[0] * dy).sum(), (backward[0] * image).sum(), rtol=1e-12, atol=0)


def test_inputs_that_require_gradients_are_read_as_they_are():
    a, b = (t.requires_grad_() for t in tensors((3, 4), (4, 5)))
    (got,), _ = run("O[i, j : 3, 5] = +(A[i, k] * B[k, j]);", [a, b])
    assert not got.requires_grad
    torch.testing.assert_close(got, (a @ b).detach())


def test_outputs_own_their_memory():
    (a,) = tensors((3, 4))
    (got,), _ = run("O[i, j : 4, 3] = A[j, i];", [a])
    kept = got.clone()
    a.zero_()
    assert torch.equal(got, kept)


@pytest.mark.parametrize("shape", [(1, 4, 5), (2, 1, 5), (2, 4, 1), (3, 4, 5)])
@pytest.mark.parametrize(
    "index", ["n, t - 1, (i - 1) % D", "N - 1 - n, clamp(t + 1, 0, T - 1), (2*i) % D", "n, 2, i + t"]
)
@pytest.mark.parametrize("block", [4, 2**17])
def test_reads_outside_and_round(shape, index, block):
    source = f"function (H[N, T, D]) -> (O) {{ O[i, n, t : D, N, T] = i + pad(H[{index}], 5) * 2; }}"
    (h,) = tensors(shape)
    agree(source, h, options=Options(block=block))


def test_a_row_that_one_element_names():
    (a,) = tensors((4, 3))
    agree("function (A[N, D], I[K]) -> (O) { O[k : D] = +(A[I[j], (k + 1) % D]), j < 1; }", a, torch.tensor([2, 0]))


@pytest.mark.parametrize("text", [
    "O[i, j : 8, 5] = +(A[i + k] * B[i, k] * C[k, j])",
    "O[i, j : 8, 5] = logsumexp(A[i + k] + B[i, k] + C[k, j])",
    "O[i, j : 8, 5] = +(A[i + k] / (B[i, k] - 1) * C[k, j])",
])  # fmt: skip
def test_what_meets_the_zeros_outside_in_one_operand(text):
    """Factors of one operand, of which one is read outside at a point where another is infinite."""
    a, b, c = tensors((9,), (8, 4), (4, 5))
    b[7, 3] = 1.0 if "/" in text else torch.inf  # A[10] is outside
    values, _ = run(text, [a, b, c])
    assert torch.isfinite(values[0]).all()
    agree(text, a, b, c)


@pytest.mark.parametrize("body", ["S[k]", "S[k] * S[k]", "S[0]", "2.0"])
@pytest.mark.parametrize("sign", ["+", ">"])
def test_each_value_of_a_window_is_one_for_all_elements(body: str, sign: str) -> None:
    """`torch.add(a, b, out=c)` of two tensors with fewer elements than `c` makes `c` smaller."""
    source = f"function (S[2]) -> (Y) {{ Y[i + k : N] = {sign}({body}), i + 1 < N + 2, k < 2; }}".replace("N", "300")
    f, s = tilec.compile(source), torch.tensor([2.0, 3.0], dtype=torch.float64)
    wanted = tilec.interpret(source, s.numpy())
    torch.testing.assert_close(f(s), torch.as_tensor(wanted).to(f(s).dtype))


def test_the_gradient_of_two_means_of_the_same_elements() -> None:
    x = torch.rand(4097, dtype=torch.float64, requires_grad=True)
    y = tilec.compile("function (X[N]) -> (M) { M[k : 2] = mean(X[i + k]); }")(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2 / 4097))


@pytest.mark.parametrize("place", ["clamp(i + k, 0, N - 1)", "clamp(i + k, 3, N - 1)", "(i + k + 1) % N"])
@pytest.mark.parametrize("sign", ["+", "<"])
def test_windows_of_a_box_in_pieces(place: str, sign: str) -> None:
    """Each piece adds up its own points, and no others."""
    n = 8200
    f = tilec.compile(f"function (X[N]) -> (Y) {{ Y[i + k : N] = {sign}(X[{place}]), i < N, k < 2; }}")
    x, i = torch.randn(n, dtype=torch.float64), torch.arange(n)
    whole = {"+": lambda a: a * torch.where(i > 0, 2, 1), "<": lambda a: a}[sign]
    at = (i + 1) % n if "%" in place else i.clamp(3 if "3" in place else 0, n - 1)
    torch.testing.assert_close(f(x), whole(x[at]))
