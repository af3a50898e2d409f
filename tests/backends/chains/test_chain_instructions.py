"""What kernels of chains spare a point: conversions, the library's functions, addresses, loads between products."""

import pytest
from support.chains import VARIANTS, softmax

import tilec
from tilec.backends.common.blocks.ir import Apply, Cast, DotOp, Load, Loop, every_operation
from tilec.backends.common.chains.codegen.build import build_kernel
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.recognise import chained
from tilec.backends.triton.chains.tiling import choose_chain_tiling
from tilec.backends.triton.plan.plan import Setting
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.saving import partition

LINEAR_TANH = """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
    S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
    O[b, i, f] = sum(tanh(S[b, i, j]) * V[b, j, f]);
}"""


def programs(text: str, shapes: dict[str, tuple[int, ...]], dtype: str, tiling: Tiling) -> list:
    lowered = lower(tilec.compile(text).program, {n: TensorType(s, dtype) for n, s in shapes.items()}, {})
    found = chained(lowered.stages["flat"], lowered.types)
    return [build_kernel("k", k, found.types, tiling) for k in found.kernels.values()]


def heads(n: int, e: int) -> dict[str, tuple[int, ...]]:
    return {t: (2, n, e) for t in "QKV"}


@pytest.mark.parametrize(
    "text, dtype, library",
    [
        (VARIANTS["capped"].text, "bfloat16", False),
        (VARIANTS["capped"].text, "float16", False),
        (VARIANTS["capped"].text, "float32", True),
        (LINEAR_TANH, "bfloat16", True),
    ],
)
def test_a_cap_of_scores_is_an_exponential(text, dtype, library):
    """Where an exponent takes it, its absolute error counts; elsewhere small values are as exact as large ones."""
    (made,) = programs(text, heads(2048, 64), dtype, Tiling(16, 16))
    functions = {op.function for op in every_operation(made.body) if isinstance(op, Apply)}
    assert ("tanh" in functions) == library and ("reciprocal" in functions) != library


@pytest.mark.parametrize("form, converted", [("j - i", False), ("i + j - 5", False), ("16384 * j - 8192 * i", True)])
def test_differences_of_places_are_converted_once_for_each_place(form, converted):
    """As long as float32 holds them exactly."""
    text = softmax(f"S[b, i, j] + Slope[b] * ({form})", "i >= j", ", Slope[B]")
    (made,) = programs(text, {**heads(2048, 64), "Slope": (2,)}, "bfloat16", Tiling(16, 16))
    casts = [op for op in every_operation(made.body) if isinstance(op, Cast) and op.value.type.dtype == "int32"]
    assert casts and any(len(op.out.type.axes) == 2 for op in casts) == converted


def backward(n: int, e: int) -> tuple:
    types = {t: TensorType((16, n, e), "bfloat16") for t in "QKV"}
    parts = partition(tilec.compile(VARIANTS["causal"].text).program, ("Q", "K", "V"), types, {}, True)
    lowered = lower(parts.backward.program, dict(parts.backward.types), {})
    return chained(lowered.stages["flat"], lowered.types)


@pytest.mark.parametrize("step, ahead", [(64, True), (128, False)])
def test_what_is_added_to_a_product_is_loaded_before_products(step, ahead):
    """Gradients of statistics, where a block has fewer than there are threads; statistics themselves are not: each
    takes registers all along the first product."""
    found = backward(2048, 128)
    (kernel,) = (k for k in found.kernels.values() if "DK" in k.outputs)
    made = build_kernel("k", kernel, found.types, Tiling(64, step, 4))
    loops = [op for op in every_operation(made.body) if isinstance(op, Loop)]
    assert loops
    for loop in loops:
        first = next(k for k, op in enumerate(loop.body) if isinstance(op, DotOp))
        rows = [op.tensor for op in loop.body[:first] if isinstance(op, Load) and len(op.out.type.axes) == 1]
        assert len(rows) == int(ahead) and not any(t.startswith("L") for t in rows)


def test_rows_are_read_at_distances_from_where_a_block_begins():
    f = tilec.compile(VARIANTS["causal"].text, backend="triton")
    given = [tilec.spec((16, 1537, 96), "bfloat16")] * 3
    text = f.grad(("Q", "K", "V")).lower(*given, given[0], target="sm_90").source()
    assert "first_i * L_s1 + i * L_s1" in text


@pytest.mark.parametrize("width, brought", [(40, False), (32, False), (64, True)])
def test_narrow_rows_are_read_by_pointers(width, brought):
    f = tilec.compile(softmax("S[b, i, j]"), backend="triton")
    given = [tilec.spec((64, 4096, width), "bfloat16")] * 3
    text = f.grad(("K", "V")).lower(*given, given[0], target="sm_90").source()
    assert ("tensor_map(" in text) == brought


@pytest.mark.parametrize(
    "guard, heads, roles", [("", 8, True), ("i >= j", 8, False), ("", 4, False), ("i >= j", 16, True)]
)
def test_warps_have_roles_where_programs_of_half_the_rows_would_be_two_a_multiprocessor(guard, heads, roles):
    f = tilec.compile(softmax("S[b, i, j]", guard), backend="triton")
    text = f.lower(*[tilec.spec((heads, 2048, 128), "bfloat16")] * 3, target="sm_90").source()
    assert ("warp_specialize" in text) == roles


@pytest.mark.parametrize(
    "heads, rows, columns, width, tiling",
    [
        (16, 4096, 4096, 40, (128, 64, 8, 3)),
        (128, 729, 729, 72, (128, 64, 4, 3)),
        (64, 2048, 2048, 64, (64, 64, 4, 3)),
        (64, 2048, 2048, 48, (64, 64, 4, 3)),
        (40, 4096, 77, 64, (64, 128, 4, 3)),
        (8, 512, 4096, 64, (64, 128, 4, 2)),
        (4, 1024, 4096, 40, (64, 128, 4, 2)),
    ],
)
def test_tilings_of_narrow_heads(heads, rows, columns, width, tiling):
    """Long walks have shorter steps, and more rows where these begin between sectors; not where programs are few, or
    where a block holds all columns."""
    f = tilec.compile(softmax("S[b, i, j]"))
    shapes = {"Q": (heads, rows, width), "K": (heads, columns, width), "V": (heads, columns, width)}
    lowered = lower(f.program, {n: TensorType(s, "bfloat16") for n, s in shapes.items()}, {})
    found = chained(lowered.stages["flat"], lowered.types)
    (kernel,) = found.kernels.values()
    t = choose_chain_tiling(kernel, found.types, Setting())
    assert (t.block, t.step, t.warps, t.stages) == tiling
