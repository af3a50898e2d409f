"""What CUDA adds to the ways in which torch runs a function: graphs, streams, threads, determinism."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch._dynamo.utils import counters

from tests.torch_op.test_transforms import loss, tangents

Tensors = list[torch.Tensor]


def varied(inputs: Tensors) -> list[Tensors]:
    return [[t.detach() * (k + 1) - k / 4 for t in inputs] for k in range(3)]


def differentiated(f: Callable, inputs: Tensors) -> tuple[torch.Tensor, ...]:
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(loss(f)(*inputs), inputs)


def captured(run: Callable[[Tensors], tuple], inputs: Tensors) -> Callable[[Tensors], tuple]:
    """`run` as a CUDA graph, after a warm-up on another stream."""
    static, stream = [t.clone() for t in inputs], torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # torch's default one is of the device of the first graph
        results = run(static)

    def replay(given: Tensors) -> tuple:
        for place, t in zip(static, given, strict=True):
            place.copy_(t)
        graph.replay()
        return tuple(r.clone() for r in results)

    return replay


def graphed(f, r, example, x):
    replay = captured(lambda inputs: (f(*inputs),), x)
    return [replay(given) for given in varied(x)], [r(*given) for given in varied(x)]


def graphed_in_training(f, r, example, x):
    replay = captured(lambda inputs: differentiated(f, inputs), x)
    return [replay(given) for given in varied(x)], [differentiated(r, given) for given in varied(x)]


def graphed_tangents(f, r, example, x):
    replay = captured(lambda inputs: torch.func.jvp(f, tuple(inputs), tangents(inputs)), x)
    return [replay(given) for given in varied(x)], [
        torch.func.jvp(r, tuple(given), tangents(given)) for given in varied(x)
    ]


def made_graphed(f, r, example, x):
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return 2 * f(*inputs)

    static = tuple(t.clone().requires_grad_() for t in x)
    module = torch.cuda.make_graphed_callables(Module(), static)
    found = [[g.clone() for g in differentiated(module, given)] for given in varied(x)]  # the graph's own
    return found, [differentiated(lambda *t: 2 * r(*t), given) for given in varied(x)]


def reduced_overhead(f, r, example, x):
    counters.clear()
    whole = torch.compile(lambda *t: 2 * f(*t), fullgraph=True, mode="reduce-overhead")
    found = [whole(*given).clone() for given in (x, x, *varied(x))]
    assert not counters["inductor"]["cudagraph_skips"]
    return found[2:], [2 * r(*given) for given in varied(x)]


def reduced_overhead_in_training(f, r, example, x):
    counters.clear()
    whole = torch.compile(lambda *t: 2 * f(*t), fullgraph=True, mode="reduce-overhead")
    found = [[g.clone() for g in differentiated(whole, given)] for given in (x, x, *varied(x))]
    assert not counters["inductor"]["cudagraph_skips"]
    return found[2:], [differentiated(lambda *t: 2 * r(*t), given) for given in varied(x)]


def side_stream(f, r, example, x):
    """The inputs are there late: another stream than the current one would read what was before."""
    expected = [*differentiated(r, x), r(*x)]
    differentiated(f, x)  # compiled on the main stream
    stream = torch.cuda.Stream()
    late = [torch.zeros_like(t) for t in x]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for place, t in zip(late, x, strict=True):
            place.copy_(t)
        found = [*differentiated(f, late), f(*late)]
        for place in late:  # what is in flight reads them before
            place.zero_()
    torch.cuda.current_stream().wait_stream(stream)
    return found, expected


def many_streams(f, r, example, x):
    """Memory of one stream's calls is not another's while they are in flight."""
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    given = varied(x)
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for k in range(12):
        with torch.cuda.stream(streams[k % 4]):
            torch.cuda._sleep(100_000)
            found.append(differentiated(f, given[k % 3]))
    torch.cuda.synchronize()
    expected = [differentiated(r, g) for g in given]
    return found, [expected[k % 3] for k in range(12)]


def threads(f, r, example, x):
    given, found = [example.inputs(device="cuda", more=k) for k in range(4)], {}

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[k] = differentiated(f, given[k])
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    return [found[k] for k in range(4)], [differentiated(r, g) for g in given]


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def determined(f, r, example, x):
    expected = differentiated(r, x)
    with deterministic():
        found = differentiated(f, x)
        for a, b in zip(found, differentiated(f, x), strict=True):
            assert torch.equal(a, b)
    return found, expected


@contextmanager
def without_synchronization():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def unsynchronized(f, r, example, x):
    expected = [r(*x), *differentiated(r, x)]
    differentiated(f, x), f(*x)
    with without_synchronization():
        found = [f(*x), *differentiated(f, x)]
    return found, expected


CUDA_WAYS = {
    "graph": graphed,
    "graph of forward and backward": graphed_in_training,
    "graph of jvp": graphed_tangents,
    "make_graphed_callables": made_graphed,
    "reduce-overhead": reduced_overhead,
    "reduce-overhead in training": reduced_overhead_in_training,
    "a side stream": side_stream,
    "many streams": many_streams,
    "threads": threads,
    "deterministic": determined,
    "no synchronization": unsynchronized,
}
