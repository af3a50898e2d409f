"""Quotients of integers in values that most likely were meant to be floating: `1/2`, and `i/N` of an index variable."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.errors import Edit, Hint, Span, TypeMistake
from tilec.ir.program import Access, Aggregate, Call, Expr, Index, Int, Name, Program, children, walk

INTEGRAL = ("add", "sub", "mul", "neg")
TRUTHS = ("eq", "ne", "lt", "gt", "le", "ge", "mod", "rand", "randn")  # block numbers and counters are integers
ROUNDING_CASTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")


def truncated(program: Program) -> Iterator[TypeMistake]:
    """One for each quotient of integer literals that leaves a rest, and of an index variable by a size, in a value;
    comparisons, counters, products with integers and size statements aside."""
    dimensions = program.dimensions()
    for s in program.statements:
        roots = [e for e in (s.guard, s.body, s.init) if e is not None]
        if s.index is None and not any(_floating(e, dimensions) for e in walk(*roots)):
            continue  # arithmetic of sizes
        for root in roots:
            yield from _visit(root, dimensions)


def _floating(e: Expr, dimensions: frozenset[str]) -> bool:
    return isinstance(e, Access) or isinstance(e, Name) and e.name not in dimensions


def _visit(e: Expr, dimensions: frozenset[str]) -> Iterator[TypeMistake]:
    match e:
        case Access() | Call("shape" | "index" | "reshape"):
            return
        case Call(function) if function in TRUTHS or function in ROUNDING_CASTS:
            return
        case Call("mul", args) if all(_integral(a, dimensions) for a in args):
            return  # i/N*N rounds down
        case Call("div", (Int(a), Int(b))) if b and a % b:
            change = () if e.span is None else (Edit(e.span, f"{a}.0/{b}"),)
            yield TypeMistake(
                f"`{a}/{b}` is a quotient of integers, which truncates to {a // b}",
                e.span,
                hint=Hint(f"write {a}.0/{b} for {a / b:g}", *change),
            )
        case Call("div", (a, Name(n))) if n in dimensions and _integral(a, dimensions) and _moves(a):
            told = f"write 1.0*(...)/{n} for a fraction; a comparison or int64(...) around it says that it is meant"
            change = () if e.span is None else (Edit(Span(e.span.start, e.span.start), "1.0*"),)
            yield TypeMistake(
                f"this quotient by the size `{n}` is one of integers, which truncates", e.span, hint=Hint(told, *change)
            )
        case Aggregate():
            for x in (e.body, *e.guards):
                yield from _visit(x, dimensions)
        case _:
            for x in children(e):
                yield from _visit(x, dimensions)


def _integral(e: Expr, dimensions: frozenset[str]) -> bool:
    match e:
        case Int() | Index():
            return True
        case Name(n):
            return n in dimensions
        case Call(function, args) if function in INTEGRAL or function == "div":
            return all(_integral(a, dimensions) for a in args)
    return False


def _moves(e: Expr) -> bool:
    return any(isinstance(x, Index) for x in walk(e))
