"""Device memory that runs out during a call: the error names the program's own tensors."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import torch

from tilec.backends.common.python_text import parsing
from tilec.cost import size_in_bytes
from tilec.errors import OutOfMemory
from tilec.ir.at_sizes import with_numbers
from tilec.ir.program import Program
from tilec.ir.types import TensorType, Types

HANDLER = "try:\n    pass\nexcept _FAILED as _error:\n    _explain(_error)\n    raise"
FAILED = (torch.OutOfMemoryError, RuntimeError, MemoryError)  # what torch and NumPy raise, among other things
ASKED = re.compile(r"allocate ([\d.]+) ?(bytes|[KMGTPE]iB)", re.I)
BYTE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
NO_SIZES: Mapping[str, int] = MappingProxyType({})
ROUNDED_SHARE = 0.005  # of the bytes asked for: CUDA's text rounds them


class TensorMemory:
    """What a program's tensors take. `explain` raises the error for an exception that says that memory has run out."""

    def __init__(self, program: Program, types: Types):
        self._inputs, self._outputs = set(program.input_names()), set(program.outputs)
        self._types = {n: t for n, t in types.items() if n not in self._inputs}

    def explain(self, error: BaseException, sizes: Mapping[str, int] = NO_SIZES) -> None:
        """`sizes`: numbers for the sizes that the program leaves open."""
        text = str(error)
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in text
        if not known or isinstance(error, OutOfMemory):
            return
        types: dict[str, TensorType] = with_numbers(self._types, sizes)
        bytes_of = {name: size_in_bytes(t) for name, t in types.items()}
        asked = _asked(text)
        name = max(
            bytes_of, key=lambda n: (abs(bytes_of[n] - asked) <= ROUNDED_SHARE * asked, bytes_of[n]), default=None
        )
        device = "CUDA out of memory" if isinstance(error, torch.OutOfMemoryError) else "out of memory"
        if name is None:
            raise OutOfMemory(f"{device}: {_text(asked)} were asked for") from error
        t = types[name]
        kind = "the output" if name in self._outputs else "the intermediate"
        what = f"{kind} {name}, {t.dtype} of shape {t.shape}, takes {_text(bytes_of[name])}"
        own = abs(bytes_of[name] - asked) <= ROUNDED_SHARE * asked
        more = "" if own else f"; it is the largest, and {_text(asked)} more were asked for" if asked else ""
        raise OutOfMemory(f"{device}: {what}{more}", hint=_hint(name, name in self._outputs)) from error


def _hint(name: str, output: bool) -> str:
    if output:
        return "an output is always whole: look at its sizes, or call with a part of the inputs at a time"
    return f"call with a part of the inputs at a time, or write {name} inside the aggregation that reads it"


def _asked(text: str) -> float:
    found = ASKED.search(text)
    if found is None:
        return 0.0
    units = [u.lower() for u in BYTE_UNITS]
    return float(found[1]) * 1024 ** units.index(found[2].lower())


def _text(count: float) -> str:
    power = min(len(BYTE_UNITS) - 1, int(math.log2(count) // 10)) if count >= 1 else 0
    return f"{count / 1024**power:.4g} {BYTE_UNITS[power]}"


def with_memory_handler(text: str, name: str, filename: str) -> ast.Module:
    """Python text whose function of that name hands what it raises to `_explain`; lines stay what they are. A handler
    costs nothing where nothing is raised."""
    tree = parsing(lambda: ast.parse(text, filename))
    handler = parsing(lambda: ast.parse(HANDLER)).body[0]
    assert isinstance(handler, ast.Try)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            guard = ast.Try(node.body, handler.handlers, [], [])
            node.body = [ast.copy_location(guard, node.body[0])]
    return tree
