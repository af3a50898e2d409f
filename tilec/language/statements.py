"""One statement of the syntax into statements of the IR, checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tilec.errors import (
    AffineMistake,
    AggregationMistake,
    AssignmentMistake,
    Edit,
    Hint,
    NameMistake,
    RankMistake,
    SizeMistake,
    Span,
    UnboundIndex,
)
from tilec.ir.aggregations import AGGREGATIONS, BY_SYMBOL
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Statement, expressions, index_variables, walk
from tilec.language import indices
from tilec.language.binding import check_binding
from tilec.language.desugar import EXPANSIONS, operand
from tilec.language.hints.misspelt import alike_hint, no_variable
from tilec.language.hints.sizes import unknown_size
from tilec.language.inline import adopt
from tilec.language.scope import FunctionScope, Symbol
from tilec.language.syntax import (
    CallSyntax,
    StatementSyntax,
    aggregation_of,
    below,
    check_depth,
    direct_variables,
    index_nodes,
    plural,
    token_span,
)
from tilec.language.values import Expansion, Region, Values, append_statement, join


def add_statement(s: StatementSyntax, scope: FunctionScope, expansions: Mapping[str, Expansion] = EXPANSIONS) -> None:
    """Check a statement and append it, after those it expands to, to the scope's."""
    _check_assignable(s, scope)
    target = s.target
    for root in (
        *(target.index or ()),
        *(target.sizes or ()),
        s.body,
        *s.constraints,
        *(() if s.init is None else (s.init,)),
    ):
        check_depth(root)
    scope.current = str(target.name)
    values = Values(scope, expansions, s.span, root=s.body)
    scope.left = frozenset()
    if target.index is None:
        _whole(s, values)
    else:
        _indexed(s, values)
    scope.later.pop(str(target.name), None)


def _check_assignable(s: StatementSyntax, scope: FunctionScope) -> None:
    name = str(s.target.name)
    symbol = scope.symbols.get(name)
    if symbol is None:
        return
    span = token_span(s.target.name)
    where = scope.line(symbol.span)
    if symbol.kind == "input":
        raise AssignmentMistake(f"`{name}` is an input and cannot be assigned", span, hint=f"it is declared{where}")
    if symbol.kind == "dimension":
        raise AssignmentMistake(f"`{name}` is a dimension and cannot be assigned", span, hint=f"it is declared{where}")
    raise AssignmentMistake(
        f"`{name}` is assigned twice", span, hint=f"it is first assigned{where}; choose another name"
    )


def _whole(s: StatementSyntax, values: Values) -> None:
    """`Y = expr;`"""
    scope, name = values.scope, str(s.target.name)
    _check_whole(s)
    body = s.body
    if isinstance(body, CallSyntax) and body.function == "tuple":
        region = Region(False, frozenset(), None)
        elements = tuple([operand(values, arg, region, name).name for arg in body.args])
        _check_no_indices(s, scope)
        scope.declare(Symbol(name, "tuple", token_span(s.target.name), elements=elements))
        return
    values.constraints = _constraints_by_variable(s, values)
    since = len(scope.statements)
    value = values.value(body, Region(False, frozenset(), None, root=body))
    _check_no_indices(s, scope)
    for c in _unplaced(values):
        _check_placeable(c, s, frozenset())
        raise AggregationMistake(
            "there is no aggregation for this constraint", c.span, hint="write it in an indexed statement"
        )
    statement = adopt(scope, since, value, name, s.span) or Statement(name, None, None, value, span=s.span)
    statement = replace(statement, attributes=(*s.attributes, *statement.attributes))
    _check_depth(statement)
    append_statement(statement, scope, token_span(s.target.name))


def _check_whole(s: StatementSyntax) -> None:
    name = s.target.name
    if s.symbol is not None:
        named, end = BY_SYMBOL[str(s.symbol)], token_span(name).stop
        hint = f"write {name}[] = {s.symbol}(...) for a single element, or {named}(...)"
        raise AggregationMistake(
            f"the aggregation `{s.symbol}` needs indices on the left",
            token_span(s.symbol),
            hint=Hint(hint, Edit(Span(end, end), "[]")),
        )
    for word, present in (
        ("default", s.default is not None),
        ("init", s.init is not None),
        ("no_defract", s.no_defract),
    ):
        if present:
            raise AggregationMistake(
                f"`{word}` needs indices on the left", token_span(name), hint=f"write {name}[...] with its indices"
            )


def _check_no_indices(s: StatementSyntax, scope: FunctionScope) -> None:
    for node in index_nodes(s.body, nested=False):
        raise no_variable(node.name, node.span, scope.source) or AggregationMistake(
            f"the index variable `{node.name}` needs an aggregation or indices on the left",
            node.span,
            hint=alike_hint(node.name, (*scope.symbols, *FUNCTIONS), node.span)
            or f"which aggregation? sum(...), max(...) and others bind it, "
            f"or write {s.target.name}[{node.name} : N] = ... to assign each element",
        )


