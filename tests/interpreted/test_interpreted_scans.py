"""Scans as kernels, interpreted: every form against the oracle, with blocks and chunks so small that what is carried
from one to the next matters, and gradients."""

import os

import numpy as np
import pytest
import torch
from support.recurrences import RECURRENCES

import tilec
from tilec.backends.triton.plan import sizes
from tilec.backends.triton.scan import kernel as scan_text
from tilec.backends.triton.scan import scan as scans
from tilec.backends.triton.scan.kernel import ScanTiling
from tilec.backends.triton.schedule import families, planner

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

AGGREGATIONS = ("+", "*", ">", "<", "logsumexp")
FORMS = {
    "all before": "O[i : N] = %s(X[k]), i - k < N;",
    "all after": "O[i : N] = %s(X[k]), k - i < N;",
    "without itself": "O[i : N] = %s(X[k]), i - k - 1 < N;",
    "without itself, backward": "O[i : N] = %s(X[k]), k - i - 1 < N;",
    "a longer output": "O[i : N + 3] = %s(X[k]), i - k - 2 < 2*N;",
    "a longer output, backward": "O[i : N + 3] = %s(X[k]), k - i + 1 < 2*N;",
    "a shorter output": "O[i : N - 2] = %s(X[k]), i - k + 2 < N;",
    "a shorter output, backward": "O[i : N - 2] = %s(X[k]), k - i < N;",
    "fewer terms": "O[i : N] = %s(X[k]), k - i < N, k - 2 < N;",
    "guarded": "O[i : N] = %s(X[k] > 0 ? X[k]), i - k + 2 < N + 2;",
    "another place": "O[i : N] = %s(2*X[k + 1]), i - k < 2*N;",
    "turned round": "O[i : N] = %s(X[N - 1 - k]), i - k < N;",
    "a body of its own": "O[i : N] = %s(exp(X[k]) * k - pad(X[k - 1], 0.5)), i - k < N;",
}
TILINGS = {
    "chosen": None,
    "one pass": ScanTiling(2, 1, True),
    "chunks of one block": ScanTiling(2, 1, True, 1),
    "chunks of two blocks": ScanTiling(2, 2, True, 2),
    "lanes last": ScanTiling(2, 4, False, 1),
    "lanes apart": ScanTiling(2, 4, False, 1, apart=True),
}
inf, nan = np.inf, np.nan


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def as_numpy(t):
    return t.double().numpy() if t.dtype in (torch.bfloat16, torch.float16) else t.numpy()


SLOW = ("chunks of two blocks", "lanes last")


@pytest.fixture(params=[pytest.param(t, marks=pytest.mark.slow) if t in SLOW else t for t in TILINGS])
def tiling(request, monkeypatch):
    """Blocks of a fixed size."""
    force(monkeypatch, TILINGS[request.param])
    return TILINGS[request.param]


@pytest.fixture(params=["chunks of two blocks", "lanes apart"])
def cut(request, monkeypatch):
    """Blocks of a fixed size, rows in chunks."""
    force(monkeypatch, TILINGS[request.param])


def force(monkeypatch, tiling):
    if tiling is not None:
        monkeypatch.setattr(scans, "choose_scan_tiling", lambda scan, view: tiling)
    monkeypatch.setattr(scans, "FEWEST_STEPS", 2)
    monkeypatch.setattr(scans, "FEWEST_ALONG", 2)
    monkeypatch.setattr(scan_text, "TOTALS", 4)


def agree(source, *inputs, tolerance=1e-12, kernels=None):
    """The same as the oracle; `kernels` ends the names of what is launched."""
    f = tilec.compile(source, backend="triton")
    got = f(*inputs)
    with np.errstate(all="ignore"):
        wanted = tilec.interpret(source, *map(as_numpy, inputs))
    for g, w in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, wanted)), strict=True):
        np.testing.assert_allclose(as_numpy(g), w, rtol=tolerance, atol=tolerance)
    names = [k.name for k in f.lower(*inputs).kernels]
    if kernels is not None:
        assert names[-1].endswith(kernels), names
    return got, names


@pytest.mark.one_in(3)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.covering
def test_each_form(form, aggregation, tiling):
    source = f"function (X[N]) -> (O) {{ {FORMS[form] % aggregation} }}"
    agree(source, normal(7), kernels="_scan", tolerance=1e-11)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.covering
def test_what_rides_reads_its_own_elements(form, cut):
    """Terms begin and end where elements of the output need not."""
    statement = FORMS[form] % "+"
    source = f"function (X[N], Y[M]) -> (T) {{ {statement} T = Y - O * Y; }}"
    (size,) = tilec.interpret(f"function (X[N]) -> (O) {{ {statement} }}", np.zeros(7)).shape
    _, names = agree(source, normal(7), normal(size), tolerance=1e-11)
    assert len(names) <= 2 and names[-1].endswith("_scan")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.covering
