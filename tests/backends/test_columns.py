"""Convolutions of few channels as products over copies: what their statements say is the convolution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.gluon import run

import tilec
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.matmul import columns as module
from tilec.backends.triton.matmul.columns import columns, columns_of_reached
from tilec.backends.triton.matmul.dot import StagedProduct, product_over
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import Allocate, Launch, Setting, Step
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.evaluate import evaluate
from tilec.ir.program import Input, Program, Statement, reads
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower


def texts(reads: str, written: str) -> dict[str, str]:
    """The convolution whose windows are read so, and its gradients."""
    read = f"I[n, {reads.format('y', 'j')}, {reads.format('x', 'i')}, c]"
    image, out, kernel = "I[N, H, W, C]", "U[N, P, Q, D]", "K[D, R, S, C]"
    value = f"O[n, y, x, o : N, {written}, D] = +({read} * K[o, j, i, c])"
    of_kernel = f"O[o, j, i, c : D, RIM, C] = +(U[n, y, x, o] * {read})"
    of_image = f"O{read[1:-1]} : N, SIDES, C] = +(U[n, y, x, o] * K[o, j, i, c])"
    return {
        "convolution": f"({image}, {kernel}) -> (O) {{ {value}; }}",
        "kernel": f"({out}, {image}) -> (O) {{ {of_kernel}; }}",
        "image": f"({out}, {kernel}) -> (O) {{ {of_image}; }}",
    }


FIRST = {  # an image of channels first
    "convolution": """(I[N, C, H, W], K[D, C, R, S]) -> (O) {
        O[n, y, x, o : N, H / 4, W / 5, D] = +(I[n, c, 4*y + j, 5*x + i] * K[o, c, j, i]); }""",
    "kernel": """(U[N, P, Q, D], I[N, C, H, W]) -> (O) {
        O[o, c, j, i : D, C, RIM] = +(U[n, y, x, o] * I[n, c, 4*y + j, 5*x + i]); }""",
}
THROUGHOUT = {  # and a result
    "convolution": FIRST["convolution"].replace(
        "O[n, y, x, o : N, H / 4, W / 5, D]", "O[n, o, y, x : N, D, H / 4, W / 5]"
    ),
    "kernel": FIRST["kernel"].replace("U[N, P, Q, D]", "U[N, D, P, Q]").replace("U[n, y, x, o]", "U[n, o, y, x]"),
    "image": """(U[N, D, P, Q], K[D, C, R, S]) -> (O) {
        O[n, c, 4*y + j, 5*x + i : N, C, 4*P, 5*Q] = +(U[n, o, y, x] * K[o, c, j, i]); }""",
}
OF_FIRST = {"N": 2, "H": 16, "W": 20, "C": 3, "D": 17, "P": 4, "Q": 4, "R": 4, "S": 5}
PATCHES = texts("4*{0} + {1}", "H / 4, W / 4")
ODD_PATCHES = texts("3*{0} + {1}", "H / 3, W / 3")
PADDED = texts("5*{0} + {1} - 1", "(H + 4) / 5, (W + 4) / 5")
STEM = texts("2*{0} + {1} - 1", "(H - 1) / 2 + 1, (W - 1) / 2 + 1")
OF_PATCHES = {"N": 3, "H": 12, "W": 8, "C": 3, "D": 17, "P": 3, "Q": 2, "R": 4, "S": 4}
OF_EDGE = {**OF_PATCHES, "H": 14, "W": 11}
OF_ODD_PATCHES = {"N": 2, "H": 12, "W": 9, "C": 3, "D": 17, "P": 4, "Q": 3, "R": 3, "S": 3}
OF_PADDED = {"N": 1, "H": 38, "W": 38, "C": 3, "D": 17, "P": 8, "Q": 8, "R": 5, "S": 5}
OF_STEM = {"N": 2, "H": 9, "W": 7, "C": 3, "D": 17, "P": 5, "Q": 4, "R": 3, "S": 3}
CASES = {
    **{f"patches, {name}": (text, OF_PATCHES) for name, text in PATCHES.items()},
    **{f"odd patches, {name}": (text, OF_ODD_PATCHES) for name, text in ODD_PATCHES.items()},
    **{f"channels first, {name}": (text, OF_FIRST) for name, text in FIRST.items()},
    **{f"patches with an edge, {name}": (text, OF_EDGE) for name, text in PATCHES.items()},
    **{f"padded, {name}": (text, OF_PADDED) for name, text in PADDED.items() if name != "image"},
}


@pytest.fixture
def anywhere(monkeypatch):
    """Products of any size over plain rows, although no kernel takes them."""

    def taken(product, setting):
        dot = product.dot
        plain = all(len(v) == 1 for v in (dot.rows, dot.columns, dot.summed))
        return [] if plain else None

    monkeypatch.setattr(module, "hopper_steps", taken)


def lowered(text: str, sizes: dict[str, int]):
    text = text.replace("RIM", "{R}, {S}".format(**sizes)).replace("SIDES", "{H}, {W}".format(**sizes))
    program = parse(f"function {text}")
    first = "NCHW" if "I[N, C" in text else "NHWC"
    kernel, out = "DCRS" if "K[D, C" in text or first == "NCHW" else "DRSC", "NDPQ" if "U[N, D" in text else "NPQD"
    axes = {"I": first, "K": kernel, "U": out}
    shapes = {n: tuple(sizes[d] for d in axes[n]) for n in program.input_names()}
    return lower(program, {n: TensorType(s, "bfloat16") for n, s in shapes.items()}, {})


def made(lowering) -> StagedProduct | None:
    (defracted,) = lowering.stages["defracted"].statements
    types = dict(lowering.types)
    over = coalesce(StridedView(defracted, types, {n: contiguous(t.shape) for n, t in types.items()}))
    product, setting = product_over(over), Setting("highest", device=DEVICES["sm_90"])
    space = build_space(over.statement, types)
    found = None if space is None else columns_of_reached(space, over, setting, types)
    return columns(product, setting) if product and found is None else found


def test_an_edge_is_filled_in_the_shape_that_is_stored():
    """Whatever axes its view has."""
    text = """function (U[B, N, P, Q, D], K[D, R, S, C]) -> (O) {
        O[b, n, 4*y + j, 4*x + i, c : B, N, 14, 11, C] = +(U[b, n, y, x, o] * K[o, j, i, c]); }"""
    shapes = (4, 3, 3, 2, 64), (64, 4, 4, 3)
    source = tilec.compile(text).lower(*(tilec.spec(x, "bfloat16") for x in shapes), target="sm_90").source()
    assert "O_columns = torch.empty((72, 64)" in source and "O = torch.full((4, 3, 14, 11, 3), 0.0" in source


@pytest.mark.parametrize("constraint", ["", "j < 3", "j + y < 4", "o + c < 5"])
def test_constraints_beyond_the_bounds_of_tensors(constraint, anywhere):
    text, sizes = CASES["patches, kernel"]
    found = made(lowered(text.replace(");", f"), {constraint};" if constraint else ");"), sizes))
    assert (found is None) == bool(constraint)


def view(v: StridedView, tensor: str, memory: dict[str, np.ndarray]) -> np.ndarray:
    steps = [8 * n for n in v.strides[tensor]]
    return np.lib.stride_tricks.as_strided(memory[tensor], v.types[tensor].shape, steps)


def carry_out(v: StridedView | Step, memory: dict[str, np.ndarray]) -> None:
    if isinstance(v, Allocate):
        memory[v.tensor][:] = v.fill
        return
    assert isinstance(v, StridedView)
    s = v.statement
    view(v, s.output, memory)[...] = value_of(s, {n: view(v, n, memory) for n in reads(s)})


def value_of(s: Statement, arrays: dict[str, np.ndarray]) -> np.ndarray:
    program = Program(None, tuple(Input(n, x.shape) for n, x in arrays.items()), (s.output,), (s,))
    (found,) = evaluate(program, [np.ascontiguousarray(x) for x in arrays.values()])
    return np.asarray(found)


def test_rows_of_a_kernel_that_begin_between_vectors_are_copied(anywhere):
    found = made(lowered(ODD_PATCHES["image"], OF_ODD_PATCHES))
    assert found is not None and found.made == {
        "O.columns": (24, 32),
        "U.columns": (24, 24),
        "K.columns": (17, 32),
    }
    kept = made(lowered(PATCHES["image"], OF_PATCHES))
    assert kept is not None and kept.made == {"O.columns": (18, 64), "U.columns": (18, 24)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_the_statements(name, anywhere):
    lowering = lowered(*CASES[name])
    found = made(lowering)
    assert found is not None
    g = np.random.default_rng(0)
    flat = lowering.stages["flat"]
    arrays = {n: g.integers(-2, 3, lowering.types[n].shape).astype(float) for n in flat.input_names()}
    want = value_of(flat.statements[0], arrays)
    memory = {n: x.reshape(-1).copy() for n, x in arrays.items()} | {"O": np.full(want.size, 99.0)}
    memory |= {n: np.full(np.prod(shape), 77.0) for n, shape in found.made.items()}
    for v in (*found.before, found.product, *found.after):
        carry_out(v, memory)
    np.testing.assert_array_equal(memory["O"].reshape(want.shape), want)
    assert all(width % 8 == 0 for _, width in found.made.values())
    assert bool(found.repairs) == name.startswith("padded")


LARGE = {
    "patches": (PATCHES, {"N": 4, "H": 16, "W": 16, "C": 3, "D": 64, "P": 4, "Q": 4, "R": 4, "S": 4}),
    "odd patches": (ODD_PATCHES, {**OF_ODD_PATCHES, "N": 16, "D": 64}),
    "channels first": (THROUGHOUT, {**OF_FIRST, "H": 32, "W": 40, "P": 8, "Q": 8, "D": 64}),
    "odd channels first": (THROUGHOUT, {**OF_FIRST, "H": 36, "W": 50, "P": 9, "Q": 10, "D": 64}),
    "padded": (PADDED, {**OF_PADDED, "N": 2, "D": 64}),
}
OF_LARGE = [
    ("patches", "image"),
    ("odd patches", "image"),
    ("channels first", "convolution"),
    ("channels first", "kernel"),
    ("channels first", "image"),
    ("odd channels first", "kernel"),
    ("odd channels first", "image"),
    ("padded", "convolution"),
    ("padded", "kernel"),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("kind", "name"), OF_LARGE)
def test_the_product(kind, name):
    """By the kernel that is launched, over rows that are padded with what is no number."""
    of_kind, sizes = LARGE[kind]
    found = made(lowered(of_kind[name], sizes))
    assert found is not None
    v, g = found.product, np.random.default_rng(1)
    s = v.statement
    memory = {}
    for n in (*reads(s), s.output):
        count = math.prod(found.made.get(n, v.types[n].shape))
        memory[n] = np.full(count, np.nan)
        if n != s.output:
            view(v, n, memory)[...] = g.integers(-2, 3, v.types[n].shape)
    want = value_of(s, {n: view(v, n, memory) for n in reads(s)})
    run([x for x in found.steps if isinstance(x, Launch)], memory, dict.fromkeys(memory, "bfloat16"))
    np.testing.assert_array_equal(view(v, s.output, memory), want)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (STEM["convolution"], OF_STEM),
        (STEM["image"], OF_STEM),
        (PATCHES["convolution"], {**OF_PATCHES, "C": 16}),
        (FIRST["convolution"].replace("5", "2"), {**OF_FIRST, "S": 2}),
    ],
    ids=["windows that overlap", "their gradient", "patches of many channels", "rows of two elements"],
)
def test_left_alone(text, sizes, anywhere):
    assert made(lowered(text, sizes)) is None


def test_classes_of_large_tensors_have_positions_of_64_bits():
    text = """function (D[N, Y, X, O], K[7, 7, C, O]) -> (I) {
        I[n, 2*y + p, 2*x + q, c : N, 2*Y, 2*X, C] = +(D[n, y, x, o] * K[p, q, c, o]); }"""
    specs = tilec.spec((4096, 112, 112, 64), "bfloat16"), tilec.spec((7, 7, 3, 64), "bfloat16")
    lowered = tilec.compile(text, backend="triton").lower(*specs, target="sm_80")
    wide = [k.name for k in lowered.kernels if "tl.int64" in k.source]
    assert wide == ["I_columns_dot", "I_repair"]
