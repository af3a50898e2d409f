"""Workers are forks of one process that has imported the package, which takes seconds, in the place of new ones."""

import pytest
from support.fresh import preload

from tilec.bench import workers


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    preload()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(workers, "START_METHOD", "forkserver")
