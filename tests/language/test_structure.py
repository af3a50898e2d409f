"""What parsing makes of a text: guards, nested aggregations, constraints, inputs and outputs, sizes."""

import pytest

from tilec.errors import UnboundIndex
from tilec.ir.program import Access, Aggregate, Call, Constraint, Index, Input, Int, Name, children
from tilec.language import parse, show_expr

i, j, k = Index("i"), Index("j"), Index("k")


def only(source):
    (statement,) = parse(source).statements
    return statement


def aggregates(e):
    found = [e] if isinstance(e, Aggregate) else []
    return found + [a for c in children(e) for a in aggregates(c)]


def test_spans_cover_what_was_written():
    source = "O[i : N] = +(A[i, (j + 1)/2] * (B[j] + 1)), 2j < 3;"
    s = only(source)

    def text(node):
        return source[node.span.start : node.span.stop]

    assert text(s.body) == "A[i, (j + 1)/2] * (B[j] + 1)"
    assert text(s.body.args[0]) == "A[i, (j + 1)/2]"
    assert text(s.body.args[0].index[1]) == "(j + 1)/2"
    assert text(s.body.args[1]) == "B[j] + 1"
    assert text(s.constraints[0]) == "2j < 3"
    assert text(s) == "O[i : N] = +(A[i, (j + 1)/2] * (B[j] + 1))"


def test_conditions_without_a_colon_are_hoisted_to_the_innermost_points():
    s = only("O[i : N] = +(A[i, j] * max(B[k] > 0 ? B[k]) * (A[i, j] ? 2) * (B[i] == 1 ? 3))")
    assert show_expr(s.guard) == "A[i, j] != 0 & B[i] == 1"
    (inner,) = aggregates(s.body)
    assert show_expr(inner.guard) == "B[k] > 0"
    assert inner.body == Access("B", (k,))


def test_one_condition_stays_as_it_is():
    assert only("O[i : N] = A[i] ? B[i];").guard == Access("A", (i,))


def test_nested_aggregations_bind_what_stands_nowhere_else():
    s = only("O[i : N] = A[i, 0] * sum(B[j, i] * max(C[j + k, i])) + sum(B[j, k]) + sum(A[i, 0])")
    outer, inner, other, none = aggregates(s.body)
    assert [a.bound for a in (outer, inner, other, none)] == [("j",), ("k",), ("j", "k"), ()]


def test_the_innermost_aggregation_binds():
    s = only("O = sum(max(A[i, j]) + B[i])")
    outer, inner = aggregates(s.body)
    assert (outer.bound, inner.bound) == (("i",), ("j",))
    s = only("O = sum(max[i, j](A[i, j]))")
    outer, inner = aggregates(s.body)
    assert (outer.bound, inner.bound) == ((), ("i", "j"))
    s = only("O = sum(max(A[i, 0]))")
    outer, inner = aggregates(s.body)
    assert (outer.bound, inner.bound) == ((), ("i",))


def test_variables_of_the_left_side_and_of_the_statement_are_known_inside():
    s = only("O[i : N] = +(B[k] * max(A[i, k, j]))")
    (inner,) = aggregates(s.body)
    assert inner.bound == ("j",)


def test_constraints_belong_where_their_variables_are_bound():
    s = only("O[i : N] = sum(A[i, j]) * sum(B[j, k]) + C[i], j < 3, i < 2, j + k < 5, i - i < 1")
    first, second = aggregates(s.body)
    j3, jk5 = Constraint(j, Int(3)), Constraint(j + k, Int(5))
    assert s.constraints == (Constraint(i, Int(2)), Constraint(i - i, Int(1)))
    assert second.constraints == (j3, jk5)
    assert first.constraints == (j3,)


def test_a_constraint_over_a_nested_and_an_enclosing_variable_belongs_to_the_nested_one():
    s = only("O[i : N] = +(A[i, j] * sum(B[k])), j - k < 2")
    (inner,) = aggregates(s.body)
    assert inner.constraints == (Constraint(j - k, Int(2)),) and s.constraints == ()


def test_constraints_without_variables_are_the_statement_s():
    assert only("O[i : N] = +(A[i] * sum(B[j])), N < 5").constraints == (Constraint(Name("N"), Int(5)),)


def test_max_of_two_is_a_function():
    s = only("O[i : N] = max(A[i], max(B[j]))")
    assert s.aggregation == "assign" and s.body.function == "max"
    assert only("O[i : N] = max(A[i, j])").aggregation == "max"


def test_whole_statement_keeps_its_aggregation_nested():
    s = only("Y = sum(A[i])")
    assert s.index is None and s.aggregation == "assign" and s.body == Aggregate("sum", Access("A", (i,)), ("i",))


