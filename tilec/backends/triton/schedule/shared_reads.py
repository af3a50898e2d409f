"""Sums over the same points that read the same there: one kernel reads it once for all of them.

Members of a group read what walks along their variables; these read neighbours, or places that are data. Each by itself
would take what both read from memory, or at best from a cache, once more: the gradients of an interpolation's weights,
the moments of two images under a window. So would sums of which one is added to the other: the gradients of an image by
two filters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.domain import free
from tilec.backends.triton.emit.epilogue import find_epilogue, reads_own_element
from tilec.backends.triton.fusion.read_through import is_reshape
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.plan.plan import Allocate, Setting, Step
from tilec.backends.triton.plan.sizes import Strides
from tilec.backends.triton.pointwise.class_elements import Residues
from tilec.backends.triton.pointwise.pointwise import Form, several, shareable_form
from tilec.backends.triton.pointwise.residues import class_places
from tilec.backends.triton.pointwise.unrolled import Computed
from tilec.backends.triton.pointwise.windows import SUM_WORDS, RegisterBlock, block_places, registers_of
from tilec.backends.triton.schedule.families import is_pointwise
from tilec.backends.triton.schedule.problem import Problem, Unit, problem_of
from tilec.cost import size_in_bytes
from tilec.ir.index import Affine, distinct_variables, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Program,
    Statement,
    index_variables,
    reads,
    reads_itself,
    value_accesses,
    variables_of,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.plain import is_pure

MOST_SUMMED = 4  # summed variables that are matched
MOST_SHARING = 8  # of a kernel
MOST_READ = 2  # what a statement reads, or those beside it do, over what both read; at most
MOST_LOOKED_AT = 16  # later statements that read the same
PlaceRead = tuple[str, tuple[Affine, ...]]


@dataclass(frozen=True)
class Sum:
    """A statement over the variables of its kernel's first, and as written; its epilogue; where it stands."""

    place: int
    statement: Statement
    flat: Statement
    epilogue: tuple[Statement, ...]

    @property
    def statements(self) -> tuple[Statement, ...]:
        return (self.flat, *self.epilogue)

    @property
    def output(self) -> str:
        return self.statements[-1].output


class SharedReads:
    """Looks for kernels of several sums in a flat program. `defracted`: its statements' other form."""

    def __init__(self, program: Program, defracted: Mapping[str, Statement], types: Types, setting: Setting):
        self.program, self.defracted, self.types, self.setting = program, defracted, types, setting
        self.place = {s.output: k for k, s in enumerate(program.statements)}
        self.spaces: dict[int, Space | None] = {}  # by place, of aggregations over a box
        self.epilogues: dict[int, tuple[Statement, ...]] = {}  # by place, whatever has other kernels

    def kernel(self, place: int, there: Collection[str], barred: Collection[str], strides: Strides) -> Unit | None:
        """That of the statement at a place and of later ones; None where none reads the same. `there`: tensors that are
        made by then; `barred`: outputs that other kernels make; `strides`: of what is there."""
        first = self._sum(place, barred)
        space = self.spaces.get(place)
        if first is None or space is None:
            return None
        found = _Members(first, space, self.types, strides, self.setting)
        refused = set[int]()
        pending = True
        while pending:
            pending = False
            near = {self.place[r.output] for name, _ in found.read for r in self.program.readers(name)}
            near |= {self.place[n] for n in self._read_beside(found) if n in self.place}
            for k in sorted(k for k in near - refused - found.places if k > place)[:MOST_LOOKED_AT]:
                other = self._sum(k, barred, first.flat)
                if other is None or not set(reads(other.flat)) <= set(there):
                    refused.add(k)
                elif not self._epilogue_ready(other, found, there):
                    continue
                elif found.admit(other):
                    refused, pending = set(), not found.is_full
                    break
                else:
                    refused.add(k)
        return self._made(found) if len(found.sums) > 1 else None

    def _made(self, found: _Members) -> Unit:
        statements = tuple(s for x in found.in_order() for s in x.statements)
        names = {s.output for s in statements}
        results = [x.output for x in found.sums]
        stored = {
            n for n in results if n in self.program.outputs or {s.output for s in self.program.readers(n)} - names
        }
        steps = found.steps(stored)
        outputs = tuple(s.output for s in statements if s.output in stored)
        allocated = (Allocate(o, self.types[o].shape, self.types[o].dtype) for o in outputs)
        return Unit(statements, outputs, (*allocated, *steps))

    def _sum(self, place: int, barred: Collection[str], like: Statement | None = None) -> Sum | None:
        """None where the statement is no aggregation of elements, of one box of points and as many outputs as another,
        or has another kernel."""
        s = self.program.statements[place]
        shape = self.types[s.output].shape
        if s.output in barred or reads_itself(s) or not value_accesses(s) or 0 in shape:
            return None
        if like is not None and (s.output == like.output or shape != self.types[like.output].shape):
            return None
        if place not in self.spaces:
            costs_nothing = is_reshape(s, self.program, self.types)
            self.spaces[place] = None if costs_nothing else _over_box(self.defracted[s.output], self.types)
        if self.spaces[place] is None:
            return None
        if place not in self.epilogues:
            self.epilogues[place] = find_epilogue(self.program, place, self.types)
        own = itertools.takewhile(lambda e: e.output not in barred, self.epilogues[place])
        return Sum(place, self.defracted[s.output], s, tuple(own))

    def _read_beside(self, found: _Members) -> set[str]:
        """What statements read that read one of these sums: the other terms of what they are added up to."""
        return {n for x in found.sums for r in self.program.readers(x.output) for n in reads(r)}

    def _epilogue_ready(self, x: Sum, found: _Members, there: Collection[str]) -> bool:
        """Whether all that its epilogue reads is made by then, or here as its own element."""
        here = {*(y.output for y in found.sums), *(s.output for s in x.statements)}
        if not all(set(reads(s)) <= {*there, *here} for s in x.epilogue):
            return False
        return all(reads_own_element(s.body, n, s.index or ()) for s in x.epilogue for n in here & set(reads(s)))


