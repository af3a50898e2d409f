"""Machine code of every family for two architectures and every type, made without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.no_device import stand_in
from support.tiers import slow_but

import tilec
from tilec import spec, specialise
from tilec.backends.triton import TritonBackend
from tilec.backends.triton.runtime import compiled, executable, launcher
from tilec.backends.triton.runtime.parallel import in_parallel
from tilec.ir.aggregations import AGGREGATIONS, Aggregation

knobs = pytest.importorskip("triton").knobs

FLOATS = ("float16", "bfloat16", "float32", "float64")
EVERY = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "bool")
CONVOLUTION = "O[n, y, x, o : N, H, W, CO] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);"
IMAGES = "I[N, H, W, CI], K[KH, KW, CI, CO]"
TURNING = "function (A[T, D]) -> (H) { H[t, i : T, D] = max(H[t - 1, (i - 1) % D], A[t, i]); }"
MIXED = "function (A[T, D], W[D]) -> (H) { H[t, i : T, D] = max(max(max(H[t - 1, k], W[k])), A[t, i]); }"
WAVEFRONT = "function (A[N, M]) -> (D) { D[i, j : N, M] = max(max(D[i - 1, j], D[i, j - 1]), A[i, j]); }"
NETWORK = """function (W[D, D], X[T, N, D]) -> (H) {
    H[t, n, i : T, N, D] = tanh(sum(W[i, j] * H[t - 1, n, j]) + X[t, n, i]);
}"""
FAMILIES = {
    "map": ("function (X[M, N]) -> (O) { O = X == 1 ? X : X + X; }", ((33, 40),), EVERY),
    "reduce": ("function (X[M, N]) -> (O) { O[i : M] = >(X[i, j]); }", ((33, 400),), EVERY),
    "split reduce": ("function (X[M, N]) -> (O) { O[] = +(X[i, j]); }", ((300, 4000),), EVERY),
    "logsumexp": ("function (X[M, N]) -> (O) { O[i : M] = logsumexp(X[i, j]); }", ((33, 400),), FLOATS),
    "outer": ("function (A[M, K], B[K, N]) -> (O) { O[i, j : M, N] = >(A[i, k] + B[k, j]); }", ((9, 4), (4, 5)), EVERY),
    "dot": (f"function ({IMAGES}) -> (O) {{ {CONVOLUTION} }}", ((2, 9, 9, 33), (3, 3, 33, 40)), FLOATS),
    "scatter": ("function (U[K, D], Ix[K]) -> (O) { O[Ix[k], j : 7, D] = +(U[k, j]); }", ((9, 4), (9,)), EVERY),
    "turning lanes": (TURNING, ((5, 40),), EVERY),
    "mixed lanes": (MIXED, ((5, 40), (40,)), EVERY),
    "wavefront": (WAVEFRONT, ((5, 40),), EVERY),
    "random": ("function (X[N], S[]) -> (O) { O[i : N] = X[i] + randn(S, i); }", ((40,), ()), FLOATS),
}  # fmt: skip
INTEGERS = {"scatter": 1, "random": 1}  # the place of an input that is an integer whatever the others are


@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.one_in(3)
def test_cubins(family: str, dtype: str, target: str) -> None:
    source, shapes, dtypes = FAMILIES[family]
    if dtype not in dtypes:  # the family's functions are of floating numbers
        dtype = dtypes[EVERY.index(dtype) % len(dtypes)]
    inputs = [spec(s, "int64" if INTEGERS.get(family) == k else dtype) for k, s in enumerate(shapes)]
    lowered = tilec.compile(source, backend="triton").lower(*inputs, target=target)
    assert len(lowered.asm("cubin")) > 1000
    assert f".target {target}" in lowered.asm("ptx")


@pytest.mark.parametrize("target, dtype, instruction", [
    ("sm_80", "float32", "mma.sync"), ("sm_90", "bfloat16", "wgmma"),
    pytest.param("sm_80", "float16", "mma.sync", marks=pytest.mark.slow),
])  # fmt: skip
def test_products_use_tensor_cores(target: str, dtype: str, instruction: str) -> None:
    source, shapes, _ = FAMILIES["dot"]
    lowered = tilec.compile(source, backend="triton").lower(*(spec(s, dtype) for s in shapes), target=target)
    assert instruction in lowered.asm("ptx")


@pytest.mark.parametrize("source", ["Y[i : N] = softplus(A[i]);", "Y[i : N] = logaddexp(A[i], B[i]);"])
def test_logarithms_of_one_plus_a_share_do_not_branch(source: str) -> None:
    f = tilec.compile(f"function (A[N], B[N]) -> (Y) {{ {source} }}", backend="triton")
    text = f.lower(spec((4096,)), spec((4096,)), target="sm_90").asm("ptx")
    assert "ex2" in text and "bra" not in text


def test_sines_of_one_value_among_rows() -> None:
    """No block: there is nothing to take the largest of."""
    source = "function (A[]) -> (T, S) { B[i : 4] = abs(A[]); T[i] = cos(0 < 1 ? B[i] : A[]) + B[i]; S = sin(T + B); }"
    lowered = tilec.compile(source, backend="triton").lower(spec(()), target="sm_90")
    assert "cosine_(" in lowered.source() and len(lowered.asm("cubin")) > 1000


@pytest.mark.parametrize("target", slow_but(("sm_80", "sm_90"), ("sm_90",)))
def test_a_gradient_over_residue_classes_is_one_kernel(target: str) -> None:
    source = "function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) { O[n, y, x, o : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, c] * K[j, i, c, o]); }"  # noqa: E501
    gradient = tilec.compile(source, backend="triton").grad(("I",))
    specs = [spec(s, "float16") for s in ((4, 57, 57, 64), (3, 3, 64, 64), (4, 19, 19, 64))]
    lowered = gradient.lower(*specs, target=target)
    assert len(lowered.kernels) == 1
    assert len(lowered.asm("cubin")) > 1000


def test_unknown_targets_are_refused() -> None:
    f = tilec.compile("Y = X + 1;", backend="triton")
    with pytest.raises(tilec.Unsupported, match="there is no target 'sm_50'"):
        f.lower(spec((3,)), target="sm_50")


@pytest.mark.parametrize("family", slow_but(("turning lanes", "mixed lanes", "wavefront"), ("wavefront",)))
def test_gradients_of_recurrences(family: str) -> None:
    source, shapes, _ = FAMILIES[family]
    gradient = tilec.compile(source, backend="triton").grad()
    lowered = gradient.lower(*(spec(s) for s in (*shapes, shapes[0])), target="sm_90")
    assert len(lowered.asm("cubin")) > 1000


def test_programs_that_wait_for_each_other(monkeypatch) -> None:
    monkeypatch.setattr("tilec.backends.triton.recurrence.coupled_lanes.WAITING_WORK", 0)
    lowered = tilec.compile(NETWORK, backend="triton").lower(spec((512, 512)), spec((9, 3, 512)), target="sm_90")
    assert "launch_cooperative_grid=True" in lowered.source()
    text = lowered.asm("ptx")
    assert ".gpu.release.add" in text and ".gpu.acquire" in text and "ld.global.cg" in text


def test_what_no_step_can_compute_is_refused() -> None:
    source = "function (B[T], W[S]) -> (H) { H[t : T] = B[t] + argmax(H[t - 1] * W[k]); }"
    with pytest.raises(tilec.Unsupported, match="argmax of what a recurrence computes") as caught:
        tilec.compile(source, backend="triton").lower(spec((5,)), spec((3,)), target="sm_90").source()
    assert "^" in str(caught.value)


def test_what_is_written_with_others_stands_in_no_step(monkeypatch) -> None:
    """Of an aggregation that is new in the table: it has no text of its own."""
    monkeypatch.setitem(AGGREGATIONS, "number_of", Aggregation("number_of", None, 0, "int64"))
    function = tilec.compile("function (B[T], W[S]) -> (H) { H[t : T] = B[t] + number_of(H[t - 1] * W[k]); }")
    with pytest.raises(tilec.Unsupported, match="number_of of what a recurrence computes"):
        function(torch.ones(5), torch.ones(3))


@pytest.mark.skipif(bool(knobs.runtime.interpret), reason="nothing is compiled while kernels are interpreted")
@pytest.mark.parametrize("first", [40, 48, 1000])
def test_both_sides_of_a_transposition_are_whole_vectors(first: int) -> None:
    """Along an axis that is neither of the last two of what is written, too."""
    source = "function (X[K, J, I]) -> (O) { O[i, j, k : I, J, K] = X[k, j, i]; }"
    lowered = tilec.compile(source, backend="triton").lower(spec((64, 6, first)), target="sm_90")
    code = lowered.asm("ptx")
    assert "ld.global.v4" in code and "st.global.v4" in code
    assert "ld.global.b32" not in code and "st.global.b32" not in code


LOW, HIGH, BOTH = (
    f"mov.b32 %r20, 65537;\n\tadd.s16x2 \t%r21, %r17, %r20;\n\t{used}\n"
    for used in (
        "mov.b32 \t{%rs5, _}, %r21;",
        "mov.b32 {_, %rs5}, %r21;",
        "mov.b32 {%rs5, _}, %r21; mov.b32 {_, %rs6}, %r21;",
    )
)


def test_packed_sums_of_which_half_is_used() -> None:
    from tilec.backends.triton.runtime.compiled import loses_halves

    # ptxas 12.8 and 12.9 make `VIADD.16x2 R0, R2, 0x0` of the first two, whatever the number is
    assert loses_halves(LOW) and loses_halves(HIGH)
    assert not loses_halves(BOTH) and not loses_halves("add.s16 %rs1, %rs2, %rs3;")
    assert not loses_halves(LOW.replace("mov.b32 \t{%rs5, _}, %r21;", "st.global.b32 [%rd1], %r21;"))


def test_kernels_that_ptxas_would_break_are_not_optimised() -> None:
    from tilec.backends.triton.runtime.compiled import assembled

    asked: list[dict[str, object]] = []

    def compiler(**options: object) -> SimpleNamespace:
        asked.append(options)
        return SimpleNamespace(asm={"ptx": LOW})

    assembled(compiler, {"num_warps": 4})
    assert asked == [{"num_warps": 4}, {"num_warps": 4, "ptx_options": "--opt-level 0"}]


FIRST_KERNEL = """
import tilec
from triton.runtime.cache import triton_key

