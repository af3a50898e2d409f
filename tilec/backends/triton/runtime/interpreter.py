"""What Triton's interpreter lacks: the device library, computed by torch on the CPU, a splat that keeps truth, casts
and products of bfloat16, numbers as bounds of loops, and reductions and scans by functions of our own that do not go
element by element."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, ScanOps, TensorHandle

LIBDEVICE_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {"rint": torch.round, "fast_dividef": torch.div}
WRITTEN_AS_INSTRUCTIONS = {"exp_": "exp", "share_exp_": "exp"}  # of the library, while kernels are interpreted


class InterpretedLibrary:
    """Stands for `triton.language.extra.libdevice` while kernels are interpreted: the same names, elementwise."""

    def __getattr__(self, name: str) -> Callable[..., tl.tensor]:
        function = LIBDEVICE_FUNCTIONS.get(name) or getattr(torch, name)
        return lambda *arguments: _apply(function, arguments)


def _apply(function: Callable[..., torch.Tensor], arguments: tuple[tl.tensor, ...]) -> tl.tensor:
    arrays = np.broadcast_arrays(*(a.handle.data for a in arguments))
    data = function(*(torch.from_numpy(np.array(a)) for a in arrays)).numpy()
    widest = max(arguments, key=lambda a: a.handle.data.size)
    return tl.tensor(TensorHandle(data.astype(arrays[0].dtype), widest.handle.dtype), widest.type)


def _splat(builder: Any, block: Any, scalar: TensorHandle) -> TensorHandle:
    """The interpreter labels a comparison with its operands' type, and its own splat converts to that."""
    data = np.full(block.shape, scalar.data.reshape(-1)[0], dtype=scalar.data.dtype)
    return TensorHandle(data, tl.int1 if data.dtype == bool else scalar.dtype.scalar)


OWN_DOT, OWN_CAST = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl
OWN_TENSOR_PATCH = interpreter._patch_lang_tensor


def _widened(x: TensorHandle) -> TensorHandle:
    """The interpreter holds bfloat16 as its 16 bits: these as float32, anything else as it is."""
    if not x.dtype.scalar.is_bf16():
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _dot(self: Any, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
    return OWN_DOT(self, _widened(a), _widened(b), *rest)


def _cast(self: Any, source: TensorHandle, target: tl.dtype) -> TensorHandle:
    """The interpreter's own takes bfloat16's bits for a number, and to bfloat16 it cuts off what hardware rounds."""
    if not target.scalar.is_bf16():
        return OWN_CAST(self, _widened(source), target)
    widened = OWN_CAST(self, _widened(source), tl.float32)
    data = torch.from_numpy(np.array(widened.data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return TensorHandle(data, target.scalar)


def _reduce(self: Any, blocks: tuple[tl.tensor, ...]) -> list[tl.tensor]:
    """Neighbours first, all pairs at once: reduced dimensions are powers of two."""
    assert self.axis is not None
    parts = [np.moveaxis(b.handle.data, self.axis, 0) for b in blocks]
    while len(parts[0]) > 1:
        halves = [
            self.to_tensor(np.ascontiguousarray(p[k::2]), b.dtype)
            for k in (0, 1)
            for p, b in zip(parts, blocks, strict=True)
        ]
        made = self.combine_fn.fn(*halves)
        parts = [m.handle.data for m in (made if isinstance(made, tuple) else (made,))]
    kept = [np.expand_dims(p[0], self.axis) if self.keep_dims else p[0] for p in parts]
    return [self.to_tensor(p, b.dtype) for p, b in zip(kept, blocks, strict=True)]


def _scan(self: Any, operands: list[tl.tensor]) -> list[tl.tensor]:
    """Each state with the one 1, 2, 4, ... places before it, as hardware does; states that have none stay."""
    axis, types = self.axis, [x.dtype for x in operands]
    states = [np.array(x.handle.data) for x in operands]
    count, distance = states[0].shape[axis], 1
    place = np.arange(count).reshape([-1 if d == axis else 1 for d in range(states[0].ndim)])
    while distance < count:
        parts = [*(np.roll(s, distance, axis) for s in states), *states]
        found = self.combine_fn.fn(*(self.to_tensor(x, t) for x, t in zip(parts, types * 2, strict=True)))
        found = found if isinstance(found, tuple) else (found,)
        pairs = zip(states, found, strict=True)
        states = [np.where(place >= distance, f.handle.data.astype(s.dtype), s) for s, f in pairs]
        distance *= 2
    return [self.to_tensor(s, t) for s, t in zip(states, types, strict=True)]


BUILTINS: dict[object, list[tuple[str, Any]]] = {}


def _patch_builtins(module: object, *scope: Any) -> None:
    """The interpreter's own goes through all that a module has, at each call of each function."""
    if module not in BUILTINS:
        found = [(name, m) for name, m in inspect.getmembers(module) if tl.core.is_builtin(m)]
        if not found:  # all are patched
            return
        BUILTINS[module] = found
    for name, member in BUILTINS[module]:
        if getattr(module, name) is member:
            interpreter._patch_attr(module, name, member, *scope)


def _patch_tensor(tensor: Any, *scope: Any) -> None:
    """Triton 3.6 makes an integer of an array of one element, which NumPy 2.4 refuses."""
    OWN_TENSOR_PATCH(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())


def prepare_interpreter(module: Any) -> None:
    """Let the module's kernels be interpreted."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # each operation is repeated in 64 bits to find overflow, of which nothing is said
        builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_builtin = _patch_builtins
    interpreter._patch_lang_tensor = _patch_tensor
    InterpreterBuilder.create_splat = _splat  # type: ignore[method-assign]
    InterpreterBuilder.create_dot = _dot  # type: ignore[method-assign]
    InterpreterBuilder.cast_impl = _cast  # type: ignore[method-assign]
    ReduceOps.generic_reduce = _reduce  # type: ignore[method-assign]
    ScanOps.generic_scan = _scan  # type: ignore[method-assign]
    module.libdevice = library = InterpretedLibrary()
    vars(module).update({name: getattr(library, called) for name, called in WRITTEN_AS_INSTRUCTIONS.items()})
