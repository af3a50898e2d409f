"""Sizes of torch's graphs as Tile: integers, dimension names and arithmetic of both."""

from __future__ import annotations

import sympy
import torch

from tilec.errors import Unsupported

_NAMES = "N M K L P Q R S T U V W A B C D E F G H I J".split()


class SizeNames:
    """Gives dimension names to the symbols of a graph."""

    def __init__(self) -> None:
        self.names: dict[sympy.Symbol, str] = {}

    def declared(self, size: int | torch.SymInt, taken: set[str]) -> str:
        """A dimension of an input: a number, or the name of its symbol."""
        found = _expression(size)
        if found.is_Integer:
            return str(int(found))
        if not isinstance(found, sympy.Symbol):
            raise Unsupported(f"an input's size is {found}")
        if found not in self.names:
            unused = (n for n in (*_NAMES, *(f"N{k}" for k in range(1, 1000))) if n not in taken)
            self.names[found] = next(n for n in unused if n not in self.names.values())
        return self.names[found]

    def equate(self, a: int | torch.SymInt, b: int | torch.SymInt) -> None:
        """Two sizes that torch leaves apart and an operation needs equal have one name."""
        first, second = _expression(a), _expression(b)
        if isinstance(first, sympy.Symbol) and isinstance(second, sympy.Symbol):
            self.names[second] = self.names[first]

    def text(self, size: int | torch.SymInt) -> str:
        """A size in an output, a condition or an index."""
        return self._printed(_expression(size))

    def _printed(self, e: sympy.Expr) -> str:
        if e.is_Integer:
            return str(int(e))
        if isinstance(e, sympy.Symbol) and e in self.names:
            return self.names[e]
        if e.is_Add:
            terms = sorted(e.args, key=lambda t: t.is_Integer)
            return "(" + " + ".join(map(self._printed, terms)).replace("+ -", "- ") + ")"
        if e.is_Mul and all(a.is_Integer or not a.is_number for a in e.args):
            return " * ".join(map(self._printed, e.args))
        name, parts = type(e).__name__, [self._printed(a) for a in e.args]
        if name in ("FloorDiv", "CleanDiv"):
            return f"({parts[0]} / {_closed(parts[1])})"
        if name in ("Mod", "PythonMod"):
            return f"({parts[0]} % {_closed(parts[1])})"
        if name in ("Max", "Min"):
            found = parts[0]
            for part in parts[1:]:
                found = f"{name.lower()}({found}, {part})"
            return found
        raise Unsupported(f"the size {e} has no form in Tile")


def _closed(text: str) -> str:
    return text if text.isalnum() or text.startswith("(") else f"({text})"


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(int(size))
