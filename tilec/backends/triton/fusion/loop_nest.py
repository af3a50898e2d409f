"""Statements as loop nests over boxes of points, and which variables walk along the tensors that they touch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from tilec.backends.common.domain import build_domain
from tilec.backends.triton.emit.epilogue import find_epilogue
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.sizes import contiguous_strides
from tilec.backends.triton.scan.form import recognise_scan
from tilec.ir.constraining import constraining
from tilec.ir.index import Affine, distinct_variables, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Expr,
    Index,
    Program,
    Statement,
    index_variables,
    kept_with,
    reads,
    reads_itself,
    value_accesses,
    variables_of,
)
from tilec.ir.types import FLOATS, Types
from tilec.transforms.util.naming import unlike
from tilec.transforms.util.plain import is_pure

LONGEST_SCANNED = 4096  # elements of a row that a program holds at once
Touched = tuple[tuple[str, tuple[str | None, ...]], ...]  # tensors, and which variables walk along their axes


@dataclass(frozen=True)
class LoopNest:
    """A statement as a walk over a box: the extent of each variable."""

    statement: Statement
    extent: Mapping[str, int]

    @cached_property
    def touched(self) -> Touched:
        return touched_by(self.statement)


@dataclass(frozen=True)
class ScanForm:
    """A scan of whole rows: what it adds up, as a value at each of its points, and where its variable stands in the
    output's index. `then`: the device function that joins values. `before`: an element is made of what is before it."""

    nest: LoopNest
    axis: int
    rising: bool
    then: str
    before: bool


def scan_form(s: Statement, types: Types) -> ScanForm | None:
    """None where the statement is no cumulative aggregation of floats, up to each element of a row, up to the one
    before it, or from it on."""
    space = None if reads_itself(s) or types[s.output].dtype not in FLOATS else build_space(s, types)
    view = StridedView(s, types, contiguous_strides(types))
    scan = None if space is None else recognise_scan(space, view)
    if scan is None or scan.low or scan.valid or s.guard is not None:
        return None
    before = scan.rising and scan.shift == -1  # the last term may be in no element
    if not before and scan.shift or not scan.size - before <= scan.count <= scan.size:
        return None
    algebra, along = scan.algebra, Index(scan.along)
    index = tuple(e if isinstance(e, Index) else along for e in scan.statement.index or ())
    names = [e.name for e in index]
    extent = dict(zip(names, types[s.output].shape, strict=True))
    if len(algebra.dtypes) > 1 or not 1 < extent[scan.along] <= LONGEST_SCANNED or 0 in extent.values():
        return None
    value = replace(scan.statement, index=index, constraints=())
    if set(variables_of(value)) != set(names):
        return None
    nest = LoopNest(value, extent)
    return ScanForm(nest, names.index(scan.along), scan.rising, algebra.then, before)


def touched_by(s: Statement) -> Touched:
    """The output, then what is read."""
    found = (Access(s.output, s.index or ()), *value_accesses(s))
    summed = set(variables_of(s)) - set(index_variables(*(s.index or ())))
    return tuple((a.tensor, tuple(walked_by(e, summed) for e in a.index)) for a in found)


def walked_by(e: Expr, summed: Collection[str]) -> str | None:
    """The variable that walks along an axis; a number may be added to one that is summed."""
    form = linear(e)
    v = (form - form.constant).bare
    return v if not form.constant or v in summed else None


def form_of(s: Statement, types: Types) -> LoopNest | None:
    """None where the statement is no walk over a box, or reads less than it walks, as products do."""
    if s.index is None or not is_pure(s):
        return None
    names = distinct_variables(s.index)
    if names is None:
        return None
    extent = dict(zip(names, types[s.output].shape, strict=True))
    reductions = tuple(v for v in variables_of(s) if v not in extent)
    bounding = [a for r in s.roots for a in constraining(r)]
    axes = [(e, n) for a in bounding for e, n in zip(a.index, types[a.tensor].shape, strict=True)]
    for v in reductions:
        sizes = [n for e, n in axes if linear(e).bare == v]
        if not sizes:
            sizes = [n for e, n in axes if walked_by(e, reductions) == v]
            domain = build_domain(s, types) if sizes else None
            if domain is None or domain.low[v] < 0 or domain.low[v] + domain.extent[v] > min(sizes):
                return None
        extent[v] = min(sizes)
    if 0 in extent.values() or any(0 in types[a.tensor].shape for a in value_accesses(s)):
        return None
    form = LoopNest(s, extent)
    if any(extent[v] > 1 for v in reductions):
        many = {v for v, n in extent.items() if n > 1}
        if s.aggregation == "assign" or not any(many <= walked(a, reductions) for a in bounding):
            return None
    return form


