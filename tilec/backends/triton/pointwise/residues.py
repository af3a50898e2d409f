"""Residue classes of an output in one program: what its elements share is read once, and each has a text of its own.

In `O[y, c] = y % 2 == 0 ? A[y/2, c] : A[(y - 1)/2, c] + A[(y + 1)/2, c]` the even and the odd elements are two plain
formulas in h = y/2, without a test or a division. So are, in the gradient of a window of stride 2, the elements that
one tap reaches and those that two reach. A program computes all of them at the same h.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tilec.backends.common.box_values import SPANS, difference
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.contiguity import is_transposed
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import triton_type
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.pointwise.class_elements import Residues, class_elements, resolved_statement
from tilec.backends.triton.pointwise.small_sums import small_sums
from tilec.backends.triton.pointwise.unrolled import Computed, Element, OutputsKernel
from tilec.backends.triton.pointwise.windows import RegisterBlockWriter, choose_register_block
from tilec.errors import TileError
from tilec.ir.index import QUASI_AFFINE, Affine, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Statement,
    children,
    index_variables,
    walk,
)
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import ITEM_BYTES, NARROW, Types

MOST_CLASS_ELEMENTS = 16  # that a program writes for each place of its block
MOST_CLASS_POINTS = 64  # of all of them together, which are written out
LEAST_PROGRAMS = MULTIPROCESSORS  # fewer, and some multiprocessors have none
CLASS_BLOCK = 1024  # places of a block, for up to eight elements each
LEAST_COLUMNS = 24
CLASS_COLUMNS, SINGLE_BLOCK = 64, 512  # of a block; places of one whose columns are two variables, of odd channels
REPEATED_VECTOR, REPEATED_BLOCK = 4, 1024
MOST_TESTED = 4  # values of a variable that conditions tell apart
JOINED = (2, 4)  # neighbours in memory that are joined in registers before they are stored


def unrolled_outputs(result: Computed, view: StridedView, many: bool) -> OutputsKernel | None:
    """The kernel that writes several elements, or points, for each place of its block; None where that has no gain.
    `many`: sums of more than a few points too."""
    if (small := small_sums(result.space, view)) is not None:
        return ResidueWriter(small, (result,), view)
    if not many:
        return None
    block = choose_register_block(result.space, view)
    if block is not None:
        return RegisterBlockWriter(block, (result,), view)
    repeated = _repeated_beside(result.space, view)
    for space, columns in (*([] if repeated is None else [repeated]), (result.space, 0)):
        residues = choose_residues(space, view, columns)
        if residues is not None:
            return ResidueWriter(residues, (replace(result, space=space),), view, columns)
    return None


def _repeated_beside(space: Space, view: StridedView) -> tuple[Space, int] | None:
    """The space where elements that are read at one place, of all `i` of `O[.., n*x + i, c]` or of all x with one
    `(x - x % n) / n`, count as places that follow each other in memory, and how many variables do: of odd channels in
    16 bits these are stored in whole vectors then, at the price of a load for each. None where there are none."""
    s = space.statement
    if len(space.classes) != 1 or len(space.rows) < 2 or len(space.outputs) < 2:
        return None
    last, stored, strides = space.outputs[-1], view.types[s.output], view.strides[s.output]
    if stored.dtype not in NARROW or space.rows[-1].bare != last:
        return None
    row_bytes = space.largest(last) * ITEM_BYTES[stored.dtype]
    if is_symbolic(row_bytes) or row_bytes % REPEATED_VECTOR == 0:
        return None
    row, others = space.rows[-2], {v for other in space.rows[:-2] for v in other.variables()}
    if strides[-2] != space.largest(last) * strides[-1] or others & {*row.variables()}:
        return None
    if (v := row.bare) is not None:
        return (space, 2) if v == space.outputs[-2] and _read_at_one_place(space, v, view.types) else None
    beside = [v for v in row.variables() if v in space.steps]
    along = [v for v in row.variables() if v not in space.steps]
    if len(beside) != 1 or len(along) != 1 or any(beside[0] in index_variables(*a.index) for a in _reads_of(s)):
        return None
    (v,), (w,) = beside, along
    if row != Affine.of([(Index(v), 1), (Index(w), space.extent[0][v])]):
        return None
    rest = tuple(x for x in space.outputs if x not in (v, w, last))
    return replace(space, outputs=(*rest, w, v, last), steps=space.steps - {v}), 3


def _reads_of(s: Statement) -> list[Access]:
    return [a for e in s.roots for a in _reads(e)]


def _read_at_one_place(space: Space, v: str, types: Types) -> bool:
    """Whether all values of a variable that follow each other, up to where its formulas repeat, read the same."""
    s, n = space.statement, period(space.statement, v)
    if not 1 < n <= MOST_CLASS_ELEMENTS or space.low[0][v] != 0:
        return False
    box = replace(space, extent=({**space.extent[0], v: -(-space.extent[0][v] // n)},)).box(0)
    at = (substitute_affine(s, {v: Affine.variable(v, n) + u}) for u in range(n))
    return len({frozenset(_reads_of(resolved_statement(x, box, types))) for x in at}) == 1


def choose_residues(space: Space, view: StridedView, beside: int = 0) -> Residues | None:
    """The residue classes of an output with more than one, where a program can take them all; None elsewhere. `beside`:
    how many of the last variables count places that are read, and stored, one by one."""
    s = space.statement
    every = [v for v in space.outputs if space.largest(v) > 1]
    outputs = [v for v in every if v not in space.steps]
    if s.default is not None or not space.classes or not outputs:
        return None
    classes = {*space.residues, *space.steps}
    known = len(space.classes) * math.prod(space.extent[0][v] for v in space.steps)
    counts = {v: _texts(space, v) for v in outputs[: len(outputs) - beside]} if known == 1 else {}
    joined = counts.pop(outputs[-1], 1)
    joined = joined if joined in JOINED else 1
    columns = [v for v in outputs if v != outputs[-1] or joined < space.largest(v)]
    if not columns or space.largest(columns[-1]) < LEAST_COLUMNS * (joined if columns == outputs else 1):
        return None
    last = outputs[-1]
    mixed = [row for row in space.rows if {last} < set(row.variables()) & {last, *classes}]
    if mixed:
        last, joined = _neighbours(space, mixed, last)
        if joined == 1:
            return None  # elements a step apart would be stored one by one
    periods = {v: p for v, p in counts.items() if 1 < p <= MOST_CLASS_ELEMENTS and v != columns[-1]}
    periods |= {last: joined} if joined > 1 and not mixed else {}
    elements = known * math.prod(periods.values())
    points = sum(math.prod(e[v] for v in space.reductions) for e in space.extent) * elements // len(space.classes)
    if not (1 if beside else 2) <= elements <= MOST_CLASS_ELEMENTS or points > MOST_CLASS_POINTS:
        return None
    if is_transposed(space, view, columns) or columns == outputs and not mixed and is_transposed(space, view, every):
        return None  # classes that lie beside each other in memory are read together, not one after the other
    programs = space.count(tuple(outputs)) // (math.prod(periods.values()) * class_places(elements))
    return Residues(periods, elements, joined, last) if programs >= LEAST_PROGRAMS else None


def _neighbours(space: Space, rows: Sequence[Affine], v: str) -> tuple[str, int]:
    """The class variable `j` of `n*v + j`, the only index that has both, and `n`; 1 where it is another one, or where
    not all of its values have the same elements."""
    found = [w for w in (*space.steps, *_residues_alike(space)) if rows[0].coefficient(w) == 1]
    n = 1 if len(found) != 1 else space.extent[0].get(found[0]) or len({c[found[0]] for c in space.classes})
    alone = len(rows) == 1 and n in JOINED and rows[0] == Affine.of([(Index(v), n), (Index(found[0]), 1)])
    return (found[0], n) if alone else (v, 1)


def _residues_alike(space: Space) -> tuple[str, ...]:
    """The residue whose values come one after the other, where all classes have the same elements at each place, but
    for the last one of an odd size, which the first class has."""
    last, count = space.residues[-1:], math.prod(len({c[w] for c in space.classes}) for w in space.residues)
    if not last or count != len(space.classes) or any(len({low[v] for low in space.low}) > 1 for v in space.outputs):
        return ()
    first = min(c[last[0]] for c in space.classes)
    for v in space.outputs:
        extents = [e[v] for e in space.extent]
        own = [n for n, c in zip(extents, space.classes, strict=True) if c[last[0]] == first]
        if len(set(extents)) > 1 and (any(map(is_symbolic, extents)) or max(extents) > min(extents) + 1):
            return ()
        if v == space.outputs[-1] and set(own) != {max(extents)}:
            return ()
    return last


def _texts(space: Space, v: str) -> int:
    """How many formulas a variable's values have."""
    s, n = space.statement, space.largest(v)
    compared = (difference(*e.args) for e in walk(s.body, *s.guards) if isinstance(e, Call) and e.function in SPANS)
    tested = n <= MOST_TESTED and any(form is not None and set(form.variables()) == {v} for form in compared)
    return n if tested else period(s, v)


