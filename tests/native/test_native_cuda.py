"""CUDA graphs, streams, threads and several devices, of calls that are looked up, recorded and launched in C++."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tilec
from tests.native.test_native_calls import NODES
from tests.support.torch_programs import EXAMPLES, compiled
from tests.torch_op.cuda_ways import CUDA_WAYS
from tests.torch_op.test_on_cuda import TWO, check
from tests.torch_op.test_transforms import flat, sampled
from tilec.backends.triton.runtime import native_plan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

ELSEWHERE = ("a side stream", "many streams", "threads", "graph of forward and backward")


@pytest.fixture
def function(library, name: str) -> Callable[..., torch.Tensor]:
    """The program, once the library is in use, with the node that tells."""
    made = compiled.__wrapped__(name)
    for _ in range(3):
        inputs = [t.requires_grad_() for t in EXAMPLES[name].inputs(device="cuda")]
        result = made(*inputs)
        assert result.grad_fn is not None
        result.sum().backward()
    assert made(*inputs).grad_fn.name() == NODES["native"]
    return made


@pytest.mark.parametrize(
    ("name", "way"), list(sampled(EXAMPLES, CUDA_WAYS, 2, first=1))
)  # the others are Python's calls
def test_ways(function: Callable, name: str, way: str) -> None:
    torch._dynamo.reset()
    example = EXAMPLES[name]
    check(*CUDA_WAYS[way](function, example.torch, example, example.inputs(device="cuda")))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_call_in_a_captured_graph_is_the_library_s(function: Callable, name: str) -> None:
    """A replay follows the inputs, without the plan of a call in between giving its memory to others."""
    inputs = EXAMPLES[name].inputs(device="cuda")
    given = [[t * k for t in inputs] for k in (0.5, 1.5)]
    wanted = [function(*g).clone() for g in given]
    static = [t.clone() for t in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(*static)
    for g, w in zip(given, wanted, strict=True):
        for place, t in zip(static, g, strict=True):
            place.copy_(t)
        others = [function(*given[0]) for _ in range(3)]
        graph.replay()
        assert torch.equal(result, w)
        assert all(torch.equal(o, wanted[0]) for o in others)


@TWO
@pytest.mark.parametrize(("name", "way"), list(sampled(EXAMPLES, ELSEWHERE, 2, first=1)))
def test_ways_on_the_second_device(function: Callable, name: str, way: str) -> None:
    example = EXAMPLES[name]
    inputs = example.inputs(device="cuda:1")
    with torch.cuda.device(1):
        for _ in range(3):
            function(*inputs)
        check(*CUDA_WAYS[way](function, example.torch, example, inputs))
    again = function(*example.inputs(device="cuda:0"))
    assert again.device.index == 0
    check([again], flat([example.torch(*example.inputs(device="cuda:0"))]))


PRODUCTS = {
    "a product": ("O[i, j] = sum(A[i, k] * B[k, j])", [(256, 128), (128, 512)]),
    "a product and its epilogue": ("O[i, j] = exp(sum(A[i, k] * B[k, j]) / 64)", [(256, 128), (128, 512)]),
    "a batch": ("O[b, i, j] = sum(A[b, i, k] * B[b, k, j])", [(3, 128, 64), (3, 64, 256)]),
    "a convolution": (
        "function (A[N, H, W, C], B[R, S, C, D]) -> (O) {"
        " O[n, y, x, d : N, H, W, D] = +(A[n, y + r - 1, x + s - 1, c] * B[r, s, c, d]); }",
        [(4, 16, 16, 64), (3, 3, 64, 128)],
    ),
}


@pytest.mark.parametrize("backend", [None, "triton"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_need_no_python(library, monkeypatch: pytest.MonkeyPatch, name: str, backend: str | None) -> None:
    """A library's, and kernels that read by tensor maps, wherever the tensors lie; forward and backward."""
    make, plans = native_plan.PlanMaker.made, []
    source, shapes = PRODUCTS[name]

    def made(self, library, operations):
        plans.append(make(self, library, operations))
        return plans[-1]

    monkeypatch.setattr(native_plan.PlanMaker, "made", made)
    f = tilec.compile(source, backend=backend)
    kept = []
    for _ in range(4):
        a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes)
        kept += [a, b]  # so that others lie elsewhere
        a.requires_grad_(), b.requires_grad_()
        y = f(a, b)
        cotangent = torch.randn_like(y)
        found = [y, *torch.autograd.grad(y, (a, b), cotangent)]
        wide = [t.detach().double().requires_grad_() for t in (a, b)]
        exact = tilec.compile(source, backend="torch")(*wide)
        wanted = [exact, *torch.autograd.grad(exact, wide, cotangent.double())]
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())
    assert len(plans) >= 2 and not any(plan.in_python() for plan in plans)
