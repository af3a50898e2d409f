"""Lists of the blocks that a kernel visits: how many there are, and that points outside of them do not count."""

import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.chains import Attention, both_ways, inputs_of, run, softmax, types_of

import tilec
from tilec.backends.common.blocks.ir import Load, Loop, every_operation
from tilec.backends.common.chains.codegen.build import build_kernel
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.codegen.visits import visits_of
from tilec.backends.common.chains.recognise import chained
from tilec.backends.triton.blocks.boxes import box_loads
from tilec.backends.triton.chains import launch
from tilec.backends.triton.chains.launch import chain_steps
from tilec.backends.triton.plan.plan import Launch, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.saving import partition

PLAIN = "0.25 * S[b, i, j]"
N = 64


def attention(guard, others="", shapes=()):
    return Attention(softmax(PLAIN, guard, others), None, tuple(shapes), integers=tuple(n for n, _ in shapes))


def lengths(a, arrays):
    """How many blocks of columns are walked without and with a mask, by blocks of rows of 16."""
    types = types_of(a, "float32", arrays)
    ran = run(tilec.compile(a.text).program, types, arrays, Tiling(16, 16))
    return [counts.tolist() for counts in ran.visited], ran.values["O"]


def test_documents_in_order():
    a = attention("D[i] == D[j]", ", D[N]", [("D", ("N",))])
    arrays = inputs_of(a, "float32", {"B": 1, "N": N, "M": N, "E": 8, "F": 8})
    arrays["D"] = np.repeat([0, 1, 2], [16, 24, 24]).astype(np.int32)
    ((found,), _) = lengths(a, arrays)
    assert found == [[1, 0], [1, 1], [0, 3], [1, 1]]


def test_documents_and_causal():
    a = attention("i >= j & D[i] == D[j]", ", D[N]", [("D", ("N",))])
    arrays = inputs_of(a, "float32", {"B": 1, "N": N, "M": N, "E": 8, "F": 8})
    arrays["D"] = np.repeat([0, 1], [32, 32]).astype(np.int32)
    ((found,), _) = lengths(a, arrays)
    assert found == [[0, 1], [1, 1], [0, 1], [1, 1]]


def test_prefix():
    a = attention("i >= j | j < 32")
    arrays = inputs_of(a, "float32", {"B": 1, "N": N, "M": N, "E": 8, "F": 8})
    ((found,), _) = lengths(a, arrays)
    assert found == [[2, 0], [2, 0], [2, 1], [3, 1]]


def test_lengths_by_batch():
    a = attention("j < Len[b]", ", Len[B]", [("Len", ("B",))])
    arrays = inputs_of(a, "float32", {"B": 3, "N": 16, "M": N, "E": 8, "F": 8})
    arrays["Len"] = np.array([0, 20, 64], np.int32)
    ((found,), value) = lengths(a, arrays)
    assert found == [[[0, 0]], [[1, 1]], [[4, 0]]]
    assert not value[0].any()


@pytest.mark.parametrize("guard", ["D[i] + 2000000000 > D[j]", "D[i] * D[i] >= D[j]"])
def test_arithmetic_that_may_overflow_decides_nothing(guard):
    a = attention(guard, ", D[N]", [("D", ("N",))])
    arrays = inputs_of(a, "float32", {"B": 1, "N": N, "M": N, "E": 8, "F": 8})
    arrays["D"] = np.full(N, 1_000_000_000, np.int32)
    ((found,), _) = lengths(a, arrays)
    assert found == [[0, 4]] * 4


def test_what_no_block_decides_has_no_lists():
    """Floating values, elements of whole matrices, affine bounds alone."""
    for guard, others, shapes in (
        ("i >= j", "", ()),
        ("A[i] < A[j]", ", A[N]", ()),
        ("D[i, j] == 1", ", D[N, M]", [("D", ("N", "M"))]),
    ):
        a = attention(guard, others, shapes)
        types = {n: TensorType((1, N, 8), "float32") for n in "QKV"}
        types |= {"A": TensorType((N,), "float32"), "D": TensorType((N, N), "int32")}
        program = tilec.compile(a.text).program
        lowered = lower(program, {n: types[n] for n in program.input_names()}, {})
        found = chained(lowered.stages["flat"], lowered.types)
        assert found.kernels and all(visits_of(k, found.types) is None for k in found.kernels.values())


