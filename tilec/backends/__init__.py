"""Backends: each turns a lowered program into something that runs. `choose` says which one serves a call."""

from __future__ import annotations

from tilec.backends.base import Backend
from tilec.errors import InputMistake, Unsupported

NAMES = ("torch", "triton")


def choose(name: str | None, device: str, target: str | None = None) -> Backend:
    """The backend called `name`, or the one for a device type ("cpu", "cuda") where name is None.

    Raises InputMistake for an unknown name, Unsupported for one that this version does not have.
    """
    if name not in (None, *NAMES):
        raise InputMistake(f"no backend is called {name!r}", hint="backends: " + ", ".join(NAMES))
    if name == "triton":
        raise Unsupported("the Triton backend is not part of this version", hint='use backend="torch"')
    if target is not None:
        raise Unsupported(f"the torch backend compiles for no target; got {target!r}", hint="leave target out")
    from tilec.backends.reference import ReferenceBackend

    return ReferenceBackend()
