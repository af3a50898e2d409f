"""Guards that become constraints, output indices that stop turning or moving: the same values over fewer points."""

from __future__ import annotations

import numpy as np
import pytest
from support.effort import counted
from support.stages import check, setting_of

from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.language.show import show_statement
from tilec.pipeline import lower
from tilec.transforms.bind.bind import bind
from tilec.transforms.lower.tighten_domains import tighten_domains

CASES = {  # source, shapes, the text of the flat statement; None where it stays as it is
    "before": (
        "function (H[T], G[T, K]) -> (O) { O[k : K] = +(pad(in(H[t - 2]), 0) == 0 ? G[t, k]); }",
        ((5,), (5, 3)),
        "O[k : 3] = +(G[t, k]), -t + 1 < 2;",
    ),
    "after, and another test": (
        "function (H[T], G[T]) -> (O) { O[] = >(G[t] > 0 & pad(in(H[t + 1]), 0) == 0 ? G[t]); }",
        ((5,), (5,)),
        "O[] = >(G[t] > 0 ? G[t]), t - 4 < 1;",
    ),
    "a variable that only the test names": (
        "function (H[T], G[K]) -> (O) { O[] = +(pad(in(H[t]), 0) == 0 ? G[k]), t < 7; }",
        ((5,), (3,)),
        "O[] = +(t == t ? G[k]), t < 7, t - 5 < 2;",
    ),
    "one value of three left": (
        "function (A[N, 3]) -> (O) { O[n : N] = +(c != 0 & c != 1 ? A[n, c]); }",
        ((5, 3),),
        "O[n : 5] = +(A[n, 2]);",
    ),
    "one value left, and another test": (
        "function (A[N, 4], B[N]) -> (O) { O[n : N] = >(2 * c - 1 > 2 & B[n] > 0 & c != 3 ? A[n, c]); }",
        ((5, 4), (5,)),
        "O[n : 5] = >(B[n] > 0 ? A[n, 2]);",
    ),
    "two values left": ("function (A[N, 4]) -> (O) { O[n : N] = +(c != 0 & c != 1 ? A[n, c]); }", ((5, 4),), None),
    "no column left": ("function (A[N, 2]) -> (O) { O[n : N] = +(c != 0 & c != 1 ? A[n, c]); }", ((5, 2),), None),
    "a truncated quotient": ("function (A[N, 4]) -> (O) { O[n : N] = +(c / 2 == 1 ? A[n, c]); }", ((5, 4),), None),
    "both sides": ("function (H[T]) -> (O) { O[t : 9] = +(pad(in(H[t - 2]), 0) == 0 ? t); }", ((5,),), None),
    "two dimensions": (
        "function (H[T, K], G[T, K]) -> (O) { O[] = +(pad(in(H[t - 1, k - 1]), 0) == 0 ? G[t, k]); }",
        ((5, 3), (5, 3)),
        None,
    ),
    "turned": (
        "function (A[N]) -> (O) { O[(i - 1) % N : N] = +(A[i] * i); }",
        ((5,),),
        "O[i : 5] = +(A[(i + 1) % 5] * ((i + 1) % 5));",
    ),
    "turned into less": (
        "function (A[N]) -> (O) { O[(i + 7) % N : 3] = >(A[i]); }",
        ((5,),),
        "O[i : 3] = >(A[(i - 2) % 5]);",
    ),
    "turned by another variable": (
        "function (A[N], B[J]) -> (O) { O[(i + j) % N : N] = +(A[i] * B[j]); }",
        ((5,), (2,)),
        "O[i : 5] = +(A[(i - j) % 5] * B[j]);",
    ),
    "turned by a remainder": (
        "function (A[Q, N]) -> (O) { O[q, (i - q % 3 + 1) % N : Q, N] = +(A[q, i]); }",
        ((7, 5),),
        "O[q, i : 7, 5] = +(A[q, (i + q % 3 - 1) % 5]);",
    ),
    "turned by a quotient": (
        "function (A[Q, N]) -> (O) { O[q, (i - (q - q % 3)/3) % N : Q, N] = +(A[q, i]); }",
        ((7, 5),),
        "O[q, i : 7, 5] = +(A[q, (i + 1/3*q - 1/3*(q % 3)) % 5]);",
    ),
    "turned by itself": ("function (A[N]) -> (O) { O[(i + i % 2) % N : N] = >(A[i]); }", ((5,),), None),
    "moved and mirrored": (
        "function (A[N, M]) -> (O) { O[i + 2, 3 - j : N, M] = +(j < 2 ? A[i, j]); }",
        ((5, 3),),
        "O[i, j : 5, 3] = +(-j + 3 < 2 ? A[i - 2, -j + 3]);",
    ),
    "halved": (
        "function (A[N]) -> (O) { O[i/2 - 1 : N] = >(A[i]); }",
        ((5,),),
        "O[i : 5] = >(A[2*i + 2]);",
    ),
    "doubled": ("function (A[N]) -> (O) { O[2*i + 1 : 2*N] = +(A[i]); }", ((5,),), None),
    "moved along a diagonal": ("function (A[N]) -> (O) { O[i + 1, i : N, N] = +(A[i]); }", ((5,),), None),
    "turned twice": ("function (A[N]) -> (O) { O[i, (i + 1) % N : N, N] = +(A[i]); }", ((5,),), None),
    "not all of a turn": (
        "function (A[N]) -> (O) { O[(i + 1) % 9 : 9] = +(A[i]); }",
        ((5,),),
        "O[i : 9] = +(A[(i - 1) % 9]);",
    ),
    "not all that is constrained": (
        "function (A[N]) -> (O) { O[(i + 1) % 4 : 4] = +(A[i]), i < 3; }",
        ((5,),),
        "O[i : 4] = +(A[i - 1]), i - 1 < 3;",
    ),
    "little of a turn": (
        "function (A[N]) -> (O) { O[(i + 1) % 30 : 30] = +(A[i]); }",
        ((5,),),
        "O[i : 30] = +(A[i - 1]);",
    ),
    "turned and moved": (
        "function (A[N, 3]) -> (O) { O[n, (i + 1) % 3 + 1 : N, 4] = +(A[n, i]); }",
        ((2, 3),),
        "O[n, i : 2, 4] = +(A[n, (i + 1) % 3]), i - 1 < 3;",
    ),
    "turned and mirrored": (
        "function (A[3]) -> (O) { O[5 - (i - 1) % 3 : 8] = +(A[i]); }",
        ((3,),),
        "O[i : 8] = +(A[-i % 3]), -i + 5 < 3;",
    ),
    "turned beside another variable": (
        "function (A[B, 3]) -> (O) { O[3*b + (i + 2) % 3 : 7] = +(A[b, i]); }",
        ((2, 3),),
        "O[3*b + i : 7] = +(A[b, (i + 1) % 3]), i < 3;",
    ),
    "turned but for an end": (
        "function (A[N, 4]) -> (O) { O[n, i % 3 + 1 : N, 4] = +(i != 0 ? A[n, i] * i); }",
        ((2, 4),),
        "O[n, i : 2, 4] = +(A[n, (i + 1) % 3 + 1] * ((i - 1 - 1) % 3 + 1)), i - 1 < 3;",
    ),
    "one value left": (
        "function (A[N, 4], B[N]) -> (O) { O[n : N] = >((i == 2) & (B[n] > 0) ? A[n, i] * i); }",
        ((2, 4), (2,)),
        "O[n : 2] = >(B[n] > 0 ? A[n, 2] * 2);",
    ),
    "no value left": (
        "function (A[N, 4]) -> (O) { O[n : N] = +(i == 4 ? A[n, i]); }",
        ((2, 4),),
        None,
    ),
    "turned into more": (
        "function (A[N]) -> (O) { O[(i + 2) % N : 7] = +(A[i]); }",
        ((3,),),
        "O[i : 7] = +(A[(i + 1) % 3]), i < 3;",
    ),
    "turned often": (
        "function (A[N]) -> (O) { O[i % 3 : 3] = +(A[i]); }",
        ((26,),),
        "O[i - 3*w : 3] = +(A[i]), i - 3*w < 3;",
    ),
    "up to an element": (
        "function (A[N]) -> (O) { O[i : N] = +(i >= k ? A[k]); }",
        ((5,),),
        "O[i : 5] = +(A[k]), i - k < 5;",
    ),
    "before an element": (
        "function (A[N]) -> (O) { O[i : 7] = >(k < i - 1 ? A[k]); }",
        ((5,),),
        "O[i : 7] = >(A[k]), i - k - 2 < 5;",
    ),
    "from an element on, and another test": (
        "function (A[N], B[N]) -> (O) { O[i : N] = *(A[k] > 0 & k - i > -2 ? B[k]); }",
        ((5,), (5,)),
        "O[i : 5] = *(A[k] > 0 ? B[k]), -i + k + 1 < 6;",
    ),
    "up to a row, sums of rows": (
        "function (A[N, M]) -> (O) { O[i : N] = +(k <= i ? A[k, j]); }",
        ((5, 3),),
        "O[i : 5] = +(A[k, j]), i - k < 5;",
    ),
    "a guard beside a constraint on the same": (
        "function (A[N]) -> (O) { O[i : N] = *(k < i ? A[k]), i - k < N; }",
        ((5,),),
        "O[i : 5] = *(A[k]), i - k - 1 < 4;",
    ),
    "a window, and a guard": (
        "function (A[N]) -> (O) { O[i : N] = +(k < i ? A[k]), k - i + 2 < 5; }",
        ((7,),),
        "O[i : 7] = +(A[k]), i - k - 1 < 2;",
    ),
    "a constraint that leaves nothing of a guard": (
        "function (A[N]) -> (O) { O[i : N] = +(k < i ? A[k]), k - i < N; }",
        ((5,),),
        None,
    ),
    "terms of both": ("function (A[N, N]) -> (O) { O[i : N] = +(k <= i ? A[i, k]); }", ((5, 5),), None),
    "a product of matrices": (
        "function (A[N, M], B[N, M]) -> (O) { O[i : N] = +(k <= i ? A[i, j] * B[k, j]); }",
        ((5, 3), (5, 3)),
        None,
    ),
    "never": ("function (A[N]) -> (O) { O[i : N] = +(i - k >= 9 ? A[k]); }", ((5,),), None),
    "with a default": ("function (A[N], D[N]) -> (O) { O[i : N] = +(k < i ? A[k]) default D; }", ((5,), (5,)), None),
    "over a band": (
        "function (A[N], H[L]) -> (O) { O[t : N] = +(A[s] * H[t - s + 1] * s); }",
        ((16,), (2,)),
        "O[t : 16] = +(A[-s + t + 1] * H[s] * (-s + t + 1));",
    ),
    "over a band, by other steps": (
        "function (A[N], H[L]) -> (O) { O[t : 18] = >(A[s] + H[2*t - 3*s + 1]); }",
        ((12,), (3,)),
        "O[t : 18] = >(A[-1/3*s + 2/3*t + 1/3] + H[s]);",
    ),
    "over bands of two axes": (
        "function (A[N, M], H[L, L]) -> (O) { O[t, u : N, M] = +(A[s, r] * H[t - s, u - 2*r + 1]); }",
        ((16, 8), (2, 2)),
        "O[t, u : 16, 8] = +(A[-s + t, -1/2*r + 1/2*u + 1/2] * H[s, r]);",
    ),
    "over a band, with a value by other steps": (
        "function (A[N], H[L]) -> (O) { O[t : 18] = +(A[s] * H[2*t - 3*s] * s); }",
        ((12,), (3,)),
        None,
    ),
    "over a wide band": ("function (A[N], H[L]) -> (O) { O[t : N] = +(A[s] * H[t - s + 1]); }", ((16,), (3,)), None),
    "a constraint that the output's size states": (
        "function (A[N]) -> (O) { O[i, h : N, 2] = +(A[i] * h), h < 2; }",
        ((5,),),
        "O[i, h : 5, 2] = +(A[i] * h);",
    ),
    "a constraint that leaves some of the output out": (
        "function (A[N]) -> (O) { O[i, h : N, 3] = +(A[i] * h), h < 2; }",
        ((5,),),
        None,
    ),
    "a constraint that an access states": (
        "function (A[N], B[M]) -> (O) { O[i : N] = +(A[i] * B[j]), j < 4, i < 4; }",
        ((5,), (3,)),
        "O[i : 5] = +(A[i] * B[j]), i < 4;",
    ),
}