def _indexed(s: StatementSyntax, values: Values) -> None:
    """`O[index : sizes] = AGG(body), constraints ...;`"""
    scope, target = values.scope, s.target
    name, span = str(target.name), token_span(target.name)
    assert target.index is not None
    index = tuple([indices.index(i, scope) for i in target.index])
    sizes = _sizes(s, scope)
    scope.sizes = tuple([scope.source[e.span.start : e.span.stop] for e in target.sizes or () if e.span is not None])
    scope.declare(Symbol(name, "statement", span, rank=len(index)))
    aggregation, body = _aggregation(s, values)
    left = dict.fromkeys(v for i in index for v in index_variables(i))
    scope.left = frozenset(left)
    visible = frozenset([*left, *direct_variables(body)])
    check_binding(s, aggregation, body, left)
    values.constraints = _constraints_by_variable(s, values)
    region = Region(True, visible, [])
    value = values.value(body, region)
    _check_assigned(s, left, scope.source)
    constraints = tuple(_unplaced(values))
    for c in constraints:
        _check_placeable(c, s, visible)
    constraints = (*constraints, *(c for c in values.implied if c not in values.all_constraints))
    statement = Statement(
        name,
        index,
        sizes,
        value,
        aggregation,
        join(region.guards),
        constraints,
        None if s.default is None else str(s.default),
        _init(s, index, values),
        s.no_defract,
        tuple(s.attributes),
        span=s.span,
    )
    _check_depth(statement)
    _check_left(s, statement, scope)
    _check_bounds(s, statement, values, body)
    append_statement(statement, scope, span)


def _sizes(s: StatementSyntax, scope: FunctionScope) -> tuple[Expr, ...] | None:
    index, sizes = s.target.index, s.target.sizes
    assert index is not None
    if sizes is None:
        return None if index else ()
    if len(sizes) != len(index):
        raise RankMistake(
            f"`{s.target.name}` has {plural(len(index), 'index', 'indices')} but {plural(len(sizes), 'size', 'sizes')}",
            s.target.span,
            hint="after the colon stands one size for each index",
        )
    return tuple([indices.size(e, scope) for e in sizes])


def _aggregation(s: StatementSyntax, values: Values) -> tuple[str, Expr]:
    """The statement's aggregation and its body."""
    if s.symbol is not None:
        return BY_SYMBOL[str(s.symbol)], s.body
    named = aggregation_of(s.body)
    if named is not None:
        assert isinstance(s.body, CallSyntax)
        return named, values.aggregated(s.body, whole=True)
    return "assign", s.body


def _check_assigned(s: StatementSyntax, left: Collection[str], source: str) -> None:
    """Plain assignment may use the left side's variables only."""
    if s.symbol is not None or aggregation_of(s.body) is not None:
        return
    for node in index_nodes(s.body, nested=False):
        if node.name not in left:
            hint = (
                f"which aggregation? write = +(...) to sum over `{node.name}`, or * > < = and the named ones; "
                f"or add `{node.name}` to the indices of `{s.target.name}`"
            )
            raise no_variable(node.name, node.span, source) or AggregationMistake(
                f"the index variable `{node.name}` stands on the right side only",
                node.span,
                hint=alike_hint(node.name, left, node.span) or Hint(hint, *_summed(s, source)),
            )


def _summed(s: StatementSyntax, source: str) -> Iterator[Edit]:
    """A sum around the right side, whose parts have no constraints between them."""
    left = s.target.span.stop
    equals = re.match(r"\s*=\s*", source[left:])
    if equals is not None:
        yield Edit(Span(left + equals.end(), left + equals.end()), "+(")
        yield Edit(Span(s.span.stop, s.span.stop), ")")


def _constraints_by_variable(s: StatementSyntax, values: Values) -> dict[str, list[Constraint]]:
    by_variable: dict[str, list[Constraint]] = {}
    for e in s.constraints:
        values.all_constraints.setdefault(indices.constraint(e, values.scope, s), len(values.all_constraints))
    for c in values.all_constraints:
        for v in index_variables(c.expr):
            by_variable.setdefault(v, []).append(c)
    return by_variable


def _unplaced(values: Values) -> list[Constraint]:
    return [c for c in values.all_constraints if id(c) not in values.placed]


def _check_placeable(c: Constraint, s: StatementSyntax, visible: frozenset[str]) -> None:
    """A constraint of the statement names variables that the statement has."""
    missing = [v for v in index_variables(c.expr) if v not in visible]
    if not missing:
        return
    used = {node.name for node in index_nodes(s.body)}
    alone = [v for v in missing if v not in used]
    if alone:
        span = next(node.span for node in index_nodes(c.expr) if node.name in alone)
        raise UnboundIndex(
            f"the index variable `{alone[0]}` stands in constraints alone",
            span,
            hint=alike_hint(alone[0], (*visible, *used), span)
            or "an index variable must stand in an index or in the body; is its name spelled right?",
        )
    together = ", ".join(f"`{v}`" for v in index_variables(c.expr))
    raise AggregationMistake(
        "this constraint mixes the variables of two aggregations",
        c.span,
        hint=f"no aggregation has {together} together; assign one of them first",
    )


