"""The library from its source, by the compiler that is there, into the cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from tilec.errors import Unsupported
from tilec.knobs import cache_directory

_FILES = ("calls.cpp", "node.h", "run.h", "aten.h", "selection.h", "parts.h", "rows.h", "scan.h", "scatter.h", "wide.h")
SOURCES = tuple(Path(__file__).parent / name for name in _FILES)
SHARED_RUNTIME = "-l:libstdc++.so.6"  # torch's own: of two in a process one finds the other's facets
ABANDONED = 600.0  # seconds after which a build that has not ended is taken for dead

_running: list[subprocess.Popen] = []


@cache
def _version() -> str:
    parts = [torch.__version__, sys.implementation.cache_tag, platform.machine(), sys.platform]
    return hashlib.sha256("\0".join([*map(str, parts), *(s.read_text() for s in SOURCES)]).encode()).hexdigest()[:16]


def library_path() -> Path:
    """Where it is, or would be."""
    return cache_directory() / "native" / f"tilec_native-{_version()}.so"


def compiler() -> str | None:
    """The C++ compiler, if there is one and Python's headers are there for it."""
    chosen = os.environ.get("CXX") or "c++"
    there = (Path(sysconfig.get_path("include")) / "Python.h").exists() and sys.platform == "linux"
    return shutil.which(chosen) if there else None


def shares_runtime() -> bool:
    """Does the compiler find libstdc++ as a shared library, rather than as an archive alone?"""
    chosen = compiler()
    return chosen is None or not subprocess.run(["sh", "-c", f"{_linking(chosen)}; exit $#"]).returncode


def _linking(chosen: str) -> str:
    """Text for a shell that puts what is linked beside torch's libraries into its arguments: it asks the compiler."""
    asked = shlex.join([chosen, "-print-file-name=libstdc++.so"])
    return f'[ -e "$({asked})" ] || set -- {SHARED_RUNTIME}'


def command(output: Path) -> list[str]:
    """What compiles it, and asks the compiler what to link: both may take long."""
    root = Path(torch.__file__).parent
    include = (root / "include", root / "include/torch/csrc/api/include", Path(sysconfig.get_path("include")))
    libraries = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10", "-ldl"]
    options = ["-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-DTORCH_EXTENSION_NAME=tilec_native"]
    chosen = compiler() or "c++"
    compiling = [chosen, *options, *(f"-I{i}" for i in include), str(SOURCES[0]), *libraries, "-o", str(output)]
    return ["sh", "-c", f'{_linking(chosen)}; exec {shlex.join(compiling)} "$@"']


def build_library() -> Path:
    """The library, built now. Raises Unsupported where that fails."""
    path = library_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    if compiler() is None:
        raise Unsupported("there is no C++ compiler, or Python's headers are missing")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        done = subprocess.run(command(made), capture_output=True, text=True)
        if done.returncode:
            mistakes = [line for line in done.stderr.splitlines() if "error" in line]
            raise Unsupported("the C++ compiler fails: " + (mistakes or done.stderr.splitlines() or ["no word"])[0])
        os.replace(made, path)
    path.with_suffix(".failed").unlink(missing_ok=True)
    return path


def start_build() -> bool:
    """Begin to build it in the background unless somebody does; False where that cannot be or has failed before."""
    path = library_path()
    failed, busy = path.with_suffix(".failed"), path.with_suffix(".busy")
    if compiler() is None or failed.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - busy.stat().st_mtime < ABANDONED:
                return True
            busy.unlink()
        os.close(os.open(busy, os.O_CREAT | os.O_EXCL))
        made = path.with_suffix(f".{os.getpid()}")
        files = {name: shlex.quote(str(p)) for name, p in dict(made=made, path=path, failed=failed, busy=busy).items()}
        compiling = "nice -n 19 " + shlex.join(command(made))
        ending = "mv {made} {path} || touch {failed}; rm -f {busy} {made}".format(**files)
        null = subprocess.DEVNULL
        how = {"stdin": null, "stdout": null, "stderr": null, "start_new_session": True}
        _running.append(subprocess.Popen(["sh", "-c", f"{compiling} && {ending}"], **how))  # type: ignore[call-overload]
    except FileExistsError:
        return True
    except OSError:
        return False
    return True
