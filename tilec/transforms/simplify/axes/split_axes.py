"""What is computed from a reshaped tensor, over the axes that the reshape put together.

`N[b, k, c, x] = ...; R = reshape(N, B, K*C, X); Y[b, e, x] = silu(R[b, e, x] * G[e])` computes N and Y at the same
points under two names, and no kernel would compute both. So e becomes `C*k + c` in whatever reads R, and the reshape
comes last: `Y' = silu(N[b, k, c, x] * G[C*k + c]); Y = reshape(Y', B, K*C, X)`. What nobody reads in between is gone.
A reshape that takes axes apart as well (from [J, 2, N] to [J/64, 128, N]) is one into the parts of both, which come
together after that.

A statement is changed that reads the elements of such a tensor one by one, each once: assignments of the whole output,
and aggregations of terms that it reads for each of their points. A product of matrices stays as it is, and so does what
reads other tensors that were computed over the axes put together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    expressions,
    index_variables,
    map_expressions,
    walk,
)
from tilec.ir.types import TensorType
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.reshapes import reshape_indices, reshape_statement, row_major_steps
from tilec.transforms.util.rewrite import map_reads

IN_ANY_ORDER = ("sum", "max", "min", "prod", "any", "all", "logsumexp")


@dataclass(frozen=True)
class _Merged:
    """All elements of `source` in another shape: for each axis, the axes of `source` that are put together in it, in
    order. Axes of size 1 are in none."""

    source: str
    axes: tuple[tuple[int, ...], ...]


def split_axes(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The program with reshapes after what is computed from them; `inputs` are the types of its inputs."""
    types = dict(infer(program, inputs))
    found = _Splitter(program, types)
    for s in program.statements:
        found.add(s)
    if not found.changed:
        return program
    return replace(program, statements=drop_dead(found.statements, program.outputs))


class _Splitter:
    def __init__(self, program: Program, types: dict[str, TensorType]):
        self.types, self.names = types, Names.of(program)
        self.program, self.computed = program, {s.output: s for s in program.statements}
        self.merged: dict[str, _Merged] = {}
        self.statements: list[Statement] = []
        self.changed = False

    def add(self, s: Statement) -> None:
        read = _reshaped(s, self.types)
        if read is not None:
            self._reshape(s, read)
        elif not self._split(s):
            self.statements.append(s)

    def _reshape(self, s: Statement, read: str) -> None:
        """A reshape reads the tensor that holds the elements first; what it puts together is known from then on."""
        source = self.merged[read].source if read in self.merged else read
        there, wanted = self.types[source].shape, self.types[s.output].shape
        if source != read:
            s = replace(s, body=Access(source, _places(wanted, there, s.index or ())))
        common = None if source not in self.computed else _refined(there, wanted)
        if common is not None and common not in (_long(there), _long(wanted)):
            fine = self._fresh(s, common)
            variables = [Index(f"v{k}") for k in range(len(common))]
            body = self._value(source, _places(common, there, variables))
            sizes = tuple(map(Int, common))
            self.statements.append(replace(s, output=fine, index=tuple(variables), sizes=sizes, body=body))
            s = replace(s, body=Access(fine, _places(wanted, common, s.index or ())))
            source, there = fine, common
        self.statements.append(s)
        if common is not None and common == _long(there) and common != _long(wanted):
            self.merged[s.output] = _Merged(source, _merged_axes(there, wanted))

    def _value(self, name: str, index: tuple[Expr, ...]) -> Expr:
        """An element, or the value that it is given where nobody else reads it."""
        made = self.computed[name]
        alone = name not in self.program.outputs and len(self.program.readers(name)) == 1 and _is_map(made)
        if not alone:
            return Access(name, index)
        at = {e.name: linear(i) for e, i in zip(made.index or (), index, strict=True) if isinstance(e, Index)}
        return replace_indices(made.body, at)

    def _split(self, s: Statement) -> bool:
        """Whether the statement is now one over the axes apart."""
        sizes = self._parts(s)
        if not sizes:
            return False
        used = all_variables(s)
        parts = {v: [Index(fresh_variable(v, used)) for _ in n] for v, n in sizes.items()}
        forms = {v: Affine.of(zip(parts[v], row_major_steps(n), strict=True)) for v, n in sizes.items()}

        def over_parts(e: Access) -> Access:
            known = self.merged[e.tensor]
            index: list[Expr] = [Int(0)] * len(self.types[known.source].shape)
            for i, axes in zip(e.index, known.axes, strict=True):
                own = parts[v] if len(axes) > 1 and isinstance(i, Index) and (v := i.name) in parts else [i]
                for axis, place in zip(axes, own if axes else [], strict=True):
                    index[axis] = place
            return replace(e, tensor=known.source, index=tuple(index))

        new = map_expressions(replace(s, index=None), lambda e: map_reads(e, self.merged, over_parts))
        new = map_expressions(new, lambda e: replace_indices(e, forms))
        index: list[Expr] = []
        shape: list[int] = []
        for e, n in zip(s.index or (), self.types[s.output].shape, strict=True):
            v = e.name if isinstance(e, Index) else ""
            index += parts.get(v, [e])
            shape += sizes.get(v, (n,))
        self.changed = True
        if len(shape) == len(self.types[s.output].shape):
            self.statements.append(replace(new, index=s.index))
            return True
        fine = self._fresh(s, tuple(shape))
        self.statements.append(replace(new, output=fine, index=tuple(index), sizes=tuple(map(Int, shape))))
        wanted = self.types[s.output].shape
        self.statements.append(replace(reshape_statement(s.output, wanted, fine, tuple(shape)), span=s.span))
        self.merged[s.output] = _Merged(fine, _merged_axes(shape, wanted))
        return True

    def _parts(self, s: Statement) -> dict[str, tuple[int, ...]]:
        """The variables that read axes put together, and the sizes of the axes; empty where the statement stays."""
        found: dict[str, tuple[int, ...]] = {}
        if s.aggregation not in ("assign", *IN_ANY_ORDER) or not is_pure(s) or s.attributes:
            return {}
        if not all(isinstance(e, Index) for e in s.index or ()) or len(set(s.index or ())) != len(s.index or ()):
            return {}
        everything = all_variables(s)
        single = [e for e, n in zip(s.index or (), self.types[s.output].shape, strict=True) if n == 1]
        whole = False
        for e in walk(*expressions(s)):
            if isinstance(e, (Pad, Inside)) and any(isinstance(x, Access) and x.tensor in self.merged for x in walk(e)):
                return {}
            if not isinstance(e, Access):
                continue
            full = everything <= set(index_variables(e))
            if any(isinstance(x, Access) for i in e.index for x in walk(i)):
                return {}
            if e.tensor not in self.merged:
                if full and e.tensor in self.computed:
                    return {}
                continue
            whole = whole or full
            known = self.merged[e.tensor]
            for i, axes in zip(e.index, known.axes, strict=True):
                if not axes and linear(i) != Affine() and i not in single:
                    return {}  # what asks whether it is 0
                if len(axes) < 2:
                    continue
                sizes = tuple(self.types[known.source].shape[a] for a in axes)
                if not isinstance(i, Index) or found.setdefault(i.name, sizes) != sizes:
                    return {}
        written = zip(s.index or (), self.types[s.output].shape, strict=True)
        if any(v in found and math.prod(found[v]) != n for e, n in written if isinstance(e, Index) and (v := e.name)):
            return {}
        if any(v in found for c in s.constraints for v in index_variables(c.expr)):
            return {}
        return found if whole else {}

    def _fresh(self, s: Statement, shape: tuple[int, ...]) -> str:
        fine = self.names.fresh(f"{s.output}_apart")
        self.types[fine] = replace(self.types[s.output], shape=shape)
        return fine


