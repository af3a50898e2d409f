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


@pytest.mark.parametrize("width", [40, 48, 64])
def test_narrow_heads_are_whole_in_kernels_of_several_products(width):
    found = backward(2048, width)
    for kernel in found.kernels.values():
        axes = build_kernel("k", kernel, found.types, Tiling(64, 64, 4)).axes
        assert {n for a, n in axes.items() if a.startswith("d")} == {64}


@pytest.mark.parametrize(
    "score, inputs, limited", [("S[b, i, j]", "", True), ("S[b, i, j] + P[i, j]", ", P[N, M]", False)]
)
def test_programs_leave_registers_for_others(score, inputs, limited):
    f = tilec.compile(softmax(score, "", inputs), backend="triton")
    given = [tilec.spec((64, 4096, 64), "bfloat16")] * 3
    given += [tilec.spec((4096, 4096), "bfloat16")] if inputs else []
    made = f.grad(("K", "V")).lower(*given, given[0], target="sm_90")
    assert ("maxnreg=168" in made.source()) == limited


@pytest.mark.parametrize("width, brought", [(24, False), (32, False), (40, True), (64, True)])
def test_narrow_rows_are_read_by_pointers(width, brought):
    f = tilec.compile(softmax("S[b, i, j]"), backend="triton")
    given = [tilec.spec((64, 4096, width), "bfloat16")] * 3
    text = f.grad(("K", "V")).lower(*given, given[0], target="sm_90").source()
    assert ("tensor_map(Q," in text) == brought


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


def shared_keys(guard: str) -> str:
    return f"""function (Q[B, R, N, E], K[B, M, E], V[B, M, F]) -> (O) {{
        S[b, r, i, j : B, R, N, M] = 0.25 * sum(Q[b, r, i, e] * K[b, j, e]);
        L[b, r, i] = logsumexp({guard} ? S[b, r, i, j]);
        O[b, r, i, f] = sum({guard} ? exp(S[b, r, i, j] - L[b, r, i]) * V[b, j, f]);
    }}"""


@pytest.mark.parametrize("guard, nested", [("i >= j", False), ("i >= j - 5 * r", True)])
def test_heads_that_share_keys_and_blocks_are_walked_in_one_loop(guard, nested):
    """Where all heads have the same blocks: in a loop within a loop sums have no registers."""
    shapes = {"Q": (2, 4, 1000, 64), "K": (2, 1000, 64), "V": (2, 1000, 64)}
    types = {n: TensorType(s, "bfloat16") for n, s in shapes.items()}
    parts = partition(tilec.compile(shared_keys(guard)).program, ("K", "V"), types, {}, True)
    lowered = lower(parts.backward.program, dict(parts.backward.types), {})
    found = chained(lowered.stages["flat"], lowered.types)
    (kernel,) = (k for k in found.kernels.values() if "DK" in k.outputs)
    assert kernel.walked and choose_chain_tiling(kernel, found.types, Setting()).step == 64
    made = build_kernel("k", kernel, found.types, Tiling())
    loops = [op for op in every_operation(made.body) if isinstance(op, Loop)]
    assert any(isinstance(op, Loop) for loop in loops for op in loop.body) == nested


