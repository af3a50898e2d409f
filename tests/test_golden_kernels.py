"""The generated kernels of a list of programs are those in files: a change of any is seen before it is committed.

`sh tests/run tests/test_golden_kernels.py --update-golden` accepts what comes out now; `sh tests/run --kernels REV`
prints how all of them differ from a commit's.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernel_cases import KernelCase, kernel_cases
from tools.kernels import differences

from tilec.backends.triton.chains import launch
from tilec.backends.triton.plan import sizes
from tilec.backends.triton.recurrence import recurrence
from tilec.backends.triton.schedule import problem

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "golden" / "kernels"


@pytest.mark.parametrize("case", kernel_cases(), ids=lambda case: case.name)
def test_kernels(case: KernelCase, golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path))  # what tuning found on this machine does not count
    monkeypatch.setenv("TILEC_VERIFY", "1")
    golden(f"kernels/{case.file}", case.text())


SHARED = KernelCase(
    "two sums with what follows from each",
    """function (A[I, J], B[K, J], C[K, J], P[I, K], Q[I, K]) -> (D, E) {
        S[i, k] = +(A[i, j] * B[k, j]); D[i, k] = P[i, k] + S[i, k];
        T[i, k] = +(-A[i, j] * C[k, j]); E[i, k] = Q[i, k] + T[i, k];
    }""",
    tuple((shape, "float32") for shape in ((4, 5), (3, 5), (3, 5), (4, 3), (4, 3))),
)


@pytest.mark.slow
def test_kernels_have_positions_of_64_bits_where_these_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors of any size, here: those of chains alone decide for each position, also where they add up parts."""
    for module in (recurrence, problem, launch):
        monkeypatch.setattr(module, sizes.needs_int64_positions.__name__, lambda *given: True)
    narrow = [
        (case.name, kernel.name)
        for case in (*kernel_cases(), SHARED)
        for kernel in case.lowered().kernels
        if "int64" not in kernel.source and not kernel.name.removesuffix("_together").endswith("_chain")
    ]
    assert not narrow


def test_every_file_has_a_program(request: pytest.FixtureRequest) -> None:
    stale = {str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*.txt")} - {case.file for case in kernel_cases()}
    if request.config.getoption("--update-golden"):
        for name in stale:
            (FOLDER / name).unlink()
        return
    assert not stale, f"--update-golden removes {stale}"


def test_differences_name_the_program_and_the_line() -> None:
    old = {"a.txt": "x = 1\ny = 2\n", "b.txt": "z\n", "gone.txt": "w\n"}
    lines = differences(old, {"a.txt": "x = 1\ny = 3\n", "b.txt": "z\n", "new.txt": "v\n"}, "HEAD")
    assert {"--- HEAD/a.txt", "-y = 2", "+y = 3", "-w", "+v"} <= set(lines) and not any("b.txt" in x for x in lines)
