"""Packages on a GPU: what they compute is what the function computes, without tilec and without Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.packages import CASES, arguments

import tilec

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ALONE = """
import sys, time, torch
sys.path.insert(0, {directory!r})
import package
inputs = torch.load({data!r})
torch.zeros(1, device="cuda") + 1
torch.cuda.synchronize()
start = time.perf_counter()
f = package.load({directory!r})
result = f(*inputs)
torch.cuda.synchronize()
print("first call", time.perf_counter() - start)
assert "tilec" not in sys.modules and "triton" not in sys.modules
torch.save(result, {results!r})
"""


def target() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def tuple_of(x: object) -> tuple:
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize(
    ("name", "specs"),
    [
        ("softmax", lambda n: [tilec.spec((n, 200))]),
        ("attention", lambda n: [tilec.spec((2, n, 64), "bfloat16")] * 3),
        ("product", lambda n: [tilec.spec((n, 512), "bfloat16"), tilec.spec((512, 384), "bfloat16")]),
    ],
)
def test_open_sizes(name: str, specs, tmp_path: Path) -> None:
    f = tilec.compile(CASES[name].source, backend="triton")
    tilec.build(f, *specs("N"), target=target(), directory=tmp_path, name=name)
    p = tilec.package.load(tmp_path)
    for size in (1024, 1280, 1024):
        torch.manual_seed(0)
        given = [torch.randn(s.shape, device="cuda").to(getattr(torch, s.dtype)) for s in specs(size)]
        assert torch.equal(p(*given), f(*given))


@pytest.mark.parametrize("name", CASES)
def test_a_package_computes_what_the_function_does(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    f = tilec.compile(case.source, backend="triton")
    args = arguments(case, "cuda")
    tilec.build(f, *args, target=target(), directory=tmp_path, gradients=case.gradients, name=name)
    p = tilec.package.load(tmp_path)
    wanted = tuple_of(f(*args))
    for _ in range(2):  # the second finds everything ready
        found = tuple_of(p(*args))
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if case.gradients:
        cotangents = [torch.randn_like(w) if w.is_floating_point() else torch.zeros_like(w) for w in wanted]
        expected = tuple_of(f.grad()(*args, *cotangents))
        for a, b in zip(tuple_of(p.grad(*args, *cotangents)), expected, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)


def test_autograd_goes_through_a_package(tmp_path: Path) -> None:
    case = CASES["layer_norm"]
    f = tilec.compile(case.source, backend="triton")
    args = arguments(case, "cuda")
    tilec.build(f, *args, target=target(), directory=tmp_path, gradients=True)
    p = tilec.package.load(tmp_path)
    inputs = [a.clone().requires_grad_() for a in args]
    cotangent = torch.randn_like(p(*args))
    p(*inputs).backward(cotangent)
    for a, b in zip(inputs, f.grad()(*args, cotangent), strict=True):
        assert torch.equal(a.grad, b)


def test_other_streams_and_graphs(tmp_path: Path) -> None:
    case = CASES["softmax"]
    f = tilec.compile(case.source, backend="triton")
    (x,) = arguments(case, "cuda")
    tilec.build(f, x, target=target(), directory=tmp_path, name="softmax")
    p = tilec.package.load(tmp_path)
    p(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = p(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, f(x))


def test_without_tilec_and_fast(tmp_path: Path) -> None:
    """A process that has torch alone loads and runs the package within 50 ms."""
    case = CASES["attention"]
    f = tilec.compile(case.source, backend="triton")
    args = arguments(case, "cuda")
    tilec.build(f, *args, target=target(), directory=tmp_path / "p", gradients=True)
    paths = {k: str(tmp_path / k) for k in ("data", "results")}
    torch.save(args, paths["data"])
    script = ALONE.format(directory=str(tmp_path / "p"), **paths)
    seconds = []
    for _ in range(3):
        made = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr
        seconds.append(float(made.stdout.split()[-1]))
    assert torch.equal(torch.load(paths["results"]), f(*args))
    print("first call:", seconds)
    assert min(seconds) < 0.05


def test_the_example_in_c_plus_plus(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile the example with")
    folder = ROOT / "examples" / "deploy"
    f = tilec.load(folder / "softmax.tile")
    tilec.build(f, tilec.spec((64, 200)), target=target(), directory=tmp_path)
    sources = [str(folder / "main.cpp"), str(tmp_path / "softmax.cpp")]
    subprocess.run(
        ["g++", "-O2", "-Wall", "-Werror", f"-I{tmp_path}", *sources, "-l:libcuda.so.1", "-o", str(tmp_path / "main")],
        check=True,
    )
    start = time.perf_counter()
    made = subprocess.run([str(tmp_path / "main"), str(tmp_path)], capture_output=True, text=True)
    print(made.stdout, f"{time.perf_counter() - start:.2f} s")
    assert made.returncode == 0, made.stderr
    assert float(made.stdout.split()[-1]) < 1e-6


def test_open_sizes_in_c_plus_plus(tmp_path: Path) -> None:
    """A program of its own calls two packages with many sizes, and sees others refused."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile the program with")
    pool = "function (X[B, L, C]) -> (Y) { Y[b, l, c : B, (L + 1)/2, C] = >(X[b, 2*l + k - 1, c]), k < 3; }"
    scan = "function (A[T, D], X[T, D]) -> (H) { H[t, d : T, D] = A[t, d] * H[t - 1, d] + X[t, d]; }"
    sets = {"pool": (pool, [(3, "L", 17)], False), "scan": (scan, [(65, "D")] * 2, True)}
    for name, (source, shapes, gradients) in sets.items():
        specs = [tilec.spec(shape) for shape in shapes]
        folder = tmp_path / name
        tilec.build(tilec.compile(source), *specs, target=target(), directory=folder, gradients=gradients, name=name)
    sources = [str(Path(__file__).parent / "many_sizes.cpp"), *(str(tmp_path / n / f"{n}.cpp") for n in sets)]
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", *(f"-I{tmp_path / n}" for n in sets), "-l:libcuda.so.1"]
    subprocess.run(["g++", *sources, *flags, "-o", str(tmp_path / "main")], check=True)
    made = subprocess.run([str(tmp_path / "main"), str(tmp_path)], capture_output=True, text=True)
    print(made.stdout)
    assert made.returncode == 0, made.stdout + made.stderr
