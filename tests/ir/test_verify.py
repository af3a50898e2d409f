"""The verifier: accepts what the parser and the passes make, names each broken rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilec.errors import InternalMistake
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Float,
    Index,
    Input,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
)
from tilec.ir.verify import verify
from tilec.language import parse

i, j, X = Index("i"), Index("j"), Access("X", (Index("i"),))
OWN = Access("O", (Index("i"),))
X_ALONE = (Input("X", (3,)),)
GOOD = Statement("O", (i,), (Int(3),), X)


def program(s: Statement, *more: Statement, inputs=X_ALONE, outputs=("O",)) -> Program:
    return Program(None, inputs, outputs, (s, *more))


def test_programs_that_keep_the_rules() -> None:
    verify(program(GOOD), bound=True)
    verify(
        parse("X[2*i + N : N] = +(A[i, j] * pad(in(B[i]), 0)), j - i < N default D; Y = reshape(X, N) + shape(X, 0);")
    )
    verify(parse("function (X[N], H0[N]) -> (H) { H[t : N] = H[t - 1] + sum(X[t + j] * X[j]) init H0[t]; }"))


BROKEN = {
    "assigned twice": program(GOOD, GOOD),
    "never assigned": program(GOOD, outputs=("P",)),
    "two inputs": program(GOOD, inputs=(Input("X", (3,)),) * 2),
    "no literal sizes": program(GOOD, inputs=(Input("X", None),)),
    "a tensor and a dimension": program(GOOD, inputs=(Input("X", ("X",)),)),
    "no aggregation is called": program(replace(GOOD, aggregation="xor")),
    "no function is called": program(replace(GOOD, body=Call("plus", (X,)))),
    "takes 2 to 2 arguments": program(replace(GOOD, body=Call("add", (X,)))),
    "read before it is assigned": program(replace(GOOD, body=Access("Z", (i,)))),
    "reads itself with another rank": program(replace(GOOD, body=Access("O", (i, i)))),
    "does not read itself": program(replace(GOOD, init=X)),
    "needs distinct bare": program(replace(GOOD, index=(Int(0),), body=OWN, init=Int(0))),
    "has other variables": program(replace(GOOD, body=OWN, init=Access("X", (j,)))),
    "`init` of O reads O": program(replace(GOOD, body=OWN, init=OWN)),
    "has rank 1, not 2": program(replace(GOOD, body=Access("X", (i, i)))),
    "as many sizes": program(replace(GOOD, sizes=(Int(3), Int(3)))),
    "has no sizes": program(replace(GOOD, sizes=None)),
    "has no index": program(replace(GOOD, index=None, sizes=None, body=Int(1))),
    "are no literals": program(replace(GOOD, sizes=(Call("add", (Int(1), Int(2))),))),
    "the name N is left": program(replace(GOOD, body=Name("N"))),
    "is negative": program(replace(GOOD, body=Int(-1))),
    "the literal -0.5": program(replace(GOOD, body=Float(-0.5))),
    "canonical": program(replace(GOOD, body=Access("X", (Call("add", (Int(1), i)),)))),
    "bound of a constraint": program(replace(GOOD, constraints=(Constraint(i, Call("add", (Int(1), Int(2)))),))),
    "a call of shape is left": program(replace(GOOD, body=Call("shape", (X, Int(0))))),
    "`in` holds": program(replace(GOOD, body=Inside(i))),
    "`pad` holds": program(replace(GOOD, body=Pad(i, Int(0)))),
    "the default D": program(replace(GOOD, default="D")),
    "binds i, which stands outside": program(replace(GOOD, body=Aggregate("sum", X, ("i",)))),
    "binds a variable twice": program(replace(GOOD, body=Aggregate("sum", Access("X", (j,)), ("j", "j")))),
    "does not hold": program(replace(GOOD, body=Aggregate("sum", Access("X", (j,)), ("j", "k")))),
    "is no expression": program(replace(GOOD, body=Call("neg", ("X",)))),
}


@pytest.mark.parametrize("message", BROKEN)
def test_each_rule_has_its_message(message: str) -> None:
    with pytest.raises(InternalMistake) as caught:
        verify(BROKEN[message], bound=True)
    assert message in caught.value.message


UNBOUND = {
    "with sizes": Statement("O", None, (Int(3),), Name("X")),
    "with index variables i": Statement("O", None, None, X),
    "with an aggregation": Statement("O", None, None, Name("X"), aggregation="sum"),
    "Q is not known": Statement("O", None, None, Name("Q")),
}


@pytest.mark.parametrize("message", UNBOUND)
def test_elementwise_statements(message: str) -> None:
    with pytest.raises(InternalMistake, match=message):
        verify(program(UNBOUND[message]))
