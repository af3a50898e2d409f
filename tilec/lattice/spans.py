"""The least and the greatest value of integers in a body: what fits in 32 bits is computed in these."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

from tilec.errors import TileError
from tilec.ir.functions import FUNCTIONS
from tilec.ir.infer import expression_types
from tilec.ir.program import Access, Call, Expr, Index, Int
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import Types

Ends = tuple[int, int]
WIDEST = 2**31 - 2**20  # of 32 bits; what stands where blocks overhang is no value
OF_DTYPES: dict[str, Ends] = {
    "bool": (0, 1), "uint8": (0, 2**8 - 1), "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1),
}  # fmt: skip
IN_32_BITS = ("add", "sub", "mul", "neg", "abs", "max", "min", "mod", "div")  # what integers of 32 bits have as well
# functions that have their extremes where their arguments have them
_AT_ENDS: dict[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "max": max, "min": min,
    "ident": lambda x: x, "int64": lambda x: x,
    "div": lambda x, n: x // n if x >= 0 else -(-x // n),
}  # fmt: skip


class EndsOf:
    """Those over all points. `variables`: of an index variable, None where that is not known."""

    def __init__(self, variables: Callable[[str], Ends | None], types: Types):
        self.variables, self.types = variables, types
        self._type = expression_types(types)
        self._known: dict[Expr, Ends | None] = {}

    def of(self, e: Expr) -> Ends | None:
        """Least and greatest value; None where it may be beyond 32 bits, or is not known to be an integer."""
        if e not in self._known:
            found = self._found(e)
            if found is not None and isinstance(e, Call):
                found = self._wrapped(e, found)
            fits = found is not None and -WIDEST < found[0] <= found[1] < WIDEST
            self._known[e] = found if fits else None
        return self._known[e]

    def _wrapped(self, e: Call, found: Ends) -> Ends | None:
        """The same of a type that may be narrower than the span."""
        try:
            dtype = self._type(e).dtype
        except TileError:
            return None
        low, high = OF_DTYPES.get(dtype, found)
        inside = low <= found[0] and found[1] <= high
        return None if dtype not in (*OF_DTYPES, "int32", "int64") else found if inside else (low, high)

    def _found(self, e: Expr) -> Ends | None:
        match e:
            case Int(n):
                return n, n
            case Index(v):
                return self.variables(v)
            case Access(tensor):
                return OF_DTYPES.get(self.types[tensor].dtype)
            case Call(function, _) if FUNCTIONS[function].result == "bool":
                return 0, 1
            case Call("select", (_, a, b)):
                spans = self.of(a), self.of(b)
                return None if None in spans else (min(s[0] for s in spans if s), max(s[1] for s in spans if s))
            case Call("abs", (x,)):
                span = self.of(x)
                return None if span is None else (0, max(map(abs, span)))
            case Call("mod", (x, Int(n))):
                return None if is_symbolic(n) or n <= 0 or self.of(x) is None else (0, n - 1)
            case Call("div", (_, n)) if not isinstance(n, Int) or is_symbolic(n.value) or n.value <= 0:
                return None
            case Call(function, parts) if function in _AT_ENDS:
                ends = [span for x in parts if (span := self.of(x)) is not None]
                if len(ends) == len(parts):
                    found = [_AT_ENDS[function](*values) for values in itertools.product(*ends)]
                    return min(found), max(found)
        return None