f = tilec.compile("Y = X + X")
assert not triton_key.cache_info().misses
text = f.lower(tilec.spec((1000,)), backend="triton", target="sm_90").asm("ptx")
assert ".target sm_90" in text
print(triton_key.cache_info().misses)
"""


@pytest.mark.skipif(bool(knobs.runtime.interpret), reason="nothing is compiled while kernels are interpreted")
@pytest.mark.slow
def test_triton_reads_its_library_once(tmp_path: Path) -> None:
    """For all processes: beside what comes before the first kernel, which waits for it."""
    found = []
    for _ in range(2):
        command, how = [sys.executable, "-c", FIRST_KERNEL], {**os.environ, "TILEC_CACHE": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=how)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    assert found == ["1", "0"]


def test_modules_of_kernels_are_read_one_after_another(tmp_path: Path) -> None:
    """Gluon's modules import each other: threads that begin at different ones find them half imported."""
    for k in range(3):
        text = "import time\nbegun = time.perf_counter()\ntime.sleep(0.05)\nended = time.perf_counter()\n"
        (tmp_path / f"overlap_{k}.py").write_text(text)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda k: compiled._module(tmp_path / f"overlap_{k}.py", False), range(3)))
    first, second, third = sorted((m.begun, m.ended) for m in found)
    assert first[1] <= second[0] and second[1] <= third[0]


