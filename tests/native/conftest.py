"""Both ways that a call can go: in Python, and in C++ where a compiler is."""

from __future__ import annotations

import time

import pytest
import torch

from tilec.native import build, native


@pytest.fixture(scope="session")
def built() -> None:
    """The library, which the whole run waits for once."""
    if build.compiler() is None:
        pytest.skip("there is no C++ compiler")
    path = build.library_path()
    patience = time.monotonic() + 120
    while path.with_suffix(".busy").exists() and time.monotonic() < patience:
        time.sleep(0.2)
    if not path.exists():
        build.build_library()


@pytest.fixture
def library(built: None, monkeypatch: pytest.MonkeyPatch):
    """The library, in use."""
    monkeypatch.setenv("TILEC_NATIVE", "1")
    found = native()
    assert found is not None
    return found


@pytest.fixture(params=["python", "native"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TILEC_NATIVE", "0")
    if request.param == "native":
        request.getfixturevalue("library")
    return request.param


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return request.param
