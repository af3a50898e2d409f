"""Processes that are forks of one that has imported what takes seconds: torch alone, or what all workers need."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

WORKERS = (  # what functions that run in workers import; a test's own module imports pytest
    *("tilec.bench.gpu", "tilec.bench.suite.measure", "tilec.bench.sweep.sweep", "tilec.nn", "pytest"),
    *("torch.distributed.fsdp", "torch.distributed.tensor", "torch.nn.parallel"),
)
SERVER = """
import json, os, sys
import torch

for line in sys.stdin:
    task = json.loads(line)
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, name in enumerate((os.devnull, task["out"], task["err"])):
    os.dup2(os.open(name, os.O_RDWR), number)
os.chdir(task["cwd"])
os.environ.clear()
os.environ.update(task["environment"])
sys.argv[1:] = task["arguments"]
exec(compile(task["program"], "<string>", "exec"), {"__name__": "__main__"})
"""


@cache
def _server() -> subprocess.Popen[str]:
    """The process that is forked; it ends where its input does, with this one."""
    return subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_fresh(
    program: str,
    *arguments: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """What `python -c program arguments` does where `import torch` has been done, in a folder that modules are looked
    for in first. What is read when Python or torch starts (PYTHONPATH, OMP_NUM_THREADS) is as in this process."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch(), err.touch()
        given: dict[str, str | Sequence[str] | Mapping[str, str]] = {"program": program, "arguments": arguments}
        given |= {"out": str(out), "err": str(err), "cwd": str(cwd or Path.cwd())}
        given["environment"] = {**os.environ, **(environment or {})}
        print(json.dumps(given), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess([program, *arguments], code, out.read_text(), err.read_text())


def preload() -> None:
    """What multiprocessing's `forkserver` has imported. There is one for all tests, of which the first starts it."""
    multiprocessing.set_forkserver_preload([*WORKERS])
