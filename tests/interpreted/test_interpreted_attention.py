"""Kernels of chains as Triton text, interpreted, against torch in float64."""

import os

import numpy as np
import pytest
import torch
from support.chains import VARIANTS, inputs_of, reference

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SIZES = {"B": 2, "N": 40, "M": 21, "E": 20, "F": 17}


def found(name, dtype, arrange=lambda t: t):
    a = VARIANTS[name]
    arrays = inputs_of(a, dtype, SIZES)
    kind = getattr(torch, dtype)
    given = {n: torch.tensor(x) if n in a.integers else arrange(torch.tensor(x).to(kind)) for n, x in arrays.items()}
    for n in a.wrt:
        given[n] = given[n].detach().requires_grad_()
    f = tilec.compile(a.text, backend="triton")
    value = f(*given.values())
    cotangent = torch.tensor(np.random.default_rng(1).standard_normal(value.shape)).to(kind)
    gradients = torch.autograd.grad(value, [given[n] for n in a.wrt], cotangent)
    exact, others = reference(a, arrays, cotangent.double().numpy())
    return f, [value, *gradients], [exact, *others]


def check(mine, theirs, tolerance):
    for x, y in zip(mine, theirs, strict=True):
        assert (x.double() - y).norm() <= tolerance * y.norm() + 1e-30


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype):
    _, mine, theirs = found("causal", dtype)
    check(mine, theirs, 1.2e-2 if dtype == "bfloat16" else 8e-4)  # the interpreter cuts bfloat16 off


def test_strided_inputs():
    _, mine, theirs = found("alibi", "float32", lambda t: torch.stack([t, t], -1)[..., 0])
    check(mine, theirs, 2e-5)  # scores of some hundreds
    _, mine, theirs = found("causal", "float32", lambda t: t.mT.contiguous().mT)
    check(mine, theirs, 3e-6)


def test_one_kernel_forward_and_two_backward():
    """At a size at which the output is kept."""
    f = tilec.compile(VARIANTS["causal"].text, backend="triton")
    specs = [tilec.spec((4, 512, 64), "bfloat16")] * 3
    assert len(f.lower(*specs).kernels) == 1
    gradient = f.grad().lower(*specs, specs[0])
    assert [k.statements[-1] for k in gradient.kernels][-2:] == ["DQ", "DV"]


PAIRS = """function (A[B, N, E], X[B, N, E], C[B, M, E], Y[B, M, E], V[B, M, F]) -> (O) {
    S[b, i, j : B, N, M] = 0.25 * sum(A[b, i, e] * C[b, j, e] + X[b, i, e] * Y[b, j, e]);
    L[b, i : B, N] = logsumexp(i >= j ? S[b, i, j]);
    O[b, i, f : B, N, F] = sum(i >= j ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}"""


def test_scores_of_two_products_are_one_chain():
    """Rotated pairs: their first elements and their second ones."""
    f = tilec.compile(PAIRS, backend="triton")
    g = torch.Generator().manual_seed(0)
    shapes = [(2, n, e) for n, e in ((40, 32), (40, 32), (33, 32), (33, 32), (33, 17))]
    given = [torch.randn(s, generator=g).requires_grad_() for s in shapes]
    wide = [t.detach().double().requires_grad_() for t in given]
    a, x, c, y, v = wide
    hidden = torch.ones(40, 33, dtype=torch.bool).triu(1)
    exact = torch.softmax(((a @ c.mT + x @ y.mT) / 4).masked_fill(hidden, -torch.inf), -1) @ v
    value = f(*given)
    cotangent = torch.randn(value.shape, generator=g)
    assert f.lower(*given).kernels[-1].name == "O_chain"
    mine = [value, *torch.autograd.grad(value, given, cotangent)]
    check(mine, [exact, *torch.autograd.grad(exact, wide, cotangent.double())], 3e-6)


def test_rows_that_see_nothing():
    """Zero where no column is seen, as the sum of no terms is; -inf where the logsumexp is asked for."""
    text = VARIANTS["causal"].text.replace("-> (O)", "-> (O, L)").replace("i >= j", "i >= j + 7")
    q, k, v = (torch.randn(1, n, 16) for n in (20, 18, 18))
    value, top = tilec.compile(text, backend="triton")(q, k, v)
    assert (value[:, :7] == 0).all() and (top[:, :7] == -torch.inf).all() and value[:, 7:].isfinite().all()


