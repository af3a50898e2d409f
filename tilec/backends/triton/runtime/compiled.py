"""Kernels from text: files on disk, modules, compiled code for a target, and one clear error where that fails."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.runtime.cache
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilec import knobs
from tilec.backends.common.python_text import parsing
from tilec.backends.triton.plan.device_info import DEVICES, PLANNED_FOR, DeviceInfo, check_target
from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer
from tilec.backends.triton.runtime.front_end import KERNEL_MODULES
from tilec.errors import InputMistake, InternalMistake, TileError, Unsupported

POINTER_TYPES = {
    "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64", "bool": "*i1", "uint8": "*u8",
    "int8": "*i8", "int16": "*i16", "int32": "*i32", "int64": "*i64",
}  # fmt: skip
IMPORTING = threading.Lock()  # Gluon's modules import each other: threads that begin at different ones fail
PACKED_SUM = re.compile(r"add\.[su]16x2\s+(%\w+),")


def interpreting() -> bool:
    return bool(triton.knobs.runtime.interpret)


def own_storage(t: torch.Tensor) -> torch.Tensor:
    """The same elements at the same strides in storage of their own: the interpreter takes tensors whose storages begin
    at one address, as slices of one NumPy array do, for the same storage."""
    return t.new_empty(0).set_(t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride())


@cache
def kernel_folder() -> Path:
    """Where kernels' files go: below TILEC_CACHE; a folder of this process alone if that cannot be written."""
    folder = knobs.cache_directory() / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="tilec-kernels-"))


@cache
def device_info(device: torch.device) -> DeviceInfo:
    """The device's numbers; those of the interpreter are the ones that plans are made for."""
    if device.type != "cuda":
        return dataclasses.replace(PLANNED_FOR, name="interpreter", capability=0)
    p = torch.cuda.get_device_properties(device)
    shared = getattr(p, "shared_memory_per_block_optin", 0) or DEVICES["sm_80"].shared
    return DeviceInfo(p.name, 10 * p.major + p.minor, p.multi_processor_count, shared)


def check_device(device: torch.device) -> None:
    """Raise InputMistake where kernels cannot run on the device, Unsupported where it lacks what they need."""
    if device.type == "cpu" and interpreting():
        return
    if device.type != "cuda":
        there = "" if torch.cuda.is_available() else "; this machine has no CUDA device"
        hint = 'move the inputs to "cuda", use backend="torch", or set TRITON_INTERPRET=1 before Python starts'
        raise InputMistake(f"the Triton backend runs on CUDA tensors; these are on {device.type}{there}", hint=hint)
    found = device_info(device)
    if found.capability < 80:
        raise Unsupported(
            f"kernels need compute capability 8.0; {found.name} has {found.capability / 10}", hint='use backend="torch"'
        )


def file_of(launch: Launch) -> Path:
    """The file that holds the kernel's text, written if need be."""
    digest = hashlib.sha256(launch.text.encode()).hexdigest()[:16]
    path = kernel_folder() / f"{launch.kernel}_{digest}.py"
    if not path.exists() or path.stat().st_size != len(launch.text.encode()):
        _write(path, launch.text)
    return path


def _write(path: Path, text: str) -> None:
    """The file, which other processes see whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(name, path)


@cache
def _module(path: Path, interpret: bool) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{KERNEL_MODULES}.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with IMPORTING:
        spec.loader.exec_module(module)
    if interpret:
        from tilec.backends.triton.runtime.interpreter import prepare_interpreter

        prepare_interpreter(module)
    return module


def fields_of(described: type) -> set[str]:
    return {f.name for f in dataclasses.fields(described)}


class Address:
    """Stands for the tensor of a tensor map whose address is known only at the call."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.value = 0

    def data_ptr(self) -> int:
        return self.value


