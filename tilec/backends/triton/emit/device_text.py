"""Whole files of kernels: imports, the device functions that they call, the kernels themselves."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

IMPORTS = "import triton\nimport triton.language as tl\n"
LIBDEVICE_IMPORT = "from triton.language.extra import libdevice\n"
CALLED = re.compile(r"\b([a-z_]+_)\b")


@cache
def device_functions() -> dict[str, str]:
    """Name -> text, in the order of `device.py`."""
    text = Path(__file__).with_name("device.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min(d.lineno for d in node.decorator_list) - 1
            found[node.name] = "\n".join(lines[first : node.end_lineno]) + "\n"
    return found


def module_text(kernel: str) -> str:
    """The file of one kernel."""
    functions = device_functions()
    needed: dict[str, None] = {}
    pending = [kernel]
    while pending:
        for name in CALLED.findall(pending.pop()):
            if name in functions and name not in needed:
                needed[name] = None
                pending.append(functions[name])
    pieces = [functions[name] for name in functions if name in needed]
    library = LIBDEVICE_IMPORT if any("libdevice." in p for p in (*pieces, kernel)) else ""
    return "\n\n".join([IMPORTS + library, *pieces, kernel])