class _Members:
    """The sums of one kernel, the first first. `read`: what they read, by the bytes that they read at all points."""

    def __init__(self, first: Sum, space: Space, types: Types, strides: Strides, setting: Setting):
        self.types, self.strides, self.setting, self.space = types, strides, setting, space
        self.sums = [first]
        self.read = self._reads(first.statement)
        # as problems, whose neighbouring variables may be one or not; made when there is a second
        self._problems: dict[bool, list[Problem]] | None = None

    @property
    def places(self) -> set[int]:
        return {x.place for x in self.sums}

    @property
    def is_full(self) -> bool:
        return len(self.sums) >= MOST_SHARING

    def in_order(self) -> list[Sum]:
        return sorted(self.sums, key=lambda x: x.place)

    def admit(self, other: Sum) -> bool:
        """Take a sum in, if it reads much of what they read at the same points, or is added to one of them, and one
        kernel can hold it too."""
        added = not {n for s in other.epilogue for n in reads(s)}.isdisjoint(x.output for x in self.sums)
        ways: list[tuple[int, Statement]] = []
        for renamed in _renamed(other.statement, self.sums[0].statement):
            own = self._reads(renamed)
            shared = sum(n for read, n in own.items() if read in self.read)
            if added or shared and MOST_READ * shared >= min(sum(own.values()), sum(self.read.values())):
                ways.append((shared, renamed))
        ways.sort(key=lambda way: -way[0])
        return any(self._take(replace(other, statement=renamed)) for _, renamed in ways[: None if added else 1])

    def _take(self, other: Sum) -> bool:
        """Take a sum in over the variables of the first, if one kernel can hold it too."""
        if self._problems is None:
            self._problems = {merged: [p] for merged in (True, False) if (p := self._problem(self.sums[0], merged))}
        kept: dict[bool, list[Problem]] = {}
        for merged, problems in self._problems.items():
            p = self._problem(other, merged)
            if p is not None and self._fits([*problems, p]):
                kept[merged] = [*problems, p]
        if kept:
            self._problems = kept
            self.sums.append(other)
            self.read |= self._reads(other.statement)
        return bool(kept)

    def steps(self, stored: Collection[str]) -> list[Step]:
        assert self._problems is not None
        problems = next(self._problems[merged] for merged in (True, False) if merged in self._problems)
        form = shareable_form(problems[0].space, problems[0].view)
        assert form is not None
        types, strides = dict(problems[0].view.types), dict(problems[0].view.strides)
        for p in problems:
            names = _touched(p)
            types |= {n: p.view.types[n] for n in names}
            strides |= {n: p.view.strides[n] for n in names}
        view = StridedView(problems[0].view.statement, types, strides, any(p.view.int64_index for p in problems))
        both = sorted(zip(self.sums, problems, strict=True), key=lambda found: found[0].place)
        results = [Computed(p.space, x.flat, x.epilogue, x.output in stored) for x, p in both]
        return several(results, view, form)

    def _reads(self, s: Statement) -> dict[PlaceRead, int]:
        summed = not all(map(self.space.single, self.space.reductions))
        found: dict[PlaceRead, int] = {}
        for a in value_accesses(s):
            forms = tuple(map(linear, a.index))
            names = {v for form in forms for v in free(form)} - {*self.space.residues}
            shape = tuple(self.space.largest(v) for v in sorted(names))
            key = a.tensor, forms if summed else ()  # what is near comes with it
            found[key] = size_in_bytes(TensorType(shape, self.types[a.tensor].dtype))
        return found

    def _problem(self, x: Sum, merged: bool) -> Problem | None:
        """As one of a kernel point by point. `merged`: neighbouring variables may be one."""
        if merged and x.epilogue:
            return None
        p = problem_of(x.statement, x.flat, self.types, self.strides, self.setting, x.epilogue)
        if p is not None and not merged:
            view = replace(p.view, statement=x.statement, types=self.types, strides=self.strides)
            space = build_space(x.statement, self.types)
            p = None if space is None else replace(p, view=view, space=space)
        return p if p is not None and is_pointwise(p) else None

    def _fits(self, problems: Sequence[Problem]) -> bool:
        """Whether the points of the last are those of the others, which are spread over programs alike and index what
        they share alike, and a thread can hold all running values."""
        first, last = problems[0], problems[-1]
        a, b = first.space, last.space
        if set(a.reductions) != set(b.reductions) or _box(a) != _box(b):
            return False
        form = shareable_form(b, last.view)
        if form is None or form != shareable_form(a, first.view):
            return False
        if not _fits_registers(form, [p.view.statement for p in problems], self.types):
            return False
        names = _touched(last)
        return all(
            (p.view.types[n], tuple(p.view.strides[n])) == (last.view.types[n], tuple(last.view.strides[n]))
            for p in problems
            for n in names & _touched(p)
        )


