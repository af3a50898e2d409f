"""Sizes that are left open: they count as integers, every question is a guard, and what needs a number is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.ir.at_sizes import Template, as_float, least, value_at, with_numbers
from tilec.ir.program import Index, Int
from tilec.ir.rational import Fraction, as_int
from tilec.ir.shape_class import SMALLEST_OPEN, Opening, Recorder, ShapeClass, guard
from tilec.ir.symbolic import Pinned, Size, gcd, is_symbolic
from tilec.ir.types import TensorType

QUESTIONS: dict[str, Callable[[int, int], object]] = {
    "linear": lambda n, m: 3 * n - 2 * m + 5 > n,
    "product": lambda n, m: n * m * 4 >= 2000,
    "cancels": lambda n, m: n + m - n == m,
    "quotient": lambda n, m: (n + 3) // 4 == m // 2,
    "divisor": lambda n, m: (gcd(n, 16), gcd(n + m, 12, m), gcd(m)),
    "remainder": lambda n, m: n % 16 == 0 or -m % 8 < 3,
    "power of two": lambda n, m: 1 << max(0, n - 1).bit_length(),
    "extrema": lambda n, m: max(n, m, 20) - min(n, m) > 7,
    "absolute": lambda n, m: abs(n - m) < 6,
    "fraction": lambda n, m: Fraction(n) * 3 - Fraction(m) > Fraction(1, 2),
    "rounded": lambda n, m: math.floor(Fraction(n) + 1) >= m and math.prod((n, m, 2)) > sum((n, m)),
    "float": lambda n, m: n * 1.5 > m and n / m < 2.25 and 3.0 - n < 0,
    "truth": lambda n, m: bool(n - m) and n not in (1, 2, 3, m),
    "sorted": lambda n, m: sorted([(n, "a"), (m, "b"), (30, "c")])[0][1],
    "shifted": lambda n, m: (n << 2) - m > 50,
    "divided": lambda n, m: (divmod(n + m, 8), divmod(500, n)),
    "power": lambda n, m: n**2 > 8 * m,
    "least": lambda n, m: least([0, 1, 2], [n / 3.0, 7.5, (m * 0.25) ** 1.5].__getitem__),
    "least pair": lambda n, m: least("abc", {"a": (n, 2), "b": (m, 1), "c": (n, 1)}.__getitem__),
    "function": lambda n, m: as_float(n) / as_float(m) < 1.3,
    "keys": lambda n, m: len({n: 1, n + 0: 2, 2 * n: 3, n // 2: 4, (n + 1) // 2: 5}),
    "inside": lambda n, m: -math.inf < n < math.inf,
}
sizes = st.integers(SMALLEST_OPEN, 60)


@settings(max_examples=30)
@given(sizes, sizes, st.lists(st.tuples(sizes, sizes), min_size=8, max_size=8))
@pytest.mark.parametrize("name", QUESTIONS)
def test_what_was_answered_holds_where_the_guards_do(name: str, n: int, m: int, others: list[tuple[int, int]]) -> None:
    question, recorder = QUESTIONS[name], Recorder()
    answer = question(recorder.symbol("n", n), recorder.symbol("m", m))
    assert with_numbers(answer, {"n": n, "m": m}) == question(n, m)
    for a, b in others:
        if all(value_at(g, {"n": a, "m": b}) for g in recorder.guards):
            assert with_numbers(answer, {"n": a, "m": b}) == question(a, b)


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - 3 * y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "negative": lambda x, y: 7 - x,
}
places = st.integers(0, 20)


@settings(max_examples=60)
@given(st.data())
def test_arithmetic_is_that_of_integers(data: st.DataObject) -> None:
    recorder, numbers = Recorder(), {"n": data.draw(sizes), "m": data.draw(sizes)}
    open_ = [recorder.symbol(name, value) for name, value in numbers.items()]
    plain = list(numbers.values())
    for _ in range(8):
        name, a, b = data.draw(st.sampled_from(sorted(OPERATIONS))), *data.draw(st.tuples(places, places))
        if name in ("quotient", "remainder") and plain[b % len(plain)] == 0:
            continue
        for values in (open_, plain):
            values.append(OPERATIONS[name](values[a % len(values)], values[b % len(values)]))
    for x, y in zip(open_, plain, strict=True):
        assert with_numbers(x, numbers) == y
        assert not is_symbolic(x) or x.value == y


def test_it_counts_as_an_integer() -> None:
    n = Recorder().symbol("n", 12)
    assert isinstance(n, int) and type(n) is not int
    assert as_int(Fraction(n)) is n and Fraction(n).denominator == 1
    match Int(n):
        case Int(int(value)):
            assert value is n
    assert f"{n} of {n + 1}, {(n,)}" == "n of (1+n), (n,)"
    assert n - n == 0 and type(n - n) is int and type(n * 0) is int


@pytest.mark.parametrize(
    "needs",
    [int, float, range, math.isqrt, lambda n: math.gcd(n, 4), lambda n: [0] * n, lambda n: "abc"[n:],
     lambda n: f"{n:3}", lambda n: n & 1, lambda n: math.sqrt(n), lambda n: float(n * 0.5), lambda n: 2**n],
)  # fmt: skip
def test_what_needs_the_number_pins_the_size(needs: Callable) -> None:
    recorder = Recorder()
    with pytest.raises(Pinned) as error:
        needs(recorder.symbol("n", 12))
    assert error.value.symbols == {"n"} and recorder.pinned == {"n"}


def test_equal_polynomials_ask_nothing() -> None:
    recorder = Recorder()
    n, m = recorder.symbol("n", 12), recorder.symbol("m", 20)
    assert n + m == m + n and hash(n + m) == hash(m + n) and {n: 1}[n + 0] == 1
    assert not recorder.guards
    assert n != m and recorder.guards == {"not (m*-1+n) == 0": None} or len(recorder.guards) == 1


def test_multiples_of_an_open_size_come_out() -> None:
    recorder = Recorder()
    n, m = recorder.symbol("n", 12), recorder.symbol("m", 5)
    assert (256 * n) // n == 256 and type((256 * n) // n) is int and 0 // n == 0
    assert ((4 * n * m + 2 * n) // (2 * n)).text == "(1+2*m)"
    assert (n * m) % m == 0 and type((n * m) % m) is int
    assert ((n * m + 3) % m).text == "(3%m)"


def test_a_class_serves_what_meets_its_guards() -> None:
    made: list[Opening] = []

    def make(opening: Opening) -> str:
        made.append(opening)
        n, d = opening.sizes
        return "long" if n * d > 1000 else "short"

    known: ShapeClass[str] = ShapeClass((10, 16))
    assert known.make((20, 16), make) == ("short", {"size0": 20})
    assert known.find((62, 16)) == ("short", {"size0": 62})
    assert known.find((63, 16)) is None  # longer than the guard allows
    assert known.find((20, 17)) is None  # another fixed size
    assert known.find((16, 16)) is None  # an open size that equals a fixed one
    assert known.find((7, 16)) is None  # small
    assert known.make((100, 16), make) == ("long", {"size0": 100})
    assert known.find((63, 16)) == ("long", {"size0": 63}) and known.find((62, 16)) == ("short", {"size0": 62})
    assert len(made) == 2


def test_what_is_pinned_stays_fixed() -> None:
    def make(opening: Opening) -> int:
        n, m = opening.sizes
        return sum(range(n)) if is_symbolic(m) or is_symbolic(n) else 0

    known: ShapeClass[int] = ShapeClass((10, 11))
    assert known.make((20, 30), make) == (190, {"size0": 30})
    assert known.pinned == {0}
    assert known.find((20, 50)) == (190, {"size0": 50}) and known.find((21, 50)) is None


def test_equal_sizes_that_change_are_one() -> None:
    known: ShapeClass[int] = ShapeClass((10, 10))
    assert known.make((20, 20), lambda opening: len(set(opening.sizes))) == (1, {"size0": 20})
    assert known.find((30, 30)) is not None and known.find((30, 31)) is None


def test_numbers_in_the_place_of_sizes() -> None:
    n = Recorder().symbol("n", 12)
    tree = {"a": (Index("i"), TensorType((n, 3), "float32")), "b": Int(2 * n - 1)}
    assert with_numbers(tree, {"n": 20}) == {"a": (Index("i"), TensorType((20, 3), "float32")), "b": Int(39)}
    same = (Index("i"), Int(3))
    assert with_numbers(same, {"n": 20}) is same


def test_sizes_of_two_compilations_differ() -> None:
    a, b = (Recorder().symbol("n", 12) for _ in range(2))
    assert a != b and not a == b and isinstance(a, Size)


@dataclass(frozen=True)
class Leaf:
    size: int
    name: str = "leaf"


def test_a_template_is_the_tree_with_numbers() -> None:
    recorder = Recorder()
    n, m = recorder.symbol("n", 20), recorder.symbol("m", 30)
    closed = (1, Leaf(3), [2, None])
    tree = {"a": (n, 2 * m + 1, closed), "b": [Leaf(n * m), Leaf(4, "other")], "c": {"d": -(-n // 8)}, "e": closed}
    filled = Template(tree, recorder.names)
    for numbers in ({"n": 20, "m": 30}, {"n": 9, "m": 1000}):
        made = filled(numbers)
        assert made == with_numbers(tree, numbers) and made["e"] is closed
        assert type(made["b"][0].size) is int and type(made["a"]) is tuple
    assert Template(closed, recorder.names)({"n": 1, "m": 2}) is closed


def test_a_guard_without_an_answer_does_not_hold() -> None:
    """What was hashed has a value only where the guards hold that were asked before it: not at 44."""
    recorder = Recorder()
    size = recorder.symbol("size0", 46)
    remainder = 12 % (size - 44)
    assert {remainder: True} and remainder == 0
    fits = guard(Opening(recorder, {0: "size0"}, (size, 3)))
    assert not fits((44, 3)) and not fits((49, 3)) and fits((50, 3))
