"""What gradients look like: their text, their interface, and what they refuse."""

from __future__ import annotations

import pytest

from tilec.errors import InputMistake, NameMistake
from tilec.ir.program import Call, walk
from tilec.language import parse, show
from tilec.transforms.autodiff.grad import grad


def lines(source: str, wrt=None) -> list[str]:
    """The statements of a gradient, which must survive its text."""
    program = grad(parse(source), wrt)
    text = show(program)
    assert parse(text) == program
    return [line.strip() for line in text.splitlines()[1:-1]]


def test_convolution_reads_as_one_would_write_it():
    source = """function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
        O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
    }"""
    program = grad(parse(source))
    assert show(program).splitlines()[0] == "function (I[N, H, W, CI], K[KH, KW, CI, CO], DO) -> (DI, DK) {"
    assert lines(source) == [
        "GI[n, 3*y + 2*j, 3*x + 2*i, ci : N, H, W, CI] = +(DO[n, y, x, co] * K[j, i, ci, co]);",
        "DI = as_type(GI, I);",
        "GK[j, i, ci, co : KH, KW, CI, CO] = +(DO[n, y, x, co] * I[n, 3*y + 2*j, 3*x + 2*i, ci]);",
        "DK = as_type(GK, K);",
    ]


@pytest.mark.parametrize(
    "source, expected",
    [
        (
            "O[i : I] = +(A[2*i, k] + B[k])",
            ["A: GA[2*i, k : I, K] = +(DO[i]);", "B: GB[k : K] = +(DO[i] * in(A[2*i, k]));"],
        ),
        (
            "O[i : I] = +(A[i, k] + B[k])",
            ["A: GA[i, k : I, K] = +(DO[i]);", "B: GB[k : K] = +(DO[i]);"],
        ),
        (
            "O[i : I] = *(A[i, k] * B[k])",
            [
                "A: GA[i, k : I, K] = +(DO[i] * prod(k' != k ? A[i, k'] * B[k']) * B[k]);",
                "B: GB[k : K] = +(DO[i] * prod(k' != k ? A[i, k'] * B[k']) * A[i, k]);",
            ],
        ),
        (
            "O[i : I] = >(A[i, k] + B[k])",
            [
                "A: GA[i, k : I, K] = +(A[i, k] + B[k] == O[i] ? DO[i] / Ties[i]);",
                "B: GB[k : K] = +(A[i, k] + B[k] == O[i] ? DO[i] / Ties[i]);",
            ],
        ),
        (
            "O[i : I] = mean(A[i, k] * B[k])",
            ["A: GA[i, k : I, K] = +(DO[i] / Count[i] * B[k]);", "B: GB[k : K] = +(DO[i] / Count[i] * A[i, k]);"],
        ),
        (
            "O[i : I] = logsumexp(A[i, k] + B[k])",
            [
                "A: GA[i, k : I, K] = +(O[i] != -inf ? DO[i] * exp(A[i, k] + B[k] - O[i]));",
                "B: GB[k : K] = +(O[i] != -inf ? DO[i] * exp(A[i, k] + B[k] - O[i]));",
            ],
        ),
        (
            "O[i : I] = +(A[i, k] == 1 ? B[k] * B[k]), k - i < 2",
            ["B: GB[k : K] = +(A[i, k] == 1 ? DO[i] * B[k] * 2), k - i < 2;"],
        ),
    ],
)
def test_rules(source, expected):
    found = lines(f"function (A[I, K], B[K]) -> (O) {{ {source}; }}")
    for line in expected:
        assert line[3:] in found
        assert f"D{line[0]} = as_type(G{line[0]}, {line[0]});" in found


def test_one_input_and_no_cast_end_without_a_cast():
    assert lines("function (X) -> (Y) { Y = sin(X); }") == ["DX = DY * cos(X);"]
    assert lines("function (X) -> (Y) { Y = float32(X); }") == ["DX = as_type(DY, X);"]


def test_a_cast_gives_each_cotangent_the_type_of_its_tensor():
    """As torch's: what is added up for a tensor is rounded to it. An output's own cotangent has its type already."""
    source = "function (X[N]) -> (Y) { A = X * X; Y = sin(float32(A)) + float32(A); }"
    assert lines(source)[1] == "DA = as_type(DY * cos(float32(A)) + DY, A);"
    assert lines("function (X[N]) -> (A, Y) { A = X * X; Y = float32(A); }")[1] == "DA_1 = as_type(DA + DY, A);"
    assert lines("function (X[N]) -> (A) { A = float32(X) * X; }")[0] == "GX = DA * X + DA * float32(X);"
    assert not any("as_type" in line for line in lines("function (X[N]) -> (Y) { A = X * X; Y = sin(A) + A; }"))


