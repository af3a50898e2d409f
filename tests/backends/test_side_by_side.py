"""Groups side by side in one product: what its statements say is the grouped product, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
from support.gluon import run

import tilec
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.matmul import side_by_side as module
from tilec.backends.triton.matmul.dot import StagedProduct, product_over
from tilec.backends.triton.matmul.side_by_side import side_by_side
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import Launch, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.evaluate import evaluate
from tilec.ir.program import Input, Program, Statement, reads
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

CONVOLVED = "O[n, y, x, g, o : N, H, W, G, D] = +(I[n, y + j - 1, x + i - 1, g, c] * K[{}])"
CASES = {
    "convolution": ("I[N, H, W, G, C], K[G, D, 3, 3, C]", CONVOLVED.format("g, o, j, i, c")),
    "gradient of the image": (
        "U[N, H, W, G, D], K[G, D, 3, 3, C]",
        "O[n, y + j - 1, x + i - 1, g, c : N, H, W, G, C] = +(U[n, y, x, g, o] * K[g, o, j, i, c])",
    ),
    "gradient of the kernel": (
        "U[N, H, W, G, D], I[N, H, W, G, C]",
        "O[g, o, j, i, c : G, D, 3, 3, C] = +(U[n, y, x, g, o] * I[n, y + j - 1, x + i - 1, g, c])",
    ),
    "kernel stored otherwise": ("I[N, H, W, G, C], K[3, 3, C, G, D]", CONVOLVED.format("j, i, c, g, o")),
    "no windows": (
        "I[N, H, W, G, C], K[G, C, D]",
        "O[n, y, x, g, o : N, H, W, G, D] = +(I[n, y, x, g, c] * K[g, c, o])",
    ),
}
SIZES = {"N": 1, "H": 3, "W": 4, "G": 4, "C": 4, "D": 5}
LARGE = {"N": 2, "H": 8, "W": 8, "G": 8, "C": 8, "D": 8}  # as Hopper's kernels want them


@pytest.fixture
def anywhere(monkeypatch):
    """Products of any size, although no kernel takes them."""
    monkeypatch.setattr(module, "hopper_steps", lambda *args, **named: [])


def made(name: str, **sizes: int) -> tuple[StagedProduct | None, dict[str, tuple[int, ...]], Statement]:
    inputs, statement = CASES[name]
    program = parse(f"function ({inputs}) -> (O) {{ {statement}; }}")
    known = {**SIZES, **sizes}
    shapes = {
        t.split("[")[0]: tuple(known[n] if n in known else int(n) for n in t.rstrip("]").split("[")[1].split(", "))
        for t in inputs.replace("], ", "]; ").split("; ")
    }
    lowering = lower(program, {n: TensorType(s, "bfloat16") for n, s in shapes.items()}, {})
    (defracted,) = lowering.stages["defracted"].statements
    types = dict(lowering.types)
    strides = {n: contiguous(t.shape) for n, t in types.items()}
    view = coalesce(StridedView(defracted, types, strides))
    product = product_over(view)
    assert product is not None
    found = side_by_side(product, Setting("highest", device=DEVICES["sm_90"]))
    return found, {**shapes, "O": types["O"].shape}, lowering.stages["flat"].statements[0]


def value_of(s: Statement, types, arrays) -> np.ndarray:
    names = tuple(dict.fromkeys(reads(s)))
    program = Program(None, tuple(Input(n, types[n].shape) for n in names), (s.output,), (s,))
    (found,) = evaluate(program, [arrays[n].reshape(types[n].shape) for n in names])
    return np.asarray(found)


def drawn(shapes) -> dict[str, np.ndarray]:
    g = np.random.default_rng(0)
    return {n: g.integers(-2, 3, s).astype(float) for n, s in shapes.items() if n != "O"}


def exact(statement: Statement, shapes, arrays) -> np.ndarray:
    return value_of(statement, {n: TensorType(s, "float64") for n, s in shapes.items()}, arrays)


@pytest.mark.parametrize("name", CASES)
def test_the_statements(name, anywhere):
    found, shapes, statement = made(name)
    assert found is not None
    arrays = drawn(shapes)
    want = exact(statement, shapes, arrays)
    for v in (*found.before, found.product, *found.after):
        arrays[v.statement.output] = value_of(v.statement, v.types, arrays)
    np.testing.assert_array_equal(arrays["O"].reshape(want.shape), want)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [({}, 4), ({"G": 6}, 2), ({"G": 32, "C": 4, "D": 4}, 16), ({"G": 32, "C": 16, "D": 32}, 2)],
    ids=str,
)
def test_how_many(sizes, count, anywhere):
    """As many groups as make 64 channels of the wider side, and divide their number."""
    found, *_ = made("convolution", **sizes)
    assert found is not None
    assert found.product.types["K"].shape[1] == count


@pytest.mark.parametrize("sizes", [{"G": 3}, {"G": 4, "C": 64, "D": 64}, {"C": 2, "D": 2}], ids=str)
def test_left_alone(sizes, anywhere):
    """Groups that no power of two divides, that fill a tile, that are next to nothing."""
    assert made("convolution", **sizes)[0] is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["convolution", "gradient of the image", "kernel stored otherwise", "no windows"])
def test_what_is_infinite_stays_in_its_group(name):
    """By the kernel that is launched: zeros times another group's infinity are no part of the sum, whichever operand of
    the kernel it is in."""
    found, shapes, statement = made(name, **LARGE)
    assert found is not None and found.before
    (blocks,), (grown,) = found.before, found.made
    arrays = drawn(shapes)
    image = next(n for n in arrays if n != "K")
    arrays[image][0, 0, 2, 3, 1], arrays[image][0, 2, 3, 0, 0], arrays["K"].flat[5] = np.inf, np.nan, -np.inf
    with np.errstate(all="ignore"):
        want = exact(statement, shapes, arrays)
    arrays[grown] = value_of(blocks.statement, blocks.types, arrays)
    memory = {n: arrays[n].reshape(-1).copy() for n in (image, grown)} | {"O": np.full(want.size, 7.0)}
    run([x for x in found.steps if isinstance(x, Launch)], memory, dict.fromkeys(memory, "bfloat16"))
    np.testing.assert_array_equal(memory["O"].reshape(want.shape), want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_batches_that_stand_last_everywhere(dtype: str) -> None:
    """A batch beside no channel: a depthwise convolution's."""
    source = """function (I[N, H, W, C], K[R, S, C]) -> (O) {
        O[n, y, x, c : N, H - R + 1, W - S + 1, C] = +(I[n, y + j, x + i, c] * K[j, i, c]);
    }"""
    shapes = (33, 16, 5, 7), (2, 3, 7), (33, 15, 3, 7)
    specs = [tilec.spec(shape, dtype) for shape in shapes]
    gradient = tilec.compile(source, backend="triton").grad().lower(*specs, target="sm_90")
    assert {"DI", "DK"} <= {name for kernel in gradient.kernels for name in kernel.statements}
