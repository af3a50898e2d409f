"""Expressions as values: names looked up, calls checked and expanded, nested aggregations given their variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.errors import (
    AggregationMistake,
    ArityMistake,
    Edit,
    Hint,
    NameMistake,
    RankMistake,
    Span,
    UnboundIndex,
    closest,
)
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Name,
    Statement,
    index_variables,
    substitute,
)
from tilec.language import indices
from tilec.language.binding import check_alone, check_list, left_out
from tilec.language.bounded import unbounded_points
from tilec.language.hints.functions import (
    ALL_FUNCTIONS,
    EXTERNAL_FUNCTIONS,
    elsewhere,
    operand_text,
    reduction,
    replacement,
)
from tilec.language.hints.misspelt import no_variable
from tilec.language.hints.sizes import bound_hint
from tilec.language.ranks import is_size, rank_of
from tilec.language.scope import FunctionScope, Symbol, nearest
from tilec.language.syntax import CallSyntax, Partial, aggregation_of, below, check_arity, direct_variables, index_nodes

BOOLEAN = frozenset(name for name, f in FUNCTIONS.items() if f.result == "bool")


@dataclass(slots=True)
class Region:
    """Where an expression stands: the points of one statement or aggregation. `visible` are the index variables known
    there; `guards` collects the conditions without `:`, None where there is no point to drop."""

    indexed: bool
    visible: frozenset[str]
    guards: list[Expr] | None
    root: Expr | None = None


Expansion = Callable[["Values", CallSyntax, Region], Expr]


@dataclass(slots=True)
class Values:
    """Works through the expressions of one statement; statements that an expansion needs go before it."""

    scope: FunctionScope
    expansions: Mapping[str, Expansion]
    span: Span
    constraints: dict[str, list[Constraint]] = field(default_factory=dict)
    all_constraints: dict[Constraint, int] = field(default_factory=dict)  # and their places in the text
    placed: set[int] = field(default_factory=set)
    implied: dict[Constraint, None] = field(default_factory=dict)  # by accesses of nested aggregations with lists
    root: Expr | None = None  # the whole right side

    def value(self, e: Expr, region: Region) -> Expr:
        """The IR of a syntax expression."""
        while isinstance(e, Partial):
            if region.guards is None:
                raise AggregationMistake(
                    "a condition without `:` has no point to drop here",
                    e.span,
                    hint="write `condition ? a : b`, or put it in an aggregation or an indexed statement",
                )
            position = len(region.guards)
            region.guards.append(e.condition)
            region.guards[position] = self.value(e.condition, region)
            e = e.value
        match e:
            case Name():
                return self.name(e, region)
            case Access():
                return indices.access(e, self.scope)
            case CallSyntax():
                return self.apply(e, region)
            case Call("select", args):
                return self.select(args, region, e.span)
            case Call():
                return Call(e.function, tuple([self.value(arg, region) for arg in e.args]), span=e.span)
        return e

    def select(self, args: Sequence[Expr], region: Region, span: Span | None) -> Expr:
        """A conditional. A condition without `:` in one of its branches drops points where that branch is taken."""
        condition = self.value(args[0], region)
        values, guards = [], []
        for arg in args[1:]:
            inside = region if region.guards is None else replace(region, guards=[])
            values.append(self.value(arg, inside))
            guards.append(join(inside.guards) if inside is not region else None)
        if region.guards is not None and (guards[0] is not None or guards[1] is not None):
            a, b = (Int(1) if g is None else g for g in guards)
            region.guards.append(Call("select", (condition, a, b), span=span))
        return Call("select", (condition, *values), span=span)

    def name(self, e: Name, region: Region) -> Expr:
        symbol = self.scope.whole(e)
        if region.indexed and symbol.rank:
            subscript = ", ".join("ijklmnop"[k % 8] for k in range(symbol.rank))
            raise RankMistake(
                f"the whole tensor `{e.name}` cannot stand beside indices",
                e.span,
                hint=f"read an element, {e.name}[{subscript}]; {self.scope.rank_reason(symbol)}",
            )
        if region.indexed and symbol.rank is None:
            symbol.rank, symbol.rank_span = 0, e.span
        return e

    def apply(self, e: CallSyntax, region: Region) -> Expr:
        if e.bound is not None and not aggregation_of(e):
            raise AggregationMistake(
                f"`{e.function}` is no aggregation, so it binds no index variables",
                e.name_span,
                hint=nearest(e.function, AGGREGATIONS, e.name_span, 0.7)
                or "sum[k](...), max[k](...) and the other aggregations take a list of what they bind",
            )
        expansion = self.expansions.get(e.function)
        if expansion is not None:
            return expansion(self, e, region)
        if aggregation_of(e):
            return self.aggregate(e, region)
        if e.function in FUNCTIONS and not FUNCTIONS[e.function].precedence:
            check_arity(e, *FUNCTIONS[e.function].arity)
            args = []
            for arg in e.args:
                args.append(self.value(arg, region))
            return Call(e.function, tuple(args), span=e.span)
        raise self.unknown(e)

    def unknown(self, e: CallSyntax) -> NameMistake:
        source = self.scope.source
        args = [source[a.span.start : a.span.stop] for a in e.args if a.span is not None]
        text = replacement(e.function, args, source, self.assigned())
        if e.function in self.scope.symbols:
            hint: str | None = f"`{e.function}` is a tensor; its elements are read with {e.function}[...]"
        elif (lower := e.function.lower()) != e.function and (lower in FUNCTIONS or lower in AGGREGATIONS):
            hint = Hint(f"functions begin with a lower-case letter: write `{lower}`", Edit(e.name_span, lower))
        elif e.function[0].isupper():
            text = f"{e.function}[{', '.join(args)}]"
            hint = Hint(f"the elements of a tensor are read with brackets: {text}", Edit(e.span, text))
        elif text is None and (named := replacement(e.function, ["S", *args[1:]], source)) is not None and args:
            hint = f"assign its argument in a statement of its own, as S, and write `{named}`"
        elif text:
            hint = self.proposal(f"write `{text}`", text, e)
        elif (place := elsewhere(e.function)) is not None:
            hint = place
        elif e.function.startswith("prng"):
            hint = "random numbers are rand(S, e) and randn(S, e), from a seed and a counter"
        else:
            hint = self.misspelt(e, args) or Hint(f"express it by these: {ALL_FUNCTIONS}")
            if re.search(rf"\bfunction\s+{re.escape(e.function)}\s*\(", source):
                hint = "a function calls those above it: move its definition up"
        return NameMistake(f"there is no function `{e.function}`", e.name_span, hint=hint)

    def misspelt(self, e: CallSyntax, args: Sequence[str]) -> Hint | None:
        """A hint that proposes the function most like the one called: one of Tile, or what to write for another's."""
        callable_names = [f for f, row in FUNCTIONS.items() if not row.precedence]
        own = [*callable_names, *self.expansions, *AGGREGATIONS]
        short = len(e.function) < 4
        close = closest(e.function, own if short else [*own, *EXTERNAL_FUNCTIONS], 0.66 if short else 0.7)
        if close is None:
            return None
        told = f"did you mean `{close}`?"
        if close in own:
            return Hint(told, Edit(e.name_span, close))
        text = replacement(close, args, self.scope.source, self.assigned())
        if text:
            return self.proposal(f"{told} write `{text}`", text, e)
        return Hint(f"{told} {place}" if (place := elsewhere(close)) is not None else told)

    def assigned(self) -> str:
        """The left side of the statement, as written."""
        return self.scope.source[self.span.start : self.span.stop].partition("=")[0].strip() or "Y"

    def proposal(self, told: str, text: str, e: CallSyntax) -> Hint:
        """A hint to write something else for a call: an expression, or a statement where the call is all of one."""
        if "= " not in text.replace("==", ""):
            return Hint(told, Edit(e.span, text if e is self.root else operand_text(text)))
        alone = e is self.root and self.span.stop == e.span.stop
        return Hint(told, *((Edit(self.span, text),) if alone else ()))

    def aggregate(self, e: CallSyntax, region: Region) -> Aggregate:
        """A nested aggregation: it binds the variables of its own that are not known outside."""
        body = self.aggregated(e)
        if e.bound is not None:
            check_list(e, region.visible)
            bound = tuple(v.name for v in e.bound)
        else:
            bound = tuple(v for v in direct_variables(body) if v not in region.visible)
            if not bound:
                check_alone(e.function, body, region.visible)
        inner = Region(True, region.visible | set(bound), [])
        value = self.value(body, inner)
        constraints = (*self.place(bound, inner.visible), *self.claimed(bound))
        node = Aggregate(e.function, value, bound, join(inner.guards), constraints, span=e.span)
        if e.bound is not None:
            self.implied.update(dict.fromkeys(left_out(node, self.scope)))
        node = self.apart(node, e)
        self.check_bounded(node.bound, node, where=e)
        return node

    def claimed(self, bound: tuple[str, ...]) -> list[Constraint]:
        """What the lists of nested aggregations leave to one that binds these variables, taken off what is open."""
        mine = [c for c in self.implied if set(index_variables(c.expr)) & set(bound)]
        for c in mine:
            del self.implied[c]
        return [c for c in mine if c not in self.all_constraints]

    def apart(self, node: Aggregate, e: CallSyntax) -> Aggregate:
        """The aggregation with names of its own for variables that a claimed constraint holds and that stand elsewhere
        too: as text the constraint would be of both."""
        texts = set(self.all_constraints)
        constrained = {v for c in node.constraints if c not in texts for v in index_variables(c.expr)} & set(node.bound)
        inside = {id(x) for x in index_nodes(e)}
        used = {x.name for x in index_nodes(self.root) if id(x) not in inside} if self.root is not None else set()
        new: dict[str, Expr] = {}
        for v in node.bound:
            if v in constrained & used:
                names = used | {x.name for x in index_nodes(e)} | {x.name for x in new.values() if isinstance(x, Index)}
                name = next(n for n in (f"{v}{k}" for k in range(1, len(names) + 2)) if n not in names)
                new[v] = Index(name)
        if not new:
            return node
        bound = tuple(x.name if isinstance(x := new.get(v), Index) else v for v in node.bound)
        renamed = substitute(node, new)
        assert isinstance(renamed, Aggregate)
        return replace(renamed, bound=bound)

    def aggregated(self, e: CallSyntax, whole: bool = False) -> Expr:
        """The body of an aggregation's call. One that is a statement's whole right side may do without indices, where
        it is no elementwise function's name: the indices on the left say what its points are."""
        source = self.scope.source
        given = [source[a.span.start : a.span.stop] for a in e.args if a.span is not None]
        if len(e.args) != 1:
            text = reduction(e.function, given, source, self.assigned())
            hint = Hint(f"write {e.function}(X[i, j]); its index variables say what is aggregated")
            if text:
                hint = self.proposal(f"the indices say what is aggregated: write `{text}`", text, e)
            raise ArityMistake(f"`{e.function}` aggregates one expression, not {len(e.args)}", e.span, hint=hint)
        (body,) = e.args
        if not _indexed(body) and not (whole and e.function not in FUNCTIONS):
            told = f"write {e.function}(X[i]) with an index for each dimension"
            if e.function in FUNCTIONS:
                told += f"; the elementwise function is {e.function}(a, b)"
            raise AggregationMistake(
                f"`{e.function}` of one argument needs indices to aggregate over", e.span, hint=told
            )
        return body

    def place(self, bound: tuple[str, ...], visible: frozenset[str]) -> tuple[Constraint, ...]:
        """The constraints that belong to an aggregation: they name a variable it binds and none it cannot see. In the
        order of the text, which printing keeps."""
        found: dict[Constraint, None] = {}
        for v in bound:
            for c in self.constraints.get(v, ()):
                if visible.issuperset(index_variables(c.expr)):
                    found.setdefault(c)
                    self.placed.add(id(c))
        return tuple(sorted(found, key=self.all_constraints.__getitem__))

    def check_bounded(self, variables, s: Statement | Aggregate, where, left=()) -> None:
        """Raise UnboundIndex for the variables of a region that nothing confines; reads of the statement's own output
        confine nothing."""
        free = unbounded_points(s, variables, left, self.scope.current)
        if free:
            names = ", ".join(f"`{v}`" for v in free)
            span = next((node.span for node in index_nodes(where) if node.name in free), where.span)
            if len(free) == 1 and (other := no_variable(free[0], span, self.scope.source)):
                raise other
            hint = bound_hint(free, s, self.scope)
            raise UnboundIndex(f"nothing bounds {names}: the valid points have no end", span, hint=hint)

    def emit(self, base: str, body: Expr, **parts) -> Name:
        """Put a statement of an expansion before this one; its fresh name."""
        name = self.scope.fresh(base)
        append_statement(
            Statement(name, parts.pop("index", None), parts.pop("sizes", None), body, **parts, span=self.span),
            self.scope,
        )
        return Name(name, span=body.span)


def append_statement(statement: Statement, scope: FunctionScope, span: Span | None = None) -> None:
    """Append a finished statement and declare its output, whose name stands at `span`."""
    scope.statements.append(statement)
    if statement.index is not None:
        rank: int | None = len(statement.index)
        size = False
    else:
        rank = rank_of(statement.body, scope)
        size = rank in (0, None) and is_size(statement.body, scope)
    scope.declare(Symbol(statement.output, "statement", span or statement.span, rank=rank, size=size))


def _indexed(body: Expr) -> bool:
    stack = [body]
    while stack:
        e = stack.pop()
        if isinstance(e, (Access, Index)):
            return True
        stack.extend(below(e))
    return False


def join(guards: list[Expr] | None) -> Expr | None:
    """One condition out of several: `&` of them, each a truth value."""
    if not guards:
        return None
    if len(guards) == 1:
        return guards[0]
    truths = [
        g if isinstance(g, Call) and g.function in BOOLEAN else Call("ne", (g, Int(0)), span=g.span) for g in guards
    ]
    result = truths[0]
    for truth in truths[1:]:
        result = Call("and", (result, truth), span=truth.span)
    return result
