"""The table of docs/torch.md on a GPU, and what there is on GPUs alone."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tilec
from tests.gpu.gpu_programs import SIZED
from tests.support.kernel_cases import UNEVEN, KernelCase, _over
from tests.support.recurrences import RECURRENCES
from tests.support.torch_programs import EXAMPLES, compiled
from tests.torch_op.cuda_ways import CUDA_WAYS, differentiated, without_synchronization
from tests.torch_op.test_compile import WAYS
from tests.torch_op.test_transforms import TRANSFORMS, batched_gradients, flat, sampled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic mode asks for it
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
ELSEWHERE = ("graph of forward and backward", "reduce-overhead", "a side stream", "many streams")
TORCH_TOO = ("graph", "graph of forward and backward", "a side stream", "deterministic", "no synchronization")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False  # one convolution may be two ways
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch._dynamo.reset()


def check(found: object, expected: object, close: float = 1e-7) -> None:
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.is_cuda
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close / 100)


@pytest.mark.parametrize(
    ("name", "way"), list(sampled(EXAMPLES, CUDA_WAYS, 2))
)  # the library for calls does the others
def test_ways(name: str, way: str) -> None:
    example = EXAMPLES[name]
    check(*CUDA_WAYS[way](compiled(name), example.torch, example, example.inputs(device="cuda")))


@pytest.mark.parametrize("way", TORCH_TOO)
@pytest.mark.parametrize("name", EXAMPLES)
def test_torch_backend(name: str, way: str) -> None:
    example = EXAMPLES[name]
    check(*CUDA_WAYS[way](compiled(name, "torch"), example.torch, example, example.inputs(device="cuda")))


@pytest.mark.parametrize(("name", "transform"), list(sampled(EXAMPLES, TRANSFORMS, 2)))
def test_transforms(name: str, transform: str) -> None:
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs(device="cuda")
    check(TRANSFORMS[transform](compiled(name), *inputs), TRANSFORMS[transform](example.torch, *inputs))


@pytest.mark.parametrize("name", EXAMPLES)
def test_batched_gradients(name: str) -> None:
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs(device="cuda")
    check(batched_gradients(compiled(name), *inputs), batched_gradients(example.torch, *inputs))


@pytest.mark.parametrize(("name", "way"), list(sampled(EXAMPLES, WAYS, 2)))
def test_traced(name: str, way: str) -> None:
    example = EXAMPLES[name]
    check(*WAYS[way](compiled(name), example.torch, example, example.inputs(device="cuda")))


def _families() -> dict[str, KernelCase]:
    found = {name: _over(name, source, UNEVEN, "float32") for name, source in SIZED.items()}
    for name, (source, arrays) in RECURRENCES.items():
        inputs = tuple((a.shape, "float32" if a.dtype.kind == "f" else a.dtype.name) for a in arrays)
        found[f"recurrence: {name}"] = KernelCase(name, source, inputs)
    return found


FAMILIES = _families()


@pytest.mark.parametrize(("name", "backend"), [
    *((name, "triton") for name in FAMILIES),
    *(pytest.param(name, "torch", marks=[pytest.mark.slow] * (k % 3 > 0)) for k, name in enumerate(FAMILIES)),
])  # fmt: skip
def test_nothing_is_read_back(name: str, backend: str) -> None:
    """A repeated call of every family of programs, and its gradient, under a ban of synchronization."""
    case, made = FAMILIES[name], torch.Generator().manual_seed(1)
    recurrence = RECURRENCES[case.name][1] if name.startswith("recurrence: ") else None
    inputs = []
    for k, (shape, dtype) in enumerate(case.inputs):
        if recurrence is not None:
            t = torch.from_numpy(recurrence[k]).to(getattr(torch, dtype))
        elif "float" in dtype:
            t = torch.randn(shape, generator=made)
        else:
            t = torch.randint(0, 2, shape, generator=made).to(getattr(torch, dtype))
        inputs.append(t.cuda().requires_grad_(t.is_floating_point()))
    function = tilec.compile(case.source, backend=backend)
    positions = function._specialiser.size_positions
    inputs = [int(t) if k in positions else t for k, t in enumerate(inputs)]
    asking = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]

    def run():
        y = function(*inputs)
        ys = [t for t in (y if isinstance(y, tuple) else (y,)) if t.requires_grad]
        return [y, torch.autograd.grad([t.sum() for t in ys], asking, allow_unused=True) if ys else ()]

    expected = flat(run())
    with without_synchronization():
        found = flat(run())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_numbers_on_streams_and_in_graphs() -> None:
    """A Python number's tensor belongs to a stream; a captured one to its graph."""
    f = tilec.compile("Y = X * S;")
    x = torch.ones(1000, device="cuda")
    f(x, 2.5)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), without_synchronization():
        torch.cuda._sleep(10_000_000)
        y = f(x, 3.5)
    assert torch.equal(f(x, 3.5), 3.5 * x)  # while the other stream has yet to fill its own in
    torch.cuda.synchronize()
    assert torch.equal(y, 3.5 * x)
    with torch.cuda.stream(stream):
        f(x, 4.5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = f(x, 4.5)
        for k in range(200):  # the numbers kept are others now
            f(x, float(k))
        x.fill_(2)
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, 4.5 * x)
    with without_synchronization():
        assert f(x, torch.tensor(2.0)) is not None


