"""Outputs that are read under permuted axes alone, each time to be copied so, are written so.

The gradients of attention's heads are such: these are cut from one projection and permuted, their gradients permuted
back and joined. A call writes any order as fast as another while the innermost axis stays; the copy does not.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node

from tilec.ir.program import Name, Program, expressions, reads_itself, walk
from tilec.torch_op.graphs.calls import has_shape, launch_count, plain_function, values_of
from tilec.torch_op.text import function_of, text_of
from tilec.transforms.axis_orders import AxisOrder, axes_back, in_order, with_orders

aten = torch.ops.aten


def take_orders(graph: Graph, call: Node, devices: Sequence[str]) -> Node:
    """The call, or one in its place whose outputs stand in the orders in which they are read."""
    text, inputs, numbers, sizes = cast(Any, call.args)
    values: Any = [n.meta.get("val") if isinstance(n, Node) else None for n in inputs]
    if not all(isinstance(v, torch.Tensor) and v.device.type in devices for v in values):
        return call
    read = {r: order for r in call.users if (order := _read_order(r)) is not None}
    function: Any = function_of(text) if read else None
    if function is not None and function.gradient is not None:
        function = plain_function(function, values)
    if function is None or function.chunks is not None:
        return call
    names = {r: function.outputs[cast(int, r.args[1])] for r in read}
    orders = {names[r]: order for r, order in read.items() if _may_turn(function.program, names[r])}
    if not orders or len({*names.values()}) < len(names):
        return call
    turned = function.made(with_orders(function.program, orders, {}))
    arguments = (text_of(turned), inputs, numbers, sizes)
    given, mode = values_of(arguments), detect_fake_mode(values)
    with mode if mode is not None else torch.no_grad():
        found = torch.ops.tilec.call(*given)
    places = {r: cast(int, r.args[1]) for r in call.users}
    if not all(_replaces(r, found[k], orders.get(names.get(r, ""))) for r, k in places.items()):
        return call
    if launch_count(turned, given[1], given[2:]) > launch_count(function, given[1], given[2:]):
        return call
    with graph.inserting_before(call):
        whole = graph.call_function(torch.ops.tilec.call.default, arguments)
        whole.meta["val"] = found
        made = {r: graph.call_function(operator.getitem, (whole, k)) for r, k in places.items()}
    for r, result in made.items():
        result.meta = {**r.meta, "val": found[places[r]]}
        for old in list(r.users) if names.get(r) in orders else (r,):
            old.replace_all_uses_with(result)
    for old in [u for r in made if names.get(r) in orders for u in r.users] + [*made, call]:
        graph.erase_node(old)
    return whole


def _read_order(result: Node) -> AxisOrder | None:
    """The order of axes in which an output is read and copied wherever it is read, if there is one."""
    value, readers = result.meta.get("val"), list(result.users)
    if result.target is not operator.getitem or not isinstance(value, torch.Tensor) or not readers:
        return None
    if not value.is_contiguous() or any(r.target is not aten.permute.default for r in readers):
        return None
    orders = {tuple([axis % value.dim() for axis in cast(Any, r.args[1])]) for r in readers}
    (order, *others) = orders
    if others or order[-1] != value.dim() - 1 or order == tuple(range(value.dim())):
        return None
    return order if all(_copies(u) for r in readers for u in r.users) else None


def _copies(node: Node) -> bool:
    """Does this make a contiguous tensor of what it reads?"""
    return node.target is aten.clone.default and node.meta["val"].is_contiguous()


def _may_turn(program: Program, name: str) -> bool:
    """Is this made by one statement with an index, and read element by element elsewhere?"""
    made = [s for s in program.statements if s.output == name]
    if len(made) != 1 or made[0].index is None or made[0].default is not None or reads_itself(made[0]):
        return False
    if program.outputs.count(name) != 1 or any(s.default == name for s in program.statements):
        return False
    return not any(e == Name(name) for s in program.statements for e in walk(*expressions(s)))


def _replaces(result: Node, value: torch.Tensor, order: AxisOrder | None) -> bool:
    """Is this what an output was, in that order?"""
    old = result.meta["val"]
    if order is None:
        return old.dtype == value.dtype and has_shape(result, value.shape) and old.stride() == value.stride()
    same = old.dtype == value.dtype and value.is_contiguous()
    return same and has_shape(result, in_order(value.shape, axes_back(order)))