def test_cotangents_may_be_rounded_without_a_cast():
    """As where inputs have several floating types, which a text does not say."""
    source = parse("function (X[N], G[N]) -> (Y) { A = X * X; Y = sin(A) * G; }")
    assert "DA = as_type(DY * G * cos(A), A);" in show(grad(source, ("X",), rounded=True))
    assert "as_type(DY" not in show(grad(source, ("X",)))


def test_forward_statements_are_repeated_only_where_needed():
    assert lines("function (X) -> (Y) { T = 2 * X; U = sin(T); Y = U + T; }") == [
        "T = 2 * X;",
        "DT = DY + DY * cos(T);",
        "DX = DT * 2;",
    ]
    assert lines("function (X) -> (Y) { Y = exp(X); }") == ["Y = exp(X);", "DX = DY * Y;"]


def test_an_exponential_among_factors_is_the_whole_value():
    source = "function (X[N, D], S[N], G[D]) -> (Y) {{ Y[i, j] = {}; }}"
    for body in ("exp(X[i, j]) / S[i] * G[j]", "G[j] / S[i] * exp(X[i, j])", "G[j] * exp(X[i, j]) / S[i]"):
        assert "GX[i, j : N, D] = +(DY[i, j] * Y[i, j]);" in lines(source.format(body)), body
    assert "exp" in lines(source.format("exp(X[i, j]) / S[i] + G[j]"))[0]


def test_broadcast_dimensions_are_summed_and_others_are_not():
    assert lines("function (X[N, C], B[C]) -> (Y) { Y = X * B; }", ["B"]) == [
        "DB_1 = DY * X;",
        "DB_2 = simple_reduce(DB_1, B);",
        "DB = as_type(DB_2, B);",
    ]
    assert lines("function (X[N, C], B[C]) -> (Y) { Y = X * B; }", ["X"]) == ["GX = DY * B;", "DX = as_type(GX, X);"]


def test_unused_inputs_get_zeros_of_their_shape():
    assert lines("function (X, Z) -> (Y) { Y = X; }", ["Z"]) == ["DZ = as_type(0 ? Z : 0.0, Z);"]
    assert lines("function (X) -> (Y) { Y = floor(X) + (X > 0); }") == ["DX = 0 ? X : 0.0;"]


def test_names_that_are_taken():
    program = grad(parse("function (O, DO) -> (DO, O, Y, Y) { Y = O * DO; }"))
    assert program.input_names() == ("O", "DO", "DDO", "DO_1", "DY", "DY_1")
    assert program.outputs == ("DO_2", "DDO_1")


def test_the_default_gets_what_nothing_wrote():
    assert lines("function (A[N], X[M]) -> (O) { O[2*i : M] = +(A[i]) default X; }", ["X"]) == [
        "Written[2*i : M] = any(in(A[i]));",
        "GX = Written ? 0 : DO;",
        "DX = as_type(GX, X);",
    ]


def test_padding_shares_the_cotangent():
    assert lines("function (A[N], V[]) -> (O) { O[i : N] = pad(A[i + 1], V[]); }") == [
        "GA[i + 1 : N] = +(DO[i]);",
        "DA = as_type(GA, A);",
        "GV[] = +(pad(in(A[i + 1]), 0) == 0 ? DO[i]);",
        "DV = as_type(GV, V);",
    ]


def test_variables_of_constraints_stay_bound():
    """Without its condition, k would stand in constraints alone."""
    assert lines("function (A[N]) -> (O) { O[i : N] = +(A[i] + k), k < 3; }") == [
        "DA[i : N] = +(k == k ? DO[i]), k < 3;"
    ]


def test_gather_and_scatter_are_each_others_gradient():
    gathered = "function (A[N, M], Ix[K]) -> (O) { O[k, j : K, M] = A[Ix[k] + 1, j]; }"
    assert lines(gathered, ["A"])[0] == "GA[Ix[k] + 1, j : N, M] = +(DO[k, j]);"
    scattered = "function (U[K, M], Ix[K]) -> (O) { O[Ix[k], j : 9, M] = +(U[k, j]); }"
    assert lines(scattered, ["U"])[0] == "GU[k, j : K, M] = +(DO[Ix[k], j]);"
    assert lines("function (X, I) -> (Y) { Y = gather(X, I); }", ["X"])[0] == "DX_1 = scatter(DY, I, X);"
    assert lines("function (X, I, Z) -> (Y) { Y = scatter(X, I, Z); }", ["X", "Z"])[0] == "DX_1 = gather(DY, I);"
    assert lines("function (X, I, Z) -> (Y) { Y = scatter(X, I, Z); }", ["Z"]) == ["DZ = as_type(0 ? Z : 0.0, Z);"]


