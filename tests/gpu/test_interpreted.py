"""A sample of the runner's cases on interpreted kernels; `run.py --interpret` does them all, and
`tests/conformance` those of tables."""

from __future__ import annotations

import os

import pytest
from gpu_cases import plan
from gpu_examine import Settings, examine
from run import DTYPES, GOOD

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SETTINGS = Settings(device="cpu", small=True)


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["sized", "random"])
def test_a_sample(kind: str, count: int) -> None:
    names = [name for name in plan(0, DTYPES) if name.startswith(kind)][:count]
    verdicts = {name: examine(name, SETTINGS) for name in names}
    assert {n: v for n, v in verdicts.items() if v.status not in (*GOOD, "unsupported")} == {}
    assert sum(v.status == "ok" for v in verdicts.values()) > len(names) / 2
