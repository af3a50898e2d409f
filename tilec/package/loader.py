"""Load a package of compiled kernels and call it on torch tensors.

This file needs torch and the CUDA driver alone; a copy of it lies in every package, so that

    import package
    f = package.load("/path/to/the/package")
    y = f(x)

works where the compiler is not installed.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

PACKAGE_FORMAT = 2
DRIVER = "libcuda.so.1"
DEVICE = "cuda"
MAJOR, MINOR = 75, 76  # the driver's names of a device's attributes
DYNAMIC_SHARED, PREFER_SHARED = 8, 1
WIDEST_SHARED = 48 * 1024  # bytes of shared memory that a kernel may have without asking


class PackageError(Exception):
    """A package that cannot be loaded, or an argument that does not fit it."""


def load(directory: str | Path, device: int | str | torch.device | None = None) -> Package:
    """The package in a directory, its kernels loaded on a device.

    Args:
        directory: What `tilec.build` wrote.
        device: A CUDA device (default: torch's current one).

    Returns:
        A Package. Call it on CUDA tensors of the shapes and types it was built for, in order or by name; numbers stand
        for inputs of rank 0. One output comes back as a tensor, several as a tuple. Where the package holds a gradient,
        torch's autograd works through calls, and `.grad(*inputs, *d_outputs)` calls it by hand.

    Raises:
        PackageError: The directory holds no package, or the device is of another architecture than the kernels.
    """
    package = Package(Path(directory))
    if device is None:
        index = torch.cuda.current_device()
    else:
        chosen = device if isinstance(device, int) else torch.device(device).index
        index = torch.cuda.current_device() if chosen is None else chosen
    package.kernels(index)
    return package


class Package:
    """A loaded package: the function, and its gradient where it was built with one."""

    def __init__(self, directory: Path):
        self.directory = directory
        try:
            self.manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PackageError(f"{directory} holds no package: {error}") from None
        if self.manifest.get("format") != PACKAGE_FORMAT:
            found = self.manifest.get("format")
            raise PackageError(f"{directory} has format {found}, and this loader reads format {PACKAGE_FORMAT}")
        self.name: str = self.manifest["name"]
        self._kernels: dict[int, _Kernels] = {}
        self._lock = threading.Lock()
        entries = [_Entry(self, e) for e in self.manifest["entries"]]
        self._forwards = [e for e in entries if not e.wrt]
        self._gradients = [e for e in entries if e.wrt]

    def kernels(self, index: int) -> _Kernels:
        """The kernels on a device, loaded at the first call for it."""
        with self._lock:
            if index not in self._kernels:
                self._kernels[index] = _Kernels(self.directory, self.manifest, index)
            return self._kernels[index]

    def __call__(self, *inputs: object, **named: object) -> Any:
        """Outputs for these inputs."""
        forward = self._fitting(self._forwards, inputs, named)
        tensors = forward.tensors(inputs, named)
        if self._gradients and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            results = _Recorded.apply(forward, self._gradients[self._forwards.index(forward)], *tensors)
        else:
            results = forward.run(tensors)
        return results[0] if len(results) == 1 else results

    def grad(self, *inputs: object, **named: object) -> Any:
        """The gradient: (inputs..., d_outputs...) -> (d_inputs...); None for an input that has none."""
        if not self._gradients:
            raise PackageError(f"{self.name} was built without its gradient; build it with --grad")
        gradient = self._fitting(self._gradients, inputs, named)
        results = gradient.run(gradient.tensors(inputs, named))
        return results[0] if len(results) == 1 else results

    def _fitting(self, entries: Sequence[_Entry], given: Sequence[object], named: dict[str, object]) -> _Entry:
        """The one that was built for what is given; where there is one alone, it says itself what does not fit."""
        by_name = {**dict(zip([i["name"] for i in entries[0].inputs], given, strict=False)), **named}
        fitting = [e for e in entries if e.fits(by_name)]
        if fitting or len(entries) == 1:
            return (fitting or entries)[0]
        built = "; or ".join(e.described() for e in entries)
        got = ", ".join(f"{n} {_described(t)}" for n, t in by_name.items() if isinstance(t, torch.Tensor))
        raise PackageError(f"{self.name} was built for {built}; got {got or 'no tensors'}")

    def __repr__(self) -> str:
        return f"<package {self.name} for {self.manifest['target']} in {self.directory}>"


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, forward, gradient, *tensors):  # type: ignore[override]
        ctx.save_for_backward(*tensors)
        ctx.gradient = gradient
        results = forward.run([t.detach() for t in tensors])
        ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *d_outputs):  # type: ignore[override]
        gradient, inputs = ctx.gradient, ctx.saved_tensors
        wanted = gradient.inputs[len(inputs) :]
        given = [d if w["ignored"] else d.contiguous() for d, w in zip(d_outputs, wanted, strict=True)]
        found = dict(zip(gradient.wrt, gradient.run([*inputs, *given]), strict=True))
        return (None, None, *[found.get(i["name"]) for i in gradient.inputs[: len(inputs)]])


class _Entry:
    """A function of the package: what it is given, what it makes, and its steps."""

    def __init__(self, package: Package, entry: dict[str, Any]):
        self.package = package
        self.inputs: list[dict[str, Any]] = entry["inputs"]
        self.outputs: list[dict[str, Any] | None] = entry["outputs"]
        self.wrt: list[str] = entry.get("wrt", [])
        self.workspace: int = entry["workspace"]
        self.steps: list[dict[str, Any]] = entry["steps"]
        self._ready: dict[int, list[Callable[[dict[str, list[int]], int], None]]] = {}
        self._lock = threading.Lock()

    def fits(self, by_name: dict[str, object]) -> bool:
        """Are these of the shapes, types and sizes that the kernels were built for?"""
        for wanted in self.inputs:
            given = by_name.get(wanted["name"])
            if isinstance(given, torch.Tensor) and not wanted["ignored"]:
                if [*given.shape] != wanted["shape"] or given.dtype is not getattr(torch, wanted["dtype"]):
                    return False
            elif wanted.get("value") is not None and given != wanted["value"]:
                return False
        return True

    def described(self) -> str:
        """The inputs' shapes and types, and the values of sizes."""
        found = []
        for i in self.inputs:
            value = "" if i.get("value") is None else f" = {i['value']}"
            found.append(f"{i['name']} {i['dtype']}{i['shape']}{value}")
        return ", ".join(found)

    def tensors(self, given: Sequence[object], named: dict[str, object]) -> list[torch.Tensor]:
        """The arguments in order, checked."""
        names = [i["name"] for i in self.inputs]
        by_name = dict(zip(names, given, strict=False))
        if len(given) > len(names) or set(named) - set(names[len(given) :]):
            raise PackageError(f"{self.package.name} takes {', '.join(names)}")
        by_name.update(named)
        missing = [n for n in names if n not in by_name]
        if missing:
            raise PackageError(f"nothing is given for {', '.join(missing)}; inputs: {', '.join(names)}")
        devices = {t.device for t in by_name.values() if isinstance(t, torch.Tensor) and t.device.type == DEVICE}
        if len(devices) > 1:
            raise PackageError(f"inputs on different devices: {', '.join(sorted(map(str, devices)))}")
        device = next(iter(devices), torch.device(DEVICE))
        return [_checked(i, by_name[i["name"]], device) for i in self.inputs]

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """Outputs for tensors that fit."""
        device = tensors[0].device if tensors else torch.device(DEVICE)
        index = device.index if device.index is not None else torch.cuda.current_device()
        outputs = [
            None if o is None else torch.empty(o["shape"], dtype=getattr(torch, o["dtype"]), device=device)
            for o in self.outputs
        ]
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=device)
        kernels = self.package.kernels(index)
        addresses = {
            "input": [t.data_ptr() for t in tensors],
            "output": [0 if t is None else t.data_ptr() for t in outputs],
            "workspace": [workspace.data_ptr()],
            "table": kernels.tables,
        }
        with self._lock, torch.cuda.device(index):
            if index not in self._ready:
                self._ready[index] = [_step(step, kernels) for step in self.steps]
            stream = torch.cuda.current_stream(index).cuda_stream
            with kernels:
                for step in self._ready[index]:
                    step(addresses, stream)
        return tuple(outputs)


