"""Sums of which other sums are parts: read where they are, in float32, before who reads them."""

import pytest
import torch

import tilec
from tilec.ir.infer import infer
from tilec.ir.program import Access, Program, Statement, walk
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import CallContext, apply
from tilec.transforms.lower.share_sums import share_sums, with_common_sums

N, H, W, C = 2, 3, 5, 4
RESPONSE = """function (X[N, H, W, C], A[C], B[C]) -> (Y) {
    G[n, c] = sqrt(sum(X[n, y, x, c] * X[n, y, x, c]));
    M[n] = mean(G[n, c]);
    Y[n, y, x, c] = A[c] * (X[n, y, x, c] * (G[n, c] / (M[n] + 0.000001))) + B[c] + X[n, y, x, c];
}"""
PAIR = """function (D[2, 5, 4], X[2, 5, 4], G[2, 4]) -> (M, S) {
    M[n : 2] = +(D[n, x, c] * X[n, x, c] * G[n, c]);
    S[n, c : 2, 4] = +(D[n, x, c] * X[n, x, c]);
}"""


def read(s: Statement) -> set[str]:
    return {a.tensor for a in walk(s.body) if isinstance(a, Access)}


def before_and_after(text: str, dtype: str = "float32") -> tuple[Program, Program]:
    source = parse(text)
    types = {i.name: TensorType(tuple(map(int, i.dims or ())), dtype) for i in source.inputs}
    program = apply(("bind", "flatten", "simplify"), source, CallContext(types, {}))
    return program, share_sums(program, types)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_gradient_of_a_response_norm_reads_all_points_of_two_tensors_in_one_sum(dtype: str) -> None:
    f = tilec.compile(RESPONSE)
    specs = [tilec.spec(s, dtype) for s in ((N, H, W, C), (C,), (C,), (N, H, W, C))]
    flat = f.grad().lower(*specs, backend="torch").stages["flat"]
    sums = [s for s in flat.statements if s.aggregation == "sum" and {"X", "DY"} <= read(s)]
    assert len([s for s in sums if not {"G", "M", "A"} & read(s)]) == 1 and len(sums) == 1, flat


def response(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    g = x.square().sum((1, 2), keepdim=True).sqrt()
    return a * (x * (g / (g.mean(-1, keepdim=True) + 0.000001))) + b + x


def test_gradients_are_what_they_were() -> None:
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in ((N, H, W, C), (C,), (C,))]
    d = torch.randn(N, H, W, C, generator=g, dtype=torch.float64)
    found = torch.autograd.grad(tilec.compile(RESPONSE)(*given), given, d)
    torch.testing.assert_close(found, torch.autograd.grad(response(*given), given, d))


def test_the_part_goes_first() -> None:
    _, program = before_and_after(PAIR)
    assert [s.output for s in program.statements] == ["S", "M"]
    assert read(program.statements[1]) == {"S", "G"}


def test_parts_of_16_bits_are_read_in_float32() -> None:
    _, program = before_and_after(PAIR, "bfloat16")
    of = {s.output: s for s in program.statements}
    assert read(of["M_total"]) == {"S_total", "G"} and read(of["S"]) == {"S_total"} and read(of["M"]) == {"M_total"}


@pytest.mark.parametrize(
    "text",
    [
        # S divides by what M multiplies with
        PAIR.replace("D[n, x, c] * X[n, x, c])", "D[n, x, c] / X[n, x, c])"),
        # what is left of M's factors depends on x
        PAIR.replace("G[2, 4]", "G[2, 5]").replace("G[n, c]", "G[n, x]"),
        # S is a product of matrices, which M is not made of
        """function (D[2, 5], X[5, 4], G[2, 4]) -> (M, S) {
            M[n : 2] = +(D[n, x] * X[x, c] * G[n, c]);
            S[n, c : 2, 4] = +(D[n, x] * X[x, c]);
        }""",
        # S has points that M does not have
        PAIR.replace("G[n, c]);", "G[n, c]), x < 3;"),
        PAIR.replace("+(D", "+(D[n, x, c] > 0 ? D", 1),
        PAIR.replace("+(D", "+(X[n, x, c] > 0 ? D", 1).replace("= +(D", "= +(D[n, x, c] > 0 ? D"),
        # the two sums are read by one another
        """function (D[2, 5, 4], G[2, 4]) -> (M, S) {
            M[n : 2] = +(D[n, x, c] * G[n, c]);
            T[n, x, c : 2, 5, 4] = D[n, x, c] * M[n];
            S[n, c : 2, 4] = +(D[n, x, c] * T[n, x, c]);
        }""",
    ],
)
def test_other_sums_stay(text: str) -> None:
    before, after = before_and_after(text)
    assert after == before