def tensor_map(d: Descriptor, tensor: torch.Tensor, rounds: bool = False) -> Any:
    """The descriptor over a tensor, as Gluon takes it, or as Triton does where it says nothing of a layout. `rounds`:
    float32 to the nearest tf32, where this Triton can."""
    base = torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + d.offset)
    if not d.layout:
        from triton.tools.tensor_descriptor import TensorDescriptor as Plain

        return Plain(base, list(d.shape), list(d.strides), list(d.block))
    with IMPORTING:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
    options = {"round_f32_to_tf32": True} if rounds and "round_f32_to_tf32" in fields_of(TensorDescriptor) else {}
    return TensorDescriptor(base, list(d.shape), list(d.strides), list(d.block), _layout(d), **options)


def _layout(d: Descriptor) -> Any:
    with IMPORTING:
        from triton.experimental.gluon import language as gl
    return eval(d.layout, {"gl": gl})


def rounds_to_tf32(parameter: str, dtype: str) -> bool:
    """Whether a map brings float32 operands to tensor cores: they cut tf32 off, so the copy must round."""
    return dtype == "float32" and not parameter.startswith("out")


def kernel_function(launch: Launch) -> Any:
    """The kernel as Triton's function."""
    key = launch.text, launch.kernel, interpreting()
    if key not in _functions:
        _functions[key] = getattr(_module(file_of(launch), interpreting()), launch.kernel)
    return _functions[key]


_functions: dict[tuple[str, str, bool], Any] = {}


def options_of(launch: Launch) -> dict[str, Any]:
    """How Triton compiles the kernel."""
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": launch.contracts}
    options |= {"launch_cooperative_grid": True} if launch.cooperative else {}
    return options | ({"maxnreg": launch.registers} if launch.registers else {})


def kernel_key(launch: Launch, device: int, arguments: Sequence[object]) -> tuple:
    """What Triton compiles a kernel for, of arguments as `specialised` says; its text first."""
    how = (launch.text, launch.kernel, launch.constants, launch.warps, launch.stages)
    plain = launch.file.kernel.unspecialized
    kinds = [
        (int, *kind[3:]) if name in plain and isinstance(kind, tuple) and kind[0] is int else kind
        for (name, _), kind in zip(launch.arguments, arguments, strict=True)
    ]
    return *how, launch.contracts, launch.cooperative, launch.registers, device, *kinds


def specialised(argument: Any) -> object:
    """What a kernel is compiled for of an argument."""
    if isinstance(argument, int):
        return type(argument), argument == 1, argument % 16 == 0, argument.bit_length() // 32, argument < 0
    if isinstance(argument, float):
        return float
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return (
        argument.base.dtype,
        tuple(argument.block_shape),
        repr(getattr(argument, "layout", None)),
        repr(getattr(argument, "round_f32_to_tf32", None)),
    )


def loses_halves(ptx: str) -> bool:
    """Whether a packed sum has one half alone that is used: ptxas (12.8, 12.9) then adds 0 in the place of a number."""
    for result in set(PACKED_SUM.findall(ptx)) if "16x2" in ptx else ():
        name = re.escape(result)
        used = len(re.findall(rf"{name}\b", ptx)) - len(re.findall(rf"add\.[su]16x2\s+{name},", ptx))
        low = len(re.findall(rf"mov\.b32\s+\{{%\w+, *_\}}, *{name};|cvt\.u16\.u32\s+%\w+, *{name};", ptx))
        high = len(re.findall(rf"mov\.b32\s+\{{_, *%\w+\}}, *{name};", ptx))
        if used and used in (low, high):
            return True
    return False


def _keep_triton_key() -> None:
    """Let Triton's key of its own version, for which it reads its whole library, be that of an earlier process as long
    as none of Triton's files has changed."""
    told = hashlib.sha256()
    for folder, inner, names in os.walk(Path(triton.__file__).parent):
        inner[:] = sorted(name for name in inner if name != "__pycache__")
        for path in sorted(os.path.join(folder, name) for name in names):
            seen = os.stat(path)
            told.update(f"{path}\0{seen.st_size}\0{seen.st_mtime_ns}\0".encode())
    stored = kernel_folder() / f"triton-{told.hexdigest()[:16]}.key"
    try:
        key = stored.read_text()
    except OSError:
        key = ""
    if not key:
        key = triton.runtime.cache.triton_key()
        with contextlib.suppress(OSError):
            _write(stored, key)
    triton.runtime.cache.triton_key = lambda: key


