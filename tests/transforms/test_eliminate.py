"""Sums of products in two: how the inner ones are stored, and that one serves several sums."""

import pytest
import torch
from support.recurrences import RECURRENCES

import tilec
from tilec.ir.program import Access, Aggregate, Index, Program, index_variables, walk
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower
from tilec.saving import partition
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.lower import eliminate

GATED = """function (X[M, H], P[M, E], W[E, H, J]) -> (Y) {
    Q[m, e : M, E] = exp(P[m, e]);
    Y[m, j : M, J] = +(Q[m, e] * W[e, h, j] * X[m, h]);
}"""
M, H, E, J = 5, 6, 3, 4


def lowered(program: Program, *tensors: torch.Tensor) -> Program:
    return tilec.Function(program, GATED).lower(*tensors, backend="torch").stages["flat"]


def tensors() -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g, dtype=torch.float64) for s in ((M, H), (M, E), (E, H, J))]


def test_an_inner_sum_is_stored_as_its_operands_are() -> None:
    x, p, w = tensors()
    (inner,) = [s for s in lowered(parse(GATED), x, p, w).statements if "_over_" in s.output]
    assert [n.value for n in inner.sizes or ()] == [M, E, J]  # W is read along j, not along e


def test_two_factors_that_make_an_operand_are_one_products() -> None:
    """The sum over one variable would be as large, rounded, and read again."""
    x, p, _ = tensors()
    w = torch.randn(E, H, H, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert not [s for s in lowered(parse(GATED), x, p, w).statements if "_over_" in s.output]
    torch.testing.assert_close(tilec.compile(GATED)(x, p, w), torch.einsum("me,ehj,mh->mj", p.exp(), w, x))


def test_a_gradient_reads_the_product_that_another_has() -> None:
    x, p, w = (t.requires_grad_() for t in tensors())
    d = torch.randn(M, J, dtype=torch.float64)
    program = lowered(grad(parse(GATED), ("X", "P", "W")), x, p, w, d)
    bodies = [[a.tensor for a in walk(s.body) if isinstance(a, Access)] for s in program.statements]
    products = [tensors for tensors in bodies if {"DY", "W"} <= set(tensors)]
    assert len(products) == 1, program
    found = torch.autograd.grad(tilec.compile(GATED)(x, p, w), (x, p, w), d)
    wanted = torch.autograd.grad(torch.einsum("me,ehj,mh->mj", p.exp(), w, x), (x, p, w), d)
    torch.testing.assert_close(found, wanted)


OVER_CHANNELS = """function (Q[E, N], K[E, N], V[E, N]) -> (O) {
    S[e, f : E, E] = sum(Q[e, n] * K[f, n]);
    L[e : E] = logsumexp(S[e, f]);
    O[e, n : E, N] = sum(exp(S[e, f] - L[e]) * V[f, n]);
}"""


def test_a_product_with_factors_outside_is_another_ones() -> None:
    """The gradient of the scores multiplies DO and V once, for its sum over rows and for itself."""
    g = torch.Generator().manual_seed(0)
    q, k, v, d = (torch.randn(6, 300, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(4))
    program = lowered(grad(parse(OVER_CHANNELS), ("Q", "K", "V")), q, k, v, d)
    bodies = [[a.tensor for a in walk(s.body) if isinstance(a, Access)] for s in program.statements]
    assert sum({"DO", "V"} <= set(read) for read in bodies) == 1, program
    found = torch.autograd.grad(tilec.compile(OVER_CHANNELS)(q, k, v), (q, k, v), d)
    wanted = torch.autograd.grad(torch.softmax(q @ k.T, -1) @ v, (q, k, v), d)
    torch.testing.assert_close(found, wanted)


CASTS = """function (Q[N, E], K[M, E], V[M, F]) -> (O) {
    S[i, j : N, M] = 0.25 * sum(Q[i, e] * K[j, e]);
    L[i : N] = logsumexp(float32(S[i, j]));
    O[i, f : N, F] = sum(bfloat16(exp(S[i, j] - L[i])) * V[j, f]);
}"""


def test_the_product_of_16_bits_goes_first() -> None:
    """Of the orders that the gradient of L can be summed in, one multiplies DO by V, the other V by float32."""
    specs = [tilec.spec(shape, "bfloat16") for shape in ((64, 8), (48, 8), (48, 8), (64, 8))]
    lowered = tilec.compile(CASTS).grad().lower(*specs)
    program = lowered.stages["flat"]
    bodies = [{a.tensor for a in walk(s.body) if isinstance(a, Access)} for s in program.statements]
    assert sum({"DO", "V"} <= read for read in bodies) == 1, program
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, 8, generator=g).bfloat16().requires_grad_() for n in (64, 48, 48))
    d = torch.randn(64, 8, generator=g).bfloat16()

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = 0.25 * (q @ k.T)
        return scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1).to(v.dtype) @ v

    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    exact = torch.autograd.grad(formula(*wide), wide, d.double())
    ours = torch.autograd.grad(tilec.compile(CASTS)(q, k, v), (q, k, v), d)
    torchs = torch.autograd.grad(formula(q, k, v), (q, k, v), d)
    for own, other, e in zip(ours, torchs, exact, strict=True):
        assert own.dtype is torch.bfloat16
        assert (own - e).norm() <= 2 * (other - e).norm()


