"""Every rule of the torch backend against the oracle: values, shapes, awkward sizes, strides and domains."""

import pytest
import torch
from agreement import SMALL, agree, run, tensors

from tilec.backends.base import Options

CONTRACTIONS = [
    ("O[i, j : 3, 5] = +(A[i, k] * B[k, j]);", (3, 7), (7, 5)),
    ("O[b, i, j : 2, 3, 5] = +(A[b, i, k] * B[b, j, k]);", (2, 3, 7), (2, 5, 7)),
    ("O[i, j, b : 3, 5, 2] = +(A[b, i, k] * B[b, j, k]);", (2, 3, 7), (2, 5, 7)),
    ("O[i, x, j, y : 3, 2, 5, 2] = +(A[i, k, x] * B[y, k, j]);", (3, 7, 2), (2, 7, 5)),
    ("O[i, j : 3, 4] = +(A[i, k] * B[k, l] * C[l, j]);", (3, 5), (5, 6), (6, 4)),
    ("O[] = +(A[k] * B[k]);", (5,), (5,)),
    ("O[i : 3] = +(A[i, k] * B[k]);", (3, 5), (5,)),
    ("O[i, j : 3, 4] = +(-A[i, k] * B[k, j] / C[j] * 2.5 * in(A[0, l]));", (3, 5), (5, 4), (4,)),
    ("O[i, j : 3, 4] = +(sin(A[i, k]) * exp(B[k, j] - C[k]));", (3, 5), (5, 4), (5,)),
    ("O[i : 6] = +(A[j] * B[j]), i - j < 6;", (6,), (6,)),
    ("O[i, j : 6, 4] = +(A[i, k] * B[k, j]), i - k < 3;", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] > 0 ? A[i, k] * B[k, j]);", (6, 6), (6, 4)),
    ("O[x, o : 9, 4] = +(sin(I[x + k - 1, c]) * K[k, c, o]);", (9, 3), (3, 3, 4)),
]
CONVOLUTIONS = [
    ("O[n, y, x, o : 2, 8, 9, 4] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);", (2, 8, 9, 3), (3, 3, 3, 4)),
    ("O[n, o, y, x : 2, 4, 8, 9] = +(I[n, c, y + j - 1, x + i - 1] * K[o, c, j, i]);", (2, 3, 8, 9), (4, 3, 3, 3)),
    ("O[n, y, x, o : 2, 4, 5, 4] = +(I[n, 2*y + j, 2*x + i - 1, c] * K[j, i, c, o]);", (2, 8, 9, 3), (3, 3, 3, 4)),
    ("O[n, y, x, o : 2, 9, 15, 4] = +(I[n, 2*y + j - 4, 2*x + i + 2, c] * K[j, i, c, o]);", (2, 8, 9, 3), (3, 3, 3, 4)),
    ("O[n, x, o : 2, 9, 4] = +(I[n, x - k + 1, c] * K[k, c, o]);", (2, 8, 3), (3, 3, 4)),
    ("O[n, x, o : 2, 19, 4] = +(I[n, (x - k)/2, c] * K[k, c, o]);", (2, 8, 3), (3, 3, 4)),
    ("O[n, z, y, x : 1, 3, 4, 5] = +(I[n, z + k, y + j, x + i, c] * K[k, j, i, c]);", (1, 4, 5, 6, 2), (2, 2, 2, 2)),
    ("O[y, x, g, o : 8, 9, 3, 2] = +(I[y + j - 1, x + i - 1, g, c]*K[j, i, g, c, o]);", (8, 9, 3, 4), (3, 3, 3, 4, 2)),
    ("O[n, y, x, g : 2, 8, 9, 3] = +(I[n, y + j - 1, x + i - 1, g] * K[j, i, g]);", (2, 8, 9, 3), (3, 3, 3)),
    ("O[n, y, x : 2, 8, 9] = +(2 * I[n, y + j - 1, 2*x] * K[j]);", (2, 8, 17), (3,)),
    ("DI[n, 3*y + 2*j, 3*x + 2*i, c : 2, 20, 21, 3] = +(DO[n, y, x, o] * K[j, i, c, o]);", (2, 6, 6, 4), (3, 3, 3, 4)),
    ("DI[n, 3*y + 2*j, 3*x + 2*i, c : 2, 10, 23, 3] = +(DO[n, y, x, o] * K[j, i, c, o]);", (2, 6, 6, 4), (3, 3, 3, 4)),
    ("DK[j, i, c, o : 3, 3, 3, 4] = +(I[n, y + j - 1, x + i - 1, c] * DO[n, y, x, o]);", (2, 8, 9, 3), (2, 8, 9, 4)),
    ("DK[j, i, c, o : 3, 2, 3, 4] = +(I[n, 2*y + j - 1, 3*x + 2*i, c] * DO[n, y, x, o]);", (2, 8, 9, 3), (2, 5, 4, 4)),
]  # fmt: skip
LOGS = [
    ("O[i, j : 4, 3] = logsumexp(A[i, k] + B[k, j]);", (4, 5), (5, 3)),
    ("O[b, i, j : 2, 4, 3] = logsumexp(A[b, i, k] + B[b, k, j]);", (2, 4, 5), (2, 5, 3)),
    ("O[b, i, j : 2, 4, 3] = logsumexp(A[b, i, k] + B[k, j] - C[k] + 2.5);", (2, 4, 5), (5, 3), (5,)),
    ("O[b, i, j : 2, 4, 3] = logsumexp(A[b, i, k] + B[k, l] + C[l, j]);", (2, 4, 5), (5, 6), (6, 3)),
    ("O[n, x, o : 2, 8, 4] = logsumexp(I[n, x + k - 1, c] + K[k, c, o]);", (2, 8, 3), (3, 3, 4)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] + B[k, j]), i - k < 3;", (6, 5), (5, 3)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] > 0 ? A[i, k] + B[k, j]);", (6, 5), (5, 3)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] + B[k, j] + A[i, l]), l < 4;", (6, 5), (5, 3)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] + B[k, j] + in(A[0, l]) - 1);", (6, 5), (5, 3)),
]
GENERAL = [
    ("O[i, j : 3, 4] = sin(A[i, j] * C[0]) * A[i, j] + B[0, j] / C[0];", (3, 4), (1,), (1, 4)),
    ("function (A[N, M], C[]) -> (O) { O = sin(A * C) * A + A / C; }", (3, 4), ()),
    ("O[x : 7] = >(A[x + k - 1]), k < 3;", (7,)),
    ("O[x : 7] = <(A[2*x - k]), k < 3;", (7,)),
    ("O[i : 6] = +(A[j]), i - j < 6;", (6,)),
    ("O[i : 7] = A[i - 2] default B;", (3,), (7,)),
    ("O[i : 7] = +(A[i - k]), k < 2 default B;", (3,), (7,)),
    ("O[3 - 2*i, i : 4, 4] = +(A[j, i]) default B;", (3, 4), (4, 4)),
    ("O[i - 1, 2 - i : 4, 4] = A[0, i] default B;", (3, 4), (4, 4)),
    ("O[i : 7] = >(A[i - k] > 0 ? A[i - k]), k < 2 default B;", (3,), (7,)),
    ("O[i : 9] = pad(A[2*i - 3], 5.0) + pad(in(A[i]), 0), i < 9;", (6,)),
    ("O[i : 9] = logsumexp(A[i, j] > 0 ? A[i, j] + i * j);", (9, 5)),
    ("O[i : 9] = *(A[i, j]);", (9, 5)),
    ("O[i, j : 5, 6] = A[(i + j) % 4, clamp(i - j, 0, 3)];", (4, 4)),
    ("O[i, i : 4, 5] = A[i];", (4,)),
    ("O[i, i + j, j : 3, 7, 4] = U[i] * V[j];", (3,), (4,)),
    ("O[i, j : 9, 4] = A[8 - i, j];", (9, 4)),
    ("O[i : 6] = any(A[i, j] > 1);", (6, 3)),
    ("O[i : 6] = all(A[i, j] > -1);", (6, 3)),
    ("Y = reshape(X, 6, 4);", (2, 3, 4)),
    ("Y = reshape(X, 4, 6) * 2;", (2, 3, 4)),
    ("O[i : 8] = +(A[i/2 + 1/2]);", (4,)),
    ("O[3*i + 1 : 12] = >(A[i, j]);", (4, 2)),
    ("S[] = +(A[i, j]); O = A / S;", (4, 5)),
    ("M[i : 4] = mean(A[i, j]); O[i, j : 4, 5] = (A[i, j] - M[i]) * rsqrt(sum(A[i, k] * A[i, k]) + 0.1);", (4, 5)),
]  # fmt: skip


