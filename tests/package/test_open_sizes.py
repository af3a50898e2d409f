"""Packages whose sizes are given at the call: the plan is that of a package of these sizes, and others are refused."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from support.packages import CASES, driver_stub

import tilec
from tilec.errors import InputMistake
from tilec.ir.shape_class import Recorder
from tilec.package import PackageError, launches, loader
from tilec.package.loader import at_sizes

BUILT, OTHER = 1024, 1280
SPECS = {
    "softmax": lambda n: [tilec.spec((n, 200))],
    "scan": lambda n: [tilec.spec((n, 900))],
    "gather": lambda n: [tilec.spec((50, 12)), tilec.spec((n,), "int64")],
    "attention": lambda n: [tilec.spec((2, n, 64), "bfloat16")] * 3,
    "product": lambda n: [tilec.spec((n, 512), "bfloat16"), tilec.spec((512, 384), "bfloat16")],
}
needs_a_compiler = pytest.mark.skipif(None in (shutil.which("gcc"), shutil.which("g++")), reason="there is no compiler")


def built(name: str, size: int | str, directory: Path, gradients: bool = True) -> dict:
    f = tilec.compile(CASES[name].source)
    gradients = gradients and CASES[name].gradients
    tilec.build(f, *SPECS[name](size), target="sm_90", directory=directory, gradients=gradients, name=name)
    return json.loads((directory / "manifest.json").read_text())


def launched(entry: dict) -> list[tuple]:
    """Launches without kernels' numbers and places in the workspace, which is laid out otherwise."""

    def plain(kind: str, value: object) -> object:
        if kind == "pointer" and value is not None and value[0] == "workspace":
            return "workspace"
        return {**value, "of": value["of"][:2]} if kind == "map" else value

    return [
        (s["grid"], s["threads"], s["shared"], s["repeat"], [plain(*a) for a in s["arguments"]])
        for s in entry["steps"]
        if s["step"] == "launch"
    ]


def test_values_computed_at_neighbours_leave_sizes_open(tmp_path: Path) -> None:
    """Whether that pays is a question to open sizes, not one for their values."""
    f = tilec.compile("function (X[N, M]) -> (Y) { Z = X * X; Y[i, j] = Z[i, j] + pad(Z[i - 1, j], 0); }")
    tilec.build(f, tilec.spec(("N", 640)), target="sm_90", directory=tmp_path, name="pairs")
    assert json.loads((tmp_path / "manifest.json").read_text())["entries"]


@pytest.mark.parametrize(
    "name", ["softmax", *(pytest.param(n, marks=pytest.mark.slow) for n in SPECS if n != "softmax")]
)
def test_an_open_package_launches_what_one_of_the_size_does(name: str, tmp_path: Path) -> None:
    both = name != "product"  # whose gradient has more tiles than multiprocessors at the other size: another class
    opened, fixed = built(name, "N", tmp_path / "open", both), built(name, OTHER, tmp_path / "fixed", both)
    for entry, wanted in zip(opened["entries"], fixed["entries"], strict=True):
        assert entry["sizes"] == {"size_N": BUILT}
        names = {**loader.OPEN_SIZE_FUNCTIONS, "size_N": OTHER}
        assert all(eval(text, names) for text in entry["conditions"])
        found = at_sizes(entry, {"size_N": OTHER})
        assert [i["shape"] for i in found["inputs"]] == [i["shape"] for i in wanted["inputs"]]
        assert [o["shape"] for o in found["outputs"]] == [o["shape"] for o in wanted["outputs"]]
        assert launched(found) == launched(wanted)
        assert found["workspace"] >= wanted["workspace"]


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("softmax")
    built("softmax", "N", directory)
    return directory


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver_stub(tmp_path_factory.mktemp("stub"))


