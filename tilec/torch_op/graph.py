"""How torch.compile sees a call: one node of its graph, which it does not look into.

Dynamo takes the call down; what traces the graph afterwards carries it out, through the same code as any other call,
and so meets the node of autograd, the levels of torch.func and, below these, the operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch

from tilec.late import when_imported

_calls: WeakValueDictionary[str, Any] = WeakValueDictionary()
_count = itertools.count()


def handle_of(call: Any) -> str:
    """A name by which graphs know what is to be called with the inputs."""
    handle = f"call_{next(_count)}"
    _calls[handle] = call
    return handle


def _called(handle: str, *inputs: Any) -> Any:
    return _calls[handle](inputs)


in_graph: Callable[..., Any] = _called  # traced like any other function until it is allowed in graphs
when_imported("torch._dynamo", lambda: torch.compiler.allow_in_graph(_called))


def _fuse_neighbours() -> None:
    from tilec.torch_op.neighbours import install

    install()


when_imported("torch._inductor.config", _fuse_neighbours)
