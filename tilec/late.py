"""What is done to modules of torch's compilers once somebody imports them: they take longer to import than the rest."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[], object]


def when_imported(name: str, action: Action) -> None:
    """Do this right after the module's own code has run; now if it has."""
    if name in sys.modules:
        action()
    else:
        _waiting.actions[name] = action
        if _waiting not in sys.meta_path:
            sys.meta_path.insert(0, _waiting)


class _Waiting(MetaPathFinder):
    """Finds a module as the finders after it do, and adds the action to its loader."""

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        action = self.actions.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            action()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_waiting = _Waiting()
