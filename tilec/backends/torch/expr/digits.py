"""Axes that numbers of several digits index, as in `Y[n, K*g + k, l] = Z[n, g, k, l] * W[K*g + k]`, taken apart.

Tensors that are read or written at such places stand as others with an axis for each digit, of which they are views, or
which are views of them. So Y is written in one pass, not in one for each k, and a norm of groups is one that a routine
of torch computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tilec.backends.common.domain import Domain, build_domain
from tilec.backends.torch.expr.task import MOST_WRITTEN_CLASSES
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Expr, Index, Inside, Int, Pad, Program, Statement, map_values, reads_itself, walk
from tilec.ir.types import Types
from tilec.lattice.sets import shapes_of
from tilec.transforms.lower.tighten_domains import without_repeats
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.reshapes import digits_of, reshape_statement
from tilec.transforms.util.rewrite import map_reads

_FEWEST_TOGETHER = 8  # elements side by side, or terms of one, below which a pass for each class is faster
_Places = tuple[tuple[Expr, ...], tuple[int, ...]]  # an index by digits, and the sizes of its axes


def digits_apart(program: Program, types: Types) -> Program:
    """The program with such axes taken apart; the same one where no output has any worth it."""
    apart = _Apart(program, types)
    if not any(apart.written(s) for s in program.statements):
        return program
    for s in program.statements:
        apart.add(s)
    statements = drop_dead(apart.statements, program.outputs)
    known = replace(program, statements=statements)
    shapes = shapes_of(known)
    return replace(known, statements=tuple(without_repeats(s, shapes) if s.constraints else s for s in statements))


class _Apart:
    def __init__(self, program: Program, types: Types):
        self.program, self.types, self.names = program, types, Names.of(program)
        self.made: dict[tuple[str, tuple[int, ...]], str] = {}
        self.statements: list[Statement] = []
        self._domains: dict[str, Domain | None] = {}

    def written(self, s: Statement) -> _Places | None:
        """Where a statement writes, if one pass over the digits beats one for each residue."""
        found = self._places(s, Access(s.output, s.index or ()))
        if found is None:
            return None
        classes = [int(linear(e).coefficient(v)) for e in s.index or () for v in linear(e).variables()]
        domain, shape = self._domains[s.output], found[1]
        terms = math.prod(domain.extent.values()) // max(1, math.prod(shape)) if domain else 0
        together = max(shape[-1], terms) >= _FEWEST_TOGETHER
        return found if together or math.prod(classes) > MOST_WRITTEN_CLASSES else None

    def add(self, s: Statement) -> None:
        target = self.written(s)
        found = {a: p for a in _accesses(s) if (p := self._places(s, a)) is not None}
        copied = s.body if isinstance(s.body, Access) and is_pure(s) and is_unmasked(s) else None
        if target is None and copied in found and found[copied] == (s.index, self.types[s.output].shape):
            self.made.setdefault((copied.tensor, found[copied][1]), s.output)  # which is that tensor apart
            self.statements.append(s)
            return
        new = map_values(s, lambda e: map_reads(e, {a.tensor for a in found}, self._read(found)))
        if target is None:
            self.statements.append(new)
            return
        index, shape = target
        fine = self._named(s.output, shape)
        self.statements.append(replace(new, output=fine, index=index, sizes=tuple(map(Int, shape)), attributes=()))
        view = reshape_statement(s.output, self.types[s.output].shape, fine, shape)
        self.statements.append(replace(view, span=s.span))

    def _read(self, found: dict[Access, _Places]) -> Callable[[Access], Expr]:
        def read(e: Access) -> Expr:
            if e not in found:
                return e
            index, shape = found[e]
            if (e.tensor, shape) not in self.made:
                fine = self._named(e.tensor, shape)
                self.statements.append(reshape_statement(fine, shape, e.tensor, self.types[e.tensor].shape))
            return Access(self.made[e.tensor, shape], index, span=e.span)

        return read

    def _named(self, tensor: str, shape: tuple[int, ...]) -> str:
        return self.made.setdefault((tensor, shape), self.names.fresh(f"{tensor}_apart"))

    def _places(self, s: Statement, a: Access) -> _Places | None:
        """An element's place by digits, where some axis has several."""
        if all(len(linear(e).terms) < 2 for e in a.index) or s.default is not None or reads_itself(s):
            return None
        if any(isinstance(e, Pad | Inside) for e in walk(*s.roots)):
            return None
        if s.output not in self._domains:
            self._domains[s.output] = build_domain(s, self.types)
        domain = self._domains[s.output]
        if domain is None or domain.conditions:
            return None
        index: list[Expr] = []
        shape: list[int] = []
        for e, n in zip(a.index, self.types[a.tensor].shape, strict=True):
            digits = _digits(linear(e), n, domain)
            if digits is None and a.tensor == s.output:
                return None
            several = digits is not None and len(digits) > 1
            index += map(Index, digits) if digits and several else [e]
            shape += [domain.extent[v] for v in digits] if digits and several else [n]
        distinct = len({*index}) == len(index)
        return (tuple(index), tuple(shape)) if len(index) > len(a.index) and distinct else None


def _accesses(s: Statement) -> list[Access]:
    return [e for e in walk(*s.roots) if isinstance(e, Access)]


def _digits(form: Affine, size: int, domain: Domain) -> tuple[str, ...] | None:
    """The variables that a number below `size` has as digits, the highest first, all of which start at 0."""
    if form.constant or not form.is_affine or any(domain.low[v] != 0 for v in form.variables()):
        return None
    return digits_of(form, size, domain.extent)
