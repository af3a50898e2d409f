"""What is known of an elementwise expression before any size is: its rank, and whether it is size arithmetic."""

from __future__ import annotations

from tilec.ir.functions import RANDOM
from tilec.ir.program import Access, Aggregate, Call, Expr, Inside, Int, Name, Pad
from tilec.language.indices import SIZE_FUNCTION_ARITIES, SIZE_OPERATORS
from tilec.language.scope import FunctionScope


def rank_of(e: Expr, scope: FunctionScope) -> int | None:
    """Rank of an elementwise expression, where the ranks of what it reads are known. Seeds have rank 0."""
    ranks: list[int | None] = [0]
    stack = [e]
    while stack:
        e = stack.pop()
        match e:
            case Name():
                symbol = scope.symbols[e.name]
                ranks.append(0 if symbol.size and symbol.rank is None and symbol.kind == "dimension" else symbol.rank)
            case Call():
                rule = _RANKS.get(e.function)
                if rule is None:
                    stack.extend(e.args[:1] if e.function == "as_type" else e.args[e.function in RANDOM :])
                else:
                    ranks.append(rule(e, [scope.symbols[a.name].rank if isinstance(a, Name) else 0 for a in e.args]))
            case Pad():
                stack.append(e.value)
            case Aggregate() | Access() | Inside():
                pass
    known = [r for r in ranks if r is not None]
    return max(known) if len(known) == len(ranks) else None


def _reshaped(e: Call, ranks: list[int | None]) -> int | None:
    last = e.args[-1]
    if isinstance(last, Call) and last.function == "shape" and len(last.args) == 1:
        return None
    return len(e.args) - 1


def _gathered(e: Call, ranks: list[int | None]) -> int | None:
    data, places = ranks
    return None if data is None or places is None else places + max(data - 1, 0)


_RANKS = {
    "reshape": _reshaped,
    "gather": _gathered,
    "scatter": lambda e, ranks: ranks[2],
    "simple_reduce": lambda e, ranks: ranks[1],
    "shape": lambda e, ranks: 1 if len(e.args) == 1 else 0,
    "index": lambda e, ranks: ranks[0],
}


def is_size(e: Expr, scope: FunctionScope) -> bool:
    """Is the body of an elementwise statement size arithmetic?"""
    stack = [e]
    while stack:
        node = stack.pop()
        match node:
            case Int():
                pass
            case Call("shape", (Name(), Int())):
                pass  # a size, whatever the tensor holds
            case Call():
                if node.function not in SIZE_OPERATORS and node.function not in SIZE_FUNCTION_ARITIES:
                    return False
                if node.function == "shape":
                    return False
                stack.extend(node.args)
            case Name():
                if not scope.symbols[node.name].size:
                    return False
            case _:
                return False
    return True
