"""Launches by CUDA's driver, from Python: for first calls, while the library that launches later ones is being built.
Triton's own launchers are C, for which a compiler runs a fifth of a second a kernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tilec.backends.triton.plan.plan import Descriptor, Launch

_NUMBERS = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "i1": ctypes.c_int8,
    "u1": ctypes.c_int8,
    "fp32": ctypes.c_float,
}
MAP = "map"  # of an argument that is a tensor map: Triton's object, which holds it behind its head

EncodeMap = Callable[[Any, int], list]  # how a tensor map becomes arguments
# what launches a kernel, what it takes before the arguments, and whether maps hold the addresses that they had
LaunchEntry = tuple[Callable[..., Any], Sequence[Any], EncodeMap, bool]

_thread = threading.local()


@cache
def cuda_driver() -> ctypes.CDLL | None:
    """The driver's library; None where it has another name, which Triton knows."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def make_context_current() -> None:
    """See to it that this thread has a context. torch takes the first device in a new thread without one, the driver
    encodes no tensor map then, and Triton makes one current only where it launches."""
    driver, context = cuda_driver(), ctypes.c_void_p()
    if driver is None or getattr(_thread, "has_context", False):
        return
    driver.cuCtxGetCurrent(ctypes.byref(context))
    if not context:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), torch._C._cuda_getDevice())
        driver.cuCtxSetCurrent(context)
    _thread.has_context = True


def kinds_of(launch: Launch, parameters: Mapping[str, str]) -> list[str | None]:
    """Of each argument, tensor maps expanded, its type; None of those that are compiled in."""
    found: list[str | None] = []
    for name, v in launch.arguments:
        if isinstance(v, Descriptor):
            found += [MAP, *["i32"] * len(v.shape), *["i64"] * len(v.shape)]
        else:
            found.append(parameters.get(name))
    return found


def driver_launch(function: int, how: Any, kinds: Sequence[str | None]) -> Callable[..., None] | None:
    """What launches a kernel, given its handle and what Triton says of it: a function of the grid, the stream and the
    arguments, of which the kernel takes those that have a kind here. None without a driver."""
    driver = cuda_driver()
    if driver is None:
        return None
    begin = driver.cuLaunchCooperativeKernel if how.launch_cooperative_grid else driver.cuLaunchKernel
    block = (ctypes.c_uint(32 * how.num_warps), ctypes.c_uint(1), ctypes.c_uint(1), ctypes.c_uint(how.shared))
    scratch = ctypes.c_uint64(0)  # two addresses, of which Triton's kernels make no use
    more = () if how.launch_cooperative_grid else (None,)

    def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        make_context_current()
        values = [_value(kind, a) for kind, a in zip(kinds, arguments, strict=False) if kind is not None]
        values += [scratch, scratch]
        places = [v if isinstance(v, int) else ctypes.addressof(v) for v in values]
        pointers = (ctypes.c_void_p * len(places))(*places)
        grid = (ctypes.c_uint(x), ctypes.c_uint(y), ctypes.c_uint(z))
        error = begin(ctypes.c_void_p(function), *grid, *block, ctypes.c_void_p(stream), pointers, *more)
        if error:
            raise RuntimeError(f"the driver launches no kernel: error {error}")

    return launch


def place_of_map(encoded: Any) -> int | None:
    """Where the driver's tensor map stands in Triton 3.6's object: behind its head, aligned as it must be."""
    known = type(encoded).__name__ == "PyCUtensorMap" and type(encoded).__basicsize__ == 256
    return id(encoded) + 128 if known else None


def _value(kind: str, argument: Any) -> Any:
    """The argument as memory that the driver reads; of a tensor map where it stands."""
    if kind == MAP:
        place = place_of_map(argument)
        assert place is not None, f"no tensor map: {argument!r}"
        return place
    return _NUMBERS.get(kind, ctypes.c_uint64)(argument)


@cache
def launch_function(
    count: int, asked: tuple[str, ...], taken: tuple[str, ...], constants: tuple[str, ...], middle: int
) -> Callable[..., Callable[..., None]]:
    """Makes functions of `count` arguments and constants, which launch with what is `taken` of these. `asked`:
    addresses, each once: `a3` is the third argument's."""
    between = [f"_{k}" for k in range(middle)]
    given = [*(f"p{k}" for k in range(count)), "/", *constants, "num_warps", "num_stages"]
    lines = [f"{address} = p{address[1:]}.data_ptr()" for address in asked]
    handed = ", ".join(["x", "y", "z", "stream(device)", *between, *taken])
    text = f"""def make(run, x, y, z, stream, device, {"".join(f"{name}, " for name in between)}arguments):
    def launch({", ".join(given)}, enable_fp_fusion=True, launch_cooperative_grid=False, maxnreg=None):
        {"; ".join([*lines, f"run({handed})"])}
    return launch"""
    scope: dict[str, Any] = {}
    exec(compile(text, "<tilec launch>", "exec"), scope)
    return scope["make"]
