"""Hopper kernels carried out on the CPU: the few Gluon names that they use, over NumPy, one program after the other.

TMA reads zeros and writes nothing outside a tensor, and a copy ends where it begins; a product is a matrix product.
Warps with work of their own are threads, and barriers tell two phases apart, as the chip's do: who waits for another
phase than the next one or the last gets through. What is asynchronous on the chip is not here, so missing waits for
products or stores do not show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer


class Type:
    def __init__(self, name: str) -> None:
        self.name = name
        self.primitive_bitwidth = {"float16": 16, "bfloat16": 16}.get(name, 64 if name == "int64" else 32)
        self.element_ty = self


class Value(np.ndarray):
    """An array, or a scalar of no dimensions, with the casts that kernels write."""

    def to(self, dtype: Type | None) -> Value:
        whole = dtype is not None and dtype.name in ("int32", "int64")
        return self.astype(np.int64) if whole else self


def value(x: object) -> Value:
    return np.asarray(x).view(Value)


class Address:
    def __init__(self, memory: np.ndarray, dtype: Type, at: object = 0) -> None:
        self.memory, self.dtype, self.at = memory, dtype, at

    def __add__(self, offset: object) -> Address:
        return Address(self.memory, self.dtype, self.at + offset)


class Shared:
    """A view of shared memory."""

    dtype = None  # of elements as they are here

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def index(self, k: int) -> Shared:
        return Shared(self.array[int(k)])

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.array.reshape([int(s) for s in shape]))

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.array.transpose(order))

    def load(self, layout: object) -> Value:
        return value(self.array.copy())

    def store(self, x: np.ndarray) -> None:
        self.array[...] = x


class Pieces:
    """A matrix in shared memory as its blocks, down its columns first, as a swizzled layout has them."""

    def __init__(self, array: np.ndarray, height: int, width: int) -> None:
        self.array, self.height, self.width = array, height, width

    def index(self, k: int) -> Shared:
        column, row = divmod(int(k), self.array.shape[0] // self.height)
        rows = self.array[row * self.height : (row + 1) * self.height]
        return Shared(rows[:, column * self.width : (column + 1) * self.width])


def seen_as(slabs: Shared, dtype: object, shape: Sequence[int], layout: object) -> Shared | Pieces:
    """A matrix whose columns lie in slabs, one after the other, as a swizzled layout has them; or such a matrix in
    pieces."""
    if len(shape) == 3:
        return Pieces(slabs.array.reshape(-1, slabs.array.shape[-1]), int(shape[1]), int(shape[2]))
    rows, columns = map(int, shape)
    split = slabs.array.reshape(-1, rows, slabs.array.shape[-1])
    return Shared(split.transpose(1, 0, 2).reshape(rows, columns))


class Barrier:
    """So many arrivals a phase, and the bytes announced with them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.expected = 1
        self.phase, self.arrived, self.bytes = 0, 0, 0

    def add(self, arrived: bool, count: int) -> None:
        with self.changed:
            self.arrived += arrived
            assert self.arrived <= self.expected, "one arrival too many in a phase"
            self.bytes += count
            if self.arrived == self.expected and not self.bytes:
                self.phase, self.arrived = self.phase + 1, 0
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase % 2 != parity, timeout=30), "nobody arrives"


class Barriers:
    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, k: int) -> Barrier:
        return self.all[int(k)]


class Map:
    """A tensor map: a strided view of memory."""

    def __init__(self, memory: np.ndarray, d: Descriptor, dtype: Type) -> None:
        self.view = np.lib.stride_tricks.as_strided(
            memory[d.offset :], d.shape, [s * memory.itemsize for s in d.strides]
        )
        self.dtype, self.layout, self.block_type = dtype, None, SimpleNamespace(nbytes=int(np.prod(d.block)))

    def box(self, at: Sequence[int], shape: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """What of a box at a place lies inside: slices of the view and of the box."""
        low = [max(int(a), 0) for a in at]
        high = [max(min(int(a) + s, n), b) for a, s, n, b in zip(at, shape, self.view.shape, low, strict=True)]
        inside = tuple(slice(b, h) for b, h in zip(low, high, strict=True))
        return inside, tuple(slice(b - int(a), h - int(a)) for a, b, h in zip(at, low, high, strict=True))


def copy_in(source: Map, at: Sequence[int], bar: Barrier, target: Shared, pred: object = True) -> None:
    if pred:
        assert target.array.size == source.block_type.nbytes
        target.array[...] = 0
        inside, box = source.box(at, target.array.shape)
        if all(s.stop > s.start for s in inside):
            target.array[box] = source.view[inside]
        bar.add(False, -source.block_type.nbytes)


def copy_out(target: Map, at: Sequence[int], source: Shared) -> None:
    inside, box = target.box(at, source.array.shape)
    if all(s.stop > s.start for s in inside):
        target.view[inside] = source.array[box]


def load(address: Address, mask: object = True, other: float = 0) -> Value:
    at, mask = np.broadcast_arrays(address.at, mask)
    found = np.full(at.shape, other, address.memory.dtype)
    assert (at[mask] >= 0).all() and (at[mask] < address.memory.size).all()
    found[mask] = address.memory[at[mask]]
    return value(found)


def store(address: Address, values: object, mask: object = True) -> None:
    at, mask, values = np.broadcast_arrays(address.at, mask, values)
    assert (at[mask] >= 0).all() and (at[mask] < address.memory.size).all()
    address.memory[at[mask]] = values[mask]


def run(launches: Sequence[Launch], tensors: dict[str, np.ndarray], dtypes: Mapping[str, str]) -> None:
    """Carry out launches on flat float64 arrays by name; workspaces are made as they are met."""
    for launch in launches:
        for _, a in launch.arguments:
            if isinstance(a, Pointer) and a.tensor not in tensors:
                tensors[a.tensor] = np.full(
                    dict(launch.constants)["SPLIT"] * tensors[a.tensor.rsplit(".", 1)[0]].size, np.nan
                )
        code = "\n".join(
            [*(text for _, text in launch.file.shared), *(f.text for f in (*launch.file.own, launch.file.kernel))]
        )
        place = {"number": 0, "programs": launch.grid[0]}
        for number in range(launch.grid[0]):
            place["number"] = number
            names = _names(place, launch.warps)
            exec(compile(code, launch.kernel, "exec"), names)
            given = {name: _argument(a, tensors, dtypes) for name, a in launch.arguments}
            with np.errstate(all="ignore"):
                names[launch.kernel](**given, **dict(launch.constants))


def _argument(a: object, tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str]) -> object:
    if isinstance(a, Descriptor):
        return Map(tensors[a.tensor], a, Type(dtypes[a.tensor]))
    if isinstance(a, Pointer):
        return Address(tensors[a.tensor], Type(dtypes.get(a.tensor, "float32")))
    return value(a)


