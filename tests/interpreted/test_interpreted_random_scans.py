"""Random scans and affine recurrences as interpreted kernels, with random blocks, against the oracle."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import PHASES
from support.scale import scaled

import tilec
from tilec.backends.triton.scan import kernel as scan_text
from tilec.backends.triton.scan import scan as scans
from tilec.backends.triton.scan.kernel import ScanTiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
BODIES = ("X[b, k, c]", "X[b, k, c] * Y[k]", "X[b, k, c] - b", "pad(X[b, k - 2, c], 0.5) + Y[k] * c", "exp(X[b, k, c])")


def tilings():
    powers = st.sampled_from([1, 2, 4, 8])
    blocks = st.builds(ScanTiling, powers, powers, st.booleans(), st.sampled_from([None, 1, 2, 3]))
    lanes = st.sampled_from([2, 4, 8])
    apart = st.builds(
        lambda u, n, t: ScanTiling(u, n, False, t, apart=True), powers, lanes, st.sampled_from([None, 1, 2])
    )
    return st.one_of(blocks, apart)


@st.composite
def aggregations(draw):
    rising = draw(st.booleans())
    shift, past = draw(st.integers(-3, 3)), draw(st.integers(-2, 4))
    gap = "i - k" if rising else "k - i"
    order = draw(st.permutations(["b", "i", "c"]))
    sizes = {"b": "B", "i": f"N + {past}", "c": "C"}
    body = draw(st.sampled_from(BODIES))
    if draw(st.booleans()):
        body = f"Y[k] > -1 ? {body}"
    constraints = [f"{gap} + {shift} < 3 * N + 9", *(["k - 1 < N - 2"] if draw(st.booleans()) else [])]
    aggregation = draw(st.sampled_from(["+", "*", ">", "<", "logsumexp"]))
    left = f"O[{', '.join(order)} : {', '.join(sizes[v] for v in order)}]"
    text = f"{left} = {aggregation}({body}), {', '.join(constraints)};"
    shape = [draw(st.integers(1, 3)), draw(st.integers(7, 12)), draw(st.integers(1, 3))]
    return f"function (X[B, N, C], Y[N]) -> (O) {{ {text} }}", shape, draw(tilings())


@st.composite
def steps(draw):
    plus, times, leaves = draw(
        st.sampled_from(
            [
                ("{0} + {1}", "{0} * {1}", ("A[t, i]", "B[t]", "0.5", "A[2, i] / 2")),
                ("max({0}, {1})", "{0} + {1}", ("A[t, i]", "B[t]", "-1", "A[0, i]")),
                ("min({0}, {1})", "{0} - {1}", ("A[t, i]", "B[t]", "1", "A[1, i]")),
                ("logaddexp({0}, {1})", "{0} + {1}", ("A[t, i]", "B[t]", "-0.5", "A[0, i]")),
            ]
        )
    )
    gap = draw(st.sampled_from(["t - 1", "t + 1"]))
    turn = draw(st.sampled_from(["i", "(i - 1) % D", "(i + 2) % D"]))
    e = f"H[{gap}, {turn}]"
    for _ in range(draw(st.integers(1, 4))):
        leaf = draw(st.sampled_from(leaves))
        if draw(st.booleans()):
            e = f"({times.format(e, leaf)})"
        elif draw(st.booleans()):
            e = f"({plus.format(leaf, e)})"
        else:
            e = f"(B[t] > 0 ? {e} : {leaf})"
    init = draw(st.sampled_from(["", " init A[1, i] - i", " init t + 1"]))
    guard = draw(st.sampled_from(["", "A[t, i] > -1 ? "]))
    text = f"H[t, i : T, D] = {guard}{e}{init};"
    shape = [draw(st.integers(4, 12)), draw(st.integers(1, 4))]
    return f"function (A[T, D], B[T]) -> (H) {{ {text} }}", shape, draw(tilings())


def agree(source, arrays, tiling, monkeypatch):
    monkeypatch.setattr(scans, "choose_scan_tiling", lambda scan, view: tiling)
    monkeypatch.setattr(scans, "FEWEST_STEPS", 2)
    monkeypatch.setattr(scans, "FEWEST_ALONG", 2)
    monkeypatch.setattr(scan_text, "TOTALS", 4)
    f = tilec.compile(source, backend="triton")
    got = f(*map(torch.from_numpy, arrays))
    with np.errstate(all="ignore"):
        wanted = tilec.interpret(source, *arrays)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-10, atol=1e-10)
    return f.lower(*map(torch.from_numpy, arrays)).kernels[-1].name.endswith("_scan")


@pytest.mark.parametrize("kind", ["aggregations", "steps"])
def test_random_scans(kind, monkeypatch):
    found = []

    @settings(max_examples=scaled(15), phases=PHASES)
    @given({"aggregations": aggregations, "steps": steps}[kind](), st.integers(0, 2**20))
    def run(case, seed):
        source, shape, tiling = case
        random = np.random.default_rng(seed)
        special = random.random() < 0.2
        arrays = [random.normal(size=shape), random.normal(size=shape[1 if kind == "aggregations" else 0])]
        if special:
            arrays[0].flat[random.integers(arrays[0].size)] = random.choice([np.inf, -np.inf, np.nan])
        found.append(agree(source, arrays, tiling, monkeypatch))

    run()
    assert sum(found) > 0.7 * len(found)