@pytest.mark.parametrize("side", ["i - j < N", "j - i < N", "i - j < 3", "i < 5"])
def test_a_constraint_is_as_good_as_a_guard(side: str) -> None:
    """Attention without a softmax: one sum goes first, for the points that count."""
    source = "function (Q[N, E], K[N, E], V[N, F]) -> (O) { O[i, f : N, F] = +(Q[i, e] * exp(K[j, e]) * V[j, f]), %s; }"
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(7, n, generator=g, dtype=torch.float64) for n in (3, 3, 4))
    program = lowered(parse(source % side), q, k, v)
    assert any("_over_" in s.output for s in program.statements), program
    i, j = torch.arange(7)[:, None], torch.arange(7)
    counted = {"i - j < N": i >= j, "j - i < N": j >= i, "i - j < 3": (i >= j) & (i - j < 3), "i < 5": i < 5}[side]
    torch.testing.assert_close(tilec.compile(source % side)(q, k, v), (q @ k.exp().T * counted) @ v)


def test_the_gradient_of_a_sum_within_a_sum_is_products() -> None:
    """No statement of a gradient of retention adds up over three variables at once."""
    source = """function (Q[N, E], K[N, E], V[N, F]) -> (O) {
        O[i, f : N, F] = sum[j](i - j >= 0 ? sum[e](Q[i, e] * K[j, e]) * exp(-0.1 * (i - j)) * V[j, f]); }"""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(7, n, generator=g, dtype=torch.float64, requires_grad=True) for n in (3, 3, 4))
    d = torch.randn(7, 4, generator=g, dtype=torch.float64)
    program = lowered(grad(parse(source), ("Q", "K", "V")), q, k, v, d)
    for s in program.statements:
        outputs = {e.name for e in s.index or () if isinstance(e, Index)}
        assert len({*index_variables(s.body)} - outputs) < 2, program
    found = torch.autograd.grad(tilec.compile(source)(q, k, v), (q, k, v), d)
    i = torch.arange(7, dtype=torch.float64)
    decay = torch.exp(-0.1 * (i[:, None] - i)).tril()
    wanted = torch.autograd.grad((q @ k.T * decay) @ v, (q, k, v), d)
    torch.testing.assert_close(found, wanted)


def test_a_gradient_reads_the_cotangent_and_no_copy_of_it() -> None:
    """A bias added by indices: what comes in for the product is what comes in for the sum, as it is."""
    source = "function (X[M, K], W[K, N], B[N]) -> (Y) { P[m, n : M, N] = +(X[m, k] * W[k, n]); %s }"
    shapes = ((5, 6), (6, 4), (4,), (5, 4))
    for last in ("Y = P + B;", "Y[m, n : M, N] = P[m, n] + B[n];"):
        program = lowered(grad(parse(source % last)), *(torch.randn(s, dtype=torch.float64) for s in shapes))
        assert {s.output for s in program.statements} == {"DX", "DW", "DB"}, program


