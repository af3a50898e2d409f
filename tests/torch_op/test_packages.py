"""Packages of AOTInductor, which need a C++ compiler: a process that imports tilec loads and runs them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.support.torch_programs import EXAMPLES
from tests.torch_op.packages import packaged

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"),
]


def check(name: str, folder: Path, device: str) -> None:
    for row, results in packaged(name, folder, device).items():
        if results is not None:
            for ours, theirs in zip(*results, strict=True):
                assert ours.device == theirs.device
                torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, msg=lambda m, row=row: f"{row}: {m}")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_packages(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", EXAMPLES)
def test_packages_on_cuda(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, "cuda")