def _touched(p: Problem) -> set[str]:
    return {n for s in (p.view.statement, *p.epilogue) for n in (s.output, *reads(s))}


def _over_box(s: Statement, types: Types) -> Space | None:
    """The points of a statement that writes every element of its output by its own index, or by remainders of it, and
    adds up few variables over one box of each, or reads neighbours or at places that are data; None for others."""
    space = build_space(s, types) if is_pure(s) else None
    if space is None or not space.covers:
        return None
    if space.residues or space.steps:
        return space if space.reductions else None
    if len(space.classes) != 1 or distinct_variables(s.index) is None:
        return None
    if all(map(space.single, space.reductions)):
        return space if any(map(_is_shifted, value_accesses(s))) else None
    return space if len(space.reductions) <= MOST_SUMMED else None


def _box(space: Space) -> tuple[object, ...]:
    return space.outputs, space.rows, space.residues, space.classes, space.low, space.extent


def _is_shifted(a: Access) -> bool:
    """Whether it reads at other places than those that its variables count."""
    return any(linear(e).bare is None and free(linear(e)) for e in a.index)


def _renamed(s: Statement, like: Statement) -> Iterator[Statement]:
    """The statement over another's variables, those of its index in turn, in orders of those that it adds up over."""
    if s.index == like.index:
        yield s
    own, others = (index_variables(*(x.index or ())) for x in (s, like))
    summed, into = ([v for v in variables_of(x) if v not in names] for x, names in ((s, own), (like, others)))
    if len(own) == len(others) and len(summed) == len(into):
        for order in itertools.islice(itertools.permutations(into), math.factorial(MOST_SUMMED)):
            names = zip((*own, *summed), (*others, *order), strict=True)
            yield substitute_affine(s, {v: Affine.variable(w) for v, w in names})


def _fits_registers(form: Form, statements: Sequence[Statement], types: Types) -> bool:
    """Whether a thread can hold the running values of aggregations in one kernel."""
    if isinstance(form, RegisterBlock):
        elements, threads = form.count * block_places(statements, types, form.count), 128
    elif isinstance(form, Residues):
        elements, threads = form.elements * class_places(form.elements * len(statements)), 128
    else:
        elements, threads = math.prod(size for _, size in form.axes) * (form.reduction or 1), 32 * form.warps
    return registers_of(statements, types) * elements <= SUM_WORDS * threads
