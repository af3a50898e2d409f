"""Which programs go by slabs, of which axis, and how much memory their plans take: without a GPU, from specs alone."""

import pytest
from support import chains
from support.layers import LAYERS
from support.tiers import slow_but
from support.tiled import asks_for_rows, tiling

import tilec
from tilec.backends.base import Options
from tilec.backends.triton.plan.plan import Allocate, Plan, TiledLoop
from tilec.backends.triton.schedule import axis_tiling as slabs
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.language.show import show
from tilec.pipeline import lower
from tilec.saving import partition
from tilec.transforms.util.tiled import Combine, Whole

MiB = 2**20
ATTENTION = """function (Q[B, N, D], K[B, M, D], V[B, M, D]) -> (O) {
    S[b, i, j : B, N, M] = +(Q[b, i, d] * K[b, j, d]);
    T[b, i] = >(S[b, i, j]);
    E[b, i, j] = exp(S[b, i, j] - T[b, i]);
    Z[b, i] = +(E[b, i, j]);
    P[b, i, j] = E[b, i, j] / Z[b, i];
    O[b, i, d] = +(P[b, i, j] * V[b, j, d]); }"""
CAUSAL = """function (Q[B, N, E], K[B, M, E], V[B, M, F], Scale) -> (O) {
    S[b, i, j : B, N, M] = Scale * sum(Q[b, i, e] * K[b, j, e]);
    L[b, i] = logsumexp(i - j >= 0 ? S[b, i, j]);
    O[b, i, f] = sum(i - j >= 0 ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]); }"""
PROGRAMS = {"softmax": (ATTENTION, ()), "causal": (CAUSAL, (0.125,))}


@pytest.fixture(autouse=True)
def no_chains(monkeypatch):
    """Scores that a chain would never store are stored here."""
    chains.turn_off(monkeypatch)


def given(n: int, rest=(), heads: int = 8, dtype: str = "bfloat16"):
    return [*[tilec.spec((heads, n, 64), dtype)] * 3, *rest]


def lowered(name: str, n: int, gradient: bool, **how):
    source, rest = PROGRAMS[name]
    f, specs = tilec.compile(source, backend="triton"), given(n, rest, **how)
    if gradient:
        f, specs = f.grad(), [*specs, given(n, **how)[0]]
    return f.lower(*specs, target="sm_90")


def sums_added_to(loop: TiledLoop) -> list[str]:
    """The outputs of a slab that are made where what the slabs before gave is read."""
    call = loop.calls[0]
    read = [x.tensor for x in call.sources if isinstance(x, Whole)]
    return [
        n
        for n, x in zip(call.program.inputs, call.sources, strict=True)
        if read.count(getattr(x, "tensor", "")) == 2 and not n.endswith("_before")
    ]


def loops(plan: Plan) -> list[TiledLoop]:
    """The loops of a plan, outer ones first."""
    found = []
    for step in plan.steps:
        found += [step] if isinstance(step, TiledLoop) else []
        for part in step.parts[:1] if isinstance(step, TiledLoop) else (step,) if hasattr(step, "plan") else ():
            found += loops(part.plan)
    return found


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.covering
def test_memory_grows_with_the_inputs(name: str, gradient: bool) -> None:
    """Four times the rows: 16 times the scores, but the same slab and at most four times what is beside it."""
    held = {n: lowered(name, n, gradient).temporary_bytes for n in (16384, 65536)}
    beside = {n: 8 * n * 64 * 2 * (8 if gradient else 4) for n in held}
    for n, bytes_held in held.items():
        assert 0 < bytes_held <= max(slabs.LEAST_BUDGET, beside[n]) + 2 * beside[n]
    assert held[65536] <= 4 * max(held[16384], slabs.LEAST_BUDGET) < 8 * 65536 * 65536