ALONE = {
    "in one operand": ("Y[i] = +(D[i, j] * X[n, j])", [["X"], ["D", "Y_over_n"]]),
    "in both": ("Y[i] = +(D[i, j, m] * X[n, j])", [["D"], ["X"], ["Y_over_m", "Y_over_n"]]),
    "under a function": ("Y[i] = +(-D[i, j] / 7 * exp(X[n, j]))", [["X"], ["D", "Y_over_n"]]),
    "with a condition": ("Y[i] = +(X[n, j] > 0 & n > 2 ? D[i, j] * X[n, j])", [["X", "X"], ["D", "Y_over_n"]]),
    "with a scale of its own": ("Y[i] = +(D[i, j] * X[n, j] * W[n])", None),  # a product of matrices first
    "what others read": ("Y[i] = +(i > n ? D[i, j] * X[n, j])", None),
    "an element alone": ("Y[i] = +(X[i, j] * W[j] * W[j])", None),
    "integers": ("Y[i] = +(int32(D[i, j]) * int32(X[n, j]))", None),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_one_factor_alone_has_is_added_up_first(name: str, monkeypatch) -> None:
    text, wanted = ALONE[name]
    monkeypatch.setattr(eliminate, "LEAST_SAVED", 1)
    g = torch.Generator().manual_seed(0)
    sizes = {"D": (5, 4, 3)[: 3 if "m]" in text else 2], "X": (6, 4), "W": (6 if "W[n]" in text else 4,)}
    if name == "an element alone":
        sizes["X"] = (5, 4)
    inputs = {n: torch.randn(s, generator=g, dtype=torch.float64) for n, s in sizes.items() if f"{n}[" in text}
    f = tilec.compile(text)
    statements = f.lower(**inputs, backend="torch").stages["flat"].statements
    if wanted is not None:
        assert [[a.tensor for r in s.roots for a in walk(r) if isinstance(a, Access)] for s in statements] == wanted
    else:
        assert not [s for s in statements if "_over_n" in s.output and len(s.index or ()) == 1]
    value = f(**inputs)
    exact = torch.as_tensor(tilec.interpret(f.tile, *(inputs[n].numpy() for n in f.program.input_names())))
    torch.testing.assert_close(value, exact.to(value.dtype))


def test_a_gradient_of_deviations_reads_their_sum() -> None:
    """A count that an element beside it keeps inside is a number for it."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 64, 32, generator=g, dtype=torch.float64, requires_grad=True)
    f = tilec.compile(COVARIANCE)
    d = torch.randn(2, 32, 32, generator=g, dtype=torch.float64)
    program = lowered(grad(parse(COVARIANCE), ("X",)), x, d)
    sums = [s for s in program.statements if s.output.startswith("DM") and s.aggregation == "sum"]
    assert sums and all(len(index_variables(*s.roots)) <= 3 for s in sums), program
    q = x - x.mean(1, keepdim=True)
    (found,), (wanted,) = (torch.autograd.grad(y, x, d) for y in (f(x), q.transpose(1, 2) @ q / 64))
    torch.testing.assert_close(found, wanted)


COVARIANCE = """function (X[B, N, C]) -> (S) {
    M[b, c] = mean(X[b, n, c]);
    S[b, i, j : B, C, C] = mean((X[b, n, i] - M[b, i]) * (X[b, n, j] - M[b, j]));
}"""


BASIS = """function (X[N, E], G[K], W[E, K, F]) -> (Y) {
    Y[n, f : N, F] = +(exp(-(X[n, e] - G[k]) * (X[n, e] - G[k])) * W[e, k, f]);
}"""


def test_factors_that_all_terms_of_a_body_share_are_a_product() -> None:
    """The derivative of `-d * d` is two terms, each times the same product of DY and W."""
    g = torch.Generator().manual_seed(0)
    x, centres, w, d = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((7, 5), (3,), (5, 3, 6), (7, 6)))
    program = lowered(grad(parse(BASIS), ("X", "G")), x, centres, w, d)
    bodies = [{a.tensor for a in walk(s.body) if isinstance(a, Access)} for s in program.statements]
    assert [read for read in bodies if {"DY", "W"} <= read] == [{"DY", "W"}], program
    inputs = [t.requires_grad_() for t in (x, centres, w)]
    basis = torch.exp(-((x[:, :, None] - centres) ** 2))
    wanted = torch.autograd.grad(torch.einsum("nek,ekf->nf", basis, w), inputs, d)
    torch.testing.assert_close(torch.autograd.grad(tilec.compile(BASIS)(*inputs), inputs, d), wanted)


@pytest.mark.parametrize("rows, parts", [(64, 1), (2, 2)])
def test_a_product_of_matrices_stays_one_unless_little_is_stored(rows: int, parts: int) -> None:
    """Weights with a scale for each group of terms: of many rows a product for each group is larger."""
    text = "Y[m, n] = +(X[m, g, r] * float32(Q[n, g, r]) * S[n, g])"
    specs = [tilec.spec((rows, 4, 8), "float32"), tilec.spec((60, 4, 8), "int8"), tilec.spec((60, 4), "float32")]
    assert len(tilec.compile(text).lower(*specs, backend="torch").stages["flat"].statements) == parts


@pytest.mark.parametrize("operator", ["*", "/"])
def test_sums_of_16_bits_that_are_added_up_first_are_kept_in_float32(operator):
    """That of the rows alone is beyond float16."""
    f = tilec.compile(f"function (D[N, J], X[M, J]) -> (Y) {{ Y[i : N] = +(D[i, j] {operator} X[n, j]); }}")
    x = 512.0 if operator == "*" else 1 / 512
    assert f(torch.full((256, 4), 2.0**-10).half(), torch.full((512, 4), x).half()).tolist() == [1024.0] * 256


def test_a_factor_of_outputs_alone_divides_no_sum() -> None:
    """What is left of the sum would have its other variables as before."""
    source = """function (P[B, I, A], D[B, I], H[A], X[B, I, K]) -> (Y) {
        Y[k, a] = +(P[b, i, a] > 0 ? D[b, i] * H[a] * X[b, i, k]);
    }"""
    specs = [tilec.spec(s, "float64") for s in ((64, 3, 5), (64, 3), (5,), (64, 3, 6))]
    assert len(tilec.compile(source).lower(*specs, backend="torch").stages["flat"].statements) == 1


PADDED = {
    "apart": ("O[i, e : I, E] = +(exp(A[t, d]) * X[i, d] * pad(B[t - 1, e], 0.5) * C[i, t])", 2),
    "padded by a padded read": ("O[i, e : I, E] = +(exp(A[t, d]) * X[i, d] * pad(B[t - 1, e], pad(A[0, e], 2)))", 2),
    "bounded by where it goes": ("O[i, e : I, E] = +(exp(X[i, d]) * pad(B[t - 3, d], 1.0) * C[i, t] * A[t, e])", 2),
    "padded by what constrains": ("O[i, e : I, E] = +(exp(A[t, d]) * X[i, d] * pad(B[t - 1, e], S[t]))", 1),
}


@pytest.mark.parametrize("name", PADDED)
def test_padded_reads_are_factors(name):
    text, sums = PADDED[name]
    source = f"function (A[T, D], X[I, D], B[T, E], C[I, T], S[R]) -> (O) {{ {text}; }}".replace("B[T, E]", "B[T, D]")
    source = source.replace(" I, E]", " I, D]")
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=g, dtype=torch.float64) for s in ((9, 33), (20, 33), (9, 33), (20, 9), (8,))]
    f = tilec.compile(source)
    assert len(f.lower(*given, backend="torch").stages["flat"].statements) == sums
    wanted = tilec.interpret(source, *(t.numpy() for t in given))
    torch.testing.assert_close(f(*given), torch.as_tensor(wanted))


REFLECTIONS = """function (V[K, N], X[N, M]) -> (H) {
    H[k, i, j : K, N, M] = H[k - 1, i, j] - V[k, i] * sum[m](V[k, m] * H[k - 1, m, j]) init X[i, j];
}"""


def test_a_product_of_matrices_and_vectors_is_added_up_first() -> None:
    """What a gradient reads of a recurrence's steps before, with `pad`, bounds nothing, and is a factor like others."""
    g = torch.Generator().manual_seed(0)
    v, x, d = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 24), (24, 64), (3, 24, 64)))
    v, x = (v / 5).requires_grad_(), x.requires_grad_()
    program = lowered(grad(parse(REFLECTIONS), ("V", "X")), v, x, d)
    statements = [s for s in program.statements if s.aggregation == "sum" and "GV_1" in s.output]
    assert len(statements) > 1 and all(len(index_variables(s.body)) <= 3 for s in statements), program
    found = torch.autograd.grad(tilec.compile(REFLECTIONS)(v, x), (v, x), d)
    steps = []
    for k in range(3):
        steps.append((steps[-1] if steps else x) - v[k][:, None] * (v[k] @ (steps[-1] if steps else x)))
    torch.testing.assert_close(found, torch.autograd.grad(torch.stack(steps), (v, x), d))


