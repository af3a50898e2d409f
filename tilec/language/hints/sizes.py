"""What to write for sizes that a statement leaves out and that nothing says: those of the tensors it reads."""

from __future__ import annotations

from tilec.errors import Edit, Hint, Span
from tilec.ir.program import Access, Expr, Index, Name, Statement, expressions, index_variables, walk
from tilec.language.scope import FunctionScope
from tilec.language.syntax import StatementSyntax


def size_hint(s: StatementSyntax, statement: Statement, scope: FunctionScope) -> str:
    """Each index gets the size of a dimension in which its variable stands, bare if there is one."""
    assert s.target.index is not None and statement.index is not None
    places = ", ".join(["..."] * len(statement.index))
    told = f"give the sizes after a colon: {s.target.name}[... : {places}]"
    found = [_size(i, statement, scope) for i in statement.index]
    left = [scope.source[i.span.start : i.span.stop] for i in s.target.index if i.span is not None]
    if None in found or len(left) < len(found):
        return told
    sizes = ", ".join(map(str, found))
    text = f"{s.target.name}[{', '.join(left)} : {sizes}]"
    end = s.target.span.stop - 1
    return Hint(f"give the sizes after a colon, such as {text}", Edit(Span(end, end), f" : {sizes}"))


def unknown_size(i: Expr, s: StatementSyntax, statement: Statement, scope: FunctionScope) -> tuple[str, str]:
    """Why the size along an index of the output cannot be known, and what to write."""
    told = size_hint(s, statement, scope)
    if isinstance(i, Name):
        reason = "only a bare index variable takes its size from a tensor"
        return reason, f"an index variable begins with a lower-case letter: `{i.name.lower()}`, not `{i.name}`"
    if not isinstance(i, Index):
        return "only a bare index variable takes its size from a tensor", told
    if i.name not in index_variables(*statement.roots):
        left = index_variables(*(statement.index or ()))
        others = [f"`{v}`" for v in index_variables(*statement.roots) if v not in left]
        told = f"did you mean {' or '.join(others)}? Otherwise {told}" if others else told
        return f"`{i.name}` does not stand on the right", told
    return f"`{i.name}` does not stand bare as an index of a tensor on the right", told


def _size(index: Expr, s: Statement, scope: FunctionScope) -> str | None:
    variables = index_variables(index)
    read = [e for e in walk(*expressions(s)) if isinstance(e, Access) and e.tensor != s.output]
    bare = [(a, d) for a in read for d, e in enumerate(a.index) if isinstance(e, Index) and e.name in variables]
    further = [(a, d) for a in read for d, e in enumerate(a.index) if set(variables) & set(index_variables(e))]
    for a, d in (*bare, *further):
        symbol = scope.symbols[a.tensor]
        return f"shape({a.tensor}, {d})" if symbol.dims is None else str(symbol.dims[d])
    return None
