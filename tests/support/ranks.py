"""Ranks simulated by threads of one process, each with a process group of its own."""

from __future__ import annotations

import ast
import functools
import math
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed import multi_threaded_pg as threaded


def in_ranks(shape: int | tuple[int, ...], body: Callable[[Any], Any]) -> list[Any]:
    """What `body`, given a mesh of so many ranks along each dimension, returns on each. The first error of any rank is
    raised."""
    from torch.distributed.device_mesh import init_device_mesh

    shape = (shape,) if isinstance(shape, int) else shape
    ranks = math.prod(shape)
    results: list[Any] = [None] * ranks
    errors: list[tuple[int, BaseException]] = []
    store = dist.HashStore()

    def run(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
            results[rank] = body(init_device_mesh("cpu", shape))
        except BaseException as error:
            errors.append((rank, error))
            threaded.ProcessLocalGroup.exception_handle(error)  # which frees the ranks that wait for this one
        finally:
            with suppress(AttributeError):  # torch 2.11 asks the world of threads for what it does not have
                if dist.is_initialized():
                    dist.destroy_process_group()

    with _threads():
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    if errors:
        told = [e for e in errors if not isinstance(e[1], SystemExit)] or errors
        raise told[0][1]
    return results


class Received:
    """Bytes that this rank has received in collectives, those of an all-reduce as those of a ring; what a rank gets of
    itself does not count."""

    counts = threading.local()
    # collective -> bytes of a call's arguments; torch 2.13 has other names than 2.11
    COLLECTIVES = {
        **dict.fromkeys(
            ("all_gather_single", "_allgather_base"),
            lambda pg, out, inp, *_: out.nbytes - inp.nbytes,
        ),
        **dict.fromkeys(
            ("all_to_all_single", "alltoall_base"),
            lambda pg, out, inp, taken, *_: sum(n for r, n in enumerate(taken) if r != pg._rank) * out.element_size(),
        ),
        "allreduce": lambda pg, tensors, *_: sum(2 * -(-t.nbytes * (pg.size() - 1) // pg.size()) for t in tensors),
    }

    @classmethod
    def reset(cls) -> None:
        cls.counts.bytes = 0

    @classmethod
    def bytes(cls) -> int:
        return getattr(cls.counts, "bytes", 0)

    @classmethod
    @contextmanager
    def counted(cls):
        """While collectives of simulated ranks are counted."""

        def counting(name: str, original: Callable) -> Callable:
            def call(pg, *args, **named):
                cls.counts.bytes = cls.bytes() + cls.COLLECTIVES[name](pg, *args)
                return original(pg, *args, **named)

            return call

        group = threaded.ProcessLocalGroup
        known = {name: counting(name, vars(group)[name]) for name in cls.COLLECTIVES if name in vars(group)}
        with mock.patch.multiple(group, **known):
            yield


def _alone(function: Callable) -> Callable:
    """The function, run by one thread at a time."""
    lock = threading.RLock()

    @functools.wraps(function)
    def call(*args, **named):
        with lock:
            return function(*args, **named)

    return call


@contextmanager
def _threads():
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    threaded.ProcessLocalGroup.reset()
    # CPython 3.11 miscounts its depth where threads switch in ast.parse. torch 2.11 may crash where one thread enters a
    # mode of fake tensors while another does, which torch 2.13 has a lock for in tests such as these, and where a build
    # for CUDA without a device then replaces the guard of the process
    propagate = "_propagate_tensor_meta_non_cached"
    try:
        with (
            mock.patch.object(ast, "parse", _alone(ast.parse)),
            mock.patch.object(torch._C, "_ensureCUDADeviceGuardSet", lambda: None),
            mock.patch.object(ShardingPropagator, propagate, _alone(getattr(ShardingPropagator, propagate))),
        ):
            yield
    finally:
        threaded._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