def test_what_fails_beside_others_runs_once_more_alone() -> None:
    """Triton's front end promises nothing about threads; an error that stays is raised."""
    runs: list[str] = []

    def job(name: str, failures: int) -> str:
        runs.append(name)
        if runs.count(name) <= failures:
            raise ValueError(name)
        return name

    jobs = [partial(job, name, failures) for name, failures in (("a", 0), ("b", 1), ("c", 0))]
    assert in_parallel(jobs) == ["a", "b", "c"] and sorted(runs) == ["a", "b", "b", "c"]
    with pytest.raises(ValueError, match="d"):
        in_parallel([partial(job, "d", 2), partial(job, "e", 0)])


SLABS = """function (Q[N, E], K[M, E], G[N, M]) -> (Y) {
    A[i, j] = +(Q[i, e] * K[j, e]);
    T[j] = >(A[i, j]);
    Y[j] = +(exp(A[i, j] - T[j]) * G[i, j]);
}"""


@pytest.mark.parametrize(
    ("source", "inputs", "budget"),
    [
        (
            "function (G[T, D], I[T]) -> (E) { E[I[t], d : 50000, D] = +(G[t, d]); }",
            (((8192, 64), "float32"), ((8192,), "int64")),
            2**29,
        ),
        (SLABS, (((40, 5), "float64"), ((21, 5), "float64"), ((40, 21), "float64")), 1400),
    ],
    ids=["a sort in two passes", "slabs"],
)
def test_a_plan_compiles_all_its_kernels_at_once(source, inputs, budget, monkeypatch) -> None:
    """Each once: those of a sort, whose passes share them, and those that slabs launch, too."""
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", str(budget))
    compiled, at_once = stand_in(monkeypatch), []
    in_turn = lambda jobs: [[job() for job in jobs], at_once.extend(compiled)]  # noqa: E731
    monkeypatch.setattr(executable, "in_parallel", in_turn)
    given = [torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in inputs]
    tilec.compile(source, backend="triton")(*given)
    assert compiled == at_once and len(compiled) > 1
    counts = {name: compiled.count(name) for name in compiled if name.startswith("sort")}
    assert counts in ({}, dict.fromkeys(("sort_digits", "sort_bases", "sort_moved", "sort_starts"), 1))