def test_sizes_that_are_known_are_not_asked_for():
    """T has the shape of X, so that its gradient's sizes need no T."""
    assert (
        "GX[i, j : shape(X, 0), shape(X, 1)]"
        in lines("function (X, B) -> (O) { O[i : shape(X, 0)] = +(X[i, j] * B[j]); }", ["X"])[0]
    )
    found = lines("function (X[N, C]) -> (O) { T = X + 1; O[i : N] = +(T[i, j]); }")
    assert found == ["DX[i, j : N, C] = +(DO[i]);"]


def test_nested_aggregations_bind_variables_of_their_own():
    """Those of the left side alone become statements; these have one value for each m as well."""
    nested = "function (A[N, K], B[M]) -> (Y) { Y[n : N] = +(sum(A[n, k] * B[m]) * max(A[n, k] * B[m]) * B[m]); }"
    assert lines(nested, ["A"]) == [
        "GA[n, k : N, K] = +(DY[n] * max(A[n, k'] * B[m]) * B[m] * B[m]);",
        "GA_1[n, k' : N, K] = +(A[n, k'] * B[m] == max(A[n, k1] * B[m]) ? "
        "DY[n] * sum(A[n, k] * B[m]) * B[m] / sum(A[n, k2] * B[m] == max(A[n, k1] * B[m])) * B[m]);",
        "GA_2 = GA + GA_1;",
        "DA = as_type(GA_2, A);",
    ]


def test_wrt():
    program = parse("function (X, Y) -> (Z) { Z = X * Y; }")
    assert grad(program, ["Y", "X"]).outputs == ("DY", "DX")
    with pytest.raises(InputMistake, match="no input to differentiate by"):
        grad(program, [])
    with pytest.raises(NameMistake, match="no input is called Z"):
        grad(program, ["Z"])


def test_random_numbers_carry_no_gradient():
    found = lines("function (X, S[]) -> (Y) { Y = X * (rand(S) > 0.5); }")
    assert found == ["GX = DY * (rand(S) > 0.5);", "DX = as_type(GX, X);", "DS = as_type(0 ? S : 0.0, S);"]


@pytest.mark.parametrize(
    "step", ["tanh({})", "sin({0}) * X", "max(X, {})", "X / (1 + {})", "pow({}, 3)", "tanh({}) * rand(7)"]
)
@pytest.mark.one_in(3)
def test_deep_expressions_have_gradients_of_linear_size(step):
    def size(depth: int, order: int) -> int:
        body = "X"
        for _ in range(depth):
            body = step.format(body)
        program = parse(f"function (X) -> (Y) {{ Y = {body}; }}")
        for _ in range(order):
            program = grad(program)
        assert parse(show(program)) == program
        return len(show(program))

    assert size(32, 1) < 3 * size(16, 1)
    assert size(16, 2) < 3 * size(8, 2)


def test_deep_assignments_have_gradients_of_linear_size():
    def size(depth: int) -> int:
        body = "A[i]"
        for _ in range(depth):
            body = f"A[i] / (1 + {body})"
        return len(show(grad(parse(f"function (A[N]) -> (O) {{ O[i : N] = {body}; }}"))))

    assert size(120) < 3 * size(60)


def test_unrolled_taps_have_gradients_of_linear_size():
    """Of the taps that a term no longer reads, the outermost say where the others are inside."""

    def size(taps: int) -> int:
        body = " + ".join(f"X[i + {k}] * W[{k}]" for k in range(taps))
        return len(show(grad(parse(f"function (X[N], W[M]) -> (O) {{ O[i : N] = {body}; }}"))))

    assert size(12) < 2.5 * size(6)  # in one statement
    assert size(80) < 2.5 * size(40)  # in parts


def test_taps_between_others_are_not_asked_for():
    found = lines("function (X[N]) -> (O) { O[i : N] = X[i] + X[i + 1/2] + X[i + 1] + X[i + 3]; }")
    assert found[0] == "GX[i : N] = +(DO[i] * in(X[i + 1/2]) * in(X[i + 3]));"


def test_a_deep_body_has_a_gradient_that_can_be_read_back():
    body = "A[i]"
    for _ in range(200):
        body = f"tanh({body})"
    program = grad(parse(f"function (A[N]) -> (O) {{ O[] = +({body}); }}"))
    assert parse(show(program)) == program


def test_long_programs():
    body = "".join(f"Y{k} = tanh(Y{k - 1}) * X; " for k in range(1, 1500))
    program = grad(parse(f"function (X) -> (Y1499) {{ Y0 = X * X; {body} }}"))
    largest = max(sum(1 for _ in walk(s.body)) for s in program.statements)
    assert largest < 200
    assert sum(isinstance(s.body, Call) for s in program.statements) < 6000
