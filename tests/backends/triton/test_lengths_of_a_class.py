"""Another length of a known kind of call is neither planned nor compiled for, and costs the host few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from support.effort import counted
from support.no_device import stand_in

import tilec
from tilec.backends.triton.runtime.compiled import interpreting
from tilec.backends.triton.schedule import axis_tiling

GALLERY = Path(tilec.__file__).parent / "gallery"
THREE = """function (A[B, I, J], C[J, K], D[K, L]) -> (O) {
    O[b, i, l : B, I, L] = +(A[b, i, j] * C[j, k] * D[k, l]);
}"""
BIAS = "function (A[I, K], W[K, J], V[J]) -> (Y) { Y[i, j : I, J] = gelu(sum(A[i, k] * W[k, j]) + V[j]); }"
SEGMENTS = "function (X[M, D], S[M]) -> (Y) { Y[S[m], d : 100, D] = +(X[m, d]); }"
SUMS = "function (X[N, T]) -> (Y) { Y[n, t : N, T] = sum(X[n, s]), t - s < T; }"
VARIANCE = """function (X[N, F]) -> (Y) {
    M[j : F] = mean(X[i, j]);
    Y[j : F] = mean((X[i, j] - M[j]) * (X[i, j] - M[j]));
}"""
LENGTHS, NEW = (544, 608, 672, 736, 800, 992, 1056), (864, 928)
FORWARD, BOTH = 2500, 8000  # functions called in all, of Python's and of C's; a planned statement takes ten thousand


def floats(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def single(*shape: int) -> torch.Tensor:
    return floats(*shape, dtype=torch.float32)


def places(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def gallery(name: str) -> str:
    return (GALLERY / f"{name}.tile").read_text()


PROGRAMS: dict[str, tuple[str, Callable[[int], Sequence[torch.Tensor]]]] = {
    "elementwise": ("Y = exp(X) * 2.0 + Z", lambda n: (floats(n, 512), floats(512))),
    "softmax": (gallery("norm/softmax"), lambda n: (floats(n, 1000),)),
    "layer norm": (gallery("norm/layer_norm"), lambda n: (floats(n, 1000), floats(1000), floats(1000))),
    "attention": (gallery("attention/attention"), lambda n: tuple(floats(2, 4, n, 64) for _ in range(3))),
    "variance of columns": (VARIANCE, lambda n: (floats(n, 512),)),
    "product": (gallery("product/matmul"), lambda n: (floats(n, 1000), floats(1000, 512))),
    "bias and gelu": (BIAS, lambda n: (floats(n, 1000), floats(1000, 512), floats(512))),
    "three operands": (THREE, lambda n: (floats(4, n, 64), floats(64, 128), floats(128, 64))),
    "convolution": (gallery("convolution/convolution"), lambda n: (floats(8, n, 32, 64), floats(3, 3, 64, 64))),
    "log product": (gallery("product/log_matmul"), lambda n: (single(n, 500), single(500, 200))),
    "recurrence": (gallery("scan/gated_recurrence"), lambda n: (floats(4, n, 64), floats(4, n, 64))),
    "embedding": (gallery("indexing/embedding"), lambda n: (floats(5000, 64), places(4, n))),
    "cross-entropy": (gallery("loss/cross_entropy"), lambda n: (floats(n, 5000), places(n))),
    "max pooling": (gallery("window/max_pool"), lambda n: (floats(4, n, 32, 64),)),
    "dropout": (
        "function (X, P) -> (Y) { Y = rand(7) < P ? X / P : 0; }",
        lambda n: (floats(n, 500), torch.empty((), device="meta")),
    ),
    "sums so far": (SUMS, lambda n: (floats(8, n),)),
    "segments": (SEGMENTS, lambda n: (floats(n, 64), places(n))),
}


def forward(f: tilec.Function, inputs: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        f(*inputs)


def both(f: tilec.Function, inputs: Sequence[torch.Tensor]) -> None:
    y = f(*inputs)
    wanted = [t for t in inputs if t.requires_grad]
    torch.autograd.grad(y, wanted, torch.empty_like(y), allow_unused=True)


@pytest.mark.skipif(interpreting(), reason="nothing is compiled while kernels are interpreted")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(8)
def test_nothing_is_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_VERIFY", "1")
    compiled = stand_in(monkeypatch)
    source, inputs = PROGRAMS[name]
    f = tilec.compile(source)
    for n in (*LENGTHS, *LENGTHS):
        forward(f, inputs(n))
        both(f, inputs(n))
    planned: list[object] = []
    make = axis_tiling.make_plan
    monkeypatch.setattr(axis_tiling, "make_plan", lambda *given: planned.append(given) or make(*given))
    compiled.clear()
    for n in NEW:
        for call, most in ((forward, FORWARD), (both, BOTH)):
            tensors = inputs(n)
            _, steps = counted(lambda call=call, tensors=tensors: call(f, tensors))
            assert not planned and not compiled, f"{call.__name__} of length {n}"
            assert steps <= most, f"{call.__name__} of length {n}"


@pytest.mark.skipif(interpreting(), reason="nothing is compiled while kernels are interpreted")
@pytest.mark.parametrize("layout", ["expanded", "transposed"])
def test_layouts_of_a_class_are_planned_once(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_VERIFY", "1")
    stand_in(monkeypatch)
    f = tilec.compile(gallery("norm/softmax"))
    planned: list[object] = []
    make = axis_tiling.make_plan
    monkeypatch.setattr(axis_tiling, "make_plan", lambda *given: planned.append(given) or make(*given))

    def call(n: int) -> None:
        if layout == "expanded":  # as the cotangent of a sum is
            x = floats(n, 1000)
            f(x).backward(torch.empty((), dtype=x.dtype, device="meta").expand(x.shape))
        else:
            f(floats(1000, n).detach().t())

    for n in LENGTHS:
        call(n)
    planned.clear()
    for n in NEW:
        call(n)
    assert not planned


def test_numbers_of_partial_sums_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever divides them: no vector runs along partial sums of columns."""
    compiled = stand_in(monkeypatch)
    f = tilec.compile(gallery("norm/layer_norm"))

    def call(n: int) -> None:
        both(f, (single(n, 256), single(256), single(256)))

    for n in (432, 512, 256):
        call(n)
    before = len(compiled)
    for n in (464, 352, 320, 288):  # 29, 22, 20 and 18 parts
        call(n)
    assert compiled[before:] == []