def test_a_capture_of_what_was_not_called_is_refused() -> None:
    f = tilec.compile("function (X[N, M]) -> (Y) { Y[i] = sum(X[i, j]); }")
    x = torch.ones(3, 5, device="cuda")
    with pytest.raises(tilec.Unsupported, match="cannot be captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        f(x)
    torch.cuda.synchronize()
    torch.testing.assert_close(f(x), x.sum(1))


@TWO
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("backend", [None, "torch"])
def test_another_device_is_current(name: str, backend: str | None) -> None:
    example = EXAMPLES[name]
    f = compiled(name, backend)
    for current in (0, 1):
        for where in (1, 0):
            inputs = example.inputs(device=f"cuda:{where}")
            with torch.cuda.device(current):
                found = [f(*inputs), *differentiated(f, inputs)]
                assert torch.cuda.current_device() == current
            assert all(t.device.index == where for t in found)
            check(found, [example.torch(*inputs), *differentiated(example.torch, inputs)])


@TWO
@pytest.mark.parametrize(("name", "way"), list(sampled(EXAMPLES, ELSEWHERE, 2)))
def test_ways_on_the_second_device(name: str, way: str) -> None:
    """After the same on the first: what is kept for a device or a stream of it is not another's."""
    example = EXAMPLES[name]
    for k in (0, 1):
        with torch.cuda.device(k):
            check(*CUDA_WAYS[way](compiled(name), example.torch, example, example.inputs(device=f"cuda:{k}")))


@TWO
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_stream_of_a_device_that_is_not_current(name: str) -> None:
    """Calls run on the current stream of their inputs' device."""
    example, stream = EXAMPLES[name], torch.cuda.Stream(1)
    inputs = example.inputs(device="cuda:1")
    expected = differentiated(example.torch, inputs)
    differentiated(compiled(name), inputs)
    late = [torch.zeros_like(t) for t in inputs]
    torch.cuda.synchronize(1)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
        with torch.cuda.device(1):
            torch.cuda._sleep(20_000_000)
        for place, t in zip(late, inputs, strict=True):
            place.copy_(t)
        found = differentiated(compiled(name), late)
        for place in late:
            place.zero_()
    torch.cuda.synchronize(1)
    check(found, expected)


@TWO
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_thread_for_each_device(name: str) -> None:
    """With a function that no call has been made of."""
    example, found = EXAMPLES[name], {}
    function = tilec.compile(example.source)
    integers = [[torch.tensor(i, device=f"cuda:{d}") for i in example.integers] for d in (0, 1)]
    given = [example.inputs(device=f"cuda:{k % 2}", more=k) for k in range(4)]
    start = threading.Barrier(4)

    def work(k: int) -> None:
        start.wait()
        with torch.cuda.device(k % 2):
            for _ in range(10):
                found[k] = differentiated(lambda *x: function(*x, *integers[k % 2]), given[k])
            torch.cuda.synchronize()

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    for k in range(4):
        assert all(t.device.index == k % 2 for t in found[k])
        check(found[k], differentiated(example.torch, given[k]))


@pytest.mark.parametrize("called", [False, True])
def test_the_first_use_of_the_device_in_a_thread(called: bool) -> None:
    """It encodes tensor maps, since torch's allocator has memory at hand: nothing has made a context current."""
    source = "function (A[I, K], B[K, J]) -> (O) { O[i, j : I, J] = +(A[i, k] * B[k, j]); }"
    f = tilec.compile(source, backend="triton")
    a, b = torch.randn(2, 512, 512, device="cuda", dtype=torch.bfloat16)
    expected = tilec.compile(source, backend="triton")(a, b)
    assert "TensorDescriptor" in f.lower(a, b).source() or torch.cuda.get_device_capability() < (9, 0)
    for _ in range(3 * called):
        f(a, b)
    elsewhere = a.clone(), b.clone()
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as new_thread:
        assert torch.equal(new_thread.submit(f, *elsewhere).result(), expected)


@TWO
def test_inputs_on_two_devices_are_refused() -> None:
    with pytest.raises(tilec.InputMistake, match="different devices: X on cuda:0, Y on cuda:1"):
        tilec.compile("Z = X + Y;")(torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1"))


class Rows(torch.utils.data.Dataset):
    """Each row is computed by the worker, on a device."""

    def __init__(self, device: str):
        self.device, self.f = device, tilec.compile("Y = exp(X) * 2;")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, k: int) -> torch.Tensor:
        return self.f(torch.full((3,), float(k), device=self.device)).cpu()


@pytest.mark.parametrize(("start", "device"), [("fork", "cpu"), ("spawn", "cpu"), ("spawn", "cuda")])
def test_loaders(start: str, device: str) -> None:
    """Workers of a process that uses the GPU itself."""
    rows = Rows(device)
    expected = torch.stack([rows.f(torch.full((3,), float(k), device="cuda")).cpu() for k in range(6)])
    loader = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=2, multiprocessing_context=start)
    torch.testing.assert_close(torch.cat(list(loader)), expected)
