"""Both ways that a call can go: in Python, and in C++ where a compiler is."""

from __future__ import annotations

import pytest
import torch


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
