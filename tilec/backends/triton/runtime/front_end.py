"""What is done to Triton's front end, which is Python: threads take turns at it, and it goes through lines once.

Of a loop it looks first for what that carries, in a pass whose IR is thrown away: lines are gone through twice for each
loop around them. Of a kernel that compiles at all, the names that a loop's lines assign say that too, since a name that
is there before the loop keeps its type. What is carried and never changes is dropped by the first passes over the IR,
so the compiled code is the same. Kernels of others are left to Triton, which says what is wrong with them.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tilec.late import when_imported

KERNEL_MODULES = "tilec_kernels"  # the package of modules that kernels' files become
CODE_GENERATOR = "triton.compiler.code_generator"
_KNOWN = ("self", "node", "liveins", "ignore")  # parameters of the method that is replaced


def carried_names(body: list[ast.stmt], before: Collection[str]) -> list[str]:
    """The names that a loop's lines assign, of those that are there before it, in the order of these."""
    nodes = (node for line in body for node in ast.walk(line))
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return [name for name in before if name in assigned]


def go_through_loops_once(generator: ModuleType) -> None:
    """Replace the pass that looks for what loops carry, if this is a Triton that is known."""
    first_pass = getattr(generator.CodeGenerator, "_find_carries", None)
    needed = all(hasattr(generator, name) for name in ("_is_triton_value", "flatten_values_to_ir"))
    if first_pass is None or not needed or tuple(inspect.signature(first_pass).parameters) != _KNOWN:
        return

    def find_carries(
        self: Any, node: Any, liveins: Mapping[str, Any], ignore: Collection[str] = ()
    ) -> tuple[list[str], list[Any], list[Any]]:
        """The names of what a loop carries, their handles and their types."""
        if not self.jit_fn.fn.__module__.startswith(KERNEL_MODULES):
            return first_pass(self, node, liveins, set(ignore))
        names = [n for n in carried_names(node.body, liveins) if n not in ignore]
        names = [n for n in names if generator._is_triton_value(liveins[n])]
        values = [liveins[n] for n in names]
        self.lscope, self.local_defs = dict(liveins), {}
        return names, generator.flatten_values_to_ir(values), [v.type for v in values]

    generator.CodeGenerator._find_carries = find_carries


class _Silent:
    """Python's `warnings` without the filters that Triton 3.6 sets at each node, for Pythons before 3.9."""

    catch_warnings = contextlib.nullcontext
    warn, warn_explicit = warnings.warn, warnings.warn_explicit

    @staticmethod
    def simplefilter(*given: object) -> None:
        """Nothing is to be silenced."""


_TURN = threading.Lock()
_inside = threading.local()


@contextmanager
def leaving(action: Callable[[], object]) -> Iterator[None]:
    """Do this once, as soon as a kernel that is compiled in here has left the front end, or at the end."""
    _inside.action = action
    try:
        yield
    finally:
        _left()


def _left() -> None:
    action, _inside.action = getattr(_inside, "action", None), None
    if action is not None:
        action()


def one_at_a_time(generator: ModuleType) -> None:
    """Let one thread at a time make a kernel's IR. Side by side they would take turns at Python's lock, and all be done
    as late as the last; so the first goes on with what runs outside of it."""
    make = generator.ast_to_ttir

    def make_in_turn(fn: Any, *given: Any, **options: Any) -> Any:
        if not fn.fn.__module__.startswith(KERNEL_MODULES):
            return make(fn, *given, **options)
        try:
            with _TURN:
                return make(fn, *given, **options)
        finally:
            _left()

    generator.ast_to_ttir = make_in_turn  # type: ignore[attr-defined]


def speed_up() -> None:
    """Once Triton's code generator is imported, let it do less for our kernels."""
    generator = sys.modules[CODE_GENERATOR]
    go_through_loops_once(generator)
    one_at_a_time(generator)
    if getattr(generator, "warnings", None) is warnings:
        generator.warnings = _Silent  # type: ignore[attr-defined]


when_imported(CODE_GENERATOR, speed_up)
