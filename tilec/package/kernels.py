"""Kernels of resolved plans: compiled once for each text and specialisation, and what each launch hands over."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilec.backends.triton.plan.plan import Descriptor, Pointer
from tilec.backends.triton.runtime.compiled import compile_for, kernel_function, rounds_to_tf32
from tilec.backends.triton.runtime.launcher import TFLOAT32
from tilec.backends.triton.runtime.parallel import in_parallel
from tilec.errors import InternalMistake
from tilec.ir.at_sizes import fixed_value, value_at
from tilec.ir.symbolic import Pinned, is_symbolic
from tilec.ir.types import TensorType
from tilec.package.steps import Copy, Fill, KernelRun, MemoryPlace, Resolved

NEARBY = (-16, 16)  # of an open size: the next of the same divisibility
MAP_TYPES = {8: 10, 9: 8, 10: 9}  # Triton's number of an element type -> the driver's, where they differ


@dataclass(frozen=True)
class Compiled:
    """A kernel for the device: `image` is its cubin, `shared` the bytes of shared memory that it asks for."""

    symbol: str
    image: bytes
    shared: int
    threads: int
    statements: tuple[str, ...]


class Kernels:
    """The kernels of a package, each once, by number."""

    def __init__(self, target: str):
        self.target = target
        self.images: list[Compiled] = []
        self._numbers: dict[tuple[str, bytes], int] = {}

    def steps(self, resolved: Resolved) -> tuple[list[dict[str, Any]], int]:
        """Steps as the manifest has them, and the bytes of workspace that they need in all."""
        runs = [s for s in resolved.steps if isinstance(s, KernelRun)]
        jobs: list[Callable[[], Any]] = [_job(run, self.target) for run in runs]
        compiled = dict(zip(map(id, runs), in_parallel(jobs), strict=True))
        size = resolved.workspace
        made = []
        for s in resolved.steps:
            match s:
                case Fill(to, t, value):
                    item = getattr(torch, t.dtype).itemsize
                    filled = {"pattern": pattern_of(value, t.dtype), "item": item, "count": _count(t)}
                    made.append({"step": "fill", "to": _place(to), **filled})
                case Copy(to, source, count):
                    made.append({"step": "copy", "to": _place(to), "from": _place(source), "bytes": count})
                case KernelRun():
                    scratch = MemoryPlace("workspace", 0, size)
                    step, more = self._launch(s, compiled[id(s)], scratch)
                    made.append(step)
                    size += more
        return made, size

    def _launch(self, run: KernelRun, kernel: Any, scratch: MemoryPlace) -> tuple[dict[str, Any], int]:
        """A launch, and the bytes of scratch that its programs share."""
        launch, metadata = run.launch, kernel.metadata
        arguments, counter = _arguments(run, kernel)
        each = metadata.global_scratch_size
        if metadata.profile_scratch_size or metadata.num_ctas != 1:
            raise InternalMistake(f"the kernel of {', '.join(launch.statements)} asks for what a package has not")
        if (declared := kernel.asm["ptx"].split(".entry", 1)[1].split(")", 1)[0].count(".param")) != len(arguments) + 2:
            raise InternalMistake(f"{launch.kernel} takes {declared} parameters, and {len(arguments)} are known")
        arguments += [("pointer", _place(scratch) if each else None), ("pointer", None)]
        x, y, z = launch.grid
        more = -(-x * y * z * each // 512) * 512
        step = {
            "step": "launch",
            "kernel": self._number(launch.statements, kernel),
            "grid": list(launch.grid),
            "threads": 32 * metadata.num_warps,
            "shared": metadata.shared,
            "cooperative": launch.cooperative,
            "repeat": run.repeat,
            "counter": counter,
            "arguments": arguments,
        }
        return step, more

    def _number(self, statements: tuple[str, ...], kernel: Any) -> int:
        image = kernel.asm["cubin"]
        key = kernel.metadata.name, image
        if key not in self._numbers:
            self._numbers[key] = len(self.images)
            threads = 32 * kernel.metadata.num_warps
            self.images.append(Compiled(kernel.metadata.name, image, kernel.metadata.shared, threads, statements))
        return self._numbers[key]


def _job(run: KernelRun, target: str) -> Callable[[], Any]:
    constants = tuple([(name, _constant(value)) for name, value in run.launch.constants])
    launch = replace(run.launch, constants=constants, warps=_constant(run.launch.warps))
    return lambda: compile_for(launch, dict(run.dtypes), target)


def _constant(value: Any) -> Any:
    """A number that a kernel is compiled for. Of one that follows from an open size, such as the power of two above a
    count, the package serves the sizes that give the same; Pinned where that is no other."""
    if not is_symbolic(value):
        return value
    known = {name: value.recorder.value(name) for name in value.symbols()}
    for name in known:
        if all(value_at(value.text, {**known, name: known[name] + step}) != value.value for step in NEARBY):
            raise Pinned((name,))
    return fixed_value(value)


def _arguments(run: KernelRun, kernel: Any) -> tuple[list[tuple[str, Any]], int | None]:
    """What the kernel is handed, in order, each with its kind, and which of them counts."""
    maps = iter(getattr(kernel.metadata, "tensordesc_meta", None) or ())
    plain = {p.name for p in kernel_function(run.launch).params if p.do_not_specialize}
    found: list[tuple[str, Any]] = []
    counter = None
    for name, value in run.launch.arguments:
        match value:
            case Pointer(tensor):
                found.append(("pointer", _place(run.places[tensor])))
            case Descriptor():
                found += _map(name, value, run, next(maps))
            case float():
                found.append(("f32", value))
            case int() if value != 1 or name in plain:
                if name == run.counter:
                    counter = len(found)
                    if name not in plain:
                        raise InternalMistake(f"{run.launch.kernel} is compiled for one value of {name}, which counts")
                fits = name in plain or -(2**31) <= value < 2**31
                found.append(("i32" if fits else "i64", value))
    return found, counter


def _map(name: str, d: Descriptor, run: KernelRun, how: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """A tensor map and, after it, its shape and strides, which the kernel takes too."""
    if how is None or how.get("fp4_padded") or how.get("is_im2col"):
        raise InternalMistake(f"{run.launch.kernel} takes a tensor map of a kind that is not known")
    place, item = run.places[d.tensor], how["elem_size"]
    rounds = rounds_to_tf32(name, run.dtypes[d.tensor])
    described = {
        "of": _place(MemoryPlace(place.space, place.number, place.offset + d.offset * item)),
        "shape": list(d.shape),
        "strides": list(d.strides),
        "box": list(how["block_size"]),
        "item": item,
        "type": TFLOAT32 if rounds else MAP_TYPES.get(how["elem_type"], how["elem_type"]),
        "swizzle": how["swizzle"],
    }
    return [("map", described), *(("i32", n) for n in d.shape), *(("i64", n) for n in d.strides)]


def _place(p: MemoryPlace) -> list[Any]:
    return [p.space, p.number, p.offset]


def _count(t: TensorType) -> int:
    count = 1
    for n in t.shape:
        count *= n
    return count


def pattern_of(value: float, dtype: str) -> int:
    """The bits of a number in an element type."""
    t = torch.tensor([value], dtype=getattr(torch, dtype))
    return int.from_bytes(struct.pack(f"{t.element_size()}B", *t.view(torch.uint8).tolist()), "little")


def file_names(kernels: Sequence[Compiled]) -> list[str]:
    """A file for each cubin: numbered, with the kernel's name."""
    return [f"{k:02}_{re.sub(r'[^A-Za-z0-9_]', '_', c.symbol)}.cubin" for k, c in enumerate(kernels)]
