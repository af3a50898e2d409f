"""Recurrences as kernels, interpreted on the CPU, against the oracle."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.programs import PHASES
from support.random_recurrences import recurrences
from support.recurrences import RECURRENCES
from support.scale import scaled
from support.stages import agree_with_gradient, agree_with_oracle

import tilec
from tilec.backends.triton.plan.device_info import DeviceInfo
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.recurrence import coupled_lanes as recurrence_sweep
from tilec.backends.triton.recurrence import independent_lanes, parallel_lanes, recurrence, shared_sums
from tilec.backends.triton.recurrence import step as recurrence_step
from tilec.language import parse
from tilec.transforms.steps import unroll_steps

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


FORMS = {  # how recurrences are carried out, other than as chosen: what is patched in the backend's modules
    "a step ahead": {(independent_lanes, "MOST_AHEAD"): 1},
    "two steps ahead": {(independent_lanes, "MOST_AHEAD"): 2},
    "four steps ahead": {(independent_lanes, "MOST_AHEAD"): 4, (parallel_lanes, "FIRST_LOADS"): 2},
    "in registers": {},
    "resident": {(recurrence, "recognise_local"): lambda loop: None, (recurrence, "recognise_tile"): lambda loop: None},
    "resident in blocks": {
        (recurrence, "recognise_local"): lambda loop: None,
        (recurrence, "recognise_tile"): lambda loop: None,
        (recurrence_sweep, "MOST_LANES"): 2,
        (recurrence_sweep, "SUMMED_LANES"): 2,
        (recurrence_step, "FEW_SUMMED_POINTS"): 0,
        (recurrence_step, "MOST_IN_BLOCK"): 4,
    },
    "unrolled": {(unroll_steps, "LARGE_STEP"): 0},
    "stepwise": {
        (recurrence, "recognise_local"): lambda loop: None,
        (recurrence, "recognise_tile"): lambda loop: None,
        (recurrence_sweep, "RESIDENT_LANES"): 0,
    },
    "sums apart": {
        (recurrence, "recognise_local"): lambda loop: None,
        (recurrence, "recognise_tile"): lambda loop: None,
        (shared_sums, "_GAIN"): -1,
    },
    "sums apart in a program": {
        (recurrence, "recognise_local"): lambda loop: None,
        (recurrence, "recognise_tile"): lambda loop: None,
        (recurrence, "choose_blocks"): lambda sharing, setting: recurrence_sweep.choose_blocks(sharing, ALONE),
        (shared_sums, "_GAIN"): -1,
        (recurrence_sweep, "WAITING_WORK"): -(2**62),
        (recurrence_sweep, "SUMMED_LANES"): 2,
    },
    "together in a program": {
        (recurrence, "recognise_local"): lambda loop: None,
        (recurrence, "recognise_tile"): lambda loop: None,
        (recurrence, "choose_blocks"): lambda sharing, setting: recurrence_sweep.choose_blocks(sharing, ALONE),
        (recurrence_sweep, "RESIDENT_LANES"): 0,
        (recurrence_sweep, "MOST_LANES"): 2,
    },
}
ALONE = Setting(device=DeviceInfo("one", 90, 1, 2**16))  # one program waits for none


SLOW = (
    "together in a program",
    "sums apart in a program",
    "unrolled",
    "two steps ahead",
    "four steps ahead",
    "resident in blocks",
)


@pytest.fixture(params=[pytest.param(f, marks=pytest.mark.slow) if f in SLOW else f for f in FORMS])
def form(request, monkeypatch):
    for (module, name), value in FORMS[request.param].items():
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("case", RECURRENCES)
@pytest.mark.covering
@pytest.mark.one_in(8)
def test_each_recurrence_and_its_gradient(case, form):
    source, arrays = RECURRENCES[case]
    assert agree_with_gradient(parse(source), list(arrays)) is not None


_PLACES = {  # elements of the recurrence itself as places
    "a place that moves nothing": "Q[t : 5] = Next[Q[t - 2], X[t]] init 0;",
    "an element that time knows nothing of": "Q[t : 5] = t > 0 ? V[Q[0]] + X[t] : X[t];",
    "padded there": "Q[t, j : 5, 2] = j > 0 ? pad(V[Q[t, 0]], 1) + X[t] : X[t];",
    "init alone": "Q[t : 5] = V[Q[-1]] + X[t] init 2;",
}


@pytest.mark.parametrize("name", _PLACES)
def test_places_that_are_states(name):
    program = parse(f"function (Next[1, 2], X[5], V[4]) -> (Q) {{ {_PLACES[name]} }}")
    assert agree_with_oracle(program, [np.array([[0, 1]]), np.array([0, 1, 1, -1, 1]), np.array([1, 0, 2, 1])])


def test_random_recurrences(form):
    @settings(max_examples=scaled(12), phases=PHASES)
    @given(recurrences())
    def run(case):
        agree_with_oracle(parse(case[0]), case[1])

    run()


def test_random_gradients(form):
    @settings(max_examples=scaled(4), phases=PHASES)
    @given(recurrences(smooth=True))
    def run(case):
        agree_with_gradient(parse(case[0]), case[1])

    run()


SHUFFLE = """function (B[N, T, D], H0[N, D]) -> (H) {
    H[n, t, i : N, T, D] = relu(B[n, t, i] + H[n, t - 1, (i - 1) % D]) init H0[n, i];
}"""


@pytest.mark.parametrize("steps", [1, 31, 70])
@pytest.mark.parametrize("backward_in_time", [False, True])
@pytest.mark.covering
def test_the_shuffle_is_the_eager_loop_bit_for_bit(steps, backward_in_time):
    generator = torch.Generator().manual_seed(0)
    b = torch.randn(2, steps, 40, generator=generator, requires_grad=True)
    h = torch.randn(2, 40, generator=generator, requires_grad=True)
    source = SHUFFLE
    if backward_in_time:
        source = source.replace("t - 1", "t + 1")
    state, wanted = h, [None] * steps
    for t in range(steps)[:: -1 if backward_in_time else 1]:
        wanted[t] = state = torch.relu(b[:, t] + torch.roll(state, 1, -1))
    eager = torch.stack(wanted, 1)
    f = tilec.compile(source, backend="triton", exact=True)
    got = f(b, h)
    assert torch.equal(got, eager)
    d = torch.randn(got.shape, generator=generator)
    assert all(map(torch.equal, torch.autograd.grad(got, (b, h), d), torch.autograd.grad(eager, (b, h), d)))


def test_products_and_sums_are_rounded_apart():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(50, 33, generator=generator) for _ in range(2))
    state, wanted = torch.zeros(33), []
    for t in range(50):
        state = a[t] * state + b[t]
        wanted.append(state)
    source = "function (A[T, D], B[T, D]) -> (H) { H[t, i : T, D] = A[t, i] * H[t - 1, i] + B[t, i]; }"
    f = tilec.compile(source, backend="triton", exact=True)
    assert torch.equal(f(a, b), torch.stack(wanted))
    assert "enable_fp_fusion=False" in f.lower(a, b).source()


def test_half_precision_rounds_every_state():
    generator = torch.Generator().manual_seed(0)
    b, h = torch.randn(2, 10, 8, generator=generator).half(), torch.randn(2, 8, generator=generator).half()
    state = h
    for t in range(10):
        state = torch.relu(b[:, t] + torch.roll(state, 1, -1))
    assert torch.equal(tilec.compile(SHUFFLE, backend="triton")(b, h)[:, -1], state)


MODEL = """function (P[S, S], E[T, N, S], F0[N, S]) -> (F) {
    F[t, n, j : T, N, S] = logsumexp(F[t - 1, n, i] + P[i, j]) + E[t, n, j] init F0[n, j];
}"""


def test_a_hidden_markov_model_and_its_gradient():
    batch, states = 3, 20
    random = np.random.default_rng(0)
    arrays = [random.normal(size=s) for s in ((states, states), (4, batch, states), (batch, states))]
    p, e, f = (torch.from_numpy(a).requires_grad_() for a in arrays)
    state, wanted = f, []
    for t in range(4):
        state = torch.logsumexp(state[:, :, None] + p, 1) + e[t]
        wanted.append(state)
    eager = torch.stack(wanted)
    got = tilec.compile(MODEL, backend="triton")(p, e, f)
    torch.testing.assert_close(got, eager)
    d = torch.from_numpy(random.normal(size=eager.shape))
    for x, y in zip(torch.autograd.grad(got, (p, e, f), d), torch.autograd.grad(eager, (p, e, f), d), strict=True):
        torch.testing.assert_close(x, y)


def test_a_gradient_reads_states_and_cotangents_once_and_keeps_what_others_read():
    b, h, d = (torch.randn(s) for s in ((2, 9, 5), (2, 5), (2, 9, 5)))
    gradient = tilec.compile(SHUFFLE, backend="triton", exact=True).grad()
    lowered = gradient.lower(b, h, d)
    assert [k.statements for k in lowered.kernels] == [("H",), ("GH", "DB"), ("DH0",)]
    assert " < bound" in lowered.source().split("tl.store(GH")[1].split("\n")[0], "one time of all is stored"
    without = SHUFFLE.replace(", H0[N, D]", "").replace(" init H0[n, i]", "")
    lowered = tilec.compile(without, backend="triton", exact=True).grad().lower(b, d)
    assert [k.statements for k in lowered.kernels] == [("H",), ("GH", "DB")]
    assert "tl.store(GH" not in lowered.source() and "GH = torch" not in lowered.source()


PLANE, VOLUME = (
    "function (B[T, D]) -> (H) { H[t, i : T, D] = ",
    "function (B[T, D, E]) -> (H) { H[t, i, j : T, D, E] = ",
)
WALKS = {  # what a step is, the input's shape, and whether addresses go from step to step
    "turning": (PLANE + "relu(B[t, i] + H[t - 1, (i - 1) % D]); }", (70, 40), True),
    "turning, backward in time": (PLANE + "B[t, i] + 0.5 * H[t + 1, (i + 1) % D]; }", (70, 40), True),
    "both ways": (VOLUME + "B[t, i, j] + 0.5 * H[t - 1, (i - 1) % D, (j + 1) % E]; }", (6, 33, 34), True),
    "round within a few steps": (PLANE + "B[t, i] + 0.5 * H[t - 1, (i - 1) % D]; }", (70, 7), False),
    "two lanes": (PLANE + "B[t, i] + 0.5 * H[t - 1, (i - 1) % D]; }", (70, 2), False),
    "by three places": (PLANE + "B[t, i] + 0.5 * H[t - 1, (i - 3) % D]; }", (70, 40), False),
    "staying": (PLANE + "B[t, i] * H[t - 1, i] + B[T - 1 - t, i]; }", (70, 40), True),
    "every other step": (
        "function (B[S, D]) -> (H) { H[t, i : 35, D] = B[68 - 2*t, i] - H[t - 2, i]; }",
        (70, 40),
        True,
    ),
}


@pytest.mark.parametrize("case", WALKS)
@pytest.mark.one_in(3)
def test_addresses_go_from_step_to_step(case):
    source, shape, walks = WALKS[case]
    b = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    f = tilec.compile(source, backend="triton", exact=True)
    assert torch.equal(f(b), tilec.compile(source, backend="torch", exact=True)(b))
    assert (" = at_b" in f.lower(b).source()) == walks


_TOTALS = {  # what has an element for each lane, and is computed beside the states, which are not stored
    "a series": """function (X[N], C[K]) -> (Y) {
        P[k, i : K, N] = k == 0 ? 1.0 : k == 1 ? X[i] : X[i] * P[k - 1, i] * 0.5 - P[k - 2, i];
        Y[i : N] = +(C[k] * P[k, i]);
    }""",
    "the last state": """function (X[N], C[K]) -> (Y) {
        H[k, i : K, N] = H[k - 1, i] * X[i] + C[k];
        Y[i : N] = H[K - 1, i];
    }""",
    "the first state, time falling": """function (X[N], C[K]) -> (Y, Z) {
        H[i, k : N, K] = H[i, k + 1] * X[i] + C[k];
        Y[i : N] = 2 * H[i, 0];
        Z[i : N] = +(k > 1 ? H[i, k] * X[i]), k < 4;
    }""",
}


@pytest.mark.parametrize("form", _TOTALS)
def test_sums_over_time_and_single_states(form):
    g = torch.Generator().manual_seed(0)
    x, c = (torch.randn(n, generator=g).to(t) for n, t in ((5, torch.float32), (6, torch.float32)))
    f = tilec.compile(_TOTALS[form], backend="triton")
    assert [k.name.split("_")[0] for k in f.lower(x, c).kernels] == [_TOTALS[form].split("{")[1].split()[0][0]]
    torch.testing.assert_close(f(x, c), tilec.compile(_TOTALS[form], backend="torch")(x, c))
    narrow = x.half(), c.half()
    torch.testing.assert_close(f(*narrow), tilec.compile(_TOTALS[form], backend="torch")(*narrow), rtol=4e-3, atol=4e-3)


def test_sums_that_lanes_share(monkeypatch):
    """All programs compute a part of what lanes share, and wait for each other."""
    monkeypatch.setattr(recurrence, "recognise_tile", lambda loop: None)
    monkeypatch.setattr(recurrence_sweep, "WAITING_WORK", 0)
    text = "S[t, p, n, q : 3, D, N, D] = X[t, p, n, q] + sum[a, b](S[t - 1, a, n, b] * A[n, a, p] * B[b, q])"
    x, a, b = (torch.zeros(s) for s in ((3, 16, 150, 16), (150, 16, 16), (16, 16)))
    source = tilec.compile(text, backend="triton").lower(16, 150, x, a, b, target="sm_90").source()
    assert "cooperative" in source and "S_shared" in source
