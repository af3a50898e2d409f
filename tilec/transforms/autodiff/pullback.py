"""Reverse mode through one scalar expression: the cotangent of every tensor element it reads.

A cotangent is a value and the conditions under which it is not zero. Conditions are kept apart so that no derivative is
multiplied by a zero that ought to have hidden it (0 * inf), and so that they can become the guard of a statement.
Products are taken as a whole: the cotangent of a factor is the cotangent of the product times the other factors, in the
order of the source. A body of n nodes and depth d gives at most n cotangents of d factors, each of at most n nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilec.ir.functions import FUNCTIONS, ONE, ZERO
from tilec.ir.program import Access, Aggregate, Call, Expr, Float, Inside, Int, Name, Pad, children, walk
from tilec.transforms.simplify.simplify import fold, is_bool, truth
from tilec.transforms.util.kinds import FLOATING, kinds

MOST_IN_A_ROW = 16  # factors or conditions in a row, beyond which they are grouped


@dataclass(frozen=True)
class Cotangent:
    """`value` where every one of `masks` is true, otherwise 0."""

    value: Expr
    masks: tuple[Expr, ...] = ()

    def where(self, *masks: Expr) -> Cotangent | None:
        """The same under further conditions; None where one of them is known to be false."""
        kept = list(self.masks)
        for m in map(fold, masks):
            known = truth(m)
            if known is False:
                return None
            if known is None and m not in kept:
                kept.append(m)
        return Cotangent(self.value, tuple(kept))

    def times(self, *factors: Expr) -> Cotangent:
        """The product; a factor by which the value is divided takes that division away."""
        value = self.value
        for f in factors:
            undone = _undivided(value, f)
            value = product(value, f) if undone is None else undone
        return Cotangent(value, self.masks)

    def over(self, divisor: Expr) -> Cotangent:
        return self if divisor == ONE else Cotangent(self.value / divisor, self.masks)

    def expression(self) -> Expr:
        """A mask that reads what those before it do not stands in their branch: there alone its reads constrain."""
        groups: list[list[Expr]] = []
        read: set[Expr] = set()
        for mask in self.masks:
            reads = {e for e in walk(mask) if isinstance(e, Access)}
            if not groups or reads - read:
                groups.append([])
            groups[-1].append(mask)
            read |= reads
        result = self.value
        for group in reversed(groups):
            condition = conjunction(tuple(group))
            assert condition is not None
            result = Call("select", (condition, result, ZERO))
        return result


def _undivided(e: Expr, divisor: Expr) -> Expr | None:
    """A chain of factors and divisors without a division by this one; None where it has none, or a literal."""
    if isinstance(divisor, (Int, Float)):
        return None
    above: list[Call] = []
    while isinstance(e, Call) and e.function in ("mul", "div", "neg"):
        if e.function == "div" and e.args[1] == divisor:
            e = e.args[0]
            for call in reversed(above):
                e = replace(call, args=(e, *call.args[1:]))
            return e
        above.append(e)
        e = e.args[0]
    return None


def product(first: Expr, *others: Expr) -> Expr:
    """A product from left to right, without factors that are the literal 1."""
    for factor in others:
        first = factor if first == ONE else first if factor == ONE else first * factor
    return first


def _joined(function: str, operands: list[Expr]) -> Expr:
    """All operands under an associative function: from left to right, or as a balanced tree where they are many."""
    if len(operands) > MOST_IN_A_ROW:
        half = len(operands) // 2
        return Call(function, (_joined(function, operands[:half]), _joined(function, operands[half:])))
    result, *others = operands
    for e in others:
        result = Call(function, (result, e))
    return result


def shortened(e: Expr) -> Expr:
    """A long chain of factors and divisors with these gathered in groups, so that its text is not nested too deeply."""
    factors: list[Expr] = []
    divisors: list[Expr] = []
    negative, base = False, e
    while isinstance(base, Call) and base.function in ("mul", "div", "neg"):
        negative ^= base.function == "neg"
        if base.function != "neg":
            (factors if base.function == "mul" else divisors).insert(0, base.args[1])
        base = base.args[0]
    if len(factors) + len(divisors) <= MOST_IN_A_ROW:
        return e
    for k in range(0, max(len(factors), len(divisors)), MOST_IN_A_ROW):
        if factors[k : k + MOST_IN_A_ROW]:
            base = base * _joined("mul", factors[k : k + MOST_IN_A_ROW])
        if divisors[k : k + MOST_IN_A_ROW]:
            base = base / _joined("mul", divisors[k : k + MOST_IN_A_ROW])
    return -base if negative else base


def conjunction(conditions: tuple[Expr, ...]) -> Expr | None:
    """All of the conditions, as one; None if there are none."""
    distinct = list(dict.fromkeys(conditions))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    return _joined("and", [c if is_bool(c) else Call("ne", (c, ZERO)) for c in distinct])


def negation(condition: Expr) -> Expr:
    """True where the condition is false. Comparisons with NaN are false: only == and != are each other's negation."""
    opposite = {"eq": "ne", "ne": "eq"}
    if isinstance(condition, Call) and condition.function in opposite:
        return Call(opposite[condition.function], condition.args)
    return Call("eq", (condition, ZERO))


