"""Groups of statements that a routine of torch computes: which are found, and what the calls give."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

import tilec
from tilec.backends.base import Options
from tilec.backends.torch import TorchBackend
from tilec.backends.torch import runtime as rt
from tilec.backends.torch.library import runtime
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

SOFTMAX = "Y[i,j] = exp(X[i,j] - max(X[i,k])) / sum(exp(X[i,k] - max(X[i,l])))"
LOG_SOFTMAX = "function (X[N, D]) -> (Y) { L[i] = logsumexp(X[i,j]); Y[i,j : N,D] = X[i,j] - L[i]; }"
FIRST = "Y[i,j] = exp(X[i,j] - max(X[k,j])) / sum(exp(X[k,j] - max(X[l,j])))"
NORM = """function (X[N, D], G[D], B[D]) -> (Y) { M[n] = mean(X[n,d]); V[n] = mean((X[n,d] - M[n]) * (X[n,d] - M[n]));
    Y[n, d : N, D] = B[d] + G[d] * ((X[n,d] - M[n]) * rsqrt(0.00001 + V[n])); }"""
PIXELS = """function (X[N, C, H, W]) -> (Y) { M[n,c] = mean(X[n,c,y,x]);
    V[n,c] = mean((X[n,c,y,x] - M[n,c]) * (X[n,c,y,x] - M[n,c]));
    Y[n,c,y,x : N,C,H,W] = (X[n,c,y,x] - M[n,c]) * rsqrt(V[n,c] + 0.00001); }"""
GROUPS = """function (X[N, C, H, W], G[3, K], B[3, K]) -> (Y) { Z = reshape(X, N, 3, C / 3, H, W);
    M[n,g] = mean(Z[n,g,c,y,x]); V[n,g] = mean((Z[n,g,c,y,x] - M[n,g]) * (Z[n,g,c,y,x] - M[n,g]));
    O[n,g,c,y,x] = B[g,c] + (Z[n,g,c,y,x] - M[n,g]) * rsqrt(V[n,g] + 0.00001) * G[g,c]; Y = reshape(O, N, C, H, W); }"""
GROUPS_OF_CHANNELS = """function (X[N, C, L], W[C], B[C]) -> (Y) { Z = reshape(X, N, 3, C / 3, L);
    M[n,g] = mean(Z[n,g,c,l]); R[n,g] = rsqrt(mean((Z[n,g,c,l] - M[n,g]) * (Z[n,g,c,l] - M[n,g])) + 0.00001);
    Y[n, (C/3)*g + c, l : N,C,L] = (Z[n,g,c,l] - M[n,g]) * R[n,g] * W[(C/3)*g + c] + B[(C/3)*g + c]; }"""
BATCH = """function (X[N, P, C], G[C], B[C]) -> (Y) { M[c] = mean(X[n,p,c]);
    V[c] = mean((X[n,p,c] - M[c]) * (X[n,p,c] - M[c]));
    Y[n,p,c : N,P,C] = (X[n,p,c] - M[c]) * rsqrt(V[c] + 0.00001) * G[c] + B[c]; }"""
ATTENTION = """function (Q[B, H, R, N, E], K[B, H, N, E], V[B, H, N, E]) -> (O) {{
    S[b,h,r,i,j : B,H,R,N,N] = 0.5 * sum(K[b,h,j,e] * Q[b,h,r,i,e]); L[b,h,r,i : B,H,R,N] = logsumexp({0} S[b,h,r,i,j]);
    O[b,h,r,i,e : B,H,R,N,E] = sum({0} V[b,h,j,e] * exp(S[b,h,r,i,j] - L[b,h,r,i])); }}"""
DISTANCES = "S[i,b,j] = sum((X[b,i,k] - Y[j,k,b]) * (X[b,i,k] - Y[j,k,b]))"
WINDOW = ATTENTION.format("i >= j & i - j < 9 ?")
SCALED = ATTENTION.format("i >= j ?").replace("0.5 *", "Scale *").replace("E])", "E], Scale[])")
SHAPES = ((1, 2, 1, 17, 4), (1, 2, 17, 4), (1, 2, 17, 4))
ROUTINES = {
    "softmax of rows": (SOFTMAX, ((5, 7),), "softmax"),
    "log-softmax of rows": (LOG_SOFTMAX, ((5, 7),), "log_softmax"),
    "norm of rows": (NORM, ((5, 7), (7,), (7,)), "layer_norm"),
    "norm of images": (PIXELS, ((2, 3, 4, 5),), "layer_norm"),
    "norm of groups": (GROUPS, ((2, 6, 3, 4), (3, 2), (3, 2)), "group_norm"),
    "norm of groups of channels": (GROUPS_OF_CHANNELS, ((2, 6, 9), (6,), (6,)), "group_norm"),
    "norm of rows by the reciprocal": (
        NORM.replace("V[n] = mean", "V[n] = rsqrt(0.00001 + mean")
        .replace("M[n]));", "M[n])));")
        .replace("rsqrt(0.00001 + V[n])", "V[n]"),
        ((5, 7), (7,), (7,)),
        "layer_norm",
    ),
    "norm over a batch by the reciprocal": (
        BATCH.replace("V[c] = mean", "V[c] = rsqrt(0.00001 + mean")
        .replace("M[c]));", "M[c])));")
        .replace("rsqrt(V[c] + 0.00001)", "V[c]"),
        ((3, 5, 4), (4,), (4,)),
        "batch_norm",
    ),
    "norm over a batch": (BATCH, ((3, 5, 4), (4,), (4,)), "batch_norm"),
    "norm over a batch of images": (
        BATCH.replace("p,c", "c,p").replace("P,C", "C,P").replace("P, C", "C, P"),
        ((3, 4, 5), (4,), (4,)),
        "batch_norm",
    ),
    "squared distances": (DISTANCES, ((3, 20, 17), (18, 17, 3)), "squared_distances"),
    "attention": (ATTENTION.format(""), ((2, 2, 3, 17, 4), (2, 2, 17, 4), (2, 2, 17, 4)), "attention"),
    "causal attention": (ATTENTION.format("i >= j ?"), SHAPES, "attention"),
    "attention in a window": (WINDOW, SHAPES, "attention"),
    "not scaled": (ATTENTION.format("i >= j ?").replace("0.5 * ", ""), SHAPES, "attention"),
}
OTHERS = {  # alike, but for one thing; torch's softmax of columns depends on the number of threads
    "softmax of columns": (FIRST, ((5, 7),)),
    "another maximum": ("Y[i,j] = exp(X[i,j] - max(X[k,j])) / sum(exp(X[i,k] - max(X[i,l])))", ((5, 5),)),
    "scaled by images": (BATCH.replace("G[c]", "G[n]").replace("G[C]", "G[N]"), ((3, 5, 4), (3,), (4,))),
    "a part of the rows": ("Y[i,j] = exp(X[i,j] - max(X[i,k])) / sum(exp(X[i,k] - max(X[i,l]))), j < 3", ((5, 7),)),
    "divided by another number": (NORM.replace("mean((X", "0.5 * mean((X"), ((5, 7), (7,), (7,))),
    "products of two differences": (DISTANCES.replace("Y[j,k,b]))", "Y[j,k,0]))"), ROUTINES["squared distances"][1]),
    "scaled twice": (SCALED.replace("Scale *", "Scale * Scale *"), (*SHAPES, ())),
    "another window": (WINDOW.replace("i - j < 9", "i - j < 8", 1), SHAPES),
    "a mask of coordinates": (WINDOW.replace("i - j < 9 ? V", "e < 9 ? V"), SHAPES),
    "a mask read outside": (ATTENTION.format("K[b,h,j+1,0] < 9.0 ?"), SHAPES),
}


def inputs(shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]


def transposed(t: torch.Tensor) -> torch.Tensor:
    return t.unsqueeze(0).mT.contiguous().mT[0]


def executables(source: str, tensors) -> list:
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    return _executables(source, tuple(TensorType(tuple(t.shape), dtype) for t in tensors))


@cache
def _executables(source: str, given: tuple[TensorType, ...]) -> list:
    program = parse(source)
    types = {i.name: t for i, t in zip(program.inputs, given, strict=True)}
    return [TorchBackend().build(lower(program, types, {}), Options(library=library)) for library in (True, False)]


def with_gradient(source: str, tensors: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, library: bool) -> list:
    monkeypatch.setenv("TILEC_LIBRARY", str(int(library)))
    given = [t.clone().requires_grad_() for t in tensors]
    y = tilec.compile(source)(*given)
    found = torch.autograd.grad((y * torch.cos(torch.arange(y.numel(), dtype=y.dtype).view(y.shape))).sum(), given)
    return [y, *found]


@pytest.fixture
def expected(name: str, monkeypatch: pytest.MonkeyPatch) -> list:
    """What the statements of a routine give, with their gradients."""
    if name not in EXPECTED:
        source, shapes, _ = ROUTINES[name]
        EXPECTED[name] = with_gradient(source, inputs(shapes), monkeypatch, False)
    return EXPECTED[name]


EXPECTED: dict[str, list] = {}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", ROUTINES)
def test_routines_give_what_the_statements_give(name: str, expected: list, monkeypatch: pytest.MonkeyPatch) -> None:
    source, shapes, word = ROUTINES[name]
    tensors = inputs(shapes)
    assert word in executables(source, tensors)[0].source() and word not in executables(source, tensors)[1].source()
    for a, b in zip(with_gradient(source, tensors, monkeypatch, True), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in ROUTINES if "norm" in n])
def test_gradients_of_norms_are_routines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the variance or the reciprocal of the deviation was kept."""
    source, shapes, word = ROUTINES[name]
    found: list[str] = []
    called = getattr(runtime, f"{word}_gradient")
    monkeypatch.setattr(rt, f"{word}_gradient", lambda *given: found.append(word) or called(*given))
    with_gradient(source, inputs(shapes), monkeypatch, True)
    assert found == [word]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_only_alike_is_left(name: str) -> None:
    source, shapes = OTHERS[name]
    texts = executables(source, inputs(shapes))[0].source()
    assert not any(word in texts for word in ("torch.softmax(", "rt.softmax", "norm", "rt.attention", "rt.squared"))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ROUTINES)