def _is_map(s: Statement) -> bool:
    """Whether a statement assigns a value to every point of its output."""
    plain = s.aggregation == "assign" and is_pure(s) and is_unmasked(s)
    bare = all(isinstance(e, Index) for e in s.index or ()) and len(set(s.index or ())) == len(s.index or ())
    return plain and bare and not s.attributes


def _reshaped(s: Statement, types: Mapping[str, TensorType]) -> str | None:
    """The tensor all of whose elements the statement is, in order, in another shape."""
    source = s.body
    if not _is_map(s) or not isinstance(source, Access) or s.index is None:
        return None
    wanted, there = types[s.output], types[source.tensor]
    if wanted.dtype != there.dtype or math.prod(wanted.shape) != math.prod(there.shape) or 0 in wanted.shape:
        return None
    at = reshape_indices(wanted.shape, there.shape, [e for e in s.index if isinstance(e, Index)])
    return source.tensor if at == [linear(e) for e in source.index] else None


def _places(shape: Sequence[int], source: Sequence[int], index: Sequence[Expr]) -> tuple[Expr, ...]:
    variables = [e for e in index if isinstance(e, Index)]
    return tuple(form.to_expr() for form in reshape_indices(tuple(shape), tuple(source), variables))


def _long(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _refined(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The shape without ones whose axes put together are those of both; None where there is none."""
    steps = sorted({n for shape in (a, b) for n in row_major_steps(tuple(shape))} | {math.prod(a)})
    sizes = [q // p for p, q in zip(steps, steps[1:], strict=False)]
    exact = all(q % p == 0 for p, q in zip(steps, steps[1:], strict=False))
    return tuple(reversed(sizes)) if exact else None


def _merged_axes(there: Sequence[int], wanted: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each axis of `wanted`, the axes of `there` that make it."""
    left = [a for a, n in enumerate(there) if n != 1]
    found = []
    for n in wanted:
        own: list[int] = []
        while math.prod(there[a] for a in own) < n:
            own.append(left.pop(0))
        found.append(tuple(own))
    return tuple(found)
