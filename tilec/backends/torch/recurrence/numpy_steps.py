"""A recurrence's steps on the CPU in NumPy, where they are elementwise: a ufunc on a short row that writes where it is
told costs a third of a torch call, and the rows share torch's memory.

The operations are the same in the same order, so for arithmetic and comparisons the results are the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.backends.common.code import FreshNames, literal, tuple_text
from tilec.backends.common.scalars import count_uses
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Int
from tilec.ir.types import Types, is_floating

MOST_NUMPY_LANES = 2**12  # beyond that torch's passes over memory are worth more than its calls cost
UFUNCS = {
    "add": "np.add", "sub": "np.subtract", "mul": "np.multiply", "div": "np.true_divide", "neg": "np.negative",
    "max": "np.maximum", "min": "np.minimum", "abs": "np.abs", "exp": "np.exp", "log": "np.log", "tanh": "np.tanh",
    "sqrt": "np.sqrt", "log1p": "np.log1p", "expm1": "np.expm1",
}  # fmt: skip
INTEGER_UFUNCS = ("add", "sub", "mul", "neg", "max", "min")  # which wrap as torch's do
SLOW_FUNCTIONS = {"logaddexp": "np.logaddexp"}  # element by element: for few lanes only
FEW_NUMPY_LANES = 128
NUMPY_COMPARISONS = {"eq": "np.equal", "ne": "np.not_equal", "lt": "np.less", "gt": "np.greater", "le": "np.less_equal",
               "ge": "np.greater_equal"}  # fmt: skip


class HostStep:
    """The lines of one step; `before` allocates what they need. `rows` names a step's slice of each pseudo-tensor."""

    def __init__(self, body: Expr, types: Types, dtype: str, lanes: Sequence[int], names: FreshNames):
        self.types, self.dtype, self.lanes, self.names = types, dtype, tuple(lanes), names
        self.before: list[str] = []
        self.lines: list[str] = []
        self.rows: dict[str, str] = {}
        self._known: dict[Expr, str] = {}
        self._uses = count_uses([body])

    def suits(self, e: Expr) -> bool:
        """Is the expression elementwise arithmetic in the recurrence's own type?"""
        count, whole = math.prod(self.lanes), self.dtype in ("int32", "int64")
        if not whole and self.dtype not in ("float32", "float64") or count > MOST_NUMPY_LANES:
            return False
        match e:
            case Int(n):
                return not whole or -(2**31) <= n < 2**31
            case Float():
                return not whole
            case Access(tensor):
                return self.types[tensor].dtype == self.dtype and (whole or not self.types[tensor].weak)
            case Call("select", (c, a, b)):
                return self.test(c) and self.suits(a) and self.suits(b)
            case Call(function, args):
                few = function in SLOW_FUNCTIONS and count <= FEW_NUMPY_LANES
                known = function in INTEGER_UFUNCS if whole else few or function in UFUNCS or function == "relu"
                own = expression_type(e, self.types).dtype == self.dtype
                return known and own and all(map(self.suits, args))
        return False

    def test(self, e: Expr) -> bool:
        match e:
            case Access(tensor):
                return self.types[tensor].dtype == "bool"
            case Call(function, args) if function in NUMPY_COMPARISONS:
                return expression_type(Call("add", args), self.types).dtype == self.dtype and all(map(self.suits, args))
            case Call("and" | "or", args):
                return all(map(self.test, args))
        return False

    def write(self, e: Expr, row: str, mask: Sequence[Expr]) -> None:
        """Lines after which the row holds the expression, where all of the masks hold."""
        target = row if not mask else self._room(self.dtype)
        found = self._value(e, target)
        if mask:
            test = self._test(mask[0])
            for m in mask[1:]:
                test = f"({test} & {self._test(m)})"
            self.lines.append(f"np.copyto({row}, {found}, where={test})")
        elif found != target:
            self.lines.append(f"{row}[...] = {found}")

    def _room(self, dtype: str) -> str:
        name = self.names.fresh("room")
        shape = tuple_text(self.lanes or (1,))
        self.before.append(f"{name} = np.empty({shape}, {dtype!r})")
        return name

    def _row(self, e: Access) -> str:
        if e.tensor not in self.rows:
            self.rows[e.tensor] = self.names.fresh("x")
        return self.rows[e.tensor]

    def _number(self, n: float) -> str:
        key = Float(float(n))
        if key not in self._known:
            name = self._known[key] = self.names.fresh("number")
            shape = tuple_text(self.lanes or (1,))  # whole rows: NumPy is slower where an operand is broadcast
            number = literal(float(n)) if is_floating(self.dtype) else str(n)
            self.before.append(f"{name} = np.full({shape}, {number}, {self.dtype!r})")
        return self._known[key]

    def _value(self, e: Expr, target: str | None = None) -> str:
        """The name of an array that holds the value: the target, unless it is there already."""
        match e:
            case Int(n) | Float(n):
                return self._number(n)
            case Access():
                return self._row(e)
        assert isinstance(e, Call)
        if e in self._known:
            return self._known[e]
        if e.function == "select":  # a new array costs less than a copy under a mask
            test, a, b = e.args
            operands = [self._test(test), self._value(a), self._value(b)]
            name = self._known[e] = self.names.fresh("chosen")
            self.lines.append(f"{name} = np.where({', '.join(operands)})")
            return name
        shared = self._uses[e] > 1
        if shared or target is None:
            target = self._room(self.dtype)
        if e.function == "relu":
            self.lines.append(f"np.maximum({self._value(e.args[0], target)}, {self._number(0)}, out={target})")
        else:
            operands = [self._value(a, target if k == 0 else None) for k, a in enumerate(e.args)]
            ufunc = UFUNCS.get(e.function) or SLOW_FUNCTIONS[e.function]
            self.lines.append(f"{ufunc}({', '.join(operands)}, out={target})")
        if shared:
            self._known[e] = target
        return target

    def _test(self, e: Expr) -> str:
        match e:
            case Access():
                return self._row(e)
            case Call("and" | "or", (a, b)):
                return f"({self._test(a)} {'&' if e.function == 'and' else '|'} {self._test(b)})"
        assert isinstance(e, Call)
        return f"{NUMPY_COMPARISONS[e.function]}({', '.join(self._value(a) for a in e.args)})"
