"""Tasks in processes of their own, for work that may hang, die, or leave its device unusable.

Each worker is a fresh interpreter that does one task after another. One that dies, takes too long on a task, or whose
work raises is replaced; its task counts as lost and the others go on.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, Generic, TypeVar

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")
STARTUP = 300.0  # seconds that a worker may take until its first task
START_METHOD = "spawn"  # how: a fork of a process that has used CUDA cannot use it


@dataclass(frozen=True)
class Lost:
    """A task without a result, why, and the part of the work that had begun, if it was told."""

    reason: str
    part: str | None = None


@dataclass
class _Worker(Generic[TaskT]):
    process: Any
    pipe: connection.Connection
    task: TaskT | None = None
    ready: bool = False
    part: str | None = None
    since: float = field(default_factory=time.monotonic)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run(
    tasks: Iterable[TaskT],
    work: Callable[[TaskT], ResultT],
    *,
    jobs: int = 1,
    limit: float = math.inf,
    deadline: float = math.inf,
) -> Iterator[tuple[TaskT, ResultT | Lost]]:
    """(task, `work(task)`) as each is done, by `jobs` processes. `work`, tasks and results are pickled.

    A task that takes more than `limit` seconds is Lost. At `deadline` (of `time.monotonic`) what is under way is
    stopped and is not among the results. Raises RuntimeError if workers cannot be started.
    """
    context: Any = multiprocessing.get_context(START_METHOD)
    waiting = deque(tasks)
    workers: list[_Worker[TaskT]] = []
    try:
        while time.monotonic() < deadline:
            idle = sum(worker.task is None for worker in workers)
            for _ in range(min(jobs - len(workers), len(waiting) - idle)):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, work))
                process.start()
                theirs.close()
                workers.append(_Worker(process, ours))
            if not workers:
                return
            patience = min(w.since + (limit if w.ready else STARTUP) for w in workers)
            pause = max(0.0, min(patience, deadline) - time.monotonic())
            readable = set(connection.wait([w.pipe for w in workers], min(pause, 3600.0)))
            for worker in list(workers):
                late = time.monotonic() - worker.since > (limit if worker.ready else STARTUP)
                if worker.pipe in readable:
                    kind, value = _receive(worker)
                elif late:
                    kind, value = "lost", f"took more than {limit if worker.ready else STARTUP:g} s"
                else:
                    continue
                if kind == "part":
                    worker.part = value
                    continue
                done, worker.task = worker.task, None
                if kind == "lost":
                    workers.remove(worker)
                    worker.end()
                    if not worker.ready:
                        raise RuntimeError(f"a worker did not start: {value}")
                elif waiting:
                    worker.ready, worker.task, worker.since = True, waiting.popleft(), time.monotonic()
                    worker.part = None
                    with contextlib.suppress(OSError):  # has died meanwhile, which its pipe will tell
                        worker.pipe.send((worker.task,))
                else:
                    workers.remove(worker)
                    worker.pipe.send(None)
                    worker.process.join()
                    worker.pipe.close()
                if done is not None:
                    yield done, Lost(value, worker.part) if kind == "lost" else value
    finally:
        for worker in workers:
            worker.end()


def _receive(worker: _Worker) -> tuple[str, Any]:
    try:
        return worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(10)
        return "lost", f"the process ended with exit code {worker.process.exitcode}"


_TOLD: list[connection.Connection] = []  # in a worker, who is told of parts


def begin_part(part: str) -> None:
    """Tell whose part of a task's work comes next, so that a process that is lost there is no other's fault."""
    for pipe in _TOLD:
        pipe.send(("part", part))


def _serve(pipe: connection.Connection, work: Callable[[TaskT], ResultT]) -> None:
    """A worker's life. Says that it is ready, then answers each task; ends when told to or when the work raises."""
    _TOLD[:] = [pipe]
    pipe.send(("ready", None))
    while (message := pipe.recv()) is not None:
        answer: tuple[str, Any]
        try:
            answer = ("done", work(message[0]))
        except Exception:
            answer = ("lost", traceback.format_exc())
        pipe.send(answer)
        if answer[0] == "lost":
            return