PRODUCT = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"


@pytest.mark.parametrize(
    ("source", "inputs"),
    [
        (
            "function (G[T, D], I[T]) -> (E) { E[I[t], d : 50000, D] = +(G[t, d]); }",
            (((8192, 64), "float32"), ((8192,), "int64")),
        ),
        (PRODUCT, (((2048, 2048), "bfloat16"), ((2048, 2048), "bfloat16"))),
    ],
    ids=["a sort in two passes", "tensor maps"],
)
def test_a_first_call_needs_no_launcher_of_tritons(source, inputs, monkeypatch) -> None:
    """It runs as later ones do, each launch with a kernel: for a launcher Triton runs a C compiler."""
    compiled = stand_in(monkeypatch)
    monkeypatch.setattr(specialise, "choose_backend", lambda name, device, target=None: TritonBackend(target, False))
    asked: list[object] = []
    monkeypatch.setattr(launcher, "_entry", lambda kernel, rounded: asked.append(kernel))
    monkeypatch.setattr(launcher, "_encoder", lambda known, rounded: lambda made, number: [made])
    monkeypatch.setattr(launcher, "_parameters", lambda kernel, launch: {})
    monkeypatch.setattr(launcher, "_loaded", lambda kernel: 7)
    monkeypatch.setattr(launcher, "native", lambda: True)
    monkeypatch.setattr(executable, "native_plan", lambda *given: lambda *inputs: inputs[:1])
    given = [torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in inputs]
    tilec.compile(source, backend="triton")(*given)
    assert compiled and not asked