def test_infinite_bias():
    """A column that all rows hide by -inf counts for nothing; a row that hides all has no softmax."""
    bias = torch.zeros(40, 21)
    bias[:, 3] = -torch.inf
    bias[5] = -torch.inf
    q, k, v = (torch.randn(1, n, 16) for n in (40, 21, 21))
    value = tilec.compile(VARIANTS["bias"].text, backend="triton")(q, k, v, bias)
    wanted = torch.softmax(q @ k.mT / 4 + bias, -1) @ v
    torch.testing.assert_close(value, wanted, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert value[:, 5].isnan().all()


WINDOWS = """function (Q[W, H, Y, X, E], K[W, H, Y, X, E], V[W, H, Y, X, E], P[A, B, H]) -> (O) {
    S[w, h, y, x, v, u : W, H, Y, X, Y, X] = sum(Q[w, h, y, x, e] * K[w, h, v, u, e]) + P[y - v + Y - 1, x - u + X - 1, h];
    L[w, h, y, x : W, H, Y, X] = logsumexp(S[w, h, y, x, v, u]);
    O[w, h, y, x, e : W, H, Y, X, E] = sum(exp(S[w, h, y, x, v, u] - L[w, h, y, x]) * V[w, h, v, u, e]);
}"""  # noqa: E501


@pytest.mark.parametrize("moved", [False, True])
def test_windows_whose_sides_lie_along_two_axes(moved):
    """Inputs are read where they are if strides say how, and copied if rows of a window lie far apart."""
    f = tilec.compile(WINDOWS, backend="triton")
    g = torch.Generator().manual_seed(0)
    given = [torch.randn((2, 5, 2, 6, 16), generator=g).transpose(1, 2) for _ in range(3)]
    given = [t if moved else t.contiguous() for t in given] + [torch.randn((9, 11, 2), generator=g)]
    given = [t.requires_grad_() for t in given]
    wide = [t.detach().double().requires_grad_() for t in given]
    y, x = torch.arange(30) // 6, torch.arange(30) % 6
    bias = wide[3][y[:, None] - y + 4, x[:, None] - x + 5].permute(2, 0, 1)
    q, k, v = (t.flatten(2, 3) for t in wide[:3])
    exact = (torch.softmax(q @ k.mT + bias, -1) @ v).unflatten(2, (5, 6))
    specs = [tilec.spec(tuple(t.shape)) for t in given]
    assert [k.name for k in f.lower(*specs).kernels] == ["P_flat_kernel", "O_flat_chain"]
    value = f(*given)
    cotangent = torch.randn(value.shape, generator=g)
    mine = [value, *torch.autograd.grad(value, given, cotangent)]
    check(mine, [exact, *torch.autograd.grad(exact, wide, cotangent.double())], 3e-6)


LENGTHS = """function (Q[B, I, D], K[B, J, D], V[B, J, F], T[B]) -> (O) {
    S[b, i, j : B, I, J] = +(Q[b, i, d] * K[b, j, d]);
    L[b, i : B, I] = logsumexp(CONDITION ? S[b, i, j]);
    O[b, i, f : B, I, F] = +(CONDITION ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}"""


@pytest.mark.parametrize(
    "condition",
    ["j < T[b]", "j <= T[b] + i - I", "i >= j", pytest.param("i < T[b] & j < T[b]", marks=pytest.mark.slow)],
)
def test_memory_beyond_a_length_may_hold_anything(condition):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((2, n, 16), generator=g) for n in (40, 96, 96))
    lengths = torch.tensor([70, 41])
    cotangent = torch.randn(q.shape, generator=g)
    cache = v.clone()
    for n, values in zip(lengths.tolist(), cache, strict=True):
        values[n:] = float("inf")
        values[n + 1 :] = float("nan")

    def results(backend, *given):
        given = [t.clone().requires_grad_() for t in given]
        value = tilec.compile(LENGTHS.replace("CONDITION", condition), backend=backend)(*given, lengths)
        return [value, *torch.autograd.grad(value, given, cotangent)]

    check(results("triton", q, k, cache), [t.double() for t in results("torch", q, k, v)], 1e-5)


@pytest.mark.parametrize("terms", ["P[i, j] * P[i, j] * V[j, e]", "P[i, j] * P[i, j]"])
def test_several_weights_of_one_statistic(terms):
    scores = "S[i, j] = +(Q[i, d] * K[j, d]); P[i, j] = exp(S[i, j] - max(S[i, k]))"
    index, sizes = ("i, e", "N, E") if "e" in terms else ("i", "N")
    mixture = f"O[{index} : {sizes}] = sum({terms}) / sum(P[i, j])"
    source = f"function (Q[N, D], K[M, D], V[M, E]) -> (O) {{ {scores}; {mixture}; }}"
    given = [torch.randn(24, 8), torch.randn(40, 8), torch.randn(40, 8)]
    q, k, v = (t.double() for t in given)
    p = torch.exp(q @ k.mT - (q @ k.mT).amax(1, keepdim=True))
    wanted = (p * p @ v if "e" in terms else (p * p).sum(1, keepdim=True)) / p.sum(1, keepdim=True)
    found = tilec.compile(source, backend="triton")(*given)
    check([found.view(wanted.shape)], [wanted], 1e-5)


