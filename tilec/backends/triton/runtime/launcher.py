"""What a kernel's name stands for in the text of a call: the first call goes through Triton, which compiles; later ones
go to the driver's launcher with addresses and numbers. Tensor maps are encoded for addresses that have not been seen.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import triton

from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer
from tilec.backends.triton.runtime.compiled import (
    Address,
    assembled,
    guarded,
    interpreting,
    kernel_function,
    kernel_key,
    options_of,
    rounds_to_tf32,
    specialised,
    tensor_map,
)
from tilec.backends.triton.runtime.driver import (
    EncodeMap,
    LaunchEntry,
    driver_launch,
    kinds_of,
    launch_function,
    make_context_current,
    place_of_map,
)
from tilec.native import expected, native

TENSORS = (Pointer, Descriptor)
NUMBER_TYPES = ("i32", "i64", "i1", "u1", "fp32")  # types of the numbers that kernels take
MOST_KNOWN = 1024  # sets of addresses whose arguments are kept
MOST_DRIVEN = 100  # launches by the driver from Python, after which Triton's launcher is worth its compiler
LAUNCHER_LOADING = threading.Lock()  # Triton 3.6 loads all launchers as extension modules of one name, in one module
INTERPRETING = threading.Lock()  # the interpreter keeps the program it is at, and what it patches, for the process


class Launched:
    """A launch as a program's text has it: `by_grid[grid](*arguments, **constants, **options)`. Arguments are tensors,
    addresses for those of the types `placed`, by name, and numbers. `device`: the number of the one it is for."""

    def __init__(self, launch: Launch, placed: Mapping[str, str] | None = None, device: int = 0):
        self._launch, self._device = launch, device
        self._function = kernel_function(launch)
        self._values: list[Any] = [value for _, value in (*launch.arguments, *launch.constants)]
        self._names = launch.tensors
        self._placed = {name: placed[name] for name in self._names if placed and name in placed}
        self.by_grid: dict[tuple[int, int, int], Callable[..., None]] = {launch.grid: self._first_call}
        self._ready: dict[tuple[int, ...], list[Any]] = {}  # by addresses
        self._maps: dict[int, tuple[Any, str, int, int]] = {}
        self._encoded: dict[int, tuple[int, list[Any]]] = {}  # the last address of each map and what became of it
        self._compiled_kernel: CompiledKernel | None = None
        self._encode: Callable[[Any, int], list] | None = None  # a tensor map's arguments, for this launcher
        self._lasting = False
        self._lock = threading.Lock()

    def __call__(self, tensors: Mapping[str, torch.Tensor], stream: int) -> None:
        self.by_grid[self._launch.grid](
            *self._given(tensors), **dict(self._launch.constants), **options_of(self._launch)
        )

    def _first_call(self, *given: Any, **options: Any) -> None:
        """A call that compiles, or any that is interpreted."""
        grid = self._launch.grid
        if interpreting():
            with INTERPRETING:
                guarded(self._launch, lambda: self._function[grid](*given, **options))
            return
        with self._lock:  # autograd runs backward passes in threads of its own
            arguments = zip(given, (v for _, v in self._launch.arguments), strict=True)
            self._compile(
                [self._like(v.tensor) if isinstance(v, Pointer) and type(x) is int else x for x, v in arguments]
            )
            self._take_launcher()
        self.by_grid[grid](*given, **options)

    def _like(self, placed: str) -> torch.Tensor:
        """A tensor like one whose address is given."""
        return torch.empty(0, dtype=getattr(torch, self._placed[placed]), device="meta")

    @property
    def ready(self) -> bool:
        return self._compiled_kernel is not None

    def compiled(self, **numbers: int) -> DriverLaunch | None:
        """The compiled kernel as the driver launches it, with these numbers among its arguments; None where Triton does
        more than that."""
        ready = self._compiled_kernel
        if ready is None:
            return None
        arguments = [
            (name, self._encoded_map(place, ready.encoder) if place in self._maps else numbers.get(name, v))
            for place, (name, v) in enumerate(self._launch.arguments)
        ]
        return None if any(v is None for _, v in arguments) else ready.given(arguments)

    def _encoded_map(self, place: int, encode: Callable[[Any, int], list] | None) -> EncodedMap | None:
        """A tensor map as the kernel takes it: the driver's, then sizes and strides. None where it is not Triton
        3.6's."""
        made, name, offset, number = self._maps[place]
        if encode is None:
            return None
        with self._lock:
            somewhere = torch.empty(1, device="cuda")
            before, made.base.value = made.base.value, somewhere.data_ptr()
            make_context_current()
            encoded, *numbers = encode(made, number)
            made.base.value = before
        if (at := place_of_map(encoded)) is None:
            return None
        types = [kind for kind in ("i32", "i64") for _ in range(len(numbers) // 2)]
        return EncodedMap(name, offset, ctypes.string_at(at, 128), tuple(zip(types, numbers, strict=True)))

    def compile(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compile for tensors of these types and alignments, of which nothing is read."""
        with self._lock:
            self._compile(self._given(tensors))

    def _given(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        return [tensors[v.tensor] if isinstance(v, TENSORS) else v for _, v in self._launch.arguments]

    def _take_launcher(self) -> None:
        ready = self._compiled_kernel
        if self._encode is None and ready is not None:
            self._take(*(self._by_driver(ready) or guarded(self._launch, lambda: ready.launcher)))

    def _take(self, run: Callable[..., Any], middle: Sequence[Any], encode: EncodeMap, lasting: bool) -> None:
        self._encode, self._lasting, self._ready, self._encoded = encode, lasting, {}, {}
        self.by_grid[self._launch.grid] = self._direct(run, middle)

    def _by_driver(self, ready: CompiledKernel) -> LaunchEntry | None:
        """What launches the first calls, while the library that launches later ones is being built."""
        encode = ready.encoder if self._maps else _as_it_is
        if ready.function is None or ready.parameters is None or encode is None or not expected():
            return None
        run = driver_launch(ready.function, ready.kernel.metadata, kinds_of(self._launch, ready.parameters))
        if run is None:
            return None
        left = iter(range(MOST_DRIVEN))

        def launch(*given: Any) -> None:
            if next(left, None) is None:
                self._take(*guarded(self._launch, lambda: ready.launcher))
            run(*given)

        return launch, (), encode, True

    def _direct(self, run: Callable[..., Any], middle: Sequence[Any]) -> Callable[..., None]:
        """What launches the compiled kernel."""
        arguments = self._launch.arguments
        taken, first = [f"p{k}" for k in range(len(arguments))], dict[str, str]()
        for k, (_, v) in enumerate(arguments):
            if isinstance(v, TENSORS) and v.tensor not in self._placed:
                taken[k] = first.setdefault(v.tensor, f"a{k}")
        if self._maps:
            taken = [f"*arguments({', '.join(first[name] for name in self._names)})"]
        constants = tuple(name for name, _ in self._launch.constants)
        asked = tuple(first.values())
        make = launch_function(
            len(arguments), asked, (*taken, *(() if self._maps else constants)), constants, len(middle)
        )
        stream = torch._C._cuda_getCurrentRawStream
        return make(run, *self._launch.grid, stream, self._device, *middle, self._arguments)

    def _arguments(self, *addresses: int) -> list[Any]:
        """Arguments of a kernel that takes tensor maps, for these of its tensors."""
        arguments = self._ready.get(addresses)
        if arguments is None:
            make_context_current()
            with self._lock:
                arguments = self._expand(dict(zip(self._names, addresses, strict=True)))
                if not self._lasting or len(self._ready) >= MOST_KNOWN:
                    self._ready = {}
                self._ready[addresses] = arguments
        return arguments

    def assemble(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compile for such tensors without a word to the device: Triton, asked again, has the kernel at hand."""
        given = zip(self._launch.arguments, self._given(tensors), strict=True)
        arguments = [tensor_map(v, x, _rounds(n, x)) if isinstance(v, Descriptor) else x for (n, v), x in given]
        if _kernels.get(self._key(arguments)) is None:
            guarded(self._launch, partial(self._assembled, arguments))

    def _compile(self, given: Sequence[Any]) -> None:
        """Compile for these arguments, unless that has been done."""
        if self._compiled_kernel is None:
            guarded(self._launch, partial(self._compile_for, given))

    def _compile_for(self, given: Sequence[Any]) -> None:
        launch, arguments, rounded = self._launch, list(given), list[bool]()
        for place, (name, v) in enumerate(launch.arguments):
            if isinstance(v, Descriptor):
                tensor = given[place]
                made = arguments[place] = tensor_map(v, tensor, _rounds(name, tensor))
                self._maps[place] = (made, v.tensor, v.offset * tensor.element_size(), len(rounded))
                rounded.append(_rounds(name, tensor))
        key = self._key(arguments)
        ready = _kernels.get(key)
        if ready is None:
            kernel = self._assembled(arguments)
            ready = CompiledKernel(kernel, _parameters(kernel, launch), tuple(rounded), None)
            theirs = launch.maps and ready.encoder is None or ready.parameters is None
            function = _loaded(kernel) if not theirs and (native() is not None or expected()) else None
            ready = replace(ready, function=function or ready.launcher and kernel.function)
            _kernels[key] = ready
        for made, *_ in self._maps.values():
            made.base = Address(made.base.dtype)
        self._compiled_kernel = ready

    def _assembled(self, arguments: Sequence[Any]) -> Any:
        constants, grid = dict(self._launch.constants), self._launch.grid
        return assembled(partial(self._function.warmup, *arguments, grid=grid, **constants), options_of(self._launch))

    def compiled_for(self, tensors: Mapping[str, torch.Tensor]) -> tuple:
        """What makes the kernel another one: launches of one kernel over tensors of one kind agree in it."""
        kinds = [
            (tensors[v.tensor].dtype, v.block, v.layout)
            if isinstance(v, Descriptor)
            else specialised(tensors[v.tensor] if isinstance(v, Pointer) else v)
            for _, v in self._launch.arguments
        ]
        return kernel_key(self._launch, torch._C._cuda_getDevice(), kinds)

    def known(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Is the kernel for tensors of these types and alignments compiled by now, for this launch or one before?"""
        if self._compiled_kernel is None and not self._launch.maps:
            arguments = [tensors[v.tensor] if isinstance(v, Pointer) else v for _, v in self._launch.arguments]
            self._compiled_kernel = None if interpreting() else compiled_kernel(self._key(arguments))
        return self.ready

    def _key(self, arguments: Sequence[Any]) -> tuple:
        """What Triton compiles a kernel for."""
        return kernel_key(self._launch, torch._C._cuda_getDevice(), [specialised(a) for a in arguments])

    def _expand(self, addresses: dict[str, int]) -> list[Any]:
        """Arguments as the launcher takes them."""
        found: list[Any] = []
        for place, v in enumerate(self._values):
            if isinstance(v, Pointer):
                found.append(addresses[v.tensor])
            elif place in self._maps:
                made, name, offset, number = self._maps[place]
                address = addresses[name] + offset
                known, encoded = self._encoded.get(place, (0, []))
                if known != address:
                    assert self._encode is not None
                    made.base.value = address
                    encoded = self._encode(made, number)
                    self._encoded[place] = address, encoded
                found += encoded
            else:
                found.append(v)
        return found


@dataclass(frozen=True)
class EncodedMap:
    """A tensor map over some address, which is to be that of a tensor and so many bytes; `numbers` are its sizes and
    strides, with types, which a kernel takes after it."""

    tensor: str
    offset: int
    encoded: bytes
    numbers: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel and its handle on the device. `parameters`: the types of those of its arguments that it takes, None
    where Triton does more than launch it; `rounded`: of its tensor maps, those that round."""

    kernel: Any
    parameters: Mapping[str, str] | None
    rounded: tuple[bool, ...]
    function: int | None

    @cached_property
    def launcher(self) -> LaunchEntry:
        """What launches it in Python (`_entry`), for which Triton runs a C compiler."""
        with LAUNCHER_LOADING:
            return _entry(self.kernel, self.rounded)

    @cached_property
    def encoder(self) -> Callable[[Any, int], list] | None:
        """How a tensor map becomes arguments, without a launcher; None where the map is not Triton 3.6's."""
        return _encoder(getattr(self.kernel.metadata, "tensordesc_meta", None), self.rounded)

    def given(self, arguments: Iterable[tuple[str, Any]]) -> DriverLaunch | None:
        """How the driver launches it with these arguments, tensor maps among them encoded."""
        if self.parameters is None or self.function is None:
            return None
        taken: list[tuple[str, Any]] = []
        for name, v in arguments:
            if name in self.parameters:
                taken += [("map", v), *v.numbers] if isinstance(v, EncodedMap) else [(self.parameters[name], v)]
        how, scratch = self.kernel.metadata, [("i64", 0), ("i64", 0)]
        return self.function, 32 * how.num_warps, how.shared, how.launch_cooperative_grid, [*taken, *scratch]


# a handle, threads, bytes of shared memory, whether all programs run at once, and arguments with their types
DriverLaunch = tuple[int, int, int, bool, list[tuple[str, Any]]]

_kernels: dict[tuple, CompiledKernel] = {}  # launches of other sizes share them


def compiled_kernel(key: tuple) -> CompiledKernel | None:
    """The kernel of a `kernel_key`, once it is compiled."""
    return _kernels.get(key)


def _loaded(kernel: Any) -> int | None:
    """The handle of a kernel's code on the device, without Triton's launcher; None where Triton has a word to say."""
    device, how = torch._C._cuda_getDevice(), kernel.metadata
    try:
        utils = triton.runtime.driver.active.utils
        if how.shared > utils.get_device_properties(device)["max_shared_mem"]:
            return None
        _, function, _, _, most = utils.load_binary(kernel.name, kernel.kernel, how.shared, device)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
    return function if 32 * how.num_warps <= most else None


def _parameters(kernel: Any, launch: Launch) -> Mapping[str, str] | None:
    how, types = kernel.metadata, kernel.src.signature
    if how.num_ctas != 1 or how.global_scratch_size or how.profile_scratch_size or how.launch_pdl:
        return None
    given = [(name, v) for name, v in launch.arguments if types.get(name) != "constexpr"]
    if any(types.get(name) not in NUMBER_TYPES for name, v in given if not isinstance(v, Pointer | Descriptor)):
        return None
    count = sum(1 + 2 * len(v.shape) if isinstance(v, Descriptor) else 1 for _, v in given)
    text = kernel.asm.get("ptx", "")
    declared = text.partition(".entry")[2].partition(")")[0].count(".param")
    # two pointers to scratch come after them
    return {name: types.get(name) for name, _ in given} if declared == count + 2 else None


def _rounds(parameter: str, tensor: torch.Tensor) -> bool:
    return rounds_to_tf32(parameter, str(tensor.dtype).removeprefix("torch."))


def _as_it_is(made: Any, number: int) -> list:
    return [made]


TFLOAT32 = 11  # the driver's name of a map's element type that is rounded as it is copied


def _entry(kernel: Any, rounded: Sequence[bool]) -> LaunchEntry:
    """What launches a compiled kernel: a function of (grid, stream, *middle, *arguments), how a tensor map becomes
    arguments, and whether these hold the address that the map had then (or the one that it has at the launch).

    Triton 3.6's launcher is a Python object around one function of the driver module; going to that function saves as
    much as the launch costs, encodes tensor maps only when they change, and lets them round. Other versions are called
    as they ask.
    """
    run = kernel.run
    own = getattr(run, "launch", None)
    plain = (kernel.function, kernel.packed_metadata, None, None, None)
    scratch = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    if own is None or scratch or hasattr(run, "arg_annotations"):
        return run, plain, _as_it_is, False
    middle = (kernel.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *plain[1:])
    if getattr(own, "__closure__", None) is None:
        return own, middle, _as_it_is, False
    free = dict(zip(own.__code__.co_freevars, own.__closure__, strict=True))
    known = free["tensordesc_meta"].cell_contents if "tensordesc_meta" in free else None
    encode = _encoder(known, rounded)
    if encode is None or "launcher" not in free:
        return run, plain, _as_it_is, False
    return free["launcher"].cell_contents, middle, encode, True


def _encoder(known: Sequence[Any] | None, rounded: Sequence[bool]) -> Callable[[Any, int], list] | None:
    """How the maps of a kernel, of which Triton 3.6 says this, become arguments."""
    from triton.backends.nvidia import driver

    make = getattr(driver, "make_tensordesc_arg", None)
    if make is None or make.__code__.co_argcount != 2 or known is None or len(known) != len(rounded):
        return None
    types = [{**m, "elem_type": TFLOAT32} if r and m else m for m, r in zip(known, rounded, strict=True)]
    return lambda made, number: make(made, types[number])
