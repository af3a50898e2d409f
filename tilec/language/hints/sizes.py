"""What to write for sizes that a statement leaves out and that nothing says: those of the tensors it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tilec.errors import Edit, Hint, Span
from tilec.ir.constraining import Branch, demands
from tilec.ir.program import Access, Aggregate, Expr, Index, Name, Statement, expressions, index_variables, walk
from tilec.language.scope import FunctionScope
from tilec.language.syntax import StatementSyntax


def size_hint(s: StatementSyntax, statement: Statement, scope: FunctionScope) -> str:
    """Each index gets the size of a dimension in which its variable stands, bare if there is one."""
    assert s.target.index is not None and statement.index is not None
    told = "give the sizes after a colon: function (X[N]) -> (Y) { Y[i : N] = ... }"
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
        reason = f"`{i.name}` names a dimension, not an index variable"
        return reason, f"an index variable begins with a lower-case letter: `{i.name.lower()}`, not `{i.name}`"
    if not isinstance(i, Index):
        return "only a bare index variable takes its size from a tensor", told
    if i.name not in index_variables(*statement.roots):
        left = index_variables(*(statement.index or ()))
        others = [f"`{v}`" for v in index_variables(*statement.roots) if v not in left]
        told = f"did you mean {' or '.join(others)}? Otherwise {told}" if others else told
        return f"`{i.name}` does not stand on the right", told
    return f"`{i.name}` does not stand bare as an index of a tensor on the right", told


def bound_hint(free: Sequence[str], region: Statement | Aggregate, scope: FunctionScope) -> str:
    """What bounds these variables of a region, and why an access in a branch of it, or of its own output, does not."""
    names = ", ".join(f"`{v}`" for v in free)
    verb = "is" if len(free) == 1 else "are"
    inside = [a for d in demands(region.guard, region.body) if isinstance(d, Branch) for a in _accesses_under(d)]
    roots = (e for e in (region.guard, region.body) if e is not None)
    own = [a for a in walk(*roots) if isinstance(a, Access) and a.tensor == scope.current]
    read = next(_indexed((a for a in inside if a not in own), free[0]), None)
    if read is not None:
        a, d = read
        dims = scope.symbols[a.tensor].dims
        size = f"shape({a.tensor}, {d})" if dims is None else dims[d]
        written = scope.source[a.span.start : a.span.stop] if a.span else a.tensor
        return (
            f"in a branch `{written}` bounds {free[0]} only where the branch is taken: "
            f"add a constraint, `..., {free[0]} < {size}`, or leave the other branch out, `c ? a`"
        )
    found = sorted(_indexed(own, free[0]), key=lambda place: not isinstance(place[0].index[place[1]], Index))
    if found:
        _, d = found[0]
        size = scope.sizes[d] if d < len(scope.sizes) else "N"
        told = f"reads of `{scope.current}` by its own statement bound nothing"
        return f"{told}: add a constraint, `..., {free[0]} < {size}`"
    return f"{names} {verb} bounded by the index of a tensor or by a constraint such as {free[0]} < N"


def _size(index: Expr, s: Statement, scope: FunctionScope) -> str | None:
    variables = index_variables(index)
    read = [e for e in walk(*expressions(s)) if isinstance(e, Access) and e.tensor != s.output]
    bare = [(a, d) for a in read for d, e in enumerate(a.index) if isinstance(e, Index) and e.name in variables]
    further = [(a, d) for a in read for d, e in enumerate(a.index) if set(variables) & set(index_variables(e))]
    for a, d in (*bare, *further):
        symbol = scope.symbols[a.tensor]
        return f"shape({a.tensor}, {d})" if symbol.dims is None else str(symbol.dims[d])
    return None


def _indexed(accesses: Iterable[Access], variable: str) -> Iterator[tuple[Access, int]]:
    """Accesses with a variable in an index, and the dimension of that index."""
    return ((a, d) for a in accesses for d, e in enumerate(a.index) if variable in index_variables(e))


def _accesses_under(branch: Branch) -> Iterator[Access]:
    for d in (*branch.yes, *branch.no):
        yield from _accesses_under(d) if isinstance(d, Branch) else (d,)
