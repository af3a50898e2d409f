"""Calls and backward passes as nodes of the graphs of torch.compile and of compiled autograd, which look into neither.

Dynamo takes such a node down by a name of what is to be called; what traces the graph afterwards carries it out,
through the same code as any other call. What Dynamo does not take down is run outside of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from tilec.arguments import by_name
from tilec.late import tell_of_untraced, untraced, when_imported
from tilec.torch_op.state import included

_called: WeakValueDictionary[str, Any] = WeakValueDictionary()
_count = itertools.count()


def handle_of(called: Any) -> str:
    """A name by which graphs know what is to be called with the inputs, or is to be pulled back."""
    handle = f"call_{next(_count)}"
    _called[handle] = called
    return handle


@untraced
def _called_by_handle(handle: str, *inputs: Any, **named: Any) -> Any:
    """`named` where the names do not fit: Dynamo would end in what writes the error's hint."""
    called = _called[handle]
    return called(by_name(called.inputs, inputs, named) if named else inputs)


@untraced
def _pulled_back_by_handle(handle: str, *given: Any) -> Any:
    return _called[handle].pulled_back(*given)


def _tell_dynamo() -> None:
    from torch._dynamo import allow_in_graph, disallow_in_graph

    try:  # neither is public; without them Dynamo compiles what it meets
        from torch._dynamo.eval_frame import set_code_exec_strategy
        from torch._dynamo.types import FrameAction, FrameExecStrategy
    except ImportError:
        pass
    else:
        with_callees = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
        tell_of_untraced(lambda code: set_code_exec_strategy(code, with_callees))
    allow_in_graph(_called_by_handle)
    allow_in_graph(_pulled_back_by_handle)
    disallow_in_graph(included)  # no graph takes its argument: torch 2.11 would fail, not break


# traced like any other function until they are allowed in graphs
in_graph: Callable[..., Any] = _called_by_handle
pulled_back_in_graph: Callable[..., Any] = _pulled_back_by_handle
when_imported("torch._dynamo", _tell_dynamo)