CONSTRAINED = PAIR.replace("D[n, x, c] * X[n, x, c]);", "D[n, x, c] * X[n, x, c]), x < 5;")


@pytest.mark.parametrize("text, weights", [(PAIR, "float32"), (CONSTRAINED, "bfloat16")])
def test_sums_of_several_types_and_with_constraints_that_exclude_nothing(text: str, weights: str) -> None:
    given = [torch.ones(2, 5, 4).bfloat16(), torch.ones(2, 5, 4).bfloat16(), torch.ones(2, 4)]
    m, s = tilec.compile(text)(*given[:2], given[2].to(getattr(torch, weights)))
    assert m.tolist() == [20.0] * 2 and s.tolist() == [[5.0] * 4] * 2


WEIGHTED = """function (A[3, 4], B[3, 5], G[3], X[4, 5]) -> (P, M) {
    P[n, t : 3, 4] = +(exp(A[n, t] + B[n, k + 1] + X[t, k]));
    M[n : 3] = +(%s);
}"""


def test_products_of_what_is_computed_for_each_point_and_their_negative() -> None:
    for body in ("-exp(A[n, t] + B[n, k + 1] + X[t, k])", "2 * exp(A[n, t] + B[n, k + 1] + X[t, k])"):
        before, after = before_and_after(WEIGHTED % body, "float64")
        assert read(after.statements[1]) == {"P"}, after
        g = torch.Generator().manual_seed(0)
        given = [torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 4), (3, 5), (3,), (4, 5))]
        torch.testing.assert_close(tilec.Function(after, "")(*given), tilec.Function(before, "")(*given))


def test_an_element_beside_points_that_are_dropped_is_no_part() -> None:
    """It may be infinite where no point is left."""
    before, after = before_and_after(WEIGHTED % "G[n] * exp(A[n, t] + B[n, k + 1] + X[t, k])")
    assert after == before


@pytest.mark.parametrize("guard", ["D[n, x, c] > 0 ? ", "G[n, c] > 0 & x > c ? ", "x + c < 5 ? "])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_sums_over_the_same_chosen_points(guard: str, dtype: str) -> None:
    """What the part's guard chose is no condition of the whole; rows without a point are 0 in both."""
    text = PAIR.replace("+(", f"+({guard}")
    _, program = before_and_after(text, dtype)
    of = {s.output: s for s in program.statements}
    assert not {"D", "X"} & (read(of["M"]) | read(of.get("M_total", of["M"])))
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=g).to(getattr(torch, dtype)) for s in ((2, 5, 4), (2, 5, 4), (2, 4))]
    given[0][1, :, 2] = -1
    d, x, w = (t.double() for t in given)
    here = {"D": d > 0, "G": (w > 0)[:, None] & (torch.arange(5)[:, None] > torch.arange(4)),
            "x": (torch.arange(5)[:, None] + torch.arange(4) < 5).expand(2, 5, 4)}[guard[0]]  # fmt: skip
    part = (d * x * here).sum(1)
    for found, wanted in zip(tilec.compile(text)(*given), ((part * w).sum(1), part), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-2 if dtype == "bfloat16" else 1e-12, atol=1e-12)


@pytest.mark.parametrize("guard", ["D[n, x, c] > 0 ? ", "G[n, c] < 2 ? ", "x < c ? "])
def test_what_is_infinite_where_a_guard_chose_no_point_adds_nothing(guard: str) -> None:
    text = PAIR.replace("+(", f"+({guard}")
    d, x, w = torch.ones(2, 5, 4), torch.ones(2, 5, 4), torch.ones(2, 4)
    d[:, :, 0], w[:, 0] = -1, torch.inf
    assert tilec.compile(text)(d, x, w)[0].tolist() == [{"D": 15.0, "G": 15.0, "x": 6.0}[guard[0]]] * 2


def test_a_number_as_guard_beside_a_constraint() -> None:
    text = "function (D[2, 5, 4], G[2, 4]) -> (M, S) { M[n : 2] = +(D[n, x, c] ? D[n, x, c] * G[n, c]), x < 3; " \
        "S[n, c : 2, 4] = +(D[n, x, c] ? D[n, x, c]), x < 3; }"  # fmt: skip
    m, s = tilec.compile(text)(torch.ones(2, 5, 4), torch.ones(2, 4))
    assert m.tolist() == [12.0] * 2 and s.tolist() == [[3.0] * 4] * 2


BOTH = """function (D[N, C, P], X[N, C, P], U[N], W[C]) -> (M, S) {
    M[n : N] = +(D[n, c, x] * X[n, c, x] * W[c]);
    S[c : C] = +(%s);
}"""
SAME_POINTS = BOTH % "D[n, c, x] * X[n, c, x] * U[n]"


