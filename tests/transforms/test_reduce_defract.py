"""Reduce and defract: the worked example to the letter, and statements of every shape against the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.effort import counted

import tilec
from tilec.ir.evaluate import evaluate
from tilec.ir.index import linear
from tilec.ir.program import Pad, expressions, walk
from tilec.ir.types import TensorType
from tilec.ir.verify import verify
from tilec.language import parse, show
from tilec.lattice.sets import bounds, domain, shapes_of
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.bind.bind import bind
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.flatten import flatten
from tilec.transforms.lower.reduce import reduce
from tilec.transforms.util.roles import Roles, roles

INPUT_GRADIENT = """
function (DO[N, OH, OW, CO], K[KH, KW, CI, CO]) -> (DI) {
    DI[n, 3*y + 2*j, 3*x + 2*i, ci : N, 3*OH, 3*OW, CI] = +(DO[n, y, x, co] * K[j, i, ci, co]);
}
"""


def flat(source, **shapes):
    types = {name: TensorType(shape, "float64") for name, shape in shapes.items()}
    program = parse(source) if isinstance(source, str) else source
    return flatten(bind(program, types, {}), types)


def stages(source, **shapes):
    program = flat(source, **shapes)
    reduced = reduce(program)
    return program, reduced, defract(reduced)


def arrays(program):
    rng = np.random.default_rng(7)
    return [rng.integers(-4, 5, shapes_of(program)[name]).astype(np.float64) for name in program.input_names()]


def check_meaning(*programs):
    """All programs print as text that is read back the same, verify, and answer the same."""
    inputs = arrays(programs[0])
    expected = evaluate(programs[0], inputs)
    for program in programs:
        verify(program, bound=True)
        assert parse(show(program)) == program
        for got, want in zip(evaluate(program, inputs), expected, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=show(program))


def body(program):
    """The text of the last statement."""
    return show(program).splitlines()[-2].strip()


def test_the_worked_example(golden):
    source, reduced, defracted = stages(INPUT_GRADIENT, DO=(32, 19, 19, 128), K=(3, 3, 64, 128))
    golden("worked_example/reduced.tile", show(reduced))
    golden("worked_example/defracted.tile", show(defracted))
    assert roles(defracted.statements[0]) == Roles(
        (("v1_0", 3), ("v2_0", 3)), ("v0", "v1_1", "v2_1", "v3"), ("v4_0", "v5_0", "v6")
    )
    box = bounds(defracted.statements[0], shapes_of(defracted))
    assert box["v1_1"] == (0, 18) and box["v4_0"] == (-1, 0)


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (3, 4, 2, 2), (2, 2, 3, 3), (5, 3, 4, 1), (0, 3, 2, 2), (3, 3, 0, 2)])
def test_the_worked_example_keeps_its_meaning(size):
    oh, ow, kh, kw = size
    check_meaning(*stages(INPUT_GRADIENT, DO=(2, oh, ow, 2), K=(kh, kw, 3, 2)))


# statement over A[5, 6], B[7], C[4], the defracted text, None where it is not the point
STATEMENTS = [
    ("O[i, j : 5, 6] = A[i, j] * 2;", "O[i, j : 5, 6] = A[i, j] * 2;"),
    ("O[2*i : 13] = +(B[i]);", "O[2*v0_0 : 13] = +(B[v0_0]);"),
    ("O[2*i : 13] = +(B[2*i]);", "O[2*v0_0 : 13] = +(B[2*v0_0]);"),
    ("O[3*i - 1 : 9] = +(B[i]);", "O[3*v0_0 + 2 : 9] = +(B[v0_0 + 1]);"),
    ("O[6 - i : 7] = +(B[i]);", "O[v0 : 7] = +(B[-v0 + 6]);"),
    ("O[i, i : 7, 7] = +(B[i]);", "O[v0, v0 : 7, 7] = +(B[v0]);"),
    ("O[2*i, 3*i : 12, 12] = +(B[i]);", "O[2*v0_0, 3*v0_0 : 12, 12] = +(B[v0_0]);"),
    ("O[3, i : 5, 7] = +(B[i]);", "O[3, v0 : 5, 7] = +(B[v0]);"),
    ("O[3 : 5] = +(B[i]);", None),
    ("O[0 : 1] = +(2);", None),
    ("O[] = +(B[i] * C[i/2]);", "O[] = +(B[2*v0_0] * C[v0_0]);"),
    ("O[i : 4] = +(B[j] * C[i]);", "O[i : 4] = +(B[j] * C[i]);"),
    ("O[x : 7] = +(B[(x - k + 1)/2] * C[k]);", None),
    ("O[x : 7] = +(B[x/2 + 1/2] * C[x/3]);", None),
    ("O[x : 7] = +(B[x/2 + 1/2] * C[x/2]);", None),
    ("O[i + j : 12] = +(A[i, j]);", None),
    ("O[i + j, i - j : 12, 12] = +(A[i, j]);", None),
    ("O[i + 2*j, 3*i - j : 12, 12] = +(A[i, j] * C[i]);", None),
    ("O[i + j, i + j + 1 : 12, 12] = +(A[i, j]);", None),
    ("O[2*i + 3*j + k : 12] = +(A[i, j] * C[k]);", None),
    ("O[2*i + 4*j : 30] = >(A[i, j]);", None),
    ("O[2*i + 4*j + 1 : 30] = <(A[i, j]);", None),
    ("O[2*i + j : 14] = =(A[i, j]), j < 2;", None),
    ("O[2*i + j : 14] = *(A[i, j]), (i + j)/2 < 4;", None),
    ("O[3*i : 20] = logsumexp(B[i + j]), j < 3;", None),
    ("O[i + j : 12] = +(B[i + j]), j < 3;", None),
    ("O[2*i : 13] = +(C[i/2] * i);", "O[4*v0_0 : 13] = +(C[v0_0] * (2 * v0_0));"),
    ("O[2*i + 3*j : 13] = +(i * 100 + j), i < 3, j < 4;", None),
    ("O[2*i + 3*j : 13] = +(i > j ? B[i] + j), j < 4;", None),
    ("O[2*i : 13] = +(B[(i + 3) % 7]), i < 5;", None),
    ("O[2*i + j : 13] = +(B[(i + 3) % 7] * C[clamp(j - 1, 0, 3)]), i < 5, j < 5;", None),
    ("O[2*i + 3*j : 13] = +(pad(B[i/2 + j], 3) * C[j] * in(A[i, j]));", None),
    ("O[(2*i + 3) % 5 : 5] = +(B[i]);", "O[(2*i - 2) % 5 : 5] = +(B[i]);"),
    ("O[2*i : 5] = +(B[i/3 + 1/2]);", None),
    ("O[2*i : 5] = +(B[i + 20]);", None),
    ("O[2*i : 0] = +(B[i]);", None),
    ("O[2*i + 3*j : 13] = any(A[i, j] > 1);", None),
    ("O[2*i + 3*j : 13] = all(A[i, j] > 1);", None),
    ("O[i/2 : 4] = +(B[i]);", None),
    ("O[i/2 + j/3 : 4] = +(B[i] * C[j]);", None),
    ("O[2*i, 2*i + 3*j : 13, 13] = +(A[i, j]);", None),
]


@pytest.mark.parametrize(("text", "expected"), STATEMENTS)
def test_statements(text, expected):
    source = f"function (A[5, 6], B[7], C[4]) -> (O) {{ {text} }}"
    programs = stages(source, A=(5, 6), B=(7,), C=(4,))
    check_meaning(*programs)
    if expected is not None:
        assert body(programs[-1]) == expected


def test_integer_gathers_are_carried_along():
    source = "function (A[5, 6], J[4]) -> (O) { O[2*i, j : 9, 6] = +(A[J[i] + 1, j]); }"
    types = {"A": TensorType((5, 6), "float64"), "J": TensorType((4,), "int64")}
    program = flatten(bind(parse(source), types, {}), types)
    inputs = [np.arange(30.0).reshape(5, 6), np.array([3, -7, 0, 1])]
    expected = evaluate(program, inputs)
    for p in (reduce(program), defract(reduce(program))):
        assert parse(show(p)) == p
        np.testing.assert_array_equal(evaluate(p, inputs), expected)
    assert body(defract(reduce(program))) == "O[2*v0_0, v1 : 9, 6] = +(A[J[v0_0] + 1, v1]);"


def test_an_output_index_that_depends_on_data_stays():
    source = "function (U[4, 6], J[4]) -> (O) { O[J[k], 2*j : 5, 12] = +(U[k, j]); }"
    types = {"U": TensorType((4, 6), "float64"), "J": TensorType((4,), "int64")}
    program = flatten(bind(parse(source), types, {}), types)
    assert defract(reduce(program)) == program
    assert roles(program.statements[0]) is None


def test_no_defract_keeps_the_fractions():
    text = "function (B[7]) -> (O) { O[2*i : 13] = +(B[i]) no_defract; }"
    program, reduced, defracted = stages(text, B=(7,))
    check_meaning(program, reduced, defracted)
    assert defracted == reduced
    assert body(reduced) == "O[v0 : 13] = +(B[1/2*v0]) no_defract;"


def test_an_integer_that_nothing_else_asks_for():
    program, reduced, defracted = stages("function (B[7]) -> (O) { O[2*i : 13] = +(B[2*i]); }", B=(7,))
    assert body(reduced) == "O[v0 : 13] = +(B[v0]), 1/2*v0 < 4;"
    check_meaning(program, reduced, defracted)
    program, reduced, _ = stages("function (B[7]) -> (O) { O[2*i + 3 : 13] = +(B[2*i + 3]); }", B=(7,))
    assert body(reduced) == "O[v0 : 13] = +(B[v0]), 1/2*v0 - 1/2 < 3;"


def test_a_fraction_inside_pad_asks_for_no_integer():
    source = "function (B[7]) -> (O) { O[i : 7] = +(pad(B[i/2], 5) * B[i]); }"
    program, reduced, defracted = stages(source, B=(7,))
    check_meaning(program, reduced, defracted)
    assert any(isinstance(e, Pad) for e in walk(defracted.statements[0].body))
    assert defracted == program
    source = "function (B[7], C[4]) -> (O) { O[3*i : 20] = +(pad(B[i/2], 5) * C[i]); }"
    program, reduced, defracted = stages(source, B=(7,), C=(4,))
    check_meaning(program, reduced, defracted)
    assert body(defracted) == "O[3*v0_0 : 20] = +(pad(B[1/2*v0_0], 5) * C[v0_0]);"


def test_names_that_are_taken():
    source = "function (B[7], C[9]) -> (O) { O[v1, v2 : 7, 9] = +(B[v1/2] * C[v2/2 + v0_0]), v0_0 < 3; }"
    check_meaning(*stages(source, B=(7,), C=(9,)))
    program = flat("function (B[7]) -> (O) { O[v0, v0_0 : 7, 4] = B[v0/2] + v0_0; }", B=(7,))
    check_meaning(program, defract(program))
    assert body(defract(program)) == "O[2*v0__0, v0_0 : 7, 4] = B[v0__0] + v0_0;"


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_gradients_of_convolutions(stride, dilation):
    """As many classes as the stride leaves, and no work for taps that a class cannot meet."""
    source = f"function (D[X], K[KH]) -> (O) {{ O[{stride}*x + {dilation}*k - 1 : 48] = +(D[x] * K[k]); }}"
    program, reduced, defracted = stages(source, D=(12,), K=(3,))
    check_meaning(program, reduced, defracted)
    s = defracted.statements[0]
    common = np.gcd(stride, dilation)
    assert roles(s).classes == ((("v0_0", stride // common),) if stride > common else ())
    assert all(c.form.is_integral for c in domain(s, shapes_of(defracted)).conditions)


def seven_dimensional():
    ys, js = [f"y{i}" for i in range(7)], [f"j{i}" for i in range(7)]
    hs, ks = [f"H{i}" for i in range(7)], [f"K{i}" for i in range(7)]
    index = ", ".join(f"3*{y} + 2*{j}" for y, j in zip(ys, js, strict=True))
    return parse(
        f"function (I[N, {', '.join(hs)}, CI], K[{', '.join(ks)}, CI, CO]) -> (O) {{"
        f" O[n, {', '.join(ys)}, co : N, {', '.join(f'{h}/3' for h in hs)}, CO] ="
        f" +(I[n, {index}, ci] * K[{', '.join(js)}, ci, co]); }}"
    )


def test_gradients_of_a_seven_dimensional_convolution_are_no_effort():
    gradient = grad(seven_dimensional())
    shapes = [(2, *[9] * 7, 4), (*[2] * 7, 4, 5), (2, *[3] * 7, 5)]
    program = flat(gradient, **dict(zip(gradient.input_names(), shapes, strict=True)))

    def lowered():
        defracted = defract(reduce(program))
        for s in defracted.statements:
            bounds(s, shapes_of(defracted))
        return defracted

    defracted, calls = counted(lowered)
    assert calls < 200_000  # some 50 ms
    classes = [roles(s).classes for s in defracted.statements]
    assert tuple((f"v{i}_0", 3) for i in range(1, 8)) in classes
    assert all(linear(i).is_integral for s in defracted.statements for e in expressions(s) for i in e_indices(e))


def test_what_has_no_quotient_of_positions_is_not_looked_at():
    """A division by an element is none of positions."""
    text = "function (X[M, N], Z[M]) -> (Y) { Y[m, n : M, N] = X[m, n] / Z[m]; }"
    program = reduce(flat(parse(text), X=(4, 5), Z=(4,)))
    same, calls = counted(lambda: defract(program))
    assert same == program and calls < 150


def e_indices(e):
    return [i for a in walk(e) if hasattr(a, "tensor") for i in a.index]


def test_roles_of_other_statements():
    (s,) = flat("function (A[5, 6]) -> (O) { O[i + j : 9] = +(A[i, j]); }", A=(5, 6)).statements
    assert roles(s) is None
    (s,) = flat("function (A[5, 6]) -> (O) { O[i + 2*j : 9] = +(A[i, j]), i < 3; }", A=(5, 6)).statements
    assert roles(s) is None
    (s,) = flat("function (A[5, 6]) -> (O) { O[i + 3*j : 9] = +(A[i, j]), i < 3; }", A=(5, 6)).statements
    assert roles(s) == Roles((("i", 3),), ("j",), ())
    (s,) = flat("function (A[5, 6]) -> (O) { O[i : 5] = +(A[i, j]), i < 3; }", A=(5, 6)).statements
    assert roles(s) == Roles((), ("i",), ("j",))
    (s,) = flat("function (A[5, 6]) -> (O) { O[i % 2 : 5] = +(A[i, j]); }", A=(5, 6)).statements
    assert roles(s) is None


def test_reductions_of_one_another_s_remainders_have_small_boxes() -> None:
    """A sum over lags and frames that writes at `k + l + 16*t`: one of few frames, not of all remainders."""
    text = "function (D[T, L], X[S]) -> (G) { G[k + l + 16*t + 1 : S] = +(D[t, l] * X[k + 16*t]), k < 32; }"
    f = tilec.compile(text)
    given = [np.random.default_rng(0).standard_normal(s) for s in ((5, 16), (112,))]
    np.testing.assert_allclose(f(*given), tilec.interpret(text, *given), atol=1e-12)
    lowered = f.lower(*given)
    (s,) = lowered.stages["defracted"].statements
    shapes = {"D": (5, 16), "X": (112,), "G": (112,)}
    sizes = [high - low + 1 for low, high in (bounds(s, shapes) or {}).values()]
    assert math.prod(sizes) <= 112 * 32 * 4


def test_of_two_reductions_the_one_with_few_values_takes_all_of_them() -> None:
    """Lags and places in a hop that add up: 16 places and what lags are left, not 64 lags and what places are left."""
    text = "function (D[T, L]) -> (G) { G[l + s + 16*t : S] = +(D[t, l]), s < 16; }".replace("S]", "112]")
    given = [np.random.default_rng(0).standard_normal((3, 64))]
    f = tilec.compile(text)
    np.testing.assert_allclose(f(*given), tilec.interpret(text, *given), atol=1e-12)
    (s,) = f.lower(*given).stages["defracted"].statements
    sizes = [high - low + 1 for low, high in (bounds(s, {"D": (3, 64), "G": (112,)}) or {}).values()]
    assert math.prod(sizes) <= 112 * 16 * 5
