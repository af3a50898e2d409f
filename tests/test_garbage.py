"""Collections of cyclic garbage are put off while something is compiled, and are as they were afterwards."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import tilec
from tilec import pipeline
from tilec.late import collection_put_off


def test_blocks_within_blocks_and_in_threads() -> None:
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with collection_put_off():
            entered.set()
            leave.wait(10)
        seen.append(gc.isenabled())

    thread = threading.Thread(target=other)
    with collection_put_off():
        with collection_put_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
        thread.start()
        assert entered.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled() and seen == [True]


def test_what_was_disabled_stays_so() -> None:
    gc.disable()
    try:
        with collection_put_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_first_call_puts_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    infer = pipeline.infer
    monkeypatch.setattr(pipeline, "infer", lambda *given: (seen.append(gc.isenabled()), infer(*given))[1])
    x = torch.ones(3, 5, requires_grad=True)
    tilec.compile("Y[i] = sum(X[i, k] * X[i, k])")(x).sum().backward()
    assert seen and not any(seen) and gc.isenabled()


def test_mistakes_leave_them_enabled() -> None:
    with pytest.raises(tilec.TileError):
        tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }")(
            torch.ones(2, 3), torch.ones(4, 5)
        )
    assert gc.isenabled()