def of_sizes(text: str, n: int, p: int, c: int) -> str:
    return (
        text.replace("[N", f"[{n}")
        .replace(": N", f": {n}")
        .replace("C,", f"{c},")
        .replace("P]", f"{p}]")
        .replace("C]", f"{c}]")
    )


def common(text: str, dtype: str = "float32") -> tuple[Program, Program]:
    program, _ = before_and_after(text, dtype)
    types = {i.name: TensorType(tuple(map(int, i.dims or ())), dtype) for i in program.inputs}
    return program, with_common_sums(program, infer(program, types))[0]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_sums_of_which_neither_is_a_part_are_made_of_what_both_add_up(dtype: str) -> None:
    _, program = common(of_sizes(SAME_POINTS, 600, 64, 512).replace(": C", ": 512"), dtype)
    (part,) = [s for s in program.statements if {"D", "X"} <= read(s)]
    assert part.index is not None and len(part.index) == 2
    assert sum(part.output in read(s) for s in program.statements) == 2


@pytest.mark.parametrize(
    "body, sizes",
    [
        ("D[n, c, x] * X[n, c, x] * U[n]", (600, 15, 2048)),  # few points in common
        ("D[n, c, x] * X[n, c, x] * U[n]", (600, 64, 256)),  # M's points fit on a chip
        ("D[n, c, x] / X[n, c, x] * U[n]", (600, 64, 512)),  # no product in common
        ("D[n, c, x] * U[n]", (600, 64, 512)),  # M's other factor is read at each point
    ],
)
def test_other_sums_of_the_same_points_stay(body: str, sizes: tuple[int, int, int]) -> None:
    before, after = common(of_sizes(BOTH % body, *sizes).replace(": C", f": {sizes[2]}"))
    assert after == before


@pytest.mark.parametrize("sizes", [(3, 17, 5), (1, 16, 1), (2, 0, 3), (0, 20, 2), (5, 16, 1)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_values_of_what_both_add_up(sizes: tuple[int, int, int], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_ON_CHIP", "FEWEST_SHARED"):
        monkeypatch.setattr(f"tilec.transforms.lower.share_sums.{name}", 0)
    n, p, c = sizes
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=g).to(getattr(torch, dtype)) for s in ((n, c, p), (n, c, p), (n,), (c,))]
    d, x, u, w = (t.double() for t in given)
    wanted = (d * x * w[:, None]).sum((1, 2)), (d * x * u[:, None, None]).sum((0, 2))
    close = {"bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    _, program = common(of_sizes(SAME_POINTS, n, p, c).replace(": C", f": {c}"), dtype)
    assert len(program.statements) > 2 or min(sizes) < 2
    for found, exact in zip(tilec.Function(program, "")(*given), wanted, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=close, atol=close)


def recorded(axes: str, shape: tuple[int, ...]) -> Program:
    """What kernels compute of the gradient of a norm whose statistics are kept."""
    f = tilec.compile(f"""function (X, M, V, G[8], D) -> (DX, DG) {{
        DG[c] = +(D[{axes}] * (X[{axes}] - M[n]) * rsqrt(V[n]));
        P[n] = +(D[{axes}] * (X[{axes}] - M[n]) * G[c]);
        DX[{axes}] = D[{axes}] * G[c] - P[n] * X[{axes}];
    }}""")
    of = {"n": shape[0], "c": 8}
    specs = [tilec.spec(s) for s in (shape, (of["n"],), (of["n"],), (8,), shape)]
    return f.lower(*specs, backend="triton", target="sm_90").stages["grouped"]


@pytest.mark.parametrize(
    "axes, shape, count",
    [("n, c, y, x", (140, 8, 64, 64), 1), ("n, y, x, c", (140, 64, 64, 8), 2), ("n, c, y, x", (5, 8, 64, 64), 2)],
)
def test_sums_of_a_norm_that_read_all_points_of_two_tensors(axes: str, shape: tuple[int, ...], count: int) -> None:
    grouped = recorded(axes, shape)
    sums = [s for s in grouped.statements if s.aggregation == "sum" and {"X", "D"} <= read(s)]
    assert len(sums) == count, grouped


def test_a_sum_that_reads_the_points_again_leaves_all_as_they_are() -> None:
    text = of_sizes(SAME_POINTS.replace("(M, S)", "(M, S, Q)"), 600, 64, 512).replace(": C", ": 512")
    again = text[: text.rindex("}")] + "Q[n : 600] = +(D[n, c, x] * D[n, c, x]); }"
    before, after = common(again)
    assert after == before
