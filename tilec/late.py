"""What is put off: what is done to modules of compilers until somebody imports them, since they take longer to import
than the rest; Python's collection of cyclic garbage while something is compiled; work beside a first call until that
needs Python's lock no more."""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, ParamSpec, TypeVar
from weakref import ref

Given = ParamSpec("Given")
Returned = TypeVar("Returned")
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


_untraced: dict[int, ref[CodeType]] = {}  # by its id, until somebody is told or it is gone
_listener: Callable[[CodeType], object] | None = None


def untraced(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The function, which is run as it stands wherever it is called from: torch.compile compiles all frames of Python
    that begin in its regions, but neither this one nor those of what it calls. It would change what they mean: to its
    compiler `numpy()` is a copy, and what is written through that is lost."""
    leave_untraced(function.__code__)
    return function


def leave_untraced(code: CodeType) -> None:
    if _listener is None:
        key = id(code)
        _untraced[key] = ref(code, lambda _: _untraced.pop(key, None))
    else:
        _listener(code)


def tell_of_untraced(listener: Callable[[CodeType], object]) -> None:
    """Have this told of all code that is to be left so, what there is and what will be."""
    global _listener
    _listener = listener
    while _untraced:
        code = _untraced.popitem()[1]()
        if code is not None:
            listener(code)


_lock = threading.Lock()
_inside = 0  # how many calls put it off now, in all threads
_enabled = False  # was it enabled before them?


@contextmanager
def collection_put_off() -> Iterator[None]:
    """No collection begins by itself in here; where it was enabled, it is so again after the last of such blocks.

    Compiling makes many objects that stay, after each some ten thousand of which Python looks through all that there
    are: a tenth of a second where torch and Triton are imported, and nothing to be found."""
    global _inside, _enabled
    with _lock:
        if not _inside:
            _enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _enabled:
                gc.enable()


def puts_off_collection(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The function, inside of such a block."""

    @untraced
    @functools.wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with collection_put_off():
            return function(*args, **kwargs)

    return inside


_behind: list[threading.Event] = []


def begin_behind() -> threading.Event:
    """What a thread waits for that makes ready what comes after a first call: each would only slow the other."""
    turn = threading.Event()
    _behind.append(turn)
    return turn


def let_others_begin() -> None:
    """Let those threads go on: what is left of the first call runs outside of Python's lock, or it is over."""
    while _behind:
        _behind.pop().set()