_MEAN_OF_PLACES = (
    "several elements may meet in one place: sum them, count them with `= +(in(...))`, and divide in a third statement"
)


def _check_left(s: StatementSyntax, statement: Statement, scope: FunctionScope) -> None:
    """What stands on the left: sizes that can be left out, elements of tensors, the default."""
    assert statement.index is not None and s.target.index is not None
    if statement.sizes is None:
        _check_sizes_left_out(s, statement, scope)
    if not AGGREGATIONS[statement.aggregation].data_dependent:
        for i in statement.index:
            for e in walk(i):
                if isinstance(e, Access):
                    raise AggregationMistake(
                        f"`{statement.aggregation}` cannot write where the element of a tensor says",
                        e.span,
                        hint=_MEAN_OF_PLACES
                        if statement.aggregation == "mean"
                        else "several elements may meet in one place: aggregate them with +, *, > or <",
                    )
    if statement.default is not None:
        _check_default(s, statement, scope)


def _check_default(s: StatementSyntax, statement: Statement, scope: FunctionScope) -> None:
    assert s.default is not None and statement.index is not None
    span = token_span(s.default)
    symbol = scope.find(str(s.default), span)
    if symbol.kind in ("dimension", "tuple") or symbol.name == statement.output:
        raise NameMistake(
            f"the default is a tensor assigned above or an input, and `{s.default}` is none",
            span,
            hint="assign the value in a statement above, such as Z = 1.0; and write default Z",
        )
    if symbol.rank is None:
        symbol.rank, symbol.rank_span = len(statement.index), span
    if symbol.rank != len(statement.index):
        raise RankMistake(
            f"the default `{s.default}` has rank {symbol.rank}, `{statement.output}` has rank {len(statement.index)}",
            span,
            hint=scope.rank_reason(symbol),
        )


def _check_sizes_left_out(s: StatementSyntax, statement: Statement, scope: FunctionScope) -> None:
    bare = {
        i.name
        for e in walk(*expressions(statement))
        if isinstance(e, Access) and e.tensor != statement.output
        for i in e.index
        if isinstance(i, Index)
    }
    assert statement.index is not None
    for i in statement.index:
        if isinstance(i, Index) and i.name in bare:
            continue
        reason, hint = unknown_size(i, s, statement, scope)
        raise SizeMistake(
            f"the size of `{s.target.name}` along this index cannot be known: {reason}", i.span, hint=hint
        )


def _init(s: StatementSyntax, index: tuple[Expr, ...], values: Values) -> Expr | None:
    if s.init is None:
        return None
    names = [i.name for i in index if isinstance(i, Index)]
    if len(names) < len(index) or len(set(names)) < len(names):
        raise AffineMistake(
            "`init` needs distinct bare index variables on the left", s.init_span, hint="they name the element read"
        )
    if s.target.name not in _tensors_read(s.body):
        raise AssignmentMistake(
            f"`init` is for a statement that reads its own output, and this one does not read `{s.target.name}`",
            s.init_span,
            hint=f"`default X` is what holds elements of `{s.target.name}` that nothing is written to",
        )
    for node in index_nodes(s.init, nested=False):
        if node.name not in names:
            raise AggregationMistake(
                f"the index variable `{node.name}` of `init` does not stand on the left",
                node.span,
                hint=f"`init` is the element of `{s.target.name}` at {', '.join(names) or 'its place'}",
            )
    if s.target.name in _tensors_read(s.init):
        hint = "`init` is what stands before the first step, of inputs and of tensors assigned above"
        raise AssignmentMistake(f"`init` reads `{s.target.name}` itself", s.init.span, hint=hint)
    outer, values.constraints = values.constraints, {}
    result = values.value(s.init, Region(True, frozenset(names), None))
    values.constraints = outer
    return result


def _tensors_read(e: Expr) -> set[str]:
    found, stack = set(), [e]
    while stack:
        e = stack.pop()
        if isinstance(e, Access):
            found.add(e.tensor)
        stack.extend(below(e))
    return found


def _check_bounds(s: StatementSyntax, statement: Statement, values: Values, body: Expr) -> None:
    assert statement.index is not None
    order = dict.fromkeys([*index_variables(*statement.index), *direct_variables(body)])
    where = Call("tuple", (*statement.index, s.body), span=s.span)
    values.check_bounded(order, statement, where, left=statement.index)


def _check_depth(statement: Statement) -> None:
    """Expansions and joined conditions may have made an expression deeper than what was written."""
    check_depth(statement.body)
    if statement.guard is not None:
        check_depth(statement.guard)