def _described(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def _checked(wanted: dict[str, Any], given: object, device: torch.device) -> torch.Tensor:
    """The argument as a tensor of the type, shape and strides that the kernels were built for."""
    name, shape, dtype = wanted["name"], tuple(wanted["shape"]), getattr(torch, wanted["dtype"])
    if wanted["ignored"]:
        return torch.empty(0, device=device)
    if isinstance(given, bool | int | float) and not shape:
        fixed = wanted.get("value")
        if fixed is not None and given != fixed:
            raise PackageError(f"{name} was {fixed} when the package was built; here it is {given}")
        return torch.tensor(given, dtype=dtype).to(device)
    if not isinstance(given, torch.Tensor):
        raise PackageError(f"{name}: expected a tensor on {device.type}; got {type(given).__name__}")
    if given.dtype is not dtype or tuple(given.shape) != shape:
        raise PackageError(f"{name}: the package was built for {wanted['dtype']}{list(shape)}; got {_described(given)}")
    if not shape and given.device != device:
        return given.to(device)
    if given.device.type != DEVICE:
        raise PackageError(f"{name}: the package runs on CUDA tensors; this one is on {given.device}")
    strides = tuple(wanted["strides"])
    if any(s != w for n, s, w in zip(shape, given.stride(), strides, strict=True) if n > 1) and given.numel():
        raise PackageError(
            f"{name}: the package was built for strides {strides}; got {tuple(given.stride())}; pass .contiguous()"
        )
    if given.data_ptr() % 16:
        raise PackageError(f"{name}: its first element must be at a multiple of 16 bytes; pass .clone()")
    return given


class _Driver:
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


class _Kernels:
    """The package's kernels and tables on one device."""

    def __init__(self, directory: Path, manifest: dict[str, Any], index: int):
        self.driver = driver = _Driver()
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


def _step(step: dict[str, Any], kernels: _Kernels) -> LoadedStep:
    return {"launch": _launch, "fill": _fill, "copy": _copy}[step["step"]](step, kernels)


def _address(place: Sequence[Any], addresses: dict[str, list[int]]) -> int:
    space, number, offset = place
    return addresses[space][number] + offset


def _fill(step: dict[str, Any], kernels: _Kernels) -> LoadedStep:
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


def _copy(step: dict[str, Any], kernels: _Kernels) -> LoadedStep:
    to, source, count = step["to"], step["from"], ctypes.c_size_t(step["bytes"])

    def copy(addresses: dict[str, list[int]], stream: int) -> None:
        ends = [ctypes.c_uint64(_address(place, addresses)) for place in (to, source)]
        kernels.driver.cuMemcpyDtoDAsync_v2(*ends, count, ctypes.c_void_p(stream))

    return copy


SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}


def _launch(step: dict[str, Any], kernels: _Kernels) -> LoadedStep:
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


def _encode(driver: _Driver, room: Any, how: dict[str, Any], address: int) -> None:
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
