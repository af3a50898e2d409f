"""Flatten: one aggregation a statement, and only those that a backend has: sum prod max min assign logsumexp any all.

Recurrences are the exception: aggregations that read the statement's own output stay nested, as they are. Their
output index becomes one bare variable a dimension.

A nested aggregation becomes a statement of its own whose output index runs over the exact ranges of its free variables.
mean, argmax and argmin are spelled out by the others (`transforms.spelled`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.errors import Unsupported
from tilec.ir.functions import call
from tilec.ir.index import Affine
from tilec.ir.infer import expression_type, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Int,
    Program,
    Statement,
    expressions,
    index_variables,
    map_expressions,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, TensorType, shapes_in
from tilec.lattice.sets import Box, bounds_of, domain_of, sizes_of
from tilec.transforms.bind.legality import check_writes
from tilec.transforms.lower.decompose import DECOMPOSITIONS, in_type
from tilec.transforms.lower.reduce import reduce_statement
from tilec.transforms.recurrence import own_reach
from tilec.transforms.util.naming import Names, canonical_aggregate, free_variables


def flatten(program: Program, types: Mapping[str, TensorType]) -> Program:
    """A bound program without nested aggregations, mean, argmax and argmin; `types` holds the inputs' types.

    Equal nested aggregations share one statement. Raises WriteConflict for a nested assign that two points reach.
    """
    return _Flattener(program, types).run()


@dataclass(frozen=True)
class _Layer:
    """What limits the points at which an expression stands: the statement, or an aggregation around it."""

    roots: tuple[Expr, ...]
    constraints: tuple[Constraint, ...] = ()
    index: tuple[Expr, ...] = ()
    sizes: tuple[int, ...] = ()
    own: str | None = None  # the output of a recurrence


class _Flattener:
    def __init__(self, program: Program, types: Mapping[str, TensorType]):
        self.program = program
        self.types = {i.name: types[i.name] for i in program.inputs}
        self.shapes = shapes_in(self.types)
        self.names = Names.of(program)
        self.statements: list[Statement] = []
        self.shared: dict[tuple, str] = {}

    def run(self) -> Program:
        for s in self.program.statements:
            if reads_itself(s):
                s = self._normal(s)
            nested = any(isinstance(e, Aggregate) for e in walk(*expressions(s)))
            for new in self._in_its_type(s, self.hoisted(s)) if nested else (s,):
                self.emit(new)
        return replace(self.program, statements=tuple(self.statements))

    def _normal(self, s: Statement) -> Statement:
        """A recurrence over distinct bare variables."""
        bare = [e.name if isinstance(e, Index) else "" for e in s.index or ()]
        if "" in bare or len(set(bare)) < len(bare):
            s = reduce_statement(s, {**self.shapes, s.output: sizes_of(s)})
            bare = [e.name if isinstance(e, Index) else "" for e in s.index or ()]
        if "" in bare or len(set(bare)) < len(bare):
            raise Unsupported(
                f"the recurrence {s.output} writes along a diagonal of its indices",
                s.span,
                hint="give the output an index variable of its own for each dimension",
            )
        return s

    def emit(self, s: Statement, bound: tuple[str, ...] = ()) -> None:
        """Append a statement, spelled out where it must be; `bound` are its aggregation's variables, if nested."""
        spell = None if reads_itself(s) else DECOMPOSITIONS.get(s.aggregation)
        if spell is None:
            self._append(s)
            return
        if not bound:
            written = index_variables(*(s.index or ()))
            bound = tuple(v for v in index_variables(*expressions(s)) if v not in written)
        for new in spell(s, bound, self.types, self.names):
            self._append(new)

    def _append(self, s: Statement) -> None:
        t = self.types[s.output] = statement_type(s, self.types)
        self.shapes[s.output] = t.shape
        self.statements.append(s)

    def hoisted(self, s: Statement) -> Statement:
        """The statement with its nested aggregations replaced by accesses to statements that are emitted first; those
        that read the statement's own output stay."""
        sizes = sizes_of(s)
        layer = _Layer(s.roots, s.constraints, s.index or (), sizes, s.output)
        init = s.init
        if init is not None:  # its variables are the coordinates of what is read
            box = own_reach(s, {**self.shapes, s.output: sizes})
            ranges = [Constraint(_shifted(v, low), Int(high - low + 1)) for v, (low, high) in box.items()]
            init = self._replaced(init, (_Layer((), tuple(ranges)),), s)
        return replace(map_expressions(replace(s, init=None), lambda e: self._replaced(e, (layer,), s)), init=init)

    def _widened(self, e: Expr) -> Expr:
        """A sum of 16-bit terms as one of the same terms in 32 bits."""
        if isinstance(e, Call) and e.function in ("add", "sub", "neg"):
            return rebuild(e, self._widened)
        return call("float32", e) if expression_type(e, self.types).dtype in NARROW else e

    def _in_its_type(self, s: Statement, hoisted: Statement) -> list[Statement]:
        """The hoisted statement, in the type that the statement had where normalisers are wider (see `_shared`)."""
        target = statement_type(s, self.types).dtype
        if statement_type(hoisted, self.types).dtype == target:
            return [hoisted]
        return in_type(hoisted, target, self.types, self.names)

    def _replaced(self, e: Expr, around: tuple[_Layer, ...], s: Statement, normalises: bool = False) -> Expr:
        if not isinstance(e, Aggregate):
            inside = _normalises(e, normalises)
            return rebuild(e, lambda x: self._replaced(x, around, s, inside))
        within = (*around, _Layer(e.roots, e.constraints, own=s.output))
        inner = rebuild(e, lambda x: self._replaced(x, within, s))
        assert isinstance(inner, Aggregate)
        if any(isinstance(x, Access) and x.tensor == s.output for x in walk(inner)):
            return inner
        free = free_variables(inner, s.index)
        box = self._box(around) if free else {}
        ranges = tuple((0, -1) if box is None else box[v] for v in free)
        name = self._shared(inner, free, ranges, s, normalises)
        index = tuple(_shifted(v, low) for v, (low, _) in zip(free, ranges, strict=True))
        return Access(name, index, span=e.span)

    def _box(self, around: tuple[_Layer, ...]) -> Box | None:
        roots = [root for layer in around for root in layer.roots]
        constraints = [c for layer in around for c in layer.constraints]
        first = around[0]
        return bounds_of(domain_of(roots, self.shapes, constraints, first.index, first.sizes, own=first.own))

    def _shared(
        self, e: Aggregate, free: tuple[str, ...], ranges: tuple[tuple[int, int], ...], s: Statement, normalises: bool
    ) -> str:
        """The output of the statement for a nested aggregation; one for all that differ in variables' names alone. A
        logsumexp that normalises exponentials is kept in 32 bits at least: rounded to 16, as its terms are, it would
        scale them all by exp of what rounding takes off, and gradients of recurrences by its power."""
        if normalises and e.aggregation == "logsumexp" and expression_type(e.body, self.types).dtype in NARROW:
            e = replace(e, body=self._widened(e.body))
        key = (*canonical_aggregate(e, free), ranges)
        if key not in self.shared:
            self.shared[key] = name = self.names.fresh(f"{s.output}_{e.aggregation}")
            statement = Statement(
                name,
                tuple(_shifted(v, low) for v, (low, _) in zip(free, ranges, strict=True)),
                tuple(Int(high - low + 1) for low, high in ranges),
                e.body,
                e.aggregation,
                e.guard,
                e.constraints,
                no_defract=s.no_defract,
                span=e.span or s.span,
            )
            check_writes(statement, self.shapes)
            self.emit(statement, e.bound)
        return self.shared[key]


def _normalises(e: Expr, around: bool) -> bool:
    """Whether what stands in the expression is a term of an exponent, or only asked whether it is infinite."""
    match e:
        case Call("exp"):
            return True
        case Call("add" | "sub" | "neg"):
            return around
        case Call("ne" | "eq", (_, Float(n) | Call("neg", (Float(n),)))):
            return math.isinf(n)
    return False


def _shifted(variable: str, low: int) -> Expr:
    return Affine.of([(Index(variable), 1)], -low).to_expr()
