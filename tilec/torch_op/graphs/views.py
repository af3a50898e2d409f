"""Views and elementwise operations trade places, so that the operations stand beside a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilec.torch_op.graphs.aten import is_tile_operation, tensor_operands

aten = torch.ops.aten
_VIEWS = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)  # Inductor reshapes


def move_views(graph: Graph, call: Node) -> None:
    """Have views and elementwise operations trade places, so that operations stand beside the call."""
    _join_views(graph)
    inputs = [n for n in cast(Any, call.args[1]) if isinstance(n, Node)]
    while inputs:
        inputs += _before_operation(graph, inputs.pop())
    _join_views(graph)
    outputs = list(call.users)
    while outputs:
        result = outputs.pop()
        for view in [v for v in result.users if v.target in _VIEWS]:
            made: dict[object, Node] = {}  # an operation that stands there twice is done once
            for operation in [u for u in view.users if _flat(u)]:
                key = operation.target, operation.args, tuple(operation.kwargs.items())
                if key not in made:
                    made[key] = _after_operation(graph, result, view, operation)
                    outputs.append(cast(Node, made[key].args[0]))
                _replace(graph, operation, made[key])
            if not view.users:
                graph.erase_node(view)
    _join_views(graph)


def _join_views(graph: Graph) -> None:
    """Have views of views be views of what these are of, or that itself."""
    for view in [n for n in graph.nodes if n.target is aten.reshape.default]:
        origin = cast(Any, view.args[0])
        while origin.target is aten.reshape.default:
            origin = origin.args[0]
        value, viewed = origin.meta["val"], view.meta["val"]
        if _is_known(value) and value.shape == viewed.shape and value.stride() == viewed.stride():
            _replace(graph, view, origin)
        elif origin is not view.args[0]:
            view.replace_input_with(view.args[0], origin)


def sink_views(graph: Graph, call: Node) -> None:
    """Have views of inputs that are first needed after the call stand there, so that the call may make what they are
    of."""
    place = {n: k for k, n in enumerate(graph.nodes)}
    for node in cast(Any, call.args[1]):
        for view in [u for u in node.users if u.target in _VIEWS and u.users]:
            first = min(view.users, key=place.__getitem__)
            if place[first] > place[call] > place[view]:
                first.prepend(view)


def _before_operation(graph: Graph, view: Node) -> list[Node]:
    """Views of what an operation reads in the place of the view of its result. What else reads the result reads it as a
    view of the other."""
    operation = view.args[0] if view.target in _VIEWS else None
    if not isinstance(operation, Node) or not _flat(operation):
        return []
    views = {n: _viewed(graph, n, view.meta["val"].shape) for n in tensor_operands(operation)}
    with graph.inserting_before(operation):
        moved = _made_of(graph, operation, views)
    _replace(graph, view, moved)
    if not operation.users:
        graph.erase_node(operation)
        return list(views.values())
    with graph.inserting_before(next(n for n in graph.nodes if n in operation.users)):  # so as not to hold the call up
        _replace(graph, operation, _made(graph, aten.reshape.default, (moved, list(operation.meta["val"].shape)), {}))
    return list(views.values())


def _after_operation(graph: Graph, result: Node, view: Node, operation: Node) -> Node:
    """The view of an operation on a result for the operation on its view."""
    others = [n for n in tensor_operands(operation) if n is not view]
    views = {n: _viewed(graph, n, result.meta["val"].shape) for n in others}
    with graph.inserting_before(operation):
        moved = _made_of(graph, operation, {view: result, **views})
    return _viewed(graph, moved, operation.meta["val"].shape)


def _replace(graph: Graph, node: Node, other: Node) -> None:
    node.replace_all_uses_with(other)
    graph.erase_node(node)


def _viewed(graph: Graph, node: Node, shape: Sequence[int]) -> Node:
    """A tensor in another shape; what it is a view of where that has it."""
    origin = node.args[0] if node.target in _VIEWS else None
    if isinstance(origin, Node) and origin.meta["val"].shape == shape:
        return origin
    after = node
    while after.op == "placeholder" and after.next.op == "placeholder":
        after = after.next
    with graph.inserting_after(after):
        return _made(graph, aten.reshape.default, (node, list(shape)), {})


def _flat(node: Node) -> bool:
    """Is this an elementwise operation on contiguous tensors of its shape, which is known?"""
    values = [n.meta["val"] for n in (node, *tensor_operands(node))] if is_tile_operation(node) else []
    return (
        bool(values)
        and all(map(_is_known, values))
        and all(v.shape == values[0].shape and v.is_contiguous() for v in values)
    )


def _made(graph: Graph, target: Any, args: Any, kwargs: Any) -> Node:
    node = graph.call_function(target, args, kwargs)
    given, named = map_arg((args, kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode([n.meta["val"] for n in node.all_input_nodes])
    with mode if mode is not None else torch.no_grad():
        node.meta["val"] = target(*given, **named)
    return node


def _made_of(graph: Graph, operation: Node, given: Mapping[Node, Node]) -> Node:
    args, kwargs = map_arg((operation.args, operation.kwargs), lambda n: given.get(n, n))
    return _made(graph, operation.target, args, kwargs)


def _is_known(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*value.shape, *value.stride()))
