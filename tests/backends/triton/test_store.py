"""Tuned choices on disk: kept, shared by processes, whole or absent, and never a reason to fail."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tilec import knobs
from tilec.backends.triton.tuning.store import Environment, Tuned, TuningKey, TuningStore, default_store
from tilec.errors import InputMistake

ENVIRONMENT = Environment("0.1.0", "2.13.0", "3.6.0", "NVIDIA H200", "9.0")
KEY = TuningKey.of(ENVIRONMENT, "dot", "def kernel(): pass", "m128 n128 k64")
TUNED = Tuned({"rows": 128, "stages": 3, "order": "grouped"}, 18.25)


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    return TuningStore(tmp_path / "not" / "yet" / "there")


def again(store: TuningStore) -> TuningStore:
    """As another process sees it."""
    return TuningStore(store.directory)


def test_kept_from_run_to_run(store: TuningStore) -> None:
    assert store.get(KEY) is None and not store.directory.exists()
    store.put(KEY, TUNED)
    assert store.get(KEY) == again(store).get(KEY) == TUNED
    better = Tuned({"rows": 64}, 12)
    store.put(KEY, better)
    assert store.get(KEY) == again(store).get(KEY) == better
    assert [p.suffix for p in store.directory.iterdir()] == [".json"]


OTHERS = {
    "tilec": replace(KEY, environment=replace(ENVIRONMENT, tilec="0.2.0")),
    "torch": replace(KEY, environment=replace(ENVIRONMENT, torch="2.14.0")),
    "triton": replace(KEY, environment=replace(ENVIRONMENT, triton="3.7.0")),
    "device": replace(KEY, environment=replace(ENVIRONMENT, device="NVIDIA H100")),
    "capability": replace(KEY, environment=replace(ENVIRONMENT, capability="8.0")),
    "family": replace(KEY, family="reduce"),
    "text": TuningKey.of(ENVIRONMENT, "dot", "def kernel(): return", "m128 n128 k64"),
    "shape class": replace(KEY, shape_class="m128 n128 k32"),
}


@pytest.mark.parametrize("part", OTHERS)
def test_every_part_of_the_key_tells_choices_apart(part: str, store: TuningStore) -> None:
    other = Tuned({"rows": 1}, 1)
    store.put(KEY, TUNED)
    assert store.get(OTHERS[part]) is None and again(store).get(OTHERS[part]) is None
    store.put(OTHERS[part], other)
    assert again(store).get(KEY) == TUNED and again(store).get(OTHERS[part]) == other


def entry(**changed: object) -> bytes:
    key = {"environment": vars(ENVIRONMENT), "family": "dot", "text": KEY.text, "shape_class": KEY.shape_class}
    return json.dumps({"format": 1, "key": key, "choice": {"rows": 1}, "microseconds": 2.0, **changed}).encode()


DAMAGED = {
    "nothing": b"",
    "cut off": entry()[:-20],
    "no JSON": b"\x00\xff\xfe",
    "too deep": b"[" * 100_000,
    "no entry": b"[1, 2]",
    "a number": b"3",
    "no key": b'{"format": 1, "choice": {}, "microseconds": 1}',
    "another key": entry(key={"family": "reduce"}),
    "another format": entry(format=2),
    "a list as choice": entry(choice=[1]),
    "a fraction in the choice": entry(choice={"rows": 1.5}),
    "a time that is none": entry(microseconds="fast"),
    "not a number": entry(microseconds=float("nan")),
    "a negative time": entry(microseconds=-1),
}


def test_what_the_damaged_files_are_compared_with_is_sound(store: TuningStore) -> None:
    store.put(KEY, TUNED)
    (store.directory / KEY.file_name).write_bytes(entry())
    assert again(store).get(KEY) == Tuned({"rows": 1}, 2.0)


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_ignored_and_rewritten(damage: str, store: TuningStore) -> None:
    store.put(KEY, TUNED)
    (store.directory / KEY.file_name).write_bytes(DAMAGED[damage])
    with warnings.catch_warnings(action="error"):
        assert again(store).get(KEY) is None
        again(store).put(KEY, TUNED)
    assert again(store).get(KEY) == TUNED


@pytest.mark.parametrize("wrong", [Tuned({"rows": 1.5}, 1), Tuned({"rows": 1}, float("inf")), Tuned({1: 2}, 1)])  # type: ignore[dict-item]
def test_what_would_not_come_back_is_refused(wrong: Tuned, store: TuningStore) -> None:
    with pytest.raises(ValueError, match="integers and strings"):
        store.put(KEY, wrong)


def test_a_directory_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = TuningStore(tmp_path / "file" / "tuned")
    with pytest.warns(UserWarning, match="cannot be written.*TILEC_CACHE") as caught:
        store.put(KEY, TUNED)
        store.put(OTHERS["family"], TUNED)
    assert len(caught) == 1
    assert store.get(KEY) == store.get(OTHERS["family"]) == TUNED
    assert again(store).get(KEY) is None


def test_a_write_that_fails_leaves_no_trace(store: TuningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(KEY, TUNED)

    def refuse(*paths: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(UserWarning, match="Permission denied"):
        store.put(KEY, Tuned({"rows": 1}, 1))
    assert again(store).get(KEY) == TUNED and len(list(store.directory.iterdir())) == 1


def test_a_file_that_cannot_be_read_is_one_warning(store: TuningStore) -> None:
    (store.directory / KEY.file_name).mkdir(parents=True)
    with pytest.warns(UserWarning, match="cannot be read") as caught:
        assert store.get(KEY) is None and store.get(KEY) is None
    assert len(caught) == 1


WHERE = Environment("0.1.0", "2", "3", "device", "9.0")


def write(directory: Path, me: int, together: Barrier) -> None:
    shared = TuningKey.of(WHERE, "dot", "shared", "class")
    together.wait(60)
    for i in range(60):
        store = TuningStore(directory)
        store.put(TuningKey.of(WHERE, "dot", f"{me} {i}", "class"), Tuned({"me": me, "i": i}, i))
        store.put(shared, Tuned({"me": me, "long": "x" * 5000, "i": i}, i))
        seen = TuningStore(directory).get(shared)
        assert seen is not None and len(seen.choice["long"]) == 5000, seen


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_at_once(store: TuningStore) -> None:
    """Neither loses an entry, and a key that both write is always whole. Forked: they import nothing anew."""
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(2)
    writers = [fork.Process(target=write, args=(store.directory, me, together)) for me in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    for me in (0, 1):
        for i in range(60):
            assert store.get(TuningKey.of(WHERE, "dot", f"{me} {i}", "class")) == Tuned({"me": me, "i": i}, i)
    assert len(list(store.directory.iterdir())) == 121


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TILEC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert knobs.cache_directory() == tmp_path / "home" / ".cache" / "tilec"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert knobs.cache_directory() == tmp_path / "home" / ".cache" / "tilec"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert knobs.cache_directory() == tmp_path / "xdg" / "tilec"
    assert TuningStore().directory == tmp_path / "xdg" / "tilec" / "tuned"
    monkeypatch.setenv("TILEC_CACHE", "~/mine")
    assert knobs.cache_directory() == tmp_path / "home" / "mine"
    assert default_store() is default_store()
    assert default_store().directory == tmp_path / "home" / "mine" / "tuned"
    monkeypatch.setenv("TILEC_CACHE", " ")
    with pytest.raises(InputMistake, match="TILEC_CACHE"):
        knobs.cache_directory()


def test_the_environment_names_versions_and_device() -> None:
    import torch

    import tilec

    here = Environment.of()
    assert here.tilec == tilec.__version__ and here.torch == torch.__version__
    assert bool(here.capability) == torch.cuda.is_available()
