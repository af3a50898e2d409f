"""The CUDA driver by ctypes: kernels of a package on a device, and its steps as functions of addresses.

The text of this file stands before the loader's in a package; it needs torch and the driver alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

DRIVER = "libcuda.so.1"
DEVICE = "cuda"
MAJOR, MINOR = 75, 76  # the driver's names of a device's attributes
DYNAMIC_SHARED, PREFER_SHARED = 8, 1
WIDEST_SHARED = 48 * 1024  # bytes of shared memory that a kernel may have without asking


class PackageError(Exception):
    """A package that cannot be loaded, or an argument that does not fit it."""


class CudaDriver:
    """The CUDA driver's functions; every result that is no success becomes a PackageError."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(DRIVER)
        except OSError as error:
            raise PackageError(f"there is no CUDA driver here: {error}") from None

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> None:
            code = function(*arguments)
            if code:
                text = ctypes.c_char_p()
                self._library.cuGetErrorString(code, ctypes.byref(text))
                raise PackageError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

        setattr(self, name, call)
        return call


class DeviceKernels:
    """The package's kernels and tables on one device."""

    def __init__(self, directory: Path, manifest: dict[str, Any], index: int):
        self.driver = driver = CudaDriver()
        with torch.cuda.device(index):
            torch.empty(1, device=torch.device(DEVICE, index) if DEVICE == "cuda" else DEVICE)  # makes the context
            device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
            driver.cuInit(0)
            driver.cuDeviceGet(ctypes.byref(device), index)
            self.context = ctypes.c_void_p()
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device)  # torch's own
            driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
            driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
            if not runs_on(manifest["target"], major.value, minor.value):
                name = ctypes.create_string_buffer(128)
                driver.cuDeviceGetName(name, 128, device)
                raise PackageError(
                    f"{manifest['name']} was built for {manifest['target']}, and this device, {name.value.decode()}, "
                    f"is sm_{major.value}{minor.value}; build it with --target sm_{major.value}{minor.value}"
                )
            self.functions = [self._function(directory, k) for k in manifest["kernels"]]
            self._tables = [
                torch.tensor(rows, dtype=torch.int32, device=torch.device(DEVICE)) for rows in manifest["tables"]
            ]
        self.tables = [t.data_ptr() for t in self._tables]

    def __enter__(self) -> None:
        """Make the device's context current: a thread of autograd's has none at first."""
        self.driver.cuCtxPushCurrent_v2(self.context)

    def __exit__(self, *_: object) -> None:
        self.driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _function(self, directory: Path, kernel: dict[str, Any]) -> ctypes.c_void_p:
        try:
            image = (directory / kernel["file"]).read_bytes()
        except OSError as error:
            raise PackageError(f"the package lacks {kernel['file']}: {error.strerror}") from None
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.cuModuleLoadData(ctypes.byref(module), image)
        self.driver.cuModuleGetFunction(ctypes.byref(function), module, kernel["symbol"].encode())
        if kernel["shared"] > WIDEST_SHARED:
            self.driver.cuFuncSetCacheConfig(function, PREFER_SHARED)
            self.driver.cuFuncSetAttribute(function, DYNAMIC_SHARED, kernel["shared"])
        return function


def runs_on(target: str, major: int, minor: int) -> bool:
    """Do a target's kernels run on a device of this compute capability? Those for 9.0 use what it alone has; others run
    on later devices of the same generation."""
    wanted = int(target.removeprefix("sm_"))
    if wanted >= 90:
        return (major, minor) == divmod(wanted, 10)
    return major == wanted // 10 and minor >= wanted % 10


LoadedStep = Callable[[dict[str, list[int]], int], None]


def load_step(step: dict[str, Any], kernels: DeviceKernels) -> LoadedStep:
    return {"launch": _launch, "fill": _fill, "copy": _copy}[step["step"]](step, kernels)


def _address(place: Sequence[Any], addresses: dict[str, list[int]]) -> int:
    space, number, offset = place
    return addresses[space][number] + offset


