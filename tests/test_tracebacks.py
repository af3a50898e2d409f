"""The traceback of a TileError: the caller's lines and the message, unless an environment switch asks for all."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import torch

import tilec
from tilec.backends.torch import TorchBackend
from tilec.errors import InternalMistake, TileError, Unsupported

PACKAGE = str(Path(tilec.__file__).parent)
FIRST = tilec.compile("function (A[N], B[N]) -> (C) { C = A * B; }")
A, B = torch.ones(2), torch.ones(3)
ENTRIES = {
    "compile": lambda: tilec.compile("Y = A +"),
    "load": lambda: tilec.load("none.tile"),
    "interpret": lambda: tilec.interpret("Y = A +"),
    "interpret's arguments": lambda: tilec.interpret("Y = A + B", A),
    "tune": lambda: tilec.tune(tilec.compile("Y = A", backend="torch"), A),
    "spec": lambda: tilec.spec((-1,)),
    "a call": lambda: FIRST(A, B),
    "a call's arguments": lambda: FIRST(A, 2j),
    "a recorded call": lambda: FIRST(A.clone().requires_grad_(), B),
    "a gradient's call": lambda: FIRST.grad()(A, A, B),
    "grad": lambda: FIRST.grad("Q"),
    "lower": lambda: FIRST.lower(A, B),
    "saved": lambda: FIRST.saved(A, B),
    "a target": lambda: FIRST.lower(A, A, target="sm_90", backend="torch"),
}


@pytest.mark.parametrize("call", ["forward", "__call__"])
def test_a_module(call: str, short: None) -> None:
    """torch's frames, where it calls the module, and none of ours."""
    module = tilec.nn.Tile(FIRST, parameters={"B": (3,)})
    for args in ((A,), (), (2j,)):
        error = raised(lambda args=args: getattr(module, call)(*args))
        assert not inside(error)


@pytest.mark.parametrize("method", ["source", "asm", "cost", "dump"])
def test_lowered(method: str, short: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever code that is generated late refuses."""
    lowered = FIRST.lower(A, A)

    def refuse(*_):
        raise Unsupported("not today")

    monkeypatch.setattr(type(lowered._executable), "source", refuse)
    monkeypatch.setattr(type(lowered._executable), "asm", refuse)
    monkeypatch.setattr("tilec.lowered.cost", refuse)
    args = {"asm": ("ptx",), "dump": (tmp_path,)}.get(method, ())
    with pytest.raises(Unsupported) as caught:
        getattr(lowered, method)(*args)
    assert not inside(caught.value)


def raised(entry) -> TileError:
    with pytest.raises(TileError) as caught:
        entry()
    return caught.value


def inside(error: TileError) -> list[str]:
    return [f.filename for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEC_FULL_TRACEBACK", raising=False)


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_frame_is_ours(entry: str, short: None) -> None:
    error = raised(ENTRIES[entry])
    text = "".join(traceback.format_exception(error))
    assert not inside(error), text
    assert text.count("Traceback") == 1 and text.rstrip().endswith(str(error).rstrip().splitlines()[-1])
    assert len(traceback.extract_tb(error.__traceback__)) == 2  # here: `raised`, and the entry's own line


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_switch_shows_all_frames(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_FULL_TRACEBACK", "1")
    assert inside(raised(ENTRIES[entry]))


@pytest.mark.parametrize("full", [False, True])
def test_backward(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own frames stay; ours, below its node, do not."""
    x = torch.ones(3, requires_grad=True)
    y = tilec.compile("Y = sin(X)")(x)

    def refuse(*_):
        raise Unsupported("not today")

    monkeypatch.setattr(TorchBackend, "build", refuse)
    monkeypatch.setenv("TILEC_FULL_TRACEBACK", str(int(full)))
    error = raised(lambda: y.sum().backward())
    assert bool(inside(error)) is full and "not today" in str(error)


def test_a_defect_keeps_its_frames(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_):
        raise InternalMistake("a broken rule")

    monkeypatch.setattr(TorchBackend, "build", broken)
    assert inside(raised(lambda: tilec.compile("Y = cos(X)")(A)))


def test_the_callers_own_exception_stays_in_sight(short: None) -> None:
    """A call in an `except` block: what came before is printed as Python does."""
    with pytest.raises(TileError) as caught:
        try:
            raise KeyError("mine")
        except KeyError:
            FIRST(A, A, A)
    assert isinstance(caught.value.__context__, KeyError) and not caught.value.__suppress_context__
