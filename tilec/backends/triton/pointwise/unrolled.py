"""Unrolled kernels: a program writes out several points, of several sums, each with the statement at its own place.

What these points read together is read, and converted, once. A sum of products whose points may lie outside reads zeros
there, which is nothing while the other factor is finite: where a sum comes out infinite or NaN, the block is computed
again with each point tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import point_conditions, size_of
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.epilogue import as_read, finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.lines import If
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.sizes import MOST_OVERHANG, power_of_two, rounded_up
from tilec.ir.index import Affine
from tilec.ir.program import Constraint, Expr, Int, Statement, reads
from tilec.ir.symbolic import is_symbolic


def tiled(space: Space, tiles: Mapping[str, tuple[str, int]]) -> Space:
    """A space of one class with tiles in the place of variables: by variable, the tile's name and how many values it
    has, whose place in it the variable itself names."""
    low, extent = dict(space.low[0]), dict(space.extent[0])
    for v, (tile, count) in tiles.items():
        low[tile], extent[tile] = 0, -(-extent[v] // count)
        low[v], extent[v] = 0, count
    named = {v: tile for v, (tile, _) in tiles.items()}
    outputs, reductions = (tuple(named.get(v, v) for v in axes) for axes in (space.outputs, space.reductions))
    return replace(space, outputs=outputs, reductions=reductions, low=(low,), extent=(extent,), valid=(), stored=())


class UnrolledKernel:
    """The text of one such kernel: blocks of rows x columns, a running value for each of the `statements`. `exact`:
    each point is tested; `space`: in which tiles stand for their variables."""

    def __init__(self, name: str, space: Space, view: StridedView, statements: Sequence[Statement], exact: bool):
        self.space, self.view, self.exact = space, view, exact
        self.k = Kernel(name, space, view.types, view.strides, view.int64_index, powers=True)
        bases = [Accumulator.over(space, s, view.types) for s in statements]
        self.sums = [replace(base, suffix=f"_{n}") for n, base in enumerate(bases)]
        self.names = [self.k.names.fresh(name) for a in self.sums for name in a.state]

    def loops(self, unrolled: bool) -> Iterator[tuple[str, str, frozenset[str]]]:
        """Open the scopes of the loops around the points, outermost first: each one's counter, what it goes
        over and what it binds. Not
        `unrolled`, there is a loop instead of the points that are written out."""
        raise NotImplementedError

    def terms(self, unrolled: bool) -> Iterable[tuple[int, Statement]]:
        """The points inside the loops: which sum each belongs to, and the statement there."""
        raise NotImplementedError

    def tests(self, frame: Frame) -> list[str]:
        """What is tested besides the statement's own conditions."""
        return []

    def axis(self, name: str, start: str, variables: tuple[str, ...], block: str, end: str | None = None) -> None:
        """Lines that decode the positions of a block into variables."""
        k = self.k
        k.assign(name, f"{start} + tl.arange(0, {block})")
        end = end or k.count(variables)
        k.assign(f"{name}_in", f"{name} < {end}")
        k.starts[name] = start, end, block
        k.decode(Axis(name, variables, block))

    def bind_single(self, variables: Iterable[str]) -> None:
        """Give variables of one value that value."""
        for v in variables:
            if v not in self.k.value_of:
                self.k.value_of[v] = self.k.low(v)

    def frame(self, *scopes: frozenset[str]) -> Frame:
        return Frame(self.k, ["row", "col"], {"row": "row_in", "col": "col_in"}, *scopes)

    def combine(self) -> None:
        """Lines that combine the points of every sum."""
        k = self.k
        for a in self.sums:
            k.scopes[0].lines += a.start("(BM, BN)")
        self._walk(unrolled=True, tested=self.exact)
        if self.exact:
            return
        finite = " & ".join(f"({name} - {name} == 0)" for name in self.names)
        k.scopes.append(Scope())
        for a in self.sums:
            k.scopes[-1].lines += a.start("(BM, BN)")
        self._walk(unrolled=False, tested=True)
        again = tuple(k.scopes.pop().lines)
        k.add(If(f"tl.min(({finite}).to(tl.int32)) == 0", again))

    def _walk(self, *, unrolled: bool, tested: bool) -> None:
        k = self.k
        scopes: list[frozenset[str]] = [frozenset()] * (len(k.scopes) - 1)
        loops: list[tuple[str, str]] = []
        for counter, over, bound in self.loops(unrolled):
            loops.append((counter, over))
            scopes.append(bound)
        frame = self.frame(*scopes)
        for n, s in self.terms(unrolled):
            a = self.sums[n]
            k.add(*a.step(k.line("value", self.value(frame, a, s, tested))))
        for counter, over in reversed(loops):
            k.close(counter, over)
        for v in frozenset().union(*scopes):
            k.value_of.pop(v, None)

    def value(self, frame: Frame, a: Accumulator, s: Statement, tested: bool) -> str:
        """Text of a statement's value; where it does not count, if `tested`, the identity."""
        evaluator = TritonScalars(frame, *s.roots)
        tests: list[str] = []
        if tested:
            tests = [*self.tests(frame), *frame.tests(point_conditions(s.roots, s.constraints, self.view.types))]
        return a.term(evaluator, s, tests)


