"""Sums that read the same, in one kernel, interpreted: aggregations, places that are data, epilogues, dtypes."""

import os
import random

import pytest
import torch

import tilec
from tilec.backends.triton.pointwise import residues, windows
from tilec.backends.triton.schedule import shared_reads

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

WINDOW, TAPS = "X[n, y + j, x + i]", "j < 3, i < 4"
SIZES = "n, y, x : N, H - 2, W - 3"
CASES = {  # text of the function (X[N, H, W], K[3, 4]), kernels
    "moments": (
        f"-> (A, B) {{ A[{SIZES}] = sum({WINDOW} * K[j, i]); B[{SIZES}] = sum({WINDOW} * {WINDOW}), {TAPS}; }}", 1),
    "other names": (
        f"-> (A, B) {{ A[{SIZES}] = sum({WINDOW} * K[j, i]); "
        "B[a, b, c : N, H - 2, W - 3] = sum(X[a, b + q, c + p] * K[q, p] * K[0, p]); }", 1),
    "kinds": (
        f"-> (A, B, C, D) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; B[{SIZES}] = >({WINDOW}), {TAPS}; "
        f"C[{SIZES}] = logsumexp({WINDOW} / 4), {TAPS}; D[{SIZES}] = *({WINDOW} / 8), {TAPS}; }}", 1),
    "a truth": (f"-> (A, B) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; B[{SIZES}] = any({WINDOW} > 2), {TAPS}; }}", 1),
    "a guard": (
        f"-> (A, B) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; B[{SIZES}] = sum(j != i ? {WINDOW} * 2), {TAPS}; }}", 1),
    "beyond the edges": (
        "-> (A, B) { A[n, y, x : N, H, W] = sum(X[n, y + j - 1, x + i - 1] * K[j, i]); "
        "B[n, y, x : N, H, W] = sum(X[n, y + j - 1, x + i - 1]), j < 3, i < 4; }", 1),
    "an epilogue reads another": (
        f"-> (V) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; B[{SIZES}] = sum({WINDOW} * {WINDOW}), {TAPS}; "
        "V = B / 12 - (A / 12) * (A / 12); }", 1),
    "both are read elsewhere too": (
        f"-> (V, A) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; B[{SIZES}] = sum({WINDOW} * {WINDOW}), {TAPS}; "
        "V = B / 12 - (A / 12) * (A / 12); }", 1),
    "an epilogue each": (
        f"-> (U, V) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; U = relu(A); "
        f"B[{SIZES}] = sum({WINDOW} * {WINDOW}), {TAPS}; V = sqrt(B) + U; }}", 1),
    "one needs the other": (
        f"-> (B) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; B[{SIZES}] = sum({WINDOW} * A[n, y, x]), {TAPS}; }}", 2),
    "one needs what is made of the other": (
        f"-> (B) {{ A[{SIZES}] = sum({WINDOW}), {TAPS}; M[n : N] = mean(A[n, y, x]); "
        f"B[{SIZES}] = sum({WINDOW} * M[n]), {TAPS}; }}", 3),
}  # fmt: skip
ADDED = {  # text of the function (X[N, H, W], Y[N, H, W], K[8]), kernels
    "filters of two images": (
        "-> (Z) { A[n, y, x : N, H, W] = sum(X[n, y + j - 1, x + i - 1] * K[j] * K[i + 3]), j < 3, i < 3; "
        "B[n, y, x : N, H, W] = sum(Y[n, y + j - 1, x + i - 1] * K[j + 3] * K[i]), j < 3, i < 3; Z = A + B; }", 1),
    "one is an extremum": (
        "-> (Z) { A[n, y, x : N, H, W] = >(X[n, y + j - 1, x + i - 1]), j < 3, i < 3; "
        "B[n, y, x : N, H, W] = sum(Y[n, y + j - 1, x + i - 1] * K[j]), i < 3, j < 3; Z = A - 2 * B; }", 1),
    "by remainders, along memory": (
        "-> (Z) { A[n, y, 2*x + k : N, H, 2*W + 6] = +(X[n, y, x] * K[k]); "
        "B[n, y, 2*x + k : N, H, 2*W + 6] = +(Y[n, y, x] * K[7 - k]); Z = A + B; }", 1),
    "by remainders, of an odd size": (
        "-> (Z) { A[n, y, 2*x + k : N, H, 2*W + 7] = +(X[n, y, x] * K[k]); "
        "B[n, y, 2*x + k : N, H, 2*W + 7] = +(Y[n, y, x] * K[7 - k]); Z = A - tanh(B); }", 1),
    "by remainders, of rows": (
        "-> (Z) { A[n, 2*y + k, x : N, 2*H + 6, W] = +(X[n, y, x] * K[k]); "
        "B[n, 2*y + k, x : N, 2*H + 6, W] = +(Y[n, y, x] * K[7 - k]); Z = A + B; }", 1),
    "by remainders, read alike": (
        "-> (A, B) { A[n, 2*y + k, x : N, 2*H + 6, W] = +(X[n, y, x] * K[k]); "
        "B[n, 2*y + k, x : N, 2*H + 6, W] = >(X[n, y, x] * K[7 - k]); }", 1),
    "formulas by remainders": (
        "-> (A, B) { A[n, y, x : N, H, 2*W] = x % 2 == 0 ? X[n, y, x/2] : X[n, y, (x + 1)/2 % W]; "
        "B[n, y, x : N, H, 2*W] = x % 2 == 0 ? X[n, y, x/2] * 2 : X[n, y, (x + 1)/2 % W] + Y[n, y, 0]; }", 1),
    "other remainders": (
        "-> (A, Z) { A[n, y, 2*x + k : N, H, 2*W + 6] = +(X[n, y, x] * K[k]); "
        "B[n, y, 3*x + k : N, H, 2*W + 6] = +(Y[n, y, x] * K[7 - k]); Z = A - B; }", 2),
}  # fmt: skip
WARPED = """function (X[N, C, H, W], Y[N, C, H, W], J[N, H, W], I[N, H, W], W1[N, H, W]) -> (A, B) {
    A[n, y, x : N, H, W] = sum(Y[n, c, y, x] * pad(X[n, c, J[n, y, x], I[n, y, x]], 0)
        - pad(X[n, c, J[n, y, x] + 1, I[n, y, x]], 0) * W1[n, y, x]);
    B[n, y, x : N, H, W] = sum((Y[n, c, y, x] - W1[n, y, x]) * pad(X[n, c, J[n, y, x], I[n, y, x]], 0)
        + pad(X[n, c, J[n, y, x] + 1, I[n, y, x]], 0)); }"""


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def kernels(f: tilec.Function, *tensors: torch.Tensor) -> int:
    """Kernels with loops over what is summed."""
    return sum("for " in k.source for k in f.lower(*tensors).kernels)