def test_gradients_by_several_weights():
    """Terms of which one has an exponential twice and another once."""
    scores = "S[i, j] = +(Q[i, d] * K[j, d]); M[i] = logsumexp(S[i, k]); P[i, j] = exp(S[i, j] - M[i])"
    mixture = "O[i, e : N, E] = sum(P[i, j] * P[i, j] * V[j, e])"
    source = f"function (Q[N, D], K[M0, D], V[M0, E]) -> (O) {{ {scores}; {mixture}; }}"
    given = [torch.randn(24, 8, requires_grad=True), *(torch.randn(40, 8, requires_grad=True) for _ in "kv")]
    wide = [t.detach().double().requires_grad_() for t in given]
    q, k, v = wide
    wanted = torch.autograd.grad(((q @ k.mT).softmax(1) ** 2 @ v).sum(), wide)
    check(torch.autograd.grad(tilec.compile(source, backend="triton")(*given).sum(), given), wanted, 1e-4)


PAGES = """function (Q[B, H, D], K[P, S, G, D], V[P, S, G, D], Table[B, T], Len[B]) -> (O) {
    A[b, g, r, t, s : B, G, H/G, T, S] = sum(Q[b, g*(H/G) + r, d] * K[Table[b, t], s, g, d]);
    L[b, g, r] = logsumexp(t*S + s < Len[b] ? A[b, g, r, t, s]);
    O[b, g, r, d] = sum(t*S + s < Len[b] ? exp(A[b, g, r, t, s] - L[b, g, r]) * V[Table[b, t], s, g, d]);
}"""


@pytest.mark.slow
def test_pages_of_a_cache():
    """Two lengths of a cache, with places outside and an empty row; the second with sizes left open."""
    f, g = tilec.compile(PAGES, backend="triton"), torch.Generator().manual_seed(0)
    for pages, table in ((20, 64), (24, 66)):
        q, k, v = (torch.randn(s, generator=g).half() for s in ((2, 4, 16), (pages, 16, 2, 16), (pages, 16, 2, 16)))
        at = torch.randint(-1, pages + 1, (2, table), generator=g)
        lengths = torch.tensor([16 * table - 7, 0])
        wanted = tilec.compile(PAGES, backend="torch")(q.double(), k.double(), v.double(), at, lengths)
        check([f(q, k, v, at, lengths)], [wanted], 1e-3)


@pytest.mark.parametrize("seen", ["j < L[b]", "i < N & L[b] > j", pytest.param("L[b] > 5", marks=pytest.mark.slow)])
def test_batches_that_see_nothing(seen):
    """Quotients by their sums are no numbers; gradients by what nothing reads are 0 all the same."""
    f = tilec.compile(f"""function (Q[B, N, D], K[B, M, D], V[B, M, E], L[B]) -> (O) {{
        S[b, i, j : B, N, M] = +(Q[b, i, d] * K[b, j, d]);
        X[b, i : B, N] = max({seen} ? S[b, i, j]);
        U[b, i : B, N] = sum({seen} ? exp(S[b, i, j] - X[b, i]));
        O[b, i, e : B, N, E] = sum({seen} ? exp(S[b, i, j] - X[b, i]) * V[b, j, e]) / U[b, i];
    }}""", backend="triton")  # fmt: skip
    q, k, v = (torch.randn(2, 17, 16, requires_grad=True) for _ in "qkv")
    value = f(q, k, v, torch.tensor([0, 9]))
    assert value[0].isnan().all() and value[1].isfinite().all()
    (dv,) = torch.autograd.grad(value, v, torch.ones_like(value))
    assert (dv[0] == 0).all() and dv[1].isfinite().all() and (dv[1, :9] > 0).all()


SCORES = "S[b, i, j : B, N, M] = +(Q[b, i, e] * K[b, j, e]); L[b, i] = logsumexp(S[b, i, j]);"
DRAWS = {
    "a number": ("rand(3, (b * N + i) * M + j)", "Seed"),
    "a tensor, far apart": ("rand(Seed, i * 3000000000 + b * M + j)", "Seed"),
    "normal": ("abs(randn(Seed, (b * N + i) * M + j + 1099511627776))", "Seed"),
    "of a remainder": ("rand(Seed, (b * N + i) * M + j % 4)", "Seed"),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.one_in(2)
def test_random_numbers_of_scores(name):
    """Their counters are integers, whatever is multiplied by what is drawn."""
    drawn, seed = DRAWS[name]
    source = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F], {seed}[]) -> (O) {{ {SCORES}
        O[b, i, f : B, N, F] = +({drawn} < 0.7 ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]); }}"""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, n, f, generator=generator) for n, f in ((37, 16), (41, 16), (41, 16))]
    number, cotangent = torch.tensor(2**40 + 7), torch.randn(2, 37, 16, generator=generator)
    exact, f = (tilec.compile(source, backend=b) for b in ("torch", "triton"))
    assert any("chain" in k.name for k in f.lower(*given, number).kernels)
    wide = [t.double() for t in given]
    theirs = [exact(*wide, number), *exact.grad(wrt=["Q", "K", "V"])(*wide, number, cotangent.double())]
    check([f(*given, number), *f.grad(wrt=["Q", "K", "V"])(*given, number, cotangent)], theirs, 2e-6)