def test_batched_and_permuted(aggregation, tiling):
    source = "function (X[B, N, C], Y[C]) -> (O) { O[c, i, b : C, N, B] = %s(X[b, k, c] * Y[c]), k - i < N; }"
    agree(source % aggregation, normal(2, 6, 3), normal(3), kernels="_scan")


@pytest.mark.parametrize("body", ["any(X[b, k] > 1)", "all(X[b, k] < 1)", ">(X[b, k] > 0)", "<(X[b, k] < 0)"])
@pytest.mark.covering
def test_truth(body, cut):
    got, _ = agree(
        f"function (X[B, N]) -> (O) {{ O[b, i : B, N] = {body}, i - k < N; }}", normal(3, 9), kernels="_scan"
    )
    assert got.dtype == torch.bool


SPECIAL = ([1, 2, inf, 3, nan, 0], [-inf, -inf, 1, inf, 2, -inf], [-inf] * 4 + [1, -inf], [0, inf, 0, -inf, 1, nan])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("values", SPECIAL, ids=str)
@pytest.mark.covering
def test_infinities_and_nan(aggregation, values, cut):
    for constraint in ("i - k < N", "k - i < N"):
        source = f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), {constraint}; }}"
        agree(source, torch.tensor(values, dtype=torch.float64), kernels="_scan")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.int32, torch.int64, torch.uint8, torch.float16, torch.float32]
)
@pytest.mark.parametrize("aggregation", ["+", "*", ">", "<"])
@pytest.mark.covering
def test_types(aggregation, dtype, cut):
    x = torch.randint(-3, 4, (8,), generator=torch.Generator().manual_seed(1)).to(dtype)
    source = f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), i - k < N; }}"
    got, _ = agree(source, x, tolerance=2e-3 if dtype == torch.float16 else 1e-6, kernels="_scan")
    assert got.dtype == tilec.compile(source, backend="torch")(x).dtype


def test_narrow_sums_are_rounded_once(cut):
    x = torch.full((2, 40), 0.1).half()
    got = tilec.compile("function (X[B, N]) -> (O) { O[b, i : B, N] = +(X[b, k]), i - k < N; }", backend="triton")(x)
    assert torch.equal(got, x.float().cumsum(1).half())


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5])
def test_short_rows(size):
    for constraint in ("i - k < N", "k - i - 1 < N"):
        agree(f"function (X[B, N]) -> (O) {{ O[b, i : B, N] = +(X[b, k]), {constraint}; }}", normal(3, size))
    agree("function (X[N, B]) -> (O) { O[i, b : N, B] = logsumexp(X[k, b]), i - k < N; }", normal(size, 0))


def test_what_is_no_scan():
    for body in ("X[k]), i - k < 3", "sin(X[k] * X[i])), i - k < N", "X[k]), i - 2*k < N", "X[k]), k - i - 2 < 5"):
        _, names = agree(f"function (X[N]) -> (O) {{ O[i : N] = +({body}; }}", normal(9))
        assert names == ["O_kernel"]


@pytest.mark.one_in(2)
def test_elementwise_statements_ride(tiling):
    lines = "T[b, i : B, N] = >(X[b, k]), i - k < N; U[b, i : B, N] = S[b] * T[b, i]; O = U + 1;"
    _, names = agree(f"function (X[B, N], S[B]) -> (O) {{ {lines} }}", normal(3, 9), normal(3))
    assert all(n.startswith("T_") for n in names)
    source = "function (A[B, T]) -> (O) { H[b, t : B, T] = 0.5 * H[b, t - 1] + A[b, t]; O = exp(H) * A; }"
    _, names = agree(source, normal(3, 9))
    assert all(n.startswith("H_") for n in names)
    ema = "H[b, t : B, T] = 0.5 * H[b, t - 1] + A[b, t];"
    _, names = agree(f"function (A[B, T]) -> (O) {{ {ema} O[b, t] = +(A[b, t] > 0 ? H[b, t]); }}", normal(3, 9))
    assert all(n.startswith("H_") for n in names)
    overflows = normal(3, 9)
    overflows[1, 4] = inf
    agree(source, overflows)
    agree(source.replace("exp(H) * A", "exp(-H * H) + (H + A) * (H + A) / (2 + (H + A))"), overflows)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.covering
