"""Workers are forks of one process that has imported the package, which takes seconds, in the place of new ones."""

import multiprocessing

import pytest

from tilec.bench import workers


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    multiprocessing.set_forkserver_preload(["tilec.bench.gpu", "tilec.bench.suite.measure", "tilec.bench.sweep.sweep"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(workers, "START_METHOD", "forkserver")
