"""Under torch.compile, elementwise operations beside a call become part of its program, and so of its kernels.

A pass over the graphs that Inductor compiles, forward and backward ones. Around each call of `tilec::call`

- an operation that makes an input, and that nothing else reads, becomes a statement before the program's own;
- operations on outputs become statements after them, as long as each is elementwise over the output's shape; what else
  reads an output or an intermediate goes on to, since the program may have several outputs;
- a view between such an operation and the call trades places with it, where all that the operation reads is contiguous
  and of one shape: the cast of a reshaped output is the reshaped cast of the output.

Everything is checked on the result: its outputs must have the shapes and element types that torch gave the operations,
and it must launch no more kernels than the call did alone; else what is before, or after, or all of it stays as it is.
Reductions, views, random numbers and other calls are torch's.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilec import knobs
from tilec.backends import choose_backend
from tilec.errors import TileError
from tilec.ir.program import Expr, Input, Name, Program, Statement, node_count
from tilec.specialise import Specialiser
from tilec.torch_op import symbolic
from tilec.torch_op.aten import NotTile, elementwise, expression, operands
from tilec.torch_op.text import function_of, text_of
from tilec.transforms.util.naming import Names

aten = torch.ops.aten
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
            _fuse(graph, call, self.devices)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        own = get_hash_for_files((__file__,)), self.devices, knobs.FUSE_NEIGHBOURS.value
        if self.before is None:
            return own
        other = self.before.uuid()
        return None if other is None else (*own, other)


def install() -> None:
    """Have Inductor run the pass, after one that is there already if graphs with that are told from others."""
    present = config.post_grad_custom_pre_pass
    if present is None or isinstance(present, CustomGraphPass) and not isinstance(present, FuseNeighbours):
        config.post_grad_custom_pre_pass = FuseNeighbours(before=present)


def _fuse(graph: Graph, call: Node, devices: Sequence[str]) -> None:
    _move_views(graph, call)
    region = _Region.around(graph, call)
    if region is None or region.device not in devices:
        return
    region.take_before()
    region.take_after()
    region.take_beside()
    before, after = region.before, region.after
    for region.before, region.after in ((before, after), ([], after), (before, [])):
        if (region.before or region.after) and region.replace():
            return


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
            replaced = _plain(function, values)
            if replaced is None:
                return None
            function = replaced
        place = {n: k for k, n in enumerate(graph.nodes)}
        users = [u for r in results for u in r.users]
        if users:
            first = min(users, key=place.__getitem__)
            for node in (call, *results):
                first.prepend(node)
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
        """Take operations that make inputs, as long as nothing else reads what they make."""
        scalars = self._weak() | set(self.function.sizes)
        counts = [n for n in self.inputs.values()]
        waiting = [n for name, n in self.inputs.items() if name not in scalars and counts.count(n) == 1]
        while waiting and len(self.before) < _MOST:
            node = waiting.pop()
            if not elementwise(node) or node in self.before:
                continue
            if all(u is self.call or u in self.before for u in node.users):
                self.before.append(node)
                waiting += operands(node)

    def take_after(self) -> None:
        """Take operations on outputs and on what was taken, where the rest of what they read is there before."""
        inside = set(self.outputs.values())
        start = self.place[self.call]
        for node in list(self.graph.nodes)[start:]:
            read = operands(node)
            if len(self.after) >= _MOST or not inside.intersection(read) or not elementwise(node):
                continue
            shape = node.meta["val"].shape
            own = [n for n in read if n in inside]
            if all(n in inside or self.place[n] < start for n in read) and all(_same(n, shape) for n in own):
                inside.add(node)
                self.after.append(node)

    def take_beside(self) -> None:
        """Take operations that make what the ones after the call read, as long as nothing else does."""
        taken = [*self.outputs.values(), *self.after]
        waiting = [n for node in self.after for n in operands(node)]
        while waiting and len(self.after) < _MOST:
            node = waiting.pop()
            if node not in taken and elementwise(node) and all(u in self.after for u in node.users):
                taken.append(node)
                self.after.append(node)
                waiting += operands(node)
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
        values = _values(arguments)
        mode = detect_fake_mode([n.meta["val"] for n in inputs])
        try:
            with mode if mode is not None else torch.no_grad():
                found = torch.ops.tilec.call(*values)
        except Exception:  # whatever it is, the graph is right as it stands
            return False
        for node, value in zip(kept, found, strict=True):
            if value.dtype != node.meta["val"].dtype or not _same(node, value.shape):
                return False
        before = [self.inputs[n].meta["val"] for n in self.function.inputs]
        if _launches(function, values[1], values[2:]) > _launches(self.function, before, _values(self.call.args[2:])):
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
        return user not in self.after

    def _weak(self) -> set[str]:
        return {self.function.inputs[p] for p in cast(Sequence[int], self.call.args[2])}

    def _build(self) -> tuple[Specialiser, list[Node], list[Node]] | None:
        """The program of all of it, the nodes of its inputs and those that its outputs replace."""
        program, fresh = self.function.program, Names.of(self.function.program)
        if set(program.outputs) & set(program.input_names()):
            return None
        inputs = {name: n for name, n in self.inputs.items() if n not in self.before}
        inside = {*self.after, self.call}
        kept = [n for n in (*self.outputs.values(), *self.after) if any(u not in inside for u in n.users)]
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
                assign(node, own.get(node))
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
            for n in operands(waiting.pop()):
                if n in self.before:
                    waiting.append(n)
                for name in [name for name, node in new if node is n and _same(n, shape)]:
                    if declared[name] in (None, dims):
                        declared[name] = dims
                        return True
        return False


def _move_views(graph: Graph, call: Node) -> None:
    """Have views and elementwise operations trade places, so that operations stand beside the call."""
    inputs = [n for n in cast(Any, call.args[1]) if isinstance(n, Node)]
    while inputs:
        inputs += _before_operation(graph, inputs.pop())
    outputs = list(call.users)
    while outputs:
        result = outputs.pop()
        for view in [v for v in result.users if v.target is aten.view.default]:
            made: dict[object, Node] = {}  # an operation that stands there twice is done once
            for operation in [u for u in view.users if _flat(u)]:
                key = operation.target, operation.args, tuple(operation.kwargs.items())
                if key not in made:
                    made[key] = _after_operation(graph, result, view, operation)
                    outputs.append(cast(Node, made[key].args[0]))
                _replace(graph, operation, made[key])
            if not view.users:
                graph.erase_node(view)


def _before_operation(graph: Graph, view: Node) -> list[Node]:
    """Views of what an operation reads in the place of the view of its result, which nothing else reads."""
    operation = view.args[0] if view.target is aten.view.default else None
    if not isinstance(operation, Node) or len(operation.users) > 1 or len(view.users) > 1 or not _flat(operation):
        return []
    with graph.inserting_before(view):
        views = {n: _viewed(graph, n, view.meta["val"].shape) for n in operands(operation)}
        _replace(graph, view, _made_of(graph, operation, views))
    graph.erase_node(operation)
    return list(views.values())


def _after_operation(graph: Graph, result: Node, view: Node, operation: Node) -> Node:
    """The view of an operation on a result for the operation on its view."""
    with graph.inserting_before(operation):
        others = [n for n in operands(operation) if n is not view]
        views = {n: _viewed(graph, n, result.meta["val"].shape) for n in others}
        return _viewed(graph, _made_of(graph, operation, {view: result, **views}), operation.meta["val"].shape)


def _replace(graph: Graph, node: Node, other: Node) -> None:
    node.replace_all_uses_with(other)
    graph.erase_node(node)


def _viewed(graph: Graph, node: Node, shape: Sequence[int]) -> Node:
    """A tensor in another shape; what it is a view of where that has it."""
    origin = node.args[0] if node.target is aten.view.default else None
    if isinstance(origin, Node) and origin.meta["val"].shape == shape:
        return origin
    return _made(graph, aten.view.default, (node, list(shape)), {})


def _flat(node: Node) -> bool:
    """Is this an elementwise operation on contiguous tensors of its shape, which is known?"""
    values = [n.meta["val"] for n in (node, *operands(node))] if elementwise(node) else []
    known = all(isinstance(n, int) for v in values for n in (*v.shape, *v.stride()))
    return bool(values) and known and all(v.shape == values[0].shape and v.is_contiguous() for v in values)


def _made(graph: Graph, target: Any, args: Any, kwargs: Any) -> Node:
    node = graph.call_function(target, args, kwargs)
    given, named = map_arg((args, kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode([n.meta["val"] for n in node.all_input_nodes])
    with mode if mode is not None else torch.no_grad():
        node.meta["val"] = target(*given, **named)
    return node


def _made_of(graph: Graph, operation: Node, given: Mapping[Node, Node]) -> Node:
    """The operation on others."""
    args, kwargs = map_arg((operation.args, operation.kwargs), lambda n: given.get(n, n))
    return _made(graph, operation.target, args, kwargs)


def _plain(function: Specialiser, values: Sequence[torch.Tensor]) -> Specialiser | None:
    """A gradient as a plain program of the results that there are; None where inputs would be replaced."""
    first = len(function.gradient.forward.inputs)  # type: ignore[union-attr]
    if not all(v.dtype.is_floating_point for v in values[first:]):
        return None
    there = function.there([v.dtype for v in values])
    if not all(there):
        return None
    return function.made(function.program)


def _launches(function: Specialiser, tensors: Sequence[torch.Tensor], scalars: Sequence[Any]) -> int:
    """Kernels of a call, for the sizes that stand for the class. The torch backend's have one."""
    numbers, sizes = scalars
    weak = [p in numbers for p in range(len(tensors))]
    types = symbolic.example_types(function, tensors, weak)
    values = dict(zip(function.sizes, map(symbolic.example, sizes), strict=True))
    _, prepared = function.lower(types, values, function.backend, tensors[0].device.type, None, False)
    return len(prepared.executable.kernels)


def _same(node: Node, shape: Sequence[Any]) -> bool:
    """Has a node this shape for all sizes?"""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    own = node.meta["val"].shape
    return len(own) == len(shape) and all(statically_known_true(a == b) for a, b in zip(own, shape, strict=True))


def _values(arguments: Sequence[Any]) -> list[Any]:
    return cast(list[Any], map_arg(list(arguments), lambda n: n.meta["val"]))