@pytest.mark.parametrize("budget", [16, 64, 300])
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.covering
def test_the_budget_is_kept(name: str, gradient: bool, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sums over slabs are added up in, float32 of a head's gradients, comes on top."""
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", f"{budget}MiB")
    assert lowered(name, 8192, gradient).temporary_bytes <= budget * MiB + 3 * 8192 * 64 * 4


@pytest.mark.parametrize("name", PROGRAMS)
def test_heads_first_then_rows(name: str) -> None:
    (alone,) = loops(lowered(name, 8192, False)._executable.plan)
    assert tiling(alone) == (8, {"softmax": 2, "causal": 1}[name])
    outer, inner = loops(lowered(name, 32768, True)._executable.plan)
    size, rows = tiling(inner)
    assert tiling(outer) == (8, 1) and size == 32768 and rows % 128 == 0
    assert asks_for_rows(inner) == (name == "causal")
    (part, *_), (call, *_) = inner.parts, inner.calls
    assert "DQ" in part.inputs and "DQ" not in part.plan.outputs
    sums = [part.plan.outputs[k] for k, x in call.sinks if isinstance(x, Combine)] + sums_added_to(inner)
    assert {"DK", "DV"} <= {*sums} and all("float32" == part.types[name].dtype for name in sums)


def test_sums_over_slabs_are_not_the_library_s() -> None:
    """torch's products of bfloat16 are rounded, which parts of a sum must not be."""
    f, specs = tilec.compile(ATTENTION), given(16384)
    source = f.grad().lower(*specs, specs[0], target="sm_90").source()
    assert "rt.multiply" in source and "DK_total = torch.full((1, 16384, 64), 0.0, dtype=torch.float32" in source


SHARES = """function (X[N, K], W[K, M], C[M, L]) -> (Y, Z) {
    B[i, j] = +(X[i, k] * W[k, j]); A = tanh(B); Y[i, l] = +(A[i, j] * C[j, l]); """


@pytest.mark.parametrize("more, dtype, adds", [
    ("Z[k, j] = +(X[i, k] * A[i, j]); }", "bfloat16", True),
    ("Z[k, j] = +(X[i, k] * A[i, j]); }", "float32", False),  # kernels of parts look at what they have stored
    ("Z[j] = +(A[i, j]); }", "bfloat16", False),  # one pass with what else reads A
    ("Z[k, j] = >(X[i, k] * A[i, j]); }", "bfloat16", False),
])  # fmt: skip
def test_products_add_to_what_the_slabs_before_gave(more: str, dtype: str, adds: bool) -> None:
    specs = tilec.spec((65536, 512), dtype), tilec.spec((512, 8192), dtype), tilec.spec((8192, 512), dtype)
    low = tilec.compile(SHARES + more, backend="triton").lower(*specs, target="sm_90")
    (loop,) = loops(low._executable.plan)
    assert sums_added_to(loop) == (["Z"] if adds else [])


def test_slabs_are_about_equal() -> None:
    for size in (1, 2, 7, 100, 1000, 1023, 4096, 32768):
        for most in (1, 2, 5, 100, 300, 5000):
            rows = slabs._rounded(size, most)
            assert 1 <= rows <= max(most, 1) and (size == 1 or rows < size)
            assert -(-size // rows) <= 2 * -(-size // min(most, size)) + 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = lowered(name, 1024, True)
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "1000GiB")
    assert chosen.source() == lowered(name, 1024, True).source() and not loops(chosen._executable.plan)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_whose_intermediates_are_no_larger_than_what_the_caller_holds_are_left_alone(name: str) -> None:
    layer = LAYERS[name]
    f = tilec.compile(layer.source, backend="triton")
    specs = [tilec.spec(tuple(s)) for s in layer.shapes(2**15, 2**13)]
    low = f.lower(*specs, target="sm_90")
    assert not loops(low._executable.plan)
    assert not loops(
        f.grad().lower(*specs, *[tilec.spec(o.shape) for o in low.outputs], target="sm_90")._executable.plan
    )


def test_what_shifts_along_every_axis_is_left_whole() -> None:
    """A smoothed square of an outer product: each element reads its neighbours on both axes."""
    source = "function (X[N], Y[N]) -> (O) { A[i, j : N, N] = sin(X[i] * Y[j]); B[i, j : N, N] = +(A[i + k - 1, j + l - 1]), k < 3, l < 3; O[i] = +(B[i, j] * B[j, i]); }"  # noqa: E501
    low = tilec.compile(source, backend="triton").lower(tilec.spec((20000,)), tilec.spec((20000,)), target="sm_90")
    assert not loops(low._executable.plan) and low.temporary_bytes >= 4 * 20000**2


def test_costs_count_what_slabs_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lowered("softmax", 2048, False, heads=1)
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "4MiB")
    cut = lowered("softmax", 2048, False, heads=1)
    (loop,) = loops(cut._executable.plan)
    again = (sum(call.count for call in loop.calls) - 1) * 2 * 2048 * 64 * 2  # K and V
    assert cut.cost().bytes_moved == whole.cost().bytes_moved + again
    assert cut.cost().flops == whole.cost().flops and cut.temporary_bytes <= 4 * MiB < whole.temporary_bytes


