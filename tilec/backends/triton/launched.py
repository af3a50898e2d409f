"""One launch, made ready: the first call goes through Triton, which compiles; later ones go to the driver's launcher.

What a launch hands over are addresses and numbers. They are worked out again only when an address has changed, which in
a loop over steps of equal shapes they hardly do, so that a repeated launch costs the comparison and the driver's call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilec.backends.triton.compiled import Address, function_of, guarded, interpreting, tensor_map
from tilec.backends.triton.plan import Descriptor, Launch, Pointer


class Launched:
    def __init__(self, launch: Launch):
        self._launch = launch
        self._function = function_of(launch)
        self._values: list[Any] = [value for _, value in (*launch.arguments, *launch.constants)]
        pointed = [v.tensor for v in self._values if isinstance(v, (Pointer, Descriptor))]
        self._names = tuple(dict.fromkeys(pointed))
        self._addresses: list[int] = []
        self._arguments: list[Any] = []
        self._run: Callable[..., Any] | None = None

    def __call__(self, tensors: dict[str, torch.Tensor], stream: int) -> None:
        if self._run is None:
            guarded(self._launch, lambda: self._first(tensors))
            return
        addresses = [tensors[name].data_ptr() for name in self._names]
        if addresses != self._addresses:
            self._arguments = self._expand(dict(zip(self._names, addresses, strict=True)))
            self._addresses = addresses
        self._run(*self._grid, stream, *self._middle, *self._arguments)

    def _first(self, tensors: dict[str, torch.Tensor]) -> None:
        launch = self._launch
        arguments: list[Any] = [value for _, value in launch.arguments]
        for place, v in enumerate(arguments):
            if isinstance(v, Pointer):
                arguments[place] = tensors[v.tensor]
            elif isinstance(v, Descriptor):
                arguments[place] = tensor_map(v, tensors[v.tensor])
        options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True}
        constants = {**dict(launch.constants), **({} if interpreting() else options)}
        kernel = self._function[launch.grid](*arguments, **constants)
        if kernel is None:
            return  # interpreted
        self._maps = {}
        for place, v in enumerate(launch.arguments):
            if isinstance(v[1], Descriptor):
                made = arguments[place]
                made.base = Address(made.base.dtype)
                self._maps[place] = (made, v[1].tensor, v[1].offset * tensors[v[1].tensor].element_size())
        self._grid = launch.grid
        self._run, self._middle, self._encode = _entry(kernel)

    def _expand(self, addresses: dict[str, int]) -> list[Any]:
        """Arguments as the launcher takes them."""
        found: list[Any] = []
        for place, v in enumerate(self._values):
            if isinstance(v, Pointer):
                found.append(addresses[v.tensor])
            elif place in self._maps:
                made, name, offset = self._maps[place]
                made.base.value = addresses[name] + offset
                found += self._encode(made, len([p for p in self._maps if p < place]))
            else:
                found.append(v)
        return found


def _entry(kernel: Any) -> tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any, int], list[Any]]]:
    """What launches a compiled kernel: a function of (grid, stream, *middle, *arguments), and how a tensor map becomes
    arguments.

    Triton 3.6's launcher is a Python object around one function of the driver module; going to that function saves as
    much as the launch costs, and encodes tensor maps only when they change. Other versions are called as they ask.
    """
    run = kernel.run
    own = getattr(run, "launch", None)
    plain = (kernel.function, kernel.packed_metadata, None, None, None)
    scratch = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    if own is None or scratch or hasattr(run, "arg_annotations"):
        return run, plain, lambda made, number: [made]
    middle = (kernel.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *plain[1:])
    if getattr(own, "__closure__", None) is None:
        return own, middle, lambda made, number: [made]
    free = dict(zip(own.__code__.co_freevars, own.__closure__, strict=True))
    if {"launcher", "tensordesc_meta"} - free.keys():
        return run, plain, lambda made, number: [made]
    from triton.backends.nvidia import driver

    metadata = free["tensordesc_meta"].cell_contents
    return (
        free["launcher"].cell_contents,
        middle,
        lambda made, number: driver.make_tensordesc_arg(made, metadata[number]),
    )
