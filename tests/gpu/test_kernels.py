"""On a CUDA device: every kept block of the pointer kernels at awkward shapes, positions beyond 32 bits, tuning,
unaligned and expanded inputs, infinities at borders, errors."""

from __future__ import annotations

import math

import pytest
import torch

import tilec
from tilec.backends.triton.matmul.blocks import TILES, Config
from tilec.backends.triton.plan.plan import Allocate, Plan, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.runtime.executable import PlannedCall
from tilec.backends.triton.schedule.candidates import steps_of
from tilec.backends.triton.schedule.problem import product_task
from tilec.backends.triton.tuning.store import default_store
from tilec.ir.types import ITEM_BYTES, TensorType
from tilec.language import parse
from tilec.pipeline import lower

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MATMUL = "function (A[M, K], B[K, N]) -> (O) { O[i, j : M, N] = +(A[i, k] * B[k, j]); }"
CONVOLUTION = """function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, y, x, o : N, H, W, CO] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);
}"""
ALLOWED = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-14}


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_every_kept_block_at_awkward_shapes(dtype: str, split: int) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    program = parse(MATMUL)
    try:
        for bm, bn, bk, warps, stages in TILES[ITEM_BYTES[dtype]]:
            for m, k, n in ((129, 127, 17), (251, 331, 263), (16, 17, 130)):
                types = {"A": TensorType((m, k), dtype), "B": TensorType((k, n), dtype)}
                lowering = lower(program, types, {})
                strides = {name: contiguous(t.shape) for name, t in lowering.types.items()}
                (s,), (d,) = (lowering.stages[stage].statements for stage in ("flat", "defracted"))
                task = product_task(d, s, lowering.types, strides, Setting())
                assert task is not None
                block = Config(bm, bn, bk, warps, stages, parts=split)
                choice = {
                    "family": "dot",
                    **{f: getattr(block, f) for f in ("bm", "bn", "bk", "warps", "stages", "parts")},
                }
                steps = steps_of(task, choice)
                assert steps is not None
                plan = Plan((Allocate("O", (m, n), dtype), *steps), ("O",))
                a, b = normal(m, k, dtype=getattr(torch, dtype)), normal(k, n, dtype=getattr(torch, dtype))
                (got,) = PlannedCall(plan, ("A", "B"), a.device)((a, b))
                assert error(got, a.double() @ b.double()) < ALLOWED[dtype], (choice, m, k, n)
    finally:
        torch.use_deterministic_algorithms(False)


def test_positions_beyond_32_bits() -> None:
    rows, columns = 2**16 + 3, 2**15 + 5
    x = torch.ones(rows, columns, dtype=torch.int8, device="cuda")
    x[-1, -1], x[-1, 0], x[0, -1] = 5, 7, 9
    assert x.numel() > 2**31
    total = tilec.compile("function (X[M, N]) -> (O) { O[i : M] = +(X[i, j]); }", backend="triton")(x)
    assert total[-1] == columns - 2 + 12 and total[0] == columns - 1 + 9 and (total[1:-1] == columns).all()
    doubled = tilec.compile("function (X) -> (O) { O = X + X; }", backend="triton")(x)
    assert doubled[-1, -1] == 10 and doubled[-1, 0] == 14 and doubled[0, -1] == 18 and doubled[1, 1] == 2
    columnwise = tilec.compile("function (X[M, N]) -> (O) { O[j : N] = >(X[i, j]); }", backend="triton")(x)
    assert columnwise[-1] == 9 and columnwise[0] == 7 and (columnwise[1:-1] == 1).all()


def test_infinities_at_borders_stay_where_they_are() -> None:
    for backend in (None, "triton"):
        for dtype in (torch.float32, torch.bfloat16):
            i, k = normal(4, 9, 11, 64, dtype=dtype), normal(3, 3, 64, 64, dtype=dtype)
            k[0, 0, 0, 0] = float("inf")
            i[1, 2, 3, 4] = float("nan")
            got = tilec.compile(CONVOLUTION, backend=backend)(i, k)
            wanted = tilec.compile(CONVOLUTION, backend="torch")(i.double(), k.double())
            assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())
            finite = wanted.isfinite()
            assert got[0, 0].isfinite().all() and got.isinf().any() and got.isnan().any()
            assert error(got[finite], wanted[finite]) < (1e-5 if dtype is torch.float32 else 1e-2)


def test_strides_alignment_and_expanded_gradients() -> None:
    a, b = normal(257, 130), normal(129, 67)
    f = tilec.compile(MATMUL, backend="triton")
    for x, y in ((a[:, 1:], b), (a[::2, :129], b), (a.T[:129].T, b.T.contiguous().T), (a[1:, 1:], b[:, 3:])):
        assert error(f(x, y), x.double() @ y.double()) < 3e-6
    x = a[:, :129].clone().requires_grad_()
    f(x, b).sum().backward()
    assert x.grad is not None and error(x.grad, b.double().sum(1).expand(257, 129)) < 3e-6


def test_precision_is_asked_at_each_call() -> None:
    a, b = normal(512, 512), normal(512, 512)
    f = tilec.compile(MATMUL, backend="triton")
    wanted = a.double() @ b.double()
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert error(f(a, b), wanted) < 2e-6
        torch.set_float32_matmul_precision("high")
        assert 2e-5 < error(f(a, b), wanted) < 2e-3
        torch.set_float32_matmul_precision("highest")
        assert error(f(a, b), wanted) < 2e-6
    finally:
        torch.set_float32_matmul_precision(before)


