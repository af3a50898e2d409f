"""The generated source: it runs as it stands, says what it does, and keeps to its memory budget."""

import pytest
import torch
from support.agreement import run, tensors
from support.fresh import run_fresh

import tilec
from tilec import knobs
from tilec.errors import InputMistake

PROGRAMS = [
    "function conv(I[N, H, W, C], K[3, 3, C, D]) -> (O) { O[n, y, x, o : N, H, W, D] = +(I[n,y+j,x+i,c]*K[j,i,c,o]); }",
    "function f(A[N, K], B[K, M]) -> (S) { P[i, j : N, M] = logsumexp(A[i, k] + B[k, j]); S = tanh(P) / 2; }",
    "function f(A[N, K], Ix[L]) -> (S) { S[Ix[l], k : 4, K] = +(A[l, k]); }",
    "function import_(None[N], True[N]) -> (Torch') { Torch' = None + True; }",
]
SHAPES = [((2, 5, 5, 3), (3, 3, 3, 4)), ((3, 4), (4, 5)), ((6, 2), (6,)), ((4,), (4,))]


@pytest.mark.parametrize("source, shapes", list(zip(PROGRAMS, SHAPES, strict=True)), ids=range(4))
def test_source_runs_when_pasted(source, shapes):
    inputs = tensors(*shapes)
    if "Ix" in source:
        inputs[1] = torch.tensor([0, 1, 3, 3, 9, -1])
    f = tilec.compile(source)
    text = f.lower(*inputs).source()
    scope = {}
    exec(text, scope)
    (function,) = (v for v in scope.values() if callable(v) and getattr(v, "__module__", None) is None)
    torch.testing.assert_close(function(*inputs)[0], f(*inputs))


def test_source_quotes_the_statements_it_carries_out():
    (a, b) = tensors((3, 4), (4, 5))
    _, text = run("O[i, j : 3, 5] = +(A[i, k] * B[k, j]);", [a, b])
    assert "# O[i, j : 3, 5] = +(A[i, k] * B[k, j]);" in text and "torch.mm(" in text


def test_an_executable_takes_other_strides_from_call_to_call():
    f = tilec.compile("O[i : 4] = +(A[i, j] * A[j, i]);")
    (a,) = tensors((4, 4))
    for moved in (a, a.mT, a.flip(0).flip(0), a[:1].expand(4, 4)):
        torch.testing.assert_close(f(moved), (moved * moved.mT).sum(1))


def test_kernels_name_the_outputs_and_there_is_no_assembly():
    lowered = tilec.compile("S = A + 1; O = S * S;").lower(torch.ones(3))
    (kernel,) = lowered.kernels
    assert kernel.source == lowered.source() and "O" in kernel.statements and lowered.asm("ptx") == ""


BUDGETED = [
    "O[i, j : 512, 512] = logsumexp(A[i, k] + B[k, j]);",
    "O[i, j : 512, 512] = >(A[i, k] + B[k, j]);",
    "O[i, j : 512, 512] = +(abs(A[i, k] - B[k, j]));",
    "O[i, j : 512, 512] = logsumexp(sin(A[i, k] * B[k, j]));",
    "O[x, y : 510, 510] = +(A[x + i, y + j] * sin(B[x, y]) * exp(A[i, j])), i < 16, j < 16;",
]
MEASURE = """
import resource, sys, torch, tilec
a, b = torch.randn(512, 512), torch.randn(512, 512)
f = tilec.compile(sys.argv[1])
f.lower(a, b)
g = tilec.compile("O[i, j : 64, 64] = +(A[i, k] * B[k, j]);")
g(a[:64, :64], b[:64, :64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
f(a, b)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(
    "source",
    [BUDGETED[0], *(pytest.param(s, marks=pytest.mark.slow) for s in BUDGETED[1:])],
    ids=range(len(BUDGETED)),
)
def test_intermediates_stay_within_the_budget(source):
    """The terms of each of these statements take at least 250 MB."""
    done = run_fresh(MEASURE, source)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 <= knobs.MEMORY_BUDGET.default + 16 * 2**20


def test_knobs_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("TILEC_MEMORY_BUDGET", "3MiB")
    monkeypatch.setenv("TILEC_LIBRARY", "off")
    monkeypatch.setenv("TILEC_BLOCK", "4096")
    assert (knobs.MEMORY_BUDGET.value, knobs.LIBRARY.value, knobs.BLOCK.value) == (3 * 2**20, False, 4096)
    _, text = run(PROGRAMS[0], tensors(*SHAPES[0]))
    assert "rt.convolution" not in text


@pytest.mark.parametrize("name, text", [("TILEC_MEMORY_BUDGET", "much"), ("TILEC_LIBRARY", "2"), ("TILEC_BLOCK", "-4")])
def test_a_knob_that_cannot_be_read_is_an_error(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(InputMistake, match=name):
        tilec.compile("O = A;")(torch.ones(2))
