"""Large and deep programs: what parses also prints and compares, in time linear in its size; what cannot is refused."""

import pytest
from support.effort import counted

from tilec.errors import SyntaxMistake, TileError
from tilec.ir.verify import verify
from tilec.language import MAX_DEPTH, parse, show

PARSING, PRINTING = 200, 20  # the most calls of functions for a character of source
SHAPES = {
    "parentheses": lambda n: "(" * n + "A[i]" + ")" * n,
    "conditionals": lambda n: "A[i] > 0 ? A[i] : " * n + "1",
    "conditionals in the middle": lambda n: "A[i] > 0 ? " * n + "1" + " : A[i]" * n,
    "calls": lambda n: "exp(" * n + "A[i]" + ")" * n,
    "signs": lambda n: "-" * n + "A[i]",
    "sums to the left": lambda n: " + ".join(["A[i]"] * n),
    "sums to the right": lambda n: "A[i] - (" * n + "1" + ")" * n,
    "nested aggregations": lambda n: "sum(" * (n // 4) + "A[i]" + ")" * (n // 4),
    "gathers": lambda n: "A[" * (n // 4) + "i" + "]" * (n // 4),
    "additions in an index": lambda n: "A[" + "(1 + " * n + "i" + ")" * n + "]",
    "conditions without a colon": lambda n: "A[i] > 0 ? " * (n // 2) + "A[i]",
}


def program(expression: str) -> str:
    return f"function (A[N]) -> (O) {{ O[i : N] = {expression}; }}"


@pytest.mark.parametrize("shape", SHAPES)
def test_200_deep_goes_round(shape):
    source = program(SHAPES[shape](200))
    p, calls = counted(lambda: parse(source))
    assert calls < PARSING * len(source)
    text = show(p)
    again = parse(text)
    assert again == p
    assert hash(again) == hash(p)
    assert show(again) == text
    verify(p)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("depth", [MAX_DEPTH - 2, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 2000, 20_000])
@pytest.mark.covering
def test_any_depth_is_taken_or_refused(shape, depth):
    try:
        p = parse(program(SHAPES[shape](depth)))
    except TileError as error:
        assert isinstance(error, SyntaxMistake) and f"more than {MAX_DEPTH} levels" in str(error)
        assert shape != "parentheses" and depth >= MAX_DEPTH - 2
    else:
        assert depth < MAX_DEPTH + 1 or shape in ("parentheses", "conditions without a colon")
        assert parse(show(p)) == p


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_statements(count):
    lines = [f"function (X0[N, M], K[M, M]) -> (X{count}) {{"]
    for i in range(1, count + 1):
        body = (
            f"X{i}[x, y : N, M] = +(X{i - 1}[x, k] * K[k, y]), k < M" if i % 2 else f"X{i} = tanh(X{i - 1} + 1.5) / N"
        )
        lines.append(f"    {body};")
    source = "\n".join([*lines, "}"])
    p, parsing = counted(lambda: parse(source))
    text, printing = counted(lambda: show(p))
    assert parse(text) == p
    assert len(p.statements) == count
    assert parsing < PARSING * len(source) and printing < PRINTING * len(source)


def test_one_statement_with_many_parts():
    terms = " + ".join("(" + " + ".join(f"A[i + {j}, k{k}]" for j in range(30)) + ")" for k in range(30))
    source = f"O[i : 100] = +({terms});"
    p, calls = counted(lambda: parse(source))
    assert parse(show(p)) == p
    assert calls < PARSING * len(source)


def test_one_long_call_and_many_inputs():
    names = ", ".join(f"A{i}[N{i}]" for i in range(2500))
    source = (
        f"function ({names}) -> (O) {{ O = tuple({', '.join(f'A{i}' for i in range(2500))}); O2 = element(O, 2499); }}"
    )
    with pytest.raises(TileError, match="is a tuple"):
        parse(source)
    assert parse(source.replace("-> (O)", "-> (O2)")).outputs == ("O2",)


def test_nested_magnitudes_in_an_index_end_in_a_message():
    """Each is the greater one of two indices that hold all below it."""
    parse(f"Y[i : N] = X[{'abs(' * 8}i{' - 1)' * 8}]")
    with pytest.raises(TileError, match="more than 8 levels deep") as caught:
        parse(f"Y[i : N] = X[{'abs(' * 40}i{' - 1)' * 40}]")
    assert caught.value.span is not None and caught.value.hint


def test_a_list_that_names_a_variable_twice_says_what_to_do():
    with pytest.raises(TileError, match="stands twice") as caught:
        parse("Y = sum[i, i](A[i])")
    assert caught.value.hint == "write it once"