PAIRS = """function (Q[N, D], K[T, S, D], V[T, S, F], Table[T]) -> (O) {
    X[i, t, s : N, T, S] = sum(Q[i, d] * K[t, s, d]);
    L[i : N] = logsumexp(X[i, t, s]);
    O[i, f : N, F] = sum(exp(X[i, t, s] - L[i]) * V[t, s, f]);
}"""
WORDS = {"axes": PAIRS, "rows that are data": PAIRS.replace("V[t, s, f]", "V[Table[t], s, f]")}


@pytest.mark.parametrize("name", WORDS)
def test_columns_of_several_axes_and_of_data_have_been_added_up(name: str) -> None:
    """The gradient of a normaliser is the sum over a row of what comes in times what went out; rows that are nowhere
    count for neither."""
    shapes = {"Q": (32, 8), "K": (9, 16, 8), "V": (9, 16, 24)}
    given = {n: TensorType(s, "float64") for n, s in shapes.items()} | {"Table": TensorType((9,), "int64")}
    backward = partition(parse(WORDS[name]), ("Q", "K", "V"), given, {}, True).backward
    flat = lower(backward.program, dict(backward.types), {}).stages["flat"]
    found = [{a.tensor for a in walk(s.body) if isinstance(a, Access)} for s in flat.statements if "DL" in s.output]
    assert {"DO", "O"} in found
    g = torch.Generator().manual_seed(0)
    values = [torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes.values()]
    table = torch.tensor([3, 0, -1, 8, 8, 9, 2, 1, 5]) if "Table[t]" in WORDS[name] else torch.arange(9)
    q, k, v = values
    there = ((table >= 0) & (table < 9))[:, None, None]
    rows = torch.where(there, v[table.clamp(0, 8)], 0).flatten(0, 1)
    wanted = torch.softmax(q @ k.flatten(0, 1).mT, -1) @ rows
    d = torch.randn(wanted.shape, generator=g, dtype=torch.float64)
    made = tilec.compile(WORDS[name])(*values, table)
    torch.testing.assert_close(torch.autograd.grad(made, values, d), torch.autograd.grad(wanted, values, d))


