"""The graph of a function or module, its sizes symbols where the code leaves them open."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from tilec.arguments import Spec
from tilec.errors import InputMistake, TileError, Unsupported
from tilec.torch_import.operations import OPERATIONS


@dataclass(frozen=True)
class Captured:
    """`nodes` in order of execution; `inputs` are the placeholders with the names that they go by."""

    nodes: tuple[Node, ...]
    inputs: tuple[tuple[Node, str], ...]
    outputs: tuple[Node, ...]
    constants: dict[str, torch.Tensor]


class _Call(torch.nn.Module):
    """A function, or a module whose parameters and buffers come after its arguments."""

    def __init__(self, function: Callable, arguments: Sequence[object], named: tuple[str, ...]) -> None:
        super().__init__()
        self.call, self.arguments, self.named = [function], list(arguments), named  # in a list: not a submodule

    def forward(self, *tensors: torch.Tensor) -> object:
        given = iter(tensors)
        arguments = [next(given) if isinstance(a, torch.Tensor) else a for a in self.arguments]
        (function,) = self.call
        if not isinstance(function, torch.nn.Module):
            return function(*arguments)
        return torch.func.functional_call(function, dict(zip(self.named, given, strict=True)), tuple(arguments))


def capture(function: Callable, examples: Sequence[object], dynamic: bool) -> Captured:
    """Export `function`, operations without a translation decomposed as far as torch can.

    Raises:
        InputMistake: `function` is none.
        Unsupported: torch cannot export it.
    """
    if not callable(function):
        raise InputMistake(f"from_torch takes a function or a module, not {type(function).__name__}")
    arguments = [_example(a) for a in examples]
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    named = [
        name for name, a in zip(_parameters(function, arguments), arguments, strict=True) if isinstance(a, torch.Tensor)
    ]
    module: dict[str, torch.Tensor] = {}
    if isinstance(function, torch.nn.Module):
        module = {**dict(function.named_parameters()), **dict(function.named_buffers())}
    call = _Call(function, arguments, tuple(module))
    given = [*tensors, *(t.detach() for t in module.values())]
    try:
        return _captured(_export(call, given, dynamic), (*named, *module))
    except TileError:
        raise
    except Exception as error:
        told = str(error).strip().split("\n")[0]
        hint = "branches and loops that depend on values of tensors have no graph; `torch.where` has one"
        if isinstance(error, TypeError) and "argument" in told:
            hint = "give an example of each argument: tilec.from_torch(function, torch.ones(3, 4), ...)"
        raise Unsupported(f"torch.export cannot capture this: {told}", hint=hint) from error


def _parameters(function: Callable, arguments: Sequence[object]) -> list[str]:
    """What the code calls its arguments."""
    try:
        names = [
            n
            for n, p in inspect.signature(_code(function)).parameters.items()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"x{n}" for n in range(len(names), len(arguments)))][: len(arguments)]


def _code(function: Callable) -> Callable:
    return function.forward if isinstance(function, torch.nn.Module) else function


def _example(value: object) -> object:
    if isinstance(value, Spec):
        return torch.zeros(value.shape, dtype=getattr(torch, value.dtype))
    return value.detach() if isinstance(value, torch.Tensor) else value


def _export(call: _Call, tensors: list[torch.Tensor], dynamic: bool) -> torch.export.ExportedProgram:
    auto = torch.export.Dim.AUTO
    shapes = (tuple({d: auto for d in range(t.dim())} for t in tensors),) if dynamic else None
    table = torch.export.default_decompositions()
    for operation in OPERATIONS:
        if isinstance(operation, torch._ops.OpOverload):
            table.pop(operation, None)
    with warnings.catch_warnings():  # torch 2.13 warns of its own tree specs
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        exported = torch.export.export(call.eval(), tuple(tensors), dynamic_shapes=shapes, strict=False)
        return exported.run_decompositions(table)


def _captured(exported: torch.export.ExportedProgram, names: tuple[str, ...]) -> Captured:
    graph, signature = exported.graph_module.graph, exported.graph_signature
    constants = {
        **{name: exported.constants[of] for name, of in signature.inputs_to_lifted_tensor_constants.items()},
        **{name: exported.state_dict[of] for name, of in signature.inputs_to_buffers.items()},
    }
    users = [n for n in graph.nodes if n.op == "placeholder" and n.name in signature.user_inputs]
    (end,) = (n for n in graph.nodes if n.op == "output")
    outputs = tuple(n for n in end.args[0] if isinstance(n, Node))
    if (
        not outputs
        or len(outputs) != len(end.args[0])
        or signature.buffers_to_mutate
        or signature.user_inputs_to_mutate
    ):
        raise Unsupported("the code returns something else than tensors, or changes an input in place")
    nodes = tuple(n for n in graph.nodes if n.op == "call_function")
    return Captured(nodes, tuple(zip(users, names, strict=True)), outputs, constants)
