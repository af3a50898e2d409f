"""Trigonometric identities that save a function's evaluation or digits, applied to flat programs.

Each row of IDENTITY_RULES is exact in real arithmetic and no less accurate in floating arithmetic than what it
replaces, on the whole range (tests/transforms/test_identities.py measures every row): multiplying by 2 or 1/2 is exact,
and 1 - cos u cancels where 2 sin(u/2)^2 does not. A function that the program computes of the same argument elsewhere
is shared, so that a rule which would take it away here saves nothing and is not applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.ir.functions import ONE, TWO, call
from tilec.ir.program import Call, Expr, Float, Int, Program, Statement, expressions, map_expressions, rebuild, walk
from tilec.transforms.util.kinds import FLOATING, TensorKinds, kinds, statement_kinds

Uses = Counter[Expr]
FactorPart = tuple[str, Expr]
IdentityRule = Callable[[Call, Uses, TensorKinds], tuple[Expr, Expr] | None]


def apply_identities(program: Program, inputs: TensorKinds) -> Program:
    """The program with the rules applied wherever they pay; `inputs` are the kinds that inputs have."""
    found = (e for s in program.statements for e in walk(*expressions(s)))
    uses: Uses = Counter(e for e in found if isinstance(e, Call) and e.function in ("sin", "cos"))
    if not uses:
        return program
    known = dict(inputs)
    statements: list[Statement] = []
    for s in program.statements:
        statements.append(_rewritten(s, uses, known))
        known[s.output] = statement_kinds(s, known)
    return replace(program, statements=tuple(statements))


def _rewritten(s: Statement, uses: Uses, known: TensorKinds) -> Statement:
    if not any(e in uses for e in walk(*expressions(s))):
        return s

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Call):
            return e
        for rule in IDENTITY_RULES:
            result = rule(e, uses, known)
            if result is not None and kinds(result[1], known) == FLOATING:  # 2 u of an integer u may wrap
                return visit(result[0])
        return rebuild(e, visit)

    return map_expressions(s, visit)


def _sine_and_cosine(e: Call, uses: Uses, known: TensorKinds) -> tuple[Expr, Expr] | None:
    """`a * sin(u) * b * cos(u)` is `a * (0.5 * sin(2 u)) * b`; a factor 2 and the 0.5 go together. The first of the two
    is replaced and the later one left out, so that everything that follows the first keeps its type."""
    chain = _chain(e)
    first = next((k for k, (f, x) in enumerate(chain) if f == "mul" and _other(x) in uses and uses[x] == 1), None)
    if first is None:
        return None
    one = chain[first][1]
    other = _other(one)
    later = next((k for k in range(first + 1, len(chain)) if chain[k] == ("mul", other)), None)
    if other is None or later is None or uses[other] != 1:
        return None
    (u,) = other.args
    doubled: Expr = call("sin", TWO * u)
    dropped = {later}
    two = next((k for k, part in enumerate(chain) if part == ("mul", TWO) and _may_go(chain, k, first, known)), None)
    if two is None:
        doubled = Float(0.5) * doubled
    else:
        dropped.add(two)
    return _product([(f, doubled if k == first else x) for k, (f, x) in enumerate(chain) if k not in dropped]), u


def _may_go(chain: Sequence[FactorPart], k: int, first: int, known: TensorKinds) -> bool:
    """Whether a factor 2 may be left out without a change of what the rest computes in."""
    if k > first or k == 0 and first == 1:
        return True
    return k > 0 and kinds(_product(chain[:k]), known) == FLOATING


def _product(chain: Sequence[FactorPart]) -> Expr:
    (_, result), *rest = chain
    for f, x in rest:
        result = -result if f == "neg" else Call(f, (result, x))
    return result


def _chain(e: Expr) -> list[FactorPart]:
    """`a * b / c * d` as its first factor and what follows it, each with its function; a sign has no operand."""
    parts: list[FactorPart] = []
    while isinstance(e, Call) and e.function in ("mul", "div", "neg"):
        parts.append((e.function, e.args[-1]))
        e = e.args[0]
    return [("mul", e), *reversed(parts)]


def _other(e: Expr) -> Call | None:
    """The cosine that goes with a sine, and the other way round."""
    match e:
        case Call("sin" | "cos", args):
            return Call("cos" if e.function == "sin" else "sin", args)
    return None


def _one_minus_cosine(e: Call, uses: Uses, known: TensorKinds) -> tuple[Expr, Expr] | None:
    """`1 - cos(u)` is `2 sin(u/2)^2`, which keeps its digits for small u, and `cos(u) - 1` the negative of that."""
    match e:
        case Call("sub", (Int(1) | Float(1.0), Call("cos", (u,)) as cosine)):
            sign = 1
        case Call("sub", (Call("cos", (u,)) as cosine, Int(1) | Float(1.0))):
            sign = -1
        case _:
            return None
    if uses[cosine] != 1:
        return None
    sine = call("sin", _half(u, known) or Float(0.5) * u)
    square = TWO * (sine * sine)
    return square if sign > 0 else -square, u


IDENTITY_RULES: tuple[IdentityRule, ...] = (_sine_and_cosine, _one_minus_cosine)


def _half(u: Expr, known: TensorKinds) -> Expr | None:
    """u/2 where a factor of u is an even literal; not of a product of integers, which may have wrapped."""
    match u:
        case Int(n) if n % 2 == 0 and n:
            return Int(n // 2)
        case Call("mul", (a, b)) if kinds(u, known) == FLOATING:
            left = _half(a, known)
            if left is not None:
                return b if left == ONE else left * b
            right = _half(b, known)
            return None if right is None else a if right == ONE else a * right
        case Call("div", (a, b)) if kinds(u, known) == FLOATING:
            left = _half(a, known)
            return None if left is None else left / b
    return None
