"""Work in other processes: done, lost, late, and never in the way of the rest."""

from __future__ import annotations

import os
import time
from multiprocessing import connection
from types import SimpleNamespace

import pytest

from tilec.bench import workers
from tilec.bench.workers import Lost, run


def act(task: tuple[str, int]) -> tuple[int, int]:
    what, number = task
    if what == "die":
        os._exit(7)
    if what.endswith("then die"):
        workers.begin_part("first")
        workers.begin_part(what.split()[0])
        os._exit(7)
    if what == "raise":
        raise ValueError(f"number {number}")
    if what == "hang":
        time.sleep(600)
    return number, os.getpid()


def test_every_task_is_done_by_as_many_processes_as_asked_for() -> None:
    answers = dict(run([("do", n) for n in range(20)], act, jobs=2))
    assert {task[1]: answer[0] for task, answer in answers.items()} == {n: n for n in range(20)}
    pids = {answer[1] for answer in answers.values()}
    assert len(pids) <= 2 and os.getpid() not in pids


def test_a_lost_task_is_told_and_the_rest_goes_on_in_a_fresh_process() -> None:
    reasons = {"die": "exit code 7", "raise": "ValueError: number 3", "hang": "took more than 3 s"}
    reasons["second then die"] = "exit code 7"
    tasks = [("do", 0), ("die", 1), ("do", 2), ("raise", 3), ("do", 4), ("hang", 5), ("do", 6), ("second then die", 7)]
    answers = dict(run(tasks, act, limit=3))
    assert list(answers) == tasks
    pids = set()
    for (what, number), answer in answers.items():
        if what == "do":
            assert not isinstance(answer, Lost) and answer[0] == number
            pids.add(answer[1])
        else:
            assert isinstance(answer, Lost) and reasons[what] in answer.reason
            assert answer.part == (what.split()[0] if "then" in what else None)
    assert len(pids) == 4


def test_nothing_is_left_running_past_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still but for the wait after two answers (ready, done), which takes as long as it may."""
    now, answers = 0.0, 0

    def wait(pipes, timeout: float):
        nonlocal now, answers
        answers += 1
        if answers <= 2:
            return connection.wait(pipes, workers.STARTUP)
        now += timeout
        return []

    monkeypatch.setattr(workers, "connection", SimpleNamespace(wait=wait))
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: now))
    made: list[workers._Worker] = []
    create = workers._Worker
    monkeypatch.setattr(
        workers, "_Worker", lambda process, pipe: made.append(create(process, pipe, since=now)) or made[-1]
    )
    done = list(run([("do", 0), ("hang", 1), ("do", 2)], act, deadline=8))
    assert [task for task, _ in done] == [("do", 0)] and answers == 3 and now == 8
    assert [worker.process.is_alive() for worker in made] == [False]
    assert list(run([("do", 0)], act, deadline=7)) == [] and answers == 3


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("cannot be had in another process")


def test_workers_that_cannot_start_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        list(run([1], Unreadable()))  # type: ignore[arg-type]