def test_a_step_adds_up_first_what_its_lanes_share() -> None:
    source, arrays = RECURRENCES["an aggregation in another, the same for all lanes"]
    g = torch.Generator().manual_seed(0)
    sizes = [tuple(2 * n for n in a.shape) for a in arrays]
    k, a, b, h = (torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in sizes)
    d = torch.randn(3, *h.shape, generator=g, dtype=torch.float64)
    program = lowered(grad(parse(source), ("K", "A", "B", "G")), k, a, b, h, d)
    (step,) = [s for s in program.statements if s.output == "GH"]
    assert [e.bound for e in walk(step.body) if isinstance(e, Aggregate)] == [("j'",), ("i'",)], step
    found = torch.autograd.grad(tilec.compile(source)(k, a, b, h), (k, a, b, h), d)
    steps = [h]
    for _ in range(3):
        inner = torch.logsumexp(k + steps[-1][:, None], 0)
        steps.append(a - torch.logsumexp(k + b - inner, 1))
    torch.testing.assert_close(found, torch.autograd.grad(torch.stack(steps[1:]), (k, a, b, h), d))


NETWORK = """function (X0[B, D], W1[D, E], W2[E, D], T) -> (X) {
    X[t, b, i : T, B, D] = t == 0 ? X0[b, i] : X[t - 1, b, i]
        + sum[e](tanh(sum[k](W1[k, e]
            * (X[t - 1, b, k] + sum[f](tanh(sum[l](X[t - 1, b, l] * W1[l, f])) * W2[f, k])))) * W2[e, i]);
}"""
STEPS = 16  # more than are written out one by one


