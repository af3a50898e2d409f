"""Residue classes of an output in one program, interpreted: resizes, gradients of strided windows, edges, dtypes."""

import math
import os
import random
from collections.abc import Callable

import pytest
import torch
from support.tiers import slow_but

import tilec
from tilec.backends.triton.pointwise import residues

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

DOUBLED = """y % 2 == 0
    ? 0.25 * I[n, clamp(y/2 - 1, 0, H - 1), x, c] + 0.75 * I[n, y/2, x, c]
    : 0.75 * I[n, (y - 1)/2, x, c] + 0.25 * I[n, clamp((y + 1)/2, 0, H - 1), x, c];"""
CASES = {  # source over I[N, H, W, C]
    "linear, twice": "O[n, y, x, c : N, 2*H, W, C] = " + DOUBLED,
    "linear, an odd length": "O[n, y, x, c : N, 2*H - 1, W, C] = " + DOUBLED,
    "three times": """O[n, y, x, c : N, 3*H, W, C] = y % 3 == 0 ? I[n, y/3, x, c]
        : (y % 3 == 1 ? 2 * I[n, (y - 1)/3, x, c] : I[n, (y - 2)/3, x, c] + I[n, clamp((y + 1)/3, 0, H - 1), x, c]);""",
    "nearest, by index": "O[n, y, x, c : N, 2*H, 2*W, C] = I[n, (y - y % 2)/2, (x - x % 2)/2, c];",
    "nearest, by writing": "O[n, 2*y + j, 2*x + i, c : N, 2*H, 2*W, C] = I[n, y, x, c], j < 2, i < 2;",
    "alternating": "O[n, y, x, c : N, H, W, C] = x % 2 == 0 ? I[n, y, x, c] : -I[n, y, x, c];",
    "transposed": "O[n, 2*y + j - 1, x, c : N, 2*H, W, C] = +(I[n, y, x, c]), j < 3;",
    "transposed, stride 3": "O[n, 3*y + j, 2*x + i - 1, c : N, 3*H + 1, 2*W, C] = +(I[n, y, x, c]), j < 4, i < 3;",
    "greatest, transposed": "O[n, 2*y + j, x, c : N, 2*H + 2, W, C] = >(I[n, y, x, c]), j < 3;",
    "alone at even places": "O[n, 2*y, x, c : N, 2*H, W, C] = +(I[n, y, x, c]);",
    "a guard": "O[n, 2*y + j, x, c : N, 2*H + 1, W, C] = +(x != y ? I[n, y, x, c] * 2), j < 2;",
    "with an epilogue": "A[n, 2*y + j - 1, x, c : N, 2*H, W, C] = +(I[n, y, x, c]), j < 3; O = relu(A);",
}
ELEMENTS = {"three times": 3, "nearest, by index": 4, "nearest, by writing": 4, "transposed, stride 3": 6}
ELEMENTS |= {"alone at even places": 1}
POOLS = {
    "3x3, stride 2": "O[n, y, x, c : N, (H - 1) / 2 + 1, W/2, C] = >(I[n, 2*y + j - 1, 2*x + i, c]), j < 3, i < 2;",
    "2x2": "O[n, y, x, c : N, H/2, W/2, C] = >(I[n, 2*y + j, 2*x + i, c]), j < 2, i < 2;",
    "means": "O[n, y, x, c : N, H/2, W/2, C] = mean(I[n, 2*y + j, 2*x + i, c]), j < 2, i < 2;",
}


