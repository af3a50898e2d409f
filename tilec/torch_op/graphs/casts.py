"""Under torch.compile, casts of 16-bit tensors to float32 that only calls read become part of these calls.

A pass over the graph of forward and backward together. A call is opaque to torch, which would store the cast and keep
it from one to the other; the 16-bit tensor is half of that. Products of matrices are left alone, whose operands count
for more than what reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from tilec import knobs
from tilec.ir.program import Aggregate, Expr, Program, accesses_in, expressions, index_variables, walk
from tilec.torch_op.autocast import HALF_DTYPES, computed_in_float32
from tilec.torch_op.graphs.calls import launch_count
from tilec.torch_op.text import function_of, text_of

CAST, CALL = torch.ops.prims.convert_element_type.default, torch.ops.tilec.call.default


class TakeCasts(CustomGraphPass):
    """The pass; `devices` says where it is worth it."""

    def __init__(self, devices: Sequence[str] = ("cuda",)):
        self.devices = tuple(devices)

    def __call__(self, graph: Graph) -> None:
        if not knobs.FUSE_NEIGHBOURS.value:
            return
        for cast_node in [n for n in graph.nodes if n.target is CAST and _widens(n, self.devices)]:
            changed = {call: _taking(call, cast_node) for call in cast_node.users}
            if changed and None not in changed.values():
                for call, arguments in changed.items():
                    call.args = cast(tuple, arguments)
                graph.erase_node(cast_node)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,)), self.devices, knobs.FUSE_NEIGHBOURS.value


def _widens(node: Node, devices: Sequence[str]) -> bool:
    source, value = cast(Any, node.args[0]).meta.get("val"), node.meta.get("val")
    if not isinstance(source, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    return value.dtype is torch.float32 and source.dtype in HALF_DTYPES and value.device.type in devices


def _taking(call: Node, cast_node: Node) -> tuple | None:
    """The arguments of a call that takes what a cast reads; None where it is to stay."""
    if call.target is not CALL:
        return None
    text, inputs, numbers, sizes = cast(Any, call.args)
    function, source = function_of(text), cast(Any, cast_node.args[0])
    if function.gradient is not None or function.chunks is not None or multiplies_matrices(function.program):
        return None
    names = tuple([name for name, n in zip(function.inputs, inputs, strict=True) if n is cast_node])
    taking = computed_in_float32(function, names)
    taken = [source if n is cast_node else n for n in inputs]
    before, after = ([n.meta["val"] for n in nodes] for nodes in (inputs, taken))
    values = numbers, [n.meta["val"] if isinstance(n, Node) else n for n in sizes]
    if launch_count(taking, after, values) > launch_count(function, before, values):
        return None
    return text_of(taking), taken, numbers, sizes


def multiplies_matrices(program: Program) -> bool:
    """Is there a sum of which no tensor has an element of its own at each point?"""
    nodes = [e for s in program.statements for e in walk(*expressions(s))]
    bodies = [s.body for s in program.statements if s.aggregation == "sum" and s.index is not None]
    bodies += [e.body for e in nodes if isinstance(e, Aggregate) and e.aggregation == "sum"]
    return any(not _is_spanned(body) for body in bodies)


def _is_spanned(body: Expr) -> bool:
    variables = set(index_variables(body))
    return any(variables <= set(index_variables(a)) for a in accesses_in(body))