def compare(source: str, tensors: list[torch.Tensor], tolerance: float = 1e-5) -> tilec.Function:
    f = tilec.compile(source, backend="triton")
    exact = [t.double() if t.dtype.is_floating_point else t for t in tensors]
    wanted = tilec.compile(source, backend="torch")(*exact)
    for a, b in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (f(*tensors), wanted)), strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, rtol=tolerance, atol=tolerance)
    return f


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_windows(name: str, neighbours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each program computes several neighbours at once, too."""
    text, count = CASES[name]
    if neighbours:
        monkeypatch.setattr(windows, "LEAST_OUTPUTS", 0)
    tensors = [numbers((2, 18, 37) if neighbours else (2, 9, 13)), numbers((3, 4))]
    f = compare(f"function (X[N, H, W], K[3, 4]) {text}", tensors, 1e-4)
    assert kernels(f, *tensors) == count
    assert ("acc_3" in f.lower(*tensors).source()) == neighbours


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(2, 9, 13), (1, 3, 4), (3, 3, 40)])
@pytest.mark.covering
def test_dtypes_and_strides(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    source = f"function (X[N, H, W], K[3, 4]) {CASES['moments'][0]}"
    x = numbers(shape[::-1], dtype).permute(2, 1, 0)
    f = compare(source, [x, numbers((3, 4), dtype)], 1e-2 if dtype.itemsize == 2 else 1e-5)
    if shape[1] > 3:  # else both are sums of all elements
        assert kernels(f, x, numbers((3, 4), dtype)) == 1


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.covering
def test_what_is_added_up(name: str, neighbours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text, count = ADDED[name]
    monkeypatch.setattr(residues, "LEAST_PROGRAMS", 0)
    monkeypatch.setattr(residues, "LEAST_COLUMNS", 2)
    if neighbours:
        monkeypatch.setattr(windows, "LEAST_OUTPUTS", 0)
    shape = (2, 18, 37) if neighbours else (2, 9, 14)
    tensors = [numbers(shape), numbers(shape[::-1]).permute(2, 1, 0), numbers((8,))]
    f = compare(f"function (X[N, H, W], Y[N, H, W], K[8]) {text}", tensors, 1e-4)
    assert len(f.lower(*tensors).kernels) == count


MAPS = {  # text of the function (X[N, H, W], J[N, H]), kernels
    "differences": (
        "-> (A, B) { A[n, y, x : N, H - 1, W - 1] = X[n, y, x + 1] - X[n, y, x]; "
        "B[n, y, x : N, H - 1, W - 1] = X[n, y + 1, x] - X[n, y, x]; }", 1),
    "beyond the edges": (
        "-> (A, B) { A[n, y, x : N, H, W] = pad(X[n, y, x - 1], 7); B[n, y, x : N, H, W] = X[n, y + 1, x] * 2; }", 1),
    "a comparison": (
        "-> (A, B) { A[n, y, x : N, H - 1, W] = X[n, y + 1, x] > X[n, y, x]; "
        "B[n, y, x : N, H - 1, W] = X[n, y + 1, x] * X[n, y, x]; }", 1),
    "places that are data": (
        "-> (A, B) { A[n, y, x : N, H, W] = X[n, J[n, y], x] + x; B[n, y, x : N, H, W] = X[n, J[n, y], x] * 2; }", 1),
    "one needs the other": (
        "-> (A, B) { A[n, y, x : N, H - 1, W] = X[n, y + 1, x] - X[n, y, x]; "
        "B[n, y, x : N, H - 1, W] = X[n, y + 1, x] + pad(A[n, y, x + 1], 0); }", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("shape", [(2, 9, 37), (1, 2, 2)])
@pytest.mark.covering
def test_neighbours_of_elementwise_statements(name: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    text, count = MAPS[name]
    tensors = [numbers(shape, dtype), numbers(shape[:2], torch.int64) % shape[1]]
    f = compare(f"function (X[N, H, W], J[N, H]) {text}", tensors)
    assert len(f.lower(*tensors).kernels) <= count


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_infinities_beside_zeros(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that are read outside do not meet what is not finite, of either sum."""
    monkeypatch.setattr(windows, "LEAST_OUTPUTS", 0)
    x, k = numbers((1, 9, 37)), numbers((3, 4))
    k[0, 1] = value
    text = (
        "-> (A, B) { A[n, y, x : N, H, W] = sum(X[n, y + j - 1, x + i - 1] * K[j, i]); "
        "B[n, y, x : N, H, W] = sum(X[n, y + j - 1, x + i - 1] * K[j, i] * 2); }"
    )
    source = f"function (X[N, H, W], K[3, 4]) {text}"
    f = tilec.compile(source, backend="triton")
    for a, b in zip(f(x, k), tilec.compile(source, backend="torch")(x, k), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    assert kernels(f, x, k) == 1


def test_no_elements() -> None:
    source = f"function (X[N, H, W], K[3, 4]) {CASES['moments'][0]}"
    a, b = tilec.compile(source, backend="triton")(numbers((0, 9, 13)), numbers((3, 4)))
    assert a.shape == b.shape == (0, 7, 10)


@pytest.mark.parametrize("sizes", [(2, 4, 5, 33), (1, 1, 1, 1), (2, 12, 3, 7)])
def test_places_that_are_data(sizes: tuple[int, int, int, int]) -> None:
    n, _, h, w = sizes
    places = [numbers((n, h, w), torch.int64) + k for k in (1, 2)]
    tensors = [numbers(sizes), numbers(sizes) + 1, *places, numbers((n, h, w))]
    f = compare(WARPED, tensors)
    if sizes[1] > 1:
        assert len(f.lower(*tensors).kernels) == 1  # walks rows of channels


@pytest.mark.parametrize("source", ["moments", "an epilogue reads another", "beyond the edges"])
def test_gradients(source: str) -> None:
    whole = f"function (X[N, H, W], K[3, 4]) {CASES[source][0]}"
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [numbers(s, dtype).requires_grad_() for s in ((2, 6, 9), (3, 4))]
        values = tilec.compile(whole, backend=backend)(*leaves)
        values = (values,) if isinstance(values, torch.Tensor) else values
        total = sum((v * numbers(tuple(v.shape), dtype)).sum() for v in values)
        found.append(torch.autograd.grad(total, leaves, allow_unused=True))
    for a, b in zip(*found, strict=True):
        if b is not None:
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.one_in(3)
def test_random_sums(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sums of products of what two images hold at shifted places, with and without epilogues."""
    r = random.Random(seed)
    monkeypatch.setattr(windows, "LEAST_OUTPUTS", r.choice([0, windows.LEAST_OUTPUTS]))
    monkeypatch.setattr(shared_reads, "MOST_READ", r.choice([2, 100]))
    reads = ["X[n, y + j, x + i]", "Y[n, y + j, x + i]", "X[n, y + 1, x + i]", "K[j, i]", "Y[n, y, x]"]
    lines, names = [], []
    for k in range(r.randint(2, 5)):
        factors = [r.choice(reads[:2]), *r.sample(reads, r.randint(0, 2))]
        aggregation = r.choice(["sum", ">", "<", "sum"])
        lines.append(f"S{k}[n, y, x : N, H - 2, W - 3] = {aggregation}({' * '.join(factors)}), j < 3, i < 4;")
        names.append(f"S{k}")
        if r.random() < 0.4:
            lines.append(f"T{k} = {r.choice(names)} * 2 - S{k};")
            names.append(f"T{k}")
    outputs = [n for n in names if r.random() < 0.6] or names[-1:]
    source = f"function (X[N, H, W], Y[N, H, W], K[3, 4]) -> ({', '.join(outputs)}) {{ {' '.join(lines)} }}"
    compare(source, [numbers((2, 6, 36)), numbers((2, 6, 36)) + 1, numbers((3, 4))], 1e-4)


def test_few_orders_of_many_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of attention in windows of two axes add up over many variables: not all their orders are tried."""
    here, there = "(u + i) % Y, (3*v + j + 1) % X, e", "(u + k) % Y, (3*v + l + 1) % X, e"
    source = f"""function (Q[Y, X, E], K[Y, X, E], V[Y, X, E]) -> (O) {{
        S[u, v, i, j, k, l : Y, X/3, 1, 3, 1, 3] = sum(Q[{here}] * K[{there}]);
        O[{here} : Y, X, E] = sum(S[u, v, i, j, k, l] * V[{there}]);
    }}"""
    tried: list[object] = []
    substitute = shared_reads.substitute_affine

    def counted(s, by):
        tried.append(by)
        assert len(tried) < 200
        return substitute(s, by)

    monkeypatch.setattr(shared_reads, "substitute_affine", counted)
    images = [numbers((1, 6, 2)) + k for k in range(4)]
    compare(tilec.compile(source).grad().tile, images)
    assert tried
