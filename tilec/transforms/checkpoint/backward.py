"""Gradient programs over what a forward pass has kept, and the choice between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from functools import reduce as folded

from tilec.ir.functions import call
from tilec.ir.program import Access, Expr, Index, Input, Int, Program, Statement, map_expressions
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import Names
from tilec.transforms.util.rewrite import map_reads


@dataclass(frozen=True)
class Backward:
    """A gradient program over what was kept. `values`: the names whose tensors it reads, `shapes`: inputs of which it
    reads the shape alone; its inputs are these and then `cotangents`. `types` are the inputs'."""

    program: Program
    values: tuple[str, ...]
    shapes: tuple[str, ...]
    cotangents: tuple[str, ...]
    types: Types


def with_fallback(backward: Backward, otherwise: Backward, numbers: Mapping[str, int], types: Types) -> Backward:
    """The results of the first program, or those of the second where an element of one of these tensors is its number.
    Nothing reads the other's: a backend may leave them out as soon as this is known. `types`: of what the first one
    names, in the order in which its values stand."""
    first, second = backward.program, otherwise.program
    names = Names({*Names.of(first).taken, *Names.of(second).taken})
    new = dict(zip(otherwise.cotangents, backward.cotangents, strict=True))
    new |= {s.output: names.fresh(s.output) for s in second.statements}

    def renamed(e: Expr) -> Expr:
        return map_reads(e, new, lambda a: replace(a, tensor=new[a.tensor]))

    others = [replace(map_expressions(s, renamed), output=new[s.output]) for s in second.statements]
    tests: list[Statement] = []
    for tensor in sorted(numbers):
        test = call("eq", Access(tensor, _indices(types[tensor])), Int(numbers[tensor]))
        tests.append(Statement(names.fresh("Otherwise"), (), (), test, "any"))
    if len(tests) > 1:
        conditions: list[Expr] = [Access(s.output, ()) for s in tests]
        any_of = folded(partial(call, "or"), conditions)
        tests.append(Statement(names.fresh("Otherwise"), (), (), any_of))
    results: list[Statement] = []
    for own, other in zip(first.outputs, second.outputs, strict=True):
        index, sizes = _indices(types[own]), tuple(map(Int, types[own].shape))
        body = call("select", Access(tests[-1].output, ()), Access(new[other], index), Access(own, index))
        results.append(Statement(names.fresh(own), index, sizes, body))
    values = tuple(n for n in types if n in {*backward.values, *otherwise.values})
    shapes = tuple(n for n in types if n in {*backward.shapes, *otherwise.shapes} - {*values})
    inputs = (*values, *shapes, *backward.cotangents)
    statements = (*first.statements, *tests, *others, *results)
    whole = Program(None, tuple(Input(n, types[n].shape) for n in inputs), tuple(s.output for s in results), statements)
    return Backward(whole, values, shapes, backward.cotangents, {n: types[n] for n in inputs})


def _indices(t: TensorType) -> tuple[Index, ...]:
    return tuple(Index(f"i{d}") for d in range(len(t.shape)))