@pytest.mark.parametrize(
    "text, step, exponents", [("causal", 64, True), ("causal", 128, False), ("weighed", 64, False)]
)
def test_masks_are_of_exponents(text, step, exponents):
    """One for all sums of a block, where few points are a thread's, and nothing of a point alone stands beside."""
    if text == "weighed":
        source = softmax("0.25 * S[b, i, j]", "i >= j", ", W[N, M]").replace(
            "exp(X[b, i, j] - L[b, i])", "W[i, j] * $&"
        )
        source = source.replace("$&", "exp(X[b, i, j] - L[b, i])")
    else:
        source = VARIANTS[text].text
    shapes = {**heads(1000, 64), **({"W": (1000, 1000)} if text == "weighed" else {})}
    types = {n: TensorType(s, "bfloat16") for n, s in shapes.items()}
    parts = partition(tilec.compile(source).program, ("K", "V"), types, {}, True)
    lowered = lower(parts.backward.program, dict(parts.backward.types), {})
    found = chained(lowered.stages["flat"], lowered.types)
    (kernel,) = (k for k in found.kernels.values() if "DK" in k.outputs)
    made = build_kernel("k", kernel, found.types, Tiling(64, step))
    loops = [op for op in every_operation(made.body) if isinstance(op, Loop)]
    masked = [[op for op in x.body if isinstance(op, Apply) and op.function == "select"] for x in loops]
    points = [[op for op in ops if len(op.out.type.axes) == 2] for ops in masked]
    taken = [
        op.out in {x for e in loop.body if isinstance(e, Apply) and e.function == "exp2" for x in e.args}
        for loop, ops in zip(loops, points, strict=True)
        for op in ops
    ]
    assert taken and all(taken) == exponents
    assert not exponents or max(map(len, points)) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "width, length, copies", [(54, 2048, 4), (33, 2048, 4), (56, 2048, 0), (54, 600, 0), (44, 1500, 0)]
)
def test_rows_that_begin_anywhere_are_copied_once(width, length, copies):
    """To rows at whole vectors, which maps bring, where each element is read often: all gradients share copies."""
    f = tilec.compile(VARIANTS["causal"].text, backend="triton")
    given = [tilec.spec((64, length, width), "bfloat16")] * 3
    text = f.grad(("Q", "K", "V")).lower(*given, given[0], target="sm_90").source()
    assert text.count("_rows = torch.empty") == copies
    assert copies == 0 or all(
        f"tensor_map({n}" in text for n in ("DL_over_j_K_rows", "DL_over_j_V_rows", "DV_Q_rows", "DV_DO_rows")
    )
    narrow = [tilec.spec((64, length, width), "float32")] * 3
    assert "_rows = torch.empty" not in f.lower(*narrow, target="sm_90").source()


@pytest.mark.parametrize(
    "guard, width, output, tiling",
    [
        ("i >= j", 56, "DV", (64, 64, 4, 3, True)),
        ("i >= j", 64, "DV", (64, 128, 4, 2, False)),
        ("i >= j", 72, "DV", (64, 64, 4, 2, True)),
        ("", 72, "DV", (64, 64, 4, 2, True)),
        ("", 72, "DQ", (128, 64, 4, 2, True)),
        ("", 80, "DQ", (64, 64, 4, 2, False)),
        ("i >= j", 40, "DQ", (64, 64, 4, 3, False)),
        ("i >= j", 96, "DQ", (64, 64, 4, 2, True)),
        ("i >= j", 112, "DQ", (128, 64, 8, 3, False)),
    ],
)
@pytest.mark.one_in(3)
def test_tilings_of_gradients(guard, width, output, tiling):
    """Rows that begin between sectors come by maps where loads would have masks."""
    types = {n: TensorType((64, 2392, width), "bfloat16") for n in "QKV"}
    parts = partition(tilec.compile(softmax("S[b, i, j]", guard)).program, ("Q", "K", "V"), types, {}, True)
    lowered = lower(parts.backward.program, dict(parts.backward.types), {})
    found = chained(lowered.stages["flat"], lowered.types)
    (kernel,) = (k for k in found.kernels.values() if output in k.outputs)
    t = choose_chain_tiling(kernel, found.types, Setting())
    assert (t.block, t.step, t.warps, t.stages, t.boxed) == tiling


@pytest.mark.parametrize("length, copies", [(3547, 2), (3548, 0), (3584, 0), (600, 0)])
def test_statistics_between_pairs_are_copied(length, copies):
    """Products read neighbours of what has a value for each row that they walk; once for all that needs them."""
    f = tilec.compile(VARIANTS["full"].text, backend="triton")
    given = [tilec.spec((54, length, 64), "bfloat16")] * 3
    text = f.grad(("Q", "K", "V")).lower(*given, given[0], target="sm_90").source()
    assert text.count("_rows = torch.empty((54, 3548), dtype=torch.float32") == copies
    assert text.count("_rows = torch.empty") == copies