def test_gradients(aggregation, tiling):
    for constraint in ("i - k < N", "k - i < N"):
        source = f"function (X[B, N]) -> (O) {{ O[b, i : B, N] = {aggregation}(X[b, k]), {constraint}; }}"
        gradient = tilec.compile(source).grad().tile
        x = (2 * normal(3, 9)).round()  # ties and zeros
        got, names = agree(gradient, x, normal(3, 9))
        assert all(n.endswith(("_scan", "_totals", "_kernel", "_rows")) for n in names), names
        assert sum(n.endswith("_scan") for n in names) >= {"+": 1, "*": 2, "logsumexp": 2}.get(aggregation, 3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.covering
def test_terms_that_are_aggregations(aggregation, tiling):
    source = "function (X[N, M]) -> (O) { O[i : N] = %s(X[k, l] - l), i - k < N; }"
    _, names = agree(source % aggregation, normal(6, 4), kernels="O_scan", tolerance=1e-10)
    assert names[0] == "O_terms_kernel"
    source = "function (X[B, N, M]) -> (O) { O[j, b, i : M, B, N] = %s(X[b, k, l]), i - k < N, l - j - 1 < M; }"
    _, names = agree(source % aggregation, normal(2, 6, 5), kernels="O_scan", tolerance=1e-10)
    assert "O_terms_scan" in names
    source = "function (X[N, M]) -> (O) { O[i : N] = %s(X[k, l]), i - k < N, k - l < 3; }"
    agree(source % aggregation, normal(7, 5), kernels="O_scan", tolerance=1e-10)


def test_narrow_terms_are_rounded_once(cut):
    x = torch.full((40, 30), 0.1).half()
    f = tilec.compile("function (X[N, M]) -> (O) { O[i : N] = +(X[k, l]), i - k < N; }", backend="triton")
    torch.testing.assert_close(f(x), x.float().sum(1).cumsum(0).half(), rtol=0, atol=0)


# recurrences

STEPS = {
    "A[t, i] * H[t - 1, i] + B[t, i]": "then_real_",
    "B[t, i] - H[t - 1, i] * A[t, i] / 2": "then_real_",
    "A[t, i] > 0.6 ? H[t - 1, i] * A[t, i] : B[t, i]": "then_real_",
    "A[t, i] * H[t + 1, i] + B[t, i]": "then_real_",
    "A[t, i] * H[t - 1, (i - 1) % D] + B[t, i]": "then_real_",
    "A[t, i] * H[t + 1, (i + 2) % D] + B[t, i]": "then_real_",
    "max(B[t, i], H[t - 1, i] - A[t, i])": "then_max_plus_",
    "relu(B[t, i] + H[t - 1, i])": "then_max_plus_",
    "relu(B[t, i] + H[t - 1, (i - 1) % D])": "then_max_plus_",
    "max(max(H[t - 1, i], B[t, i]) + A[t, i], H[t - 1, i] - 1)": "then_max_plus_",
    "min(B[t, i], H[t - 1, i] + A[t, i])": "then_min_plus_",
    "logaddexp(B[t, i] + H[t - 1, i], A[t, i])": "then_log_",
    "H[t - 1, i] + B[t - 1, i] * A[t, i]": "then_real_",
    "A[0, i] > 0.5 ? H[t - 1, i] * A[1, i] + H[t - 1, i] * A[1, i] * B[0, i] : H[t - 1, i] * A[1, i] + 1": "then_real_",
}


def stepping(step):
    init = "2 * H0[i] + t + 0 * A[0, i] + 0 * B[0, i]"
    return f"function (A[T, D], B[T, D], H0[D]) -> (H) {{ H[t, i : T, D] = {step} init {init}; }}"


def states(dtype=torch.float64, steps=11):
    return [normal(steps, 3, dtype=dtype).sigmoid(), normal(steps, 3, dtype=dtype), normal(3, dtype=dtype)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_each_semiring(step, tiling):
    f = tilec.compile(stepping(step), backend="triton")
    assert STEPS[step] in f.lower(*states()).source()
    agree(stepping(step), *states(), tolerance=1e-11, kernels="_scan")


def test_what_does_not_compose(monkeypatch):
    force(monkeypatch, None)
    for step in ("tanh(H[t - 1, i]) + A[t, i]", "H[t - 1, i] * H[t - 1, i] + A[t, i]", "max(A[t, i] * H[t - 1, i], 1)",
                 "A[t, i] * H[t - 2, i] + 1", "A[t, i] * H[t - 1, i] + H[t - 2, i]"):  # fmt: skip
        source = f"function (A[T, D]) -> (H) {{ H[t, i : T, D] = {step}; }}"
        _, names = agree(source, states()[0], tolerance=1e-9)
        assert not any(n.endswith("_scan") for n in names)
    exact = tilec.compile(stepping("A[t, i] * H[t - 1, i] + B[t, i]"), backend="triton", exact=True)
    assert "then_real_" not in exact.lower(*states()).source()
    narrow = tilec.compile("function (A[T]) -> (H) { H[t : T] = H[t - 1] + A[t]; }", backend="triton")
    assert "then_real_" not in narrow.lower(torch.ones(9).half()).source()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.covering
def test_integers_wrap_as_step_by_step(dtype, cut):
    x = torch.randint(-9, 10, (40,), generator=torch.Generator().manual_seed(1)).to(dtype)
    f = tilec.compile("function (X[T]) -> (H) { H[t : T] = 3 * H[t - 1] * X[t] - X[t] + 7 init 5; }", backend="triton")
    assert f.lower(x).kernels[-1].name == "H_scan"
    wanted = torch.empty_like(x)
    h = 5
    for t, v in enumerate(x.tolist()):
        bits = 32 if dtype is torch.int32 else 64
        h = (3 * h * v - v + 7 + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        wanted[t] = h
    assert torch.equal(f(x), wanted)


def test_compositions_that_overflow_are_run_step_by_step(tiling):
    """Factors of 1e30 and 1e-30 in turn, from 0, and to 1 at times: composed, they are infinite, and 0 * inf is NaN."""
    steps = 23
    a = torch.where(torch.arange(steps) % 4 < 2, 1e30, 1e-30).repeat(3, 1).T.contiguous()
    b = torch.zeros(steps, 3)
    b[9, 1] = 1e-20
    h = torch.zeros(3)
    source = stepping("A[t, i] * H[t - 1, i] + B[t, i]").replace("2 * H0[i] + t", "H0[i]")
    got = tilec.compile(source, backend="triton")(a, b, h)
    wanted = tilec.compile(source, backend="torch", exact=True)(a, b, h)
    assert wanted.isfinite().all() and wanted.count_nonzero() > 0
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("value", [inf, -inf, nan])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.covering
@pytest.mark.one_in(5)
def test_states_that_are_not_finite(step, value, cut):
    a, b, h = states()
    b[4, 1], a[6, 0] = value, 0
    with np.errstate(all="ignore"):
        agree(stepping(step), a, b, h, tolerance=1e-9)


@pytest.mark.parametrize("case", ["linear", "shuffle", "backward", "points that other reads leave", "of length 0"])
@pytest.mark.covering
def test_of_other_suites(case, tiling):
    source, inputs = RECURRENCES[case]
    agree(source, *(torch.from_numpy(x) for x in inputs))


@pytest.mark.parametrize("step", ["A[t, i] * H[t - 1, i] + B[t, i]", "relu(B[t, i] + A[t, i] + H[t - 1, (i - 1) % D])"])
def test_gradients_of_recurrences(step, monkeypatch):
    force(monkeypatch, TILINGS["chunks of two blocks"])
    gradient = tilec.compile(stepping(step)).grad().tile
    agree(gradient, *states(), normal(11, 3), tolerance=1e-10)


@pytest.mark.one_in(2)
def test_lanes_before_and_after_time(tiling):
    source = "function (A[B, T, C]) -> (H) { H[b, t, c : B, T, C] = relu(H[b, t - 1, (c - 1) % C] + A[b, t, c]); }"
    agree(source, normal(2, 9, 3), kernels="_scan")
    source = "function (A[B, T]) -> (H) { H[b, t : B, T] = 0.5 * H[b, t - 1] + A[b, t]; }"
    agree(source, normal(3, 9), kernels="_scan")


def test_guarded_steps(cut):
    source = "function (A[T], X[T]) -> (H) { H[t : T] = A[t] > 0 ? 0.9 * H[t - 1] + X[t] init 3; }"
    agree(source, normal(15), normal(15).abs())


def test_a_state_space_model_and_its_gradient(cut):
    source = """function (L[C, S], P[C, S], Q[C, S], X[B, T, C]) -> (Y) {
        H[b, t, c, s : B, T, C, S] = exp(-L[c, s]) * H[b, t - 1, c, s] + P[c, s] * X[b, t, c];
        Y[b, t, c : B, T, C] = +(Q[c, s] * H[b, t, c, s]);
    }"""
    inputs = [normal(2, 3).abs(), normal(2, 3), normal(2, 3), normal(2, 6, 2)]
    agree(source, *inputs)
    agree(tilec.compile(source).grad().tile, *inputs, normal(2, 6, 2), tolerance=1e-11)


def test_positions_of_64_bits(tiling, monkeypatch):
    for module in (families, planner):
        monkeypatch.setattr(module, "needs_int64_index", lambda *given: True)
    monkeypatch.setattr(sizes, "NARROWEST", -1)
    agree("function (X[B, N]) -> (O) { O[b, i : B, N] = +(X[b, k]), k - i < N; }", normal(3, 9), kernels="_scan")
    f = tilec.compile(stepping("A[t, i] * H[t - 1, (i - 1) % D] + B[t, i]"), backend="triton")
    assert ".to(tl.int64)" in f.lower(*states()).kernels[-1].source
    agree(stepping("A[t, i] * H[t - 1, (i - 1) % D] + B[t, i]"), *states(), kernels="_scan")
