"""The command doctor: versions, device, caches, environment, and a self-test, as a bug report wants them."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import tilec
from tilec import knobs
from tilec.cli.progress import progress
from tilec.errors import TileError
from tilec.native import build, native

PACKAGES = {  # and what is missing without one that is no requirement everywhere
    "torch": "", "triton": "no kernels are generated", "numpy": "", "islpy": "", "lark": "", "sympy": "",
    "opt_einsum": "", "pygls": "no language server; pip install tilec[lsp]",
    "latex2mathml": "formulas of explain are LaTeX; pip install tilec[explain]",
}  # fmt: skip
SAMPLE_CONVOLUTION = "function (I[N, C], K[M, C]) -> (O) { O[n : N/2] = +(I[2*n + j - 1, c] * K[j, c]); }"
SAMPLE_SOFTMAX = "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))"
RECURRENCE = "function (B[T, D]) -> (H) { H[t, i : T, D] = tanh(B[t, i] + H[t - 1, (i - 1) % D]); }"


def add(commands) -> None:
    doctor = commands("doctor", _doctor, "print versions, device, caches and settings, and run a self-test")
    doctor.add_argument("--build", action="store_true", help="build the library for calls, and nothing else")
    doctor.add_argument("--no-test", action="store_true", help="leave the self-test out")


def _doctor(args: argparse.Namespace) -> int:
    if args.build:
        with progress("building"):
            path = build.build_library()
        print(path)
        return 0
    for title, rows in (("versions", _versions), ("device", _device), ("caches", _caches), ("settings", _settings)):
        _section(title, rows())
    if args.no_test:
        return 0
    with progress("testing"):
        results = list(_tests())
    _section("self-test", ((name, text) for name, text, _ in results))
    wrong = sum(not right for _, _, right in results)
    print(f"\n{len(results) - wrong} of {len(results)} tests passed")
    return int(wrong > 0)


def _section(title: str, rows: Iterator[tuple[str, str]]) -> None:
    print(title)
    found = list(rows)
    width = max(len(name) for name, _ in found)
    for name, value in found:
        print(f"  {name:<{width}}  {value}")


def _versions() -> Iterator[tuple[str, str]]:
    yield "tilec", f"{tilec.__version__} in {Path(tilec.__file__).parent}"
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    for name, without in PACKAGES.items():
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed" + (f": {without}" if without else "")


def _device() -> Iterator[tuple[str, str]]:
    yield "processors", f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        yield "gpu", "none: torch's operations run on the CPU" + ("" if built else "; this torch is built without CUDA")
        return
    yield "cuda", str(torch.version.cuda)
    for k in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(k)
        size = f"{p.total_memory / 2**30:.0f} GiB, {p.multi_processor_count} multiprocessors"
        yield f"gpu {k}", f"{p.name}, sm_{p.major}{p.minor}, {size}"
    yield "float32", f"matrix products at precision {torch.get_float32_matmul_precision()!r}"


def _caches() -> Iterator[tuple[str, str]]:
    yield "tuned", _folder(knobs.cache_directory() / "tuned", "choices")
    yield "calls", _library()
    if not build.shares_runtime():
        yield (
            "c++",
            f"{build.compiler()} has libstdc++ as an archive alone: AOTInductor's packages crash (docs/torch.md)",
        )
    yield "triton", _folder(Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"), "files")


def _library() -> str:
    """What calls' own time depends on."""
    path = build.library_path()
    if not knobs.NATIVE.value:
        return "in Python, as TILEC_NATIVE says"
    if native() is not None:
        return f"in C++, by {path}"
    how = "tilec doctor --build builds the library" if build.compiler() else "there is no C++ compiler"
    return f"in Python: {path.name} is not there; {how}"


def _folder(path: Path, what: str) -> str:
    """A folder's path, how many files it holds, and whether it can be written."""
    sizes = [f.stat().st_size for f in path.rglob("*") if f.is_file()] if path.is_dir() else []
    parent = next(p for p in (path, *path.parents) if p.exists())
    access = "" if os.access(parent, os.W_OK) else ", which cannot be written"
    return f"{path}: {len(sizes)} {what}, {sum(sizes) / 2**20:.1f} MiB{access}"


def _settings() -> Iterator[tuple[str, str]]:
    given = [k for k in knobs.KNOBS if k.name in os.environ]
    for knob in given:
        try:
            knob.value  # noqa: B018
            yield knob.name, os.environ[knob.name]
        except TileError as error:
            yield knob.name, error.message
    for name in ("TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"):
        if name in os.environ:
            yield name, os.environ[name]
            given = given or [knobs.VERIFY]
    if not given:
        yield "none", "no environment variable of tilec is set"


def _tests() -> Iterator[tuple[str, str, bool]]:
    """Name, what came out, whether it is right: values and gradients of three programs, and what a GPU adds."""
    r = np.random.default_rng(0)
    programs = {
        "convolution": (SAMPLE_CONVOLUTION, (r.standard_normal((9, 3)), r.standard_normal((3, 3)))),
        "softmax": (SAMPLE_SOFTMAX, (r.standard_normal((4, 7)),)),
        "recurrence": (RECURRENCE, (r.standard_normal((5, 4)),)),
    }
    for device in ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
        for name, (source, arrays) in programs.items():
            yield f"{name} on {device}", *_tried(source, arrays, device)


def _tried(source: str, arrays: tuple[np.ndarray, ...], device: str) -> tuple[str, bool]:
    """A test's outcome in words, whatever happens in it."""
    start = time.perf_counter()
    try:
        error = _agrees(source, arrays, device)
    except Exception as problem:  # a report wants to say what it was
        return f"FAILED: {type(problem).__name__}: {getattr(problem, 'message', problem)}", False
    seconds = time.perf_counter() - start
    right = error < 1e-4
    return f"{'ok' if right else 'WRONG'}, largest error {error:.1e}, {seconds:.2f} s", right


def _agrees(source: str, arrays: tuple[np.ndarray, ...], device: str) -> float:
    """The largest difference from the oracle, of values and gradients."""
    f = tilec.compile(source)
    tensors = [torch.tensor(a, device=device, dtype=torch.float32, requires_grad=True) for a in arrays]
    out = f(*tensors)
    out.sum().backward()
    value = np.asarray(tilec.interpret(source, *arrays))
    gradients = tilec.interpret(f.grad().tile, *arrays, np.ones(value.shape))
    wanted = [value, *(gradients if isinstance(gradients, tuple) else (gradients,))]
    found = [out.detach(), *(t.grad for t in tensors)]
    return max(float(np.abs(a.cpu().numpy() - b).max()) for a, b in zip(found, wanted, strict=True))