SIZED = {  # how a tensor that is computed is asked for, and the flat statement
    "inside": ("+(A[i] * in(V[i]))", "O[i : 5] = +(A[i]);"),
    "part of it": ("+(A[i] * in(V[i - 2]))", "O[i : 5] = +(A[i]), i - 2 < 5;"),
    "clamped": ("+(A[i] * in(V[clamp(i - 2, 0, 4)]))", "O[i : 5] = A[i];"),
    "clamped where nothing is": ("+(A[i] * in(V[clamp(i - 2, 0, 7)]))", "O[i : 5] = A[i];"),
    "clamped to the outside": ("+(A[i] * in(V[clamp(2*i, 0, 7)]))", None),
    "clamped, of fractions": ("+(A[i] * in(V[clamp(i/2, 0, 4)]))", None),
    "reflected": ("+(A[i] * in(V[4 - abs(4 - abs(i - 2))]))", "O[i : 5] = A[i];"),
    "what bounds a variable": ("+(A[i] * in(V[j + 1]))", "O[i : 5] = +(j == j ? A[i]), j + 1 < 5;"),
    "no affine index": ("+(A[i] * in(V[min(2*j, 7)]) * in(A[j]))", None),
    "read as well": ("+(V[i] * in(V[i - 2]))", None),
    "in a branch": ("+(A[i] > 0 ? A[i] * in(V[i - 2]) : 0)", None),
}