def test_tuning_keeps_what_it_finds(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path))
    a, b = (normal(512, 512, dtype=torch.bfloat16) for _ in range(2))
    f = tilec.compile(MATMUL, backend="triton", tune=True)
    wanted = a.double() @ b.double()
    assert error(f(a, b), wanted) < 1e-2
    files = list((tmp_path / "tuned").glob("*.json"))
    assert len(files) == 1 and default_store().directory == tmp_path / "tuned"
    changed = files[0].stat().st_mtime_ns
    assert error(tilec.compile(MATMUL, backend="triton", tune=True)(a, b), wanted) < 1e-2
    assert files[0].stat().st_mtime_ns == changed, "what is known is not measured again"
    assert error(tilec.compile(MATMUL, backend="triton")(a, b), wanted) < 1e-2


def test_tensors_elsewhere_are_refused() -> None:
    f = tilec.compile(MATMUL, backend="triton")
    with pytest.raises(tilec.InputMistake, match="runs on CUDA tensors; these are on cpu"):
        f(torch.ones(2, 3), torch.ones(3, 4))
    with pytest.raises(tilec.InputMistake, match="different devices"):
        f(torch.ones(2, 3), torch.ones(3, 4, device="cuda"))


def test_two_runs_have_the_same_bits() -> None:
    u, places = normal(5000, 33), torch.randint(0, 40, (5000,), device="cuda")
    scatter = "function (U[K, D], Ix[K]) -> (O) { O[Ix[k], j : 40, D] = +(U[k, j]); }"
    total = "function (X[M, N]) -> (O) { O[] = +(X[i, j]); }"
    for source, inputs in ((scatter, (u, places)), (total, (u,)), (MATMUL, (u.T, u))):
        f = tilec.compile(source, backend="triton")
        assert torch.equal(f(*inputs), f(*inputs))
    wanted = torch.zeros(40, 33, dtype=torch.float64, device="cuda").index_add_(0, places, u.double())
    got = tilec.compile(scatter, backend="triton")(u, places)
    assert error(got, wanted) < 1e-6 and math.isfinite(got.sum().item())


@pytest.mark.parametrize("spread", [300.0, 0.5])
def test_the_corners_of_an_interpolation_share_a_sort(spread: float) -> None:
    """Of points everywhere, also outside, and of long runs that are cut."""
    source = """function (X[C, H, W], U[M], V[M]) -> (Y) {
        P = int64(floor(U)); Q = int64(floor(V)); A = U - floor(U); B = V - floor(V);
        Y[c, m : C, M] = pad(X[c, P[m], Q[m]], 0) * (1 - A[m]) * (1 - B[m]) + pad(X[c, P[m], Q[m] + 1], 0)
            * (1 - A[m]) * B[m] + pad(X[c, P[m] + 1, Q[m]], 0) * A[m] * (1 - B[m])
            + pad(X[c, P[m] + 1, Q[m] + 1], 0) * A[m] * B[m];
    }"""
    f, exact = (tilec.compile(source, backend=b).grad(["X"]) for b in ("triton", "torch"))
    given = normal(5, 100, 90), *(torch.rand(70000, device="cuda") * spread - 1 for _ in range(2)), normal(5, 70000)
    found = f(*given)
    assert torch.equal(found, f(*given))
    assert error(found, exact(*(t.double() for t in given))) < 1e-6
    assert sum(k.name == "sort_starts" for k in f.lower(*given).kernels) == 1


def test_an_image_smaller_than_its_window() -> None:
    """None of its gradient's kernels is launched without programs, whichever way calls go."""
    source = "function (I[N, H], K[R, C]) -> (O) { O[n, y, c : N, H - R + 1, C] = >(I[n, y + j] + K[j, c]); }"
    f = tilec.compile(source, backend="triton")
    for _ in range(3):
        image, kernel = normal(129, 1).requires_grad_(), normal(2, 127).requires_grad_()
        result = f(image, kernel)
        assert result.shape == (129, 0, 127)
        result.sum().backward()
        assert not image.grad.any() and not kernel.grad.any()


def test_more_columns_than_a_grid_is_long() -> None:
    rows, width = torch.tensor([0, 2, 0, 3], device="cuda"), 2**24 + 3
    update = normal(4, width)
    f = tilec.compile("function (R[K], U[K, D], Z[3]) -> (O) { O[R[k], j : 3, D] = +(U[k, j]); }", backend="triton")
    found = f(rows, update, normal(3))
    assert torch.equal(found, torch.stack([update[0] + update[2], 0 * update[0], update[1]]))


def test_products_are_rounded_before_what_is_made_of_them_is_subtracted() -> None:
    a, b = 100 * normal(2, 2**20)
    fraction = tilec.compile("X = A * B; Y = X - floor(X)", backend="triton")
    assert torch.equal(fraction(a, b), a * b - (a * b).floor())
    f = tilec.compile("T[m] = logsumexp(A[m, i] * A[m, i])", backend="triton")
    rows = 600 * torch.rand(50, 4000, device="cuda")
    rows[:, 7] = 800 + torch.rand(50, device="cuda")  # beside whose squares no other counts
    rows.requires_grad_()
    f(rows).sum().backward()
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad[:, 7], 2 * rows.detach()[:, 7], rtol=1e-6, atol=0)