@pytest.mark.parametrize(
    "source, inputs, outputs",
    [
        ("O[i, j : M, N] = A[i, k] * B[k, j] + k", None, None),
        ("O[i, j : M, N] = +(A[i, k] * B[k, j]);", [("M", ()), ("N", ()), ("A", None), ("B", None)], ["O"]),
        ("P = A + 1; Q[i : N] = P[i] * S; R = Q;", [("A", None), ("N", ()), ("S", ())], ["R"]),
        ("P = A + 1; Q = B; R = P;", [("A", None), ("B", None)], ["Q", "R"]),
        ("H[t : T] = H[t - 1] + B[t] init S[0]", [("T", ()), ("B", None), ("S", None)], ["H"]),
        ("O[i : shape(A, 0)] = B[i] default C", [("A", None), ("B", None), ("C", None)], ["O"]),
        ("O[i : N] = A[i]; P = N * 2;", [("N", ()), ("A", None)], ["O", "P"]),
        ("V = 3.7", [], ["V"]),
    ],
)
def test_a_bare_list_of_statements(source, inputs, outputs):
    if inputs is None:
        with pytest.raises(Exception, match="which aggregation"):
            parse(source)
        return
    p = parse(source)
    assert p.inputs == tuple(Input(n, d) for n, d in inputs)
    assert list(p.outputs) == outputs


def test_entry():
    source = "function f(A) -> (A) {} function (B) -> (B) {} function g(C) -> (C) {}"
    assert parse(source).name == "g"
    assert parse(source, entry="f").inputs == (Input("A", None),)


def test_inputs_outputs_and_dimensions():
    p = parse("function (A[3, N], K[], X) -> (X, O, O) { O[i : N] = A[0, i] * K; }")
    assert p.inputs == (Input("A", (3, "N")), Input("K", ()), Input("X", None))
    assert p.outputs == ("X", "O", "O")


def test_rank_zero_inputs_are_sizes():
    s = only("function (A[N], K[]) -> (O) { O[i : N + K] = A[i - K[]] * K[]; }")
    assert s.sizes == (Name("N") + Name("K"),)
    assert s.body == Access("A", (i - Name("K"),)) * Access("K", ())


def test_rank_zero_targets():
    for source in ("O[] = +(A[i])", "O[ : ] = +(A[i])"):
        assert (only(source).index, only(source).sizes) == ((), ())


def test_sizes_left_out_stay_out():
    assert only("O[i, j] = +(A[i, k] * B[k, j])").sizes is None
    assert only("O[i] = A[B[i] + 1]").sizes is None


BOUNDED = [
    "O[i : N] = +(A[i + j] * B[i - j])",
    "O[x : N] = +(A[x + j, 2*x - k] * B[k + j])",
    "O[i : N] = +(A[i] * B[j*N + k]), k < N",
    "O[i + j : N] = +(A[i - j])",
    "O[i : N] = +(A[i, N*j])",
    "O[i : N] = +(A[i] * j), j < 3",
    "O[i : N] = +(A[i] + j), j - i < 3",
    "O[Ix[k] : N] = +(A[3])",
    "O[i : N] = +(A[i, (j + i) % 3] * A[0, j])",
    "O[i : N] = +(A[B[C[j]]])",
    "F[t, j : T, S] = logsumexp(F[t - 1, i] + P[i, j]) + E[t, j] init F0[j]",
    "O[a, b : N, M] = +(A[a + b + c + d] * B[a - b + c - d] * C[a + b - c - d] * D[a - b - c + d])",
]
FREE = [
    ("O[i + j : N] = +(A[2*i + 2*j])", "`i`, `j`"),
    ("O[i : N] = +(A[i + j + k] * B[j + k])", "`j`, `k`"),
    ("O[i : N] = +(A[i + N*j + K*k] * B[2*N*j + 2*K*k])", "`j`, `k`"),
    ("O[i : N] = +(A[i] * B[j - j])", "`j`"),
    ("O[i : N] = sum(F[i] * pad(A[j], 0))", "`j`"),
    ("F[t, j : T, S] = logsumexp(F[t - 1, i] + P[0, j])", "`i`"),
    ("O[a, b : N, M] = +(A[a + b + c + d] * B[c + d - a - b])", "`c`, `d`"),
]


@pytest.mark.parametrize("source", BOUNDED)
def test_bounded(source):
    parse(source)


@pytest.mark.parametrize("source, names", FREE)
def test_not_bounded(source, names):
    with pytest.raises(UnboundIndex, match=f"nothing bounds {names}:"):
        parse(source)


def test_calls_of_operators_by_their_old_names():
    assert only("Y = cmp_lt(A, bit_left(B, 1))").body == Call("lt", (Name("A"), Call("shl", (Name("B"), Int(1)))))
