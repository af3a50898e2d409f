"""Backends: each turns a lowered program into something that runs. `choose_backend` says which one serves a call."""

from __future__ import annotations

from importlib.util import find_spec

from tilec.backends.base import Backend
from tilec.errors import InputMistake, Unsupported
from tilec.late import puts_off_collection

NAMES = ("torch", "triton")


@puts_off_collection  # importing one makes many objects
def choose_backend(name: str | None, device: str, target: str | None = None) -> Backend:
    """The backend called `name`, or the one for a device type ("cpu", "cuda") where name is None: Triton's for CUDA
    tensors or a target, torch's otherwise.

    Raises InputMistake for an unknown name or where the backend cannot run on the device, Unsupported where Triton is
    not installed.
    """
    if name not in (None, *NAMES):
        raise InputMistake(f"no backend is called {name!r}", hint="backends: " + ", ".join(NAMES))
    if name == "triton" or name is None and (target is not None or device == "cuda" and has_triton()):
        if not has_triton():
            raise Unsupported("Triton is not installed", hint='use backend="torch"')
        from tilec.backends.triton import TritonBackend

        return TritonBackend(target, library=name is None)
    if target is not None:
        raise Unsupported(f"the torch backend compiles for no target; got {target!r}", hint="leave target out")
    from tilec.backends.torch import TorchBackend

    return TorchBackend()


def has_triton() -> bool:
    return find_spec("triton") is not None
