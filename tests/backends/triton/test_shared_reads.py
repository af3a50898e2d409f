"""Which sums share a kernel, by their plans for an H200."""

from __future__ import annotations

import ast

import pytest

import tilec

IMAGE = (8, 16, 256, 256)
AT = "[n, c, y, x : N, C, H - 4, W - 4]"
NEAR = "X[n, c, y + j, x + i]"
FORMS = {  # text over X[N, C, H, W] and Z of the same sizes, kernels
    "two moments": (f"A{AT} = sum({NEAR}), j < 5, i < 5; B{AT} = sum({NEAR} * {NEAR}), j < 5, i < 5;", 1),
    "other ranges": (f"A{AT} = sum({NEAR}), j < 5, i < 5; B{AT} = sum({NEAR} * {NEAR}), j < 5, i < 3;", 2),
    "other places": (f"A{AT} = sum({NEAR}), j < 5, i < 5; B{AT} = sum(X[n, c, y + i, x - j + 4]), j < 5, i < 5;", 2),
    "other tensors": (f"A{AT} = sum({NEAR}), j < 5, i < 5; B{AT} = sum(Z[n, c, y + j, x + i]), j < 5, i < 5;", 2),
    "a third joins both": (
        f"A{AT} = sum({NEAR}), j < 5, i < 5; B{AT} = sum(Z[n, c, y + j, x + i]), j < 5, i < 5; "
        f"D{AT} = sum({NEAR} * Z[n, c, y + j, x + i]), j < 5, i < 5;", 1),
}  # fmt: skip


def kernels(source: str, *shapes: tuple[int, ...]) -> int:
    f = tilec.compile(source, backend="triton")
    return len(f.lower(*map(tilec.spec, shapes), target="sm_90").kernels)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FORMS)
def test_windows(name: str) -> None:
    text, count = FORMS[name]
    outputs = ", ".join(n for n in "ABD" if f"{n}[n" in text)
    assert kernels(f"function (X[N, C, H, W], Z[N, C, H, W]) -> ({outputs}) {{ {text} }}", IMAGE, IMAGE) == count


@pytest.mark.parametrize("shape", [(4, 8, 20, 30), IMAGE])
def test_a_mean_and_its_count(shape: tuple[int, ...]) -> None:
    source = """function (X[N, C, H, W]) -> (Y) {
        Y[n, c, y, x : N, C, H, W] = mean(X[n, c, y + j - 1, x + i - 1]), j < 3, i < 3; }"""
    assert kernels(source, shape) == 1


def test_as_many_as_registers_hold() -> None:
    """Blocks are smaller where sums are several; of float64 they are as small as they get."""
    text = " ".join(f"A{k}{AT} = sum({NEAR} * {k}.5), j < 5, i < 5;" for k in range(10))
    outputs = ", ".join(f"A{k}" for k in range(10))
    source = f"function (X[N, C, H, W]) -> ({outputs}) {{ {text} }}"
    assert kernels(source, IMAGE) == 2
    f = tilec.compile(source, backend="triton")
    assert len(f.lower(tilec.spec(IMAGE, "float64"), target="sm_90").kernels) == 3


def test_elementwise_statements() -> None:
    """One reading of what all of a step of waves read at neighbours; statements that read other tensors stay apart."""
    steps = {
        "A": "U[y + 1, x + 1] - (E[y + 1, x + 2] - E[y + 1, x])",
        "B": "V[y + 1, x + 1] - (E[y + 2, x + 1] - E[y, x + 1])",
        "C": "E[y + 1, x + 1] - (U[y + 1, x + 2] - U[y + 1, x] + V[y + 2, x + 1] - V[y, x + 1])",
    }
    for outputs, count in (("A, B, C", 1), ("A, D", 2)):
        text = " ".join(f"{n}[y, x : H - 2, W - 2] = {steps.get(n, 'V[y, x + 1]')};" for n in outputs.split(", "))
        source = f"function (U[H, W], V[H, W], E[H, W]) -> ({outputs}) {{ {text} }}"
        assert kernels(source, *[(512, 1024)] * 3) == count


def test_both_sums_of_a_gradient() -> None:
    """What is added up at neighbours of two places is one kernel, which adds the two as well."""
    source = """function (X[N, H, W]) -> (Y) {
        K[n, y, x, j, i : N, H, W, 5, 5] = exp(X[n, y, x] - X[n, y + j - 2, x + i - 2]);
        A[n, y, x : N, H, W] = sum(K[n, y, x, j, i] * X[n, y + j - 2, x + i - 2]);
        B[n, y, x : N, H, W] = sum(K[n, y, x, j, i]);
        Y = A / B; }"""
    f = tilec.compile(source, backend="triton")
    lowered = f.grad().lower(tilec.spec((6, 500, 500)), tilec.spec((6, 500, 500)), target="sm_90")
    assert lowered.kernels[-1].statements == ("GX", "GX_2", "DX")