def walked(a: Access, summed: Collection[str]) -> set[str]:
    """The variables that walk along its axes, none twice."""
    names = [v for e in a.index if (v := walked_by(e, summed)) is not None]
    return set(names) if len(set(names)) == len(names) else set()


def reduced(s: Statement, extent: Mapping[str, int]) -> set[str]:
    """The variables of more than one value that it aggregates over."""
    return {v for v in kept_with(s, "_not_written", _not_written) if extent[v] > 1}


def _not_written(s: Statement) -> tuple[str, ...]:
    written = index_variables(*(s.index or ()))
    return tuple(v for v in variables_of(s) if v not in written)


def taken_by_products(program: Program, types: Types, forms: Mapping[str, LoopNest]) -> set[str]:
    """Outputs of the epilogues of products; those of products that end in statistics of rows are for the kernel of
    these, unless they read the product alone, which several kernels may compute again."""
    taken: set[str] = set()
    for place, s in enumerate(program.statements):
        if s.output not in forms and s.aggregation != "assign" and not reads_itself(s):
            epilogue = find_epilogue(program, place, types)
            read = {n for r in epilogue for n in reads(r)} - {s.output, *(r.output for r in epilogue)}
            last = epilogue[-1].output if epilogue else s.output
            readers = (forms[r.output] for r in program.readers(last) if r.output in forms)
            if not read or not any(reduced(r.statement, r.extent) for r in readers):
                taken |= {r.output for r in epilogue}
    return taken


class Shared:
    """Statements renamed to the variables of the first one."""

    def __init__(self, seed: LoopNest, types: Types, renamed: dict | None = None):
        """`renamed`: statements by output and new names, shared with other groups that are sought."""
        self.types = types
        self.extent = dict(seed.extent)
        self.statements: dict[str, Statement] = {}
        self._read: dict[str, list[tuple[str | None, ...]]] = {}  # how tensors are indexed
        self._renamed = {} if renamed is None else renamed
        self._add(seed.statement, seed.touched)

    def copy(self) -> Shared:
        made = copy(self)
        made.extent, made.statements = dict(self.extent), dict(self.statements)
        made._read = {name: list(forms) for name, forms in self._read.items()}
        return made

    def _add(self, s: Statement, touched: Touched) -> None:
        self.statements[s.output] = s
        for tensor, forms in touched:
            if forms not in self._read.setdefault(tensor, []):
                self._read[tensor].append(forms)

    def admit(self, form: LoopNest) -> bool:
        """Take the statement in if its variables can be matched with the group's, through the tensors both touch."""
        match = self._match(form)
        if match is None:
            return False
        for v, n in form.extent.items():
            if v not in match:
                if n > 1:
                    return False
                match[v] = self._unit(v)
        key = form.statement.output, tuple(match.items())
        if key not in self._renamed:
            renamed = substitute_affine(form.statement, {v: Affine.variable(w) for v, w in match.items()})
            self._renamed[key] = renamed, touched_by(renamed)
        self._add(*self._renamed[key])
        return True

    def _unit(self, v: str) -> str:
        """A new variable of one value."""
        name = unlike(v, self.extent)
        self.extent[name] = 1
        return name

    def _walked(self, tensor: str) -> tuple[str | None, ...] | None:
        """Which variables walk along a tensor's axes, None along those that members read elsewhere than at their own
        point; None where an axis has several."""
        found = [{v for v in axis if v is not None} for axis in zip(*self._read.get(tensor, ()), strict=True)]
        if tensor not in self._read or any(len(axis) > 1 for axis in found):
            return None
        return tuple(min(axis, default=None) for axis in found)

    def _match(self, form: LoopNest) -> dict[str, str] | None:
        match: dict[str, str] = {}
        output = form.statement.output
        own = [t for t in form.touched if t[0] in self.statements or t[0] == output]
        linked = False
        for tensor, forms in (*own, *(t for t in form.touched if t not in own)):
            there = self._walked(tensor)
            if there is None:
                continue
            for v, w in zip(forms, there, strict=True):
                if v is None or w is None or v not in form.extent:
                    continue
                if form.extent[v] != self.extent.get(w) or match.get(v, w) != w:
                    continue
                if v not in match and w in match.values():
                    continue
                match[v] = w
                linked = True
            linked = linked or (not forms and (tensor, forms) in own)
        return match if linked else None
