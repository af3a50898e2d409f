"""The text that `source()` prints, pasted into a file and run with interpreted kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from tilec.backends.triton.runtime.interpreter import prepare_interpreter
from tilec.lowered import Lowered


def pasted(lowered: Lowered, path: Path) -> Callable:
    """The function of the file, of the outputs' tuple."""
    path.write_text(lowered.source())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prepare_interpreter(module)
    return module.program