def test_gradients_visit_lists_too():
    a = Attention(
        softmax(PLAIN, "i >= j & D[b, i] == D[b, j]", ", D[B, N]"),
        lambda s, i, j, d: (s / 4).masked_fill((i < j) | (d[:, :, None] != d[:, None]), -np.inf),
        (("D", ("B", "N")),),
        integers=("D",),
    )
    mine, theirs, forward, backward = both_ways(
        a, "float32", {"B": 2, "N": 50, "M": 50, "E": 8, "F": 8}, Tiling(16, 32)
    )
    assert len(forward) == 1 and len(backward) >= 2
    for x, y in zip(mine, theirs, strict=True):
        assert np.linalg.norm(x - y) <= 3e-6 * np.linalg.norm(y)


def plans(size=4096):
    text = softmax(PLAIN, "i >= j & D[i] == D[j]", ", D[N]")
    types = {n: TensorType((16, size, 64), "bfloat16") for n in "QKV"} | {"D": TensorType((size,), "int64")}
    lowered = lower(tilec.compile(text).program, types, {})
    found = chained(lowered.stages["flat"], lowered.types)
    (kernel,) = found.kernels.values()
    return kernel, found.types, {n: contiguous(t.shape) for n, t in found.types.items()}


def test_small_programs_have_no_lists():
    for size, launches in ((4096, 2), (512, 1)):
        kernel, types, strides = plans(size)
        steps = chain_steps(kernel, types, strides, Setting())
        assert sum(isinstance(s, Launch) for s in steps) == launches


def test_boxes_are_of_aligned_tensors():
    """Operands come by tensor maps where an address, a distance or an element type does not forbid it."""
    kernel, types, strides = plans()
    made = build_kernel("O_chain", kernel, types, Tiling(64, 64), visits_of(kernel, types))
    shapes = {t.name: types[t.name].shape for t in made.tensors if t.name in types}
    shapes |= {t.name: (1,) * t.rank for t in made.tensors if t.name not in types}
    strides |= {n: (1,) * len(s) for n, s in shapes.items() if n not in strides}
    loads, maps = box_loads(made, shapes, strides, ())
    assert {d.tensor for d in maps.values()} == {"Q", "K", "V"} and len(loads) == 5
    assert {d.block for d in maps.values()} == {(1, 64, 64)}
    for changed, misaligned in (({"K": (1, 64 * 16, 16)}, ()), ({"K": (4096 * 68, 68, 1)}, ()), ({}, ("K",))):
        loads, maps = box_loads(made, shapes, {**strides, **changed}, misaligned)
        assert {d.tensor for d in maps.values()} == {"Q", "V"}
    narrower = {**types, **{n: TensorType((16, 4096, 64), "float32") for n in "QKV"}}
    made = build_kernel("O_chain", kernel, narrower, Tiling(64, 64))
    assert any(isinstance(op, Load) for op in made.body) and box_loads(made, shapes, strides, ()) == ({}, {})


def test_a_launch_by_boxes_compiles(monkeypatch):
    monkeypatch.setattr(launch, "_MANY", 0)
    monkeypatch.setattr(launch, "_MUCH", 0)
    f = tilec.compile(softmax(PLAIN, "i >= j | j < 32"), backend="triton")
    lowered = f.lower(*[tilec.spec((16, 256, 64), "bfloat16")] * 3, target="sm_90")
    assert "tensor_map(" in lowered.source() and "O_chain_blocks" in lowered.source()
    assert "cp.async.bulk.tensor" in lowered.asm("ptx") and "wgmma" in lowered.asm("ptx")


def test_batches_of_one_have_lists_too():
    text = softmax(PLAIN, "D[b, i] == D[b, j]", ", D[B, N]")
    types = {n: TensorType((1, N, 8), "float32") for n in "QKV"} | {"D": TensorType((1, N), "int32")}
    lowered = lower(tilec.compile(text).program, types, {})
    found = chained(lowered.stages["flat"], lowered.types)
    assert all(visits_of(k, found.types) is not None for k in found.kernels.values())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("heads, guard", [(4, "i >= j"), (16, "i <= j"), (17, "i >= j"), (40, "i <= j")])