def _fill(step: dict[str, Any], kernels: DeviceKernels) -> LoadedStep:
    """Every `item` bytes hold the pattern; 8 bytes are two words, each written with a pitch of two."""
    place, item, count, pattern = step["to"], step["item"], step["count"], step["pattern"]
    driver = kernels.driver

    def fill(addresses: dict[str, list[int]], stream: int) -> None:
        to, on, size = ctypes.c_uint64(_address(place, addresses)), ctypes.c_void_p(stream), ctypes.c_size_t
        if item == 1:
            driver.cuMemsetD8Async(to, ctypes.c_ubyte(pattern), size(count), on)
        elif item == 2:
            driver.cuMemsetD16Async(to, ctypes.c_ushort(pattern), size(count), on)
        elif item == 4:
            driver.cuMemsetD32Async(to, ctypes.c_uint(pattern), size(count), on)
        else:
            for half in (0, 1):
                word = ctypes.c_uint(pattern >> 32 * half & 0xFFFFFFFF)
                at = ctypes.c_uint64(to.value + 4 * half)
                driver.cuMemsetD2D32Async(at, size(8), word, size(1), size(count), on)

    return fill


def _copy(step: dict[str, Any], kernels: DeviceKernels) -> LoadedStep:
    to, source, count = step["to"], step["from"], ctypes.c_size_t(step["bytes"])

    def copy(addresses: dict[str, list[int]], stream: int) -> None:
        ends = [ctypes.c_uint64(_address(place, addresses)) for place in (to, source)]
        kernels.driver.cuMemcpyDtoDAsync_v2(*ends, count, ctypes.c_void_p(stream))

    return copy


SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}


def _launch(step: dict[str, Any], kernels: DeviceKernels) -> LoadedStep:
    """One kernel, `repeat` times, whose argument at `counter` counts."""
    driver, function = kernels.driver, kernels.functions[step["kernel"]]
    values: list[Any] = []
    pointers: list[tuple[Any, Sequence[Any]]] = []
    maps: list[tuple[Any, dict[str, Any]]] = []
    for kind, value in step["arguments"]:
        if kind == "pointer":
            values.append(ctypes.c_uint64(0))
            if value is not None:
                pointers.append((values[-1], value))
        elif kind == "map":
            room = ctypes.create_string_buffer(192)
            shift = -ctypes.addressof(room) % 64
            values.append((ctypes.c_char * 128).from_buffer(room, shift))
            maps.append((values[-1], value))
        else:
            values.append(SCALARS[kind](value))
    parameters = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.addressof(v) for v in values])
    shape = [ctypes.c_uint(n) for n in (*step["grid"], step["threads"], 1, 1, step["shared"])]
    counter = None if step["counter"] is None else values[step["counter"]]
    cooperative = step["cooperative"]
    encoded: dict[int, int] = {}

    def launch(addresses: dict[str, list[int]], stream: int, kept: object = values) -> None:
        for value, place in pointers:
            value.value = _address(place, addresses)
        for number, (room, how) in enumerate(maps):
            address = _address(how["of"], addresses)
            if encoded.get(number) != address:
                _encode(driver, room, how, address)
                encoded[number] = address
        for moment in range(step["repeat"]):
            if counter is not None:
                counter.value = moment
            if cooperative:
                driver.cuLaunchCooperativeKernel(function, *shape, ctypes.c_void_p(stream), parameters)
            else:
                driver.cuLaunchKernel(function, *shape, ctypes.c_void_p(stream), parameters, None)

    return launch


def _encode(driver: CudaDriver, room: Any, how: dict[str, Any], address: int) -> None:
    """A tensor map; the driver counts dimensions from the fastest on."""
    rank = len(how["shape"])
    shape = (ctypes.c_uint64 * rank)(*reversed(how["shape"]))
    strides = (ctypes.c_uint64 * rank)(*[s * how["item"] for s in reversed(how["strides"][:-1])], 0)
    box = (ctypes.c_uint32 * rank)(*reversed(how["box"]))
    ones = (ctypes.c_uint32 * rank)(*[1] * rank)
    driver.cuTensorMapEncodeTiled(
        *(room, how["type"], ctypes.c_uint32(rank), ctypes.c_void_p(address), shape, strides, box, ones),
        *(0, how["swizzle"], 2, 0),
    )
