"""Elementwise statements over merged axes, computed where the axes are apart and merged afterwards.

`P = reshape(O, N, C, H, W); Y = silu(P)` with O of shape (N, G, C/G, H, W) becomes `Z = silu(O)` and
`Y = reshape(Z, N, C, H, W)`. An element of Y has quotients and remainders for its place in O; an element of O has sums
and products for its place in Y, and in what else Y reads. What computes O may compute Z at once, and where something
reads a merged tensor apart again it reads the tensor itself.
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
    Int,
    Program,
    Statement,
    expressions,
    map_expressions,
    reads,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType
from tilec.transforms.bind.structural import reshape_indices
from tilec.transforms.util.broadcast import Shape
from tilec.transforms.util.naming import Names, all_variables, fresh_variable


@dataclass(frozen=True)
class Merge:
    """A tensor that holds `source` with neighbouring axes as one: `groups` are the source's axes of each of its own."""

    source: str
    groups: tuple[tuple[int, ...], ...]
    shape: Shape  # of the source
    strides: tuple[int, ...]  # of the source's axes within their group


def split_maps(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The same program; `inputs` are the types of its inputs."""
    types = infer(program, inputs)
    merges = {s.output: m for s in program.statements if (m := _merge(s, types)) is not None}
    if not merges:
        return program
    names, given, last = Names.of(program), frozenset(inputs), _ends(program, types)
    made: list[Statement] = []
    for s in program.statements:
        s = _read_apart(s, merges, types)
        read = [m for name in reads(s) if (m := merges.get(name)) is not None and m.source not in given]
        merge = next((m for m in read if s.output in last and _at_once(s, m, merges, types)), None)
        if merge is None:
            made.append(s)
            continue
        apart, whole = _apart(s, merge, names.fresh(s.output), types)
        made += [_read_apart(apart, merges, types), whole]
        types[apart.output] = replace(types[s.output], shape=merge.shape)
        merges[s.output] = replace(merge, source=apart.output)
    return replace(program, statements=tuple(_needed(made, program.outputs)))


def _merge(s: Statement, types: Mapping[str, TensorType]) -> Merge | None:
    """What a statement only makes neighbouring axes of one."""
    if not isinstance(s.body, Access) or not _plain(s) or types[s.output].weak:
        return None
    whole, shape = types[s.output].shape, types[s.body.tensor].shape
    if 0 in whole or math.prod(whole) != math.prod(shape) or s.body.tensor == s.output:
        return None
    groups: list[tuple[int, ...]] = []
    at = 0
    for size in whole:
        group: list[int] = []
        while size > 1 and at < len(shape):
            if shape[at] != 1:
                group.append(at)
            if size % shape[at]:
                return None
            size, at = size // shape[at], at + 1
        groups.append(tuple(group))
    if all(len(axes) < 2 for axes in groups):
        return None
    variables = [Index(v) for v in _variables(s)]
    if [linear(e) for e in s.body.index] != reshape_indices(whole, shape, variables):
        return None
    strides = [0] * len(shape)
    for axes in groups:
        for k, d in enumerate(axes):
            strides[d] = math.prod(shape[e] for e in axes[k + 1 :])
    return Merge(s.body.tensor, tuple(groups), shape, tuple(strides))


def _plain(s: Statement) -> bool:
    """An assignment to every element of the output, of values at points that all count as far as the output says."""
    free = s.guard is None and s.default is None and s.init is None and not s.constraints and not s.attributes
    names = _variables(s)
    bare = len(names) == len(s.index or ()) == len(set(names)) and set(names) == all_variables(s)
    return s.aggregation == "assign" and bare and free and not reads_itself(s)


def _variables(s: Statement) -> list[str]:
    return [e.name for e in s.index or () if isinstance(e, Index)]


def _ends(program: Program, types: Mapping[str, TensorType]) -> set[str]:
    """The elementwise statements whose values nothing reads but such statements, and statements that only move them:
    what reduces or multiplies them may take them in, and reads them by the axes that are merged."""
    found: set[str] = set()
    inner: set[str] = set()  # read by others
    for s in reversed(program.statements):
        if _plain(s) and s.output not in inner and not isinstance(s.body, Access):
            found.add(s.output)
        moves = _plain(s) and isinstance(s.body, Access)
        for e in walk(*expressions(s)):
            same = isinstance(e, Access) and s.output in found and e.index == s.index
            if isinstance(e, Access) and not moves and not (same and types[e.tensor].shape == types[s.output].shape):
                inner.add(e.tensor)
    return found


def _at_once(s: Statement, merge: Merge, merges: Mapping[str, Merge], types: Mapping[str, TensorType]) -> bool:
    """Does a statement read each element of the merged tensor at its own place?"""
    read = [e for e in walk(s.body) if isinstance(e, Access) and merges.get(e.tensor) == merge]
    shape = types[s.output].shape
    return bool(read) and all(e.index == s.index and types[e.tensor].shape == shape for e in read)


def _apart(s: Statement, merge: Merge, name: str, types: Mapping[str, TensorType]) -> tuple[Statement, Statement]:
    """The statement over the source's axes, and its tensor with them merged."""
    used = all_variables(s)
    own: list[Expr] = [Int(0)] * len(merge.shape)
    forms: dict[str, Affine] = {}
    for v, group in zip(_variables(s), merge.groups, strict=True):
        if len(group) == 1:
            own[group[0]] = Index(v)
            continue
        for d in group:
            own[d] = Index(fresh_variable(v, used))
        forms[v] = Affine.of((own[d], merge.strides[d]) for d in group)
    sizes = tuple(map(Int, merge.shape))
    for d, size in enumerate(merge.shape):
        if size == 1:
            own[d] = Index(fresh_variable("i", used))
    apart = replace(s, output=name, index=tuple(own), sizes=sizes, body=replace_indices(s.body, forms))
    places = reshape_indices(types[s.output].shape, merge.shape, [Index(v) for v in _variables(s)])
    return apart, replace(s, body=Access(name, tuple(form.to_expr() for form in places)))


def _read_apart(s: Statement, merges: Mapping[str, Merge], types: Mapping[str, TensorType]) -> Statement:
    """With reads of a merged tensor at a place for each of its source's axes as reads of the source."""
    extents = {e: n.value for e, n in zip(s.index or (), s.sizes or (), strict=False) if isinstance(n, Int)}

    def visit(e: Expr) -> Expr:
        e = rebuild(e, visit)
        if isinstance(e, Access) and (merge := merges.get(e.tensor)) is not None:
            index = _places(e.index, merge, types[e.tensor].shape, extents)
            return e if index is None else replace(e, tensor=merge.source, index=index)
        return e

    reads_merged = not reads_itself(s) and any(name in merges for name in reads(s))
    return map_expressions(s, visit) if reads_merged else s


def _places(index: Sequence[Expr], merge: Merge, shape: Shape, extents: Mapping[Expr, int]) -> tuple[Expr, ...] | None:
    """Where a read of the merged tensor lies in the source, if an index variable stands for each merged axis."""
    found: list[Expr] = [Int(0)] * len(merge.shape)
    for e, group, size in zip(index, merge.groups, shape, strict=True):
        if not group:
            if e != Int(0) and extents.get(e) != 1:
                return None  # outside but for one element
        elif len(group) == 1:
            found[group[0]] = e
        else:
            form = linear(e)
            terms = {int(c): v for v, c in form.terms}
            inside = all(extents.get(terms.get(merge.strides[d], Int(0)), size + 1) <= merge.shape[d] for d in group)
            if form.constant or not form.is_integral or len(form.terms) != len(group) or not inside:
                return None
            for d in group:
                found[d] = terms[merge.strides[d]]
    return tuple(found)


def _needed(statements: Sequence[Statement], outputs: Sequence[str]) -> list[Statement]:
    """Without those that nothing reads."""
    kept: list[Statement] = []
    read = set(outputs)
    for s in reversed(statements):
        if s.output in read:
            kept.append(s)
            read.update(reads(s))
    return kept[::-1]