@pytest.mark.parametrize("options", [None, SMALL], ids=["whole", "blocks"])
@pytest.mark.parametrize("case", CONTRACTIONS + CONVOLUTIONS + LOGS + GENERAL, ids=lambda c: c[0])
def test_agrees_with_the_oracle(case, options):
    source, *shapes = case
    agree(source, *tensors(*shapes), options=options)


@pytest.mark.parametrize("case", CONTRACTIONS + CONVOLUTIONS + LOGS + GENERAL, ids=lambda c: c[0])
@pytest.mark.one_in(2)
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


@pytest.mark.parametrize("case", CONTRACTIONS + CONVOLUTIONS, ids=lambda c: c[0])
def test_without_library_convolutions(case):
    from tilec.backends.base import Options

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
def test_awkward_sizes(n, k):
    a, b = tensors((n, k), (k, 3))
    agree("function (A[N, K], B[K, M]) -> (O) { O[i, j : N, M] = +(A[i, k] * B[k, j]); }", a, b)
    agree("function (A[N, K], B[K, M]) -> (O) { O[i, j : N, M] = logsumexp(A[i, k] + B[k, j]); }", a, b)
    agree("function (A[N, K]) -> (O) { O[i : N] = >(A[i, k]); }", a)
    agree("function (A[N, K]) -> (O) { O = sin(A) * 2 + A; }", a)
    agree("function (A[N, K]) -> (O) { O[i : N + 2] = +(A[i - 1, k]); }", a)
    agree("function (A[N, K]) -> (O) { O[2*i + k : 2*N + K] = +(A[i, k]); }", a)