def period(s: Statement, v: str) -> int:
    """After how many values of a variable the parts of a statement that are no affine forms are the same again."""
    found = 1
    for e in walk(s.body, *s.guards):
        arguments: Sequence[Expr] = ()
        if isinstance(e, Access):
            arguments = e.index
        elif isinstance(e, Call) and e.function in QUASI_AFFINE:
            arguments = e.args
        for form in map(_form, arguments):
            found = math.lcm(found, form.coefficient(v).denominator)
        if isinstance(e, Call) and e.function == "mod" and isinstance(e.args[1], Int) and e.args[1].value > 0:
            c = _form(e.args[0]).coefficient(v)
            if c and c.denominator == 1:
                found = math.lcm(found, e.args[1].value // math.gcd(int(c), e.args[1].value))
    return found


def _form(e: Expr) -> Affine:
    try:
        return linear(e)
    except TileError:
        return Affine()  # of values


def class_places(elements: int) -> int:
    """Places of a block for which a program computes so many elements each."""
    return CLASS_BLOCK if elements <= 8 else CLASS_BLOCK // 2


def reads_of_elements(space: Space, view: StridedView) -> tuple[frozenset[Access], int]:
    """What a program reads at each place of its block, each place of memory once, and for how many elements."""
    found = choose_residues(space, view)
    made = None if found is None else class_elements(found, space, view.types)
    statements = [view.statement] if made is None else [s for _, s in made.points]
    read = frozenset(a for s in statements for a in _reads(s.body) + _reads(s.guard))
    return read, 1 if made is None else len(made.elements)


def _reads(e: Expr | None) -> list[Access]:
    """Accesses whose elements are loaded."""
    if e is None or isinstance(e, Inside):
        return []
    own = [e] if isinstance(e, Access) else []
    return [*own, *(a for x in children(e) for a in _reads(x))]


class ResidueWriter(OutputsKernel):
    """The text of one such kernel; `found`: the classes."""

    def __init__(self, found: Residues, results: Sequence[Computed], view: StridedView, beside: int = 0):
        many, first = len(results), results[0]
        made = [class_elements(found, r.space, view.types) for r in results]
        elements = _side_by_side([m.elements for m in made])
        super().__init__(made[0].space, view, elements, results, exact=True)
        written = view.types[first.output]
        narrow, channels = written.dtype in NARROW, first.space.largest(first.space.outputs[-1])
        single = narrow and channels % 2 != 0
        self.k.places_shared = self.k.places_shared and not single  # see `Kernel`
        self.joined = _side_by_side([m.joined for m in made])
        self.last = found.last
        points = [(e * many + n, s) for n, m in enumerate(made) for e, s in m.points]
        self.points = sorted(points, key=lambda point: point[0])
        self.alone = [n for n, _ in self.points] == list(range(len(elements)))
        if beside:
            both = (*self.rows, *self.columns)
            self.rows, self.columns = both[:-beside], both[-beside:]
            self.k.places_shared = True
            self.fit(REPEATED_BLOCK, REPEATED_BLOCK)
            return
        places, flat = class_places(len(elements)), SINGLE_BLOCK if single else CLASS_BLOCK
        joins = narrow and self.alone and not self.joined and (single or channels > CLASS_COLUMNS)
        joined = joins and self.join_columns(CLASS_COLUMNS, flat)
        self.fit(*(flat, flat) if joined else (places, CLASS_COLUMNS))

    def results(self) -> list[str]:
        if not self.alone:
            return super().results()
        return [self.k.line("value", self.value(self.frame(), self.sums[n], s, True)) for n, s in self.points]

    def stores(self, values: Sequence[str]) -> None:
        """Lines that store the elements, neighbours in memory as one block."""
        if not self.joined:
            super().stores(values)
            return
        n, end = len(values) // len(self.joined), self.k.count(self.columns)
        self.axis("joint", f"(tile % across) * (BN * {n})", (*self.columns, self.last), f"BN * {n}", f"{end} * {n}")
        frame = Frame(self.k, ["row", "joint"], {"row": "row_in", "joint": "joint_in"})
        many, given = len(self.computed), dict[Expr, ScalarValue]()
        for g, element in enumerate(self.joined):
            r = self.computed[element.result]
            of = range(g // many * n * many + element.result, (g // many + 1) * n * many, many)
            own = self.sums[of[0]].dtype
            dtype = own if r.epilogue else self.view.types[r.output].dtype
            cast = f".to({triton_type(dtype)})" if dtype != own else ""
            blocks = [f"tl.broadcast_to({values[e]}, (BM, BN)){cast}" for e in of]
            while len(blocks) > 1:
                half = len(blocks) // 2
                blocks = [f"tl.join({a}, {b})" for a, b in zip(blocks[:half], blocks[half:], strict=True)]
            shape, given = f"(BM, BN * {n})", given if element.result else {}
            self.store(element, f"tl.reshape({blocks[0]}, {shape})", dtype, frame, shape, given)

    def loops(self, unrolled: bool) -> Iterator[tuple[str, str, frozenset[str]]]:
        return iter(())

    def terms(self, unrolled: bool) -> Iterable[tuple[int, Statement]]:
        return self.points


def _side_by_side(made: Sequence[Sequence[Element]]) -> list[Element]:
    return [replace(e, result=n) for at in zip(*made, strict=True) for n, e in enumerate(at)]
