"""isl, imported where it is first asked: most programs are decided without it."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(importlib.import_module("islpy"), name)
    return found