def known(masks: tuple[Expr, ...]) -> tuple[list[Expr], list[Expr]]:
    """The conditions that are true, and those that are false, where all the masks hold."""
    opposite = {"eq": "ne", "ne": "eq"}
    true, false = list(masks), []
    for m in masks:
        match m:
            case Call("eq", (condition, zero)) if zero == ZERO:
                false.append(condition)
        if isinstance(m, Call) and m.function in opposite:
            false.append(Call(opposite[m.function], m.args))
    return true, false


def total(terms: list[Cotangent]) -> Cotangent:
    """The sum of cotangents; conditions that all share stay conditions, equal terms are counted, and of two of which a
    condition hides one or the other it chooses one."""
    shared = tuple(m for m in terms[0].masks if all(m in t.masks for t in terms))
    counts: dict[Cotangent, int] = {}
    for t in terms:
        own = Cotangent(t.value, tuple(m for m in t.masks if m not in shared))
        counts[own] = counts.get(own, 0) + 1
    counted = [t if n == 1 else Cotangent(t.value * Int(n), t.masks) for t, n in counts.items()]
    first, *others = (t.expression() for t in _either(counted))
    if len(others) > MOST_IN_A_ROW:
        return Cotangent(_joined("add", [first, *others]), shared)
    for e in others:
        first = first - e.args[0] if isinstance(e, Call) and e.function == "neg" else first + e
    return Cotangent(first, shared)


def _either(terms: list[Cotangent]) -> list[Cotangent]:
    """With one choice in the place of two terms that differ in one condition, which hides the one or the other."""
    found: list[Cotangent] = []
    for t in terms:
        place = next((k for k, other in enumerate(found) if _apart(t, other) or _apart(other, t)), None)
        if place is None:
            found.append(t)
            continue
        yes, no = (found[place], t) if _apart(found[place], t) else (t, found[place])
        found[place] = Cotangent(Call("select", (yes.masks[-1], yes.value, no.value)), yes.masks[:-1])
    return found


def _apart(a: Cotangent, b: Cotangent) -> bool:
    """Do the two differ in their last condition, which of `b` is the negation of that of `a`?"""
    return bool(a.masks) and b.masks == (*a.masks[:-1], negation(a.masks[-1]))


@dataclass(frozen=True)
class Leaf:
    """A tensor element (or a whole tensor, by name) that an expression reads, its cotangent, and where it stands."""

    read: Access | Name
    cotangent: Cotangent
    scope: object


def pull_back(
    body: Expr,
    cotangent: Cotangent,
    scope,
    active: Callable[[str], bool],
    enter: Callable[[Aggregate, Cotangent, object], tuple[Cotangent, object] | None],
    known: Expr | None = None,
) -> Iterator[Leaf]:
    """Every read of an active tensor in `body` with its cotangent, in the order of the source.

    `enter(aggregate, cotangent, scope)` gives the cotangent of a nested aggregation's body and the scope that its
    leaves stand in, or None where nothing flows into it. `known` is an expression that already holds the body's value,
    and that of each of its branches where it is chosen.
    """
    live = live_nodes(body, active)
    stack: list[tuple[Expr, Cotangent, object, Expr | None]] = [(body, cotangent, scope, known)]
    while stack:
        e, g, where, present = stack.pop()
        if id(e) not in live:
            continue
        match e:
            case Access() | Name():
                yield Leaf(e, Cotangent(shortened(g.value), g.masks), where)
            case Pad():
                outside = g.where(Call("eq", (Pad(inside(e.access), ZERO), ZERO)))
                if outside is not None:
                    stack.append((e.value, outside, where, None))
                stack.append((e.access, g, where, None))
            case Aggregate():
                inner = enter(e, g, where)
                if inner is not None:
                    stack.append((e.body, *inner, None))
            case Call():
                found = arguments(e, g, e if present is None else present, live)
                branch = present if e.function == "select" else None
                stack.extend(reversed([(a, c, where, branch) for a, c in found if c is not None]))


def inside(access: Access | Inside) -> Inside:
    return access if isinstance(access, Inside) else Inside(access)


