"""A captured graph as Tile text, one handler for each operation (`operations.OPERATIONS`)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node

from tilec.errors import Unsupported
from tilec.torch_import.capture import Captured
from tilec.torch_import.operations import OPERATIONS
from tilec.torch_import.writer import LONGEST_INLINE, Term, Writer, constant

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def translate(captured: Captured) -> str:
    """The text of a function.

    Raises:
        Unsupported: Names every operation of the graph without a translation, and where it stands.
    """
    _check(captured)
    writer = Writer()
    values: dict[Node, Term | tuple[Term, ...]] = {}
    for node, name in captured.inputs:
        example = node.meta["val"]
        values[node] = Term(writer.fresh(name), tuple(example.shape), example.dtype)
    heads = _heads(captured, values, writer)
    writer.taken |= set(writer.sizes.names.values())
    for node in captured.nodes:
        writer.node = node
        values[node] = _translated(node, values, writer, captured)
    outputs = [_output(values[node], writer) for node in captured.outputs]
    body = "\n".join(f"    {s}" for s in writer.statements)
    return f"function ({', '.join(heads)}) -> ({', '.join(outputs)}) {{\n{body}\n}}\n"


def _heads(captured: Captured, values: dict[Node, Term | tuple[Term, ...]], writer: Writer) -> list[str]:
    """The inputs with their dimensions."""
    inputs = [value for node, _ in captured.inputs if isinstance(value := values[node], Term)]
    for value in inputs:
        for size in value.shape:
            writer.sizes.declared(size, writer.taken)
    for node in captured.nodes:
        if node.target is _ATTENTION:
            _, keys, rows = (a.meta["val"] for a in node.args[:3])  # type: ignore[union-attr]
            writer.sizes.equate(keys.shape[-2], rows.shape[-2])
    return [f"{v.text}[{', '.join(writer.sizes.declared(n, writer.taken) for n in v.shape)}]" for v in inputs]


def _output(value: Term | tuple[Term, ...], writer: Writer) -> str:
    assert isinstance(value, Term)
    return writer.named(value, "Y").text


def _translated(
    node: Node, values: dict[Node, Term | tuple[Term, ...]], writer: Writer, captured: Captured
) -> Term | tuple[Term, ...]:
    def given(argument: object) -> object:
        if isinstance(argument, Node):
            if argument in values:
                return values[argument]
            if argument.name in captured.constants:
                return constant(writer, captured.constants[argument.name])
            return argument.meta["val"]
        if isinstance(argument, list | tuple):
            return [given(a) for a in argument]
        return argument

    meta = node.meta.get("val")
    if isinstance(meta, int | float | bool | torch.SymInt) or meta is None:
        return meta  # type: ignore[return-value]
    arguments = [given(a) for a in node.args]
    options = {key: given(a) for key, a in node.kwargs.items()}
    writer.results = (meta,) if isinstance(meta, torch.Tensor) else tuple(meta)
    found = OPERATIONS[node.target](writer, *arguments, **options)
    if not isinstance(found, Term) or found.is_name:
        return found
    if len(node.users) > 1 or len(found.text) > LONGEST_INLINE:
        return writer.named(found)
    return replace(found, hint=writer.hint())


def _check(captured: Captured) -> None:
    missing: dict[str, str] = {}
    for node in captured.nodes:
        tensors = isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
        if tensors and node.target not in OPERATIONS:
            missing.setdefault(str(node.target).removesuffix(".default"), _line(node))
    if missing:
        told = "\n".join(f"    {name}" + (f"    in: {code}" if code else "") for name, code in missing.items())
        hint = "leave that part to torch: translate the functions before and after it"
        raise Unsupported(f"no translation of\n{told}", hint=hint)


def _line(node: Node) -> str:
    """The line of a module's code that an operation stems from; torch does not know those of plain functions."""
    lines = [line.strip() for line in node.meta.get("stack_trace", "").strip().split("\n")]
    if any("torch_import/capture.py" in line for line in lines[-3:]):
        return ""
    return next((line for line in reversed(lines) if line and line[0] not in "^~"), "")