def test_infinities_and_nan(name: str, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each input; a row of softmax that is -inf throughout as well."""
    source, shapes, _ = ROUTINES[name]
    for k in range(len(shapes)):
        tensors = inputs(shapes)
        tensors[k].view(-1, shapes[k][-1])[-2:, -2:] = bad
        if k == 0 and "softmax" in name:
            tensors[0][0] = bad
        with_, without = executables(source, tensors)
        for a, b in zip(with_(tensors), without(tensors), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", ROUTINES)
def test_inputs_lie_in_any_way(name: str, expected: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed, every third element, one element for all of a row or for all rows."""
    source, shapes, _ = ROUTINES[name]
    tensors = inputs(shapes)
    for way in (
        transposed,
        lambda t: torch.stack([t] * 3, -1)[..., 1],
        lambda t: t[..., :1].expand(t.shape),
        lambda t: t[:1].expand(t.shape),
    ):
        given = [way(t) for t in tensors]
        with_, without = executables(source, given)
        for a, b in zip(with_(given), without([t.contiguous() for t in given]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    ours = with_gradient(source, [transposed(t) for t in tensors], monkeypatch, True)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


MASKED = """function (Q[B, H, R, N, E], K[B, H, N, E], V[B, H, N, E], {0}) -> (O) {{
    S[b,h,r,i,j : B,H,R,N,N] = 0.5 * sum(K[b,h,j,e] * Q[b,h,r,i,e]) {1};
    L[b,h,r,i : B,H,R,N] = logsumexp({2} S[b,h,r,i,j]);
    O[b,h,r,i,e : B,H,R,N,E] = sum({2} V[b,h,j,e] * exp(S[b,h,r,i,j] - L[b,h,r,i])); }}"""
MASKS = {  # what is given, the term, the condition; the shape of the fourth input
    "a slope for each head": ("A[H]", "- A[h] * (i - j)", "i >= j ?", (2,)),
    "a bias for each head": ("A[H,N,N]", "+ A[h,i,j] + 1", "", (2, 17, 17)),
    "a bias for each query": ("A[B,R,N]", "+ A[b,r,i]", "i - j < 5 | j > 11 ?", (3, 3, 17)),
    "groups": ("A[B,N]", "", "i >= j & A[b,i] > 0 | A[b,j] <= 0.1 ?", (3, 17)),
    "rows that see nothing": ("A[N]", "", "j > 6 & A[i] > 0 ?", (17,)),
}


def test_distances_of_no_sets() -> None:
    source = """function (X[B,I,E], Y[B,J,E]) -> (D) {
        D[b,i,j : B,I,J] = sum((X[b,i,e] - Y[b,j,e]) * (X[b,i,e] - Y[b,j,e])); }"""
    given = inputs(((0, 16, 16), (0, 17, 16)))
    assert executables(source, given)[0](given)[0].shape == (0, 16, 17)


@pytest.mark.parametrize(
    "term, condition",
    [("", "A[b,i] > 0 & j > 4 ?"), pytest.param("+ A[b,j]", "", marks=pytest.mark.slow), ("+ log(A[b,j])", "i > 3 ?")],
)
def test_rows_that_see_nothing_have_logarithms_of_their_own(
    term: str, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-inf, and NaN as their result where the scores are what says so; their gradients."""
    source = MASKED.format("A[B,N]", term, condition).replace("(O)", "(O, L)")
    *tensors, a = inputs(((2, 1, 2, 17, 4), (2, 1, 17, 4), (2, 1, 17, 4), (2, 17)))
    a[1] = -math.inf if "log" not in term else 0
    found = []
    for library in (True, False):
        monkeypatch.setenv("TILEC_LIBRARY", str(int(library)))
        leaves = [t.clone().requires_grad_() for t in tensors]
        y, logarithm = tilec.compile(source)(*leaves, a)
        found.append([y, logarithm, *torch.autograd.grad((y * y).sum(), leaves)])
    assert "rt.attention" in executables(source, [*tensors, a])[0].source()
    assert (found[0][1] == -math.inf).any()
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("bad", [None, math.inf, math.nan])
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_attention(name: str, bad: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of queries, keys and values, with a key or a bias that is not finite too."""
    given, term, condition, shape = MASKS[name]
    source = MASKED.format(given, term, condition)
    tensors = inputs(((3, 2, 3, 17, 4), (3, 2, 17, 4), (3, 2, 17, 4), shape))
    if bad is not None:
        tensors[1][0, 1, 16, 2] = bad
        tensors[3].view(-1)[0] = -bad
    with_, _ = executables(source, tensors)
    assert "mask = " in with_.source()
    found = []
    for library in (True, False):
        monkeypatch.setenv("TILEC_LIBRARY", str(int(library)))
        leaves = [transposed(t).requires_grad_() for t in tensors[:3]]
        y = tilec.compile(source)(*leaves, tensors[3])
        found.append([y, *torch.autograd.grad((y * y).sum(), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_large_masks_are_made_of_a_slab() -> None:
    shapes = {"Q": (1, 1, 1, 5000, 8), "K": (1, 1, 5000, 8), "V": (1, 1, 5000, 8)}
    types = {n: TensorType(s, "float32") for n, s in shapes.items()}
    text = TorchBackend().build(lower(parse(WINDOW), types, {}), Options()).source()
    slab, _, rest = text.partition("def program(")
    assert "mask = " in slab and "mask = " not in rest


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_means_and_variances_of_rows_with_infinities(bad: float) -> None:
    (x, g, b), source = inputs(ROUTINES["norm of rows"][1]), NORM.replace("(Y)", "(Y, M, V)")
    x[1, 2], x[3] = bad, bad
    ours, expected = (e([x, g, b]) for e in executables(source, [x, g, b]))
    for a, e in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_variances_far_below_what_is_added_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not what is left of a difference."""
    source = NORM.replace("-> (Y)", "-> (Y, V)")
    x, *others = inputs(((5, 7), (7,), (7,)))
    tensors = [x * 1e-9, *others]
    with_, without = executables(source, tensors)
    torch.testing.assert_close(with_(tensors)[1], without(tensors)[1], rtol=1e-10, atol=0)


def test_distances_keep_their_digits() -> None:
    """Far from the origin, of points that are elsewhere many times as far, of equal ones; elsewhere than in tests of
    routines there are as many as a slab and more."""
    x, y = inputs(((700, 33), (300, 33)), torch.float32)
    x[:20], x[20:40], x[50], y[7] = y[:20], y[:20] + 1e-3, 1e3, -1e4
    source = "S[i,j] = sum((X[i,k] - Y[j,k]) * (X[i,k] - Y[j,k]))"
    for far in (0, 1000):
        tensors = [x + far, y + far]
        exact = torch.cdist(*(t.double() for t in tensors), compute_mode="donot_use_mm_for_euclid_dist").square()
        (found,) = executables(source, tensors)[0](tensors)
        torch.testing.assert_close(found.double(), exact, rtol=3e-6, atol=0)


def test_sixteen_bits_are_left() -> None:
    assert "softmax" not in executables(SOFTMAX, inputs(((5, 7),), torch.bfloat16))[0].source()


@pytest.mark.parametrize("name", ["softmax of rows", "log-softmax of rows", "norm of rows"])
def test_threads_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = inputs([(300, 333), (333,), (333,)][: len(ROUTINES[name][1])], torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            found.append(
                with_gradient(ROUTINES[name][0], tensors, monkeypatch, True)[:2]
            )  # scales are products, whose order is the library's
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("scale", ["1e9", "Scale"])
def test_gradients_of_scores_that_are_rounded_by_much(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's routine subtracts rounded logarithms from exact products: the exponentials overflow where these are
    large, and the statements give the gradient."""
    source = ATTENTION.format("i >= j ?").replace("0.5 *", f"{scale} *")
    source = source.replace("E])", "E], Scale[])") if scale == "Scale" else source
    found = []
    for library in "10":
        monkeypatch.setenv("TILEC_LIBRARY", library)
        shapes = ((1, 2, 1, 200, 32), (1, 2, 200, 32), (1, 2, 200, 32))
        q, k, v = (t.requires_grad_() for t in inputs(shapes, torch.float32))
        o = tilec.compile(source)(q, k, v, *([1e9] if scale == "Scale" else []))
        found.append(torch.autograd.grad(o.cos().sum(), (q, k, v)))
    for a, b in zip(*found, strict=True):
        assert b.isfinite().all()
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "scale",
    [
        *(0.3, 0.0, math.inf, torch.tensor(0.3)),
        *(pytest.param(x, marks=pytest.mark.slow) for x in (-2.0, math.nan, torch.tensor(3))),
    ],
)
def test_scales_that_are_inputs(scale: float | torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients by torch's routine, where the scale is finite, as by the statements."""
    calls, found = [], []

    def gradient(*operands, **how):
        calls.append(runtime.attention_gradient(*operands, **how))
        return calls[-1]

    monkeypatch.setattr(rt, "attention_gradient", gradient)
    for library in "10":
        monkeypatch.setenv("TILEC_LIBRARY", library)
        q, k, v = (t.requires_grad_() for t in inputs(((1, 2, 1, 200, 32), (1, 2, 200, 32), (1, 2, 200, 32))))
        o = tilec.compile(SCALED)(q, k, v, scale)
        found.append([o, *torch.autograd.grad(o.sum(), (q, k, v))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert [c is not None for c in calls] == [math.isfinite(scale)]


ONE_ELEMENT = {
    NORM: ((2, 1), (1,), (1,)),
    NORM.replace("B[d] + ", "").replace(", B[D]", ""): ((2, 1), (1,)),
    GROUPS_OF_CHANNELS: ((2, 3, 1), (3,), (3,)),
    BATCH: ((1, 1, 4), (4,), (4,)),
    PIXELS: ((2, 3, 1, 1),),
}


@pytest.mark.parametrize("source", ONE_ELEMENT)
def test_norms_of_one_element(source: str) -> None:
    """The mean is the sum there, and has no statement of its own."""
    x, *others = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ONE_ELEMENT[source])
    y = tilec.compile(source)(x, *others)
    y.sum().backward()
    shift = others[1].detach() if len(others) > 1 else torch.zeros(())
    assert torch.equal(y.detach(), (shift[:, None] if source == GROUPS_OF_CHANNELS else shift).expand_as(y))
    assert not x.grad.any()
