"""Many calls of many threads, and many thousand calls in flat memory."""

from __future__ import annotations

import gc
import resource
import threading
from pathlib import Path

import pytest
import torch

import tilec
from tests.support.torch_programs import EXAMPLES
from tests.torch_op.cuda_ways import differentiated
from tests.torch_op.test_transforms import loss

ROUNDS, THREADS, LARGER = 3, 16, (0, 1, 3, 6, 11)
CALLS = 10_000
MIB = 1 << 20
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")])]  # fmt: skip  # noqa: E501
NAMES = [name for name, example in EXAMPLES.items() if not example.integers]


def worked(function, example, device: str, more: int) -> list[torch.Tensor]:
    inputs = example.inputs(device=device, more=more)
    return [function(*inputs), *differentiated(function, inputs)]


def fresh(device: str) -> dict[str, tilec.Function]:
    """The functions of the table, which have seen no call yet."""
    return {name: tilec.compile(EXAMPLES[name].source) for name in NAMES}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
def test_threads(device: str) -> None:
    """Forward and backward, functions and shapes in another order in each thread, from the first calls on."""
    cases = [(name, more) for name in NAMES for more in LARGER]
    expected = {(name, more): worked(EXAMPLES[name].torch, EXAMPLES[name], device, more) for name, more in cases}
    functions, failed, counts = fresh(device), [], [0] * THREADS
    start = threading.Barrier(THREADS)

    def work(k: int) -> None:
        order = torch.randperm(len(cases), generator=torch.Generator().manual_seed(k)).tolist()
        try:
            start.wait()
            for place in ROUNDS * order:
                if failed:
                    return
                name, more = case = cases[place]
                found = worked(functions[name], EXAMPLES[name], device, more)
                for ours, theirs in zip(found, expected[case], strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
                counts[k] += 1
        except BaseException as error:
            failed.append((k, error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed
    assert counts == [ROUNDS * len(cases)] * THREADS


def resident() -> int:
    """Bytes of memory that this process has."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_flat(device: str) -> None:
    """Of so many calls with backward passes, compiled gradients and second derivatives among them, after a tenth."""
    functions, known = fresh(device), {}
    for more in LARGER:
        for name in NAMES:
            known[name, more] = [t.requires_grad_() for t in EXAMPLES[name].inputs(device=device, more=more)]

    def call(k: int) -> None:
        name, more = NAMES[k % len(NAMES)], LARGER[k // len(NAMES) % len(LARGER)]
        inputs = known[name, more]
        gradients = torch.autograd.grad(loss(functions[name])(*inputs), inputs, create_graph=k % 10 == 0)
        if k % 10 == 0:
            torch.autograd.grad(sum((g * g).sum() for g in gradients), inputs, allow_unused=True)

    def state() -> tuple[int, int, int]:
        gc.collect()
        cuda = torch.cuda.memory_allocated() if device == "cuda" else 0
        return resident(), len(gc.get_objects()), cuda

    for k in range(CALLS // 10):
        call(k)
    before = state()
    for k in range(CALLS):
        call(k)
    after = state()
    print([f"{(b - a) / MIB:.2f} MiB" for a, b in zip(before, after, strict=True)])
    assert after[0] - before[0] < 8 * MIB
    assert after[1] - before[1] < 1000
    assert after[2] == before[2]
