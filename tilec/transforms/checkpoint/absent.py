"""Gradients without the cotangents of outputs that nothing reads: what is made of these alone is zero.

Zeros in their place would be multiplied by derivatives, and 0 * inf is not nothing: beside `Y = 3 * X`, `Z = log(X)`
would make the gradient NaN where X is 0, though no result depends on Z. So factors of such a zero only ask what they
ask of a point, `DZ[i] / X[i]` is `DZ[i] * in(X[i])`, and terms that ask nothing else are left out of sums.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilec.ir.functions import ONE, call, is_zero
from tilec.ir.infer import expression_types, infer, statement_type
from tilec.ir.program import Access, Call, Expr, Inside, Pad, Program, Statement, reads_itself
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import CASTS, Types
from tilec.transforms.lower.reduce import keep_constraint_variables

_LINEAR = ("sum", "mean", "assign")


def without_cotangents(program: Program, absent: Collection[str], inputs: Types) -> Program:
    """A flat gradient program, linear in its cotangents, in which those named are zeros. `inputs`: types of the
    inputs, whose sizes may be open."""
    if not absent:
        return program
    types = infer(program, inputs)
    zeros = set(absent)
    statements = []
    for s in program.statements:
        made, is_nothing = _shortened(s, zeros, types)
        statements.append(made)
        zeros |= {s.output} if is_nothing else set()
    return replace(program, statements=tuple(statements))


def _shortened(s: Statement, zeros: Collection[str], types: Types) -> tuple[Statement, bool]:
    """The statement, and whether its output is zero."""
    linear = s.aggregation in _LINEAR and (s.default is None or s.default in zeros) and s.init is None
    if linear and reads_itself(s):  # zero from the first step on
        body, is_nothing = _Terms({*zeros, s.output}, types).of(s.body)
        linear = is_nothing
    if not linear or not reads_itself(s):
        body, is_nothing = _Terms(zeros, types).of(s.body)
    made = s if body == s.body else keep_constraint_variables(replace(s, body=body))
    same = made is s or statement_type(made, types) == types[s.output]
    return (made, is_nothing and linear) if same else (s, False)


class _Terms:
    """Expressions where the tensors `zeros` are zero."""

    def __init__(self, zeros: Collection[str], types: Types):
        self._zeros, self._types = zeros, types
        self._typed = expression_types(types)

    def of(self, e: Expr) -> tuple[Expr, bool]:
        """The expression, and whether it is zero."""
        match e:
            case Access():
                return e, e.tensor in self._zeros
            case Pad(Access(tensor), value):
                return e, tensor in self._zeros and (is_zero(value) or self.of(value)[1])
            case Call("mul", (a, b)):
                (a, no_a), (b, no_b) = self.of(a), self.of(b)
                if no_a == no_b:
                    return _with(e, a, b), no_a
                return self._nothing(e, *((a, b) if no_a else (b, a))), True
            case Call("div", (a, b)):
                a, nothing = self.of(a)
                return (self._nothing(e, a, b), True) if nothing else (_with(e, a, b), False)
            case Call("add" | "sub", (a, b)):
                (a, no_a), (b, no_b) = self.of(a), self.of(b)
                whole = _with(e, a, b)
                if no_a == no_b:
                    return whole, no_a
                left, gone = (b, a) if no_a else (a, b)
                left = -left if no_a and e.function == "sub" else left
                alike = self._typed(left) == self._typed(e) and self._asked(gone) <= self._asked(left)
                return left if alike else whole, False
            case Call("select", (condition, a, b)):
                (a, no_a), (b, no_b) = self.of(a), self.of(b)
                return _with(e, condition, a, b), (no_a or is_zero(a)) and (no_b or is_zero(b))
            case Call("neg" | "ident", (a,)):
                a, nothing = self.of(a)
                return _with(e, a), nothing
            case Call(function, (a,)) if function in CASTS:
                a, nothing = self.of(a)
                return _with(e, a), nothing
        return e, False

    def _nothing(self, e: Expr, zero: Expr, factor: Expr) -> Expr:
        """The product `e` of a zero and what may be no number, in its type."""
        made = zero
        for f in _asks(factor):
            made = made * f
        return made if self._typed(made) == self._typed(e) else call(self._typed(e).dtype, made)

    def _asked(self, e: Expr) -> set[object]:
        """What the expression asks of a point, as far as sizes are written alike."""
        return {self._place(f.access) if isinstance(f, Inside) else f for f in _asks(e)}

    def _place(self, a: Access) -> object:
        shape = self._types[a.tensor].shape
        return a.index, tuple([n.text if is_symbolic(n) else n for n in shape])  # type: ignore[attr-defined]


def _with(e: Call, *args: Expr) -> Expr:
    return e if all(a is b for a, b in zip(args, e.args, strict=True)) else replace(e, args=args)


def _asks(e: Expr) -> list[Expr]:
    """Factors that are one and ask of a point what the expression does."""
    match e:
        case Access():
            return [Inside(e)]
        case Inside():
            return [e]
        case Pad():
            return _asks(e.value)
        case Call("select", (condition, a, b)):
            yes, no = _asks(a), _asks(b)
            branches = yes if yes == no else [Call("select", (condition, _product(yes), _product(no)))]
            return _once([*_asks(condition), *branches])
        case Call():
            return _once([f for a in e.args for f in _asks(a)])
    return []


def _once(factors: list[Expr]) -> list[Expr]:
    return list(dict.fromkeys(factors))


def _product(factors: list[Expr]) -> Expr:
    made: Expr = ONE
    for f in factors:
        made = f if made == ONE else made * f
    return made
