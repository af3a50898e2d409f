"""What several tests of interpreted kernels need."""

import pytest

from tilec.backends.triton.fusion import horizontal_fusion


@pytest.fixture
def launches_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small launches stay by themselves, so that a test can count them by name."""
    monkeypatch.setattr(horizontal_fusion, "MOST_JOINED", 1)
