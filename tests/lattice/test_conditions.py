"""What conditions say of index variables, against their values."""

from __future__ import annotations

import itertools

import pytest
from support.agreement import agree, tensors

from tilec.ir.index import Affine
from tilec.ir.program import Call, Expr, Index, Int
from tilec.language import parse
from tilec.lattice.conditions import alternatives
from tilec.lattice.questions import InRange

OPERATIONS = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "add": lambda a, b: a + b,
    "select": lambda c, a, b: a if c else b,
}


def value(e: Expr, at: dict[str, int]) -> int:
    match e:
        case Index(name):
            return at[name]
        case Int(number):
            return number
        case Call(function, args):
            return int(OPERATIONS[function](*(value(a, at) for a in args)))
    raise AssertionError(e)


def holds(condition: InRange, at: dict[str, int]) -> bool:
    form: Affine = condition.form
    total = form.constant + sum(c * value(atom, at) for atom, c in form.terms)
    return total.denominator == 1 and 0 <= total < condition.bound


# each with the number of places of a square of 4 that its alternatives allow where it is true, and where it is false
CONDITIONS = {
    "i < j": (6, 10),
    "i < j & j < 3": (3, 13),
    "i < j | j < 3": (15, 1),
    "i < 2 & j + 1": (8, 16),
    "i < 2 | j": (16, 8),
    "i & 2": (16, 16),
    "(i < 2 ? j < 1 : j > 2) & 1": (4, 16),
    "(i < 2 ? j < 1 : j > 2) | 0": (4, 12),
    "i < j & (i < 1 ? j > 1 : j > 2)": (4, 16),
    "i < j & (i < 1 ? 1 : j) & i != 1": (4, 16),
}

GREATEST = 2**63 - 1
# that wrap in 64 bits, before what has wrapped is cancelled, compared or taken modulo
WRAPPED = (
    f"k - i + {GREATEST} <= {GREATEST}", f"i - k + {GREATEST} >= {GREATEST}", f"(k - i)*3 + {GREATEST} <= {GREATEST}",
    f"max(k*{2**62}, 3) < 5 & k <= i", f"abs(k*{2**62}) < 5", f"k*{2**62} % 7 == 1",
    f"k*{2**62}*2 == 0", f"k*{2**62}*2 == 0 & k <= i",
)  # fmt: skip


@pytest.mark.parametrize("text", CONDITIONS)
@pytest.mark.parametrize("sense", (True, False))
def test_some_alternative_holds_wherever_the_condition_does(text, sense):
    body = parse(f"function () -> (Y) {{ Y[i, j : 4, 4] = {text} ? 1 : 2; }}").statements[0].body
    assert isinstance(body, Call)
    ways = alternatives(body.args[0], sense)
    places = [{"i": i, "j": j} for i, j in itertools.product(range(4), repeat=2)]
    allowed = [at for at in places if any(all(holds(c, at) for c in way) for way in ways)]
    assert all(at in allowed for at in places if bool(value(body.args[0], at)) == sense)
    assert len(allowed) == CONDITIONS[text][not sense]


@pytest.mark.parametrize("condition", WRAPPED)
@pytest.mark.parametrize(
    "body", ("max({} ? X[k] : -inf)", "prod({} ? X[k] : 1)", "sum({} ? X[k])", "sum({} ? X[k] == X[i])")
)
def test_a_comparison_that_wraps_says_nothing_of_its_form(condition, body):
    agree(f"function (X[N]) -> (O) {{ O[i : N] = {body.format(condition)}, i < N; }}", *tensors((5,)))


@pytest.mark.parametrize("condition", WRAPPED)
def test_a_branch_of_a_recurrence_whose_condition_wraps(condition):
    first = condition.replace("k", "(i - 2)")
    agree(f"function (X[N]) -> (R) {{ R[i : N] = i < 1 ? X[i] : ({first} ? 0.5 : R[i - 1] + X[i]); }}", *tensors((5,)))
