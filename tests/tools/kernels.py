"""Generated kernels of a list of programs: write them, or say how those of another commit differ.

    python tests/tools/kernels.py --write FOLDER
    python tests/tools/kernels.py --against REVISION
    python tests/tools/kernels.py --compile sm_80,sm_90 --jobs 8

The second asks both revisions for the programs of this one's list, so that a new program does not count as a
difference. The third needs no device: it compiles every program's kernels to machine code and prints what failed.
Exits with 1 where kernels differ or do not compile.
"""

from __future__ import annotations

import argparse
import difflib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def write(folder: Path) -> None:
    """Each case in its file; of a case that this package refuses, what it says."""
    from support.kernel_cases import kernel_cases

    for case in kernel_cases():
        path = folder / case.file
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_text(case.text())
        except Exception as error:
            path.write_text(f"{type(error).__name__}: {error}\n")


def texts(package: Path) -> dict[str, str]:
    """The kernels that the package in this folder generates, by file, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(package), "TILEC_CACHE": f"{folder}/cache"}
        command = [sys.executable, __file__, "--write", f"{folder}/kernels"]
        subprocess.run(command, env=environment, cwd=folder, check=True)
        base = Path(folder) / "kernels"
        return {str(path.relative_to(base)): path.read_text() for path in sorted(base.rglob("*.txt"))}


def compiled(name: str, target: str) -> tuple[str, str, int, float, str]:
    """A case's name and target, the bytes of its cubins, the seconds taken, and the error if there was one."""
    from support.kernel_cases import kernel_cases

    case = next(case for case in kernel_cases() if case.name == name)
    start = time.perf_counter()
    try:
        size, error = len(case.lowered(target).asm("cubin")) // 2, ""
    except Exception as caught:
        size, error = 0, f"{type(caught).__name__}: {caught}"
    return name, target, size, time.perf_counter() - start, error


def compile_all(targets: list[str], jobs: int) -> int:
    """Compiles every case for every target, in processes side by side; how many failed."""
    from support.kernel_cases import kernel_cases

    asked = [(case.name, target) for case in kernel_cases() for target in targets]
    failed, seconds = 0, []
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, target, size, taken, error in pool.map(compiled, *zip(*asked, strict=True)):
            seconds.append(taken)
            if error or not size:
                failed += 1
                print(f"{target} {name}: {error or 'no machine code'}", flush=True)
    median, longest = statistics.median(seconds), max(seconds)
    print(f"{len(asked) - failed} of {len(asked)} compile; {median:.2f} s each (median), {longest:.1f} s the longest")
    return failed


def at(revision: str) -> dict[str, str]:
    """The kernels of a commit, from an export of its package."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", revision, "tilec", "grammar"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        return texts(Path(folder))


def differences(old: dict[str, str], new: dict[str, str], label: str) -> list[str]:
    lines = []
    for name in sorted({*old, *new}):
        before, after = (t.get(name, "").splitlines() for t in (old, new))
        lines += difflib.unified_diff(before, after, f"{label}/{name}", f"now/{name}", lineterm="")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FOLDER", help="write the kernels of the package in use")
    what.add_argument("--against", metavar="REVISION", help="print how the kernels of that commit differ from these")
    what.add_argument("--compile", metavar="TARGETS", help="compile for these architectures, as in sm_80,sm_90")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile")
    args = parser.parse_args()
    if args.compile is not None:
        return int(compile_all(args.compile.split(","), args.jobs) > 0)
    if args.write is not None:
        write(args.write)
        return 0
    old, new = at(args.against), texts(ROOT)
    lines = differences(old, new, args.against)
    changed = sum(old.get(name) != new.get(name) for name in {*old, *new})
    print("\n".join([*lines, f"{changed} of {len(new)} programs have other kernels than at {args.against}"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