@needs_a_compiler
def test_the_loader(softmax: Path, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_build import Simulated

    simulated = Simulated(stub, monkeypatch, tmp_path / "log")
    p = loader.load(softmax)
    simulated.lines()
    for size in (BUILT, OTHER, BUILT):
        x = torch.zeros(size, 200, requires_grad=True)
        y = p(x)
        assert y.shape == x.shape
        y.backward(torch.zeros_like(y))
        assert x.grad is not None and x.grad.shape == x.shape
        assert len([line for line in simulated.lines() if line.startswith("launch")]) == 2
    with pytest.raises(PackageError, match=r"softmax was built for sizes like N = 1024, for which .*; here N = 1000"):
        p(torch.zeros(1000, 200))
    with pytest.raises(
        PackageError, match=r"X: the package was built for float32\[1024, 200\]; got float32\[1024, 10\]"
    ):
        p(torch.zeros(BUILT, 10))


@needs_a_compiler
def test_the_launcher_computes_sizes(softmax: Path, stub: Path) -> None:
    source = f"g++ -Wall -Wextra -Werror -fPIC -shared softmax.cpp -L{stub} -Wl,-rpath,{stub} -l:libcuda.so.1 -o lib.so"
    subprocess.run(source.split(), cwd=softmax, check=True)
    (softmax / "header.c").write_text('#include "softmax.h"\n')
    subprocess.run("gcc -Wall -Werror -std=c99 -c header.c".split(), cwd=softmax, check=True)
    library = ctypes.CDLL(str(softmax / "lib.so"))
    library.softmax_error.restype = ctypes.c_char_p
    assert library.softmax_forward(None, ctypes.c_int64(1000), None, None, None, None) != 0
    message = library.softmax_error().decode()
    assert message.startswith("softmax_forward was built for sizes for which ") and message.endswith("; here N = 1000")


TEXTS = [
    ("(-((-size_N)//8))", 1001),
    ("(3*size_N-7)%16", 5),
    ("(-size_N)%16", 5),
    ("gcd(size_N, 12, (size_N+6))", 30),
    ("(1<<(-1+size_N).bit_length())", 1000),
    ("_inverse_of(_single(size_N))", 49),
    ("_isqrt((3*size_N+1))", 2**61),
    ("(size_N / 3) ** 1.5 * 2.5 - 1.0", 49),
    ("not (size_N * 3) > 40 or size_N == 2", 49),
]


@needs_a_compiler
def test_texts_in_c(tmp_path: Path) -> None:
    from tilec.package.open_sizes import C_FUNCTIONS, c_text

    own = C_FUNCTIONS[: C_FUNCTIONS.index("int outside")]
    blocks = "".join(f'{{ int64_t size_N = {n}; printf("%.17g\\n", (double){c_text(text)}); }}\n' for text, n in TEXTS)
    program = f"""#include <cmath>\n#include <cstdint>\n#include <cstdio>\n#include <utility>\nnamespace {{{own}}}
int main() {{ {blocks} }}\n"""
    (tmp_path / "main.cpp").write_text(program)
    subprocess.run(["g++", "-Wall", "-Wextra", "-Werror", "-o", "main", "main.cpp"], cwd=tmp_path, check=True)
    found = subprocess.run([str(tmp_path / "main")], capture_output=True, check=True, text=True).stdout.split()
    for (text, n), value in zip(TEXTS, found, strict=True):
        wanted = float(eval(text, {**loader.OPEN_SIZE_FUNCTIONS, "size_N": n}))
        assert float(value) == pytest.approx(wanted, rel=1e-15), text


def test_what_is_refused(tmp_path: Path) -> None:
    f = tilec.compile("Y[i] = 2.0 * X[i]")
    with pytest.raises(InputMistake, match="the size N of X is a name"):
        f.lower(tilec.spec(("N",)), backend="torch")
    with pytest.raises(InputMistake, match="the size N is open, and 4 is too small for that"):
        tilec.build(f, tilec.spec(("N:4",)), target="sm_90", directory=tmp_path)
    roll = tilec.compile("function (X[N]) -> (Y) { Y[i : N] = X[(i + 3) % N]; }")
    with pytest.raises(InputMistake, match="the size N cannot be left open"):
        tilec.build(roll, tilec.spec(("N",)), target="sm_90", directory=tmp_path)


def test_kernels_for_the_power_of_two_above_an_open_count(tmp_path: Path) -> None:
    """The gradient by weights adds up as many parts as there are rows in fours, all at once."""
    normalise = tilec.compile("function (X[N, D], W[D]) -> (Y) { Y[n, d : N, D] = X[n, d] / sum(X[n, e]) * W[d]; }")
    tilec.build(
        normalise, tilec.spec(("N:1000", 64)), tilec.spec((64,)), target="sm_90", directory=tmp_path, gradients=True
    )
    entry = json.loads((tmp_path / "manifest.json").read_text())["entries"][1]

    def serves(n: int) -> bool:
        return all(eval(text, {**loader.OPEN_SIZE_FUNCTIONS, "size_N": n}) for text in entry["conditions"])

    assert [n for n in (504, 984, 1000, 1016, 1032, 2008) if serves(n)] == [984, 1000, 1016]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tilec.cli import main

    text = ["-e", "Y[i, j] = 2.0 * X[i, j]", "--shape", "X=N:2048,40", "X=N:1000,40"]
    assert main(["build", *text, "--target", "sm_90", "-o", str(tmp_path)]) == 0
    entries = json.loads((tmp_path / "manifest.json").read_text())["entries"]
    assert [e["sizes"] for e in entries] == [{"size_N": 2048}, {"size_N": 1000}]
    assert launches.DEVICE == "cuda"


def test_no_guard_asks_what_all_numbers_of_64_bits_are() -> None:
    """C++ has no literal for it, and compilers warn of such comparisons."""
    recorder = Recorder()
    n = recorder.symbol("N", 5)
    assert n < 2**63 and not n * n > 2**63 and not recorder.guards
    assert n < 2**62 and recorder.guards