@pytest.mark.parametrize("name", SIZED)
def test_a_tensor_is_not_computed_for_its_size(name: str) -> None:
    body, wanted = SIZED[name]
    program = parse(f"function (A[N]) -> (O) {{ V[i : N] = exp(A[i]); O[i : N] = {body}; }}")
    arrays = [np.array([1.0, 0.0, 2.0, 1.0, 3.0])]
    setting = setting_of(program, arrays)
    flat = lower(program, setting.types, setting.values).stages["flat"].statements
    if name != "read as well":
        check(program, arrays)
    assert [show_statement(s) for s in flat] == [wanted] if wanted is not None else flat[0].output == "V"


ELEMENTS = {  # how a tensor that is computed is asked for at an element, and the flat statement
    "an element": ("in(V[B[i]])", "O[i : 5] = +(int64(B[i]) >= 0 & int64(B[i]) < 5 ? A[i]);"),
    "an element and more": (
        "in(V[2*B[i] - 1])",
        "O[i : 5] = +(2 * int64(B[i]) - 1 >= 0 & 2 * int64(B[i]) - 1 < 5 ? A[i]);",
    ),
    "an element that may not be there": ("in(V[B[i - 1]])", None),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_tensor_is_not_computed_for_a_gather(name: str) -> None:
    asked, wanted = ELEMENTS[name]
    program = parse(f"function (A[N], B[N]) -> (O) {{ V[i : N] = exp(A[i]); O[i : N] = +(A[i] * {asked}); }}")
    arrays = [np.array([1.0, 0.0, 2.0, 1.0, 3.0]), np.array([4, 0, -1, -127, 3], np.int8)]
    setting = setting_of(program, arrays)
    flat = lower(program, setting.types, setting.values).stages["flat"].statements
    check(program, arrays)
    assert [show_statement(s) for s in flat] == [wanted] if wanted is not None else flat[0].output == "V"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_it(name: str) -> None:
    source, shapes, wanted = CASES[name]
    random = np.random.default_rng(0)
    arrays = [random.integers(-3, 4, s).astype(float) for s in shapes]
    program = parse(source)
    check(program, arrays)
    setting = setting_of(program, arrays)
    lowered = lower(program, setting.types, setting.values)
    (bound,), (flat,) = (lowered.stages[k].statements for k in ("bound", "flat"))
    if wanted is None:
        assert flat == bound
    else:
        assert show_statement(flat) == wanted


@pytest.mark.parametrize(("place", "value"), [("t - S[k]", "t"), ("t + S[k]", "(t > 2)"), ("(t + S[k] % 3) % T", "t")])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_values_are_no_places(place: str, value: str, dtype: str) -> None:
    """What stands as a value is not counted from elements of a type too small for it."""
    program = parse(f"function (A[T, K], S[K]) -> (O) {{ O[{place} : T] = +(A[t, k] * {value}); }}")
    check(program, [np.ones((300, 2)), np.array([100, 3], dtype)])


@pytest.mark.parametrize("length", [0, 1])
def test_short_bands_end(length: int) -> None:
    """A band of no elements was shorter than what it was summed over, and so again after each move."""
    program = parse(
        "function (A[N, M, 2], B[P, Q, R]) -> (O) {"
        " O[i : 4] = sum((A[2*j - 2, i, i] + B[j, j, i - j]) * B[j + 2, 3*j - i + 1, j]); }"
    )
    shapes = (2, 3, 2), (5, 5, length)
    check(program, [np.arange(float(np.prod(s))).reshape(s) for s in shapes])
    types = {name: TensorType(s, "float64") for name, s in zip(program.input_names(), shapes, strict=True)}
    tighten_domains(bind(program, types, {}))


def test_a_long_body_is_walked_once():
    """Not for each of its reads: derivatives of conditionals have thousands."""

    def work(terms: int) -> int:
        body = " + ".join(f"A[i + {k}] * in(A[i + {k}])" for k in range(terms))
        program = bind(
            parse(f"function (A[N]) -> (O) {{ O[i : 3] = {body}; }}"), {"A": TensorType((99,), "float32")}, {}
        )
        return counted(lambda: tighten_domains(program))[1]

    work(4)
    assert work(40) < 3 * work(20)
