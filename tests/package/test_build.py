"""Packages built without a GPU: what is written, the launcher against a stub of the driver, and what is refused."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.packages import CASES, arguments, driver_stub
from support.tiers import slow_but

import tilec
from tilec.errors import InputMistake, Unsupported
from tilec.package import PackageError, launches, loader
from tilec.package.build import loader_text
from tilec.package.steps import pack_workspace

ROOT = Path(__file__).resolve().parents[2]
CC = shutil.which("gcc"), shutil.which("g++")
needs_a_compiler = pytest.mark.skipif(None in CC, reason="there is no C and C++ compiler")


def built(name: str, directory: Path, gradients: bool = True) -> dict:
    case = CASES[name]
    f = tilec.compile(case.source)
    tilec.build(
        f, *arguments(case), target="sm_90", directory=directory, gradients=case.gradients and gradients, name=name
    )
    return json.loads((directory / "manifest.json").read_text())


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("softmax")
    built("softmax", directory, gradients=False)
    return directory


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a library that stands for the driver."""
    return driver_stub(tmp_path_factory.mktemp("stub"))


def launcher(directory: Path, name: str, stub: Path, main: Path) -> Path:
    """A program of the package's launcher and a main file, linked with the stub."""
    program = directory / "main"
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{directory}", f"-L{stub}", f"-Wl,-rpath,{stub}"]
    sources = [str(main), str(directory / f"{name}.cpp")]
    subprocess.run(["g++", *flags, *sources, "-l:libcuda.so.1", "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module")
def program(softmax: Path, stub: Path) -> Path:
    """The example's, without a warning."""
    return launcher(softmax, "softmax", stub, ROOT / "examples" / "deploy" / "main.cpp")


@needs_a_compiler
def test_the_example_compiles_links_and_launches(program: Path, softmax: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {"STUB_LOG": str(log), "STUB_CAPABILITY": "90"}
    made = subprocess.run([str(program), str(softmax)], env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    lines = log.read_text().splitlines()
    manifest = json.loads((softmax / "manifest.json").read_text())
    (step,) = manifest["entries"][0]["steps"]
    symbol = manifest["kernels"][step["kernel"]]["symbol"]
    grid = " ".join(map(str, step["grid"]))
    assert lines[0].startswith(f"launch {symbol} {grid} {step['threads']} {step['shared']} ")
    assert lines[-1] == "release"


@needs_a_compiler
@pytest.mark.parametrize("capability", ["80", pytest.param("100", marks=pytest.mark.slow)])
def test_another_architecture_is_named(program: Path, softmax: Path, capability: str) -> None:
    made = subprocess.run(
        [str(program), str(softmax)], env={"STUB_CAPABILITY": capability}, capture_output=True, text=True
    )
    assert made.returncode == 1
    assert made.stderr.strip() == f"softmax was built for sm_90, and this device, Stub, is sm_{capability}"


@needs_a_compiler
def test_a_missing_cubin_is_named(program: Path, tmp_path: Path) -> None:
    made = subprocess.run([str(program), str(tmp_path)], capture_output=True, text=True)
    assert made.returncode == 1
    assert "cannot read" in made.stderr and str(tmp_path) in made.stderr


@needs_a_compiler
@pytest.mark.parametrize(
    "name",
    slow_but(CASES, ("several",)),
)
def test_launchers_compile(name: str, stub: Path, tmp_path: Path) -> None:
    """Without a warning, for forward and gradient; the header is C."""
    manifest = built(name, tmp_path)
    source = f"g++ -Wall -Wextra -Werror -fPIC -shared {name}.cpp -L{stub} -Wl,-rpath,{stub} -l:libcuda.so.1 -o lib.so"
    subprocess.run(source.split(), cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "lib.so"))
    for entry in manifest["entries"]:
        workspace = getattr(library, f"{entry['name']}_workspace")
        workspace.restype = ctypes.c_size_t
        assert workspace() == entry["workspace"]
    (tmp_path / "header.c").write_text(f'#include "{name}.h"\n')
    subprocess.run("gcc -Wall -Werror -std=c99 -c header.c".split(), cwd=tmp_path, check=True)


@needs_a_compiler
def test_who_looks_for_a_driver_does_not_find_the_stub(stub: Path) -> None:
    loaded = ctypes.CDLL(str(stub / "libcuda.so.1"))
    with contextlib.suppress(OSError):  # there is no driver at all
        assert ctypes.CDLL(launches.DRIVER)._handle != loaded._handle


class Simulated:
    """The loader over a stub of the driver, on tensors of the host."""

    def __init__(self, stub: Path, monkeypatch: pytest.MonkeyPatch, log: Path, capability: int = 90):
        monkeypatch.setattr(launches, "DRIVER", str(stub / "libcuda.so.1"))
        for module in (launches, loader):
            monkeypatch.setattr(module, "DEVICE", "cpu")
        monkeypatch.setenv("STUB_LOG", str(log))
        monkeypatch.setenv("STUB_CAPABILITY", str(capability))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream())
        self.log = log

    def lines(self) -> list[str]:
        found = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found


class Stream:
    cuda_stream = 0


@needs_a_compiler
def test_the_loader_launches_what_the_manifest_says(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = built("product", tmp_path / "p")
    simulated = Simulated(stub, monkeypatch, tmp_path / "log")
    p = tilec.package.load(tmp_path / "p")
    a, b = arguments(CASES["product"])
    simulated.lines()
    c = p(a, b)
    assert c.shape == (512, 384) and c.dtype is torch.bfloat16
    lines = simulated.lines()
    launches = [s for s in manifest["entries"][0]["steps"] if s["step"] == "launch"]
    assert len([line for line in lines if line.startswith("launch")]) == len(launches)
    maps = [v for s in launches for kind, v in s["arguments"] if kind == "map"]
    assert len([line for line in lines if line.startswith("map")]) == len(maps) > 0
    first = maps[0]
    wanted = f"map type {first['type']} rank 2 shape {first['shape'][-1]} box {first['box'][-1]} swizzle"
    assert lines[0].startswith(wanted)
    p(a, b)
    again = simulated.lines()
    assert [line for line in again if line.startswith("launch")] == [
        line for line in lines if line.startswith("launch")
    ]
    da, db = p.grad(a, b, c)
    assert da.shape == a.shape and db.shape == b.shape
    left, right = a.clone().requires_grad_(), b.clone().requires_grad_()
    p(left, right).backward(c)
    assert left.grad.shape == a.shape and right.grad.shape == b.shape
    with torch.inference_mode(), torch.enable_grad():  # which changes nothing there
        assert not p(left, right).requires_grad


@needs_a_compiler
def test_the_loader_fills(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that no kernel writes, here of eight bytes that differ in their halves."""
    built("filled", tmp_path / "p", gradients=False)
    Simulated(stub, monkeypatch, tmp_path / "log")
    y = tilec.package.load(tmp_path / "p")(*arguments(CASES["filled"]))
    assert torch.equal(y, torch.full((100,), -torch.inf, dtype=torch.float64))


@needs_a_compiler
def test_the_loader_names_both_architectures(
    softmax: Path, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(stub, monkeypatch, tmp_path / "log", capability=80)
    with pytest.raises(PackageError, match="built for sm_90, and this device, Stub, is sm_80"):
        tilec.package.load(softmax)


@needs_a_compiler
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (torch.zeros(64, 201), r"X: the package was built for float32\[64, 200\]; got float32\[64, 201\]"),
        (torch.zeros(64, 200, dtype=torch.float64), r"got float64\[64, 200\]"),
        (torch.zeros(200, 64).T, r"X: the package was built for strides \(200, 1\); got \(1, 64\)"),
        (torch.zeros(64 * 200 + 1)[1:].view(64, 200), "multiple of 16 bytes"),
        ([1.0], "expected a tensor"),
        (torch.zeros(64, 200, device="meta"), "runs on CUDA tensors"),
    ],
)
def test_arguments_that_do_not_fit(
    argument: object, message: str, softmax: Path, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(stub, monkeypatch, tmp_path / "log")
    p = tilec.package.load(softmax)
    with pytest.raises(PackageError, match=message):
        p(argument)
    with pytest.raises(PackageError, match="nothing is given for X"):
        p()
    with pytest.raises(PackageError, match="built without its gradient"):
        p.grad(torch.zeros(64, 200), torch.zeros(64, 200))


ROWS = "function (X[N, D]) -> (Y) { M[i] = max(X[i, j]); Y[i, j] = X[i, j] - M[i]; }"


@needs_a_compiler
def test_several_sets_of_shapes(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has entries of its own; what serves several is in the package once."""
    f, other = tilec.compile(ROWS), [tilec.spec((96, 200))]
    also = [other, [tilec.spec((64, 200), "float64")]]
    tilec.build(f, tilec.spec((64, 200)), target="sm_90", directory=tmp_path, gradients=True, name="rows", also=also)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    names = ["forward", "gradient", "forward_2", "gradient_2", "forward_3", "gradient_3"]
    assert [e["name"] for e in manifest["entries"]] == [f"rows_{n}" for n in names]
    used = [{s["kernel"] for s in e["steps"]} for e in manifest["entries"]]
    assert used[0] == used[2] and used[0].isdisjoint(used[4])
    source = f"g++ -Wall -Wextra -Werror -fPIC -shared rows.cpp -L{stub} -l:libcuda.so.1 -o lib.so"
    subprocess.run(source.split(), cwd=tmp_path, check=True)
    Simulated(stub, monkeypatch, tmp_path / "log")
    p = tilec.package.load(tmp_path)
    for rows, dtype in ((64, torch.float32), (96, torch.float32), (64, torch.float64)):
        x = torch.zeros(rows, 200, dtype=dtype, requires_grad=True)
        y = p(x)
        assert (y.shape, y.dtype) == (x.shape, dtype)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert (dx.shape, dx.dtype) == (x.shape, dtype)
        unaligned = torch.ones(y.numel() + 1, dtype=dtype)[1:].view(y.shape)  # as the gradient of a `cat` may be
        torch.autograd.grad(p(x), x, unaligned)
        assert p.grad(X=x, **{manifest["entries"][1]["inputs"][1]["name"]: y}).shape == x.shape
    built = r"X float32\[64, 200\]; or X float32\[96, 200\]; or X float64\[64, 200\]; got X float32\[65, 200\]"
    with pytest.raises(PackageError, match=f"rows was built for {built}"):
        p(torch.zeros(65, 200))


@needs_a_compiler
def test_a_missing_cubin_is_named_in_python(
    softmax: Path, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(stub, monkeypatch, tmp_path / "log")
    shutil.copy(softmax / "manifest.json", tmp_path)
    (file,) = (k["file"] for k in json.loads((softmax / "manifest.json").read_text())["kernels"])
    with pytest.raises(PackageError, match=f"the package lacks {file}"):
        tilec.package.load(tmp_path)


def test_no_package(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="holds no package"):
        loader.Package(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 7}')
    with pytest.raises(PackageError, match="has format 7, and this loader reads format 3"):
        loader.Package(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(PackageError, match="its manifest is no object"):
        loader.Package(tmp_path)


@needs_a_compiler
@pytest.mark.parametrize("device", ["cpu", "cuda:1", 7])
def test_no_such_device(
    device: object, softmax: Path, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(stub, monkeypatch, tmp_path / "log")
    with pytest.raises(PackageError, match="a package runs on a CUDA device, of which there are 1; got c"):
        tilec.package.load(softmax, device)


def test_the_loader_needs_torch_alone() -> None:
    tree = ast.parse(loader_text())
    found = {a.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    found |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found - set(sys.stdlib_module_names) == {"torch"}


def test_what_is_refused(tmp_path: Path) -> None:
    f = tilec.compile("Y[i] = 2.0 * X[i]")
    spec = tilec.spec((4,))
    with pytest.raises(Unsupported, match="there is no target 'sm_1'"):
        tilec.build(f, spec, target="sm_1", directory=tmp_path)
    with pytest.raises(InputMistake, match="cannot name a package"):
        tilec.build(f, spec, target="sm_90", directory=tmp_path, name="2 of us")
    with pytest.raises(InputMistake, match="compiles nothing ahead of time"):
        tilec.build(tilec.compile("Y[i] = X[i]", backend="torch"), spec, target="sm_90", directory=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputMistake, match="cannot write"):
        tilec.build(f, spec, target="sm_90", directory=tmp_path / "file")


def test_what_only_torch_does_is_named(tmp_path: Path) -> None:
    source = "function (X[N, D], I[N], Z[M, D]) -> (Y) { Y[I[n], d : M, D] = +(X[n, d]) default Z; }"
    places = tilec.spec((30, 4)), tilec.spec((30,), "int64")
    with pytest.raises(Unsupported, match="generated kernels alone, and Y needs torch: .*contiguous"):
        tilec.build(tilec.compile(source), *places, tilec.spec((5, 4)), target="sm_90", directory=tmp_path)
    f = tilec.compile("function (X[N, D], I[N]) -> (Y) { Y[I[n], d : 5, D] = +(X[n, d]); }")
    tilec.build(f, *places, target="sm_90", directory=tmp_path)


def test_the_command(tmp_path: Path) -> None:
    from tilec.cli import main

    assert main(["build", "-e", "Y[i] = 2.0 * X[i]", "--shape", "X=40", "--target", "sm_80", "-o", str(tmp_path)]) == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["target"] == "sm_80" and manifest["name"] == "program"
    (entry,) = manifest["entries"]
    assert entry["inputs"][0]["shape"] == [40] and entry["inputs"][0]["strides"] == [1]
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".cubin") == [
        "manifest.json", "package.py", "program.cpp", "program.h",
    ]  # fmt: skip


def test_the_command_takes_several_sets(tmp_path: Path) -> None:
    from tilec.cli import main

    text = ["-e", "Y[i] = X[i] * W[i]", "--shape", "X=40", "W=40", "--shape", "X=48", "W=48", "X=64", "W=64"]
    assert main(["build", *text, "--target", "sm_80", "-o", str(tmp_path)]) == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [[i["shape"] for i in e["inputs"]] for e in manifest["entries"]] == [[[n], [n]] for n in (40, 48, 64)]


def test_workspaces_share_memory_that_is_free() -> None:
    offsets, size = pack_workspace([(100, 0, 1), (600, 1, 2), (50, 2, 3), (10, 3, 4)])
    assert offsets == [0, 512, 0, 512] and size == 512 + 1024
    assert pack_workspace([]) == ([], 0)