def _make_driver() -> None:
    """Triton's part for the device, which a C compiler makes for each of its cache directories."""
    with contextlib.suppress(Exception):  # which comes again where it is asked for
        triton.runtime.driver.active.utils  # noqa: B018


# these take as long as compiling a kernel does, and come beside the imports and the plan that are before the first one
PREPARATIONS = [threading.Thread(target=_keep_triton_key, name="triton_key", daemon=True)]
if torch.cuda.is_initialized():
    PREPARATIONS.append(threading.Thread(target=_make_driver, name="triton_driver", daemon=True))
if not interpreting():
    for thread in PREPARATIONS:
        thread.start()


def assembled(compiler: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The kernel that a compiler makes with these options, without ptxas's optimiser where that would break it."""
    for thread in PREPARATIONS:
        if thread.is_alive():
            thread.join()
    kernel = parsing(lambda: compiler(**options))
    if loses_halves(getattr(kernel, "asm", {}).get("ptx", "")):
        kernel = parsing(lambda: compiler(**options, ptx_options="--opt-level 0"))
    return kernel


def explained(launch: Launch, error: Exception) -> TileError:
    """The error of a kernel that cannot be compiled or launched, with its statement and its file."""
    functions = *launch.file.own, launch.file.kernel  # of launches in one, each has its own statement
    statement = " ".join(line.strip() for f in functions for line, _ in f.heading)
    where = f"its statement is {statement} and its source {file_of(launch)}"
    what = ", ".join(launch.statements)
    if type(error).__name__ == "OutOfResources":
        return Unsupported(f"the kernel of {what} needs more of the device than it has: {error}", hint=where)
    cause: BaseException = error
    while cause.__cause__ is not None:  # the error of a function is about its call; its cause says what is wrong
        cause = cause.__cause__
    message = str(cause).strip().splitlines()
    return InternalMistake(
        f"the kernel of {what} does not compile: {message[-1] if message else repr(cause)}", hint=where
    )


def guarded(launch: Launch, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        raise explained(launch, error) from error


def _source_of(function: Any) -> Any:
    if type(function).__name__ != "GluonJITFunction":
        return ASTSource
    with IMPORTING:
        from triton.experimental.gluon._runtime import GluonASTSource
    return GluonASTSource


def compile_for(launch: Launch, dtypes: dict[str, str], target: str) -> Any:
    """The kernel compiled for a target such as "sm_90", without a device. `dtypes`: element type of each tensor."""
    check_target(target)
    if interpreting():
        raise Unsupported("nothing is compiled while kernels are interpreted", hint="unset TRITON_INTERPRET")
    signature: dict[str, str] = {}
    constants: dict[str, object] = dict(launch.constants)
    attributes: dict[tuple[int, ...], list] = {}
    function = kernel_function(launch)
    plain = {p.name for p in function.params if p.do_not_specialize}
    for place, (name, value) in enumerate(launch.arguments):
        if isinstance(value, Descriptor):
            block = ",".join(map(str, value.block))
            layout = f",{_layout(value)!r}" if value.layout else ""
            signature[name] = f"tensordesc<{POINTER_TYPES[dtypes[value.tensor]][1:]}[{block}]{layout}>"
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif isinstance(value, Pointer):
            signature[name] = POINTER_TYPES[dtypes[value.tensor]]
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif name in plain:
            signature[name] = "i32"
        elif value == 1:
            signature[name], constants[name] = "constexpr", 1
        else:
            assert isinstance(value, int)
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
    signature.update(dict.fromkeys(dict(launch.constants), "constexpr"))
    source = _source_of(function)(function, signature, constants, attributes)
    gpu = GPUTarget("cuda", DEVICES[target].capability, 32)
    compiler = partial(triton.compile, source, target=gpu)
    return guarded(launch, lambda: assembled(lambda **options: compiler(options=options), options_of(launch)))
