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
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tilec.package.launches import DEVICE, DeviceKernels, PackageError, load_step

PACKAGE_FORMAT = 3


# what numbers of the manifest that depend on open sizes are computed with
OPEN_SIZE_FUNCTIONS: dict[str, Callable] = {
    "gcd": math.gcd,
    "_isqrt": math.isqrt,
    "_as_float": float,
    "_fit": lambda n, dtype: float(n) if dtype.startswith("float") else n,
    "_single": lambda n: ctypes.c_float(n).value,
    "_inverse_of": lambda n: ctypes.c_float(1.0 / ctypes.c_float(n).value).value,
}
MOST_SIZES = 1024  # combinations of open sizes whose launches are kept ready


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
        PackageError: The directory holds no package, or the device is none of CUDA's or of another architecture than
            the kernels.
    """
    package = Package(Path(directory))
    count = torch.cuda.device_count()
    chosen = torch.device(f"cuda:{device}" if isinstance(device, int) else device or "cuda")
    if chosen.type != "cuda" or (chosen.index or 0) >= count:
        raise PackageError(f"a package runs on a CUDA device, of which there are {count}; got {chosen}")
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
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
        if not isinstance(self.manifest, dict):
            raise PackageError(f"{directory} holds no package: its manifest is no object")
        if self.manifest.get("format") != PACKAGE_FORMAT:
            found = self.manifest.get("format")
            told = f"{directory} has format {found}, and this loader reads format {PACKAGE_FORMAT}"
            raise PackageError(f"{told}: build it again, or load it with the package.py in it")
        self.name: str = self.manifest["name"]
        self._kernels: dict[int, DeviceKernels] = {}
        self._lock = threading.Lock()
        entries = [(_OpenEntry if "sizes" in e else _Entry)(self, e) for e in self.manifest["entries"]]
        self._forwards = [e for e in entries if not e.wrt]
        self._gradients = [e for e in entries if e.wrt]

    def kernels(self, index: int) -> DeviceKernels:
        """The kernels on a device, loaded at the first call for it."""
        with self._lock:
            if index not in self._kernels:
                self._kernels[index] = DeviceKernels(self.directory, self.manifest, index)
            return self._kernels[index]

    def __call__(self, *inputs: object, **named: object) -> Any:
        """The outputs for these inputs; autograd works through it where the package holds a gradient.

        Args:
            inputs: Contiguous CUDA tensors, in order, of shapes and types that the package was built for, at addresses
                that 16 divides; a number may stand for an input of rank 0.
            named: Inputs by name.

        Returns:
            One output bare, several as a tuple.

        Raises:
            PackageError: An input that does not fit; it says what was expected.
        """
        forward = self._fitting(self._forwards, inputs, named)
        tensors = forward.tensors(inputs, named)
        recording = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if self._gradients and recording and any(t.requires_grad for t in tensors):
            results = _Recorded.apply(forward, self._gradients[self._forwards.index(forward.origin)], *tensors)
        else:
            results = forward.run(tensors)
        return results[0] if len(results) == 1 else results

    def grad(self, *inputs: object, **named: object) -> Any:
        """The gradient: (inputs..., d_outputs...) -> (d_inputs...).

        Args:
            inputs: The inputs and then a gradient for each output, as for a call.
            named: These by name.

        Returns:
            A gradient for each input, of its shape and type; None for one that is not floating.

        Raises:
            PackageError: The package was built without its gradient, or an argument does not fit.
        """
        if not self._gradients:
            raise PackageError(f"{self.name} was built without its gradient; build it with --grad")
        gradient = self._fitting(self._gradients, inputs, named)
        results = gradient.run(gradient.tensors(inputs, named))
        return results[0] if len(results) == 1 else results

    def _fitting(
        self, entries: Sequence[_Entry | _OpenEntry], given: Sequence[object], named: dict[str, object]
    ) -> _Entry:
        """The one that was built for what is given; where there is one alone, it says itself what does not fit."""
        by_name = {**dict(zip([i["name"] for i in entries[0].inputs], given, strict=False)), **named}
        if len(entries) == 1:
            return entries[0].at(by_name)
        for e in entries:
            if e.serves(by_name) and (found := e.at(by_name)).fits(by_name):
                return found
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
        given = [d if w["ignored"] else _aligned(d) for d, w in zip(d_outputs, wanted, strict=True)]
        every = [*inputs, *given]
        here = gradient.at({i["name"]: t for i, t in zip(gradient.inputs, every, strict=True)})
        found = dict(zip(gradient.wrt, here.run(every), strict=True))
        return (None, None, *[found.get(i["name"]) for i in gradient.inputs[: len(inputs)]])


def _aligned(t: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels take it: contiguous, at a multiple of 16 bytes."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


class _Entry:
    """A function of the package: what it is given, what it makes, and its steps."""

    def __init__(self, package: Package, entry: dict[str, Any], origin: _OpenEntry | None = None):
        self.package, self.origin = package, origin or self
        self.inputs: list[dict[str, Any]] = entry["inputs"]
        self.outputs: list[dict[str, Any] | None] = entry["outputs"]
        self.wrt: list[str] = entry.get("wrt", [])
        self.workspace: int = entry["workspace"]
        self.steps: list[dict[str, Any]] = entry["steps"]
        self._ready: dict[int, list[Callable[[dict[str, list[int]], int], None]]] = {}
        self._lock = threading.Lock()

    def at(self, by_name: dict[str, object]) -> _Entry:
        """The function for the sizes of these."""
        return self

    def serves(self, by_name: dict[str, object]) -> bool:
        """Are these sizes of the class that it was built for?"""
        return True

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
        return _inputs_described(self.inputs)

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
                self._ready[index] = [load_step(step, kernels) for step in self.steps]
            stream = torch.cuda.current_stream(index).cuda_stream
            with kernels:
                for step in self._ready[index]:
                    step(addresses, stream)
        return tuple(outputs)


class _OpenEntry:
    """A function of the package whose sizes are those of the call, within the class that it was built for."""

    def __init__(self, package: Package, entry: dict[str, Any]):
        self.package, self._entry = package, entry
        self.inputs: list[dict[str, Any]] = entry["inputs"]
        self.wrt: list[str] = entry.get("wrt", [])
        self._conditions = [(text, compile(text, "<package>", "eval")) for text in entry["conditions"]]
        self._made: dict[tuple[int, ...], _Entry] = {}

    def at(self, by_name: dict[str, object]) -> _Entry:
        """The function for the sizes of these. Raises PackageError for sizes outside of the class."""
        sizes = self._sizes(by_name)
        key = tuple(sizes.values())
        if key not in self._made:
            if (unmet := self._unmet(sizes)) is not None:
                here = ", ".join(f"{_name(n)} = {v}" for n, v in sizes.items())
                built = ", ".join(f"{_name(n)} = {v}" for n, v in self._entry["sizes"].items())
                raise PackageError(
                    f"{self.package.name} was built for sizes like {built}, for which {_name(unmet)}; here {here}; "
                    "build it for these too"
                )
            if len(self._made) >= MOST_SIZES:
                self._made = {}
            self._made[key] = _Entry(self.package, at_sizes(self._entry, sizes), self)
        return self._made[key]

    def serves(self, by_name: dict[str, object]) -> bool:
        """Are these sizes of the class that it was built for?"""
        return self._unmet(self._sizes(by_name)) is None

    def described(self) -> str:
        """The inputs' shapes and types, with the open sizes by name."""
        built = ", ".join(f"{_name(n)} like {v}" for n, v in self._entry["sizes"].items())
        return f"{_inputs_described(self.inputs)} ({built})"

    def _sizes(self, by_name: dict[str, object]) -> dict[str, int]:
        """The open sizes, those that it was built for where an argument does not show them."""
        found = dict(self._entry["sizes"])
        for size, (name, axis) in self._entry["places"].items():
            given = by_name.get(name)
            if isinstance(given, torch.Tensor) and given.dim() > axis:
                found[size] = given.shape[axis]
        return found

    def _unmet(self, sizes: dict[str, int]) -> str | None:
        """The first condition of the class that does not hold."""
        names = {**OPEN_SIZE_FUNCTIONS, **sizes}
        return next((text for text, code in self._conditions if not eval(code, names)), None)


def at_sizes(x: Any, sizes: dict[str, int]) -> Any:
    """A part of the manifest with its numbers for these open sizes."""
    if isinstance(x, dict):
        if x.keys() == {"of"}:
            return eval(x["of"], {**OPEN_SIZE_FUNCTIONS, **sizes})
        return {k: at_sizes(v, sizes) for k, v in x.items()}
    return [at_sizes(y, sizes) for y in x] if isinstance(x, list) else x


def _name(text: str) -> str:
    return text.replace("size_", "")


def _inputs_described(inputs: Sequence[dict[str, Any]]) -> str:
    found = []
    for i in inputs:
        value = "" if i.get("value") is None else f" = {i['value']}"
        shape = ", ".join(_name(n["of"]) if isinstance(n, dict) else str(n) for n in i["shape"])
        found.append(f"{i['name']} {i['dtype']}[{shape}]{value}")
    return ", ".join(found)


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
