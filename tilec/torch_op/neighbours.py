"""Under torch.compile, elementwise operations beside a call become part of its program, and so of its kernels.

A pass over the graphs that Inductor compiles, forward and backward ones. Around each call of `tilec::call`

- an operation that makes an input, and that nothing before the call reads, becomes a statement before the program's
  own; where others read it too, as a residual connection does, it is an output as well;
- operations on outputs become statements after them, as long as each is elementwise over the output's shape; what else
  reads an output or an intermediate goes on to, since the program may have several outputs;
- a view between such an operation and the call trades places with it, where all that the operation reads is contiguous
  and of one shape: the cast of a reshaped output is the reshaped cast of the output;
- an output that is copied under permuted axes is written so (`graphs/orders.py`).

Everything is checked on the result: its outputs must have the shapes and element types that torch gave the operations,
and it must launch no more kernels than the call did alone; else what is before, or after, or all of it stays as it is.
Reductions, views, random numbers and other calls are torch's.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from tilec import knobs
from tilec.backends import choose_backend
from tilec.errors import TileError
from tilec.ir.program import Expr, Input, Name, Program, Statement, node_count
from tilec.specialise import Specialiser
from tilec.torch_op import symbolic
from tilec.torch_op.graphs.aten import NotTile, expression, is_tile_operation, tensor_operands
from tilec.torch_op.graphs.calls import has_shape, launch_count, plain_function, values_of
from tilec.torch_op.graphs.casts import TakeCasts, multiplies_matrices
from tilec.torch_op.graphs.orders import take_orders
from tilec.torch_op.graphs.views import move_views, sink_views
from tilec.torch_op.text import function_of, text_of
from tilec.transforms.util.naming import Names

aten = torch.ops.aten
_FILES = (
    __file__,
    *sorted(map(str, (Path(__file__).parent / "graphs").glob("*.py"))),
)  # that make graphs what they are
_MOST = 64  # operations that one call takes
LARGEST = 256  # nodes of an expression that is written out wherever it is read, before it gets a name


class FuseNeighbours(CustomGraphPass):
    """The pass; `devices` says where it is worth it. `before`: a pass that was there already and goes first."""

    def __init__(self, devices: Sequence[str] = ("cuda",), before: Any = None):
        self.devices, self.before = tuple(devices), before

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        if not knobs.FUSE_NEIGHBOURS.value:
            return
        for call in [n for n in graph.nodes if n.target is torch.ops.tilec.call.default]:
            _fuse(graph, take_orders(graph, call, self.devices), self.devices)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        own = get_hash_for_files(_FILES), self.devices, knobs.FUSE_NEIGHBOURS.value
        if self.before is None:
            return own
        other = self.before.uuid()
        return None if other is None else (*own, other)


def _fuse(graph: Graph, call: Node, devices: Sequence[str]) -> None:
    move_views(graph, call)
    region = _Region.around(graph, call)
    if region is None or region.device not in devices:
        return
    region.take_before()
    region.take_after()
    region.take_beside()
    before, after, alone = region.before, region.after, region.read_here_alone()
    tried: list[Sequence[list[Node]]] = [([], [])]
    for region.before, region.after in ((before, after), (alone, after), ([], after), (before, []), (alone, [])):
        if (region.before, region.after) not in tried and region.replace():
            return
        tried.append((region.before, region.after))


@dataclass
class _Region:
    """A call and what it takes over: `before`, last first, and `after`, in order. `outputs`: its results by place."""

    graph: Graph
    call: Node
    function: Specialiser
    inputs: dict[str, Node]
    outputs: dict[str, Node]
    place: dict[Node, int]
    before: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)

    @staticmethod
    def around(graph: Graph, call: Node) -> _Region | None:
        """The call alone, moved to where it is first needed: by then, as much as possible is there that operations on
        its outputs read. None where its program is not plain Tile."""
        text, inputs, numbers, _ = cast(Any, call.args)
        function = function_of(text)
        values: Any = [n.meta.get("val") if isinstance(n, Node) else None for n in inputs]
        results = list(call.users)
        plain = all(isinstance(v, torch.Tensor) for v in values)
        if function.chunks is not None or not plain or any(r.target is not operator.getitem for r in results):
            return None
        if function.gradient is not None:
            replaced = plain_function(function, values)
            if replaced is None:
                return None
            function = replaced
        place = {n: k for k, n in enumerate(graph.nodes)}
        users = [u for r in results for u in r.users]
        if users:
            first = min(users, key=place.__getitem__)
            for node in (call, *results):
                first.prepend(node)
            sink_views(graph, call)
        place = {n: k for k, n in enumerate(graph.nodes)}
        named = {function.outputs[cast(int, r.args[1])]: r for r in results}
        return _Region(graph, call, function, dict(zip(function.inputs, inputs, strict=True)), named, place)

    @property
    def device(self) -> str:
        device = next((n.meta["val"].device.type for n in self.inputs.values()), "")
        try:
            served = choose_backend(self.function.backend, device).name
        except TileError:
            return ""
        return device if served == "triton" or device == "cpu" else ""

    def take_before(self) -> None:
        """Take operations that make inputs, as long as nothing before the call reads what they make; for products of
        matrices, whose operands are not read at once, as long as nothing else does."""
        scalars = self._weak() | set(self.function.sizes)
        counts = [n for n in self.inputs.values()]
        waiting = [n for name, n in self.inputs.items() if name not in scalars and counts.count(n) == 1]
        alone = multiplies_matrices(self.function.program)
        while waiting and len(self.before) < _MOST:
            node = waiting.pop()
            if not is_tile_operation(node) or node in self.before:
                continue
            others = [u for u in node.users if u is not self.call and u not in self.before]
            if others and (alone or not self._kept_for(node, others)):
                continue
            self.before.append(node)
            waiting += tensor_operands(node)

    def _kept_for(self, node: Node, others: Sequence[Node]) -> bool:
        """May a tensor that others read be an output of the call? It is floating, contiguous and of an input's shape,
        and they come after the call."""
        start, value = self.place[self.call], node.meta["val"]
        inputs = [n for n in self.inputs.values() if n is node or n in self.before]
        return (
            value.dtype.is_floating_point
            and any(has_shape(n, value.shape) for n in inputs)
            and symbolic.lying_order(value) is None
            and all(self.place.get(u, -1) > start for u in others)
        )

    def read_here_alone(self) -> list[Node]:
        """What was taken before the call, without what others read and what only that reads."""
        found: list[Node] = []
        for node in self.before:
            if all(u is self.call or u in found for u in node.users):
                found.append(node)
        return found

    def take_after(self) -> None:
        """Take operations on outputs and on what was taken, where the rest of what they read is there before."""
        inside = set(self.outputs.values())
        start = self.place[self.call]
        for node in list(self.graph.nodes)[start:]:
            read = tensor_operands(node)
            if len(self.after) >= _MOST or not inside.intersection(read) or not is_tile_operation(node):
                continue
            shape = node.meta["val"].shape
            own = [n for n in read if n in inside]
            if all(n in inside or self.place[n] < start for n in read) and all(has_shape(n, shape) for n in own):
                inside.add(node)
                self.after.append(node)

    def take_beside(self) -> None:
        """Take operations that make what the ones after the call read, as long as nothing else does."""
        taken = [*self.outputs.values(), *self.after]
        waiting = [n for node in self.after for n in tensor_operands(node)]
        while waiting and len(self.after) < _MOST:
            node = waiting.pop()
            if node not in taken and is_tile_operation(node) and all(u in self.after for u in node.users):
                taken.append(node)
                self.after.append(node)
                waiting += tensor_operands(node)
        self.after.sort(key=self.place.__getitem__)

    def replace(self) -> bool:
        """Put one call in the place of all, if it gives what they gave; else the graph stays as it is."""
        built = self._build()
        if built is None:
            return False
        function, inputs, kept = built
        names = dict(zip(function.inputs, inputs, strict=True))
        numbers = [p for p, n in enumerate(function.inputs) if n in self._weak()]
        old = dict(zip(self.function.sizes, cast(Sequence[Any], self.call.args[3]), strict=True))
        arguments = (text_of(function), [names[n] for n in function.inputs], numbers, [old[n] for n in function.sizes])
        values = values_of(arguments)
        mode = detect_fake_mode([n.meta["val"] for n in inputs])
        try:
            with mode if mode is not None else torch.no_grad():
                found = torch.ops.tilec.call(*values)
        except Exception:  # whatever it is, the graph is right as it stands
            return False
        for node, value in zip(kept, found, strict=True):
            if not has_shape(node, value.shape) or not _of_one_kind(node.meta["val"], value):
                return False
        before = [self.inputs[n].meta["val"] for n in self.function.inputs]
        if launch_count(function, values[1], values[2:]) > launch_count(
            self.function, before, values_of(self.call.args[2:])
        ):
            return False
        with self.graph.inserting_before(self.call):
            whole = self.graph.call_function(torch.ops.tilec.call.default, arguments)
            whole.meta["val"] = found
            for k, (node, value) in enumerate(zip(kept, found, strict=True)):
                result = self.graph.call_function(operator.getitem, (whole, k))
                result.meta = {**node.meta, "val": value}
                node.replace_all_uses_with(result, delete_user_cb=self._outside)
        for node in (*reversed(self.after), *self.outputs.values(), self.call, *self.before):
            if not node.users:
                self.graph.erase_node(node)
        return True

    def _outside(self, user: Node) -> bool:
        return user is not self.call and user not in self.before and user not in self.after

    def _weak(self) -> set[str]:
        return {self.function.inputs[p] for p in cast(Sequence[int], self.call.args[2])}

    def _build(self) -> tuple[Specialiser, list[Node], list[Node]] | None:
        """The program of all of it, the nodes of its inputs and those that its outputs replace."""
        program, fresh = self.function.program, Names.of(self.function.program)
        if set(program.outputs) & set(program.input_names()):
            return None
        inputs = {name: n for name, n in self.inputs.items() if n not in self.before}
        inside = {*self.before, *self.after, self.call}
        made = (*reversed(self.before), *self.outputs.values(), *self.after)
        kept = [n for n in made if any(u not in inside for u in n.users)]
        if not kept:
            return None
        declared = {i.name: i.dims for i in program.inputs if i.name in inputs}
        values: dict[Node, Expr] = {n: Name(name) for name, n in inputs.items()}
        statements: list[Statement] = []

        def value_of(node: Node) -> Expr:
            if node not in values:
                name = fresh.fresh("X")
                inputs[name], declared[name] = node, None
                values[node] = Name(name)
            return values[node]

        def assign(node: Node, name: str | None) -> None:
            body = expression(node, value_of)
            if name is None and node_count(body) > LARGEST:
                name = fresh.fresh("Z")
            if name is not None:
                statements.append(Statement(name, None, None, body))
            values[node] = body if name is None else Name(name)

        own = {n: name for name, n in self.inputs.items()}
        new = len(inputs)
        try:
            for node in reversed(self.before):
                assign(node, own.get(node) or (fresh.fresh("Z") if node in kept else None))
            for i in program.inputs:
                if i.name not in inputs and i.dims is not None:
                    if not self._declare(self.inputs[i.name], list(inputs.items())[new:], declared, i.dims):
                        return None
            values.update({n: Name(name) for name, n in self.outputs.items()})
            statements += program.statements
            for node in self.after:
                assign(node, fresh.fresh("Z") if node in kept else None)
        except NotTile:
            return None
        outputs = tuple(cast(Name, values[n]).name for n in kept)
        whole = Program(program.name, tuple(Input(n, d) for n, d in declared.items()), outputs, tuple(statements))
        return self.function.made(whole), list(inputs.values()), kept

    def _declare(self, made: Node, new: Sequence[tuple[str, Node]], declared: dict, dims: Any) -> bool:
        """Have a new input of the same shape, from which an input was made, bind the dimensions of that one."""
        waiting, shape = [made], made.meta["val"].shape
        while waiting:
            for n in tensor_operands(waiting.pop()):
                if n in self.before:
                    waiting.append(n)
                for name in [name for name, node in new if node is n and has_shape(n, shape)]:
                    if declared[name] in (None, dims):
                        declared[name] = dims
                        return True
        return False


def _of_one_kind(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and symbolic.lying_order(a) == symbolic.lying_order(b)


def _install() -> None:
    """Have Inductor run the passes, each after one that is there already if graphs with that are told from others."""
    present = config.post_grad_custom_pre_pass
    if present is None or isinstance(present, CustomGraphPass) and not isinstance(present, FuseNeighbours):
        config.post_grad_custom_pre_pass = FuseNeighbours(before=present)
    if config.joint_custom_post_pass is None:
        config.joint_custom_post_pass = TakeCasts()


_install()  # here, since importing this module may be what imports Inductor's configuration
