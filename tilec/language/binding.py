"""Lists of what an aggregation binds, `sum[k](...)`: their mistakes, and what they leave to the aggregation around."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tilec.errors import AggregationMistake, Edit, Hint, Span, UnboundIndex
from tilec.ir.constraining import always, demands
from tilec.ir.program import Access, Aggregate, Call, Constraint, Expr, Int, Name, index_variables, walk
from tilec.language.hints.misspelt import alike_hint
from tilec.language.scope import FunctionScope
from tilec.language.syntax import CallSyntax, StatementSyntax, aggregation_of, below, direct_variables, index_nodes


def check_list(e: CallSyntax, visible: frozenset[str] | set[str]) -> None:
    """Each variable of a list is new, stands there once, and in the body."""
    seen: set[str] = set()
    inside = {node.name for arg in e.args for node in index_nodes(arg)}
    for v in e.bound or ():
        if v.name in seen:
            raise AggregationMistake(f"`{v.name}` stands twice in this list", v.span, hint="write it once")
        if v.name in visible:
            raise AggregationMistake(
                f"`{v.name}` is bound outside of this aggregation already",
                v.span,
                hint="leave it out of the list, or give the variable another name here",
            )
        if v.name not in inside:
            raise UnboundIndex(
                f"`{v.name}` does not stand in what is aggregated",
                v.span,
                hint=alike_hint(v.name, inside, v.span) or "is its name spelled right?",
            )
        seen.add(v.name)


def check_alone(aggregation: str, body: Expr, visible: frozenset[str] | set[str]) -> None:
    """An aggregation without a variable of its own around one that binds several: they were surely meant for both."""
    for e in _nested(body):
        bound = [v for v in direct_variables(e.args[0]) if v not in visible] if len(e.args) == 1 else []
        if e.bound is None and len(bound) > 1:
            names = " and ".join(f"`{v}`" for v in bound)
            few, rest = bound[0], " and ".join(f"`{v}`" for v in bound[1:])
            hint = (
                f"list what it binds: `{e.function}[{few}](...)` leaves {rest} to `{aggregation}`, "
                f"`{e.function}[{', '.join(bound)}](...)` says that it takes all"
            )
            raise AggregationMistake(
                f"nothing is left for `{aggregation}` to aggregate over: this `{e.function}` inside it binds {names}",
                e.name_span,
                hint=Hint(hint, Edit(Span(e.name_span.stop, e.name_span.stop), f"[{few}]")),
            )


def check_binding(s: StatementSyntax, aggregation: str, body: Expr, left: Collection[str]) -> None:
    """A statement's aggregation binds what stands on the right only: its list says the same, and leaves nothing out."""
    own = [v for v in direct_variables(body) if v not in left]
    if isinstance(s.body, CallSyntax) and body is not s.body and s.body.bound is not None:
        check_list(s.body, frozenset(left))
        listed = [v.name for v in s.body.bound]
        for node in index_nodes(body, nested=False):
            if node.name in own and node.name not in listed:
                last = s.body.bound[-1].span if s.body.bound else None
                change = () if last is None else (Edit(Span(last.stop, last.stop), f", {node.name}"),)
                raise AggregationMistake(
                    f"the list of this `{s.body.function}` leaves out `{node.name}`, and nothing around binds it",
                    node.span,
                    hint=Hint(f"add it to the list or to the indices of `{s.target.name}`", *change),
                )
    elif not own and aggregation != "assign":
        check_alone(aggregation if s.symbol is None else str(s.symbol), body, frozenset(left))


def _nested(body: Expr) -> Iterator[CallSyntax]:
    stack = [body]
    while stack:
        e = stack.pop()
        if aggregation_of(e):
            assert isinstance(e, CallSyntax)
            yield e
        else:
            stack.extend(reversed(below(e)))


def left_out(node: Aggregate, scope: FunctionScope) -> Iterator[Constraint]:
    """What the accesses inside an aggregation with a list say of the variables that the list leaves out, as constraints
    of the aggregation that binds these. An index that holds a tensor's element says nothing."""
    yield from _left_out(node, frozenset(), scope)


def _left_out(node: Aggregate, hidden: frozenset[str], scope: FunctionScope) -> Iterator[Constraint]:
    hidden = hidden | set(node.bound)
    for a in always(demands(node.guard, node.body, own=scope.current)):
        for d, e in enumerate(a.index):
            variables = index_variables(e)
            gathers = any(isinstance(x, Access) for x in walk(e))
            if gathers or hidden.intersection(variables) or scope.left.issuperset(variables):
                continue
            if variables:
                yield Constraint(e, _size(a.tensor, d, scope), span=e.span)
    for root in (node.body, *node.guards):
        yield from _inner(root, hidden, scope)


def _inner(e: Expr, hidden: frozenset[str], scope: FunctionScope) -> Iterator[Constraint]:
    stack = [e]
    while stack:
        e = stack.pop()
        if isinstance(e, Aggregate):
            yield from _left_out(e, hidden, scope)
        else:
            stack.extend(below(e))


def _size(tensor: str, d: int, scope: FunctionScope) -> Expr:
    """The size of a dimension: as declared or as written, otherwise `shape(X, d)`."""
    dims = scope.symbols[tensor].dims
    if dims is not None:
        n = dims[d]
        return Int(n) if isinstance(n, int) else Name(n)
    for s in scope.statements:
        if s.output == tensor and s.sizes is not None:
            return s.sizes[d]
    return Call("shape", (Name(tensor), Int(d)))