def test_parts_of_a_gradient() -> None:
    """Sums for numbers of an axis fill nothing, and share a kernel; what is read a step apart is written in one."""
    source = """function (A[B, N, 2], Q[B, N, 3], X[B, M, 2]) -> (O) {
        O[b, n, m : B, N, M] = exp(-(Q[b, n, 0] * (X[b, m, 0] - A[b, n, 0]) * (X[b, m, 0] - A[b, n, 0])
            + Q[b, n, 1] * (X[b, m, 1] - A[b, n, 1]) * (X[b, m, 1] - A[b, n, 1]) + Q[b, n, 2] * X[b, m, 0])); }"""
    shapes = (16, 512, 2), (16, 512, 3), (16, 1024, 2), (16, 512, 1024)
    lowered = tilec.compile(source, backend="triton").grad().lower(*map(tilec.spec, shapes), target="sm_90")
    parts = [k.statements for k in lowered.kernels if any(n.endswith("_part") for n in k.statements)]
    assert len(parts) == 2, parts
    source = """function (X[C, H, W]) -> (A, D) {
        A[c, y, x : C, H/2, W] = X[c, 2*y, x] + X[c, 2*y + 1, x];
        D[c, k, y, x : C, 2, H/2, W] = k == 0 ? X[c, 2*y, x] * X[c, 2*y + 1, x] : X[c, 2*y, x]; }"""
    shapes = (64, 256, 256), (64, 128, 256), (64, 2, 128, 256)
    lowered = tilec.compile(source, backend="triton").grad().lower(*map(tilec.spec, shapes), target="sm_90")
    assert len(lowered.kernels) == 1


def test_what_an_epilogue_reads_through_pad_is_stored() -> None:
    """Gradients of a rotation of pairs by its sines, one part of which is a sum with a condition: the kernel that adds
    the parts read a sum of its own from memory, where nobody stored it."""
    source = """function (X[B, N, D], C[N, P], S[N, P]) -> (Y) {
        R[b, i] = rsqrt(mean(X[b, i, d] * X[b, i, d])); Z[b, i, d] = X[b, i, d] * R[b, i];
        Y[b, i, d : B, N, D] = d % 2 == 0 ? Z[b, i, d] * C[i, d/2] - Z[b, i, d + 1] * S[i, d/2]
            : Z[b, i, d] * C[i, (d - 1)/2] + Z[b, i, d - 1] * S[i, (d - 1)/2]; }"""
    specs = [tilec.spec(s, "bfloat16") for s in ((64, 2048, 64), (2048, 32), (2048, 32), (64, 2048, 64))]
    text = tilec.compile(source, backend="triton").grad().lower(*specs, target="sm_90").source()
    function = ast.parse(text).body[-1]
    assert isinstance(function, ast.FunctionDef)
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
    known = {a.arg for a in function.args.args} | {n.id for n in names if isinstance(n.ctx, ast.Store)}
    launched = {n.id for c in ast.walk(function) if isinstance(c, ast.Call) for n in c.args if isinstance(n, ast.Name)}
    assert launched <= known


def test_gradients_of_coefficients_share_a_walk() -> None:
    """Sums that each write one element by its number are members of the group that reads what they add up."""
    f = tilec.compile("""function (X[N, D], C[3]) -> (Y) {
        Y[n, d : N, D] = C[0] * X[n, d] + C[1] * X[n, d] * X[n, d] + C[2] * exp(X[n, d]); }""")
    lowered = f.grad().lower(*map(tilec.spec, ((8192, 4096), (3,), (8192, 4096))), target="sm_90")
    cost = lowered.cost()
    assert cost.bytes_moved < 1.05 * cost.least_bytes


def test_short_sums_of_several_operands() -> None:
    """The gradients of weighted covariances by six channels are one kernel beside the one by the weights."""
    f = tilec.compile("""function (X[B, C, F, T], W[B, T, F]) -> (S) {
        S[b, f, c, d : B, F, C, C] = sum(W[b, t, f] * X[b, c, f, t] * X[b, d, f, t]); }""")
    shapes = (16, 6, 257, 512), (16, 512, 257), (16, 257, 6, 6)
    assert len(f.grad().lower(*map(tilec.spec, shapes), target="sm_90").kernels) == 2