def allocate(dtype: Type, shape: Sequence[int], layout: object) -> Shared | Barriers:
    sizes = [int(s) for s in shape]
    return Barriers(sizes[0]) if dtype.name == "int64" else Shared(np.full(sizes, np.nan))


def specialise(parts: Sequence[tuple[Callable[..., None], Sequence[object]]], warps: object, registers: object) -> None:
    """Every part in a thread of its own."""
    failures: list[BaseException] = []

    def work(function: Callable[..., None], arguments: Sequence[object]) -> None:
        try:
            with np.errstate(all="ignore"):
                function(*arguments)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _names(place: Mapping[str, int], warps: int) -> dict[str, object]:
    def nothing(*arguments: object, **named: object) -> None:
        pass

    def expect(bar: Barrier, count: int, pred: object = True) -> None:
        if pred:
            bar.add(True, int(count))

    def arrive(bar: Barrier, count: int, pred: object = True) -> None:
        if pred:
            bar.add(True, 0)

    def wait(bar: Barrier, parity: int, pred: object = True) -> None:
        if pred:
            bar.wait(int(parity))

    def init(bar: Barrier, count: int) -> None:
        bar.expected = int(count)

    def multiplied(a: object, b: Shared, acc: np.ndarray, use_acc: bool = True, is_async: bool = False) -> Value:
        product = (a.array if isinstance(a, Shared) else np.asarray(a)) @ b.array
        return value(acc + product if use_acc else product)

    def waited(num_outstanding: int, deps: Sequence[np.ndarray]) -> object:
        return deps[0] if len(deps) == 1 else tuple(deps)

    language = SimpleNamespace(
        constexpr=object,
        int64=Type("int64"),
        int32=Type("int32"),
        int1=Type("int1"),
        float32=Type("float32"),
        float16=Type("float16"),
        bfloat16=Type("bfloat16"),
        float64=Type("float64"),
        PropagateNan=SimpleNamespace(ALL=None),
        num_warps=lambda: warps,
        program_id=lambda axis: value(place["number"]),
        num_programs=lambda axis: value(place["programs"]),
        cdiv=lambda a, b: value(-(-a // b)),
        minimum=lambda a, b, propagate_nan=None: value(np.minimum(a, b)),
        maximum=lambda a, b, propagate_nan=None: value(np.maximum(a, b)),
        exp2=lambda x: value(np.exp2(x)),
        rsqrt=lambda x: value(1 / np.sqrt(x)),
        log2=lambda x: value(np.log2(x)),
        div_rn=lambda a, b: value(np.divide(a, b)),
        to_tensor=value,
        sum=lambda x, axis: value(np.sum(x, axis)),
        full=lambda shape, content, dtype, layout=None: value(np.full([int(s) for s in shape], content)),
        where=lambda c, a, b: value(np.where(c, a, b)),
        arange=lambda a, b, layout=None: value(np.arange(a, b)),
        abs=lambda x: value(np.abs(x)),
        max=lambda x, axis: value(np.max(x, axis)),
        zeros=lambda shape, dtype, layout: value(np.zeros([int(s) for s in shape])),
        static_range=range,
        range=lambda *bounds, **how: range(*bounds),
        load=load,
        store=store,
        convert_layout=lambda x, layout: x,
        allocate_shared_memory=allocate,
        warp_specialize=specialise,
        NVMMADistributedLayout=nothing,
        NVMMASharedLayout=SimpleNamespace(get_default_for=nothing),
        BlockedLayout=nothing,
        SliceLayout=nothing,
        DotOperandLayout=nothing,
        jit=lambda *a, **k: a[0] if a else lambda f: f,
    )
    barriers = SimpleNamespace(
        MBarrierLayout=nothing, init=init, invalidate=nothing, wait=wait, expect=expect, arrive=arrive
    )
    return {
        "range": lambda *ends: map(value, range(*map(int, ends))),
        "gl": language,
        "tl": language,
        "gluon": language,
        "triton": language,
        "mbarrier": barriers,
        "tma": SimpleNamespace(store_wait=nothing),
        "seen_as": seen_as,
        "copy_in": copy_in,
        "copy_out": copy_out,
        "fence_async_shared": nothing,
        "warpgroup_mma_init": lambda x: x,
        "warpgroup_mma_wait": waited,
        "warpgroup_mma": multiplied,
    }