def live_nodes(body: Expr, active: Callable[[str], bool]) -> set[int]:
    """Identities of the nodes below which an active tensor is read as a value; indices and `in` read none."""
    order: list[Expr] = []
    stack = [body]
    while stack:
        e = stack.pop()
        order.append(e)
        stack.extend(_values(e))
    live: set[int] = set()
    for e in reversed(order):
        if isinstance(e, (Access, Name)):
            if active(e.tensor if isinstance(e, Access) else e.name):
                live.add(id(e))
        elif any(id(x) in live for x in _values(e)):
            live.add(id(e))
    return live


def _values(e: Expr) -> tuple[Expr, ...]:
    """Subexpressions whose values a derivative can flow into."""
    if isinstance(e, Call):
        return e.args if FUNCTIONS[e.function].pullback is not None else ()
    if isinstance(e, Aggregate):
        return (e.body,)
    return children(e) if isinstance(e, Pad) else ()


def value_reads(body: Expr) -> Iterator[str]:
    """Names of the tensors through which a derivative of `body` can flow; dimensions may be among them."""
    stack = [body]
    while stack:
        e = stack.pop()
        if isinstance(e, Access):
            yield e.tensor
        elif isinstance(e, Name):
            yield e.name
        stack.extend(_values(e))


def arguments(e: Call, g: Cotangent, value: Expr, live: set[int]) -> Iterator[tuple[Expr, Cotangent | None]]:
    """The arguments of a call that lead to active tensors, each with its cotangent."""
    if e.function in ("mul", "div"):
        yield from _factors(e, g, value, live)
        return
    pullback = FUNCTIONS[e.function].pullback
    assert pullback is not None
    for argument, cotangent in zip(e.args, pullback(g.value, e.args, value), strict=True):
        if id(argument) in live and cotangent is not None:
            yield argument, _split(Cotangent(cotangent, g.masks))


def _split(g: Cotangent) -> Cotangent | None:
    """Take the conditions of `c ? value : 0` and `c ? 0 : value` out of the value."""
    result: Cotangent | None = g
    while result is not None and isinstance(result.value, Call) and result.value.function == "select":
        condition, yes, no = result.value.args
        if no == ZERO:
            result = Cotangent(yes, result.masks).where(condition)
        elif yes == ZERO:
            result = Cotangent(no, result.masks).where(negation(condition))
        else:
            break
    return None if result is None or result.value == ZERO else result


def _factors(e: Call, g: Cotangent, value: Expr, live: set[int]) -> Iterator[tuple[Expr, Cotangent]]:
    """The factors and divisors of `a * b / c * d` that lead to active tensors.

    What stands left of a factor is a product of its own and stays one where it holds a division: that of two integers
    truncates. So does the product of what may be integers: it wraps. Once a factor is floating, so is everything that
    follows it. An exponential is its own derivative: where `value` is at hand, it takes the place of the exponential
    and all other factors.
    """
    chain: list[tuple[str, Expr, Call]] = []
    first: Expr = e
    while isinstance(first, Call) and first.function in ("mul", "div"):
        chain.append((first.function, first.args[1], first))
        first = first.args[0]
    chain.reverse()

    def followed(by: Cotangent, position: int) -> Cotangent:
        for function, operand, _ in chain[position:]:
            by = by.times(operand) if function == "mul" else by.over(operand)
        return by

    operands = [first, *(operand for _, operand, _ in chain)]
    floating = (n for n, x in enumerate(operands) if id(x) in live or kinds(x, {}) == FLOATING)
    integers = next(floating, len(operands))  # operands that may be integers, before one that is not

    def before(position: int) -> list[Expr]:
        together = min(position, integers)
        return operands[:position] if together < 2 else [chain[together - 2][2], *operands[together:position]]

    def exponent(factor: Expr) -> Expr | None:
        if value is not e and isinstance(factor, Call) and factor.function == "exp":
            return factor.args[0]
        return None

    if id(first) in live:
        power = exponent(first)
        yield (first, followed(g, 0)) if power is None else (power, g.times(value))
    for k, (function, operand, node) in enumerate(chain):
        if id(operand) not in live:
            continue
        if function == "mul" and (power := exponent(operand)) is not None:
            yield power, g.times(value)
        elif function == "div":
            quotient = value if node is e else node
            scaled = followed(g, k + 1)
            yield operand, Cotangent(-(scaled.value * quotient / operand), scaled.masks)
        elif any(f == "div" for f, _, _ in chain[:k]):
            yield operand, followed(g.times(node.args[0]), k + 1)
        else:
            yield operand, followed(g.times(*before(k + 1)), k + 1)