def network_steps(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    steps = [x]
    for _ in range(STEPS):
        middle = steps[-1] + torch.tanh(steps[-1] @ w1) @ w2
        steps.append(steps[-1] + torch.tanh(middle @ w1) @ w2)
    return torch.stack(steps)


def test_sums_with_a_variable_for_each_level_are_added_up_one_after_the_other() -> None:
    """The gradient of four levels of sums: no sum of the step or of the weights' gradients has the terms of two levels
    for each of a third's."""
    g = torch.Generator().manual_seed(0)
    shapes = {"X0": (16, 24), "W1": (24, 40), "W2": (40, 24)}
    x, w1, w2 = (torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes.values())
    given = {n: TensorType(s, "float64") for n, s in shapes.items()} | {"T": TensorType((), "int64")}
    backward = partition(parse(NETWORK), tuple(shapes), given, {"T": STEPS + 1}, True).backward
    flat = lower(backward.program, dict(backward.types), {"T": STEPS + 1}).stages["flat"]
    sums = [e for s in flat.statements for e in walk(s.body) if isinstance(e, Aggregate)]
    assert sums and all(len(e.bound) == 1 for e in sums), flat
    weights = [s for s in flat.statements if s.output.startswith(("GW", "DW")) and s.aggregation == "sum"]
    assert weights and all(len(index_variables(*(s.index or ()), *s.roots)) <= 4 for s in weights), flat
    d = torch.randn(STEPS + 1, *x.shape, generator=g, dtype=torch.float64)
    found = torch.autograd.grad(tilec.compile(NETWORK)(x, w1, w2, STEPS + 1), (x, w1, w2), d)
    torch.testing.assert_close(found, torch.autograd.grad(network_steps(x, w1, w2), (x, w1, w2), d))


DELTA = """function (K[B, T, D], V[B, T, E], A[B, T]) -> (S) {
    S[b, t, i, j : B, T, E, D] = S[b, t - 1, i, j] - A[b, t] * sum[k](S[b, t - 1, i, k] * K[b, t, k]) * K[b, t, j]
        + V[b, t, i] * K[b, t, j];
}"""


def test_what_a_lane_multiplies_all_terms_by_leaves_the_sum() -> None:
    """A step of the delta rule's gradient adds up once what all columns share; beyond the last step nothing is read."""
    g = torch.Generator().manual_seed(0)
    shapes = (2, 5, 9), (2, 5, 3), (2, 5)
    k, v, a = (torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes)
    d = torch.randn(2, 5, 3, 9, generator=g, dtype=torch.float64)
    program = lowered(grad(parse(DELTA), ("K", "V", "A")), k, v, a, d)
    (step,) = [s for s in program.statements if s.output == "GS"]
    (total,) = [e for e in walk(step.body) if isinstance(e, Aggregate)]
    assert "j" not in index_variables(total), step
    state, states = torch.zeros(2, 3, 9, dtype=torch.float64), []
    for t in range(5):
        read = (state * k[:, t, None]).sum(-1)
        state = state + (v[:, t] - a[:, t, None] * read)[..., None] * k[:, t, None]
        states.append(state)
    wanted = torch.autograd.grad(torch.stack(states, 1), (k, v, a), d)
    torch.testing.assert_close(torch.autograd.grad(tilec.compile(DELTA)(k, v, a), (k, v, a), d), wanted)


PLACES = {
    "a lag": "i - j >= 0 ? D[b, i, f] * S[b, i, j] * V[b, j, f] * (i - j)",
    "a quotient that truncates": "D[b, i, f] * (i / (j + 1)) * S[b, i, j] * V[b, j, f]",
    "a divisor": "D[b, i, f] * S[b, i, j] * V[b, j, f] / (i + j + 1)",
    "a remainder": "D[b, i, f] * S[b, i, j] * V[b, j, f] * (i * j % 3)",
    "a power's derivative": "i != j ? D[b, i, f] * S[b, i, j] * V[b, j, f] * (i - j) * pow(0.9, i - j)",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PLACES)
def test_places_are_factors(name: str, monkeypatch) -> None:
    monkeypatch.setattr(eliminate, "LEAST_SAVED", 1)
    f = tilec.compile(f"function (D[B, N, F], S[B, N, N], V[B, N, F]) -> (Y) {{ Y[b : B] = +({PLACES[name]}); }}")
    for b, n, columns in ((2, 5, 3), (1, 1, 1), (3, 4, 0), (2, 7, 1)):
        g = torch.Generator().manual_seed(n)
        shapes = (b, n, columns), (b, n, n), (b, n, columns)
        d, s, v = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes)
        wanted = torch.as_tensor(tilec.interpret(f.tile, d.numpy(), s.numpy(), v.numpy()))
        torch.testing.assert_close(f(d, s, v), wanted)
        torch.testing.assert_close(f(d.float(), s.float(), v.float()), wanted.float(), rtol=1e-4, atol=1e-4)
        statements = f.lower(d, s, v, backend="torch").stages["flat"].statements
        assert len(statements) == 2 or 1 in (n, columns) or not columns
        assert f(d.bfloat16(), s.bfloat16(), v.bfloat16()).dtype == torch.bfloat16