def test_longest_walks_begin_first(heads, guard):
    """Each block of each head has one program; of 16 heads together no later program has more to walk. Many walks that
    end, but do not begin, in one place go head by head."""
    f = tilec.compile(softmax(PLAIN, guard), backend="triton")
    (kernel,) = f.lower(*[tilec.spec((heads, 2048, 64), "bfloat16")] * 3, target="sm_90").kernels
    lines = kernel.source.split("tl.program_id(0)\n")[1].split("    i = tl.arange")[0]
    found = []
    for program in range(32 * heads):
        names = {"tl": SimpleNamespace(minimum=min), "program": program, "n_i": 2048, "n_b": heads}
        exec(textwrap.dedent(lines), names)
        found.append((names.get("rest", 0), names["start"]))
    assert {*found} == {(b, 64 * t) for b in range(heads) for t in range(32)}
    together = 1 if heads == 40 else 16
    for first in range(0, heads, together):
        starts = [start for b, start in found[32 * first : 32 * (first + together)] if first <= b < first + together]
        assert len(starts) == 32 * min(together, heads - first)
        assert starts == sorted(starts, reverse=guard == "i >= j")


def test_a_row_that_sees_nothing_touches_no_other() -> None:
    """Its sum of weights is 0: what its gradient divides by that stays there, whichever side a kernel walks."""
    text = """function (Q[B, N, E], K[B, M, E], V[B, M, F], Len[B]) -> (O) {
        S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
        T[b, i] = max(SEEN ? S[b, i, j]);
        O[b, i, f] = sum(SEEN ? exp(S[b, i, j] - T[b, i]) * V[b, j, f]) / sum(SEEN ? exp(S[b, i, j] - T[b, i])); }"""
    text = text.replace("SEEN", "j <= i + Len[b] - N")
    g = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"Q": g.standard_normal((2, 20, 16)), "K": g.standard_normal((2, 33, 16))}
    arrays |= {"V": g.standard_normal((2, 33, 8)), "Len": np.array([17, 31])}
    wide = [torch.tensor(x).requires_grad_(x.dtype.kind == "f") for x in arrays.values()]
    value = tilec.compile(text, backend="torch")(*wide)
    cotangent = g.standard_normal(value.shape)
    arrays = {n: x.astype(np.float32) if x.dtype.kind == "f" else x for n, x in arrays.items()}
    types = {n: TensorType(x.shape, x.dtype.name) for n, x in arrays.items()}
    parts = partition(tilec.compile(text).program, ("Q", "K", "V"), types, {}, True)
    values = run(parts.forward, types, arrays, Tiling(16, 16)).values
    given = {n: values[n] for n in (*parts.backward.values, *parts.backward.shapes)} | {"DO": np.float32(cotangent)}
    ran = run(parts.backward.program, dict(parts.backward.types), given, Tiling(16, 16))
    assert {"DK", "DV"} <= {o for k in ran.kernels for o in k} and value.isnan().any()
    wanted = torch.autograd.grad(value, wide[:3], torch.tensor(cotangent))
    for name, exact in zip(parts.backward.program.outputs, wanted, strict=True):
        np.testing.assert_allclose(ran.values[name], exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "guard, inputs, counted",
    [
        ("i >= j | j < 32", "", False),
        ("i >= j & Doc[i] == Doc[j]", ", Doc[N]", False),
        ("Doc[j] <= Doc[i] & j <= i", ", Doc[N]", False),
        ("i > j | j < 0", "", True),
        ("i >= j & Doc[i] != Doc[j]", ", Doc[N]", True),
        ("i >= j & Key[i] == Key[j]", ", Key[N]", True),
        ("i >= j & Doc[i] == Other[j]", ", Doc[N], Other[M]", True),
        ("j < Doc[i]", ", Doc[N]", True),
    ],
)
def test_rows_that_plainly_have_a_point_are_not_counted(guard, inputs, counted):
    """Their own, where they are whole numbers beside themselves, or the first one."""
    shapes = {n: TensorType((2, 4096, 64), "bfloat16") for n in "QKV"}
    shapes |= {n: TensorType((4096,), "int32") for n in ("Doc", "Other") if f" {n}[" in inputs}
    shapes |= {"Key": TensorType((4096,), "float32")} if "Key" in inputs else {}
    lowered = lower(tilec.compile(softmax("S[b, i, j]", guard, inputs)).program, shapes, {})
    found = chained(lowered.stages["flat"], lowered.types)
    (kernel,) = found.kernels.values()
    made = build_kernel("k", kernel, found.types, Tiling(64, 64), visits_of(kernel, found.types))
    carried = [v.type for op in every_operation(made.body) if isinstance(op, Loop) for v in op.carried]
    assert any(t.dtype == "int32" and t.axes == ("i",) for t in carried) == counted
