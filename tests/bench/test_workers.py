"""Work in other processes: done, lost, late, and never in the way of the rest."""

from __future__ import annotations

import os
import time

import pytest

from tilec.bench.workers import Lost, run


def act(task: tuple[str, int]) -> tuple[int, int]:
    what, number = task
    if what == "die":
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
    reasons = {"die": "exit code 7", "raise": "ValueError: number 3", "hang": "took more than 1 s"}
    tasks = [("do", 0), ("die", 1), ("do", 2), ("raise", 3), ("do", 4), ("hang", 5), ("do", 6), ("die", 7)]
    answers = dict(run(tasks, act, limit=1))
    assert list(answers) == tasks
    pids = set()
    for (what, number), answer in answers.items():
        if what == "do":
            assert not isinstance(answer, Lost) and answer[0] == number
            pids.add(answer[1])
        else:
            assert isinstance(answer, Lost) and reasons[what] in answer.reason
    assert len(pids) == 4


def test_nothing_is_left_running_past_the_deadline() -> None:
    start = time.monotonic()
    done = list(run([("do", 0), ("hang", 1), ("do", 2)], act, deadline=start + 8))
    assert [task for task, _ in done] == [("do", 0)]
    assert time.monotonic() - start < 20
    assert list(run([("do", 0)], act, deadline=time.monotonic() - 1)) == []


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("cannot be had in another process")


def test_workers_that_cannot_start_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        list(run([1], Unreadable()))  # type: ignore[arg-type]