@dataclass(frozen=True)
class Computed:
    """What a kernel computes of its points: a statement, as written too, and its epilogue. `stored`: others read it
    than the epilogues of later ones."""

    space: Space
    flat: Statement
    epilogue: Sequence[Statement] = ()
    stored: bool = True

    @property
    def output(self) -> str:
        return self.epilogue[-1].output if self.epilogue else self.space.statement.output

    @property
    def statements(self) -> tuple[Statement, ...]:
        return (self.flat, *self.epilogue)

    def is_read_by(self, later: Sequence[Computed]) -> bool:
        return any(self.output in reads(s) for other in later for s in other.epilogue)


@dataclass(frozen=True)
class Element:
    """One of the elements that a program computes at each place of its block: the statement there, the conditions for
    it to be one that there is, and the number of the result that it is of."""

    statement: Statement
    limits: tuple[Constraint, ...]
    result: int = 0


class OutputsKernel(UnrolledKernel):
    """A kernel with a sum for each of several elements at each place of its block, which it stores."""

    def __init__(
        self, space: Space, view: StridedView, elements: Sequence[Element], computed: Sequence[Computed], exact: bool
    ):
        name = python_name(space.statement.output) + "_kernel"
        super().__init__(name, space, view, [e.statement for e in elements], exact)
        self.elements, self.computed = elements, computed
        many = tuple(v for v in space.outputs if space.largest(v) > 1)
        self.rows, self.columns = many[:-1], many[-1:]

    def fit(self, places: int, columns: int) -> None:
        """Blocks of so many places and columns, of more columns where there are not as many rows."""
        rows = min(places // columns, power_of_two(max(self.space.count(self.rows), 1)))
        self.k.constants = {"BM": rows, "BN": min(places // rows, power_of_two(self.space.count(self.columns)))}

    def join_columns(self, narrow: int, block: int) -> bool:
        """Take the last two variables for columns, in blocks of so many, where these leave less empty than the last
        one in narrow blocks: a program finds its channels by division, but has no lanes beyond them."""
        both = (*self.rows, *self.columns)
        last, joint = self.space.largest(both[-1]), self.space.count(both[-2:])
        if len(both) < 3 or is_symbolic(last) or is_symbolic(joint):
            return False
        if rounded_up(last, narrow) <= MOST_OVERHANG * last or rounded_up(joint, block) > MOST_OVERHANG * joint:
            return False
        self.rows, self.columns = both[:-2], both[-2:]
        return True

    def results(self) -> list[str]:
        """Texts of the elements' values."""
        self.combine()
        return [a.result() for a in self.sums]

    def launch(self) -> Launch:
        k, space = self.k, self.space
        k.assign("tile", k.program())
        end = k.count(self.columns)
        if len(self.columns) > 1 and not k.int64_index:  # vectors need to know what it is divisible by
            end = k.number(("count", self.columns), "n_col", space.count(self.columns))
        k.assign("across", f"tl.cdiv({end}, BN)")
        self.axis("row", "(tile // across) * BM", self.rows, "BM")
        self.axis("col", "(tile % across) * BN", self.columns, "BN", end)
        self.bind_single((*space.outputs, *space.reductions))
        self.stores(self.results())
        rows, columns = k.constants["BM"], k.constants["BN"]
        tiles = -(-space.count(self.rows) // rows) * -(-space.count(self.columns) // columns)
        return k.launch((tiles, 1, 1), 4, 2, *(s for r in self.computed for s in r.statements))

    def stores(self, values: Sequence[str]) -> None:
        """Lines that store the elements."""
        given: dict[Expr, ScalarValue] = {}
        for element, value, a in zip(self.elements, values, self.sums, strict=True):
            self.store(element, value, a.dtype, self.frame(), "(BM, BN)", given)

    def store(
        self, element: Element, value: str, dtype: str, frame: Frame, shape: str, given: dict[Expr, ScalarValue]
    ) -> None:
        """A line that stores an element's block. `given`: what epilogues are given of others; it learns this one's."""
        k, s, r = self.k, element.statement, self.computed[element.result]
        limits = (Constraint(e, n) for e, n in zip(s.index or (), s.sizes or (), strict=True) if size_of(n))
        tests = [frame.spread(test, axis) for axis, test in frame.tails.items()]
        tests += frame.tests(point_conditions((), (*limits, *element.limits), self.view.types))
        space = replace(self.space, statement=s)
        value, compute_dtype = finish(frame, space, value, dtype, r.epilogue, given)
        if r.is_read_by(self.computed[element.result + 1 :]):
            given |= as_read(frame, space, r.output, value, compute_dtype)
        if not r.stored:
            return
        dtype = self.view.types[r.output].dtype
        cast = "" if compute_dtype == dtype else f".to({triton_type(dtype)})"
        address = frame.element_address(s, r.output)
        k.store(address, f"tl.broadcast_to({value}, {shape}){cast}", f"tl.broadcast_to({all_text(tests)}, {shape})")


def inside_tile(tile: str, count: int, place: int, extent: int) -> Constraint:
    return Constraint((Affine.variable(tile, count) + place).to_expr(), Int(extent))
