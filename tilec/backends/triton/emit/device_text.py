"""The device functions that kernels call."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tilec.backends.common.python_text import parsing
from tilec.backends.triton.plan.source import IMPORTS, KernelFile, KernelFunction

LIBDEVICE_IMPORT = "from triton.language.extra import libdevice"
CALLED = re.compile(r"\b([a-z_]+_)\b")


@cache
def device_functions() -> dict[str, str]:
    """Name -> text, in the order of `device.py`."""
    text = Path(__file__).with_name("device.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in parsing(lambda: ast.parse(text)).body:
        if isinstance(node, ast.FunctionDef):
            first = min(d.lineno for d in node.decorator_list) - 1
            found[node.name] = "\n".join(lines[first : node.end_lineno]) + "\n"
    return found


def kernel_file(kernel: KernelFunction, *called: KernelFunction) -> KernelFile:
    """The file of a kernel that calls these functions, and with them what all of them call of `device.py`."""
    functions = device_functions()
    needed: set[str] = set()
    own = [kernel.text, *(c.text for c in called)]
    pending = list(own)
    while pending:
        for name in CALLED.findall(pending.pop()):
            if name in functions and name not in needed:
                needed.add(name)
                pending.append(functions[name])
    pieces = [(name, functions[name]) for name in functions if name in needed]
    library = any("libdevice." in text for text in (*own, *(text for _, text in pieces)))
    imports = (*IMPORTS, LIBDEVICE_IMPORT) if library else IMPORTS
    return KernelFile(kernel, called, tuple(pieces), imports)