@pytest.mark.parametrize("target", slow_but(("sm_80", "sm_90"), ("sm_90",)))
def test_kernels_of_slabs_compile(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", "300KiB")
    source, rest = PROGRAMS["causal"]
    low = tilec.compile(source, backend="triton").lower(*given(500, rest, heads=2), target=target)
    assert len(loops(low._executable.plan)) == 2
    assert low.asm("ptx").count(".visible .entry") == len(low.kernels)


def test_what_is_kept_for_the_gradient_is_as_before() -> None:
    """A number a row and the output beside the inputs, whatever goes by slabs."""
    source, rest = PROGRAMS["causal"]
    f = tilec.compile(source, backend="triton")
    assert [s.name for s in f.saved(*given(8192, rest))] == ["Q", "K", "V", "Scale", "L", "O"]


def test_the_budget_of_a_program_is_at_least_what_the_caller_holds() -> None:
    lowering = lower(
        parse("function (X[N, M]) -> (Y) { Y = X * X; }"), {"X": TensorType((2**14, 2**14), "float32")}, {}
    )
    assert slabs.budget_of(lowering, None) == 2 * 2**30 and slabs.budget_of(lowering, 7) == 7
    assert Options().device_budget is None


LOGITS = "S[i, v : N, V] = sum(X[i, h] * W[v, h]);"
LOSS = f"function (X[N, H], W[V, H], T[N]) -> (Y) {{ {LOGITS} L[i] = logsumexp(S[i, v]); Y[i] = L[i] - S[i, T[i]]; }}"


def test_a_linear_layer_into_cross_entropy_takes_little_beside() -> None:
    """Forward by rows, backward by columns: each slab has all that the weight's gradient adds up."""
    types = {"X": ((8192, 4096), "bfloat16"), "W": ((131072, 4096), "bfloat16"), "T": ((8192,), "int64")}
    known = {n: TensorType(*t) for n, t in types.items()}
    program = parse(LOSS)
    backward = partition(program, ("X", "W"), known, {}, True).backward
    assert [i.name for i in backward.program.inputs] == ["X", "W", "T", "L", "DY"]
    for made, given in ((program, known), (backward.program, backward.types)):
        specs = [tilec.spec(given[i.name].shape, given[i.name].dtype) for i in made.inputs]
        low = tilec.compile(show(made), backend="triton").lower(*specs, target="sm_90")
        (loop,) = loops(low._executable.plan)
        assert sums_added_to(loop) == (["DX"] if made is backward.program else [])
        assert low.temporary_bytes <= 3 * slabs.HEAVY_BUDGET


def test_what_stands_within_its_reader_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scatter of -DY to the targets' places, which the gradient by the logits selects."""
    monkeypatch.undo()
    specs = tilec.spec((16384, 2048), "bfloat16"), tilec.spec((32000, 2048), "bfloat16"), tilec.spec((16384,), "int64")
    f = tilec.compile(LOSS).grad(["X", "W"])
    low = f.lower(*specs, tilec.spec((16384,), "bfloat16"), target="sm_90")
    parts = [p.plan for p in low._executable.plan.parts()]
    made = {s.tensor for plan in parts for s in plan.steps if isinstance(s, Allocate)}
    assert "DS" not in made and "DS_2" in made


def test_short_work_keeps_larger_slabs() -> None:
    assert lowered("softmax", 16384, False).temporary_bytes > 2 * slabs.HEAVY_BUDGET


PAIRS = "(X[N, D], Y[M, D]) -> (O) { S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));"
TWICE = {
    "rows and columns in turn": "A[i : N] = logsumexp(-S[i, j]); B[j : M] = logsumexp(-S[i, j] - A[i]); C[i : N] = logsumexp(-S[i, j] - B[j]); O = sum[i](C[i]); }",  # noqa: E501
    "both divide": "K = exp(-S); U[i : N] = +(K[i, j]); V[j : M] = +(K[i, j] / U[i]); O[i : N] = +(K[i, j] / U[i] / V[j]); }",  # noqa: E501
}


@pytest.mark.parametrize("gradient", (False, True))
@pytest.mark.parametrize("name", TWICE)
@pytest.mark.one_in(3)
def test_pairs_are_computed_again_where_slabs_go_through_them_twice(name: str, gradient: bool) -> None:
    """What needs an aggregate of all rows reads pairs a second time: none of them are kept between."""
    f, specs = tilec.compile(f"function {PAIRS} {TWICE[name]}", backend="triton"), [tilec.spec((16384, 24))] * 2
    if gradient:
        f, specs = f.grad(), [*specs, tilec.spec(() if "sum[i]" in TWICE[name] else (16384,))]
    low = f.lower(*specs, target="sm_90")
    assert low.temporary_bytes <= 560 * MiB, low.temporary_bytes / MiB


EXTREMA = "P[i : N] = max(S[i, j]); Q[j : M] = max(S[i, j]);"
COMPARED = {
    "equal": f"{EXTREMA} O = sum[i, j](S[i, j] == P[i] ? 1 : S[i, j] == Q[j] ? 2 : 0);",
    "greater": f"{EXTREMA} O = sum[i, j](S[i, j] >= P[i] ? 1 : S[i, j] >= Q[j] ? 2 : 0);",
    "differences": f"{EXTREMA} E[i, j : N, M] = 2 * S[i, j] - Q[j] - P[i]; O = sum[i, j](E[i, j] < 0 ? 1 : 0);",
    "signs": f"{EXTREMA} O = sum[i, j](sign(S[i, j] - P[i]) + sign(S[i, j] - Q[j]));",
    "parts": f"{EXTREMA} O = sum[i, j](floor(S[i, j] / Q[j]) + floor(S[i, j] / P[i]));",
    "a gradient": "P[i : N] = min(S[i, j]); Q[j : M] = min(S[i, j]); O = sum[i](P[i]) + sum[j](Q[j]);",
}


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_with_an_extremum_is_kept(name: str) -> None:
    """Computed again it might be rounded otherwise, and equal none."""
    f, specs = tilec.compile(f"function {PAIRS} {COMPARED[name]} }}", backend="triton"), [tilec.spec((16384, 24))] * 2
    if name == "a gradient":
        f, specs = f.grad(), [*specs, tilec.spec(())]
    assert f.lower(*specs, target="sm_90").temporary_bytes > 16384**2 * 4
