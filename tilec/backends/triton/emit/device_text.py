"""The device functions that kernels call."""

from __future__ import annotations

import ast
from functools import cache, partial
from pathlib import Path

from tilec.backends.common.python_text import parsing
from tilec.backends.triton.plan.check_lines import check_defined
from tilec.backends.triton.plan.lines import names_read
from tilec.backends.triton.plan.source import IMPORTS, KernelFile, KernelFunction

GIVEN = {"tl", "libdevice", "range", "float"}  # what a file has besides its functions
LIBDEVICE_IMPORT = "from triton.language.extra import libdevice"


_FILES = ("device_instructions.py", "device.py", "device_integers.py")


@cache
def device_functions() -> dict[str, str]:
    """Name -> text, in the order of these files."""
    found = {}
    for name in _FILES:
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in parsing(partial(ast.parse, text)).body:
            if isinstance(node, ast.FunctionDef):
                first = min(d.lineno for d in node.decorator_list) - 1
                found[node.name] = "\n".join(lines[first : node.end_lineno]) + "\n"
    return found


def kernel_file(kernel: KernelFunction, *called: KernelFunction) -> KernelFile:
    """The file of a kernel that calls these functions, and with them what all of them call of `device.py`."""
    functions = device_functions()
    names = set(KernelFile(kernel, called).free)
    check_defined(kernel.name, names, functions.keys() | GIVEN)
    pending = [name for name in functions if name in names]
    needed = set(pending)
    while pending:
        further = names_read(functions[pending.pop()])
        names |= further
        pending += [name for name in functions if name in further - needed]
        needed |= further
    pieces = tuple((name, text) for name, text in functions.items() if name in needed)
    imports = (*IMPORTS, LIBDEVICE_IMPORT) if "libdevice" in names else IMPORTS
    return KernelFile(kernel, called, pieces, imports)