def image(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residues, "LEAST_PROGRAMS", 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(6)
def test_classes_at_once(name: str) -> None:
    source = f"function (I[N, H, W, C]) -> (O) {{ {CASES[name]} }}"
    f = tilec.compile(source, backend="triton")
    exact, shapes = tilec.compile(source, backend="torch"), ((2, 5, 6, 33), (1, 1, 1, 32), (1, 4, 3, 40))
    for dtype, some in ((torch.float32, shapes), (torch.bfloat16, shapes[:1]), (torch.int32, shapes[1:2])):
        for i in (image(shape, dtype) for shape in some):
            if dtype is torch.int32 and ("0.25" in source or "relu" in source):
                continue  # floating by the text alone
            torch.testing.assert_close(f(i), exact(i), rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)
    assert f.lower(image((2, 5, 6, 33))).source().count("tl.store(") == ELEMENTS.get(name, 2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(2)
def test_two_variables_as_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """33 channels leave half of a row of 64 empty; together with the variable before them they fill blocks."""
    monkeypatch.setattr(residues, "SINGLE_BLOCK", 32)
    monkeypatch.setattr(residues, "REPEATED_BLOCK", 32)
    source = f"function (I[N, H, W, C]) -> (O) {{ {CASES[name]} }}"
    f, exact = (tilec.compile(source, backend=backend) for backend in ("triton", "torch"))
    for i in (
        image((2, 5, 12, 33), torch.bfloat16),
        image((1, 4, 19, 33), torch.bfloat16),
        image((1, 1, 12, 37), torch.float16),
        image((2, 3, 12, 40)),
    ):
        torch.testing.assert_close(f(i), exact(i), rtol=1e-6 if i.dtype is torch.float32 else 1e-2, atol=1e-6)
    assert "nearest" not in name or "BM=1, BN=32" in f.lower(image((2, 5, 12, 33), torch.bfloat16)).source()


REPEATED = {  # stores of a place
    "O[n, 2*y + j, 3*x + i, c : N, 2*H, 3*W, C] = I[n, y, x, c] + I[n, y, x, 0], j < 2, i < 3;": 2,
    "O[n, y, 2*x + i, c : N, H, 2*W, C] = I[n, y, x, c], i < 2;": 1,
    "O[n, y, x, 2*x + i, c : N, H, W, 2*W, C] = I[n, y, x, c], i < 2;": 1,
    "O[n, y, x, c : N, 2*H, 3*W, C] = I[n, (y - y % 2)/2, (x - x % 3)/3, c];": 2,
    "O[n, y, x, c : N, H, 2*W - 1, C] = I[n, y, (x - x % 2)/2, c];": 1,
    "O[n, y, 2*x + i, c : N, H, 2*W + 1, C] = I[n, y, x, c], i < 2;": 2,
    "O[n, 2*y + j, 2*x + i, c : N, 2*H, 2*W, C] = relu(I[n, y, x, c] - i), j < 2, i < 2;": 2,
}


@pytest.mark.parametrize("text", REPEATED)
def test_repeated_channels_are_stored_beside_each_other(text: str) -> None:
    source = f"function (I[N, H, W, C]) -> (O) {{ {text} }}"
    f, exact = (tilec.compile(source, backend=backend) for backend in ("triton", "torch"))
    for shape in ((2, 5, 12, 33), (1, 3, 7, 27), (1, 2, 5, 32), (0, 2, 3, 33), (2, 3, 1, 35)):
        i = image(shape, torch.bfloat16)
        assert torch.equal(f(i), exact(i))
    assert f.lower(image((2, 5, 12, 33), torch.bfloat16)).source().count("tl.store(") == REPEATED[text]


def test_classes_beside_each_other_in_memory_are_one_text() -> None:
    source = """function (I[N, H, W, D, 2, 2]) -> (O) {
        O[n, 2*y + j, 2*x + i, d : N, 2*H, 2*W, D] = I[n, y, x, d, j, i];
    }"""
    i = image((1, 2, 3, 32, 2, 2), torch.bfloat16)
    f = tilec.compile(source, backend="triton")
    assert torch.equal(f(i), tilec.compile(source, backend="torch")(i))
    assert f.lower(i).source().count("tl.store(") == 1


BILINEAR = f"""function (I[N, H, W, C]) -> (O) {{
    V[n, y, x, c : N, 2*H, W, C] = {DOUBLED}
    O[n, y, x, c : N, 2*H, 2*W, C] = x % 2 == 0
        ? 0.25 * V[n, y, clamp(x/2 - 1, 0, W - 1), c] + 0.75 * V[n, y, x/2, c]
        : 0.75 * V[n, y, (x - 1)/2, c] + 0.25 * V[n, y, clamp((x + 1)/2, 0, W - 1), c];
}}"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.one_in(3)
def test_two_steps_of_a_resize_in_one_kernel(dtype: torch.dtype) -> None:
    f = tilec.compile(BILINEAR, backend="triton")
    for shape in ((2, 3, 4, 33), (1, 1, 1, 32), (0, 2, 3, 32)):
        i = image(shape, dtype)
        torch.testing.assert_close(f(i), tilec.compile(BILINEAR, backend="torch")(i), rtol=0, atol=0)
    (kernel,) = f.lower(image((2, 5, 6, 33))).kernels
    assert kernel.source.count("tl.load(I") == 9 and kernel.source.count("tl.store(") == 4


@pytest.mark.parametrize("shape", [(2, 5, 6, 33), (1, 8, 8, 32), (1, 3, 2, 64)])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.covering
def test_gradients_of_pools(name: str, shape: tuple[int, ...]) -> None:
    source = f"function (I[N, H, W, C]) -> (O) {{ {POOLS[name]} }}"
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaf = image(shape, dtype).requires_grad_()
        value = tilec.compile(source, backend=backend)(leaf)
        found.append(torch.autograd.grad(value, leaf, image(tuple(value.shape), dtype))[0])
    torch.testing.assert_close(found[0].double(), found[1], rtol=1e-5, atol=1e-5)


APART = {  # windows that do not overlap: the program that writes a window's elements finds maximum and ties in it
    "2x2": "O[n, y, x, c : N, H/2, W/2, C] = >(I[n, 2*y + j, 2*x + i, c]), j < 2, i < 2;",
    "least of 3x3": "O[n, y, x, c : N, H/3, W/3, C] = <(I[n, 3*y + j, 3*x + i, c]), j < 3, i < 3;",
    "four in time": "O[n, y, x, c : N, H/4, W, C] = >(I[n, 4*y + j, x, c]), j < 4;",
    "of a body": "O[n, y, x, c : N, H/2, W, C] = >(abs(I[n, 2*y + j, x, c]) * 3), j < 2;",
    "from the second on": "O[n, y, x, c : N, (H - 1)/2, W, C] = >(I[n, 2*y + j + 1, x, c]), j < 2;",
    "transposed": "O[x, y, n, c : W/2, H/2, N, C] = >(I[n, 2*y + j, 2*x + i, c]), j < 2, i < 2;",
    "channels first": "O[n, h, w, c : N, H, W/2, C/2] = >(I[n, h, 2*w + j, 2*c + i]), j < 2, i < 2;",
    "along memory": "O[n, h, w, c : N, H, W, C/4] = <(I[n, h, w, 4*c + k]), k < 4;",
}


def with_extremes(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of few values, many of them equal, and windows with NaN and infinities, some of nothing else."""
    i = image(shape, torch.float64)
    i[..., 1] = -math.inf
    i[..., 2::7] = torch.where(i[..., 2::7] > 2, math.inf, i[..., 2::7])
    i[..., 3::5] = torch.where(i[..., 3::5] < -2, math.nan, i[..., 3::5])
    return i.to(dtype)


@pytest.mark.parametrize("name", slow_but(APART, ("2x2",)))
def test_gradients_of_windows_that_do_not_overlap(name: str) -> None:
    source = f"function (I[N, H, W, C]) -> (O) {{ {APART[name]} }}"
    whole, exact = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")
    f = whole.grad(["I"])
    shapes = (2, 5, 5, 34), (1, 1, 1, 40), (0, 4, 4, 32), (2, 4, 1, 33), (1, 7, 4, 139)
    shorter = (*shapes[:3], *shapes[4:][: "memory" in name])
    for dtype, some in ((torch.float32, shorter), (torch.bfloat16, shapes[:1]), (torch.float64, shapes[3:4])):
        for shape in some:
            i = with_extremes(shape, dtype)
            cotangent = image(tuple(exact(i.double()).shape), dtype)
            wanted, found = exact.grad(["I"])(i.double(), cotangent.double()), [f(i, cotangent)]
            if shape in (shapes[0], shapes[2]):
                leaf = i.clone().requires_grad_()
                found += torch.autograd.grad(whole(leaf), leaf, cotangent)
            for got in found:
                torch.testing.assert_close(got.double(), wanted, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=0)
    for dtype in (torch.float32, torch.bfloat16):
        i = image((2, 12, 12, 136 if "memory" in name or "first" in name else 34), dtype)
        kernels = f.lower(i, exact(i)).kernels
        # elements of one residue belong to another window there than the rest at their place
        assert len(kernels) == (3 if name == "from the second on" else 1)


def test_second_derivatives_of_windows_that_do_not_overlap() -> None:
    source = f"function (I[N, H, W, C]) -> (O) {{ {APART['2x2'].replace('O[', 'M[')} O = M * M * M; }}"
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaf = image((2, 5, 4, 33), dtype).requires_grad_()
        value = tilec.compile(source, backend=backend)(leaf)
        (first,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad((first * image((2, 5, 4, 33), dtype)).sum(), leaf)[0])
    torch.testing.assert_close(found[0].double(), found[1], rtol=1e-5, atol=1e-5)


def test_windows_that_overlap_find_their_ties_once() -> None:
    i = image((2, 9, 9, 34))
    f = tilec.compile(f"function (I[N, H, W, C]) -> (O) {{ {POOLS['3x3, stride 2']} }}", backend="triton")
    assert [k.name for k in f.grad(["I"]).lower(i, f(i)).kernels] == ["O_kernel", "Ties_kernel", "DI_kernel"]


INTERLEAVED = {  # read a step apart, so that parts of the gradient are written so
    "differences": "O[n, y, x, c : N, H/2, W, C] = I[n, 2*y, x, c] - I[n, 2*y + 1, x, c];",
    "products": "O[n, y, x, c : N, H/2, W, C] = I[n, 2*y, x, c] * I[n, 2*y + 1, x, c];",
    "neighbours in memory": "O[n, y, x, c : N, H, W, C/2] = I[n, y, x, 2*c] * I[n, y, x, 2*c + 1];",
    "both axes": """O[n, y, x, c : N, H/2, W/2, C] = I[n, 2*y, 2*x, c] - 2 * I[n, 2*y, 2*x + 1, c]
        + 3 * I[n, 2*y + 1, 2*x, c] * I[n, 2*y + 1, 2*x + 1, c];""",
    "by number": """O[n, k, y, x, c : N, 3, H/2, W, C] = k == 0 ? I[n, 2*y, x, c] + I[n, 2*y + 1, x, c]
        : (k == 1 ? I[n, 2*y, x, c] - I[n, 2*y + 1, x, c] : I[n, 2*y, x, c]);""",
    "two of three": "O[n, y, x, c : N, H/3, W, C] = I[n, 3*y, x, c] * I[n, 3*y + 2, x, c];",
    "one beyond the other": "O[n, y, x, c : N, H/2 - 1, W, C] = I[n, 2*y, x, c] + 2 * I[n, 2*y + 2, x, c];",
    "three outputs": """A[n, y, x, c : N, H/2, W, C] = I[n, 2*y, x, c] + I[n, 2*y + 1, x, c];
        B[n, y, x, c : N, H/2, W, C] = I[n, 2*y, x, c] * I[n, 2*y + 1, x, c]; O = A * B;""",
    "written so": """A[n, 2*y, x, c : N, 2*H, W, C] = +(I[n, y, x, c]);
        B[n, 2*y + 1, x, c : N, 2*H, W, C] = +(-I[n, y, x, c]); O = A + B;""",
}


def agree(source: str, inputs: Callable[[torch.dtype], list[torch.Tensor]], half: bool = False) -> None:
    """Values and gradients in float32, and with `half` in bfloat16, are those of torch's backend in float64."""
    found = []
    runs = [("torch", torch.float64), ("triton", torch.float32), *[("triton", torch.bfloat16)] * half]
    for backend, dtype in runs:
        leaves = [t.requires_grad_() for t in inputs(dtype)]
        value = tilec.compile(source, backend=backend)(*leaves)
        found.append((value, *torch.autograd.grad(value, leaves, image(tuple(value.shape), dtype))))
    for wanted, got, *rough in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
        for x in rough:
            torch.testing.assert_close(x.double(), wanted, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("name", INTERLEAVED)
@pytest.mark.one_in(6)
def test_parts_a_step_apart(name: str) -> None:
    source = f"function (I[N, H, W, C]) -> (O) {{ {INTERLEAVED[name]} }}"
    agree(source, lambda dtype: [image((2, 6, 4, 34), dtype)], half=True)
    agree(source, lambda dtype: [image((1, 12, 2, 64), dtype)])
    f = tilec.compile(source, backend="triton")
    inputs = [image((2, 12, 12, 36))]
    if name != "written so":
        f, inputs = f.grad(["I"]), [*inputs, *(torch.zeros(t.shape) for t in f.lower(*inputs).outputs)]
    assert len(f.lower(*inputs).kernels) == (2 if name == "three outputs" else 1)


def test_a_part_without_elements() -> None:
    """Of one element, none is a third of the way: that part of the gradient writes nothing."""
    source = "function (I[N]) -> (A, B) { A[y : 4] = I[3*y - 2]; B[y : 3] = I[y] * I[y]; }"
    leaf = torch.tensor([3.0], requires_grad=True)
    (got,) = torch.autograd.grad(tilec.compile(source, backend="triton")(leaf), leaf, (torch.ones(4), torch.ones(3)))
    assert got.tolist() == [6.0]


@pytest.mark.parametrize("shapes", [((4, 0), (4, 0, 2)), ((4, 3), (4, 0, 2)), ((0, 3), (0, 2, 2))])
def test_parts_without_points(shapes: tuple[tuple[int, ...], ...]) -> None:
    tensors = [image(s) for s in shapes]
    for at in ("i : N", ""):
        source = (
            f"function (X[N, J], Y[N, K, L]) -> (C) {{ A[{at}] = +(X[i, j]); B[{at}] = +(Y[i, k, l]); C = A + B; }}"
        )
        found, exact = (tilec.compile(source, backend=b)(*tensors) for b in ("triton", "torch"))
        assert torch.equal(found, exact)


def drawn(seed: int) -> tuple[str, tuple[int, ...]]:
    """A resize by an index, or a strided window that is written, and a shape of its input."""
    rng = random.Random(seed)
    m, shape = rng.choice((2, 2, 3, 4)), (rng.randint(1, 2), rng.randint(1, 5), rng.randint(1, 4), rng.randint(32, 40))
    if rng.random() < 0.5:
        taps, pad = rng.randint(1, m + 2), rng.randint(0, 2)
        aggregation = rng.choice(("+", "+", ">", "<"))
        size = f"{m}*H + {rng.randint(0, 3)}"
        return f"O[n, {m}*y + j - {pad}, x, c : N, {size}, W, C] = {aggregation}(I[n, y, x, c]), j < {taps};", shape

    def class_at(r: int) -> str:
        places = (f"(y - {r})/{m} + {rng.randint(-1, 1)}" for _ in range(rng.randint(1, 2)))
        terms = (f"{rng.randint(-3, 3)} * I[n, clamp({p}, 0, H - 1), x, c]" for p in places)
        return " + ".join(terms)

    body = class_at(m - 1)
    for r in reversed(range(m - 1)):
        body = f"y % {m} == {r} ? {class_at(r)} : ({body})"
    return f"O[n, y, x, c : N, {m}*H - {rng.randint(0, m - 1)}, W, C] = {body};", shape


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.one_in(3)
def test_drawn_at_random(seed: int) -> None:
    text, shape = drawn(seed)
    source = f"function (I[N, H, W, C]) -> (O) {{ {text} }}"
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaf = image(shape, dtype).requires_grad_()
        value = tilec.compile(source, backend=backend)(leaf)
        finite = torch.where(value.isfinite(), image(tuple(value.shape), dtype), 0)
        found.append((value, torch.autograd.grad(value, leaf, finite)[0]))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


SIDE_BY_SIDE = {  # over X[N, E], Y[N, E], P[N, M, 2], Q[N, M, 2], U[N, M, 4], V[N, M, 4], A[N, M, 3], B[N, M, 3]
    "rotated pairs": """function (X[N, E], Y[N, E]) -> (O) {
        O[n, e : N, E] = e % 2 == 0 ? X[n, e] * Y[n, e/2] - X[n, e + 1] * Y[n, e/2 + 1]
            : X[n, e] * Y[n, (e - 1)/2] + X[n, e - 1] * Y[n, (e + 1)/2];
    }""",
    "wavelet": """function (X[N, E], Y[N, E]) -> (O) {
        A[n, 2*k : N, 2*E] = +(X[n, k] + Y[n, k]); B[n, 2*k + 1 : N, 2*E] = +(X[n, k] - Y[n, k]); O = A + B;
    }""",
    "an odd length": """function (X[N, E], Y[N, E]) -> (O) {
        O[n, e : N, 2*E - 1] = e % 2 == 0 ? X[n, e/2] * Y[n, e/2] : X[n, (e - 1)/2] - Y[n, (e + 1)/2];
    }""",
    "four": """function (X[N, E], Y[N, E]) -> (O) {
        O[n, e : N, E] = e % 4 == 0 ? X[n, e/4] : (e % 4 == 1 ? Y[n, e - 1]
            : (e % 4 == 2 ? X[n, e] * Y[n, e] : -X[n, e]));
    }""",
    "both axes": """function (X[N, E], Y[N, E]) -> (O) {
        O[n, e : 2*N, E] = n % 2 == 0 ? (e % 2 == 0 ? X[n/2, e/2] : Y[n/2, e - 1])
            : (e % 2 == 0 ? Y[(n - 1)/2, e] : -X[(n - 1)/2, e]);
    }""",
    "with an epilogue": """function (X[N, E], Y[N, E]) -> (O) {
        A[n, e : N, E] = +(e % 2 == 0 ? X[n, e] - Y[n, e/2 + j] : X[n, e - 1] * Y[n, e]), j < 2; O = relu(A) + Y;
    }""",
    "complex products": """function (P[N, M, 2], Q[N, M, 2]) -> (O) {
        O[n, m, j : N, M, 2] = j == 0 ? P[n, m, 0] * Q[n, m, 0] - P[n, m, 1] * Q[n, m, 1]
            : P[n, m, 0] * Q[n, m, 1] + P[n, m, 1] * Q[n, m, 0];
    }""",
    "quaternions": """function (U[N, M, 4], V[N, M, 4]) -> (O) {
        O[n, m, j : N, M, 4] = j == 0 ? U[n, m, 0] * V[n, m, 0] - U[n, m, 1] * V[n, m, 1]
                - U[n, m, 2] * V[n, m, 2] - U[n, m, 3] * V[n, m, 3]
            : (j == 1 ? U[n, m, 0] * V[n, m, 1] + U[n, m, 2] * V[n, m, 3] - U[n, m, 3] * V[n, m, 2]
            : (j == 2 ? U[n, m, 2] * V[n, m, 0] + U[n, m, 3] * V[n, m, 1] : U[n, m, 3] * V[n, m, 0]));
    }""",
    "cross products": """function (A[N, M, 3], B[N, M, 3]) -> (O) {
        O[n, m, j : N, M, 3] = j == 0 ? A[n, m, 1] * B[n, m, 2] - A[n, m, 2] * B[n, m, 1]
            : (j == 1 ? A[n, m, 2] * B[n, m, 0] - A[n, m, 0] * B[n, m, 2]
            : A[n, m, 0] * B[n, m, 1] - A[n, m, 1] * B[n, m, 0]);
    }""",
    "slabs": """function (P[N, M, 2], Q[N, M, 2]) -> (O) {
        O[m, j : M, 2] = P[0, m, j] * Q[1, m, j] + P[1, m, j] * Q[0, m, j];
    }""",
    "taken apart": """function (X[N, E], Y[N, E]) -> (O) {
        O[n, e : N, E] = e % 2 == 0 ? X[n, e] + Y[n, e + 1] : Y[n, e - 1] - X[n, e];
    }""",
}
JOINS = {
    "rotated pairs": 1,
    "four": 3,
    "both axes": 2,
    "cross products": 0,
    "quaternions": 3,
    "slabs": 0,
}


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
@pytest.mark.one_in(6)
def test_neighbours_in_memory_are_stored_together(name: str) -> None:
    """One kernel forward, and one for the gradient of each operand whose parts are read a step or a number apart."""
    source = SIDE_BY_SIDE[name]
    wide = "X[" in source
    f = tilec.compile(source, backend="triton")
    last = () if wide else (4 if "quat" in name else 3 if "cross" in name else 2,)
    first, full = ((*shape, *last) for shape in (((2, 132), (1, 128)) if wide else ((2, 33), (3, 40))))
    agree(source, lambda dtype: [image(first, dtype), image(first, dtype).flip(0)], half=True)
    agree(source, lambda dtype: [image(full, dtype), image(full, dtype).flip(0)])
    inputs = [image(full), image(full)]
    (kernel,) = f.lower(*inputs).kernels
    assert kernel.source.count("tl.join(") == JOINS.get(name, 1)
    assert kernel.source.count("tl.store(") == (2 if name == "both axes" else 1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ("complex products", "quaternions", "cross products", "slabs"))
@pytest.mark.usefixtures("launches_apart")
def test_parts_at_numbers(name: str) -> None:
    """The gradient of what is read at 0, 1, ... along an axis is one kernel an operand, or one of both that add up the
    same, with no part filled with zeros."""
    f = tilec.compile(SIDE_BY_SIDE[name], backend="triton")
    full = (3, 40, 4 if "quat" in name else 3 if "cross" in name else 2)
    gradient = f.grad(f.program.input_names())
    lowered = gradient.lower(
        image(full), image(full), *(image(t.shape) for t in f.lower(image(full), image(full)).outputs)
    )
    one = name in ("complex products", "cross products")
    assert len(lowered.kernels) == (1 if one else 2) and "torch.full" not in lowered.source()


SUMMED = {  # statement over X[N, W] and K[J], shapes, whether neighbours are joined
    "clamped taps": ("Y[n, 2*x + q : N, 2*W] = +(X[n, clamp(x + q + j - 2, 0, W - 1)] * K[j]), q < 2;", 4, True),
    "a transposed convolution": ("Y[n, 2*x + j : N, 2*W] = +(X[n, x] * K[j]);", 4, True),
    "by four": ("Y[n, 4*x + j - 1 : N, 4*W] = +(X[n, x] * K[j]);", 6, True),
    "by three": ("Y[n, 3*x + j : N, 3*W] = +(X[n, x] * K[j]);", 4, False),
    "one place more": ("Y[n, 2*x + j : N, 2*W + 1] = +(X[n, x] * K[j]);", 3, True),
    "two places less, by four": ("Y[n, 4*x + j - 1 : N, 4*W - 2] = +(X[n, x] * K[j]);", 6, True),
    "odd both ways": ("Y[2*n + i - 1, 2*x + j - 1 : 2*N - 1, 2*W - 1] = +(X[n, x] * K[j] * K[i]);", 3, True),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_neighbouring_classes_are_stored_together(name: str) -> None:
    """Where all classes have as many elements, or the last ones one less."""
    statement, taps, joined = SUMMED[name]
    source = f"function (X[N, W], K[J]) -> (Y) {{ {statement} }}"
    for dtype in (torch.float32, torch.bfloat16):
        x, k = image((5, 48), dtype), image((taps,), dtype)
        f = tilec.compile(source, backend="triton")
        assert torch.equal(f(x, k), tilec.compile(source, backend="torch")(x, k))
        (kernel,) = f.lower(x, k).kernels
        assert ("tl.join(" in kernel.source) == joined


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16])
def test_a_remainder_by_a_power_of_two_needs_no_division(dtype: torch.dtype) -> None:
    source = "function (X[N], T[M]) -> (Y) { Y[m] = X[T[m] % N] + X[(3*T[m] - 5) % 4]; }"
    f, g = tilec.compile(source, backend="triton"), torch.Generator().manual_seed(0)
    for n in (4, 7, 32):
        x, t = torch.randn(n, generator=g), torch.randint(-300, 300, (60,), generator=g).to(dtype)
        t[:2] = torch.tensor([torch.iinfo(dtype).min // 4, torch.iinfo(dtype).max // 4])
        at = t.long()
        assert torch.equal(f(x, t), x[at % n] + x[(3 * at - 5) % 4])
        assert ("remainder_(" in f.lower(x, t).source()) is (n == 7)


def test_memory_runs_along_many_residues() -> None:
    """Groups of 64 neighbours that share a scale: they stand beside each other, and the scale with their row."""
    source = "function (W[M, K], S[M, G]) -> (D) { D[m, 64*g + u : M, K] = W[m, 64*g + u] * S[m, g], u < 64; }"
    specs = [tilec.spec((256, 4096)), tilec.spec((256, 64))]
    text = tilec.compile(source, backend="triton").lower(*specs, target="sm_90").source()
    assert "tl.cdiv(64, BN)" in text and "tl.load(S + row[:, None]" in text
