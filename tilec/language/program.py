"""Functions of the syntax into programs: inputs, outputs, statements in order."""

from __future__ import annotations

from lark import Token

from tilec.errors import AssignmentMistake, NameMistake, Span
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import Access, Expr, Input, Name, Program
from tilec.language.desugar import EXPANSIONS
from tilec.language.inline import inliner
from tilec.language.scope import FunctionScope, Symbol, nearest
from tilec.language.statements import add_statement
from tilec.language.syntax import CallSyntax, FunctionSyntax, InputSyntax, StatementSyntax, below, token_span
from tilec.language.values import Expansion


def build_all(functions: list[FunctionSyntax], source: str) -> list[Program]:
    """The programs of a source's functions; a function may call those before it."""
    _check_names(functions)
    expansions = dict(EXPANSIONS)
    programs = []
    for f in functions:
        programs.append(_build(f, source, expansions))
        if f.name is not None:
            expansions[f.name] = inliner(programs[-1])
    return programs


def _build(function: FunctionSyntax, source: str, expansions: dict[str, Expansion]) -> Program:
    scope = FunctionScope(source)
    for s in reversed(function.statements):
        scope.later[str(s.target.name)] = token_span(s.target.name)
    inputs = free_inputs(function) if function.outputs is None else tuple(map(_input, function.inputs))
    for i in inputs:
        _declare(i, scope)
    for s in function.statements:
        add_statement(s, scope, expansions)
    return Program(function.name, inputs, _outputs(function, scope), tuple(scope.statements))


def _input(i: InputSyntax) -> Input:
    return Input(str(i.name), None if i.dims is None else tuple(i.dims), span=token_span(i.name))


def _declare(i: Input, scope: FunctionScope) -> None:
    old = scope.symbols.get(i.name)
    if old is not None:
        kind = "a dimension" if old.kind == "dimension" else "an input"
        raise NameMistake(
            f"`{i.name}` is already {kind}",
            i.span,
            hint=f"it is declared{scope.line(old.span)}; input names are distinct",
        )
    rank = None if i.dims is None else len(i.dims)
    scope.declare(Symbol(i.name, "input", i.span, rank=rank, size=rank in (0, None), dims=i.dims))
    for d in i.dims or ():
        if isinstance(d, str):
            known = scope.symbols.get(d)
            if known is None:
                scope.declare(Symbol(d, "dimension", i.span, size=True))
            elif known.kind != "dimension":
                hint = "choose another name for one of them; a dimension needs no input"
                raise NameMistake(f"`{d}` is both an input and a dimension of `{i.name}`", i.span, hint=hint)


def _outputs(function: FunctionSyntax, scope: FunctionScope) -> tuple[str, ...]:
    outputs = unread(function) if function.outputs is None else function.outputs
    if not outputs:
        raise NameMistake("a function returns at least one tensor", function.span, hint="write -> (O)")
    for token in outputs:
        symbol, span = scope.symbols.get(str(token)), token_span(token)
        if symbol is None:
            assigned = [n for n, s in scope.symbols.items() if s.kind == "statement"]
            told = f"assign it in a statement, or return what is assigned: -> ({', '.join(assigned or ['O'])})"
            raise NameMistake(
                f"the output `{token}` is never assigned",
                span,
                hint=nearest(str(token), [*assigned, *scope.symbols], span) or told,
            )
        if symbol.kind in ("dimension", "tuple"):
            hint = f"assign it to a tensor: O = {token if symbol.kind == 'dimension' else f'element({token}, 0)'};"
            raise NameMistake(f"the output `{token}` is a {symbol.kind}, not a tensor", span, hint=hint)
    return tuple(map(str, outputs))


def _names(s: StatementSyntax) -> list[tuple[str, str, Span]]:
    """Upper-case names of a statement as (name, use, place) in the order of the text; use is size, element or value."""
    found: list[tuple[str, str, Span]] = []

    def visit(root: Expr, use: str) -> None:
        stack = [(root, use)]
        while stack:
            e, use = stack.pop()
            if isinstance(e, Name) and e.span is not None:
                found.append((e.name, use, e.span))
            elif isinstance(e, Access) and e.span is not None:
                found.append((e.tensor, "element", e.span))
                use = "size"
            elif isinstance(e, CallSyntax):
                use = "value" if e.function in ("shape", "index") else use
            stack.extend([(child, use) for child in reversed(below(e))])

    for e in (*(s.target.index or ()), *(s.target.sizes or ())):
        visit(e, "size")
    visit(s.body, "value" if s.target.index is None else "size")
    for e in s.constraints:
        visit(e, "size")
    if s.default is not None:
        found.append((str(s.default), "value", token_span(s.default)))
    if s.init is not None:
        visit(s.init, "size")
    return found


def free_inputs(function: FunctionSyntax) -> tuple[Input, ...]:
    """Inputs of a bare list of statements: names that it never assigns, in order of first appearance. One that stands
    without an index beside indices or sizes is an integer or a rank-0 tensor."""
    assigned = {str(s.target.name) for s in function.statements}
    uses: dict[str, tuple[set[str], Span]] = {}
    for s in function.statements:
        for name, use, span in _names(s):
            if name not in assigned:
                uses.setdefault(name, (set(), span))[0].add(use)
    return tuple(
        Input(
            name,
            () if use == {"size"} or use == {"size", "value"} else None,
            span=Span(span.start, span.start + len(name)),
        )
        for name, (use, span) in uses.items()
    )


def unread(function: FunctionSyntax) -> list[Token]:
    """Outputs of a bare list of statements: assigned names that no later statement reads."""
    outputs: dict[str, Token] = {}
    for s in function.statements:
        for name, _, _ in _names(s):
            if name != s.target.name:
                outputs.pop(name, None)
        outputs[str(s.target.name)] = s.target.name
    return list(outputs.values())


def choose_entry(functions: list[FunctionSyntax], entry: str | None) -> int:
    """Position of the function to compile: the last, or the one that `entry` names."""
    if entry is None:
        return len(functions) - 1
    for position, f in enumerate(functions):
        if f.name == entry:
            return position
    names = [f.name for f in functions if f.name]
    known = "it has " + ", ".join(f"`{n}`" for n in names) if names else "its function has no name: leave `entry` out"
    raise NameMistake(f"the source has no function `{entry}`", None, hint=known)


def _check_names(functions: list[FunctionSyntax]) -> None:
    """Functions have distinct names that the language does not use itself; where there are several, each has one."""
    seen: dict[str, Span] = {}
    builtin = {*AGGREGATIONS, *EXPANSIONS, *(f for f, row in FUNCTIONS.items() if not row.precedence)}
    for f in functions:
        if f.name is None:
            continue
        if f.name in builtin:
            raise NameMistake(f"`{f.name}` is a function of the language", f.span, hint="choose another name")
        if f.name in seen:
            raise AssignmentMistake(f"the function `{f.name}` is defined twice", f.span, hint="choose another name")
        seen[f.name] = f.span
