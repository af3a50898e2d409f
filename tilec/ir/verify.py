"""The structural rules of the IR. A pass that breaks one has a defect; what users write is checked elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.errors import InternalMistake, Span
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS, RANDOM, STRUCTURAL
from tilec.ir.index import canonical
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    children,
    index_variables,
    self_reads,
    walk,
)

BOUND_HAS_NO = frozenset((*STRUCTURAL, "shape", "index", "as_type", "as_scalar", "same"))


def verify(program: Program, bound: bool = False) -> None:
    """Check a program, and where `bound` that it keeps what `transforms.bind` promises: literal sizes, no names, every
    statement indexed. InternalMistake for the first rule broken."""
    _Verifier(program, bound).run()


class _Verifier:
    def __init__(self, program: Program, bound: bool):
        self.program, self.bound = program, bound
        self.dimensions = program.dimensions()
        self.ranks: dict[str, int | None] = {}
        self.seen: set[int] = set()
        self.output = ""

    def run(self) -> None:
        for i in self.program.inputs:
            _require(i.name not in self.ranks, f"two inputs are called {i.name}", i.span)
            _require(i.name not in self.dimensions, f"{i.name} is a tensor and a dimension", i.span)
            literal = i.dims is not None and all(isinstance(d, int) and d >= 0 for d in i.dims)
            _require(literal or not self.bound, f"the input {i.name} has no literal sizes", i.span)
            self.ranks[i.name] = None if i.dims is None else len(i.dims)
        for s in self.program.statements:
            self.statement(s)
        for name in self.program.outputs:
            _require(name in self.ranks, f"the output {name} is never assigned")

    def statement(self, s: Statement) -> None:
        self.output, self.seen = s.output, set()
        _require(s.output not in self.ranks, f"{s.output} is assigned twice", s.span)
        _require(s.output not in self.dimensions, f"{s.output} is a tensor and a dimension", s.span)
        _require(s.aggregation in AGGREGATIONS, f"no aggregation is called {s.aggregation}", s.span)
        _require(s.default is None or s.default in self.ranks, f"the default {s.default} is not known", s.span)
        values = [e for e in (s.guard, s.body, s.init) if e is not None]
        if s.index is None:
            _require(not self.bound, f"{s.output} has no index", s.span)
            _require(s.sizes is None and not s.constraints, f"{s.output} is elementwise, with sizes", s.span)
            free = index_variables(*values)
            _require(not free, f"{s.output} is elementwise, with index variables {', '.join(free)}", s.span)
            _require(s.aggregation == "assign", f"{s.output} is elementwise, with an aggregation", s.span)
        else:
            self.sized(s)
        outside = frozenset(index_variables(*(s.index or ()), *values, *(c.expr for c in s.constraints)))
        for e in s.index or ():
            self.index(e, outside)
        for e in (*(s.sizes or ()), *values):
            self.expression(e, outside)
        self.recurrence(s)
        self.constraints(s.constraints, outside)
        self.ranks[s.output] = None if s.index is None else len(s.index)

    def recurrence(self, s: Statement) -> None:
        index = s.index or ()
        found = self_reads(s)
        _require(all(len(a.index) == len(index) for a in found), f"{s.output} reads itself with another rank", s.span)
        if s.init is None:
            return
        _require(found, f"{s.output} has `init` and does not read itself", s.span)
        names = {e.name for e in index if isinstance(e, Index)}
        _require(len(names) == len(index), f"`init` of {s.output} needs distinct bare variables on the left", s.span)
        _require(names.issuperset(index_variables(s.init)), f"`init` of {s.output} has other variables", s.span)
        inner = any(isinstance(e, Access) and e.tensor == s.output for e in walk(s.init))
        _require(not inner, f"`init` of {s.output} reads {s.output}", s.span)

    def sized(self, s: Statement) -> None:
        assert s.index is not None
        if s.sizes is None:
            _require(not self.bound, f"{s.output} has no sizes", s.span)
            return
        _require(len(s.sizes) == len(s.index), f"{s.output} has as many sizes as indices", s.span)
        if self.bound:
            _require(all(isinstance(n, Int) for n in s.sizes), f"the sizes of {s.output} are no literals", s.span)

    def expression(self, e: Expr, outside: frozenset[str]) -> None:
        """Check what stands as a value, each node once; `outside` are the variables bound around it."""
        if id(e) in self.seen:
            return
        self.seen.add(id(e))
        match e:
            case Int(value):
                _require(
                    isinstance(value, int) and value >= 0, f"the literal {value} is negative or no integer", e.span
                )
            case Float(value):
                _require(isinstance(value, float) and not value < 0, f"the literal {value} is negative", e.span)
            case Name(name):
                _require(not self.bound, f"the name {name} is left", e.span)
                _require(name in self.ranks or name in self.dimensions, f"{name} is not known", e.span)
            case Access():
                self.access(e, outside)
            case Inside(access):
                _require(isinstance(access, Access), "`in` holds an access", e.span)
                self.expression(access, outside)
            case Pad(access, value):
                _require(isinstance(access, (Access, Inside)), "`pad` holds an access", e.span)
                self.expression(access, outside)
                self.expression(value, outside)
            case Call():
                self.call(e)
                for child in e.args:
                    self.expression(child, outside)
            case Aggregate():
                self.aggregate(e, outside)
            case _:
                _require(isinstance(e, Index), f"{type(e).__name__} is no expression")

    def access(self, e: Access, outside: frozenset[str]) -> None:
        known = e.tensor in self.ranks or e.tensor == self.output
        _require(known, f"{e.tensor} is read before it is assigned", e.span)
        rank = self.ranks.get(e.tensor)
        _require(rank is None or rank == len(e.index), f"{e.tensor} has rank {rank}, not {len(e.index)}", e.span)
        for i in e.index:
            self.index(i, outside)

    def index(self, e: Expr, outside: frozenset[str]) -> None:
        if isinstance(e, Index):
            return
        self.expression(e, outside)
        if self.bound and not isinstance(e, Int):
            _require(canonical(e) == e, f"an index of {self.output} is not in canonical form", e.span)

    def constraints(self, constraints: Iterable[Constraint], outside: frozenset[str]) -> None:
        for c in constraints:
            self.index(c.expr, outside)
            self.expression(c.bound, outside)
            _require(isinstance(c.bound, Int) or not self.bound, "the bound of a constraint is no literal", c.span)

    def call(self, e: Call) -> None:
        row = FUNCTIONS.get(e.function)
        if row is None:
            raise InternalMistake(f"no function is called {e.function}", e.span)
        low, high = row.arity
        _require(low <= len(e.args) <= high, f"{e.function} takes {low} to {high} arguments", e.span)
        _require(not self.bound or e.function not in BOUND_HAS_NO, f"a call of {e.function} is left", e.span)
        counted = not self.bound or e.function not in RANDOM or len(e.args) == 2
        _require(counted, f"{e.function} is left without a counter", e.span)

    def aggregate(self, e: Aggregate, outside: frozenset[str]) -> None:
        _require(e.aggregation in AGGREGATIONS, f"no aggregation is called {e.aggregation}", e.span)
        _require(len(set(e.bound)) == len(e.bound), "an aggregation binds a variable twice", e.span)
        twice = outside.intersection(e.bound)
        _require(not twice, f"an aggregation binds {', '.join(twice)}, which stands outside too", e.span)
        inside = frozenset(index_variables(*children(e)))
        _require(inside.issuperset(e.bound), "an aggregation binds a variable that it does not hold", e.span)
        within = outside | set(e.bound)
        for child in (e.guard, e.body):
            if child is not None:
                self.expression(child, within)
        self.constraints(e.constraints, within)


def _require(holds: object, message: str, span: Span | None = None) -> None:
    if not holds:
        raise InternalMistake(message, span)