INDEXED = [
    "O[Ix[k], j : 5, 4] = +(U[k, j]);",
    "O[j, Ix[k] : 4, 5] = +(U[k, j]);",
    "O[Ix[k], j - 1 : 5, 4] = +(U[k, j]);",
    "O[Ix[k] : 5] = +(U[k, j]);",
    "O[Ix[k] : 5] = >(U[k, j]);",
    "O[Ix[k] : 5] = <(U[k, j]);",
    "O[Ix[k] : 5] = *(U[k, j]);",
    "O[Ix[k] : 5] = *(U[k, j]) default D;",
    "O[Ix[k], j : 5, 4] = >(U[k, j] > 0 ? U[k, j] * D[0]);",
    "O[k % 3, j : 3, 4] = logsumexp(U[k, j]);",
    "O[k, j : 9, 4] = U[Ix[k] + 1, j];",
    "O[k, j : 9, 4] = pad(U[Ix[k] + 1, j], 7.0), k < 9, j < 4;",
]


@pytest.mark.parametrize("options", [None, SMALL], ids=["whole", "blocks"])
@pytest.mark.parametrize("source", INDEXED)
def test_gathers_and_scatters(source, options):
    generator = torch.Generator().manual_seed(1)
    given = {
        "Ix": torch.randint(-1, 7, (9,), generator=generator),
        "U": tensors((9, 4))[0],
        "D": tensors((5,))[0],
    }
    names = [n for n in ("Ix", "U", "D") if n in source]
    ranks = {"Ix": "Ix[K]", "U": "U[K, J]", "D": "D[R]"}
    declared = f"function ({', '.join(ranks[n] for n in names)}) -> (O) {{ {source} }}"
    agree(declared, *(given[n] for n in names), options=options)


def test_scatter_is_deterministic():
    source = "function (Ix[K], U[K, J]) -> (O) { O[Ix[k], j : 3, J] = +(U[k, j]); }"
    index = torch.randint(0, 3, (5000,), generator=torch.Generator().manual_seed(0))
    (values,) = tensors((5000, 7), dtype=torch.float32)
    first, _ = run(source, [index, values])
    for _ in range(3):
        again, _ = run(source, [index, values])
        assert torch.equal(first[0], again[0])


INFINITE = [
    ("O[n, y, x, o : 2, 5, 6, 4] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);", (2, 5, 6, 3), (3, 3, 3, 4)),
    ("DI[3*y + 2*j, c : 20, 3] = +(DO[y, o] * K[j, c, o]);", (6, 4), (3, 3, 4)),
    ("DK[j, c, o : 3, 3, 4] = +(I[y + j - 1, c] * DO[y, o]);", (6, 3), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] * B[k, j]), i - k < 3;", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] > 0 ? A[i, k] * B[k, j]);", (6, 6), (6, 4)),
    ("O[x, o : 9, 4] = +(sin(I[x + k - 1, c]) * K[k, c, o]);", (9, 3), (3, 3, 4)),
    ("O[x : 9] = >(I[x + k - 1] * K[k]);", (9,), (3,)),
    ("O[x, o : 9, 4] = logsumexp(I[x + k - 1, c] + K[k, c, o]);", (9, 3), (3, 3, 4)),
    ("O[i, j : 6, 4] = logsumexp(A[i, k] + B[k, j]), i - k < 3;", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = logsumexp(A[i, k] + B[k, j]);", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] * B[k, l] * A[l, j]);", (6, 6), (6, 4)),
    ("O[i : 6] = +(A[i, k] * B[k, j]);", (6, 6), (6, 4)),
    ("O[i : 6] = logsumexp(A[i, k] + B[k, j]);", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(exp(A[i, k]) * B[k, j]), i - k < 3;", (6, 6), (6, 4)),
]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("case", INFINITE, ids=lambda c: c[0])
@pytest.mark.one_in(2)
def test_infinities_count_only_at_valid_points(case, which, value):
    """Padding multiplies by zero at points that are not valid: 0 * inf must not appear there."""
    source, *shapes = case
    inputs = tensors(*shapes)
    inputs[which].view(-1)[0] = value
    agree(source, *inputs)
    agree(source, *inputs, options=SMALL)


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
